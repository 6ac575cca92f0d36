//! Five independent servers for each case.

use std::cell::{Ref, RefCell, RefMut};

use async_trait::async_trait;
use dlock::{
    backends::{
        redis::{RedisOptions, RedisServer},
        redlock::{Redlock, RedlockOptions},
    },
    lock::{Backend, Namespace},
};

use crate::support::{self, ports};

pub use support::redlock::NODES;

pub struct Target(RefCell<Vec<support::redis::Redis>>);

pub fn options(ports: &[u16], namespace: &str) -> RedlockOptions {
    let node = |port: &u16| {
        RedisOptions::new(RedisServer::Tcp {
            host: "127.0.0.1".into(),
            port: *port,
        })
    };
    RedlockOptions {
        namespace: Namespace::new(namespace).expect("a namespace"),
        ..RedlockOptions::new(ports.iter().map(node).collect())
    }
}

/// Returns a client of the servers on these ports.
pub fn client(ports: &[u16], namespace: &str) -> Box<dyn Backend> {
    let backend = Redlock::new(options(ports, namespace));
    Box::new(backend)
}

impl Target {
    pub fn make() -> Self {
        Self(RefCell::new(support::redlock::Nodes::plain().0))
    }

    pub fn node(&self, n: usize) -> Ref<'_, support::redis::Redis> {
        Ref::map(self.0.borrow(), |nodes| &nodes[n])
    }

    pub fn node_mut(&self, n: usize) -> RefMut<'_, support::redis::Redis> {
        RefMut::map(self.0.borrow_mut(), |nodes| &mut nodes[n])
    }

    pub fn ports(&self) -> Vec<u16> {
        self.0.borrow().iter().map(|node| node.port).collect()
    }
}

#[async_trait(?Send)]
impl super::Target for Target {
    async fn open(&self, namespace: &str) -> Box<dyn Backend> {
        client(&self.ports(), namespace)
    }

    async fn unreachable(&self) -> Box<dyn Backend> {
        client(&[(); NODES].map(|()| ports::free()), "dlock")
    }

    async fn lose_data(&self) {
        for node in self.0.borrow().iter() {
            node.command(&["FLUSHALL"]);
        }
    }

    fn redlock(&self) -> Option<&Target> {
        Some(self)
    }
}
