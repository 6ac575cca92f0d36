//! `mode=row` and `mode=advisory` of MySQL and MariaDB: see [`crate::backends::sql::sessions`].
//!
//! Further interleavings, and why they are harmless:
//! - *Readers come one after the other while a writer waits.* No session shares a row for which a
//!   writer waits, not even a session that would not wait.
//! - *A reader vanishes while others hold the lock.* Its hold counts while its session has its
//!   presence lock ([`readers`](super::readers)). A writer has the row alone, and knows that all
//!   readers are gone.
//! - *The writer's session is not told by the server.* The writer in the document counts while any
//!   session has the row alone. The next one to have it replaces that hold.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    Mysql,
    connection::Connection,
    failure, history,
    names::{advisory, advisory_name},
    options::MysqlOptions,
    readers::own_presence,
    session_holders::{held, holders},
    session_lock::{MysqlLock, MysqlSessionPart},
    table::{MysqlLockTable, Noted},
};
use crate::{
    backends::{
        cas::{Change, Outside, ReadFor, Snapshot, Store},
        sql::{
            self, Client, HasClient, Locks, Session as _, SessionLocks, SessionStore, SqlMode,
            foreign_holder,
            row::{self, Own, RowVersion, Write},
        },
    },
    lock::{
        Busy, Capabilities, Effect, Error, Fence, HistoryEntry, Identity, Intent, Key, Kind, Mode,
        Note, Notice, Progress, ReleaseInfo, Request, Result, SkipCount, Token, Ttl, Wake, Which,
        document::SessionState,
    },
};

pub(super) const ROW: Capabilities = Capabilities {
    backend: "mysql mode=row",
    ..sql::SESSIONS
};
pub(super) const ADVISORY: Capabilities = Capabilities {
    shared: false,
    backend: "mysql mode=advisory",
    ..ROW
};

/// Locks that sessions keep.
pub(super) type Sessions = SessionLocks<MysqlSessions>;

/// A client whose sessions keep locks. The [`Client`]'s own session serves everything else.
pub(in crate::backends) struct MysqlSessions {
    client: Client<Mysql>,
    locks: Locks<MysqlLock>,
    noted: Noted,
    own: Own,
    /// The hold that was granted last, which is in no list of waiters any more.
    granted: Option<Token>,
}

impl Sessions {
    /// Returns a backend for `options`, without I/O.
    pub fn new(options: MysqlOptions) -> Self {
        Self::of(MysqlSessions {
            client: Client::new(options),
            locks: Locks::default(),
            noted: Noted::default(),
            own: Own::default(),
            granted: None,
        })
    }
}

impl HasClient for MysqlSessions {
    type Database = Mysql;

    fn client(&self) -> &Client<Mysql> {
        &self.client
    }

    fn client_mut(&mut self) -> &mut Client<Mysql> {
        &mut self.client
    }
}

impl MysqlSessions {
    fn name_of(&self, key: &Key) -> String {
        self.client.names.of(key)
    }

