//! Converts errors of etcd, gRPC, the network and TLS to the one error type.
//!
//! etcd's errors are distinguished by their texts, as etcd's own clients do: one gRPC code covers
//! many errors.

use std::{
    error::{self, Error as _},
    fmt,
};

use tonic::{Code, Status};

use crate::{
    backends::kit::one_line,
    lock::{Effect, Error, Kind, Origin},
};

/// Why a request got no usable answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The lease does not exist.
    NoLease,
    /// The lease exists already.
    LeaseExists,
    /// The store accepts nothing that needs space.
    Full(Error),
    /// The member no longer knows the login.
    LoginOver(Error),
    /// This member can't serve the request, and did nothing. Another member may serve it.
    Elsewhere(Error),
    /// Neither this connection nor its member is reliable.
    Broken(Error),
    /// Every member would give the same answer.
    Refused(Error),
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::NoLease => lease_gone(),
            Trouble::LeaseExists => Self::new(Kind::Internal, "the lease exists already"),
            Trouble::Full(error)
            | Trouble::LoginOver(error)
            | Trouble::Elsewhere(error)
            | Trouble::Broken(error)
            | Trouble::Refused(error) => error,
        }
    }
}

impl From<Error> for Trouble {
    /// No member has refused anything if no connection was made: a request that was not sent must
    /// not be repeated without a part of it.
    fn from(error: Error) -> Self {
        if error.is_transient() {
            Self::Broken(error)
        } else {
            Self::Refused(error)
        }
    }
}

/// A request without an answer.
#[derive(Debug)]
pub(super) struct LostRequest {
    /// Whether the member may have received it.
    pub sent: bool,
    pub source: hyper::Error,
}

