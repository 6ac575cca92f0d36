//! One session: opening it, asking over it, and what the server says unasked.
//!
//! It never reconnects and knows no time limits. A session whose statement was dropped half-way is of unknown state: it
//! says so ([`Session::is_open`]), and dropping it closes its socket at once.

use std::{
    future::poll_fn,
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, task::JoinHandle};
use tokio_postgres::{
    AsyncMessage, Client, Config, Row,
    types::{ToSql, Type},
};

use super::{dial, failure, tls::Tls};
use crate::{
    backends::sql::Options,
    lock::{Error, Kind, Result},
};

/// A statement's parameter with its type, so that one round trip does.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// What the server says unasked.
#[derive(Default)]
pub(super) struct Unasked {
    /// Rung by each notification.
    pub rung: Notify,
    ended: AtomicBool,
    end: Notify,
}

impl Unasked {
    /// Ready when the session is over.
    pub(super) async fn ended(&self) {
        let end = self.end.notified();
        if !self.ended.load(Ordering::SeqCst) {
            end.await;
        }
    }
}

/// An open session.
pub(super) struct Session {
    client: Client,
    task: JoinHandle<()>,
    unasked: Arc<Unasked>,
    socket: OwnedFd,
    /// The server's version as in `server_version_num`, as far as its major number.
    pub version: u32,
    /// A statement is on its way, or was dropped there.
    asking: bool,
    /// What was sent and not delivered yet is to be thrown away with the session.
    pub drop_unsent: bool,
}

impl Session {
    /// Connects and logs in.
    pub(super) async fn open(options: &Options) -> Result<Self> {
        let (tls, mode) = Tls::new(options)?;
        let (stream, socket) = dial::dial(&options.server).await?;
        let mut config = Config::new();
        config.application_name("dlock").ssl_mode(mode);
        config.user(options.user.clone().unwrap_or_else(|| "postgres".into()));
        if let Some(database) = &options.database {
            config.dbname(database.clone());
        }
        if let Some(password) = &options.password {
            config.password(password.reveal());
        }
        let (client, mut connection) = config.connect_raw(stream, tls).await.map_err(failure::connecting)?;
        let version = connection.parameter("server_version").and_then(major).unwrap_or_default() * 10_000;
        let unasked = Arc::new(Unasked::default());
        let told = Arc::clone(&unasked);
        let task = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if matches!(message, AsyncMessage::Notification(_)) {
                    told.rung.notify_one();
                }
            }
            told.ended.store(true, Ordering::SeqCst);
            told.end.notify_waiters();
        });
        Ok(Self { client, task, unasked, socket, version, asking: false, drop_unsent: false })
    }

    /// Whether it can be asked.
    pub(super) fn is_open(&self) -> bool {
        !self.asking && !self.client.is_closed()
    }

    /// Whether it is not known to be over, whatever is on its way.
    pub(super) fn is_alive(&self) -> bool {
        !self.client.is_closed()
    }

    /// What the server says unasked.
    pub(super) fn unasked(&self) -> Arc<Unasked> {
        Arc::clone(&self.unasked)
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

    /// Runs one statement in one round trip.
    pub(super) async fn query(&mut self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        self.asking = true;
        let answer = self.client.query_typed(sql, parameters).await;
        self.answered(answer)
    }

    /// Runs statements without parameters, as one transaction unless they say otherwise.
    pub(super) async fn run(&mut self, sql: &str) -> Result<()> {
        self.asking = true;
        let answer = self.client.batch_execute(sql).await;
        self.answered(answer)
    }

    /// Runs statements without parameters and then one with, in one round trip. The second is run though the first fails.
    pub(super) async fn run_then_query(&mut self, first: &str, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        self.asking = true;
        let (first, second) = tokio::join!(biased; self.client.batch_execute(first), self.client.query_typed(sql, parameters));
        let first = self.answered(first);
        let second = self.answered(second);
        first.and(second)
    }

    fn answered<T>(&mut self, answer: Result<T, tokio_postgres::Error>) -> Result<T> {
        // After an error that ended the session the driver says that it is closed, but perhaps not yet.
        self.asking = match &answer {
            Ok(_) => false,
            Err(error) => error.as_db_error().is_none_or(failure::ends_session),
        };
        answer.map_err(failure::statement)
    }

    /// One row of an answer that has one.
    pub(super) async fn query_one(&mut self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Row> {
        let mut rows = self.query(sql, parameters).await?;
        rows.pop().ok_or_else(|| Error::new(Kind::Data, "the server's answer has no row"))
    }
}

/// "15.20 (Debian 15.20-0+deb12u1)" is 15.
fn major(version: &str) -> Option<u32> {
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.asking {
            if self.drop_unsent {
                // On a Unix socket nothing is under way. A refusal leaves what TCP does anyway.
                let _ = rustix::net::sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
            }
            self.task.abort();
        }
    }
}
