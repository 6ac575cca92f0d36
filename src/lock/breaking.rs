//! Taking a lock away from its holder by an operator's decision.

use std::fmt;

use serde::{Deserialize, Serialize};

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

/// The answer to [`super::Backend::mark`] and [`super::Backend::evict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marking {
    /// Done.
    Done,
    /// No hold of the lock has that fence: it was given back, or somebody else has it.
    Changed,
}

/// What a renewal is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To go on: refused once the hold is marked.
    GoOn,
    /// To keep the lock until what ran under it is dead: granted to a marked hold too, and noted as that the holder has seen
    /// the mark.
    Stop,
}

/// How a hold is to be extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    /// The lease from now by the store's clock; `None` for the TTL that the hold was taken with.
    pub ttl: Option<super::Ttl>,
    /// What for.
    pub purpose: Purpose,
}

impl From<Option<super::Ttl>> for Extension {
    fn from(ttl: Option<super::Ttl>) -> Self {
        Self { ttl, purpose: Purpose::GoOn }
    }
}
