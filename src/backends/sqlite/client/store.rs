//! What the client answers as a store of documents.

use std::time::Duration;

use async_trait::async_trait;

use super::{SqliteClient, SqliteVersion, is_plain};
use crate::{
    backends::{
        cas::{self, Change, ReadFor, Snapshot, in_order},
        sqlite::{
            CAPABILITIES,
            database::{Database, RowWrite, StoredRow},
            location,
        },
    },
    lock::{
        Busy, Entry, HistoryEntry, Identity, Key, Mode, Note, Progress, Request, Result, SkipCount,
        Wake, Which, document::Document,
    },
};

#[async_trait(?Send)]
impl cas::Store for SqliteClient {
    type Version = SqliteVersion;

    fn identity(&self) -> Identity {
        let path = self
            .resolved
            .clone()
            .unwrap_or_else(|| location::resolved(&self.options.path));
        let url = format!("sqlite://{}", self.options.path.display());
        Identity::new(
            &CAPABILITIES,
            url,
            &[
                "sqlite",
                &path.to_string_lossy(),
                self.options.namespace.as_str(),
            ],
        )
    }

    fn stored_as(&self, key: &Key) -> Result<String> {
        let namespace = self.options.namespace.as_str();
        Ok(if namespace.is_empty() {
            key.to_string()
        } else {
            format!("{namespace}:{key}")
        })
    }

    async fn read(&mut self, key: &Key, purpose: ReadFor<'_>) -> Result<Snapshot<SqliteVersion>> {
        let looks = matches!(purpose, ReadFor::Look);
        let namespace = self.options.namespace.clone();
        let file = if looks {
            self.open_to_look().await?
        } else {
            self.file_now()?
        };
        let database = if looks {
            self.database.as_mut()
        } else {
            Some(self.open().await?.0)
        };
        let (mut row, mut listed) = (StoredRow::default(), Vec::new());
        if let Some(database) = database {
            row = database.read(&namespace, key).await?;
            let orders = matches!(purpose, ReadFor::Acquire { request, .. } if in_order(request) && request.entry == Entry::Fresh);
            if looks || orders || row.queued || !is_plain(&row.document) {
                listed = database.waiters_of(&namespace, key).await?;
            }
        }
        if let Some(slot) = self.slots.get_mut(key) {
            slot.last_fence = row.fence;
        }
        let mut snapshot = self.snapshot(key, row, listed, file.as_deref());
        match purpose {
            ReadFor::Acquire { request, .. } => self.read_for_request(request, &mut snapshot)?,
            ReadFor::Release(token, _) => {
                let witness = self.witness(key, file.as_deref());
                snapshot
                    .document
                    .drop_dead_holds(token, |hold| witness.has_process(hold));
            }
            ReadFor::Look => snapshot.outside = self.outside(key, &snapshot, file.as_deref())?,
            ReadFor::Change | ReadFor::Warn => {}
        }
        Ok(snapshot)
    }

    async fn swap(
        &mut self,
        key: &Key,
        was: Snapshot<SqliteVersion>,
        change: Change<'_>,
    ) -> Result<bool> {
        let (namespace, document, version) = (
            self.options.namespace.clone(),
            change.document,
            &was.version,
        );
        let (now, fence) = (was.now(), change.granted.or(was.fence));
        let (revision, lock_file) = (version.revision, version.lock_file);
        let write = RowWrite {
            revision,
            fence,
            lock_file,
            document,
            now,
            ended: &change.ended,
            absorbed: &version.absorbed,
        };
        let durable = outlives_power_cut(&was.document, document);
        if !self
            .open()
            .await?
            .0
            .swap((&namespace, key), write, durable)
            .await?
        {
            return Ok(false);
        }
        if durable && change.granted.is_some() && document.run_record().start.is_some() {
            Database::reserve(&self.options.path);
        }
        // Waiters for the end of a lease watch the file, and so do those with a position in the
        // queue, which must wait for the bytes of an exclusive holder from now on.
        let lease_ended =
            was.document.ends_by_itself(Mode::Exclusive).is_some() && !document.has_holders();
        let alone = change.granted.is_some() && document.exclusive_owner().is_some();
        self.notify_watchers |=
            !change.wake.is_empty() || lease_ended || alone && !document.queue().is_empty();
        if let (Some(slot), Some(request)) = (self.slots.get_mut(key), change.request) {
            slot.granted = change.granted.map(|_| request.token);
            slot.seen = document.clone();
        }
        Ok(true)
    }

