//! A store in this process's memory: the reference that other backends are compared with, and what the
//! lease core is tested on. Never offered to users, since no other process can see it.
//!
//! Time is tokio's, so that a paused runtime controls leases and waits alike. Who has a lock and who goes first is for
//! [`Crowd`] to say; here all holds are its shares.

mod examine;

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    rc::Rc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::{sync::Notify, time::Instant};

use crate::lock::{
    Attempt, Backend, Break, Capabilities, Extension, Fence, History, Holding, Init, Key, LockState, Marking, Mode, Namespace, Note,
    Parting, Past, REMEMBERED, Record, Release, Renewal, Request, Result, SKIPPING_HOSTS, Skips, Token, Wake,
    crowd::{Answer, Crowd},
    fingerprint, whole_ms,
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
    /// Its time in ms.
    #[allow(clippy::disallowed_methods)] // tokio's clock stands in for the store's
    fn now(&self) -> u64 {
        whole_ms(Instant::now() - self.born)
    }

    /// Forgets every lock and every fence, as a store that lost its disk.
    pub fn lose_data(&self) {
        for slot in self.slots.borrow_mut().values_mut() {
            slot.crowd = Crowd::default();
            slot.last_fence = 0;
            slot.wake.notify_waiters();
            slot.waiting.values().for_each(|wake| wake.notify_one());
        }
    }
}

#[derive(Default)]
struct Slot {
    crowd: Crowd,
    last_fence: u64,
    /// What wakes one of those who want the lock for themselves alone and in no order.
    wake: Rc<Notify>,
    /// What wakes each of the others, by hold.
    waiting: HashMap<String, Rc<Notify>>,
    /// The latest first, and those of them that ended badly.
    past: [VecDeque<Past>; 2],
    skips: Vec<Skips>,
    record: Record,
    /// The fence of the hold that was last warned about, and up to which level.
    warned: (u64, u32),
}

impl Slot {
    fn settle(&mut self, now: u64) {
        for past in self.crowd.settle(now) {
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

    fn pass_on(&mut self) {
        for woken in self.crowd.woken(None) {
            let wake = if woken.plain { Some(&self.wake) } else { self.waiting.get(&woken.hold) };
            if let Some(wake) = wake {
                wake.notify_one();
            }
        }
    }

    fn state(&self, key: &Key, now: u64) -> LockState {
        LockState {
            key: key.clone(),
            stored_as: key.to_string(),
            holders: self.crowd.holders(now),
            waiters: self.crowd.waiters(now).into_iter().map(|(_, waiter)| waiter).collect(),
            last_fence: (self.last_fence > 0).then_some(Fence(self.last_fence)),
            nodes: Vec::new(),
        }
    }
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

    /// Answers from a lock's settled state, at the store's time in ms, and wakes who is to be woken by that.
    fn with<T>(&self, key: &Key, answer: impl FnOnce(&mut Slot, u64) -> T) -> T {
        let now = self.store.now();
        let mut slots = self.store.slots.borrow_mut();
        let slot = slots.entry((self.namespace.as_str().to_owned(), key.clone())).or_default();
        slot.settle(now);
        let answer = answer(slot, now);
        slot.pass_on();
        answer
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
        self.with(&request.key, |slot, now| {
            let Slot { crowd, record, last_fence, .. } = slot;
            Ok(match crowd.ask(request, now, None, || record.judge(request.terms.as_ref(), now)) {
                Answer::Has(grant) => Attempt::Granted(grant),
                Answer::Busy(busy) => Attempt::Busy(busy),
                Answer::Refused(refusal) => Attempt::Refused(refusal),
                Answer::NotHeld => Attempt::NotHeld,
                Answer::Otherwise(mode) => return Err(mode.not_enough()),
                Answer::Go => {
                    // Never below the store's time, so that a store that lost its data doesn't repeat a fence.
                    *last_fence = (*last_fence + 1).max(now * 1000);
                    record.begin(request, Fence(*last_fence), now);
                    Attempt::Granted(crowd.grant(request, Fence(*last_fence), now))
                }
            })
        })
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        let plain = request.mode == Mode::Exclusive && !request.fair;
        let wake = self.with(&request.key, |slot, _| {
            Rc::clone(if plain { &slot.wake } else { slot.waiting.entry(request.token.hold_text()).or_default() })
        });
        let woken = tokio::time::timeout(at_most, wake.notified()).await;
        Ok(if woken.is_ok() { Wake::Changed } else { Wake::TimedOut })
    }

    async fn abandon(&mut self, request: &Request) -> Result<()> {
        self.with(&request.key, |slot, _| {
            slot.crowd.leave(&request.token);
            slot.waiting.remove(&request.token.hold_text());
        });
        Ok(())
    }

    async fn renew(&mut self, key: &Key, token: &Token, extension: Extension) -> Result<Renewal> {
        Ok(self.with(key, |slot, now| slot.crowd.renew(token, extension, now)))
    }

    async fn verify(&mut self, key: &Key, token: &Token) -> Result<Holding> {
        Ok(self.with(key, |slot, now| slot.crowd.verify(token, now)))
    }

    async fn release(&mut self, key: &Key, token: &Token, parting: &Parting) -> Result<Release> {
        Ok(self.with(key, |slot, now| {
            if let (Some(stage), Some(fence)) = (parting.became, slot.crowd.fence(token)) {
                slot.record.end(fence, stage);
            }
            let (answer, past) = slot.crowd.release(token, parting, now);
            if let Some(past) = past {
                slot.remember(past);
            }
            answer
        }))
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        Ok(self.with(key, |slot, _| History {
            record: slot.record.clone(),
            ..History::new(slot.past.iter().flatten().cloned().collect(), slot.skips.clone())
        }))
    }

    async fn note(&mut self, key: &Key, note: &Note) -> Result<()> {
        self.with(key, |slot, now| match note {
            Note::Lost(past) => slot.remember(past.clone()),
            Note::Skipped { host, reason, .. } => {
                let now = Some(now);
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
        Ok(self.with(key, |slot, _| slot.crowd.mark(fence, mark)))
    }

    async fn evict(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        Ok(self.with(key, |slot, now| match slot.crowd.evict(fence, mark, now) {
            Some(past) => {
                slot.remember(past);
                Marking::Done
            }
            None => Marking::Changed,
        }))
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        Ok(self.with(key, |slot, now| slot.state(key, now)))
    }

    async fn list(&mut self, start: &str) -> Result<Vec<LockState>> {
        let now = self.store.now();
        let mut found: Vec<_> = self
            .store
            .slots
            .borrow_mut()
            .iter_mut()
            .filter(|((namespace, key), _)| namespace == self.namespace.as_str() && key.as_str().starts_with(start) && *key != Key::probe())
            .map(|((_, key), slot)| {
                slot.settle(now);
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
