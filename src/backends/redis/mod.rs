//! A Redis or Valkey server: a single one, the master that sentinels name, or the cluster node of
//! the lock.
//!
//! Each request is one script, atomic in the server and judged by the server's clock. A lock is
//! stored like Redisson's write lock, so that dlock, Redisson and `SET NX` users exclude each
//! other. dlock's further data is in a record next to the lock. Nothing here retries, sleeps or
//! reads the host's clock.

pub(super) mod answer;
mod cluster;
pub(super) mod connection;
#[cfg(test)]
pub(super) mod damaged;
pub mod examine;
pub(super) mod failure;
pub(super) mod history;
mod hold;
mod late;
pub(super) mod names;
mod options;
mod race;
pub(super) mod reading;
mod replicas;
pub(super) mod reply;
pub(super) mod script;
mod sentinel;
mod servers;
pub mod sharing;
mod slot;
pub(super) mod starts;
pub(super) mod state;
pub(in crate::backends) mod store;
#[cfg(test)]
mod tests;

use std::time::Duration;

use ::redis::Value;
use async_trait::async_trait;

pub use self::options::{Address, RedisOptions, RedisServer, Replicas, Sentinel};
pub(super) use self::script::flag;
use self::{
    answer::{answer, otherwise, read_attempt, read_count},
    cluster::Redirect,
    connection::ServerConnection,
    late::Unanswered,
    names::RedisNames,
    script::Script,
    servers::Servers,
    store::CAPABILITIES,
};
use crate::lock::{
    Amendment, Attempt, Backend, Entry, History, Identity, Intent, Key, LockState, Mode, Progress,
    Release, ReleaseInfo, Renewal, Request, Result, Token, Wake, Which,
};

/// The most redirections that one request follows. One is usual, two while a slot is being moved.
const REDIRECTIONS: usize = 5;

/// The backend for locks on one Redis server, or on one deployment of several.
///
/// It has at most one connection to each server, opened by the first call that needs it. A call
/// that is dropped or fails closes its connection, and the next call opens another.
pub struct Redis {
    /// Asked for at each step of a run.
    identity: Identity,
    servers: Servers,
    /// The tokens that this process may have put into a queue. Added before asking, since an
    /// unanswered request may have been served.
    queued: Vec<(Key, Token)>,
    /// The connection of the present wait, or of one that was cut off: the server may still send a
    /// wake-up over it.
    waiting: Option<ServerConnection>,
    unanswered: Unanswered,
}

impl Redis {
    /// Creates a backend for `options`. Without I/O.
    pub fn new(options: RedisOptions) -> Self {
        let (url, place) = (options.redacted_url(), options.identity());
        Self {
            identity: Identity::new(&CAPABILITIES, url, &[&place, options.namespace.as_str()]),
            servers: Servers::new(options),
            queued: Vec::new(),
            waiting: None,
            unanswered: Unanswered::default(),
        }
    }

    fn options(&self) -> &RedisOptions {
        self.servers.options()
    }

    fn is_cluster(&self) -> bool {
        self.servers.is_cluster()
    }

    /// Runs a script on the lock's server, by its hash if the server knows it. The lock's name is
    /// the first of the keys. Whatever the reply is, no reply is pending on the returned
    /// connection.
    async fn eval_over(
        &mut self,
        conn: ServerConnection,
        script: &Script,
        keys: &[&str],
        arguments: &[&str],
    ) -> Result<(ServerConnection, Value)> {
        self.eval_arriving(conn, script, keys, &[], arguments).await
    }

    /// Like [`Redis::eval_over`]. A server to which the slot is being moved must have all `sides`
    /// too, or it refuses for the moment: if the script created a side key there before the move,
    /// the key's move would fail.
    async fn eval_arriving(
        &mut self,
        mut conn: ServerConnection,
        script: &Script,
        keys: &[&str],
        sides: &[&str],
        arguments: &[&str],
    ) -> Result<(ServerConnection, Value)> {
        let name = keys[0];
        let all = [keys, sides].concat();
        // An abandoned acquire must not arrive later; an abandoned release may.
        let takes = script.is(&script::ACQUIRE) || script.is(&script::SHARE);
        for _ in 0..REDIRECTIONS {
            let keys = if conn.asking { &all[..] } else { keys };
            conn.connection.drop_unsent_on_close(takes);
            let mut reply = conn.ask(&script.by_sha(keys, arguments)).await?;
            if matches!(&reply, Value::ServerError(error) if error.code() == "NOSCRIPT") {
                reply = conn.ask(&script.eval_command(keys, arguments)).await?;
            }
            conn.connection.drop_unsent_on_close(false);
            match conn.redirect(&reply) {
                Some(redirect) => conn = self.servers.follow(name, redirect, conn).await?,
                None => return Ok((conn, reply)),
            }
        }
        Err(failure::lost_in_cluster())
    }

