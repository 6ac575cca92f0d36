//! Writes a lock's row back.

use super::{
    failure, history, starts,
    statement::{Value, ascii, fill},
    table::{PostgresLockTable, leaving, part},
};
use crate::{
    backends::sql::{LAYOUT, LockRow, Session as _, row::Write},
    lock::{Effect, Result},
};

/// What stands around a statement by which a session gives its lock back, and what undoes a part of
/// it that failed.
pub(super) struct Within {
    pub begin: String,
    pub end: &'static str,
    pub undo: &'static str,
}

impl PostgresLockTable<'_> {
    /// Returns the statement that writes a row back, and the same without the history entries.
    fn writing(&self, write: &Write, found: &str) -> Result<[String; 2]> {
        let Write { was, is, .. } = write;
        let mut channels: Vec<_> = write
            .wake
            .iter()
            .map(|hold| self.tables.waiter(&was.name, hold))
            .collect();
        if write.wake_plain {
            channels.push(self.tables.channel(&was.name));
        }
        let wake: String = channels
            .iter()
            .map(|channel| fill(", pg_notify($1, '')", &[Value::Text(channel)]))
            .collect();
        let past = history::rows(self.session, &write.past)?;
        let recorded = if is.starts == was.starts {
            String::new()
        } else {
            starts::recorded(&is.starts)
        };
        let document = is.document.as_deref().map(ascii);
        let values = [
            Value::Text(&was.name),
            Value::Text(&was.locked_by),
            Value::Int(was.revision),
            Value::Int(was.lock_until_us),
            Value::MaybeInt(write.by_us),
            Value::Int(is.lock_until_us),
            Value::Int(is.locked_at_us),
            Value::Text(&is.locked_by),
            Value::Maybe(is.owner.as_deref()),
            Value::Int(is.fence),
            Value::MaybeInt((!write.unread).then_some(is.renewed_us)),
            Value::Maybe(document.as_deref()),
            Value::Texts(&write.absorbed),
            Value::Sql(&recorded),
            Value::Sql(&past),
            Value::Sql(&wake),
        ];
        let gate = leaving(self.has_advisory_lock && write.granted.is_some());
        let lasts = if write.granted.is_some() {
            self.lasts()
        } else {
            ""
        };
        let sql = |remembers| {
            let sql = self
                .tables
                .fill(&write_sql(write, remembers))
                .replace("{gate}", gate)
                .replace("{lasts}", lasts)
                .replace("{found}", found);
            fill(&sql, &values)
        };
        Ok([sql(!past.is_empty()), sql(false)])
    }

    /// Writes a row back. Returns false, with nothing changed, if the row changed since it was
    /// read, or it is too late.
    pub(super) async fn write_back(&mut self, write: &Write) -> Result<bool> {
        let [whole, without] = self.writing(write, "1")?;
        // As in `grant`: a grant that is given up must not arrive later.
        self.session.drop_unsent = write.granted.is_some();
        let mut rows = self.session.run(&whole).await;
        if !write.past.is_empty() && self.may_be_the_history(&rows) {
            rows = self.session.run(&without).await;
        }
        self.session.drop_unsent = false;
        let written = !rows?.is_empty();
        self.left = written && write.granted.is_some();
        Ok(written)
    }

    /// As [`PostgresLockTable::write_back`] over the session that has the lock, which is given back in the
    /// same request if the row is written.
    pub(super) async fn give_back(&mut self, write: &Write, within: &Within) -> Result<bool> {
        // The statement fails if nothing was written: then nothing is given back.
        let ways = self.writing(write, "1 / count(*)")?;
        let ways = &ways[usize::from(write.past.is_empty())..];
        let mut failed = Ok(false);
        for way in ways {
            let sql = format!("{}{way};{}", within.begin, within.end);
            match self.session.run(&sql).await {
                Ok(_) => return Ok(true),
                Err(error) if !self.session.is_open() => return Err(error),
                Err(error) => {
                    self.session.run(within.undo).await?;
                    if failure::is_division_by_zero(&error) {
                        return Ok(false);
                    }
                    failed = Err(error);
                }
            }
        }
        failed
    }

    /// Whether a statement failed that may succeed without its history entry: for want of disk
    /// space or of a right. The history must not stop a release.
    fn may_be_the_history<T>(&self, rows: &Result<T>) -> bool {
        rows.as_ref()
            .is_err_and(|error| error.effect == Effect::NotApplied)
            && self.session.is_open()
    }
}

/// Returns the statement that writes a row back, without the parts that would do nothing.
fn write_sql(write: &Write, remembers: bool) -> String {
    let trims = remembers
        && write
            .past
            .iter()
            .any(|past| past.fence.is_none_or(|fence| fence.0.is_multiple_of(4)));
    include_str!("sql/write.sql")
        .replace("{changed}", &changed(&write.was, &write.is))
        .replace(
            "{past}",
            &part(remembers, include_str!("sql/write_past.sql")),
        )
        .replace("{trimmed}", &part(trims, include_str!("sql/trimmed.sql")))
        .replace(
            "{absorbed}",
            &part(
                !write.absorbed.is_empty(),
                include_str!("sql/write_absorbed.sql"),
            ),
        )
}

/// Returns the assignments of the columns that change.
fn changed(was: &LockRow, is: &LockRow) -> String {
    let columns = [
        (
            was.locked_at_us != is.locked_at_us,
            ", locked_at = timestamp 'epoch' + $7 * interval '1 microsecond'",
        ),
        (was.locked_by != is.locked_by, ", locked_by = $8"),
        (was.layout != Some(LAYOUT), ", layout = {layout}"),
        (was.owner != is.owner, ", owner = $9"),
        (was.fence != is.fence, ", fence = $10"),
        (was.document != is.document, ", document = $12"),
        (was.mode != is.mode, ", mode = {mode}"),
    ];
    columns
        .iter()
        .filter(|(changes, _)| *changes)
        .map(|(_, set)| *set)
        .collect()
}
