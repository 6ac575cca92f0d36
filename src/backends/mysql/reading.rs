//! Rows as the server sends them, and what they mean.

use super::{connection::Row, failure, starts};
use crate::{
    backends::sql::{Record, micros},
    lock::{Metadata, Result, Waiter},
};

/// The columns that [`record`] reads, in its order; times in µs since 1970.
pub(super) const RECORD: &str = "name, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), \
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', lock_until), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', locked_at), locked_by, \
    layout, owner, root, ttl_ms, holds, fence, detached, l.mode, \
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', COALESCE(renewed_at, locked_at)), metadata, revision, \
    (SELECT m.mark FROM :marks AS m WHERE m.name = l.name AND m.fence = l.fence), \
    COALESCE((SELECT m.seen FROM :marks AS m WHERE m.name = l.name AND m.fence = l.fence), 0), document, \
    document IS NULL AND EXISTS (SELECT 1 FROM :waiters AS w WHERE w.name = l.name AND ABS(TIMESTAMPDIFF(SECOND, w.seen, UTC_TIMESTAMP(6))) < 15), \
    :starts";

/// A row's values, one after the other.
pub(super) struct Fields<'a>(std::slice::Iter<'a, Option<Vec<u8>>>);

impl<'a> Fields<'a> {
    pub(super) fn of(row: &'a Row) -> Self {
        Self(row.iter())
    }

    fn next(&mut self) -> Result<Option<&'a [u8]>> {
        self.0.next().map(Option::as_deref).ok_or_else(failure::unreadable)
    }

    pub(super) fn text_or_null(&mut self) -> Result<Option<String>> {
        let text = self.next()?.map(|bytes| String::from_utf8(bytes.to_vec()));
        text.transpose().map_err(|_| failure::unreadable())
    }

    pub(super) fn text(&mut self) -> Result<String> {
        self.text_or_null()?.ok_or_else(failure::unreadable)
    }

    pub(super) fn int_or_null(&mut self) -> Result<Option<i64>> {
        let parsed = self.text_or_null()?.map(|text| text.parse());
        parsed.transpose().map_err(|_| failure::unreadable())
    }

    pub(super) fn int(&mut self) -> Result<i64> {
        self.int_or_null()?.ok_or_else(failure::unreadable)
    }

    /// The columns of [`RECORD`].
    pub(super) fn record(&mut self) -> Result<Record> {
        Ok(Record {
            name: self.text()?,
            now_us: self.int()?,
            lock_until_us: self.int()?,
            locked_at_us: self.int()?,
            locked_by: self.text()?,
            layout: self.int_or_null()?.map(|layout| i16::try_from(layout).unwrap_or(i16::MAX)),
            owner: self.text_or_null()?,
            root: self.text_or_null()?,
            ttl_ms: self.int()?,
            holds: self.text_or_null()?,
            fence: self.int()?,
            detached: self.int()? != 0,
            mode: self.text_or_null()?,
            renewed_us: self.int()?,
            metadata: self.text_or_null()?,
            revision: self.int()?,
            mark: self.text_or_null()?,
            seen: self.int()? != 0,
            document: self.text_or_null()?,
            waited: self.int()? != 0,
            starts: starts::read(self)?,
        })
    }

    /// A waiter's metadata, and for how many µs it has waited.
    pub(super) fn waiter(&mut self) -> Result<Waiter> {
        // What can't be read is left out, since no decision hangs on it.
        let metadata = self.text_or_null()?.and_then(|json| serde_json::from_str::<Metadata>(&json).ok());
        Ok(Waiter { metadata, waiting_for: Some(micros(self.int()?)) })
    }
}
