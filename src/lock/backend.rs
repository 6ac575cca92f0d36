//! The trait of a store, as the lease core uses it.

use std::{future::pending, io, os::fd::OwnedFd, time::Duration};

use async_trait::async_trait;
use tokio::sync::Notify;

use super::{
    Admin, Break, Capabilities, Denial, Fence, History, Holder, Intent, Key, LockState, Note,
    Notice, ReleaseInfo, Request, Result, StoreSession, Token, Ttl, fingerprint,
};

/// A store that keeps locks.
///
/// A backend serves one request per call, once, atomically. It never retries, never waits except in
/// [`Backend::wait`], never sets time limits, prints, or reads the host's clock: the store judges
/// expiry in the step that grants. The core does the rest, once for all backends.
///
/// **Cancel safety.** The core bounds every call by dropping its future. The call may then have
/// taken effect, or may still take effect. The backend must answer the next call all the same, on a
/// new connection if necessary.
///
/// **Errors** say by [`crate::lock::Effect`] whether the step happened. A request that was sent and
/// not answered is `Unknown`. The core adds the operation, the store's URL and the key.
///
/// A call with a [`Progress`] reports each part of its answer as it arrives.
///
/// The last four calls are for holds that are more than leases: a session, a connection or a file
/// ties them to this process.
#[async_trait(?Send)]
pub trait Backend: Admin {
    /// Returns the facts about the store that need no I/O.
    fn identity(&self) -> Identity;

    /// Opens the connections that the request needs, where servers limit their number. The core
    /// calls it before it takes several locks together: a lock that it has must not wait for a
    /// connection.
    async fn connect(&mut self, _request: &Request) -> Result<()> {
        Ok(())
    }

    /// Closes the connections that [`Backend::connect`] opened. Not called while a request is under
    /// way, or its grant may exist.
    fn disconnect(&mut self) {}

    /// Takes the lock if it is free, or enters it if `request.entry` says so.
    ///
    /// The granting step judges a fresh hold by the records of earlier runs
    /// ([`RunRecord::judge`](super::RunRecord::judge)) and records it. A repeated or nested request
    /// is neither judged nor recorded.
    ///
    /// Idempotent for one token: a request whose answer was lost can be repeated, and counts once.
    /// The repeated request sets a new expiry.
    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt>;

    /// Waits until the lock may be free, at most for `at_most`. Only called after `try_acquire`
    /// said busy.
    ///
    /// A hint: it may return without a reason. `at_most` covers a wake-up that never comes.
    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake>;

    /// Leaves the queue, and passes on a wake-up that this waiter consumed without using it.
    ///
    /// Called on every way out of waiting, granted or not. A no-op if nothing was queued.
    async fn leave_queue(&mut self, request: &Request) -> Result<()>;

    /// Extends the hold; never re-creates it, and never moves its expiry backwards. With
    /// [`Intent::Probe`] it only checks that the hold exists: read only, from any process.
    ///
    /// The new TTL counts from now by the store's clock. A hold with the mark of a break is
    /// extended only for [`Intent::Drain`], and the mark then records that.
    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal>;

    /// Releases the hold, and wakes waiters if the lock becomes free. The step that frees the lock
    /// also records how the hold ended ([`Backend::history`]).
    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release>;

    /// Changes what the store keeps of a lock or of one hold. Returns false if that hold no longer
    /// exists, or if the warning was claimed before.
    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool>;

    /// Returns what the store knows of one lock. Read only.
    async fn inspect(&mut self, key: &Key) -> Result<LockState>;

    /// Returns every held lock of the namespace whose key starts literally with `start`, sorted by
    /// key. Read only.
    async fn list(&mut self, start: &str, progress: &Progress) -> Result<Vec<LockState>>;

    /// Returns the keys that start literally with `start` and for which the store keeps data, held
    /// or not, sorted by key. Read only.
    ///
    /// The list may have keys without any state to show.
    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>>;

    /// Returns the lock's history: finished holds and skipped runs. Read only.
    ///
    /// A hold that was never released is [`End::Expired`](super::End::Expired) once its lease is
    /// over, whether or not another client has taken the lock since.
    async fn history(&mut self, key: &Key) -> Result<History>;

    /// Returns what the backend noticed about the store since the last call, for people.
    fn notices(&mut self) -> Vec<Notice> {
        Vec::new()
    }

    /// Opens what the guardian must share, before dlock forks it. Starts no thread and no
    /// connection.
    ///
    /// With `command_keeps` the command's processes share it too, so that the hold lasts even if
    /// dlock and the guardian are killed at once.
    ///
    /// # Errors
    /// As for any other call, with nothing applied.
    fn prepare(&mut self, _command_keeps: bool) -> Result<Option<LastResort>> {
        Ok(None)
    }

    /// Returns duplicates of the connections that must stay open for holds to last. The guardian
    /// keeps them until the command's tree is dead, even if this process dies. It shuts them down
    /// if the lease runs out while this process is stopped.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    fn lifelines(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(Vec::new())
    }

    /// Completes when the hold may be gone before its lease is over: a session was ended, a key was
    /// deleted.
    ///
    /// A hint: the core renews at once, and relies on that answer. Cancel safe. The core calls it
    /// repeatedly while it keeps the hold, never during another call.
    async fn watch(&mut self, _key: &Key, _token: &Token) {
        pending::<()>().await;
    }

    /// Ends the session, connection or file behind the hold, and returns whether the hold is known
    /// to be over. Called only after a release of the whole hold failed.
    async fn cut(&mut self, _key: &Key, _token: &Token) -> bool {
        false
    }
}

