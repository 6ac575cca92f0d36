//! The queue for shared requests, permits and fair order.
//!
//! Unfair exclusive waiters are in the list of `queue.rs`. All others are in the hash `…:turns`: by
//! hold, the arrival in µs and the [`QueueEntry`]. The field `c:<hold>` has the time since which
//! the lock is offered to a waiter of either kind. Each client writes only its own waiter, its own
//! offers, and the removal of dead waiters, without comparing. Only comparing grants the lock.
//!
//! No waiter is woken: each polls, faster than an offer ends. A waiter that blocks others finds out
//! that an earlier one is dead. Waiting never keeps users of other libraries out.
//!
//! # Worst cases
//! - *A waiter joins or leaves while another one decides*: the decision uses the queue as it was
//!   read.
//! - *Two clients write one waiter's data*: its entry and its offer are two fields. A live waiter
//!   that was removed joins again, and keeps its position if it wrote last.
//! - *An offer comes late, after the grant*: it names a hold that is no longer in any queue.

use std::time::Duration;

use ::redis::{Pipeline, Value};

use super::value::readable;
use crate::{
    backends::{
        cas::in_order,
        redis::{history::to_json, names::RedisNames, reply},
    },
    lock::{
        Error, Metadata, Request, Result,
        document::{Document, QueueEntry},
    },
};

/// The ms after which a waiter repeats its sign of life: at most a third of the silence after which
/// it counts as dead.
const SIGN: u64 = 3_000;
/// The ms for which an entry is kept without a new write.
const KEEP: u64 = 20_000;
/// The longest pause of a waiter that may get an offer, which is short-lived.
pub(super) const LOOK: Duration = Duration::from_millis(400);

/// The queue as stored.
#[derive(Debug, Default)]
pub(super) struct StoredQueue {
    ordered: Vec<(String, String)>,
    queue: Vec<(String, String)>,
    infos: Vec<(String, String)>,
}

/// Adds the command that reads `…:turns`.
pub(super) fn read_ordered(pipeline: &mut Pipeline, names: &RedisNames) {
    pipeline.cmd("HGETALL").arg(&names.tair_queue);
}

/// Adds the commands that read the unfair exclusive waiters.
pub(super) fn read_queue(pipeline: &mut Pipeline, names: &RedisNames) {
    pipeline
        .cmd("ZRANGE")
        .arg(&names.queue)
        .arg(0)
        .arg(-1)
        .arg("WITHSCORES")
        .cmd("HGETALL")
        .arg(&names.waiters);
}

impl StoredQueue {
    /// Reads the replies to [`read_ordered`] and, if it was sent, [`read_queue`].
    pub(super) fn read(ordered: &Value, queue: &[Value]) -> Result<Self> {
        let pairs = |reply: &Value| {
            Ok::<_, Error>(readable(reply)?.and_then(reply::pairs).unwrap_or_default())
        };
        let mut stored_queue = Self {
            ordered: pairs(ordered)?,
            ..Self::default()
        };
        if let [queue, infos] = queue {
            (stored_queue.queue, stored_queue.infos) = (pairs(queue)?, pairs(infos)?);
        }
        Ok(stored_queue)
    }

    /// Whether `…:turns` has no waiter and no offer.
    pub(super) fn is_empty(&self) -> bool {
        self.ordered.is_empty()
    }

    /// Adds all waiters to a document without a queue, in order of arrival.
    pub(super) fn fill(&self, document: &mut Document) {
        let mut all: Vec<(u64, &str, Option<&str>)> = Vec::new();
        for (hold, text) in self
            .ordered
            .iter()
            .filter(|(hold, _)| !hold.starts_with("c:"))
        {
            if let Some((micros, json)) = text.split_once(':')
                && let Ok(micros) = micros.parse()
            {
                all.push((micros, hold, Some(json)));
            }
        }
        all.extend(
            self.queue
                .iter()
                .filter_map(|(hold, micros)| Some((micros.parse().ok()?, &**hold, None))),
        );
        all.sort_unstable();
        for (micros, hold, json) in all {
            if let Some(json) = json {
                if let Ok(waiter) = serde_json::from_str(json) {
                    document.enqueue(waiter);
                }
            } else if let Some((seen, metadata)) = waiter_info(&self.infos, hold) {
                document.absorb(hold.to_owned(), metadata, micros / 1000, seen);
            }
        }
        for (name, since) in &self.ordered {
            if let (Some(hold), Ok(since)) = (name.strip_prefix("c:"), since.parse()) {
                document.offer(hold, since);
            }
        }
    }

    /// Removes all offers, after a grant.
    pub(super) fn clear(&self, pipeline: &mut Pipeline, names: &RedisNames) {
        let offers: Vec<&str> = self
            .ordered
            .iter()
            .map(|(name, _)| &**name)
            .filter(|name| name.starts_with("c:"))
            .collect();
        if !offers.is_empty() {
            pipeline.cmd("HDEL").arg(&names.tair_queue).arg(offers);
        }
    }

