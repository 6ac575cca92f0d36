//! Stores behind an address that stays while their servers and passwords change.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use crate::support::{
    self, dlock, etcd,
    mariadb::{self, Product},
    must,
    postgres::{self, Postgres},
    process::{self, Process},
    redis::Redis,
    redlock::NODES,
    tair::Tair,
    zookeeper::{self, ZooKeeper},
};

/// The user that all places know, and its first password.
pub const USER: &str = "app";
pub const PASSWORD: &str = "old";
const LIMIT: Duration = Duration::from_secs(60);

/// A store whose address leads to its first server, or to all of them.
pub trait Place: Send + Sync {
    /// The servers' ports: one for each address that the URL names.
    fn ports(&self) -> Vec<u16>;

    /// Returns a URL for each kind of lock of the store.
    fn urls(&self, addresses: &[String]) -> Vec<String>;

    /// Changes the user's password.
    fn set_password(&self, password: &str);

    /// Takes the user's login or rights away, in the nth of the store's ways, and gives back what
    /// was taken before. Returns the status of a run at this time; `None` if there are no more
    /// ways.
    fn shut_out(&self, nth: usize) -> Option<i32>;

    /// Ends the first server's service, without a word if `silently` and if the store has such a
    /// way. Returns the status of a run that finds no other server, unless this one is silent.
    fn demote(&mut self, _silently: bool) -> Option<i32> {
        unreachable!("no second server")
    }

    /// Makes the second server serve, with all data. Returns its port.
    fn promote(&mut self) -> u16 {
        unreachable!("no second server")
    }
}

/// Starts a place with a second server, or without one. `None` if its programs are not installed.
pub type Start = fn(test: &str, two: bool) -> Option<Box<dyn Place>>;

/// Writes a password file that only its owner can read.
pub fn write_password(file: &Path, password: &str) {
    fs::write(file, format!("{password}\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

fn run(command: std::process::Command) {
    let ended = Process::collect(command).wait(LIMIT);
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
}

fn shell(script: &str) {
    let mut command = process::command("sh");
    command.args(["-c", script]);
    run(command);
}

/// One server that speaks Redis' protocol, and a replica.
struct OneRedis<S>(Vec<S>);

/// A server of Redis, or of Tair.
trait Server: Send + Sync {
    fn port(&self) -> u16;

    fn command(&self, words: &[&str]) -> redis::Value;

    fn keys(&self) -> Vec<(String, i64)>;

    /// Returns the parts of a URL for each kind of lock: before the user, and after the address.
    fn kinds(&self) -> &'static [(&'static str, &'static str)];
}

impl Server for Redis {
    fn port(&self) -> u16 {
        self.port
    }

    fn command(&self, words: &[&str]) -> redis::Value {
        Redis::command(self, words)
    }

    fn keys(&self) -> Vec<(String, i64)> {
        Redis::keys(self)
    }

    fn kinds(&self) -> &'static [(&'static str, &'static str)] {
        &[("redis", "")]
    }
}

impl Server for Tair {
    fn port(&self) -> u16 {
        Tair::port(self)
    }

    fn command(&self, words: &[&str]) -> redis::Value {
        Tair::command(self, words)
    }

    fn keys(&self) -> Vec<(String, i64)> {
        Tair::keys(self)
    }

    fn kinds(&self) -> &'static [(&'static str, &'static str)] {
        &[("tair", "?mode=plain"), ("tair", "?mode=version")]
    }
}

pub fn redis(test: &str, two: bool) -> Option<Box<dyn Place>> {
    if !support::have(test, &[Redis::PROGRAM]) {
        return None;
    }
    Some(with_replica(Redis::plain(), |_| Redis::plain(), two))
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "the same signature as for stores that may be missing"
)]
pub fn tair(_: &str, two: bool) -> Option<Box<dyn Place>> {
    Some(with_replica(Tair::start(), Tair::second, two))
}

