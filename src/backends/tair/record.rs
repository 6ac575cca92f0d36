//! What a lock's value says: all that dlock knows of the hold, as JSON.
//!
//! Every value that is written differs from all others, so that comparing values tells whether anything happened in between.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    backends::redis::failure,
    lock::{Break, End, Error, Fence, Holder, Kind, Metadata, Mode, Past, Request, Result, Token, random},
};

/// The newest layout that this version can read, up to any minor version.
pub(super) const MAJOR: u32 = 1;

/// The value of a lock that dlock has. Times are ms of the server's clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// The layout's version, which also tells our values from others'.
    dlock: String,
    pub owner: String,
    /// Another one in each value.
    nonce: String,
    /// The hold that the lock was taken with.
    pub root: String,
    #[serde(default)]
    pub detached: bool,
    /// Missing until the attempt has counted.
    pub fence: Option<u64>,
    #[serde(default)]
    pub since: Option<i64>,
    #[serde(default)]
    pub renewed: Option<i64>,
    /// When each hold ends, and what TTL it was taken with.
    #[serde(default)]
    pub holds: BTreeMap<String, (i64, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<Metadata>,
    /// Who is breaking the hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Break>,
    /// What a later minor version added.
    #[serde(flatten)]
    more: BTreeMap<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct Version {
    dlock: String,
}

impl Record {
    /// Of an attempt that has not counted yet.
    pub(super) fn new(request: &Request) -> Self {
        Self {
            dlock: format!("{MAJOR}.0"),
            owner: request.token.owner.to_string(),
            nonce: String::new(),
            root: request.token.hold_text(),
            detached: request.detached,
            fence: None,
            since: None,
            renewed: None,
            holds: BTreeMap::new(),
            meta: request.metadata.clone(),
            mark: None,
            more: BTreeMap::new(),
        }
    }

    /// Reads a value; `None` if it is not one of ours.
    ///
    /// # Errors
    /// For a layout newer than ours.
    pub(super) fn read(value: &str) -> Result<Option<Self>> {
        let Ok(version) = serde_json::from_str::<Version>(value) else { return Ok(None) };
        let major = version.dlock.split('.').next().and_then(|major| major.parse().ok());
        if major.is_none_or(|major: u32| major > MAJOR) {
            return Err(failure::newer_layout(&version.dlock));
        }
        Ok(serde_json::from_str(value).ok())
    }

    /// A value that nobody has written before.
    pub(super) fn write(&mut self) -> Result<String> {
        self.nonce = format!("{:016x}", random());
        serde_json::to_string(self).map_err(|error| Error::new(Kind::Internal, "the lock's record can't be written").source(error))
    }

    pub(super) fn is_of(&self, token: &Token) -> bool {
        self.owner == token.owner.to_string()
    }

    /// The end and the TTL of a hold that has not ended.
    pub(super) fn live(&self, hold: &str, now: i64) -> Option<(i64, u64)> {
        self.holds.get(hold).copied().filter(|(ends, _)| *ends > now)
    }

    /// Drops the holds that have ended.
    pub(super) fn settle(&mut self, now: i64) {
        self.holds.retain(|_, (ends, _)| *ends > now);
    }

    /// How long the longest hold lasts.
    pub(super) fn lasts(&self, now: i64) -> i64 {
        self.holds.values().map(|(ends, _)| ends - now).max().unwrap_or(0)
    }

    /// As others see it.
    pub(super) fn holder(&self, now: Option<i64>, expires_in: Option<Duration>) -> Holder {
        let ago = |then: Option<i64>| Some(Duration::from_millis(u64::try_from(now? - then?).unwrap_or(0)));
        let live = self.holds.values().filter(|(ends, _)| now.is_none_or(|now| *ends > now)).count();
        Holder {
            permit: None,
            mode: Mode::Exclusive,
            metadata: self.meta.clone(),
            fence: self.fence.map(Fence),
            foreign: false,
            detached: self.detached,
            held_for: ago(self.since),
            renewed_ago: ago(self.renewed),
            expires_in,
            holds: u32::try_from(live).unwrap_or(u32::MAX).max(1),
            broken: self.mark.clone(),
        }
    }

    /// What is remembered of it if it is never given back.
    pub(super) fn vanished(&self) -> Past {
        let (end, why) = self.mark.as_ref().map_or((End::Expired, None), Into::into);
        let ends = self.holds.values().map(|(ends, _)| *ends).max();
        self.past(ends.and_then(|ends| u64::try_from(ends).ok()), end, why)
    }

    /// What is remembered of it.
    pub(super) fn past(&self, ended_ms: Option<u64>, end: End, why: Option<String>) -> Past {
        let started_ms = self.since.and_then(|since| u64::try_from(since).ok());
        Past { fence: self.fence.map(Fence), started_ms, ended_ms, end, why, metadata: self.meta.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: &str = r#"{"dlock":"1.7","owner":"o","nonce":"n","root":"r","fence":7,"holds":{"r":[9,5]},"new":[1]}"#;

    #[test]
    fn minor_versions_are_kept_and_newer_majors_refused() {
        let mut record = Record::read(VALUE).unwrap().unwrap();
        assert_eq!((record.fence, record.live("r", 8), record.live("r", 9)), (Some(7), Some((9, 5)), None));
        let (one, two) = (record.write().unwrap(), record.write().unwrap());
        assert!(one.contains(r#""new":[1]"#) && one.contains("1.7") && one != two, "{one}");
        for version in ["2.0", "?"] {
            assert_eq!(Record::read(&VALUE.replace("1.7", version)).unwrap_err().kind, Kind::Layout, "{version}");
        }
    }

    #[test]
    fn what_others_store_is_not_ours() {
        for value in ["", "mK3xV9", "7", "{}", r#"{"owner":"o"}"#, r#"{"dlock":"1.0"}"#, r#"{"dlock":7}"#] {
            assert!(Record::read(value).unwrap().is_none(), "{value}");
        }
    }
}