    /// Asks the table: over the session of the request that is being served, or over the client's
    /// own, which may still be busy with a dropped request.
    async fn ask<T>(
        &mut self,
        question: impl AsyncFnOnce(&Client<Mysql>, &mut MysqlLockTable<'_>) -> Result<T>,
    ) -> Result<T> {
        let evidence = self.locks.served().and_then(|lock| lock.evidence());
        let noted = std::mem::take(&mut self.noted);
        if let Some(lock) = self.locks.asking()? {
            let mut table = MysqlLockTable {
                evidence,
                ..MysqlLockTable::over(&mut lock.session, &self.client.tables, noted)
            };
            let answer = question(&self.client, &mut table).await;
            self.noted = table.noted;
            return answer;
        }
        let mut session = match self.client.session.take().filter(Connection::is_alive) {
            Some(session) => session,
            None => self.client.open().await?,
        };
        // A session that is not put back counts as abandoned.
        self.client.abandon_unless_kept(&session);
        let mut table = MysqlLockTable {
            evidence,
            ..MysqlLockTable::over(&mut session, &self.client.tables, noted)
        };
        let answer = question(&self.client, &mut table).await;
        self.noted = table.noted;
        self.client.put_back(session, &answer);
        answer
    }

    /// Writes a row back. A session that releases its hold gives back the lock, too.
    async fn write(&mut self, key: &Key, write: &Write) -> Result<bool> {
        let has = |lock: &&mut MysqlLock| lock.has && lock.session.is_alive();
        if let Some(token) = &write.releases
            && let Some(lock) = self.locks.of(key, token).filter(has)
        {
            let mut table = MysqlLockTable {
                gives_back: Some(lock.giving_back()),
                ..MysqlLockTable::over(&mut lock.session, &self.client.tables, Noted::default())
            };
            let given = table.write(write).await?;
            lock.has = !given;
            return Ok(given);
        }
        self.ask(async |_, table| table.write(write).await).await
    }

    /// Tells a snapshot which of its holders' sessions live, as far as the purpose needs it. The
    /// evidence is later than the document.
    async fn witness(
        &mut self,
        key: &Key,
        snapshot: &mut Snapshot<RowVersion>,
        purpose: ReadFor<'_>,
    ) -> Result<()> {
        let (now, mut has) = (snapshot.now(), false);
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
                    has = true;
                    document.forget_session(&request.token, now);
                    if document.without_sessions(now) {
                        return Ok(());
                    }
                    // Asked last: a session that answers had the row when the document was read.
                    if lock.mode == SqlMode::Row && !lock.keep(None).await? {
                        return Err(sql::session_is_over());
                    }
                    if let Some(server) = lock.own.server.as_ref().filter(|_| !lock.shared) {
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
        let known = document.clone();
        let (server, holders) = self
            .ask(async |client, table| holders(client, table.session, key, &known).await)
            .await?;
        let other = holders.has_other(&known, &server);
        // This session shares the row: no other one has it alone.
        server.witness(document, now, |holder, number| {
            holders.has(holder, number) && !(has && holder.mode == Mode::Exclusive)
        });
        if !has && other && snapshot.outside.is_none() {
            snapshot.outside = Some(Outside {
                holder: foreign_holder(Mode::Exclusive),
                left: None,
                transient: false,
            });
        }
        Ok(())
    }
}

#[async_trait(?Send)]
impl Store for MysqlSessions {
    type Version = RowVersion;
    const IN_ONE_STEP: bool = true;

    fn identity(&self) -> Identity {
        self.client.identity()
    }

    fn stored_as(&self, key: &Key) -> Result<String> {
        let name = self.name_of(key);
        Ok(match self.client.mode() {
            SqlMode::Advisory => advisory_name(&self.client.options, key, &name),
            SqlMode::Lease | SqlMode::Row => name,
        })
    }

    async fn grant(&mut self, request: &Request) -> Result<Option<Fence>> {
        let name = self.name_of(&request.key);
        (self.noted, self.granted) = (Noted::default(), None);
        self.own.forget();
        // A question over the second session that is late would grant another hold.
        self.client.end_abandoned().await?;
        let lock = self.locks.of(&request.key, &request.token);
        let row = match lock.and_then(|lock| lock.own.asked.take()) {
            // Together with the foreign lock.
            Some((row, noted)) => {
                self.noted = noted;
                row
            }
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
        let Some((row, ttl)) = self.own.of(&self.client.names.of(key), token) else {
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
        let Some((row, _)) = self.own.of(&self.client.names.of(key), token) else {
            return Ok(false);
        };
        self.own.forget();
        let write = row::release(row, token, info)?;
        self.write(key, &write).await
    }

    async fn read(&mut self, key: &Key, purpose: ReadFor<'_>) -> Result<Snapshot<RowVersion>> {
        let name = self.name_of(key);
        if matches!(purpose, ReadFor::Acquire { .. } | ReadFor::Release(..)) {
            self.client.end_abandoned().await?;
        }
        let mut snapshot = self
            .ask(async |_, table| {
                if matches!(purpose, ReadFor::Look) {
                    let (found, waiters) = table.look(&name).await?;
                    return row::snapshot(found, &waiters, purpose);
                }
                let mut found = table.read(&name).await?;
                if found.is_none() && matches!(purpose, ReadFor::Acquire { claims: true, .. }) {
                    table.create(&name).await?;
                    found = table.read(&name).await?;
                }
                row::snapshot(found, &[], purpose)
            })
            .await?;
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
            && let Some((session, _)) = self
                .locks
                .of(key, &request.token)
                .and_then(|lock| lock.evidence())
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
        if !self.write(key, &write).await? {
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
        self.ask(async |_, table| table.leave(&name, &request.token).await)
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
            .ask(async |client, table| held(client, table.session, &start, progress).await)
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
            .ask(async |_, table| table.known(&start, which, progress).await)
            .await?;
        Ok(names
            .iter()
            .filter_map(|name| self.client.names.key(name))
            .collect())
    }

    async fn log(&mut self, key: &Key) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
        let name = self.name_of(key);
        self.ask(async |_, table| history::read(table.session, table.tables, &name).await)
            .await
    }

    async fn append(&mut self, key: &Key, note: &Note) -> Result<()> {
        let name = self.name_of(key);
        self.ask(async |_, table| history::note(table.session, table.tables, &name, note).await)
            .await
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.client.notices)
    }
}

impl SessionStore for MysqlSessions {
    type Own = MysqlSessionPart;

    fn locks(&self) -> &Locks<MysqlLock> {
        &self.locks
    }

    fn locks_mut(&mut self) -> &mut Locks<MysqlLock> {
        &mut self.locks
    }

    async fn open_lock(
        &mut self,
        request: &Request,
        _: Option<&mut Connection>,
    ) -> Result<MysqlLock> {
        let (name, shared) = (self.name_of(&request.key), request.mode == Mode::Shared);
        let (options, tables) = (&self.client.options, &self.client.tables);
        let lock = if self.client.mode() == SqlMode::Row {
            own_presence(tables, &name, &request.token.hold_text())
        } else {
            advisory(options, &request.key, &name)
        };
        let lock = MysqlLock::open(options, tables, name, lock, shared).await?;
        self.client.notices = lock.session.server.notices();
        Ok(lock)
    }

    async fn attempt(lock: &mut MysqlLock, request: &Request) -> Result<bool> {
        lock.attempt(request).await
    }

    async fn block(lock: &mut MysqlLock, ttl: Ttl, at_most: Duration) -> Result<bool> {
        lock.wait(ttl, at_most).await
    }

    async fn keep(lock: &mut MysqlLock, limit: Option<Duration>) -> Result<bool> {
        lock.keep(limit).await
    }

    async fn let_go(lock: &mut MysqlLock) -> Result<()> {
        (lock.found, lock.own.asked) = (None, None);
        lock.let_go().await
    }

    async fn end_holder(&mut self, _: &Key, session: &str) -> Result<()> {
        let ended = self
            .ask(async |_, table| {
                let Some(number) = table.session.served_by()?.number(session) else {
                    return Ok(true);
                };
                match table.session.kill(number).await? {
                    Some(denial) if denial.number != failure::NO_SESSION => {
                        Err(failure::refused(&denial, false))
                    }
                    _ => table.session.outlast(number).await,
                }
            })
            .await?;
        if ended {
            return Ok(());
        }
        Err(Error::new(
            Kind::Unavailable,
            "the server has not ended the holder's session yet",
        )
        .effect(Effect::Unknown))
    }
}
