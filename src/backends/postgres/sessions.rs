//! `mode=row` and `mode=advisory` of PostgreSQL: see [`crate::backends::sql::sessions`].
//!
//! In `mode=row` each session also has an advisory lock, alone or shared as the row. The server
//! tells who has that lock, and lets no reader in while a writer waits for it.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    Postgres, checks,
    connection::PostgresSession,
    history,
    options::PostgresOptions,
    session_holders::{HolderSession, holders_sql, is_locked},
    session_lock::{PostgresLock, PostgresSessionPart},
    sharing::advisory_name,
    statement::Value,
    table::PostgresLockTable,
};
use crate::{
    backends::{
        cas::{Change, ReadFor, Snapshot, Store},
        sql::{
            self, Client, HasClient, Locks, Server, Session as _, SessionLocks, SessionStore,
            SqlMode,
            row::{self, Own, RowVersion, Write},
        },
    },
    lock::{
        Busy, Capabilities, Error, Fence, HistoryEntry, Identity, Intent, Key, Kind, Mode, Note,
        Notice, Progress, ReleaseInfo, Request, Result, SkipCount, Token, Ttl, Wake, Which,
        document::SessionState,
    },
};

pub(super) const ROW: Capabilities = Capabilities {
    backend: "postgres mode=row",
    // The server's timeouts are milliseconds in 31 bits.
    ttl_max: Duration::from_secs(24 * 24 * 3600),
    ..sql::SESSIONS
};
pub(super) const ADVISORY: Capabilities = Capabilities {
    backend: "postgres mode=advisory",
    ..ROW
};

/// Locks that sessions keep.
pub(super) type Sessions = SessionLocks<PostgresSessions>;

/// A client whose sessions keep locks. The [`Client`]'s own session serves everything else.
pub(in crate::backends) struct PostgresSessions {
    client: Client<Postgres>,
    locks: Locks<PostgresLock>,
    /// No pooler between dlock and the server shares its sessions.
    direct: bool,
    /// The hold that was granted last, which is in no list of waiters any more.
    granted: Option<Token>,
    own: Own,
    /// How often a row was written in vain since the last success.
    failed: u32,
}

impl Sessions {
    /// Returns a backend for `options`, without I/O.
    pub fn new(options: PostgresOptions) -> Self {
        Self::of(PostgresSessions {
            client: Client::new(options),
            locks: Locks::default(),
            direct: false,
            granted: None,
            own: Own::default(),
            failed: 0,
        })
    }
}

impl HasClient for PostgresSessions {
    type Database = Postgres;

    fn client(&self) -> &Client<Postgres> {
        &self.client
    }

    fn client_mut(&mut self) -> &mut Client<Postgres> {
        &mut self.client
    }
}

impl PostgresSessions {
    fn name_of(&self, key: &Key) -> String {
        self.client.names.of(key)
    }

