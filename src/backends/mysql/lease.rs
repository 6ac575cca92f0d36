//! `mode=lease`: a lock is a row with an end. The worst cases are in the docs of this module's
//! parent.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    Mysql,
    chain::{LastAnswer, await_wake_up, predecessors},
    connection::SessionId,
    options::MysqlOptions,
    reading::Noted,
    table::MysqlLockTable,
};
use crate::{
    backends::{
        cas::{CasBackend, Change, ReadFor, Snapshot, Store},
        sql::{
            self, Client, HasClient, LockTable as _, Session as _, looks_at_the_end,
            row::{self, Documented, Own, RowVersion, is_plain},
        },
    },
    lock::{
        Busy, Capabilities, Fence, HistoryEntry, Identity, Intent, Key, Note, Notice, Progress,
        ReleaseInfo, Request, Result, SkipCount, Token, Ttl, Wake, Which, document::OFFER,
    },
};

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    backend: "mysql",
    ..sql::LEASE
};

/// Leases in a table.
pub type MysqlLease = CasBackend<MysqlLeaseStore>;

/// One client of a table of leases.
pub struct MysqlLeaseStore {
    pub(super) client: Client<Mysql>,
    /// The session that was asked last, if it did not answer.
    unanswered: Option<SessionId>,
    documented: Documented,
    own: Own,
    /// The hold that was granted last.
    granted: Option<Token>,
    /// Waiters that may be in the table of waiters.
    listed: Vec<Token>,
    /// The lock that was read last is another program's.
    foreign: bool,
    /// The waiter in the document's queue, and the answer that it got.
    last: Option<(Token, LastAnswer)>,
    /// The server, or a proxy before it, has no advisory locks.
    pub(super) locks_fail: bool,
}

impl MysqlLease {
    /// Returns a backend for `options`, without I/O.
    pub fn new(options: MysqlOptions) -> Self {
        Self::of(MysqlLeaseStore {
            client: Client::new(options),
            unanswered: None,
            documented: Documented::default(),
            own: Own::default(),
            granted: None,
            listed: Vec::new(),
            foreign: false,
            last: None,
            locks_fail: false,
        })
    }
}

