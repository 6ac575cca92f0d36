//! A Redis server for one test, and requests to it.

use std::{ops::Deref, time::Duration};

use support::{
    redis::{Options, Redis as Process},
    tls::Certificates,
};

use crate::{
    backends::redis::{Redis, RedisOptions, RedisServer},
    lock::{Attempt, Backend as _, Busy, Entry, Grant, Key, Request, Ttl},
};

pub struct TestServer(Process);

impl Deref for TestServer {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.0
    }
}

impl TestServer {
    pub fn start() -> Self {
        Self(Process::plain())
    }

    /// Starts a server with more lines in its configuration.
    pub fn with(config: &[&str]) -> Self {
        Self(Process::with(Options {
            config: config.iter().map(ToString::to_string).collect(),
            ..Options::default()
        }))
    }

    /// Starts a server that also listens on a TLS port, and asks clients for certificates.
    pub fn over_tls(certificates: Certificates) -> Self {
        Self(Process::with(Options {
            certificates: Some(certificates),
            config: vec!["tls-auth-clients yes".into()],
            ..Options::default()
        }))
    }

    pub fn options(&self) -> RedisOptions {
        RedisOptions::new(RedisServer::Tcp {
            host: "127.0.0.1".into(),
            port: self.port,
        })
    }

    pub fn backend(&self) -> Redis {
        Redis::new(self.options())
    }

    /// Returns how many commands the server has run, including those in scripts, without the tests'
    /// own queries.
    pub fn commands(&self) -> Vec<(String, u64)> {
        let own = |name: &str| name == "info" || name.starts_with("config");
        let mut counts = self.calls();
        counts.retain(|(name, _)| !own(name));
        counts
    }
}

pub fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

pub fn ttl(ms: u64) -> Ttl {
    Ttl::new(Duration::from_millis(ms)).unwrap()
}

pub fn request(name: &str) -> Request {
    Request::new(key(name), ttl(10_000))
}

pub fn waiting(name: &str) -> Request {
    Request {
        waiting: true,
        ..request(name)
    }
}

/// Returns a request to enter the hold of `outer`.
pub fn nested(outer: &Request) -> Request {
    Request {
        token: outer.token.nested(),
        entry: Entry::Reenter,
        ..outer.clone()
    }
}

pub async fn granted(backend: &mut Redis, request: &Request) -> Grant {
    match backend.try_acquire(request).await.unwrap() {
        Attempt::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub async fn busy(backend: &mut Redis, request: &Request) -> Busy {
    match backend.try_acquire(request).await.unwrap() {
        Attempt::Busy(busy) => busy,
        other => panic!("not busy: {other:?}"),
    }
}

#[allow(clippy::disallowed_methods)] // tests wait
pub async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
