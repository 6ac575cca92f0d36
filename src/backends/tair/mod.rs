//! Tair, or Redis with the TairString module: locks by comparing and writing in one command, without scripts.
//!
//! A lock is a string, or a string with a version, whose value says all that dlock knows of the hold. Whoever changes it reads it,
//! and writes a new value only if the old one is still there. No two values that are ever written are the same, so that
//! "still there" means that nothing happened in between.
//!
//! # Taking a lock
//! 1. `SET NX PX` with the value of this attempt, and in the same packet the time and the fence counter, read after that.
//! 2. In one packet: the counter is raised by what makes it f = max(counter + 1, time in µs) or more (`INCRBY`), and the value is
//!    changed to one with f (`CAS … PX`). Done if that compared equal.
//!
//! **Why fences rise.** The attempt owned the lock without a break from before the counter was read until the `CAS`, which found the value
//! of 1. Whatever was published before is at most the counter as it was read, so less than f; the counter is f or more
//! before f is published, so that whatever is published later is above it. Counting first and taking then would not do:
//! of two who counted, the later could take first.
//!
//! A share is granted in the same way, on top of the value that says who shares the lock, if there is one: that is compared as an attempt is.
//! See `shares.rs`; who waits, and for whom, is in `queue.rs` and `line.rs`.
//!
//! # Worst cases
//! - *The answer to 1 is lost.* Asked again, the value is found to be of this owner and without a fence: on with 2.
//! - *The answer to 2 is lost.* Asked again, the value is found to be of this owner, with its fence: entered like a nested hold.
//! - *1 arrives late*, after it was given up: it ends with its TTL, never having counted.
//! - *The lease ends between 1 and 2*, or between reading and writing a renewal: the comparison fails, whoever has it by then.
//! - *A nested run renews at the same time:* one of the two comparisons fails, and that one asks again.
//! - *The server is out of memory:* it refuses to compare and delete too, so that a release waits, or the lease ends by itself.
//!
//! Versions alone are no fences: they begin anew when a key is gone. See `value.rs` for this and other traps.

mod acquire;
mod examine;
mod history;
mod hold;
mod line;
mod options;
mod queue;
mod reading;
mod record;
mod shares;
mod starts;
mod value;

use std::time::Duration;

use ::redis::{Pipeline, Value};
use async_trait::async_trait;

pub use self::options::{Mode, Options};
use self::value::Stored;
use super::{
    pause::pause,
    redis::{connection::Connection, failure, names::Names},
};
use crate::lock::{
    Attempt, Backend, Break, Capabilities, Effect, Error, Extension, Fence, History, Holding, Init, Key, Kind, LockState, Marking, Note,
    Parting, Release, Renewal, Request, Result, Token, Wake, fingerprint,
};

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    permits: true,
    fair: true,
    notification: false,
    history: true,
    terms: true,
    breakable: true,
    ..Capabilities::usual("tair")
};

/// Locks on one Tair.
///
/// It has at most one connection, made by the first call that needs it. A call that is dropped or fails takes the
/// connection with it, and the next call makes another.
pub struct Tair {
    options: Options,
    connection: Option<Connection>,
    /// Who may stand in a queue because of us. Noted before asking, since an unanswered request may have been served.
    queued: Vec<(Key, Token)>,
    /// What was last written for a hold with no other beside it: enough to give it back without looking first.
    written: Option<(Key, Token, Stored)>,
    /// The lock that was last found busy was so in passing.
    passing: bool,
    /// Whoever waits for it may have a turn, which passes.
    in_line: bool,
    /// A share that was asked for, and may be granted late.
    unanswered: Option<(Key, Token)>,
}

impl Tair {
    /// A backend for `options`. Without I/O.
    pub fn new(options: Options) -> Self {
        Self { options, connection: None, queued: Vec::new(), written: None, passing: false, in_line: false, unanswered: None }
    }

    fn names(&self, key: &Key) -> Names {
        Names::new(&self.options.namespace, key)
    }

    /// Sends several commands in one packet; `takes` says whether it had better not arrive at all if it is given up.
    async fn run(&mut self, pipeline: &Pipeline, takes: bool) -> Result<Vec<Value>> {
        let mut connection = match self.connection.take().filter(Connection::is_open) {
            Some(connection) => connection,
            None => self.open().await?,
        };
        connection.drop_unsent_on_close(takes);
        let replies = connection.exchange(&pipeline.get_packed_pipeline(), pipeline.len()).await?;
        if takes {
            connection.drop_unsent_on_close(false);
        }
        self.connection = Some(connection);
        Ok(replies)
    }

