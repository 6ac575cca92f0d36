//! The list of unfair exclusive waiters. It is informative, and matters only to the waiters of
//! `stored_queue.rs`.

use ::redis::Value;

use super::{TairStore, stored_queue, value::readable};
use crate::{
    backends::redis::{names::RedisNames, reply},
    lock::{Request, Result},
};

/// The silence after which a waiter counts as gone.
const GONE_MS: u64 = 15_000;

impl TairStore {
    /// Joins the list or renews the waiter's sign of life. Returns its position, from 1, if it is
    /// known.
    pub(super) async fn join(&mut self, request: &Request, now_us: u64) -> Result<Option<u32>> {
        let (names, hold) = (self.names(&request.key)?, request.token.hold_text());
        let mut join = ::redis::pipe();
        stored_queue::add(&mut join, &names, request, now_us);
        join.cmd("ZRANK")
            .arg(&names.queue)
            .arg(&hold)
            .cmd("ZRANGE")
            .arg(&names.queue)
            .arg(0)
            .arg(0);
        // The list is informative: a failure here must not hide that the lock is busy.
        let Ok(replies) = self.look(&join).await else {
            return Ok(None);
        };
        let [.., rank, first] = &*replies else {
            return Ok(None);
        };
        let rank = readable(rank)?.and_then(reply::int);
        let first = readable(first)?
            .and_then(reply::items)
            .and_then(|items| items.first())
            .and_then(reply::text);
        if let Some(first) = first.filter(|first| *first != hold) {
            self.drop_if_gone(&names, &first, now_us / 1000).await;
        }
        Ok(rank.and_then(|rank| u32::try_from(rank + 1).ok()))
    }

    /// Removes the first waiter if it died without leaving.
    async fn drop_if_gone(&mut self, names: &RedisNames, first: &str, now: u64) {
        let mut look = ::redis::pipe();
        look.cmd("HGET").arg(&names.waiters).arg(first);
        let Ok(replies) = self.look(&look).await else {
            return;
        };
        let infos = replies.first().and_then(reply::text);
        let seen: Option<u64> = infos
            .as_deref()
            .and_then(|infos| infos.split(':').next()?.parse().ok());
        if matches!(replies.first(), Some(Value::Nil))
            || seen.is_some_and(|seen| now.saturating_sub(seen) > GONE_MS)
        {
            let mut drop = ::redis::pipe();
            stored_queue::remove(&mut drop, names, first, true);
            let _ = self.look(&drop).await;
        }
    }
}
