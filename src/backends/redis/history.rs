//! A lock's history on a server, and breaks of current holds.

use redis::Value;

use super::{
    Redis, answer, failure, flag,
    names::RedisNames,
    reading::{read_time, readable},
    reply, script, starts,
    state::read_shares,
};
use crate::lock::{
    Break, Fence, History, HistoryEntry, Key, Kind, Note, ReleaseInfo, Result, SKIPPING_HOSTS,
    SkipCount,
};

/// The number of replies that [`read_history`] needs.
pub(in crate::backends) const HISTORY_READS: usize = 5;

impl Redis {
    pub(super) async fn ask_note(&mut self, key: &Key, note: &Note) -> Result<()> {
        let names = self.names(key)?;
        let keys = [
            &*names.lock,
            &names.record,
            &names.runs,
            &names.bad_runs,
            &names.skips,
            &names.starts,
            &names.shares,
            &names.ends,
        ];
        let most = SKIPPING_HOSTS.to_string();
        let (fence, line);
        let arguments: Vec<&str> = match note {
            Note::Skipped { host, reason, .. } => vec!["skipped", host, reason, &most],
            Note::Lost(past) => {
                fence = past
                    .fence
                    .map(|fence| fence.to_string())
                    .unwrap_or_default();
                line = to_json(past)?;
                vec!["lost", &fence, &line]
            }
        };
        self.eval(&script::NOTE, &keys, &arguments).await?;
        Ok(())
    }

    pub(super) async fn ask_warning(
        &mut self,
        key: &Key,
        fence: Fence,
        level: u32,
    ) -> Result<bool> {
        let names = self.names(key)?;
        let keys = [
            &*names.lock,
            &names.record,
            &names.runs,
            &names.bad_runs,
            &names.skips,
            &names.starts,
            &names.shares,
            &names.ends,
        ];
        let reply = self
            .eval(
                &script::NOTE,
                &keys,
                &["warn", &fence.to_string(), &level.to_string()],
            )
            .await?;
        reply::int(&reply)
            .map(|new| new == 1)
            .ok_or_else(failure::unreadable)
    }

    pub(super) async fn ask_break(
        &mut self,
        key: &Key,
        fence: Fence,
        mark: &Break,
        at_once: bool,
    ) -> Result<bool> {
        let names = self.names(key)?;
        let runs = [
            &*names.runs,
            &names.bad_runs,
            &names.shares,
            &names.ends,
            &names.ordered_queue,
            &names.wake_ordered,
        ];
        let keys = [
            &[&*names.lock, &names.record, &names.queue, &names.wake],
            &runs[..],
        ]
        .concat();
        let (fence, json) = (fence.to_string(), to_json(mark)?);
        let sharded = flag(self.is_cluster());
        let told = [
            &*names.channel,
            &names.rw_channel,
            sharded,
            &names.wakes,
            &names.fair_queue,
        ];
        let arguments = [&[&*fence, &json, flag(at_once)], &told[..]].concat();
        let reply = self.eval(&script::BREAK, &keys, &arguments).await?;
        read_marking(&reply)
    }

    pub(super) async fn read_history(&mut self, key: &Key) -> Result<History> {
        let names = self.names(key)?;
        let mut pipeline = redis::pipe();
        add_history_reads(&mut pipeline, &names);
        pipeline
            .cmd("HGETALL")
            .arg(&names.record)
            .cmd("HRANDFIELD")
            .arg(&names.lock)
            .arg(16);
        pipeline.cmd("HVALS").arg(&names.shares);
        let replies = self.look(&names.lock, &pipeline).await?;
        let (history, [record, lock, shares]) = replies.split_at(HISTORY_READS) else {
            return Err(failure::unreadable());
        };
        let record = readable(record)?.and_then(reply::pairs).unwrap_or_default();
        let of_record = |name: &str| {
            record
                .iter()
                .find(|(field, _)| field == name)
                .map(|(_, value)| value.as_str())
        };
        // A value that is no hash is a foreign lock. Bounded: with an empty namespace it may be
        // another program's huge hash.
        let fields = readable(lock)?.and_then(reply::items).unwrap_or_default();
        let field = of_record("owner").map(|owner| format!("{owner}:1:write"));
        let held = fields
            .iter()
            .any(|field_there| reply::text(field_there) == field);
        let mut over: Vec<HistoryEntry> = if held {
            None
        } else {
            vanished(of_record, &record)
        }
        .into_iter()
        .collect();
        let now = history.first().and_then(read_time);
        for share in read_shares(readable(shares)?.unwrap_or(&Value::Nil)) {
            let there = fields.len() >= 16
                || fields
                    .iter()
                    .any(|field| reply::text(field) == Some(share.field()));
            if !there || now.is_some_and(|now| !share.is_live(now)) {
                over.extend(vanished(|name| share.of(name), &share.0));
            }
        }
        read_history(history, over)
    }
}

