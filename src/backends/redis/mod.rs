//! One Redis or Valkey server.
//!
//! Each question is one script, atomic in the server and judged by its clock. A lock is stored as Redisson stores a
//! write lock, so that its locks and `SET NX` users exclude ours and the other way round; what Redisson has no place
//! for lies in a record beside it. Nothing here retries, sleeps or reads the host's clock.

mod connection;
mod failure;
mod names;
mod options;
mod reading;
mod reply;
mod script;
mod state;
#[cfg(test)]
mod tests;
mod tls;

use std::time::Duration;

use ::redis::Value;
use async_trait::async_trait;

pub use self::options::{Options, Secret, Server, Tls};
use self::{
    connection::Connection,
    names::Names,
    script::Script,
    state::{Snapshot, foreign},
};
use crate::lock::{
    Attempt, Backend, Busy, Capabilities, Entry, Error, Fence, Grant, Init, Key, LockState, Mode, Release, Renewal, Request, Result, Scope,
    Token, Ttl, Wake, fingerprint,
};

const CAPABILITIES: Capabilities = Capabilities::usual("redis");

/// Locks on one Redis server.
///
/// It has at most one connection, made by the first call that needs it. A call that is dropped or fails takes the
/// connection with it, and the next call makes another.
pub struct Redis {
    options: Options,
    connection: Option<Connection>,
    /// Who may stand in a queue because of us. Noted before asking, since an unanswered request may have been served.
    queued: Vec<(Key, Token)>,
}

impl Redis {
    /// A backend for `options`. Without I/O.
    pub fn new(options: Options) -> Self {
        Self { options, connection: None, queued: Vec::new() }
    }

    /// The connection, to be put back when it is at rest again.
    async fn take_connection(&mut self) -> Result<Connection> {
        match self.connection.take().filter(Connection::is_open) {
            Some(connection) => Ok(connection),
            None => Connection::open(&self.options).await,
        }
    }

    /// Runs a script, by its hash as long as the server remembers it.
    async fn eval(&mut self, script: &Script, keys: &[&str], arguments: &[&str]) -> Result<Value> {
        let mut connection = self.take_connection().await?;
        // An acquire that is given up must not arrive when nobody waits for its answer any more; a release may.
        let takes = script.is(&script::ACQUIRE);
        connection.drop_unsent_on_close(takes);
        let mut reply = connection.ask(&script.by_sha(keys, arguments)).await?;
        if matches!(&reply, Value::ServerError(error) if error.code() == "NOSCRIPT") {
            reply = connection.ask(&script.in_full(keys, arguments)).await?;
        }
        connection.drop_unsent_on_close(false);
        self.connection = Some(connection);
        match reply {
            Value::ServerError(error) => Err(failure::refused(&error)),
            reply => Ok(reply),
        }
    }

