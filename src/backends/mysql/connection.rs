//! One session: opens it, sets it up, and runs statements over it.
//!
//! A request is the text of several statements, so that it is one round trip; only
//! [`super::statement`] writes values into statements. A session never reconnects and knows no time
//! limits. After a dropped request, the next request first awaits and discards the rest of the
//! answer; a session that keeps no lock is better dropped.

use std::{os::fd::OwnedFd, time::Duration};

use futures_util::TryStreamExt as _;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Either, MySqlConnection, Row as _,
    mysql::{MySqlConnectOptions, MySqlRow, MySqlSslMode},
};

use super::{
    checks::{self, START, ServerCheck},
    failure::{self, ServerError},
    options::MysqlOptions,
    reading::Noted,
    relay::MysqlRelay,
};
use crate::{
    backends::{
        net::{self, longest::AnswerSize, socket},
        sql::{Fields, Row, Server, Session, SqlMode, SqlOptions},
    },
    lock::{Effect, Progress, Result},
};

/// Sets up every session: statements read committed rows and lock no gaps, mistakes are errors, and
/// a statement waits only shortly for a locked row or an altered table, since its client may be
/// gone by then. The variable shows whether a later statement reaches the same session.
const SET_UP: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
    SET SESSION sql_mode = 'STRICT_ALL_TABLES', autocommit = 1, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, \
    completion_type = 0, @dlock = CONNECTION_ID(); ";

/// The answer to one statement.
#[derive(Default)]
pub(super) struct Answer {
    /// The rows, if the statement returns any.
    pub rows: Vec<Row>,
    /// The number of rows that the statement matched, if it changes any.
    pub matched: u64,
}

/// The answers to a request, up to the statement that failed, if one did. No statement after that
/// was executed.
#[derive(Default)]
pub(super) struct Answers {
    pub answers: Vec<Answer>,
    pub server_error: Option<ServerError>,
}

/// The number of checks whether a session has ended, 5 ms apart.
const ENDING: u32 = 40;

/// The identity of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backends) struct SessionId {
    /// The session's number in the server.
    number: i64,
    /// A time at which the session existed, in seconds since 1970 by the server's clock.
    since: i64,
    /// The server's identity.
    identity: String,
}

/// An open session.
pub struct Connection {
    driver: MySqlConnection,
    /// The relay that the session passes through.
    relay: MysqlRelay,
    /// A duplicate of the session's socket.
    socket: OwnedFd,
    /// No request is under way.
    at_rest: bool,
    /// The results of the server check.
    pub server: ServerCheck,
    /// The names of the locks whose advisory locks this session has.
    pub advisory_locks: Vec<String>,
    /// The chain locks that this session has, as SQL.
    pub chain_locks: Vec<String>,
    /// Another client ended the last request, but not the session.
    pub interrupted: bool,
    /// The seconds without a request after which the server ends the session.
    pub idle_limit: Option<u32>,
    /// What the last step on a lock noted.
    pub(super) noted: Noted,
}

impl Connection {
    /// Connects, logs in and checks the server, in one round trip after the login. Refuses servers
    /// whose locks are not reliable.
    pub(super) async fn open(options: &MysqlOptions) -> Result<Self> {
        let connection = Self::open_to_look(options).await?;
        connection.server.check(options)?;
        Ok(connection)
    }

    /// As [`Connection::open`], but refuses no server.
    pub(super) async fn open_to_look(options: &MysqlOptions) -> Result<Self> {
        let (driver, relay, socket) = connect(&options.sql).await?;
        let mut connection = Self {
            driver,
            relay,
            socket,
            at_rest: true,
            server: ServerCheck::default(),
            advisory_locks: Vec::new(),
            chain_locks: Vec::new(),
            interrupted: false,
            idle_limit: None,
            noted: Noted::default(),
        };
        // No refusal here has changed a lock.
        let harmless = |error: crate::lock::Error| error.effect(Effect::NotApplied);
        // The server reads all of its counters to report its start. Once is enough: a session ends
        // with its server.
        let start = if options.sql.mode == SqlMode::Lease {
            String::new()
        } else {
            format!("SET @dlock_start = {START}; ")
        };
        let set_up = format!("{SET_UP}{start}");
        let mut answers = connection
            .try_ask(&(set_up.clone() + &checks::question(checks::IN_CLUSTER)))
            .await
            .map_err(harmless)?;
        if answers
            .server_error
            .as_ref()
            .is_some_and(|server_error| server_error.number == checks::UNKNOWN_VARIABLE)
        {
            answers = connection
                .try_ask(&(set_up + &checks::question("0")))
                .await
                .map_err(harmless)?;
        }
        if let Some(server_error) = answers.server_error {
            return Err(harmless(failure::refused(&server_error, false)));
        }
        let row = answers
            .answers
            .last()
            .and_then(|answer| answer.rows.first())
            .ok_or_else(failure::unreadable);
        connection.server = row.and_then(ServerCheck::read).map_err(harmless)?;
        Ok(connection)
    }

