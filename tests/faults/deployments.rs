//! Redis with replicas, of which one takes over: behind sentinels, and in a cluster.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::{
    stores::Store,
    support::{
        self,
        cluster::{Cluster, MASTERS},
        redis::Redis,
        sentinel::{Deployment, Plan},
    },
};

/// What several tests use at once, each for locks of its own, and none strikes. It ends with the last of them.
pub struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    fn get(place: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Self {
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = place.upgrade().unwrap_or_else(|| Arc::new(start()));
        *place = Arc::downgrade(&shared);
        Self(shared)
    }
}

impl<T: Store> Store for Shared<T> {
    fn url(&self) -> String {
        self.0.url()
    }
}

pub fn sentinel(test: &str) -> Option<Shared<Deployment>> {
    static PLACE: Mutex<Weak<Deployment>> = Mutex::new(Weak::new());
    support::have(test, &["redis-server"]).then(|| Shared::get(&PLACE, Deployment::start))
}

pub fn cluster(test: &str) -> Option<Shared<Cluster>> {
    static PLACE: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
    support::have(test, &["redis-server"]).then(|| Shared::get(&PLACE, Cluster::start))
}

/// A store of several servers, of which one has the lock.
pub trait Replicated: Store {
    /// The number of the server that has the lock.
    fn master(&self, key: &str) -> usize;

    fn server(&mut self, number: usize) -> &mut Redis;

    /// Waits until another server has the lock.
    fn await_failover(&self, key: &str, from: usize) -> usize;

    /// Has another server take over, with all alive.
    fn switch(&self, key: &str) -> usize;

    /// Ends some of those who decide who takes over: less than half, or more.
    fn end_judges(&mut self, key: &str, most: bool);

    fn what(&self) -> &'static str;
}

fn lock(key: &str) -> String {
    format!("dlock:{key}")
}

/// A deployment of the test's own.
pub fn own_sentinel(test: &str) -> Option<Deployment> {
    support::have(test, &["redis-server"]).then(|| Deployment::with(&Plan { durable: true, ..Plan::default() }))
}

impl Store for Deployment {
    fn url(&self) -> String {
        Deployment::url(self)
    }
}

impl Replicated for Deployment {
    fn master(&self, _: &str) -> usize {
        Deployment::master(self)
    }

    fn server(&mut self, number: usize) -> &mut Redis {
        &mut self.servers[number]
    }

    fn await_failover(&self, _: &str, from: usize) -> usize {
        Deployment::await_failover(self, from)
    }

    fn switch(&self, _: &str) -> usize {
        Deployment::switch(self)
    }

    fn end_judges(&mut self, _: &str, most: bool) {
        for sentinel in self.sentinels.iter_mut().take(if most { 2 } else { 1 }) {
            sentinel.kill();
        }
    }

    fn what(&self) -> &'static str {
        "sentinel"
    }
}

/// A cluster of the test's own, with replicas.
pub fn own_cluster(test: &str) -> Option<Cluster> {
    support::have(test, &["redis-server"]).then(|| Cluster::with(true, true))
}

impl Store for Cluster {
    fn url(&self) -> String {
        Cluster::url(self)
    }
}

impl Replicated for Cluster {
    fn master(&self, key: &str) -> usize {
        self.owner(&lock(key))
    }

    fn server(&mut self, number: usize) -> &mut Redis {
        &mut self.nodes[number]
    }

    fn await_failover(&self, key: &str, from: usize) -> usize {
        Cluster::await_failover(self, &lock(key), from)
    }

    fn switch(&self, key: &str) -> usize {
        Cluster::switch(self, &lock(key))
    }

    /// With its replica, so that it is missed; or two of three, with theirs.
    fn end_judges(&mut self, key: &str, most: bool) {
        let of_lock = self.master(key);
        let masters = usize::from(MASTERS);
        let others = (0..masters).filter(|nth| *nth != of_lock % masters).take(if most { 2 } else { 1 });
        for nth in others.collect::<Vec<_>>() {
            self.nodes[nth].kill();
            if most {
                self.nodes[nth + masters].kill();
            }
        }
    }

    fn what(&self) -> &'static str {
        "cluster"
    }
}
