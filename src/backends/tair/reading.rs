//! Looking at locks.

use std::{collections::BTreeSet, time::Duration};

use ::redis::{Pipeline, Value};

use super::{
    Tair,
    line::{self, Line},
    options::Mode,
    value::{READS, Seen, What},
};
use crate::{
    backends::redis::{
        failure,
        names::{ENCODING, Names, key_of, pattern, prefix},
        reply,
        state::foreign,
    },
    lock::{Fence, Key, Kind, LockState, Mode as Held, Result},
};

/// How many commands one lock takes.
const PER_LOCK: usize = READS + 3;

/// How many locks are read in one packet.
const BATCH: usize = 50;

fn add_reads(mode: Mode, pipeline: &mut Pipeline, names: &Names) {
    mode.read(pipeline, names);
    line::read_turns(pipeline, names);
    line::read_queue(pipeline, names);
}

impl Tair {
    pub(super) async fn read_lock(&mut self, key: &Key) -> Result<LockState> {
        let names = self.names(key);
        let mut pipeline = ::redis::pipe();
        add_reads(self.options.mode, &mut pipeline, &names);
        let replies = self.look(&pipeline).await?;
        read_state(self.options.mode, key.clone(), &names, &replies)
    }

    pub(super) async fn read_locks(&mut self, start: &str) -> Result<Vec<LockState>> {
        let mode = self.options.mode;
        let keys: Vec<Key> = self.scan(start).await?.into_iter().collect();
        let mut states = Vec::new();
        for batch in keys.chunks(BATCH) {
            let mut pipeline = ::redis::pipe();
            let names: Vec<Names> = batch.iter().map(|key| self.names(key)).collect();
            for names in &names {
                add_reads(mode, &mut pipeline, names);
            }
            let replies = self.look(&pipeline).await?;
            for ((key, names), replies) in batch.iter().zip(&names).zip(replies.chunks(PER_LOCK)) {
                match read_state(mode, key.clone(), names, replies) {
                    Ok(state) if state.holders.is_empty() => {}
                    // With an empty namespace, that may be any program's passing value.
                    Ok(state) if state.holders[0].foreign && self.options.namespace.as_str().is_empty() => {}
                    Ok(state) => states.push(state),
                    Err(error) if error.kind == Kind::Data => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(states)
    }

    async fn scan(&mut self, start: &str) -> Result<BTreeSet<Key>> {
        let start = prefix(&self.options.namespace) + &ENCODING.encode_str(start);
        let pattern = pattern(&start);
        let mut found = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut pipeline = ::redis::pipe();
            let kind = self.options.mode.kind();
            pipeline.cmd("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000).arg("TYPE").arg(kind);
            let replies = self.look(&pipeline).await?;
            let reply = replies.first().ok_or_else(failure::unreadable)?;
            if let Value::ServerError(error) = reply {
                return Err(failure::refused(error));
            }
            let Some([next, names]) = reply::items(reply) else { return Err(failure::unreadable()) };
            for name in reply::items(names).unwrap_or_default() {
                if let Value::BulkString(name) = name
                    && let Ok(name) = str::from_utf8(name)
                {
                    found.extend(key_of(&self.options.namespace, name));
                }
            }
            cursor = reply::text(next).ok_or_else(failure::unreadable)?;
            if cursor == "0" {
                return Ok(found);
            }
        }
    }
}

fn read_state(mode: Mode, key: Key, names: &Names, replies: &[Value]) -> Result<LockState> {
    let (reads, rest) = replies.split_at_checked(READS).ok_or_else(failure::unreadable)?;
    let [turns, queue @ ..] = rest else { return Err(failure::unreadable()) };
    let seen = Seen::read(mode, reads)?;
    let now = seen.now.map(|(ms, _)| ms);
    let time = now.and_then(|now| u64::try_from(now).ok());
    let left = u64::try_from(seen.left).ok().map(Duration::from_millis);
    let holders = match seen.what {
        What::Nothing => Vec::new(),
        What::Ours(record, _) => vec![record.holder(now, left)],
        What::Shared(mut crowd, _) => {
            // The key lasts as long as the last share, if we may not ask for the time.
            let now =
                time.or(crowd.ends().zip(u64::try_from(seen.left).ok()).map(|(ends, left)| ends.saturating_sub(left))).unwrap_or_default();
            crowd.settle(now);
            crowd.holders(now)
        }
        What::Foreign => vec![foreign(Held::Exclusive, left)],
        What::NoLock(kind) => return Err(failure::no_lock(&format!("a {kind}"))),
    };
    Ok(LockState {
        key,
        stored_as: names.lock.clone(),
        holders,
        waiters: match time {
            Some(now) => Line::read(turns, queue)?.waiters(now),
            None => Vec::new(),
        },
        last_fence: seen.counter.map(Fence),
        nodes: Vec::new(),
    })
}
