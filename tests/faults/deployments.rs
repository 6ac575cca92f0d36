//! Redis with replicas and failover: Sentinel and Cluster.

use crate::{
    stores::Store,
    support::{
        self,
        cluster::{Cluster, MASTERS},
        redis::Redis,
        sentinel::{Deployment, Plan},
    },
};

/// A store of several servers, one of which holds the lock.
pub trait Replicated: Store {
    /// Returns the number of the server that holds the lock.
    fn master(&self, key: &str) -> usize;

    fn server(&mut self, number: usize) -> &mut Redis;

    /// Waits until another server holds the lock, and returns its number.
    fn await_failover(&self, key: &str, from: usize) -> usize;

    /// Promotes another server while all are alive, and returns its number.
    fn switch(&self, key: &str) -> usize;

    /// Kills voters of a failover: less than half of them, or more than half.
    fn kill_voters(&mut self, key: &str, most: bool);

    fn kind(&self) -> &'static str;
}

fn lock(key: &str) -> String {
    format!("dlock:{key}")
}

/// A deployment for this test alone.
pub fn own_sentinel(test: &str) -> Option<Deployment> {
    support::have(test, &["redis-server"]).then(|| {
        Deployment::with(&Plan {
            durable: true,
            ..Plan::default()
        })
    })
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

    fn kill_voters(&mut self, _: &str, most: bool) {
        for sentinel in self.sentinels.iter_mut().take(if most { 2 } else { 1 }) {
            sentinel.kill();
        }
    }

    fn kind(&self) -> &'static str {
        "sentinel"
    }
}

/// A cluster with replicas, for this test alone.
pub fn own_cluster(test: &str) -> Option<Cluster> {
    support::have(test, &["redis-server"]).then(|| Cluster::with(true, true))
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

    /// Kills another master, or two other masters with their replicas.
    fn kill_voters(&mut self, key: &str, most: bool) {
        let of_lock = self.master(key);
        let masters = usize::from(MASTERS);
        let others = (0..masters)
            .filter(|nth| *nth != of_lock % masters)
            .take(if most { 2 } else { 1 });
        for nth in others.collect::<Vec<_>>() {
            self.nodes[nth].kill();
            if most {
                self.nodes[nth + masters].kill();
            }
        }
    }

    fn kind(&self) -> &'static str {
        "cluster"
    }
}
