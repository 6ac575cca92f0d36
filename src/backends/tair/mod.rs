//! Tair, or Redis with the TairString module: locks by compare-and-swap commands, without scripts.
//!
//! A lock is a string, or a string with a version. Its value has the holders of the lock's
//! document. A client reads the value, and writes a new one only if the old one is still there. No
//! value is ever written twice, so "still there" means that nothing happened in between. The value
//! lasts as long as the last hold. The rest of the document is next to the value: the queue
//! (`stored_queue.rs`, `queue.rs`), the run record, the warning, and the outbox (`history.rs`).
//!
//! # Taking a lock
//! 1. `SET NX PX` with a claim; in the same packet, after it, the time and the fence counter are
//!    read.
//! 2. In one packet: `INCRBY` raises the counter to at least f = max(counter + 1, time in µs), or
//!    `SET NX` begins it with f, and `CAS … PX` changes the claim to a document with f. The lock is granted if the comparison
//!    succeeds.
//!
//! **Why fences rise.** The claim had the lock without a break from before the counter was read
//! until the `CAS`, which found the claim's value. Each fence published before is at most the
//! counter's value as read, so less than f. The counter is f or more before f is published, so each
//! later fence is above f. Counting before taking would be wrong: of two clients that counted, the
//! later could take first. A share next to others is granted in the same way, on top of their
//! value.
//!
//! # Worst cases
//! - *The reply to 1 is lost.* A repeated request finds this hold's claim and goes on with 2. An
//!   abandoned one is released.
//! - *The reply to 2 is lost.* A repeated request finds the owner as a holder, and enters like a
//!   nested hold. An abandoned one is released. If the grant has not arrived yet, the release
//!   changes the value, and the late comparison fails.
//! - *1 arrives late*, after it was abandoned: the claim never had a fence, and ends within
//!   [`CLAIMED`]. `CAS` sets the end of the lease.
//! - *The lease ends between 1 and 2*, or between reading and writing a renewal: the comparison
//!   fails, and a new holder is not affected.
//! - *2 arrives late*, after its claim had ended and other runs have begun and ended: the comparison
//!   of the lock fails, and so does that of the run record, which is then left as it is.
//! - *A renewal comes late*, after its hold ended but with the value unchanged: then no client has
//!   acted on the end. A client that reports the hold as over, or finds the lock busy without it,
//!   writes a new value first.
//! - *Two clients change the value at the same time*: one comparison fails, and that client reads
//!   again.
//! - *A packet is executed only in part* (no memory, no right): the lock's own commands come first.
//!   A start that is not written fails the grant, and is written by the repeated request.
//! - *The server is out of memory:* it refuses compare-and-delete too, so a release waits, or the
//!   lease ends.
//!
//! Versions alone are no fences: they start anew once a key is gone. See `value.rs` for this and
//! other traps.

#[cfg(test)]
mod damaged;
mod examine;
mod fence;
mod history;
mod options;
mod queue;
mod read;
pub mod sharing;
pub(super) mod store;
mod stored_queue;
mod swap;
pub(super) mod value;

use std::time::Duration;

use ::redis::{Pipeline, Value};
use async_trait::async_trait;

pub use self::options::{TairMode, TairOptions};
use self::{stored_queue::StoredQueue, value::Stored};
use super::{
    cas::{CasBackend, Change, ReadFor, Snapshot, Store},
    pause::pause,
    redis::{connection::RedisConnection, failure, names::RedisNames},
};
use crate::lock::{
    Capabilities, Effect, Error, HistoryEntry, Identity, Key, Kind, Note, Progress, Request,
    Result, SkipCount, Wake, Which,
};

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

/// The longest time for which a claim keeps the lock, much longer than the way to the server and
/// back.
pub const CLAIMED: Duration = Duration::from_secs(5);

/// The backend for locks on one Tair.
pub type Tair = CasBackend<TairStore>;

/// The stored values from which a document was read.
#[derive(Debug, Default)]
pub struct TairVersion {
    /// The lock's value, if dlock wrote it; or the warning's value, if `is_warning`.
    stored: Option<Stored>,
    is_warning: bool,
    /// The run record.
    policy: Option<Stored>,
    stored_queue: StoredQueue,
}

/// One Tair.
///
/// It has at most one connection, opened by the first call that needs it. A call that is dropped or
/// fails closes the connection, and the next call opens another.
pub struct TairStore {
    options: TairOptions,
    connection: Option<RedisConnection>,
    /// The last written value, if the lock has a single hold: enough to release it without reading
    /// first.
    written: Option<(Key, Snapshot<TairVersion>)>,
    /// Whether the queue's rules apply to waiters of the lock that was last asked for.
    in_ordered_queue: bool,
}

impl Tair {
    /// Creates a backend for `options`. Without I/O.
    pub fn new(options: TairOptions) -> Self {
        Self::of(TairStore {
            options,
            connection: None,
            written: None,
            in_ordered_queue: false,
        })
    }
}

