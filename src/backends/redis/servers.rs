//! The server of each lock, and the connections to servers.
//!
//! A call takes a connection and puts it back once no reply is pending. If it doesn't, the
//! connection is closed, and the lock's server is forgotten; the next call finds the server again.
//! So a call that is dropped half-way, or meets a server that is going down, is safe without
//! further measures.

use redis::{ServerError, Value};

use super::{
    cluster::{Cluster, Redirect, SlotLocation},
    connection::{RedisConnection, ServerConnection},
    failure,
    options::{Address, RedisOptions, RedisServer},
    sentinel::Sentinels,
};
use crate::lock::{Effect, Error, Key, Result};

/// The known state of a deployment's servers.
pub(super) struct Servers {
    options: RedisOptions,
    idle: Vec<ServerConnection>,
    topology: Topology,
    /// The most replicas that each node has had.
    replicas: Vec<(Option<Address>, u32)>,
}

enum Topology {
    /// One server, named in the options.
    Known,
    /// One master, named by sentinels.
    Sentinel(Sentinels),
    /// A node for each slot.
    Cluster(Cluster),
}

impl Servers {
    pub(super) fn new(options: RedisOptions) -> Self {
        let topology = match &options.server {
            RedisServer::Tcp { .. } | RedisServer::Unix(_) => Topology::Known,
            RedisServer::Sentinel(sentinel) => Topology::Sentinel(Sentinels::new(sentinel.clone())),
            RedisServer::Cluster(seeds) => Topology::Cluster(Cluster::new(seeds.clone())),
        };
        Self {
            options,
            idle: Vec::new(),
            topology,
            replicas: Vec::new(),
        }
    }

    pub(super) fn options(&self) -> &RedisOptions {
        &self.options
    }

    /// Returns the most replicas that the server at the other end has had.
    pub(super) fn replicas_of(&self, conn: &ServerConnection) -> Option<u32> {
        let known = self.replicas.iter().find(|(node, _)| *node == conn.node)?.1;
        Some(known.max(conn.connection.replicas))
    }

