//! The store of `mode=row` and `mode=advisory`.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    Server, SqlMode,
    client::{Client, HasClient, Session as _},
    row::{self, Own, RowVersion, Write},
    session_database::{Asked, Holders as _, LockOf, SessionDatabase},
    session_lock::{Locks, session_is_over},
    table::LockTable,
};
use crate::{
    backends::cas::{Change, ReadFor, Snapshot, Store},
    lock::{
        Busy, Fence, HistoryEntry, Identity, Intent, Key, Mode, Note, Notice, Progress,
        ReleaseInfo, Request, Result, SkipCount, Token, Ttl, Wake, Which,
        document::{Document, SessionState},
    },
};

/// A client whose sessions keep locks, with the lock's document in the row that `mode=lease` has,
/// too. The [`Client`]'s own session serves everything else.
pub(in crate::backends) struct SessionStore<D: SessionDatabase> {
    pub client: Client<D>,
    pub locks: Locks<LockOf<D>>,
    /// A session with a lock was opened.
    pub checked: bool,
    /// The hold that was granted last, which is in no list of waiters any more.
    granted: Option<Token>,
    own: Own,
    /// How often a row was written in vain since the last success.
    failed: u32,
}

impl<D: SessionDatabase> SessionStore<D> {
    /// Returns a store, without I/O.
    pub fn new(options: D::Options) -> Self {
        Self {
            client: Client::new(options),
            locks: Locks::default(),
            checked: false,
            granted: None,
            own: Own::default(),
            failed: 0,
        }
    }

    fn name_of(&self, key: &Key) -> String {
        self.client.names.of(key)
    }

    /// Asks the tables: over the session of the request that is being served, or over the client's
    /// own.
    pub async fn ask<T>(
        &mut self,
        question: impl AsyncFnOnce(&Client<D>, &mut D::Table<'_>) -> Result<T>,
    ) -> Result<T> {
        let evidence = self.locks.served().and_then(|lock| D::evidence(lock));
        if let Some(lock) = self.locks.asking()? {
            let mut table = D::table(&mut lock.session, &self.client.tables, evidence);
            return question(&self.client, &mut table).await;
        }
        let mut session = match self.client.session.take().filter(D::is_usable) {
            Some(session) => session,
            None => self.client.open().await?,
        };
        // A session that is not put back counts as abandoned.
        self.client.abandon_unless_kept(&session);
        let mut table = D::table(&mut session, &self.client.tables, evidence);
        let answer = question(&self.client, &mut table).await;
        drop(table);
        self.client.put_back(session, &answer);
        answer
    }

    /// As [`SessionStore::ask`], for a question that only reads.
    async fn look<T>(
        &mut self,
        question: impl AsyncFn(&Client<D>, &mut D::Table<'_>) -> Result<T>,
    ) -> Result<T> {
        self.ask(async |client, table| {
            D::read_anywhere(table, async |table: &mut D::Table<'_>| {
                question(client, table).await
            })
            .await
        })
        .await
    }

    /// Takes out the session that asks for this request, if it may still answer. Otherwise it is
    /// abandoned, and so is the client's own session: what made the one silent may have made the
    /// other silent, too.
    pub fn take_try(&mut self, key: &Key, token: &Token) -> Option<LockOf<D>> {
        let lock = self.locks.tries.take(key, token)?;
        let ended = !lock.session.is_alive();
        if !ended && lock.unanswered < 2 && !lock.blocked {
            return Some(lock);
        }
        if !ended {
            self.client.abandon_own();
        }
        self.client.abandon(lock.session);
        None
    }

    /// Writes a row back. A session that releases its hold gives back the lock, too.
    async fn write(&mut self, key: &Key, write: &Write) -> Result<bool> {
        let has = |lock: &&mut LockOf<D>| lock.has && lock.session.is_alive();
        if let Some(token) = &write.releases
            && let Some(lock) = self.locks.of(key, token).filter(has)
        {
            let given = D::give_back(lock, &self.client.tables, write).await?;
            lock.has = !given;
            return Ok(given);
        }
        self.ask(async |_, table| table.write(write).await).await
    }

    /// Returns the server, and the sessions that have the lock of this document.
    async fn holders(&mut self, key: &Key, document: &Document) -> Result<(Server, D::Holders)> {
        self.look(async |client, table| D::holders(client, table, key, document).await)
            .await
    }

    /// Tells a snapshot which of its holders' sessions live, as far as the purpose needs it. The
    /// evidence is later than the document.
    async fn witness(
        &mut self,
        key: &Key,
        snapshot: &mut Snapshot<RowVersion>,
        purpose: ReadFor<'_>,
    ) -> Result<()> {
        let (now, mut own) = (snapshot.now(), None);
        let document = &mut snapshot.document;
        match purpose {
            // The holder of the lock judges no others.
            ReadFor::Release(..) => {
                document.witness_sessions(now, |_, _| SessionState::Has);
                return Ok(());
            }
            ReadFor::Acquire { request, .. } => {
                let lock = self.locks.of(&request.key, &request.token);
                if let Some(lock) = lock.filter(|lock| lock.has) {
                    own = Some(lock.number);
                    document.forget_session(&request.token, now);
                    if document.without_sessions(now) {
                        return Ok(());
                    }
                    // Asked last: a session that answers had the row when the document was read.
                    if lock.mode == SqlMode::Row && !D::keep(lock, None).await? {
                        return Err(session_is_over());
                    }
                    if let Some(server) = lock.server.as_ref().filter(|_| !lock.shared) {
                        server.witness(document, now, |_, _| false);
                        return Ok(());
                    }
                }
            }
            ReadFor::Change | ReadFor::Warn if document.without_sessions(now) => {
                return Ok(());
            }
            ReadFor::Change | ReadFor::Warn | ReadFor::Look => {}
        }
        let (server, holders) = self.holders(key, document).await?;
        if own.is_none() && snapshot.outside.is_none() {
            snapshot.outside = holders.outside(document, &server);
        }
        // A session that shares the lock has no other hold, though an earlier one may have had its
        // number, and no other session has the lock alone.
        server.witness(document, now, |holder, number| {
            own.is_none_or(|own| own != number && holder.mode == Mode::Shared)
                && holders.has(holder, number)
        });
        Ok(())
    }
}

impl<D: SessionDatabase> HasClient for SessionStore<D> {
    type Database = D;

