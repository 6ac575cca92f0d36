//! The record next to each of dlock's own keys ([`HoldRecord`]), as it is stored.

use super::messages::KeyValue;
use crate::{
    backends::queue::record::HoldRecord,
    lock::{Fence, HistoryEntry, Mode},
};

/// Returns the fence of a revision.
pub(super) fn fence(revision: i64) -> Fence {
    Fence(u64::try_from(revision).unwrap_or_default())
}

/// What the last fence is followed by if the next holder may have a drain delay.
const UNSETTLED: &str = " unsettled";

/// Returns the value of a lock's last fence. `settled` tells that no holder that vanished, or was
/// evicted, may still be stopping.
pub(super) fn last_fence(fence: Fence, settled: bool) -> String {
    format!("{fence}{}", if settled { "" } else { UNSETTLED })
}

/// Reads a lock's last fence.
pub(super) fn read_last_fence(data: &[u8]) -> Option<Fence> {
    let text = str::from_utf8(data).ok()?;
    text.strip_suffix(UNSETTLED)
        .unwrap_or(text)
        .parse()
        .ok()
        .map(Fence)
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredRecord {
    pub name: String,
    /// The modification revision.
    pub revision: i64,
    pub hold_record: HoldRecord,
}

impl StoredRecord {
    pub(super) fn read(kv: KeyValue) -> Option<Self> {
        // An unreadable record counts neither as a hold's nor as a reader's.
        let hold_record =
            HoldRecord::read(&kv.value).unwrap_or_else(|| HoldRecord::waiting(Mode::Exclusive));
        Some(Self {
            name: String::from_utf8(kv.key).ok()?,
            revision: kv.mod_revision,
            hold_record,
        })
    }

    /// Returns the create revision of the contender's key, as far as it is known.
    pub(super) fn fence(&self) -> Fence {
        self.hold_record.fence.unwrap_or(self.own())
    }

    /// Returns the record's content, with its fence.
    pub(super) fn named(&self) -> HoldRecord {
        self.hold_record.clone().named(self.own())
    }

    /// Returns the history entry of the hold, which was never released.
    pub(super) fn history_entry(&self) -> Option<HistoryEntry> {
        self.hold_record.history_entry(self.own())
    }

    /// Returns the revision of the step that wrote the record.
    fn own(&self) -> Fence {
        fence(self.revision)
    }
}
