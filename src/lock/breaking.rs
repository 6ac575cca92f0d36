//! Taking a lock away from its holder by an operator's decision.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Ttl;

/// The mark on a hold that its holder is to stop and give back, as stores keep it: a line of JSON, whose short names are
/// part of the layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Break {
    /// Who decided that: `user@host`. As they said it; never trusted.
    pub by: String,
    /// Why, if they said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The holder has seen it, and is stopping what it ran.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub seen: bool,
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by {}", self.by)?;
        match &self.why {
            Some(why) => write!(f, ": {why:?}"),
            None => Ok(()),
        }
    }
}

/// What a renewal is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// To go on, for this long from now by the store's clock; `None` for the TTL that the hold was taken with. Refused once the hold
    /// is marked.
    Extend(Option<Ttl>),
    /// To keep the lock until what ran under it is dead: granted to a marked hold too, and noted as that the holder has seen
    /// the mark.
    Drain,
    /// Only to learn whether the token holds the lock, marked or not.
    Probe,
}

impl Intent {
    /// The TTL that is asked for; `None` for that of the hold.
    pub const fn ttl(self) -> Option<Ttl> {
        match self {
            Self::Extend(ttl) => ttl,
            Self::Drain | Self::Probe => None,
        }
    }
}

impl From<Option<Ttl>> for Intent {
    fn from(ttl: Option<Ttl>) -> Self {
        Self::Extend(ttl)
    }
}