    fn client(&self) -> &Client<D> {
        &self.client
    }

    fn client_mut(&mut self) -> &mut Client<D> {
        &mut self.client
    }
}

#[async_trait(?Send)]
impl<D: SessionDatabase> Store for SessionStore<D> {
    type Version = RowVersion;
    const IN_ONE_STEP: bool = true;

    fn identity(&self) -> Identity {
        self.client.identity()
    }

    fn stored_as(&self, key: &Key) -> Result<String> {
        Ok(match self.client.mode() {
            SqlMode::Advisory => D::advisory_name(&self.client, key),
            SqlMode::Lease | SqlMode::Row => self.name_of(key),
        })
    }

    async fn grant(&mut self, request: &Request) -> Result<Option<Fence>> {
        let name = self.name_of(&request.key);
        self.granted = None;
        self.own.forget();
        // A question over the second session that is late would grant another hold.
        self.client.end_abandoned().await?;
        let lock = self.locks.of(&request.key, &request.token);
        let row = match lock.and_then(D::answered) {
            Some(Asked(row)) => row,
            None => {
                self.ask(async |_, table| table.grant(&name, request, request.waiting).await)
                    .await?
            }
        };
        let Some(row) = row else {
            return Ok(None);
        };
        let fence = row.fence();
        self.granted = Some(request.token);
        self.own.note(row);
        Ok(Some(fence))
    }

    async fn extend(
        &mut self,
        key: &Key,
        token: &Token,
        intent: Intent,
    ) -> Result<Option<(Ttl, Fence)>> {
        let Some((row, ttl)) = self.own.of(&self.name_of(key), token) else {
            return Ok(None);
        };
        // Another length is written with the hold.
        if intent.ttl().is_some_and(|other| other != ttl) {
            return Ok(None);
        }
        self.own.forget();
        let Some(row) = self
            .ask(async |_, table| table.extend(&row, ttl).await)
            .await?
        else {
            return Ok(None);
        };
        let fence = row.fence();
        self.own.note(row);
        if let Ok(Some(lock)) = self.locks.asking() {
            lock.proved = true;
        }
        Ok(Some((ttl, fence)))
    }

