//! The compare-and-swap commands, their replies, and the reads in the same packet.
//!
//! **Traps.** All these commands remove the TTL unless they set one, and their `KEEPTTL` doesn't
//! keep it: each has its `PX`. Versions start at 1 again once a key is gone: two holders could have
//! the same version, and one could renew the other's hold. So dlock starts each version at a random
//! number, which makes it as unique as a value.

use redis::{Pipeline, ServerErrorKind, Value};
use serde::{Deserialize, Serialize};

use super::options::TairMode;
use crate::{
    backends::redis::{failure, history::to_json, names::RedisNames, reply},
    lock::{Error, Kind, Metadata, Request, Result, document::Document, random},
};

/// The newest layout that this version can read, up to any minor version.
pub(in crate::backends) const MAJOR: u32 = 1;

/// A value, and its version in mode `Version`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stored {
    pub value: String,
    pub version: u64,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// The value was equal, and was replaced or deleted.
    Done,
    /// The key has another value.
    Changed,
    /// The key does not exist.
    Gone,
}

impl TairMode {
    /// Returns the name of the type, as in the reply to `TYPE`.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Plain => "string",
            Self::Version => "exstrtype",
        }
    }

    /// Returns the commands that plain Redis lacks.
    pub(super) fn commands(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["cas", "cad"],
            Self::Version => &["exset", "exget", "excas", "excad"],
        }
    }

    /// Stores `value` if the key does not exist.
    pub(super) fn create(
        self,
        pipeline: &mut Pipeline,
        key: &str,
        value: &str,
        ttl: u64,
    ) -> Stored {
        let version = random() >> 2;
        match self {
            Self::Plain => pipeline
                .cmd("SET")
                .arg(key)
                .arg(value)
                .arg("NX")
                .arg("PX")
                .arg(ttl),
            Self::Version => pipeline
                .cmd("EXSET")
                .arg(key)
                .arg(value)
                .arg("PX")
                .arg(ttl)
                .arg("NX")
                .arg("ABS")
                .arg(version),
        };
        Stored {
            value: value.to_owned(),
            version,
        }
    }

    /// Replaces `old` by `value`.
    pub(super) fn swap(
        self,
        pipeline: &mut Pipeline,
        key: &str,
        old: &Stored,
        value: &str,
        ttl: i64,
    ) -> Stored {
        match self {
            Self::Plain => pipeline
                .cmd("CAS")
                .arg(key)
                .arg(&old.value)
                .arg(value)
                .arg("PX")
                .arg(ttl),
            Self::Version => pipeline
                .cmd("EXCAS")
                .arg(key)
                .arg(value)
                .arg(old.version)
                .arg("PX")
                .arg(ttl),
        };
        Stored {
            value: value.to_owned(),
            version: old.version + 1,
        }
    }

    /// Deletes `old`.
    pub(super) fn delete(self, pipeline: &mut Pipeline, key: &str, old: &Stored) {
        match self {
            Self::Plain => pipeline.cmd("CAD").arg(key).arg(&old.value),
            Self::Version => pipeline.cmd("EXCAD").arg(key).arg(old.version),
        };
    }

    /// Reads a value of a key that only dlock writes.
    pub(super) fn read_value(self, pipeline: &mut Pipeline, key: &str) {
        match self {
            Self::Plain => pipeline.cmd("GET").arg(key),
            Self::Version => pipeline.cmd("EXGET").arg(key),
        };
    }

    /// Reads the lock's value, its expiry, the time and the fence counter, in [`READS`] commands.
    pub(super) fn read(self, pipeline: &mut Pipeline, names: &RedisNames) {
        pipeline
            .cmd("TIME")
            .cmd("TYPE")
            .arg(&names.lock)
            .cmd("PTTL")
            .arg(&names.lock);
        match self {
            // Bounded: with an empty namespace the key may hold another program's huge value.
            Self::Plain => pipeline
                .cmd("GETRANGE")
                .arg(&names.lock)
                .arg(0)
                .arg((1 << 20) - 1),
            Self::Version => pipeline.cmd("EXGET").arg(&names.lock),
        };
        // Read after the value, so it includes all fences counted before the value was written.
        pipeline.cmd("GET").arg(&names.fence);
    }
}

/// The number of commands that [`TairMode::read`] adds.
pub(super) const READS: usize = 5;

