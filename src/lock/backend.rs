//! The questions that the lease core asks a store.

use std::{future::pending, io, os::fd::OwnedFd, time::Duration};

use async_trait::async_trait;

use super::{
    Break, Capabilities, Error, Examine, Extension, Fence, History, Holder, Key, Kind, LockState, Marking, Note, Parting, Refusal, Request,
    Result, Session, Token, Ttl,
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
/// is `Unknown`.
#[async_trait(?Send)]
pub trait Backend: Examine {
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
    /// A fresh hold is judged by what is recorded of earlier runs ([`Record::judge`](super::Record::judge)) and recorded itself, in the same step;
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
    async fn abandon(&mut self, request: &Request) -> Result<()>;

    /// Extends the hold; never re-creates it, and never moves its expiry backwards.
    ///
    /// The new TTL counts from now by the store's clock. A hold that is marked to be broken is extended only for
    /// [`Purpose::Stop`](super::Purpose::Stop), which is noted with the mark.
    async fn renew(&mut self, key: &Key, token: &Token, extension: Extension) -> Result<Renewal>;

    /// Gives the hold back, and wakes who waits if the lock becomes free; then the step that frees it also remembers how it
    /// ended ([`Backend::history`]).
    async fn release(&mut self, key: &Key, token: &Token, parting: &Parting) -> Result<Release>;

    /// Whether the token holds the lock, and for how long yet. Read only, whichever process asks.
    async fn verify(&mut self, key: &Key, token: &Token) -> Result<Holding>;

    /// Ready when the hold may be gone although its lease is not over: a session was ended, a key was deleted.
    ///
    /// A hint: the core renews at once, and goes by that answer. Cancel safe; called again and again while the hold is
    /// kept, never beside another call. Where the store tells nothing, it is never ready.
    async fn watch(&mut self, _key: &Key, _token: &Token) {
        pending::<()>().await;
    }

    /// Duplicates of the connections that must stay open for the hold to last, for stores whose locks end with their
    /// session. The guardian keeps them until the command's tree is dead, whatever becomes of this process; and shuts
    /// them down when the lease ran out with this process stopped.
    ///
    /// # Errors
    /// When no descriptor is left.
    fn lifelines(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(Vec::new())
    }

    /// What was noticed of the store since this was last asked, for people.
    fn notices(&mut self) -> Vec<Notice> {
        Vec::new()
    }

    /// What the store knows of one lock. Read only.
    async fn inspect(&mut self, key: &Key) -> Result<LockState>;

    /// Every held lock of the namespace whose key starts with `start`, literally, by key. Read only.
    async fn list(&mut self, start: &str) -> Result<Vec<LockState>>;

    /// What the store remembers of a lock's holds that are over, and of who did without. Read only.
    ///
    /// A hold that was never given back is told as [`End::Expired`](super::End::Expired) once its lease is over, whether or not somebody
    /// has taken the lock since.
    async fn history(&mut self, _key: &Key) -> Result<History> {
        Err(self.unable("keeps no history"))
    }

    /// Remembers something of a lock that does not come with a grant or a release. Changes nothing about who has it.
    async fn note(&mut self, _key: &Key, _note: &Note) -> Result<()> {
        Err(self.unable("keeps no history"))
    }

    /// Claims the warning of this level about the hold with this fence; true for the first who asks for that level or a higher one.
    async fn claim_warning(&mut self, _key: &Key, _fence: Fence, _level: u32) -> Result<bool> {
        Err(self.unable("keeps no history"))
    }

    /// Marks the hold that has this fence as to be broken: from then on it is renewed only to be stopped. Never another hold.
    ///
    /// Asked again it is one mark, the latest.
    async fn mark(&mut self, _key: &Key, _fence: Fence, _mark: &Break) -> Result<Marking> {
        Err(self.unable("can't break a lock"))
    }

    /// Frees the lock of the hold that has this fence at once, with all holds nested in it, whoever lives by it, and remembers it
    /// as broken. Never another hold.
    async fn evict(&mut self, _key: &Key, _fence: Fence, _mark: &Break) -> Result<Marking> {
        Err(self.unable("can't break a lock"))
    }

    /// That this store can't do something.
    fn unable(&self, what: &str) -> Error {
        Error::new(Kind::Unsupported, format!("the {} backend {what}", self.capabilities().backend)).backend(self.describe())
    }

    /// Creates or upgrades what the store must have before locks can be kept (a schema). Idempotent.
    async fn init(&mut self) -> Result<Init>;

    /// What [`Backend::init`] would do, in the store's own language; `None` where it does nothing.
    fn schema(&self) -> Option<String> {
        None
    }

    /// Removes what no lock has used for so long by the store's clock, and says how much that was. Never what
    /// a lock's fences depend on.
    async fn collect(&mut self, _unused_for: Duration) -> Result<u64> {
        let name = self.capabilities().backend;
        Err(Error::new(Kind::Unsupported, format!("the {name} backend leaves nothing behind that is to be collected")))
    }
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
    /// Somebody else has it.
    Busy(Busy),
    /// Nobody has it, but what a run before has left keeps it from this request.
    Refused(Box<Refusal>),
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
    pub settle: Duration,
    /// What another process needs beside the token to renew and release this hold; only for detached holds.
    pub session: Option<Session>,
    /// Which permit it is, from 0, for as long as the hold lasts; only for [`Mode::Permits`](super::Mode::Permits).
    pub permit: Option<u32>,
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
    /// Nobody has the lock, or only for a moment: a step that is under way keeps it from being granted just now. Worth
    /// asking again at once, even for who doesn't wait.
    pub passing: bool,
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
    /// The hold is marked to be broken and was not extended: what runs under it is to be stopped, and then it is given back.
    Broken(Break),
}

/// The answer to [`Backend::verify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// The token holds the lock.
    Held {
        /// What is left of the hold's lease; `None` if the store doesn't tell.
        expires_in: Option<Duration>,
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
