//! What is remembered of holds that are over. There is no step that does it together with freeing the lock, so that it comes in the same
//! packet:
//!
//! - `…:record`: a hash with a field for each hold, by its fence, which says what is to be remembered of it should it vanish. It comes
//!   with the fence, and goes with the hold.
//! - `…:runs`, `…:bad-runs`: lists of holds that are over, as on Redis.
//! - `…:skips`: a hash with `n:<host>` (how often), `s:<host>` (since when) and `l:<host>` (`<when>:<reason>` of the last).
//!
//! # Worst cases
//! - *A release is sent and the lock is not ours any more, or not ours alone*: that it ended as we say is remembered all the same, and
//!   taken back once the answer is there.
//! - *A grant comes between a release and what it remembers*: it takes the hold for vanished and says so; but the release knows better, and
//!   counts.
//! - *A packet is not executed to its end* (no memory, no right): the lock's own commands come first.

use ::redis::{Pipeline, Value};

use super::{
    Tair, changed_meanwhile,
    record::Record,
    shares::Step,
    starts::{self, Starts},
    value::{Compared, READS, Seen, Stored, What, compared, readable},
};
use crate::{
    backends::redis::{failure, history::to_json, names::Names, reply},
    lock::{Break, End, Fence, History, Key, Marking, Note, Parting, Past, REMEMBERED, Result, SKIPPING_HOSTS, Skips},
};

/// For how many ms after the last run.
const KEEP: u64 = 100 * 24 * 3600 * 1000;

/// Remembers a hold that is over.
fn remember(pipeline: &mut Pipeline, names: &Names, line: &str, bad: bool) {
    for list in [Some(&names.runs), bad.then_some(&names.bad_runs)].into_iter().flatten() {
        pipeline.cmd("LPUSH").arg(list).arg(line).cmd("LTRIM").arg(list).arg(0).arg(REMEMBERED - 1);
        pipeline.cmd("PEXPIRE").arg(list).arg(KEEP);
    }
}

/// Notes a hold that has begun, or changed.
pub(super) fn note_begun(pipeline: &mut Pipeline, names: &Names, record: &Record) -> Result<()> {
    note_hold(pipeline, names, Fence(record.fence.unwrap_or_default()), &record.vanished())
}

/// Notes what is to be remembered of a hold should it vanish.
pub(super) fn note_hold(pipeline: &mut Pipeline, names: &Names, fence: Fence, vanished: &Past) -> Result<()> {
    pipeline.cmd("HSET").arg(&names.record).arg(fence.0).arg(to_json(vanished)?);
    pipeline.cmd("PEXPIRE").arg(&names.record).arg(KEEP);
    Ok(())
}

/// Remembers holds that vanished, of all that are noted in the reply to [`read_begun`], but for those who have the lock.
pub(super) fn note_vanished(pipeline: &mut Pipeline, names: &Names, begun: &Value, there: &[Fence]) {
    let noted = reply::pairs(begun).unwrap_or_default().into_iter();
    for (fence, line) in noted.filter(|(fence, _)| there.iter().all(|other| other.to_string() != *fence)) {
        remember(pipeline, names, &line, true);
        pipeline.cmd("HDEL").arg(&names.record).arg(fence);
    }
}

/// Asks which holds are noted.
pub(super) fn read_begun(pipeline: &mut Pipeline, names: &Names) {
    pipeline.cmd("HGETALL").arg(&names.record);
}

/// Remembers a hold that is given back; returns the line that [`take_back`] removes.
pub(super) fn note_over(
    pipeline: &mut Pipeline,
    names: &Names,
    record: &Record,
    now: Option<i64>,
    parting: &Parting,
) -> Result<Option<String>> {
    let Some(fence) = record.fence else { return Ok(None) };
    let mut said = None;
    if let Some(end) = &parting.end {
        let now = now.and_then(|now| u64::try_from(now).ok());
        let by_length = record.since.and_then(|since| u64::try_from(since).ok()).zip(parting.held_ms).map(|(since, held)| since + held);
        let past = record.past(now.or(by_length).or(parting.at_ms), end.clone(), parting.why.clone());
        let line = to_json(&past)?;
        remember(pipeline, names, &line, end.is_bad());
        said = Some(line);
    }
    pipeline.cmd("HDEL").arg(&names.record).arg(fence);
    Ok(said)
}

