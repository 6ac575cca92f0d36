//! Tair, or Redis with the TairString module: locks by comparing and writing in one command, without scripts.
//!
//! A lock is a string, or a string with a version, whose value has the holders of its document. A client that changes it reads it,
//! and writes a new value only if the old one is still there. No two values that are ever written are the same, so that
//! "still there" means that nothing happened in between. The value lasts as long as the last hold. The rest of the document lies next to it:
//! the queue (`line.rs`, `queue.rs`), the run policy, the warning, and the outbox (`history.rs`).
//!
//! # Taking a lock
//! 1. `SET NX PX` with a claim, and in the same packet the time and the fence counter, read after that.
//! 2. In one packet: the counter is raised by what makes it f = max(counter + 1, time in µs) or more (`INCRBY`), and the claim is
//!    changed to a document with f (`CAS … PX`). Done if that compared equal.
//!
//! **Why fences rise.** The claim had the lock without a break from before the counter was read until the `CAS`, which found the value
//! of 1. Whatever was published before is at most the counter as it was read, so less than f; the counter is f or more
//! before f is published, so that whatever is published later is above it. Counting first and taking then would not do:
//! of two clients that counted, the later could take first. A share next to others is granted in the same way, on top of their value.
//!
//! # Worst cases
//! - *The answer to 1 is lost.* Asked again, the value is found to be this hold's claim: on with 2. Given up, it is released.
//! - *The answer to 2 is lost.* Asked again, the owner is found to be a holder: entered like a nested hold. Given up, it is released; should
//!   the grant not be there yet, the value is written anew, and the late one finds another.
//! - *1 arrives late*, after it was given up: it ends with its TTL, never having counted.
//! - *The lease ends between 1 and 2*, or between reading and writing a renewal: the comparison fails, and a new holder is untouched.
//! - *A renewal comes late*, when its hold is over but the value is as it was: no client acted on the end, or the value would be
//!   another one. A client that is told that the hold is over, or finds the lock busy without it, writes that first.
//! - *Two change the value at the same time*: one of the two comparisons fails, and that one reads again.
//! - *A packet is not executed to its end* (no memory, no right): the lock's own commands come first; a start that is not written is an error
//!   of the grant, and is written when it is asked again.
//! - *The server is out of memory:* it refuses to compare and delete too, so that a release waits, or the lease ends by itself.
//!
//! Versions alone are no fences: they begin anew when a key is gone. See `value.rs` for this and other traps.

#[cfg(test)]
mod damaged;
mod examine;
mod history;
mod options;
mod queue;
mod read;
pub mod sharing;
mod stored_queue;
mod swap;
pub(super) mod value;

use std::time::Duration;

use ::redis::{Pipeline, Value};
use async_trait::async_trait;

pub use self::options::{TairMode, TairOptions};
use self::read::TairVersion;
use super::{
    cas::{CasBackend, Change, ReadFor, Snapshot, Store},
    pause::pause,
    redis::{connection::RedisConnection, failure, names::RedisNames},
};
use crate::lock::{Capabilities, Effect, Error, HistoryEntry, Identity, Key, Kind, Note, Request, Result, SkipCount, Wake, Which};

pub(super) const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    permits: true,
    fair: true,
    notification: false,
    history: true,
    run_policy: true,
    breakable: true,
    ..Capabilities::usual("tair")
};

/// Locks on one Tair.
pub type Tair = CasBackend<TairStore>;

/// One Tair.
///
/// It has at most one connection, made by the first call that needs it. A call that is dropped or fails takes the
/// connection with it, and the next call makes another.
pub struct TairStore {
    options: TairOptions,
    connection: Option<RedisConnection>,
    /// What was last written for a hold that has its lock alone: enough to give it back without reading first.
    written: Option<(Key, Snapshot<TairVersion>)>,
    /// The rules of the queue concern waiters of the lock that was last asked for.
    in_line: bool,
}

impl Tair {
    /// A backend for `options`. Without I/O.
    pub fn new(options: TairOptions) -> Self {
        Self::of(TairStore { options, connection: None, written: None, in_line: false })
    }
}

impl TairStore {
    fn names(&self, key: &Key) -> Result<RedisNames> {
        RedisNames::new(&self.options.namespace, key)
    }

    /// Sends several commands in one packet; `takes` says whether it had better not arrive at all if it is given up.
    async fn run(&mut self, pipeline: &Pipeline, takes: bool) -> Result<Vec<Value>> {
        let mut connection = match self.connection.take().filter(RedisConnection::is_open) {
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

    /// As [`TairStore::run`], where nothing is changed.
    async fn look(&mut self, pipeline: &Pipeline) -> Result<Vec<Value>> {
        self.run(pipeline, false).await.map_err(|error| error.effect(Effect::NotApplied))
    }

    /// Connects, logs in, and sees in the same round trip whether the server has the commands.
    async fn open(&self) -> Result<RedisConnection> {
        let mode = self.options.mode;
        let mut probe = ::redis::pipe();
        probe.cmd("COMMAND").arg("INFO").arg(mode.commands());
        let (connection, answers) = RedisConnection::open_and(&self.options.server, &probe).await?;
        // A user that may not ask finds out by trying.
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
}

#[async_trait(?Send)]
impl Store for TairStore {
    type Version = TairVersion;

    fn identity(&self) -> Identity {
        let url = self.options.redacted_url();
        Identity::new(&CAPABILITIES, url.clone(), &[&url, self.options.namespace.as_str()])
    }

    fn stored_as(&self, key: &Key) -> Result<String> {
        Ok(self.names(key)?.lock)
    }

    async fn read(&mut self, key: &Key, purpose: ReadFor<'_>) -> Result<Snapshot<TairVersion>> {
        self.read_snapshot(key, purpose).await
    }

    async fn swap(&mut self, key: &Key, was: Snapshot<TairVersion>, change: Change<'_>) -> Result<bool> {
        self.write(key, was, change).await
    }

    async fn wait(&mut self, _: &Request, at_most: Duration, transient: bool) -> Result<Wake> {
        let delay = if self.in_line { self.options.retry_delay.min(stored_queue::LOOK) } else { self.options.retry_delay };
        Ok(pause(delay, transient, at_most).await)
    }

    async fn note_waiter(&mut self, request: &Request, now_us: u64) -> Result<Option<u32>> {
        self.join(request, now_us).await
    }

    async fn remove_waiter(&mut self, request: &Request) -> Result<bool> {
        let names = self.names(&request.key)?;
        let mut leave = ::redis::pipe();
        stored_queue::remove(&mut leave, &names, &request.token.hold_text(), !super::cas::in_order(request));
        self.look(&leave).await?;
        Ok(true)
    }

    async fn scan(&mut self, start: &str) -> Result<Vec<(Key, Snapshot<TairVersion>)>> {
        self.read_all(start).await
    }

    async fn known(&mut self, start: &str, which: Which) -> Result<Vec<Key>> {
        self.known_keys(start, which).await
    }

    async fn log(&mut self, key: &Key) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
        self.read_log(key).await
    }

    async fn append(&mut self, key: &Key, note: &Note) -> Result<()> {
        self.remember(key, note).await
    }
}

/// A length of time as the commands take it.
fn millis(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}