    /// Returns the server that the session is connected to: the session ends with it.
    ///
    /// # Errors
    /// The server did not tell its start.
    pub(super) fn served_by(&self) -> Result<Server> {
        let started = self.server.started.ok_or_else(failure::unreadable)?;
        Ok(self.server_since(started))
    }

    /// Returns the server by its start, in seconds.
    pub(super) fn server_since(&self, started: i64) -> Server {
        Server {
            identity: self.server.identity.clone(),
            // Seconds are rounded down.
            started_us: started.saturating_add(1).saturating_mul(1_000_000),
        }
    }

    /// Ends a session that the server named over this very connection. Returns the server's
    /// refusal.
    pub(super) async fn kill(&mut self, number: i64) -> Result<Option<ServerError>> {
        Ok(self.try_ask(&format!("KILL {number}")).await?.server_error)
    }

    /// Whether a killed session is gone, with all its locks.
    pub(super) async fn outlast(&mut self, number: i64) -> Result<bool> {
        for _ in 0..ENDING {
            let question = format!(
                "SELECT 1 FROM information_schema.processlist WHERE id = {number}; DO SLEEP(0.005)"
            );
            if self
                .ask(&question)
                .await?
                .first()
                .is_none_or(|answer| answer.rows.is_empty())
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes the kernel notice within `limit` that the server's host is gone.
    pub(super) fn keep_alive(&self, limit: Duration) {
        socket::keep_alive(&self.socket, limit);
    }

    /// Sets whether closing the session discards undelivered data instead of delivering it.
    pub(super) fn drop_unsent_on_close(&self, drop: bool) {
        socket::drop_unsent_on_close(&self.socket, drop);
    }

    /// Ends the transaction that a failed request left open. A session that does not do so is not
    /// used again.
    pub(super) async fn roll_back(&mut self) -> Result<()> {
        let interrupted = self.interrupted;
        // A late kill of the failed request may end the first one.
        let done = self.ask("ROLLBACK").await.is_ok()
            || self.try_ask("ROLLBACK").await?.server_error.is_none();
        self.at_rest &= done;
        self.interrupted = interrupted;
        Ok(())
    }

    /// Runs statements, one after the other, each a transaction of its own unless they say
    /// otherwise.
    ///
    /// # Errors
    /// The first error of the server. Its effect is unknown if a statement was executed before.
    pub(super) async fn ask(&mut self, batch: &str) -> Result<Vec<Answer>> {
        self.ask_long(batch, &Progress::default()).await
    }

    /// As [`Connection::ask`]; reports each row of a long answer.
    pub(super) async fn ask_long(
        &mut self,
        batch: &str,
        progress: &Progress,
    ) -> Result<Vec<Answer>> {
        let answers = self.answers(batch, progress).await?;
        match answers.server_error {
            Some(server_error) => Err(failure::refused(&server_error, !answers.answers.is_empty())),
            None => Ok(answers.answers),
        }
    }

    /// As [`Connection::ask`], with the server's error as part of the answer.
    pub(super) async fn try_ask(&mut self, batch: &str) -> Result<Answers> {
        self.answers(batch, &Progress::default()).await
    }

    async fn answers(&mut self, batch: &str, progress: &Progress) -> Result<Answers> {
        self.at_rest = false;
        let mut answers = Answers::default();
        let (mut current, mut size) = (Answer::default(), AnswerSize::default());
        {
            let mut stream =
                sqlx::raw_sql(AssertSqlSafe(batch.to_owned())).fetch_many(&mut self.driver);
            loop {
                match stream.try_next().await {
                    Ok(Some(Either::Right(row))) => {
                        progress.part();
                        let row = values(&row)
                            .filter(|row| size.add(&row.values))
                            .ok_or_else(failure::unreadable)?;
                        current.rows.push(row);
                    }
                    Ok(Some(Either::Left(done))) => {
                        if !size.add(&[]) {
                            return Err(failure::unreadable());
                        }
                        current.matched = done.rows_affected();
                        answers.answers.push(std::mem::take(&mut current));
                    }
                    Ok(None) => break,
                    Err(error) => {
                        answers.server_error =
                            Some(failure::server_error(&error).ok_or_else(|| net::broken(error))?);
                        break;
                    }
                }
            }
        }
        self.at_rest = true;
        self.interrupted = answers
            .server_error
            .as_ref()
            .is_some_and(|server_error| server_error.number == failure::INTERRUPTED);
        Ok(answers)
    }
}

impl Session for Connection {
    type Id = SessionId;

    fn id(&self) -> SessionId {
        SessionId {
            number: self.server.session,
            since: self.server.since,
            identity: self.server.identity.clone(),
        }
    }

    /// Ends it with its statement. A server that was restarted, or replaced another one, numbers
    /// its sessions anew: no session is ended unless the server is the same, started before that
    /// session, and has it under this user. Otherwise, and if the server refuses, the session ends
    /// by itself.
    async fn end_other(&mut self, other: &SessionId) -> Result<()> {
        if other.identity != self.server.identity {
            return Ok(());
        }
        let SessionId { number, since, .. } = other;
        let batch = format!(
            "SET @dlock_end = NULL; \
             SELECT id INTO @dlock_end FROM information_schema.processlist WHERE id = {number} \
                AND user = LEFT(USER(), LENGTH(USER()) - LENGTH(SUBSTRING_INDEX(USER(), '@', -1)) - 1) \
                AND {START} + 2 <= {since}; \
             KILL @dlock_end"
        );
        if self.try_ask(&batch).await?.server_error.is_none() {
            self.outlast(*number).await?;
        }
        Ok(())
    }

    fn is_open(&self) -> bool {
        // A session at rest has nothing to read.
        self.at_rest && socket::is_quiet(&self.socket)
    }

    fn is_alive(&self) -> bool {
        socket::is_open(&self.socket)
    }

    async fn ended(&self) {
        socket::readable(&self.socket).await;
    }

    fn lifeline(&self) -> std::io::Result<OwnedFd> {
        self.socket.try_clone()
    }
}

impl Drop for Connection {
    /// Sends the message that ends the session; without it, the server logs the end.
    fn drop(&mut self) {
        const COM_QUIT: [u8; 5] = [1, 0, 0, 0, 1];
        if !self.relay.encrypts && self.is_open() {
            let _ = rustix::io::write(&self.socket, &COM_QUIT);
        }
    }
}

/// Returns the first row of an answer.
pub(super) fn first_row(answers: &[Answer], nth: usize) -> Result<Fields<'_>> {
    answers
        .get(nth)
        .and_then(|answer| answer.rows.first())
        .map(Fields::of)
        .ok_or_else(failure::unreadable)
}

fn values(row: &MySqlRow) -> Option<Row> {
    let values = (0..row.len())
        .map(|column| row.try_get_unchecked::<Option<Vec<u8>>, _>(column).ok())
        .collect::<Option<_>>()?;
    Some(Row {
        values,
        unreadable: failure::unreadable,
    })
}

async fn connect(options: &SqlOptions) -> Result<(MySqlConnection, MysqlRelay, OwnedFd)> {
    // Before the connection: a server ends one that doesn't log in soon.
    let driver = driver_options(options).await?;
    let (mut relay, socket) = MysqlRelay::start(options).await?;
    let driver = driver
        .socket(&relay.path)
        .enable_cleartext_plugin(relay.encrypts);
    let connection = driver.connect().await.map_err(|error| {
        relay
            .failure()
            .unwrap_or_else(|| failure::connecting(error))
    })?;
    Ok((connection, relay, socket))
}

/// Returns the options for a login through the relay, without the statements that the driver sends
/// first by default.
async fn driver_options(options: &SqlOptions) -> Result<MySqlConnectOptions> {
    let mut driver = MySqlConnectOptions::new()
        .timezone(None)
        .set_names(false)
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .statement_cache_capacity(0)
        .ssl_mode(MySqlSslMode::Disabled)
        .disable_statement_logging();
    if let Some(user) = &options.user {
        driver = driver.username(user);
    }
    if let Some(password) = &options.password {
        driver = driver.password(&password.reveal().await?);
    }
    if let Some(database) = &options.database {
        driver = driver.database(database);
    }
    Ok(driver)
}