/// Remembers how a share ended, if it is told; returns the line that [`take_back`] removes.
pub(super) fn note_end(pipeline: &mut Pipeline, names: &Names, fence: Fence, past: Option<&Past>) -> Result<Option<String>> {
    let line = past.map(to_json).transpose()?;
    if let (Some(past), Some(line)) = (past, &line) {
        remember(pipeline, names, line, past.end.is_bad());
    }
    pipeline.cmd("HDEL").arg(&names.record).arg(fence.0);
    Ok(line)
}

/// Forgets the end of a hold that did not end so.
pub(super) fn take_back(pipeline: &mut Pipeline, names: &Names, line: &str) {
    for list in [&names.runs, &names.bad_runs] {
        pipeline.cmd("LREM").arg(list).arg(1).arg(line);
    }
}

impl Tair {
    pub(super) async fn read_history(&mut self, key: &Key) -> Result<History> {
        let names = self.names(key);
        let mut look = ::redis::pipe();
        self.options.mode.read(&mut look, &names);
        look.cmd("LRANGE").arg(&names.runs).arg(0).arg(-1).cmd("LRANGE").arg(&names.bad_runs).arg(0).arg(-1);
        look.cmd("HGETALL").arg(&names.record).cmd("HGETALL").arg(&names.skips);
        starts::read(self.options.mode, &mut look, &names);
        let replies = self.look(&look).await?;
        let (reads, rest) = replies.split_at_checked(READS).ok_or_else(failure::unreadable)?;
        let [runs, bad, begun, skips, starts] = rest else { return Err(failure::unreadable()) };
        let seen = Seen::read(self.options.mode, reads)?;
        let held: Vec<Fence> = match &seen.what {
            What::Ours(record, _) => record.fence.map(Fence).into_iter().collect(),
            What::Shared(crowd, _) => {
                let mut crowd = crowd.clone();
                crowd.settle(seen.now.and_then(|(ms, _)| u64::try_from(ms).ok()).unwrap_or_default());
                crowd.fences().collect()
            }
            _ => Vec::new(),
        };
        let mut lines: Vec<String> = Vec::new();
        for list in [runs, bad] {
            if let Value::ServerError(error) = list {
                return Err(failure::refused(error));
            }
            lines.extend(reply::items(list).unwrap_or_default().iter().filter_map(reply::text));
        }
        lines.extend(readable(begun)?.and_then(reply::pairs).unwrap_or_default().into_iter().map(|(_, line)| line));
        let now = seen.now.and_then(|(ms, _)| u64::try_from(ms).ok());
        // A line that a newer version wrote in another way is one that is not known.
        let mut past: Vec<Past> = lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        past.retain(|past| past.fence.is_none_or(|fence| !held.contains(&fence)));
        for one in past.iter_mut().filter(|one| one.end == End::Expired) {
            // A lease that ended early would have ended later.
            one.ended_ms = one.ended_ms.map(|ended| now.map_or(ended, |now| ended.min(now)));
        }
        let skips = read_skips(&readable(skips)?.and_then(reply::pairs).unwrap_or_default());
        let record = readable(starts)?.map(Starts::of).transpose()?.unwrap_or_default().record;
        Ok(History { record, ..History::new(past, skips) })
    }

    pub(super) async fn remember(&mut self, key: &Key, note: &Note) -> Result<()> {
        let names = self.names(key);
        let mut step = ::redis::pipe();
        match note {
            Note::Lost(past) => {
                remember(&mut step, &names, &to_json(past)?, true);
                step.cmd("HDEL").arg(&names.record).arg(past.fence.map(|fence| fence.to_string()).unwrap_or_default());
            }
            Note::Skipped { host, reason, at_ms } => {
                let mut look = ::redis::pipe();
                look.cmd("HLEN").arg(&names.skips).cmd("HGET").arg(&names.skips).arg(format!("n:{host}"));
                let replies = self.look(&look).await?;
                let [count, known] = &*replies else { return Err(failure::unreadable()) };
                let count = readable(count)?.and_then(reply::int).and_then(|count| usize::try_from(count).ok()).unwrap_or_default();
                if matches!(known, Value::Nil) && count >= 3 * SKIPPING_HOSTS {
                    return Ok(());
                }
                step.cmd("HINCRBY").arg(&names.skips).arg(format!("n:{host}")).arg(1);
                step.cmd("HSETNX").arg(&names.skips).arg(format!("s:{host}")).arg(at_ms);
                step.cmd("HSET").arg(&names.skips).arg(format!("l:{host}")).arg(format!("{at_ms}:{reason}"));
                step.cmd("PEXPIRE").arg(&names.skips).arg(KEEP);
            }
        }
        let replies = self.run(&step, false).await?;
        match replies.iter().find(|reply| matches!(reply, Value::ServerError(_))) {
            Some(Value::ServerError(error)) => Err(failure::refused(error)),
            _ => Ok(()),
        }
    }

