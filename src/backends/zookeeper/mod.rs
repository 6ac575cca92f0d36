//! A ZooKeeper ensemble.
//!
//! A lock is a directory of ephemeral nodes that the servers number, as Curator's mutex has it: the node with the smallest
//! number holds the lock, and each other one watches the one before. Each hold has a session of its own, whose timeout is
//! the hold's lease; so the lease is what the server negotiated.
//!
//! The worst interleavings, and what is done about them:
//! - **The answer to a create is lost.** The node may stand in the queue, or get there later. Its name has an id that only
//!   we know the origin of: the session is taken up again, the server brought up to date, and the node looked for by that id
//!   and by its session. A server that gets the request late refuses it, since the session has moved on.
//! - **A grant or its confirmation is lost.** Marking the grant is one transaction with a check of our node, and can be asked
//!   for again.
//! - **The session ends while we wait.** The node went with it. The next attempt learns of that from the server and joins
//!   the queue anew, at its end.
//! - **A follower that is cut off answers reads and pings** long after the rest has given the lock to another holder. So no
//!   read and no ping counts as a renewal: that is a write which a majority confirmed, in one transaction with a check of our
//!   node. Becoming the first contender is known from a read, and is confirmed by such a write too.
//! - **A node is deleted, or a session ended, from outside** while its holder is well: the holder watches its node and stops
//!   the command, which takes a moment. Each grant leaves a mark next to the lock that only a clean release removes; the successor
//!   of a holder that left its mark behind waits half a second before it starts anything. Foreign holders leave
//!   none, and would not stop their work either.
//! - **The directory is a container** and may be removed between two steps: it is made again.
//! - **The sequence numbers start anew** with a directory, and overflow: so the fence is the number of the ensemble's change
//!   that made our node. An ensemble that lost all its data counts from the start.
//! - **A server's clock steps:** sessions use ticks, and only what is shown uses its clock.

mod acquire;
mod alive;
mod breaking;
mod contender;
mod enter;
pub mod examine;
mod failure;
mod history;
mod hold;
mod join;
mod keep;
mod look;
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
mod wire;

use std::time::Duration;

use async_trait::async_trait;

pub use self::options::Options;
use self::{
    hold::Hold,
    names::Names,
    session::{Ensemble, LONGEST, Purpose, Session, VISIT},
};
use crate::lock::{
    Amendment, Attempt, Backend, Capabilities, History, Identity, Intent, Key, LockState, Pace, Release, ReleaseInfo, Renewal, Request,
    Result, Tether, Token, Wake, Which,
};

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    permits: true,
    // A waiter has a place in order of arrival, and no other one passes it.
    fair: true,
    always_fair: true,
    history: true,
    run_policy: true,
    breakable: true,
    ttl_max: LONGEST,
    adjustable_ttl: false,
    // A follower reports what it has heard of a session to the leader, whose clock counts, only every half tick; and a
    // session may last as little as two ticks.
    pace: Pace { start: 40, term: 50, kill: 66 },
    ..Capabilities::usual("zookeeper")
};

/// Locks in one ZooKeeper ensemble.
pub struct ZooKeeper {
    ensemble: Ensemble,
    /// What was asked for and not given back yet, each with its session. Noted before anything is sent.
    holds: Vec<Hold>,
    /// For asking the time again and again.
    visiting: Option<Session>,
}

impl ZooKeeper {
    /// A backend for `options`. Without I/O.
    pub fn new(options: Options) -> Self {
        Self { ensemble: Ensemble::new(options), holds: Vec::new(), visiting: None }
    }

    fn options(&self) -> &Options {
        &self.ensemble.options
    }

    /// A session that only looks.
    async fn visit(&self) -> Result<Session> {
        self.options().check()?;
        Session::open(&self.ensemble, VISIT, Purpose::Visit).await
    }

    /// The same, for one lock.
    async fn visit_lock(&self, key: &Key) -> Result<(Session, Names)> {
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
        Identity { has_other_servers: options.hosts.len() > 1, ..Identity::new(&CAPABILITIES, self.options().redacted_url(), &parts) }
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        let outcome = self.ask_acquire(request).await;
        if !matches!(outcome, Ok(Attempt::Granted(_))) {
            self.ensemble.tidy().await;
        }
        outcome
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        self.await_turn(request, at_most).await
    }

    async fn leave_queue(&mut self, request: &Request) -> Result<()> {
        self.ensemble.clone().tidied(self.leave_line(request)).await
    }

    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        match intent {
            Intent::Probe => self.ensemble.clone().tidied(self.look_for(key, token)).await,
            Intent::Extend(_) | Intent::Drain => self.ensemble.clone().tidied(self.ask_renew(key, token, intent)).await,
        }
    }

    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        self.ensemble.clone().tidied(self.ask_release(key, token, info)).await
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        let outcome = match change {
            Amendment::Note(note) => self.take_note(key, note).await.map(|()| true),
            Amendment::Warn(fence, level) => self.ask_amend(key, fence, |hold| hold.warned(level)).await,
            Amendment::Mark(fence, mark) => self.ask_amend(key, fence, |hold| Some(hold.marked(mark))).await,
            Amendment::Evict(fence, mark) => self.ask_evict(key, fence, mark).await,
        };
        self.ensemble.tidy().await;
        outcome
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        self.ensemble.clone().tidied(self.read_lock(key)).await
    }

    async fn list(&mut self, start: &str) -> Result<Vec<LockState>> {
        self.ensemble.clone().tidied(self.read_locks(start)).await
    }

    async fn known(&mut self, start: &str, which: Which) -> Result<Vec<Key>> {
        self.ensemble.clone().tidied(self.known_keys(start, which)).await
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        self.ensemble.clone().tidied(self.read_history(key)).await
    }

    fn tether(&mut self) -> Option<&mut dyn Tether> {
        Some(self)
    }
}

#[async_trait(?Send)]
impl Tether for ZooKeeper {
    async fn watch(&mut self, key: &Key, token: &Token) {
        self.await_trouble(key, token).await;
    }

    async fn cut(&mut self, key: &Key, token: &Token) -> bool {
        self.end_session_of(key, token).await
    }
}
