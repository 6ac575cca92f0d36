//! Redis: one server, behind sentinels, a cluster.

use std::{
    any::Any,
    sync::{Mutex, Weak},
    time::Duration,
};

use super::{
    Can, Fixture, Info, Kind, Marks, Need, Store, USUAL, places,
    shared::{self, Shared, Slot},
};
use crate::{
    cluster::{Cluster, MASTERS},
    redis::Redis,
    sentinel::{Deployment, NAME, Plan},
};

pub const FIXTURE: Fixture = Fixture {
    store: "Redis",
    kinds: &[
        Info {
            marks: Marks {
                // A release names the lock too, but only an acquire sets a TTL.
                acquire: "\r\n60000\r\n",
                taking: "",
                changing: "",
            },
            ..Info::new(Kind::Redis, "redis", server, Redis::missing)
        },
        Info {
            can: FAILOVER,
            ..Info::new(Kind::Sentinel, "sentinel", sentinel, Redis::missing)
        },
        Info {
            can: FAILOVER,
            ..Info::new(Kind::Cluster, "cluster", cluster, Redis::missing)
        },
    ],
};

/// Clients reach the servers by addresses that replies name.
const FAILOVER: Can = Can {
    network: false,
    forgets: true,
    ..USUAL
};

/// Shorter than the time after which sentinels and cluster nodes declare a server dead.
const UNNOTICED: Duration = Duration::from_millis(700);

fn server(_: Kind, need: Need) -> Box<dyn Store> {
    Box::new(match need {
        Need::Shared | Need::Own => Redis::plain(),
        Need::Durable | Need::Faulty => Redis::durable(),
    })
}

fn sentinel(_: Kind, need: Need) -> Box<dyn Store> {
    static SLOT: Slot<Deployment> = Mutex::new(Weak::new());
    match need {
        Need::Shared => Box::new(Shared(shared::get(&SLOT, Deployment::start))),
        _ => Box::new(Deployment::with(&Plan {
            durable: true,
            ..Plan::default()
        })),
    }
}

fn cluster(_: Kind, need: Need) -> Box<dyn Store> {
    static SLOT: Slot<Cluster> = Mutex::new(Weak::new());
    match need {
        Need::Shared => Box::new(Shared(shared::get(&SLOT, Cluster::start))),
        _ => Box::new(Cluster::with(true, true)),
    }
}

/// Deletes a server's keys with names that contain `part`.
pub fn wipe(server: &Redis, part: &str) {
    let keys = server.keys().into_iter();
    for (name, _) in keys.filter(|(name, _)| name.contains(part)) {
        server.command(&["DEL", &name]);
    }
}

fn start_stopped(servers: &[Redis]) {
    let stopped = servers.iter().filter(|server| !server.is_running());
    stopped.for_each(Redis::start);
}

impl Store for Redis {
    fn url_at(&self, host: &str, ports: &[u16]) -> String {
        format!("redis://{}/0", places(host, ports))
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.port]
    }

    fn servers(&self) -> &dyn Any {
        self
    }

    fn freeze(&self) {
        Self::freeze(self);
    }

    fn thaw(&self) {
        Self::thaw(self);
    }

    fn kill(&mut self) {
        Self::kill(self);
    }

    fn start(&mut self) {
        Self::start(self);
    }

    fn restart_empty(&mut self) {
        Self::restart_empty(self);
    }

    fn take_away(&self, key: &str) {
        assert_eq!(self.int(&["DEL", &format!("dlock:{key}")]), 1);
    }

    fn lose_data(&self, part: &str) {
        wipe(self, part);
    }

    /// Queues and wake-up lists expire. Only the fence counter of a lock lasts forever.
    fn left(&self, keys: &[String]) -> Vec<String> {
        let clients = self.text(&["CLIENT", "LIST"]);
        let clients = clients
            .lines()
            .filter(|client| !client.contains(" cmd=client|list "));
        let lasting = self.keys().into_iter().filter(|(name, ms)| {
            *ms == -1
                && keys.iter().any(|key| name.contains(key))
                && !name.starts_with("redisson_lock_token:")
        });
        let lasting = lasting.map(|(name, _)| format!("{name} has no expiry"));
        clients.map(str::to_owned).chain(lasting).collect()
    }
}

/// Faults hit the master. It stays down until the failover, and comes back as a replica.
impl Store for Deployment {
    fn url_at(&self, host: &str, ports: &[u16]) -> String {
        format!("redis+sentinel://{}/{NAME}", places(host, ports))
    }

    fn url(&self) -> String {
        Self::url(self)
    }

    fn ports(&self) -> Vec<u16> {
        self.sentinels
            .iter()
            .map(|sentinel| sentinel.port)
            .collect()
    }

    fn servers(&self) -> &dyn Any {
        self
    }

    fn learned(&self) -> Vec<u16> {
        self.servers.iter().map(|server| server.port).collect()
    }

    fn freeze(&self) {
        self.servers[self.master()].freeze();
    }

    fn thaw(&self) {
        self.servers.iter().for_each(Redis::thaw);
    }

    fn longest_freeze(&self) -> Duration {
        UNNOTICED
    }

    fn kill(&mut self) {
        let master = self.master();
        self.servers[master].kill();
        self.await_failover(master);
    }

    fn start(&mut self) {
        start_stopped(&self.servers);
        self.settle();
    }

    fn lose_data(&self, part: &str) {
        wipe(&self.servers[self.master()], part);
    }
}

/// The key whose master faults hit; it has one third of all keys.
const KEY: &str = "campaign";

impl Store for Cluster {
    fn url_at(&self, host: &str, ports: &[u16]) -> String {
        format!("redis+cluster://{}", places(host, ports))
    }

    fn url(&self) -> String {
        Self::url(self)
    }

    fn ports(&self) -> Vec<u16> {
        let masters = &self.nodes[..usize::from(MASTERS)];
        masters.iter().map(|node| node.port).collect()
    }

    fn servers(&self) -> &dyn Any {
        self
    }

    fn learned(&self) -> Vec<u16> {
        let replicas = &self.nodes[usize::from(MASTERS)..];
        replicas.iter().map(|node| node.port).collect()
    }

    fn freeze(&self) {
        self.nodes[self.owner(KEY)].freeze();
    }

    fn thaw(&self) {
        self.nodes.iter().for_each(Redis::thaw);
    }

    fn longest_freeze(&self) -> Duration {
        UNNOTICED
    }

    fn kill(&mut self) {
        let master = self.owner(KEY);
        self.nodes[master].kill();
        self.await_failover(KEY, master);
    }

    fn start(&mut self) {
        start_stopped(&self.nodes);
        self.settle();
    }

    fn lose_data(&self, part: &str) {
        for master in &self.nodes[..usize::from(MASTERS)] {
            wipe(master, part);
        }
    }
}