    pub(super) async fn mark_hold(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        let names = self.names(key);
        let seen = match self.mark_share(&names, fence, mark).await? {
            Step::Done(answer) => return Ok(answer),
            Step::Apart(seen) => seen,
        };
        let Some((mut record, stored, now, left)) = of_fence(seen, fence)? else { return Ok(Marking::Changed) };
        let seen = record.mark.as_ref().is_some_and(|known| known.seen);
        record.mark = Some(Break { seen, ..mark.clone() });
        let mut swap = ::redis::pipe();
        self.options.mode.swap(&mut swap, &names.lock, &stored, &record.write()?, record.lasts(now).max(left));
        note_begun(&mut swap, &names, &record)?;
        match self.compare(&swap).await? {
            Compared::Done => Ok(Marking::Done),
            Compared::Changed => Err(changed_meanwhile()),
            Compared::Gone => Ok(Marking::Changed),
        }
    }

    pub(super) async fn evict_hold(&mut self, key: &Key, fence: Fence, mark: &Break) -> Result<Marking> {
        let names = self.names(key);
        let seen = match self.evict_share(&names, fence, mark).await? {
            Step::Done(answer) => return Ok(answer),
            Step::Apart(seen) => seen,
        };
        let Some((record, stored, now, _)) = of_fence(seen, fence)? else { return Ok(Marking::Changed) };
        let mut delete = ::redis::pipe();
        self.options.mode.delete(&mut delete, &names.lock, &stored);
        match self.compare(&delete).await? {
            Compared::Done => {}
            Compared::Changed => return Err(changed_meanwhile()),
            Compared::Gone => return Ok(Marking::Changed),
        }
        let (end, why): (End, _) = mark.into();
        let parting = Parting { end: Some(end), why, ..crate::lock::Scope::Tree.into() };
        let mut over = ::redis::pipe();
        note_over(&mut over, &names, &record, Some(now), &parting)?;
        // The lock is free, whether or not that is remembered.
        let _ = self.run(&over, false).await;
        Ok(Marking::Done)
    }
}

/// The record of the hold with this fence, as [`Tair::find`].
fn of_fence(seen: Seen, fence: Fence) -> Result<Option<(Record, Stored, i64, i64)>> {
    let What::Ours(record, stored) = seen.what else { return Ok(None) };
    let Some((now, _)) = seen.now else { return Err(failure::unreadable()) };
    Ok((record.fence == Some(fence.0)).then_some((*record, stored, now, seen.left)))
}

fn read_skips(fields: &[(String, String)]) -> Vec<Skips> {
    let of = |name: String| fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value.as_str());
    let hosts = fields.iter().filter_map(|(field, count)| Some((field.strip_prefix("n:")?, count.parse().ok()?)));
    let read = |(host, count): (&str, u64)| {
        let (last, reason) = of(format!("l:{host}")).and_then(|last| last.split_once(':'))?;
        let since_ms = of(format!("s:{host}")).and_then(|since| since.parse().ok());
        Some(Skips { host: host.to_owned(), count, since_ms, last_ms: last.parse().ok(), reason: reason.to_owned() })
    };
    hosts.filter_map(read).collect()
}

/// What a comparison answered, of the first of several commands.
pub(super) fn first(replies: &[Value]) -> Result<Compared> {
    replies.first().map(compared).transpose()?.ok_or_else(failure::unreadable)
}
