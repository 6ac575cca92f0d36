//! One session: opens it, sets it up, and runs statements over it.
//!
//! A request is the text of several statements, so that it is one round trip; only [`super::statement`] writes values into
//! statements. A session never reconnects and knows no time limits. After a dropped request,
//! the next request first awaits and discards the rest of the answer; a session that keeps no lock is better dropped.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{Arc, LazyLock, PoisonError},
    time::Duration,
};

use futures_util::TryStreamExt as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Either, MySqlConnection, Row as _,
    mysql::{MySqlConnectOptions, MySqlRow, MySqlSslMode},
};
use tokio::sync::Mutex;

use super::{
    checks::{self, ServerCheck},
    failure::{self, ServerError},
    life::START,
    options::MysqlOptions,
    relay::MysqlRelay,
    socket::{self, Sockets},
};
use crate::{
    backends::{
        net::{self, longest::AnswerSize},
        sql::{Row, Session, SqlMode, SqlOptions, SqlServer, TlsMode},
    },
    lock::{Effect, Progress, Result},
};

/// Sets up every session: statements read committed rows and lock no gaps, mistakes are errors, and a statement waits only shortly for
/// a locked row or an altered table, since its client may be gone by then.
/// The variable shows whether a later statement reaches the same session.
const SET_UP: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
    SET SESSION sql_mode = 'STRICT_ALL_TABLES', autocommit = 1, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, \
    completion_type = 0, @dlock = CONNECTION_ID(); ";

/// The locks that allow one new connection per server at a time, by the server's port or path: dlock identifies the new socket by
/// its absence before. A server that does not answer delays no connection to another server.
static CONNECTING: LazyLock<std::sync::Mutex<HashMap<String, Arc<Mutex<()>>>>> = LazyLock::new(Default::default);

fn connecting(server: &SqlServer) -> Arc<Mutex<()>> {
    let place = match server {
        SqlServer::Tcp { port, .. } => port.to_string(),
        SqlServer::Unix { path, .. } => path.display().to_string(),
    };
    Arc::clone(CONNECTING.lock().unwrap_or_else(PoisonError::into_inner).entry(place).or_default())
}

/// The answer to one statement.
#[derive(Default)]
pub(super) struct Answer {
    /// The rows, if the statement returns any.
    pub rows: Vec<Row>,
    /// The number of rows that the statement matched, if it changes any.
    pub matched: u64,
}

/// The answers to a request, up to the statement that failed, if one did. No statement after that was executed.
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
    /// The relay that the session passes through, if any.
    _relay: Option<MysqlRelay>,
    /// A duplicate of the session's socket, if dlock could identify the socket.
    socket: Option<OwnedFd>,
    encrypted: bool,
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
}

impl Connection {
    /// Connects, logs in and checks the server, in one round trip after the login. Refuses servers whose locks are not
    /// reliable.
    pub(super) async fn open(options: &MysqlOptions) -> Result<Self> {
        let connection = Self::open_to_look(options).await?;
        connection.server.check(options)?;
        Ok(connection)
    }

    /// As [`Connection::open`], but refuses no server.
    pub(super) async fn open_to_look(options: &MysqlOptions) -> Result<Self> {
        let (driver, socket, relay) = connect(&options.sql).await?;
        if let Some(socket) = &socket {
            socket::no_delay(socket);
        }
        let encrypted = options.sql.tls != TlsMode::Disable && matches!(options.sql.server, SqlServer::Tcp { .. });
        let mut connection = Self {
            driver,
            _relay: relay,
            socket,
            encrypted,
            at_rest: true,
            server: ServerCheck::default(),
            advisory_locks: Vec::new(),
            chain_locks: Vec::new(),
            interrupted: false,
            idle_limit: None,
        };
        // No refusal here has changed a lock.
        let harmless = |error: crate::lock::Error| error.effect(Effect::NotApplied);
        // The server reads all of its counters to report its start. Once is enough: a session ends with its server.
        let start = if options.sql.mode == SqlMode::Lease { String::new() } else { format!("SET @dlock_start = {START}; ") };
        let set_up = format!("{SET_UP}{start}");
        let mut answers = connection.try_ask(&(set_up.clone() + &checks::question(checks::IN_CLUSTER))).await.map_err(harmless)?;
        if answers.server_error.as_ref().is_some_and(|server_error| server_error.number == checks::UNKNOWN_VARIABLE) {
            answers = connection.try_ask(&(set_up + &checks::question("0"))).await.map_err(harmless)?;
        }
        if let Some(server_error) = answers.server_error {
            return Err(harmless(failure::refused(&server_error, false)));
        }
        let row = answers.answers.last().and_then(|answer| answer.rows.first()).ok_or_else(failure::unreadable);
        connection.server = row.and_then(ServerCheck::read).map_err(harmless)?;
        Ok(connection)
    }

