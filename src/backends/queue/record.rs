//! The data that dlock writes for a contender: its value, its record, and the lock's run records.
//! JSON, whose short names are part of the layout.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::lock::{
    Break, Error, Fence, HistoryEntry, Holder, Kind, Metadata, Mode, Request, Result, RunRecord,
};

/// The layout that this version writes. Another first number is refused.
pub const LAYOUT: &str = "2.1";
const MAJOR: u32 = 2;

/// What a contender says of itself. Written once, with its entry: etcd's revision of a key is its
/// position in the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContenderInfo {
    /// The layout.
    pub dlock: String,
    /// The first hold, which took the lock, as [`Token::hold_text`](crate::lock::Token::hold_text);
    /// in stores that need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
    /// Taken by `acquire`.
    #[serde(default)]
    pub detached: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

impl ContenderInfo {
    pub fn of(request: &Request) -> Self {
        Self {
            dlock: LAYOUT.into(),
            hold: None,
            detached: request.detached,
            metadata: request.metadata.clone(),
        }
    }

    pub fn write(&self) -> Vec<u8> {
        json(self)
    }

    /// Reads a contender's value; returns `None` if no dlock wrote it.
    ///
    /// # Errors
    /// [`Kind::Layout`] if a dlock of another layout wrote it.
    pub fn read(data: &[u8]) -> Result<Option<Self>> {
        match version(data) {
            Some(found) if found == MAJOR => Ok(serde_json::from_slice(data).ok()),
            Some(found) => Err(other_layout(found)),
            None => Ok(None),
        }
    }

    /// Returns a holder from its value and its record; `None` for another library's. The store adds
    /// the lease and the times.
    pub fn holder(info: Option<&Self>, record: Option<&HoldRecord>, mode: Mode) -> Holder {
        Holder {
            permit: record.and_then(|record| record.number),
            metadata: info.and_then(|info| info.metadata.clone()),
            foreign: info.is_none(),
            detached: info.is_some_and(|info| info.detached),
            broken: record.and_then(|record| record.mark.clone()),
            ..Holder::unknown(mode)
        }
    }
}

/// The record next to a contender of dlock. It exists until the contender leaves by itself: a
/// record without its contender means that the contender vanished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRecord {
    #[serde(rename = "o", with = "crate::lock::document::holder")]
    pub mode: Mode,
    /// False for a waiter, and for a hold that is already in the history.
    #[serde(rename = "h", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_hold: bool,
    /// The number of the permit, if no other entry has it.
    #[serde(rename = "n", default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// `None` if the same step also made the contender: the number of that step is then the fence.
    #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// When the lock was granted, or a waiter joined the queue, by its host's clock.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// The mark of a break.
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Break>,
    /// The highest level of a warning about the hold.
    #[serde(rename = "w", default, skip_serializing_if = "is_zero")]
    pub warned: u32,
}

impl HoldRecord {
    /// Returns the record of a contender that was not granted the lock.
    pub fn waiting(mode: Mode) -> Self {
        Self {
            mode,
            is_hold: false,
            number: None,
            fence: None,
            since_ms: None,
            metadata: None,
            mark: None,
            warned: 0,
        }
    }

    /// Returns the record of a waiter for what `request` asks for.
    pub fn of_waiter(request: &Request) -> Self {
        Self {
            since_ms: request.at_ms,
            ..Self::waiting(request.mode)
        }
    }

    /// Returns the record of an ended hold whose holder may still be stopping: the history has the
    /// hold.
    pub fn ended(mode: Mode, fence: Fence) -> Self {
        Self {
            fence: Some(fence),
            ..Self::waiting(mode)
        }
    }

    /// Whether the contender was granted the lock.
    pub const fn was_granted(&self) -> bool {
        self.is_hold || self.fence.is_some()
    }

    /// Returns the record of the hold that `request` asks for.
    pub fn of(request: &Request, fence: Option<Fence>) -> Self {
        let metadata = request.metadata.clone();
        Self {
            is_hold: true,
            fence,
            since_ms: request.at_ms,
            metadata,
            ..Self::waiting(request.mode)
        }
    }

