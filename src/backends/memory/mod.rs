//! A store in this process's memory: the reference that other backends are compared with, and what the
//! lease core is tested on. Never offered to users, since no other process can see it.
//!
//! Time is tokio's, so that a paused runtime controls leases and waits alike.

mod examine;
mod queue;

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, VecDeque},
    rc::Rc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::{sync::Notify, time::Instant};
use uuid::Uuid;

use self::queue::Queue;
use crate::lock::{
    Attempt, Backend, Break, Busy, Capabilities, End, Entry, Extension, Fence, Grant, History, Holder, Holding, Init, Key, LockState,
    Marking, Metadata, Mode, Namespace, Note, Parting, Past, Purpose, REMEMBERED, Record, Release, Renewal, Request, Result,
    SKIPPING_HOSTS, Scope, Skips, Token, Ttl, Wake, fingerprint, whole_ms,
};

/// What several [`Memory`] backends share.
#[derive(Clone)]
pub struct Store {
    slots: Rc<RefCell<HashMap<(String, Key), Slot>>>,
    born: Instant,
}

impl Default for Store {
    #[allow(clippy::disallowed_methods)] // tokio's clock stands in for the store's
    fn default() -> Self {
        Self { slots: Rc::default(), born: Instant::now() }
    }
}

impl Store {
    /// Forgets every lock and every fence, as a store that lost its disk.
    pub fn lose_data(&self) {
        for slot in self.slots.borrow_mut().values_mut() {
            slot.leases.clear();
            slot.queue = Queue::default();
            slot.last_fence = 0;
            slot.wake.notify_waiters();
        }
    }
}

/// One lock: free, one exclusive lease, any number of shared ones, or some permits.
#[derive(Default)]
struct Slot {
    leases: Vec<Lease>,
    last_fence: u64,
    queue: Queue,
    wake: Rc<Notify>,
    /// The latest first, and those of them that ended badly.
    past: [VecDeque<Past>; 2],
    skips: Vec<Skips>,
    record: Record,
    /// The fence of the hold that was last warned about, and up to which level.
    warned: (u64, u32),
}

struct Lease {
    mode: Mode,
    permit: Option<u32>,
    owner: Uuid,
    /// The hold that the lock was taken with.
    root: u64,
    holds: BTreeMap<u64, Hold>,
    fence: u64,
    since: Instant,
    renewed: Instant,
    metadata: Option<Metadata>,
    detached: bool,
    broken: Option<Break>,
}

#[derive(Clone, Copy)]
struct Hold {
    ttl: Ttl,
    expires: Instant,
}

impl Lease {
    fn expires(&self) -> Option<Instant> {
        self.holds.values().map(|hold| hold.expires).max()
    }

    fn holder(&self, now: Instant) -> Holder {
        Holder {
            mode: self.mode,
            permit: self.permit,
            metadata: self.metadata.clone(),
            fence: Some(Fence(self.fence)),
            foreign: false,
            detached: self.detached,
            held_for: Some(now - self.since),
            renewed_ago: Some(now - self.renewed),
            expires_in: self.expires().map(|at| at - now),
            holds: u32::try_from(self.holds.len()).unwrap_or(u32::MAX),
            broken: self.broken.clone(),
        }
    }

    /// What is remembered of it.
    fn past(&self, ended: Instant, born: Instant, end: End, why: Option<String>) -> Past {
        let ms = |at| Some(ms_since(born, at));
        Past { fence: Some(Fence(self.fence)), started_ms: ms(self.since), ended_ms: ms(ended), end, why, metadata: self.metadata.clone() }
    }
}

impl Slot {
    /// Ends what has expired; a lease ends with its last hold.
    fn settle(&mut self, now: Instant, born: Instant) {
        let mut over = Vec::new();
        for lease in &mut self.leases {
            let last = lease.expires().unwrap_or(now);
            lease.holds.retain(|_, hold| hold.expires > now);
            if lease.holds.is_empty() {
                let (end, why) = lease.broken.as_ref().map_or((End::Expired, None), Into::into);
                over.push(lease.past(last, born, end, why));
            }
        }
        self.leases.retain(|lease| !lease.holds.is_empty());
        self.queue.settle(now);
        for past in over {
            self.remember(past);
        }
    }

