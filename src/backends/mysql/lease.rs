//! `mode=lease`: a lock is a row with an end. See the module's own docs for what can go wrong.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    bell::{Told, behind},
    connection::{Connection, Known},
    history,
    names::Tables,
    options::Options,
    table::{LockTable, Seen},
};
use crate::{
    backends::sql::{Names, Table as _, Taken, ledger, looks_at_the_end},
    lock::{
        Amendment, Attempt, Backend, Busy, Capabilities, History, Identity, Intent, Key, LockState, Mode, Notice, Parting, Release,
        Renewal, Request, Result, Token, Wake, document::OFFER,
    },
};

pub(super) const CAPABILITIES: Capabilities =
    Capabilities { shared: true, permits: true, fair: true, history: true, terms: true, breakable: true, ..Capabilities::usual("mysql") };

/// Leases in a table.
///
/// It has at most one session, made by the first call that needs it. A call that is dropped or fails takes the session
/// with it, and the next call makes another.
pub struct Lease {
    pub(super) options: Options,
    pub(super) tables: Tables,
    names: Names,
    pub(super) session: Option<Connection>,
    /// The session that was asked last, if it did not answer.
    unanswered: Option<Known>,
    /// Which holds of ours are shares of their locks.
    shares: Vec<(Key, Token)>,
    /// Who may stand in a queue because of us. Noted before asking, since an unanswered request may have been served.
    queued: Vec<Queued>,
    /// The server, or what stands before it, has no gates.
    pub(super) gates_fail: bool,
    notices: Vec<Notice>,
}

/// A waiter of ours in a queue.
struct Queued {
    key: Key,
    token: Token,
    /// It has the lock now. Its entry is passed over by who looks, and goes when the lock is given back: the command
    /// need not wait for that.
    granted: bool,
    /// It waits in the document's queue.
    told: Option<Told>,
}

impl Lease {
    /// A backend for `options`. Without I/O.
    pub fn new(options: Options) -> Self {
        let (tables, names) = (Tables::new(&options.sql), Names::new(&options.sql.namespace));
        Self {
            options,
            tables,
            names,
            session: None,
            unanswered: None,
            shares: Vec::new(),
            queued: Vec::new(),
            gates_fail: false,
            notices: Vec::new(),
        }
    }

    /// The session, to be put back when it is at rest again.
    pub(super) async fn take_session(&mut self) -> Result<Connection> {
        if let Some(session) = self.session.take().filter(Connection::is_open) {
            return Ok(session);
        }
        let session = Connection::open(&self.options).await?;
        self.notices = session.server.notices();
        Ok(session)
    }