fn with_replica<S: Server + 'static>(
    first: S,
    second: impl Fn(&S) -> S,
    two: bool,
) -> Box<dyn Place> {
    let new = two.then(|| second(&first));
    let place = OneRedis([first].into_iter().chain(new).collect());
    place.0.iter().for_each(add_user);
    if let [old, new] = &place.0[..] {
        new.command(&["REPLICAOF", "127.0.0.1", &old.port().to_string()]);
        // The first replication empties the replica, so that a key shows its end.
        old.command(&["SET", "replicated", "1"]);
        must("the replica has the data", LIMIT, || {
            new.keys() == old.keys()
        });
        old.command(&["DEL", "replicated"]);
    }
    Box::new(place)
}

fn add_user(server: &impl Server) {
    server.command(&[
        "ACL",
        "SETUSER",
        USER,
        "reset",
        "on",
        "~*",
        "&*",
        "+@all",
        &format!(">{PASSWORD}"),
    ]);
}

fn change_password(server: &impl Server, password: &str) {
    server.command(&["ACL", "SETUSER", USER, "resetpass", &format!(">{password}")]);
}

fn switch_user(server: &impl Server, nth: usize) -> Option<i32> {
    server.command(&["ACL", "SETUSER", USER, if nth == 0 { "off" } else { "on" }]);
    (nth == 0).then_some(78)
}

impl<S: Server> Place for OneRedis<S> {
    fn ports(&self) -> Vec<u16> {
        vec![self.0[0].port()]
    }

    fn urls(&self, addresses: &[String]) -> Vec<String> {
        self.0[0]
            .kinds()
            .iter()
            .map(|(scheme, rest)| format!("{scheme}://{USER}@{}{rest}", addresses[0]))
            .collect()
    }

    fn set_password(&self, password: &str) {
        change_password(&self.0[0], password);
    }

    fn shut_out(&self, nth: usize) -> Option<i32> {
        switch_user(&self.0[0], nth)
    }

    fn demote(&mut self, _: bool) -> Option<i32> {
        let [old, new] = &self.0[..] else {
            unreachable!()
        };
        must("the replica has the holds", LIMIT, || {
            new.keys().len() == old.keys().len()
        });
        new.command(&["REPLICAOF", "NO", "ONE"]);
        old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
        Some(78)
    }

    fn promote(&mut self) -> u16 {
        self.0[1].port()
    }
}

/// Redlock's servers, which have no replicas.
struct Redlock(Vec<Redis>);

pub fn redlock(test: &str, _: bool) -> Option<Box<dyn Place>> {
    support::have(test, &[Redis::PROGRAM]).then(|| {
        let nodes: Vec<_> = (0..NODES).map(|_| Redis::plain()).collect();
        nodes.iter().for_each(add_user);
        Box::new(Redlock(nodes)) as Box<dyn Place>
    })
}

impl Place for Redlock {
    fn ports(&self) -> Vec<u16> {
        self.0.iter().map(|node| node.port).collect()
    }

    fn urls(&self, addresses: &[String]) -> Vec<String> {
        vec![format!("redlock://{USER}@{}", addresses.join(","))]
    }

    fn set_password(&self, password: &str) {
        self.0
            .iter()
            .for_each(|node| change_password(node, password));
    }

    fn shut_out(&self, nth: usize) -> Option<i32> {
        self.0.iter().map(|node| switch_user(node, nth)).last()?
    }
}

/// Whether a lock of this kind belongs to a session, and ends with its connection.
pub fn is_session(url: &str) -> bool {
    url.contains("mode=row") || url.contains("mode=advisory")
}

/// The kinds of lock of a SQL server, each in a table of its own.
fn tables(url: &str) -> Vec<String> {
    ["lease", "row", "advisory"]
        .iter()
        .map(|mode| format!("{url}&mode={mode}&table=locks_{mode}"))
        .collect()
}

/// PostgreSQL, and a server to which its data is restored.
struct OnePostgres(Vec<Postgres>);

pub fn postgres(test: &str, two: bool) -> Option<Box<dyn Place>> {
    if let Some(why) = postgres::missing() {
        support::skip(test, &why);
        return None;
    }
    let options = postgres::Options {
        passwords: Some("password"),
        ..postgres::Options::default()
    };
    let place = OnePostgres(
        (0..=u8::from(two))
            .map(|_| Postgres::with(options.clone()))
            .collect(),
    );
    for server in &place.0 {
        server.sql(
            "postgres",
            &format!("CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'"),
        );
        server.sql("postgres", "CREATE DATABASE locks");
        server.sql("locks", &format!("GRANT ALL ON SCHEMA public TO {USER}"));
    }
    Some(Box::new(place))
}