    fn remember(&mut self, past: Past) {
        let [all, bad] = &mut self.past;
        if past.end.is_bad() {
            bad.push_front(past.clone());
            bad.truncate(REMEMBERED);
        }
        all.push_front(past);
        all.truncate(REMEMBERED);
    }

    fn of(&mut self, owner: Uuid) -> Option<&mut Lease> {
        self.leases.iter_mut().find(|lease| lease.owner == owner)
    }

    /// How many holds of this mode the lock has room for.
    fn room(&self, mode: Mode) -> usize {
        room(&self.leases, mode)
    }

    /// Grants a lock that has room for it.
    fn grant(&mut self, request: &Request, now: Instant, now_ms: u64) {
        // Never below the store's time, so that a store that lost its data doesn't repeat a fence.
        self.last_fence = (self.last_fence + 1).max(now_ms * 1000);
        self.record.begin(request, Fence(self.last_fence), now_ms);
        self.queue.granted(&request.token);
        self.leases.push(Lease {
            mode: request.mode,
            permit: self.permit(request.mode),
            owner: request.token.owner,
            root: request.token.hold,
            holds: BTreeMap::new(),
            fence: self.last_fence,
            since: now,
            renewed: now,
            metadata: request.metadata.clone(),
            detached: request.detached,
            broken: None,
        });
    }

    /// Says who has the lock to who can't have it, `held_up` by the queue or not.
    fn busy(&mut self, request: &Request, held_up: Option<Duration>, now: Instant) -> Busy {
        let position = self.queue.join(request, now);
        let holders: Vec<_> = self.leases.iter().map(|lease| lease.holder(now)).collect();
        let ends = holders.iter().filter_map(|holder| holder.expires_in);
        Busy {
            // Whichever permit comes back first is enough.
            expires_in: held_up.or(if matches!(request.mode, Mode::Permits(_)) { ends.min() } else { ends.max() }),
            passing: holders.is_empty(),
            holders,
            notifies: true,
            position,
        }
    }

    /// The lowest number that no permit has.
    fn permit(&self, mode: Mode) -> Option<u32> {
        let Mode::Permits(most) = mode else { return None };
        (0..most).find(|number| self.leases.iter().all(|lease| lease.permit != Some(*number)))
    }

    /// Wakes one who waits, or all if that may be the wrong one or one too few.
    fn pass_on(&self) {
        if self.queue.wants_all_woken() {
            self.wake.notify_waiters();
        }
        self.wake.notify_one();
    }

    fn hold(&mut self, token: &Token) -> Option<(&mut Lease, Hold)> {
        let lease = self.of(token.owner)?;
        let hold = *lease.holds.get(&token.hold)?;
        Some((lease, hold))
    }

    fn state(&self, key: &Key, now: Instant) -> LockState {
        LockState {
            key: key.clone(),
            stored_as: key.to_string(),
            holders: self.leases.iter().map(|lease| lease.holder(now)).collect(),
            waiters: self.queue.waiters(now),
            last_fence: (self.last_fence > 0).then_some(Fence(self.last_fence)),
            nodes: Vec::new(),
        }
    }
}

/// How many holds of `mode` there is room for beside `leases`. A new number of permits rules for new ones.
fn room(leases: &[Lease], mode: Mode) -> usize {
    match mode {
        Mode::Exclusive => usize::from(leases.is_empty()),
        Mode::Shared if leases.iter().all(|lease| lease.mode == Mode::Shared) => usize::MAX,
        Mode::Permits(most) if leases.iter().all(|lease| lease.permit.is_some()) => {
            usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(leases.len())
        }
        Mode::Shared | Mode::Permits(_) => 0,
    }
}

/// The store's time in ms.
fn ms_since(born: Instant, now: Instant) -> u64 {
    whole_ms(now - born)
}

/// One client of a [`Store`].
pub struct Memory {
    store: Store,
    namespace: Namespace,
    capabilities: Capabilities,
}

