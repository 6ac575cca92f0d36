//! What is remembered of a lock's holds that are over, and of hosts that skipped.
//!
//! A run is a key, `%fine/<key>/<fence>` or `%bad/<key>/<fence>`, put in the transaction that frees the lock. A hold that was never released is
//! told by its record, which is there until its successor knows that it has stopped; then the record becomes a run, in one step. A host that
//! skipped is a key whose version counts how often.
//!
//! The interleavings that this is written against:
//! - *The answer to a release is lost*, or the transaction is applied twice: a run has the name of its fence.
//! - *The loser's note and the successor's step meet*: the successor puts a run only where there is none.
//! - *A waiter vanishes*: its record is not one of a hold.
//! - *A record changed since it was looked at* (its owner queued up anew, or another reader remembered it): it is left alone.
//! - *There is no space, or no right to write there*: a release and a renewal do without.

use sha2::{Digest as _, Sha256};

use super::{
    client::{Answer, Client},
    failure::Trouble,
    messages::{Compare, RequestOp},
    names::Names,
    ops::{self, Answers},
    queue::Look,
    record::StoredRecord,
    session::Hold,
};
use crate::{
    backends::queue::history::{SkipRecord, released, too_many},
    lock::{History, HistoryEntry, Key, Note, ReleaseInfo, SKIPPING_HOSTS, SkipCount},
};

/// The history entry of a hold that is released; `None` if nothing was done under it.
pub(super) fn past(hold: &Hold, info: &ReleaseInfo) -> Option<HistoryEntry> {
    let is_nested = hold.nested.is_some();
    // What a nested hold knows is only how long it was held itself.
    let held_ms = info.held_ms.filter(|_| !is_nested);
    let started_ms = info.at_ms.zip(held_ms).map(|(at, held)| at.saturating_sub(held)).or(hold.since_ms);
    let past = released(info, is_nested, hold.fence(), started_ms, hold.metadata.clone())?;
    Some(HistoryEntry { ended_ms: info.at_ms, ..past })
}

/// The name and the value of a run.
pub(super) fn line(names: &Names, past: &HistoryEntry) -> Option<(String, Vec<u8>)> {
    let name = names.run(past.end.is_bad(), past.fence?);
    // Strings and numbers can be written.
    Some((name, serde_json::to_vec(past).unwrap_or_default()))
}

/// Removes the record of a contender that vanished, if it is unchanged.
pub(super) fn forget(record: &StoredRecord) -> RequestOp {
    ops::when(vec![ops::unchanged(&record.name, record.revision)], vec![ops::delete(&record.name)], Vec::new())
}

/// The same, and remembers the hold that it was of, if that is not done yet.
pub(super) fn bury(names: &Names, record: &StoredRecord) -> RequestOp {
    let Some((run, value)) = record.past().and_then(|past| line(names, &past)) else { return forget(record) };
    let compare = vec![ops::unchanged(&record.name, record.revision), ops::absent(&run)];
    ops::when(compare, vec![ops::delete(&record.name), ops::put(&run, value, 0)], vec![forget(record)])
}

/// Remembers the vanished holders that no successor has to wait for any more.
pub(super) async fn bury_old(client: &mut Client, names: &Names, look: &Look) {
    let old = look.outdated();
    if old.is_empty() {
        return;
    }
    let ops = old.into_iter().take(ops::MOST_OPS).map(|record| bury(names, record)).chain(counts(names)).collect();
    if let Ok(mut answers) = client.run(ops).await {
        trim(client, names, counted(&mut answers)).await;
    }
}

/// How many runs there are, those that ended badly last.
pub(super) type Counts = [usize; 2];

/// What counts the runs.
pub(super) fn counts(names: &Names) -> [RequestOp; 2] {
    [false, true].map(|bad| ops::count(&names.runs(bad)))
}

/// The answers to [`counts`], which come last.
pub(super) fn counted(answers: &mut Answers) -> Counts {
    let bad = answers.last_count();
    [answers.last_count(), bad]
}

/// Removes the oldest runs, if there are too many. A failure is left to the next release.
pub(super) async fn trim(client: &mut Client, names: &Names, counts: Counts) {
    for (bad, count) in [false, true].into_iter().zip(counts) {
        if let Some(most) = too_many(count) {
            let _ = remove(client, &names.runs(bad), most).await;
        }
    }
}

/// A lock that was freed.
#[derive(Default)]
pub(super) struct Freed {
    /// Of what was nested in the hold.
    pub leases: Vec<i64>,
    pub runs: Counts,
}

/// What is written as a lock is freed.
#[derive(Default)]
pub(super) struct Outcome {
    /// To the run records.
    pub runs: Vec<RequestOp>,
    pub history: Vec<RequestOp>,
}

