//! The statements of a session that asks for a lock, waits for it or has it.

use std::time::Duration;

use super::{
    advisory_wait::{queued, queued_for_row},
    connection::{IDLE_SESSION_TIMEOUT, PostgresSession},
    failure,
    names::Tables,
    options::{AdvisoryKey, PostgresOptions},
    starts,
    statement::{Value, fill, json},
    table::part,
};
use crate::{
    backends::sql::{Fields, Row, Session as _, SessionLock, SqlMode, fence_int},
    lock::{Break, Error, Fence, Holder, Kind, ReleaseInfo, Result, Ttl},
};

/// From this version on a role's settings can limit a transaction as a whole.
const TRANSACTION_TIMEOUT: u32 = 170_000;
/// A waiter that is frozen when it gets the lock keeps it for at most this long.
const UNCLAIMED: Duration = Duration::from_secs(5);
/// Begins the transaction that keeps the row locked. Sent with each attempt: a dropped call may
/// have ended the transaction or not, and outside of one, a row is locked for no longer than its
/// statement. Within one it changes nothing.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;";

/// PostgreSQL's part of a session lock.
pub struct PostgresSessionPart {
    key: Option<AdvisoryKey>,
    tables: Tables,
    /// The server's process.
    pub pid: i32,
    /// The transaction that keeps the row locked.
    pub transaction: Option<i64>,
    /// The server counts the silence from an attempt that had the lock, not from the wait before.
    attempted: bool,
    /// The holders at the last look.
    pub found: Option<Vec<Holder>>,
    /// Later runs depend on the run's outcome.
    pub matters: bool,
}

/// A session that asks for a lock, waits for it or has it.
pub(super) type PostgresLock = SessionLock<PostgresSession, PostgresSessionPart>;

impl PostgresLock {
    pub(super) async fn open(
        options: &PostgresOptions,
        tables: &Tables,
        name: String,
        shared: bool,
    ) -> Result<Self> {
        let session = PostgresSession::open(&options.sql).await?;
        let (key, tables) = (options.advisory_key, tables.clone());
        let part = PostgresSessionPart {
            key,
            tables,
            pid: 0,
            transaction: None,
            attempted: false,
            found: None,
            matters: false,
        };
        Ok(Self::new(session, options.sql.mode, name, shared, part))
    }

    /// Returns statements after which the server ends the session once it has been silent for this
    /// long. Both ends notice in about the same time that the other host is gone.
    fn set_idle_limit(&mut self, limit: Duration) -> String {
        self.session.keep_alive(limit);
        self.idle_limit = limit;
        let ms = limit.as_millis();
        let seconds = |part: Duration| part.as_secs().max(1);
        let idle = match self.mode {
            SqlMode::Row => format!("SET idle_in_transaction_session_timeout = '{ms}ms';"),
            _ if self.session.version >= IDLE_SESSION_TIMEOUT => {
                format!("SET idle_session_timeout = '{ms}ms';")
            }
            _ => String::new(),
        };
        let user_timeout = if self.session.version >= 120_000 {
            format!("SET tcp_user_timeout = '{ms}ms';")
        } else {
            String::new()
        };
        // A transaction lasts as long as its lock.
        let whole = if self.session.version >= TRANSACTION_TIMEOUT {
            "SET transaction_timeout = 0;"
        } else {
            ""
        };
        format!(
            "{idle} {whole} {user_timeout} SET tcp_keepalives_idle = {}; SET tcp_keepalives_interval = {}; SET tcp_keepalives_count = 3;",
            seconds(limit / 3),
            seconds(limit / 6)
        )
    }

    /// Asks for the lock once. Returns true if the session has the lock, also on a repeated
    /// request.
    pub(super) async fn attempt(&mut self, ttl: Ttl) -> Result<bool> {
        let mut first = self.set_idle_limit(ttl.get());
        self.has = if self.mode == SqlMode::Row {
            first.push_str(BEGIN);
            self.lock_row(&first).await?
        } else {
            self.lock_key(&first).await?
        };
        self.own.attempted = self.has;
        Ok(self.has)
    }

    /// Runs the statement that counts the fence: over `side`, if this session is in a transaction.
    pub(super) async fn count(
        &mut self,
        ttl: Ttl,
        fence: &str,
        side: Option<&mut PostgresSession>,
    ) -> Result<Vec<Row>> {
        let first = if std::mem::take(&mut self.own.attempted) {
            String::new()
        } else {
            self.set_idle_limit(ttl.get())
        };
        let rows = match side {
            Some(side) if first.is_empty() => side.run(fence).await?,
            Some(side) => {
                // Both run at the same time: a fence that was counted for a session that is over is
                // skipped.
                let (ours, rows) = tokio::join!(self.session.run(&first), side.run(fence));
                if let Err(error) = ours {
                    self.give_back().await?;
                    return Err(error);
                }
                rows?
            }
            None => self.session.run(&format!("{first}{fence}")).await?,
        };
        Ok(rows)
    }

