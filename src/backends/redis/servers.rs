//! Which server has a lock now, and the connections to servers.
//!
//! A connection is handed out and comes back when it is at rest again. What does not come back is not known any more,
//! neither the connection nor that its server has the lock: the next call finds it anew. So a call that is dropped
//! half-way, or meets a server that is going down, needs nothing else to be safe.

use redis::{ServerError, Value};

use super::{
    cluster::{self, Cluster, Redirect, SlotLocation},
    connection::RedisConnection,
    failure,
    options::{Address, RedisOptions, Server},
    sentinel::Sentinels,
};
use crate::lock::{Error, Key, Result};

/// A connection to a server that was found for a lock.
pub(super) struct ServerConnection {
    pub(super) connection: RedisConnection,
    /// Which of a cluster's nodes it leads to; elsewhere there is one server at a time.
    node: Option<Address>,
    /// The node is only about to get the slot, and serves requests that say so (ASKING).
    asking: bool,
}

impl ServerConnection {
    pub(super) fn to_node(connection: RedisConnection, node: Address) -> Self {
        Self { connection, node: Some(node), asking: false }
    }

    /// Whether it leads to a node that a slot is being moved to.
    pub(super) fn is_asking(&self) -> bool {
        self.asking
    }

    pub(super) fn node(&self) -> Option<&Address> {
        self.node.as_ref()
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
        self.connection.exchange(&pipeline.get_packed_pipeline(), pipeline.len()).await
    }

    /// Where the reply sends us.
    pub(super) fn redirect(&self, reply: &Value) -> Option<Redirect> {
        self.node.as_ref().and_then(|node| cluster::redirect(reply, node))
    }
}

/// All that is known of a deployment's servers.
pub(super) struct Servers {
    options: RedisOptions,
    idle: Vec<ServerConnection>,
    topology: Topology,
    /// The most replicas that each node was known to have.
    replicas: Vec<(Option<Address>, u32)>,
}

enum Topology {
    /// There is one server, which the options name.
    Known,
    /// There is one master, which sentinels name.
    Sentinel(Sentinels),
    /// Each slot has a node.
    Cluster(Cluster),
}

impl Servers {
    pub(super) fn new(options: RedisOptions) -> Self {
        let topology = match &options.server {
            Server::Tcp { .. } | Server::Unix(_) => Topology::Known,
            Server::Sentinel(sentinel) => Topology::Sentinel(Sentinels::new(sentinel.clone())),
            Server::Cluster(seeds) => Topology::Cluster(Cluster::new(seeds.clone())),
        };
        Self { options, idle: Vec::new(), topology, replicas: Vec::new() }
    }

    pub(super) fn options(&self) -> &RedisOptions {
        &self.options
    }

    /// The most replicas that the server at the other end was known to have.
    pub(super) fn replicas_of(&self, line: &ServerConnection) -> Option<u32> {
        let known = self.replicas.iter().find(|(node, _)| *node == line.node)?.1;
        Some(known.max(line.connection.replicas))
    }

