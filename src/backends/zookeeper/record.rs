//! What dlock writes into its nodes: JSON, which no other library reads.
//!
//! A contender's own data says who it is. Curator and go-zookeeper leave that unread in locks of others, kazoo shows it
//! as text in `contenders()`.

use serde::{Deserialize, Serialize};

use super::failure;
use crate::lock::{Fence, Metadata, Result};

/// The newest layout that this version can read, up to any minor version.
const MAJOR: u32 = 1;
const VERSION: &str = "1.0";

/// A contender's data.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Said {
    dlock: String,
    /// Taken by `acquire`.
    #[serde(default)]
    pub(super) detached: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) metadata: Option<Metadata>,
}

impl Said {
    pub(super) fn write(detached: bool, metadata: Option<&Metadata>) -> Vec<u8> {
        json(&Self { dlock: VERSION.into(), detached, metadata: metadata.cloned() })
    }

    /// What a contender said; `None` if it is not dlock.
    ///
    /// # Errors
    /// For a newer dlock's.
    pub(super) fn read(data: &[u8]) -> Result<Option<Self>> {
        #[derive(Deserialize)]
        struct Version {
            dlock: String,
        }
        let Ok(Version { dlock }) = serde_json::from_slice(data) else { return Ok(None) };
        let major = dlock.split('.').next().and_then(|major| major.parse().ok());
        if major.is_none_or(|major: u32| major > MAJOR) {
            return Err(failure::newer_layout(&dlock));
        }
        Ok(serde_json::from_slice(data).ok())
    }
}

/// The record beside a lock, which outlives its holders.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Record {
    dlock: String,
    #[serde(default)]
    last: Last,
}

/// The last fence that was given out.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Last {
    #[default]
    None,
    /// The number of the change that wrote this record.
    Here,
    Fence(u64),
}

impl Record {
    pub(super) fn write(last: Last) -> Vec<u8> {
        json(&Self { dlock: VERSION.into(), last })
    }

    /// The last fence, of a record that was written by the change of this number.
    pub(super) fn last_fence(data: &[u8], written: i64) -> Option<Fence> {
        match serde_json::from_slice(data).ok()? {
            Self { last: Last::None, .. } => None,
            Self { last: Last::Here, .. } => u64::try_from(written).ok().map(Fence),
            Self { last: Last::Fence(fence), .. } => Some(Fence(fence)),
        }
    }
}

/// What a mark holds once the hold that the lock was taken with was given back, and nested ones keep it: the session
/// of the contender's node, for them to keep alive.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Heirloom {
    pub(super) session: i64,
    /// The session's password, sealed with what only holds of this owner know.
    pub(super) sealed: [u8; 16],
    /// What the session lasts, in ms.
    pub(super) timeout_ms: u64,
}

impl Heirloom {
    pub(super) fn write(&self) -> Vec<u8> {
        json(self)
    }

    pub(super) fn read(data: &[u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }
}

/// Nothing in these can't be written.
fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Kind;

    #[test]
    fn minor_versions_are_read_and_newer_majors_refused() {
        let said = Said::read(br#"{"dlock":"1.7","detached":true,"new":{"a":1}}"#).unwrap().unwrap();
        assert!(said.detached && said.metadata.is_none());
        for version in ["2.0", "10", "?"] {
            let error = Said::read(format!(r#"{{"dlock":"{version}"}}"#).as_bytes()).unwrap_err();
            assert_eq!(error.kind, Kind::Layout, "{version}");
        }
    }

    #[test]
    fn what_others_write_is_not_ours() {
        for data in [&b""[..], b"192.168.0.7", b"{}", b"\xff\x00", br#"{"dlock":7}"#] {
            assert!(Said::read(data).unwrap().is_none());
        }
        assert!(Heirloom::read(b"").is_none());
        let last = |last| Record::last_fence(&Record::write(last), 9);
        assert_eq!([last(Last::None), last(Last::Here), last(Last::Fence(7))], [None, Some(Fence(9)), Some(Fence(7))]);
    }
}