impl MysqlLeaseStore {
    /// Asks the table, and keeps the session unless the question is dropped or its answer lost.
    async fn ask<T>(
        &mut self,
        question: impl AsyncFnOnce(&mut MysqlLockTable<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut session = self.client.take().await?;
        let locks = !self.locks_fail && session.server.has_advisory_locks();
        let mut table = MysqlLockTable {
            locks,
            ..MysqlLockTable::over(&mut session, &self.client.tables)
        };
        self.unanswered = Some(table.session.id());
        let answer = question(&mut table).await;
        self.unanswered.take_if(|_| session.is_open());
        self.client.put_back(session, &answer);
        answer
    }

    /// Asks a question about the holder, as [`MysqlLeaseStore::ask`] does. An earlier question
    /// without an answer is ended first, or has taken effect. Otherwise an acquire could be granted
    /// after its repetition was released or cancelled.
    async fn ask_for_good<T>(
        &mut self,
        question: impl AsyncFn(&mut MysqlLockTable<'_>) -> Result<T>,
    ) -> Result<T> {
        let before = self.unanswered.clone();
        self.ask(async |table| {
            if let Some(other) = before.filter(|other| *other != table.session.id()) {
                table.session.end_other(&other).await?;
            }
            let answer = question(table).await;
            // Another client ended the statement of a waiter that was awake.
            if answer.is_err() && table.session.interrupted {
                question(table).await
            } else {
                answer
            }
        })
        .await
    }

    /// Returns what the last step noted.
    fn noted(&self) -> Option<&Noted> {
        self.client.session.as_ref().map(|session| &session.noted)
    }

    /// Whether a `GET_LOCK` of one client keeps another one waiting.
    fn has_advisory_locks(&self) -> bool {
        !self.locks_fail
            && self
                .client
                .session
                .as_ref()
                .is_some_and(|session| session.server.has_advisory_locks())
    }
}

impl HasClient for MysqlLeaseStore {
    type Database = Mysql;

    fn client(&self) -> &Client<Mysql> {
        &self.client
    }

    fn client_mut(&mut self) -> &mut Client<Mysql> {
        &mut self.client
    }
}

#[async_trait(?Send)]
impl Store for MysqlLeaseStore {
    type Version = RowVersion;
    const IN_ONE_STEP: bool = true;

    fn identity(&self) -> Identity {
        self.client.identity()
    }

    fn stored_as(&self, key: &Key) -> Result<String> {
        Ok(self.client.names.of(key))
    }

    async fn connect(&mut self) -> Result<()> {
        self.client.connect().await
    }

    fn disconnect(&mut self) {
        self.client.session = None;
    }

    async fn grant(&mut self, request: &Request) -> Result<Option<Fence>> {
        self.granted = None;
        let session = self.client.session.iter_mut();
        session.for_each(|session| session.noted = Noted::default());
        if self.documented.has(&request.token) {
            return Ok(None);
        }
        let name = self.client.names.of(&request.key);
        self.own.forget();
        let queued = self.listed.contains(&request.token);
        if request.waiting && is_plain(request) && !queued {
            // Noted before asking, since an unanswered request may have been served.
            self.listed.push(request.token);
        }
        let Some(row) = self
            .ask_for_good(async |table| table.grant(&name, request, queued).await)
            .await?
        else {
            return Ok(None);
        };
        self.listed.retain(|other| *other != request.token);
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
        let ttl = intent.ttl().unwrap_or(ttl);
        self.own.forget();
        let Some(row) = self
            .ask(async |table| table.extend(&row, ttl).await)
            .await?
        else {
            return Ok(None);
        };
        let fence = row.fence();
        self.own.note(row);
        Ok(Some((ttl, fence)))
    }

    async fn free(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<bool> {
        let Some((row, _)) = self.own.of(&self.client.names.of(key), token) else {
            return Ok(false);
        };
        self.own.forget();
        self.documented.forget(token);
        let write = row::release(row, token, info)?;
        self.ask_for_good(async |table| table.write(&write).await)
            .await
    }

    async fn read(&mut self, key: &Key, purpose: ReadFor<'_>) -> Result<Snapshot<RowVersion>> {
        let name = self.client.names.of(key);
        let question = async |table: &mut MysqlLockTable<'_>| {
            if matches!(purpose, ReadFor::Look) {
                let (found, waiters) = table.look(&name).await?;
                return row::snapshot(found, &waiters, purpose);
            }
            let mut found = table.read(&name, 0).await?;
            if found.is_none() && matches!(purpose, ReadFor::Acquire { claims: true, .. }) {
                table.create(&name).await?;
                found = table.read(&name, 0).await?;
            }
            let needed = found
                .as_ref()
                .is_some_and(|row| row::needs_waiters(row, purpose));
            let waiters = if needed {
                table.queue(&name).await?
            } else {
                Vec::new()
            };
            row::snapshot(found, &waiters, purpose)
        };
        let snapshot = match purpose {
            ReadFor::Acquire { .. } | ReadFor::Release(..) => self.ask_for_good(question).await?,
            ReadFor::Change | ReadFor::Warn | ReadFor::Look => self.ask(question).await?,
        };
        match purpose {
            ReadFor::Acquire { request, .. } => {
                self.granted = None;
                self.foreign = snapshot.outside.is_some();
                self.documented.note(&request.token, !snapshot.apart);
            }
            ReadFor::Release(token, _) if snapshot.document.lasts(token).is_none() => {
                // Nothing depends on it: the waiters poll, too.
                let _ = self
                    .ask(async |table| table.pass_on(&name, token).await)
                    .await;
            }
            _ => {}
        }
        Ok(snapshot)
    }

    async fn swap(
        &mut self,
        _: &Key,
        was: Snapshot<RowVersion>,
        change: Change<'_>,
    ) -> Result<bool> {
        let Some(write) = row::write(was, change) else {
            return Ok(true);
        };
        let name = &*write.was.name;
        self.own.forget();
        if !self.ask(async |table| table.write(&write).await).await? {
            return Ok(false);
        }
        self.own.note(write.written());
        if let Some(request) = &write.granted {
            self.granted = Some(request.token);
        }
        if let Some(token) = &write.releases {
            self.documented.forget(token);
        } else if write.frees() && !write.was.is_shared() {
            // The hold was evicted. Waiters are blocked on the advisory lock of the holder's
            // session, which is ended.
            self.ask(async |table| {
                if let Some(number) = table.advisory_lock_holder(name).await?
                    && table.session.kill(number).await?.is_none()
                {
                    // The server has just said over this very session that it has the advisory
                    // lock.
                    table.session.outlast(number).await?;
                }
                Ok(())
            })
            .await?;
        }
        Ok(true)
    }

    async fn wait(&mut self, request: &Request, at_most: Duration, _: bool) -> Result<Wake> {
        let name = self.client.names.of(&request.key);
        match &self.last {
            Some((token, last)) if *token == request.token && self.has_advisory_locks() => {
                let (mut session, hold) = (self.client.take().await?, request.token.hold_text());
                let wake = await_wake_up(
                    &mut session,
                    &self.client.tables,
                    (&name, &hold),
                    last,
                    at_most,
                )
                .await?;
                self.client.session = Some(session);
                self.locks_fail |= wake.is_none();
                Ok(wake.unwrap_or(Wake::Changed))
            }
            _ => self.await_change(&name, at_most).await,
        }
    }

    fn advise(&mut self, request: &Request, busy: &mut Busy) {
        let documented = self.documented.has(&request.token);
        self.last = documented.then(|| {
            let name = self.client.names.of(&request.key);
            let predecessors = predecessors(
                &self.client.tables,
                &name,
                &request.token.hold_text(),
                self.noted().and_then(|noted| noted.document.as_deref()),
            );
            (
                request.token,
                LastAnswer {
                    wake_ups: self.noted().map_or(0, |noted| noted.wake_ups),
                    position: busy.position,
                    foreign: self.foreign,
                    predecessors,
                },
            )
        });
        // The waiter with the advisory lock polls the row for all other waiters.
        busy.notifies = self.has_advisory_locks();
        let in_passing =
            busy.transient || (documented && busy.expires_in.is_some_and(|left| left <= OFFER));
        busy.expires_in = busy
            .expires_in
            .filter(|_| in_passing || looks_at_the_end(busy.position));
    }

    async fn note_waiter(&mut self, _: &Request, _: u64) -> Result<Option<u32>> {
        // The step that did not grant the lock has put it into the queue.
        Ok(self.noted().and_then(|noted| noted.position))
    }

    async fn remove_waiter(&mut self, request: &Request) -> Result<bool> {
        // A grant has removed it.
        if self.granted == Some(request.token) && !request.detached {
            self.listed.retain(|other| *other != request.token);
            return Ok(true);
        }
        let name = self.client.names.of(&request.key);
        let documented = self
            .ask(async |table| table.leave_queue(&name, &request.token).await)
            .await?;
        self.listed.retain(|other| *other != request.token);
        self.documented.forget(&request.token);
        Ok(!documented)
    }

    async fn scan(
        &mut self,
        start: &str,
        progress: &Progress,
    ) -> Result<Vec<(Key, Snapshot<RowVersion>)>> {
        let start = self.client.names.starting_with(start);
        let (records, queue) = self
            .ask(async |table| table.list(&start, progress).await)
            .await?;
        row::snapshots(&self.client.names, records, &queue)
    }

    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>> {
        let start = self.client.names.starting_with(start);
        let names = self
            .ask(async |table| table.known(&start, which, progress).await)
            .await?;
        Ok(names
            .iter()
            .filter_map(|name| self.client.names.key(name))
            .collect())
    }

    async fn log(&mut self, key: &Key) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
        let name = self.client.names.of(key);
        self.ask(async |table| table.log(&name).await).await
    }

    async fn append(&mut self, key: &Key, note: &Note) -> Result<()> {
        let name = self.client.names.of(key);
        self.ask(async |table| table.note(&name, note).await).await
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.client.notices)
    }
}
