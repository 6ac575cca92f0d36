//! The statements of a session that asks for a lock, waits for it or has it.

mod waiting;

use std::time::Duration;

use super::{
    checks::is_read_only,
    connection::{Answer, Answers, Connection, first_row},
    failure,
    names::Tables,
    options::MysqlOptions,
    statement::Value,
    table::{GivesBack, MysqlLockTable},
};
use crate::{
    backends::sql::{Asked, Fields, LockTable as _, SessionLock, SqlMode},
    lock::{Error, Kind, Request, Result},
};

/// A waiter that is frozen when it gets the lock keeps it for at most this long.
const UNCLAIMED: Duration = Duration::from_secs(10);
/// The number of the error that a row stayed locked for too long.
const LOCKED: u16 = 1205;

/// MySQL's part of a session lock.
pub struct MysqlSessionPart {
    /// The argument of `GET_LOCK`, as SQL: for the lock itself, or for the presence lock of a
    /// session that has a row.
    lock: String,
    /// The session has that lock, too, if it has the row.
    present: bool,
    tables: Tables,
    /// The answer to a grant that was asked for together with the lock.
    pub(super) asked: Option<Asked>,
}

/// A session that asks for a lock, waits for it or has it.
pub(super) type MysqlLock = SessionLock<Connection, MysqlSessionPart>;

impl MysqlLock {
    /// Opens a session; `lock` is the argument of `GET_LOCK` in it, as SQL.
    pub(super) async fn open(
        options: &MysqlOptions,
        tables: &Tables,
        name: String,
        lock: String,
        shared: bool,
    ) -> Result<Self> {
        let session = Connection::open(options).await?;
        session.server.check_sessions(options.sql.mode, shared)?;
        let part = MysqlSessionPart {
            lock,
            present: options.sql.mode == SqlMode::Row && session.server.has_advisory_locks(),
            tables: tables.clone(),
            asked: None,
        };
        let (number, started) = (session.server.session, session.server.started);
        let server = started.map(|started| session.server_since(started));
        let lock = Self::new(session, options.sql.mode, name, shared, part);
        Ok(Self {
            number,
            server,
            ..lock
        })
    }

    /// Returns the session as the document writes it, and what must be true while it has the lock,
    /// as a condition. A late request must not write for a session that is over.
    pub(super) fn evidence(&self) -> Option<(String, String)> {
        self.has.then(|| self.told()).flatten()
    }

    fn told(&self) -> Option<(String, String)> {
        let server = self.server.as_ref()?;
        let (number, lock) = (self.number, &self.own.lock);
        let lasts = match self.mode {
            SqlMode::Row if self.own.present => {
                // As this session made the name.
                let lock = lock.replace("CONNECTION_ID()", &number.to_string());
                format!("(IS_USED_LOCK({lock}) <=> {number})")
            }
            SqlMode::Row => "1".to_owned(),
            _ => format!("(IS_USED_LOCK({lock}) <=> CONNECTION_ID())"),
        };
        Some((server.session(number), lasts))
    }

    /// Returns the statement after which the server ends the session once it has been silent for
    /// this long. Both ends notice in about the same time that the other host is gone.
    fn set_idle_limit(&mut self, limit: Duration) -> String {
        self.session.keep_alive(limit);
        self.idle_limit = limit;
        let seconds = limit.as_millis().div_ceil(1000).clamp(1, 31_536_000);
        format!("SET SESSION wait_timeout = {seconds};\n")
    }

    /// Asks for the lock once. Returns true if the session has the lock, also on a repeated
    /// request.
    pub(super) async fn attempt(&mut self, request: &Request) -> Result<bool> {
        let first = self.set_idle_limit(request.ttl.get());
        // An acquire that is given up must not arrive when its answer is no longer waited for.
        self.session.drop_unsent_on_close(true);
        self.has = if self.mode == SqlMode::Row {
            self.lock_row(&first).await?
        } else {
            self.get_lock(first, request).await?
        };
        self.session.drop_unsent_on_close(false);
        Ok(self.has)
    }

    /// Asks for the `GET_LOCK`, and for a free lock in the same request.
    async fn get_lock(&mut self, first: String, request: &Request) -> Result<bool> {
        let lock = &self.own.lock;
        let get = format!(
            "SELECT CONNECTION_ID(), @dlock_start, @dlock = CONNECTION_ID(), IF(IS_USED_LOCK({lock}) = CONNECTION_ID(), 1, GET_LOCK({lock}, 0));\n"
        );
        let mut table = MysqlLockTable {
            evidence: self.told(),
            first: (first + &get, 2, None),
            ..MysqlLockTable::over(&mut self.session, &self.own.tables)
        };
        let asked = table.grant(&self.name, request, request.waiting).await;
        let Some(row) = table.first.2.take() else {
            return Err(asked.err().unwrap_or_else(failure::unreadable));
        };
        let mut fields = Fields::of(&row);
        self.is_served(&mut fields)?;
        let has = fields.int_or_null()? == Some(1);
        if has {
            self.has = true;
            self.own.asked = Some(Asked(asked?));
        }
        Ok(has)
    }

