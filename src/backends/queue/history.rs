//! What both stores remember of holds and skips.

use serde::{Deserialize, Serialize};

use super::record::HoldRecord;
use crate::lock::{End, Fence, HistoryEntry, Metadata, Mode, REMEMBERED, ReleaseInfo};

/// How many entries more than needed there may be before the oldest are removed.
pub const SPARE: usize = 16;

/// How many of so many entries to remove, the oldest first.
pub fn too_many(count: usize) -> Option<usize> {
    (count > REMEMBERED + SPARE).then(|| count - REMEMBERED)
}

/// The last skip of a host. How often it skipped is the version of its entry.
#[derive(Debug, Serialize, Deserialize)]
pub struct SkipRecord {
    pub host: String,
    pub reason: String,
    /// By the host's clock; the store's own time counts, where it has one.
    pub at_ms: u64,
}

/// The history entry of a hold that is released now, without the time of its end; `None` if nothing was done under it.
///
/// The release of the last nested hold releases what the outer one had.
pub fn released(
    info: &ReleaseInfo,
    is_nested: bool,
    fence: Fence,
    started_ms: Option<u64>,
    metadata: Option<Metadata>,
) -> Option<HistoryEntry> {
    let end = info.end.clone().or_else(|| is_nested.then_some(End::Released))?;
    Some(HistoryEntry { fence: Some(fence), started_ms, ended_ms: None, end, why: info.why.clone(), metadata })
}

/// The fence up to which records of vanished holders can go to the history, if there are many of them; `vanished` has their records and their
/// fences.
///
/// The record of the newest of them that was no reader stays. As long as it does, each successor gives all of them time to stop.
pub fn outdated<'a>(vanished: impl Iterator<Item = (&'a HoldRecord, Fence)>) -> Option<Fence> {
    let all: Vec<_> = vanished.collect();
    if all.len() <= SPARE {
        return None;
    }
    all.into_iter().filter(|(record, _)| record.is_hold && record.mode != Mode::Shared).map(|(_, fence)| fence).max()
}
