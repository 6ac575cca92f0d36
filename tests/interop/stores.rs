//! The stores, with their addresses for dlock and for other programs.

use crate::support::{
    self,
    stores::{Database, Kind, Need, Schema, Store},
};

/// A store that both use, and what dlock's URL becomes.
#[derive(Clone, Copy, Debug)]
pub struct Place(pub Kind, pub fn(String) -> String);

pub const REDIS: Place = on(Kind::Redis);
/// Five servers with a majority.
pub const REDLOCK: Place = on(Kind::Redlock);
/// One server of a Redlock, where dlock also stores a string.
pub const REDLOCK_OF_ONE: Place = Place(Kind::Redis, |url| {
    url.replace("redis:", "redlock:")
        .replace("/0", "?allow_few=yes")
});
pub const ZOOKEEPER: Place = on(Kind::ZooKeeper);
pub const ETCD: Place = on(Kind::Etcd);
pub const POSTGRES: Place = on(Kind::PostgresLease);
pub const POSTGRES_ADVISORY: Place = on(Kind::PostgresAdvisory);
pub const MARIADB: Place = on(Kind::MariadbLease);
pub const MARIADB_ADVISORY: Place = on(Kind::MariadbAdvisory);
pub const MYSQL: Place = on(Kind::MysqlLease);
pub const MYSQL_ADVISORY: Place = on(Kind::MysqlAdvisory);

const fn on(kind: Kind) -> Place {
    Place(kind, |url| url)
}

/// A running store and its addresses.
pub struct Server {
    /// dlock's URL.
    pub url: String,
    /// The other program's address.
    pub address: String,
    /// The database, if the server has one.
    pub database: String,
    _running: Box<dyn Store>,
}

impl Place {
    /// Whether this store can run here; otherwise the test is reported as skipped, or fails.
    pub fn runs(self, test: &str) -> bool {
        self.0.runs(test) && (!self.0.is_postgres() || support::have(test, &["psql"]))
    }

    pub fn start(self) -> Server {
        let store = self.0.start(Need::Shared);
        let url = store.url();
        let ports: Vec<String> = store.ports().iter().map(u16::to_string).collect();
        let (address, database) = if let Some(of) = store.servers().downcast_ref::<Database>() {
            (of.server.url(&of.name), of.name.clone())
        } else if let Some(of) = store.servers().downcast_ref::<Schema>() {
            let socket = of.server.socket();
            (format!("{},{}", socket.display(), of.name), of.name.clone())
        } else if self.0.is_etcd() || self.0.is_zookeeper() {
            let places = url.split_once("://").map_or("", |(_, places)| places);
            (places.to_owned(), String::new())
        } else {
            (ports.join(","), String::new())
        };
        Server {
            url: (self.1)(url),
            address,
            database,
            _running: store,
        }
    }
}
