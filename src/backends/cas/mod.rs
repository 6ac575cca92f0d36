//! Locks in any store that can compare and swap. Each lock is one [`Document`]: a step reads it,
//! changes it, and writes it if no other client changed it meanwhile. The rules are in
//! [`crate::lock::document`]; a [`Store`] only reads and writes.
//!
//! Worst cases: another client writes between reading and writing (the swap fails, and the step
//! begins anew); an answer is lost (the same token asks again, and the step finds its own result);
//! a grant is written late (a release without that grant writes the document anyway, so the late
//! swap fails); a hold ends by its time (the client writes that before it reports it, so no late
//! renewal revives the hold).

mod inspect;
mod step;
#[cfg(test)]
pub(super) mod tests;

use std::time::Duration;

use async_trait::async_trait;

use crate::lock::{
    Admin, Amendment, Attempt, Backend, Busy, Error, Fence, Finding, History, HistoryEntry, Holder,
    Identity, Init, Intent, Key, Kind, LockState, Mode, Note, Notice, Progress, Release,
    ReleaseInfo, Renewal, Request, Result, ServerTime, SkipCount, Token, Ttl, Wake, Which,
    document::{Document, WakeUp},
};

/// A store that keeps one document for each lock. No call sleeps except `wait`, retries, or judges
/// requests.
#[async_trait(?Send)]
pub trait Store: Admin {
    /// The version of a document: whether it changed since it was read.
    type Version;
    /// Whether the store has [`Store::grant`], [`Store::extend`] and [`Store::free`].
    const IN_ONE_STEP: bool = false;
    /// Whether [`Store::read`] sees the holders, the queue and the run record at one moment.
    const READS_AT_ONCE: bool = true;

    /// See [`Backend::identity`].
    fn identity(&self) -> Identity;

    /// See [`Backend::connect`].
    async fn connect(&mut self) -> Result<()> {
        Ok(())
    }

    /// See [`Backend::disconnect`].
    fn disconnect(&mut self) {}

    /// Grants a fresh exclusive hold in one step. The step checks that the lock is free and that no
    /// rule can concern the request. Returns `None` if the lock must be read.
    async fn grant(&mut self, _request: &Request) -> Result<Option<Fence>> {
        Ok(None)
    }

    /// Extends a hold in one step. Returns `None` if the lock must be read.
    async fn extend(
        &mut self,
        _key: &Key,
        _token: &Token,
        _intent: Intent,
    ) -> Result<Option<(Ttl, Fence)>> {
        Ok(None)
    }

    /// Releases a hold in one step. Returns false if the lock must be read.
    async fn free(&mut self, _key: &Key, _token: &Token, _info: &ReleaseInfo) -> Result<bool> {
        Ok(false)
    }

    /// Reads a lock.
    async fn read(&mut self, key: &Key, purpose: ReadFor<'_>) -> Result<Snapshot<Self::Version>>;

    /// Replaces the document that was read, together with the lock's state that other clients see.
    /// Returns false, with nothing changed, if that document is not there any more.
    ///
    /// # Errors
    /// With [`Effect::Unknown`](crate::lock::Effect::Unknown) if the document may be written.
    async fn swap(
        &mut self,
        key: &Key,
        was: Snapshot<Self::Version>,
        change: Change<'_>,
    ) -> Result<bool>;

    /// See [`Backend::wait`]; `transient` says that the lock was last found busy only in passing.
    async fn wait(&mut self, request: &Request, at_most: Duration, transient: bool)
    -> Result<Wake>;

    /// Returns the outlook of a busy request: whether a release ends its wait, and whether it
    /// should look when the lease ends.
    fn advise(&mut self, _request: &Request, busy: &mut Busy) {
        busy.notifies = self.identity().capabilities.notification;
    }

    /// Adds an unfair exclusive waiter to a list that only informs, if the document has no queue.
    /// Returns its position from 1, if known. Called only after [`Snapshot::apart`].
    async fn note_waiter(&mut self, _request: &Request, _now_us: u64) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Removes a waiter that is stored separately. Returns false if it can only be in the document.
    async fn remove_waiter(&mut self, _request: &Request) -> Result<bool> {
        Ok(false)
    }

    /// Reads every lock of the namespace whose key starts with `start`, and which may be held;
    /// without [probes](Key::is_probe).
    async fn scan(
        &mut self,
        start: &str,
        progress: &Progress,
    ) -> Result<Vec<(Key, Snapshot<Self::Version>)>>;

    /// See [`Backend::known`].
    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>>;

    /// Returns the name under which a lock is stored.
    fn stored_as(&self, key: &Key) -> Result<String>;

    /// Reads the log: ended holds and skips, in any order, with entries twice if need be. It keeps
    /// [`REMEMBERED`](crate::lock::REMEMBERED) holds, and as many that ended badly.
    async fn log(&mut self, key: &Key) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)>;