    /// Writes the queue's changes after a request that was not granted.
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
                    pipeline
                        .cmd("HSET")
                        .arg(&names.tair_queue)
                        .arg(format!("c:{}", waiter.hold))
                        .arg(since);
                    pipeline.cmd("PEXPIRE").arg(&names.tair_queue).arg(KEEP);
                }
                (Some(_), None) => {
                    pipeline
                        .cmd("HDEL")
                        .arg(&names.tair_queue)
                        .arg(format!("c:{}", waiter.hold));
                }
                _ => {}
            }
            let known = known.filter(|known| known.since == waiter.since);
            if waiter.hold != own
                || known.is_some_and(|known| now.saturating_sub(known.seen) < SIGN)
            {
                continue;
            }
            if !in_order(request) {
                add(pipeline, names, request, now_us);
                continue;
            }
            let arrived = known.and_then(|_| self.arrival(&own)).unwrap_or(now_us);
            let json = to_json(&QueueEntry {
                offered: None,
                ..waiter.clone()
            })?;
            pipeline
                .cmd("HSET")
                .arg(&names.tair_queue)
                .arg(&own)
                .arg(format!("{arrived}:{json}"));
            pipeline.cmd("PEXPIRE").arg(&names.tair_queue).arg(KEEP);
        }
        Ok(())
    }

    fn arrival(&self, hold: &str) -> Option<u64> {
        self.ordered
            .iter()
            .find(|(name, _)| name == hold)?
            .1
            .split_once(':')?
            .0
            .parse()
            .ok()
    }
}

/// Adds the commands that join the list of unfair exclusive waiters or renew the waiter's sign of
/// life.
pub(super) fn add(pipeline: &mut Pipeline, names: &RedisNames, request: &Request, now_us: u64) {
    let ms = now_us / 1000;
    let hold = request.token.hold_text();
    // Metadata has only texts and numbers, so serializing can't fail.
    let metadata = request
        .metadata
        .as_ref()
        .and_then(|metadata| serde_json::to_string(metadata).ok())
        .unwrap_or_default();
    pipeline
        .cmd("ZADD")
        .arg(&names.queue)
        .arg("NX")
        .arg(now_us)
        .arg(&hold);
    pipeline
        .cmd("HSET")
        .arg(&names.waiters)
        .arg(&hold)
        .arg(format!("{ms}:{metadata}"));
    pipeline
        .cmd("PEXPIRE")
        .arg(&names.queue)
        .arg(20_000)
        .cmd("PEXPIRE")
        .arg(&names.waiters)
        .arg(20_000);
}

/// Returns when a waiter gave its last sign of life, and its metadata.
fn waiter_info(infos: &[(String, String)], hold: &str) -> Option<(u64, Option<Metadata>)> {
    let (seen, metadata) = infos
        .iter()
        .find(|(who, _)| who == hold)?
        .1
        .split_once(':')?;
    Some((seen.parse().ok()?, serde_json::from_str(metadata).ok()))
}

/// Removes waiters that died or missed their offers.
pub(super) fn remove_gone(
    pipeline: &mut Pipeline,
    names: &RedisNames,
    own: Option<&str>,
    [before, after]: [&[QueueEntry]; 2],
) {
    for gone in before.iter().filter(|known| {
        Some(&*known.hold) != own && after.iter().all(|other| other.hold != known.hold)
    }) {
        remove(pipeline, names, &gone.hold, gone.is_plain());
    }
}

/// Removes a waiter.
pub(super) fn remove(pipeline: &mut Pipeline, names: &RedisNames, hold: &str, plain: bool) {
    if plain {
        pipeline
            .cmd("ZREM")
            .arg(&names.queue)
            .arg(hold)
            .cmd("HDEL")
            .arg(&names.waiters)
            .arg(hold);
    } else {
        pipeline
            .cmd("HDEL")
            .arg(&names.tair_queue)
            .arg(hold)
            .arg(format!("c:{hold}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect()
    }

    #[test]
    fn all_waiters_are_in_one_queue() {
        let reader = r#"{"h":"bb","m":"s","b":1000,"l":1500}"#;
        let fair = r#"{"h":"dd","m":"x","f":true,"b":1000,"l":1000}"#;
        let stored_queue = StoredQueue {
            ordered: pairs(&[
                ("dd", &format!("1000900:{fair}")),
                ("c:cc", "1600"),
                ("bb", &format!("1000100:{reader}")),
                ("ee", "1000200:of a newer dlock"),
                ("c:zz", "1600"),
            ]),
            queue: pairs(&[("aa", "1000300"), ("cc", "1000400"), ("ff", "1000500")]),
            infos: pairs(&[("cc", "1500:"), ("aa", "1700:")]),
        };
        let mut document = Document::default();
        stored_queue.fill(&mut document);
        let places = document.queue().to_vec();
        let told: Vec<_> = places
            .iter()
            .map(|place| (&*place.hold, place.is_plain(), place.offered))
            .collect();
        assert_eq!(
            told,
            [
                ("bb", false, None),
                ("aa", true, None),
                ("cc", true, Some(1600)),
                ("dd", false, None)
            ]
        );
        assert_eq!(
            (
                &*serde_json::to_string(&places[0]).unwrap(),
                stored_queue.arrival("bb")
            ),
            (reader, Some(1_000_100))
        );
        document.expire(16_200);
        assert_eq!(
            document.queue().len(),
            3,
            "a waiter that has not asked for so long is gone"
        );
        let mut clear = Pipeline::new();
        stored_queue.clear(
            &mut clear,
            &RedisNames::new(
                &crate::lock::Namespace::default(),
                &crate::lock::Key::new("job").unwrap(),
            )
            .unwrap(),
        );
        assert_eq!(clear.len(), 1);
    }
}
