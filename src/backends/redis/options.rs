//! The decoded options of a connection. No URL is parsed and nothing is opened here.

use std::{fmt, path::PathBuf, time::Duration};

use crate::{
    backends::net::{
        self,
        secret::Secret,
        tls::{Tls, TlsWords},
    },
    lock::{Error, Namespace, Origin},
};

pub(super) static TLS: TlsWords = TlsWords::of_scheme("redis://");

/// The address of a Redis server, or how to find it, and the connection settings.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// The server's address, or the servers that know it.
    pub server: RedisServer,
    /// TLS, for `rediss://`. Without TLS all data, also the password, crosses the network in clear.
    pub tls: Option<Tls>,
    /// The database number; 0 if the URL has none.
    pub db: u32,
    /// The ACL user; `None` for the default user. Needs a password.
    pub user: Option<String>,
    /// The password, percent-decoded.
    pub password: Option<Secret>,
    /// The namespace of every key.
    pub namespace: Namespace,
    /// The replicas that must confirm a grant or a renewal before it counts; `None` to wait for no
    /// replica.
    pub replicas: Option<Replicas>,
}

impl RedisOptions {
    /// Options for database 0 of `server` in the namespace `dlock`, without TLS or password.
    pub fn new(server: RedisServer) -> Self {
        Self {
            server,
            tls: None,
            db: 0,
            user: None,
            password: None,
            namespace: Namespace::default(),
            replicas: None,
        }
    }

    /// Returns the command that gives these ACL rights to the user.
    pub(in crate::backends) fn allow(&self, rights: &str) -> String {
        acl_of(self.user.as_deref(), rights)
    }

    /// Returns the same options for the single server at `address`.
    pub(super) fn at(&self, address: &Address) -> Self {
        Self {
            server: RedisServer::Tcp {
                host: address.host.clone(),
                port: address.port,
            },
            ..self.clone()
        }
    }

    /// Notes that a connection was left because of this error: another address of the server's name
    /// may lead to the right server.
    pub(in crate::backends) fn left(&self, error: &Error) {
        if let (Origin::WrongServer, RedisServer::Tcp { host, port }) = (error.origin, &self.server)
        {
            net::leave(host, *port);
        }
    }

    /// Returns the URL without user and password.
    pub fn redacted_url(&self) -> String {
        let scheme = if self.tls.is_some() {
            "rediss"
        } else {
            "redis"
        };
        let (place, db) = match &self.server {
            RedisServer::Tcp { host, port } => (
                format!(
                    "{scheme}://{}",
                    Address {
                        host: host.clone(),
                        port: *port
                    }
                ),
                format!("/{}", self.db),
            ),
            RedisServer::Unix(path) => (
                format!("redis+unix://{}", path.display()),
                format!("?db={}", self.db),
            ),
            RedisServer::Sentinel(Sentinel {
                sentinels, master, ..
            }) => (
                format!("{scheme}+sentinel://{}/{master}", list(sentinels)),
                format!("?db={}", self.db),
            ),
            RedisServer::Cluster(seeds) => {
                (format!("{scheme}+cluster://{}", list(seeds)), String::new())
            }
        };
        if self.db == 0 { place } else { place + &db }
    }

    /// Returns the store's identity, independent of how it is reached.
    ///
    /// A URL may name any of a deployment's sentinels or nodes, so the identity names none. Two
    /// masters of one name, and any two clusters, have the same identity. A hold of another store
    /// is then refused by the store itself. Two identities for one store would be worse: a nested
    /// run would wait for its own ancestor.
    pub(super) fn identity(&self) -> String {
        match &self.server {
            RedisServer::Tcp { .. } | RedisServer::Unix(_) => self.redacted_url(),
            RedisServer::Sentinel(sentinel) => {
                format!("redis+sentinel:///{}?db={}", sentinel.master, self.db)
            }
            RedisServer::Cluster(_) => "redis+cluster:".into(),
        }
    }
}

/// Returns the command that gives these rights to an ACL user; `None` is the default user.
pub(super) fn acl_of(user: Option<&str>, rights: &str) -> String {
    format!("ACL SETUSER {} {rights}", user.unwrap_or("default"))
}

fn list(addresses: &[Address]) -> String {
    addresses
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

/// A server's address, or the servers that know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisServer {
    /// A host name or address (IPv6 without brackets) and a port.
    Tcp {
        /// The name or address. A certificate must match it.
        host: String,
        /// The port; 6379 if the URL has none.
        port: u16,
    },
    /// A socket in the file system.
    Unix(PathBuf),
    /// The current master, found through sentinels.
    Sentinel(Sentinel),
    /// Some nodes of a Redis Cluster, which know the others.
    Cluster(Vec<Address>),
}

/// The sentinels that watch a master and its replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentinel {
    /// The sentinels' addresses; port 26379 if the URL has none.
    pub sentinels: Vec<Address>,
    /// The master's name in the sentinels.
    pub master: String,
    /// The sentinels' ACL user, which is not the servers'.
    pub user: Option<String>,
    /// The sentinels' password, which is not the servers'.
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
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The replicas that must confirm a grant, so that it survives the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// The number of replicas that must confirm, or [`Replicas::ALL`].
    pub count: u32,
    /// The time in which they must confirm.
    pub within: Duration,
}

impl Replicas {
    /// Every known replica, and at least one.
    ///
    /// Only `ALL` keeps a cut-off master from confirming grants that its successor doesn't have:
    /// the promoted replica's confirmation is missing. Sentinels and cluster nodes also know
    /// cut-off replicas. A single server reports only connected ones; dlock never expects fewer
    /// than it has seen.
    pub const ALL: u32 = u32::MAX;

    /// The default of `within`.
    pub const WITHIN: Duration = Duration::from_millis(500);
}
