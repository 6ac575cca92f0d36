//! A store in this process's memory: the reference for the other backends, and the store for tests
//! of the lease core. Never offered to users, since no other process can see it.
//!
//! Time is tokio's, so that a paused runtime controls leases and waits alike.

use std::{
    cell::RefCell,
    collections::{HashMap, VecDeque},
    rc::Rc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::{sync::Notify, time::Instant};

use super::cas::{self, Base, CasBackend, Change, ReadFor, Snapshot, in_order};
use crate::lock::{
    Admin, Capabilities, Fence, HistoryEntry, Identity, Key, Namespace, Note, Progress, REMEMBERED,
    Request, Result, SkipCount, Wake, Which, document::Document, forgotten_hosts,
};

/// The state that several [`Memory`] backends share.
#[derive(Clone)]
pub struct MemoryStore {
    slots: Rc<RefCell<HashMap<(String, Key), StoredLock>>>,
    born: Instant,
}

impl Default for MemoryStore {
    #[allow(clippy::disallowed_methods)] // tokio's clock stands in for the store's
    fn default() -> Self {
        Self {
            slots: Rc::default(),
            born: Instant::now(),
        }
    }
}

impl MemoryStore {
    /// Drops all data, like a store that lost its disk.
    pub fn lose_data(&self) {
        for slot in self.slots.borrow_mut().values_mut() {
            let (revision, wake, waiting) = (
                slot.revision + 1,
                Rc::clone(&slot.wake),
                std::mem::take(&mut slot.waiting),
            );
            *slot = StoredLock {
                revision,
                wake,
                waiting,
                ..StoredLock::default()
            };
            slot.wake.notify_waiters();
            slot.waiting.values().for_each(|wake| wake.notify_one());
        }
    }
}

#[derive(Default)]
struct StoredLock {
    document: Document,
    revision: u64,
    last_fence: Option<Fence>,
    /// Wakes one unfair exclusive waiter.
    wake: Rc<Notify>,
    /// Wakes each of the other waiters, by hold.
    waiting: HashMap<String, Rc<Notify>>,
    /// The history, latest first: all entries, and those that ended badly.
    past: [VecDeque<HistoryEntry>; 2],
    skips: Vec<SkipCount>,
}

impl StoredLock {
    fn remember(&mut self, past: HistoryEntry) {
        let [all, bad] = &mut self.past;
        if past.end.is_bad() {
            bad.push_front(past.clone());
            bad.truncate(REMEMBERED);
        }
        all.push_front(past);
        all.truncate(REMEMBERED);
    }

    fn skip(&mut self, host: &str, reason: &str, now: Option<u64>) {
        if let Some(skips) = self.skips.iter_mut().find(|skips| skips.host == host) {
            *skips = SkipCount {
                count: skips.count + 1,
                last_ms: now,
                reason: reason.to_owned(),
                ..skips.clone()
            };
        } else {
            self.skips.push(SkipCount {
                host: host.to_owned(),
                count: 1,
                since_ms: now,
                last_ms: now,
                reason: reason.to_owned(),
            });
            let forgotten = forgotten_hosts(
                self.skips
                    .iter()
                    .map(|skips| (skips.last_ms, skips.host.clone()))
                    .collect(),
            );
            self.skips.retain(|skips| !forgotten.contains(&skips.host));
        }
    }

    fn snapshot(&self, now_us: u64) -> Snapshot<u64> {
        let (document, fence, version) = (self.document.clone(), self.last_fence, self.revision);
        Snapshot {
            document,
            now_us,
            fence,
            outside: None,
            base: Base::Document,
            apart: false,
            version,
        }
    }
}

/// One client of a [`MemoryStore`].
pub struct MemoryClient {
    store: MemoryStore,
    namespace: Namespace,
}

const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    permits: true,
    fair: true,
    history: true,
    run_policy: true,
    breakable: true,
    ..Capabilities::usual("memory")
};

/// The backend of one client of a [`MemoryStore`].
pub type Memory = CasBackend<MemoryClient>;

impl Memory {
    /// Returns a client that keeps its locks in `store`.
    pub fn new(store: MemoryStore, namespace: Namespace) -> Self {
        Self::of(MemoryClient { store, namespace })
    }
}

