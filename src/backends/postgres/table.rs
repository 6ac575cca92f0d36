//! The lock table in PostgreSQL's SQL. Each statement is a transaction and a round trip of its own.
//!
//! The statements judge by `clock_timestamp()`, since `now()` stands still in a transaction, as UTC
//! without a time zone, as ShedLock does. A statement waits only for another statement on the same
//! row.

use super::{
    connection::PostgresSession,
    failure, history,
    names::Tables,
    starts,
    statement::{Value, ascii, json},
};
use crate::{
    backends::sql::{
        self, Begin, Fields, LAST_FENCE, LockRow, LockTable, Plain, Row, SHARED_BY, locked_by,
        row::{self, Write},
    },
    lock::{HistoryEntry, Note, Progress, Request, Result, SkipCount, Token, Ttl, Which},
};

/// A lock table over a session.
pub(in crate::backends) struct PostgresLockTable<'a> {
    pub session: &'a mut PostgresSession,
    pub tables: &'a Tables,
    /// The session has the row's advisory lock, which a grant unlocks.
    pub has_advisory_lock: bool,
    /// A grant has removed the new holder from the queue, and unlocked the advisory lock.
    pub left: bool,
    /// The session that has the foreign lock for a grant, as the document writes it, and what must
    /// still be true of it.
    pub evidence: Option<(String, String)>,
}

impl<'a> PostgresLockTable<'a> {
    /// Returns the condition that the session of a grant still has the lock.
    pub(super) fn lasts(&self) -> &str {
        self.evidence.as_ref().map_or("", |(_, lasts)| lasts)
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
            evidence: None,
        }
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
        rows.iter().map(|row| self.lock_row(row)).collect()
    }

    /// Runs `first`, and removes a waiter from the queue. Returns whether there is a document that
    /// may have the waiter.
    pub(super) async fn leave_with(
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

    /// Reads the columns of `columns.sql`.
    fn lock_row(&self, row: &Row) -> Result<LockRow> {
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
            client_mode: self.tables.mode(),
            waited: fields.flag()?,
            now_us: fields.int()?,
            lock_until_us: fields.int()?,
            locked_at_us: fields.int()?,
            renewed_us: fields.int()?,
            starts: fields.run_record()?,
        })
    }
}

impl LockTable for PostgresLockTable<'_> {
    async fn grant(&mut self, name: &str, request: &Request, _: bool) -> Result<Option<LockRow>> {
        let (by, hold, metadata) = (
            locked_by(&request.token),
            request.token.hold_text(),
            json(request.metadata.as_ref())?,
        );
        let session = self.evidence.as_ref().map(|(session, _)| &**session);
        let document = row::granted(request, session).map(|document| ascii(&document));
        let begin = Begin::of(request);
        // A granted hold needs no information about waiters.
        let columns = include_str!("sql/columns.sql").replace("{waited}", "false");
        let sql = include_str!("sql/grant.sql")
            .replace("{columns}", &columns)
            .replace(
                "{waited}",
                &part(request.waiting, include_str!("sql/grant_waited.sql")),
            )
            .replace("{gate}", leaving(self.has_advisory_lock))
            .replace("{lasts}", self.lasts());
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
        let sql = starts::granting(&sql, &begin, values.len(), "excluded.locked_at");
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
        rows.first().map(|row| self.lock_row(row)).transpose()
    }

    async fn extend(&mut self, row: &LockRow, ttl: Ttl) -> Result<Option<LockRow>> {
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

    async fn read(&mut self, name: &str, failed: u32) -> Result<Option<LockRow>> {
        let pause = row::pause(failed);
        let first = if pause.is_zero() {
            String::new()
        } else {
            format!("SELECT pg_sleep({:.4});\n", pause.as_secs_f64())
        };
        let sql = first + &self.tables.fill(include_str!("sql/read.sql"));
        let rows = self.session.query(&sql, &[Value::Text(name)]).await?;
        rows.first().map(|row| self.lock_row(row)).transpose()
    }

    async fn look(&mut self, name: &str) -> Result<(Option<LockRow>, Vec<Plain>)> {
        Ok((self.read(name, 0).await?, self.queue(name, true).await?))
    }

    async fn create(&mut self, name: &str) -> Result<()> {
        self.session
            .query(
                &self.tables.fill(include_str!("sql/create.sql")),
                &[Value::Text(name), Value::Text(SHARED_BY)],
            )
            .await
            .map(|_| ())
    }

    async fn write(&mut self, write: &Write) -> Result<bool> {
        self.write_back(write).await
    }

    async fn join_queue(&mut self, name: &str, request: &Request) -> Result<Option<u32>> {
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
        Ok(Some(
            u32::try_from(Fields::of(&row).int()?).unwrap_or(u32::MAX),
        ))
    }

    async fn leave_queue(&mut self, name: &str, token: &Token) -> Result<bool> {
        self.leave_with("", name, token).await
    }

    async fn known(
        &mut self,
        start: &str,
        which: Which,
        progress: &Progress,
    ) -> Result<Vec<String>> {
        let sql = self.tables.fill(&starts::known(which));
        let rows = self
            .session
            .query_long(&sql, &[Value::Text(start)], progress)
            .await?;
        rows.iter().map(|row| Fields::of(row).text()).collect()
    }

    async fn log(&mut self, name: &str) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
        history::read(self.session, self.tables, name).await
    }

    async fn note(&mut self, name: &str, note: &Note) -> Result<()> {
        history::note(self.session, self.tables, name, note).await
    }
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
pub(super) fn leaving(unlock: bool) -> &'static str {
    if unlock {
        ", pg_advisory_unlock_all()::text"
    } else {
        ""
    }
}
