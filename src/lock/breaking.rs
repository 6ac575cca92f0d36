//! Taking a lock away from its holder by an operator's decision.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Ttl;

/// The mark on a hold that tells its holder to stop and release, as stores keep it: a line of JSON,
/// whose short names are part of the layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Break {
    /// The operator who set the mark: `user@host`. A claim, never trusted.
    pub by: String,
    /// The operator's reason, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The holder has seen the mark, and is stopping its command.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub seen: bool,
}

impl Break {
    /// Returns a mark that the holder has not seen.
    pub const fn new(by: String, why: Option<String>) -> Self {
        Self {
            by,
            why,
            seen: false,
        }
    }
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

/// The purpose of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Extends the hold for this long from now by the store's clock; `None` means the hold's
    /// original TTL. Refused once the hold has a mark.
    Extend(Option<Ttl>),
    /// Keeps the lock until the command is dead. A marked hold is extended too, and its mark then
    /// says that the holder has seen it.
    Drain,
    /// Only checks whether the token holds the lock, marked or not.
    Probe,
}

impl Intent {
    /// Returns the requested TTL; `None` for the hold's own.
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
