//! The outbox and the log. They are not written atomically with the lock:
//!
//! - `…:record`: the outbox, a hash with each hold's history entry by fence. The grant adds the
//!   entry, the release adds the outcome, and moving it to the log removes it. The next grant finds
//!   a vanished hold here.
//! - `…:runs`, `…:bad-runs`: the log, lists of finished holds, as on Redis.
//! - `…:skips`: a hash with `n:<host>` (the count), `s:<host>` (the first time) and `l:<host>`
//!   (`<time>:<reason>` of the last).
//!
//! # Worst cases
//! - *A release finds that the lock has another holder or another value*: its outcome is already in
//!   the outbox, and is undone after the reply.
//! - *The packet after a release is lost*, which moves the entry to the log: the next grant moves
//!   it.
//! - *Two clients move one entry*: it is in the log twice, and is reported once.

use ::redis::{Pipeline, Value};

use super::{TairStore, value::readable};
use crate::{
    backends::redis::{failure, history::to_json, names::RedisNames, reply},
    lock::{
        Fence, HistoryEntry, Key, Note, REMEMBERED, Result, SKIPPING_HOSTS, SkipCount,
        document::Document, forgotten_hosts,
    },
};

/// How long entries are kept after the last run, in ms.
const KEEP: u64 = 100 * 24 * 3600 * 1000;

/// Adds the command that reads the outbox.
pub(super) fn read_outbox(pipeline: &mut Pipeline, names: &RedisNames) {
    pipeline.cmd("HGETALL").arg(&names.record);
}

/// Adds the entries of holds that have ended to the document, from the reply to [`read_outbox`].
pub(super) fn fill(document: &mut Document, reply: &Value) -> Result<()> {
    let there: Vec<Fence> = document.fences().collect();
    for (_, line) in readable(reply)?.and_then(reply::pairs).unwrap_or_default() {
        // An entry that can't be parsed, such as a newer version's, is left out.
        if let Ok(past) = serde_json::from_str::<HistoryEntry>(&line)
            && past.fence.is_some_and(|fence| !there.contains(&fence))
        {
            document.add_ended(past);
        }
    }
    Ok(())
}

/// Writes an entry into the outbox.
pub(super) fn note_begun(
    pipeline: &mut Pipeline,
    names: &RedisNames,
    fence: Fence,
    past: &HistoryEntry,
) -> Result<()> {
    pipeline
        .cmd("HSET")
        .arg(&names.record)
        .arg(fence.0)
        .arg(to_json(past)?);
    pipeline.cmd("PEXPIRE").arg(&names.record).arg(KEEP);
    Ok(())
}

/// Removes an entry from the outbox.
pub(super) fn forget(pipeline: &mut Pipeline, names: &RedisNames, fence: Fence) {
    pipeline.cmd("HDEL").arg(&names.record).arg(fence.0);
}

/// Moves an entry from the outbox to the log.
pub(super) fn archive(
    pipeline: &mut Pipeline,
    names: &RedisNames,
    past: &HistoryEntry,
) -> Result<()> {
    let line = to_json(past)?;
    for list in [
        Some(&names.runs),
        past.end.is_bad().then_some(&names.bad_runs),
    ]
    .into_iter()
    .flatten()
    {
        pipeline
            .cmd("LPUSH")
            .arg(list)
            .arg(&line)
            .cmd("LTRIM")
            .arg(list)
            .arg(0)
            .arg(REMEMBERED - 1);
        pipeline.cmd("PEXPIRE").arg(list).arg(KEEP);
    }
    if let Some(fence) = past.fence {
        forget(pipeline, names, fence);
    }
    Ok(())
}

