//! One session: opens it, runs statements over it, and receives the server's unsolicited messages.
//!
//! A session never reconnects and knows no time limits. After a dropped request, the next request
//! first awaits the rest of the answer ([`Session::is_alive`]). Where that may take long, another
//! session is better ([`Session::is_open`]); dropping this session closes its socket at once.

use std::{
    borrow::Cow,
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::TryStreamExt as _;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Either, PgConnection, Row as _,
    postgres::{PgConnectOptions, PgRow, PgSslMode},
};
use tokio::task::JoinSet;

use super::{
    dial::dial,
    failure,
    options::{PORT, TLS},
    relay::{self, Unasked},
    statement::{Value, fill},
};
use crate::{
    backends::{
        net::{self, longest::AnswerSize, socket},
        sql::{Loopback, Row, Session, SqlOptions},
    },
    lock::{Error, Kind, Progress, Result, random},
};

/// The oldest server version that supports all statements.
pub(super) const OLDEST: u32 = 110_000;
/// The same as text for error messages.
pub(super) const OLDEST_NAME: &str = "PostgreSQL 11 at least";

/// From this version on the server can check whether its client is still connected.
pub(super) const CLIENT_CHECK: u32 = 140_000;
/// From this version on the server can end a session that is idle outside of a transaction.
pub(super) const IDLE_SESSION_TIMEOUT: u32 = 140_000;

/// The identity of a session: no server gives the name to another session, not even after a
/// restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backends) struct SessionId {
    /// The server's process.
    pid: i32,
    /// The `application_name`.
    name: String,
}

/// An open session.
pub struct PostgresSession {
    name: String,
    driver: PgConnection,
    /// The relay, which ends once sqlx has ended.
    passing: JoinSet<()>,
    unasked: Arc<Unasked>,
    socket: OwnedFd,
    /// The server's version as in `server_version_num`.
    pub version: u32,
    /// A request is under way, or was dropped while it was.
    asking: bool,
    /// Whether closing the session discards data that was sent but not delivered yet.
    pub drop_unsent: bool,
}

impl PostgresSession {
    /// Connects and logs in. A server that lacks what the statements need is refused.
    pub(super) async fn open(options: &SqlOptions) -> Result<Self> {
        let session = Self::open_to_look(options).await?;
        if (1..OLDEST).contains(&session.version) {
            let version = session.version / 10_000;
            return Err(Error::new(
                Kind::Config,
                format!(
                    "the server is PostgreSQL {version}, which lacks what dlock's statements need"
                ),
            )
            .hint(OLDEST_NAME));
        }
        Ok(session)
    }

    /// As [`PostgresSession::open`], but refuses no server.
    pub(super) async fn open_to_look(options: &SqlOptions) -> Result<Self> {
        let handshake = options.handshake(true, &TLS)?;
        let name = format!("dlock {:016x}", random());
        // As PostgreSQL's clients name a socket in a folder.
        let relay = Loopback::listen(&format!("/.s.PGSQL.{PORT}"))?;
        // Before the connection: a server ends one that doesn't log in soon.
        let login = login(options, &relay.path, &name).await?;
        let stream = dial(options, handshake).await?;
        let socket = net::socket_of(&stream)?;
        let unasked = Arc::new(Unasked::default());
        let passing = relay::start(relay, stream, Arc::clone(&unasked));
        let driver = login
            .connect()
            .await
            .map_err(|error| failure::connecting(error, options.password.is_some()))?;
        let version = driver.server_version_num().unwrap_or_default();
        Ok(Self {
            name,
            driver,
            passing,
            unasked,
            socket,
            version,
            asking: false,
            drop_unsent: false,
        })
    }

    /// Returns the server's unsolicited messages.
    pub(super) fn unasked(&self) -> Arc<Unasked> {
        Arc::clone(&self.unasked)
    }

    /// The server's process.
    pub(super) fn pid(&self) -> i32 {
        self.unasked.pid.load(Ordering::SeqCst)
    }

