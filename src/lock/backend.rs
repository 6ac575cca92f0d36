//! The questions that the lease core asks a store.

use std::time::Duration;

use async_trait::async_trait;

use super::{Capabilities, Fence, Holder, Key, LockState, Request, Result, Token, Ttl};

/// A store that keeps locks.
///
/// A backend answers one question per call, once, atomically. It never retries, never waits except in
/// [`Backend::wait`], never sets time limits, prints, or reads the host's clock: expiry is judged by the store in
/// the step that grants. The core does all of the rest, once for all backends.
///
/// **Cancel safety.** The core bounds every call by dropping its future. The call may then have taken effect,
/// or may still take effect; the backend must answer the next call all the same, by connecting anew if need be.
///
/// **Errors** say by [`crate::lock::Effect`] whether the step happened. A request that was sent and not answered
/// is `Unknown`.
#[async_trait(?Send)]
pub trait Backend {
    /// What this backend can do; known without I/O.
    fn capabilities(&self) -> &Capabilities;

    /// The store as people know it: its URL without secrets.
    fn describe(&self) -> String;

    /// Tells this store and namespace from others, for `DLOCK_HELD` ([`crate::lock::fingerprint`]).
    fn fingerprint(&self) -> u64;

    /// Opens what a guardian process must share, before it is forked. Starts no thread and no connection.
    ///
    /// # Errors
    /// As for any other call, with nothing applied.
    fn prepare(&mut self) -> Result<Option<LastResort>> {
        Ok(None)
    }

    /// Takes the lock if it is free, or enters it if `request.entry` says so.
    ///
    /// Idempotent for one token: a request whose answer was lost can be asked again, and counts once; asked
    /// again it sets the expiry anew.
    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt>;

    /// Waits until the lock may be free, at most for `at_most`. Only called after `try_acquire` said busy.
    ///
    /// A hint: waking for nothing is allowed, and not waking is covered by `at_most`.
    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake>;

    /// Leaves the queue, and passes on a wake-up that this waiter consumed without using it.
    ///
    /// Called on every way out of waiting, granted or not. A no-op if nothing was queued.
    async fn abandon(&mut self, request: &Request) -> Result<()>;

    /// Extends the hold; never re-creates it, and never moves its expiry backwards.
    ///
    /// `ttl` counts from now by the store's clock; `None` means the TTL that the hold was taken with.
    async fn renew(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>) -> Result<Renewal>;

    /// Gives the hold back, and wakes who waits if the lock becomes free.
    async fn release(&mut self, key: &Key, token: &Token, scope: Scope) -> Result<Release>;

    /// What the store knows of one lock. Read only.
    async fn inspect(&mut self, key: &Key) -> Result<LockState>;

    /// Every held lock of the namespace whose key starts with `start`, literally, by key. Read only.
    async fn list(&mut self, start: &str) -> Result<Vec<LockState>>;

    /// Creates or upgrades what the store must have before locks can be kept (a schema). Idempotent.
    async fn init(&mut self) -> Result<Init>;
}

/// Gives back what the kernel keeps for a process that is stopped; called in the guardian, once the lease ran out and
/// nothing of the command is left.
pub type LastResort = Box<dyn FnOnce()>;

/// The answer to [`Backend::try_acquire`].
#[derive(Clone, Debug)]
pub enum Attempt {
    /// The lock is ours.
    Granted(Grant),
    /// Somebody else has it.
    Busy(Busy),
    /// Only for [`crate::lock::Entry::Reenter`]: the owner to be joined does not hold the lock.
    NotHeld,
}

/// A granted hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The hold's fence; re-entry has that of the hold it enters.
    pub fence: Fence,
    /// The lease that the store granted, from the moment it granted it.
    pub ttl: Ttl,
    /// How many holds the owner has now.
    pub holds: u32,
}

/// Why a lock was not granted, and what to wait for.
#[derive(Clone, Debug, Default)]
pub struct Busy {
    /// Who has it, as far as the store knows.
    pub holders: Vec<Holder>,
    /// When the lock will be free if nobody does anything; `None` if it can't be told.
    pub expires_in: Option<Duration>,
    /// Whether a release will end [`Backend::wait`]. False for foreign holders who tell nobody.
    pub notifies: bool,
    /// The requester's place among those who wait, from 1; `None` if it isn't known.
    pub position: Option<u32>,
}

/// The answer to [`Backend::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Something happened: it is worth asking again.
    Changed,
    /// The time ran out.
    TimedOut,
}

/// The answer to [`Backend::renew`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease now lasts so long from the moment the store extended it.
    Renewed {
        /// The lease from now.
        ttl: Ttl,
        /// The fence of the hold, for callers who have only its token.
        fence: Fence,
    },
    /// The new end would be before the present one, so that nothing was changed.
    WouldShorten {
        /// What is left of the present lease.
        expires_in: Duration,
    },
    /// The token does not hold this lock.
    NotHeld,
}

/// How much a release gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This hold only; nested holds of the same owner keep the lock.
    Hold,
    /// This hold and all holds nested in it, whose processes are known to be gone.
    Tree,
}

/// The answer to [`Backend::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The lock is free.
    Released,
    /// This hold is given back; so many others of the same owner keep the lock.
    StillHeld(u32),
    /// The token does not hold this lock; nothing was changed.
    NotHeld,
}

/// The answer to [`Backend::init`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Init {
    /// The store needs nothing.
    NotNeeded,
    /// It was there already, in this version.
    UpToDate,
    /// It was created or upgraded.
    Created,
}
