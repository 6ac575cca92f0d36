//! Writes a lock's row back, in one request with all that follows from it.

use super::{
    chain,
    connection::Answers,
    failure, history,
    names::Tables,
    starts,
    statement::Value,
    table::{GivesBack, MysqlLockTable, idle_limit},
};
use crate::{
    backends::sql::{Fields, Row, row::Write},
    lock::{Effect, HistoryEntry, Mode, Result},
};

/// An expression that fails with [`SEVERAL_ROWS`].
const FAILS: &str = "(SELECT 1 UNION ALL SELECT 2)";
/// The number of the error that a subquery has several rows.
const SEVERAL_ROWS: u16 = 1242;

/// What is asked in the request that writes a row.
struct Steps {
    /// What comes before the write.
    start: &'static str,
    /// What comes after it.
    rest: String,
    /// The number of statements that belong to the write, if they are in a transaction with it.
    in_transaction: Option<usize>,
    /// The chain lock to lock or unlock.
    chain_lock: Option<(String, bool)>,
    /// The seconds of silence after which the server ends the session from now on.
    idle: Option<u32>,
    /// Further statements that wake waiters.
    wakes: Vec<String>,
    /// Whether to count a wake-up.
    ring: i64,
}

impl MysqlLockTable<'_> {
    /// Writes a row back, with the history entries of the holds that it ends. Returns false, with
    /// nothing changed, if the row changed since it was read, or it is too late.
    pub(super) async fn write_back(&mut self, write: &Write) -> Result<bool> {
        let whole = self.write_with(write, &write.past).await;
        match &whole {
            // The history must not stop a release.
            Err(error)
                if !write.past.is_empty()
                    && !error.is_transient()
                    && error.effect == Effect::NotApplied =>
            {
                self.write_with(write, &[]).await
            }
            _ => whole,
        }
    }

    fn keeps_row(&self) -> bool {
        matches!(self.gives_back, Some(GivesBack::Row))
    }

    fn steps(&mut self, write: &Write, past: &[HistoryEntry]) -> Result<Steps> {
        let (name, tables, locks) = (&*write.was.name, self.tables, self.locks);
        let wake: Vec<_> = write.wake.iter().chain(&write.plain).collect();
        let ring = i64::from(!wake.is_empty());
        let mut wakes = wake
            .into_iter()
            .filter(|_| locks)
            .map(|hold| chain::wake(tables, name, hold));
        let mut with = history::ended(tables, name, past)?;
        for hold in &write.absorbed {
            let values = [("name", Value::Bytes(name)), ("hold", Value::Text(hold))];
            with.push(tables.fill(
                "DELETE FROM :waiters WHERE name = :name AND hold = :hold AND @dlock_written > 0;",
                &values,
            ));
        }
        // One transaction is one flush to the disk.
        let in_transaction = !with.is_empty() && !self.keeps_row();
        let [start, commit] = match self.keeps_row() {
            true => ["SAVEPOINT had;\n", ""],
            false if in_transaction => ["START TRANSACTION;\n", "COMMIT;\n"],
            false => [""; 2],
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
        let chain_lock = self.chain_lock_of(write);
        let chain = match &chain_lock {
            Some((chain_lock, true)) => format!("GET_LOCK({chain_lock}, 0)"),
            Some((chain_lock, false)) => format!("RELEASE_LOCK({chain_lock})"),
            None => "0".into(),
        };
        let [lock, open, chain] = [lock, self.opens(write), chain]
            .map(|step| format!("IF(@dlock_written > 0, {step}, 0)"));
        let mut rest = with.concat() + commit;
        let said = if self.keeps_row() {
            // A statement that fails if nothing was written: then nothing is given back.
            format!("SELECT @dlock_written, 0, 0, IF(@dlock_written > 0, 0, {FAILS});\nCOMMIT;\n")
        } else {
            format!("SELECT @dlock_written, {lock}, {open}, {chain};\n")
        };
        rest.push_str(&said);
        let idle = alone.map(|request| idle_limit(request.ttl));
        rest.extend(idle.map(|idle| self.before(idle)));
        rest.extend(wakes.next());
        Ok(Steps {
            start,
            rest,
            in_transaction: in_transaction.then_some(with.len()),
            chain_lock,
            idle,
            wakes: wakes.collect(),
            ring,
        })
    }

    /// Returns the SQL that unlocks what a hold has that ends, as a part of a statement.
    fn opens(&self, write: &Write) -> String {
        match &self.gives_back {
            Some(GivesBack::Lock(lock)) => format!("RELEASE_LOCK({lock})"),
            _ if write.frees() => self.unlock(&write.was.name),
            _ => "0".into(),
        }
    }

    async fn write_with(&mut self, write: &Write, past: &[HistoryEntry]) -> Result<bool> {
        let steps = self.steps(write, past)?;
        // As in `grant`: a grant that is given up must not arrive later.
        self.session.drop_unsent_on_close(write.granted.is_some());
        let lasts = if write.granted.is_some() {
            self.lasts().to_owned()
        } else {
            "1".into()
        };
        let batch = |template| {
            steps.start.to_owned()
                + &write_sql(self.tables, write, (steps.ring, &lasts), template)
                + &steps.rest
        };
        let [whole, again] = [
            include_str!("sql/write.sql"),
            include_str!("sql/written.sql"),
        ]
        .map(batch);
        let mut answered = self.session.try_ask(&whole).await?;
        let interrupted = written(&answered).is_none() && self.session.interrupted;
        if interrupted {
            if steps.in_transaction.is_some() {
                self.session.roll_back().await?;
            }
            answered = self.session.try_ask(&again).await?;
        }
        self.session.drop_unsent_on_close(false);
        let keeps_row = self.keeps_row();
        let failed = answered.server_error.as_ref();
        if keeps_row && failed.is_some_and(|failed| failed.number == SEVERAL_ROWS) {
            return Ok(false);
        }
        let Some(row) = written(&answered) else {
            // The interrupted request may have been applied.
            let least = steps.in_transaction.map_or(0, |with| with + 2);
            let begun = interrupted || !keeps_row && answered.answers.len() > least;
            if steps.in_transaction.is_some() {
                self.session.roll_back().await?;
            } else if keeps_row {
                // After a deadlock, the server has ended the whole transaction.
                self.session.try_ask("ROLLBACK TO SAVEPOINT had").await?;
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
        if let Some(server_error) = answered.server_error.as_ref().filter(|_| keeps_row) {
            return Err(failure::refused(server_error, true));
        }
        let locked = fields.int_or_null()? == Some(1);
        self.note_written(write, steps, locked).await;
        Ok(true)
    }

    /// Notes what a write did besides, and wakes the other waiters.
    async fn note_written(&mut self, write: &Write, steps: Steps, locked: bool) {
        let name = &*write.was.name;
        if locked {
            self.session.advisory_locks.push(name.to_owned());
        }
        self.session.idle_limit = steps.idle.or(self.session.idle_limit);
        if let Some((chain_lock, keeps)) = steps.chain_lock {
            self.session
                .chain_locks
                .retain(|other| *other != chain_lock);
            self.session.chain_locks.extend(keeps.then_some(chain_lock));
        }
        self.session.noted.wake_ups += steps.ring;
        self.session.noted.document.clone_from(&write.is.document);
        if write.frees() {
            self.is_unlocked(name);
        }
        for wake in steps.wakes {
            // The row is written; a failure only delays the waiter.
            let _ = self.session.try_ask(&wake).await;
        }
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
fn write_sql(tables: &Tables, write: &Write, (ring, lasts): (i64, &str), template: &str) -> String {
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
        ("lasts", Value::Sql(lasts)),
    ];
    tables.fill(template, &values)
}

/// Returns the row of [`MysqlLockTable::write_back`] that says whether it was written; no other
/// statement of it returns a row.
fn written(answered: &Answers) -> Option<&Row> {
    answered
        .answers
        .iter()
        .find_map(|answer| answer.rows.first())
}
