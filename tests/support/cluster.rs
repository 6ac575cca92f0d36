//! A Redis Cluster.

use std::{net::Ipv4Addr, ops::RangeInclusive, time::Duration};

use super::{
    ports,
    redis::{Options, Redis},
    tls::Certificates,
};

const SLOTS: u16 = 16_384;
const LIMIT: Duration = Duration::from_secs(30);

/// Three masters, followed by three replicas or none.
#[derive(Debug)]
pub struct Cluster {
    pub nodes: Vec<Redis>,
    ids: Vec<String>,
    host: Ipv4Addr,
}

/// The number of masters.
pub const MASTERS: u16 = 3;

impl Cluster {
    /// Starts a cluster without replicas, for all tests except those that lose a node.
    pub fn start() -> Self {
        Self::with(false, false)
    }

    pub fn with(replicas: bool, durable: bool) -> Self {
        Self::make(replicas, durable, None, Ipv4Addr::LOCALHOST)
    }

    /// Starts a cluster that is reached at this address.
    pub fn on(host: Ipv4Addr) -> Self {
        Self::make(false, false, None, host)
    }

    /// Starts a cluster in which all nodes and clients use TLS.
    pub fn encrypted(certificates: &Certificates) -> Self {
        Self::make(false, false, Some(certificates), Ipv4Addr::LOCALHOST)
    }