    /// Ends a session that the server named over this very connection. Returns the server's refusal.
    pub(super) async fn kill(&mut self, number: i64) -> Result<Option<ServerError>> {
        Ok(self.try_ask(&format!("KILL {number}")).await?.server_error)
    }

    /// Whether a killed session is gone, with all its locks.
    pub(super) async fn outlast(&mut self, number: i64) -> Result<bool> {
        for _ in 0..ENDING {
            let question = format!("SELECT 1 FROM information_schema.processlist WHERE id = {number}; DO SLEEP(0.005)");
            if self.ask(&question).await?.first().is_none_or(|answer| answer.rows.is_empty()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes the kernel notice within `limit` that the server's host is gone. A failure only costs time.
    pub(super) fn keep_alive(&self, limit: Duration) {
        if let Some(socket) = &self.socket {
            let _ = net::keep_alive(socket, limit);
        }
    }

    /// Sets whether closing the session discards undelivered data instead of delivering it.
    pub(super) fn drop_unsent_on_close(&self, drop: bool) {
        if let Some(socket) = &self.socket {
            socket::drop_unsent_on_close(socket, drop);
        }
    }

    /// Ends the transaction that a failed request left open. A session that does not do so is not used again.
    pub(super) async fn roll_back(&mut self) -> Result<()> {
        let interrupted = self.interrupted;
        // A late kill of the failed request may end the first one.
        let done = self.ask("ROLLBACK").await.is_ok() || self.try_ask("ROLLBACK").await?.server_error.is_none();
        self.at_rest &= done;
        self.interrupted = interrupted;
        Ok(())
    }

    /// Runs statements, one after the other, each a transaction of its own unless they say otherwise.
    ///
    /// # Errors
    /// The first error of the server. Its effect is unknown if a statement was executed before.
    pub(super) async fn ask(&mut self, batch: &str) -> Result<Vec<Answer>> {
        self.ask_long(batch, &Progress::default()).await
    }

    /// As [`Connection::ask`]; reports each row of a long answer.
    pub(super) async fn ask_long(&mut self, batch: &str, progress: &Progress) -> Result<Vec<Answer>> {
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
            let mut stream = sqlx::raw_sql(AssertSqlSafe(batch.to_owned())).fetch_many(&mut self.driver);
            loop {
                match stream.try_next().await {
                    Ok(Some(Either::Right(row))) => {
                        progress.part();
                        let row = values(&row).filter(|row| size.add(&row.values)).ok_or_else(failure::unreadable)?;
                        current.rows.push(row);
                    }
                    Ok(Some(Either::Left(done))) => {
                        current.matched = done.rows_affected();
                        answers.answers.push(std::mem::take(&mut current));
                    }
                    Ok(None) => break,
                    Err(error) => {
                        answers.server_error = Some(failure::server_error(&error).ok_or_else(|| failure::broken(error))?);
                        break;
                    }
                }
            }
        }
        self.at_rest = true;
        self.interrupted = answers.server_error.as_ref().is_some_and(|server_error| server_error.number == failure::INTERRUPTED);
        Ok(answers)
    }
}

impl Session for Connection {
    type Id = SessionId;

    fn id(&self) -> SessionId {
        SessionId { number: self.server.session, since: self.server.since, identity: self.server.identity.clone() }
    }

    /// Ends it with its statement. A server that was restarted, or replaced another one, numbers its sessions anew: no session is ended
    /// unless the server is the same, started before that session, and has it under this user. Otherwise, and if the server
    /// refuses, the session ends by itself.
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
        let Some(socket) = &self.socket else { return self.at_rest };
        // A session at rest has nothing to read.
        let mut ends = [PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP)];
        self.at_rest && matches!(poll(&mut ends, Some(&Timespec::default())), Ok(0))
    }

