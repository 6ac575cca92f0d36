//! The statements of a session that asks for a lock, waits for it or has it.

mod beginning;
mod holding;
mod waiting;

use std::time::Duration;

use super::{
    connection::{Answer, Answers, Connection},
    failure,
    names::Tables,
    options::MysqlOptions,
    statement::Value,
};
use crate::{
    backends::sql::{Begun, Fields, SessionLock, SqlMode},
    lock::{Break, Error, Intent, Kind, Request, Result},
};

/// A waiter that is frozen when it gets the lock keeps it for at most this long.
const UNCLAIMED: Duration = Duration::from_secs(10);
/// The number of the error that a row stayed locked for too long.
const LOCKED: u16 = 1205;

/// MySQL's part of a session lock.
pub struct MysqlSessionPart {
    /// The argument of `GET_LOCK`, as SQL: for the lock itself, or for the presence lock of a
    /// session that shares a row.
    lock: String,
    tables: Tables,
    /// The session's number in the server.
    number: i64,
    /// The result of [`MysqlLock::count`], if the attempt has counted the fence already.
    counted: Option<Counted>,
    /// The history entries of earlier holders can't be written.
    forgets: bool,
    /// The hold is being broken.
    marked: bool,
}

/// A session that asks for a lock, waits for it or has it.
pub(super) type MysqlLock = SessionLock<Connection, MysqlSessionPart>;

/// What a renewal reads about a break.
#[derive(Debug, Default)]
pub(super) struct ReadMark {
    /// The mark of the break.
    pub mark: Option<Break>,
    /// The store has noted that the holder knows of the break.
    pub noted: bool,
}

/// A hold of a lock that was just taken. `None` if something may be in the way, and nothing was
/// done.
type Counted = Option<Begun>;

impl MysqlLock {
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
            tables: tables.clone(),
            number: 0,
            counted: None,
            forgets: false,
            marked: false,
        };
        Ok(Self::new(session, options.sql.mode, name, shared, part))
    }

    /// Returns the mark for an intent to extend.
    ///
    /// # Errors
    /// The store could not note that the holder is stopping the command: the breaking client would
    /// take the hold away.
    pub(super) fn heed(&mut self, read: ReadMark, intent: Option<Intent>) -> Result<Option<Break>> {
        match intent {
            Some(Intent::Extend(_)) => {
                self.own.marked |= read.mark.is_some();
                Ok(read.mark)
            }
            Some(Intent::Drain) if self.own.marked && !read.noted => Err(Error::new(
                Kind::Unavailable,
                "the server could not note that the hold is being stopped",
            )),
            _ => Ok(None),
        }
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
        self.has = if self.mode == SqlMode::Row {
            self.lock_row(&first).await?
        } else {
            self.get_lock(&first, request).await?
        };
        Ok(self.has)
    }

    /// Locks the row in a transaction of its own, which ends if another session has the row. A
    /// reader keeps its presence lock.
    async fn lock_row(&mut self, first: &str) -> Result<bool> {
        for _ in 0..2 {
            let mut begin = if self.has {
                String::new()
            } else {
                "START TRANSACTION;\n".to_owned()
            };
            if self.shared {
                begin.extend([format!(
                    "DO IF(IS_USED_LOCK({0}) <=> CONNECTION_ID(), 1, GET_LOCK({0}, 0));\n",
                    self.own.lock
                )]);
            }
            // The server lets no session share the row while another one waits to have it alone.
            let how = match (self.shared, self.session.server.mariadb) {
                (false, _) => "FOR UPDATE",
                (true, true) => "LOCK IN SHARE MODE",
                (true, false) => "FOR SHARE",
            };
            let batch = self.own.tables.fill(
                "SELECT CONNECTION_ID(), @dlock = CONNECTION_ID();\nSELECT 1 FROM :rows WHERE name = :name :how SKIP LOCKED;\nSELECT 1 FROM :rows WHERE name = :name;",
                &[("name", Value::Bytes(&self.name)), ("how", Value::Sql(how))],
            );
            let at = 1 + usize::from(!self.has) + usize::from(self.shared);
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
            self.own.number = fields.int()?;
            one_session(fields.int_or_null()?)?;
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

/// Reads the answers to [`MysqlLock::touch`], from this one on. Unreadable answers are ignored.
pub(super) fn read_mark(answers: &[Answer], at: usize, intent: Option<Intent>) -> ReadMark {
    let noted = intent == Some(Intent::Drain) && answers.len() > at;
    let row = intent
        .and_then(|_| first_row(answers, at + usize::from(intent == Some(Intent::Drain))).ok());
    let mark = row.and_then(|mut fields| fields.mark().ok().flatten());
    ReadMark { mark, noted }
}

/// Returns the first row of an answer.
pub(super) fn first_row(answers: &[Answer], nth: usize) -> Result<Fields<'_>> {
    answers
        .get(nth)
        .and_then(|answer| answer.rows.first())
        .map(Fields::of)
        .ok_or_else(failure::unreadable)
}

fn found(answers: &[Answer], nth: usize) -> bool {
    answers
        .get(nth)
        .is_some_and(|answer| !answer.rows.is_empty())
}