    async fn wait(&mut self, request: &Request, at_most: Duration, _: bool) -> Result<Wake> {
        self.await_change(request, at_most).await
    }

    fn advise(&mut self, request: &Request, busy: &mut Busy) {
        busy.notifies = true;
        // While a process has the lock, no time says when it ends.
        if let Some(slot) = self
            .slots
            .get(&request.key)
            .filter(|slot| !busy.transient && !slot.seen.has_room(request.mode, None))
        {
            let ends = slot.seen.ends_by_itself(request.mode);
            busy.expires_in =
                ends.map(|ends| Duration::from_millis(ends.saturating_sub(slot.seen_at)));
        }
    }

    async fn note_waiter(&mut self, request: &Request, _: u64) -> Result<Option<u32>> {
        match self.list_waiter(request).await {
            // For this waiter the list only informs people: no failure here is one of the request.
            Err(_) if !in_order(request) => Ok(None),
            position => position,
        }
    }

    async fn remove_waiter(&mut self, request: &Request) -> Result<bool> {
        let Self {
            options,
            database,
            slots,
            ..
        } = self;
        if slots
            .get(&request.key)
            .is_some_and(|slot| slot.granted == Some(request.token))
        {
            // A holder must not spend time on the list: a waiter whose byte is free is skipped, and
            // removed by later waiters.
            return Ok(true);
        }
        match database {
            Some(database) => {
                let removed = database
                    .remove_waiter(&options.namespace, &request.key, &request.token.hold_text())
                    .await?;
                // Those behind it in the queue may go now.
                self.notify_watchers |= removed && in_order(request);
                Ok(removed)
            }
            None => Ok(true),
        }
    }

    async fn scan(
        &mut self,
        start: &str,
        progress: &Progress,
    ) -> Result<Vec<(Key, Snapshot<SqliteVersion>)>> {
        let file = self.open_to_look().await?;
        let Self {
            options, database, ..
        } = self;
        let Some(database) = database else {
            return Ok(Vec::new());
        };
        let rows = database.scan(&options.namespace, start, progress).await?;
        let mut listed = database.waiters(&options.namespace, start).await?;
        let mut found = Vec::new();
        for row in rows.into_iter().filter(|row| row.document.has_holders()) {
            // A key that no dlock can have written is no lock.
            let Ok(key) = Key::new(row.key.clone()) else {
                continue;
            };
            let waiters = listed.remove(key.as_str()).unwrap_or_default();
            let snapshot = self.snapshot(&key, row, waiters, file.as_deref());
            found.push((key, snapshot));
        }
        Ok(found)
    }

    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>> {
        self.open_to_look().await?;
        let Self {
            options, database, ..
        } = self;
        let Some(database) = database else {
            return Ok(Vec::new());
        };
        let rows = database.scan(&options.namespace, start, progress).await?;
        let wanted = |row: &StoredRow| {
            which == Which::All || row.document.run_record().current_denial(row.now).is_some()
        };
        Ok(rows
            .into_iter()
            .filter(wanted)
            .filter_map(|row| Key::new(row.key).ok())
            .collect())
    }

    async fn log(&mut self, key: &Key) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
        match &mut self.database {
            Some(database) => database.log(&self.options.namespace, key).await,
            None => Ok((Vec::new(), Vec::new())),
        }
    }

    async fn append(&mut self, key: &Key, note: &Note) -> Result<()> {
        let namespace = self.options.namespace.clone();
        let (database, _) = self.open().await?;
        match note {
            Note::Skipped { host, reason, .. } => {
                database.skip(&namespace, key, host, reason).await
            }
            Note::Lost(past) => database.lost(&namespace, key, past).await,
        }
    }
}

/// Whether a change concerns what a power cut does not end: a detached hold, or a run record that
/// later runs depend on.
fn outlives_power_cut(was: &Document, is: &Document) -> bool {
    let counts = |document: &Document| {
        let record = document.run_record();
        record.start.is_some()
            || record
                .cooldown
                .as_ref()
                .is_some_and(|cooldown| cooldown.at_least_ms > 0)
    };
    was.has_detached()
        || is.has_detached()
        || was.run_record() != is.run_record() && (counts(was) || counts(is))
}