impl fmt::Display for LostRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl error::Error for LostRequest {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Returns the meaning of a gRPC status.
pub(super) fn of(status: Status) -> Trouble {
    if let Some(lost) = status
        .source()
        .and_then(|source| source.downcast_ref::<LostRequest>())
    {
        let error = Error::new(Kind::Unavailable, "the connection to the server broke");
        return if lost.sent {
            Trouble::Broken(error.effect(Effect::Unknown).source(status))
        } else {
            Trouble::Elsewhere(error.source(status))
        };
    }
    let text = status.message().to_owned();
    let says = |part: &str| text.contains(part);
    let unavailable = |message: &str| Error::new(Kind::Unavailable, message);
    if says("requested lease not found") {
        return Trouble::NoLease;
    }
    if says("lease already exists") {
        return Trouble::LeaseExists;
    }
    match status.code() {
        _ if says("invalid auth token") || says("revision of auth store is old") => Trouble::LoginOver(no_user()),
        _ if says("user name is empty") || says("user name not found") => Trouble::LoginOver(no_user()),
        _ if says("authentication failed") => Trouble::Refused(
            Error::new(Kind::Denied, "the server refused the user or the password")
                .hint("the user is in the URL (etcd://USER@HOST); the password in DLOCK_PASSWORD or --password-file"),
        ),
        _ if says("authentication is not enabled") => Trouble::Refused(
            Error::new(Kind::Denied, "the server requires no password, but one was given").hint("leave user and password out"),
        ),
        Code::PermissionDenied => Trouble::Refused(
            Error::new(Kind::Denied, "the user has not all the rights that dlock needs")
                .hint("etcdctl role grant-permission ROLE --prefix=true readwrite NAMESPACE/, and the same for NAMESPACE.meta/"),
        ),
        _ if says("database space exceeded") => Trouble::Full(
            // The members that still had space may have written the data all the same.
            unavailable("the server is out of space (NOSPACE)")
                .effect(Effect::Unknown)
                .hint("etcdctl compact, then defrag, then alarm disarm; or raise --quota-backend-bytes"),
        ),
        _ if says("too many requests") => Trouble::Elsewhere(unavailable("the server has too many requests to do")),
        _ if says("request is too large") || says("message larger than max") => Trouble::Refused(
            Error::new(Kind::Data, "the request is larger than the server takes").hint("is the --describe text very long?"),
        ),
        // By the client's own limit.
        _ if says("decoded message length too large") => Trouble::Refused(
            Error::new(Kind::Data, "the server's answer is longer than any that dlock asks for")
                .effect(Effect::Unknown)
                .hint("is it an etcd server?"),
        ),
        _ if says("too many operations") => Trouble::Refused(
            Error::new(Kind::Config, "the server lets a transaction have fewer operations than dlock needs")
                .hint("start its members with --max-txn-ops=128, which is the default"),
        ),
        _ if says("not supported for learner") => {
            Trouble::Elsewhere(unavailable("the server is a learner, which serves no client yet").origin(Origin::WrongServer))
        }
        _ if says("no leader") => Trouble::Elsewhere(
            unavailable("the server has no leader: most members of its cluster are down or cut off")
                .origin(Origin::WrongServer)
                .hint("etcdctl endpoint status --cluster shows more"),
        ),
        Code::Unimplemented => Trouble::Refused(
            Error::new(Kind::Config, "the server doesn't know a request that dlock needs").hint("dlock needs etcd 3.4 at least"),
        ),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange if says("etcdserver") => {
            Trouble::Refused(Error::new(Kind::Internal, format!("the server refused a request: {}", one_line(&text))))
        }
        Code::Unavailable if says("etcdserver") => {
            Trouble::Broken(unavailable(&format!("the server can't answer: {}", one_line(&text))).effect(Effect::Unknown))
        }
        _ => Trouble::Broken(unavailable("the connection to the server broke").effect(Effect::Unknown).source(status)),
    }
}

fn no_user() -> Error {
    Error::new(Kind::Denied, "the server wants a user and a password")
        .hint("etcd://USER@HOST, and the password in DLOCK_PASSWORD, with --password-file, or as password_file in the configuration")
}

/// Returns the error for an ended lease of a hold or a queue position.
pub(super) fn lease_gone() -> Error {
    Error::new(
        Kind::Unavailable,
        "the lease ended while the lock was being taken",
    )
    .effect(Effect::Unknown)
}

/// Returns the error for a step that other processes disturbed again and again.
pub(super) fn contended() -> Error {
    Error::new(
        Kind::Unavailable,
        "nested holds of the lock came and went meanwhile",
    )
}

/// Returns the trouble of a connection that ended before the member sent anything.
pub(super) fn never_spoke(trouble: Trouble, encrypted: bool) -> Trouble {
    match trouble {
        Trouble::Broken(error) if !encrypted && error.hint.is_none() => Trouble::Broken(
            error.hint("if the server speaks TLS there, the URL begins with etcds://"),
        ),
        trouble => trouble,
    }
}

/// Returns the error for a server that does not speak HTTP/2.
pub(super) fn no_http2(error: hyper::Error) -> Error {
    Error::new(Kind::Unavailable, "the connection to the server broke").source(error)
}

/// Returns the error for an answer that no version of the server gives.
pub(super) fn unreadable() -> Error {
    Error::new(Kind::Data, "the server's answer can't be understood")
        .effect(Effect::Unknown)
        .hint("is it an etcd server?")
}

/// Returns the error for a key of a lock whose value dlock did not write.
pub(super) fn unreadable_value(name: &[u8]) -> Error {
    let name = one_line(&String::from_utf8_lossy(name));
    Error::new(
        Kind::Data,
        format!("the value of the key {name} is not one that dlock writes"),
    )
    .hint(format!(
        "etcdctl del '{name}' removes it; its records of earlier runs are lost then"
    ))
}

/// Returns the command that removes a key.
pub(super) fn removal(name: &str) -> String {
    format!("etcdctl del '{}'", one_line(name).replace('\'', r"'\''"))
}

/// Returns the error for a key that looks like a hold and never expires.
pub(super) fn never_expires(name: &str) -> Error {
    Error::new(Kind::Data, format!("the key {} stands where a lock's holder would, and has no lease that ends it", one_line(name)))
        .hint(format!("another program or a person put it there: once that program is dead, {} frees the lock; or take another key or --namespace", removal(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lasting_error_is_a_refusal() {
        assert!(matches!(Trouble::from(unreadable()), Trouble::Refused(_)));
        assert!(matches!(
            Trouble::from(Error::new(Kind::Unavailable, "can't connect")),
            Trouble::Broken(_)
        ));
        assert!(!matches!(
            of(Status::new(
                Code::ResourceExhausted,
                "etcdserver: too many requests"
            )),
            Trouble::Refused(_)
        ));
    }

    #[test]
    fn etcds_errors_are_distinguished_by_their_texts() {
        let of = |code, text: &str| of(Status::new(code, text));
        assert!(matches!(
            of(Code::NotFound, "etcdserver: requested lease not found"),
            Trouble::NoLease
        ));
        assert!(matches!(
            of(Code::FailedPrecondition, "etcdserver: lease already exists"),
            Trouble::LeaseExists
        ));
        assert!(matches!(
            of(Code::Unauthenticated, "etcdserver: invalid auth token"),
            Trouble::LoginOver(_)
        ));
        for (text, transient, effect) in [
            ("etcdserver: no leader", true, Effect::NotApplied),
            ("etcdserver: too many requests", true, Effect::NotApplied),
            (
                "etcdserver: rpc not supported for learner",
                true,
                Effect::NotApplied,
            ),
            ("etcdserver: request timed out", true, Effect::Unknown),
            ("etcdserver: leader changed", true, Effect::Unknown),
        ] {
            let error = Error::from(of(Code::Unavailable, text));
            assert_eq!(
                (error.is_transient(), error.effect),
                (transient, effect),
                "{text}"
            );
        }
        for (code, text, kind) in [
            (
                Code::PermissionDenied,
                "etcdserver: permission denied",
                Kind::Denied,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                Kind::Denied,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: user name is empty",
                Kind::Denied,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: too many operations in txn request",
                Kind::Config,
            ),
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
                Kind::Unavailable,
            ),
        ] {
            assert_eq!(Error::from(of(code, text)).kind, kind, "{text}");
        }
    }
}