    async fn free(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<bool> {
        let Some((row, _)) = self.own.of(&self.name_of(key), token) else {
            return Ok(false);
        };
        self.own.forget();
        let write = row::release(row, token, info)?;
        self.write(key, &write).await
    }

    async fn read(&mut self, key: &Key, purpose: ReadFor<'_>) -> Result<Snapshot<RowVersion>> {
        let (name, failed) = (self.name_of(key), self.failed);
        if matches!(purpose, ReadFor::Acquire { .. } | ReadFor::Release(..)) {
            self.client.end_abandoned().await?;
        }
        let mut snapshot = if matches!(purpose, ReadFor::Look) {
            let (found, waiters) = self.look(async |_, table| table.look(&name).await).await?;
            row::snapshot(found, &waiters, purpose)?
        } else {
            let found = self
                .ask(async |_, table| {
                    let found = table.read(&name, failed).await?;
                    if found.is_none() && matches!(purpose, ReadFor::Acquire { claims: true, .. }) {
                        table.create(&name).await?;
                        return table.read(&name, 0).await;
                    }
                    Ok(found)
                })
                .await?;
            row::snapshot(found, &[], purpose)?
        };
        snapshot.apart = true;
        self.witness(key, &mut snapshot, purpose).await?;
        Ok(snapshot)
    }

    async fn swap(
        &mut self,
        key: &Key,
        was: Snapshot<RowVersion>,
        change: Change<'_>,
    ) -> Result<bool> {
        let mut document = change.document.clone();
        if let Some(request) = change.request
            && let Some(lock) = self.locks.of(key, &request.token)
            && let Some((session, _)) = D::evidence(lock)
        {
            document.attach(&request.token, &session);
        }
        let change = Change {
            document: &document,
            ..change
        };
        let Some(write) = row::write(was, change) else {
            return Ok(true);
        };
        self.own.forget();
        let written = self.write(key, &write).await?;
        self.failed = if written { 0 } else { self.failed + 1 };
        if !written {
            return Ok(false);
        }
        if let Some(request) = &write.granted {
            self.granted = Some(request.token);
        }
        self.own.note(write.written());
        Ok(true)
    }

    /// The session that asks for the lock waits.
    async fn wait(&mut self, _: &Request, _: Duration, _: bool) -> Result<Wake> {
        Ok(Wake::Changed)
    }

    fn advise(&mut self, _: &Request, busy: &mut Busy) {
        busy.notifies = true;
    }

    async fn note_waiter(&mut self, request: &Request, _: u64) -> Result<Option<u32>> {
        let name = self.name_of(&request.key);
        self.ask(async |_, table| table.join_queue(&name, request).await)
            .await
    }

    async fn remove_waiter(&mut self, request: &Request) -> Result<bool> {
        if self.granted == Some(request.token) {
            return Ok(true);
        }
        let name = self.name_of(&request.key);
        self.ask(async |_, table| table.leave_queue(&name, &request.token).await)
            .await
            .map(|_| true)
    }

    async fn scan(
        &mut self,
        start: &str,
        progress: &Progress,
    ) -> Result<Vec<(Key, Snapshot<RowVersion>)>> {
        let start = self.client.names.starting_with(start);
        let names = self
            .look(async |client, table| D::held(client, table, &start, progress).await)
            .await?;
        let mut found = Vec::new();
        for name in names {
            let Some(key) = self.client.names.key(&name) else {
                continue;
            };
            let snapshot = self.read(&key, ReadFor::Look).await?;
            progress.part();
            found.push((key, snapshot));
        }
        Ok(found)
    }

    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>> {
        let start = self.client.names.starting_with(start);
        let names = self
            .look(async |_, table| table.known(&start, which, progress).await)
            .await?;
        Ok(names
            .iter()
            .filter_map(|name| self.client.names.key(name))
            .collect())
    }

    async fn log(&mut self, key: &Key) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
        let name = self.name_of(key);
        self.look(async |_, table| table.log(&name).await).await
    }

    async fn append(&mut self, key: &Key, note: &Note) -> Result<()> {
        let name = self.name_of(key);
        self.ask(async |_, table| table.note(&name, note).await)
            .await
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.client.notices)
    }
}
