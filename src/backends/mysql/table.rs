//! The lock table in MySQL's SQL. Each step is one round trip, and each statement is a transaction
//! of its own.
//!
//! The statements judge by `UTC_TIMESTAMP(6)`, as ShedLock does, which no time zone changes. No
//! assignment reads a column that an earlier assignment changed, since MySQL would see the new
//! value.

use super::{
    connection::{Answer, Answers, Connection},
    failure, history,
    names::Tables,
    reading::{Noted, RECORD, lock_row},
    starts::{self, Granting},
    statement::{Value, literal},
};
use crate::{
    backends::sql::{
        self, Begin, Fields, LockRow, LockTable, Plain, Row, json, locked_by,
        row::{self, Write},
    },
    lock::{HistoryEntry, Note, Progress, Request, Result, SkipCount, Token, Ttl, Which},
};

/// A lock table over a session.
pub(in crate::backends) struct MysqlLockTable<'a> {
    pub session: &'a mut Connection,
    pub tables: &'a Tables,
    /// Whether a holder keeps an advisory lock next to its row.
    pub locks: bool,
    /// The session that has the foreign lock for a grant, as the document writes it, and what must
    /// still be true of it.
    pub evidence: Option<(String, String)>,
    /// What is asked first in the request of a grant, in so many answers, and the last one's row.
    pub first: (String, usize, Option<Row>),
    /// The session releases its hold, and gives back its lock.
    pub gives_back: Option<GivesBack>,
}

/// What a session gives back once the row is written.
pub(in crate::backends) enum GivesBack {
    /// The row that it has in a transaction: the write is a part of that, so that all changes become
    /// visible at once.
    Row,
    /// A `GET_LOCK`: its name, as SQL.
    Lock(String),
}

impl<'a> MysqlLockTable<'a> {
    /// Returns the table over a session that keeps no locks next to its rows.
    pub(super) fn over(session: &'a mut Connection, tables: &'a Tables) -> Self {
        Self {
            session,
            tables,
            locks: false,
            evidence: None,
            first: Default::default(),
            gives_back: None,
        }
    }

    /// Returns the SQL that reads a row, and takes its advisory lock if `owner` holds the lock.
    fn read_and_lock(&self, name: &str, owner: Option<&str>) -> String {
        let lock = match owner {
            Some(owner) if self.locks && !self.has_advisory_lock(name) => {
                let (owner, lock) = (literal(Value::Text(owner)), self.tables.advisory_lock(name));
                format!(
                    "IF(owner = {owner} AND locked_by = {owner} AND document NOT LIKE '%\"d\":true%' AND lock_until > UTC_TIMESTAMP(6), GET_LOCK({lock}, 0), 0)"
                )
            }
            _ => "0".to_owned(),
        };
        let record = self.tables.fill(RECORD, &[]);
        let values = [
            ("record", Value::Sql(&record)),
            ("gate", Value::Sql(&lock)),
            ("name", Value::Bytes(name)),
        ];
        self.tables.fill(include_str!("sql/read.sql"), &values)
    }

    /// Reads the answer to [`MysqlLockTable::read_and_lock`].
    fn noted(&mut self, name: &str, answer: Option<&Answer>) -> Result<Option<LockRow>> {
        let Some(row) = answer.and_then(|answer| answer.rows.first()) else {
            return Ok(None);
        };
        let mut fields = Fields::of(row);
        let record = lock_row(&mut fields, self.tables.mode())?;
        if fields.int_or_null()? == Some(1) {
            self.session.advisory_locks.push(name.to_owned());
        }
        self.session.noted.wake_ups = fields.int()?;
        self.session.noted.document.clone_from(&record.document);
        Ok(Some(record))
    }

    pub(super) fn has_advisory_lock(&self, name: &str) -> bool {
        self.session.advisory_locks.iter().any(|held| held == name)
    }

    /// Returns the SQL that unlocks the advisory lock.
    pub(super) fn unlock(&self, name: &str) -> String {
        if self.has_advisory_lock(name) {
            format!("RELEASE_LOCK({})", self.tables.advisory_lock(name))
        } else {
            "0".into()
        }
    }

    pub(super) fn is_unlocked(&mut self, name: &str) {
        self.session.advisory_locks.retain(|held| held != name);
    }

