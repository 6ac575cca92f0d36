//! The history of a lock: its ended holds, and the hosts that skipped.
//!
//! A history entry is a key, `%fine/<key>/<fence>` or `%bad/<key>/<fence>`, put in the transaction
//! that frees the lock. A hold that was never released is known by its record, which stays until
//! the successor knows that the hold has stopped. One step then turns the record into a history
//! entry. A host that skipped is a key whose version is the count.
//!
//! The code handles these interleavings:
//! - *The answer to a release is lost*, or the transaction is applied twice. A history entry is
//!   named after its fence.
//! - *The loser's note and the successor's step meet.* The successor puts an entry only if there is
//!   none.
//! - *A waiter vanishes.* Its record is not one of a hold.
//! - *A record changed since the look* (its owner queued up anew, or another reader added it to the
//!   history). It stays as it is.
//! - *There is no space, or no right to write the history.* A release and a renewal do without.

use sha2::{Digest as _, Sha256};

use super::{
    client::{EtcdClient, EtcdResult},
    failure::Trouble,
    messages::{Compare, KeyValue, RequestOp},
    names::EtcdNames,
    ops::{self, TxnAnswers},
    queue::LockAtRevision,
    record::StoredRecord,
    session::OwnHold,
};
use crate::{
    backends::queue::history::{SkipRecord, released, too_many},
    lock::{
        History, HistoryEntry, Key, Note, ReleaseInfo, SKIPPING_HOSTS, SkipCount, forgotten_hosts,
    },
};

/// Returns the history entry of a released hold; `None` if nothing was done under it.
pub(super) fn history_entry(hold: &OwnHold, info: &ReleaseInfo) -> Option<HistoryEntry> {
    let is_nested = hold.nested.is_some();
    // A nested hold knows only how long it was held itself.
    let held_ms = info.held_ms.filter(|_| !is_nested);
    let started_ms = info
        .at_ms
        .zip(held_ms)
        .map(|(at, held)| at.saturating_sub(held))
        .or(hold.since_ms);
    let past = released(
        info,
        is_nested,
        hold.fence(),
        started_ms,
        hold.metadata.clone(),
    )?;
    Some(HistoryEntry {
        ended_ms: info.at_ms,
        ..past
    })
}

/// Returns the name and the value of a history entry.
pub(super) fn line(names: &EtcdNames, past: &HistoryEntry) -> Option<(String, Vec<u8>)> {
    let name = names.run(past.end.is_bad(), past.fence?);
    // Serializing strings and numbers can't fail.
    Some((name, serde_json::to_vec(past).unwrap_or_default()))
}

/// Removes the record of a vanished contender, if it is unchanged.
pub(super) fn forget(record: &StoredRecord) -> RequestOp {
    ops::when(
        vec![ops::unchanged(&record.name, record.revision)],
        vec![ops::delete(&record.name)],
        Vec::new(),
    )
}

/// Removes the record likewise, and puts the history entry of its hold if there is none.
pub(super) fn archive(names: &EtcdNames, record: &StoredRecord) -> RequestOp {
    let Some((run, value)) = record.history_entry().and_then(|past| line(names, &past)) else {
        return forget(record);
    };
    let compare = vec![
        ops::unchanged(&record.name, record.revision),
        ops::absent(&run),
    ];
    ops::when(
        compare,
        vec![ops::delete(&record.name), ops::put(&run, value, 0)],
        vec![forget(record)],
    )
}

/// Moves the vanished holders that no successor has to wait for any more to the history.
pub(super) async fn archive_outdated(
    client: &mut EtcdClient,
    names: &EtcdNames,
    look: &LockAtRevision,
) {
    let old = look.outdated();
    if old.is_empty() {
        return;
    }
    let ops = old
        .into_iter()
        .take(ops::MOST_OPS)
        .map(|record| archive(names, record))
        .chain(counts(names))
        .collect();
    if let Ok(mut answers) = client.run(ops).await {
        trim(client, names, counted(&mut answers)).await;
    }
}

