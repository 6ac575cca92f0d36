//! `mode=row` and `mode=advisory`: a lock is what a session has, and ends with it.
//!
//! A hold can't be given to another process, nor entered by one. Whether it lasts is asked over its own session only:
//! an error there that ended the session ended the hold. The fence is counted and committed once the lock is ours, before
//! anybody is told, over a second session where the first is in a transaction.
//!
//! Worst interleavings, and what keeps them harmless:
//! - *The reply to a grant is lost.* The same session is asked again, and has the lock already. A session that leaves
//!   two questions unanswered is left to the server, which ends it after the TTL, and another one asks.
//! - *The holder's fence is counted and the holder dies.* The number is skipped.
//! - *The session is ended by an administrator, a restart or the idle timeout.* The socket says so at once ([`Backend::watch`]),
//!   or the next renewal does, and the command is killed. The next holder may have the lock in that instant: what the one
//!   before left behind tells it to wait a moment before it starts anything.
//! - *Who waits gets the lock while it is frozen.* The server ends that session after ten seconds of silence.
//! - *The reply to a release is lost.* It took its hold out in the step that remembered it: asked again it finds nothing to remember.
//! - *The release can't be remembered.* The lock is given back without.
//! - *A holder vanishes.* Who it was stays behind, and is told as expired, or as broken if it was marked; the next grant writes it down
//!   before it takes its place, again and again if need be.
//! - *A grant is undone whose answer was lost.* What it wrote is taken out, over its session if that still answers. If it was not executed
//!   yet, it finds that its hold was undone, and writes nothing.
//! - *A mark can't be read.* The holder goes on, and whoever breaks it ends its session when its lease is over. A mark that was heard is
//!   noted as seen before the hold is extended for that.
//! - *A hold is evicted that just ended.* Its session keeps no other lock, ever: what it does for its client is asked again.
//! - *Readers come one after the other while somebody waits to write.* The server lets nobody share a row for which somebody waits alone, not
//!   even who would not wait. A wait ends every few seconds and begins again: who comes in just that instant gets in.
//! - *A reader vanishes beside others.* What it wrote counts while its session has its lamp ([`readers`](super::readers)): the next one who
//!   takes the row writes it down. Who writes has the row alone, and knows that all readers are gone.
//! - *dlock is killed.* The guardian has the socket as well, and closes it when the command's tree is dead.

use std::{io, os::fd::OwnedFd, time::Duration};

use async_trait::async_trait;

use super::{
    connection::{Answer, Connection},
    history,
    keeper::{Heard, Keeper, heard},
    names::{Tables, advisory},
    options::{Mode, Options},
    readers::own_lamp,
    reading::Fields,
    schema,
    session_look::read_holders,
    starts,
    statement::Value,
    table::{join, leaving, place},
};
use crate::{
    backends::sql::{NEAR, Names, looks_at_the_end, micros, ms},
    lock::{
        Attempt, Backend, Break, Busy, Capabilities, Error, Extension, Fence, Grant, History, Holding, Init, Key, Kind, LockState, Marking,
        Mode as How, Note, Notice, Parting, Purpose, Refusal, Release, Renewal, Request, Result, Stage, Token, Ttl, Wake, fingerprint,
    },
};

pub(super) const ROW: Capabilities = Capabilities {
    shared: true,
    detached: false,
    reentrant: false,
    history: true,
    terms: true,
    breakable: true,
    ..Capabilities::usual("mysql mode=row")
};
pub(super) const ADVISORY: Capabilities = Capabilities { shared: false, backend: "mysql mode=advisory", ..ROW };

/// What a holder that vanished may need to see that its session is over, and to stop what it ran.
const SETTLE: Duration = Duration::from_millis(500);

/// Locks that sessions keep.
pub struct Sessions {
    pub(super) options: Options,
    pub(super) tables: Tables,
    pub(super) names: Names,
    holds: Vec<Hold>,
    /// Who asks or waits, with a session of his own.
    tries: Vec<(Key, Token, Keeper)>,
    /// Sessions that were left blocking in the server, by their numbers there: a row lock that nobody waits for any more
    /// would be given to them all the same.
    stuck: Vec<i64>,
    /// For all that is not a lock.
    pub(super) side: Option<Connection>,
    /// Who may stand in a queue because of us.
    queued: Vec<(Key, Token)>,
    notices: Vec<Notice>,
}

