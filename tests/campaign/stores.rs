//! The stores of a campaign: real servers and their faults.

use std::{net::Ipv4Addr, path::PathBuf, thread::sleep, time::Duration};

use tempfile::TempDir;

use crate::{
    plan::Abilities,
    support::{
        self,
        clock::Clock,
        cluster::{Cluster, MASTERS},
        disk::Disk,
        dlock,
        etcd::Etcd,
        find_program,
        mariadb::{self, MariaDb},
        postgres::{self, Postgres},
        proxy::Proxy,
        redis::Redis,
        redlock::Nodes,
        sentinel::{Deployment, Plan},
        tair::Tair,
        zookeeper::ZooKeeper,
    },
};

/// A store that a campaign injects faults into.
pub trait Store: Send {
    fn can(&self) -> Abilities;

    fn url(&self) -> String;

    /// Starts a proxy for each server, at this address of the host; none if the store can't use
    /// proxies.
    fn fronts(&self, host: Ipv4Addr) -> Vec<Proxy>;

    /// Returns the store's URL through those proxies.
    fn through(&self, proxies: &[Proxy]) -> String;

    /// Returns the ports in the URL, and the ports that replies add to them.
    fn ports(&self) -> (&[u16], &[u16]);

    /// Returns the URL with these ports of this host instead of its own.
    fn at(&self, ports: &[u16]) -> String;

    /// Stops a server for this long; of several servers, the most important one.
    fn freeze(&mut self, ms: Duration);

    /// Kills a server, and restarts it with its data after this long.
    fn restart(&mut self, ms: Duration);

    /// Restarts the server without its data.
    fn restart_empty(&mut self);

    /// Steps the servers' clock by this many seconds, for this long.
    fn step_clock(&mut self, seconds: i64, ms: Duration);

    /// Fills the disk for this long.
    fn fill_disk(&mut self, ms: Duration);

    /// Returns leftovers of these locks in the store, when no process holds or wants them:
    /// sessions, queue entries, files.
    fn left(&self, keys: &[String]) -> Vec<String>;

    /// Returns the server's log, if it has one: a server that crashed by itself explains much.
    fn log(&self) -> String;
}

/// The names that `--store` takes.
pub const NAMES: [&str; 16] = [
    "sqlite",
    "redis",
    "redlock",
    "sentinel",
    "cluster",
    "tair",
    "postgres",
    "postgres-advisory",
    "postgres-row",
    "mariadb",
    "mariadb-advisory",
    "mariadb-row",
    "etcd",
    "etcd-cluster",
    "zookeeper",
    "zookeeper-ensemble",
];

const ALL: Abilities = Abilities {
    shared: true,
    permits: true,
    fair: true,
    nested: true,
    once: true,
    network: true,
    server: true,
    clock: false,
    disk: false,
    forgets: false,
    claims: false,
    sessions: false,
    handover_s: 3,
};
/// A lock that a session holds.
const SESSIONS: Abilities = Abilities {
    permits: false,
    fair: false,
    nested: false,
    clock: true,
    sessions: true,
    handover_s: 8,
    ..ALL
};

/// Starts the store with this name.
///
/// # Errors
/// Names the program that isn't installed.
pub fn start(name: &str) -> Result<Box<dyn Store>, String> {
    let have = |program: &str| {
        find_program(program)
            .map(drop)
            .ok_or(format!("{program} is not installed"))
    };
    let none = |missing: Option<String>| missing.map_or(Ok(()), Err);
    match name {
        "redis" | "redlock" | "sentinel" | "cluster" => have("redis-server")?,
        "postgres" | "postgres-advisory" | "postgres-row" => none(postgres::missing())?,
        "mariadb" | "mariadb-advisory" | "mariadb-row" => none(mariadb::missing())?,
        "etcd" | "etcd-cluster" => have("etcd").and(have("etcdctl"))?,
        "zookeeper" | "zookeeper-ensemble" => none(ZooKeeper::missing())?,
        _ => {}
    }
    let mode = name
        .split_once('-')
        .map_or(String::new(), |(_, mode)| format!("&mode={mode}"));
    Ok(match name {
        "sqlite" => sqlite(),
        "redis" => redis(),
        "redlock" => redlock(),
        "sentinel" => sentinel(),
        "cluster" => cluster(),
        "tair" => tair(),
        "postgres" | "postgres-advisory" | "postgres-row" => postgres(&mode),
        "mariadb" | "mariadb-advisory" | "mariadb-row" => mariadb(&mode),
        "etcd" => etcd(Etcd::plain()),
        "etcd-cluster" => etcd(Etcd::cluster()),
        "zookeeper" => zookeeper(ZooKeeper::single()),
        "zookeeper-ensemble" => zookeeper(ZooKeeper::ensemble()),
        other => {
            return Err(format!(
                "no such store: {other}; there are {}",
                NAMES.join(", ")
            ));
        }
    })
}