    /// Ends the session of a process, if it is the one that `which` says, and waits in the server
    /// until it has ended.
    ///
    /// Closing the session's socket is not enough: a busy server does not check the socket.
    /// Cancelling is not enough either: it ignores a statement that the server has not read yet,
    /// and a late cancel hits the next statement. A session's end is final.
    pub(super) async fn end_process(&mut self, pid: i64, which: &str) -> Result<()> {
        self.run(&format!(
            "DO $$BEGIN
               IF EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid} AND {which}) AND pg_terminate_backend({pid}) THEN
                 FOR i IN 1..1000 LOOP
                   PERFORM pg_stat_clear_snapshot();
                   EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_get_activity({pid}));
                   PERFORM pg_sleep(0.002);
                 END LOOP;
               END IF;
             END$$"
        ))
        .await
        .map(|_| ())
    }

    /// Returns a user's text with `?` for characters that the database's encoding lacks: such a
    /// character must not stop a job.
    pub(super) fn words<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if text.is_ascii() || !self.is_narrow() {
            return text.into();
        }
        text.chars()
            .map(|c| if c.is_ascii() { c } else { '?' })
            .collect::<String>()
            .into()
    }

    /// Whether the database's encoding lacks some characters.
    pub(super) fn is_narrow(&self) -> bool {
        self.unasked.narrow.load(Ordering::SeqCst)
    }

    /// Returns SQL that makes the server check whether this client is still connected while later
    /// statements of the same request wait: a dead client must not be granted a lock.
    pub(super) fn look_for_client(&self) -> &'static str {
        if self.version < CLIENT_CHECK {
            return "";
        }
        // Other systems refuse the setting.
        "SELECT set_config('client_connection_check_interval', '500ms', true) WHERE version() LIKE '%linux%';\n"
    }

    /// Returns the local port, if there is one.
    pub(super) fn local_port(&self) -> Option<u16> {
        let address = rustix::net::getsockname(&self.socket).ok()?;
        std::net::SocketAddr::try_from(address)
            .ok()
            .map(|address| address.port())
    }

    /// Has the session closed instead of used again: its transaction has failed.
    pub(super) fn spoil(&mut self) {
        self.asking = true;
    }

    /// Makes the kernel notice within `limit` that the server's host is gone.
    pub(super) fn keep_alive(&self, limit: Duration) {
        socket::keep_alive(&self.socket, limit);
    }

    /// Runs statements in one round trip, with the nth value for `$n`, as one transaction unless
    /// they say otherwise. Returns the rows of the last one.
    pub(super) async fn query(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>> {
        self.run(&fill(sql, values)).await
    }

    /// As [`PostgresSession::query`]; reports each row of a long answer.
    pub(super) async fn query_long(
        &mut self,
        sql: &str,
        values: &[Value<'_>],
        progress: &Progress,
    ) -> Result<Vec<Row>> {
        self.run_long(&fill(sql, values), progress).await
    }

    /// As [`PostgresSession::query`], for statements without parameters.
    pub(super) async fn run(&mut self, sql: &str) -> Result<Vec<Row>> {
        self.run_long(sql, &Progress::default()).await
    }

    async fn run_long(&mut self, sql: &str, progress: &Progress) -> Result<Vec<Row>> {
        self.asking = true;
        let answer = self.ask(sql, progress).await;
        self.asking = answer
            .as_ref()
            .is_err_and(|error| error.as_database_error().is_none_or(failure::ends_session));
        answer.map_err(failure::statement)
    }

    async fn ask(&mut self, sql: &str, progress: &Progress) -> Result<Vec<Row>, sqlx::Error> {
        let (mut last, mut current, mut size) = (Vec::new(), Vec::new(), AnswerSize::default());
        let mut answers = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(&mut self.driver);
        while let Some(answer) = answers.try_next().await? {
            match answer {
                Either::Right(row) => {
                    progress.part();
                    let row = values(&row)?;
                    if !size.add(&row.values) {
                        return Err(sqlx::Error::Protocol("the answer is too long".into()));
                    }
                    current.push(row);
                }
                Either::Left(_) => last = std::mem::take(&mut current),
            }
        }
        Ok(last)
    }

    /// Returns the row of an answer that has exactly one.
    pub(super) async fn query_one(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Row> {
        let mut rows = self.query(sql, values).await?;
        rows.pop()
            .ok_or_else(|| Error::new(Kind::Data, "the server's answer has no row"))
    }
}

/// The values of a row, which are text in the simple protocol.
fn values(row: &PgRow) -> Result<Row, sqlx::Error> {
    let value = |column| {
        Ok(row
            .try_get_unchecked::<Option<String>, _>(column)?
            .map(String::into_bytes))
    };
    let values = (0..row.len())
        .map(value)
        .collect::<Result<_, sqlx::Error>>()?;
    Ok(Row {
        values,
        unreadable: failure::malformed,
    })
}

/// Returns the options for a login through the relay. None of them comes from the environment.
async fn login(options: &SqlOptions, folder: &str, name: &str) -> Result<PgConnectOptions> {
    let password = match &options.password {
        Some(password) => password.reveal().await?,
        None => String::new(),
    };
    let mut login = PgConnectOptions::new_without_pgpass()
        .socket(folder)
        .port(PORT)
        .ssl_mode(PgSslMode::Disable)
        .username(options.user.as_deref().unwrap_or("postgres"))
        .password(&password)
        .application_name(name)
        // Poolers refuse this setting.
        .extra_float_digits(None)
        .disable_statement_logging();
    if let Some(database) = &options.database {
        login = login.database(database);
    }
    Ok(login)
}

impl Session for PostgresSession {
    type Id = SessionId;

    fn id(&self) -> SessionId {
        SessionId {
            pid: self.pid(),
            name: self.name.clone(),
        }
    }

    /// The server reuses process numbers, so the session's name identifies it.
    async fn end_other(&mut self, other: &SessionId) -> Result<()> {
        let SessionId { pid, name } = other;
        self.end_process(
            (*pid).into(),
            &format!("application_name = '{name}' AND usename = session_user"),
        )
        .await
    }

    fn is_open(&self) -> bool {
        !self.asking && self.is_alive()
    }

    fn is_alive(&self) -> bool {
        !self.unasked.is_over()
    }

    fn lifeline(&self) -> std::io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    async fn ended(&self) {
        self.unasked.ended().await;
    }
}

impl Drop for PostgresSession {
    fn drop(&mut self) {
        if !self.asking {
            self.passing.detach_all();
        } else if self.drop_unsent {
            socket::drop_unsent_on_close(&self.socket, true);
        }
    }
}