impl Memory {
    /// A client that keeps its locks in `store`.
    pub fn new(store: Store, namespace: Namespace) -> Self {
        Self {
            store,
            namespace,
            capabilities: Capabilities {
                shared: true,
                permits: true,
                fair: true,
                history: true,
                terms: true,
                breakable: true,
                ..Capabilities::usual("memory")
            },
        }
    }

    /// Answers from a lock's settled state.
    #[allow(clippy::disallowed_methods)] // tokio's clock stands in for the store's
    fn with<T>(&self, key: &Key, answer: impl FnOnce(&mut Slot, Instant) -> T) -> T {
        let now = Instant::now();
        let mut slots = self.store.slots.borrow_mut();
        let slot = slots.entry((self.namespace.as_str().to_owned(), key.clone())).or_default();
        slot.settle(now, self.store.born);
        answer(slot, now)
    }
}

#[async_trait(?Send)]
impl Backend for Memory {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn describe(&self) -> String {
        "memory:".into()
    }

    fn fingerprint(&self) -> u64 {
        fingerprint(&["memory", self.namespace.as_str()])
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        let born = self.store.born;
        Ok(self.with(&request.key, |slot, now| {
            let hold = Hold { ttl: request.ttl, expires: now + request.ttl.get() };
            let ours = slot.of(request.token.owner).is_some();
            if !ours && request.entry == Entry::Reenter {
                return Attempt::NotHeld;
            }
            let mut held_up = None;
            if !ours && slot.room(request.mode) > 0 {
                let now_ms = ms_since(born, now);
                if let Some(refusal) = slot.record.judge(request.terms.as_ref(), now_ms) {
                    return Attempt::Refused(Box::new(refusal));
                }
                let Slot { queue, leases, .. } = slot;
                held_up = queue.held_up(request, |mode| room(leases, mode), now);
                if held_up.is_none() {
                    slot.grant(request, now, now_ms);
                }
            }
            let Some(lease) = slot.leases.iter_mut().find(|lease| lease.owner == request.token.owner) else {
                return Attempt::Busy(slot.busy(request, held_up, now));
            };
            let before = lease.holds.get(&request.token.hold).map_or(now, |hold| hold.expires);
            lease.holds.insert(request.token.hold, Hold { expires: hold.expires.max(before), ..hold });
            lease.renewed = now;
            slot.queue.leave(&request.token);
            Attempt::Granted(Grant {
                fence: Fence(lease.fence),
                permit: lease.permit,
                ttl: request.ttl,
                holds: u32::try_from(lease.holds.len()).unwrap_or(u32::MAX),
                settle: Duration::ZERO,
                session: None,
            })
        }))
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        let wake = self.with(&request.key, |slot, _| Rc::clone(&slot.wake));
        let woken = tokio::time::timeout(at_most, wake.notified()).await;
        Ok(if woken.is_ok() { Wake::Changed } else { Wake::TimedOut })
    }

    async fn abandon(&mut self, request: &Request) -> Result<()> {
        self.with(&request.key, |slot, _| {
            // Who leaves may have held others up.
            if slot.queue.leave(&request.token) || slot.leases.is_empty() {
                slot.pass_on();
            }
        });
        Ok(())
    }

    async fn renew(&mut self, key: &Key, token: &Token, extension: Extension) -> Result<Renewal> {
        Ok(self.with(key, |slot, now| {
            let Some((lease, hold)) = slot.hold(token) else {
                return Renewal::NotHeld;
            };
            if let Some(mark) = &mut lease.broken {
                if extension.purpose == Purpose::GoOn {
                    return Renewal::Broken(mark.clone());
                }
                mark.seen = true;
            }
            let ttl = extension.ttl.unwrap_or(hold.ttl);
            let expires = now + ttl.get();
            if expires < hold.expires {
                return Renewal::WouldShorten { expires_in: hold.expires - now };
            }
            lease.holds.insert(token.hold, Hold { ttl: hold.ttl, expires });
            lease.renewed = now;
            Renewal::Renewed { ttl, fence: Fence(lease.fence) }
        }))
    }

    async fn verify(&mut self, key: &Key, token: &Token) -> Result<Holding> {
        Ok(self.with(key, |slot, now| match slot.hold(token) {
            Some((_, hold)) => Holding::Held { expires_in: Some(hold.expires - now) },
            None => Holding::NotHeld,
        }))
    }

