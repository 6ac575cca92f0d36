//! The commands that compare and write, and what they answer; and what is read in the same packet.
//!
//! **Traps.** All of these commands take the expiry away unless they are told one, and their `KEEPTTL` doesn't keep it: each has its
//! `PX`. Versions begin anew when a key is gone, at 1: two holders could have the same, and one renew the other's hold. So ours begin at a
//! random number, and a version is as unique as a value.

use redis::{Pipeline, ServerErrorKind, Value};

use super::{options::Mode, record::Record, shares};
use crate::{
    backends::redis::{failure, names::Names, reading::read_time, reply},
    lock::{Error, Kind, Result, crowd::Crowd, random},
};

/// A value, and its version where there is one.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub value: String,
    pub version: u64,
}

/// What came of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// It was equal, and is written or deleted.
    Done,
    /// Something else is stored by now.
    Changed,
    /// Nothing is.
    Gone,
}

impl Mode {
    /// What `TYPE` calls it.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Plain => "string",
            Self::Version => "exstrtype",
        }
    }

    /// The commands that no plain Redis has.
    pub(super) fn commands(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["cas", "cad"],
            Self::Version => &["exset", "exget", "excas", "excad"],
        }
    }

    /// Stores `value` if nothing is stored.
    pub(super) fn create(self, pipeline: &mut Pipeline, key: &str, value: &str, ttl: u64) -> Stored {
        let version = random() >> 2;
        match self {
            Self::Plain => pipeline.cmd("SET").arg(key).arg(value).arg("NX").arg("PX").arg(ttl),
            Self::Version => pipeline.cmd("EXSET").arg(key).arg(value).arg("PX").arg(ttl).arg("NX").arg("ABS").arg(version),
        };
        Stored { value: value.to_owned(), version }
    }

    /// Writes `value` in the place of `old`.
    pub(super) fn swap(self, pipeline: &mut Pipeline, key: &str, old: &Stored, value: &str, ttl: i64) -> Stored {
        match self {
            Self::Plain => pipeline.cmd("CAS").arg(key).arg(&old.value).arg(value).arg("PX").arg(ttl),
            Self::Version => pipeline.cmd("EXCAS").arg(key).arg(value).arg(old.version).arg("PX").arg(ttl),
        };
        Stored { value: value.to_owned(), version: old.version + 1 }
    }

    /// Deletes `old`.
    pub(super) fn delete(self, pipeline: &mut Pipeline, key: &str, old: &Stored) {
        match self {
            Self::Plain => pipeline.cmd("CAD").arg(key).arg(&old.value),
            Self::Version => pipeline.cmd("EXCAD").arg(key).arg(old.version),
        };
    }

    /// Reads all that is stored of one lock but its queue, in [`READS`] commands.
    pub(super) fn read(self, pipeline: &mut Pipeline, names: &Names) {
        pipeline.cmd("TIME").cmd("TYPE").arg(&names.lock).cmd("PTTL").arg(&names.lock);
        match self {
            // Bounded: with an empty namespace the name may be any program's huge value.
            Self::Plain => pipeline.cmd("GETRANGE").arg(&names.lock).arg(0).arg((1 << 20) - 1),
            Self::Version => pipeline.cmd("EXGET").arg(&names.lock),
        };
        // After the value: whatever was counted before that was written is in it.
        pipeline.cmd("GET").arg(&names.fence);
    }
}

/// How many commands [`Mode::read`] adds.
pub(super) const READS: usize = 5;

/// Whether `SET NX` or `EXSET NX` stored it. Something of another type is something that is stored.
pub(super) fn created(reply: &Value) -> Result<bool> {
    match reply {
        Value::Okay => Ok(true),
        Value::Nil => Ok(false),
        Value::ServerError(error) if error.code() == "WRONGTYPE" => Ok(false),
        Value::ServerError(error) => Err(failure::refused(error)),
        _ => Err(failure::unreadable()),
    }
}

/// What `CAS`, `CAD`, `EXCAS` or `EXCAD` answered.
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