/// A lock that a session of ours has.
struct Hold {
    key: Key,
    token: Token,
    keeper: Keeper,
    fence: Fence,
    ttl: Ttl,
    /// When it ends by the server's clock, in µs.
    ends: i64,
    /// It is being given back, and not to be relied on any more.
    leaving: bool,
    /// Somebody is breaking it.
    marked: bool,
}

impl Sessions {
    /// A backend for `options`. Without I/O.
    pub fn new(options: Options) -> Self {
        let (tables, names) = (Tables::new(&options.sql.table), Names::new(&options.sql.namespace));
        Self {
            options,
            tables,
            names,
            holds: Vec::new(),
            tries: Vec::new(),
            stuck: Vec::new(),
            side: None,
            queued: Vec::new(),
            notices: Vec::new(),
        }
    }

    pub(super) fn about<T>(&self, outcome: Result<T>, operation: &'static str, key: Option<&Key>) -> Result<T> {
        outcome.map_err(|error| {
            let error = error.during(operation).backend(self.options.redacted_url());
            match key {
                Some(key) => error.key(key),
                None => error,
            }
        })
    }

    fn hold_of(&self, key: &Key, token: &Token) -> Option<usize> {
        self.holds.iter().position(|hold| hold.key == *key && hold.token == *token)
    }

    /// What `GET_LOCK` takes for a key, as SQL.
    pub(super) fn lock_of(&self, key: &Key) -> String {
        advisory(&self.options, key, &self.names.of(key))
    }

    /// Takes the session that asks for this request out, if there is one that may still answer.
    fn take_try(&mut self, key: &Key, token: &Token) -> Option<Keeper> {
        let at = self.tries.iter().position(|(of, who, _)| of == key && who == token)?;
        let (_, _, keeper) = self.tries.swap_remove(at);
        if keeper.blocked && keeper.session.is_alive() {
            self.stuck.push(keeper.number);
        }
        (keeper.session.is_alive() && keeper.unanswered < 2 && !keeper.blocked).then_some(keeper)
    }

    pub(super) async fn side(&mut self) -> Result<Connection> {
        match self.side.take().filter(Connection::is_open) {
            Some(session) => Ok(session),
            None => Connection::open(&self.options).await,
        }
    }

    /// Asks what is about no lock of ours.
    pub(super) async fn aside(&mut self, batch: &str) -> Result<Vec<Answer>> {
        let mut session = match self.side.take().filter(Connection::is_alive) {
            Some(session) => session,
            None => Connection::open(&self.options).await?,
        };
        let answers = session.ask(batch).await;
        self.side = Some(session);
        answers
    }

    /// As [`Sessions::aside`], with the answers up to a refusal.
    async fn try_aside(&mut self, batch: &str) -> Result<Vec<Answer>> {
        let mut session = match self.side.take().filter(Connection::is_alive) {
            Some(session) => session,
            None => Connection::open(&self.options).await?,
        };
        let answers = session.try_ask(batch).await;
        self.side = Some(session);
        answers.map(|answers| answers.answers)
    }

    /// Ends sessions that were left blocking, as their user may. That it fails only leaves them to their own end. A server that was
    /// restarted, or took another one's place, counts its sessions anew: only one that waits as ours did is ended.
    async fn end_stuck(&mut self) {
        // One is forgotten when it was ended: this may be dropped half-way, and called again.
        while let Some(number) = self.stuck.last().copied() {
            let waits = if self.options.mode == Mode::Row { "(FOR UPDATE|SHARE MODE)" } else { "GET_LOCK[(]" };
            let one = format!("SELECT id INTO @stuck FROM information_schema.processlist WHERE id = {number} AND info REGEXP '{waits}'");
            let _ = self.aside(&format!("SET @stuck = NULL; {one}; KILL @stuck")).await;
            self.stuck.retain(|stuck| *stuck != number);
        }
    }

