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

    pub fn url(&self) -> String {
        url(self.0.iter().map(|node| format!("127.0.0.1:{}", node.port)))
    }

    /// Starts a proxy in front of each server.
    pub fn fronts(&self) -> Vec<Proxy> {
        self.0.iter().map(|node| Proxy::to(node.port)).collect()
    }
}

/// Returns the URL of the servers through these proxies.
pub fn through(proxies: &[Proxy]) -> String {
    url(proxies
        .iter()
        .map(|proxy| format!("{}:{}", proxy.host, proxy.port)))
}

fn url(places: impl Iterator<Item = String>) -> String {
    format!("redlock://{}", places.collect::<Vec<_>>().join(","))
}
