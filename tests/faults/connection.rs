//! The way to the server: failovers behind one name, dead addresses, a silent resolver, passwords that are rotated.

use std::{
    fs,
    net::{Ipv6Addr, UdpSocket},
    path::Path,
    process::Stdio,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::support::{
    self,
    deaf::Deaf,
    dlock, etcd, mariadb, must, postgres,
    process::{self, Process},
    proxy::{Fault, Proxy},
    redis, stretched,
    switch::Switch,
    zookeeper,
};

/// Longer than any case takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Jobs that run or wait while the store's server changes.
struct Jobs {
    folder: tempfile::TempDir,
    all: Vec<(&'static str, Process)>,
    kept: Process,
}

impl Jobs {
    /// Starts a holder, a waiter for its lock, a session of `hold`, and a process with a lock of `acquire --while-pid`.
    fn start(url: &str, password_file: Option<&Path>) -> Self {
        let folder = support::folder();
        let ready = |name: &str| folder.path().join(name);
        let spawn = |words: &[&str], script: &str| {
            let mut command = dlock::command();
            command.args(words).env("DLOCK_BACKEND", url);
            if let Some(file) = password_file {
                command.env("DLOCK_PASSWORD_FILE", file);
            }
            command.args(["--", "sh", "-c", script]);
            Process::collect(command)
        };
        let key = dlock::unique("job");
        let script = format!("touch {}; sleep 7", ready("held").display());
        let holder = spawn(&["run", "-k", &key, "--ttl", "8s"], &script);
        must("the holder's command runs", LIMIT, || ready("held").exists());
        let waiter = spawn(&["run", "-k", &key, "--ttl", "8s", "-w", "40s"], "true");
        let mut held = process::command("sleep");
        held.arg("20");
        let kept = Process::start(held);
        let mut acquire = dlock::command();
        let pid = kept.pid().to_string();
        acquire.args(["acquire", "--ttl", "8s", "--while-pid", &pid, "-k", &dlock::unique("kept")]).env("DLOCK_BACKEND", url);
        if let Some(file) = password_file {
            acquire.env("DLOCK_PASSWORD_FILE", file);
        }
        acquire.stdin(Stdio::null());
        let acquired = Process::collect(acquire).wait(LIMIT);
        assert_eq!(acquired.code(), 0, "{}", acquired.stderr);
        must("the waiter waits", LIMIT, || {
            let mut inspect = dlock::command();
            inspect.args(["inspect", "--json", &key]).env("DLOCK_BACKEND", url);
            if let Some(file) = password_file {
                inspect.env("DLOCK_PASSWORD_FILE", file);
            }
            Process::collect(inspect).wait(LIMIT).stdout.contains("waiting_for")
        });
        Self { folder, all: vec![("holder", holder), ("waiter", waiter)], kept }
    }

    /// All go on as if nothing had happened.
    #[track_caller]
    fn assert_unharmed(mut self) {
        for (who, job) in self.all {
            let ended = job.wait(LIMIT);
            assert_eq!(ended.code(), 0, "{who}: {}", ended.stderr);
        }
        assert!(!self.kept.has_ended(), "the process that kept a lock was stopped");
        self.kept.signal(Signal::KILL);
        drop(self.folder);
    }
}

fn failover_of_redis(cut: bool) {
    let (old, new) = (redis::Redis::plain(), redis::Redis::plain());
    new.command(&["REPLICAOF", "127.0.0.1", &old.port.to_string()]);
    must("the replica has the data", LIMIT, || new.text(&["INFO", "replication"]).contains("master_link_status:up"));
    let name = Switch::to(old.port);
    let url = format!("redis://127.0.0.1:{}", name.port);
    let jobs = Jobs::start(&url, None);
    must("the replica has the holds", LIMIT, || new.keys().len() == old.keys().len());
    new.command(&["REPLICAOF", "NO", "ONE"]);
    old.command(&["REPLICAOF", "127.0.0.1", &new.port.to_string()]);
    name.turn(new.port);
    if cut {
        name.cut();
    }
    jobs.assert_unharmed();
    // A try that finds nothing but a replica says so.
    let replica = format!("redis://127.0.0.1:{}", old.port);
    let tried = dlock::run(&replica, &["run", "--backend-timeout", "1s", "-k", "x", "--", "true"]);
    assert_eq!(tried.code(), 78, "{}", tried.stderr);
    assert!(tried.stderr.contains("read-only replica"), "{}", tried.stderr);
    // Its copy of a hold may be out of date.
    let mut held = dlock::command();
    held.args(["run", "-k", "held", "--", "sleep", "20"]).env("DLOCK_BACKEND", format!("redis://127.0.0.1:{}", new.port));
    let held = Process::collect(held);
    must("the replica has the hold", LIMIT, || old.int(&["EXISTS", "dlock:held"]) == 1);
    let tried = dlock::run(&replica, &["run", "--backend-timeout", "1s", "-k", "held", "--", "true"]);
    assert_eq!(tried.code(), 78, "{}", tried.stderr);
    held.signal(Signal::TERM);
    let waited = dlock::run(&replica, &["run", "-w", "2s", "-k", "x", "--", "true"]);
    assert_eq!(waited.code(), 69, "{}", waited.stderr);
}

#[test]
fn a_planned_failover_of_redis_behind_one_name() {
    failover_of_redis(false);
}

#[test]
fn a_failover_of_redis_with_a_cut_behind_one_name() {
    failover_of_redis(true);
}

/// A proxy delivers requests for the lock after the run has ended, or has given up.
#[test]
fn a_late_request_takes_no_lock_for_a_run_that_is_gone() {
    let server = redis::Redis::plain();
    let proxy = Proxy::to(server.port);
    let (direct, proxied) = (server.url(), format!("redis://127.0.0.1:{}", proxy.port));
    let late = stretched(Duration::from_secs(4));
    let once: &[&str] = &["--once", "--keep", "1d"];
    let runs = [&[][..], &["-s"], &["--permits", "1"], once].map(|kind| (dlock::unique("job"), kind));
    for (key, kind) in &runs {
        let (times, status) = if *kind == once { (usize::MAX, 69) } else { (1, 0) };
        // A release does not name this key.
        proxy.trap_nth(format!("{{dlock:{key}}}:fair-readers"), 0, times, Fault::Late(late));
        let (began, sprung) = (Instant::now(), proxy.sprung());
        let ran = dlock::run(&proxied, &[&["run", "-k", key, "--backend-timeout", "2s"], *kind, &["--", "true"]].concat());
        assert_eq!(ran.code(), status, "{kind:?}: {}", ran.stderr);
        assert!(proxy.sprung() > sprung && began.elapsed() < late, "{kind:?}: {:?}", began.elapsed());
        proxy.disarm();
    }
    sleep(late * 2);
    for (key, kind) in &runs {
        let state = dlock::run(&direct, &["inspect", "--json", key]).stdout;
        assert!(state.contains(r#""holders":[]"#) && state.contains(r#""waiters":[]"#), "{kind:?}: {state}");
        let next = dlock::run(&direct, &[&["run", "-k", key], *kind, &["--", "true"]].concat());
        assert_eq!(next.code(), 0, "{kind:?}: {}", next.stderr);
    }
}

/// The data is restored to a new server, and the old one takes no writes any more.
#[test]
fn a_planned_failover_of_postgresql_behind_one_name() {
    const NAME: &str = "a_planned_failover_of_postgresql_behind_one_name";
    if let Some(why) = postgres::missing() {
        return support::skip(NAME, &why);
    }
    let (old, new) = (postgres::Postgres::plain(), postgres::Postgres::plain());
    let name = Switch::to(old.port);
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", name.port);
    assert_eq!(dlock::run(&url, &["init"]).code(), 0);
    let jobs = Jobs::start(&url, None);
    old.sql("postgres", "ALTER SYSTEM SET default_transaction_read_only = on");
    old.sql("postgres", "SELECT pg_reload_conf()");
    let program = |name: &str| postgres::program(name).unwrap().display().to_string();
    let copy = format!(
        "{} -h 127.0.0.1 -p {} -U postgres postgres | PGOPTIONS='-c default_transaction_read_only=off' {} -q -h 127.0.0.1 -p {} -U postgres postgres",
        program("pg_dump"),
        old.port,
        program("psql"),
        new.port
    );
    let mut copying = process::command("sh");
    copying.args(["-c", &copy]);
    let copied = Process::collect(copying).wait(LIMIT);
    assert_eq!(copied.code(), 0, "{}", copied.stderr);
    name.turn(new.port);
    jobs.assert_unharmed();
    let tried = dlock::run(&old.url("postgres"), &["run", "--backend-timeout", "1s", "-k", "x", "--", "true"]);
    assert_eq!(tried.code(), 78, "{}", tried.stderr);
}

/// A waiter that comes while the server is read-only waits too.
#[test]
fn a_mariadb_that_is_read_only_for_a_while() {
    if let Some(why) = mariadb::missing() {
        return support::skip("a_mariadb_that_is_read_only_for_a_while", &why);
    }
    let server = mariadb::MariaDb::plain();
    let url = server.url(&server.database());
    assert_eq!(dlock::run(&url, &["init"]).code(), 0);
    let jobs = Jobs::start(&url, None);
    server.sql("mysql", "SET GLOBAL read_only = 1");
    let late = dlock::spawn(&url, &["run", "-w", "30s", "-k", "late", "--", "true"]);
    let tried = dlock::run(&url, &["run", "--backend-timeout", "1s", "-k", "x", "--", "true"]);
    assert_eq!(tried.code(), 78, "{}", tried.stderr);
    server.sql("mysql", "SET GLOBAL read_only = 0");
    let late = late.wait(LIMIT);
    assert_eq!(late.code(), 0, "{}", late.stderr);
    jobs.assert_unharmed();
}

/// Writes a password file that only its owner can read.
fn write_password(file: &Path, password: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(file, password).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

fn rotation_on_redis(cut: bool) {
    let server = redis::Redis::plain();
    let folder = support::folder();
    let file = folder.path().join("password");
    let user = ["ACL", "SETUSER", "app", "reset", "on", "~*", "&*", "+@all"];
    server.command(&[&user[..], &[">old"]].concat());
    write_password(&file, "old\n");
    let jobs = Jobs::start(&format!("redis://app@127.0.0.1:{}", server.port), Some(&file));
    // The server comes first, so that the old password is refused for a while.
    server.command(&["ACL", "SETUSER", "app", "resetpass", ">new"]);
    if cut {
        server.command(&["CLIENT", "KILL", "USER", "app"]);
        std::thread::sleep(Duration::from_secs(1));
    }
    write_password(&file, "new\n");
    jobs.assert_unharmed();
}

#[test]
fn a_password_of_redis_is_rotated() {
    rotation_on_redis(false);
}

#[test]
fn a_password_of_redis_is_rotated_with_a_cut() {
    rotation_on_redis(true);
}

#[test]
fn a_password_of_postgresql_is_rotated_with_a_cut() {
    if let Some(why) = postgres::missing() {
        return support::skip("a_password_of_postgresql_is_rotated_with_a_cut", &why);
    }
    let server = postgres::Postgres::with(postgres::Options { passwords: true, ..Default::default() });
    server.sql("postgres", "CREATE ROLE app LOGIN PASSWORD 'old'");
    server.sql("postgres", "GRANT ALL ON SCHEMA public TO app");
    let folder = support::folder();
    let file = folder.path().join("password");
    write_password(&file, "old\n");
    let url = format!("postgres://app@127.0.0.1:{}/postgres", server.port);
    let file_option = ["--password-file", file.to_str().unwrap()];
    assert_eq!(dlock::run(&url, &[&file_option[..], &["init"]].concat()).code(), 0);
    let jobs = Jobs::start(&url, Some(&file));
    server.sql("postgres", "ALTER ROLE app PASSWORD 'new'");
    server.sql("postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'");
    std::thread::sleep(Duration::from_secs(1));
    write_password(&file, "new\n");
    jobs.assert_unharmed();
}

/// A role is without its rights for a moment.
#[test]
fn the_rights_of_an_etcd_role_come_back() {
    if !support::have("the_rights_of_an_etcd_role_come_back", &["etcd", "etcdctl"]) {
        return;
    }
    let mut server = etcd::Etcd::plain();
    server.authenticate("app", "secret", &["dlock"]);
    let folder = support::folder();
    let file = folder.path().join("password");
    write_password(&file, "secret\n");
    let url = format!("etcd://app@127.0.0.1:{}", server.port());
    let jobs = Jobs::start(&url, Some(&file));
    server.ctl(&["role", "revoke-permission", "locks", "--prefix=true", "dlock"]);
    std::thread::sleep(Duration::from_secs(1));
    server.ctl(&["role", "grant-permission", "locks", "--prefix=true", "readwrite", "dlock"]);
    jobs.assert_unharmed();
}

/// The first address of the name does not answer, and the second one leads to the server.
#[track_caller]
fn with_a_dead_address(port: u16, url: impl Fn(u16) -> String, init: bool) {
    let dead = Deaf::new();
    let _live = Switch::at((Ipv6Addr::LOCALHOST.into(), dead.port), port);
    let url = url(dead.port);
    if init {
        assert_eq!(dlock::run(&url, &["init"]).code(), 0);
    }
    let began = Instant::now();
    let ran = dlock::run(&url, &["run", "-k", "dead", "--", "true"]);
    assert_eq!(ran.code(), 0, "{url}: {}", ran.stderr);
    assert!(began.elapsed() < stretched(Duration::from_secs(3)), "{url}: {:?}", began.elapsed());
}

#[test]
fn a_dead_address_before_redis() {
    let server = redis::Redis::plain();
    with_a_dead_address(server.port, |port| format!("redis://localhost:{port}"), false);
}

#[test]
fn a_dead_address_before_postgresql() {
    if let Some(why) = postgres::missing() {
        return support::skip("a_dead_address_before_postgresql", &why);
    }
    let server = postgres::Postgres::plain();
    with_a_dead_address(server.port, |port| format!("postgres://postgres@localhost:{port}/postgres"), true);
}

#[test]
fn a_dead_address_before_mariadb() {
    if let Some(why) = mariadb::missing() {
        return support::skip("a_dead_address_before_mariadb", &why);
    }
    let server = mariadb::MariaDb::plain();
    let url = server.url(&server.database());
    for mode in ["", "?mode=row", "?mode=advisory"] {
        with_a_dead_address(
            server.port,
            |port| url.replace(&format!("127.0.0.1:{}", server.port), &format!("localhost:{port}")) + mode,
            true,
        );
    }
}

#[test]
fn a_dead_address_before_etcd() {
    if !support::have("a_dead_address_before_etcd", &["etcd"]) {
        return;
    }
    let server = etcd::Etcd::plain();
    with_a_dead_address(server.port(), |port| format!("etcd://localhost:{port}"), false);
}

#[test]
fn a_dead_address_before_zookeeper() {
    if let Some(why) = zookeeper::ZooKeeper::missing() {
        return support::skip("a_dead_address_before_zookeeper", &why);
    }
    let server = zookeeper::ZooKeeper::single();
    with_a_dead_address(server.hosts()[0].1, |port| format!("zookeeper://localhost:{port}"), false);
}

/// A resolver that does not answer is named as the reason, and delays no signal.
#[test]
fn a_silent_resolver() {
    const ADDRESS: &str = "127.153.0.1";
    const NAME: &str = "a_silent_resolver";
    let Ok(_silent) = UdpSocket::bind((ADDRESS, 53)) else { return support::skip(NAME, "only root may be a resolver") };
    let folder = support::folder();
    let file = folder.path().join("resolv.conf");
    fs::write(&file, format!("nameserver {ADDRESS}\n")).unwrap();
    let start = |options: &str| {
        let script = format!(
            "mount --bind {} /etc/resolv.conf && exec {} run -b redis://db.example:1 -k j {options} -- true",
            file.display(),
            dlock::binary().display()
        );
        let mut command = process::command("unshare");
        command.args(["--mount", "sh", "-c", &script]).stdin(Stdio::null());
        Process::collect(command)
    };
    let began = Instant::now();
    let tried = start("").wait(LIMIT);
    if tried.stderr.contains("mount") {
        return support::skip(NAME, &tried.stderr);
    }
    assert_eq!(tried.code(), 69, "{}", tried.stderr);
    assert!(tried.stderr.contains("name can't be resolved") && !tried.stderr.contains("port"), "{}", tried.stderr);
    assert!(began.elapsed() < stretched(Duration::from_secs(6)), "{:?}", began.elapsed());
    let waiting = start("-w 30s");
    std::thread::sleep(Duration::from_secs(2));
    waiting.signal(Signal::TERM);
    let began = Instant::now();
    let ended = waiting.wait(LIMIT);
    assert_eq!(ended.code(), 143, "{}", ended.stderr);
    assert!(began.elapsed() < stretched(Duration::from_millis(700)), "{:?}", began.elapsed());
}
