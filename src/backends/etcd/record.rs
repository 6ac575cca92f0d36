//! The record next to each of dlock's own keys ([`HoldRecord`]), as it is stored.

use super::{messages::KeyValue, queue::fence};
use crate::{
    backends::queue::record::HoldRecord,
    lock::{Fence, HistoryEntry, Mode},
};

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredRecord {
    pub name: String,
    /// Of its last change.
    pub revision: i64,
    pub says: HoldRecord,
}

impl StoredRecord {
    pub(super) fn read(kv: KeyValue) -> Option<Self> {
        // What can't be read is not known to be of a hold, nor of a reader.
        let says = HoldRecord::read(&kv.value).unwrap_or_else(|| HoldRecord::waiting(Mode::Exclusive));
        Some(Self { name: String::from_utf8(kv.key).ok()?, revision: kv.mod_revision, says })
    }

    /// The revision that its key came with, as far as is known.
    pub(super) fn fence(&self) -> Fence {
        self.says.fence.unwrap_or(self.own())
    }

    /// What it says, with its fence.
    pub(super) fn named(&self) -> HoldRecord {
        self.says.clone().named(self.own())
    }

    /// The history entry of the hold, which was never released.
    pub(super) fn past(&self) -> Option<HistoryEntry> {
        self.says.past(self.own())
    }

    /// The revision of the step that wrote it.
    fn own(&self) -> Fence {
        fence(self.revision)
    }
}