    async fn release(&mut self, key: &Key, token: &Token, parting: &Parting) -> Result<Release> {
        let born = self.store.born;
        Ok(self.with(key, |slot, now| {
            let Some(fence) = slot.hold(token).map(|(lease, _)| lease.fence) else {
                return Release::NotHeld;
            };
            if let Some(stage) = parting.became {
                slot.record.end(Fence(fence), stage);
            }
            let Some((lease, _)) = slot.hold(token) else {
                return Release::NotHeld;
            };
            lease.holds.remove(&token.hold);
            // Who entered whom is not recorded: only the first hold is known to enclose all others.
            if parting.scope == Scope::Tree && lease.root == token.hold {
                lease.holds.clear();
            }
            if !lease.holds.is_empty() {
                return Release::StillHeld(u32::try_from(lease.holds.len()).unwrap_or(u32::MAX));
            }
            let past = parting.end.clone().map(|end| lease.past(now, born, end, parting.why.clone()));
            slot.leases.retain(|lease| lease.owner != token.owner);
            if let Some(past) = past {
                slot.remember(past);
            }
            slot.pass_on();
            Release::Released
        }))
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        Ok(self.with(key, |slot, _| History {
            record: slot.record.clone(),
            ..History::new(slot.past.iter().flatten().cloned().collect(), slot.skips.clone())
        }))
    }

    async fn note(&mut self, key: &Key, note: &Note) -> Result<()> {
        let born = self.store.born;
        self.with(key, |slot, now| match note {
            Note::Lost(past) => slot.remember(past.clone()),
            Note::Skipped { host, reason, .. } => {
                let now = Some(ms_since(born, now));
                let known = slot.skips.iter_mut().find(|skips| skips.host == *host);
                if let Some(skips) = known {
                    *skips = Skips { count: skips.count + 1, last_ms: now, reason: reason.clone(), ..skips.clone() };
                } else if slot.skips.len() < SKIPPING_HOSTS {
                    slot.skips.push(Skips { host: host.clone(), count: 1, since_ms: now, last_ms: now, reason: reason.clone() });
                }
            }
        });
        Ok(())
    }

    async fn claim_warning(&mut self, key: &Key, fence: Fence, level: u32) -> Result<bool> {
        Ok(self.with(key, |slot, _| {
            let new = slot.warned < (fence.0, level);
            slot.warned = slot.warned.max((fence.0, level));
            new
        }))
    }

    async fn mark(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        Ok(self.with(key, |slot, _| match slot.leases.iter_mut().find(|lease| lease.fence == fence.0) {
            Some(lease) => {
                let seen = lease.broken.as_ref().is_some_and(|known| known.seen);
                lease.broken = Some(Break { seen, ..mark.clone() });
                Marking::Done
            }
            None => Marking::Changed,
        }))
    }

    async fn evict(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        let born = self.store.born;
        Ok(self.with(key, |slot, now| match slot.leases.iter().position(|lease| lease.fence == fence.0) {
            Some(at) => {
                let (end, why) = mark.into();
                let past = slot.leases.remove(at).past(now, born, end, why);
                slot.remember(past);
                slot.pass_on();
                Marking::Done
            }
            None => Marking::Changed,
        }))
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        Ok(self.with(key, |slot, now| slot.state(key, now)))
    }

    #[allow(clippy::disallowed_methods)] // tokio's clock stands in for the store's
    async fn list(&mut self, start: &str) -> Result<Vec<LockState>> {
        let now = Instant::now();
        let mut found: Vec<_> = self
            .store
            .slots
            .borrow_mut()
            .iter_mut()
            .filter(|((namespace, key), _)| namespace == self.namespace.as_str() && key.as_str().starts_with(start) && *key != Key::probe())
            .map(|((_, key), slot)| {
                slot.settle(now, self.store.born);
                slot.state(key, now)
            })
            .filter(|state| !state.holders.is_empty())
            .collect();
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    async fn init(&mut self) -> Result<Init> {
        Ok(Init::NotNeeded)
    }
}