impl Place for OnePostgres {
    fn ports(&self) -> Vec<u16> {
        vec![self.0[0].port]
    }

    fn urls(&self, addresses: &[String]) -> Vec<String> {
        tables(&format!(
            "postgres://{USER}@{}/locks?sslmode=disable",
            addresses[0]
        ))
    }

    fn set_password(&self, password: &str) {
        self.0[0].sql(
            "postgres",
            &format!("ALTER ROLE {USER} PASSWORD '{password}'"),
        );
    }

    fn shut_out(&self, nth: usize) -> Option<i32> {
        let (login, open, status) = [
            ("NOLOGIN", true, Some(78)),
            ("LOGIN", false, Some(69)),
            ("LOGIN", true, None),
        ][nth];
        self.0[0].sql("postgres", &format!("ALTER ROLE {USER} {login}"));
        self.0[0].sql(
            "postgres",
            &format!("ALTER DATABASE locks ALLOW_CONNECTIONS {open}"),
        );
        status
    }

    fn demote(&mut self, _: bool) -> Option<i32> {
        self.0[0].sql(
            "postgres",
            "ALTER SYSTEM SET default_transaction_read_only = on",
        );
        self.0[0].sql("postgres", "SELECT pg_reload_conf()");
        Some(78)
    }

    fn promote(&mut self) -> u16 {
        let program = |name| postgres::program(name).unwrap().display().to_string();
        let [dump, psql] = ["pg_dump", "psql"].map(program);
        let [from, to] =
            [0, 1].map(|nth| format!("-h 127.0.0.1 -p {} -U postgres locks", self.0[nth].port));
        shell(&format!(
            "{dump} {from} | PGOPTIONS='-c default_transaction_read_only=off' {psql} -q {to}"
        ));
        self.0[1].port
    }
}

/// MariaDB or MySQL, and a server to which its data is restored.
struct OneMariaDb(Vec<mariadb::MariaDb>);

pub fn mariadb(test: &str, two: bool) -> Option<Box<dyn Place>> {
    if let Some(why) = mariadb::missing() {
        support::skip(test, &why);
        return None;
    }
    Some(of_product(Product::MariaDb, two))
}

pub fn mysql(test: &str, two: bool) -> Option<Box<dyn Place>> {
    if let Some(why) = Product::MySql.missing() {
        support::say(&format!("SKIPPED {test}: {why}"));
        return None;
    }
    Some(of_product(Product::MySql, two))
}

fn of_product(product: Product, two: bool) -> Box<dyn Place> {
    let options = mariadb::Options {
        product,
        ..Default::default()
    };
    let place = OneMariaDb(
        (0..=u8::from(two))
            .map(|_| mariadb::MariaDb::with(options.clone()))
            .collect(),
    );
    for server in &place.0 {
        server.sql("mysql", "CREATE DATABASE locks");
        server.sql(
            "mysql",
            &format!("CREATE USER {USER} IDENTIFIED BY '{PASSWORD}'"),
        );
        server.sql("mysql", &format!("GRANT ALL ON locks.* TO {USER}"));
    }
    Box::new(place)
}

impl Place for OneMariaDb {
    fn ports(&self) -> Vec<u16> {
        vec![self.0[0].port]
    }

    fn urls(&self, addresses: &[String]) -> Vec<String> {
        tables(&format!(
            "mariadb://{USER}@{}/locks?ssl-mode=DISABLED",
            addresses[0]
        ))
    }

    fn set_password(&self, password: &str) {
        self.0[0].sql(
            "mysql",
            &format!("ALTER USER {USER} IDENTIFIED BY '{password}'"),
        );
    }

    fn shut_out(&self, nth: usize) -> Option<i32> {
        self.0[0].sql(
            "mysql",
            &format!("ALTER USER {USER} ACCOUNT {}", ["LOCK", "UNLOCK"][nth]),
        );
        (nth == 0).then_some(78)
    }

    fn demote(&mut self, _: bool) -> Option<i32> {
        self.0[0].sql("mysql", "SET GLOBAL read_only = 1");
        Some(78)
    }

