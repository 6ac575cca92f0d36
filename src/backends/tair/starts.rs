//! What is kept of the starts of runs: one value beside the lock, as JSON, written and compared as the lock's own.
//!
//! # Worst cases
//! - *Two take the lock at the same time*: only who has stored its value reads, decides and writes, so that nobody else is granted the lock
//!   in between; and what is granted is not told before the start is written.
//! - *The packet that grants is not executed to its end*: nothing was told; asked again, the start is written then.
//! - *A release is sent and the lock is another's by now*: what became of the start is written only where that start is the last one.

use redis::{Pipeline, Value};

use super::{
    Tair,
    options::Mode,
    value::{Compared, Stored, created},
};
use crate::{
    backends::redis::{failure, history::to_json, names::Names, reply},
    lock::{Error, Fence, Key, Kind, Record, Result, Stage, random},
};

/// For how many ms a record is kept that nobody changes, and longer if somebody may ask for it.
const KEEP: u64 = 100 * 24 * 3600 * 1000;

/// A record, and the value that it was read from.
#[derive(Debug, Default)]
pub(super) struct Starts {
    pub record: Record,
    stored: Option<Stored>,
}

impl Mode {
    fn read_value(self, pipeline: &mut Pipeline, key: &str) {
        pipeline
            .cmd(match self {
                Self::Plain => "GET",
                Self::Version => "EXGET",
            })
            .arg(key);
    }

    /// Stores `value`, whatever was stored.
    fn put(self, pipeline: &mut Pipeline, key: &str, value: &str, ttl: u64) {
        match self {
            Self::Plain => pipeline.cmd("SET").arg(key).arg(value).arg("PX").arg(ttl),
            Self::Version => pipeline.cmd("EXSET").arg(key).arg(value).arg("PX").arg(ttl).arg("ABS").arg(random() >> 2),
        };
    }
}

/// Reads it, in one command.
pub(super) fn read(mode: Mode, pipeline: &mut Pipeline, names: &Names) {
    mode.read_value(pipeline, &names.starts);
}

fn stored(reply: &Value) -> Result<Option<Stored>> {
    match reply {
        Value::Nil => Ok(None),
        Value::ServerError(error) => Err(failure::refused(error)),
        Value::BulkString(_) => Ok(reply::text(reply).map(|value| Stored { value, version: 0 })),
        Value::Array(pair) => {
            let (value, version) = (pair.first().and_then(reply::text), pair.get(1).and_then(reply::int));
            Ok(value.zip(version.and_then(|version| u64::try_from(version).ok())).map(|(value, version)| Stored { value, version }))
        }
        _ => Err(failure::unreadable()),
    }
}

impl Starts {
    /// From the reply to [`read`]. What can't be read refuses everybody: it may be a start.
    pub(super) fn of(reply: &Value) -> Result<Self> {
        let stored = stored(reply)?;
        let record = match &stored {
            None => Record::default(),
            Some(stored) => serde_json::from_str(&stored.value).map_err(|error| {
                Error::new(Kind::Data, "the record of starts can't be read").hint("somebody wrote it; delete …:starts").source(error)
            })?,
        };
        Ok(Self { record, stored })
    }

    /// Writes a record in its place, whatever became of it meanwhile.
    pub(super) fn put(record: &Record, now: u64, mode: Mode, pipeline: &mut Pipeline, names: &Names) -> Result<()> {
        mode.put(pipeline, &names.starts, &to_json(record)?, lasts(record, now));
        Ok(())
    }

    /// Writes what became of the start with this fence, if that is the last one and it is not known.
    pub(super) fn end(mut self, fence: Fence, stage: Stage, now: u64, mode: Mode, pipeline: &mut Pipeline, names: &Names) -> Result<()> {
        let changed = self.record.end(fence, stage);
        if let Some(stored) = self.stored.filter(|_| changed) {
            let ttl = i64::try_from(lasts(&self.record, now)).unwrap_or(i64::MAX);
            mode.swap(pipeline, &names.starts, &stored, &to_json(&self.record)?, ttl);
        }
        Ok(())
    }
}

fn lasts(record: &Record, now: u64) -> u64 {
    crate::lock::whole_ms(record.relevant(now)).saturating_mul(2).max(KEEP)
}

impl Tair {
    /// The record as it stands.
    pub(super) async fn starts(&mut self, names: &Names) -> Result<Starts> {
        let mut look = ::redis::pipe();
        read(self.options.mode, &mut look, names);
        let replies = self.look(&look).await?;
        Starts::of(replies.first().ok_or_else(failure::unreadable)?)
    }

    pub(super) async fn claim(&mut self, key: &Key, fence: Fence, level: u32) -> Result<bool> {
        let names = self.names(key);
        let name = format!("{}-warned", names.starts);
        let mode = self.options.mode;
        let mut look = ::redis::pipe();
        mode.read_value(&mut look, &name);
        let known = stored(self.look(&look).await?.first().ok_or_else(failure::unreadable)?)?;
        let told = known.as_ref().and_then(|known| known.value.split_once(':'));
        let told: Option<(u64, u32)> = told.and_then(|(fence, level)| Some((fence.parse().ok()?, level.parse().ok()?)));
        if told.is_some_and(|told| told >= (fence.0, level)) {
            return Ok(false);
        }
        let (mut step, value) = (::redis::pipe(), format!("{fence}:{level}"));
        let Some(known) = &known else {
            mode.create(&mut step, &name, &value, KEEP);
            let replies = self.run(&step, false).await?;
            return created(replies.first().ok_or_else(failure::unreadable)?);
        };
        mode.swap(&mut step, &name, known, &value, i64::try_from(KEEP).unwrap_or(i64::MAX));
        Ok(self.compare(&step).await? == Compared::Done)
    }
}

/// Whether what [`Starts::put`] wrote is written.
pub(super) fn written(reply: &Value) -> Result<()> {
    if created(reply)? { Ok(()) } else { Err(failure::unreadable()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_t_be_read_is_an_error() {
        assert!(Starts::of(&Value::Nil).unwrap().record == Record::default());
        assert!(Starts::of(&Value::BulkString(b"{}".to_vec())).unwrap().record == Record::default());
        assert_eq!(Starts::of(&Value::BulkString(b"7".to_vec())).unwrap_err().kind, Kind::Data);
    }
}
