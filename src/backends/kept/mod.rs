//! Locks in any store that can compare and swap: each lock is one [`Document`], which is read, changed by one step, and written if it is
//! still as it was read. The rules are in [`crate::lock::document`]; a [`Store`] only reads and writes.
//!
//! Worst cases: another client writes between reading and writing (the swap fails, and the step begins anew); an answer is lost (asked
//! again with the same token, the step finds what it did); a grant is written late (a release that does not find it writes the document all
//! the same, so that the late swap fails); a hold ends by its time (a client that is told so has written it first, so that no late renewal
//! revives it).

mod look;
mod step;

use std::time::Duration;

use async_trait::async_trait;

use crate::lock::{
    Admin, Amendment, Attempt, Backend, Busy, Check, Error, Fence, Finding, Grants, History, HistoryEntry, Holder, Identity, Init, Intent,
    Key, Kind, LockState, Mode, Note, Notice, Release, ReleaseInfo, Renewal, Request, Result, Role, ServerTime, SkipCount, Token, Ttl,
    Wake, Which,
    document::{Document, WakeUp},
};

/// A store that keeps one document for each lock. No call sleeps but `wait`, retries, or judges requests.
#[async_trait(?Send)]
pub trait Store: Admin {
    /// What tells whether a document is still as it was read.
    type Version;
    /// Whether the store has [`Store::grant`], [`Store::extend`] and [`Store::free`].
    const IN_ONE_STEP: bool = false;

    /// As [`Backend::identity`].
    fn identity(&self) -> Identity;

    /// Grants a fresh exclusive hold in one step, which looks by itself whether the lock is free and no rule can concern the request.
    /// `None` if the lock must be read.
    async fn grant(&mut self, _request: &Request) -> Result<Option<Fence>> {
        Ok(None)
    }

    /// Extends a hold in one step. `None` if the lock must be read.
    async fn extend(&mut self, _key: &Key, _token: &Token, _intent: Intent) -> Result<Option<(Ttl, Fence)>> {
        Ok(None)
    }

    /// Releases a hold in one step. False if the lock must be read.
    async fn free(&mut self, _key: &Key, _token: &Token, _parting: &ReleaseInfo) -> Result<bool> {
        Ok(false)
    }

    /// Reads a lock.
    async fn read(&mut self, key: &Key, purpose: ReadFor<'_>) -> Result<Snapshot<Self::Version>>;

    /// Writes a document in the place of the one that was read, together with what others see of the lock. False, and nothing was
    /// changed, if that one is not there any more.
    ///
    /// # Errors
    /// With [`Effect::Unknown`](crate::lock::Effect::Unknown) where it may be written.
    async fn swap(&mut self, key: &Key, was: Snapshot<Self::Version>, change: Change<'_>) -> Result<bool>;

    /// As [`Backend::wait`]; `passing` says that the lock was last found busy only in passing.
    async fn wait(&mut self, request: &Request, at_most: Duration, passing: bool) -> Result<Wake>;

    /// Says what a request that was found busy can expect: whether a release ends its wait, and whether it should look when the lease ends.
    fn advise(&mut self, _request: &Request, busy: &mut Busy) {
        busy.notifies = self.identity().capabilities.notification;
    }

    /// Notes an unfair exclusive waiter in a list that only informs, where the document has no queue. Returns its position from 1, if it is
    /// known. Called only after [`Snapshot::apart`].
    async fn note_waiter(&mut self, _request: &Request, _now_us: u64) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Removes a waiter that is stored by itself. False if it can only be in the document.
    async fn remove_waiter(&mut self, request: &Request) -> Result<bool>;

    /// Reads every lock of the namespace whose key starts with `start`, and which may be held.
    async fn scan(&mut self, start: &str) -> Result<Vec<(Key, Snapshot<Self::Version>)>>;

    /// As [`Backend::known`].
    async fn known(&mut self, start: &str, which: Which) -> Result<Vec<Key>>;

    /// The name under which a lock is stored.
    fn stored_as(&self, key: &Key) -> Result<String>;

    /// Reads the log: ended holds and skips.
    async fn log(&mut self, key: &Key) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)>;

    /// Appends to the log.
    async fn append(&mut self, key: &Key, note: &Note) -> Result<()>;

    /// As [`Backend::notices`].
    fn notices(&mut self) -> Vec<Notice> {
        Vec::new()
    }
}

/// What a lock is read for.
#[derive(Clone, Copy)]
pub enum ReadFor<'a> {
    /// To take it. `claims`: where a grant needs an empty place, the store may claim it in passing.
    Acquire {
        /// The request.
        request: &'a Request,
        /// Whether it may be claimed.
        claims: bool,
    },
    /// To give it back.
    Release(&'a Token, &'a ReleaseInfo),
    /// To change a hold of it.
    Change,
    /// To claim a warning.
    Warn,
    /// To look at it, with its queue and all that it keeps for its history.
    Look,
}

