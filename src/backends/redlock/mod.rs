//! N independent Redis servers; a majority decides.
//!
//! On each node a lock is a string, as in any Redlock library (`SET name value NX PX ttl`): those
//! libraries and dlock exclude each other. A node's own atomic steps are scripts. All nodes are
//! asked at the same time.
//!
//! # The two phases
//! 1. Every node that is free sets the string `<owner>:<attempt>` and raises its counter to c =
//!    max(counter + 1, its time in µs).
//! 2. With a majority of counts, t is the highest of them. Each *counted* node that still has this
//!    very attempt with this very c raises its counter to t if it is lower. With a majority of such
//!    commits, t is the fence.
//!
//! **Why fences rise.** Two fences A and B were each committed by a majority, so some node n
//! committed both. On n a commit proves that the attempt owned n without a break since its count:
//! an attempt takes only a free node, and its id is never sent twice as phase 1. So the string
//! can't have gone and come back, and the two spans from count to commit don't overlap on n. If A's
//! is the earlier one, n's counter was at least `t_A` when B was counted there, and `t_B` ≥ `c_B` >
//! `t_A`. No clock is part of this proof. It only assumes that counters survive on the nodes of
//! each committed majority; the µs floor covers lost counters.
//!
//! **How long a hold is valid.** TTL − elapsed − drift, with a drift of 1 % of the TTL and 2 ms.
//! [`crate::lease::Budget`] computes this for every backend, on BOOTTIME, from before the request
//! was sent. So this module has no clock. The core refuses an answer that comes too late, and asks
//! again or releases.
//!
//! # Readers
//! On a node held by readers, the string is `shared:<attempt>` with the first reader's attempt:
//! other libraries see a foreign lock. A reader is granted a node that is free or held by readers,
//! a writer only a free one. Both need a majority. So a writer's hold and any other hold share a
//! node, where one ended before the other began. The string ends with the last share on its node.
//! Each share also has its own end, and only that end counts. So a crashed reader keeps others out
//! only until its lease ends, and a reader's release leaves the other shares unchanged. The rest is
//! as above, phase by phase, with a record for each reader.
//!
//! **Readers' fences.** The proof for A and B holds if one of them is a writer's. Two readers'
//! spans may overlap, so two claims remain. *A reader that begins after another reader's fence was
//! published has the higher fence:* the earlier commits raised a majority's counters, one of which
//! counts for the later reader. Simultaneous holds can have no stricter order. *No two fences are
//! equal:* the highest counts of two readers, from different nodes, can be the same number (3 and 4
//! on two nodes, 4 and 3 the other way round). So each node keeps the fences committed since
//! readers hold it, and refuses a known one: two majorities share a node, and the second reader
//! must count again. A node keeps only some fences, and refuses any fence below them. Like the
//! counters, this assumes that committed data survives. `tests/ordering.rs` tries every
//! interleaving of a few clients, and finds the repeated fence at once without this check.
//!
//! **Writers don't starve.** A waiting writer is in the queue of each node that it found busy. A
//! later reader is refused there until the writer has the lock, leaves, or has not asked for 15 s.
//! A writer waits only for holders, never for a waiter, so no two wait for each other even if nodes
//! disagree on which came first.
//!
//! # What Redlock lacks
//! - *Permits.* A permit with a fixed number would be safe: number k of N would be a lock of its
//!   own. But each client names its own N, and N may shrink while more permits are held. Then the
//!   number of *held* permits counts, and no node knows it. Example: number 2 is on nodes 1, 2 and
//!   3, number 3 on nodes 3, 4 and 5. Four nodes know of one permit and would grant a second of
//!   two. Asking all nodes first doesn't help: of three simultaneous clients, each can be behind
//!   one other and miss the third.
//! - *Fair order.* Each node has its own order of arrival, and no order is common to all nodes. A
//!   common order would be a log, which independent servers lack.
//!
//! # Worst cases
//! - *A reply to phase 1 is lost.* The node is taken and not counted. The owner's next attempt has
//!   another id and takes the node over with another count, so a commit of the earlier attempt is
//!   refused there.
//! - *Phase 1 arrives late*, after its attempt was given up or decided without it. The attempt
//!   holds the node but was never committed there. It counts for nothing, not even in renewals (an
//!   owner that lost its majority must not regain it), and ends with its TTL. Releases follow it
//!   over the same connection. If that broke, they leave a mark of the attempt, which then takes no
//!   node.
//! - *Too few nodes confirm the commit.* Nothing was published; all nodes are released. The release
//!   may arrive late, over a connection that was given up: it names its attempts, and none of them
//!   is granted any more. The next attempt takes such nodes over.
//! - *A call is dropped after its commits were sent.* A repeated request finds the committed
//!   attempt on a majority, and that hold is granted.
//! - *A node is lost between the phases* (it expired or restarted empty): its commit is refused,
//!   and its count is worthless.
//! - *A node forgets a held lock.* It is never granted to the holder again; the rest of the
//!   majority has to last. With a bare majority, one such node lets another owner in. Then only the
//!   protected resource can refuse the old holder, by the fence.
//! - *Two clients take a half each*, or readers and a writer do. Neither has a majority; both
//!   release all nodes, pause randomly and retry.
//! - *A reader's commit comes late*, after its share has ended while others keep the string: the
//!   share's own end refuses the commit. If a writer held the node meanwhile and readers hold it
//!   again, the string differs, and no earlier share counts.
//! - *A node forgets its readers*, or only their records. In the first case it is free, in the
//!   second it has no holder until the string ends. In neither case does a renewal restore the
//!   shares.

