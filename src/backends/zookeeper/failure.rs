//! Converts errors of ZooKeeper, the network and TLS to the one error type.

use super::wire::{Code, Reply, WireReply};
pub(super) use crate::backends::net::broken;
use crate::lock::{Effect, Error, Kind, Origin};

/// Why a request failed, with the cases that callers distinguish.
#[derive(Debug)]
pub(super) enum Fault {
    /// The session is over, and its ephemeral nodes are gone.
    Expired,
    Error(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// For callers to which the end of a session means nothing in particular.
impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Expired => Self::new(
                Kind::Unavailable,
                "the server ended the session while it was in use",
            )
            .effect(Effect::Unknown),
            Fault::Error(error) => error,
        }
    }
}

/// The oldest servers that have every feature that dlock needs.
pub(super) const OLDEST: &str = "ZooKeeper 3.5 at least";

/// The result of a request over a session.
pub(super) type ZkResult<T> = Result<T, Fault>;

/// Returns the error for a denial that no caller handles. Nothing of a refused request was applied.
pub(super) fn refused(code: &Code) -> Error {
    let unavailable = |message: &str| Error::new(Kind::Unavailable, message);
    match code {
        Code::NoAuth => Error::new(Kind::Denied, "the user has not all the rights that dlock needs on the lock's nodes")
            .hint("`getAcl` on the server shows whose they are; ?auth=digest with a user in the URL logs in"),
        Code::InvalidAcl => {
            Error::new(Kind::Denied, "the server takes no ACL of this user").hint("?auth=digest needs the user and the password")
        }
        Code::SessionMoved => unavailable("the session went on by way of another server").effect(Effect::Unknown),
        Code::Throttled => unavailable("the server has more requests than it takes"),
        Code::QuotaExceeded => unavailable("a quota of the server is used up").hint("`listquota` and `setquota` show and raise it"),
        Code::NoChildren => {
            Error::new(Kind::Data, "the node of this name is ephemeral: it belongs to a session of another program, and is no lock")
                .hint("take another key or --namespace")
        }
        Code::Other(what) => unavailable(&format!("the server refused for now: {what}")),
        Code::NoNode | Code::NodeExists | Code::NotEmpty | Code::BadVersion | Code::Unimplemented => unsettled(),
    }
}

/// Returns the error for an answer that has no meaning for its request.
pub(super) fn unexpected(answer: Option<WireReply>) -> Error {
    match answer {
        Some(Err(code) | Ok(Reply::RolledBack { code, .. })) => refused(&code),
        _ => unreadable(),
    }
}

/// Returns the error for a server that lacks features that locks need.
pub(super) fn too_old() -> Error {
    Error::new(
        Kind::Config,
        "the server is ZooKeeper 3.4 or older, which has no containers for locks to lie in",
    )
    .hint(OLDEST)
}

/// Returns the error for a server that is cut off from its ensemble, and only reads.
pub(super) fn read_only() -> Error {
    Error::new(
        Kind::Unavailable,
        "the server is cut off from its ensemble, and takes no writes",
    )
    .origin(Origin::WrongServer)
}

/// Returns the error for a server that requires another login.
pub(super) fn login_refused() -> Error {
    Error::new(Kind::Denied, "the server refused the login")
        .hint("?auth=digest is the scheme that dlock knows; the user is in the URL, the password in DLOCK_PASSWORD or --password-file")
}

/// Returns the error for an ensemble without a reachable server: nothing was applied.
pub(super) fn unreachable(error: zookeeper_client::Error) -> Error {
    Error::new(Kind::Unavailable, "none of the servers lets dlock in")
        .hint("are they running, has the ensemble a majority, and does it allow so many connections (maxClientCnxns)?")
        .source(error)
}

/// Returns the error for an answer that no version of the server gives.
pub(super) fn unreadable() -> Error {
    Error::new(Kind::Data, "the server's answer can't be understood")
        .effect(Effect::Unknown)
        .hint("is it a ZooKeeper server?")
}

/// Returns the error for nodes that change faster than they can be read. A repeated request helps.
pub(super) fn unsettled() -> Error {
    Error::new(
        Kind::Unavailable,
        "the lock's nodes change faster than they can be looked at",
    )
    .effect(Effect::Unknown)
}

/// Returns the error for a node under the lock's name that belongs to no lock.
pub(super) fn no_lock(child: &str) -> Error {
    let child: String = child
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(60)
        .collect();
    Error::new(
        Kind::Data,
        format!("the node of this name holds {child:?}, which belongs to no lock"),
    )
    .hint("another program uses this name; take another key or --namespace")
}