/// Whether `SET NX` or `EXSET NX` stored the value. A key of another type counts as existing.
pub(super) fn created(reply: &Value) -> Result<bool> {
    match reply {
        Value::Okay => Ok(true),
        Value::Nil => Ok(false),
        Value::ServerError(error) if error.code() == "WRONGTYPE" => Ok(false),
        Value::ServerError(error) => Err(failure::refused(error)),
        _ => Err(failure::unreadable()),
    }
}

/// Reads the reply to `CAS`, `CAD`, `EXCAS` or `EXCAD`.
pub(super) fn compared(reply: &Value) -> Result<Compared> {
    match reply {
        Value::Int(1) => Ok(Compared::Done),
        Value::Int(0) => Ok(Compared::Changed),
        Value::Int(-1) => Ok(Compared::Gone),
        Value::Array(items) => match items.first().and_then(reply::text).as_deref() {
            Some("OK") => Ok(Compared::Done),
            Some("CAS_FAILED") => Ok(Compared::Changed),
            _ => Err(failure::unreadable()),
        },
        Value::ServerError(error) if error.code() == "WRONGTYPE" => Ok(Compared::Changed),
        Value::ServerError(error) => Err(failure::refused(error)),
        _ => Err(failure::unreadable()),
    }
}

/// Reads a stored value; `None` if there is none.
pub(super) fn stored(reply: &Value) -> Result<Option<Stored>> {
    match reply {
        Value::Nil => Ok(None),
        Value::ServerError(error) => Err(failure::refused(error)),
        Value::BulkString(_) => Ok(reply::text(reply).map(|value| Stored { value, version: 0 })),
        Value::Array(pair) => {
            let (value, version) = (
                pair.first().and_then(reply::text),
                pair.get(1).and_then(reply::int),
            );
            Ok(value
                .zip(version.and_then(|version| u64::try_from(version).ok()))
                .map(|(value, version)| Stored { value, version }))
        }
        _ => Err(failure::unreadable()),
    }
}

/// An attempt to take a lock. It has the lock between its two steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TentativeClaim {
    /// The hold, as returned by [`crate::lock::Token::hold_text`].
    #[serde(rename = "h")]
    pub hold: String,
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

/// Returns a value that was never written before.
fn value(what: &str, json: &str) -> String {
    format!(
        r#"{{"dlock":"{MAJOR}.1","nonce":"{:016x}","{what}":{json}}}"#,
        random()
    )
}

/// Returns the value for a claim.
pub(super) fn claim(request: &Request) -> Result<String> {
    let claim = TentativeClaim {
        hold: request.token.hold_text(),
        metadata: request.metadata.clone(),
    };
    Ok(value("claim", &to_json(&claim)?))
}

/// Returns the value for the holders of a document; `None` if there are none.
pub(super) fn holders(document: &Document) -> Option<String> {
    document
        .write_holders()
        .map(|json| value("document", &json))
}

/// A lock at one moment.
#[derive(Debug)]
pub(super) struct TairSnapshot {
    /// The server's time in µs; `None` without the right to read it.
    pub now_us: Option<u64>,
    /// The remaining TTL in ms; negative if there is none.
    pub left: i64,
    /// The fence counter; `None` if there is none yet.
    pub counter: Option<u64>,
    pub what: StoredValue,
}

/// The kind of value at a lock's key.
#[derive(Debug)]
pub(super) enum StoredValue {
    Nothing,
    /// Holders, some of which may have ended.
    Held(Box<Document>, Stored),
    Claimed(TentativeClaim, Stored),
    /// A lock of another library, or of dlock in another mode: it has a TTL, or is a string.
    Foreign,
    /// A value that can't be a lock.
    NoLock(String),
}

impl StoredValue {
    /// Reads a value that dlock wrote; `None` for others. A value of a dlock before 0.1.0 counts as
    /// foreign: it keeps the lock to its end.
    pub(super) fn ours(stored: &Stored) -> Result<Option<Self>> {
        let Ok(fields) =
            serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&stored.value)
        else {
            return Ok(None);
        };
        let Some(version) = fields.get("dlock").and_then(serde_json::Value::as_str) else {
            return Ok(None);
        };
        let major = version
            .split('.')
            .next()
            .and_then(|major| major.parse().ok());
        if major.is_none_or(|major: u32| major > MAJOR) {
            return Err(failure::newer_layout(version));
        }
        let claim = fields
            .get("claim")
            .and_then(|claim| TentativeClaim::deserialize(claim).ok());
        Ok(match fields.get("document") {
            Some(document) => Some(Self::Held(
                Box::new(Document::read(Some(&document.to_string()))?),
                stored.clone(),
            )),
            None => claim.map(|claim| Self::Claimed(claim, stored.clone())),
        })
    }
}

