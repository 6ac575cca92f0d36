//! One session: opening it, asking over it, and what the server says unasked.
//!
//! It never reconnects and knows no time limits. After a question that was dropped half-way, the next one first awaits what is
//! still to come of it ([`Session::is_alive`]); where that may take long or never come, another session is the better one
//! ([`Session::is_open`]), and dropping this one closes its socket at once.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    time::Duration,
};

use futures_util::TryStreamExt as _;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Either, PgConnection,
    postgres::{PgConnectOptions, PgRow, PgSslMode},
};
use tokio::sync::Notify;

use super::{
    dial, failure,
    options::PORT,
    relay::{Passing, Relay},
    statement::{Value, fill},
    tls::Tls,
};
use crate::{
    backends::sql::Options,
    lock::{Error, Kind, Result},
};

/// What the server says unasked.
#[derive(Default)]
pub(super) struct Unasked {
    /// Rung by each notification.
    pub rung: Notify,
    /// The server's process.
    pub pid: AtomicI32,
    ended: AtomicBool,
    end: Notify,
}

impl Unasked {
    /// Ready when the session is over.
    pub(super) async fn ended(&self) {
        let end = self.end.notified();
        if !self.is_over() {
            end.await;
        }
    }

    fn is_over(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.end.notify_waiters();
    }
}

/// An open session.
pub(super) struct Session {
    driver: PgConnection,
    passing: Passing,
    unasked: Arc<Unasked>,
    socket: OwnedFd,
    /// The server's version as in `server_version_num`.
    pub version: u32,
    /// A statement is on its way, or was dropped there.
    asking: bool,
    /// What was sent and not delivered yet is to be thrown away with the session.
    pub drop_unsent: bool,
}

impl Session {
    /// Connects and logs in.
    pub(super) async fn open(options: &Options) -> Result<Self> {
        let tls = Tls::new(options)?;
        let (mut stream, socket) = dial::dial(&options.server).await?;
        if let Some(tls) = tls {
            stream = tls.shake_hands(stream).await?;
        }
        let unasked = Arc::new(Unasked::default());
        let relay = Relay::bind().map_err(failure::unreachable)?;
        let folder = relay.folder();
        let passing = relay.start(stream, Arc::clone(&unasked));
        let driver = login(options, &folder).connect().await.map_err(|error| failure::connecting(error, options.password.is_some()))?;
        let version = driver.server_version_num().unwrap_or_default();
        Ok(Self { driver, passing, unasked, socket, version, asking: false, drop_unsent: false })
    }

    /// Whether it can be asked, and answers at once.
    pub(super) fn is_open(&self) -> bool {
        !self.asking && self.is_alive()
    }

    /// Whether it is not known to be over, whatever is on its way.
    pub(super) fn is_alive(&self) -> bool {
        !self.unasked.is_over()
    }

    /// What the server says unasked.
    pub(super) fn unasked(&self) -> Arc<Unasked> {
        Arc::clone(&self.unasked)
    }

    /// The server's process.
    pub(super) fn pid(&self) -> i32 {
        self.unasked.pid.load(Ordering::SeqCst)
    }

    /// Ends another session of the same user, and waits in the server until it has ended.
    ///
    /// Closing its socket is not enough: the server looks at that when it has nothing else to do. Nor is cancelling: it does
    /// nothing to a statement that was not read yet, and hits the next one if it is late itself. The end of a session is for good.
    pub(super) async fn end_other(&mut self, pid: i32) -> Result<()> {
        self.run(&format!(
            "DO $$BEGIN
               IF pg_terminate_backend({pid}) THEN
                 FOR i IN 1..1000 LOOP
                   EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_get_activity({pid}));
                   PERFORM pg_sleep(0.002), pg_stat_clear_snapshot();
                 END LOOP;
               END IF;
             END$$"
        ))
        .await
        .map(|_| ())
    }

    /// Our port, if there is one.
    pub(super) fn local_port(&self) -> Option<u16> {
        let address = rustix::net::getsockname(&self.socket).ok()?;
        std::net::SocketAddr::try_from(address).ok().map(|address| address.port())
    }

    /// Closes the session once it is put away: it is in the midst of a transaction that failed.
    pub(super) fn spoil(&mut self) {
        self.asking = true;
    }

    /// The socket once more.
    pub(super) fn lifeline(&self) -> std::io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Has the kernel notice within `limit` that the server's host is gone. A refusal only costs time.
    pub(super) fn keep_alive(&self, limit: Duration) {
        let _ = dial::keep_alive(&self.socket, limit);
    }

    /// Runs statements in one round trip, `$n` in them being the nth value, as one transaction unless they say otherwise. The
    /// rows of the last one.
    pub(super) async fn query(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Vec<PgRow>> {
        self.run(&fill(sql, values)).await
    }

    /// As [`Session::query`], of statements as they are.
    pub(super) async fn run(&mut self, sql: &str) -> Result<Vec<PgRow>> {
        self.asking = true;
        let answer = self.ask(sql).await;
        self.asking = answer.as_ref().is_err_and(|error| error.as_database_error().is_none_or(failure::ends_session));
        answer.map_err(failure::statement)
    }

    async fn ask(&mut self, sql: &str) -> Result<Vec<PgRow>, sqlx::Error> {
        let (mut last, mut current) = (Vec::new(), Vec::new());
        let mut answers = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(&mut self.driver);
        while let Some(answer) = answers.try_next().await? {
            match answer {
                Either::Right(row) => current.push(row),
                Either::Left(_) => last = std::mem::take(&mut current),
            }
        }
        Ok(last)
    }

    /// One row of an answer that has one.
    pub(super) async fn query_one(&mut self, sql: &str, values: &[Value<'_>]) -> Result<PgRow> {
        let mut rows = self.query(sql, values).await?;
        rows.pop().ok_or_else(|| Error::new(Kind::Data, "the server's answer has no row"))
    }
}

/// By way of the relay. What sqlx would take from the environment is set, or of no use on a Unix socket.
fn login(options: &Options, folder: &str) -> PgConnectOptions {
    let mut login = PgConnectOptions::new_without_pgpass()
        .socket(folder)
        .port(PORT)
        .ssl_mode(PgSslMode::Disable)
        .username(options.user.as_deref().unwrap_or("postgres"))
        .password(options.password.as_ref().map_or("", |password| password.reveal()))
        .application_name("dlock")
        // Poolers refuse it.
        .extra_float_digits(None)
        .disable_statement_logging();
    if let Some(database) = &options.database {
        login = login.database(database);
    }
    login
}

impl Drop for Session {
    fn drop(&mut self) {
        self.passing.break_off = self.asking;
        if self.asking && self.drop_unsent {
            // On a Unix socket nothing is under way. A refusal leaves what TCP does anyway.
            let _ = rustix::net::sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
        }
    }
}