/// A lock as it was read.
pub struct Snapshot<V> {
    /// With holds that may be over.
    pub document: Document,
    /// The store's time in µs.
    pub now_us: u64,
    /// The fence that was given out last.
    pub fence: Option<Fence>,
    /// What has the lock, if not a holder of the document.
    pub outside: Option<Outside>,
    /// What a grant is written on top of.
    pub base: Base,
    /// The document has no queue, since no rule concerns any waiter.
    pub apart: bool,
    /// What tells whether all this is still so.
    pub version: V,
}

/// What a grant is written on top of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The document as it was read.
    Document,
    /// A claim on an empty place, by the hold that it was read for. To be written, granted or not.
    Claim,
    /// Nothing: the place has to be claimed first.
    Nothing,
}

/// A hold that is not in the document: another program's, or a claim.
#[derive(Clone)]
pub struct Outside {
    /// As people are shown it.
    pub holder: Holder,
    /// For how many ms yet; `None` if it doesn't end by itself.
    pub left: Option<u64>,
    /// It is a claim, which is decided in a moment.
    pub passing: bool,
}

/// A write.
pub struct Change<'a> {
    /// The new document; its outbox is in `ended`.
    pub document: &'a Document,
    /// The fence of a fresh grant.
    pub granted: Option<Fence>,
    /// Holds that are over, for the log.
    pub ended: Vec<HistoryEntry>,
    /// The waiters to be woken.
    pub wake: Vec<WakeUp>,
    /// The hold that asks, where one asks for the lock.
    pub request: Option<&'a Request>,
    /// What is stored must change, even if the document is the same: the base is a claim, or a late grant must not find it.
    pub must: bool,
}

impl<V> Snapshot<V> {
    /// The store's time in ms.
    pub fn now(&self) -> u64 {
        self.now_us / 1000
    }

    /// The same, rounded up where ends are: what is left of a lease is told from here, so that none has more left than was asked for.
    fn now_up(&self) -> u64 {
        self.now_us.div_ceil(1000)
    }

    /// Above whatever was given out before, and never below the time, so that a store that lost its data repeats no fence.
    fn next_fence(&self) -> Fence {
        Fence(self.now_us.max(self.fence.map_or(0, |fence| fence.0) + 1))
    }

    fn outside_until(&self) -> Option<u64> {
        self.outside.as_ref().map(|outside| outside.left.map_or(u64::MAX, |left| self.now().saturating_add(left)))
    }
}

/// The backend of a store.
pub struct Kept<S> {
    pub(super) store: S,
    /// Waiters that may be in a queue because of this client. Noted before asking, since an unanswered request may have been served.
    queued: Vec<(Key, Token)>,
    /// A grant whose answer is not known, and that may still be written.
    unsure: Option<(Key, Token)>,
    /// The lock that was last found busy was so in passing.
    passing: bool,
}

impl<S: Store> Kept<S> {
    /// The backend of `store`.
    pub(super) fn of(store: S) -> Self {
        Self { store, queued: Vec::new(), unsure: None, passing: false }
    }
}

/// Whether a waiter is subject to the rules of the queue, or makes others so.
pub(super) fn in_order(request: &Request) -> bool {
    request.fair || request.mode != Mode::Exclusive
}

/// Another client wrote between reading and writing, again and again.
fn changed_meanwhile() -> Error {
    Error::new(Kind::Unavailable, "other clients changed the lock at the same moment, again and again")
}

#[async_trait(?Send)]
impl<S: Store> Backend for Kept<S> {
    fn identity(&self) -> Identity {
        self.store.identity()
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        self.take(request).await
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        self.store.wait(request, at_most, self.passing).await
    }

    async fn leave_queue(&mut self, request: &Request) -> Result<()> {
        self.leave(request).await
    }

    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        if intent == Intent::Probe { self.look_for(key, token).await } else { self.extend(key, token, intent).await }
    }

    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        self.give_back(key, token, info).await
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        if let Amendment::Note(note) = change {
            return self.store.append(key, note).await.map(|()| true);
        }
        let purpose = if matches!(change, Amendment::Warn(..)) { ReadFor::Warn } else { ReadFor::Change };
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

    async fn list(&mut self, start: &str) -> Result<Vec<LockState>> {
        self.read_locks(start).await
    }

    async fn known(&mut self, start: &str, which: Which) -> Result<Vec<Key>> {
        self.store.known(start, which).await
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        self.read_history(key).await
    }

    fn notices(&mut self) -> Vec<Notice> {
        self.store.notices()
    }
}

#[async_trait(?Send)]
impl<S: Store> Admin for Kept<S> {
    async fn init(&mut self) -> Result<Init> {
        self.store.init().await
    }

    fn schema(&self) -> Option<String> {
        self.store.schema()
    }

    async fn collect(&mut self, unused_for: Duration) -> Result<Option<u64>> {
        self.store.collect(unused_for).await
    }

    fn checks(&self) -> Vec<Check> {
        self.store.checks()
    }

    async fn examine(&mut self) -> Result<Vec<Finding>> {
        self.store.examine().await
    }

    async fn clocks(&mut self) -> Result<Vec<ServerTime>> {
        self.store.clocks().await
    }

    fn grants(&self, role: Role) -> Grants {
        self.store.grants(role)
    }
}