impl TairStore {
    pub(super) async fn read_log(
        &mut self,
        key: &Key,
    ) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
        let names = self.names(key)?;
        let mut look = ::redis::pipe();
        look.cmd("LRANGE")
            .arg(&names.runs)
            .arg(0)
            .arg(-1)
            .cmd("LRANGE")
            .arg(&names.bad_runs)
            .arg(0)
            .arg(-1);
        look.cmd("HGETALL").arg(&names.skips);
        let replies = self.look(&look).await?;
        let [runs, bad, skips] = &*replies else {
            return Err(failure::unreadable());
        };
        let mut past = Vec::new();
        for list in [runs, bad] {
            if let Value::ServerError(error) = list {
                return Err(failure::refused(error));
            }
            let lines = reply::items(list)
                .unwrap_or_default()
                .iter()
                .filter_map(reply::text);
            past.extend(lines.filter_map(|line| serde_json::from_str::<HistoryEntry>(&line).ok()));
        }
        Ok((
            past,
            read_skips(&readable(skips)?.and_then(reply::pairs).unwrap_or_default()),
        ))
    }

    pub(super) async fn remember(&mut self, key: &Key, note: &Note) -> Result<()> {
        let names = self.names(key)?;
        let mut step = ::redis::pipe();
        match note {
            Note::Lost(past) => {
                archive(&mut step, &names, past)?;
            }
            Note::Skipped {
                host,
                reason,
                at_ms,
            } => {
                let mut look = ::redis::pipe();
                look.cmd("HLEN")
                    .arg(&names.skips)
                    .cmd("HGET")
                    .arg(&names.skips)
                    .arg(format!("n:{host}"));
                let replies = self.look(&look).await?;
                let [count, known] = &*replies else {
                    return Err(failure::unreadable());
                };
                let count = readable(count)?
                    .and_then(reply::int)
                    .and_then(|count| usize::try_from(count).ok())
                    .unwrap_or_default();
                if matches!(known, Value::Nil) && count >= 3 * SKIPPING_HOSTS {
                    let mut look = ::redis::pipe();
                    look.cmd("HGETALL").arg(&names.skips);
                    let replies = self.look(&look).await?;
                    let fields = replies
                        .first()
                        .map_or(Ok(None), readable)?
                        .and_then(reply::pairs)
                        .unwrap_or_default();
                    let mut hosts: Vec<_> = read_skips(&fields)
                        .into_iter()
                        .map(|skips| (skips.last_ms, skips.host))
                        .collect();
                    hosts.push((Some(u64::MAX), host.clone()));
                    for gone in forgotten_hosts(hosts) {
                        step.cmd("HDEL").arg(&names.skips).arg(
                            ["n", "s", "l"]
                                .map(|field| format!("{field}:{gone}"))
                                .to_vec(),
                        );
                    }
                }
                step.cmd("HINCRBY")
                    .arg(&names.skips)
                    .arg(format!("n:{host}"))
                    .arg(1);
                step.cmd("HSETNX")
                    .arg(&names.skips)
                    .arg(format!("s:{host}"))
                    .arg(at_ms);
                step.cmd("HSET")
                    .arg(&names.skips)
                    .arg(format!("l:{host}"))
                    .arg(format!("{at_ms}:{reason}"));
                step.cmd("PEXPIRE").arg(&names.skips).arg(KEEP);
            }
        }
        let replies = self.run(&step, false).await?;
        match replies
            .iter()
            .find(|reply| matches!(reply, Value::ServerError(_)))
        {
            Some(Value::ServerError(error)) => Err(failure::refused(error)),
            _ => Ok(()),
        }
    }
}

fn read_skips(fields: &[(String, String)]) -> Vec<SkipCount> {
    let of = |name: String| {
        fields
            .iter()
            .find(|(field, _)| *field == name)
            .map(|(_, value)| value.as_str())
    };
    let hosts = fields
        .iter()
        .filter_map(|(field, count)| Some((field.strip_prefix("n:")?, count.parse().ok()?)));
    let read = |(host, count): (&str, u64)| {
        let (last, reason) = of(format!("l:{host}")).and_then(|last| last.split_once(':'))?;
        let since_ms = of(format!("s:{host}")).and_then(|since| since.parse().ok());
        Some(SkipCount {
            host: host.to_owned(),
            count,
            since_ms,
            last_ms: last.parse().ok(),
            reason: reason.to_owned(),
        })
    };
    hosts.filter_map(read).collect()
}
