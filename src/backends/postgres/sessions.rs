//! `mode=row` and `mode=advisory`: a session has the lock, and the lock ends with the session.
//!
//! Another process can't take over or enter a hold. dlock checks a hold over the hold's own session only:
//! an error that ended the session ended the hold. dlock counts and commits the fence once it has the lock, before
//! it reports the grant, over a second session if the first is in a transaction.
//!
//! Worst interleavings, and why they are harmless:
//! - *The reply to a grant is lost.* dlock asks the same session again, which has the lock already. After two unanswered
//!   requests dlock leaves the session to the server, which ends the session after the TTL, and dlock asks over another session.
//! - *The holder's fence is counted and the holder dies.* The fence is skipped.
//! - *The session is ended by an administrator, a restart or the idle timeout.* The socket says so at once ([`Tether::watch`]),
//!   or the next renewal does, and dlock kills the command. The next holder may have the lock in that instant: the row
//!   of the previous holder makes it wait a moment before it starts anything.
//! - *The server crashes or fails over, and a holder does not notice.* The holder's row names the server that had
//!   its session: the lock is busy until the holder's lease is over by the server's clock.
//! - *Another mode is used for the same lock.* The lock's row in the table of leases names its mode: other modes are refused.
//! - *A waiter gets the lock while it is frozen.* The server ends that session after five seconds of silence.
//! - *Readers come one after the other while a writer waits.* The server checks for waiting writers before it lets a reader in, in `mode=row` by an
//!   advisory lock next to the row. A wait ends every few seconds and begins again: a reader that comes in just that instant gets in.
//! - *dlock is killed.* The guardian has the socket as well, and closes it when the command's tree is dead.

mod holding;
mod waiting;

use std::{io, os::fd::OwnedFd, time::Duration};

use super::{
    checks,
    connection::{Known, Session},
    failure,
    keeper::{Keeper, Target},
    names::Tables,
    options::{Mode, Options},
    session_look::{holders, rests},
    session_starts::Beginning,
    statement::Value,
    table::LockTable,
};
use crate::{
    backends::sql::{NEAR, Names, looks_at_the_end, ms},
    lock::{
        Amendment, Attempt, Backend, Busy, Capabilities, Denial, Error, Fence, Grant, History, Identity, Intent, Key, Kind, LockState,
        Notice, Release, ReleaseInfo, Renewal, Request, Result, Tether, Token, Ttl, Wake, Which,
    },
};
use async_trait::async_trait;

pub(super) const ROW: Capabilities = Capabilities {
    shared: true,
    detached: false,
    reentrant: false,
    history: true,
    run_policy: true,
    breakable: true,
    // The server's timeouts are milliseconds in 31 bits.
    ttl_max: Duration::from_secs(24 * 24 * 3600),
    ..Capabilities::usual("postgres mode=row")
};
pub(super) const ADVISORY: Capabilities = Capabilities { backend: "postgres mode=advisory", ..ROW };

/// Locks that sessions keep.
pub struct Sessions {
    pub(super) options: Options,
    pub(super) tables: Tables,
    pub(super) names: Names,
    holds: Vec<Hold>,
    /// Requests that try or wait, each with its own session.
    pub(super) tries: Vec<(Key, Token, Keeper)>,
    /// For all that is not a lock.
    pub(super) side: Option<Session>,
    /// Side sessions that count a fence, and did not answer.
    pub(super) counting: Vec<Known>,
    /// The tokens that may stand in a queue because of us.
    queued: Vec<(Key, Token)>,
    /// Nothing between us and the server shares its sessions.
    direct: bool,
    pub(super) notices: Vec<Notice>,
}

/// A lock that one of this process's sessions has.
struct Hold {
    key: Key,
    token: Token,
    keeper: Keeper,
    fence: Fence,
    ttl: Ttl,
    /// The end of the lease by the server's clock, in µs.
    ends: i64,
    /// Later runs depend on its outcome.
    matters: bool,
    /// The lock is being given back and must not be relied on.
    leaving: bool,
}

impl Sessions {
    /// Returns a backend for `options`, without I/O.
    pub fn new(options: Options) -> Self {
        let (tables, names) = (Tables::new(&options.sql.table), Names::new(&options.sql.namespace));
        Self {
            options,
            tables,
            names,
            holds: Vec::new(),
            tries: Vec::new(),
            side: None,
            counting: Vec::new(),
            queued: Vec::new(),
            direct: false,
            notices: Vec::new(),
        }
    }

