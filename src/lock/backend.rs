//! The questions that the lease core asks a store.

use std::{future::pending, io, os::fd::OwnedFd, time::Duration};

use async_trait::async_trait;

use super::{
    Admin, Break, Capabilities, Denial, Fence, History, Holder, Intent, Key, LockState, Note, ReleaseInfo, Request, Result, Session, Token,
    Ttl, fingerprint,
};

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
/// is `Unknown`. The core adds the operation, the store's URL and the key.
#[async_trait(?Send)]
pub trait Backend: Admin {
    /// Returns what is known of the store without I/O.
    fn identity(&self) -> Identity;

    /// Takes the lock if it is free, or enters it if `request.entry` says so.
    ///
    /// A fresh hold is judged by what is recorded of earlier runs ([`RunRecord::judge`](super::RunRecord::judge)) and recorded itself, in the same step;
    /// one that is asked for again, or entered, is not.
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
    async fn leave_queue(&mut self, request: &Request) -> Result<()>;

    /// Extends the hold; never re-creates it, and never moves its expiry backwards. With [`Intent::Probe`] only tells whether it is
    /// there, read only, whichever process asks.
    ///
    /// The new TTL counts from now by the store's clock. A hold that is marked to be broken is extended only for
    /// [`Intent::Drain`], which is noted with the mark.
    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal>;

    /// Gives the hold back, and wakes waiters if the lock becomes free; then the step that frees it also remembers how the hold
    /// ended ([`Backend::history`]).
    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release>;

    /// Changes what the store keeps of a lock or of one hold. False if that hold is not there any more, and for a warning that
    /// was claimed before.
    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool>;

    /// Returns what the store knows of one lock. Read only.
    async fn inspect(&mut self, key: &Key) -> Result<LockState>;

    /// Returns every held lock of the namespace whose key starts with `start`, literally, by key. Read only.
    async fn list(&mut self, start: &str) -> Result<Vec<LockState>>;

    /// Returns the keys that start with `start`, literally, and of which the store keeps anything, held or not, by key. Read only.
    ///
    /// A key that has nothing to tell may be among them.
    async fn known(&mut self, start: &str, which: Which) -> Result<Vec<Key>>;

    /// Returns the lock's history: finished holds and skipped runs. Read only.
    ///
    /// A hold that was never given back is [`End::Expired`](super::End::Expired) once its lease is over, whether or not the lock
    /// has been taken since.
    async fn history(&mut self, key: &Key) -> Result<History>;

    /// Returns what was noticed of the store since this was last called, for people.
    fn notices(&mut self) -> Vec<Notice> {
        Vec::new()
    }

    /// Returns what ties holds to this process, in stores where they are more than leases.
    fn tether(&mut self) -> Option<&mut dyn Tether> {
        None
    }
}

/// What is known of a store without I/O.
#[derive(Clone, Debug)]
pub struct Identity {
    /// What its backend can do.
    pub capabilities: &'static Capabilities,
    /// The store as people know it: its URL without secrets.
    pub url: String,
    /// Tells this store and namespace from others, for `DLOCK_HELD`.
    pub fingerprint: u64,
    /// Whether a call that one server did not answer goes to another one when it is repeated.
    pub has_other_servers: bool,
}

impl Identity {
    /// Of a store with one server, known by `parts` ([`fingerprint`]).
    pub fn new(capabilities: &'static Capabilities, url: String, parts: &[&str]) -> Self {
        Self { capabilities, url, fingerprint: fingerprint(parts), has_other_servers: false }
    }
}

/// What ties holds to this process: a session, a connection, a file that the kernel has locked.
#[async_trait(?Send)]
pub trait Tether {
    /// Opens what a guardian process must share, before it is forked. Starts no thread and no connection.
    ///
    /// # Errors
    /// As for any other call, with nothing applied.
    fn prepare(&mut self) -> Result<Option<LastResort>> {
        Ok(None)
    }