/// Adds the commands whose replies [`read_history`] reads.
pub(in crate::backends) fn add_history_reads(pipeline: &mut redis::Pipeline, names: &RedisNames) {
    pipeline
        .cmd("TIME")
        .cmd("LRANGE")
        .arg(&names.runs)
        .arg(0)
        .arg(-1)
        .cmd("LRANGE")
        .arg(&names.bad_runs)
        .arg(0)
        .arg(-1);
    pipeline
        .cmd("HGETALL")
        .arg(&names.skips)
        .cmd("HGETALL")
        .arg(&names.starts);
}

/// Reads a history from the replies to [`add_history_reads`], and adds the vanished holds that were
/// not archived since.
pub(in crate::backends) fn read_history(
    replies: &[Value],
    vanished: impl IntoIterator<Item = HistoryEntry>,
) -> Result<History> {
    let [time, runs, bad, skips, starts] = replies else {
        return Err(failure::unreadable());
    };
    let now = readable(time)?
        .and_then(read_time)
        .and_then(|now| u64::try_from(now).ok());
    let mut found = Vec::new();
    for list in [runs, bad] {
        if let Value::ServerError(error) = list {
            return Err(failure::refused(error));
        }
        for line in reply::items(list).unwrap_or_default() {
            // An entry that can't be parsed, such as a newer version's, is left out.
            found.extend(
                reply::text(line).and_then(|line| serde_json::from_str::<HistoryEntry>(&line).ok()),
            );
        }
    }
    // A vanished hold ended with its lease, but not later than now.
    found.extend(vanished.into_iter().map(|past| {
        HistoryEntry {
            ended_ms: past
                .ended_ms
                .zip(now)
                .map(|(ended, now)| ended.min(now))
                .or(past.ended_ms),
            ..past
        }
    }));
    let skips = readable(skips)?.and_then(reply::pairs).unwrap_or_default();
    let starts = readable(starts)?.and_then(reply::pairs).unwrap_or_default();
    let skips = skips
        .into_iter()
        .filter_map(|(host, told)| read_skips(host, &told))
        .collect();
    Ok(History {
        record: starts::read_record(&starts),
        ..History::new(found, skips)
    })
}

/// Reads `<count>:<since ms>:<last ms>:<reason>`.
fn read_skips(host: String, told: &str) -> Option<SkipCount> {
    let mut parts = told.splitn(4, ':');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (count, since_ms, last_ms) = (number()?, number(), number());
    Some(SkipCount {
        host,
        count,
        since_ms,
        last_ms,
        reason: parts.next()?.to_owned(),
    })
}

/// Returns the history entry of a record's hold that was never released.
pub(in crate::backends) fn vanished<'a>(
    of_record: impl Fn(&str) -> Option<&'a str>,
    record: &[(String, String)],
) -> Option<HistoryEntry> {
    let fence = of_record("fence")?.parse().ok().map(Fence)?;
    let ends = record
        .iter()
        .filter(|(field, _)| field.starts_with("hold:"))
        .filter_map(|(_, value)| value.split(':').next()?.parse().ok());
    let mark: Option<Break> = of_record("mark").and_then(|mark| serde_json::from_str(mark).ok());
    let metadata = of_record("meta").and_then(|json| serde_json::from_str(json).ok());
    Some(HistoryEntry {
        started_ms: of_record("since").and_then(|since| since.parse().ok()),
        ended_ms: ends.max(),
        ..HistoryEntry::unreleased(Some(fence), mark.as_ref(), metadata)
    })
}

/// Returns how a hold ended as the end of a history entry: the JSON of a [`HistoryEntry`] from its
/// `"x":` on, without the brace; empty to write none.
pub(in crate::backends) fn how(info: &ReleaseInfo) -> Result<String> {
    let Some(end) = &info.end else {
        return Ok(String::new());
    };
    let outcome = info.outcome.as_ref().map(to_json).transpose()?;
    let outcome = outcome.map(|json| format!(",\"o\":{json}"));
    Ok(format!(
        "\"x\":{}{}",
        to_json(end)?,
        outcome.unwrap_or_default()
    ))
}

pub(in crate::backends) fn read_marking(reply: &Value) -> Result<bool> {
    let (answer, rest) = answer(reply)?;
    match (&*answer, rest) {
        ("done", []) => Ok(true),
        ("changed", []) => Ok(false),
        ("layout", [version]) => Err(failure::newer_layout(
            &reply::text(version).unwrap_or_default(),
        )),
        _ => Err(failure::unreadable()),
    }
}

pub(in crate::backends) fn to_json(value: &(impl serde::Serialize + ?Sized)) -> Result<String> {
    serde_json::to_string(value).map_err(|error| {
        crate::lock::Error::new(Kind::Internal, "it can't be written as JSON").source(error)
    })
}