    /// Asks the table, and keeps the session unless the question is dropped or its answer lost.
    async fn ask<T>(&mut self, question: impl AsyncFnOnce(&mut LockTable<'_>) -> Result<T>) -> Result<T> {
        let mut session = self.take_session().await?;
        let gated = !self.gates_fail && session.server.has_gates();
        let mut table = LockTable {
            session: &mut session,
            tables: &self.tables,
            gated,
            seen: Seen::No,
            place: None,
            bell: 0,
            document: (None, None),
            share: None,
            freed: false,
        };
        self.unanswered = Some(table.session.known());
        let answer = question(&mut table).await;
        self.unanswered.take_if(|_| session.is_open());
        self.session = Some(session);
        answer
    }

    /// As [`Lease::ask`], of a question about who has the lock: one before it that had no answer comes to nothing first, if it has not
    /// come to something. Or else an acquire could be granted after its repetition was given back, or after it was undone.
    async fn ask_for_good<T>(&mut self, question: impl AsyncFnOnce(&mut LockTable<'_>) -> Result<T>) -> Result<T> {
        let before = self.unanswered.clone();
        self.ask(async |table| {
            if let Some(other) = before.filter(|other| *other != table.session.known()) {
                table.session.end_other(&other, None).await?;
            }
            question(table).await
        })
        .await
    }

    /// Whether a `GET_LOCK` of one client keeps another one waiting.
    fn has_gates(&self) -> bool {
        !self.gates_fail && self.session.as_ref().is_some_and(|session| session.server.has_gates())
    }

    fn queued(&mut self, key: &Key, token: &Token) -> Option<&mut Queued> {
        self.queued.iter_mut().find(|queued| queued.key == *key && queued.token == *token)
    }

    fn is_share(&self, key: &Key, token: &Token) -> bool {
        self.shares.iter().any(|(of, who)| of == key && who == token)
    }

    async fn ask_acquire(&mut self, request: &Request) -> Result<Attempt> {
        CAPABILITIES.check(request)?;
        let name = self.names.of(&request.key);
        if request.waiting && self.queued(&request.key, &request.token).is_none() {
            self.queued.push(Queued { key: request.key.clone(), token: request.token, granted: false, told: None });
        }
        let documented = self.queued(&request.key, &request.token).is_some_and(|queued| queued.told.is_some());
        let (taken, position, (bell, (document, root))) = self
            .ask_for_good(async |table| {
                table.share = Some(request.token.hold_text()).filter(|_| !request.detached && request.mode != Mode::Exclusive);
                let mut taken = ledger::take(table, &name, request, documented).await;
                if taken.is_err() && table.session.interrupted {
                    // Somebody woke a waiter that was awake.
                    taken = ledger::take(table, &name, request, documented).await;
                }
                Ok((taken?, table.place, (table.bell, table.document.clone())))
            })
            .await?;
        let told = match &taken {
            Taken::Queued { busy, foreign, .. } => {
                let behind = behind(&self.tables, &name, &request.token.hold_text(), document.as_deref(), root.as_deref());
                Some(Told { bell, place: busy.position, foreign: *foreign, behind })
            }
            _ => None,
        };
        if let Some(queued) = self.queued(&request.key, &request.token) {
            queued.told = told;
        }
        let notifies = self.has_gates();
        Ok(match taken {
            Taken::Granted(grant) => {
                if let Some(queued) = self.queued(&request.key, &request.token) {
                    queued.granted = !request.detached;
                }
                if request.mode != Mode::Exclusive && !self.is_share(&request.key, &request.token) {
                    self.shares.push((request.key.clone(), request.token));
                }
                Attempt::Granted(grant)
            }
            Taken::Queued { busy, .. } => Attempt::Busy(Busy {
                expires_in: busy.expires_in.filter(|left| *left <= OFFER || looks_at_the_end(busy.position)),
                notifies,
                ..busy
            }),
            Taken::NotHeld => Attempt::NotHeld,
            Taken::Refused(refusal) => Attempt::Refused(refusal),
            Taken::Passing => Attempt::Busy(Busy { notifies, passing: true, expires_in: Some(Duration::ZERO), ..Busy::default() }),
            Taken::Held(record) => Attempt::Busy(Busy {
                holders: record.holder()?.into_iter().collect(),
                expires_in: Some(record.expires_in()).filter(|_| looks_at_the_end(position)),
                // Who has the gate looks at the row for all the others, whoever has the lock.
                notifies,
                passing: false,
                position,
            }),
        })
    }

    async fn ask_abandon(&mut self, request: &Request) -> Result<()> {
        let name = self.names.of(&request.key);
        match self.queued(&request.key, &request.token) {
            Some(queued) if !queued.granted => {}
            _ => return Ok(()),
        }
        self.ask(async |table| {
            if table.leave(&name, &request.token, true).await? {
                ledger::leave(table, &name, &request.token).await?;
            }
            Ok(())
        })
        .await?;
        self.queued.retain(|queued| queued.key != request.key || queued.token != request.token);
        Ok(())
    }

    async fn ask_release(&mut self, key: &Key, token: &Token, parting: &Parting) -> Result<Release> {
        let name = self.names.of(key);
        let (queued, shared) = (self.queued(key, token).is_some_and(|queued| queued.granted), self.is_share(key, token));
        let release = self
            .ask_for_good(async |table| {
                table.share = Some(token.hold_text()).filter(|_| shared);
                let release = ledger::release(table, &name, token, parting, shared).await?;
                // The lock is given back already: nobody waits for what follows, and nothing hangs on it.
                if queued {
                    let _ = table.leave(&name, token, !matches!(release, Release::StillHeld(_))).await;
                } else if release == Release::NotHeld {
                    let _ = table.pass_on(&name).await;
                }
                Ok(release)
            })
            .await?;
        self.queued.retain(|queued| !queued.granted || queued.key != *key || queued.token != *token);
        self.shares.retain(|(of, who)| of != key || who != token);
        Ok(release)
    }

    async fn look_at(&mut self, key: &Key) -> Result<LockState> {
        let name = self.names.of(key);
        match self.ask(async |table| table.look(&name).await).await? {
            (Some(record), waiters) => record.state(key.clone(), waiters),
            (None, waiters) => {
                Ok(LockState { key: key.clone(), stored_as: name, holders: Vec::new(), waiters, last_fence: None, nodes: Vec::new() })
            }
        }
    }

    async fn look_at_all(&mut self, start: &str) -> Result<Vec<LockState>> {
        let start = self.names.starting_with(start);
        let (records, queue) = self.ask(async |table| table.list(&start).await).await?;
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
        let told = self.queued(&request.key, &request.token).and_then(|queued| queued.told.clone());
        match told.filter(|_| self.has_gates()) {
            Some(told) => self.await_bell(&name, &request.token.hold_text(), told, at_most).await,
            None => self.await_change(&name, at_most).await,
        }
    }

    async fn leave_queue(&mut self, request: &Request) -> Result<()> {
        self.ask_abandon(request).await
    }

    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        if let Some(ttl) = intent.ttl() {
            CAPABILITIES.check_ttl(ttl)?;
        }
        let (name, shared) = (self.names.of(key), self.is_share(key, token));
        self.ask(async |table| match intent {
            Intent::Probe => ledger::verify(table, &name, token).await,
            Intent::Extend(_) | Intent::Drain => ledger::renew(table, &name, token, intent, shared).await,
        })
        .await
    }

    async fn release(&mut self, key: &Key, token: &Token, parting: &Parting) -> Result<Release> {
        self.ask_release(key, token, parting).await
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        let name = self.names.of(key);
        self.ask(async |table| match change {
            Amendment::Note(note) => history::note(table.session, table.tables, &name, note).await.map(|()| true),
            Amendment::Warn(fence, level) => {
                let claim = history::claim(table.tables, table.tables.table(), &name, fence, level);
                table.session.ask(&claim).await.map(|answers| history::is_claimed(&answers))
            }
            Amendment::Mark(fence, mark) => ledger::mark(table, &name, fence, mark).await,
            Amendment::Evict(fence, mark) => {
                let done = ledger::evict(table, &name, fence, mark).await?;
                // Waiters are blocked on what the holder's session has: it goes, if it is there still.
                if table.freed
                    && let Some(number) = table.gate_keeper(&name).await?
                {
                    // It has the gate, as the server has just said over this very session.
                    if table.session.kill(number).await?.is_none() {
                        table.session.outlast(number).await?;
                    }
                }
                Ok(done)
            }
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
        self.ask(async |table| {
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
        std::mem::take(&mut self.notices)
    }
}