    fn promote(&mut self) -> u16 {
        let [from, to] = [0, 1].map(|nth| {
            format!(
                "--no-defaults --user=root --socket={} locks",
                self.0[nth].socket().display()
            )
        });
        shell(&format!(
            "mariadb-dump {from} --single-transaction --skip-lock-tables | mariadb {to}"
        ));
        self.0[1].port
    }
}

/// One member of an etcd, or three.
struct Etcd(etcd::Etcd);

pub fn etcd(test: &str, two: bool) -> Option<Box<dyn Place>> {
    support::have(test, &etcd::Etcd::PROGRAMS).then(|| {
        // A member can be removed from a young cluster too.
        let arguments = vec!["--strict-reconfig-check=false"];
        let mut cluster = etcd::Etcd::with(etcd::Options {
            members: if two { 3 } else { 1 },
            arguments,
            ..etcd::Options::default()
        });
        cluster.authenticate(USER, PASSWORD, &["dlock"]);
        Box::new(Etcd(cluster)) as Box<dyn Place>
    })
}

impl Place for Etcd {
    fn ports(&self) -> Vec<u16> {
        vec![self.0.port()]
    }

    fn urls(&self, addresses: &[String]) -> Vec<String> {
        vec![format!("etcd://{USER}@{}", addresses[0])]
    }

    fn set_password(&self, password: &str) {
        let mut change = self.0.etcdctl();
        change.args(["user", "passwd", USER, "--interactive=false"]);
        let words: Vec<_> = [change.get_program()]
            .into_iter()
            .chain(change.get_args())
            .map(|word| word.to_str().unwrap())
            .collect();
        let script = format!("echo {password} | {}", words.join(" "));
        let mut command = process::command("sh");
        command.args(["-c", &script]).env_clear().envs(
            change
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        run(command);
    }

    fn shut_out(&self, nth: usize) -> Option<i32> {
        match nth {
            0 => self.0.ctl(&[
                "role",
                "revoke-permission",
                "locks",
                "--prefix=true",
                "dlock",
            ]),
            _ => self.0.ctl(&[
                "role",
                "grant-permission",
                "locks",
                "--prefix=true",
                "readwrite",
                "dlock",
            ]),
        };
        (nth == 0).then_some(78)
    }

    fn demote(&mut self, silently: bool) -> Option<i32> {
        if silently {
            self.0.freeze_member(0);
        } else {
            self.0.remove_member(0);
        }
        (!silently).then_some(69)
    }

    fn promote(&mut self) -> u16 {
        self.0.ports()[1]
    }
}

/// A ZooKeeper ensemble. Its passwords are part of the locks' owners: they are never changed.
struct OneZooKeeper(ZooKeeper);

pub fn zookeeper(test: &str, two: bool) -> Option<Box<dyn Place>> {
    if let Some(why) = ZooKeeper::missing() {
        support::skip(test, &why);
        return None;
    }
    let servers = if two { 3 } else { 1 };
    // A server that is cut off from the others serves those who only read.
    let options = zookeeper::Options {
        servers,
        apart: two,
        read_only: true,
        ..zookeeper::Options::default()
    };
    Some(Box::new(OneZooKeeper(ZooKeeper::with(options))))
}

impl Place for OneZooKeeper {
    fn ports(&self) -> Vec<u16> {
        vec![self.0.nodes[0].port]
    }

    fn urls(&self, addresses: &[String]) -> Vec<String> {
        vec![format!("zookeeper://{}", addresses[0])]
    }

    fn set_password(&self, _: &str) {
        unreachable!("see above");
    }

    fn shut_out(&self, _: usize) -> Option<i32> {
        unreachable!("a digest needs no login");
    }

    fn demote(&mut self, silently: bool) -> Option<i32> {
        if silently {
            self.0.cut_off_first();
        } else {
            self.0.nodes[0].kill();
        }
        (!silently).then_some(69)
    }

    fn promote(&mut self) -> u16 {
        self.0.nodes[1].port
    }
}

/// Returns a command of dlock with the place's password.
pub fn dlock(words: &[&str], url: &str, password_file: &Path) -> std::process::Command {
    let mut command = dlock::command();
    command.args(words).env("DLOCK_BACKEND", url);
    if url.contains(USER) {
        command.env("DLOCK_PASSWORD_FILE", password_file);
    }
    command
}
