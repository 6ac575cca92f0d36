//! One folder per store. Backends depend on [`crate::lock`] only.

pub mod cas;
pub mod etcd;
pub mod memory;
pub mod mysql;
mod net;
mod pause;
pub mod postgres;
mod queue;
pub mod redis;
pub mod redlock;
pub mod sql;
pub mod sqlite;
pub mod tair;
pub mod zookeeper;

use self::net::transport;
pub use self::net::{secret::Secret, tls::Tls};
use crate::lock::{Capabilities, Check, Library};

/// The capabilities of each store's backend.
pub const CAPABILITIES: &[(&str, &Capabilities)] = &[
    ("SQLite", &sqlite::CAPABILITIES),
    ("Redis, Sentinel, Cluster", &redis::CAPABILITIES),
    ("Redlock", &redlock::CAPABILITIES),
    ("Tair", &tair::CAPABILITIES),
    ("PostgreSQL", postgres::CAPABILITIES[0]),
    ("PostgreSQL, mode=row", postgres::CAPABILITIES[1]),
    ("PostgreSQL, mode=advisory", postgres::CAPABILITIES[2]),
    ("MySQL, MariaDB", mysql::CAPABILITIES[0]),
    ("MySQL, mode=row", mysql::CAPABILITIES[1]),
    ("MySQL, mode=advisory", mysql::CAPABILITIES[2]),
    ("ZooKeeper", &zookeeper::CAPABILITIES),
    ("etcd", &etcd::CAPABILITIES),
];

/// The checks of `doctor`, by store. The backends' own lists use the same tables.
pub const CHECKS: &[(&str, &[&[Check]])] = &[
    ("SQLite", &[sqlite::examine::CHECKS]),
    (
        "Every Redis server, those of Redlock and Tair too",
        &[redis::examine::SERVER, &[transport::CHECK]],
    ),
    (
        "Redis, behind sentinels and in a cluster too",
        &[redis::examine::WAKING],
    ),
    ("Redis behind sentinels", &[redis::examine::SENTINEL]),
    ("Redis Cluster", &[redis::examine::CLUSTER]),
    ("Redlock", &[redlock::examine::CHECKS]),
    ("PostgreSQL", &[postgres::examine::CHECKS]),
    ("MySQL and MariaDB", &[mysql::examine::CHECKS]),
    ("ZooKeeper", &[zookeeper::examine::CHECKS]),
    ("etcd", &[etcd::examine::CHECKS]),
];

/// Returns the layout version of each store's data. A newer major version is refused.
pub fn layouts() -> Vec<(&'static str, String)> {
    let sql = format!("{}.{}", sql::LAYOUT / 100, sql::LAYOUT % 100);
    vec![
        ("SQLite", sqlite::schema::LAYOUT.to_string()),
        ("Redis, Sentinel, Cluster", redis::state::MAJOR.to_string()),
        ("Redlock", redlock::view::MAJOR.to_string()),
        ("Tair", tair::value::MAJOR.to_string()),
        ("PostgreSQL", sql.clone()),
        ("MySQL, MariaDB", sql),
        ("ZooKeeper", queue::record::LAYOUT.to_owned()),
        ("etcd", queue::record::LAYOUT.to_owned()),
    ]
}

/// The known lock libraries, by store.
pub const LIBRARIES: &[(&str, &[Library])] = &[
    ("Redis, Sentinel, Cluster", &redis::sharing::LIBRARIES),
    ("Redlock and Tair", &redis::sharing::OF_STRINGS),
    ("PostgreSQL, MySQL and MariaDB", &sql::SHEDLOCK),
    ("PostgreSQL, mode=advisory", &postgres::sharing::ADVISORY),
    (
        "MySQL and MariaDB, mode=advisory",
        &mysql::sharing::ADVISORY,
    ),
    ("ZooKeeper", &zookeeper::sharing::LIBRARIES),
    ("etcd", &etcd::sharing::LIBRARIES),
];
