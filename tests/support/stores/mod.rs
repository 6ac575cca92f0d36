//! The stores under test. Each file here has one store's fixture: how it is started, what its
//! kinds are called and can do, and how tests reach, break and describe it. All suites use these.

mod etcd;
mod kind;
mod mysql;
mod postgres;
mod redis;
mod redlock;
mod shared;
mod sqlite;
mod tair;
mod zookeeper;

use std::{any::Any, time::Duration};

pub use self::{
    kind::{Can, Fixture, Info, Kind, Marks, SESSIONS, USUAL},
    mysql::Schema,
    postgres::Database,
    shared::{end, keep_running},
    tair::TairServer,
};
use crate::{clock::Clock, disk::Disk, ports, proxy::Proxy};

/// The fixtures of all stores that have URLs.
pub const FIXTURES: [Fixture; 8] = [
    sqlite::FIXTURE,
    redis::FIXTURE,
    redlock::FIXTURE,
    tair::FIXTURE,
    postgres::FIXTURE,
    mysql::FIXTURE,
    zookeeper::FIXTURE,
    etcd::FIXTURE,
];

/// What a test does with its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Uses it as it is. Servers that take long to start are shared; a SQL store has its own
    /// database.
    Shared,
    /// Stops and freezes its servers, which may lose their data when they end.
    Own,
    /// Kills and restarts its servers, which keep what they have confirmed.
    Durable,
    /// The same, and sets their clock and fills their disk where that is possible.
    Faulty,
}

/// A running store; it ends with this value.
pub trait Store: Any + Send + Sync {
    /// Returns the URL with these ports of this host instead of the store's own.
    fn url_at(&self, host: &str, ports: &[u16]) -> String;

    /// Returns the ports in the URL; none if the store is a file.
    fn ports(&self) -> Vec<u16>;

    /// Returns the value with the store's servers, for cases about the stored data.
    fn servers(&self) -> &dyn Any;

    /// Returns the URL for `--backend`.
    fn url(&self) -> String {
        self.url_at("127.0.0.1", &self.ports())
    }

    /// Returns the port of the only, or first, server.
    fn port(&self) -> u16 {
        self.ports()[0]
    }

    /// Returns the URL through a proxy in front of the only server.
    fn through(&self, proxy: &Proxy) -> String {
        self.url_at(&proxy.host.to_string(), &[proxy.port])
    }

    /// Returns the URL of a store like this one, but without servers.
    fn nowhere(&self) -> String {
        let ports: Vec<u16> = self.ports().iter().map(|_| ports::free()).collect();
        self.url_at("127.0.0.1", &ports)
    }

    /// Returns the ports of servers that are not in the URL: replies name them.
    fn learned(&self) -> Vec<u16> {
        Vec::new()
    }

    /// Stops the processes of the server; of several, of those that matter most.
    fn freeze(&self) {
        panic!("this store has no server to freeze");
    }

    /// Resumes them.
    fn thaw(&self) {
        panic!("this store has no server to thaw");
    }

    /// Kills the server; of several, those that matter most.
    fn kill(&mut self) {
        panic!("this store has no server to kill");
    }

    /// Starts the servers that don't run, with all data that they have confirmed.
    fn start(&mut self) {
        panic!("this store has no server to start");
    }

    /// Kills and starts them.
    fn restart(&mut self) {
        self.kill();
        std::thread::sleep(self.shortest_outage());
        self.start();
    }

    /// Restarts the server without data.
    fn restart_empty(&mut self) {
        panic!("this store has no server that forgets");
    }

    /// Returns how long a killed server must stay away.
    fn shortest_outage(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns how long a frozen server remains unnoticed by the others.
    fn longest_freeze(&self) -> Duration {
        Duration::MAX
    }

    /// Takes the lock `key` away from its holder, as an administrator can. The holder stays
    /// connected if possible.
    fn take_away(&self, _key: &str) {
        panic!("no test takes this store's locks away");
    }

    /// Whether fences still rise after the server has lost all data.
    fn keeps_fences(&self) -> bool {
        true
    }

    /// Deletes the data whose names begin with `part`, as on a store that lost its disk.
    fn lose_data(&self, part: &str);

    /// Returns leftovers of these locks when no process holds or wants them: sessions, queue
    /// entries, files.
    fn left(&self, _keys: &[String]) -> Vec<String> {
        Vec::new()
    }

    /// Returns the server's log: a server that crashed by itself explains much.
    fn log(&self) -> String {
        String::new()
    }

    fn clock(&self) -> Option<&Clock> {
        None
    }

    fn disk(&self) -> Option<&Disk> {
        None
    }
}

/// Returns the addresses of these ports, as they stand in a URL.
fn places(host: &str, ports: &[u16]) -> String {
    let places: Vec<String> = ports.iter().map(|port| format!("{host}:{port}")).collect();
    places.join(",")
}