/// The numbers of history entries: the good ones, then the bad ones.
pub(super) type Counts = [usize; 2];

/// Returns the operations that count the history entries.
pub(super) fn counts(names: &EtcdNames) -> [RequestOp; 2] {
    [false, true].map(|bad| ops::count(&names.runs(bad)))
}

/// Returns the answers to [`counts`], which must be the last ones.
pub(super) fn counted(answers: &mut TxnAnswers) -> Counts {
    let bad = answers.last_count();
    [answers.last_count(), bad]
}

/// Removes the oldest history entries, if there are too many. After a failure the next release does
/// it.
pub(super) async fn trim(client: &mut EtcdClient, names: &EtcdNames, counts: Counts) {
    for (bad, count) in [false, true].into_iter().zip(counts) {
        if let Some(most) = too_many(count) {
            let _ = remove(client, &names.runs(bad), most).await;
        }
    }
}

/// A lock that was freed.
#[derive(Default)]
pub(super) struct FreedLock {
    /// The leases of the nested holds.
    pub leases: Vec<i64>,
    pub runs: Counts,
}

/// The data that is written when a lock is freed.
#[derive(Default)]
pub(super) struct ReleaseWrites {
    /// The changes to the run records.
    pub runs: Vec<RequestOp>,
    pub history: Vec<RequestOp>,
}

/// Frees a lock by `gone`, and writes `past` and the `outcome`, if `compare` holds; else returns
/// `None`. The first operation in `gone` deletes the nested keys.
///
/// Freeing a lock needs neither space nor rights to the history: refused writes are left out.
/// Without space, the outcome of the run stays unknown.
pub(super) async fn end(
    client: &mut EtcdClient,
    names: &EtcdNames,
    compare: Vec<Compare>,
    gone: Vec<RequestOp>,
    outcome: ReleaseWrites,
    past: Option<&HistoryEntry>,
) -> EtcdResult<Option<FreedLock>> {
    let run = past.and_then(|past| line(names, past));
    let ReleaseWrites { runs, history } = outcome;
    let mut success = [gone.clone(), runs.clone(), history].concat();
    success.extend(
        run.iter()
            .map(|(name, value)| ops::put(name, value.clone(), 0)),
    );
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
        // A store that becomes full may do a write that it reports as failed.
        let done = answers
            .one()
            .ok()
            .flatten()
            .is_some_and(|kv| run.is_some_and(|(_, value)| kv.value == value));
        return Ok(done.then(FreedLock::default));
    }
    let leases = answers
        .deleted()?
        .iter()
        .map(|kv| kv.lease)
        .filter(|lease| *lease != 0)
        .collect();
    Ok(Some(FreedLock {
        leases,
        runs: if in_full {
            counted(&mut answers)
        } else {
            Counts::default()
        },
    }))
}

/// Removes the first `many` keys of a folder.
async fn remove(client: &mut EtcdClient, folder: &str, many: usize) -> EtcdResult<()> {
    let oldest = vec![ops::first_names(
        folder,
        i64::try_from(many).unwrap_or(i64::MAX),
    )];
    if let Some(last) = client.run(oldest).await?.keys()?.pop() {
        client
            .run(vec![ops::delete_up_to(folder, last.key)])
            .await?;
    }
    Ok(())
}

