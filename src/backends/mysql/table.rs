//! The lock table in MySQL's SQL. Each step is one round trip, and each statement is a transaction
//! of its own.
//!
//! The statements judge by `UTC_TIMESTAMP(6)`, as ShedLock does, which no time zone changes. No
//! assignment reads a column that an earlier assignment changed, since MySQL would see the new
//! value.

use super::{
    chain,
    connection::{Answer, Answers, Connection},
    failure, history,
    names::Tables,
    reading::{RECORD, lock_row},
    starts::{self, Granting},
    statement::{Value, literal},
};
use crate::{
    backends::sql::{
        self, Begin, Fields, LockRow, Plain, Row, json, locked_by,
        row::{self, Write},
    },
    lock::{Mode, Progress, Request, Result, Token, Ttl, Which},
};

/// A lock table over a session.
pub(super) struct MysqlLockTable<'a> {
    pub session: &'a mut Connection,
    pub tables: &'a Tables,
    /// Whether a holder keeps an advisory lock next to its row.
    pub locks: bool,
    pub noted: Noted,
}

/// Results of the last step besides its answer.
#[derive(Default)]
pub(super) struct Noted {
    /// The row as the last step saw it, so that the next step need not read it.
    seen: Option<LockRow>,
    /// The position in the queue.
    pub position: Option<u32>,
    /// The wake-up counter of the row that was read or written last.
    pub wake_ups: i64,
    /// The document of that row.
    pub document: Option<String>,
}