    /// Returns the other session that has a lock's advisory lock.
    pub(super) async fn advisory_lock_holder(&mut self, name: &str) -> Result<Option<i64>> {
        if !self.locks || self.has_advisory_lock(name) {
            return Ok(None);
        }
        let answers = self
            .session
            .ask(&format!(
                "SELECT IS_USED_LOCK({})",
                self.tables.advisory_lock(name)
            ))
            .await?;
        Ok(rows(&answers, 0)?
            .first()
            .map(|row| Fields::of(row).int_or_null())
            .transpose()?
            .flatten())
    }

    /// Returns every held lock whose name starts with `start`, in order, and their plain waiters.
    pub(super) async fn list(
        &mut self,
        start: &str,
        progress: &Progress,
    ) -> Result<(Vec<LockRow>, Vec<Plain>)> {
        let record = self.tables.fill(RECORD, &[]);
        let values = [
            ("record", Value::Sql(&record)),
            ("start", Value::Bytes(start)),
            ("whole", Value::Int(0)),
        ];
        let batch = self.tables.fill(include_str!("sql/list.sql"), &values)
            + &self.tables.fill(include_str!("sql/queue.sql"), &values);
        let answers = self.session.ask_long(&batch, progress).await?;
        let records = rows(&answers, 0)?
            .iter()
            .map(|row| lock_row(&mut Fields::of(row), self.tables.mode()))
            .collect::<Result<_>>()?;
        Ok((records, waiters(&answers)?))
    }

    /// Returns the SQL that unlocks whatever the session has for a hold, as one statement or none.
    fn unlock_all(&self, name: &str, token: &Token) -> String {
        let chain_lock = self.tables.chain_lock(name, &token.hold_text());
        let chain = self
            .session
            .chain_locks
            .contains(&chain_lock)
            .then(|| format!("RELEASE_LOCK({chain_lock})"));
        let locks: Vec<_> = self
            .has_advisory_lock(name)
            .then(|| self.unlock(name))
            .into_iter()
            .chain(chain)
            .collect();
        if locks.is_empty() {
            String::new()
        } else {
            format!("DO {};\n", locks.join(", "))
        }
    }

    fn all_unlocked(&mut self, name: &str, token: &Token) {
        self.is_unlocked(name);
        let chain_lock = self.tables.chain_lock(name, &token.hold_text());
        self.session
            .chain_locks
            .retain(|other| *other != chain_lock);
    }

    /// Unlocks the locks of a hold that is over, and whose row another client may hold.
    pub(super) async fn pass_on(&mut self, name: &str, token: &Token) -> Result<()> {
        let unlock = self.unlock_all(name, token);
        if !unlock.is_empty() {
            self.session.ask(&unlock).await?;
            self.all_unlocked(name, token);
        }
        Ok(())
    }

    /// Returns the condition that the session of a grant still has the lock.
    pub(super) fn lasts(&self) -> &str {
        self.evidence.as_ref().map_or("1", |(_, lasts)| lasts)
    }

    pub(super) fn before(&mut self, seconds: u32) -> String {
        // A session that has the lock has a limit of its own.
        if self.session.idle_limit == Some(seconds) || self.evidence.is_some() {
            String::new()
        } else {
            format!("SET SESSION wait_timeout = {seconds};\n")
        }
    }

    /// Returns the plain waiters for one lock.
    pub(super) async fn queue(&mut self, name: &str) -> Result<Vec<Plain>> {
        let values = [("start", Value::Bytes(name)), ("whole", Value::Int(1))];
        let answers = self
            .session
            .ask(&self.tables.fill(include_str!("sql/queue.sql"), &values))
            .await?;
        rows(&answers, 0)?
            .iter()
            .map(|row| Fields::of(row).plain())
            .collect()
    }
}

