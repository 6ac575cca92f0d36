//! The stores that the faults are injected into, one per test.

use std::time::Duration;

use tempfile::TempDir;

pub use crate::deployments::{cluster, own_cluster, own_sentinel, sentinel};
pub use crate::majority::redlock;
use crate::support::{
    self, dlock,
    etcd::Etcd,
    mariadb::{self, MariaDb, Product},
    postgres::{self, Postgres},
    proxy::Proxy,
    redis::Redis,
    tair::Tair,
    zookeeper::ZooKeeper,
};

/// A store for locks.
pub trait Store {
    /// Returns the URL for `--backend`.
    fn url(&self) -> String;
}

/// A store behind one TCP port, with a server that can fail.
pub trait Server: Store {
    /// Returns the server's port on this host.
    fn port(&self) -> u16;

    /// Returns the URL of the store through `proxy`.
    fn through(&self, proxy: &Proxy) -> String;

    /// Stops the server's processes.
    fn freeze(&self);

    /// Resumes the server's processes.
    fn thaw(&self);

    /// Kills the server.
    fn kill(&mut self);

    /// Restarts the server with all data that it has confirmed.
    fn restart(&mut self);

    /// Restarts the server without data.
    fn restart_empty(&mut self);

    /// Takes the lock `key` away from its holder, as an administrator can. The holder stays
    /// connected if possible.
    fn take_away(&self, key: &str);

    /// Whether fences still rise after the server has lost all data.
    fn keeps_fences(&self) -> bool {
        true
    }
}

/// Makes one test per function and store.
macro_rules! on_every_store {
    ($($name:ident),* $(,)?) => {
        $crate::stores::on_store!(sqlite: $($name),*);
        $crate::stores::on_store!(redis: $($name),*);
        $crate::stores::on_store!(sentinel: $($name),*);
        $crate::stores::on_store!(cluster: $($name),*);
        $crate::stores::on_store!(redlock: $($name),*);
        $crate::stores::on_store!(tair: $($name),*);
        $crate::stores::on_store!(etcd: $($name),*);
        $crate::stores::on_store!(postgres: $($name),*);
        $crate::stores::on_store!(mariadb: $($name),*);
        $crate::stores::on_store!(mysql: $($name),*);
        $crate::stores::on_store!(zookeeper: $($name),*);
    };
}
pub(crate) use on_every_store;

/// Makes one test per function and store with a server.
macro_rules! on_every_server {
    ($($name:ident),* $(,)?) => {
        $crate::stores::on_store!(redis: $($name),*);
        $crate::stores::on_store!(tair: $($name),*);
        $crate::stores::on_store!(tair_version: $($name),*);
        $crate::stores::on_store!(etcd: $($name),*);
        $crate::stores::on_store!(postgres: $($name),*);
        $crate::stores::on_store!(mariadb: $($name),*);
        $crate::stores::on_store!(mysql: $($name),*);
        $crate::stores::on_store!(zookeeper: $($name),*);
    };
}
pub(crate) use on_every_server;

macro_rules! on_store {
    ($store:ident: $($name:ident),*) => {
        mod $store {
            $(#[test]
            fn $name() {
                if let Some(mut store) = $crate::stores::$store(concat!(stringify!($store), "::", stringify!($name))) {
                    super::$name(&mut store);
                }
            })*
        }
    };
}
pub(crate) use on_store;

pub struct Sqlite(TempDir);

#[allow(
    clippy::unnecessary_wraps,
    reason = "the same signature as for stores that may be missing"
)]
pub fn sqlite(_: &str) -> Option<Sqlite> {
    Some(Sqlite(support::folder()))
}

impl Store for Sqlite {
    fn url(&self) -> String {
        format!("sqlite://{}", self.0.path().join("locks.db").display())
    }
}

/// A durable server.
pub fn redis(test: &str) -> Option<Redis> {
    support::have(test, &["redis-server"]).then(Redis::durable)
}

impl Store for Redis {
    fn url(&self) -> String {
        Redis::url(self)
    }
}

impl Server for Redis {
    fn port(&self) -> u16 {
        self.port
    }

    fn through(&self, proxy: &Proxy) -> String {
        format!("redis://{}:{}/0", proxy.host, proxy.port)
    }

    fn freeze(&self) {
        Redis::freeze(self);
    }

    fn thaw(&self) {
        Redis::thaw(self);
    }

    fn kill(&mut self) {
        Redis::kill(self);
    }

    fn restart(&mut self) {
        Redis::restart(self);
    }

    fn restart_empty(&mut self) {
        Redis::restart_empty(self);
    }

    fn take_away(&self, key: &str) {
        assert_eq!(self.int(&["DEL", &format!("dlock:{key}")]), 1);
    }
}

/// A Tair server, or its imitation.
pub struct TairServer {
    server: Tair,
    mode: &'static str,
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "the same signature as for stores that may be missing"
)]
pub fn tair(_: &str) -> Option<TairServer> {
    Some(TairServer {
        server: Tair::start(),
        mode: "plain",
    })
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "the same signature as for stores that may be missing"
)]
pub fn tair_version(_: &str) -> Option<TairServer> {
    Some(TairServer {
        server: Tair::start(),
        mode: "version",
    })
}