    fn make(
        replicas: bool,
        durable: bool,
        certificates: Option<&Certificates>,
        host: Ipv4Addr,
    ) -> Self {
        let count = if replicas { MASTERS * 2 } else { MASTERS };
        let mut nodes = Vec::new();
        let mut buses = Vec::new();
        for _ in 0..count {
            let bus = ports::free();
            let mut config = vec![
                "cluster-enabled yes".into(),
                "cluster-node-timeout 1500".into(),
                format!("cluster-port {bus}"),
            ];
            config.extend(super::redis::reached_at(host));
            config.push(format!("cluster-announce-ip {host}"));
            config.extend(certificates.map(|_| "tls-cluster yes".into()));
            nodes.push(Redis::with(Options {
                durable,
                config,
                certificates: certificates.cloned(),
                ..Options::default()
            }));
            buses.push(bus);
        }
        let ids: Vec<String> = nodes
            .iter()
            .map(|node| node.text(&["CLUSTER", "MYID"]))
            .collect();
        for (nth, node) in nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(nth + 1).to_string()]);
            for (other, bus) in nodes.iter().zip(&buses).take(nth) {
                let port = if certificates.is_some() {
                    other.tls_port
                } else {
                    other.port
                };
                node.command(&[
                    "CLUSTER",
                    "MEET",
                    &host.to_string(),
                    &port.to_string(),
                    &bus.to_string(),
                ]);
            }
        }
        for (nth, node) in (0..MASTERS).zip(&nodes) {
            let slots = slots_of(nth);
            node.command(&[
                "CLUSTER",
                "ADDSLOTSRANGE",
                &slots.start().to_string(),
                &slots.end().to_string(),
            ]);
        }
        let cluster = Self { nodes, ids, host };
        super::must("all nodes know one another", LIMIT, || {
            cluster.nodes.iter().all(|node| {
                node.text(&["CLUSTER", "NODES"])
                    .matches(" connected")
                    .count()
                    == usize::from(count)
            })
        });
        for nth in usize::from(MASTERS)..usize::from(count) {
            cluster.nodes[nth].command(&[
                "CLUSTER",
                "REPLICATE",
                &cluster.ids[nth - usize::from(MASTERS)],
            ]);
        }
        cluster.settle();
        cluster
    }

    /// Waits until every running node reports a healthy cluster, and every replica is in sync.
    #[track_caller]
    pub fn settle(&self) {
        super::must("the cluster is well", LIMIT, || {
            self.running().all(|node| {
                let replication = node.text(&["INFO", "replication"]);
                let in_step = replication.contains("role:master")
                    || replication.contains("master_link_status:up");
                in_step && node.text(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
            })
        });
    }

    fn running(&self) -> impl Iterator<Item = &Redis> {
        self.nodes.iter().filter(|node| node.is_running())
    }

    pub fn slot(&self, name: &str) -> u16 {
        let slot = self
            .running()
            .next()
            .expect("a node that runs")
            .int(&["CLUSTER", "KEYSLOT", name]);
        u16::try_from(slot).expect("a slot")
    }

    /// Returns the index of the node that owns a name, as most nodes see it.
    pub fn owner(&self, name: &str) -> usize {
        let slot = self.slot(name);
        self.try_owner(slot).expect("a node that has the slot")
    }

    fn try_owner(&self, slot: u16) -> Option<usize> {
        let mut votes = vec![0; self.nodes.len()];
        for node in self.running() {
            let text = node.text(&["CLUSTER", "NODES"]);
            for line in text
                .lines()
                .filter(|line| line.contains("master") && !line.contains("fail"))
            {
                let mut words = line.split(' ');
                let id = words.next().unwrap_or_default();
                let mut slots = words.skip(7).filter_map(|range| {
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    Some(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?)
                });
                if slots.any(|range| range.contains(&slot)) {
                    votes[self.ids.iter().position(|known| known == id)?] += 1;
                }
            }
        }
        let most = (0..votes.len()).max_by_key(|nth| votes[*nth])?;
        (votes[most] * 2 > self.running().count()).then_some(most)
    }

    /// Waits until another node than `from` owns the name's slot, and accepts writes.
    #[track_caller]
    pub fn await_failover(&self, name: &str, from: usize) -> usize {
        let slot = self.slot(name);
        super::must("a failover", LIMIT, || {
            self.try_owner(slot).is_some_and(|now| now != from)
                && self
                    .running()
                    .all(|node| node.text(&["CLUSTER", "INFO"]).contains("cluster_state:ok"))
        });
        self.owner(name)
    }

    /// Makes a master's replica take over while all nodes run.
    #[track_caller]
    pub fn switch(&self, name: &str) -> usize {
        let from = self.owner(name);
        let replica = (from + usize::from(MASTERS)) % self.nodes.len();
        self.nodes[replica].command(&["CLUSTER", "FAILOVER"]);
        self.await_failover(name, from)
    }

    /// Starts to move a slot: the old node redirects clients to the new node for missing keys.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        self.nodes[to].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[from]]);
        self.nodes[from].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.ids[to]]);
    }

    /// Moves the keys that `only` accepts.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize, only: impl Fn(&str) -> bool) {
        let keys: Vec<String> = redis::from_redis_value(self.nodes[from].command(&[
            "CLUSTER",
            "GETKEYSINSLOT",
            &slot.to_string(),
            "1000",
        ]))
        .expect("keys");
        for key in keys.iter().filter(|key| only(key)) {
            self.nodes[from].command(&[
                "MIGRATE",
                "127.0.0.1",
                &self.nodes[to].port.to_string(),
                key,
                "0",
                "5000",
            ]);
        }
    }

    /// Makes the new node the slot's owner.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        for nth in [to, from]
            .into_iter()
            .chain((0..usize::from(MASTERS)).filter(|nth| ![from, to].contains(nth)))
        {
            self.nodes[nth].command(&["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[to]]);
        }
    }

    /// Returns the URL with these nodes.
    pub fn url_of(&self, nodes: &[usize]) -> String {
        let seeds: Vec<_> = nodes
            .iter()
            .map(|nth| format!("{}:{}", self.host, self.nodes[*nth].port))
            .collect();
        format!("redis+cluster://{}", seeds.join(","))
    }

    /// Returns the URL with the three first masters.
    pub fn url(&self) -> String {
        self.url_of(&[0, 1, 2])
    }
}

fn slots_of(nth: u16) -> RangeInclusive<u16> {
    let share = SLOTS / MASTERS;
    let last = if nth + 1 == MASTERS {
        SLOTS - 1
    } else {
        (nth + 1) * share - 1
    };
    nth * share..=last
}