/// Servers of one kind, with the functions that inject faults into them.
struct ServerStore<S> {
    servers: S,
    can: Abilities,
    /// The URL, with {} for the addresses of the servers.
    url: String,
    ports: Vec<u16>,
    /// Further servers' ports, which a client learns from replies.
    named: Vec<u16>,
    freeze: fn(&mut S),
    thaw: fn(&mut S),
    kill: fn(&mut S),
    start: fn(&mut S),
    forget: fn(&mut S),
    left: fn(&S, &[String]) -> Vec<String>,
    log: fn(&S) -> String,
    /// The shortest outage of a server, and the longest freeze.
    down: [Duration; 2],
    clock: Option<Clock>,
    disk: Option<Disk>,
}

impl<S: Send> ServerStore<S> {
    fn new(servers: S, can: Abilities, url: impl Into<String>, ports: Vec<u16>) -> Self {
        let (none, longest) = (|_: &mut S| {}, Duration::MAX);
        Self {
            servers,
            can,
            url: url.into(),
            ports,
            named: Vec::new(),
            freeze: none,
            thaw: none,
            kill: none,
            start: none,
            forget: none,
            left: |_, _| Vec::new(),
            log: |_| String::new(),
            down: [Duration::ZERO, longest],
            clock: None,
            disk: None,
        }
    }

    fn on(&self, host: &str, ports: impl Iterator<Item = u16>) -> String {
        self.url.replace(
            "{}",
            &ports
                .map(|port| format!("{host}:{port}"))
                .collect::<Vec<_>>()
                .join(","),
        )
    }
}

impl<S: Send> Store for ServerStore<S> {
    fn can(&self) -> Abilities {
        Abilities {
            clock: self.can.clock && self.clock.is_some(),
            disk: self.disk.is_some(),
            ..self.can
        }
    }

    fn url(&self) -> String {
        self.at(&self.ports)
    }

    fn fronts(&self, host: Ipv4Addr) -> Vec<Proxy> {
        let reached = if self.can.network {
            &self.ports[..]
        } else {
            &[]
        };
        reached.iter().map(|port| Proxy::at(host, *port)).collect()
    }

    fn through(&self, proxies: &[Proxy]) -> String {
        let host = proxies
            .first()
            .map_or_else(String::new, |proxy| proxy.host.to_string());
        self.on(&host, proxies.iter().map(|proxy| proxy.port))
    }

    fn ports(&self) -> (&[u16], &[u16]) {
        (&self.ports, &self.named)
    }

    fn at(&self, ports: &[u16]) -> String {
        self.on("127.0.0.1", ports.iter().copied())
    }

    fn freeze(&mut self, ms: Duration) {
        (self.freeze)(&mut self.servers);
        sleep(ms.min(self.down[1]));
        (self.thaw)(&mut self.servers);
    }

    fn restart(&mut self, ms: Duration) {
        (self.kill)(&mut self.servers);
        sleep(ms.max(self.down[0]));
        (self.start)(&mut self.servers);
    }

    fn restart_empty(&mut self) {
        (self.forget)(&mut self.servers);
    }

    fn step_clock(&mut self, seconds: i64, ms: Duration) {
        if let Some(clock) = &self.clock {
            clock.step(seconds);
            sleep(ms);
            clock.step(0);
        }
    }

    fn fill_disk(&mut self, ms: Duration) {
        if let Some(disk) = &self.disk {
            disk.fill();
            sleep(ms);
            disk.free();
        }
    }

    fn left(&self, keys: &[String]) -> Vec<String> {
        (self.left)(&self.servers, keys)
    }

    fn log(&self) -> String {
        (self.log)(&self.servers)
    }
}

/// SQLite, on a disk of its own if one can be made.
fn sqlite() -> Box<dyn Store> {
    let (disk, folder) = (Disk::make("64m").ok(), support::folder());
    let path = disk.as_ref().map_or(folder.path(), Disk::folder).to_owned();
    let url = format!("sqlite://{}", path.join("locks.db").display());
    let left = |(path, _): &(PathBuf, TempDir), _: &[String]| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !name.starts_with("locks.db"))
            .collect()
    };
    Box::new(ServerStore {
        left,
        disk,
        ..ServerStore::new(
            (path, folder),
            Abilities {
                server: false,
                network: false,
                ..ALL
            },
            url,
            Vec::new(),
        )
    })
}

