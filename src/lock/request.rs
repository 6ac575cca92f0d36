//! What is asked for when a lock is to be taken.

use super::{Error, Key, Kind, Metadata, Result, RunPolicy, Token, Ttl};

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By one holder alone.
    Exclusive,
    /// By any number of readers, with no exclusive holder beside them.
    Shared,
    /// By up to so many holders.
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
    /// [`Kind::Usage`] if this is not all that it needs.
    pub fn check_nested(self, inner: Self) -> Result<()> {
        if self.covers(inner) { Ok(()) } else { Err(self.not_enough()) }
    }

    /// That an ancestor holds the lock in this mode, which is not what is asked for.
    pub fn not_enough(self) -> Error {
        let has = match self {
            Self::Exclusive => "has the lock alone, and no permit of it",
            Self::Shared => "has the lock together with other readers",
            Self::Permits(_) => "has one of several permits of the lock",
        };
        Error::new(Kind::Usage, format!("this would deadlock: a `dlock run` that this one runs under {has}"))
            .hint("take it that way from the start, or another key")
    }
}

/// Whether a request takes the lock anew or enters a hold that an ancestor process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The token is new.
    Fresh,
    /// The token's owner is an ancestor's; granted only while that owner holds the lock.
    Reenter,
}

/// A request for a lock. Asked again with the same token it is the same request.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // independent wishes
pub struct Request {
    /// Which lock.
    pub key: Key,
    /// What it will be renewed and released with.
    pub token: Token,
    /// For how long, by the store's clock, from when the store grants it.
    pub ttl: Ttl,
    /// Whether just that TTL was asked for: a store that learns its range late refuses it then, and clamps it otherwise.
    pub ttl_asked: bool,
    /// How.
    pub mode: Mode,
    /// In the order of asking among the waiters.
    pub fair: bool,
    /// Anew or within an ancestor's hold.
    pub entry: Entry,
    /// The hold outlives this process (`acquire`); otherwise it ends with it at the latest when the TTL does.
    pub detached: bool,
    /// Whether the requester waits when the lock is busy, and so belongs in the queue that `inspect` shows.
    pub waiting: bool,
    /// The requester, for people; `None` to leave it out.
    pub metadata: Option<Metadata>,
    /// The time of the host that asks, in ms since 1970, for stores without a clock.
    pub at_ms: Option<u64>,
    /// What it asks of the runs before it, and leaves for those after it.
    pub run_policy: Option<RunPolicy>,
}

impl Request {
    /// Asks for the lock alone, anew with a token of its own, for just that long, without waiting: to be amended by
    /// `Request { …, ..Request::new(key, ttl) }`.
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