    /// As [`Tair::run`], where nothing is changed.
    async fn look(&mut self, pipeline: &Pipeline) -> Result<Vec<Value>> {
        self.run(pipeline, false).await.map_err(|error| error.effect(Effect::NotApplied))
    }

    /// Connects, logs in, and sees in the same round trip whether the server has the commands.
    async fn open(&self) -> Result<Connection> {
        let mode = self.options.mode;
        let mut probe = ::redis::pipe();
        probe.cmd("COMMAND").arg("INFO").arg(mode.commands());
        let (connection, answers) = Connection::open_and(&self.options.server, &probe).await?;
        // Who may not ask finds out by trying.
        if let Some(Value::Array(known)) = answers.first() {
            let missing = |(name, info): (&&str, &Value)| matches!(info, Value::Nil).then(|| name.to_uppercase());
            let missing: Vec<_> = mode.commands().iter().zip(known).filter_map(missing).collect();
            if !missing.is_empty() {
                let what = missing.join(" and ");
                return Err(Error::new(Kind::Config, format!("the server has no {what}: it is no Tair, and has no TairString module"))
                    .hint("redis:// is for Redis and Valkey; or load the TairString module"));
            }
        }
        if let Some(Value::ServerError(error)) = answers.first()
            && error.code() == "NOAUTH"
        {
            return Err(failure::refused(error));
        }
        Ok(connection)
    }

    /// Says which question failed, where and about which lock.
    fn about<T>(&self, outcome: Result<T>, operation: &'static str, key: Option<&Key>) -> Result<T> {
        outcome.map_err(|error| {
            let error = error.during(operation).backend(self.options.redacted_url());
            match key {
                Some(key) => error.key(key),
                None => error,
            }
        })
    }
}

#[async_trait(?Send)]
impl Backend for Tair {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn describe(&self) -> String {
        self.options.redacted_url()
    }

    fn fingerprint(&self) -> u64 {
        fingerprint(&[&self.options.redacted_url(), self.options.namespace.as_str()])
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        let outcome = self.take(request).await;
        self.about(outcome, "acquire", Some(&request.key))
    }

    async fn wait(&mut self, _: &Request, at_most: Duration) -> Result<Wake> {
        let delay = if self.in_line { self.options.retry_delay.min(line::LOOK) } else { self.options.retry_delay };
        Ok(pause(delay, self.passing, at_most).await)
    }

    async fn abandon(&mut self, request: &Request) -> Result<()> {
        let outcome = self.leave(request).await;
        self.about(outcome, "abandon", Some(&request.key))
    }

    async fn renew(&mut self, key: &Key, token: &Token, extension: Extension) -> Result<Renewal> {
        let outcome = self.extend(key, token, extension).await;
        self.about(outcome, "renew", Some(key))
    }

    async fn verify(&mut self, key: &Key, token: &Token) -> Result<Holding> {
        let outcome = self.look_for(key, token).await;
        self.about(outcome, "verify", Some(key))
    }

    async fn release(&mut self, key: &Key, token: &Token, parting: &Parting) -> Result<Release> {
        let outcome = self.give_back(key, token, parting).await;
        self.about(outcome, "release", Some(key))
    }

    async fn inspect(&mut self, key: &Key) -> Result<LockState> {
        let outcome = self.read_lock(key).await;
        self.about(outcome, "inspect", Some(key))
    }

    async fn list(&mut self, start: &str) -> Result<Vec<LockState>> {
        let outcome = self.read_locks(start).await;
        self.about(outcome, "list", None)
    }

    async fn history(&mut self, key: &Key) -> Result<History> {
        let outcome = self.read_history(key).await;
        self.about(outcome, "history", Some(key))
    }

    async fn note(&mut self, key: &Key, note: &Note) -> Result<()> {
        let outcome = self.remember(key, note).await;
        self.about(outcome, "note", Some(key))
    }

    async fn claim_warning(&mut self, key: &Key, fence: Fence, level: u32) -> Result<bool> {
        let outcome = self.claim(key, fence, level).await;
        self.about(outcome, "note", Some(key))
    }

    async fn mark(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        let outcome = self.mark_hold(key, fence, mark).await;
        self.about(outcome, "break", Some(key))
    }

    async fn evict(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        let outcome = self.evict_hold(key, fence, mark).await;
        self.about(outcome, "break", Some(key))
    }

    async fn init(&mut self) -> Result<Init> {
        Ok(Init::NotNeeded)
    }
}

/// Somebody wrote between our reading and writing: asking again will do.
fn changed_meanwhile() -> Error {
    Error::new(Kind::Unavailable, "the lock was changed by another of its holds at the same moment")
}
