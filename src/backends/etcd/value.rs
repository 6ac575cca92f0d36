//! What a key's value says of who put it there. Written once, with the key: to write it again would bump its
//! revision, by which the waiters of other libraries order.

use serde::{Deserialize, Serialize};

use super::failure;
use crate::lock::{Error, Kind, Metadata, Request, Result};

/// The layout of what dlock writes. A change of the first number shuts older versions out.
const LAYOUT: &str = "1.0";

/// The value of a hold of dlock.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Value {
    dlock: String,
    /// The hold that the lock was taken with; those nested in it are named elsewhere.
    pub hold: String,
    #[serde(default)]
    pub detached: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

/// Only what tells whether the rest can be read.
#[derive(Deserialize)]
struct Mark {
    dlock: String,
}

impl Value {
    /// What `request` writes.
    pub(super) fn of(request: &Request) -> Result<Vec<u8>> {
        let value =
            Self { dlock: LAYOUT.into(), hold: request.token.hold_text(), detached: request.detached, metadata: request.metadata.clone() };
        serde_json::to_vec(&value).map_err(|error| Error::new(Kind::Internal, "the metadata can't be written").source(error))
    }

    /// Understands a value; `None` is one that dlock did not write.
    ///
    /// # Errors
    /// [`Kind::Layout`] if a newer dlock wrote it.
    pub(super) fn read(bytes: &[u8]) -> Result<Option<Self>> {
        let Ok(Mark { dlock }) = serde_json::from_slice(bytes) else { return Ok(None) };
        match dlock.split('.').next().and_then(|major| major.parse().ok()) {
            Some(0..=1_u32) => Ok(serde_json::from_slice(bytes).ok()),
            Some(_) => Err(failure::newer_layout(&dlock)),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_is_theirs_and_what_newer_ones_wrote_is_refused() {
        for foreign in ["", "web1", "{}", "[1]", r#"{"dlock":7}"#, r#"{"dlock":"x"}"#, r#"{"dlock":"1.0"}"#, "\u{0}"] {
            assert_eq!(Value::read(foreign.as_bytes()).unwrap(), None, "{foreign}");
        }
        assert_eq!(Value::read(br#"{"dlock":"2.0","held":1}"#).unwrap_err().kind, Kind::Layout);
        let minor = Value::read(br#"{"dlock":"1.7","hold":"00","new":true}"#).unwrap().unwrap();
        assert_eq!((minor.hold.as_str(), minor.detached, minor.metadata), ("00", false, None));
    }
}
