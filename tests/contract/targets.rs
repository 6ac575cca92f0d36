//! The store of a case: one for each case, or a part of one that cases share.

use std::{
    any::Any,
    cell::OnceCell,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use dlock::{
    backends::{
        Address, Configured, STORES,
        memory::{Memory, MemoryStore},
        mysql::MysqlOptions,
        postgres::PostgresOptions,
    },
    lock::{Backend, Namespace},
    settings::{
        env::Env,
        setting::{Origin, Setting},
        url::Url,
    },
};

pub use crate::support::stores::Kind;
use crate::{
    lab::{Client, Lab},
    support::{
        etcd::Etcd,
        redis::Redis,
        redlock::Nodes,
        stores::{Database, Need, Schema, Store},
        zookeeper::ZooKeeper,
    },
};

/// The settings of a store that `dlock --backend URL` would use.
fn configured(url: &str, namespace: &str) -> Arc<dyn Configured> {
    let setting = |text: &str| Setting {
        text: text.to_owned(),
        origin: Origin::Flag("--backend"),
    };
    let parsed = Url::parse(url).expect("a URL");
    let (info, scheme) = STORES
        .iter()
        .find_map(|store| Some((*store, store.scheme(&parsed.scheme)?)))
        .expect("a store with this scheme");
    let parameters = parsed.query.iter();
    let address = Address {
        given: setting(url),
        parameters: parameters
            .map(|(name, text)| (name.clone(), setting(text)))
            .collect(),
        url: parsed,
        info,
        scheme,
        secrets: BTreeMap::new(),
        namespace: Namespace::new(namespace).expect("a namespace"),
        env: &Env::default(),
        offline: false,
        local_user: String::new,
    };
    (info.configure)(address).expect("the settings of a store")
}

/// Returns a client of the store with this URL.
pub fn open(url: &str, namespace: &str) -> Client {
    Client(configured(url, namespace).backend())
}

/// Returns the store's own options.
pub fn options<T: Clone + 'static>(url: &str, namespace: &str) -> T {
    let configured = configured(url, namespace);
    let options: &dyn Any = &*configured;
    options
        .downcast_ref::<T>()
        .expect("options of this type")
        .clone()
}

/// Returns `HOST:PORT,…`, as in a URL, for servers of this host.
pub fn places(ports: impl IntoIterator<Item = u16>) -> String {
    let places: Vec<String> = ports
        .into_iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    places.join(",")
}

/// The store of one case. Each client that is opened on it stands for another process.
pub struct Target {
    memory: MemoryStore,
    shared: Option<Box<dyn Store>>,
    /// The case's own servers, instead of those that cases share.
    own: OnceCell<Box<dyn Store>>,
    /// The case's part of a store that cases share. All have the same width, so none is a prefix of
    /// another.
    part: String,
}

impl Target {
    pub fn new(kind: Kind) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self {
            memory: MemoryStore::default(),
            shared: (kind != Kind::Memory).then(|| kind.start(Need::Shared)),
            own: OnceCell::new(),
            part: format!("case{:04}", NEXT.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

impl Lab {
    /// Returns the running store.
    pub fn store(&self) -> &dyn Store {
        let store = self.target.own.get().or(self.target.shared.as_ref());
        &**store.expect("a case for stores with URLs")
    }

    /// Gives this case its own server, for a case that freezes it. Call before any client is
    /// opened.
    pub fn isolate(&self) {
        let own = self.kind.start(Need::Own);
        assert!(self.target.own.set(own).is_ok(), "isolated twice");
    }

    /// Returns this case's part of a store that cases share; empty if the store is the case's own.
    fn part(&self) -> &str {
        let shared = self.has_namespaces() || self.kind.is_zookeeper();
        if shared { &self.target.part } else { "" }
    }

    /// Whether cases share the store, each in its own namespaces.
    fn has_namespaces(&self) -> bool {
        matches!(self.kind, Kind::Sentinel | Kind::Cluster) || self.kind.is_etcd()
    }

    /// Returns this case's namespace for a name. On Redis the empty namespace is shared, so only
    /// one case may use it.
    pub fn namespace(&self, name: &str) -> String {
        match name {
            _ if !self.has_namespaces() => name.into(),
            "" if self.kind.is_etcd() => self.part().into(),
            "" => String::new(),
            name => format!("{}-{name}", self.part()),
        }
    }

    /// Returns this case's node of ZooKeeper.
    pub fn chroot(&self) -> String {
        format!("/{}", self.part())
    }

    fn within(&self, url: String) -> String {
        if self.kind.is_zookeeper() {
            url + &self.chroot()
        } else {
            url
        }
    }

    /// Returns one more client, which stands for another process, in a namespace.
    #[allow(clippy::unused_async, reason = "a store may do I/O to open a client")]
    pub async fn client_in(&self, namespace: &str) -> Client {
        if self.kind == Kind::Memory {
            let namespace = Namespace::new(namespace).expect("a namespace");
            return Client(Box::new(Memory::new(self.target.memory.clone(), namespace)));
        }
        let url = self.within(self.store().url());
        open(&url, &self.namespace(namespace))
    }

    /// Returns the options of such a client.
    pub fn options<T: Clone + 'static>(&self, namespace: &str) -> T {
        let url = self.within(self.store().url());
        options(&url, &self.namespace(namespace))
    }

    pub fn postgres_options(&self, namespace: &str) -> PostgresOptions {
        self.options(namespace)
    }

    pub fn mysql_options(&self, namespace: &str) -> MysqlOptions {
        self.options(namespace)
    }

    /// Returns a client that reaches the server through this port of the host.
    pub fn through(&self, port: u16) -> Client {
        self.through_all(&[port])
    }

    /// Returns a client that reaches the servers through these ports.
    pub fn through_all(&self, ports: &[u16]) -> Client {
        let url = self.store().url_at("127.0.0.1", ports);
        open(&self.within(url), &self.namespace("dlock"))
    }

    /// Returns a client whose store is unreachable, so all its answers come without I/O.
    pub async fn unreachable(&self) -> Box<dyn Backend> {
        if self.kind == Kind::Memory {
            return self.client().await.0;
        }
        open(&self.within(self.store().nowhere()), "dlock").0
    }

    /// Deletes all data, as on a store that lost its disk.
    pub async fn lose_data(&self) {
        if self.kind == Kind::Memory {
            return self.target.memory.lose_data();
        }
        // Dropped clients end with some delay, and their sessions a little later.
        for _ in 0..200 {
            if !self.kind.held_by_session() || self.store().left(&[]).is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.store().lose_data(self.part());
    }

    fn servers<T: 'static>(&self) -> &T {
        let servers = self.store().servers().downcast_ref();
        servers.expect("a case for another store")
    }

    pub fn redis(&self) -> &Redis {
        self.servers()
    }

    pub fn redlock(&self) -> &[Redis] {
        &self.servers::<Nodes>().0
    }

    pub fn tair(&self) -> &crate::support::tair::Tair {
        &self.servers::<crate::support::stores::TairServer>().server
    }

    pub fn postgres(&self) -> &Database {
        self.servers()
    }

    pub fn mariadb(&self) -> &Schema {
        self.servers()
    }

    pub fn etcd(&self) -> &Etcd {
        self.servers()
    }

    pub fn zookeeper(&self) -> &ZooKeeper {
        self.servers()
    }

    /// Returns a client of the test that bypasses any proxy, and uses ZooKeeper's absolute paths.
    pub async fn admin(&self) -> zookeeper_client::Client {
        zookeeper_client::Client::connect(&places([self.store().port()]))
            .await
            .expect("a connection to the server")
    }
}