    /// Appends to the log. An entry that replaces another one is added beside it.
    async fn append(&mut self, key: &Key, note: &Note) -> Result<()>;

    /// See [`Backend::notices`].
    fn notices(&mut self) -> Vec<Notice> {
        Vec::new()
    }
}

/// The purpose of reading a lock.
#[derive(Clone, Copy)]
pub enum ReadFor<'a> {
    /// Taking the lock. With `claims` the store may claim an empty place in passing, if a grant
    /// needs one.
    Acquire {
        /// The request.
        request: &'a Request,
        /// Whether the store may claim an empty place.
        claims: bool,
    },
    /// Releasing the lock.
    Release(&'a Token, &'a ReleaseInfo),
    /// Changing a hold of the lock.
    Change,
    /// Claiming a warning.
    Warn,
    /// Looking at the lock, with its queue and all records for its history. Creates nothing, and
    /// needs no right to write.
    Look,
}

/// A lock as it was read.
pub struct Snapshot<V> {
    /// The document, whose holds may be over.
    pub document: Document,
    /// The store's time in µs.
    pub now_us: u64,
    /// The last fence of the lock, which the store keeps even if the document is gone.
    pub fence: Option<Fence>,
    /// The hold outside of the document, if there is one.
    pub outside: Option<Outside>,
    /// The base of a grant.
    pub base: Base,
    /// Whether the document has no queue, since no rule concerns any waiter. False in stores that
    /// always keep the whole document.
    pub apart: bool,
    /// The version: whether all this is unchanged.
    pub version: V,
}

/// The base on which a grant is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The document as it was read.
    Document,
    /// A claim on an empty place, by the hold that read the lock. It must be written over, whether
    /// the lock is granted or not.
    Claim,
    /// Nothing: the place must be claimed first.
    Nothing,
}

/// A hold that is not in the document: another program's, or a claim.
#[derive(Clone)]
pub struct Outside {
    /// The hold as people see it.
    pub holder: Holder,
    /// The ms until it ends; `None` if it doesn't end by itself.
    pub left: Option<u64>,
    /// Whether it is a claim, which is decided in a moment.
    pub transient: bool,
}

/// A write.
pub struct Change<'a> {
    /// The new document; its outbox is in `ended`.
    pub document: &'a Document,
    /// The fence of a fresh grant, for the store to keep; `None` leaves the last one.
    pub granted: Option<Fence>,
    /// Holds that are over, for the log: in the same write, or before it.
    pub ended: Vec<HistoryEntry>,
    /// The waiters to wake.
    pub wake: Vec<WakeUp>,
    /// The hold that asks, if the request is for the lock.
    pub request: Option<&'a Request>,
    /// Whether the stored data must change even if the document does not: the base is a claim, or a
    /// late grant must not find it.
    pub must: bool,
}

impl<V> Snapshot<V> {
    /// The store's time in ms.
    pub fn now(&self) -> u64 {
        self.now_us / 1000
    }