fn redis() -> Box<dyn Store> {
    let server = Redis::durable();
    let ports = vec![server.port];
    Box::new(ServerStore::<Redis> {
        freeze: |server| server.freeze(),
        thaw: |server| server.thaw(),
        kill: Redis::kill,
        start: Redis::start,
        forget: Redis::restart_empty,
        left: |server, keys| {
            let clients = server.text(&["CLIENT", "LIST"]);
            // Queues and wake-up lists expire. Only the fence counter of a lock lasts forever.
            let lasting = server
                .keys()
                .into_iter()
                .filter(|(name, ms)| *ms == -1 && keys.iter().any(|key| name.contains(key)));
            let lasting = lasting
                .filter(|(name, _)| !name.starts_with("redisson_lock_token:"))
                .map(|(name, _)| format!("{name} has no expiry"));
            let clients = clients
                .lines()
                .filter(|client| !client.contains(" cmd=client|list "));
            clients.map(str::to_owned).chain(lasting).collect()
        },
        ..ServerStore::new(server, ALL, "redis://{}/0", ports)
    })
}

fn redlock() -> Box<dyn Store> {
    let nodes = Nodes::durable();
    let ports = nodes.0.iter().map(|node| node.port).collect();
    Box::new(ServerStore::<Nodes> {
        freeze: |nodes| nodes.0[..2].iter().for_each(Redis::freeze),
        thaw: |nodes| nodes.0[..2].iter().for_each(Redis::thaw),
        kill: |nodes| nodes.0[1..3].iter_mut().for_each(Redis::kill),
        start: |nodes| nodes.0[1..3].iter_mut().for_each(Redis::start),
        // A writer that died in the queue keeps readers out for 15 s.
        ..ServerStore::new(
            nodes,
            Abilities {
                permits: false,
                fair: false,
                handover_s: 15,
                ..ALL
            },
            "redlock://{}",
            ports,
        )
    })
}

/// Shorter than the time after which sentinels and cluster nodes declare a server dead.
const UNNOTICED: Duration = Duration::from_millis(700);

fn start_stopped(servers: &mut [Redis]) {
    servers
        .iter_mut()
        .filter(|server| !server.is_running())
        .for_each(Redis::start);
}

/// A killed master stays down until the failover, and comes back as a replica.
fn sentinel() -> Box<dyn Store> {
    let deployment = Deployment::with(&Plan {
        durable: true,
        ..Plan::default()
    });
    let ports = deployment
        .sentinels
        .iter()
        .map(|sentinel| sentinel.port)
        .collect();
    Box::new(ServerStore::<Deployment> {
        freeze: |deployment| deployment.servers[deployment.master()].freeze(),
        thaw: |deployment| deployment.servers.iter().for_each(Redis::thaw),
        kill: |deployment| {
            let master = deployment.master();
            deployment.servers[master].kill();
            deployment.await_failover(master);
        },
        start: |deployment| {
            start_stopped(&mut deployment.servers);
            deployment.settle();
        },
        down: [Duration::ZERO, UNNOTICED],
        named: deployment
            .servers
            .iter()
            .map(|server| server.port)
            .collect(),
        ..ServerStore::new(
            deployment,
            Abilities {
                network: false,
                forgets: true,
                ..ALL
            },
            "redis+sentinel://{}/prod?replicas=all",
            ports,
        )
    })
}

/// Faults hit the master of one third of all keys.
fn cluster() -> Box<dyn Store> {
    const KEY: &str = "campaign";
    let cluster = Cluster::with(true, true);
    let ports: Vec<u16> = cluster.nodes.iter().map(|node| node.port).collect();
    let (seeds, replicas) = ports.split_at(usize::from(MASTERS));
    Box::new(ServerStore::<Cluster> {
        freeze: |cluster| cluster.nodes[cluster.owner(KEY)].freeze(),
        thaw: |cluster| cluster.nodes.iter().for_each(Redis::thaw),
        kill: |cluster| {
            let master = cluster.owner(KEY);
            cluster.nodes[master].kill();
            cluster.await_failover(KEY, master);
        },
        start: |cluster| {
            start_stopped(&mut cluster.nodes);
            cluster.settle();
        },
        down: [Duration::ZERO, UNNOTICED],
        named: replicas.to_vec(),
        ..ServerStore::new(
            cluster,
            Abilities {
                network: false,
                forgets: true,
                ..ALL
            },
            "redis+cluster://{}?replicas=all",
            seeds.to_vec(),
        )
    })
}

fn tair() -> Box<dyn Store> {
    let server = Tair::start();
    let ports = vec![server.port()];
    Box::new(ServerStore::<Tair> {
        freeze: |server| server.freeze(),
        thaw: |server| server.thaw(),
        kill: Tair::kill,
        start: Tair::restart,
        ..ServerStore::new(
            server,
            Abilities {
                claims: true,
                ..ALL
            },
            "tair://{}?mode=plain",
            ports,
        )
    })
}

/// Runs `dlock init`.
fn init(lab: &impl Store) {
    let made = dlock::run(&lab.url(), &["init"]);
    assert_eq!(made.code(), 0, "{}", made.stderr);
}