    /// The session that is to have this hold, in its place among the tries, so that a dropped question can be asked again.
    async fn keeper(&mut self, request: &Request) -> Result<usize> {
        let keeper = if let Some(keeper) = self.take_try(&request.key, &request.token) {
            keeper
        } else {
            self.end_stuck().await;
            let (name, shared) = (self.names.of(&request.key), request.mode == How::Shared);
            let lock = if shared { own_lamp(&self.tables, &name, &request.token.hold_text()) } else { self.lock_of(&request.key) };
            let keeper = Keeper::open(&self.options, &self.tables, name, lock, shared).await?;
            self.notices = keeper.session.server.notices();
            keeper
        };
        self.tries.push((request.key.clone(), request.token, keeper));
        Ok(self.tries.len() - 1)
    }

    async fn ask_acquire(&mut self, request: &Request) -> Result<Attempt> {
        self.capabilities().check(request)?;
        if self.hold_of(&request.key, &request.token).is_some() {
            return Ok(match self.ask_renew(&request.key, &request.token, Some(request.ttl), None).await? {
                Renewal::NotHeld => Attempt::Busy(Busy { notifies: true, passing: true, ..Busy::default() }),
                _ => Attempt::Granted(grant(
                    self.hold_of(&request.key, &request.token).map_or(Fence(0), |at| self.holds[at].fence),
                    request.ttl,
                )),
            });
        }
        if request.waiting && !self.is_queued(&request.key, &request.token) {
            self.queued.push((request.key.clone(), request.token));
        }
        let at = self.keeper(request).await?;
        let keeper = &mut self.tries[at].2;
        // An acquire that is given up must not arrive when nobody waits for its answer any more.
        keeper.session.drop_unsent_on_close(true);
        let attempted = keeper.attempt(request).await;
        if attempted.is_err() {
            self.give_up(at, &attempted).await;
        }
        if !attempted? {
            return self.refuse(request, at).await;
        }
        let mut side = if self.options.mode == Mode::Row { Some(self.side().await?) } else { None };
        let begun = self.tries[at].2.begin(request, side.as_mut()).await;
        self.side = side.or_else(|| self.side.take());
        if begun.is_err() {
            self.give_up(at, &begun).await;
        }
        let (fence, now, vanished) = match begun? {
            Ok(begun) => begun,
            Err(refusal) => return self.turn_away(request, at, refusal).await,
        };
        let (key, token, keeper) = self.tries.swap_remove(at);
        keeper.session.drop_unsent_on_close(false);
        let ends = now.saturating_add(ms(request.ttl).saturating_mul(1000));
        self.holds.push(Hold { key, token, keeper, fence, ttl: request.ttl, ends, leaving: false, marked: false });
        let settle = if vanished { SETTLE } else { Duration::ZERO };
        Ok(Attempt::Granted(Grant { settle, ..grant(fence, request.ttl) }))
    }

    /// After a failure that is not asked about again: the session would keep the lock for nothing.
    async fn give_up<T>(&mut self, at: usize, failed: &Result<T>) {
        if failed.as_ref().is_err_and(|error| !error.is_transient()) {
            let (_, _, mut keeper) = self.tries.swap_remove(at);
            // If this fails, it goes back with the session.
            let _ = keeper.let_go().await;
        }
    }

    /// Gives the lock back that a run before keeps from this one.
    async fn turn_away(&mut self, request: &Request, at: usize, refusal: Box<Refusal>) -> Result<Attempt> {
        self.tries[at].2.let_go().await?;
        self.tries[at].2.session.drop_unsent_on_close(false);
        if !request.waiting {
            let (_, _, keeper) = self.tries.swap_remove(at);
            self.side.get_or_insert(keeper.session);
        }
        Ok(Attempt::Refused(refusal))
    }

    /// Says who has the lock. The session stays for who waits.
    async fn refuse(&mut self, request: &Request, at: usize) -> Result<Attempt> {
        let name = self.names.of(&request.key);
        let session = &self.tries[at].2.session;
        let mut batch = self.look_sql(&request.key, session.server.mariadb);
        if request.waiting {
            batch += &join(&self.tables, &name, request, false)?;
            batch += &place(&self.tables, &name, request);
        }
        let answers = self.tries[at].2.session.ask(&batch).await?;
        let (holders, _) = read_holders(&answers, 0)?;
        let position = if request.waiting {
            answers.last().and_then(|answer| answer.rows.first()).map(|row| Fields::of(row).int()).transpose()?
        } else {
            let (_, _, keeper) = self.tries.swap_remove(at);
            self.side.get_or_insert(keeper.session);
            None
        };
        let position = position.and_then(|place| u32::try_from(place).ok()).filter(|place| *place > 0);
        if self.options.mode == Mode::Row && self.side.is_none() && position.is_some_and(|place| place <= NEAR) {
            // When the turn comes, the fence is counted over it: connecting then would keep the lock idle. It can be done later.
            self.side = Connection::open(&self.options).await.ok();
        }
        Ok(Attempt::Busy(Busy {
            expires_in: holders.iter().filter_map(|holder| holder.expires_in).max().filter(|_| looks_at_the_end(position)),
            passing: holders.is_empty(),
            holders,
            notifies: true,
            position,
        }))
    }

