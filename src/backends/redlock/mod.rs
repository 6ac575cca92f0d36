//! N independent Redis servers, of which a majority decides.
//!
//! On each node a lock is a string that any Redlock library would have set (`SET name value NX PX ttl`), so that those libraries
//! and dlock exclude each other; a node's own atomic steps are scripts. All nodes are asked at the same time.
//!
//! # The two phases
//! 1. Every node that is free sets the string `<owner>:<attempt>` and raises its counter to c = max(counter + 1, its time in µs).
//! 2. With a majority of counts, the fence is the highest of them, t. Each node *that was counted*, and that still has this very
//!    attempt with this very c, raises its counter to t if it is lower. With a majority of such commits, t is the fence.
//!
//! **Why fences rise.** Two fences A and B were each committed by a majority, so some node n committed both. On n a commit proves
//! that the attempt owned n without a break from its count on: an attempt takes a node only if it is free, and its id is never sent
//! twice as phase 1, so the string can't have gone and come back. Hence the two spans from count to commit don't overlap on n. If A's is
//! the earlier one, n's counter was at least `t_A` when B was counted there, and `t_B` ≥ `c_B` > `t_A`. No clock is part of this, only
//! that counters survive on the nodes of each committed majority; the µs floor is for when they don't.
//!
//! **How long a hold is valid.** TTL − elapsed − drift, with a drift of 1 % of the TTL and 2 ms: this is what [`crate::lease::Budget`]
//! counts for every backend, from before the question was sent, on BOOTTIME. So this module has no clock; an answer that comes
//! too late is refused by the core, which asks again or releases.
//!
//! # Readers
//! On a node that readers have, the string is `shared:<attempt>`, of the first of them: to every other library it is a foreign lock. A reader
//! is granted a node that is free or that readers have, a writer one that is free; since both need a majority, any two holds of which one is
//! a writer's meet on a node, and there one was gone before the other came. The string ends with the last share on its node, and
//! each share by its own time besides, which all that counts asks for. So a crashed reader keeps others out for no longer than its lease,
//! and one that is given back leaves the others as they are. The rest is as above, phase by phase, with a record for each reader.
//!
//! **Their fences.** What was said of A and B holds if one of them writes. Two readers' spans may overlap, and two things are left. *One that
//! begins after another was published has the higher fence:* the other's commits raised the counters of a majority, one of which
//! counts for the later. That needs no span, and is all the order that holds at the same time can have. *No two have the same:* the highest count
//! of two readers can be the same number, from different nodes (3 and 4 on two nodes, 4 and 3 the other way round). So a node knows which fences
//! were committed since readers have it, and refuses one that it knows; any two majorities meet, and the second there has to count
//! anew. It need not know more than some: below those, it refuses all. As with counters, this asks that what was committed survives.
//! `tests/ordering.rs` tries every order of what few clients can do, and finds the repeated fence at once if this is left out.
//!
//! **Writers don't starve.** A writer that waits stands in the queue of each node that it found busy, and a reader that came later is refused
//! there, until the writer has the lock, leaves, or has not asked for 15 s. It waits only for holders, never for a waiter,
//! so that no two wait for each other even if nodes don't agree on which came first.
//!
//! # What it hasn't
//! - *Permits.* A permit by its number would be safe, as that is a lock of its own: number k of N, granted by a majority for this k. But N is
//!   each client's own, and may shrink while more are held: then it counts how *many* are held, and nodes can't tell. With number 2 on the
//!   nodes 1, 2 and 3 and number 3 on 3, 4 and 5, four nodes know of one permit, and would grant another of two. To ask
//!   all first doesn't help: of three that ask at the same time, each can be behind one other and see no third.
//! - *Fair order.* Each node has an order of its own in which they came, and there is none in common: what all agree on would be a log,
//!   which is what independent servers are without.
//!
//! # Worst cases
//! - *An answer to phase 1 is lost.* The node is taken and not counted. The next attempt of this owner has another id, takes the node over
//!   with another count, and a commit for the earlier one is refused there.
//! - *Phase 1 arrives late*, after its attempt was given up or decided without it: the node is held by an attempt that was never committed
//!   there. It counts for nothing, in renewals least of all (else an owner that lost its majority would have it back), and ends with its
//!   TTL; releases follow it over the same connection.
//! - *Commits are answered by too few.* Nothing was published; all nodes are released. If they were committed all the same, asking again
//!   finds the committed attempt on a majority, and that hold is what is granted.
//! - *A node is lost between the phases* (it expired, restarted empty): its commit is refused, and its count is worth nothing.
//! - *A node forgets a held lock.* It is never given to the holder again; the rest of the majority has to last. With a bare majority, one
//!   such node lets another owner in: what only the protected resource can refuse then, by the fence.
//! - *Two take a half each*, or readers and a writer. Neither has a majority; all release all, and ask again after pauses of random length.
//! - *A reader's commit comes late*, after its share has ended while others keep the string: the share's own end refuses it. If the node was
//!   a writer's meanwhile and is readers' again, the string is another one, and no share of before counts.
//! - *A node forgets its readers*, or only what it knows of them: in the one case it is free, in the other no one's until the string ends.
//!   Neither is given back to them by an extension.

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
        Amendment, Attempt, Backend, Capabilities, Error, History, Identity, Intent, Key, LockState, Notice, Release, ReleaseInfo, Renewal,
        Request, Result, Scope, Token, Ttl, Wake, Which,
    },
};

