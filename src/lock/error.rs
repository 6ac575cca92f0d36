//! The common error type.
//!
//! Busy and not-held are answers, not errors. The first question after a failure is whether the
//! step happened in the store: [`Effect`] answers it.

use std::{error, fmt};

use serde::Serialize;

use super::Key;

/// A result with the common [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of failure, which decides what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The store can't be reached, or refuses for now; a retry may help.
    Unavailable,
    /// No answer in time; a retry may help.
    Timeout,
    /// Credentials, rights or a certificate were refused.
    Denied,
    /// The configuration is wrong.
    Config,
    /// The store holds a newer layout than this version can read.
    Layout,
    /// The request itself is invalid.
    Usage,
    /// This backend does not support the request.
    Unsupported,
    /// The data read is malformed, or the key holds a value that is no lock.
    Data,
    /// A bug in dlock.
    Internal,
}

/// Whether the failed step happened in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The step did not happen and will not.
    NotApplied,
    /// The step happened; a later one failed.
    Applied,
    /// The step may have happened, or may still happen.
    Unknown,
}

/// Where a failure comes from, if that decides what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The store, or the way to it.
    Store,
    /// The resolver: the server's name has no address, and no server was asked.
    Resolver,
    /// A server that may not serve the request, or may not any more, such as a replica. The answer
    /// says nothing about the lock: another connection, to the address that the name has then, may
    /// reach the right server.
    WrongServer,
}

/// A failure: the cause, the operation, the key, and what to do next.
///
/// Messages are lower-case without a full stop and never contain a secret.
#[derive(Debug)]
pub struct Error {
    /// The kind of failure.
    pub kind: Kind,
    /// Whether the step happened.
    pub effect: Effect,
    /// Where the failure comes from.
    pub origin: Origin,
    /// The failed operation: `acquire`, `renew`, …
    pub operation: Option<&'static str>,
    /// The store, as a redacted URL.
    pub backend: Option<String>,
    /// The lock concerned.
    pub key: Option<Key>,
    /// What happened, in one line.
    pub message: String,
    /// What to do next, in one line.
    pub hint: Option<String>,
    /// The error underneath.
    pub source: Option<Box<dyn error::Error + Send + Sync>>,
}

impl Error {
    /// Creates an error without effect in a store.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            effect: Effect::NotApplied,
            origin: Origin::Store,
            operation: None,
            backend: None,
            key: None,
            message: message.into(),
            hint: None,
            source: None,
        }
    }

    /// Sets whether the step happened.
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// Sets where the failure comes from.
    #[must_use]
    pub fn origin(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self
    }

    /// Sets the operation.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.operation = Some(operation);
        self
    }

    /// Sets the store; `url` must be redacted already.
    #[must_use]
    pub fn backend(mut self, url: impl Into<String>) -> Self {
        self.backend = Some(url.into());
        self
    }

    /// Sets the lock.
    #[must_use]
    pub fn key(mut self, key: &Key) -> Self {
        self.key = Some(key.clone());
        self
    }

    /// Sets the operation, the store, and the lock if there is one.
    #[must_use]
    pub fn about(self, operation: &'static str, url: &str, key: Option<&Key>) -> Self {
        Self {
            operation: Some(operation),
            backend: Some(url.to_owned()),
            key: key.cloned().or(self.key),
            ..self
        }
    }

    /// Sets the hint: what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets the underlying error. Its text is printed only with `-v`.
    #[must_use]
    pub fn source(mut self, source: impl Into<Box<dyn error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Whether a retry may help, over a fresh connection if [`Error::ends_connection`] says so.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, Kind::Unavailable | Kind::Timeout) || self.origin == Origin::WrongServer
    }

    /// Whether a server that answered earlier requests of this process may answer them again:
    /// rights and passwords are changed, and databases closed for a moment, while jobs run.
    pub fn may_pass(&self) -> bool {
        self.is_transient() || matches!(self.kind, Kind::Denied | Kind::Config)
    }

    /// Whether the next request needs another connection: this one reached the wrong server, or its
    /// login has not the rights.
    pub fn ends_connection(&self) -> bool {
        self.origin == Origin::WrongServer || self.kind == Kind::Denied
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = &self.key {
            write!(f, "{}: ", key.escaped())?;
        }
        if let Some(backend) = &self.backend {
            write!(f, "{backend}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.source
            .as_deref()
            .map(|e| e as &(dyn error::Error + 'static))
    }
}

/// Returns the text of an I/O error without the "(os error 2)" that Rust adds.
pub fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars
        .next()
        .map(|first| first.to_lowercase().chain(chars).collect())
        .unwrap_or_default()
}