impl Store for TairServer {
    fn url(&self) -> String {
        format!("tair://127.0.0.1:{}?mode={}", self.server.port(), self.mode)
    }
}

impl Server for TairServer {
    fn port(&self) -> u16 {
        self.server.port()
    }

    fn through(&self, proxy: &Proxy) -> String {
        format!("tair://{}:{}?mode={}", proxy.host, proxy.port, self.mode)
    }

    fn freeze(&self) {
        self.server.freeze();
    }

    fn thaw(&self) {
        self.server.thaw();
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn restart(&mut self) {
        self.server.restart();
    }

    fn restart_empty(&mut self) {
        self.server.restart_empty();
    }

    fn take_away(&self, key: &str) {
        assert_eq!(
            self.server.command(&["DEL", &format!("dlock:{key}")]),
            redis::Value::Int(1)
        );
    }
}

/// A single member, which is durable like every etcd.
pub fn etcd(test: &str) -> Option<Etcd> {
    support::have(test, &Etcd::PROGRAMS).then(Etcd::plain)
}

impl Store for Etcd {
    fn url(&self) -> String {
        Etcd::url(self)
    }
}

impl Server for Etcd {
    fn port(&self) -> u16 {
        Etcd::port(self)
    }

    fn through(&self, proxy: &Proxy) -> String {
        format!("etcd://{}:{}", proxy.host, proxy.port)
    }

    fn freeze(&self) {
        Etcd::freeze(self);
    }

    fn thaw(&self) {
        Etcd::thaw(self);
    }

    fn kill(&mut self) {
        Etcd::kill(self);
    }

    fn restart(&mut self) {
        Etcd::restart(self);
    }

    fn restart_empty(&mut self) {
        Etcd::restart_empty(self);
    }

    fn take_away(&self, key: &str) {
        let gone = self.ctl(&["del", "--prefix", &format!("dlock/{key}/")]);
        assert_eq!(gone.trim(), "1");
    }

    /// An empty etcd is a new cluster whose revision starts again.
    fn keeps_fences(&self) -> bool {
        false
    }
}

/// A PostgreSQL database and its lock mode.
pub struct Database {
    server: Postgres,
    parameters: &'static str,
}

fn database(test: &str, parameters: &'static str) -> Option<Database> {
    if let Some(why) = postgres::missing() {
        support::skip(test, &why);
        return None;
    }
    let database = Database {
        server: Postgres::with(postgres::Options {
            durable: true,
            ..Default::default()
        }),
        parameters,
    };
    database.create_tables();
    Some(database)
}

/// Rows with an expiry.
pub fn postgres(test: &str) -> Option<Database> {
    database(test, "")
}

/// Rows locked by transactions.
pub fn postgres_row(test: &str) -> Option<Database> {
    database(test, "&mode=row")
}

/// Advisory locks.
pub fn postgres_advisory(test: &str) -> Option<Database> {
    database(test, "&mode=advisory")
}

impl Database {
    fn create_tables(&self) {
        let made = dlock::run(&self.url(), &["init"]);
        assert_eq!(made.code(), 0, "{}", made.stderr);
    }

    fn at(&self, host: &str, port: u16) -> String {
        format!(
            "postgres://postgres@{host}:{port}/postgres?sslmode=disable{}",
            self.parameters
        )
    }
}

impl Store for Database {
    fn url(&self) -> String {
        self.at("127.0.0.1", self.server.port)
    }
}

impl Server for Database {
    fn port(&self) -> u16 {
        self.server.port
    }

    fn through(&self, proxy: &Proxy) -> String {
        self.at(&proxy.host.to_string(), proxy.port)
    }

    fn freeze(&self) {
        self.server.freeze();
    }