/// Frees a lock by `gone`, of which the first deletes what is nested, and writes `past` and the `outcome`, if `compare` holds; `None` if it
/// doesn't.
///
/// To free a lock takes neither space nor rights to the history: what is refused is left out. Without space, the outcome of the run stays
/// unknown.
pub(super) async fn end(
    client: &mut Client,
    names: &Names,
    compare: Vec<Compare>,
    gone: Vec<RequestOp>,
    outcome: Outcome,
    past: Option<&HistoryEntry>,
) -> Answer<Option<Freed>> {
    let run = past.and_then(|past| line(names, past));
    let Outcome { runs, history } = outcome;
    let mut success = [gone.clone(), runs.clone(), history].concat();
    success.extend(run.iter().map(|(name, value)| ops::put(name, value.clone(), 0)));
    success.extend(counts(names));
    let (mut answers, in_full) = match client.run_if(compare.clone(), success).await {
        Err(Trouble::Full(_)) => {
            let failure = run.iter().map(|(name, _)| ops::get(name)).collect();
            (client.txn(compare, gone, failure).await?, false)
        }
        Err(Trouble::Refused(_)) => {
            let success = [gone, runs].concat();
            (client.run_if(compare, success).await?, false)
        }
        answer => (answer?, true),
    };
    if !answers.succeeded {
        // A store that runs full may do what it says it has no space for.
        let done = answers.one().ok().flatten().is_some_and(|kv| run.is_some_and(|(_, value)| kv.value == value));
        return Ok(done.then(Freed::default));
    }
    let leases = answers.deleted()?.iter().map(|kv| kv.lease).filter(|lease| *lease != 0).collect();
    Ok(Some(Freed { leases, runs: if in_full { counted(&mut answers) } else { Counts::default() } }))
}

/// Removes the first so many of a folder.
async fn remove(client: &mut Client, folder: &str, many: usize) -> Answer<()> {
    let oldest = vec![ops::first_names(folder, i64::try_from(many).unwrap_or(i64::MAX))];
    if let Some(last) = client.run(oldest).await?.keys()?.pop() {
        client.run(vec![ops::delete_up_to(folder, last.key)]).await?;
    }
    Ok(())
}

/// Everything that is remembered of a lock.
pub(super) async fn history(client: &mut Client, key: &Key) -> Answer<History> {
    let names = Names::new(&client.options().namespace, key);
    let mut ops = ops::look(&names, 1);
    ops.extend([true, false].map(|bad| ops::under(&names.runs(bad), false)));
    ops.push(ops::under(&names.skips(), false));
    let mut answers = client.run(ops).await?;
    let look = answers.look(&names)?;
    let mut found = Vec::new();
    for _ in 0..2 {
        // What a newer version wrote in another way is not known.
        found.extend(answers.keys()?.into_iter().filter_map(|kv| serde_json::from_slice::<HistoryEntry>(&kv.value).ok()));
    }
    found.extend(look.vanished().filter_map(StoredRecord::past));
    let all = answers.keys()?;
    let mut skips = Vec::new();
    for kv in &all {
        let Ok(skip) = serde_json::from_slice::<SkipRecord>(&kv.value) else { continue };
        let since = [&kv.key[..], SINCE].concat();
        let since_ms = all.iter().find(|kv| kv.key == since).and_then(|kv| str::from_utf8(&kv.value).ok()?.parse().ok());
        let count = u64::try_from(kv.version).unwrap_or_default();
        skips.push(SkipCount { host: skip.host, count, since_ms, last_ms: Some(skip.at_ms), reason: skip.reason });
    }
    Ok(History { record: look.runs.record(), ..History::new(found, skips) })
}

/// What the key that says since when a host's skips are counted has after their name.
const SINCE: &[u8] = b"/since";

/// Remembers what comes with no grant and no release.
pub(super) async fn note(client: &mut Client, key: &Key, note: &Note) -> Answer<()> {
    let names = Names::new(&client.options().namespace, key);
    match note {
        Note::Skipped { host, reason, at_ms } => skipped(client, &names, host, reason, *at_ms).await,
        Note::Lost(past) => {
            let (Some(fence), Some((run, value))) = (past.fence, line(&names, past)) else { return Ok(()) };
            let other = names.run(!past.end.is_bad(), fence);
            let mut ops = vec![ops::put(&run, value, 0), ops::delete(&other)];
            ops.extend(counts(&names));
            let runs = counted(&mut client.run(ops).await?);
            trim(client, &names, runs).await;
            Ok(())
        }
    }
}

async fn skipped(client: &mut Client, names: &Names, host: &str, reason: &str, at_ms: u64) -> Answer<()> {
    // Whatever it is called, and however long.
    let mut host_id = [0; 16];
    host_id.copy_from_slice(&Sha256::digest(host)[..16]);
    let name = format!("{}{:032x}", names.skips(), u128::from_be_bytes(host_id));
    let since = format!("{name}{}", String::from_utf8_lossy(SINCE));
    let skip = SkipRecord { host: host.into(), reason: reason.into(), at_ms };
    let once_more = ops::put(&name, serde_json::to_vec(&skip).unwrap_or_default(), 0);
    let new = vec![once_more.clone(), ops::put(&since, at_ms.to_string(), 0), ops::count(&names.skips())];
    let mut answers = client.txn(vec![ops::absent(&since)], new, vec![once_more]).await?;
    if answers.succeeded && answers.last_count() > 2 * SKIPPING_HOSTS {
        client.run(vec![ops::delete(&name), ops::delete(&since)]).await?;
    }
    Ok(())
}