    /// Asks the table: over the session of the request that is being served, or over the client's
    /// own.
    async fn ask<T>(
        &mut self,
        question: impl AsyncFnOnce(&mut PostgresLockTable<'_>) -> Result<T>,
    ) -> Result<T> {
        let evidence = self.locks.served().and_then(|lock| lock.evidence());
        if let Some(lock) = self.locks.asking()? {
            let mut table = PostgresLockTable {
                evidence,
                ..PostgresLockTable::over(&mut lock.session, &self.client.tables)
            };
            return question(&mut table).await;
        }
        let mut session = self.client.lend().await?;
        let answer = question(&mut PostgresLockTable {
            evidence,
            ..PostgresLockTable::over(&mut session, &self.client.tables)
        })
        .await;
        self.client.put_back(session, &answer);
        answer
    }

    /// As [`PostgresSessions::ask`], for a question that only reads: a standby can answer it, too.
    async fn look<T>(
        &mut self,
        question: impl AsyncFn(&mut PostgresLockTable<'_>) -> Result<T>,
    ) -> Result<T> {
        self.ask(async |table| table.read_anywhere(&question).await)
            .await
    }

    /// Writes a row back. A session that releases its hold gives back the lock, too.
    async fn write(&mut self, key: &Key, write: &Write) -> Result<bool> {
        let has = |lock: &&mut PostgresLock| lock.has && lock.session.is_alive();
        if let Some(token) = &write.releases
            && let Some(lock) = self.locks.of(key, token).filter(has)
        {
            let within = lock.giving_back();
            let given = PostgresLockTable::over(&mut lock.session, &self.client.tables)
                .give_back(write, &within)
                .await?;
            lock.has = !given;
            return Ok(given);
        }
        self.ask(async |table| table.write(write).await).await
    }

    /// Returns the server, and the sessions that have a lock.
    async fn holders(&mut self, name: &str) -> Result<(Server, Vec<HolderSession>)> {
        let sql = holders_sql(&self.client, name);
        self.look(async |table| {
            let rows = table.session.query(&sql, &[Value::Text(name)]).await?;
            HolderSession::read(&rows)
        })
        .await
    }

    /// Tells a snapshot which of its holders' sessions live, as far as the purpose needs it. The
    /// evidence is later than the document.
    async fn witness(
        &mut self,
        name: &str,
        snapshot: &mut Snapshot<RowVersion>,
        purpose: ReadFor<'_>,
    ) -> Result<()> {
        let (now, mut own) = (snapshot.now(), None);
        match purpose {
            // The holder of the lock judges no others.
            ReadFor::Release(..) => {
                snapshot
                    .document
                    .witness_sessions(now, |_, _| SessionState::Has);
                return Ok(());
            }
            ReadFor::Acquire { request, .. } => {
                let lock = self.locks.of(&request.key, &request.token);
                if let Some(lock) = lock.filter(|lock| lock.has) {
                    own = Some(i64::from(lock.own.pid));
                    snapshot.document.forget_session(&request.token, now);
                    if snapshot.document.without_sessions(now) {
                        return Ok(());
                    }
                    // Asked last: a session that answers had the row when the document was read.
                    if lock.mode == SqlMode::Row && !lock.keep(None).await? {
                        return Err(sql::session_is_over());
                    }
                    if let Some(server) = lock.own.server.as_ref().filter(|_| !lock.shared) {
                        server.witness(&mut snapshot.document, now, |_, _| false);
                        return Ok(());
                    }
                }
            }
            ReadFor::Change | ReadFor::Warn if snapshot.document.without_sessions(now) => {
                return Ok(());
            }
            ReadFor::Change | ReadFor::Warn | ReadFor::Look => {}
        }
        let (server, holders) = self.holders(name).await?;
        let known: Vec<_> = snapshot
            .document
            .sessions()
            .filter_map(|session| server.number(session))
            .collect();
        // This session has no other hold: an earlier one may have had its number.
        server.witness(&mut snapshot.document, now, |holder, number| {
            own != Some(number)
                && holders
                    .iter()
                    .any(|one| one.pid == number && one.shared == (holder.mode == Mode::Shared))
        });
        if own.is_none() {
            snapshot.outside = snapshot
                .outside
                .take()
                .or_else(|| holders.iter().find_map(|one| one.outside(&known)));
        }
        Ok(())
    }
}

#[async_trait(?Send)]
impl Store for PostgresSessions {
    type Version = RowVersion;
    const IN_ONE_STEP: bool = true;

    fn identity(&self) -> Identity {
        self.client.identity()
    }

    fn stored_as(&self, key: &Key) -> Result<String> {
        Ok(match self.client.mode() {
            SqlMode::Advisory => advisory_name(&self.client.options, key),
            SqlMode::Lease | SqlMode::Row => self.name_of(key),
        })
    }

    async fn grant(&mut self, request: &Request) -> Result<Option<Fence>> {
        let name = self.name_of(&request.key);
        self.granted = None;
        self.own.forget();
        // A question over the second session that is late would grant another hold.
        self.client.end_abandoned().await?;
        let Some(row) = self
            .ask(async |table| table.grant(&name, request).await)
            .await?
        else {
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
            .ask(async |table| table.extend(&row, ttl).await)
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
        let (name, pause) = (self.name_of(key), row::pause(self.failed));
        let question = async |table: &mut PostgresLockTable<'_>| {
            let mut found = table.read(&name, pause).await?;
            if found.is_none() && matches!(purpose, ReadFor::Acquire { claims: true, .. }) {
                table.create(&name).await?;
                found = table.read(&name, Duration::ZERO).await?;
            }
            let waiters = if matches!(purpose, ReadFor::Look) {
                table.queue(&name, true).await?
            } else {
                Vec::new()
            };
            row::snapshot(found, &waiters, purpose)
        };
        let mut snapshot = match purpose {
            ReadFor::Look => self.look(question).await?,
            ReadFor::Acquire { .. } | ReadFor::Release(..) => {
                self.client.end_abandoned().await?;
                self.ask(question).await?
            }
            ReadFor::Change | ReadFor::Warn => self.ask(question).await?,
        };
        snapshot.apart = true;
        self.witness(&name, &mut snapshot, purpose).await?;
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
        self.ask(async |table| table.join_queue(&name, request).await)
            .await
            .map(Some)
    }

    async fn remove_waiter(&mut self, request: &Request) -> Result<bool> {
        if self.granted == Some(request.token) {
            return Ok(true);
        }
        let name = self.name_of(&request.key);
        self.ask(async |table| table.leave_queue("", &name, &request.token).await)
            .await
            .map(|_| true)
    }

    async fn scan(
        &mut self,
        start: &str,
        progress: &Progress,
    ) -> Result<Vec<(Key, Snapshot<RowVersion>)>> {
        let start = self.client.names.starting_with(start);
        let locked = is_locked(&self.client);
        let names = self
            .look(async |table| table.held(&start, &locked, progress).await)
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
            .look(async |table| table.known(&start, which, progress).await)
            .await?;
        let keys = names.iter().map(|name| self.client.names.key(name));
        Ok(keys.flatten().collect())
    }

    async fn log(&mut self, key: &Key) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
        let name = self.name_of(key);
        self.look(async |table| history::read(table.session, table.tables, &name).await)
            .await
    }

    async fn append(&mut self, key: &Key, note: &Note) -> Result<()> {
        let name = self.name_of(key);
        self.ask(async |table| history::note(table.session, table.tables, &name, note).await)
            .await
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.client.notices)
    }
}

