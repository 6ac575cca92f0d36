//! Looking at locks.

use super::{CasBackend, ReadFor, Snapshot, Store};
use crate::lock::{End, Fence, History, Key, LockState, Progress, Result};

impl<S: Store> CasBackend<S> {
    pub(super) async fn read_lock(&mut self, key: &Key) -> Result<LockState> {
        let snapshot = self.read(key, ReadFor::Look).await?;
        self.state(key.clone(), snapshot)
    }

    pub(super) async fn read_locks(
        &mut self,
        start: &str,
        progress: &Progress,
    ) -> Result<Vec<LockState>> {
        let mut found = Vec::new();
        for (key, snapshot) in self.store.scan(start, progress).await? {
            Self::check(&key, &snapshot, &snapshot.document, None);
            found.push(self.state(key, snapshot)?);
        }
        found.retain(|state| !state.holders.is_empty());
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    fn state(&self, key: Key, mut snapshot: Snapshot<S::Version>) -> Result<LockState> {
        snapshot.document.expire(snapshot.now());
        let now = snapshot.now_up();
        Ok(LockState {
            stored_as: self.store.stored_as(&key)?,
            key,
            holders: snapshot
                .outside
                .into_iter()
                .map(|outside| outside.holder)
                .chain(snapshot.document.holders(now))
                .collect(),
            waiters: snapshot
                .document
                .waiters(now)
                .into_iter()
                .map(|(_, waiter)| waiter)
                .collect(),
            last_fence: snapshot.fence,
            nodes: Vec::new(),
        })
    }

    /// Returns the log and the outbox. It reads the outbox first: an entry that moves to the log
    /// meanwhile is found twice, and shown once.
    pub(super) async fn read_history(&mut self, key: &Key) -> Result<History> {
        let mut snapshot = self.read(key, ReadFor::Look).await?;
        let now = snapshot.now();
        snapshot.document.expire(now);
        let held: Vec<Fence> = snapshot.document.fences().collect();
        let (mut past, skips) = self.store.log(key).await?;
        past.extend(snapshot.document.take_ended());
        past.retain(|past| past.fence.is_none_or(|fence| !held.contains(&fence)));
        for one in past.iter_mut().filter(|one| one.end == End::Expired) {
            // A hold that ended before its lease has the lease's later end here.
            one.ended_ms = one.ended_ms.map(|ended| ended.min(now));
        }
        Ok(History {
            record: snapshot.document.run_record().clone(),
            ..History::new(past, skips)
        })
    }
}
