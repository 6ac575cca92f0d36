//! What the database remembers of holds that are over.

use super::{Sqlite, lock_file::LockFile, opened, row::Row};
use crate::lock::{Fence, History, Key, Note, Result};

impl Sqlite {
    pub(super) async fn recall(&mut self, key: &Key) -> Result<History> {
        let (file, _) = self.open_to_look().await?;
        let locked = self.is_locked(key, file.as_deref())?;
        let (namespace, bytes) = (&self.options.namespace, self.bytes(key));
        let Some(store) = &mut self.store else { return Ok(History::default()) };
        let mut past = store.runs(namespace, key).await?;
        let row = store.look(namespace, key).await?;
        if let Some(row) = &row {
            let witness = Self::witness(&self.slots, key, file.as_deref(), bytes);
            past.extend(row.settled(row.now(), witness)?.1);
        }
        let row = row.filter(|row| row.owner.is_some());
        past.extend(row.filter(|row| !row.is_held(file.as_deref().map(LockFile::id), locked)).map(Row::vanished));
        let record = store.record(namespace, key).await?;
        Ok(History { record, ..History::new(past, store.skips(namespace, key).await?) })
    }

    pub(super) async fn claim(&mut self, key: &Key, fence: Fence, level: u32) -> Result<bool> {
        self.place()?;
        let (store, _) = opened(&mut self.store, &self.options.path).await?;
        store.warn(&self.options.namespace, key, fence, level).await
    }

    pub(super) async fn remember(&mut self, key: &Key, note: &Note) -> Result<()> {
        self.place()?;
        let Self { options, store, .. } = self;
        let (store, _) = opened(store, &options.path).await?;
        match note {
            Note::Skipped { host, reason, .. } => store.skip(&options.namespace, key, host, reason).await,
            Note::Lost(past) => store.lost(&options.namespace, key, past).await,
        }
    }
}
