//! `mode=lease`: a lock is a row with an end. See the module's own docs for what can go wrong.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    connection::{Known, Session},
    failure,
    gate::Gate,
    history,
    names::Tables,
    options::Options,
    table::LockTable,
};
use crate::{
    backends::sql::{Names, Table as _, Taken, ledger, looks_at_the_end},
    lock::{
        Amendment, Attempt, Backend, Busy, Capabilities, History, Identity, Intent, Key, LockState, Mode, Notice, Parting, Release,
        Renewal, Request, Result, Token, Waiter, Wake, document::OFFER,
    },
};

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    permits: true,
    fair: true,
    history: true,
    terms: true,
    breakable: true,
    ..Capabilities::usual("postgres")
};

/// Leases in a table.
///
/// It has at most one session, made by the first call that needs it. A call that is dropped or fails takes the session
/// with it, and the next call makes another.
pub struct Lease {
    options: Options,
    pub(super) tables: Tables,
    names: Names,
    pub(super) session: Option<Session>,
    /// The session that was asked last, if it did not answer.
    unanswered: Option<Known>,
    /// What this session waits with.
    pub(super) gate: Gate,
    /// Who may stand in a queue because of us. Noted before asking, since an unanswered request may have been served.
    queued: Vec<(Key, Token)>,
    /// The holds whose lock had a document when they were last asked for, and whether they were granted as shares: what is quicker without
    /// need not be tried for them.
    documented: Vec<(u64, bool)>,
    pub(super) notices: Vec<Notice>,
}