    fn capabilities(&self) -> &'static Capabilities {
        if self.options.mode == Mode::Row { &ROW } else { &ADVISORY }
    }

    fn hold_of(&self, key: &Key, token: &Token) -> Option<usize> {
        self.holds.iter().position(|hold| hold.key == *key && hold.token == *token)
    }

    fn try_of(&self, key: &Key, token: &Token) -> Option<usize> {
        self.tries.iter().position(|(of, who, _)| of == key && who == token)
    }

    /// Takes out the session that asks for this request, if there is one that may still answer.
    async fn take_try(&mut self, key: &Key, token: &Token) -> Option<Keeper> {
        let at = self.try_of(key, token)?;
        self.end_blocked(at).await;
        let (_, _, keeper) = self.tries.swap_remove(at);
        (keeper.session.is_alive() && keeper.unanswered < 2 && !keeper.blocked).then_some(keeper)
    }

    /// Ends a session that was left blocking in the server: otherwise the lock could be granted to a session without a client. If it is dropped half-way,
    /// call it again.
    async fn end_blocked(&mut self, at: usize) {
        let keeper = &self.tries[at].2;
        if keeper.blocked && keeper.session.is_alive() {
            let other = keeper.session.known();
            // If it can't be asked for, the server finds out by itself, after the session is dropped.
            let _: Result<()> = self.aside(async |table| table.session.end_other(&other).await).await;
        }
    }

    pub(super) async fn side(&mut self) -> Result<Session> {
        match self.side.take().filter(Session::is_open) {
            Some(session) => Ok(session),
            None => Session::open(&self.options.sql).await,
        }
    }

    pub(super) async fn aside<T>(&mut self, question: impl AsyncFnOnce(&mut LockTable<'_>) -> Result<T>) -> Result<T> {
        let mut session = self.side().await?;
        let answer = question(&mut LockTable::over(&mut session, &self.tables)).await;
        self.side = Some(session);
        answer
    }

    /// As [`Sessions::aside`], of a question that only reads: a standby can answer it, too.
    pub(super) async fn look<T>(&mut self, question: impl AsyncFn(&mut LockTable<'_>) -> Result<T>) -> Result<T> {
        let answer = self.aside(&question).await;
        if !answer.as_ref().is_err_and(failure::is_in_recovery) {
            return answer;
        }
        self.aside(async |table| {
            let tables = table.tables.on_standby();
            question(&mut LockTable::over(table.session, &tables)).await
        })
        .await
    }

    /// The session that is to have this hold, in its place among the tries, so that a dropped question can be asked again.
    async fn keeper(&mut self, request: &Request) -> Result<usize> {
        let keeper = if let Some(keeper) = self.take_try(&request.key, &request.token).await {
            keeper
        } else {
            let target = Target { name: self.names.of(&request.key), how: request.mode };
            let mut keeper = Keeper::open(&self.options, &self.tables, target).await?;
            if !self.direct && checks::is_pooled(&mut keeper.session, &self.options).await? {
                return Err(Error::new(Kind::Config, "a pooler shares its sessions among clients, which ends the locks that they have")
                    .hint("name the server itself in the URL, or a pool in session mode; ?mode=lease works with any"));
            }
            self.direct = true;
            keeper
        };
        self.tries.push((request.key.clone(), request.token, keeper));
        Ok(self.tries.len() - 1)
    }

    async fn ask_acquire(&mut self, request: &Request) -> Result<Attempt> {
        self.capabilities().check(request)?;
        if let Some(at) = self.hold_of(&request.key, &request.token) {
            let ttl = self.holds[at].ttl;
            return Ok(match self.ask_renew(&request.key, &request.token, Some(request.ttl).into()).await? {
                Renewal::NotHeld => Attempt::Busy(Busy { notifies: true, transient: true, ..Busy::default() }),
                _ => Attempt::Granted(grant(self.hold_of(&request.key, &request.token).map_or(Fence(0), |at| self.holds[at].fence), ttl)),
            });
        }
        if request.waiting && !self.is_queued(request) {
            self.queued.push((request.key.clone(), request.token));
        }
        let at = self.keeper(request).await?;
        let keeper = &mut self.tries[at].2;
        // What was waited for is there, in a session that says so if it is over.
        let ours = keeper.has || keeper.attempt(request.ttl).await? || keeper.make_row().await? && keeper.attempt(request.ttl).await?;
        if !ours {
            return self.refuse(request, at).await;
        }
        let begun = self.begin(request, at).await;
        if begun.as_ref().is_err_and(|error| !error.is_transient()) {
            // The request will not be repeated: the session would keep the lock for nothing.
            drop(self.tries.swap_remove(at));
        }
        let (fence, now, drain_delay) = match begun? {
            Beginning::Begun(begun) => begun,
            Beginning::Denied(denial) => return self.turn_away(request, at, denial).await,
            Beginning::Left => {
                self.tries[at].2.give_back().await?;
                self.tries[at].2.found = None;
                return self.refuse(request, at).await;
            }
        };
        self.queued.retain(|(key, token)| *key != request.key || *token != request.token);
        let (key, token, keeper) = self.tries.swap_remove(at);
        self.holds.push(Hold {
            key,
            token,
            keeper,
            fence,
            ttl: request.ttl,
            matters: request.run_policy.as_ref().is_some_and(|run_policy| run_policy.once.is_some()),
            ends: now.saturating_add(ms(request.ttl).saturating_mul(1000)),
            leaving: false,
        });
        Ok(Attempt::Granted(Grant { drain_delay, ..grant(fence, request.ttl) }))
    }

    /// Gives back a lock whose grant an earlier run denies.
    async fn turn_away(&mut self, request: &Request, at: usize, denial: Box<Denial>) -> Result<Attempt> {
        self.tries[at].2.give_back().await?;
        if !request.waiting {
            let (_, _, keeper) = self.tries.swap_remove(at);
            self.side.get_or_insert(keeper.session);
        }
        Ok(Attempt::Denied(denial))
    }

    /// Reports the holders. The session stays for a waiter.
    async fn refuse(&mut self, request: &Request, at: usize) -> Result<Attempt> {
        let look = self.look_sql();
        let name = self.names.of(&request.key);
        let keeper = &mut self.tries[at].2;
        let mut position = None;
        if request.waiting {
            position = Some(LockTable::over(&mut keeper.session, &self.tables).join_queue(&name, request).await?);
        }
        let near = position.is_none_or(|place| place <= NEAR);
        if near || keeper.found.is_none() {
            // To answer, the server lists every waiter: a waiter far behind looks once.
            let rows = keeper.session.query(&look, &[Value::Text(&name)]).await?;
            keeper.rests = rests(&rows)?;
            keeper.found = Some(holders(&rows)?.0);
        }
        let holders = keeper.found.clone().unwrap_or_default();
        if position.is_none() {
            let (_, _, keeper) = self.tries.swap_remove(at);
            self.side.get_or_insert(keeper.session);
        } else if near && self.options.mode == Mode::Row && self.side.is_none() {
            // When the turn comes, the fence is counted over it: connecting then would keep the lock idle. It can be done later.
            self.side = Session::open(&self.options.sql).await.ok();
        }
        Ok(Attempt::Busy(Busy {
            expires_in: holders.iter().filter_map(|holder| holder.expires_in).max().filter(|_| looks_at_the_end(position)),
            transient: holders.is_empty(),
            holders,
            notifies: true,
            position,
        }))
    }
}

/// Waiting is what a backend's `wait` is for.
#[allow(clippy::disallowed_methods)]
async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}

fn grant(fence: Fence, ttl: Ttl) -> Grant {
    Grant { fence, ttl, holds: 1, drain_delay: Duration::ZERO, session: None, permit: None }
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
        if intent == Intent::Probe { self.look_for(key, token).await } else { self.ask_renew(key, token, intent).await }
    }

    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        self.ask_release(key, token, info).await
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        match change {
            Amendment::Note(note) => self.remember(key, note).await.map(|()| true),
            Amendment::Warn(fence, level) => self.claim(key, fence, level).await,
            Amendment::Mark(fence, mark) => self.mark_hold(key, fence, mark).await,
            Amendment::Evict(fence, mark) => self.evict_hold(key, fence, mark).await,
        }
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        self.look_at(key).await
    }

    async fn list(&mut self, start: &str) -> Result<Vec<LockState>> {
        self.look_at_all(start).await
    }

    async fn known(&mut self, start: &str, which: Which) -> Result<Vec<Key>> {
        self.known_keys(start, which).await
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        self.recall(key).await
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
            Some(at) => self.holds[at].keeper.session.unasked().ended().await,
            None => std::future::pending().await,
        }
    }
}
