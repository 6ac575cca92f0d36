//! Who waits: told to those who look, and of no consequence for who comes next.

use ::redis::Value;

use super::{Tair, value::readable};
use crate::{
    backends::redis::{names::Names, reply},
    lock::{Error, Kind, Request, Result},
};

/// A waiter that has not been heard of for so long is gone.
const GONE_MS: i64 = 15_000;

impl Tair {
    /// Joins the queue, or says that it is still there; its place from 1, if it is known.
    pub(super) async fn join(&mut self, request: &Request, names: &Names, now: Option<(i64, u64)>) -> Result<Option<u32>> {
        let (true, Some((ms, micros))) = (request.waiting, now) else { return Ok(None) };
        if !self.is_queued(request) {
            self.queued.push((request.key.clone(), request.token));
        }
        let hold = request.token.hold_text();
        let metadata = match &request.metadata {
            Some(metadata) => serde_json::to_string(metadata)
                .map_err(|error| Error::new(Kind::Internal, "the metadata can't be written").source(error))?,
            None => String::new(),
        };
        let mut join = ::redis::pipe();
        join.cmd("ZADD").arg(&names.queue).arg("NX").arg(micros).arg(&hold);
        join.cmd("HSET").arg(&names.waiters).arg(&hold).arg(format!("{ms}:{metadata}"));
        join.cmd("PEXPIRE").arg(&names.queue).arg(20_000).cmd("PEXPIRE").arg(&names.waiters).arg(20_000);
        join.cmd("ZRANK").arg(&names.queue).arg(&hold).cmd("ZRANGE").arg(&names.queue).arg(0).arg(0);
        // The queue only informs: no failure here may hide that the lock is busy.
        let Ok(replies) = self.look(&join).await else { return Ok(None) };
        let [.., rank, first] = &*replies else { return Ok(None) };
        let rank = readable(rank)?.and_then(reply::int);
        let first = readable(first)?.and_then(reply::items).and_then(|items| items.first()).and_then(reply::text);
        if let Some(first) = first.filter(|first| *first != hold) {
            self.drop_if_gone(names, &first, ms).await;
        }
        Ok(rank.and_then(|rank| u32::try_from(rank + 1).ok()))
    }

    /// One that died without leaving is dropped when it has come to the front.
    async fn drop_if_gone(&mut self, names: &Names, first: &str, now: i64) {
        let mut look = ::redis::pipe();
        look.cmd("HGET").arg(&names.waiters).arg(first);
        let Ok(replies) = self.look(&look).await else { return };
        let said = replies.first().and_then(reply::text);
        let seen: Option<i64> = said.as_deref().and_then(|said| said.split(':').next()?.parse().ok());
        if matches!(replies.first(), Some(Value::Nil)) || seen.is_some_and(|seen| now - seen > GONE_MS) {
            let mut drop = ::redis::pipe();
            drop.cmd("ZREM").arg(&names.queue).arg(first).cmd("HDEL").arg(&names.waiters).arg(first);
            let _ = self.look(&drop).await;
        }
    }

    fn is_queued(&self, request: &Request) -> bool {
        self.queued.iter().any(|(key, token)| *key == request.key && *token == request.token)
    }

    pub(super) async fn leave(&mut self, request: &Request) -> Result<()> {
        if !self.is_queued(request) {
            return Ok(());
        }
        let names = self.names(&request.key);
        let hold = request.token.hold_text();
        let mut leave = ::redis::pipe();
        leave.cmd("ZREM").arg(&names.queue).arg(&hold).cmd("HDEL").arg(&names.waiters).arg(&hold);
        self.look(&leave).await?;
        self.queued.retain(|(key, token)| *key != request.key || *token != request.token);
        Ok(())
    }

    /// Leaves with the lock in hand; whether that works is of no matter, since the entry ends by itself.
    pub(super) async fn leave_as_holder(&mut self, request: &Request) {
        let _ = self.leave(request).await;
    }
}
