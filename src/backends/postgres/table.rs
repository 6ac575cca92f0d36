//! The lock table in PostgreSQL's SQL. Each statement is a transaction and a round trip of its own.
//!
//! The statements judge by `clock_timestamp()`, since `now()` stands still in a transaction, as UTC
//! without a time zone, as ShedLock does. A statement waits only for another statement on the same
//! row.

use std::time::Duration;

use super::{
    connection::PostgresSession,
    failure, history,
    names::Tables,
    starts,
    statement::{Value, ascii, fill, json},
};
use crate::{
    backends::sql::{
        self, Fields, LAST_FENCE, LAYOUT, LockRow, Plain, Row, SHARED_BY, Session as _, fence_int,
        locked_by,
        row::{self, Write},
    },
    lock::{Effect, Fence, Progress, Request, Result, Token, Ttl, Which},
};

/// A lock table over a session.
pub(super) struct PostgresLockTable<'a> {
    pub session: &'a mut PostgresSession,
    pub tables: &'a Tables,
    /// The session has the row's advisory lock, which a grant unlocks.
    pub has_advisory_lock: bool,
    /// A grant has removed the new holder from the queue, and unlocked the advisory lock.
    pub left: bool,
}

impl<'a> PostgresLockTable<'a> {
    /// Takes the row for a fresh exclusive hold, or creates the row. Returns `None` if the row is
    /// held, has another layout or a document, or has a run record that may deny the grant.
    pub(super) async fn grant(&mut self, name: &str, request: &Request) -> Result<Option<LockRow>> {
        let (by, hold, metadata) = (
            locked_by(&request.token),
            request.token.hold_text(),
            json(request.metadata.as_ref())?,
        );
        let document = row::granted(request).map(|document| ascii(&document));
        let begin = starts::begin(request, None);
        // A granted hold needs no information about waiters.
        let columns = include_str!("sql/columns.sql").replace("{waited}", "false");
        let sql = include_str!("sql/grant.sql")
            .replace("{columns}", &columns)
            .replace(
                "{waited}",
                &part(request.waiting, include_str!("sql/grant_waited.sql")),
            )
            .replace("{gate}", leaving(self.has_advisory_lock));
        let sql = format!(
            "{}{}",
            self.session.look_for_client(),
            self.tables.fill(&sql)
        );
        let values = [
            Value::Text(name),
            Value::Text(&by),
            Value::Text(&hold),
            Value::Int(sql::ms(request.ttl)),
            Value::Maybe(document.as_deref()),
            Value::Int(LAST_FENCE),
        ];
        let sql = starts::granting(&sql, &begin, values.len(), Some("excluded.locked_at"));
        let values = [
            &values[..],
            &starts::values(&begin, metadata.as_deref(), &hold),
        ]
        .concat();
        // An acquire that is given up must not arrive later.
        self.session.drop_unsent = true;
        let rows = self.session.query(&sql, &values).await;
        self.session.drop_unsent = false;
        let rows = rows?;
        self.left = !rows.is_empty();
        rows.first().map(lock_row).transpose()
    }

    /// Returns the names with this start, in order.
    pub(super) async fn known(
        &mut self,
        start: &str,
        which: Which,
        progress: &Progress,
    ) -> Result<Vec<String>> {
        let sql = self.tables.fill(&starts::known("{table}", which));
        let rows = self
            .session
            .query_long(&sql, &[Value::Text(start)], progress)
            .await?;
        rows.iter().map(|row| Fields::of(row).text()).collect()
    }

    /// Extends an exclusive hold. Returns `None` if the row was changed since, or the hold would
    /// become shorter.
    pub(super) async fn extend(&mut self, row: &LockRow, ttl: Ttl) -> Result<Option<LockRow>> {
        let values = [
            Value::Text(&row.name),
            Value::Text(&row.locked_by),
            Value::Int(row.revision),
            Value::Int(sql::ms(ttl)),
        ];
        let rows = self
            .session
            .query(&self.tables.fill(include_str!("sql/extend.sql")), &values)
            .await?;
        let Some(extended) = rows.first() else {
            return Ok(None);
        };
        let mut fields = Fields::of(extended);
        let (lock_until_us, now_us) = (fields.int()?, fields.int()?);
        Ok(Some(LockRow {
            lock_until_us,
            now_us,
            renewed_us: now_us,
            revision: row.revision + 1,
            ..row.clone()
        }))
    }

    /// Reads a row, after a pause in the server.
    pub(super) async fn read(&mut self, name: &str, pause: Duration) -> Result<Option<LockRow>> {
        let first = if pause.is_zero() {
            String::new()
        } else {
            format!("SELECT pg_sleep({:.4});\n", pause.as_secs_f64())
        };
        let sql = first + &self.tables.fill(include_str!("sql/read.sql"));
        let rows = self.session.query(&sql, &[Value::Text(name)]).await?;
        rows.first().map(lock_row).transpose()
    }

    /// Creates a free row for a lock that was never taken. Does nothing if there is a row.
    pub(super) async fn create(&mut self, name: &str) -> Result<()> {
        self.session
            .query(
                &self.tables.fill(include_str!("sql/create.sql")),
                &[Value::Text(name), Value::Text(SHARED_BY)],
            )
            .await
            .map(|_| ())
    }

