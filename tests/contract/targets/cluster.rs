//! One cluster for all cases, with a namespace for each.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use dlock::{
    backends::redis::{Address, Redis, RedisOptions, RedisServer},
    lock::{Backend, Namespace},
};

use super::apart::Apart;
use crate::support::{cluster::Cluster, ports};

static SHARED: Mutex<Option<Arc<Cluster>>> = Mutex::new(None);

pub struct Target {
    cluster: Arc<Cluster>,
    apart: Apart,
}

/// Returns options to reach the cluster through the nodes on these ports.
pub fn options_at(seeds: impl IntoIterator<Item = u16>) -> RedisOptions {
    let seeds = seeds
        .into_iter()
        .map(|port| Address {
            host: "127.0.0.1".into(),
            port,
        })
        .collect();
    RedisOptions::new(RedisServer::Cluster(seeds))
}

impl Target {
    pub fn make() -> Self {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = Arc::clone(shared.get_or_insert_with(|| Arc::new(Cluster::start())));
        Self {
            cluster,
            apart: Apart::new(),
        }
    }
}

/// Ends the cluster, and removes its folders.
pub fn end() {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner).take();
}

#[async_trait(?Send)]
impl super::Target for Target {
    async fn open(&self, namespace: &str) -> Box<dyn Backend> {
        let namespace = Namespace::new(self.apart.namespace(namespace)).expect("a namespace");
        Box::new(Redis::new(RedisOptions {
            namespace,
            ..options_at([self.cluster.nodes[0].port])
        }))
    }

    async fn unreachable(&self) -> Box<dyn Backend> {
        Box::new(Redis::new(options_at([ports::free(), ports::free()])))
    }

    async fn lose_data(&self) {
        for node in &self.cluster.nodes {
            self.apart.wipe(node);
        }
    }
}
