//! A separate server for each case, in either mode.

use async_trait::async_trait;
use dlock::{
    backends::{
        redis::{RedisOptions, RedisServer},
        tair::{Tair, TairMode, TairOptions},
    },
    lock::{Backend, Namespace},
};

use crate::support::{self, ports};

pub struct Target {
    server: support::tair::Tair,
    pub mode: TairMode,
}

impl Target {
    pub fn make(mode: TairMode) -> Self {
        Self {
            server: support::tair::Tair::start(),
            mode,
        }
    }

    pub fn server(&self) -> &support::tair::Tair {
        &self.server
    }

    pub fn client(&self, port: u16, namespace: &str) -> Box<dyn Backend> {
        let server = RedisOptions::new(RedisServer::Tcp {
            host: "127.0.0.1".into(),
            port,
        });
        let namespace = Namespace::new(namespace).expect("a namespace");
        let backend = Tair::new(TairOptions {
            mode: self.mode,
            namespace,
            ..TairOptions::new(server)
        });
        Box::new(backend)
    }
}

#[async_trait(?Send)]
impl super::Target for Target {
    async fn open(&self, namespace: &str) -> Box<dyn Backend> {
        self.client(self.server.port(), namespace)
    }

    async fn unreachable(&self) -> Box<dyn Backend> {
        self.client(ports::free(), "dlock")
    }

    async fn lose_data(&self) {
        self.server.command(&["FLUSHALL"]);
    }

    fn server(&self) -> Option<&dyn super::Server> {
        Some(self)
    }

    fn tair(&self) -> Option<&Target> {
        Some(self)
    }
}

#[async_trait(?Send)]
impl super::Server for Target {
    fn port(&self) -> u16 {
        self.server.port()
    }

    async fn through(&self, port: u16) -> Box<dyn Backend> {
        self.client(port, "dlock")
    }

    fn acquire_mark(&self) -> &'static str {
        // Renewals contain this text too, but no release does.
        "\r\n60000\r\n"
    }

    fn freeze(&self) {
        self.server.freeze();
    }

    fn thaw(&self) {
        self.server.thaw();
    }
}