/// Tells the core that a part of a long answer has arrived. The core gives up a store that is
/// silent, not one that has much to say.
#[derive(Debug, Default)]
pub struct Progress(Notify);

impl Progress {
    /// Reports that a part has arrived.
    pub fn part(&self) {
        self.0.notify_one();
    }

    /// Returns when a part has arrived since the last call. Cancel safe.
    pub async fn next(&self) {
        self.0.notified().await;
    }
}

/// The facts about a store that need no I/O.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The backend's capabilities.
    pub capabilities: &'static Capabilities,
    /// The store's URL without secrets, for people.
    pub url: String,
    /// Tells this store and namespace from others, for `DLOCK_HELD`.
    pub fingerprint: u64,
    /// Whether a repeated call goes to another server if the first one did not answer.
    pub has_other_servers: bool,
}

impl Identity {
    /// Returns the facts of a store with one server, identified by `parts` ([`fingerprint`]).
    pub fn new(capabilities: &'static Capabilities, url: String, parts: &[&str]) -> Self {
        Self {
            capabilities,
            url,
            fingerprint: fingerprint(parts),
            has_other_servers: false,
        }
    }
}

/// Which keys [`Backend::known`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    All,
    /// The keys whose run records may deny other runs a free lock
    /// ([`RunRecord::current_denial`](super::RunRecord::current_denial)).
    Kept,
}

/// A change to the data that a store keeps of a lock, for [`Backend::amend`].
#[derive(Clone, Copy, Debug)]
pub enum Amendment<'a> {
    /// Adds a history entry that no grant or release writes. Changes nothing about the holders.
    Note(&'a Note),
    /// Claims the warning of this level, from 1, for the hold with this fence. Only the first claim
    /// of a level or a higher one succeeds.
    Warn(Fence, u32),
    /// Marks the hold with this fence to be broken: from then on it is renewed only for draining.
    /// Touches no other hold.
    ///
    /// A repeated request replaces the mark.
    Mark(Fence, &'a Break),
    /// Frees the lock of the hold with this fence at once, with all holds nested in it, even if
    /// their commands still run. Records the hold as broken. Touches no other hold.
    Evict(Fence, &'a Break),
}

/// Releases what the kernel keeps for a stopped process. The guardian calls it once the lease is
/// over and nothing of the command is left.
pub type LastResort = Box<dyn FnOnce()>;

/// The answer to [`Backend::try_acquire`].
#[derive(Clone, Debug)]
pub enum Attempt {
    /// The lock is granted.
    Granted(Grant),
    /// Another client holds the lock.
    Busy(Busy),
    /// The lock is free, but a run record denies it to this request.
    Denied(Box<Denial>),
    /// Only for [`crate::lock::Entry::Reenter`]: the owner to join does not hold the lock.
    NotHeld,
}

/// How long a successor lets a vanished holder notice that its session is over, and kill its
/// command ([`Grant::drain_delay`]).
pub const DRAIN_DELAY: Duration = Duration::from_millis(500);

/// A granted hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The hold's fence. A nested hold has the fence of the hold that it enters.
    pub fence: Fence,
    /// The lease that the store granted, from the moment of the grant.
    pub ttl: Ttl,
    /// How many holds the owner has now.
    pub holds: u32,
    /// The drain delay: no command may start for this long, since a vanished holder may still be
    /// stopping its command.
    pub drain_delay: Duration,
    /// The session that another process needs, besides the token, to renew and release this hold;
    /// only for detached holds.
    pub session: Option<StoreSession>,
    /// The permit's number, from 0, while the hold lasts; only for
    /// [`Mode::Permits`](super::Mode::Permits).
    pub permit: Option<u32>,
}

/// Why a lock was not granted, and what to wait for.
#[derive(Clone, Debug, Default)]
pub struct Busy {
    /// The lock's holders, as far as the store knows.
    pub holders: Vec<Holder>,
    /// When the lock expires; `None` if unknown.
    pub expires_in: Option<Duration>,
    /// Whether a release ends [`Backend::wait`]. False for foreign holders that wake no waiter.
    pub notifies: bool,
    /// Whether the lock is free or held only for a moment, and another client's step prevents the
    /// grant just now. Retry at once, even in try mode.
    pub transient: bool,
    /// The requester's position in the queue, from 1; `None` if unknown.
    pub position: Option<u32>,
}

/// The answer to [`Backend::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Something changed: the core should ask again.
    Changed,
    /// The time ran out.
    TimedOut,
}

/// The answer to [`Backend::renew`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease lasts this long from the moment the store extended it.
    Renewed {
        /// The lease from now.
        ttl: Ttl,
        /// The fence of the hold, for callers who have only its token.
        fence: Fence,
    },
    /// The token holds the lock, and nothing was changed: the call was a probe, or the new end
    /// would be before the present one.
    Kept {
        /// The rest of the present lease; `None` if the store doesn't tell.
        expires_in: Option<Duration>,
    },
    /// The token does not hold this lock.
    NotHeld,
    /// The hold has the mark of a break and was not extended: its holder has to stop the command,
    /// and then release.
    Broken(Break),
}

/// The answer to [`Backend::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The lock is free.
    Released,
    /// This hold is released; this many others of the same owner keep the lock.
    StillHeld(u32),
    /// The token does not hold this lock; nothing was changed.
    NotHeld,
}