    async fn await_change(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        let Some(at) = self.tries.iter().position(|(key, token, _)| *key == request.key && *token == request.token) else {
            return Ok(Wake::Changed);
        };
        let keeper = &mut self.tries[at].2;
        if keeper.has || !keeper.session.is_open() {
            return Ok(Wake::Changed);
        }
        Ok(if keeper.wait(request.ttl, at_most).await? { Wake::Changed } else { Wake::TimedOut })
    }

    fn is_queued(&self, key: &Key, token: &Token) -> bool {
        self.queued.iter().any(|(of, who)| of == key && who == token)
    }

    async fn ask_abandon(&mut self, request: &Request) -> Result<()> {
        // Who has the lock is passed over by who looks: the command need not wait for the queue.
        if !self.is_queued(&request.key, &request.token) || self.hold_of(&request.key, &request.token).is_some() {
            return Ok(());
        }
        // What the session got meanwhile goes back with it, to whoever is next.
        let waited = self.take_try(&request.key, &request.token);
        self.end_stuck().await;
        let mut leave = leaving(&self.tables, &self.names.of(&request.key), &request.token);
        if let Some(keeper) = waited.filter(|keeper| keeper.session.is_alive()) {
            leave = self.letting_go(&request.key, &request.token, &keeper, &self.undoing(&request.key, &request.token, false)) + &leave;
            self.side = Some(keeper.session);
        }
        if let Err(error) = self.aside(&leave).await {
            // It may have the lock yet, and ends with it.
            self.side = None;
            return Err(error);
        }
        self.queued.retain(|(key, token)| *key != request.key || *token != request.token);
        Ok(())
    }

    /// Extends a hold. Without a purpose it is not asked who is breaking it.
    async fn ask_renew(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>, purpose: Option<Purpose>) -> Result<Renewal> {
        let Some(at) = self.hold_of(key, token).filter(|at| !self.holds[*at].leaving) else { return Ok(Renewal::NotHeld) };
        let fence = self.holds[at].fence;
        if self.options.mode == Mode::Row {
            // First, since the session's silence is counted from what is asked last.
            let length = ttl.unwrap_or(self.holds[at].ttl);
            let heard = self.tell(at, token, length, purpose).await;
            if self.holds[at].keeper.session.is_alive()
                && let Some(mark) = self.holds[at].heed(heard, purpose)?
            {
                return Ok(Renewal::Broken(mark));
            }
        }
        let now = match self.holds[at].keeper.renew(None, token, fence, purpose).await {
            Ok(Some((now, _))) if self.options.mode == Mode::Row => now,
            Ok(Some((now, heard))) => match self.holds[at].heed(heard, purpose)? {
                Some(mark) => return Ok(Renewal::Broken(mark)),
                None => now,
            },
            // A statement can fail by itself; a session that is over has ended the hold.
            Err(error) if self.holds[at].keeper.session.is_open() => return Err(error),
            Ok(None) | Err(_) => {
                self.holds.swap_remove(at);
                return Ok(Renewal::NotHeld);
            }
        };
        let hold = &self.holds[at];
        let length = ttl.unwrap_or(hold.ttl);
        let ends = now.saturating_add(ms(length).saturating_mul(1000));
        // The session lasts for as long as the server is patient, whatever its clock was set back to meanwhile.
        let left = micros(hold.ends - now).min(hold.keeper.patience);
        if length.get() < left {
            return Ok(Renewal::WouldShorten { expires_in: left });
        }
        if length.get() != hold.keeper.patience {
            match self.holds[at].keeper.renew(Some(length.get()), token, fence, None).await {
                Ok(Some(_)) => {}
                Err(error) if self.holds[at].keeper.session.is_open() => return Err(error),
                Ok(None) | Err(_) => {
                    self.holds.swap_remove(at);
                    return Ok(Renewal::NotHeld);
                }
            }
        }
        self.holds[at].ends = ends;
        Ok(Renewal::Renewed { ttl: length, fence })
    }

