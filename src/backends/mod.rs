//! One folder per store. They see [`crate::lock`] and nothing else.

pub mod etcd;
pub mod memory;
pub mod mysql;
mod pause;
pub mod postgres;
pub mod redis;
pub mod redlock;
pub mod sql;
pub mod sqlite;
pub mod tair;
pub mod zookeeper;