    /// Returns the same time, rounded up like the ends of leases: so no lease seems to have more
    /// time left than was asked for.
    fn now_up(&self) -> u64 {
        self.now_us.div_ceil(1000)
    }

    /// Returns a fence above all earlier ones, and never below the time, so that a store that lost
    /// its data repeats no fence.
    fn next_fence(&self) -> Fence {
        Fence(self.now_us.max(self.fence.map_or(0, |fence| fence.0) + 1))
    }

    fn outside_until(&self) -> Option<u64> {
        self.outside.as_ref().map(|outside| {
            outside
                .left
                .map_or(u64::MAX, |left| self.now().saturating_add(left))
        })
    }
}

/// The backend of a store.
pub struct CasBackend<S> {
    pub(in crate::backends) store: S,
    /// Waiters of this client that may be in a queue. Added before asking, since an unanswered
    /// request may have been served.
    queued: Vec<(Key, Token)>,
    /// A grant with an unknown answer, which may still be written.
    unsure: Option<(Key, Token)>,
    /// Whether the lock was last found busy only in passing.
    transient: bool,
}

impl<S: Store> CasBackend<S> {
    /// Returns the backend of `store`.
    pub(super) fn of(store: S) -> Self {
        Self {
            store,
            queued: Vec::new(),
            unsure: None,
            transient: false,
        }
    }
}

/// Whether a waiter is subject to the rules of the queue, or makes others so.
pub(super) fn in_order(request: &Request) -> bool {
    request.fair || request.mode != Mode::Exclusive
}

/// Returns the error that other clients wrote between reading and writing, again and again.
fn changed_meanwhile() -> Error {
    Error::new(
        Kind::Unavailable,
        "other clients changed the lock at the same moment, again and again",
    )
}

#[async_trait(?Send)]
impl<S: Store> Backend for CasBackend<S> {
    fn identity(&self) -> Identity {
        self.store.identity()
    }

    async fn connect(&mut self, _: &Request) -> Result<()> {
        self.store.connect().await
    }

    fn disconnect(&mut self) {
        self.store.disconnect();
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        self.take(request).await
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        self.store.wait(request, at_most, self.transient).await
    }

    async fn leave_queue(&mut self, request: &Request) -> Result<()> {
        self.leave(request).await
    }

    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        if intent == Intent::Probe {
            self.look_for(key, token).await
        } else {
            self.extend(key, token, intent).await
        }
    }

    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        self.release(key, token, info).await
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        if let Amendment::Note(note) = change {
            return self.store.append(key, note).await.map(|()| true);
        }
        let purpose = if matches!(change, Amendment::Warn(..)) {
            ReadFor::Warn
        } else {
            ReadFor::Change
        };
        self.step(key, purpose, |document, now, _| match change {
            Amendment::Note(_) => false,
            Amendment::Warn(fence, level) => document.claim_warning(fence, level),
            Amendment::Mark(fence, mark) => document.mark(fence, mark),
            Amendment::Evict(fence, mark) => document.evict(fence, mark, now),
        })
        .await
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        self.read_lock(key).await
    }

    async fn list(&mut self, start: &str, progress: &Progress) -> Result<Vec<LockState>> {
        self.read_locks(start, progress).await
    }

    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>> {
        self.store.known(start, which, progress).await
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        self.read_history(key).await
    }

    fn notices(&mut self) -> Vec<Notice> {
        self.store.notices()
    }
}

#[async_trait(?Send)]
impl<S: Store> Admin for CasBackend<S> {
    async fn init(&mut self) -> Result<Init> {
        self.store.init().await
    }

    async fn collect(&mut self, unused_for: Duration, progress: &Progress) -> Result<Option<u64>> {
        self.store.collect(unused_for, progress).await
    }

    async fn examine(&mut self) -> Result<Vec<Finding>> {
        self.store.examine().await
    }

    async fn clocks(&mut self) -> Result<Vec<ServerTime>> {
        self.store.clocks().await
    }
}
