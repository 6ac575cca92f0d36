//! One etcd for all cases, each in namespaces of its own: a member alone, or three of which each client asks any.

use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use async_trait::async_trait;
use dlock::{
    backends::etcd::{Etcd, EtcdOptions},
    lock::{Backend, Namespace},
};

use crate::support::{self, ports};

/// The servers that cases share, while there are any.
static SHARED: [Mutex<Option<Arc<support::etcd::Etcd>>>; 2] = [Mutex::new(None), Mutex::new(None)];

/// Ends what cases shared.
pub fn end() {
    for shared in &SHARED {
        shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    }
}

fn shared(members: usize) -> Arc<support::etcd::Etcd> {
    let mut shared = SHARED[usize::from(members > 1)].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let start = || Arc::new(support::etcd::Etcd::with(support::etcd::Options { members, ..Default::default() }));
    Arc::clone(shared.get_or_insert_with(start))
}

pub struct Target {
    etcd: RefCell<Arc<support::etcd::Etcd>>,
    /// What this case's namespaces begin with.
    case: String,
}

/// A client of the members on these ports.
pub fn client(ports: &[u16], namespace: &str) -> Box<dyn Backend> {
    let mut options = EtcdOptions::new(ports.iter().map(|port| ("127.0.0.1".into(), *port)).collect());
    options.namespace = Namespace::new(namespace).expect("a namespace");
    Box::new(Etcd::new(options))
}

impl Target {
    pub fn make(members: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Of one width, so that none is the beginning of another.
        let case = format!("case{:04}", NEXT.fetch_add(1, Ordering::Relaxed));
        Self { etcd: RefCell::new(shared(members)), case }
    }

    pub fn etcd(&self) -> Arc<support::etcd::Etcd> {
        Arc::clone(&self.etcd.borrow())
    }

    /// The namespace that this case knows by a name, the empty one too.
    pub fn namespace(&self, name: &str) -> String {
        if name.is_empty() { self.case.clone() } else { format!("{}.{name}", self.case) }
    }
}

#[async_trait(?Send)]
impl super::Target for Target {
    async fn open(&self, namespace: &str) -> Box<dyn Backend> {
        client(&self.etcd().ports(), &self.namespace(namespace))
    }

    async fn unreachable(&self) -> Box<dyn Backend> {
        client(&[ports::free()], "dlock")
    }

    /// Not the revision, which is all of the cluster's, and with it the fences: one that lost its disks is another cluster.
    async fn lose_data(&self) {
        self.etcd().ctl(&["del", "--prefix", &self.case]);
    }

    async fn isolate(&self) {
        *self.etcd.borrow_mut() = Arc::new(support::etcd::Etcd::plain());
    }

    fn server(&self) -> Option<&dyn super::Server> {
        (self.etcd().ports().len() == 1).then_some(self)
    }

    fn etcd(&self) -> Option<&Target> {
        Some(self)
    }
}

#[async_trait(?Send)]
impl super::Server for Target {
    fn port(&self) -> u16 {
        self.etcd().port()
    }

    async fn through(&self, port: u16) -> Box<dyn Backend> {
        client(&[port], &self.namespace("dlock"))
    }

    /// The grant of a lease of a minute with an id: nothing else has both.
    fn acquire_mark(&self) -> &'static str {
        "\u{8}\u{3c}\u{10}"
    }

    fn freeze(&self) {
        self.etcd().freeze();
    }

    fn thaw(&self) {
        self.etcd().thaw();
    }
}