/// A lock at one moment.
#[derive(Debug)]
pub(super) struct Seen {
    /// The server's time in ms and µs; `None` if we may not ask for it.
    pub now: Option<(i64, u64)>,
    /// What is left of it in ms; negative if it has no end.
    pub left: i64,
    /// The fence counter; `None` if there is none yet.
    pub counter: Option<u64>,
    pub what: What,
}

/// What is stored under a lock's name.
#[derive(Debug)]
pub(super) enum What {
    Nothing,
    Ours(Box<Record>, Stored),
    /// Shares, of which some may be over.
    Shared(Box<Crowd>, Stored),
    /// A lock of another library, or of dlock in another mode: it ends by itself.
    Foreign,
    /// Nothing that a lock is stored as.
    NoLock(String),
}

impl What {
    /// What dlock wrote; `None` if it is not of dlock.
    fn ours(stored: Stored) -> Result<Option<Self>> {
        Ok(match Record::read(&stored.value)? {
            Some(record) => Some(Self::Ours(Box::new(record), stored)),
            None => shares::read(&stored.value)?.map(|crowd| Self::Shared(Box::new(crowd), stored)),
        })
    }
}

impl Seen {
    /// From the replies to [`Mode::read`].
    pub(super) fn read(mode: Mode, replies: &[Value]) -> Result<Self> {
        let [time, kind, left, value, counter] = replies else { return Err(failure::unreadable()) };
        let (now, micros) = (readable(time)?.and_then(read_time), readable(time)?.and_then(read_micros));
        if let Value::ServerError(error) = kind {
            // Without this right nothing is known, which must not read as free.
            return Err(failure::refused(error));
        }
        let kind = reply::text(kind).ok_or_else(failure::unreadable)?;
        let left = readable(left)?.and_then(reply::int).unwrap_or(-1);
        let counter = match readable(counter)? {
            None | Some(Value::Nil) => None,
            Some(counter) => Some(reply::int(counter).and_then(|count| u64::try_from(count).ok()).ok_or_else(not_a_counter)?),
        };
        let stored = match value {
            Value::BulkString(_) => reply::text(value).map(|value| Stored { value, version: 0 }),
            Value::Array(pair) => {
                let (value, version) = (pair.first().and_then(reply::text), pair.get(1).and_then(reply::int));
                value.zip(version.and_then(|version| u64::try_from(version).ok())).map(|(value, version)| Stored { value, version })
            }
            _ => None,
        };
        let ours = match stored.filter(|_| kind == mode.kind()) {
            Some(stored) => What::ours(stored)?,
            None => None,
        };
        let what = match ours {
            _ if kind == "none" || left == -2 => What::Nothing,
            Some(ours) => ours,
            None if left >= 0 => What::Foreign,
            None => What::NoLock(kind),
        };
        Ok(Self { now: now.zip(micros), left, counter, what })
    }

    /// The server's time in ms and µs.
    ///
    /// # Errors
    /// If we may not ask for it: nothing can be decided without.
    pub(super) fn time(&self) -> Result<(u64, u64)> {
        let (now, micros) = self
            .now
            .ok_or_else(|| Error::new(Kind::Denied, "the user may not ask the server for its time").hint("ACL SETUSER USER +time"))?;
        Ok((u64::try_from(now).unwrap_or_default(), micros))
    }
}

pub(super) fn not_a_counter() -> Error {
    Error::new(Kind::Data, "the fence counter is not a number, or beyond 2^53").hint("somebody wrote it; delete redisson_lock_token:{…}")
}

fn read_micros(reply: &Value) -> Option<u64> {
    let [seconds, micros] = reply::items(reply)? else { return None };
    u64::try_from(reply::int(seconds)? * 1_000_000 + reply::int(micros)?).ok()
}

/// A reply, or `None` for what this user may not read or what is of another type.
pub(super) fn readable(reply: &Value) -> Result<Option<&Value>> {
    match reply {
        Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoPerm) || error.code() == "WRONGTYPE" => Ok(None),
        Value::ServerError(error) => Err(failure::refused(error)),
        reply => Ok(Some(reply)),
    }
}
