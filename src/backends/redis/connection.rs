//! One connection: opening it, and exchanging requests for replies.
//!
//! A connection never reconnects and has no time limits. A caller that drops an exchange half-way
//! must drop the connection too, since a reply may still come.

use std::io;

use combine::{
    parser::combinator::AnySendSyncPartialState,
    stream::{Decoder, PointerOffset},
};
use redis::{Pipeline, Value};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    failure,
    options::{Address, RedisOptions, RedisServer, TLS},
};
use crate::backends::net::{self, Stream, longest::Bounded, socket};
use crate::lock::{Effect, Error, Key, Kind, Result};

/// An open connection, logged in and with its database selected.
pub(in crate::backends) struct RedisConnection {
    stream: Stream,
    decoder: Decoder<AnySendSyncPartialState, PointerOffset<[u8]>>,
    /// Whether any reply has come.
    greeted: bool,
    encrypted: bool,
    /// The lock that was found busy over this connection: blocking here misses no release of it.
    pub(super) asked: Option<Key>,
    /// The server's number of replicas according to a sentinel; 0 if none was asked.
    pub(super) replicas: u32,
}

impl RedisConnection {
    /// Connects and logs in. A password or a database costs one more round trip.
    ///
    /// The login isn't sent together with the first request. If it were refused, a server that
    /// needs no login would still take the lock, as another user or in database 0.
    pub(in crate::backends) async fn open(options: &RedisOptions) -> Result<Self> {
        Ok(Self::open_and(options, &redis::pipe()).await?.0)
    }

    /// Like [`RedisConnection::open`], but sends harmless requests in the same packet as the login.
    /// The caller must check the replies for errors.
    pub(in crate::backends) async fn open_and(
        options: &RedisOptions,
        questions: &Pipeline,
    ) -> Result<(Self, Vec<Value>)> {
        let stream = match &options.server {
            RedisServer::Unix(path) => net::connect_unix(path).await?,
            RedisServer::Tcp { host, port } => {
                net::open(host, *port, options.tls.as_ref(), &TLS).await?
            }
            RedisServer::Sentinel(_) | RedisServer::Cluster(_) => {
                return Err(Error::new(
                    Kind::Internal,
                    "one server was to be asked, and several were named",
                ));
            }
        };
        let mut connection = Self {
            stream,
            decoder: Decoder::new(),
            greeted: false,
            encrypted: options.tls.is_some(),
            asked: None,
            replicas: 0,
        };
        let answers = connection.greet(options, questions).await?;
        Ok((connection, answers))
    }

    async fn greet(&mut self, options: &RedisOptions, questions: &Pipeline) -> Result<Vec<Value>> {
        let mut greeting = redis::pipe();
        match (&options.user, &options.password) {
            (Some(user), Some(password)) => {
                greeting.cmd("AUTH").arg(user).arg(password.reveal().await?);
            }
            (None, Some(password)) => {
                greeting.cmd("AUTH").arg(password.reveal().await?);
            }
            (Some(_), None) => {
                return Err(Error::new(Kind::Config, "there is a user but no password")
                    .hint("give it in DLOCK_PASSWORD, with --password-file, or as password_file in the configuration"));
            }
            (None, None) => {}
        }
        if options.db != 0 {
            greeting.cmd("SELECT").arg(options.db);
        }
        let login = greeting.len();
        for question in questions.cmd_iter() {
            greeting.add_command(question.clone());
        }
        if greeting.is_empty() {
            return Ok(Vec::new());
        }
        let packed = greeting.get_packed_pipeline();
        let mut replies = self
            .exchange(&packed, greeting.len())
            .await
            .map_err(|error| error.effect(Effect::NotApplied))?;
        let answers = replies.split_off(login);
        for reply in &replies {
            if let Value::ServerError(error) = reply {
                return Err(failure::refused_greeting(error));
            }
        }
        Ok(answers)
    }