    /// Like [`Redis::eval_over`], but finds the connection and puts it back. Returns an error reply
    /// as an error.
    async fn eval(&mut self, script: &Script, keys: &[&str], arguments: &[&str]) -> Result<Value> {
        let conn = self.servers.take(keys[0]).await?;
        let (conn, reply) = self.eval_over(conn, script, keys, arguments).await?;
        self.servers.put_back_after(keys[0], conn, &reply);
        self.unrefused(reply)
    }

    fn unrefused(&self, reply: Value) -> Result<Value> {
        match reply {
            Value::ServerError(error) => Err(self.servers.refused(&error)),
            reply => Ok(reply),
        }
    }

    fn names(&self, key: &Key) -> Result<RedisNames> {
        RedisNames::new(&self.options().namespace, key)
    }

    fn is_queued(&self, request: &Request) -> bool {
        self.queued
            .iter()
            .any(|(key, token)| *key == request.key && *token == request.token)
    }

    fn forget_queued(&mut self, request: &Request) {
        self.queued
            .retain(|(key, token)| *key != request.key || *token != request.token);
    }

    async fn ask_acquire(&mut self, request: &Request) -> Result<Attempt> {
        CAPABILITIES.check(request)?;
        // Closed without awaiting the server's end, since the server may be down.
        self.waiting = None;
        let names = self.names(&request.key)?;
        let was_queued = self.is_queued(request);
        if request.waiting && !was_queued {
            self.queued.push((request.key.clone(), request.token));
        }
        let metadata = request
            .metadata
            .as_ref()
            .map(history::to_json)
            .transpose()?
            .unwrap_or_default();
        let late = names.late.clone() + &request.token.hold_text();
        let keys: [&str; 14] = [
            &names.lock,
            &names.fence,
            &names.record,
            &names.queue,
            &names.waiters,
            &names.runs,
            &names.bad_runs,
            &names.starts,
            &names.shares,
            &names.ends,
            &names.ordered_queue,
            &names.fair,
            &names.fair_readers,
            &late,
        ];
        let run_policy = starts::arguments(request.run_policy.as_ref());
        let [place, guard, least, window, failed, crashed] =
            run_policy.each_ref().map(String::as_str);
        let (owner, hold, ttl) = (
            request.token.owner.to_string(),
            request.token.hold_text(),
            request.ttl.as_millis().to_string(),
        );
        let common: [&str; 8] = [
            &owner,
            &hold,
            &ttl,
            flag(request.entry == Entry::Reenter),
            flag(request.waiting),
            flag(was_queued),
            flag(request.detached),
            &metadata,
        ];
        let most = if let Mode::Permits(most) = request.mode {
            most.to_string()
        } else {
            String::new()
        };
        let number = self.unanswered.next(&request.token).to_string();
        let alone = [
            &common[..],
            &[
                place,
                guard,
                least,
                window,
                failed,
                crashed,
                flag(request.fair),
                &names.wakes,
                &number,
            ],
        ]
        .concat();
        let share = [
            &common[..],
            &[
                &most,
                &names.wakes,
                flag(request.fair),
                &names.wake_ordered,
                &names.wake,
                &number,
            ],
        ]
        .concat();
        let mut conn = self.servers.take(&names.lock).await?;
        self.unanswered.sent(&request.token);
        let mut exclusive = request.mode == Mode::Exclusive;
        let mut reply;
        loop {
            let (script, arguments) = if exclusive {
                (&script::ACQUIRE, &alone)
            } else {
                (&script::SHARE, &share)
            };
            (conn, reply) = self.eval_over(conn, script, &keys, arguments).await?;
            // The owner has an exclusive hold, which also serves a reader.
            if request.mode != Mode::Shared
                || exclusive
                || otherwise(&reply) != Some("exclusive".into())
            {
                break;
            }
            exclusive = true;
        }
        self.unanswered.answered(&request.token);
        let attempt = match &reply {
            Value::ServerError(error) => Err(self.servers.refused(error))
                .map_err(|failed| failed.effect(failure::effect_of_take(error))),
            reply => read_attempt(reply, request),
        };
        match &attempt {
            Ok(Attempt::Granted(_)) => {
                if let Some(why) = self.shortfall(&mut conn).await? {
                    return Err(self.undo(conn, &names, request, why).await);
                }
                self.forget_queued(request);
            }
            Ok(Attempt::Busy(_)) => conn.connection.asked = Some(request.key.clone()),
            Ok(Attempt::NotHeld | Attempt::Denied(_)) | Err(_) => {}
        }
        self.servers.put_back_after(&names.lock, conn, &reply);
        attempt
    }

