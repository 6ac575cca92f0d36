//! The stores of a campaign, how much each is played, and the faults that last for a while.

use std::{net::Ipv4Addr, thread::sleep, time::Duration};

use crate::support::{
    proxy::Proxy,
    stores::{Can, Kind, Need, Store},
};

/// The rounds of each kind, without faults and with faults: first the short form, then the long
/// one.
pub const SHARES: [(Kind, [u64; 2], [u64; 2]); 16] = [
    (Kind::Sqlite, [8, 400], [3, 150]),
    (Kind::Redis, [8, 400], [4, 150]),
    (Kind::Redlock, [1, 20], [1, 50]),
    (Kind::Sentinel, [0, 20], [1, 20]),
    (Kind::Cluster, [0, 20], [1, 20]),
    (Kind::Tair, [1, 20], [1, 50]),
    (Kind::PostgresLease, [1, 40], [1, 60]),
    (Kind::PostgresAdvisory, [0, 20], [1, 40]),
    (Kind::PostgresRow, [0, 20], [1, 40]),
    (Kind::MariadbLease, [1, 40], [1, 60]),
    (Kind::MariadbAdvisory, [0, 20], [1, 40]),
    (Kind::MariadbRow, [0, 20], [1, 40]),
    (Kind::Etcd, [1, 20], [1, 50]),
    (Kind::Etcd3, [0, 10], [1, 30]),
    (Kind::ZooKeeper, [1, 20], [1, 50]),
    (Kind::ZooKeeper3, [0, 10], [1, 30]),
];

/// Returns the names of the campaign's stores.
pub fn names() -> Vec<&'static str> {
    SHARES.map(|(kind, ..)| kind.also()).into()
}

/// Returns the names of the stores that have packets, for sweeps.
pub fn with_packets() -> Vec<&'static str> {
    let kinds = SHARES.into_iter().map(|(kind, ..)| kind);
    kinds
        .filter(|kind| kind.can().server)
        .map(Kind::also)
        .collect()
}

/// A running store, in its most careful form.
pub struct Arsenal {
    store: Box<dyn Store>,
    pub can: Can,
    /// The end of each URL.
    parameters: &'static str,
}

impl Arsenal {
    /// Starts the store with this name.
    ///
    /// # Errors
    /// Names the program that isn't installed.
    pub fn start(name: &str) -> Result<Self, String> {
        let kind = Kind::named(name)?;
        if let Some(why) = kind.missing() {
            return Err(why);
        }
        let store = kind.start(Need::Faulty);
        let can = Can {
            clock: store.clock().is_some(),
            disk: store.disk().is_some(),
            ..kind.can()
        };
        let parameters = if kind.can().forgets {
            "?replicas=all"
        } else {
            ""
        };
        Ok(Self {
            store,
            can,
            parameters,
        })
    }

    pub fn url(&self) -> String {
        self.store.url() + self.parameters
    }

    /// Starts a proxy for each server, at this address of the host; none if the store can't use
    /// proxies.
    pub fn fronts(&self, host: Ipv4Addr) -> Vec<Proxy> {
        let reached = self.can.network.then(|| self.store.ports());
        let reached = reached.into_iter().flatten();
        reached.map(|port| Proxy::at(host, port)).collect()
    }

    /// Returns the URL through those proxies.
    pub fn through(&self, proxies: &[Proxy]) -> String {
        let ports: Vec<u16> = proxies.iter().map(|proxy| proxy.port).collect();
        self.at(&proxies[0].host.to_string(), &ports)
    }

    /// Returns the URL with these ports of a host instead of the store's own.
    pub fn at(&self, host: &str, ports: &[u16]) -> String {
        self.store.url_at(host, ports) + self.parameters
    }

    /// Returns the ports in the URL, and the ports that replies add to them.
    pub fn ports(&self) -> (Vec<u16>, Vec<u16>) {
        (self.store.ports(), self.store.learned())
    }

    pub fn freeze(&self, length: Duration) {
        self.store.freeze();
        sleep(length.min(self.store.longest_freeze()));
        self.store.thaw();
    }

    pub fn restart(&mut self, length: Duration) {
        self.store.kill();
        sleep(length.max(self.store.shortest_outage()));
        self.store.start();
    }

    pub fn restart_empty(&mut self) {
        self.store.restart_empty();
    }

    /// Steps the servers' clock by this many seconds, for this long.
    pub fn step_clock(&self, seconds: i64, length: Duration) {
        if let Some(clock) = self.store.clock() {
            clock.step(seconds);
            sleep(length);
            clock.step(0);
        }
    }

    pub fn fill_disk(&self, length: Duration) {
        if let Some(disk) = self.store.disk() {
            disk.fill();
            sleep(length);
            disk.free();
        }
    }

    pub fn left(&self, keys: &[String]) -> Vec<String> {
        self.store.left(keys)
    }

    pub fn log(&self) -> String {
        self.store.log()
    }
}