mod acquire;
pub mod examine;
mod history;
mod hold;
mod node;
mod nodes;
mod options;
mod reading;
mod script;
pub mod sharing;
pub(super) mod store;
#[cfg(test)]
mod tests;
pub(super) mod view;

use std::{rc::Rc, time::Duration};

use ::redis::Value;
use async_trait::async_trait;

pub use self::options::RedlockOptions;
use self::{
    node::Question,
    nodes::{NodeAnswers, Nodes},
};
use crate::{
    backends::{
        pause::pause,
        redis::{failure, names::RedisNames, reply, script::Script},
    },
    lock::{
        Amendment, Attempt, Backend, Capabilities, Effect, Error, History, Identity, Intent, Key,
        LockState, Notice, Progress, Release, ReleaseInfo, Renewal, Request, Result, Scope, Token,
        Ttl, Wake, Which,
    },
};

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    notification: false,
    history: true,
    run_policy: true,
    breakable: true,
    ..Capabilities::usual("redlock")
};

/// The backend for locks on a set of independent Redis servers.
pub struct Redlock {
    options: RedlockOptions,
    nodes: Nodes,
    /// The tokens that this process may have put into a queue. Added before asking, since an
    /// unanswered request may have been served.
    queued: Vec<(Key, Token)>,
    /// The tokens that were granted a lock after queueing, and may still be in the queue of a node
    /// that did not grant it.
    still_queued: Vec<(Key, Token)>,
    /// The leases that were requested here. They bound how long a node may take.
    leases: Vec<(Token, Ttl)>,
    /// The release that is repeated until enough nodes have confirmed it, and whether each node
    /// has.
    releasing: Option<(Key, Token, Scope, Vec<bool>)>,
    /// The waiter that leaves the queue until the nodes have confirmed it, and whether each node
    /// has.
    leaving: Option<(Token, Vec<bool>)>,
    /// The attempts that may be committed late: they failed in phase 2, and not all nodes confirmed
    /// their undoing.
    undone: Vec<(Token, String)>,
    /// The attempts that may arrive late: the connection to some node broke, or the call was
    /// dropped.
    lost: Vec<(Token, String)>,
    /// Whether the lock was last busy only in passing: without a certain holder.
    transient: bool,
    notices: Vec<Notice>,
}

/// A script's reply: a word and its values.
type ScriptReply = (String, Vec<Value>);

impl Redlock {
    /// Creates a backend for `options`. Without I/O.
    pub fn new(options: RedlockOptions) -> Self {
        let nodes = Nodes::new(&options.nodes);
        Self {
            options,
            nodes,
            queued: Vec::new(),
            still_queued: Vec::new(),
            leases: Vec::new(),
            releasing: None,
            leaving: None,
            undone: Vec::new(),
            lost: Vec::new(),
            transient: false,
            notices: Vec::new(),
        }
    }

    fn names(&self, key: &Key) -> Result<RedisNames> {
        RedisNames::new(&self.options.namespace, key)
    }

    fn ttl_of(&self, token: &Token) -> Option<Duration> {
        self.leases
            .iter()
            .find(|(known, _)| known == token)
            .map(|(_, ttl)| ttl.get())
    }

    /// Runs a script on each node for which `arguments` returns arguments.
    async fn ask(
        &mut self,
        bound: Duration,
        script: &'static Script,
        keys: Vec<String>,
        mut arguments: impl FnMut(usize) -> Option<Vec<String>>,
    ) -> NodeAnswers {
        let keys: Rc<[String]> = keys.into();
        let question = |n| {
            Some(Question::Script {
                script,
                keys: Rc::clone(&keys),
                arguments: arguments(n)?,
            })
        };
        self.nodes.ask(bound, question).await
    }

