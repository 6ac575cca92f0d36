//! Looking without touching: nothing is created, nothing is written.

use std::sync::Arc;

use super::{
    Sqlite,
    document::Witness,
    failure, location,
    lock_file::LockFile,
    ours,
    row::{Row, millis, unknown_holder},
    store::{
        Store, Whose,
        queue::{Names, Queues},
    },
};
use crate::lock::{Key, LockState, Renewal, Result, Token, Waiter, Which};

impl Sqlite {
    /// The lock file if there is one, and whether there is a database to ask.
    pub(super) async fn open_to_look(&mut self) -> Result<(Option<Arc<LockFile>>, bool)> {
        let path = &self.options.path;
        let directory = location::directory(path);
        if !self.options.create_directory {
            directory.metadata().map_err(|error| failure::files(&error, path))?;
        }
        location::check_file_system(directory)?;
        if self.store.is_none() {
            self.store = Store::open_to_look(path).await?;
        }
        let file = match &self.file {
            Some(file) => Some(Arc::clone(file)),
            None => LockFile::open_to_look(path).map_err(|error| failure::files(&error, &LockFile::path_for(path)))?.map(Arc::new),
        };
        Ok((file, self.store.is_some()))
    }

    pub(super) async fn look_at(&mut self, key: &Key) -> Result<LockState> {
        let (file, _) = self.open_to_look().await?;
        let namespace = &self.options.namespace;
        let (row, mut queues) = match &mut self.store {
            Some(store) => (store.look(namespace, key).await?, store.queues(namespace, Names::One(key)).await?),
            None => (None, Queues::new()),
        };
        self.state(key.clone(), row, queues.remove(key.as_str()), file.as_deref())
    }

    pub(super) async fn look_for(&mut self, key: &Key, token: &Token) -> Result<Renewal> {
        let (file, _) = self.open_to_look().await?;
        let locked = self.is_locked(key, file.as_deref())?;
        let Some(store) = &mut self.store else { return Ok(Renewal::NotHeld) };
        let whose = Whose { namespace: &self.options.namespace, key, token };
        let Some(row) = store.look(whose.namespace, key).await? else { return Ok(Renewal::NotHeld) };
        if row.document.is_some() && !row.is_owned_by(token) {
            let now = row.now();
            return Ok(row.settled(now, self.witness_of(key, file.as_deref()))?.0.verify(token, now));
        }
        let lock_file = file.as_deref().map(LockFile::id);
        if !row.is_owned_by(token) || !row.is_held(lock_file, locked) {
            return Ok(Renewal::NotHeld);
        }
        // The first hold of those that the lock file rules lasts as long as its process does.
        let (ends, by_lease) = if row.is_first_hold(token) {
            (Some(row.hold_expires_ms), row.by_lease(lock_file))
        } else {
            (store.nested_end(whose).await?, true)
        };
        Ok(match ends.filter(|ends| !by_lease || *ends > row.now_ms) {
            Some(ends) => Renewal::Kept { expires_in: Some(millis(ends - row.now_ms)) },
            None => Renewal::NotHeld,
        })
    }

    pub(super) async fn look_at_all(&mut self, start: &str) -> Result<Vec<LockState>> {
        let (file, _) = self.open_to_look().await?;
        let namespace = &self.options.namespace;
        let (rows, mut queues) = match &mut self.store {
            Some(store) => (store.list(namespace, start).await?, store.queues(namespace, Names::Starting(start)).await?),
            None => (Vec::new(), Queues::new()),
        };
        let mut states = Vec::new();
        for row in rows {
            // What no dlock can have written is no lock.
            let Ok(key) = Key::new(row.key.clone()) else { continue };
            let queue = queues.remove(key.as_str());
            let state = self.state(key, Some(row), queue, file.as_deref())?;
            if !state.holders.is_empty() {
                states.push(state);
            }
        }
        Ok(states)
    }

    pub(super) async fn known_keys(&mut self, start: &str, which: Which) -> Result<Vec<Key>> {
        self.open_to_look().await?;
        let Some(store) = &mut self.store else { return Ok(Vec::new()) };
        let names = store.known(&self.options.namespace, start, which == Which::Kept).await?;
        Ok(names.into_iter().filter_map(|name| Key::new(name).ok()).collect())
    }

    /// Whether a process has the lock alone, as far as the lock file tells.
    pub(super) fn is_locked(&self, key: &Key, file: Option<&LockFile>) -> Result<bool> {
        let failed = |error: std::io::Error| ours(&error);
        match (self.slots.get(key), file) {
            (Some(slot), _) => slot.is_locked().map_err(failed),
            (None, Some(file)) => file.others_have_it_alone(self.bytes(key)).map_err(failed),
            (None, None) => Ok(false),
        }
    }

    pub(super) fn witness_of<'a>(&'a self, key: &Key, file: Option<&'a LockFile>) -> Witness<'a> {
        Self::witness(&self.slots, key, file, self.bytes(key))
    }

    fn state(&self, key: Key, row: Option<Row>, queue: Option<Vec<(String, Waiter)>>, file: Option<&LockFile>) -> Result<LockState> {
        let locked = self.is_locked(&key, file)?;
        let last_fence = row.as_ref().map(|row| row.fence).filter(|fence| fence.0 > 0);
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        let witness = self.witness_of(&key, file);
        if let Some(row) = &row {
            let now = row.now();
            let (document, _) = row.settled(now, witness)?;
            holders = document.holders(now);
            waiters.extend(document.waiters(now).into_iter().map(|(_, waiter)| waiter));
        }
        match row.filter(|row| row.is_held(file.map(LockFile::id), locked)) {
            _ if !holders.is_empty() => {}
            Some(row) => holders.push(row.holder()),
            None if locked => holders.push(unknown_holder()),
            None => {}
        }
        waiters.extend(queue.into_iter().flatten().filter(|(hold, _)| witness.awaits(hold)).map(|(_, waiter)| waiter));
        let namespace = self.options.namespace.as_str();
        let stored_as = if namespace.is_empty() { key.to_string() } else { format!("{namespace}:{key}") };
        Ok(LockState { key, stored_as, holders, waiters, last_fence, nodes: Vec::new() })
    }
}
