//! The stores that the suite runs against, each made anew for each case.

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

use crate::support;

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Sqlite,
    Redis,
    Sentinel,
    Cluster,
    Redlock,
    /// A member alone.
    Etcd,
    /// Three members: another one is asked when one does not answer, and each step takes two of them.
    Etcd3,
    /// A server alone.
    ZooKeeper,
    /// Three servers: each step takes two of them, and what one has done another one may not know yet.
    ZooKeeper3,
    PostgresLease,
    PostgresRow,
    PostgresAdvisory,
    MariadbLease,
    MariadbRow,
    MariadbAdvisory,
    /// A MySQL server that somebody else keeps, named by `DLOCK_TEST_MYSQL_URL`.
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

/// Ends what several cases shared.
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

    /// What isn't there to run this store with.
    pub fn missing(self) -> Option<String> {
        let programs: &[&str] = match self {
            Self::Redis | Self::Sentinel | Self::Cluster | Self::Redlock => &[support::redis::Redis::PROGRAM],
            Self::Etcd | Self::Etcd3 => &support::etcd::Etcd::PROGRAMS,
            Self::Memory | Self::Sqlite | Self::Tair | Self::TairVersion => &[],
            Self::ZooKeeper | Self::ZooKeeper3 => return support::zookeeper::ZooKeeper::missing(),
            Self::PostgresLease | Self::PostgresRow | Self::PostgresAdvisory => return support::postgres::missing(),
            Self::MariadbLease | Self::MariadbRow | Self::MariadbAdvisory => return support::mariadb::missing(),
            Self::MysqlLease | Self::MysqlRow | Self::MysqlAdvisory => return support::mariadb::External::missing(),
        };
        let missing = programs.iter().find(|program| support::find_program(program).is_none());
        missing.map(|program| format!("{program} is not installed"))
    }

    /// Whether it is nobody's fault if this store isn't there, not even in CI: no distribution that the tests run on has it.
    pub fn is_optional(self) -> bool {
        matches!(self, Self::MysqlLease | Self::MysqlRow | Self::MysqlAdvisory)
    }

    /// Whether the runtime's clock can be stopped, because the store goes by it.
    pub fn clock_is_ours(self) -> bool {
        self == Self::Memory
    }

    /// Whether a hold ends with its process and not before: its TTL rules detached holds only.
    pub fn bound_to_processes(self) -> bool {
        self == Self::Sqlite
    }

    /// Whether a hold lasts as long as its process at least, renewed or not: its TTL rules detached holds, and what a process
    /// leaves behind.
    pub fn lasts_with_its_process(self) -> bool {
        self.bound_to_processes() || self.is_zookeeper()
    }

    /// How late it may be to see that a lease is over, beyond what every store may be: etcd looks twice a second.
    pub fn late(self) -> Duration {
        if self.is_etcd() { Duration::from_millis(650) } else { Duration::ZERO }
    }

    /// Whether a renewal can ask for another TTL than the hold was taken with: as [`dlock::lock::Capabilities`] says, which
    /// is proven in the cases about refusal.
    pub fn adjusts_ttl(self) -> bool {
        !self.is_etcd() && !self.is_zookeeper()
    }

    /// Whether it can tell how long ago something was.
    pub fn has_clock(self) -> bool {
        !self.is_etcd()
    }

    /// Whether those who wait have a place that nobody else can take: not even who comes when the lock is free, and not
    /// sooner than its lease ends if they died.
    pub fn keeps_places(self) -> bool {
        self.is_etcd() || self.is_zookeeper()
    }

    /// One server or more.
    pub fn is_zookeeper(self) -> bool {
        matches!(self, Self::ZooKeeper | Self::ZooKeeper3)
    }

    fn is_etcd(self) -> bool {
        matches!(self, Self::Etcd | Self::Etcd3)
    }

    /// Whether a hold is what one session of its process has: it ends with that, can't be given to another process, nor
    /// entered by one, and a lost connection is a lost lock.
    pub fn is_a_session(self) -> bool {
        matches!(
            self,
            Self::PostgresRow | Self::PostgresAdvisory | Self::MariadbRow | Self::MariadbAdvisory | Self::MysqlRow | Self::MysqlAdvisory
        )
    }

    /// Whether the server is a MariaDB of our own.
    pub fn is_mariadb(self) -> bool {
        matches!(self, Self::MariadbLease | Self::MariadbRow | Self::MariadbAdvisory)
    }

    /// Whether they are in a SQL server that the cases start themselves.
    pub fn is_ours(self) -> bool {
        self.is_postgres() || self.is_mariadb()
    }

    /// Whether the locks are in a SQL server.
    pub fn is_sql(self) -> bool {
        self.is_postgres() || self.is_mariadb() || matches!(self, Self::MysqlLease | Self::MysqlRow | Self::MysqlAdvisory)
    }

    /// Whether the server is PostgreSQL.
    pub fn is_postgres(self) -> bool {
        matches!(self, Self::PostgresLease | Self::PostgresRow | Self::PostgresAdvisory)
    }

    /// Whether a hold ends with its process, or at the latest with its TTL.
    pub fn ends_with_its_process(self) -> bool {
        self.bound_to_processes() || self.is_a_session()
    }

    /// Whether a hold can be entered by another process, and outlive its own.
    pub fn hands_on(self) -> bool {
        !self.is_a_session()
    }

    /// Whether readers hold together: as [`dlock::lock::Capabilities`] says, which is proven in the cases about refusal.
    pub fn shared(self) -> bool {
        !matches!(self, Self::MariadbAdvisory | Self::MysqlAdvisory)
    }

    /// Whether up to so many hold together, likewise.
    pub fn permits(self) -> bool {
        !self.is_a_session() && self != Self::Redlock
    }

    /// Whether those who wait can ask to be served in their order, likewise.
    pub fn fair(self) -> bool {
        !self.is_a_session() && self != Self::Redlock
    }

    /// Whether a release wakes those who wait; elsewhere they look by themselves, after pauses.
    pub fn notifies(self) -> bool {
        !matches!(self, Self::Redlock | Self::Tair | Self::TairVersion)
    }

    /// Whether there is a server behind one TCP port, which a proxy can be put before and which can be frozen.
    pub fn has_server(self) -> bool {
        matches!(
            self,
            Self::Redis | Self::Tair | Self::TairVersion | Self::Etcd | Self::ZooKeeper | Self::PostgresLease | Self::MariadbLease
        )
    }

    /// Servers whose record of a start names the hold that wrote it. To become all of them.
    pub fn knows_its_starts(self) -> bool {
        self.is_sql() || matches!(self, Self::Redis | Self::Tair | Self::TairVersion | Self::Etcd | Self::ZooKeeper)
    }

    pub fn make(self) -> Box<dyn Target> {
        match self {
            Self::Memory => Box::<memory::Target>::default(),
            Self::Sqlite => Box::new(sqlite::Target::make()),
            Self::Redis => Box::new(redis::Target::make()),
            Self::PostgresLease => Box::new(postgres::Target::make(SqlMode::Lease)),
            Self::PostgresRow => Box::new(postgres::Target::make(SqlMode::Row)),
            Self::PostgresAdvisory => Box::new(postgres::Target::make(SqlMode::Advisory)),
            Self::MariadbLease => Box::new(mariadb::Target::make(SqlMode::Lease)),
            Self::MariadbRow => Box::new(mariadb::Target::make(SqlMode::Row)),
            Self::MariadbAdvisory => Box::new(mariadb::Target::make(SqlMode::Advisory)),
            Self::MysqlLease => Box::new(mariadb::Elsewhere::make(SqlMode::Lease)),
            Self::MysqlRow => Box::new(mariadb::Elsewhere::make(SqlMode::Row)),
            Self::MysqlAdvisory => Box::new(mariadb::Elsewhere::make(SqlMode::Advisory)),
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

/// One store. Every client that is opened on it is as good as another process.
#[async_trait(?Send)]
pub trait Target {
    async fn open(&self, namespace: &str) -> Box<dyn Backend>;

    /// A client whose store can't be reached at all: whatever it answers, it answers without I/O.
    async fn unreachable(&self) -> Box<dyn Backend>;

    /// Forgets everything, as a store that lost its disk.
    async fn lose_data(&self);

    /// Has a server of this case alone, for a case that is going to freeze it; before any client is opened.
    async fn isolate(&self) {}

    /// The server behind it, if it is one behind one TCP port; of this case alone if the case freezes it.
    fn server(&self) -> Option<&dyn Server> {
        None
    }

    /// The Tair behind it.
    fn tair(&self) -> Option<&tair::Target> {
        None
    }

    /// The servers behind it, if they are several that decide together.
    fn redlock(&self) -> Option<&redlock::Target> {
        None
    }

    /// The Redis server behind it, for cases about what lies in the store itself.
    fn redis(&self) -> Option<&redis::Target> {
        None
    }

    /// The ZooKeeper servers behind it, likewise.
    fn zookeeper(&self) -> Option<&zookeeper::Target> {
        None
    }

    /// The MariaDB database behind it, for cases about what lies in the store itself.
    fn mariadb(&self) -> Option<&mariadb::Target> {
        None
    }

    /// The etcd behind it, likewise.
    fn etcd(&self) -> Option<&etcd::Target> {
        None
    }

    /// The PostgreSQL database behind it, for cases about what lies in the store itself.
    fn postgres(&self) -> Option<&postgres::Target> {
        None
    }
}

/// A store behind one TCP port.
#[async_trait(?Send)]
pub trait Server {
    fn port(&self) -> u16;

    /// A client that reaches it by this port of this host.
    async fn through(&self, port: u16) -> Box<dyn Backend>;

    /// What stands in an acquire's requests for a lease of [`crate::lab::LONG`], and in no request that undoes it.
    fn acquire_mark(&self) -> &'static str;

    /// What stands in the request that takes a lock, if it isn't the next one.
    fn taking_mark(&self) -> &'static str {
        ""
    }

    /// What stands in the request that extends a hold or gives it back, likewise.
    fn changing_mark(&self) -> &'static str {
        ""
    }

    fn freeze(&self);

    fn thaw(&self);
}