impl TairStore {
    fn names(&self, key: &Key) -> Result<RedisNames> {
        RedisNames::new(&self.options.namespace, key)
    }

    /// Sends several commands in one packet. With `takes`, an abandoned packet is not delivered if
    /// that can be avoided.
    async fn run(&mut self, pipeline: &Pipeline, takes: bool) -> Result<Vec<Value>> {
        let mut connection = match self.connection.take().filter(RedisConnection::is_open) {
            Some(connection) => connection,
            None => self.open().await?,
        };
        connection.drop_unsent_on_close(takes);
        let replies = connection
            .exchange(&pipeline.get_packed_pipeline(), pipeline.len())
            .await?;
        if takes {
            connection.drop_unsent_on_close(false);
        }
        let mut errors = replies.iter().filter_map(|reply| {
            if let Value::ServerError(error) = reply {
                Some(failure::refused(error))
            } else {
                None
            }
        });
        match errors.find(Error::ends_connection) {
            Some(error) => self.options.server.left(&error),
            None => self.connection = Some(connection),
        }
        Ok(replies)
    }

    /// Like [`TairStore::run`], for commands whose failure changes no lock.
    async fn look(&mut self, pipeline: &Pipeline) -> Result<Vec<Value>> {
        self.run(pipeline, false)
            .await
            .map_err(|error| error.effect(Effect::NotApplied))
    }

    /// Connects, logs in, and checks in the same round trip that the server has the commands.
    async fn open(&self) -> Result<RedisConnection> {
        let mode = self.options.mode;
        let mut probe = ::redis::pipe();
        probe.cmd("COMMAND").arg("INFO").arg(mode.commands());
        let (connection, answers) = RedisConnection::open_and(&self.options.server, &probe).await?;
        // Without the right to COMMAND INFO, missing commands show when they are used.
        if let Some(Value::Array(known)) = answers.first() {
            let missing = |(name, info): (&&str, &Value)| {
                matches!(info, Value::Nil).then(|| name.to_uppercase())
            };
            let missing: Vec<_> = mode
                .commands()
                .iter()
                .zip(known)
                .filter_map(missing)
                .collect();
            if !missing.is_empty() {
                let what = missing.join(" and ");
                return Err(Error::new(
                    Kind::Config,
                    format!(
                        "the server has no {what}: it is no Tair, and has no TairString module"
                    ),
                )
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
    const READS_AT_ONCE: bool = false;

    fn identity(&self) -> Identity {
        let url = self.options.redacted_url();
        Identity::new(
            &CAPABILITIES,
            url.clone(),
            &[&url, self.options.namespace.as_str()],
        )
    }

    async fn connect(&mut self) -> Result<()> {
        let replies = self.look(::redis::pipe().cmd("TIME")).await?;
        replies.first().map_or(Ok(()), failure::let_in)
    }

    fn disconnect(&mut self) {
        self.connection = None;
    }

    fn stored_as(&self, key: &Key) -> Result<String> {
        Ok(self.names(key)?.lock)
    }

    async fn read(&mut self, key: &Key, purpose: ReadFor<'_>) -> Result<Snapshot<TairVersion>> {
        self.read_snapshot(key, purpose).await
    }

    async fn swap(
        &mut self,
        key: &Key,
        was: Snapshot<TairVersion>,
        change: Change<'_>,
    ) -> Result<bool> {
        self.write(key, was, change).await
    }

    async fn wait(&mut self, _: &Request, at_most: Duration, transient: bool) -> Result<Wake> {
        let delay = if self.in_ordered_queue {
            self.options.retry_delay.min(stored_queue::LOOK)
        } else {
            self.options.retry_delay
        };
        Ok(pause(delay, transient, at_most).await)
    }

    async fn note_waiter(&mut self, request: &Request, now_us: u64) -> Result<Option<u32>> {
        self.join(request, now_us).await
    }

    async fn remove_waiter(&mut self, request: &Request) -> Result<bool> {
        let names = self.names(&request.key)?;
        let mut leave = ::redis::pipe();
        stored_queue::remove(
            &mut leave,
            &names,
            &request.token.hold_text(),
            !super::cas::in_order(request),
        );
        self.look(&leave).await?;
        Ok(true)
    }

    async fn scan(
        &mut self,
        start: &str,
        progress: &Progress,
    ) -> Result<Vec<(Key, Snapshot<TairVersion>)>> {
        self.read_all(start, progress).await
    }

    async fn known(&mut self, start: &str, which: Which, progress: &Progress) -> Result<Vec<Key>> {
        self.known_keys(start, which, progress).await
    }

    async fn log(&mut self, key: &Key) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
        self.read_log(key).await
    }

    async fn append(&mut self, key: &Key, note: &Note) -> Result<()> {
        self.remember(key, note).await
    }
}

/// Returns a duration in ms as a command argument.
fn millis(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}