    fn is_alive(&self) -> bool {
        let Some(socket) = &self.socket else { return self.at_rest };
        let mut ends = [PollFd::new(socket, PollFlags::RDHUP)];
        matches!(poll(&mut ends, Some(&Timespec::default())), Ok(0))
    }

    async fn ended(&self) {
        match &self.socket {
            Some(socket) => socket::readable(socket).await,
            None => std::future::pending().await,
        }
    }

    fn lifeline(&self) -> std::io::Result<OwnedFd> {
        self.socket.as_ref().ok_or_else(|| std::io::Error::other("the connection's socket is not to be found in /proc"))?.try_clone()
    }
}

impl Drop for Connection {
    /// Sends the message that ends the session; without it, the server logs the end.
    fn drop(&mut self) {
        const COM_QUIT: [u8; 5] = [1, 0, 0, 0, 1];
        if let Some(socket) = &self.socket
            && !self.encrypted
            && self.is_open()
        {
            let _ = rustix::io::write(socket, &COM_QUIT);
        }
    }
}

fn values(row: &MySqlRow) -> Option<Row> {
    let values = (0..row.len()).map(|column| row.try_get_unchecked::<Option<Vec<u8>>, _>(column).ok()).collect::<Option<_>>()?;
    Some(Row { values, unreadable: failure::unreadable })
}

async fn connect(options: &SqlOptions) -> Result<(MySqlConnection, Option<OwnedFd>, Option<MysqlRelay>)> {
    let driver = driver_options(options).await?;
    if MysqlRelay::is_needed(options) {
        let mut relay = MysqlRelay::start(options).await?;
        let mut driver = driver.socket(&relay.path);
        if MysqlRelay::encrypts(options) {
            driver = driver.ssl_mode(MySqlSslMode::Disabled).enable_cleartext_plugin(true);
        }
        let connection = driver.connect().await.map_err(|error| relay.failure().unwrap_or_else(|| failure::connecting(error)))?;
        let socket = relay.socket.try_clone().ok();
        return Ok((connection, socket, Some(relay)));
    }
    let turn = connecting(&options.server);
    let _alone = turn.lock().await;
    let before = Sockets::of_this_process();
    let connection = driver.connect().await.map_err(failure::connecting)?;
    Ok((connection, before.newest(&options.server), None))
}

/// Returns the driver's options, without the statements that the driver sends first by default.
async fn driver_options(options: &SqlOptions) -> Result<MySqlConnectOptions> {
    let mut driver = MySqlConnectOptions::new()
        .timezone(None)
        .set_names(false)
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .statement_cache_capacity(0)
        .disable_statement_logging();
    driver = match &options.server {
        SqlServer::Unix { path, .. } => driver.socket(path).ssl_mode(MySqlSslMode::Disabled),
        SqlServer::Tcp { host, port } => driver.host(host).port(*port).ssl_mode(match options.tls {
            TlsMode::Disable => MySqlSslMode::Disabled,
            TlsMode::Prefer => MySqlSslMode::Preferred,
            TlsMode::Require => MySqlSslMode::Required,
            TlsMode::VerifyCa => MySqlSslMode::VerifyCa,
            TlsMode::VerifyFull => MySqlSslMode::VerifyIdentity,
        }),
    };
    if let Some(user) = &options.user {
        driver = driver.username(user);
    }
    if let Some(password) = &options.password {
        driver = driver.password(&password.reveal().await?);
    }
    if let Some(database) = &options.database {
        driver = driver.database(database);
    }
    if let Some(file) = &options.files.ca_file {
        driver = driver.ssl_ca(file);
    }
    if let (Some(cert), Some(key)) = (&options.files.cert_file, &options.files.key_file) {
        driver = driver.ssl_client_cert(cert).ssl_client_key(key);
    }
    Ok(driver)
}