    /// Returns duplicates of the connections that must stay open for holds to last. The guardian keeps them until the command's
    /// tree is dead, whatever becomes of this process; and shuts them down when the lease ran out with this process stopped.
    ///
    /// # Errors
    /// When no descriptor is left.
    fn lifelines(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(Vec::new())
    }

    /// Ready when the hold may be gone although its lease is not over: a session was ended, a key was deleted.
    ///
    /// A hint: the core renews at once, and goes by that answer. Cancel safe; called again and again while the hold is
    /// kept, never during another call.
    async fn watch(&mut self, _key: &Key, _token: &Token) {
        pending::<()>().await;
    }

    /// Ends what the hold lasts by, and says whether the hold is known to be over. Called after a release of the whole hold
    /// failed, and only then.
    async fn cut(&mut self, _key: &Key, _token: &Token) -> bool {
        false
    }
}

/// Which keys [`Backend::known`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    All,
    /// Those whose run records may keep other runs from a free lock ([`RunRecord::keeps`](super::RunRecord::keeps)).
    Kept,
}

/// A change to what a store keeps of a lock, for [`Backend::amend`].
#[derive(Clone, Copy, Debug)]
pub enum Amendment<'a> {
    /// Remembers something that does not come with a grant or a release. Changes nothing about the holders.
    Note(&'a Note),
    /// Claims the warning of this level about the hold with this fence; done for the first that claims that level or a higher one.
    Warn(Fence, u32),
    /// Marks the hold with this fence as to be broken: from then on it is renewed only to be drained. Never another hold.
    ///
    /// Asked again it is one mark, the latest.
    Mark(Fence, &'a Break),
    /// Frees the lock of the hold with this fence at once, with all holds nested in it, whatever still runs under it, and
    /// remembers it as broken. Never another hold.
    Evict(Fence, &'a Break),
}

/// Something that people should know of a store, although it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Worth a line of its own; otherwise it is told under `-v` only.
    pub warning: bool,
    /// What, in one line.
    pub text: String,
    /// What to do about it, in one line.
    pub hint: Option<String>,
}

/// Gives back what the kernel keeps for a process that is stopped; called in the guardian, once the lease ran out and
/// nothing of the command is left.
pub type LastResort = Box<dyn FnOnce()>;

/// The answer to [`Backend::try_acquire`].
#[derive(Clone, Debug)]
pub enum Attempt {
    /// The lock is ours.
    Granted(Grant),
    /// Another client has it.
    Busy(Busy),
    /// It is free, but what a run before has left keeps it from this request.
    Denied(Box<Denial>),
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
    /// How long nothing may be started yet: a holder that vanished may need so long to stop what it ran.
    pub drain_delay: Duration,
    /// What another process needs beside the token to renew and release this hold; only for detached holds.
    pub session: Option<Session>,
    /// Which permit it is, from 0, for as long as the hold lasts; only for [`Mode::Permits`](super::Mode::Permits).
    pub permit: Option<u32>,
}

/// Why a lock was not granted, and what to wait for.
#[derive(Clone, Debug, Default)]
pub struct Busy {
    /// Its holders, as far as the store knows.
    pub holders: Vec<Holder>,
    /// When the lock will be free if nothing is done; `None` if it can't be told.
    pub expires_in: Option<Duration>,
    /// Whether a release will end [`Backend::wait`]. False for foreign holders that wake no waiter.
    pub notifies: bool,
    /// The lock is free, or held only for a moment: a step that is under way keeps it from being granted just now. Worth
    /// asking again at once, even for who doesn't wait.
    pub passing: bool,
    /// The requester's place among the waiters, from 1; `None` if it isn't known.
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
    /// The token holds the lock, and nothing was changed: it was probed, or the new end would be before the present one.
    Kept {
        /// What is left of the present lease; `None` if the store doesn't tell.
        expires_in: Option<Duration>,
    },
    /// The token does not hold this lock.
    NotHeld,
    /// The hold is marked to be broken and was not extended: what runs under it is to be stopped, and then it is given back.
    Broken(Break),
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