    /// Lets those who look know of a renewal, and asks who is breaking it, over another session than the one that is in a transaction,
    /// where what is written is seen. That it fails or hangs must not keep the renewal.
    async fn tell(&mut self, at: usize, token: &Token, length: Ttl, purpose: Option<Purpose>) -> Heard {
        let Hold { keeper, fence, .. } = &self.holds[at];
        let touch = keeper.touch(token, *fence, length.get(), purpose);
        let patience = (length.get() / 30).clamp(Duration::from_millis(50), Duration::from_secs(1));
        match tokio::time::timeout(patience, self.try_aside(&touch)).await {
            Ok(Ok(answers)) => heard(&answers, 0, purpose),
            _ => Heard::default(),
        }
    }

    async fn ask_release(&mut self, key: &Key, token: &Token, parting: &Parting) -> Result<Release> {
        // One that was given up on: its session, asked in order behind what may still be under way there, lets go of it; if
        // it doesn't answer, it ends, and the lock with it, and what it wrote is taken out over another one meanwhile.
        if let Some(mut keeper) = self.take_try(key, token) {
            let undo = self.undoing(key, token, parting.end.is_none());
            let let_go = self.letting_go(key, token, &keeper, &undo);
            let waits = keeper.session.is_open();
            let elsewhere = async {
                if waits {
                    std::future::pending::<()>().await;
                }
                let _ = self.aside(&undo).await;
            };
            let answered = tokio::select! {
                answer = keeper.session.ask(&let_go) => answer.is_ok(),
                () = elsewhere => return Ok(Release::NotHeld),
            };
            if answered {
                self.side = Some(keeper.session);
                return Ok(Release::NotHeld);
            }
        }
        let Some(at) = self.hold_of(key, token) else {
            if parting.end.is_none() {
                // Its answer was lost with its session: what it wrote is not to be taken for a holder that vanished, nor for a start.
                let _ = self.aside(&self.undoing(key, token, true)).await;
            }
            return Ok(Release::NotHeld);
        };
        if !self.holds[at].keeper.session.is_alive() {
            self.holds.swap_remove(at);
            return Ok(Release::NotHeld);
        }
        // It stays here until it is done: dropped half-way and asked again, the same session goes on with it.
        self.holds[at].leaving = true;
        let Hold { keeper, fence, .. } = &mut self.holds[at];
        let released = keeper.give_back(token, *fence, parting).await;
        let mut hold = self.holds.swap_remove(at);
        let released = released?;
        if self.is_queued(key, token) {
            // The lock is given back already: nobody waits for this, and nothing hangs on it.
            let _ = hold.keeper.session.ask(&leaving(&self.tables, &self.names.of(key), token)).await;
            self.queued.retain(|(of, who)| of != key || who != token);
        }
        self.side.get_or_insert(hold.keeper.session);
        Ok(if released { Release::Released } else { Release::NotHeld })
    }

    /// Gives back whatever a session has of a lock, as if it had never had it.
    fn letting_go(&self, key: &Key, token: &Token, keeper: &Keeper, undo: &str) -> String {
        match self.options.mode {
            // Without the lamp nothing more is written of the hold.
            Mode::Row if keeper.shared => {
                let lamp = own_lamp(&self.tables, &self.names.of(key), &token.hold_text());
                format!("DO RELEASE_LOCK({lamp});\n{undo}COMMIT;\n")
            }
            Mode::Row => format!("{undo}COMMIT;\n"),
            _ => format!("{undo}DO RELEASE_LOCK({});\n", self.lock_of(key)),
        }
    }

    /// Takes out what a grant wrote that nobody uses; `for_good` if it is not asked for again, so that none may come later.
    fn undoing(&self, key: &Key, token: &Token, for_good: bool) -> String {
        let (name, root) = (self.names.of(key), token.hold_text());
        let became = starts::became(Some(Stage::Undone));
        let values = [("name", Value::Bytes(&name)), ("root", Value::Text(&root)), ("became", Value::Sql(&became))];
        let undo = if for_good { include_str!("sql/undo_for_good.sql") } else { include_str!("sql/undo_hold.sql") };
        let read = if self.options.mode == Mode::Row { "\nDELETE FROM :readers WHERE name = :name AND root = :root;" } else { "" };
        self.tables.fill(&format!("{undo}{read}"), &values)
    }
}

