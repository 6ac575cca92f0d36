//! `mode=lease`: a lock is a row with an end. The worst cases are in the docs of this module's
//! parent.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    Postgres, advisory_wait::AdvisoryWait, connection::SessionId, options::PostgresOptions,
    table::PostgresLockTable,
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
    backend: "postgres",
    ..sql::LEASE
};

/// Leases in a table.
pub type PostgresLease = CasBackend<PostgresLeaseStore>;

/// One client of a table of leases.
pub struct PostgresLeaseStore {
    client: Client<Postgres>,
    /// The session that was asked last, if it did not answer.
    unanswered: Option<SessionId>,
    /// The state of the session's wait.
    waiting: AdvisoryWait,
    /// The hold that was granted last, which is in no list of waiters any more.
    granted: Option<Token>,
    documented: Documented,
    own: Own,
    /// How often a row was written in vain since the last success.
    failed: u32,
}

impl PostgresLease {
    /// Returns a backend for `options`, without I/O.
    pub fn new(options: PostgresOptions) -> Self {
        Self::of(PostgresLeaseStore {
            client: Client::new(options),
            unanswered: None,
            waiting: AdvisoryWait::default(),
            granted: None,
            documented: Documented::default(),
            own: Own::default(),
            failed: 0,
        })
    }
}