    /// Notes that it has so many now; returns the most it had.
    pub(super) fn learn_replicas(&mut self, line: &ServerConnection, count: u32) -> u32 {
        match self.replicas.iter_mut().find(|(node, _)| *node == line.node) {
            Some((_, known)) => *known = (*known).max(count),
            None => self.replicas.push((line.node.clone(), count)),
        }
        self.replicas_of(line).unwrap_or(count)
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    /// A connection to the server that has the lock stored as `name`.
    pub(super) async fn take(&mut self, name: &str) -> Result<ServerConnection> {
        let Topology::Cluster(cluster) = &mut self.topology else { return self.to(None).await };
        let node = match cluster.take_owner(name) {
            Some(node) => node,
            None => match cluster.find(&self.options, name).await? {
                SlotLocation::Here(line) => return Ok(line),
                SlotLocation::At(node) => node,
            },
        };
        self.to(Some(node)).await
    }

    /// As [`Servers::take`], where time is of less matter: it also learns which other nodes could be asked one day.
    pub(super) async fn take_for_long(&mut self, name: &str) -> Result<ServerConnection> {
        let mut line = self.take(name).await?;
        self.learn_over(&mut line).await?;
        Ok(line)
    }

    /// Learns which other nodes could be asked one day, unless that is known.
    pub(super) async fn learn_over(&mut self, line: &mut ServerConnection) -> Result<()> {
        match &mut self.topology {
            Topology::Cluster(cluster) => cluster.learn_over(line).await,
            Topology::Known | Topology::Sentinel(_) => Ok(()),
        }
    }

    /// The connection over which the lock was found busy, if all that happened since would have come over it. No I/O.
    pub(super) fn take_asked(&mut self, name: &str, key: &Key) -> Option<ServerConnection> {
        let node = match &mut self.topology {
            Topology::Cluster(cluster) => Some(cluster.take_owner(name)?),
            Topology::Known | Topology::Sentinel(_) => None,
        };
        let line = self.take_idle(node.as_ref())?;
        if line.connection.asked.as_ref() == Some(key) {
            return Some(line);
        }
        self.put_back(name, line);
        None
    }

    /// The connection is at rest, and its server has the lock.
    pub(super) fn put_back(&mut self, name: &str, line: ServerConnection) {
        if let (Topology::Cluster(cluster), Some(node), false) = (&mut self.topology, &line.node, line.asking) {
            cluster.set_owner(name, node.clone());
        }
        self.rest(line);
    }

    /// The connection is at rest.
    pub(super) fn rest(&mut self, line: ServerConnection) {
        self.idle.push(ServerConnection { asking: false, ..line });
    }

    /// The connection is at rest after this reply. A server that can't serve now may not be the one to ask next time.
    pub(super) fn put_back_after(&mut self, name: &str, line: ServerConnection, reply: &Value) {
        let forget = match reply {
            Value::ServerError(error) => !matches!(self.topology, Topology::Known) && self.refused(error).is_transient(),
            _ => false,
        };
        if !forget {
            self.put_back(name, line);
        }
    }

    /// A connection to where a reply over `line` sent us. `line` is at rest.
    pub(super) async fn follow(&mut self, name: &str, redirect: Redirect, line: ServerConnection) -> Result<ServerConnection> {
        match redirect {
            Redirect::Moved(node) => {
                self.rest(line);
                self.to(Some(node)).await
            }
            Redirect::Ask(node) => {
                self.put_back(name, line);
                Ok(ServerConnection { asking: true, ..self.to(Some(node)).await? })
            }
        }
    }

    /// Notes where the lock was said to be, without going there.
    pub(super) fn moved(&mut self, name: &str, redirect: &Redirect) {
        if let (Topology::Cluster(cluster), Redirect::Moved(node)) = (&mut self.topology, redirect) {
            cluster.set_owner(name, node.clone());
        }
    }

    /// All the servers that have locks, each to be given to [`Servers::to`].
    pub(super) async fn all(&mut self) -> Result<Vec<Option<Address>>> {
        match &mut self.topology {
            Topology::Cluster(cluster) => Ok(cluster.find_masters(&self.options).await?.into_iter().map(Some).collect()),
            Topology::Known | Topology::Sentinel(_) => Ok(vec![None]),
        }
    }

    /// A connection to this node, or to the one server there is.
    pub(super) async fn to(&mut self, node: Option<Address>) -> Result<ServerConnection> {
        if let Some(line) = self.take_idle(node.as_ref()) {
            return Ok(line);
        }
        let connection = match (&mut self.topology, &node) {
            (Topology::Sentinel(sentinels), _) => sentinels.open_master(&self.options).await?,
            (Topology::Cluster(_), Some(node)) => {
                RedisConnection::open(&self.options.at(node)).await.map_err(|error| failure::of("node", node, error))?
            }
            _ => RedisConnection::open(&self.options).await?,
        };
        Ok(ServerConnection { connection, node, asking: false })
    }

    fn take_idle(&mut self, node: Option<&Address>) -> Option<ServerConnection> {
        self.idle.retain(|line| line.connection.is_open());
        let at = self.idle.iter().position(|line| line.node.as_ref() == node)?;
        Some(self.idle.swap_remove(at))
    }

    /// An error that a server answered with, in run policy of the deployment.
    pub(super) fn refused(&self, error: &ServerError) -> Error {
        match (&self.topology, error.code()) {
            (Topology::Sentinel(_), "READONLY" | "UNBLOCKED" | "MASTERDOWN") => failure::no_master(),
            (Topology::Cluster(_), "MOVED" | "ASK" | "READONLY") => failure::lost_in_cluster(),
            _ => failure::refused(error),
        }
    }
}
