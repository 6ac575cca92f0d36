//! A separate server for each case.

use std::cell::RefCell;

use async_trait::async_trait;
use dlock::{
    backends::redis::{Redis, RedisOptions, RedisServer},
    lock::{Backend, Namespace},
};

use crate::support::{self, ports};

pub struct Target(RefCell<support::redis::Redis>);

fn client(port: u16, namespace: &str) -> Box<dyn Backend> {
    let mut options = RedisOptions::new(RedisServer::Tcp {
        host: "127.0.0.1".into(),
        port,
    });
    options.namespace = Namespace::new(namespace).expect("a namespace");
    let backend = Redis::new(options);
    Box::new(backend)
}

impl Target {
    pub fn make() -> Self {
        Self(RefCell::new(support::redis::Redis::plain()))
    }

    pub fn server(&self) -> std::cell::Ref<'_, support::redis::Redis> {
        self.0.borrow()
    }

    pub fn server_mut(&self) -> std::cell::RefMut<'_, support::redis::Redis> {
        self.0.borrow_mut()
    }
}

#[async_trait(?Send)]
impl super::Target for Target {
    async fn open(&self, namespace: &str) -> Box<dyn Backend> {
        client(self.server().port, namespace)
    }

    async fn unreachable(&self) -> Box<dyn Backend> {
        client(ports::free(), "dlock")
    }

    async fn lose_data(&self) {
        self.server().command(&["FLUSHALL"]);
    }

    fn server(&self) -> Option<&dyn super::Server> {
        Some(self)
    }

    fn redis(&self) -> Option<&Target> {
        Some(self)
    }
}

#[async_trait(?Send)]
impl super::Server for Target {
    fn port(&self) -> u16 {
        self.server().port
    }

    async fn through(&self, port: u16) -> Box<dyn Backend> {
        client(port, "dlock")
    }

    fn acquire_mark(&self) -> &'static str {
        // A release names the lock too, but only an acquire sets a TTL.
        "\r\n60000\r\n"
    }

    fn freeze(&self) {
        self.server().freeze();
    }

    fn thaw(&self) {
        self.server().thaw();
    }
}
