//! Marking a hold as to be broken, and taking a lock away from a hold that no process stands behind.
//!
//! What a living process has of the lock file nobody can take from it: such a hold is marked, or its process is killed.

use super::{Sqlite, lock_file::LockFile, opened, store::Locked};
use crate::lock::{Break, Error, Fence, Key, Kind, Marking, Result};

impl Sqlite {
    pub(super) async fn mark_hold(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        self.break_at(key, fence, mark, false).await
    }

    pub(super) async fn evict_hold(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        self.break_at(key, fence, mark, true).await
    }

    async fn break_at(&mut self, key: &Key, fence: Fence, mark: &Break, at_once: bool) -> Result<Marking> {
        self.place()?;
        if !self.options.path.exists() {
            return Ok(Marking::Changed);
        }
        let (file, _) = self.open_to_look().await?;
        let locked = self.is_locked(key, file.as_deref())?;
        let lock = Locked { locked, file: file.as_deref().map(LockFile::id).unwrap_or_default() };
        let Self { options, store, .. } = self;
        let (store, _) = opened(store, &options.path).await?;
        let Some(row) = store.break_hold((&options.namespace, key), fence, mark, lock, at_once).await? else {
            return Ok(Marking::Changed);
        };
        if at_once {
            if !row.by_lease(Some(lock.file)) {
                let pid = row.metadata.and_then(|metadata| metadata.pid).map(|pid| format!(" (dlock pid {pid})")).unwrap_or_default();
                let why = format!("the process that has the lock lives{pid}: on this store nobody can take it away from a process");
                return Err(Error::new(Kind::Unsupported, why).hint("without --now its dlock is asked to stop; or kill the process"));
            }
            self.lock_file()?.ring();
        }
        Ok(Marking::Done)
    }
}