    fn thaw(&self) {
        self.server.thaw();
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn restart(&mut self) {
        self.server.restart();
    }

    fn restart_empty(&mut self) {
        self.server.restart_empty();
        self.create_tables();
    }

    fn take_away(&self, key: &str) {
        let sql = if self.parameters.is_empty() {
            format!(
                "UPDATE dlock SET lock_until = timezone('utc', clock_timestamp()) WHERE name = 'dlock:{key}' RETURNING 1"
            )
        } else {
            format!(
                "SELECT pg_terminate_backend(pid) FROM dlock_sessions WHERE name = 'dlock:{key}'"
            )
        };
        assert_eq!(self.server.sql(postgres::USER, &sql).len(), 1);
    }
}

/// A database of MariaDB or MySQL, and its lock mode.
pub struct Schema {
    server: MariaDb,
    parameters: &'static str,
}

fn schema(test: &str, product: Product, parameters: &'static str) -> Option<Schema> {
    if let Some(why) = product.missing() {
        if product == Product::MySql {
            support::say(&format!("SKIPPED {test}: {why}"));
        } else {
            support::skip(test, &why);
        }
        return None;
    }
    let server = MariaDb::with(mariadb::Options {
        product,
        durable: true,
        ..Default::default()
    });
    let schema = Schema { server, parameters };
    schema.create_tables();
    Some(schema)
}

/// Rows with an expiry.
pub fn mariadb(test: &str) -> Option<Schema> {
    schema(test, Product::MariaDb, "")
}

/// Rows locked by transactions.
pub fn mariadb_row(test: &str) -> Option<Schema> {
    schema(test, Product::MariaDb, "&mode=row")
}

/// `GET_LOCK`.
pub fn mariadb_advisory(test: &str) -> Option<Schema> {
    schema(test, Product::MariaDb, "&mode=advisory")
}

/// As [`mariadb`], on MySQL itself.
pub fn mysql(test: &str) -> Option<Schema> {
    schema(test, Product::MySql, "")
}

/// As [`mariadb_row`], on MySQL itself.
pub fn mysql_row(test: &str) -> Option<Schema> {
    schema(test, Product::MySql, "&mode=row")
}

/// As [`mariadb_advisory`], on MySQL itself.
pub fn mysql_advisory(test: &str) -> Option<Schema> {
    schema(test, Product::MySql, "&mode=advisory")
}

impl Schema {
    fn create_tables(&self) {
        self.server
            .sql("mysql", "CREATE DATABASE IF NOT EXISTS app");
        let made = dlock::run(&self.url(), &["init"]);
        assert_eq!(
            made.code(),
            0,
            "{}\nthe server's log:\n{}",
            made.stderr,
            self.server.log()
        );
    }

    fn at(&self, host: &str, port: u16) -> String {
        format!(
            "mariadb://root@{host}:{port}/app?ssl-mode=DISABLED{}",
            self.parameters
        )
    }
}

impl Store for Schema {
    fn url(&self) -> String {
        self.at("127.0.0.1", self.server.port)
    }
}

impl Server for Schema {
    fn port(&self) -> u16 {
        self.server.port
    }

    fn through(&self, proxy: &Proxy) -> String {
        self.at(&proxy.host.to_string(), proxy.port)
    }

    fn freeze(&self) {
        self.server.freeze();
    }

    fn thaw(&self) {
        self.server.thaw();
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn restart(&mut self) {
        self.server.restart();
    }

    fn restart_empty(&mut self) {
        self.server.restart();
        self.server.sql("mysql", "DROP DATABASE app");
        self.create_tables();
    }

    fn take_away(&self, key: &str) {
        if self.parameters.is_empty() {
            let sql = format!(
                "UPDATE dlock SET lock_until = UTC_TIMESTAMP(6) WHERE name = 'dlock:{key}'; SELECT ROW_COUNT()"
            );
            assert_eq!(self.server.text("app", &sql), "1");
        } else {
            let id = self.server.text(
                "app",
                &format!("SELECT session FROM dlock_sessions WHERE name = 'dlock:{key}'"),
            );
            self.server.sql("app", &format!("KILL {id}"));
        }
    }
}

pub fn zookeeper(test: &str) -> Option<ZooKeeper> {
    match ZooKeeper::missing() {
        None => Some(ZooKeeper::single()),
        Some(why) => {
            support::skip(test, &why);
            None
        }
    }
}

impl Store for ZooKeeper {
    fn url(&self) -> String {
        ZooKeeper::url(self)
    }
}

impl Server for ZooKeeper {
    fn port(&self) -> u16 {
        self.nodes[0].port
    }

    fn through(&self, proxy: &Proxy) -> String {
        format!("zookeeper://{}:{}", proxy.host, proxy.port)
    }

    fn freeze(&self) {
        ZooKeeper::freeze(self);
    }

    fn thaw(&self) {
        ZooKeeper::thaw(self);
    }

    fn kill(&mut self) {
        ZooKeeper::kill(self);
    }

    fn restart(&mut self) {
        self.start();
    }

    fn restart_empty(&mut self) {
        ZooKeeper::restart_empty(self);
    }

    /// The fence is a transaction number of the ensemble, which restarts with the data.
    fn keeps_fences(&self) -> bool {
        false
    }

    fn take_away(&self, key: &str) {
        self.delete_contender(&format!("/dlock/{key}"));
    }
}

/// Runs a short command many times on servers one of which doesn't answer.
pub fn run_with_one_silent_server(url: &str) {
    let runs = support::long_or(200, 24);
    let mut took = Vec::new();
    for nth in 0..runs {
        let key = format!("job-{nth}");
        let ended = dlock::run(url, &["run", "-k", &key, "--skew-guard", "0", "--", "true"]);
        assert_eq!((ended.code(), ended.stderr.as_str()), (0, ""), "run {nth}");
        took.push(ended.took);
    }
    took.sort_unstable();
    let (usual, longest) = (took[0], took[took.len() - 1]);
    assert!(
        longest < usual + Duration::from_millis(1500) * support::slowness(),
        "{took:?}"
    );
    assert!(
        dlock::run(url, &["list"]).stdout.is_empty(),
        "a lock is left over"
    );
}