impl MemoryClient {
    /// Returns the store's time in µs.
    #[allow(clippy::disallowed_methods)] // tokio's clock stands in for the store's
    fn now_us(&self) -> u64 {
        u64::try_from((Instant::now() - self.store.born).as_micros()).unwrap_or(u64::MAX)
    }

    fn with<T>(&self, key: &Key, answer: impl FnOnce(&mut StoredLock) -> T) -> T {
        answer(
            self.store
                .slots
                .borrow_mut()
                .entry((self.namespace.as_str().to_owned(), key.clone()))
                .or_default(),
        )
    }
}

// The store has no settings: its locks are this process's alone, and end with it.
impl Admin for MemoryClient {}

#[async_trait(?Send)]
impl cas::Store for MemoryClient {
    type Version = u64;

    fn identity(&self) -> Identity {
        Identity::new(
            &CAPABILITIES,
            "memory:".into(),
            &["memory", self.namespace.as_str()],
        )
    }

    fn stored_as(&self, key: &Key) -> Result<String> {
        Ok(key.to_string())
    }

    async fn read(&mut self, key: &Key, _: ReadFor<'_>) -> Result<Snapshot<u64>> {
        Ok(self.with(key, |slot| slot.snapshot(self.now_us())))
    }

    async fn swap(&mut self, key: &Key, was: Snapshot<u64>, change: Change<'_>) -> Result<bool> {
        Ok(self.with(key, |slot| {
            if slot.revision != was.version {
                return false;
            }
            slot.revision += 1;
            slot.document = change.document.clone();
            slot.last_fence = change.granted.or(slot.last_fence);
            change
                .ended
                .into_iter()
                .for_each(|past| slot.remember(past));
            for woken in change.wake {
                if let Some(wake) = if woken.plain {
                    Some(&slot.wake)
                } else {
                    slot.waiting.get(&woken.hold)
                } {
                    wake.notify_one();
                }
            }
            true
        }))
    }

    async fn wait(&mut self, request: &Request, at_most: Duration, _: bool) -> Result<Wake> {
        let wake = self.with(&request.key, |slot| {
            let own = in_order(request)
                .then(|| Rc::clone(slot.waiting.entry(request.token.hold_text()).or_default()));
            own.unwrap_or_else(|| Rc::clone(&slot.wake))
        });
        let woken = tokio::time::timeout(at_most, wake.notified()).await;
        Ok(if woken.is_ok() {
            Wake::Changed
        } else {
            Wake::TimedOut
        })
    }

    async fn remove_waiter(&mut self, request: &Request) -> Result<bool> {
        self.with(&request.key, |slot| {
            slot.waiting.remove(&request.token.hold_text())
        });
        Ok(false)
    }

    async fn scan(&mut self, start: &str, _: &Progress) -> Result<Vec<(Key, Snapshot<u64>)>> {
        let (now_us, slots) = (self.now_us(), self.store.slots.borrow());
        let ours = slots.iter().filter(|((namespace, key), _)| {
            namespace == self.namespace.as_str() && !key.is_probe()
        });
        let found = ours.filter(|((_, key), _)| key.as_str().starts_with(start));
        Ok(found
            .map(|((_, key), slot)| (key.clone(), slot.snapshot(now_us)))
            .collect())
    }

    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>> {
        let (now, found) = (self.now_us() / 1000, self.scan(start, progress).await?);
        let wanted = |document: &Document| {
            which == Which::All || document.run_record().current_denial(now).is_some()
        };
        let mut keys: Vec<Key> = found
            .into_iter()
            .filter(|(_, found)| wanted(&found.document))
            .map(|(key, _)| key)
            .collect();
        keys.sort();
        Ok(keys)
    }

    async fn log(&mut self, key: &Key) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
        Ok(self.with(key, |slot| {
            (
                slot.past.iter().flatten().cloned().collect(),
                slot.skips.clone(),
            )
        }))
    }

    async fn append(&mut self, key: &Key, note: &Note) -> Result<()> {
        let now = self.now_us() / 1000;
        self.with(key, |slot| match note {
            Note::Lost(past) => slot.remember(past.clone()),
            Note::Skipped { host, reason, .. } => slot.skip(host, reason, Some(now)),
        });
        Ok(())
    }
}
