//! Which store is meant, completely and checked, before anything touches it.

use std::{fmt, path::PathBuf};

use crate::lock::Namespace;

/// Text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text: only for whoever has to send it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The store, its name and the part of it that is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Which store.
    pub backend: BackendConfig,
    /// What the configuration file calls it.
    pub name: Option<String>,
    /// What every key is put under.
    pub namespace: Namespace,
}

/// Every kind of store there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendConfig {
    /// A database file on this host.
    Sqlite {
        /// Absolute.
        path: PathBuf,
        /// False if nothing was configured, so that a warning is due.
        asked_for: bool,
    },
    /// One Redis server.
    Redis(RedisConfig),
}

/// How to reach a Redis server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisConfig {
    /// Where it is.
    pub address: RedisAddress,
    /// The ACL user; the server's `default` if not named.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<Secret>,
    /// The number of the database.
    pub database: u32,
}

/// Where a Redis server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisAddress {
    /// Over TCP.
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        /// 6379 if not said otherwise.
        port: u16,
        /// How the server proves who it is; `None` for no encryption.
        tls: Option<Tls>,
    },
    /// Over a Unix socket.
    Unix {
        /// Absolute.
        path: PathBuf,
    },
}

/// How a server proves who it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// A file of CA certificates (PEM) to trust instead of the usual ones.
    pub cacert: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_stays_out_of_debug() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(…)");
    }
}
