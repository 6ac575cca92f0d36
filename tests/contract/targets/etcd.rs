//! One etcd for all cases, each in its own namespaces: a single member, or three, any of which a
//! client may use.

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

/// The servers that cases share.
static SHARED: [Mutex<Option<Arc<support::etcd::Etcd>>>; 2] = [Mutex::new(None), Mutex::new(None)];

/// Ends the shared servers.
pub fn end() {
    for shared in &SHARED {
        shared
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take();
    }
}

fn shared(members: usize) -> Arc<support::etcd::Etcd> {
    let mut shared = SHARED[usize::from(members > 1)]
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let start = || {
        Arc::new(support::etcd::Etcd::with(support::etcd::Options {
            members,
            ..Default::default()
        }))
    };
    Arc::clone(shared.get_or_insert_with(start))
}

pub struct Target {
    etcd: RefCell<Arc<support::etcd::Etcd>>,
    /// The prefix of this case's namespaces.
    case: String,
}

/// Returns a client of the members on these ports.
pub fn client(ports: &[u16], namespace: &str) -> Box<dyn Backend> {
    let mut options = EtcdOptions::new(
        ports
            .iter()
            .map(|port| ("127.0.0.1".into(), *port))
            .collect(),
    );
    options.namespace = Namespace::new(namespace).expect("a namespace");
    Box::new(Etcd::new(options))
}

impl Target {
    pub fn make(members: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // All names have the same width, so none is a prefix of another.
        let case = format!("case{:04}", NEXT.fetch_add(1, Ordering::Relaxed));
        Self {
            etcd: RefCell::new(shared(members)),
            case,
        }
    }

    pub fn etcd(&self) -> Arc<support::etcd::Etcd> {
        Arc::clone(&self.etcd.borrow())
    }

    /// Returns this case's namespace for a name, which may be empty.
    pub fn namespace(&self, name: &str) -> String {
        if name.is_empty() {
            self.case.clone()
        } else {
            format!("{}.{name}", self.case)
        }
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

    /// Deletes the keys but not the cluster's revision, from which fences come: a cluster that lost
    /// its disks is another one.
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

    /// The request for a one-minute lease with an id: no other request has both.
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
