//! The stores that the suite runs against. Each case gets a new one.

mod apart;
pub mod cluster;
pub mod etcd;
pub mod mariadb;
mod memory;
pub mod postgres;
pub mod redis;
pub mod redlock;
pub mod sentinel;
mod sqlite;
pub mod tair;
pub mod zookeeper;

use std::time::Duration;

use async_trait::async_trait;
use dlock::{
    backends::{sql::SqlMode, tair::TairMode},
    lock::Backend,
};

use crate::support::{self, mariadb::Product};

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Sqlite,
    Redis,
    Sentinel,
    Cluster,
    Redlock,
    /// A single member.
    Etcd,
    /// Three members: a client tries another one if a member does not answer, and each step needs
    /// two of them.
    Etcd3,
    /// A single server.
    ZooKeeper,
    /// Three servers: each step needs two of them, and one may not know the latest step yet.
    ZooKeeper3,
    PostgresLease,
    PostgresRow,
    PostgresAdvisory,
    MariadbLease,
    MariadbRow,
    MariadbAdvisory,
    /// MySQL itself, of a newer release than the system's, which `tests/run` unpacks.
    MysqlLease,
    MysqlRow,
    MysqlAdvisory,
    Tair,
    TairVersion,
}

pub const ALL: [Kind; 21] = [
    Kind::Memory,
    Kind::Sqlite,
    Kind::Redis,
    Kind::Sentinel,
    Kind::Cluster,
    Kind::Redlock,
    Kind::Etcd,
    Kind::Etcd3,
    Kind::ZooKeeper,
    Kind::ZooKeeper3,
    Kind::PostgresLease,
    Kind::PostgresRow,
    Kind::PostgresAdvisory,
    Kind::MariadbLease,
    Kind::MariadbRow,
    Kind::MariadbAdvisory,
    Kind::MysqlLease,
    Kind::MysqlRow,
    Kind::MysqlAdvisory,
    Kind::Tair,
    Kind::TairVersion,
];