impl LockTable for MysqlLockTable<'_> {
    async fn grant(
        &mut self,
        name: &str,
        request: &Request,
        queued: bool,
    ) -> Result<Option<LockRow>> {
        self.session.noted = Noted::default();
        let (owner, root, metadata) = (
            locked_by(&request.token),
            request.token.hold_text(),
            json(request.metadata.as_ref())?,
        );
        let session = self.evidence.as_ref().map(|(session, _)| &**session);
        let document = row::granted(request, session);
        let idle = idle_limit(request.ttl);
        let begin = Begin::of(request);
        let starts = Granting::of(&begin, &root, metadata.as_deref());
        let lasts = self.lasts().to_owned();
        let values = [
            ("name", Value::Bytes(name)),
            ("owner", Value::Text(&owner)),
            ("root", Value::Text(&root)),
            ("ttl", Value::Int(sql::ms(request.ttl))),
            ("document", Value::text_or_null(document.as_deref())),
            ("start_set", Value::Sql(&starts.set)),
            ("start_columns", Value::Sql(&starts.columns)),
            ("start_values", Value::Sql(&starts.values)),
            ("clear", Value::Sql(&starts.clear)),
            ("lasts", Value::Sql(&lasts)),
        ];
        let before = self.before(idle);
        let asked_first = self.first.1;
        let mut first = asked_first + usize::from(!before.is_empty());
        let mut batch = std::mem::take(&mut self.first.0) + &before;
        let grant = self.tables.fill(include_str!("sql/grant.sql"), &values);
        let done = if queued {
            // One transaction is one flush to the disk.
            let leave = self
                .tables
                .fill(include_str!("sql/leave_granted.sql"), &values);
            batch.extend(["START TRANSACTION;\n", &grant, &leave, "COMMIT;\n"]);
            first += 1;
            first + 2
        } else {
            batch += &grant;
            first
        };
        let read = self.read_and_lock(name, Some(&owner));
        batch += &read;
        let joins = request.waiting && row::is_plain(request) && self.evidence.is_none();
        if joins {
            batch += &join(self.tables, name, request, true)?;
            batch += &position(self.tables, name, request);
        }
        // An acquire that is given up must not arrive later.
        self.session.drop_unsent_on_close(true);
        let Answers {
            mut answers,
            server_error,
        } = self.session.try_ask(&batch).await?;
        let asked = answers.iter_mut().take(asked_first).last();
        self.first.2 = asked.and_then(|answer| answer.rows.pop());
        if let Some(server_error) = server_error {
            if queued && answers.len() <= done {
                self.session.roll_back().await?;
            }
            let begun = if queued {
                answers.len() >= done
            } else {
                answers.len() > asked_first
            };
            return Err(failure::refused(&server_error, begun));
        }
        self.session.idle_limit = Some(idle).filter(|_| self.evidence.is_none());
        let mut found = self.noted(name, answers.get(done + 1))?;
        let mut granted = answers.get(first).is_some_and(|answer| answer.matched > 0);
        if found.is_none() {
            let batch = self.tables.fill(include_str!("sql/insert.sql"), &values) + &read;
            let Answers {
                answers,
                server_error,
            } = self.session.try_ask(&batch).await?;
            match server_error {
                // Another client created the row first.
                Some(server_error) if server_error.number == failure::DUPLICATE => {}
                Some(server_error) => {
                    return Err(failure::refused(&server_error, !answers.is_empty()));
                }
                None => (found, granted) = (self.noted(name, answers.get(1))?, true),
            }
        }
        self.session.drop_unsent_on_close(false);
        if granted
            && found
                .as_ref()
                .is_some_and(|row| row.is_held_by(&request.token))
        {
            return Ok(found);
        }
        self.session.noted.seen = found;
        if joins {
            self.session.noted.position = read_position(&answers, done + 3)?;
        }
        Ok(None)
    }

    async fn extend(&mut self, row: &LockRow, ttl: Ttl) -> Result<Option<LockRow>> {
        let lasts = self.lasts().to_owned();
        let values = [
            ("name", Value::Bytes(&row.name)),
            ("owner", Value::Text(&row.locked_by)),
            ("revision", Value::Int(row.revision)),
            ("ttl", Value::Int(sql::ms(ttl))),
            ("lasts", Value::Sql(&lasts)),
        ];
        let batch = self.tables.fill(include_str!("sql/extend.sql"), &values)
            + &self.read_and_lock(&row.name, Some(&row.locked_by));
        let answers = self.session.ask(&batch).await?;
        let record = self.noted(&row.name, answers.get(1))?;
        if answers.first().is_some_and(|answer| answer.matched > 0)
            && record
                .as_ref()
                .is_some_and(|now| now.locked_by == row.locked_by)
        {
            return Ok(record);
        }
        self.session.noted.seen = record;
        Ok(None)
    }

    /// The row may be as the previous step has just seen it.
    async fn read(&mut self, name: &str, _: u32) -> Result<Option<LockRow>> {
        if let Some(seen) = self.session.noted.seen.take() {
            return Ok(Some(seen));
        }
        let answers = self.session.ask(&self.read_and_lock(name, None)).await?;
        self.noted(name, answers.first())
    }

    async fn look(&mut self, name: &str) -> Result<(Option<LockRow>, Vec<Plain>)> {
        let values = [("start", Value::Bytes(name)), ("whole", Value::Int(1))];
        let batch = self.read_and_lock(name, None)
            + &self.tables.fill(include_str!("sql/queue.sql"), &values);
        let answers = self.session.ask(&batch).await?;
        let record = self.noted(name, answers.first())?;
        Ok((record, waiters(&answers)?))
    }

    async fn create(&mut self, name: &str) -> Result<()> {
        let values = [("name", Value::Bytes(name))];
        self.session
            .ask(&self.tables.fill(include_str!("sql/create.sql"), &values))
            .await
            .map(|_| ())
    }

    async fn write(&mut self, write: &Write) -> Result<bool> {
        self.write_back(write).await
    }

    async fn join_queue(&mut self, name: &str, request: &Request) -> Result<Option<u32>> {
        let batch =
            join(self.tables, name, request, false)? + &position(self.tables, name, request);
        let answers = self.session.ask(&batch).await?;
        read_position(&answers, 1)
    }

    async fn leave_queue(&mut self, name: &str, token: &Token) -> Result<bool> {
        let unlock = self.unlock_all(name, token);
        let first = usize::from(!unlock.is_empty());
        let document = "SELECT 1 FROM :table WHERE name = :name AND document IS NOT NULL;";
        let document = self.tables.fill(document, &[("name", Value::Bytes(name))]);
        let answers = self
            .session
            .ask(&(unlock + &document + &leaving(self.tables, name, token)))
            .await?;
        self.all_unlocked(name, token);
        Ok(!rows(&answers, first)?.is_empty())
    }

    async fn known(
        &mut self,
        start: &str,
        which: Which,
        progress: &Progress,
    ) -> Result<Vec<String>> {
        let sql = self
            .tables
            .fill(&starts::known(which), &[("start", Value::Bytes(start))]);
        rows(&self.session.ask_long(&sql, progress).await?, 0)?
            .iter()
            .map(|row| Fields::of(row).text())
            .collect()
    }

    async fn log(&mut self, name: &str) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
        history::read(self.session, self.tables, name).await
    }

    async fn note(&mut self, name: &str, note: &Note) -> Result<()> {
        history::note(self.session, self.tables, name, note).await
    }
}