impl SessionStore for PostgresSessions {
    type Own = PostgresSessionPart;

    fn locks(&self) -> &Locks<PostgresLock> {
        &self.locks
    }

    fn locks_mut(&mut self) -> &mut Locks<PostgresLock> {
        &mut self.locks
    }

    async fn open_lock(
        &mut self,
        request: &Request,
        side: Option<&mut PostgresSession>,
    ) -> Result<PostgresLock> {
        let (name, shared) = (self.name_of(&request.key), request.mode == Mode::Shared);
        let mut lock =
            PostgresLock::open(&self.client.options, &self.client.tables, name, shared).await?;
        if !self.direct && checks::is_pooled(&mut lock.session, side, &self.client.options).await? {
            return Err(Error::new(Kind::Config, "a pooler shares its sessions among clients, which ends the locks that they have")
                .hint("name the server itself in the URL, or a pool in session mode; ?mode=lease works with any"));
        }
        self.direct = true;
        Ok(lock)
    }

    async fn attempt(lock: &mut PostgresLock, request: &Request) -> Result<bool> {
        Ok(lock.attempt(request).await? || lock.make_row().await? && lock.attempt(request).await?)
    }

    async fn block(lock: &mut PostgresLock, ttl: Ttl, at_most: Duration) -> Result<bool> {
        // The server ends it by itself. However late its answer comes on a machine that is busy,
        // breaking the session off would only make it busier: each of many would log in again.
        lock.wait(ttl, at_most).await
    }

    async fn keep(lock: &mut PostgresLock, limit: Option<Duration>) -> Result<bool> {
        lock.keep(limit).await
    }

    async fn let_go(lock: &mut PostgresLock) -> Result<()> {
        lock.found = None;
        lock.give_back().await
    }

    async fn end_holder(&mut self, key: &Key, session: &str) -> Result<()> {
        let name = self.name_of(key);
        let (server, holders) = self.holders(&name).await?;
        let Some(pid) = server.number(session) else {
            return Ok(());
        };
        let has = |holders: &[HolderSession]| holders.iter().position(|one| one.pid == pid);
        let Some(at) = has(&holders) else {
            return Ok(());
        };
        if let Some(began) = &holders[at].began {
            self.ask(async |table| {
                table
                    .session
                    .end_process(pid, &format!("backend_start = '{began}'"))
                    .await
            })
            .await?;
        }
        let (_, holders) = self.holders(&name).await?;
        if has(&holders).is_none() {
            return Ok(());
        }
        Err(Error::new(
            Kind::Denied,
            "the session that has the lock could not be ended",
        )
        .hint("its user may end it, or a member of pg_signal_backend and pg_read_all_stats"))
    }
}