impl Hold {
    /// What a renewal comes to by what was heard of a mark.
    ///
    /// # Errors
    /// Who breaks the hold does not know yet that it is being stopped, and would take it away.
    fn heed(&mut self, heard: Heard, purpose: Option<Purpose>) -> Result<Option<Break>> {
        match purpose {
            Some(Purpose::GoOn) => {
                self.marked |= heard.mark.is_some();
                Ok(heard.mark)
            }
            Some(Purpose::Stop) if self.marked && !heard.noted => {
                Err(Error::new(Kind::Unavailable, "the server could not note that the hold is being stopped"))
            }
            _ => Ok(None),
        }
    }
}

fn grant(fence: Fence, ttl: Ttl) -> Grant {
    Grant { fence, ttl, holds: 1, settle: Duration::ZERO, session: None, permit: None }
}

#[async_trait(?Send)]
impl Backend for Sessions {
    fn capabilities(&self) -> &Capabilities {
        if self.options.mode == Mode::Row { &ROW } else { &ADVISORY }
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
        let outcome = self.await_change(request, at_most).await;
        self.about(outcome, "wait", Some(&request.key))
    }

    async fn abandon(&mut self, request: &Request) -> Result<()> {
        let outcome = self.ask_abandon(request).await;
        self.about(outcome, "abandon", Some(&request.key))
    }

    async fn renew(&mut self, key: &Key, token: &Token, extension: Extension) -> Result<Renewal> {
        if let Some(ttl) = extension.ttl {
            self.capabilities().check_ttl(ttl)?;
        }
        let outcome = self.ask_renew(key, token, extension.ttl, Some(extension.purpose)).await;
        self.about(outcome, "renew", Some(key))
    }

    async fn verify(&mut self, key: &Key, token: &Token) -> Result<Holding> {
        let outcome = self.look_for(key, token).await;
        self.about(outcome, "verify", Some(key))
    }

    async fn release(&mut self, key: &Key, token: &Token, parting: &Parting) -> Result<Release> {
        let outcome = self.ask_release(key, token, parting).await;
        self.about(outcome, "release", Some(key))
    }

    async fn watch(&mut self, key: &Key, token: &Token) {
        match self.hold_of(key, token) {
            Some(at) => self.holds[at].keeper.session.ended().await,
            None => std::future::pending().await,
        }
    }

    fn lifelines(&self) -> io::Result<Vec<OwnedFd>> {
        self.holds.iter().map(|hold| hold.keeper.session.lifeline()).collect()
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
        let outcome = self.look_back(key).await;
        self.about(outcome, "history", Some(key))
    }

    async fn note(&mut self, key: &Key, note: &Note) -> Result<()> {
        let name = self.names.of(key);
        let work = async {
            let mut session = self.side().await?;
            let noted = history::note(&mut session, &self.tables, &name, note).await;
            self.side = Some(session);
            noted
        };
        let outcome = work.await;
        self.about(outcome, "note", Some(key))
    }

    async fn claim_warning(&mut self, key: &Key, fence: Fence, level: u32) -> Result<bool> {
        let claim = history::claim(&self.tables, self.tables.sessions(), &self.names.of(key), fence, level);
        let outcome = self.aside(&claim).await;
        self.about(outcome.map(|answers| history::is_claimed(&answers)), "warn", Some(key))
    }

    async fn mark(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        let outcome = self.put_mark(key, fence, mark).await;
        self.about(outcome.map(|found| if found.is_some() { Marking::Done } else { Marking::Changed }), "break", Some(key))
    }

    async fn evict(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        let outcome = self.end_holder(key, fence, mark).await;
        self.about(outcome, "break", Some(key))
    }

    async fn init(&mut self) -> Result<Init> {
        let work = async {
            let mut session = self.side().await?;
            let done = schema::create(&mut session, &self.tables).await?;
            self.side = Some(session);
            Ok(done)
        };
        let outcome = work.await;
        self.about(outcome, "init", None)
    }

    fn schema(&self) -> Option<String> {
        Some(schema::text(&self.tables))
    }
}