    /// Writes a row back. Returns false, with nothing changed, if the row changed since it was
    /// read, or it is too late.
    pub(super) async fn write(&mut self, write: &Write) -> Result<bool> {
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
        let sql = |remembers| {
            self.tables
                .fill(&write_sql(write, remembers))
                .replace("{gate}", gate)
        };
        let (whole, without) = (sql(!past.is_empty()), sql(false));
        // As in `grant`: a grant that is given up must not arrive later.
        self.session.drop_unsent = write.granted.is_some();
        let mut rows = self.session.query(&whole, &values).await;
        if !past.is_empty() && self.may_be_the_history(&rows) {
            rows = self.session.query(&without, &values).await;
        }
        self.session.drop_unsent = false;
        let written = !rows?.is_empty();
        self.left = written && write.granted.is_some();
        Ok(written)
    }

    /// Asks a question that only reads: a standby can answer it, too.
    pub(super) async fn read_anywhere<T>(
        &mut self,
        question: impl AsyncFn(&mut PostgresLockTable<'_>) -> Result<T>,
    ) -> Result<T> {
        let answer = question(self).await;
        if !answer.as_ref().is_err_and(failure::is_in_recovery) {
            return answer;
        }
        let tables = self.tables.on_standby();
        question(&mut PostgresLockTable::over(self.session, &tables)).await
    }

    /// Returns the table over a session without an advisory lock.
    pub(super) fn over(session: &'a mut PostgresSession, tables: &'a Tables) -> Self {
        Self {
            session,
            tables,
            has_advisory_lock: false,
            left: false,
        }
    }

    /// Whether a statement failed that may succeed without its history entry: for want of disk
    /// space or of a right. The history must not stop a release.
    fn may_be_the_history<T>(&self, rows: &Result<T>) -> bool {
        rows.as_ref()
            .is_err_and(|error| error.effect == Effect::NotApplied)
            && self.session.is_open()
    }

    /// Returns every held lock whose name starts with `start`, in order.
    pub(super) async fn list(&mut self, start: &str, progress: &Progress) -> Result<Vec<LockRow>> {
        let rows = self
            .session
            .query_long(
                &self.tables.fill(include_str!("sql/list.sql")),
                &[Value::Text(start)],
                progress,
            )
            .await?;
        rows.iter().map(lock_row).collect()
    }

    /// Puts a waiter into the queue, and returns its position.
    pub(super) async fn join_queue(&mut self, name: &str, request: &Request) -> Result<u32> {
        let (hold, metadata) = (request.token.hold_text(), json(request.metadata.as_ref())?);
        let sql = self.tables.fill(include_str!("sql/join.sql"));
        let row = self
            .session
            .query_one(
                &sql,
                &[
                    Value::Text(name),
                    Value::Text(&hold),
                    Value::Maybe(metadata.as_deref()),
                ],
            )
            .await?;
        Ok(u32::try_from(Fields::of(&row).int()?).unwrap_or(u32::MAX))
    }

    /// Claims a warning for a hold of a session.
    pub(super) async fn warn(&mut self, name: &str, fence: Fence, level: u32) -> Result<bool> {
        let sql = self.tables.fill(include_str!("sql/warn.sql"));
        Ok(!self
            .session
            .query(
                &sql,
                &[
                    Value::Text(name),
                    Value::Int(fence_int(fence)),
                    Value::Int(level.into()),
                ],
            )
            .await?
            .is_empty())
    }

    /// Runs `first`, and removes a waiter from the queue. Returns whether there is a document that
    /// may have the waiter.
    pub(super) async fn leave_queue(
        &mut self,
        first: &str,
        name: &str,
        token: &Token,
    ) -> Result<bool> {
        let sql = format!(
            "{first}\n{}",
            self.tables.fill(include_str!("sql/leave.sql"))
        );
        Ok(!self
            .session
            .query(&sql, &[Value::Text(name), Value::Text(&token.hold_text())])
            .await?
            .is_empty())
    }

    /// Returns the plain waiters for the lock `name`, or for all whose names start with it, longest
    /// first.
    pub(super) async fn queue(&mut self, name: &str, whole: bool) -> Result<Vec<Plain>> {
        let sql = self.tables.fill(include_str!("sql/queue.sql"));
        let rows = self
            .session
            .query(&sql, &[Value::Text(name), Value::Bool(whole)])
            .await?;
        rows.iter().map(|row| Fields::of(row).plain()).collect()
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
    ];
    columns
        .iter()
        .filter(|(changes, _)| *changes)
        .map(|(_, set)| *set)
        .collect()
}

/// Returns a further part of a `WITH`, or nothing.
pub(super) fn part(there: bool, sql: &str) -> String {
    if there {
        format!(", {}", sql.trim_end())
    } else {
        String::new()
    }
}

/// Returns the column by which a granting statement unlocks the advisory lock.
fn leaving(unlock: bool) -> &'static str {
    if unlock {
        ", pg_advisory_unlock_all()::text"
    } else {
        ""
    }
}

/// Reads the columns of `columns.sql`.
fn lock_row(row: &Row) -> Result<LockRow> {
    let mut fields = Fields::of(row);
    let (name, locked_by, layout, owner) = (
        fields.text()?,
        fields.text()?,
        fields.int_or_null()?,
        fields.text_or_null()?,
    );
    Ok(LockRow {
        name,
        locked_by,
        layout: layout.map(|layout| i16::try_from(layout).unwrap_or(i16::MAX)),
        owner,
        fence: fields.int()?,
        revision: fields.int()?,
        document: fields.text_or_null()?,
        mode: fields.text_or_null()?,
        waited: fields.flag()?,
        now_us: fields.int()?,
        lock_until_us: fields.int()?,
        locked_at_us: fields.int()?,
        renewed_us: fields.int()?,
        starts: fields.run_record()?,
    })
}
