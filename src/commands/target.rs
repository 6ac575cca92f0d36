//! Which store is meant, completely and checked, before anything touches it.

pub use crate::backends::{
    redis::{Options as RedisOptions, Secret, Server, Tls},
    sqlite::Options as SqliteOptions,
};

/// The store, and what the configuration file calls it.
#[derive(Clone, Debug)]
pub struct Target {
    /// Which store, with the namespace in it.
    pub backend: BackendConfig,
    /// Its name in the configuration file.
    pub name: Option<String>,
}

/// Every kind of store there is.
#[derive(Clone, Debug)]
pub enum BackendConfig {
    /// A database file on this host.
    Sqlite {
        /// Where.
        options: SqliteOptions,
        /// False if nothing was configured, so that a warning is due.
        asked_for: bool,
    },
    /// One Redis server.
    Redis(RedisOptions),
}