/// Ends the servers that cases shared.
pub fn end() {
    sentinel::end();
    cluster::end();
    etcd::end();
    zookeeper::end();
    postgres::end();
    mariadb::end();
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::PostgresLease => "postgres-lease",
            Self::PostgresRow => "postgres-row",
            Self::PostgresAdvisory => "postgres-advisory",
            Self::MariadbLease => "mariadb-lease",
            Self::MariadbRow => "mariadb-row",
            Self::MariadbAdvisory => "mariadb-advisory",
            Self::MysqlLease => "mysql-lease",
            Self::MysqlRow => "mysql-row",
            Self::MysqlAdvisory => "mysql-advisory",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
            Self::Redlock => "redlock",
            Self::Tair => "tair",
            Self::TairVersion => "tair_version",
            Self::Etcd => "etcd",
            Self::Etcd3 => "etcd3",
            Self::ZooKeeper => "zookeeper",
            Self::ZooKeeper3 => "zookeeper3",
        }
    }

    /// Returns why this store can't run here; `None` if it can.
    pub fn missing(self) -> Option<String> {
        let programs: &[&str] = match self {
            Self::Redis | Self::Sentinel | Self::Cluster | Self::Redlock => {
                &[support::redis::Redis::PROGRAM]
            }
            Self::Etcd | Self::Etcd3 => &support::etcd::Etcd::PROGRAMS,
            Self::Memory | Self::Sqlite | Self::Tair | Self::TairVersion => &[],
            Self::ZooKeeper | Self::ZooKeeper3 => return support::zookeeper::ZooKeeper::missing(),
            Self::PostgresLease | Self::PostgresRow | Self::PostgresAdvisory => {
                return support::postgres::missing();
            }
            Self::MariadbLease | Self::MariadbRow | Self::MariadbAdvisory => {
                return support::mariadb::missing();
            }
            Self::MysqlLease | Self::MysqlRow | Self::MysqlAdvisory => {
                return Product::MySql.missing();
            }
        };
        let missing = programs
            .iter()
            .find(|program| support::find_program(program).is_none());
        missing.map(|program| format!("{program} is not installed"))
    }

    /// Whether the store may be missing even in CI: it is fetched from another release than the
    /// system's.
    pub fn is_optional(self) -> bool {
        self.is_mysql_itself()
    }

    /// Whether the store uses the runtime's clock, so that the test can stop it.
    pub fn clock_is_ours(self) -> bool {
        self == Self::Memory
    }

    /// Whether a hold ends exactly with its process: its TTL applies to detached holds only.
    pub fn bound_to_processes(self) -> bool {
        self == Self::Sqlite
    }

    /// Whether a hold lasts at least as long as its process, renewed or not: its TTL applies to
    /// detached holds, and to holds of dead processes.
    pub fn lasts_with_its_process(self) -> bool {
        self.bound_to_processes() || self.is_zookeeper()
    }

    /// How late the store may notice the end of a lease, in addition to [`crate::lab::SLACK`]: etcd
    /// checks twice a second.
    pub fn late(self) -> Duration {
        if self.is_etcd() {
            Duration::from_millis(650)
        } else {
            Duration::ZERO
        }
    }

    /// How long a request for the lock that arrives after its release may keep the lock, although
    /// it is never granted.
    pub fn late_claim(self) -> Duration {
        if matches!(self, Self::Tair | Self::TairVersion) {
            dlock::backends::tair::CLAIMED
        } else {
            Duration::ZERO
        }
    }

    /// Whether a renewal can change the hold's TTL: the cases in `unsupported` compare this
    /// with [`dlock::lock::Capabilities`].
    pub fn adjusts_ttl(self) -> bool {
        !self.is_etcd() && !self.is_zookeeper()
    }

    /// Whether the store can tell how long ago an event was.
    pub fn has_clock(self) -> bool {
        !self.is_etcd()
    }

    /// Whether a waiter has a position that no other client can pass: not even a newcomer to a free
    /// lock. A dead waiter keeps its position until its lease ends.
    pub fn keeps_positions(self) -> bool {
        self.is_etcd() || self.is_zookeeper()
    }

    /// Whether the store is ZooKeeper, with one server or more.
    pub fn is_zookeeper(self) -> bool {
        matches!(self, Self::ZooKeeper | Self::ZooKeeper3)
    }

    fn is_etcd(self) -> bool {
        matches!(self, Self::Etcd | Self::Etcd3)
    }

    /// Whether a hold belongs to one session of its process: it ends with that session, and no
    /// other process can take it over or enter it. A lost connection is a lost lock.
    pub fn held_by_session(self) -> bool {
        matches!(
            self,
            Self::PostgresRow
                | Self::PostgresAdvisory
                | Self::MariadbRow
                | Self::MariadbAdvisory
                | Self::MysqlRow
                | Self::MysqlAdvisory
        )
    }

    /// Whether the server is MariaDB or MySQL.
    pub fn speaks_mysql(self) -> bool {
        matches!(
            self,
            Self::MariadbLease
                | Self::MariadbRow
                | Self::MariadbAdvisory
                | Self::MysqlLease
                | Self::MysqlRow
                | Self::MysqlAdvisory
        )
    }

    /// Whether the server is MariaDB or MySQL, with `mode=lease`.
    pub fn is_mysql_lease(self) -> bool {
        matches!(self, Self::MariadbLease | Self::MysqlLease)
    }

    /// Whether the server is MySQL itself.
    pub fn is_mysql_itself(self) -> bool {
        matches!(
            self,
            Self::MysqlLease | Self::MysqlRow | Self::MysqlAdvisory
        )
    }

    /// Whether the store is a SQL server.
    pub fn is_sql(self) -> bool {
        self.is_postgres() || self.speaks_mysql()
    }

    /// Whether the store is PostgreSQL.
    pub fn is_postgres(self) -> bool {
        matches!(
            self,
            Self::PostgresLease | Self::PostgresRow | Self::PostgresAdvisory
        )
    }

    /// Whether a hold ends with its process, at the latest after its TTL.
    pub fn ends_with_its_process(self) -> bool {
        self.bound_to_processes() || self.held_by_session()
    }

    /// Whether another process can enter a hold, and a hold can outlive its process.
    pub fn crosses_processes(self) -> bool {
        !self.held_by_session()
    }

    /// Whether readers can share a lock: the cases in `unsupported` compare this with
    /// [`dlock::lock::Capabilities`].
    pub fn shared(self) -> bool {
        !matches!(self, Self::MariadbAdvisory | Self::MysqlAdvisory)
    }

    /// Whether the store has permits, likewise.
    pub fn permits(self) -> bool {
        !self.held_by_session() && self != Self::Redlock
    }

    /// Whether waiters can request fair order, likewise.
    pub fn fair(self) -> bool {
        !self.held_by_session() && self != Self::Redlock
    }

    /// Whether a release wakes a waiter; on other stores waiters poll.
    pub fn notifies(self) -> bool {
        !matches!(self, Self::Redlock | Self::Tair | Self::TairVersion)
    }

    /// Whether the store is one server behind one TCP port, so that a proxy can precede it, and the
    /// case can freeze it.
    pub fn has_server(self) -> bool {
        matches!(
            self,
            Self::Redis
                | Self::Tair
                | Self::TairVersion
                | Self::Etcd
                | Self::ZooKeeper
                | Self::PostgresLease
                | Self::MariadbLease
                | Self::MysqlLease
        )
    }

    /// Whether the record of a start names the hold that wrote it. All stores will do so.
    pub fn start_names_its_hold(self) -> bool {
        self.is_sql()
            || matches!(
                self,
                Self::Redis | Self::Tair | Self::TairVersion | Self::Etcd | Self::ZooKeeper
            )
    }

    pub fn make(self) -> Box<dyn Target> {
        match self {
            Self::Memory => Box::<memory::Target>::default(),
            Self::Sqlite => Box::new(sqlite::Target::make()),
            Self::Redis => Box::new(redis::Target::make()),
            Self::PostgresLease => Box::new(postgres::Target::make(SqlMode::Lease)),
            Self::PostgresRow => Box::new(postgres::Target::make(SqlMode::Row)),
            Self::PostgresAdvisory => Box::new(postgres::Target::make(SqlMode::Advisory)),
            Self::MariadbLease => Box::new(mariadb::Target::make(Product::MariaDb, SqlMode::Lease)),
            Self::MariadbRow => Box::new(mariadb::Target::make(Product::MariaDb, SqlMode::Row)),
            Self::MariadbAdvisory => {
                Box::new(mariadb::Target::make(Product::MariaDb, SqlMode::Advisory))
            }
            Self::MysqlLease => Box::new(mariadb::Target::make(Product::MySql, SqlMode::Lease)),
            Self::MysqlRow => Box::new(mariadb::Target::make(Product::MySql, SqlMode::Row)),
            Self::MysqlAdvisory => {
                Box::new(mariadb::Target::make(Product::MySql, SqlMode::Advisory))
            }
            Self::Sentinel => Box::new(sentinel::Target::make()),
            Self::Cluster => Box::new(cluster::Target::make()),
            Self::Redlock => Box::new(redlock::Target::make()),
            Self::Tair => Box::new(tair::Target::make(TairMode::Plain)),
            Self::TairVersion => Box::new(tair::Target::make(TairMode::Version)),
            Self::Etcd => Box::new(etcd::Target::make(1)),
            Self::Etcd3 => Box::new(etcd::Target::make(3)),
            Self::ZooKeeper => Box::new(zookeeper::Target::single()),
            Self::ZooKeeper3 => Box::new(zookeeper::Target::ensemble()),
        }
    }
}

