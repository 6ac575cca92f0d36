//! The records of holds and skips that both stores keep.

use serde::{Deserialize, Serialize};

use super::record::HoldRecord;
use crate::lock::{End, Fence, HistoryEntry, Metadata, Mode, REMEMBERED, ReleaseInfo};

/// How many surplus entries there may be before the oldest are removed.
pub const SPARE: usize = 16;

/// Returns how many of this many entries to remove, the oldest first.
pub fn too_many(count: usize) -> Option<usize> {
    (count > REMEMBERED + SPARE).then(|| count - REMEMBERED)
}

/// The last skip of a host. The version of its entry is the number of skips.
#[derive(Debug, Serialize, Deserialize)]
pub struct SkipRecord {
    pub host: String,
    pub reason: String,
    /// By the host's clock. The store's own time takes precedence, if the store has a clock.
    pub at_ms: u64,
}

/// Returns the history entry of a hold that is released now, without the time of its end; `None` if
/// nothing was done under it.
///
/// The release of the last nested hold also releases the outer hold.
pub fn released(
    info: &ReleaseInfo,
    is_nested: bool,
    fence: Fence,
    started_ms: Option<u64>,
    metadata: Option<Metadata>,
) -> Option<HistoryEntry> {
    let end = info
        .end
        .clone()
        .or_else(|| is_nested.then_some(End::Released))?;
    Some(HistoryEntry {
        fence: Some(fence),
        started_ms,
        ended_ms: None,
        end,
        outcome: info.outcome.clone(),
        metadata,
    })
}

/// Returns the fence up to which records of vanished holders can move to the history, if there are
/// many. `vanished` has the records and their fences.
///
/// The newest record that is no reader's stays. While that record exists, each successor waits out
/// the drain delay for all of them.
pub fn outdated<'a>(vanished: impl Iterator<Item = (&'a HoldRecord, Fence)>) -> Option<Fence> {
    let all: Vec<_> = vanished.collect();
    if all.len() <= SPARE {
        return None;
    }
    all.into_iter()
        .filter(|(record, _)| record.is_hold && record.mode != Mode::Shared)
        .map(|(_, fence)| fence)
        .max()
}