    async fn block(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        // For the server, 0 means no limit.
        let ms = at_most.as_millis();
        if ms == 0 {
            return Ok(Wake::TimedOut);
        }
        // The lock must have been asked for over this connection before it blocks: an earlier
        // release would go unnoticed.
        let names = self.names(&request.key)?;
        let Some(mut conn) = self.servers.take_asked(&names.lock, &request.key) else {
            return Ok(Wake::Changed);
        };
        self.servers.learn_over(&mut conn).await?;
        let seconds = format!("{}.{:03}", ms / 1000, ms % 1000);
        let mut block = ::redis::cmd("BLPOP");
        let own = names.wakes.clone() + &request.token.hold_text();
        if request.mode == Mode::Exclusive && !request.fair {
            block.arg(&names.wake).arg(seconds);
        } else {
            block.arg(&own).arg(&names.wake_ordered).arg(seconds);
        }
        let reply = self
            .waiting
            .insert(conn)
            .ask(&block.get_packed_command())
            .await?;
        let Some(conn) = self.waiting.take() else {
            return Ok(Wake::Changed);
        };
        if let Some(redirect @ Redirect::Moved(_)) = conn.redirect(&reply) {
            self.servers.moved(&names.lock, &redirect);
            return Ok(Wake::Changed);
        }
        let wake = match &reply {
            Value::Nil => Wake::TimedOut,
            // The server changed its role; later wake-ups are pushed on another server.
            Value::ServerError(error) if error.code() == "UNBLOCKED" => return Ok(Wake::Changed),
            _ => Wake::Changed,
        };
        self.servers.put_back_after(&names.lock, conn, &reply);
        self.unrefused(reply)?;
        Ok(wake)
    }

    async fn ask_leave_queue(&mut self, request: &Request) -> Result<()> {
        if !self.is_queued(request) {
            return Ok(());
        }
        let names = self.names(&request.key)?;
        let hold = request.token.hold_text();
        let own = names.wakes.clone() + &hold;
        let keys = [
            &*names.lock,
            &names.queue,
            &names.waiters,
            &names.wake,
            &names.ordered_queue,
            &own,
            &names.fair,
            &names.fair_readers,
            &names.wake_ordered,
        ];
        // Nothing orders two connections: a release that the server executes before it sees the end
        // of the wait would wake a client that is gone.
        if let Some(conn) = self.waiting.take() {
            conn.connection.end().await;
        }
        self.eval(&script::ABANDON, &keys, &[&hold, &names.wakes])
            .await?;
        self.forget_queued(request);
        Ok(())
    }
}

#[async_trait(?Send)]
impl Backend for Redis {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    async fn connect(&mut self, request: &Request) -> Result<()> {
        let names = self.names(&request.key)?;
        self.servers.let_in(&names.lock).await
    }

    fn disconnect(&mut self) {
        self.waiting = None;
        self.servers.close();
    }

    async fn try_acquire(&mut self, request: &Request) -> Result<Attempt> {
        self.ask_acquire(request).await
    }

    async fn wait(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        self.block(request, at_most).await
    }

    async fn leave_queue(&mut self, request: &Request) -> Result<()> {
        self.ask_leave_queue(request).await
    }

    async fn renew(&mut self, key: &Key, token: &Token, intent: Intent) -> Result<Renewal> {
        if intent == Intent::Probe {
            self.ask_verify(key, token).await
        } else {
            self.ask_renew(key, token, intent).await
        }
    }

    async fn release(&mut self, key: &Key, token: &Token, info: &ReleaseInfo) -> Result<Release> {
        let names = self.names(key)?;
        let conn = self.servers.take(&names.lock).await?;
        let (conn, reply) = self.release_over(conn, &names, token, info).await?;
        self.servers.put_back_after(&names.lock, conn, &reply);
        let reply = self.unrefused(reply)?;
        let (answer, rest) = answer(&reply)?;
        match (&*answer, rest) {
            ("released", []) => Ok(Release::Released),
            ("still-held", [count]) => Ok(Release::StillHeld(read_count(count)?)),
            ("not-held", []) => Ok(Release::NotHeld),
            ("layout", [version]) => Err(failure::newer_layout(
                &reply::text(version).unwrap_or_default(),
            )),
            _ => Err(failure::unreadable()),
        }
    }

    async fn amend(&mut self, key: &Key, change: Amendment<'_>) -> Result<bool> {
        match change {
            Amendment::Note(note) => self.ask_note(key, note).await.map(|()| true),
            Amendment::Warn(fence, level) => self.ask_warning(key, fence, level).await,
            Amendment::Mark(fence, mark) => self.ask_break(key, fence, mark, false).await,
            Amendment::Evict(fence, mark) => self.ask_break(key, fence, mark, true).await,
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
}
