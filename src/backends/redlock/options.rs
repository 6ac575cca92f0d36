//! The decoded options for a set of nodes.

use std::time::Duration;

use crate::{backends::redis, lock::Namespace};

/// The nodes, and how they are asked.
#[derive(Clone, Debug)]
pub struct RedlockOptions {
    /// The connection options of each node. Their namespaces are ignored.
    pub nodes: Vec<redis::RedisOptions>,
    /// How long one node may take for one request; less if the lease is short.
    pub node_timeout: Duration,
    /// The pause before a busy lock is tried again, ± 50 %.
    pub retry_delay: Duration,
    /// The namespace of every key.
    pub namespace: Namespace,
}

impl RedlockOptions {
    /// The default of `?node_timeout=`: three such timeouts fit into one attempt at the default
    /// `--backend-timeout`.
    pub const NODE_TIMEOUT: Duration = Duration::from_millis(500);
    /// The default of `?retry_delay=`.
    pub const RETRY_DELAY: Duration = Duration::from_millis(200);

    /// Options for `nodes` with the default namespace and times.
    pub fn new(nodes: Vec<redis::RedisOptions>) -> Self {
        Self {
            nodes,
            node_timeout: Self::NODE_TIMEOUT,
            retry_delay: Self::RETRY_DELAY,
            namespace: Namespace::default(),
        }
    }

    /// Returns the URL without user and password.
    pub fn redacted_url(&self) -> String {
        let places: Vec<_> = self.nodes.iter().map(name).collect();
        let scheme = if self.nodes.iter().any(|node| node.tls.is_some()) {
            "redlocks"
        } else {
            "redlock"
        };
        let db = self.nodes.first().map_or(0, |node| node.db);
        let db = if db == 0 {
            String::new()
        } else {
            format!("/{db}")
        };
        format!("{scheme}://{}{db}", places.join(","))
    }

    /// Returns for how long a waiter may be silent before it counts as dead. It asks more often,
    /// even while a node keeps it waiting.
    pub(super) fn silence(&self) -> Duration {
        (self.retry_delay * 5 + self.node_timeout * 2).max(Duration::from_secs(2))
    }

    /// Returns how long a node may take: `node_timeout`, or `ttl / parts` if that is less. The core
    /// renews at every sixth of the lease, and starts nothing after half of it.
    pub(super) fn bound(&self, ttl: Option<Duration>, parts: u32) -> Duration {
        ttl.map_or(self.node_timeout, |ttl| self.node_timeout.min(ttl / parts))
    }
}

/// Returns the node's name for messages: host and port.
pub(super) fn name(node: &redis::RedisOptions) -> String {
    match &node.server {
        redis::RedisServer::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
        redis::RedisServer::Tcp { host, port } => format!("{host}:{port}"),
        _ => node.redacted_url(),
    }
}