impl Lease {
    /// A backend for `options`. Without I/O.
    pub fn new(options: Options) -> Self {
        let (tables, names) = (Tables::new(&options.sql.table), Names::new(&options.sql.namespace));
        Self {
            options,
            tables,
            names,
            session: None,
            unanswered: None,
            gate: Gate::default(),
            queued: Vec::new(),
            documented: Vec::new(),
            notices: Vec::new(),
        }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// The session, to be put back when it is at rest again.
    pub(super) async fn take_session(&mut self) -> Result<Session> {
        if let Some(session) = self.session.take().filter(Session::is_open) {
            return Ok(session);
        }
        self.gate = Gate::default();
        Session::open(&self.options.sql).await
    }

    /// Asks the table, and keeps the session if it is still good for the next question.
    async fn ask<T>(&mut self, question: impl AsyncFnOnce(&mut LockTable<'_>) -> Result<T>) -> Result<T> {
        let mut session = self.take_session().await?;
        self.unanswered = Some(session.known());
        let mut table = LockTable { gate: self.gate.is_kept(), ..LockTable::over(&mut session, &self.tables) };
        let answer = question(&mut table).await;
        self.unanswered.take_if(|_| session.is_open());
        self.session = Some(session);
        answer
    }

    /// As [`Lease::ask`], of a question that only reads: a standby can answer it, too.
    async fn look<T>(&mut self, question: impl AsyncFn(&mut LockTable<'_>) -> Result<T>) -> Result<T> {
        let answer = self.ask(&question).await;
        if !answer.as_ref().is_err_and(failure::is_in_recovery) {
            return answer;
        }
        self.ask(async |table| {
            let tables = table.tables.on_standby();
            question(&mut LockTable::over(table.session, &tables)).await
        })
        .await
    }

    /// As [`Lease::ask`], of a question about who has the lock: one before it that had no answer comes to nothing first, if it has not
    /// come to something. Or else an acquire could be granted after its repetition was given back, or after it was undone.
    async fn ask_for_good<T>(&mut self, question: impl AsyncFnOnce(&mut LockTable<'_>) -> Result<T>) -> Result<T> {
        let before = self.unanswered.clone();
        self.ask(async |table| {
            if let Some(other) = before.filter(|other| *other != table.session.known()) {
                // Who may not end it is left with what is usual: it came before.
                let _: Result<()> = table.session.end_other(&other).await;
            }
            question(table).await
        })
        .await
    }

    fn document_of(&self, token: &Token) -> Option<bool> {
        self.documented.iter().find(|(hold, _)| *hold == token.hold).map(|(_, shared)| *shared)
    }

    fn is_queued(&self, key: &Key, token: &Token) -> bool {
        self.queued.iter().any(|(of, who)| of == key && who == token)
    }

    async fn ask_acquire(&mut self, request: &Request) -> Result<Attempt> {
        CAPABILITIES.check(request)?;
        let name = self.names.of(&request.key);
        if request.waiting && !self.is_queued(&request.key, &request.token) {
            self.queued.push((request.key.clone(), request.token));
        }
        self.gate.asked = None;
        let documented = self.document_of(&request.token);
        let (taken, left) = self
            .ask_for_good(async |table| match ledger::take(table, &name, request, documented.is_some()).await? {
                Taken::Held(record) if request.waiting => {
                    let place = table.join_queue(&name, request).await?;
                    Ok(((Taken::Held(record), Some(place)), false))
                }
                taken => Ok(((taken, None), table.left)),
            })
            .await?;
        let shared = request.mode != Mode::Exclusive && matches!(taken, (Taken::Granted(_), _));
        let still = matches!(taken, (Taken::Queued { .. }, _)) || (documented.is_some() && matches!(taken, (Taken::Granted(_), _)));
        self.documented.retain(|(hold, _)| *hold != request.token.hold);
        if still || shared {
            self.documented.push((request.token.hold, shared));
        }
        if left {
            self.gate.is_left();
        }
        // The step that grants takes who was granted out of the queue.
        if left || shared {
            self.queued.retain(|(key, token)| *key != request.key || *token != request.token);
        }
        Ok(match taken {
            (Taken::Granted(grant), _) => Attempt::Granted(grant),
            (Taken::NotHeld, _) => Attempt::NotHeld,
            (Taken::Refused(refusal), _) => Attempt::Refused(refusal),
            // Free already, though perhaps nobody told: not to be waited for, but to be asked for again.
            (Taken::Passing, _) => Attempt::Busy(Busy { notifies: true, passing: true, ..Busy::default() }),
            (Taken::Queued { busy, foreign, told }, _) => {
                self.gate.found_busy(&request.key, foreign);
                if !is_plain(request) {
                    self.gate.own = Some((self.tables.waiter(&name, &request.token.hold_text()), told));
                }
                let at_the_end = self.gate.is_kept() || looks_at_the_end(busy.position);
                Attempt::Busy(Busy {
                    // The end of a turn concerns those only who were told of it, or come just then.
                    expires_in: busy.expires_in.filter(|left| at_the_end || *left <= OFFER),
                    notifies: !foreign && !self.gate.is_pooled(),
                    ..busy
                })
            }
            (Taken::Held(record), position) => {
                self.gate.found_busy(&request.key, !record.is_ours());
                Attempt::Busy(Busy {
                    holders: record.holder()?.into_iter().collect(),
                    expires_in: Some(record.expires_in()).filter(|_| self.gate.is_kept() || looks_at_the_end(position)),
                    notifies: record.is_ours() && !self.gate.is_pooled(),
                    passing: false,
                    position,
                })
            }
        })
    }

    async fn ask_abandon(&mut self, request: &Request) -> Result<()> {
        if !self.is_queued(&request.key, &request.token) {
            return Ok(());
        }
        let name = self.names.of(&request.key);
        let first = self.gate.leave();
        self.ask(async |table| {
            if table.leave_queue(first, &name, &request.token).await? {
                ledger::leave(table, &name, &request.token).await?;
            }
            Ok(())
        })
        .await?;
        self.queued.retain(|(key, token)| *key != request.key || *token != request.token);
        self.documented.retain(|(hold, _)| *hold != request.token.hold);
        Ok(())
    }

    async fn ask_release(&mut self, name: &str, token: &Token, parting: &Parting) -> Result<Release> {
        let documented = self.document_of(token).is_some();
        let released = self.ask_for_good(async |table| ledger::release(table, name, token, parting, documented).await).await?;
        self.documented.retain(|(hold, _)| *hold != token.hold);
        Ok(released)
    }

    async fn look_at(&mut self, key: &Key) -> Result<LockState> {
        let name = self.names.of(key);
        let (record, queue) =
            self.look(async |table| Ok((table.read(&name, Duration::ZERO).await?, table.queue(&name, true).await?))).await?;
        let waiters: Vec<Waiter> = queue.into_iter().map(|(_, waiter)| waiter).collect();
        match record {
            Some(record) => record.state(key.clone(), waiters),
            None => Ok(LockState { key: key.clone(), stored_as: name, holders: Vec::new(), waiters, last_fence: None, nodes: Vec::new() }),
        }
    }

    async fn look_at_all(&mut self, start: &str) -> Result<Vec<LockState>> {
        let start = self.names.starting_with(start);
        let (records, queue) = self.look(async |table| Ok((table.list(&start).await?, table.queue(&start, false).await?))).await?;
        let mut states = Vec::new();
        for record in records {
            // What no dlock can have written is no lock.
            let Some(key) = self.names.key(&record.name) else { continue };
            let waiters = queue.iter().filter(|(name, _)| *name == record.name).map(|(_, waiter)| waiter.clone()).collect();
            states.push(record.state(key, waiters)?);
        }
        Ok(states)
    }
}

#[async_trait(?Send)]
impl Backend for Lease {
    fn identity(&self) -> Identity {
        let (url, sql) = (self.options.redacted_url(), &self.options.sql);
        Identity::new(&CAPABILITIES, url.clone(), &[&url, &sql.table, sql.namespace.as_str()])
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        self.ask_acquire(request).await
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        let name = self.names.of(&request.key);
        self.await_change(&request.key, &name, at_most).await
    }

    async fn leave_queue(&mut self, request: &Request) -> Result<()> {
        self.ask_abandon(request).await
    }

    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        if let Some(ttl) = intent.ttl() {
            CAPABILITIES.check_ttl(ttl)?;
        }
        let (name, shared) = (self.names.of(key), self.document_of(token) == Some(true));
        self.ask(async |table| match intent {
            Intent::Probe => ledger::verify(table, &name, token).await,
            Intent::Extend(_) | Intent::Drain => ledger::renew(table, &name, token, intent, shared).await,
        })
        .await
    }

    async fn release(&mut self, key: &Key, token: &Token, parting: &Parting) -> Result<Release> {
        let name = self.names.of(key);
        self.ask_release(&name, token, parting).await
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        let name = self.names.of(key);
        self.ask(async |table| match change {
            Amendment::Note(note) => history::note(table.session, table.tables, &name, note).await.map(|()| true),
            Amendment::Warn(fence, level) => table.warn("{table}", &name, fence, level).await,
            Amendment::Mark(fence, mark) => ledger::mark(table, &name, fence, mark).await,
            Amendment::Evict(fence, mark) => ledger::evict(table, &name, fence, mark).await,
        })
        .await
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        self.look_at(key).await
    }

    async fn list(&mut self, start: &str) -> Result<Vec<LockState>> {
        self.look_at_all(start).await
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        let name = self.names.of(key);
        self.look(async |table| {
            let record = table.read(&name, Duration::ZERO).await?;
            let (mut past, skips) = history::read(table.session, table.tables, &name).await?;
            if let Some(record) = &record {
                past.extend(record.vanished());
                past.extend(record.document()?.1);
            }
            Ok(History { record: record.map(|record| record.starts).unwrap_or_default(), ..History::new(past, skips) })
        })
        .await
    }

    fn notices(&mut self) -> Vec<Notice> {
        let mut notices = std::mem::take(&mut self.notices);
        notices.extend(self.gate.notice());
        notices
    }
}

/// Whether a request wants the lock for itself alone and in no order, so that any other such waiter is as good.
fn is_plain(request: &Request) -> bool {
    request.mode == Mode::Exclusive && !request.fair
}
