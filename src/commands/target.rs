//! The complete and validated address of a store, before any access.

pub use crate::backends::{
    Secret, Tls,
    etcd::EtcdOptions,
    mysql::MysqlOptions,
    postgres::{AdvisoryKey, PostgresOptions},
    redis::{Address, RedisOptions, RedisServer, Replicas, Sentinel},
    redlock::RedlockOptions,
    sql::{SqlMode, SqlOptions, SqlServer, TlsMode},
    sqlite::SqliteOptions,
    tair::{TairMode, TairOptions},
    zookeeper::ZooKeeperOptions,
};

/// The store, and its name in the configuration file.
#[derive(Clone, Debug)]
pub struct Target {
    /// The store's backend, with the namespace.
    pub backend: BackendConfig,
    /// The store's name in the configuration file.
    pub name: Option<String>,
}

impl Target {
    /// Whether a store was configured; otherwise dlock uses the embedded default.
    pub fn is_asked_for(&self) -> bool {
        !matches!(
            self.backend,
            BackendConfig::Sqlite {
                asked_for: false,
                ..
            }
        )
    }

    /// Returns why a trial lock would block other users' locks, if all keys are one lock.
    pub fn one_lock_for_all(&self) -> Option<&'static str> {
        match &self.backend {
            BackendConfig::Postgres(options) if options.advisory_key.is_some() => {
                Some("pg_key makes every key the one lock of the jobs")
            }
            _ => None,
        }
    }
}

/// Every kind of store there is.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one in a process")]
pub enum BackendConfig {
    /// A database file on this host.
    Sqlite {
        /// The database's options.
        options: SqliteOptions,
        /// False if nothing was configured, so that a warning is due.
        asked_for: bool,
    },
    /// A Redis server, or a deployment of several.
    Redis(RedisOptions),
    /// Independent Redis servers, of which a majority decides.
    Redlock(RedlockOptions),
    /// A Tair, or Redis with the TairString module.
    Tair(TairOptions),
    /// An etcd cluster.
    Etcd(EtcdOptions),
    /// A ZooKeeper ensemble.
    ZooKeeper(ZooKeeperOptions),
    /// A PostgreSQL server.
    Postgres(PostgresOptions),
    /// A MySQL or MariaDB server.
    Mysql(MysqlOptions),
}