impl TairSnapshot {
    /// Reads the replies to [`TairMode::read`].
    pub(super) fn read(mode: TairMode, replies: &[Value]) -> Result<Self> {
        let [time, kind, left, value, counter] = replies else {
            return Err(failure::unreadable());
        };
        let now_us = readable(time)?.and_then(read_micros);
        if let Value::ServerError(error) = kind {
            // Without read rights the lock's state is unknown, and must not be reported as free.
            return Err(failure::refused(error));
        }
        let kind = reply::text(kind).ok_or_else(failure::unreadable)?;
        let left = readable(left)?.and_then(reply::int).unwrap_or(-1);
        let counter = match readable(counter)? {
            None | Some(Value::Nil) => None,
            Some(counter) => Some(
                reply::int(counter)
                    .and_then(|count| u64::try_from(count).ok())
                    .ok_or_else(not_a_counter)?,
            ),
        };
        let ours = match stored(value) {
            Ok(Some(stored)) if kind == mode.kind() => StoredValue::ours(&stored)?,
            _ => None,
        };
        let what = match ours {
            _ if kind == "none" || left == -2 => StoredValue::Nothing,
            Some(ours) => ours,
            // A string without a TTL may be a lock of `SET NX`.
            None if left >= 0 || kind == "string" => StoredValue::Foreign,
            None => StoredValue::NoLock(kind),
        };
        Ok(Self {
            now_us,
            left,
            counter,
            what,
        })
    }
}

fn not_a_counter() -> Error {
    Error::new(
        Kind::Data,
        "the fence counter is not a number, or beyond 2^53",
    )
    .hint("another program wrote it; delete redisson_lock_token:{…}")
}

fn read_micros(reply: &Value) -> Option<u64> {
    let [seconds, micros] = reply::items(reply)? else {
        return None;
    };
    u64::try_from(
        reply::int(seconds)?
            .checked_mul(1_000_000)?
            .checked_add(reply::int(micros)?)?,
    )
    .ok()
}

/// Returns the reply; `None` if the user may not read the key, or if its type is wrong.
pub(super) fn readable(reply: &Value) -> Result<Option<&Value>> {
    match reply {
        Value::ServerError(error)
            if error.kind() == Some(ServerErrorKind::NoPerm) || error.code() == "WRONGTYPE" =>
        {
            Ok(None)
        }
        Value::ServerError(error) => Err(failure::refused(error)),
        reply => Ok(Some(reply)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDERS: &str =
        r#"{"v":100,"s":[{"o":"o","r":"r","h":{"r":{"t":5,"e":9}},"m":"s","f":7,"b":1,"l":2}]}"#;

    fn read(value: &str) -> Result<Option<StoredValue>> {
        StoredValue::ours(&Stored {
            value: value.to_owned(),
            version: 0,
        })
    }

    #[test]
    fn holders_survive_a_round_trip_and_no_value_repeats() {
        let value = format!(r#"{{"dlock":"1.7","nonce":"n","document":{HOLDERS},"new":1}}"#);
        let Some(StoredValue::Held(document, _)) = read(&value).unwrap() else {
            panic!("{value}")
        };
        assert_eq!(
            (
                document.ends(),
                document.fences().map(|fence| fence.0).collect::<Vec<_>>()
            ),
            (Some(9), vec![7])
        );
        let [one, two] = [(); 2].map(|()| holders(&document).unwrap());
        assert!(one != two && one.contains(HOLDERS), "{one}");
        assert!(holders(&Document::default()).is_none());
    }

    #[test]
    fn foreign_values_are_ignored_and_newer_layouts_are_refused() {
        for value in [
            "",
            "mK3xV9",
            "7",
            "{}",
            r#"{"owner":"o"}"#,
            r#"{"dlock":"1.0"}"#,
            r#"{"dlock":7}"#,
            r#"["document"]"#,
        ] {
            assert!(read(value).unwrap().is_none(), "{value}");
        }
        for version in ["2.0", "?"] {
            assert_eq!(
                read(&format!(r#"{{"dlock":"{version}","document":{{}}}}"#))
                    .unwrap_err()
                    .kind,
                Kind::Layout,
                "{version}"
            );
        }
        for (document, kind) in [(r#"{"v":200}"#, Kind::Layout), ("7", Kind::Data)] {
            assert_eq!(
                read(&format!(r#"{{"dlock":"1.0","document":{document}}}"#))
                    .unwrap_err()
                    .kind,
                kind
            );
        }
    }
}
