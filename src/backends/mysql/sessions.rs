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
//!   or the next renewal does, and dlock kills the command. The next holder may have the lock in that instant: the record
//!   of the previous holder makes it wait a moment before it starts anything.
//! - *The server crashes or fails over, and a holder does not notice.* The holder's record names the server that had its session
//!   ([`life`](super::life)): the lock is busy until the holder's lease is over by the server's clock.
//! - *Another mode is used for the same lock.* The lock's row in the table of leases names its mode: other modes are refused.
//! - *A waiter gets the lock while it is frozen.* The server ends that session after ten seconds of silence.
//! - *The reply to a release is lost.* The release removed and remembered its hold in one step: a retry finds nothing to remember.
//! - *The release can't be remembered.* dlock gives the lock back without a history entry.
//! - *A holder vanishes.* Its record stays, and is reported as expired, or as broken if it was marked. The next grant writes it to
//!   the history before it replaces the record, and retries if needed.
//! - *A grant is undone whose answer was lost.* dlock deletes its rows, over its session if that session still answers. If the grant runs
//!   later, the grant finds that its hold was undone, and writes nothing.
//! - *A mark can't be read.* The holder continues, and the breaking client ends its session when its lease is over. dlock notes a
//!   mark as seen before it extends the hold for the drain.
//! - *A hold is evicted that just ended.* Its session keeps no other lock, ever: what it does for its client is asked again.
//! - *Readers come one after the other while a writer waits.* The server lets no session share a row for which a writer waits, not
//!   even one that would not wait. A wait ends every few seconds and begins again: a reader that comes in just that instant gets in.
//! - *A reader vanishes while others hold the lock.* Its row counts while its session has its lamp ([`readers`](super::readers)): the
//!   next holder of the row writes it to the history. A writer has the row alone, and knows that all readers are gone.
//! - *dlock is killed.* The guardian has the socket as well, and closes it when the command's tree is dead.

mod holding;
mod taking;

use std::{io, os::fd::OwnedFd, time::Duration};

use async_trait::async_trait;

use super::{
    connection::{Answer, Connection, Known},
    history,
    keeper::{Heard, Keeper},
    names::{Tables, advisory},
    options::{Mode, Options},
};
use crate::{
    backends::sql::Names,
    lock::{
        Amendment, Attempt, Backend, Break, Capabilities, Error, Fence, Grant, History, Identity, Intent, Key, Kind, LockState, Notice,
        Release, ReleaseInfo, Renewal, Request, Result, Tether, Token, Ttl, Wake, Which,
    },
};

pub(super) const ROW: Capabilities = Capabilities {
    shared: true,
    detached: false,
    reentrant: false,
    history: true,
    run_policy: true,
    breakable: true,
    ..Capabilities::usual("mysql mode=row")
};
pub(super) const ADVISORY: Capabilities = Capabilities { shared: false, backend: "mysql mode=advisory", ..ROW };

/// What a vanished holder may need to notice that its session is over, and to stop its command.
const DRAIN_DELAY: Duration = Duration::from_millis(500);

/// Locks that sessions keep.
pub struct Sessions {
    pub(super) options: Options,
    pub(super) tables: Tables,
    pub(super) names: Names,
    holds: Vec<Hold>,
    /// The requests that ask or wait, each with its own session.
    tries: Vec<(Key, Token, Keeper)>,
    /// Sessions that were left blocking in the server: a row lock that they no longer wait for would be given to them all the same.
    stuck: Vec<Known>,
    /// For all that is not a lock.
    pub(super) side: Option<Connection>,
    /// Who may stand in a queue because of us.
    queued: Vec<(Key, Token)>,
    notices: Vec<Notice>,
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
    /// The lock is being given back and must not be relied on.
    leaving: bool,
    /// The hold is being broken.
    marked: bool,
}

impl Sessions {
    /// Returns a backend for `options`, without I/O.
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

    /// Returns the argument of `GET_LOCK` for a key, as SQL.
    pub(super) fn lock_of(&self, key: &Key) -> String {
        advisory(&self.options, key, &self.names.of(key))
    }

    /// Takes out the session that asks for this request, if there is one that may still answer.
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

    /// As [`Sessions::aside`], with the answers up to a denial.
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
        if intent == Intent::Probe { self.look_for(key, token).await } else { self.ask_renew(key, token, intent.ttl(), Some(intent)).await }
    }

    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        self.ask_release(key, token, info).await
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
                let claim = history::claim(&self.tables, &self.names.of(key), fence, level);
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

    async fn known(&mut self, start: &str, which: Which) -> Result<Vec<Key>> {
        self.known_keys(start, which).await
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
