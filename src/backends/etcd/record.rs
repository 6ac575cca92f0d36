//! The record beside each of dlock's own keys. It says that whoever put the key did not leave by themselves; from the grant
//! on also whose hold it is and whether somebody is breaking it, which is told when the key is gone.
//!
//! One who waits has a record too, but nothing of it is history: so the record of a hold is written in the step that grants.

use serde::{Deserialize, Serialize};

use super::messages::KeyValue;
use crate::lock::{Break, End, Fence, Metadata, Mode, Past, Request};

/// What the record of a reader says who only waits, as far as is known; that of a writer is empty.
const READS: &[u8] = b"read";
/// What that of one begins with who waits for one of so many permits.
const PERMIT: &str = "permit ";

/// What the record of a hold says: JSON, whose short names are part of the layout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Held {
    #[serde(rename = "r", skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// How many permits there are to be; `None` unless it is one of them.
    #[serde(rename = "n", skip_serializing_if = "Option::is_none")]
    pub permits: Option<u32>,
    /// The revision that its key came with; `None` while that is the record's own.
    #[serde(rename = "f", skip_serializing_if = "Option::is_none")]
    pub fence: Option<i64>,
    /// Since when, by its host's clock.
    #[serde(rename = "s", skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    #[serde(rename = "m", skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Who is breaking it.
    #[serde(rename = "b", skip_serializing_if = "Option::is_none")]
    pub mark: Option<Break>,
}

impl Held {
    /// The hold that `request` asks for; the fence is `None` if its key is put in the same step.
    pub(super) fn of(request: &Request, fence: Option<i64>) -> Self {
        Self { fence, since_ms: request.at_ms, metadata: request.metadata.clone(), ..Self::in_mode(request.mode) }
    }

    /// One of which only the kind is known.
    pub(super) fn in_mode(mode: Mode) -> Self {
        let permits = if let Mode::Permits(most) = mode { Some(most) } else { None };
        Self { shared: mode == Mode::Shared, permits, ..Self::default() }
    }

    fn mode(&self) -> Mode {
        match self {
            Self { permits: Some(most), .. } => Mode::Permits(*most),
            Self { shared: true, .. } => Mode::Shared,
            _ => Mode::Exclusive,
        }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        // Strings and numbers can be written.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub name: String,
    /// Of its last change.
    pub revision: i64,
    pub mode: Mode,
    /// `None` of one who waits or waited, and of a hold that the history has already.
    pub held: Option<Held>,
}

impl Record {
    pub(super) fn read(kv: KeyValue) -> Option<Self> {
        let held: Option<Held> = serde_json::from_slice(&kv.value).ok();
        let waits = || {
            let most = str::from_utf8(&kv.value).ok()?.strip_prefix(PERMIT)?.parse().ok()?;
            Some(Mode::Permits(most))
        };
        let mode = match &held {
            Some(held) => held.mode(),
            None if kv.value == READS => Mode::Shared,
            None => waits().unwrap_or(Mode::Exclusive),
        };
        Some(Self { name: String::from_utf8(kv.key).ok()?, revision: kv.mod_revision, mode, held })
    }

    /// What one who waits writes.
    pub(super) fn waiting(mode: Mode) -> Vec<u8> {
        match mode {
            Mode::Exclusive => Vec::new(),
            Mode::Shared => READS.into(),
            Mode::Permits(most) => format!("{PERMIT}{most}").into(),
        }
    }

    /// What the record of a hold says, with its fence.
    pub(super) fn with_fence(&self) -> Option<Held> {
        self.held.clone().map(|held| Held { fence: Some(self.created()), ..held })
    }

    /// The revision that its key came with, as far as is known.
    pub(super) fn created(&self) -> i64 {
        self.held.as_ref().and_then(|held| held.fence).unwrap_or(self.revision)
    }

    /// The hold, which was never given back. When that ended nobody knows: etcd has no clock.
    pub(super) fn past(&self) -> Option<Past> {
        let held = self.with_fence()?;
        let (end, why) = held.mark.as_ref().map_or((End::Expired, None), Into::into);
        let fence = held.fence.and_then(|fence| u64::try_from(fence).ok()).map(Fence);
        Some(Past { fence, started_ms: held.since_ms, ended_ms: None, end, why, metadata: held.metadata })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &[u8]) -> Record {
        let kv = KeyValue { key: b"x".to_vec(), create_revision: 3, mod_revision: 7, version: 1, value: value.into(), lease: 0 };
        Record::read(kv).unwrap()
    }

    #[test]
    fn only_what_was_granted_is_a_hold() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits(3)] {
            let record = read(&Record::waiting(mode));
            assert_eq!((record.mode, record.past()), (mode, None));
            let held = read(&Held { since_ms: Some(1), ..Held::in_mode(mode) }.write());
            assert_eq!((held.mode, held.held.is_some()), (mode, true));
        }
        for unreadable in [&b"{"[..], b"permit", b"permit x"] {
            assert_eq!((read(unreadable).mode, read(unreadable).past()), (Mode::Exclusive, None));
        }
        let held = Held { shared: true, since_ms: Some(5), ..Held::default() };
        let past = read(&held.write()).past().unwrap();
        assert_eq!((past.fence, past.started_ms, past.end), (Some(Fence(7)), Some(5), End::Expired));
        // Written anew it keeps its fence.
        let again = read(&Held { fence: Some(4), ..held }.write());
        assert_eq!((again.mode, again.past().unwrap().fence), (Mode::Shared, Some(Fence(4))));
    }
}
