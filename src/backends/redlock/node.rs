//! One node: its connection, and the replies still due on it.
//!
//! A call that is dropped, or that doesn't wait for a late node, leaves the connection open. The
//! next request is sent over it at once. So a release always arrives after the attempt that it
//! undoes, however late the node is, and even if this process has ended by then.

use std::{
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use ::redis::{Pipeline, Value};
use tokio::sync::Mutex;

use super::{options, script};
use crate::{
    backends::{
        net,
        redis::{RedisOptions, connection::RedisConnection, failure, script::Script},
    },
    lock::Result,
};

/// A request to a node.
pub(super) enum Question {
    /// One script.
    Script {
        script: &'static Script,
        keys: Rc<[String]>,
        arguments: Vec<String>,
    },
    /// Commands that only read; the answer is the list of their replies.
    Reads(Rc<Pipeline>),
}

/// A connection, for one request at a time.
struct NodeConnection {
    connection: RedisConnection,
    /// The number of replies to abandoned requests that will come first.
    owed: usize,
    /// Whether the connection is intact: no half-written request, no failure.
    sound: bool,
}

/// The number of unanswered requests in a row after which the connection is dropped: the server or
/// the network is gone.
const UNHEARD: u8 = 2;

type Exchange = Pin<Box<dyn Future<Output = Result<Value>>>>;

/// One server of the set.
pub(super) struct RedlockNode {
    /// The host and port.
    pub name: String,
    /// Whether the last request got no answer in time, and none since. Requests then don't wait for
    /// this node.
    pub late: bool,
    options: Rc<RedisOptions>,
    conn: Rc<Mutex<Option<NodeConnection>>>,
    exchange: Option<Exchange>,
    /// The number of requests in a row without an answer.
    unheard: u8,
}

impl RedlockNode {
    pub(super) fn new(options: RedisOptions) -> Self {
        Self {
            name: options::name(&options),
            late: false,
            options: Rc::new(options),
            conn: Rc::default(),
            exchange: None,
            unheard: 0,
        }
    }

    /// Closes the connection.
    pub(super) fn close(&mut self) {
        (self.exchange, self.unheard, self.conn) = (None, 0, Rc::default());
    }

    /// Starts a request; [`RedlockNode::poll`] drives it. The answer to an earlier request is
    /// dropped.
    pub(super) fn ask(&mut self, question: Question) {
        if self.exchange.is_some()
            && self
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_ready()
        {
            self.late = false;
        }
        if self.exchange.take().is_some() {
            self.unheard += 1;
        }
        if self.unheard >= UNHEARD {
            self.unheard = 0;
            self.conn = Rc::default();
        }
        self.exchange = Some(Box::pin(exchange_one(
            Rc::clone(&self.options),
            Rc::clone(&self.conn),
            question,
        )));
    }

    /// Returns the answer to the last request once it is there.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Value>> {
        let Some(exchange) = &mut self.exchange else {
            return Poll::Pending;
        };
        exchange.as_mut().poll(context).map(|answer| {
            self.exchange = None;
            self.unheard = 0;
            answer
        })
    }
}

async fn exchange_one(
    options: Rc<RedisOptions>,
    conn: Rc<Mutex<Option<NodeConnection>>>,
    question: Question,
) -> Result<Value> {
    // Never blocks: the earlier exchange, which had the lock, was dropped.
    let mut place = conn.lock().await;
    let conn = match place.take().filter(NodeConnection::is_usable) {
        Some(conn) => conn,
        None => NodeConnection {
            connection: RedisConnection::open(&options).await?,
            owed: 0,
            sound: true,
        },
    };
    let conn = place.insert(conn);
    match &question {
        Question::Script {
            script,
            keys,
            arguments,
        } => {
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            // An abandoned attempt should not arrive at all; an abandoned release may.
            let takes = script.is(&script::TAKE);
            // An abandoned earlier request may have left the other setting.
            conn.connection.drop_unsent_on_close(takes);
            // After another request, the NOSCRIPT reply could come too late. So the whole script is
            // sent.
            let packed = if conn.owed > 0 {
                script.eval_command(&keys, &arguments)
            } else {
                script.by_sha(&keys, &arguments)
            };
            let mut replies = conn.ask(&packed, 1).await?;
            if matches!(replies.first(), Some(Value::ServerError(error)) if error.code() == "NOSCRIPT")
            {
                replies = conn.ask(&script.eval_command(&keys, &arguments), 1).await?;
            }
            if takes {
                conn.connection.drop_unsent_on_close(false);
            }
            let refused = match replies.pop() {
                Some(Value::ServerError(error)) if takes => {
                    failure::refused(&error).effect(failure::effect_of_take(&error))
                }
                Some(Value::ServerError(error)) => failure::refused(&error),
                Some(reply) => return Ok(reply),
                None => failure::unreadable(),
            };
            if refused.ends_connection() {
                conn.sound = false;
                options.left(&refused);
            }
            Err(refused)
        }
        Question::Reads(commands) => conn
            .ask(&commands.get_packed_pipeline(), commands.len())
            .await
            .map(Value::Array),
    }
}

impl NodeConnection {
    fn is_usable(&self) -> bool {
        self.sound && self.connection.is_open()
    }

    /// Sends `count` commands and returns their replies. Cancel safe: `owed` counts the unread
    /// replies.
    async fn ask(&mut self, packed: &[u8], count: usize) -> Result<Vec<Value>> {
        self.sound = false;
        self.connection.send(packed).await.map_err(net::broken)?;
        self.sound = true;
        self.owed += count;
        let mut replies = Vec::with_capacity(count);
        while self.owed > 0 {
            let reply = self
                .connection
                .receive()
                .await
                .inspect_err(|_| self.sound = false)?;
            self.owed -= 1;
            if self.owed < count {
                replies.push(reply);
            }
        }
        Ok(replies)
    }
}