/// Returns the SQL that puts a waiter into the queue; with `leased`, only if another client has the
/// lease.
fn join(tables: &Tables, name: &str, request: &Request, leased: bool) -> Result<String> {
    let (owner, root, metadata) = (
        locked_by(&request.token),
        request.token.hold_text(),
        json(request.metadata.as_ref())?,
    );
    let values = [
        ("name", Value::Bytes(name)),
        ("owner", Value::Text(&owner)),
        ("root", Value::Text(&root)),
        ("metadata", Value::text_or_null(metadata.as_deref())),
        ("leased", Value::Int(leased.into())),
    ];
    Ok(tables.fill(include_str!("sql/join.sql"), &values))
}

/// Returns the SQL for a waiter's position in the queue.
fn position(tables: &Tables, name: &str, request: &Request) -> String {
    let root = request.token.hold_text();
    tables.fill(
        include_str!("sql/position.sql"),
        &[("name", Value::Bytes(name)), ("root", Value::Text(&root))],
    )
}

/// Returns the SQL that removes a waiter from the queue.
fn leaving(tables: &Tables, name: &str, token: &Token) -> String {
    tables.fill(
        include_str!("sql/leave.sql"),
        &[
            ("name", Value::Bytes(name)),
            ("root", Value::Text(&token.hold_text())),
        ],
    )
}

/// Returns the seconds of silence after which the server ends a session: twice the lease, so that a
/// frozen client doesn't keep an advisory lock for much longer than its lock.
pub(super) fn idle_limit(ttl: Ttl) -> u32 {
    u32::try_from(ttl.get().as_secs().saturating_mul(2).saturating_add(1))
        .unwrap_or(u32::MAX)
        .clamp(2, 31_536_000)
}

/// Reads the answer to [`position`].
fn read_position(answers: &[Answer], nth: usize) -> Result<Option<u32>> {
    let position = rows(answers, nth)?.first();
    let position = position.map(|row| Fields::of(row).int()).transpose()?;
    Ok(position
        .and_then(|position| u32::try_from(position).ok())
        .filter(|position| *position > 0))
}

fn rows(answers: &[Answer], nth: usize) -> Result<&[Row]> {
    answers
        .get(nth)
        .map(|answer| &*answer.rows)
        .ok_or_else(failure::unreadable)
}

fn waiters(answers: &[Answer]) -> Result<Vec<Plain>> {
    rows(answers, 1)?
        .iter()
        .map(|row| Fields::of(row).plain())
        .collect()
}
