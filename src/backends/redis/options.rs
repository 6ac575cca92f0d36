//! What a connection needs to know, decoded already: no URL is parsed and nothing is opened here.

use std::{fmt, path::PathBuf};

use crate::lock::Namespace;

/// Where a Redis server is and how to speak with it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
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
}

impl Options {
    /// Database 0 of `server` in the namespace `dlock`, in clear, without a password.
    pub fn new(server: Server) -> Self {
        Self { server, tls: None, db: 0, user: None, password: None, namespace: Namespace::default() }
    }

    /// The URL without user and password.
    pub fn redacted_url(&self) -> String {
        let (place, db) = match &self.server {
            Server::Tcp { host, port } => {
                let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                (format!("{scheme}://{host}:{port}"), format!("/{}", self.db))
            }
            Server::Unix(path) => (format!("redis+unix://{}", path.display()), format!("?db={}", self.db)),
        };
        if self.db == 0 { place } else { place + &db }
    }
}

/// Where a server listens.
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
}

/// TLS. The server's certificate is always verified, against its host name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificates (PEM) of the only authorities to trust, instead of the public ones.
    pub ca_file: Option<PathBuf>,
    /// The client's own certificate chain (PEM), for servers that ask for one; with `key_file`.
    pub cert_file: Option<PathBuf>,
    /// The private key (PEM) of `cert_file`.
    pub key_file: Option<PathBuf>,
}

/// A password, which is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a password.
    pub fn new(password: impl Into<String>) -> Self {
        Self(password.into())
    }

    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
