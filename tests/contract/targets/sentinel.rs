//! One deployment behind sentinels for all cases, with a namespace for each.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use dlock::{
    backends::redis::{Address, Redis, RedisOptions, RedisServer, Sentinel},
    lock::{Backend, Namespace},
};

use super::apart::Apart;
use crate::support::{
    ports,
    redis::Redis as Process,
    sentinel::{Deployment, NAME},
};

static SHARED: Mutex<Option<Arc<Deployment>>> = Mutex::new(None);

pub struct Target {
    deployment: Arc<Deployment>,
    apart: Apart,
}

/// Returns options to reach the master through these sentinels.
pub fn options(sentinels: &[&Process]) -> RedisOptions {
    let sentinels = sentinels.iter().map(|sentinel| sentinel.port);
    options_at(sentinels)
}

pub fn options_at(sentinels: impl IntoIterator<Item = u16>) -> RedisOptions {
    let sentinels = sentinels
        .into_iter()
        .map(|port| Address {
            host: "127.0.0.1".into(),
            port,
        })
        .collect();
    RedisOptions::new(RedisServer::Sentinel(Sentinel {
        sentinels,
        master: NAME.into(),
        user: None,
        password: None,
    }))
}

impl Target {
    pub fn make() -> Self {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let deployment = Arc::clone(shared.get_or_insert_with(|| Arc::new(Deployment::start())));
        Self {
            deployment,
            apart: Apart::new(),
        }
    }
}

/// Ends the deployment, and removes its folders.
pub fn end() {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner).take();
}

#[async_trait(?Send)]
impl super::Target for Target {
    async fn open(&self, namespace: &str) -> Box<dyn Backend> {
        let namespace = Namespace::new(self.apart.namespace(namespace)).expect("a namespace");
        Box::new(Redis::new(RedisOptions {
            namespace,
            ..options(&self.deployment.sentinels.iter().collect::<Vec<_>>())
        }))
    }

    async fn unreachable(&self) -> Box<dyn Backend> {
        Box::new(Redis::new(options_at([ports::free(), ports::free()])))
    }

    async fn lose_data(&self) {
        self.apart
            .wipe(&self.deployment.servers[self.deployment.master()]);
    }
}