impl PostgresLeaseStore {
    /// Asks the table, and keeps the session unless the question is dropped.
    async fn ask<T>(
        &mut self,
        question: impl AsyncFnOnce(&mut PostgresLockTable<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut session = self.waiting.take_session(&mut self.client).await?;
        self.unanswered = Some(session.id());
        let mut table = PostgresLockTable {
            has_advisory_lock: self.waiting.is_kept(),
            ..PostgresLockTable::over(&mut session, &self.client.tables)
        };
        let answer = question(&mut table).await;
        if table.left {
            self.waiting.is_left();
        }
        self.unanswered.take_if(|_| session.is_open());
        self.client.put_back(session, &answer);
        answer
    }

    /// As [`PostgresLeaseStore::ask`], for a question that only reads: a standby can answer it,
    /// too.
    async fn look<T>(
        &mut self,
        question: impl AsyncFn(&mut PostgresLockTable<'_>) -> Result<T>,
    ) -> Result<T> {
        self.ask(async |table| table.read_anywhere(&question).await)
            .await
    }

    /// Asks a question about the holder, as [`PostgresLeaseStore::ask`] does. An earlier question
    /// without an answer is ended first, or has taken effect. Otherwise an acquire could be granted
    /// after its repetition was released or cancelled.
    async fn ask_for_good<T>(
        &mut self,
        question: impl AsyncFnOnce(&mut PostgresLockTable<'_>) -> Result<T>,
    ) -> Result<T> {
        let before = self.unanswered.clone();
        self.ask(async |table| {
            if let Some(other) = before.filter(|other| *other != table.session.id()) {
                // The user may lack the right to end it; the earlier question came first.
                let _: Result<()> = table.session.end_other(&other).await;
            }
            question(table).await
        })
        .await
    }
}

impl HasClient for PostgresLeaseStore {
    type Database = Postgres;

    fn client(&self) -> &Client<Postgres> {
        &self.client
    }

    fn client_mut(&mut self) -> &mut Client<Postgres> {
        &mut self.client
    }
}

#[async_trait(?Send)]
impl Store for PostgresLeaseStore {
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
        (self.waiting.asked, self.granted) = (None, None);
        if self.documented.has(&request.token) {
            return Ok(None);
        }
        let name = self.client.names.of(&request.key);
        self.own.forget();
        let Some(row) = self
            .ask_for_good(async |table| table.grant(&name, request, false).await)
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
        let (name, failed) = (self.client.names.of(key), self.failed);
        let question = async |table: &mut PostgresLockTable<'_>| {
            let mut found = table.read(&name, failed).await?;
            if found.is_none() && matches!(purpose, ReadFor::Acquire { claims: true, .. }) {
                table.create(&name).await?;
                found = table.read(&name, 0).await?;
            }
            let needed = found
                .as_ref()
                .map_or(matches!(purpose, ReadFor::Look), |row| {
                    row::needs_waiters(row, purpose)
                });
            let waiters = if needed {
                table.queue(&name, true).await?
            } else {
                Vec::new()
            };
            row::snapshot(found, &waiters, purpose)
        };
        let snapshot = match purpose {
            ReadFor::Look => self.look(question).await?,
            ReadFor::Acquire { .. } | ReadFor::Release(..) => self.ask_for_good(question).await?,
            ReadFor::Change | ReadFor::Warn => self.ask(question).await?,
        };
        if let ReadFor::Acquire { request, .. } = purpose {
            self.granted = None;
            self.waiting.found_busy(key, snapshot.outside.is_some());
            if !snapshot.apart && !is_plain(request) {
                self.waiting.own = Some((
                    self.client.tables.waiter(&name, &request.token.hold_text()),
                    snapshot.document.notified(),
                ));
            }
            self.documented.note(&request.token, !snapshot.apart);
        }
        Ok(snapshot)
    }

    async fn swap(
        &mut self,
        _: &Key,
        was: Snapshot<RowVersion>,
        change: Change<'_>,
    ) -> Result<bool> {
        let notified = change.document.notified();
        let Some(write) = row::write(was, change) else {
            return Ok(true);
        };
        self.own.forget();
        let written = self.ask(async |table| table.write(&write).await).await?;
        self.failed = if written { 0 } else { self.failed + 1 };
        if !written {
            return Ok(false);
        }
        if let Some((_, seen)) = &mut self.waiting.own {
            *seen = notified;
        }
        if let Some(request) = &write.granted {
            self.granted = Some(request.token);
        }
        if let Some(token) = &write.releases {
            self.documented.forget(token);
        }
        self.own.note(write.written());
        Ok(true)
    }

    async fn wait(&mut self, request: &Request, at_most: Duration, _: bool) -> Result<Wake> {
        let name = self.client.names.of(&request.key);
        self.waiting
            .await_change(&mut self.client, &request.key, &name, at_most)
            .await
    }

    fn advise(&mut self, _: &Request, busy: &mut Busy) {
        busy.notifies = !self.waiting.foreign && !self.waiting.is_pooled();
        // The end of an offer concerns only the waiters that had the offer, or ask at that time.
        let at_the_end = self.waiting.is_kept() || looks_at_the_end(busy.position);
        busy.expires_in = busy
            .expires_in
            .filter(|left| at_the_end || (self.waiting.own.is_some() && *left <= OFFER));
    }

    async fn note_waiter(&mut self, request: &Request, _: u64) -> Result<Option<u32>> {
        let name = self.client.names.of(&request.key);
        self.ask(async |table| table.join_queue(&name, request).await)
            .await
    }

    async fn remove_waiter(&mut self, request: &Request) -> Result<bool> {
        if self.granted == Some(request.token) {
            return Ok(true);
        }
        let (name, first) = (self.client.names.of(&request.key), self.waiting.leave());
        let documented = self
            .ask(async |table| table.leave_with(first, &name, &request.token).await)
            .await?;
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
            .look(async |table| {
                Ok((
                    table.list(&start, progress).await?,
                    table.queue(&start, false).await?,
                ))
            })
            .await?;
        row::snapshots(&self.client.names, records, &queue)
    }

    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>> {
        let start = self.client.names.starting_with(start);
        let names = self
            .look(async |table| table.known(&start, which, progress).await)
            .await?;
        Ok(names
            .iter()
            .filter_map(|name| self.client.names.key(name))
            .collect())
    }

    async fn log(&mut self, key: &Key) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
        let name = self.client.names.of(key);
        self.look(async |table| table.log(&name).await).await
    }

    async fn append(&mut self, key: &Key, note: &Note) -> Result<()> {
        let name = self.client.names.of(key);
        self.ask(async |table| table.note(&name, note).await).await
    }

    fn notices(&mut self) -> Vec<Notice> {
        let mut notices = std::mem::take(&mut self.client.notices);
        notices.extend(self.waiting.notice());
        notices
    }
}
