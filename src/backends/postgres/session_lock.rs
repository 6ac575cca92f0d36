//! The statements of a session that asks for a lock, waits for it or has it.

use std::time::Duration;

use super::{
    advisory_wait::{queued, queued_for_row},
    connection::{IDLE_SESSION_TIMEOUT, PostgresSession},
    failure,
    names::{SERVER, Tables},
    options::{AdvisoryKey, PostgresOptions},
    statement::{Value, fill},
    writing::Within,
};
use crate::{
    backends::sql::{self, Fields, Row, Server, SessionLock, SqlMode},
    lock::{Error, Kind, Request, Result, Ttl},
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
    /// The transaction that keeps the row locked.
    pub transaction: Option<i64>,
    /// The server counts the silence from an attempt that had the lock, not from the wait before.
    attempted: bool,
    /// Later runs depend on the run's outcome.
    matters: bool,
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
            transaction: None,
            attempted: false,
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
        let waits = format!(
            "SET lock_timeout = '{}ms';",
            sql::patience(limit).as_millis()
        );
        let idle = match self.mode {
            SqlMode::Row => format!("SET idle_in_transaction_session_timeout = '{ms}ms';"),
            // A renewal is written over this session, too, and must not wait for a locked row.
            _ if self.session.version >= IDLE_SESSION_TIMEOUT => {
                format!("SET idle_session_timeout = '{ms}ms'; {waits}")
            }
            _ => waits,
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
    pub(super) async fn attempt(&mut self, request: &Request) -> Result<bool> {
        let run_policy = request.run_policy.as_ref();
        self.own.matters = run_policy.is_some_and(|run_policy| run_policy.once.is_some());
        let ttl = request.ttl;
        let mut first = self.set_idle_limit(ttl.get());
        if self.has {
            // A wait left the lock in this session, which ends soon if it is silent.
            if !std::mem::replace(&mut self.own.attempted, true) {
                self.session.run(&first).await?;
            }
            return Ok(true);
        }
        self.has = if self.mode == SqlMode::Row {
            first.push_str(BEGIN);
            self.lock_row(&first).await?
        } else {
            self.lock_key(&first).await?
        };
        self.own.attempted = self.has;
        Ok(self.has)
    }

    /// Returns the session as the document writes it, and what must be true while it has the lock,
    /// as a part of a condition. A late request must not write for a session that is over.
    pub(super) fn evidence(&self) -> Option<(String, String)> {
        let server = self.server.as_ref().filter(|_| self.has)?;
        let lasts = self.own.transaction.map_or_else(String::new, |id| {
            format!(" AND txid_status({id}) = 'in progress'")
        });
        Some((server.session(self.number), lasts))
    }

    /// Returns the suffix of the functions of advisory locks.
    fn suffix(&self) -> &'static str {
        if self.shared { "_shared" } else { "" }
    }

    async fn lock_key(&mut self, first: &str) -> Result<bool> {
        let sql = format!(
            "SELECT {SERVER}, pg_backend_pid(), pg_try_advisory_lock{}({})",
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
        self.server = Some(Server {
            identity: fields.text()?,
            started_us: fields.int()?,
        });
        self.number = fields.int()?;
        let has = fields.flag()?;
        self.own.transaction = if self.mode == SqlMode::Row {
            fields.int_or_null()?
        } else {
            None
        };
        Ok(has)
    }

    /// Locks the row in a transaction of its own, which ends if another session has the row or
    /// waits to have it alone.
    async fn lock_row(&mut self, first: &str) -> Result<bool> {
        let (suffix, turn) = (self.suffix(), self.own.tables.row_lock(&self.name));
        let how = if self.shared { "SHARE" } else { "UPDATE" };
        let lock = self.own.tables.fill(&format!(
            "SELECT {SERVER}, pg_backend_pid(), locked.name IS NOT NULL, txid_current_if_assigned() FROM (SELECT 1) AS one
               LEFT JOIN (SELECT name FROM {{rows}} WHERE name = $1 AND pg_try_advisory_xact_lock{suffix}({turn}) FOR {how} SKIP LOCKED) AS locked ON true",
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
                    self.own.tables.row_lock(&self.name)
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

    /// Returns what stands around the statement of a release. In `mode=row` it is in the transaction
    /// that has the lock, so that all changes become visible at once. It waits for the server's disk
    /// only if later runs depend on it: a crash ends the hold, too.
    pub(super) fn giving_back(&self) -> Within {
        let lazily = if self.own.matters {
            ""
        } else {
            "SET LOCAL synchronous_commit = off;"
        };
        match self.mode {
            SqlMode::Row => Within {
                begin: format!("SAVEPOINT had;{lazily}"),
                end: "COMMIT",
                undo: "ROLLBACK TO had",
            },
            _ => Within {
                begin: format!("BEGIN;{lazily}"),
                end: "COMMIT; SELECT pg_advisory_unlock_all()",
                undo: "ROLLBACK",
            },
        }
    }

    /// Keeps the session for its idle limit, or sets another one. Returns false if the hold is over:
    /// in `mode=row` a failed statement ends the transaction.
    ///
    /// # Errors
    /// Also if the server is read-only: another one may serve the other clients by now, and its
    /// locks do not exclude this one.
    pub(super) async fn keep(&mut self, limit: Option<Duration>) -> Result<bool> {
        let first = limit
            .map(|limit| self.set_idle_limit(limit))
            .unwrap_or_default();
        let sql = "SELECT current_setting('default_transaction_read_only') = 'on'";
        let read_only = |rows: Vec<Row>| Fields::of(rows.first().ok_or_else(no_row)?).flag();
        match self
            .session
            .run(&format!("{first}{sql}"))
            .await
            .and_then(read_only)
        {
            Ok(true) => Err(failure::read_only()),
            Ok(false) => Ok(true),
            Err(_) if self.mode == SqlMode::Row => Ok(false),
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
