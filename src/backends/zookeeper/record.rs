//! What dlock writes into its nodes: JSON, which no other library reads.
//!
//! A contender's own data says who it is. Curator and go-zookeeper leave that unread in locks of others, kazoo shows it
//! as text in `contenders()`.

use serde::{Deserialize, Serialize};

use super::failure;
use crate::lock::{Break, End, Fence, Metadata, Mode, Past, Request, Result};

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
    /// The number of the change that wrote this.
    Here,
    Fence(u64),
}

impl Last {
    /// The fence, of what was written by the change of this number.
    fn given(self, written: i64) -> Option<Fence> {
        match self {
            Self::None => None,
            Self::Here => u64::try_from(written).ok().map(Fence),
            Self::Fence(fence) => Some(Fence(fence)),
        }
    }
}

impl Record {
    pub(super) fn write(last: Last) -> Vec<u8> {
        json(&Self { dlock: VERSION.into(), last })
    }

    /// The last fence, of a record that was written by the change of this number.
    pub(super) fn last_fence(data: &[u8], written: i64) -> Option<Fence> {
        serde_json::from_slice::<Self>(data).ok()?.last.given(written)
    }
}

/// What the mark of a grant says of the hold. That of a hold which is remembered already says nothing any more.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Granted {
    /// Its fence.
    #[serde(default, rename = "f")]
    pub(super) fence: Last,
    #[serde(default, rename = "r", skip_serializing_if = "std::ops::Not::not")]
    pub(super) shared: bool,
    /// Which permit it is.
    #[serde(default, rename = "p", skip_serializing_if = "Option::is_none")]
    pub(super) permit: Option<Permit>,
    #[serde(default, rename = "m", skip_serializing_if = "Option::is_none")]
    pub(super) metadata: Option<Metadata>,
    /// Who is breaking it.
    #[serde(default, rename = "b", skip_serializing_if = "Option::is_none")]
    pub(super) broken: Option<Break>,
    /// For nested holds that outlive the one that the lock was taken with.
    #[serde(flatten)]
    pub(super) heirloom: Option<Heirloom>,
}

impl Granted {
    pub(super) fn of(request: &Request, fence: Last, number: u32) -> Self {
        let permit = if let Mode::Permits(of) = request.mode { Some(Permit { number, of }) } else { None };
        Self { fence, shared: request.mode == Mode::Shared, permit, metadata: request.metadata.clone(), ..Self::default() }
    }

    /// How the lock is held.
    pub(super) fn mode(&self) -> Mode {
        match self {
            Self { permit: Some(permit), .. } => Mode::Permits(permit.of),
            Self { shared: true, .. } => Mode::Shared,
            _ => Mode::Exclusive,
        }
    }

    /// The number of the permit.
    pub(super) fn number(&self) -> Option<u32> {
        self.permit.map(|permit| permit.number)
    }

    pub(super) fn write(&self) -> Vec<u8> {
        json(self)
    }

    pub(super) fn read(data: &[u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }

    /// What it says once the holder has seen that it is being broken; `None` if it says so already, or nothing of that.
    pub(super) fn seen(&self) -> Option<Vec<u8>> {
        let broken = self.broken.as_ref().filter(|broken| !broken.seen)?;
        Some(Self { broken: Some(Break { seen: true, ..broken.clone() }), ..self.clone() }.write())
    }

    /// The hold, which was never given back, by the change and the time that its mark was made with. When it ended is not
    /// known any more.
    pub(super) fn past(self, made: i64, since: i64) -> Option<Past> {
        let (end, why) = self.broken.as_ref().map_or((End::Expired, None), Into::into);
        let fence = Some(self.fence.given(made)?);
        Some(Past { fence, started_ms: u64::try_from(since).ok(), ended_ms: None, end, why, metadata: self.metadata })
    }
}

/// One of several permits.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Permit {
    #[serde(rename = "i")]
    pub(super) number: u32,
    /// How many there were to be when it was granted.
    #[serde(rename = "n")]
    pub(super) of: u32,
}

/// What the mark holds once the hold that the lock was taken with was given back, and nested ones keep it: the session
/// of the contender's node, for them to keep alive.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Heirloom {
    pub(super) session: i64,
    /// The session's password, sealed with what only holds of this owner know.
    pub(super) sealed: [u8; 16],
    /// What the session lasts, in ms.
    pub(super) timeout_ms: u64,
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
        assert!(Granted::read(b"").is_none());
        let last = |last| Record::last_fence(&Record::write(last), 9);
        assert_eq!([last(Last::None), last(Last::Here), last(Last::Fence(7))], [None, Some(Fence(9)), Some(Fence(7))]);
    }

    #[test]
    fn a_mark_says_whose_hold_it_is_and_whose_session_it_hands_down() {
        let old = br#"{"session":7,"sealed":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"timeout_ms":4000}"#;
        let granted = Granted::read(old).unwrap();
        assert_eq!(granted.heirloom.as_ref().map(|heirloom| heirloom.timeout_ms), Some(4000));
        assert!(granted.past(9, 5).is_none(), "an older version's has no fence");
        let broken = Some(Break { by: "ana@ops1".into(), why: None, seen: false });
        let granted = Granted { fence: Last::Here, broken, ..Granted::read(old).unwrap() };
        let again = Granted::read(&granted.write()).unwrap();
        assert!(again.heirloom.is_some() && again.broken == granted.broken);
        let past = again.past(9, 5).unwrap();
        assert_eq!((past.fence, past.started_ms, past.end), (Some(Fence(9)), Some(5), End::Broken));
        assert_eq!(Granted { fence: Last::Fence(3), ..Granted::default() }.past(9, 5).unwrap().end, End::Expired);
    }
}