    /// Reads the session's number, the server's start, and whether it is this session.
    fn is_served(&mut self, fields: &mut Fields<'_>) -> Result<()> {
        let (number, started) = (fields.int()?, fields.int()?);
        one_session(fields.int_or_null()?)?;
        self.number = number;
        self.server = Some(self.session.server_since(started));
        Ok(())
    }

    /// Returns what the session gives back with a release.
    pub(super) fn giving_back(&self) -> GivesBack {
        match self.mode {
            // The presence lock ends with its session; it is no other hold's.
            SqlMode::Row => GivesBack::Row,
            _ => GivesBack::Lock(self.own.lock.clone()),
        }
    }

    /// Keeps the session for its idle limit, or sets another one. Returns false if the session has
    /// the lock no more.
    ///
    /// # Errors
    /// Also if the server is read-only: another one may serve the others by now, and its locks do
    /// not exclude this one.
    pub(super) async fn keep(&mut self, limit: Option<Duration>) -> Result<bool> {
        let first = limit
            .map(|limit| self.set_idle_limit(limit))
            .unwrap_or_default();
        let has = match self.mode {
            // A proxy may set up another session like the one that it lost.
            SqlMode::Row => format!("CONNECTION_ID() = {}", self.number),
            _ => format!("IS_USED_LOCK({}) = CONNECTION_ID()", self.own.lock),
        };
        let batch =
            format!("{first}SELECT @dlock = CONNECTION_ID() AND {has}, @@global.read_only;");
        let answers = self.session.ask(&batch).await?;
        let mut fields = first_row(&answers, usize::from(!first.is_empty()))?;
        let has = fields.int_or_null()? == Some(1);
        if has && is_read_only(&fields.text()?) {
            return Err(failure::read_only());
        }
        Ok(has)
    }

    /// Gives back whatever the session has.
    pub(super) async fn let_go(&mut self) -> Result<()> {
        self.has = false;
        let batch = match self.giving_back() {
            GivesBack::Row => "ROLLBACK".to_owned(),
            GivesBack::Lock(lock) => format!("DO RELEASE_LOCK({lock})"),
        };
        self.session.ask(&batch).await.map(|_| ())
    }

    /// Locks the row in a transaction of its own, which ends if another session has the row, and
    /// takes the presence lock.
    async fn lock_row(&mut self, first: &str) -> Result<bool> {
        for _ in 0..2 {
            let begin = if self.has { "" } else { "START TRANSACTION;\n" };
            let present = if self.own.present {
                let lock = &self.own.lock;
                format!("IF(IS_USED_LOCK({lock}) <=> CONNECTION_ID(), 1, GET_LOCK({lock}, 0))")
            } else {
                "1".to_owned()
            };
            // The server lets no session share the row while another one waits to have it alone.
            let how = match (self.shared, self.session.server.mariadb) {
                (false, _) => "FOR UPDATE",
                (true, true) => "LOCK IN SHARE MODE",
                (true, false) => "FOR SHARE",
            };
            let batch = self.own.tables.fill(
                "SELECT CONNECTION_ID(), @dlock_start, @dlock = CONNECTION_ID(), :present;\nSELECT 1 FROM :rows WHERE name = :name :how SKIP LOCKED;\nSELECT 1 FROM :rows WHERE name = :name;",
                &[
                    ("name", Value::Bytes(&self.name)),
                    ("how", Value::Sql(how)),
                    ("present", Value::Sql(&present)),
                ],
            );
            let at = 1 + usize::from(!self.has);
            let Answers {
                answers,
                server_error,
            } = self
                .session
                .try_ask(&format!("{first}{begin}{batch}"))
                .await?;
            if let Some(server_error) = server_error {
                let error = failure::refused(&server_error, false);
                self.roll_back().await?;
                return Err(error);
            }
            let mut fields = first_row(&answers, at)?;
            self.is_served(&mut fields)?;
            if found(&answers, at + 1) {
                return Ok(true);
            }
            self.roll_back().await?;
            if found(&answers, at + 2) {
                return Ok(false);
            }
            // The lock was never taken: create its row, and ask once more.
            let insert = self.own.tables.fill(
                "INSERT INTO :rows (name) VALUES (:name);",
                &[("name", Value::Bytes(&self.name))],
            );
            match self.session.try_ask(&insert).await?.server_error {
                Some(server_error) if server_error.number != failure::DUPLICATE => {
                    return Err(failure::refused(&server_error, false));
                }
                _ => {}
            }
        }
        Ok(false)
    }

    async fn roll_back(&mut self) -> Result<()> {
        self.has = false;
        self.session.ask("ROLLBACK").await.map(|_| ())
    }
}

/// Checks that the statement has reached the session that has the lock.
fn one_session(same: Option<i64>) -> Result<()> {
    if same == Some(1) {
        return Ok(());
    }
    Err(Error::new(
        Kind::Config,
        "something between here and the server shares its sessions among clients",
    )
    .hint("connect to the server itself; ?mode=lease works with any"))
}

fn found(answers: &[Answer], nth: usize) -> bool {
    answers
        .get(nth)
        .is_some_and(|answer| !answer.rows.is_empty())
}