/// One store. Each client that is opened on it stands for another process.
#[async_trait(?Send)]
pub trait Target {
    async fn open(&self, namespace: &str) -> Box<dyn Backend>;

    /// Returns a client whose store is unreachable, so all its answers come without I/O.
    async fn unreachable(&self) -> Box<dyn Backend>;

    /// Deletes all data, as on a store that lost its disk.
    async fn lose_data(&self);

    /// Gives this case its own server, for a case that freezes it. Call before any client is
    /// opened.
    async fn isolate(&self) {}

    /// Returns the server, if the store is one server behind one TCP port. A case that freezes the
    /// server needs its own.
    fn server(&self) -> Option<&dyn Server> {
        None
    }

    /// Returns the Tair server.
    fn tair(&self) -> Option<&tair::Target> {
        None
    }

    /// Returns the Redlock nodes.
    fn redlock(&self) -> Option<&redlock::Target> {
        None
    }

    /// Returns the Redis server, for cases about the stored data.
    fn redis(&self) -> Option<&redis::Target> {
        None
    }

    /// Returns the ZooKeeper servers, likewise.
    fn zookeeper(&self) -> Option<&zookeeper::Target> {
        None
    }

    /// Returns the MariaDB database, for cases about the stored data.
    fn mariadb(&self) -> Option<&mariadb::Target> {
        None
    }

    /// Returns the etcd, likewise.
    fn etcd(&self) -> Option<&etcd::Target> {
        None
    }

    /// Returns the PostgreSQL database, for cases about the stored data.
    fn postgres(&self) -> Option<&postgres::Target> {
        None
    }
}

/// A store behind one TCP port.
#[async_trait(?Send)]
pub trait Server {
    fn port(&self) -> u16;

    /// Returns a client that reaches the server through this local port.
    async fn through(&self, port: u16) -> Box<dyn Backend>;

    /// Text in an acquire's requests for a lease of [`crate::lab::LONG`], and in no request that
    /// undoes one.
    fn acquire_mark(&self) -> &'static str;

    /// Text in the request that takes a lock; empty if that is always the next request.
    fn taking_mark(&self) -> &'static str {
        ""
    }

    /// Text in the request that extends or releases a hold, likewise.
    fn changing_mark(&self) -> &'static str {
        ""
    }

    fn freeze(&self);

    fn thaw(&self);
}