/// The clock is not stepped: the server measures the silence of sessions by it, and may end them at
/// a step. dlock-stores(7) promises nothing then.
fn postgres(mode: &str) -> Box<dyn Store> {
    let server = Postgres::with(postgres::Options {
        durable: true,
        ..Default::default()
    });
    let ports = vec![server.port];
    let can = if mode.is_empty() { ALL } else { SESSIONS };
    let lab = ServerStore::<Postgres> {
        freeze: |server| server.freeze(),
        thaw: |server| server.thaw(),
        kill: Postgres::kill,
        start: Postgres::start,
        log: Postgres::log,
        left: |server, _| {
            let sql = "SELECT pid, state, query FROM pg_stat_activity WHERE application_name LIKE 'dlock%'";
            server.try_sql(postgres::USER, sql).map_or_else(
                |why| vec![why],
                |rows| rows.iter().map(|row| format!("{row:?}")).collect(),
            )
        },
        ..ServerStore::new(
            server,
            can,
            format!("postgres://postgres@{{}}/postgres?sslmode=disable{mode}"),
            ports,
        )
    };
    init(&lab);
    Box::new(lab)
}

fn mariadb(mode: &str) -> Box<dyn Store> {
    // Locks of sessions don't depend on the clock.
    let clock = if mode.is_empty() { None } else { Clock::make() };
    let environment = clock.as_ref().map(Clock::environment).unwrap_or_default();
    let server = MariaDb::with(mariadb::Options {
        durable: true,
        environment,
        ..Default::default()
    });
    server.sql("mysql", "CREATE DATABASE IF NOT EXISTS app");
    let ports = vec![server.port];
    let can = match mode {
        "" => ALL,
        // GET_LOCK has no shared mode.
        mode => Abilities {
            shared: !mode.ends_with("advisory"),
            ..SESSIONS
        },
    };
    let lab = ServerStore::<MariaDb> {
        freeze: |server| server.freeze(),
        thaw: |server| server.thaw(),
        kill: MariaDb::kill,
        start: MariaDb::start,
        log: MariaDb::log,
        left: |server, _| {
            let sql = "SELECT id, info FROM information_schema.processlist WHERE db = 'app' AND id <> CONNECTION_ID()";
            server.try_sql("mysql", sql).map_or_else(
                |why| vec![why],
                |rows| rows.iter().map(|row| format!("{row:?}")).collect(),
            )
        },
        down: [Duration::from_millis(1100), Duration::MAX],
        clock,
        ..ServerStore::new(
            server,
            can,
            format!("mariadb://root@{{}}/app?ssl-mode=DISABLED{mode}"),
            ports,
        )
    };
    init(&lab);
    Box::new(lab)
}

/// Of several members, faults hit the leader.
fn etcd(members: Etcd) -> Box<dyn Store> {
    let ports = members.ports();
    Box::new(ServerStore::<Etcd> {
        freeze: |etcd| etcd.freeze_member(leader_of(etcd)),
        thaw: |etcd| etcd.thaw(),
        kill: |etcd| etcd.kill_member(leader_of(etcd)),
        start: Etcd::restart,
        left: |etcd, keys| {
            keys.iter()
                .flat_map(|key| etcd.keys(&format!("dlock/{key}/")))
                .collect()
        },
        ..ServerStore::new(
            members,
            Abilities {
                handover_s: 8,
                ..ALL
            },
            "etcd://{}",
            ports,
        )
    })
}

fn leader_of(etcd: &Etcd) -> usize {
    if etcd.ports().len() > 1 {
        etcd.leader().0
    } else {
        0
    }
}

fn zookeeper(servers: ZooKeeper) -> Box<dyn Store> {
    let ports = servers.nodes.iter().map(|node| node.port).collect();
    Box::new(ServerStore::<ZooKeeper> {
        freeze: |zookeeper| zookeeper.nodes[leader_of_ensemble(zookeeper)].freeze(),
        thaw: |zookeeper| zookeeper.thaw(),
        kill: |zookeeper| {
            let leader = leader_of_ensemble(zookeeper);
            zookeeper.nodes[leader].kill();
        },
        start: ZooKeeper::start,
        left: |zookeeper, keys| {
            let queued = |key: &String| match zookeeper.line(&format!("/dlock/{key}")) {
                0 => None,
                many => Some(format!("{many} nodes of {key}")),
            };
            keys.iter().filter_map(queued).collect()
        },
        ..ServerStore::new(
            servers,
            Abilities {
                handover_s: 8,
                ..ALL
            },
            "zookeeper://{}",
            ports,
        )
    })
}

fn leader_of_ensemble(zookeeper: &ZooKeeper) -> usize {
    if zookeeper.nodes.len() > 1 {
        zookeeper.leader()
    } else {
        0
    }
}