    /// Reads a record; returns `None` if it is empty.
    pub fn read(data: &[u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }

    pub fn write(&self) -> Vec<u8> {
        json(self)
    }

    /// Returns the record with its fence added, for rewriting; `made` is the number of the step
    /// that made it.
    #[must_use]
    pub fn named(self, made: Fence) -> Self {
        Self {
            fence: self.fence.or(Some(made)),
            ..self
        }
    }

    /// Returns the record with the mark of a break. A mark that was seen stays seen.
    #[must_use]
    pub fn marked(self, mark: &Break) -> Self {
        let seen = self.mark.as_ref().is_some_and(|known| known.seen);
        Self {
            mark: Some(Break {
                seen,
                ..mark.clone()
            }),
            ..self
        }
    }

    /// Returns the record with the mark seen; `None` if the record says so already, or has no mark.
    pub fn seen(&self) -> Option<Self> {
        let mark = self.mark.as_ref().filter(|mark| !mark.seen)?;
        Some(Self {
            mark: Some(Break {
                seen: true,
                ..mark.clone()
            }),
            ..self.clone()
        })
    }

    /// Returns the record with a warning of this level; `None` if it has one of this level or a
    /// higher one.
    pub fn warned(self, level: u32) -> Option<Self> {
        (self.warned < level).then_some(Self {
            warned: level,
            ..self
        })
    }

    /// Returns the history entry of a hold that was never released; `made` is the number of the
    /// step that made the record. The end of the hold is unknown.
    pub fn history_entry(&self, made: Fence) -> Option<HistoryEntry> {
        let (fence, metadata) = (self.fence.or(Some(made)), self.metadata.clone());
        self.is_hold.then(|| HistoryEntry {
            started_ms: self.since_ms,
            ..HistoryEntry::unreleased(fence, self.mark.as_ref(), metadata)
        })
    }

    /// Whether a successor of `mode` waits out the drain delay for the vanished contender.
    pub fn delays(&self, mode: Mode) -> bool {
        self.mode != Mode::Shared || mode != Mode::Shared
    }
}

/// Reads run records, of which the store keeps one or several.
///
/// # Errors
/// [`Kind::Layout`] if a dlock of another layout wrote them, [`Kind::Data`] if no dlock did.
pub fn read_runs(data: &[u8]) -> Result<RunRecord> {
    let spoilt = || {
        Error::new(
            Kind::Data,
            "what is recorded of the lock's runs is not what dlock writes",
        )
    };
    match version(data) {
        Some(found) if found != MAJOR => Err(other_layout(found)),
        Some(_) => serde_json::from_slice(data).map_err(|error| spoilt().source(error)),
        None if serde_json::from_slice::<Map<String, Value>>(data).is_ok() => Err(older_layout()),
        None => Err(spoilt()),
    }
}

/// Returns the text that [`read_runs`] reads.
pub fn write_runs(record: &RunRecord) -> Vec<u8> {
    #[derive(Serialize)]
    struct StoredRuns<'a> {
        dlock: &'a str,
        #[serde(flatten)]
        record: &'a RunRecord,
    }
    json(&StoredRuns {
        dlock: LAYOUT,
        record,
    })
}

/// Returns the first number of the layout; `None` if no dlock wrote it.
fn version(data: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct LayoutVersion {
        dlock: String,
    }
    let LayoutVersion { dlock } = serde_json::from_slice(data).ok()?;
    // An unreadable layout is a newer one.
    Some(
        dlock
            .split('.')
            .next()
            .and_then(|major| major.parse().ok())
            .unwrap_or(u32::MAX),
    )
}

/// Returns the error that an older dlock wrote the data.
pub fn older_layout() -> Error {
    other_layout(MAJOR - 1)
}

/// Returns the error that a dlock of another layout wrote the data.
fn other_layout(major: u32) -> Error {
    let (which, hint) = if major < MAJOR {
        (
            "an older",
            "update dlock on the machine that took it, or use another --namespace",
        )
    } else {
        ("a newer", "update dlock on this machine")
    };
    Error::new(
        Kind::Layout,
        format!("the lock was taken by {which} dlock, whose layout this one can't read"),
    )
    .hint(hint)
}

/// Returns the JSON. Texts and numbers can always be written.
fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(number: &u32) -> bool {
    *number == 0
}
