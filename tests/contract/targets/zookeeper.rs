//! One server and one ensemble of three for all cases, each case in its own node.

use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use async_trait::async_trait;
use dlock::{
    backends::zookeeper::{ZooKeeper, ZooKeeperOptions},
    lock::{Backend, Namespace},
};
use zookeeper_client::Client;

use crate::support::{self, ports};

type Shared = Mutex<Option<Arc<support::zookeeper::ZooKeeper>>>;
static SINGLE: Shared = Mutex::new(None);
static ENSEMBLE: Shared = Mutex::new(None);

pub struct Target {
    servers: RefCell<Arc<support::zookeeper::ZooKeeper>>,
    pub chroot: String,
}

/// Ends the servers, and removes their folders.
pub fn end() {
    for shared in [&SINGLE, &ENSEMBLE] {
        shared.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn shared(which: &Shared, start: fn() -> support::zookeeper::ZooKeeper) -> Target {
    let mut shared = which.lock().unwrap_or_else(PoisonError::into_inner);
    Target::on(Arc::clone(shared.get_or_insert_with(|| Arc::new(start()))))
}

impl Target {
    pub fn single() -> Self {
        shared(&SINGLE, support::zookeeper::ZooKeeper::single)
    }

    pub fn ensemble() -> Self {
        shared(&ENSEMBLE, support::zookeeper::ZooKeeper::ensemble)
    }

    /// Returns a part of these servers that no other case uses.
    pub fn on(servers: Arc<support::zookeeper::ZooKeeper>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self {
            servers: RefCell::new(servers),
            chroot: format!("/case{:04}", NEXT.fetch_add(1, Ordering::Relaxed)),
        }
    }

    pub fn servers(&self) -> Arc<support::zookeeper::ZooKeeper> {
        Arc::clone(&self.servers.borrow())
    }

    pub fn options(&self, hosts: Vec<(String, u16)>, namespace: &str) -> ZooKeeperOptions {
        ZooKeeperOptions {
            chroot: self.chroot.clone(),
            namespace: Namespace::new(namespace).expect("a namespace"),
            ..ZooKeeperOptions::new(hosts)
        }
    }

    pub fn at_port(&self, port: u16, namespace: &str) -> Box<dyn Backend> {
        Box::new(ZooKeeper::new(
            self.options(vec![("127.0.0.1".into(), port)], namespace),
        ))
    }

    /// Returns a client of the test that bypasses any proxy, and uses the servers' absolute paths.
    pub async fn admin(&self) -> Client {
        Client::connect(&format!("127.0.0.1:{}", self.servers().nodes[0].port))
            .await
            .expect("a connection to the server")
    }

    /// Returns all nodes below `path`, deepest first, then `path` itself.
    pub async fn tree(admin: &Client, path: &str) -> Vec<String> {
        let (mut all, mut at) = (vec![path.to_owned()], 0);
        while at < all.len() {
            let node = all[at].clone();
            for child in admin.list_children(&node).await.unwrap_or_default() {
                all.push(format!("{node}/{child}"));
            }
            at += 1;
        }
        all.reverse();
        all
    }
}

#[async_trait(?Send)]
impl super::Target for Target {
    async fn open(&self, namespace: &str) -> Box<dyn Backend> {
        Box::new(ZooKeeper::new(
            self.options(self.servers().hosts(), namespace),
        ))
    }

    async fn unreachable(&self) -> Box<dyn Backend> {
        self.at_port(ports::free(), "dlock")
    }

    /// Does an administrator's `deleteall`: servers that lost their disks would restart their
    /// change count, and so the fences.
    async fn lose_data(&self) {
        let admin = self.admin().await;
        for node in Self::tree(&admin, &self.chroot).await {
            let _ = admin.delete(&node, None).await;
        }
    }

    fn server(&self) -> Option<&dyn super::Server> {
        Some(self)
    }

    async fn isolate(&self) {
        *self.servers.borrow_mut() = Arc::new(support::zookeeper::ZooKeeper::single());
    }

    fn zookeeper(&self) -> Option<&Target> {
        Some(self)
    }
}

#[async_trait(?Send)]
impl super::Server for Target {
    fn port(&self) -> u16 {
        self.servers().nodes[0].port
    }

    async fn through(&self, port: u16) -> Box<dyn Backend> {
        self.at_port(port, "dlock")
    }

    fn acquire_mark(&self) -> &'static str {
        // The data with which the node is created or written that renewals write.
        "\0\0\0\u{5}60000"
    }

    fn taking_mark(&self) -> &'static str {
        // The name of a node that the server completes, and the first bytes of the node's data.
        "-lock-\0\0\0"
    }

    fn changing_mark(&self) -> &'static str {
        "/hold-"
    }

    fn freeze(&self) {
        self.servers().freeze();
    }

    fn thaw(&self) {
        self.servers().thaw();
    }
}
