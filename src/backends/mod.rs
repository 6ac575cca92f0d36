//! One folder per store. They see [`crate::lock`] and nothing else.

pub mod etcd;
pub mod memory;
pub mod mysql;
mod pause;
pub mod postgres;
pub mod redis;
pub mod redlock;
mod secret;
pub mod sql;
pub mod sqlite;
pub mod tair;
mod tls;
mod transport;
pub mod zookeeper;

pub use self::{secret::Secret, tls::Tls};

use crate::lock::Check;

/// What `doctor` looks at, by store: what the backends say of themselves is made of these same tables.
pub const CHECKS: &[(&str, &[&[Check]])] = &[
    ("SQLite", &[sqlite::examine::CHECKS]),
    ("Every Redis server, those of Redlock and Tair too", &[redis::examine::SERVER, &[transport::CHECK]]),
    ("Redis, behind sentinels and in a cluster too", &[redis::examine::WAKING]),
    ("Redis behind sentinels", &[redis::examine::SENTINEL]),
    ("Redis Cluster", &[redis::examine::CLUSTER]),
    ("Redlock", &[redlock::examine::CHECKS]),
    ("PostgreSQL", &[postgres::examine::CHECKS]),
    ("MySQL and MariaDB", &[mysql::examine::CHECKS]),
    ("ZooKeeper", &[zookeeper::examine::CHECKS]),
    ("etcd", &[etcd::examine::CHECKS]),
];
