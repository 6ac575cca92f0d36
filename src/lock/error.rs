//! The one error type.
//!
//! Busy and not-held are answers, not errors. For a lock the first question after a failure is
//! whether the step happened all the same: [`Effect`] says so.

use std::{error, fmt};

use super::Key;

/// A result with the one [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in the run policy that decide what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The store can't be reached, or refuses for now; asking again may help.
    Unavailable,
    /// No answer in time; asking again may help.
    Timeout,
    /// Credentials, rights or a certificate were refused.
    Denied,
    /// The configuration is wrong.
    Config,
    /// The store holds a newer layout than this version can read.
    Layout,
    /// The request is wrong in itself.
    Usage,
    /// This backend can't do what is asked.
    Unsupported,
    /// What was read is malformed, or something that is no lock is stored under the key.
    Data,
    /// A bug in dlock.
    Internal,
}

/// Whether the failed step happened in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It did not happen and will not.
    NotApplied,
    /// It happened; what failed came after.
    Applied,
    /// It may have happened, or may still happen.
    Unknown,
}

/// A failure: what, during which operation, on which key, and what to do about it.
///
/// Messages are lower-case without a full stop and never contain a secret.
#[derive(Debug)]
pub struct Error {
    /// What went wrong.
    pub kind: Kind,
    /// Whether the step happened.
    pub effect: Effect,
    /// What was being done: `acquire`, `renew`, …
    pub operation: Option<&'static str>,
    /// The store, as a redacted URL.
    pub backend: Option<String>,
    /// The lock that it was about.
    pub key: Option<Key>,
    /// What happened, in one line.
    pub message: String,
    /// What to do next, in one line.
    pub hint: Option<String>,
    /// The error underneath.
    pub source: Option<Box<dyn error::Error + Send + Sync>>,
}

impl Error {
    /// An error that had no effect in a store.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            effect: Effect::NotApplied,
            operation: None,
            backend: None,
            key: None,
            message: message.into(),
            hint: None,
            source: None,
        }
    }

    /// Says whether the step happened.
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// Says what was being done.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.operation = Some(operation);
        self
    }

    /// Names the store; `url` must be redacted already.
    #[must_use]
    pub fn backend(mut self, url: impl Into<String>) -> Self {
        self.backend = Some(url.into());
        self
    }

    /// Names the lock.
    #[must_use]
    pub fn key(mut self, key: &Key) -> Self {
        self.key = Some(key.clone());
        self
    }

    /// Says what was being done in which store, and to which lock if it was one.
    #[must_use]
    pub fn about(self, operation: &'static str, url: &str, key: Option<&Key>) -> Self {
        Self { operation: Some(operation), backend: Some(url.to_owned()), key: key.cloned().or(self.key), ..self }
    }

    /// Says what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Keeps the error underneath; its text is not printed unless asked for with `-v`.
    #[must_use]
    pub fn source(mut self, source: impl Into<Box<dyn error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Whether asking again may help.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, Kind::Unavailable | Kind::Timeout)
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
        self.source.as_deref().map(|e| e as &(dyn error::Error + 'static))
    }
}
