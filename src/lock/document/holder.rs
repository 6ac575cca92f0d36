//! One holder of a lock: an owner with all of its holds.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::super::{Break, Fence, HistoryEntry, Holder, Metadata, Mode, Request, Token};

/// A holder as stored. Times are ms of the store's clock; the short names are part of the layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderEntry {
    /// The token's owner.
    #[serde(rename = "o")]
    pub owner: String,
    /// The first hold of the owner, which took the lock.
    #[serde(rename = "r")]
    pub root: String,
    /// The owner's holds, by [`Token::hold_text`].
    #[serde(rename = "h")]
    pub holds: BTreeMap<String, HoldEntry>,
    /// The mode of the hold.
    #[serde(rename = "m", with = "self")]
    pub mode: Mode,
    /// The permit's number.
    #[serde(rename = "n", default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<u32>,
    /// The holder's fence.
    #[serde(rename = "f")]
    pub fence: u64,
    /// When the holder took the lock.
    #[serde(rename = "b")]
    pub since: u64,
    /// When a hold was last taken or extended; earlier than `since` if that is not known.
    #[serde(rename = "l")]
    pub renewed: u64,
    /// The holder's metadata.
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Whether the hold is detached, so that it needs no living process.
    #[serde(rename = "d", default, skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
    /// The mark of a break.
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Break>,
    /// The server's session that has the lock, in the store's words: the hold lasts as long as the
    /// session has it, whatever its times say.
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

/// One hold of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldEntry {
    /// The hold's original TTL in ms.
    #[serde(rename = "t")]
    pub ttl: u64,
    /// When the hold ends.
    #[serde(rename = "e")]
    pub ends: u64,
}

impl HolderEntry {
    pub(super) fn new(
        request: &Request,
        permit: Option<u32>,
        fence: Fence,
        now: u64,
        ends: u64,
    ) -> Self {
        let hold = request.token.hold_text();
        Self {
            owner: request.token.owner.to_string(),
            holds: BTreeMap::from([(
                hold.clone(),
                HoldEntry {
                    ttl: request.ttl.as_millis(),
                    ends,
                },
            )]),
            root: hold,
            mode: request.mode,
            permit,
            fence: fence.0,
            since: now,
            renewed: now,
            metadata: request.metadata.clone(),
            detached: request.detached,
            mark: None,
            session: None,
        }
    }

    pub(super) fn is_of(&self, token: &Token) -> bool {
        self.owner == token.owner.to_string()
    }

    /// Returns when the last of its holds ends.
    pub(super) fn ends(&self) -> u64 {
        self.holds
            .values()
            .map(|hold| hold.ends)
            .max()
            .unwrap_or_default()
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.holds.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn holder(&self, now: u64) -> Holder {
        let ago = |then: u64| Some(Duration::from_millis(now.saturating_sub(then)));
        Holder {
            mode: self.mode,
            permit: self.permit,
            metadata: self.metadata.clone(),
            fence: Some(Fence(self.fence)),
            foreign: false,
            detached: self.detached,
            held_for: ago(self.since),
            renewed_ago: ago(self.renewed).filter(|_| self.renewed >= self.since),
            expires_in: Some(Duration::from_millis(self.ends().saturating_sub(now))),
            removal: None,
            holds: self.count(),
            broken: self.mark.clone(),
        }
    }

    /// Returns the holder's history entry for the case that the lock is never released.
    pub(super) fn vanished(&self, ended: u64) -> HistoryEntry {
        let (fence, metadata) = (Some(Fence(self.fence)), self.metadata.clone());
        HistoryEntry {
            started_ms: Some(self.since),
            ended_ms: Some(ended),
            ..HistoryEntry::unreleased(fence, self.mark.as_ref(), metadata)
        }
    }
}

/// A mode as a text: `x` for the whole lock, `s` to read, `p<n>` for one of n permits.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
pub(crate) fn serialize<S: Serializer>(mode: &Mode, to: S) -> Result<S::Ok, S::Error> {
    match mode {
        Mode::Exclusive => to.serialize_str("x"),
        Mode::Shared => to.serialize_str("s"),
        Mode::Permits(most) => to.collect_str(&format_args!("p{most}")),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mode, D::Error> {
    let text = String::deserialize(from)?;
    read_mode(&text).ok_or_else(|| D::Error::custom("a mode that no dlock of this layout writes"))
}

/// Reads the text of a mode; `None` if no dlock of this layout writes it.
pub(crate) fn read_mode(text: &str) -> Option<Mode> {
    match text {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        _ => text.strip_prefix('p')?.parse().ok().map(Mode::Permits),
    }
}
