//! The queue, where it matters: next to shared holds and permits, and in fair order.
//!
//! Unfair exclusive waiters stay in the list (`queue.rs`). Of all others `…:turns` says what they wait for: a hash with their arrival in µs and
//! their [`QueueEntry`], by hold; and `c:<hold>` says since when the lock is offered to a waiter of either kind. Each client writes only its own
//! waiter, the offers that it made, and which waiters are gone: that needs no comparing. The lock itself is granted by comparing alone.
//!
//! No waiter is woken: each looks by itself, sooner than an offer is over, and is found dead by those that it holds up. Waiting never keeps
//! users of other libraries out.
//!
//! # Worst cases
//! - *A waiter joins or leaves while another one decides*: it came or went later. The queue is that of the moment of the decision.
//! - *Two clients write of one waiter*: its entry and its offer are two fields. A waiter that was taken out and is alive comes
//!   again, with its position if it wrote last.
//! - *An offer comes late, after the grant*: it names a hold that is in no queue any more.

use std::time::Duration;

use ::redis::{Pipeline, Value};

use super::{queue::said_of, value::readable};
use crate::{
    backends::{
        cas::in_order,
        redis::{history::to_json, names::RedisNames, reply},
    },
    lock::{
        Error, Request, Result,
        document::{Document, QueueEntry},
    },
};

/// For how many ms a sign of life need not be repeated: at most a third of what others wait for one.
const SIGN: u64 = 3_000;
/// For how many ms an entry is kept that is not written again.
const KEEP: u64 = 20_000;
/// How long to pause at most where an offer may come and pass.
pub(super) const LOOK: Duration = Duration::from_millis(400);

/// The queue as it is stored.
#[derive(Debug, Default)]
pub(super) struct StoredQueue {
    turns: Vec<(String, String)>,
    queue: Vec<(String, String)>,
    said: Vec<(String, String)>,
}

/// Reads the waiters that the rules concern.
pub(super) fn read_turns(pipeline: &mut Pipeline, names: &RedisNames) {
    pipeline.cmd("HGETALL").arg(&names.turns);
}

/// Reads all other waiters.
pub(super) fn read_queue(pipeline: &mut Pipeline, names: &RedisNames) {
    pipeline.cmd("ZRANGE").arg(&names.queue).arg(0).arg(-1).arg("WITHSCORES").cmd("HGETALL").arg(&names.waiters);
}

impl StoredQueue {
    /// From the replies to [`read_turns`] and, if that was asked, [`read_queue`].
    pub(super) fn read(turns: &Value, queue: &[Value]) -> Result<Self> {
        let pairs = |reply: &Value| Ok::<_, Error>(readable(reply)?.and_then(reply::pairs).unwrap_or_default());
        let mut line = Self { turns: pairs(turns)?, ..Self::default() };
        if let [queue, said] = queue {
            (line.queue, line.said) = (pairs(queue)?, pairs(said)?);
        }
        Ok(line)
    }

    /// Whether the rules concern no waiter.
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Puts all waiters into a document without a queue, in the order of their arrival.
    pub(super) fn fill(&self, document: &mut Document) {
        let mut all: Vec<(u64, &str, Option<&str>)> = Vec::new();
        for (hold, text) in self.turns.iter().filter(|(hold, _)| !hold.starts_with("c:")) {
            if let Some((micros, json)) = text.split_once(':')
                && let Ok(micros) = micros.parse()
            {
                all.push((micros, hold, Some(json)));
            }
        }
        all.extend(self.queue.iter().filter_map(|(hold, micros)| Some((micros.parse().ok()?, &**hold, None))));
        all.sort_unstable();
        for (micros, hold, json) in all {
            if let Some(json) = json {
                if let Ok(waiter) = serde_json::from_str(json) {
                    document.enqueue(waiter);
                }
            } else if let Some((seen, metadata)) = said_of(&self.said, hold) {
                document.absorb(hold.to_owned(), metadata, micros / 1000, seen);
            }
        }
        for (name, since) in &self.turns {
            if let (Some(hold), Ok(since)) = (name.strip_prefix("c:"), since.parse()) {
                document.offer(hold, since);
            }
        }
    }

    /// Ends all offers, since the lock is granted.
    pub(super) fn clear(&self, pipeline: &mut Pipeline, names: &RedisNames) {
        let calls: Vec<&str> = self.turns.iter().map(|(name, _)| &**name).filter(|name| name.starts_with("c:")).collect();
        if !calls.is_empty() {
            pipeline.cmd("HDEL").arg(&names.turns).arg(calls);
        }
    }

