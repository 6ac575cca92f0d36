//! What a set of nodes needs to be known by, decoded already.

use std::time::Duration;

use crate::{backends::redis, lock::Namespace};

/// Which nodes, and how they are asked.
#[derive(Clone, Debug)]
pub struct RedlockOptions {
    /// How each node is spoken with. Their namespaces count for nothing.
    pub nodes: Vec<redis::RedisOptions>,
    /// How long one node may take within one question, or a part of the lease if that is less.
    pub node_timeout: Duration,
    /// The pause between two looks at a busy lock, give or take a half of it.
    pub retry_delay: Duration,
    /// What every key is put under.
    pub namespace: Namespace,
}

impl RedlockOptions {
    /// The default of `?node_timeout=`: three of them fit into one attempt at the default `--backend-timeout`.
    pub const NODE_TIMEOUT: Duration = Duration::from_millis(500);
    /// The default of `?retry_delay=`.
    pub const RETRY_DELAY: Duration = Duration::from_millis(200);

    /// `nodes` in the namespace `dlock`, with the usual times.
    pub fn new(nodes: Vec<redis::RedisOptions>) -> Self {
        Self { nodes, node_timeout: Self::NODE_TIMEOUT, retry_delay: Self::RETRY_DELAY, namespace: Namespace::default() }
    }

    /// The URL without user and password.
    pub fn redacted_url(&self) -> String {
        let places: Vec<_> = self.nodes.iter().map(name).collect();
        let scheme = if self.nodes.iter().any(|node| node.tls.is_some()) { "redlocks" } else { "redlock" };
        let db = self.nodes.first().map_or(0, |node| node.db);
        let db = if db == 0 { String::new() } else { format!("/{db}") };
        format!("{scheme}://{}{db}", places.join(","))
    }

    /// How long a node may take of a lease of `ttl`, as one in so many parts: the core renews every sixth of it, and starts nothing
    /// after a half.
    pub(super) fn bound(&self, ttl: Option<Duration>, parts: u32) -> Duration {
        ttl.map_or(self.node_timeout, |ttl| self.node_timeout.min(ttl / parts))
    }
}

/// The node as people know it.
pub(super) fn name(node: &redis::RedisOptions) -> String {
    match &node.server {
        redis::Server::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
        redis::Server::Tcp { host, port } => format!("{host}:{port}"),
        _ => node.redacted_url(),
    }
}
