//! Marking a hold as to be broken, and taking a lock away from a hold that no process stands behind.
//!
//! The lock file's bytes can't be taken from a living process: its hold is marked, or the process is killed.

use super::{Sqlite, lock_file::LockFile, opened, store::Locked};
use crate::lock::{Break, Error, Fence, Key, Kind, Metadata, Result};

impl Sqlite {
    pub(super) async fn mark_hold(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<bool> {
        self.break_at(key, fence, mark, false).await
    }

    pub(super) async fn evict_hold(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<bool> {
        self.break_at(key, fence, mark, true).await
    }

    async fn break_at(&mut self, key: &Key, fence: Fence, mark: &Break, at_once: bool) -> Result<bool> {
        self.place()?;
        if !self.options.path.exists() {
            return Ok(false);
        }
        let (file, _) = self.open_to_look().await?;
        let locked = self.is_locked(key, file.as_deref())?;
        let lock = Locked { locked, file: file.as_deref().map(LockFile::id).unwrap_or_default() };
        let Self { options, store, .. } = self;
        let (store, _) = opened(store, &options.path).await?;
        let Some(row) = store.break_hold((&options.namespace, key), fence, mark, lock, at_once).await? else {
            return self.break_share(key, fence, mark, at_once).await;
        };
        if at_once {
            if !row.by_lease(Some(lock.file)) {
                return Err(lives(row.metadata));
            }
            self.lock_file()?.ring();
        }
        Ok(true)
    }

    async fn break_share(&mut self, key: &Key, fence: Fence, mark: &Break, at_once: bool) -> Result<bool> {
        let (file, bytes) = (self.file_now()?, self.bytes(key));
        let Self { options, store, slots, .. } = self;
        let (store, _) = opened(store, &options.path).await?;
        if store.look(&options.namespace, key).await?.is_none_or(|row| row.document.is_none()) {
            return Ok(false);
        }
        let witness = Self::witness(slots, key, file.as_deref(), bytes);
        let mut gathering = store.gather(&options.namespace, key, true, witness).await?;
        let marking = match gathering.document.is_detached(fence) {
            None => false,
            Some(_) if !at_once => gathering.document.mark(fence, mark),
            Some(false) => {
                let holder = gathering.document.holders(gathering.now).into_iter().find(|holder| holder.fence == Some(fence));
                return Err(lives(holder.and_then(|holder| holder.metadata)));
            }
            Some(true) => gathering.document.evict(fence, mark, gathering.now),
        };
        let ring = !gathering.document.take_wake_ups(None).is_empty();
        gathering.save().await?;
        if ring {
            self.lock_file()?.ring();
        }
        Ok(marking)
    }
}

/// The error that a lock can't be taken away from a process.
fn lives(holder: Option<Metadata>) -> Error {
    let pid = holder.and_then(|metadata| metadata.pid).map(|pid| format!(" (dlock pid {pid})")).unwrap_or_default();
    let why = format!("the process that has the lock lives{pid}: this store can't take a lock away from a living process");
    Error::new(Kind::Unsupported, why).hint("without --now its dlock is asked to stop; or kill the process")
}
