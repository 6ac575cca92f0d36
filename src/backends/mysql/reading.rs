//! Rows as the server sends them, and what they mean.

use super::{connection::Row, failure, starts};
use crate::{
    backends::sql::{LockRow, Plain, micros},
    lock::Result,
};

/// The columns that [`record`] reads, in its order; times in µs since 1970.
pub(super) const RECORD: &str = "name, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), \
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', lock_until), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', locked_at), locked_by, \
    layout, owner, fence, l.mode, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', COALESCE(renewed_at, locked_at)), revision, document, \
    COALESCE(document NOT LIKE '%\"q\":[%', 1) \
        AND EXISTS (SELECT 1 FROM :waiters AS w WHERE w.name = l.name AND ABS(TIMESTAMPDIFF(SECOND, w.seen, UTC_TIMESTAMP(6))) < 15), \
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
    pub(super) fn record(&mut self) -> Result<LockRow> {
        Ok(LockRow {
            name: self.text()?,
            now_us: self.int()?,
            lock_until_us: self.int()?,
            locked_at_us: self.int()?,
            locked_by: self.text()?,
            layout: self.int_or_null()?.map(|layout| i16::try_from(layout).unwrap_or(i16::MAX)),
            owner: self.text_or_null()?,
            fence: self.int()?,
            mode: self.text_or_null()?,
            renewed_us: self.int()?,
            revision: self.int()?,
            document: self.text_or_null()?,
            waited: self.int()? != 0,
            starts: starts::read(self)?,
        })
    }

    /// The columns of `sql/queue.sql`.
    pub(super) fn plain(&mut self) -> Result<Plain> {
        let (name, hold, metadata) = (self.text()?, self.text()?, self.text_or_null()?);
        let ms = |at| u64::try_from(at).unwrap_or_default();
        Ok(Plain { name, hold, metadata, since_ms: ms(self.int()?), seen_ms: ms(self.int()?), waited: micros(self.int()?) })
    }
}