    fn names(&self, key: &Key) -> Names {
        Names::new(&self.options.namespace, key)
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

    fn is_queued(&self, request: &Request) -> bool {
        self.queued.iter().any(|(key, token)| *key == request.key && *token == request.token)
    }

    fn forget_queued(&mut self, request: &Request) {
        self.queued.retain(|(key, token)| *key != request.key || *token != request.token);
    }

    async fn ask_acquire(&mut self, request: &Request) -> Result<Attempt> {
        CAPABILITIES.check(request)?;
        let names = self.names(&request.key);
        let was_queued = self.is_queued(request);
        if request.waiting && !was_queued {
            self.queued.push((request.key.clone(), request.token));
        }
        let metadata = match &request.metadata {
            Some(metadata) => serde_json::to_string(metadata)
                .map_err(|error| Error::new(crate::lock::Kind::Internal, "the metadata can't be written").source(error))?,
            None => String::new(),
        };
        let keys = [&*names.lock, &names.fence, &names.record, &names.queue, &names.waiters];
        let arguments = [
            &*request.token.owner.to_string(),
            &request.token.hold_text(),
            &request.ttl.as_millis().to_string(),
            flag(request.entry == Entry::Reenter),
            flag(request.waiting),
            flag(was_queued),
            flag(request.detached),
            &metadata,
        ];
        let reply = self.eval(&script::ACQUIRE, &keys, &arguments).await?;
        let attempt = read_attempt(&reply, request)?;
        match &attempt {
            Attempt::Granted(_) => self.forget_queued(request),
            Attempt::Busy(_) => {
                if let Some(connection) = &mut self.connection {
                    connection.asked = Some(request.key.clone());
                }
            }
            Attempt::NotHeld => {}
        }
        Ok(attempt)
    }

    async fn block(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        // To the server 0 is for ever.
        let ms = at_most.as_millis();
        if ms == 0 {
            return Ok(Wake::TimedOut);
        }
        // A release before this connection asked would go unnoticed: ask first, then block.
        let ready = self.connection.take().filter(|connection| connection.asked.as_ref() == Some(&request.key) && connection.is_open());
        let Some(mut connection) = ready else { return Ok(Wake::Changed) };
        let seconds = format!("{}.{:03}", ms / 1000, ms % 1000);
        let mut block = ::redis::cmd("BLPOP");
        block.arg(self.names(&request.key).wake).arg(seconds);
        let reply = connection.ask(&block.get_packed_command()).await?;
        self.connection = Some(connection);
        match reply {
            Value::Nil => Ok(Wake::TimedOut),
            Value::ServerError(error) if error.code() == "UNBLOCKED" => {
                // The server changed its role; what is pushed from now on is pushed elsewhere.
                self.connection = None;
                Ok(Wake::Changed)
            }
            Value::ServerError(error) => Err(failure::refused(&error)),
            _ => Ok(Wake::Changed),
        }
    }

    async fn ask_abandon(&mut self, request: &Request) -> Result<()> {
        if !self.is_queued(request) {
            return Ok(());
        }
        let names = self.names(&request.key);
        let keys = [&*names.lock, &names.queue, &names.waiters, &names.wake];
        self.eval(&script::ABANDON, &keys, &[&request.token.hold_text()]).await?;
        self.forget_queued(request);
        Ok(())
    }

    async fn ask_renew(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>) -> Result<Renewal> {
        if let Some(ttl) = ttl {
            CAPABILITIES.check_ttl(ttl)?;
        }
        let names = self.names(key);
        let ttl = ttl.map(|ttl| ttl.as_millis().to_string()).unwrap_or_default();
        let arguments = [&*token.owner.to_string(), &token.hold_text(), &ttl];
        let reply = self.eval(&script::RENEW, &[&names.lock, &names.record], &arguments).await?;
        let (answer, rest) = answer(&reply)?;
        match (&*answer, rest) {
            ("renewed", [ttl, fence]) => Ok(Renewal::Renewed { ttl: read_ttl(ttl)?, fence: read_fence(fence)? }),
            ("shorter", [left]) => Ok(Renewal::WouldShorten { expires_in: read_ms(left)? }),
            ("not-held", []) => Ok(Renewal::NotHeld),
            ("layout", [version]) => Err(failure::newer_layout(&reply::text(version).unwrap_or_default())),
            _ => Err(failure::unreadable()),
        }
    }

    async fn ask_release(&mut self, key: &Key, token: &Token, scope: Scope) -> Result<Release> {
        let names = self.names(key);
        let keys = [&*names.lock, &names.record, &names.queue, &names.wake];
        let arguments = [&*token.owner.to_string(), &token.hold_text(), flag(scope == Scope::Tree), &names.channel, &names.rw_channel];
        let reply = self.eval(&script::RELEASE, &keys, &arguments).await?;
        let (answer, rest) = answer(&reply)?;
        match (&*answer, rest) {
            ("released", []) => Ok(Release::Released),
            ("still-held", [count]) => Ok(Release::StillHeld(read_count(count)?)),
            ("not-held", []) => Ok(Release::NotHeld),
            ("layout", [version]) => Err(failure::newer_layout(&reply::text(version).unwrap_or_default())),
            _ => Err(failure::unreadable()),
        }
    }
}

#[async_trait(?Send)]
impl Backend for Redis {
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
        let outcome = self.ask_acquire(request).await;
        self.about(outcome, "acquire", Some(&request.key))
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        let outcome = self.block(request, at_most).await;
        self.about(outcome, "wait", Some(&request.key))
    }