/// Returns the whole history of a lock.
pub(super) async fn history(client: &mut EtcdClient, key: &Key) -> EtcdResult<History> {
    let names = EtcdNames::new(&client.options().namespace, key);
    let mut ops = ops::look(&names, 1);
    ops.extend([true, false].map(|bad| ops::under(&names.runs(bad), false)));
    ops.push(ops::under(&names.skips(), false));
    let mut answers = client.run(ops).await?;
    let look = answers.look(&names)?;
    let mut found = Vec::new();
    for _ in 0..2 {
        // Entries that a newer version wrote in another format are left out.
        found.extend(
            answers
                .keys()?
                .into_iter()
                .filter_map(|kv| serde_json::from_slice::<HistoryEntry>(&kv.value).ok()),
        );
    }
    found.extend(look.vanished().filter_map(StoredRecord::history_entry));
    let all = answers.keys()?;
    let mut skips = Vec::new();
    for (kv, skip) in skips_among(&all) {
        let since = since_of(&String::from_utf8_lossy(&kv.key));
        let since_ms = all
            .iter()
            .find(|kv| kv.key == since.as_bytes())
            .and_then(|kv| str::from_utf8(&kv.value).ok()?.parse().ok());
        let count = u64::try_from(kv.version).unwrap_or_default();
        skips.push(SkipCount {
            host: skip.host,
            count,
            since_ms,
            last_ms: Some(skip.at_ms),
            reason: skip.reason,
        });
    }
    Ok(History {
        record: look.runs.record(),
        ..History::new(found, skips)
    })
}

fn skips_among(all: &[KeyValue]) -> impl Iterator<Item = (&KeyValue, SkipRecord)> {
    all.iter()
        .filter_map(|kv| Some((kv, serde_json::from_slice(&kv.value).ok()?)))
}

/// Returns the name of the key that tells since when a host's skips are counted.
fn since_of(name: &str) -> String {
    format!("{name}/since")
}

/// Writes a note that comes without a grant or a release.
pub(super) async fn note(client: &mut EtcdClient, key: &Key, note: &Note) -> EtcdResult<()> {
    let names = EtcdNames::new(&client.options().namespace, key);
    match note {
        Note::Skipped {
            host,
            reason,
            at_ms,
        } => skipped(client, &names, host, reason, *at_ms).await,
        Note::Lost(past) => {
            let (Some(fence), Some((run, value))) = (past.fence, line(&names, past)) else {
                return Ok(());
            };
            let other = names.run(!past.end.is_bad(), fence);
            let mut ops = vec![ops::put(&run, value, 0), ops::delete(&other)];
            ops.extend(counts(&names));
            let runs = counted(&mut client.run(ops).await?);
            trim(client, &names, runs).await;
            Ok(())
        }
    }
}

async fn skipped(
    client: &mut EtcdClient,
    names: &EtcdNames,
    host: &str,
    reason: &str,
    at_ms: u64,
) -> EtcdResult<()> {
    // The host's name may be anything, of any length.
    let mut host_id = [0; 16];
    host_id.copy_from_slice(&Sha256::digest(host)[..16]);
    let name = format!("{}{:032x}", names.skips(), u128::from_be_bytes(host_id));
    let since = since_of(&name);
    let skip = SkipRecord {
        host: host.into(),
        reason: reason.into(),
        at_ms,
    };
    let once_more = ops::put(&name, serde_json::to_vec(&skip).unwrap_or_default(), 0);
    let new = vec![
        once_more.clone(),
        ops::put(&since, at_ms.to_string(), 0),
        ops::count(&names.skips()),
    ];
    let mut answers = client
        .txn(vec![ops::absent(&since)], new, vec![once_more])
        .await?;
    if answers.succeeded && answers.last_count() > 2 * SKIPPING_HOSTS {
        let all = client
            .run(vec![ops::under(&names.skips(), false)])
            .await?
            .keys()?;
        let forgotten = forgotten_hosts(
            skips_among(&all)
                .map(|(kv, skip)| (Some(skip.at_ms), &kv.key))
                .collect(),
        );
        let gone = forgotten
            .into_iter()
            .map(|name| String::from_utf8_lossy(name))
            .flat_map(|name| [since_of(&name), name.into_owned()]);
        client
            .run(
                gone.take(ops::MOST_OPS)
                    .map(|name| ops::delete(&name))
                    .collect(),
            )
            .await?;
    }
    Ok(())
}
