//! What a connection needs to know, decoded already: no URL is parsed and nothing is opened here.

use std::{fmt, path::PathBuf, time::Duration};

use crate::backends::{Secret, Tls};
use crate::lock::Namespace;

/// Where a Redis server is, or how it is found, and how to speak with it.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Where it listens, or which servers know that.
    pub server: Server,
    /// TLS, for `rediss://`. Without it everything, the password too, crosses the network in clear.
    pub tls: Option<Tls>,
    /// The database number; 0 where the URL has none.
    pub db: u32,
    /// The ACL user; `None` for the default user. Needs a password.
    pub user: Option<String>,
    /// The password, percent-decoded.
    pub password: Option<Secret>,
    /// What every key is put under.
    pub namespace: Namespace,
    /// How many replicas must have a grant or a renewal before it counts; `None` for those that wait for no replica.
    pub replicas: Option<Replicas>,
}

impl RedisOptions {
    /// Database 0 of `server` in the namespace `dlock`, in clear, without a password.
    pub fn new(server: Server) -> Self {
        Self { server, tls: None, db: 0, user: None, password: None, namespace: Namespace::default(), replicas: None }
    }

    /// The same for the one server at `address`.
    pub(super) fn at(&self, address: &Address) -> Self {
        Self { server: Server::Tcp { host: address.host.clone(), port: address.port }, ..self.clone() }
    }

    /// The URL without user and password.
    pub fn redacted_url(&self) -> String {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        let (place, db) = match &self.server {
            Server::Tcp { host, port } => (format!("{scheme}://{}", Address { host: host.clone(), port: *port }), format!("/{}", self.db)),
            Server::Unix(path) => (format!("redis+unix://{}", path.display()), format!("?db={}", self.db)),
            Server::Sentinel(Sentinel { sentinels, master, .. }) => {
                (format!("{scheme}+sentinel://{}/{master}", list(sentinels)), format!("?db={}", self.db))
            }
            Server::Cluster(seeds) => (format!("{scheme}+cluster://{}", list(seeds)), String::new()),
        };
        if self.db == 0 { place } else { place + &db }
    }

    /// What tells this store from others, in whatever way it is reached.
    ///
    /// Any of a deployment's sentinels or nodes may stand in a URL, so none of them does here: two masters of one name, and
    /// any two clusters, are taken for one another. If a hold of the one is taken for a hold of the other, the
    /// store says that it is none; two names for one store would have a nested run wait for its own ancestor.
    pub(super) fn identity(&self) -> String {
        match &self.server {
            Server::Tcp { .. } | Server::Unix(_) => self.redacted_url(),
            Server::Sentinel(sentinel) => format!("redis+sentinel:///{}?db={}", sentinel.master, self.db),
            Server::Cluster(_) => "redis+cluster:".into(),
        }
    }
}

fn list(addresses: &[Address]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Where a server listens, or which servers know where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// A host name or address (IPv6 without brackets) and a port.
    Tcp {
        /// The name, which a certificate must be for.
        host: String,
        /// The port; 6379 where the URL has none.
        port: u16,
    },
    /// A socket in the file system.
    Unix(PathBuf),
    /// Whichever server is the master just now.
    Sentinel(Sentinel),
    /// Some nodes of a Redis Cluster, which know the others.
    Cluster(Vec<Address>),
}

/// The sentinels that watch a master and its replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentinel {
    /// Where they listen; port 26379 where the URL has none.
    pub sentinels: Vec<Address>,
    /// What they call the master.
    pub master: String,
    /// Their ACL user, which is not the servers'.
    pub user: Option<String>,
    /// Their password, which is not the servers'.
    pub password: Option<Secret>,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The name or address (IPv6 without brackets).
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') { write!(f, "[{}]:{}", self.host, self.port) } else { write!(f, "{}:{}", self.host, self.port) }
    }
}

/// How a grant is made to outlive the server that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// So many replicas must say that they have it, or [`Replicas::ALL`].
    pub count: u32,
    /// So soon.
    pub within: Duration,
}

impl Replicas {
    /// Every replica that is known of, and one at least.
    ///
    /// Only all of them keep a master that was cut off from confirming what its successor knows nothing of: the one that was promoted is
    /// missing. Sentinels and nodes of a cluster know of those that are cut off; a server alone tells of those connected to it, and counts
    /// no fewer from then on.
    pub const ALL: u32 = u32::MAX;

    /// The default of how long they have.
    pub const WITHIN: Duration = Duration::from_millis(500);
}
