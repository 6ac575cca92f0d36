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
//! - *The session is ended by an administrator, a restart or the idle timeout.* The socket says so at once ([`Tether::watch`]),
//!   or the next renewal does, and the command is killed. The next holder may have the lock in that instant: what the one
//!   before left behind tells it to wait a moment before it starts anything.
//! - *The server crashes, or another one takes over, and a holder hears nothing of it.* What it left behind says which server had its session
//!   ([`life`](super::life)): the lock is busy until its lease is over by the server's clock.
//! - *Another mode is used for the same lock.* The lock's row in the table of leases says in which mode it is kept: others are refused.
//! - *A waiter gets the lock while it is frozen.* The server ends that session after ten seconds of silence.
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
    connection::{Answer, Connection, Known},
    history,
    keeper::{Beginning, Heard, Keeper, heard},
    life::Life,
    names::{Tables, advisory},
    options::{Mode, Options},
    readers::own_lamp,
    reading::Fields,
    session_look::{read_holders, rests},
    starts,
    statement::Value,
    table::{join, leaving, place},
};
use crate::{
    backends::sql::{NEAR, Names, looks_at_the_end, micros, ms},
    lock::{
        Amendment, Attempt, Backend, Break, Busy, Capabilities, Error, Fence, Grant, History, Identity, Intent, Key, Kind, LockState,
        Mode as How, Notice, Parting, Refusal, Release, Renewal, Request, Result, Stage, Tether, Token, Ttl, Wake,
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
    /// Sessions that were left blocking in the server: a row lock that nobody waits for any more would be given to them all the same.
    stuck: Vec<Known>,
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
        let (tables, names) = (Tables::new(&options.sql), Names::new(&options.sql.namespace));
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

    fn capabilities(&self) -> &'static Capabilities {
        if self.options.mode == Mode::Row { &ROW } else { &ADVISORY }
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
            self.stuck.push(keeper.session.known());
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

    /// Ends sessions that were left blocking, as their user may. That it fails only leaves them to their own end.
    async fn end_stuck(&mut self) {
        let waits = if self.options.mode == Mode::Row { "info REGEXP '(FOR UPDATE|SHARE MODE)'" } else { "info REGEXP 'GET_LOCK[(]'" };
        // One is forgotten when it was ended: this may be dropped half-way, and called again.
        while let Some(other) = self.stuck.last().cloned() {
            let Ok(mut session) = self.side().await else { return };
            if session.end_other(&other, Some(waits)).await.is_ok() {
                self.side = Some(session);
            }
            self.stuck.retain(|stuck| *stuck != other);
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
            Beginning::Begun(begun) => begun,
            Beginning::Refused(refusal) => return self.turn_away(request, at, refusal).await,
            Beginning::Left => {
                self.tries[at].2.let_go().await?;
                return self.refuse(request, at).await;
            }
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
        let mut batch = self.look_sql(&request.key, &session.server);
        if request.waiting {
            batch += &join(&self.tables, &name, request, false)?;
            batch += &place(&self.tables, &name, request);
        }
        let answers = self.tries[at].2.session.ask(&batch).await?;
        let (holders, _) = read_holders(&answers, 0)?;
        self.tries[at].2.rests = rests(&holders);
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

    /// Extends a hold. With an intent it also reads the mark of a break.
    async fn ask_renew(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>, intent: Option<Intent>) -> Result<Renewal> {
        let Some(at) = self.hold_of(key, token).filter(|at| !self.holds[*at].leaving) else { return Ok(Renewal::NotHeld) };
        let fence = self.holds[at].fence;
        if self.options.mode == Mode::Row {
            // First, since the session's silence is counted from what is asked last.
            let length = ttl.unwrap_or(self.holds[at].ttl);
            let heard = self.tell(at, token, length, intent).await;
            if self.holds[at].keeper.session.is_alive()
                && let Some(mark) = self.holds[at].heed(heard, intent)?
            {
                return Ok(Renewal::Broken(mark));
            }
        }
        let now = match self.holds[at].keeper.renew(None, token, fence, intent).await {
            Ok(Some((now, _))) if self.options.mode == Mode::Row => now,
            Ok(Some((now, heard))) => match self.holds[at].heed(heard, intent)? {
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
            return Ok(Renewal::Kept { expires_in: Some(left) });
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
    async fn tell(&mut self, at: usize, token: &Token, length: Ttl, intent: Option<Intent>) -> Heard {
        let Hold { keeper, fence, .. } = &self.holds[at];
        let touch = keeper.touch(token, *fence, length.get(), intent);
        let patience = (length.get() / 30).clamp(Duration::from_millis(50), Duration::from_secs(1));
        match tokio::time::timeout(patience, self.try_aside(&touch)).await {
            Ok(Ok(answers)) => heard(&answers, 0, intent),
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
            // Its answer was lost with its session: what it wrote is not to be taken for a holder that vanished, nor for a start.
            let _: Result<()> = if parting.end.is_none() {
                self.aside(&self.undoing(key, token, true)).await.map(|_| ())
            } else {
                self.forget(key, token, parting.became).await
            };
            return Ok(Release::NotHeld);
        };
        if !self.holds[at].keeper.session.is_alive() {
            self.holds.swap_remove(at);
            let _: Result<()> = self.forget(key, token, parting.became).await;
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
        let undo = if for_good { include_str!("sql/undo_for_good.sql") } else { include_str!("sql/forget_hold.sql") };
        self.taking_out(undo, key, token, Some(Stage::Undone), "1")
    }

    /// Takes out what was written of a hold that is over with its server, and given back since: the next one need not wait.
    async fn forget(&mut self, key: &Key, token: &Token, became: Option<Stage>) -> Result<()> {
        let session = self.side().await?;
        let gone = format!("NOT {}", Life::of(&session.server).lives);
        self.side = Some(session);
        let forget = self.taking_out(include_str!("sql/forget_hold.sql"), key, token, became, &gone);
        self.aside(&forget).await.map(|_| ())
    }

    fn taking_out(&self, undo: &str, key: &Key, token: &Token, became: Option<Stage>, which: &str) -> String {
        let (name, root, became) = (self.names.of(key), token.hold_text(), starts::became(became));
        let values =
            [("name", Value::Bytes(&name)), ("root", Value::Text(&root)), ("became", Value::Sql(&became)), ("which", Value::Sql(which))];
        let read =
            if self.options.mode == Mode::Row { "\nDELETE FROM :readers WHERE name = :name AND root = :root AND :which;" } else { "" };
        self.tables.fill(&format!("{undo}{read}"), &values)
    }
}

impl Hold {
    /// What a renewal comes to by what was heard of a mark.
    ///
    /// # Errors
    /// Who breaks the hold does not know yet that it is being stopped, and would take it away.
    fn heed(&mut self, heard: Heard, intent: Option<Intent>) -> Result<Option<Break>> {
        match intent {
            Some(Intent::Extend(_)) => {
                self.marked |= heard.mark.is_some();
                Ok(heard.mark)
            }
            Some(Intent::Drain) if self.marked && !heard.noted => {
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
    fn identity(&self) -> Identity {
        let (url, sql) = (self.options.redacted_url(), &self.options.sql);
        Identity::new(self.capabilities(), url.clone(), &[&url, &sql.table, sql.namespace.as_str()])
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        self.ask_acquire(request).await
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        self.await_change(request, at_most).await
    }

    async fn leave_queue(&mut self, request: &Request) -> Result<()> {
        self.ask_abandon(request).await
    }

    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        if let Some(ttl) = intent.ttl() {
            self.capabilities().check_ttl(ttl)?;
        }
        if intent == Intent::Probe { self.look_for(key, token).await } else { self.ask_renew(key, token, intent.ttl(), Some(intent)).await }
    }

    async fn release(&mut self, key: &Key, token: &Token, parting: &Parting) -> Result<Release> {
        self.ask_release(key, token, parting).await
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        match change {
            Amendment::Note(note) => {
                let mut session = self.side().await?;
                let noted = history::note(&mut session, &self.tables, &self.names.of(key), note).await;
                self.side = Some(session);
                noted.map(|()| true)
            }
            Amendment::Warn(fence, level) => {
                let claim = history::claim(&self.tables, self.tables.sessions(), &self.names.of(key), fence, level);
                self.aside(&claim).await.map(|answers| history::is_claimed(&answers))
            }
            Amendment::Mark(fence, mark) => self.put_mark(key, fence, mark).await.map(|found| found.is_some()),
            Amendment::Evict(fence, mark) => self.end_holder(key, fence, mark).await,
        }
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        self.look_at(key).await
    }

    async fn list(&mut self, start: &str) -> Result<Vec<LockState>> {
        self.look_at_all(start).await
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        self.look_back(key).await
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    fn tether(&mut self) -> Option<&mut dyn Tether> {
        Some(self)
    }
}

#[async_trait(?Send)]
impl Tether for Sessions {
    fn lifelines(&self) -> io::Result<Vec<OwnedFd>> {
        self.holds.iter().map(|hold| hold.keeper.session.lifeline()).collect()
    }

    async fn watch(&mut self, key: &Key, token: &Token) {
        match self.hold_of(key, token) {
            Some(at) => self.holds[at].keeper.session.ended().await,
            None => std::future::pending().await,
        }
    }
}
