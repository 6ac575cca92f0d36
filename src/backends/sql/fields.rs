//! Rows as a server sends them, in text, and their meaning.

use std::slice::Iter;

use serde::Serialize;

use super::{Plain, micros};
use crate::lock::{End, Error, Fence, HistoryEntry, Holder, Kind, Mode, Result, SkipCount};

/// The values of one row as text; `None` for NULL.
pub struct Row {
    pub values: Vec<Option<Vec<u8>>>,
    /// Returns the error for a value that no version of dlock writes.
    pub unreadable: fn() -> Error,
}

impl Row {
    /// Returns a value of the server's own tables; empty for NULL.
    pub fn at(&self, column: usize) -> &str {
        let value = self.values.get(column).and_then(Option::as_deref);
        value
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
            .unwrap_or_default()
    }
}

/// A row's values, one after the other.
pub struct Fields<'a> {
    values: Iter<'a, Option<Vec<u8>>>,
    unreadable: fn() -> Error,
}

impl<'a> Fields<'a> {
    pub fn of(row: &'a Row) -> Self {
        Self {
            values: row.values.iter(),
            unreadable: row.unreadable,
        }
    }

    pub fn text_or_null(&mut self) -> Result<Option<String>> {
        let value = self.values.next().ok_or_else(self.unreadable)?;
        let text = value.as_ref().map(|bytes| String::from_utf8(bytes.clone()));
        text.transpose().map_err(|_| (self.unreadable)())
    }

    pub fn text(&mut self) -> Result<String> {
        self.text_or_null()?.ok_or_else(self.unreadable)
    }

    pub fn int_or_null(&mut self) -> Result<Option<i64>> {
        let parsed = self.text_or_null()?.map(|text| text.parse());
        parsed.transpose().map_err(|_| (self.unreadable)())
    }

    pub fn int(&mut self) -> Result<i64> {
        self.int_or_null()?.ok_or_else(self.unreadable)
    }

    /// Returns a truth value; false for NULL.
    pub fn flag(&mut self) -> Result<bool> {
        match self.text_or_null()?.as_deref() {
            Some("t") => Ok(true),
            Some("f") | None => Ok(false),
            Some(number) => number
                .parse::<i64>()
                .map(|number| number != 0)
                .map_err(|_| (self.unreadable)()),
        }
    }

    /// Reads JSON. JSON that can't be read is left out, since no decision depends on it.
    pub fn json<T: serde::de::DeserializeOwned>(&mut self) -> Result<Option<T>> {
        Ok(self
            .text_or_null()?
            .and_then(|json| serde_json::from_str(&json).ok()))
    }

    /// Returns a number; `None` for a negative one.
    pub fn unsigned(&mut self) -> Result<Option<u64>> {
        Ok(self
            .int_or_null()?
            .and_then(|number| u64::try_from(number).ok()))
    }

    /// Reads an ended hold: fence, begin and end in ms, end, outcome, metadata.
    pub fn history_entry(&mut self) -> Result<HistoryEntry> {
        Ok(HistoryEntry {
            fence: Some(as_fence(self.int()?)),
            started_ms: self.unsigned()?,
            ended_ms: self.unsigned()?,
            end: End::from(&*self.text()?),
            outcome: self.json()?,
            metadata: self.json()?,
        })
    }

    /// Reads the skipped runs of one host: host, count, first and last in ms, reason.
    pub fn skip_count(&mut self) -> Result<SkipCount> {
        Ok(SkipCount {
            host: self.text()?,
            count: self.unsigned()?.unwrap_or_default(),
            since_ms: self.unsigned()?,
            last_ms: self.unsigned()?,
            reason: self.text()?,
        })
    }

    /// Reads a plain waiter: name, hold, metadata, begin and last request in ms, waiting time in
    /// µs.
    pub fn plain(&mut self) -> Result<Plain> {
        let (name, hold, metadata) = (self.text()?, self.text()?, self.text_or_null()?);
        let (since_ms, seen_ms) = (
            self.unsigned()?.unwrap_or_default(),
            self.unsigned()?.unwrap_or_default(),
        );
        Ok(Plain {
            name,
            hold,
            metadata,
            since_ms,
            seen_ms,
            waited: micros(self.int()?),
        })
    }
}

/// Returns a column's JSON.
pub fn json(value: Option<&impl Serialize>) -> Result<Option<String>> {
    let json = value.map(serde_json::to_string).transpose();
    json.map_err(|error| Error::new(Kind::Internal, "it can't be written as JSON").source(error))
}

/// Returns a fence from its column.
pub fn as_fence(fence: i64) -> Fence {
    Fence(u64::try_from(fence).unwrap_or_default())
}

/// Returns the column's value for a fence.
pub fn fence_int(fence: Fence) -> i64 {
    i64::try_from(fence.0).unwrap_or(i64::MAX)
}

/// Returns a holder of a session lock, without the data that its session wrote: the holder is
/// another program's.
pub fn foreign_holder(mode: Mode) -> Holder {
    Holder {
        foreign: true,
        ..Holder::unknown(mode)
    }
}
