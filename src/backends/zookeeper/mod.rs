//! A ZooKeeper ensemble.
//!
//! A lock is a directory of ephemeral nodes that the server numbers, as in Curator's mutex. The
//! node with the smallest number holds the lock, and each other one watches the preceding node.
//! Each hold has a session of its own, whose timeout is the hold's lease. So the server negotiates
//! the lease.
//!
//! The worst interleavings, and how dlock handles them:
//! - **The answer to a create is lost.** The node may be in the queue, or get there later. Its name
//!   has an id whose origin only this process knows. dlock resumes the session, brings the server
//!   up to date, and looks for the node by that id and by its session. A server that gets the
//!   request late refuses it, since the session has moved on.
//! - **A grant or its confirmation is lost.** Marking the grant is one transaction with a check of
//!   our node, and may be repeated.
//! - **The session ends during the wait.** Its node is gone too. The server tells the next attempt,
//!   which joins the queue at its end.
//! - **A follower that is cut off answers reads and pings** long after the rest has given the lock
//!   to another holder. So no read and no ping counts as a renewal. A renewal is a write that a
//!   majority confirmed, in one transaction with a check of our node. A contender reads that it is
//!   first, and such a write confirms that too.
//! - **A node is deleted, or a session ended, from outside** while its holder is well. The holder
//!   watches its node and stops the command, which takes a moment. Each grant leaves a mark next to
//!   the lock that only a clean release removes. The successor of a holder whose mark remains waits
//!   half a second before it starts anything. Foreign holders leave no mark, and would not stop
//!   either.
//! - **The directory is a container** and may be removed between two steps. dlock makes it again.
//! - **The sequence numbers restart** with a directory, and overflow. So the fence is the number of
//!   the ensemble's change that created our node. An ensemble that lost all its data counts from
//!   the start.
//! - **A server's clock steps.** Sessions use ticks, and only displayed times use its clock.

mod acquire;
mod alive;
mod breaking;
mod contender;
mod enter;
pub mod examine;
mod failure;
mod history;
mod hold;
mod inspect;
mod join;
mod judge;
mod keep;
mod names;
mod options;
mod permits;
mod reading;
mod record;
mod relay;
mod release;
mod runs;
mod send;
mod session;
pub mod sharing;
pub(super) mod store;
mod wire;

use std::time::Duration;

use async_trait::async_trait;

pub use self::options::ZooKeeperOptions;
use self::{
    acquire::negotiate,
    failure::Fault,
    hold::ZkHold,
    names::ZkNames,
    session::{Ensemble, LONGEST, Purpose, VISIT, ZkSession},
};
use crate::lock::{
    Amendment, Attempt, Backend, Capabilities, Entry, History, Identity, Intent, Key, LockState,
    Pace, Progress, Release, ReleaseInfo, Renewal, Request, Result, Token, Wake, Which,
};

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    permits: true,
    // A waiter's position follows from its arrival, and no other waiter passes it.
    fair: true,
    always_fair: true,
    history: true,
    run_policy: true,
    breakable: true,
    ttl_max: LONGEST,
    adjustable_ttl: false,
    // A follower reports its sessions to the leader, whose clock counts, only every half tick. A
    // session may last as little as two ticks.
    pace: Pace {
        start: 40,
        term: 50,
        kill: 66,
    },
    ..Capabilities::usual("zookeeper")
};

/// Locks in one ZooKeeper ensemble.
pub struct ZooKeeper {
    ensemble: Ensemble,
    /// The requested holds that were not given back yet, each with its session. They are noted
    /// before anything is sent.
    holds: Vec<ZkHold>,
    /// The session for repeated reads of the time.
    visiting: Option<ZkSession>,
}

impl ZooKeeper {
    /// Creates a backend for `options`, without I/O.
    pub fn new(options: ZooKeeperOptions) -> Self {
        Self {
            ensemble: Ensemble::new(options),
            holds: Vec::new(),
            visiting: None,
        }
    }

    fn options(&self) -> &ZooKeeperOptions {
        &self.ensemble.options
    }

    fn position(&self, key: &Key, token: &Token) -> Option<usize> {
        self.holds.iter().position(|hold| hold.is(key, token))
    }

    /// Returns the hold of a request, as [`ZooKeeper::hold_of`] does, or a new one.
    async fn hold_or_new(&mut self, request: &Request, root: bool) -> Result<usize> {
        if let Some(at) = self.hold_of(&request.key, &request.token).await? {
            return Ok(at);
        }
        self.holds.push(ZkHold::new(
            &self.ensemble,
            &request.key,
            &request.token,
            root,
        ));
        Ok(self.holds.len() - 1)
    }