    fn notice(&mut self, warning: bool, text: String, hint: Option<String>) {
        if !self.notices.iter().any(|notice| notice.text == text) {
            self.notices.push(Notice {
                warning,
                text,
                hint,
            });
        }
    }
}

#[async_trait(?Send)]
impl Backend for Redlock {
    fn identity(&self) -> Identity {
        // The same set in another order is the same store.
        let mut nodes: Vec<String> = self
            .options
            .nodes
            .iter()
            .map(crate::backends::redis::RedisOptions::redacted_url)
            .collect();
        nodes.sort();
        let mut parts = vec!["redlock", self.options.namespace.as_str()];
        parts.extend(nodes.iter().map(String::as_str));
        Identity::new(&CAPABILITIES, self.options.redacted_url(), &parts)
    }

    async fn connect(&mut self, _: &Request) -> Result<()> {
        let mut question = ::redis::pipe();
        question.cmd("TIME");
        let question = Rc::new(question);
        let asked = self
            .nodes
            .ask(self.options.node_timeout, |_| {
                Some(Question::Reads(Rc::clone(&question)))
            })
            .await;
        let mut failures = Vec::new();
        for (n, answer) in asked.into_iter().enumerate() {
            let let_in = match answer {
                Some(Ok(Value::Array(replies))) => replies.first().map_or(Ok(()), failure::let_in),
                Some(answer) => answer.map(|_| ()),
                None => Ok(()),
            };
            if let Err(error) = let_in {
                failures.push((n, error.effect(Effect::NotApplied)));
            }
        }
        let let_in = self.nodes.len() - failures.len();
        if let_in >= self.nodes.majority() {
            Ok(())
        } else {
            Err(self.nodes.too_few(let_in, failures))
        }
    }

    fn disconnect(&mut self) {
        self.nodes.close();
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        self.take(request).await
    }

    async fn wait(&mut self, _: &Request, at_most: Duration) -> Result<Wake> {
        Ok(pause(self.options.retry_delay, self.transient, at_most).await)
    }

    async fn leave_queue(&mut self, request: &Request) -> Result<()> {
        self.leave(request).await
    }

    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        if intent == Intent::Probe {
            self.look_for(key, token).await
        } else {
            self.extend(key, token, intent).await
        }
    }

    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        self.release_hold(key, token, info).await
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        match change {
            Amendment::Note(note) => self.remember(key, note).await.map(|()| true),
            Amendment::Warn(fence, level) => self.claim(key, fence, level).await,
            Amendment::Mark(fence, mark) => self.break_hold(key, fence, mark, false).await,
            Amendment::Evict(fence, mark) => self.break_hold(key, fence, mark, true).await,
        }
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        self.read_lock(key).await
    }

    async fn list(&mut self, start: &str, progress: &Progress) -> Result<Vec<LockState>> {
        self.read_locks(start, progress).await
    }

    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>> {
        self.known_keys(start, which, progress).await
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        self.read_history(key).await
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }
}

fn flag(set: bool) -> String {
    if set { "1".into() } else { "0".into() }
}

fn release_keys(names: RedisNames) -> Vec<String> {
    let lock = vec![
        names.lock,
        names.record,
        names.runs,
        names.bad_runs,
        names.starts,
    ];
    [
        lock,
        vec![
            names.shares,
            names.ends,
            names.queue,
            names.waiters,
            names.ordered_queue,
        ],
    ]
    .concat()
}

/// Reads a node's reply to a script. Fails for a record in a newer layout.
fn script_reply(answer: Result<Value>) -> Result<ScriptReply> {
    let reply = answer?;
    let (first, rest) = reply::items(&reply)
        .and_then(<[Value]>::split_first)
        .ok_or_else(failure::unreadable)?;
    let first = reply::text(first).ok_or_else(failure::unreadable)?;
    match (&*first, rest) {
        ("layout", [version]) => Err(failure::newer_layout(
            &reply::text(version).unwrap_or_default(),
        )),
        _ => Ok((first, rest.to_vec())),
    }
}

/// Returns the most frequent value, and how often it occurs.
fn most_common<T: PartialEq>(of: impl IntoIterator<Item = T>) -> Option<(T, usize)> {
    let mut counted: Vec<(T, usize)> = Vec::new();
    for value in of {
        match counted.iter_mut().find(|(known, _)| *known == value) {
            Some((_, count)) => *count += 1,
            None => counted.push((value, 1)),
        }
    }
    counted.into_iter().max_by_key(|(_, count)| *count)
}

/// Failures of single nodes, each with the node's index.
type Failures = Vec<(usize, Error)>;