    /// Whether the server's end is open, as far as this host knows.
    ///
    /// A request to a closed end has an unknown outcome, so it is better not to send it.
    pub(in crate::backends) fn is_open(&self) -> bool {
        socket::is_open(&self.stream.socket())
    }

    /// Sends `packed`, which has `count` commands, and awaits their replies. The server's errors
    /// are among the replies.
    pub(in crate::backends) async fn exchange(
        &mut self,
        packed: &[u8],
        count: usize,
    ) -> Result<Vec<Value>> {
        self.send(packed).await.map_err(net::broken)?;
        let mut replies = Vec::with_capacity(count);
        for _ in 0..count {
            replies.push(self.receive().await?);
        }
        Ok(replies)
    }

    /// Closes the connection, and returns when the server has closed its end: it does nothing more
    /// for this connection.
    pub(super) async fn end(mut self) {
        let mut rest = [0; 256];
        // A connection that fails has ended too.
        if self.stream.shutdown().await.is_ok() {
            while matches!(self.stream.read(&mut rest).await, Ok(1..)) {}
        }
    }

    /// Sets whether closing the connection drops data that has not reached the server, instead of
    /// still delivering it.
    pub(in crate::backends) fn drop_unsent_on_close(&self, drop: bool) {
        socket::drop_unsent_on_close(&self.stream.socket(), drop);
    }

    /// Like [`RedisConnection::exchange`], for one command. The server's error is returned as a
    /// reply too.
    pub(super) async fn ask(&mut self, packed: &[u8]) -> Result<Value> {
        self.send(packed).await.map_err(net::broken)?;
        self.receive().await
    }

    pub(in crate::backends) async fn send(&mut self, packed: &[u8]) -> io::Result<()> {
        self.stream.write_all(packed).await?;
        self.stream.flush().await?;
        // The parser detects CPU features, which takes 0.1 ms on a virtual machine. Done here, it
        // overlaps with the server's work.
        #[cfg(target_arch = "x86_64")]
        let _ = std::is_x86_feature_detected!("avx2");
        Ok(())
    }

    pub(in crate::backends) async fn receive(&mut self) -> Result<Value> {
        let mut stream = Bounded::new(&mut self.stream);
        let reply = redis::parse_redis_value_async(&mut self.decoder, &mut stream).await;
        if stream.is_over() {
            return Err(failure::too_long());
        }
        match reply {
            Ok(reply) => {
                self.greeted = true;
                Ok(reply)
            }
            Err(error) if error.is_io_error() => {
                let failure = net::broken(error);
                let may_want_tls = !self.greeted && !self.encrypted;
                Err(if may_want_tls {
                    failure.hint("if the server speaks TLS there, the URL begins with rediss://")
                } else {
                    failure
                })
            }
            Err(_) => Err(failure::unreadable()),
        }
    }
}

/// A connection to a server that was found for a lock.
pub(super) struct ServerConnection {
    pub(super) connection: RedisConnection,
    /// The cluster node at the other end; `None` outside a cluster, where there is one server at a
    /// time.
    pub(super) node: Option<Address>,
    /// Whether the slot is being moved to this node, which then serves only requests after ASKING.
    pub(super) asking: bool,
}

impl ServerConnection {
    pub(super) fn to_node(connection: RedisConnection, node: Address) -> Self {
        Self {
            connection,
            node: Some(node),
            asking: false,
        }
    }

    /// Sends one command and awaits its reply, which may be an error.
    pub(super) async fn ask(&mut self, packed: &[u8]) -> Result<Value> {
        if !self.asking {
            return self.connection.ask(packed).await;
        }
        let both = [&*redis::cmd("ASKING").get_packed_command(), packed].concat();
        let mut replies = self.connection.exchange(&both, 2).await?;
        replies.pop().ok_or_else(failure::unreadable)
    }

    /// Sends several commands in one packet and awaits their replies, which may be errors.
    pub(super) async fn exchange(&mut self, pipeline: &redis::Pipeline) -> Result<Vec<Value>> {
        self.connection
            .exchange(&pipeline.get_packed_pipeline(), pipeline.len())
            .await
    }
}
