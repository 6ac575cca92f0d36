//! Five Redis servers that know nothing of each other.

use super::{proxy::Proxy, redis::Redis};

pub const NODES: usize = 5;

/// The servers; they end with this value.
pub struct Nodes(pub Vec<Redis>);

impl Nodes {
    /// That forget everything when they end.
    pub fn plain() -> Self {
        Self((0..NODES).map(|_| Redis::plain()).collect())
    }

    /// That remember what they confirmed.
    pub fn durable() -> Self {
        Self((0..NODES).map(|_| Redis::durable()).collect())
    }

    pub fn url(&self) -> String {
        url(self.0.iter().map(|node| format!("127.0.0.1:{}", node.port)))
    }

    /// A proxy before each of them.
    pub fn fronts(&self) -> Vec<Proxy> {
        self.0.iter().map(|node| Proxy::to(node.port)).collect()
    }
}

/// The set by way of these proxies.
pub fn through(proxies: &[Proxy]) -> String {
    url(proxies.iter().map(|proxy| format!("{}:{}", proxy.host, proxy.port)))
}

fn url(places: impl Iterator<Item = String>) -> String {
    format!("redlock://{}", places.collect::<Vec<_>>().join(","))
}