    /// Returns the hold of this token: ours, or one whose session the token hands over. `None` if
    /// there is none.
    async fn hold_of(&mut self, key: &Key, token: &Token) -> Result<Option<usize>> {
        if let Some(at) = self.position(key, token) {
            return Ok(Some(at));
        }
        let Some(session) = token.session else {
            return Ok(None);
        };
        let mut hold = ZkHold::new(&self.ensemble, key, token, true);
        match hold.resume_hold(session).await {
            Ok(true) => {
                self.holds.push(hold);
                Ok(Some(self.holds.len() - 1))
            }
            Ok(false) | Err(Fault::Expired) => Ok(None),
            Err(Fault::Error(error)) => Err(error),
        }
    }

    /// Opens a session for reading only.
    async fn visit(&self) -> Result<ZkSession> {
        self.options().check()?;
        ZkSession::open(&self.ensemble, VISIT, Purpose::Visit).await
    }

    /// Opens a session for reading one lock.
    async fn visit_lock(&self, key: &Key) -> Result<(ZkSession, ZkNames)> {
        Ok((self.visit().await?, self.ensemble.names(key)))
    }
}

#[async_trait(?Send)]
impl Backend for ZooKeeper {
    fn identity(&self) -> Identity {
        // The same servers in another order are the same ensemble.
        let mut options = self.options().clone();
        options.hosts.sort();
        let parts = [&*options.redacted_url(), options.namespace.as_str()];
        Identity {
            has_other_servers: options.hosts.len() > 1,
            ..Identity::new(&CAPABILITIES, self.options().redacted_url(), &parts)
        }
    }

    async fn connect(&mut self, request: &Request) -> Result<()> {
        CAPABILITIES.check(request)?;
        self.options().check()?;
        let at = self
            .hold_or_new(request, request.entry == Entry::Fresh)
            .await?;
        let hold = &mut self.holds[at];
        if hold.session.is_none() {
            hold.session = Some(negotiate(&self.ensemble, request).await?);
        }
        Ok(())
    }

    fn disconnect(&mut self) {
        self.visiting = None;
        for hold in self
            .holds
            .extract_if(.., |hold| hold.place.is_none() && !hold.maybe_placed)
        {
            if let Some(session) = hold.session {
                session.close();
            }
        }
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        let outcome = self.ask_acquire(request).await;
        if !matches!(outcome, Ok(Attempt::Granted(_))) {
            self.ensemble.await_ended_sessions().await;
        }
        outcome
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        self.await_change(request, at_most).await
    }

    async fn leave_queue(&mut self, request: &Request) -> Result<()> {
        self.ensemble
            .clone()
            .then_await_ended_sessions(self.remove_from_queue(request))
            .await
    }

    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        match intent {
            Intent::Probe => {
                self.ensemble
                    .clone()
                    .then_await_ended_sessions(self.look_for(key, token))
                    .await
            }
            Intent::Extend(_) | Intent::Drain => {
                self.ensemble
                    .clone()
                    .then_await_ended_sessions(self.ask_renew(key, token, intent))
                    .await
            }
        }
    }

    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        self.ensemble
            .clone()
            .then_await_ended_sessions(self.ask_release(key, token, info))
            .await
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        let outcome = match change {
            Amendment::Note(note) => self.take_note(key, note).await.map(|()| true),
            Amendment::Warn(fence, level) => {
                self.ask_amend(key, fence, |hold| hold.warned(level)).await
            }
            Amendment::Mark(fence, mark) => {
                self.ask_amend(key, fence, |hold| Some(hold.marked(mark)))
                    .await
            }
            Amendment::Evict(fence, mark) => self.ask_evict(key, fence, mark).await,
        };
        self.ensemble.await_ended_sessions().await;
        outcome
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        self.ensemble
            .clone()
            .then_await_ended_sessions(self.read_lock(key))
            .await
    }

    async fn list(&mut self, start: &str, progress: &Progress) -> Result<Vec<LockState>> {
        self.ensemble
            .clone()
            .then_await_ended_sessions(self.read_locks(start, progress))
            .await
    }

    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>> {
        self.ensemble
            .clone()
            .then_await_ended_sessions(self.known_keys(start, which, progress))
            .await
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        self.ensemble
            .clone()
            .then_await_ended_sessions(self.read_history(key))
            .await
    }

    async fn watch(&mut self, key: &Key, token: &Token) {
        self.await_trouble(key, token).await;
    }

    async fn cut(&mut self, key: &Key, token: &Token) -> bool {
        self.end_session_of(key, token).await
    }
}
