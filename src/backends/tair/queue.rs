//! Who waits for the lock for itself alone and in no order: told to those who look, and of no consequence but to readers (see `line.rs`).

use ::redis::{Pipeline, Value};

use super::{Tair, line, value::readable};
use crate::{
    backends::redis::{names::Names, reply},
    lock::{Metadata, Request, Result},
};

/// A waiter that has not been heard of for so long is gone.
const GONE_MS: i64 = 15_000;

impl Tair {
    /// Joins the queue, or says that it is still there; its place from 1, if it is known.
    pub(super) async fn join(&mut self, request: &Request, names: &Names, now: Option<(i64, u64)>) -> Result<Option<u32>> {
        let (true, Some((ms, micros))) = (request.waiting, now) else { return Ok(None) };
        self.note_queued(request);
        let hold = request.token.hold_text();
        let mut join = ::redis::pipe();
        add(&mut join, names, request, (u64::try_from(ms).unwrap_or_default(), micros));
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

    /// Noted before asking, since an unanswered request may have been served.
    pub(super) fn note_queued(&mut self, request: &Request) {
        if !self.is_queued(request) {
            self.queued.push((request.key.clone(), request.token));
        }
    }

    pub(super) fn is_queued(&self, request: &Request) -> bool {
        self.queued.iter().any(|(key, token)| *key == request.key && *token == request.token)
    }

    pub(super) async fn leave(&mut self, request: &Request) -> Result<()> {
        if !self.is_queued(request) {
            return Ok(());
        }
        let names = self.names(&request.key);
        let hold = request.token.hold_text();
        let mut leave = ::redis::pipe();
        line::remove(&mut leave, &names, &hold, !line::by_rule(request));
        self.look(&leave).await?;
        self.forget_queued(request);
        Ok(())
    }

    pub(super) fn forget_queued(&mut self, request: &Request) {
        self.queued.retain(|(key, token)| *key != request.key || *token != request.token);
    }

    /// Leaves with the lock in hand; whether that works is of no matter, since the entry ends by itself.
    pub(super) async fn leave_as_holder(&mut self, request: &Request) {
        let _ = self.leave(request).await;
    }
}

/// Joins the queue, or says that it is still there.
pub(super) fn add(pipeline: &mut Pipeline, names: &Names, request: &Request, (ms, micros): (u64, u64)) {
    let hold = request.token.hold_text();
    // Of texts and numbers, which can always be written.
    let metadata = request.metadata.as_ref().and_then(|metadata| serde_json::to_string(metadata).ok()).unwrap_or_default();
    pipeline.cmd("ZADD").arg(&names.queue).arg("NX").arg(micros).arg(&hold);
    pipeline.cmd("HSET").arg(&names.waiters).arg(&hold).arg(format!("{ms}:{metadata}"));
    pipeline.cmd("PEXPIRE").arg(&names.queue).arg(20_000).cmd("PEXPIRE").arg(&names.waiters).arg(20_000);
}

/// When somebody in the queue was last heard of, and what it says of itself.
pub(super) fn said_of(said: &[(String, String)], hold: &str) -> Option<(u64, Option<Metadata>)> {
    let (seen, metadata) = said.iter().find(|(who, _)| who == hold)?.1.split_once(':')?;
    Some((seen.parse().ok()?, serde_json::from_str(metadata).ok()))
}
