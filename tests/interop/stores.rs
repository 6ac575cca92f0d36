//! The servers, with their addresses for dlock and for other programs.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::support::{
    dlock,
    etcd::Etcd,
    find_program,
    mariadb::{MariaDb, Options, Product},
    postgres::{self, Postgres},
    redis::Redis,
    redlock::Nodes,
    zookeeper::ZooKeeper,
};

/// A server that both use. SQL servers carry the parameters of dlock's URL.
#[derive(Clone, Copy, Debug)]
pub enum Store {
    Redis,
    /// Five servers with a majority.
    Redlock,
    /// One server of a Redlock, where dlock also stores a string.
    RedlockOfOne,
    ZooKeeper,
    Etcd,
    Postgres(&'static str),
    MariaDb(&'static str),
    /// MySQL itself.
    MySql(&'static str),
}

/// A running server, shared with other cases, and its addresses.
pub struct Server {
    /// dlock's URL.
    pub url: String,
    /// The other program's address.
    pub address: String,
    /// The database, if the server has one.
    pub database: String,
    _running: Arc<dyn Send + Sync>,
}

/// Returns a shared server, which stops after the last case that uses it.
fn shared<T>(slot: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Arc<T> {
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    slot.upgrade().unwrap_or_else(|| {
        let server = Arc::new(start());
        *slot = Arc::downgrade(&server);
        server
    })
}

static ZOOKEEPER: Mutex<Weak<ZooKeeper>> = Mutex::new(Weak::new());
static ETCD: Mutex<Weak<Etcd>> = Mutex::new(Weak::new());
static POSTGRES: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
static MARIADB: Mutex<Weak<MariaDb>> = Mutex::new(Weak::new());
static MYSQL: Mutex<Weak<MariaDb>> = Mutex::new(Weak::new());

impl Store {
    /// Returns what this server lacks here, if anything.
    pub fn missing(self) -> Option<String> {
        let without = |programs: &[&str]| {
            let missing: Vec<_> = programs
                .iter()
                .filter(|name| find_program(name).is_none())
                .copied()
                .collect();
            (!missing.is_empty()).then(|| format!("not installed: {}", missing.join(", ")))
        };
        match self {
            Self::Redis | Self::Redlock | Self::RedlockOfOne => without(&[Redis::PROGRAM]),
            Self::ZooKeeper => ZooKeeper::missing(),
            Self::Etcd => without(&Etcd::PROGRAMS),
            Self::Postgres(_) => postgres::missing().or_else(|| without(&["psql"])),
            Self::MariaDb(_) => Product::MariaDb.missing(),
            Self::MySql(_) => Product::MySql.missing(),
        }
    }

    /// Whether the store may be missing even in CI: it is fetched from another release than the
    /// system's.
    pub fn is_optional(self) -> bool {
        matches!(self, Self::MySql(_))
    }

    pub fn start(self) -> Server {
        let ports = |nodes: &[Redis]| {
            nodes
                .iter()
                .map(|node| node.port.to_string())
                .collect::<Vec<_>>()
        };
        match self {
            Self::Redis => {
                let redis = Redis::plain();
                let (url, address) = (redis.url(), redis.port.to_string());
                Server {
                    url,
                    address,
                    database: String::new(),
                    _running: Arc::new(redis),
                }
            }
            Self::Redlock => {
                let nodes = Nodes::plain();
                let (url, address) = (nodes.url(), ports(&nodes.0).join(","));
                Server {
                    url,
                    address,
                    database: String::new(),
                    _running: Arc::new(nodes),
                }
            }
            Self::RedlockOfOne => {
                let redis = Redis::plain();
                let url = format!("redlock://127.0.0.1:{}?allow_few=yes", redis.port);
                Server {
                    url,
                    address: redis.port.to_string(),
                    database: String::new(),
                    _running: Arc::new(redis),
                }
            }
            Self::ZooKeeper => {
                let servers = shared(&ZOOKEEPER, ZooKeeper::single);
                let url = servers.url();
                let address = url.replace("zookeeper://", "");
                Server {
                    url,
                    address,
                    database: String::new(),
                    _running: servers,
                }
            }
            Self::Etcd => {
                let etcd = shared(&ETCD, Etcd::plain);
                Server {
                    url: etcd.url(),
                    address: format!("127.0.0.1:{}", etcd.port()),
                    database: String::new(),
                    _running: etcd,
                }
            }
            Self::Postgres(parameters) => {
                let server = shared(&POSTGRES, Postgres::plain);
                let database = server.database();
                let address = server.url(&database);
                initialized(Server {
                    url: format!("{address}{parameters}"),
                    address,
                    database,
                    _running: server,
                })
            }
            Self::MariaDb(parameters) => speaking_mysql(Product::MariaDb, &MARIADB, parameters),
            Self::MySql(parameters) => speaking_mysql(Product::MySql, &MYSQL, parameters),
        }
    }
}

fn speaking_mysql(product: Product, slot: &Mutex<Weak<MariaDb>>, parameters: &str) -> Server {
    let server = shared(slot, || {
        MariaDb::with(Options {
            product,
            ..Options::default()
        })
    });
    let database = server.database();
    let address = format!("{},{database}", server.socket().display());
    initialized(Server {
        url: format!("{}{parameters}", server.url(&database)),
        address,
        database,
        _running: server,
    })
}

fn initialized(server: Server) -> Server {
    let made = dlock::run(&server.url, &["init"]);
    assert_eq!(made.code(), 0, "{}", made.stderr);
    server
}
