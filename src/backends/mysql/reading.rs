//! The columns of a lock's row, and what a session keeps of it.

use crate::{
    backends::sql::{Fields, LockRow, SqlMode},
    lock::Result,
};

/// The columns that [`lock_row`] reads, in its order; times in µs since 1970.
pub(super) const RECORD: &str = "name, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), \
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', lock_until), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', locked_at), locked_by, \
    layout, owner, fence, l.mode, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', COALESCE(renewed_at, locked_at)), revision, document, \
    COALESCE(document NOT LIKE '%\"q\":[%', 1) \
        AND EXISTS (SELECT 1 FROM :waiters AS w WHERE w.name = l.name AND ABS(TIMESTAMPDIFF(SECOND, w.seen, UTC_TIMESTAMP(6))) < 15), \
    :starts";

/// Reads the columns of [`RECORD`].
pub(super) fn lock_row(fields: &mut Fields<'_>, client_mode: SqlMode) -> Result<LockRow> {
    Ok(LockRow {
        name: fields.text()?,
        now_us: fields.int()?,
        lock_until_us: fields.int()?,
        locked_at_us: fields.int()?,
        locked_by: fields.text()?,
        layout: fields
            .int_or_null()?
            .map(|layout| i16::try_from(layout).unwrap_or(i16::MAX)),
        owner: fields.text_or_null()?,
        fence: fields.int()?,
        mode: fields.text_or_null()?,
        client_mode,
        renewed_us: fields.int()?,
        revision: fields.int()?,
        document: fields.text_or_null()?,
        waited: fields.flag()?,
        starts: fields.run_record()?,
    })
}

/// Results of the last step over a session besides its answer.
#[derive(Default)]
pub(super) struct Noted {
    /// The row as the last step saw it, so that the next step need not read it.
    pub seen: Option<LockRow>,
    /// The position in the queue.
    pub position: Option<u32>,
    /// The wake-up counter of the row that was read or written last.
    pub wake_ups: i64,
    /// The document of that row.
    pub document: Option<String>,
}
