//! A ZooKeeper ensemble.
//!
//! A lock is a directory of ephemeral nodes that the servers number, as Curator's mutex has it: whoever has the smallest
//! number holds the lock, and everybody else watches the one before. Each hold has a session of its own, whose timeout is
//! the hold's lease; so the lease is what the server negotiated.
//!
//! The worst interleavings, and what is done about them:
//! - **The answer to a create is lost.** The node may stand in the line, or get there later. Its name has an id that only
//!   we know the origin of: the session is taken up again, the server brought up to date, and the node looked for by that id
//!   and by its session. A server that gets the request late refuses it, since the session has moved on.
//! - **A grant or its confirmation is lost.** Marking the grant is one transaction with a check of our node, and can be asked
//!   for again.
//! - **The session ends while we wait.** The node went with it. The next attempt learns of that from the server and joins
//!   the line anew, at its end.
//! - **A follower that is cut off answers reads and pings** long after the rest has given the lock to somebody else. So no
//!   read and no ping counts as a renewal: that is a write which a majority confirmed, in one transaction with a check of our
//!   node. Becoming the first in line is known from a read, and is confirmed by such a write too.
//! - **A node is deleted, or a session ended, from outside** while its holder is well: the holder watches its node and stops
//!   the command, which takes a moment. Each grant leaves a mark beside the lock that only a clean release removes; who
//!   follows a holder that left its mark behind waits half a second before it starts anything. Foreign holders leave
//!   none, and would not stop their work either.
//! - **The directory is a container** and may be removed between two steps: it is made again.
//! - **The sequence numbers start anew** with a directory, and overflow: so the fence is the number of the ensemble's change
//!   that made our node. An ensemble that lost all its data counts from the start.
//! - **A server's clock steps:** sessions go by ticks, and only what is shown goes by its clock.

mod acquire;
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
mod session;
mod starts;
mod wire;

use std::time::Duration;

use async_trait::async_trait;

pub use self::options::Options;
use self::{
    hold::Hold,
    names::Names,
    session::{Ensemble, LONGEST, Session},
};
use crate::lock::{
    Attempt, Backend, Break, Capabilities, Extension, Fence, History, Holding, Init, Key, LockState, Marking, Note, Pace, Parting, Release,
    Renewal, Request, Result, Token, Wake, fingerprint,
};

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    permits: true,
    // Who waits has a place in the order of the coming, which nobody can go past.
    fair: true,
    history: true,
    terms: true,
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
    visit: Option<Session>,
}

impl ZooKeeper {
    /// A backend for `options`. Without I/O.
    pub fn new(options: Options) -> Self {
        Self { ensemble: Ensemble::new(options), holds: Vec::new(), visit: None }
    }

    fn options(&self) -> &Options {
        &self.ensemble.options
    }

    fn names(&self, key: &Key) -> Names {
        Names::new(&self.options().chroot, &self.options().namespace, key)
    }

    /// Says which question failed, where and about which lock.
    fn about<T>(&self, outcome: Result<T>, operation: &'static str, key: Option<&Key>) -> Result<T> {
        outcome.map_err(|error| {
            let error = error.during(operation).backend(self.options().redacted_url());
            match key {
                Some(key) => error.key(key),
                None => error,
            }
        })
    }
}

#[async_trait(?Send)]
impl Backend for ZooKeeper {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn describe(&self) -> String {
        self.options().redacted_url()
    }

    fn fingerprint(&self) -> u64 {
        // The same servers in another order are the same ensemble.
        let mut options = self.options().clone();
        options.hosts.sort();
        fingerprint(&[&options.redacted_url(), options.namespace.as_str()])
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        let outcome = self.ask_acquire(request).await;
        if !matches!(outcome, Ok(Attempt::Granted(_))) {
            self.ensemble.tidy().await;
        }
        self.about(outcome, "acquire", Some(&request.key))
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        let outcome = self.await_turn(request, at_most).await;
        self.about(outcome, "wait", Some(&request.key))
    }

    async fn abandon(&mut self, request: &Request) -> Result<()> {
        let outcome = self.leave_line(request).await;
        self.ensemble.tidy().await;
        self.about(outcome, "abandon", Some(&request.key))
    }

    async fn renew(&mut self, key: &Key, token: &Token, extension: Extension) -> Result<Renewal> {
        let outcome = self.ask_renew(key, token, extension).await;
        self.ensemble.tidy().await;
        self.about(outcome, "renew", Some(key))
    }

    async fn verify(&mut self, key: &Key, token: &Token) -> Result<Holding> {
        let outcome = self.look_for(key, token).await;
        self.ensemble.tidy().await;
        self.about(outcome, "verify", Some(key))
    }

    async fn release(&mut self, key: &Key, token: &Token, parting: &Parting) -> Result<Release> {
        let outcome = self.ask_release(key, token, parting).await;
        self.ensemble.tidy().await;
        self.about(outcome, "release", Some(key))
    }

    async fn watch(&mut self, key: &Key, token: &Token) {
        self.await_trouble(key, token).await;
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        let outcome = self.read_lock(key).await;
        self.ensemble.tidy().await;
        self.about(outcome, "inspect", Some(key))
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        let outcome = self.read_history(key).await;
        self.ensemble.tidy().await;
        self.about(outcome, "history", Some(key))
    }

    async fn note(&mut self, key: &Key, note: &Note) -> Result<()> {
        let outcome = self.take_note(key, note).await;
        self.ensemble.tidy().await;
        self.about(outcome, "note", Some(key))
    }

    async fn claim_warning(&mut self, key: &Key, fence: Fence, level: u32) -> Result<bool> {
        let outcome = self.ask_warning(key, fence, level).await;
        self.ensemble.tidy().await;
        self.about(outcome, "note", Some(key))
    }

    async fn mark(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        let outcome = self.ask_mark(key, fence, mark).await;
        self.ensemble.tidy().await;
        self.about(outcome, "break", Some(key))
    }

    async fn evict(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        let outcome = self.ask_evict(key, fence, mark).await;
        self.ensemble.tidy().await;
        self.about(outcome, "break", Some(key))
    }

    async fn list(&mut self, start: &str) -> Result<Vec<LockState>> {
        let outcome = self.read_locks(start).await;
        self.ensemble.tidy().await;
        self.about(outcome, "list", None)
    }

    async fn init(&mut self) -> Result<Init> {
        Ok(Init::NotNeeded)
    }

    async fn collect(&mut self, unused_for: Duration) -> Result<u64> {
        let outcome = self.remove_records(unused_for).await;
        self.ensemble.tidy().await;
        self.about(outcome, "gc", None)
    }
}
