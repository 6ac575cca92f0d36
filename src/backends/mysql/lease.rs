//! `mode=lease`: a lock is a row with an end. See the module's own docs for what can go wrong.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    bell::{Told, behind},
    connection::Connection,
    history,
    names::Tables,
    options::Options,
    schema,
    table::{LockTable, Seen},
};
use crate::{
    backends::sql::{Names, Table as _, Taken, ledger, looks_at_the_end},
    lock::{
        Attempt, Backend, Break, Busy, Capabilities, Extension, Fence, History, Holding, Init, Key, LockState, Marking, Mode, Note, Notice,
        Parting, Release, Renewal, Request, Result, Token, Wake, fingerprint,
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
    /// The number of the session that was asked last, if it did not answer.
    unanswered: Option<i64>,
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
    /// It waits in the lock's crowd.
    told: Option<Told>,
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
            crowd: (None, None),
            share: None,
            freed: false,
        };
        self.unanswered = Some(table.session.server.session);
        let answer = question(&mut table).await;
        self.unanswered = self.unanswered.filter(|_| !session.is_open());
        self.session = Some(session);
        answer
    }

    /// As [`Lease::ask`], of a question about who has the lock: one before it that had no answer comes to nothing first, if it has not
    /// come to something. Or else an acquire could be granted after its repetition was given back, or after it was undone.
    async fn ask_for_good<T>(&mut self, question: impl AsyncFnOnce(&mut LockTable<'_>) -> Result<T>) -> Result<T> {
        let before = self.unanswered;
        self.ask(async |table| {
            if let Some(number) = before.filter(|number| *number != table.session.server.session) {
                table.session.end_other(number).await?;
            }
            question(table).await
        })
        .await
    }

    /// Says which question failed, where and about which lock.
    pub(super) fn about<T>(&self, outcome: Result<T>, operation: &'static str, key: Option<&Key>) -> Result<T> {
        outcome.map_err(|error| {
            let error = error.during(operation).backend(self.options.redacted_url());
            match key {
                Some(key) => error.key(key),
                None => error,
            }
        })
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
        let crowded = self.queued(&request.key, &request.token).is_some_and(|queued| queued.told.is_some());
        let (taken, position, (bell, (crowd, root))) = self
            .ask_for_good(async |table| {
                table.share = Some(request.token.hold_text()).filter(|_| !request.detached && request.mode != Mode::Exclusive);
                let mut taken = ledger::take(table, &name, request, crowded).await;
                if taken.is_err() && table.session.interrupted {
                    // Somebody woke a waiter that was awake.
                    taken = ledger::take(table, &name, request, crowded).await;
                }
                Ok((taken?, table.place, (table.bell, table.crowd.clone())))
            })
            .await?;
        let told = match &taken {
            Taken::Queued { busy, foreign, .. } => {
                let behind = behind(&self.tables, &name, &request.token.hold_text(), crowd.as_deref(), root.as_deref());
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
            Taken::Queued { busy, .. } => {
                Attempt::Busy(Busy { expires_in: busy.expires_in.filter(|_| looks_at_the_end(busy.position)), notifies, ..busy })
            }
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
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn describe(&self) -> String {
        self.options.redacted_url()
    }

    fn fingerprint(&self) -> u64 {
        fingerprint(&[&self.options.redacted_url(), &self.options.sql.table, self.options.sql.namespace.as_str()])
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        let outcome = self.ask_acquire(request).await;
        self.about(outcome, "acquire", Some(&request.key))
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        let name = self.names.of(&request.key);
        let told = self.queued(&request.key, &request.token).and_then(|queued| queued.told.clone());
        let outcome = match told.filter(|_| self.has_gates()) {
            Some(told) => self.await_bell(&name, &request.token.hold_text(), told, at_most).await,
            None => self.await_change(&name, at_most).await,
        };
        self.about(outcome, "wait", Some(&request.key))
    }

    async fn abandon(&mut self, request: &Request) -> Result<()> {
        let outcome = self.ask_abandon(request).await;
        self.about(outcome, "abandon", Some(&request.key))
    }

    async fn renew(&mut self, key: &Key, token: &Token, extension: Extension) -> Result<Renewal> {
        if let Some(ttl) = extension.ttl {
            CAPABILITIES.check_ttl(ttl)?;
        }
        let (name, shared) = (self.names.of(key), self.is_share(key, token));
        let outcome = self.ask(async |table| ledger::renew(table, &name, token, extension, shared).await).await;
        self.about(outcome, "renew", Some(key))
    }

    async fn verify(&mut self, key: &Key, token: &Token) -> Result<Holding> {
        let name = self.names.of(key);
        let outcome = self.ask(async |table| ledger::verify(table, &name, token).await).await;
        self.about(outcome, "verify", Some(key))
    }

    async fn release(&mut self, key: &Key, token: &Token, parting: &Parting) -> Result<Release> {
        let outcome = self.ask_release(key, token, parting).await;
        self.about(outcome, "release", Some(key))
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        let outcome = self.look_at(key).await;
        self.about(outcome, "inspect", Some(key))
    }

    async fn list(&mut self, start: &str) -> Result<Vec<LockState>> {
        let outcome = self.look_at_all(start).await;
        self.about(outcome, "list", None)
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        let name = self.names.of(key);
        let outcome = self
            .ask(async |table| {
                let record = table.read(&name, Duration::ZERO).await?;
                let (mut past, skips) = history::read(table.session, table.tables, &name).await?;
                if let Some(record) = &record {
                    past.extend(record.vanished());
                    past.extend(record.crowd()?.1);
                }
                Ok(History { record: record.map(|record| record.starts).unwrap_or_default(), ..History::new(past, skips) })
            })
            .await;
        self.about(outcome, "history", Some(key))
    }

    async fn note(&mut self, key: &Key, note: &Note) -> Result<()> {
        let name = self.names.of(key);
        let outcome = self.ask(async |table| history::note(table.session, table.tables, &name, note).await).await;
        self.about(outcome, "note", Some(key))
    }

    async fn claim_warning(&mut self, key: &Key, fence: Fence, level: u32) -> Result<bool> {
        let claim = history::claim(&self.tables, self.tables.table(), &self.names.of(key), fence, level);
        let outcome = self.ask(async |table| table.session.ask(&claim).await).await;
        self.about(outcome.map(|answers| history::is_claimed(&answers)), "warn", Some(key))
    }

    async fn mark(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        let name = self.names.of(key);
        let outcome = self.ask(async |table| ledger::mark(table, &name, fence, mark).await).await;
        self.about(outcome, "break", Some(key))
    }

    async fn evict(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        let name = self.names.of(key);
        let outcome = self
            .ask(async |table| {
                let done = ledger::evict(table, &name, fence, mark).await?;
                // Those who wait are blocked on what its session has: it goes, if it is there still.
                if table.freed
                    && let Some(number) = table.gate_keeper(&name).await?
                {
                    table.session.end_other(number).await?;
                }
                Ok(done)
            })
            .await;
        self.about(outcome, "break", Some(key))
    }

    async fn init(&mut self) -> Result<Init> {
        let work = async {
            let mut session = self.take_session().await?;
            let done = schema::create(&mut session, &self.tables).await?;
            self.session = Some(session);
            Ok(done)
        };
        let outcome = work.await;
        self.about(outcome, "init", None)
    }

    fn schema(&self) -> Option<String> {
        Some(schema::text(&self.tables))
    }

    async fn collect(&mut self, unused_for: Duration) -> Result<u64> {
        let work = async {
            let mut session = self.take_session().await?;
            let removed = schema::collect(&mut session, &self.tables, unused_for).await?;
            self.session = Some(session);
            Ok(removed)
        };
        let outcome = work.await;
        self.about(outcome, "gc", None)
    }
}
