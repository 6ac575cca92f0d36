//! The request for a lock.

use super::{Error, Key, Kind, Metadata, Result, RunPolicy, Token, Ttl};

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By one holder alone.
    Exclusive,
    /// By any number of readers, without an exclusive holder.
    Shared,
    /// By up to this many holders.
    Permits(u32),
}

impl Mode {
    /// Whether a hold of this mode is enough for a nested run that asks for `other`.
    pub const fn covers(self, other: Self) -> bool {
        match self {
            Self::Exclusive => matches!(other, Self::Exclusive | Self::Shared),
            Self::Shared => matches!(other, Self::Shared),
            Self::Permits(_) => matches!(other, Self::Permits(_)),
        }
    }

    /// Whether a request for `inner` can enter a hold of this mode, which stays as it is.
    ///
    /// # Errors
    /// [`Kind::Usage`] if this mode does not cover the request.
    pub fn check_nested(self, inner: Self) -> Result<()> {
        if self.covers(inner) {
            Ok(())
        } else {
            Err(self.not_enough())
        }
    }

    /// Returns the error that an ancestor holds the lock in this mode, which does not cover the
    /// request.
    pub fn not_enough(self) -> Error {
        let has = match self {
            Self::Exclusive => "has the lock alone, and no permit of it",
            Self::Shared => "has the lock together with other readers",
            Self::Permits(_) => "has one of several permits of the lock",
        };
        Error::new(
            Kind::Usage,
            format!("this would deadlock: a `dlock run` that this one runs under {has}"),
        )
        .hint("take it that way from the start, or another key")
    }
}

/// Whether a request takes a new hold or enters the hold of an ancestor process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The token is new.
    Fresh,
    /// The token's owner is an ancestor's; granted only while that owner holds the lock.
    Reenter,
}

/// A request for a lock. A repetition with the same token is the same request.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // independent wishes
pub struct Request {
    /// The lock.
    pub key: Key,
    /// The token for renewing and releasing.
    pub token: Token,
    /// The TTL, by the store's clock, from the moment of the grant.
    pub ttl: Ttl,
    /// Whether the user asked for exactly this TTL: a store that learns its range late then refuses
    /// it, and clamps it otherwise.
    pub ttl_asked: bool,
    /// The mode.
    pub mode: Mode,
    /// Whether waiters are served in the order of asking.
    pub fair: bool,
    /// Whether to take a new hold or to enter an ancestor's.
    pub entry: Entry,
    /// Whether the hold outlives this process (`acquire`); otherwise it ends with the process, at
    /// the latest when the TTL ends.
    pub detached: bool,
    /// Whether the requester waits when the lock is busy, and so belongs in the queue that
    /// `inspect` shows.
    pub waiting: bool,
    /// The requester, for people; `None` to leave it out.
    pub metadata: Option<Metadata>,
    /// The time of the requesting host, in ms since 1970, for stores without a clock.
    pub at_ms: Option<u64>,
    /// The run policy: the conditions on earlier runs, and the data recorded for later ones.
    pub run_policy: Option<RunPolicy>,
}

impl Request {
    /// Returns a fresh exclusive request with a token of its own and this TTL, without waiting.
    /// Extend it with `Request { …, ..Request::new(key, ttl) }`.
    pub fn new(key: Key, ttl: Ttl) -> Self {
        Self {
            key,
            token: Token::random(),
            ttl,
            ttl_asked: true,
            mode: Mode::Exclusive,
            fair: false,
            entry: Entry::Fresh,
            detached: false,
            waiting: false,
            metadata: None,
            at_ms: None,
            run_policy: None,
        }
    }
}