pub(super) const CAPABILITIES: Capabilities =
    Capabilities { shared: true, notification: false, history: true, run_policy: true, breakable: true, ..Capabilities::usual("redlock") };

/// Locks on a set of Redis servers that know nothing of each other.
pub struct Redlock {
    options: RedlockOptions,
    nodes: Nodes,
    /// The tokens that may stand in a queue because of us. Noted before asking, since an unanswered request may have been served.
    queued: Vec<(Key, Token)>,
    /// The tokens that were granted a lock after that, and may stand in the queue of a node which had no part in it.
    left_behind: Vec<(Key, Token)>,
    /// The leases that were asked for here, which bound how long a node may take.
    leases: Vec<(Token, Ttl)>,
    /// The release that is asked again until enough nodes have confirmed it, and which have.
    releasing: Option<(Key, Token, Scope, Vec<bool>)>,
    /// The lock that was last found busy was so in passing.
    transient: bool,
    notices: Vec<Notice>,
}

/// A script's reply: a word and what belongs to it.
type ScriptReply = (String, Vec<Value>);

impl Redlock {
    /// A backend for `options`. Without I/O.
    pub fn new(options: RedlockOptions) -> Self {
        let nodes = Nodes::new(&options.nodes);
        Self {
            options,
            nodes,
            queued: Vec::new(),
            left_behind: Vec::new(),
            leases: Vec::new(),
            releasing: None,
            transient: false,
            notices: Vec::new(),
        }
    }

    fn names(&self, key: &Key) -> Result<RedisNames> {
        RedisNames::new(&self.options.namespace, key)
    }

    fn ttl_of(&self, token: &Token) -> Option<Duration> {
        self.leases.iter().find(|(known, _)| known == token).map(|(_, ttl)| ttl.get())
    }

    /// Runs a script on every node, or on those that `arguments` has some for.
    async fn ask(
        &mut self,
        bound: Duration,
        script: &'static Script,
        keys: Vec<String>,
        mut arguments: impl FnMut(usize) -> Option<Vec<String>>,
    ) -> NodeAnswers {
        let keys: Rc<[String]> = keys.into();
        let question = |n| Some(Question::Script { script, keys: Rc::clone(&keys), arguments: arguments(n)? });
        self.nodes.ask(bound, question).await
    }

    fn notice(&mut self, warning: bool, text: String, hint: Option<String>) {
        if !self.notices.iter().any(|notice| notice.text == text) {
            self.notices.push(Notice { warning, text, hint });
        }
    }
}

#[async_trait(?Send)]
impl Backend for Redlock {
    fn identity(&self) -> Identity {
        // The same set in another order is the same store.
        let mut nodes: Vec<String> = self.options.nodes.iter().map(crate::backends::redis::RedisOptions::redacted_url).collect();
        nodes.sort();
        let mut parts = vec!["redlock", self.options.namespace.as_str()];
        parts.extend(nodes.iter().map(String::as_str));
        Identity::new(&CAPABILITIES, self.options.redacted_url(), &parts)
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
        if intent == Intent::Probe { self.look_for(key, token).await } else { self.extend(key, token, intent).await }
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

    async fn list(&mut self, start: &str) -> Result<Vec<LockState>> {
        self.read_locks(start).await
    }

    async fn known(&mut self, start: &str, which: Which) -> Result<Vec<Key>> {
        self.known_keys(start, which).await
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
    let lock = vec![names.lock, names.record, names.runs, names.bad_runs, names.starts];
    [lock, vec![names.shares, names.ends, names.queue, names.waiters, names.line]].concat()
}

/// What a node answered to a script.
fn script_reply(answer: Result<Value>) -> Result<ScriptReply> {
    let reply = answer?;
    let (first, rest) = reply::items(&reply).and_then(<[Value]>::split_first).ok_or_else(failure::unreadable)?;
    let first = reply::text(first).ok_or_else(failure::unreadable)?;
    match (&*first, rest) {
        ("layout", [version]) => Err(failure::newer_layout(&reply::text(version).unwrap_or_default())),
        _ => Ok((first, rest.to_vec())),
    }
}

/// The largest of the values that several nodes have, and how many have it.
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

/// Failures of single nodes, with the node.
type Failures = Vec<(usize, Error)>;