    /// Records the server's current number of replicas; returns the most that it has had.
    pub(super) fn learn_replicas(&mut self, conn: &ServerConnection, count: u32) -> u32 {
        match self
            .replicas
            .iter_mut()
            .find(|(node, _)| *node == conn.node)
        {
            Some((_, known)) => *known = (*known).max(count),
            None => self.replicas.push((conn.node.clone(), count)),
        }
        self.replicas_of(conn).unwrap_or(count)
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    /// Returns a connection to the server of the lock stored as `name`.
    pub(super) async fn take(&mut self, name: &str) -> Result<ServerConnection> {
        let Topology::Cluster(cluster) = &mut self.topology else {
            return self.to(None).await;
        };
        let node = match cluster.take_owner(name) {
            Some(node) => node,
            None => match cluster.find(&self.options, name).await? {
                SlotLocation::Here(conn) => return Ok(conn),
                SlotLocation::At(node) => node,
            },
        };
        self.to(Some(node)).await
    }

    /// Has a connection to the server of the lock, and asks it for the time, a right of every user.
    pub(super) async fn let_in(&mut self, name: &str) -> Result<()> {
        let mut conn = self.take(name).await?;
        let asked = conn.ask(&redis::cmd("TIME").get_packed_command()).await;
        failure::let_in(&asked.map_err(|error| error.effect(Effect::NotApplied))?)?;
        self.put_back(name, conn);
        Ok(())
    }

    /// Like [`Servers::take`], for calls that are not urgent: also learns the cluster's other
    /// nodes, for later failures.
    pub(super) async fn take_for_long(&mut self, name: &str) -> Result<ServerConnection> {
        let mut conn = self.take(name).await?;
        self.learn_over(&mut conn).await?;
        Ok(conn)
    }

    /// Learns the cluster's other nodes, unless they are known.
    pub(super) async fn learn_over(&mut self, conn: &mut ServerConnection) -> Result<()> {
        match &mut self.topology {
            Topology::Cluster(cluster) => cluster.learn_over(conn).await,
            Topology::Known | Topology::Sentinel(_) => Ok(()),
        }
    }

    /// Returns the connection over which this lock was last found busy, if it is still open. No
    /// I/O.
    pub(super) fn take_asked(&mut self, name: &str, key: &Key) -> Option<ServerConnection> {
        let node = match &mut self.topology {
            Topology::Cluster(cluster) => Some(cluster.take_owner(name)?),
            Topology::Known | Topology::Sentinel(_) => None,
        };
        let conn = self.take_idle(node.as_ref())?;
        if conn.connection.asked.as_ref() == Some(key) {
            return Some(conn);
        }
        self.put_back(name, conn);
        None
    }

    /// Puts a connection back whose replies have all been read, and records its server as the
    /// lock's.
    pub(super) fn put_back(&mut self, name: &str, conn: ServerConnection) {
        if let (Topology::Cluster(cluster), Some(node), false) =
            (&mut self.topology, &conn.node, conn.asking)
        {
            cluster.set_owner(name, node.clone());
        }
        self.rest(conn);
    }

    /// Puts a connection back whose replies have all been read.
    pub(super) fn rest(&mut self, conn: ServerConnection) {
        self.idle.push(ServerConnection {
            asking: false,
            ..conn
        });
    }

    /// Puts the connection back after this reply. After the error of a wrong server, or a transient
    /// one of a deployment's server, the next call finds the server anew.
    pub(super) fn put_back_after(&mut self, name: &str, conn: ServerConnection, reply: &Value) {
        let Value::ServerError(error) = reply else {
            return self.put_back(name, conn);
        };
        let error = self.refused(error);
        match &self.topology {
            Topology::Known if error.ends_connection() => self.options.left(&error),
            Topology::Sentinel(_) | Topology::Cluster(_)
                if error.is_transient() || error.ends_connection() => {}
            _ => self.put_back(name, conn),
        }
    }

    /// Returns a connection to the target of a redirection. All replies of `conn` must have been
    /// read.
    pub(super) async fn follow(
        &mut self,
        name: &str,
        redirect: Redirect,
        conn: ServerConnection,
    ) -> Result<ServerConnection> {
        match redirect {
            Redirect::Moved(node) => {
                self.rest(conn);
                self.to(Some(node)).await
            }
            Redirect::Ask(node) => {
                self.put_back(name, conn);
                Ok(ServerConnection {
                    asking: true,
                    ..self.to(Some(node)).await?
                })
            }
        }
    }

    /// Records the lock's new node, without connecting to it.
    pub(super) fn moved(&mut self, name: &str, redirect: &Redirect) {
        if let (Topology::Cluster(cluster), Redirect::Moved(node)) = (&mut self.topology, redirect)
        {
            cluster.set_owner(name, node.clone());
        }
    }

    /// Returns all servers that store locks, each as an argument for [`Servers::to`].
    pub(super) async fn all(&mut self) -> Result<Vec<Option<Address>>> {
        match &mut self.topology {
            Topology::Cluster(cluster) => Ok(cluster
                .find_masters(&self.options)
                .await?
                .into_iter()
                .map(Some)
                .collect()),
            Topology::Known | Topology::Sentinel(_) => Ok(vec![None]),
        }
    }

    /// Returns a connection to this node, or to the only server.
    pub(super) async fn to(&mut self, node: Option<Address>) -> Result<ServerConnection> {
        if let Some(conn) = self.take_idle(node.as_ref()) {
            return Ok(conn);
        }
        let connection = match (&mut self.topology, &node) {
            (Topology::Sentinel(sentinels), _) => sentinels.open_master(&self.options).await?,
            (Topology::Cluster(_), Some(node)) => RedisConnection::open(&self.options.at(node))
                .await
                .map_err(|error| failure::of("node", node, error))?,
            _ => RedisConnection::open(&self.options).await?,
        };
        Ok(ServerConnection {
            connection,
            node,
            asking: false,
        })
    }

    /// Closes all connections.
    pub(super) fn close(&mut self) {
        self.idle.clear();
    }

    fn take_idle(&mut self, node: Option<&Address>) -> Option<ServerConnection> {
        self.idle.retain(|conn| conn.connection.is_open());
        let at = self
            .idle
            .iter()
            .position(|conn| conn.node.as_ref() == node)?;
        Some(self.idle.swap_remove(at))
    }

    /// Converts a server's error reply, in terms of the deployment.
    pub(super) fn refused(&self, error: &ServerError) -> Error {
        match (&self.topology, error.code()) {
            (Topology::Sentinel(_), "READONLY" | "UNBLOCKED" | "MASTERDOWN") => {
                failure::no_master()
            }
            (Topology::Cluster(_), "MOVED" | "ASK" | "READONLY") => failure::lost_in_cluster(),
            _ => failure::refused(error),
        }
    }
}