impl MysqlLockTable<'_> {
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
        let record = lock_row(&mut fields)?;
        if fields.int_or_null()? == Some(1) {
            self.session.advisory_locks.push(name.to_owned());
        }
        self.noted.wake_ups = fields.int()?;
        self.noted.document.clone_from(&record.document);
        Ok(Some(record))
    }

    pub(super) fn has_advisory_lock(&self, name: &str) -> bool {
        self.session.advisory_locks.iter().any(|held| held == name)
    }

    /// Returns the SQL that unlocks the advisory lock.
    fn unlock(&self, name: &str) -> String {
        if self.has_advisory_lock(name) {
            format!("RELEASE_LOCK({})", self.tables.advisory_lock(name))
        } else {
            "0".into()
        }
    }

    fn is_unlocked(&mut self, name: &str) {
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
            .map(|row| lock_row(&mut Fields::of(row)))
            .collect::<Result<_>>()?;
        Ok((records, waiters(&answers)?))
    }

    /// Returns the names with this start, in order.
    pub(super) async fn known(
        &mut self,
        start: &str,
        which: Which,
        progress: &Progress,
    ) -> Result<Vec<String>> {
        let sql = self.tables.fill(
            &starts::known(":table", which),
            &[("start", Value::Bytes(start))],
        );
        rows(&self.session.ask_long(&sql, progress).await?, 0)?
            .iter()
            .map(|row| Fields::of(row).text())
            .collect()
    }

    /// Returns a lock's row, and its plain waiters.
    pub(super) async fn look(&mut self, name: &str) -> Result<(Option<LockRow>, Vec<Plain>)> {
        let values = [("start", Value::Bytes(name)), ("whole", Value::Int(1))];
        let batch = self.read_and_lock(name, None)
            + &self.tables.fill(include_str!("sql/queue.sql"), &values);
        let answers = self.session.ask(&batch).await?;
        let record = self.noted(name, answers.first())?;
        Ok((record, waiters(&answers)?))
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

    /// Removes a waiter from the queue, and unlocks its locks. Returns whether a document may have
    /// the waiter.
    pub(super) async fn leave(&mut self, name: &str, token: &Token) -> Result<bool> {
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

    fn before(&mut self, seconds: u32) -> String {
        if self.session.idle_limit == Some(seconds) {
            String::new()
        } else {
            format!("SET SESSION wait_timeout = {seconds};\n")
        }
    }

    /// Takes the row for a fresh exclusive hold, or creates the row. Returns `None` if the row is
    /// held, has another layout or a document, or has a run record that may deny the grant. Puts a
    /// plain waiter into the queue if the lock is held: a fair one is only in the document, where
    /// its position can end. With `queued`, the hold may be in the queue, and a grant removes it:
    /// otherwise, the rules would take a holder that is gone for a waiter.
    pub(super) async fn grant(
        &mut self,
        name: &str,
        request: &Request,
        queued: bool,
    ) -> Result<Option<LockRow>> {
        let (owner, root, metadata) = (
            locked_by(&request.token),
            request.token.hold_text(),
            json(request.metadata.as_ref())?,
        );
        let document = row::granted(request);
        let idle = idle_limit(request.ttl);
        let begin = Begin::of(request, None);
        let starts = Granting::of(&begin, false, &root, metadata.as_deref());
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
        ];
        let mut batch = self.before(idle);
        let mut first = usize::from(!batch.is_empty());
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
        let joins = request.waiting && row::is_plain(request);
        if joins {
            batch += &join(self.tables, name, request, true)?;
            batch += &position(self.tables, name, request);
        }
        // An acquire that is given up must not arrive later.
        self.session.drop_unsent_on_close(true);
        let Answers {
            answers,
            server_error,
        } = self.session.try_ask(&batch).await?;
        if let Some(server_error) = server_error {
            if queued && answers.len() <= done {
                self.session.roll_back().await?;
            }
            let begun = if queued {
                answers.len() >= done
            } else {
                !answers.is_empty()
            };
            return Err(failure::refused(&server_error, begun));
        }
        self.session.idle_limit = Some(idle);
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
        self.noted.seen = found;
        if joins {
            let position = rows(&answers, done + 3)?
                .first()
                .map(|row| Fields::of(row).int())
                .transpose()?;
            self.noted.position = position
                .and_then(|position| u32::try_from(position).ok())
                .filter(|position| *position > 0);
        }
        Ok(None)
    }

    /// Extends an exclusive hold. Returns `None` if the row was changed since, or the hold would
    /// become shorter.
    pub(super) async fn extend(&mut self, row: &LockRow, ttl: Ttl) -> Result<Option<LockRow>> {
        let values = [
            ("name", Value::Bytes(&row.name)),
            ("owner", Value::Text(&row.locked_by)),
            ("revision", Value::Int(row.revision)),
            ("ttl", Value::Int(sql::ms(ttl))),
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
        self.noted.seen = record;
        Ok(None)
    }

    /// Reads a row, or returns it as the previous step has just seen it.
    pub(super) async fn read(&mut self, name: &str) -> Result<Option<LockRow>> {
        if let Some(seen) = self.noted.seen.take() {
            return Ok(Some(seen));
        }
        let answers = self.session.ask(&self.read_and_lock(name, None)).await?;
        self.noted(name, answers.first())
    }

    /// Creates a free row for a lock that was never taken. Does nothing if there is a row.
    pub(super) async fn create(&mut self, name: &str) -> Result<()> {
        let values = [("name", Value::Bytes(name))];
        self.session
            .ask(&self.tables.fill(include_str!("sql/create.sql"), &values))
            .await
            .map(|_| ())
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

    /// Writes a row back, with the history entries of the holds that it ends. Returns false, with
    /// nothing changed, if the row changed since it was read, or it is too late.
    pub(super) async fn write(&mut self, write: &Write) -> Result<bool> {
        let Write { was, is, .. } = write;
        let name = &*was.name;
        let wake: Vec<_> = write.wake.iter().chain(&write.plain).collect();
        let ring = i64::from(!wake.is_empty());
        let (tables, locks) = (self.tables, self.locks);
        let mut wakes = wake
            .into_iter()
            .filter(|_| locks)
            .map(|hold| chain::wake(tables, name, hold));
        let mut with = history::ended(tables, name, &write.past)?;
        for hold in &write.absorbed {
            let values = [("name", Value::Bytes(name)), ("hold", Value::Text(hold))];
            with.push(tables.fill(
                "DELETE FROM :waiters WHERE name = :name AND hold = :hold AND @dlock_written > 0;",
                &values,
            ));
        }
        // One transaction is one flush to the disk.
        let in_transaction = !with.is_empty();
        let [start, commit] = if in_transaction {
            ["START TRANSACTION;\n", "COMMIT;\n"]
        } else {
            [""; 2]
        };
        let alone = write
            .granted
            .as_ref()
            .filter(|request| request.mode == Mode::Exclusive);
        let takes_lock = locks
            && !self.has_advisory_lock(name)
            && alone.is_some_and(|request| !request.detached);
        let lock = if takes_lock {
            format!("GET_LOCK({}, 0)", tables.advisory_lock(name))
        } else {
            "0".into()
        };
        let open = if write.frees() {
            self.unlock(name)
        } else {
            "0".into()
        };
        let chain_lock = self.chain_lock_of(write);
        let chain = match &chain_lock {
            Some((chain_lock, true)) => format!("GET_LOCK({chain_lock}, 0)"),
            Some((chain_lock, false)) => format!("RELEASE_LOCK({chain_lock})"),
            None => "0".into(),
        };
        let [lock, open, chain] =
            [lock, open, chain].map(|step| format!("IF(@dlock_written > 0, {step}, 0)"));
        let mut rest =
            with.concat() + commit + &format!("SELECT @dlock_written, {lock}, {open}, {chain};\n");
        let idle = alone.map(|request| idle_limit(request.ttl));
        rest.extend(idle.map(|idle| self.before(idle)));
        rest.extend(wakes.next());
        // As in `grant`: a grant that is given up must not arrive later.
        self.session.drop_unsent_on_close(write.granted.is_some());
        let batch = |template| start.to_owned() + &write_sql(tables, write, ring, template) + &rest;
        let mut answered = self
            .session
            .try_ask(&batch(include_str!("sql/write.sql")))
            .await?;
        let interrupted = written(&answered).is_none() && self.session.interrupted;
        if interrupted {
            if in_transaction {
                self.session.roll_back().await?;
            }
            answered = self
                .session
                .try_ask(&batch(include_str!("sql/written.sql")))
                .await?;
        }
        self.session.drop_unsent_on_close(false);
        let Some(row) = written(&answered) else {
            // The interrupted request may have been applied.
            let begun = interrupted
                || answered.answers.len() > if in_transaction { with.len() + 2 } else { 0 };
            if in_transaction {
                self.session.roll_back().await?;
            }
            return Err(answered
                .server_error
                .map_or_else(failure::unreadable, |server_error| {
                    failure::refused(&server_error, begun)
                }));
        };
        let mut fields = Fields::of(row);
        // Later statements wake waiters; their failure is no failure of the write.
        if fields.int()? <= 0 {
            return Ok(false);
        }
        if fields.int_or_null()? == Some(1) {
            self.session.advisory_locks.push(name.to_owned());
        }
        self.session.idle_limit = idle.or(self.session.idle_limit);
        if let Some((chain_lock, keeps)) = chain_lock {
            self.session
                .chain_locks
                .retain(|other| *other != chain_lock);
            self.session.chain_locks.extend(keeps.then_some(chain_lock));
        }
        self.noted.wake_ups += ring;
        self.noted.document.clone_from(&is.document);
        if write.frees() {
            self.is_unlocked(name);
        }
        for wake in wakes {
            // The row is written; a failure only delays the waiter.
            let _ = self.session.try_ask(&wake).await;
        }
        Ok(true)
    }

    /// Returns the chain lock that a write locks or unlocks for a hold, and whether it locks.
    fn chain_lock_of(&self, write: &Write) -> Option<(String, bool)> {
        let (hold, granted) = match (&write.granted, &write.releases) {
            (Some(request), _) if request.mode != Mode::Exclusive && !request.detached => {
                (request.token.hold_text(), true)
            }
            (None, Some(token)) => (token.hold_text(), false),
            _ => return None,
        };
        let chain_lock = self.tables.chain_lock(&write.was.name, &hold);
        let has = self.session.chain_locks.contains(&chain_lock);
        let keeps = granted
            || (has
                && write
                    .is
                    .document
                    .as_ref()
                    .is_some_and(|document| document.contains(&hold)));
        (self.locks && has != keeps).then_some((chain_lock, keeps))
    }
}

/// Returns the SQL that writes a row back.
fn write_sql(tables: &Tables, write: &Write, ring: i64, template: &str) -> String {
    let Write { was, is, .. } = write;
    let time = |us: i64| format!("TIMESTAMPADD(MICROSECOND, {us}, '1970-01-01 00:00:00.000000')");
    let [is_at, is_until, was_until, renewed] = [
        is.locked_at_us,
        is.lock_until_us,
        was.lock_until_us,
        is.renewed_us,
    ]
    .map(time);
    let renewed = if write.unread {
        "UTC_TIMESTAMP(6)".to_owned()
    } else {
        renewed
    };
    let in_time = write
        .by_us
        .map_or("1".into(), |by| format!("UTC_TIMESTAMP(6) < {}", time(by)));
    let recorded = if is.starts == was.starts {
        String::new()
    } else {
        starts::recorded(&is.starts)
    };
    let values = [
        ("name", Value::Bytes(&was.name)),
        ("was_by", Value::Text(&was.locked_by)),
        ("was_until", Value::Sql(&was_until)),
        ("revision", Value::Int(was.revision)),
        ("in_time", Value::Sql(&in_time)),
        ("is_by", Value::Text(&is.locked_by)),
        ("is_at", Value::Sql(&is_at)),
        ("is_until", Value::Sql(&is_until)),
        ("owner", Value::text_or_null(is.owner.as_deref())),
        ("fence", Value::Int(is.fence)),
        ("renewed", Value::Sql(&renewed)),
        ("document", Value::text_or_null(is.document.as_deref())),
        ("recorded", Value::Sql(&recorded)),
        ("ring", Value::Int(ring)),
    ];
    tables.fill(template, &values)
}

/// Returns the SQL that puts a waiter into the queue; with `leased`, only if another client has the
/// lease.
pub(super) fn join(tables: &Tables, name: &str, request: &Request, leased: bool) -> Result<String> {
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
pub(super) fn position(tables: &Tables, name: &str, request: &Request) -> String {
    let root = request.token.hold_text();
    tables.fill(
        include_str!("sql/position.sql"),
        &[("name", Value::Bytes(name)), ("root", Value::Text(&root))],
    )
}

/// Returns the SQL that removes a waiter from the queue.
pub(super) fn leaving(tables: &Tables, name: &str, token: &Token) -> String {
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
fn idle_limit(ttl: Ttl) -> u32 {
    u32::try_from(ttl.get().as_secs().saturating_mul(2).saturating_add(1))
        .unwrap_or(u32::MAX)
        .clamp(2, 31_536_000)
}

/// Returns the row of [`MysqlLockTable::write`] that says whether it was written; no other
/// statement of it returns a row.
fn written(answered: &Answers) -> Option<&Row> {
    answered
        .answers
        .iter()
        .find_map(|answer| answer.rows.first())
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
