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