    /// Writes what a request in vain made of the queue.
    pub(super) fn write(
        &self,
        pipeline: &mut Pipeline,
        names: &RedisNames,
        request: &Request,
        queue: [&[QueueEntry]; 2],
        now_us: u64,
    ) -> Result<()> {
        let (own, now, [before, after]) = (request.token.hold_text(), now_us / 1000, queue);
        for waiter in after {
            let known = before.iter().find(|known| known.hold == waiter.hold);
            match (known.and_then(|known| known.offered), waiter.offered) {
                (None, Some(since)) => {
                    pipeline.cmd("HSET").arg(&names.turns).arg(format!("c:{}", waiter.hold)).arg(since);
                    pipeline.cmd("PEXPIRE").arg(&names.turns).arg(KEEP);
                }
                (Some(_), None) => {
                    pipeline.cmd("HDEL").arg(&names.turns).arg(format!("c:{}", waiter.hold));
                }
                _ => {}
            }
            let known = known.filter(|known| known.since == waiter.since);
            if waiter.hold != own || known.is_some_and(|known| now.saturating_sub(known.seen) < SIGN) {
                continue;
            }
            if !in_order(request) {
                super::queue::add(pipeline, names, request, now_us);
                continue;
            }
            let arrived = known.and_then(|_| self.arrival(&own)).unwrap_or(now_us);
            let json = to_json(&QueueEntry { offered: None, ..waiter.clone() })?;
            pipeline.cmd("HSET").arg(&names.turns).arg(&own).arg(format!("{arrived}:{json}"));
            pipeline.cmd("PEXPIRE").arg(&names.turns).arg(KEEP);
        }
        Ok(())
    }

    fn arrival(&self, hold: &str) -> Option<u64> {
        self.turns.iter().find(|(name, _)| name == hold)?.1.split_once(':')?.0.parse().ok()
    }
}

/// Removes waiters that died, or have let their offers pass.
pub(super) fn remove_gone(pipeline: &mut Pipeline, names: &RedisNames, own: Option<&str>, [before, after]: [&[QueueEntry]; 2]) {
    for gone in before.iter().filter(|known| Some(&*known.hold) != own && after.iter().all(|other| other.hold != known.hold)) {
        remove(pipeline, names, &gone.hold, gone.is_plain());
    }
}

/// Removes a waiter.
pub(super) fn remove(pipeline: &mut Pipeline, names: &RedisNames, hold: &str, plain: bool) {
    if plain {
        pipeline.cmd("ZREM").arg(&names.queue).arg(hold).cmd("HDEL").arg(&names.waiters).arg(hold);
    } else {
        pipeline.cmd("HDEL").arg(&names.turns).arg(hold).arg(format!("c:{hold}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    }

    #[test]
    fn all_who_wait_stand_in_one_line() {
        let reader = r#"{"h":"bb","m":"s","b":1000,"l":1500}"#;
        let fair = r#"{"h":"dd","m":"x","f":true,"b":1000,"l":1000}"#;
        let line = StoredQueue {
            turns: pairs(&[
                ("dd", &format!("1000900:{fair}")),
                ("c:cc", "1600"),
                ("bb", &format!("1000100:{reader}")),
                ("ee", "1000200:of a newer dlock"),
                ("c:zz", "1600"),
            ]),
            queue: pairs(&[("aa", "1000300"), ("cc", "1000400"), ("ff", "1000500")]),
            said: pairs(&[("cc", "1500:"), ("aa", "1700:")]),
        };
        let mut document = Document::default();
        line.fill(&mut document);
        let places = document.queue().to_vec();
        let told: Vec<_> = places.iter().map(|place| (&*place.hold, place.is_plain(), place.offered)).collect();
        assert_eq!(told, [("bb", false, None), ("aa", true, None), ("cc", true, Some(1600)), ("dd", false, None)]);
        assert_eq!((&*serde_json::to_string(&places[0]).unwrap(), line.arrival("bb")), (reader, Some(1_000_100)));
        document.expire(16_200);
        assert_eq!(document.queue().len(), 3, "a waiter that has not asked for so long is gone");
        let mut clear = Pipeline::new();
        line.clear(&mut clear, &RedisNames::new(&crate::lock::Namespace::default(), &crate::lock::Key::new("job").unwrap()).unwrap());
        assert_eq!(clear.len(), 1);
    }
}