    async fn abandon(&mut self, request: &Request) -> Result<()> {
        let outcome = self.ask_abandon(request).await;
        self.about(outcome, "abandon", Some(&request.key))
    }

    async fn renew(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>) -> Result<Renewal> {
        let outcome = self.ask_renew(key, token, ttl).await;
        self.about(outcome, "renew", Some(key))
    }

    async fn release(&mut self, key: &Key, token: &Token, scope: Scope) -> Result<Release> {
        let outcome = self.ask_release(key, token, scope).await;
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

    async fn init(&mut self) -> Result<Init> {
        Ok(Init::NotNeeded)
    }
}

fn flag(set: bool) -> &'static str {
    if set { "1" } else { "0" }
}

/// A script's reply: a word and what belongs to it.
fn answer(reply: &Value) -> Result<(String, &[Value])> {
    let (first, rest) = reply::items(reply).and_then(<[Value]>::split_first).ok_or_else(failure::unreadable)?;
    Ok((reply::text(first).ok_or_else(failure::unreadable)?, rest))
}

fn read_attempt(reply: &Value, request: &Request) -> Result<Attempt> {
    let (answer, rest) = answer(reply)?;
    match (&*answer, rest) {
        ("granted", [fence, holds]) => {
            Ok(Attempt::Granted(Grant { fence: read_fence(fence)?, ttl: request.ttl, holds: read_count(holds)? }))
        }
        ("not-held", []) => Ok(Attempt::NotHeld),
        ("busy", [now, pttl, lock, record, place]) => {
            let lock = reply::pairs(lock).ok_or_else(failure::unreadable)?;
            let record = reply::pairs(record).ok_or_else(failure::unreadable)?;
            let snapshot = Snapshot { now: reply::int(now), pttl: reply::int(pttl), lock_len: lock.len(), lock, record };
            let holders = snapshot.holders()?;
            let expires_in = snapshot.expires_in();
            let notifies = expires_in.is_some() && holders.iter().all(|holder| !holder.foreign);
            let position = reply::int(place).and_then(|place| u32::try_from(place).ok()).filter(|place| *place > 0);
            Ok(Attempt::Busy(Busy { holders, expires_in, notifies, position }))
        }
        // A string that ends by itself is a lock of `SET NX PX`; one that doesn't would make cron skip silently for ever.
        ("alien", [kind, pttl]) => match (reply::text(kind).as_deref(), read_ms(pttl)) {
            (Some("string"), Ok(left)) => Ok(Attempt::Busy(Busy {
                holders: vec![foreign(Mode::Exclusive, Some(left))],
                expires_in: Some(left),
                notifies: false,
                position: None,
            })),
            (kind, _) => Err(failure::no_lock(&format!("a {}", kind.unwrap_or("value")))),
        },
        ("layout", [version]) => Err(failure::newer_layout(&reply::text(version).unwrap_or_default())),
        _ => Err(failure::unreadable()),
    }
}

fn read_fence(value: &Value) -> Result<Fence> {
    reply::int(value).and_then(|fence| u64::try_from(fence).ok()).map(Fence).ok_or_else(failure::unreadable)
}

fn read_count(value: &Value) -> Result<u32> {
    reply::int(value).and_then(|count| u32::try_from(count).ok()).ok_or_else(failure::unreadable)
}

fn read_ms(value: &Value) -> Result<Duration> {
    let ms = reply::int(value).and_then(|ms| u64::try_from(ms).ok());
    ms.map(Duration::from_millis).ok_or_else(failure::unreadable)
}

fn read_ttl(value: &Value) -> Result<Ttl> {
    Ttl::new(read_ms(value)?).map_err(|_| failure::unreadable())
}
