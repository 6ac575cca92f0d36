//! Five independent Redis servers.

use super::{proxy::Proxy, redis::Redis};

pub const NODES: usize = 5;

/// The servers; they end with this value.
pub struct Nodes(pub Vec<Redis>);

impl Nodes {
    /// Starts servers that lose all data when they end.
    pub fn plain() -> Self {
        Self((0..NODES).map(|_| Redis::plain()).collect())
    }

    /// Starts servers that keep all confirmed data.
    pub fn durable() -> Self {
        Self((0..NODES).map(|_| Redis::durable()).collect())
    }

    /// Starts a proxy in front of each server.
    pub fn fronts(&self) -> Vec<Proxy> {
        self.0.iter().map(|node| Proxy::to(node.port)).collect()
    }
}
