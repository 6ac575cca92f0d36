//! One folder per store, and a line in [`STORES`]. Backends depend on [`crate::lock`] and
//! [`crate::settings`] only.

pub mod cas;
pub mod etcd;
pub mod kit;
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

use std::sync::Arc;

pub use self::{
    kit::{Address, Configured, SecretSource, StoreInfo},
    net::{secret::Secret, tls::Tls},
};
use crate::lock::{Namespace, Result};

/// All stores, in the order of the manual.
pub const STORES: &[&StoreInfo] = &[
    &sqlite::store::STORE,
    &redis::store::STORE,
    &redlock::store::STORE,
    &tair::store::STORE,
    &postgres::store::STORE,
    &mysql::store::STORE,
    &zookeeper::store::STORE,
    &etcd::store::STORE,
];

/// Returns the store that is used if none is named.
///
/// # Errors
/// If there is no place for it.
pub fn embedded(namespace: Namespace) -> Result<Arc<dyn Configured>> {
    sqlite::store::embedded(namespace)
}