    /// Returns the suffix of the functions of advisory locks.
    fn suffix(&self) -> &'static str {
        if self.shared { "_shared" } else { "" }
    }

    async fn lock_key(&mut self, first: &str) -> Result<bool> {
        let sql = format!(
            "SELECT pg_backend_pid(), pg_try_advisory_lock{}({})",
            self.suffix(),
            self.arguments()
        );
        let rows = self
            .session
            .run(&format!("{first}{}", self.of_name(&sql)))
            .await?;
        self.read(&rows)
    }

    /// Reads the number of the server's process, whether the session has the lock, and in which
    /// transaction.
    fn read(&mut self, rows: &[Row]) -> Result<bool> {
        let row = rows.first().ok_or_else(no_row)?;
        let mut fields = Fields::of(row);
        self.own.pid = i32::try_from(fields.int()?).unwrap_or_default();
        let has = fields.flag()?;
        self.own.transaction = if self.mode == SqlMode::Row {
            fields.int_or_null()?
        } else {
            None
        };
        Ok(has)
    }

    /// Locks the row in a transaction of its own, which ends if another session has the row. A
    /// reader ends it too if a writer waits.
    async fn lock_row(&mut self, first: &str) -> Result<bool> {
        let how = if self.shared {
            format!(
                "AND pg_try_advisory_xact_lock_shared({}) FOR SHARE",
                self.own.tables.reader_lock(&self.name)
            )
        } else {
            "FOR UPDATE".to_owned()
        };
        let lock = self.own.tables.fill(&format!(
            "SELECT pg_backend_pid(), locked.name IS NOT NULL, txid_current_if_assigned() FROM (SELECT 1) AS one
               LEFT JOIN (SELECT name FROM {{rows}} WHERE name = $1 {how} SKIP LOCKED) AS locked ON true",
        ));
        let rows = self
            .session
            .run(&format!("{first}{}", self.of_name(&lock)))
            .await;
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => {
                // The failed statement has aborted the transaction.
                self.give_back().await?;
                return Err(error);
            }
        };
        if self.read(&rows)? {
            return Ok(true);
        }
        self.give_back().await?;
        Ok(false)
    }

    /// Creates the row to lock, if it is missing. Returns true if the row was created.
    pub(super) async fn make_row(&mut self) -> Result<bool> {
        if self.mode != SqlMode::Row {
            return Ok(false);
        }
        let sql = self
            .own
            .tables
            .fill("INSERT INTO {rows} (name) VALUES ($1) ON CONFLICT DO NOTHING RETURNING 1");
        let made = !self
            .session
            .query(&sql, &[Value::Text(&self.name)])
            .await?
            .is_empty();
        Ok(made)
    }

    /// Waits in the server for the lock, at most for the given time. Returns true if the session
    /// has the lock then.
    pub(super) async fn wait(&mut self, ttl: Ttl, at_most: Duration) -> Result<bool> {
        (self.blocked, self.own.attempted) = (true, false);
        let mut first = self.set_idle_limit(ttl.get().min(UNCLAIMED));
        let version = self.session.version;
        if self.mode == SqlMode::Row {
            first.push_str(BEGIN);
        }
        let what = match self.mode {
            SqlMode::Row => {
                let lock = if self.shared { "SHARE" } else { "UPDATE" };
                let turn = format!(
                    "PERFORM pg_advisory_xact_lock{}({});",
                    self.suffix(),
                    self.own.tables.reader_lock(&self.name)
                );
                self.own.tables.fill(&format!(
                    "{turn} PERFORM 1 FROM {{rows}} WHERE name = $1 FOR {lock};"
                ))
            }
            SqlMode::Lease | SqlMode::Advisory => format!(
                "PERFORM pg_advisory_lock{}({});",
                self.suffix(),
                self.arguments()
            ),
        };
        let queue_lock = self.own.tables.queue_lock(&self.name, self.session.pid());
        // All readers proceed as soon as one can.
        let wait = if self.shares_row() {
            queued_for_row
        } else {
            queued
        };
        first.push_str(&wait(queue_lock, &self.of_name(&what), at_most, version));
        let waited = if self.mode == SqlMode::Row {
            self.lock_row(&first).await
        } else {
            self.lock_key(&first).await
        };
        self.has = match waited {
            // The transaction is aborted. A session may have got an advisory lock in that instant:
            // see below.
            Err(error) if failure::is_cancelled(&error) && self.mode == SqlMode::Row => false,
            Err(error) if failure::is_cancelled(&error) => self.lock_key("").await?,
            waited => waited?,
        };
        self.blocked = false;
        Ok(self.has)
    }

    /// Returns the server's time in µs and the break of the hold with this fence, or `None` if the
    /// hold is over. The statement keeps the session for its idle limit, or sets another one. In
    /// `mode=row` a failed statement ends the transaction and the hold.
    ///
    /// # Errors
    /// Also if the server is read-only: another one may serve the other clients by now, and its
    /// locks do not exclude this one.
    pub(super) async fn extend(
        &mut self,
        fence: Fence,
        idle_limit: Option<Duration>,
    ) -> Result<Option<(i64, Option<Break>)>> {
        let first = idle_limit
            .map(|limit| self.set_idle_limit(limit))
            .unwrap_or_default();
        let sql = self.own.tables.fill(
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us,
                    current_setting('default_transaction_read_only') = 'on', m.mark, m.seen
               FROM (SELECT 1) AS one LEFT JOIN {marks} AS m ON m.name = $1 AND m.fence = $2",
        );
        let sql = fill(
            &sql,
            &[Value::Text(&self.name), Value::Int(fence_int(fence))],
        );
        let read = |rows: Vec<Row>| {
            let mut fields = Fields::of(rows.first().ok_or_else(no_row)?);
            Ok((fields.int()?, fields.flag()?, fields.mark()?))
        };
        match self
            .session
            .run(&format!("{first}{sql}"))
            .await
            .and_then(read)
        {
            Ok((_, true, _)) => Err(failure::read_only()),
            Ok((now_us, false, mark)) => Ok(Some((now_us, mark))),
            Err(_) if self.mode == SqlMode::Row => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives back whatever the session has.
    pub(super) async fn give_back(&mut self) -> Result<()> {
        self.has = false;
        match self.mode {
            SqlMode::Row => {
                let unlock = if self.shares_row() {
                    "; SELECT pg_advisory_unlock_all()"
                } else {
                    ""
                };
                self.session.run(&format!("ROLLBACK{unlock}")).await?;
            }
            SqlMode::Lease | SqlMode::Advisory => {
                self.session.run("SELECT pg_advisory_unlock_all()").await?;
            }
        }
        Ok(())
    }

    /// Records how this hold and its run ended, and gives the lock back. A failure to record keeps
    /// no lock: the next holder only waits a moment without need.
    pub(super) async fn end(
        &mut self,
        (hold, fence): (&str, Fence),
        info: &ReleaseInfo,
    ) -> Result<()> {
        self.has = false;
        let how = info.end.as_ref().map(ToString::to_string);
        let outcome = json(info.outcome.as_ref())?;
        let became = match info.run_state {
            Some(_) => format!(
                ", became AS (UPDATE {{fences}} AS l SET fence = l.fence{} FROM freed AS f \
                 WHERE l.name = $1 AND f.fence IN (l.start_fence, l.paced_fence))",
                starts::outcome(info.run_state, "f.fence")
            ),
            None => String::new(),
        };
        let say = |remembers: bool| {
            let sql = include_str!("sql/end_hold.sql")
                .replace(
                    "{remembered}",
                    &part(remembers, include_str!("sql/remember.sql")),
                )
                .replace(
                    "{trimmed}",
                    &part(
                        remembers && fence.0.is_multiple_of(4),
                        include_str!("sql/trimmed.sql"),
                    ),
                )
                .replace("{became}", &became);
            let values = [
                Value::Text(&self.name),
                Value::Pid(self.own.pid),
                Value::Text(hold),
                Value::Maybe(how.as_deref()),
                Value::Maybe(outcome.as_deref()),
            ];
            fill(&self.own.tables.fill(&sql), &values)
        };
        // The release waits for the server's disk only if later runs depend on the record.
        let lazily = if self.own.matters {
            ""
        } else {
            "SET LOCAL synchronous_commit = off;"
        };
        let (begin, again, end) = match self.mode {
            // In the transaction that has the lock, so that all changes become visible at once.
            SqlMode::Row => ("SAVEPOINT had;", "ROLLBACK TO had;", "COMMIT"),
            SqlMode::Lease | SqlMode::Advisory => (
                "BEGIN;",
                "ROLLBACK; BEGIN;",
                "COMMIT; SELECT pg_advisory_unlock_all()",
            ),
        };
        let mut ways = vec![format!("{begin} {lazily} {}; {end}", say(how.is_some()))];
        if how.is_some() {
            // The history entry can't be written.
            ways.push(format!("{again} {lazily} {}; {end}", say(false)));
        }
        ways.push("ROLLBACK; SELECT pg_advisory_unlock_all()".into());
        let mut done = Ok(Vec::new());
        for way in ways {
            done = self.session.run(&way).await;
            if done.is_ok() || !self.session.is_open() {
                break;
            }
        }
        done.map(|_| ())
    }

    /// Fills the lock's name into a statement, for `$1`.
    fn of_name(&self, sql: &str) -> String {
        fill(sql, &[Value::Text(&self.name)])
    }

    /// Returns the arguments of the functions of advisory locks; `$1` is the lock's name.
    fn arguments(&self) -> String {
        match self.own.key {
            None => "hashtextextended($1, 0)".into(),
            Some(AdvisoryKey::One(key)) => format!("'{key}'::bigint"),
            Some(AdvisoryKey::Two(first, second)) => format!("'{first}'::int, '{second}'::int"),
        }
    }
}

pub(super) fn no_row() -> Error {
    Error::new(Kind::Data, "the server's answer has no row")
}
