//! The way to the server: failovers behind one name, dead addresses, a silent resolver, passwords
//! that are rotated.
//!
//! In each case all kinds of commands are under way at once, on every kind of lock of the store.

use std::{
    fs,
    net::{Ipv4Addr, Ipv6Addr, UdpSocket},
    path::{Path, PathBuf},
    process::Stdio,
    thread::{self, sleep},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    places::{self, PASSWORD, Place, Start, is_session, write_password},
    support::{
        self,
        deaf::Deaf,
        dlock, must, ports,
        process::{self, Ended, Process},
        proxy::{Fault, Proxy},
        redis::Redis,
        sentinel, stretched,
        switch::Switch,
        tair::Tair,
    },
};

/// The seconds of a lease that outlasts a failover: TERM comes after 9.5 s without a renewal.
const TTL: u32 = 16;
/// The time of a try that can't succeed.
const SHORT: &str = "2500ms";
/// Longer than any case takes.
const LIMIT: Duration = Duration::from_secs(30);

macro_rules! on_place {
    ($place:ident: $($name:ident),* $(,)?) => {
        mod $place {
            $(#[test]
            fn $name() {
                super::$name(concat!(stringify!($place), "::", stringify!($name)), super::places::$place);
            })*
        }
    };
}

// A failover needs a second server with the same data: Redlock has none, and loses a minority
// instead (majority.rs). Rotated: a digest password of ZooKeeper is a part of the owner of its
// locks, so that another password is another owner. What depends on no server is tried with one of
// a kind only.
on_place!(redis: a_planned_failover, a_failover_with_a_cut, a_rotated_password, a_rotated_password_and_a_cut, a_user_shut_out_for_a_while, a_dead_address, a_resolver_that_falls_silent);
on_place!(tair: a_planned_failover, a_failover_with_a_cut, a_rotated_password, a_rotated_password_and_a_cut, a_user_shut_out_for_a_while, a_dead_address, a_resolver_that_falls_silent);
on_place!(redlock: a_rotated_password, a_rotated_password_and_a_cut, a_user_shut_out_for_a_while, a_dead_address, a_resolver_that_falls_silent);
on_place!(postgres: a_planned_failover, a_failover_with_a_cut, a_rotated_password, a_rotated_password_and_a_cut, a_user_shut_out_for_a_while, a_dead_address, a_resolver_that_falls_silent);
on_place!(mariadb: a_planned_failover, a_failover_with_a_cut, a_rotated_password, a_rotated_password_and_a_cut, a_user_shut_out_for_a_while, a_dead_address, a_resolver_that_falls_silent);
on_place!(mysql: a_planned_failover, a_failover_with_a_cut, a_rotated_password, a_rotated_password_and_a_cut, a_user_shut_out_for_a_while);
on_place!(etcd: a_planned_failover, a_failover_with_a_cut, a_rotated_password, a_rotated_password_and_a_cut, a_user_shut_out_for_a_while, a_dead_address, a_resolver_that_falls_silent);
on_place!(zookeeper: a_planned_failover, a_failover_with_a_cut, a_dead_address, a_resolver_that_falls_silent);

/// The way from the clients to a place.
struct Route {
    place: Box<dyn Place>,
    switches: Vec<Switch>,
    urls: Vec<String>,
    /// The seconds that the holder's command takes, and those of all leases.
    seconds: u32,
    ttl: u32,
    folder: tempfile::TempDir,
    /// The resolver, if the clients do not use the system's.
    resolver: Option<UdpSocket>,
    /// The hosts that do not answer.
    _dead: Vec<Deaf>,
}

const NAME: &str = "db.test";

impl Route {
    fn new(place: Box<dyn Place>, host: &str, at: impl Fn(u16) -> (Switch, Option<Deaf>)) -> Self {
        let (switches, dead): (Vec<_>, Vec<_>) = place.ports().into_iter().map(at).unzip();
        let addresses: Vec<_> = switches
            .iter()
            .map(|switch| format!("{host}:{}", switch.port))
            .collect();
        let urls = place.urls(&addresses);
        let folder = support::folder();
        write_password(&folder.path().join("password"), PASSWORD);
        let busy = if support::slowness() > 2 { 2 } else { 1 };
        Self {
            place,
            switches,
            urls,
            seconds: 10 * busy,
            ttl: TTL * busy,
            folder,
            resolver: None,
            _dead: dead.into_iter().flatten().collect(),
        }
    }

    fn to(place: Box<dyn Place>) -> Self {
        Self::new(place, "127.0.0.1", |port| (Switch::to(port), None))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn password_file(&self) -> PathBuf {
        self.path("password")
    }

    fn cut(&self) {
        self.switches.iter().for_each(Switch::cut);
    }

    fn spawn(&self, url: &str, words: &[&str]) -> Process {
        let mut command = places::dlock(words, url, &self.password_file());
        command
            .env("DLOCK_TTL", format!("{}s", self.ttl))
            .env("DLOCK_BACKEND_TIMEOUT", "10s");
        if self.resolver.is_some() {
            command = resolved_by(self.folder.path(), &command);
        }
        Process::collect(command)
    }

    /// Tries to take a free lock of each kind, all at once.
    #[track_caller]
    fn assert_attempts(&self, limit: &str, status: i32) -> Vec<Ended> {
        self.assert_attempts_at(&self.urls, limit, status)
    }

    #[track_caller]
    fn assert_attempts_at(&self, urls: &[String], limit: &str, status: i32) -> Vec<Ended> {
        let start = |url| {
            self.spawn(
                url,
                &[
                    "run",
                    "--backend-timeout",
                    limit,
                    "-k",
                    &dlock::unique("try"),
                    "--",
                    "true",
                ],
            )
        };
        let attempts: Vec<_> = urls.iter().map(|url| (url, start(url))).collect();
        let judge = |(url, attempt): (&String, Process)| {
            let ended = attempt.wait(LIMIT);
            assert_eq!(ended.code(), status, "{url}: {}", ended.stderr);
            ended
        };
        attempts.into_iter().map(judge).collect()
    }
}

/// Waits until the process, or its command, has made a file.
#[track_caller]
fn await_file(file: &str, mut process: Process) -> Process {
    must("the file is there, or dlock has ended", LIMIT, || {
        Path::new(file).exists() || process.has_ended()
    });
    if Path::new(file).exists() {
        process
    } else {
        panic!("no {file}: {}", process.wait(LIMIT).stderr)
    }
}

/// Commands of all kinds on one kind of lock, which are under way.
struct Jobs {
    url: String,
    lock: String,
    /// A file that each command of the lock has to itself.
    alone: String,
    holder: Process,
    waiters: Vec<(&'static str, Process)>,
    hold: Process,
    /// A process that keeps a lock of `acquire`, where a lock outlives its session.
    kept: Option<Process>,
    broken: Process,
    breaking: Process,
}

impl Jobs {
    fn start(route: &Route, nth: usize) -> Self {
        let url = route.urls[nth].clone();
        let file = |name: &str| route.path(&format!("{nth}-{name}")).display().to_string();
        let [lock, of_hold, of_process, of_broken] =
            ["job", "hold", "kept", "broken"].map(dlock::unique);
        let run = |key: &str, script: &str| {
            route.spawn(&url, &["run", "-k", key, "--", "sh", "-c", script])
        };
        let alone = file("alone");
        let holder = run(
            &lock,
            &format!(
                "exec flock -n {alone} sh -c 'touch {}; sleep {}'",
                file("holds"),
                route.seconds
            ),
        );
        let stops = format!(
            "trap 'trap \"\" TERM; : >{}; sleep 4; exit' TERM",
            file("stops")
        );
        let broken = run(
            &of_broken,
            &format!(
                "{stops}; touch {}; while :; do sleep .1; done",
                file("runs")
            ),
        );
        let hold = route.spawn(&url, &["hold", "--until-signal", "-k", &of_hold]);
        let kept = (!is_session(&url)).then(|| {
            let mut sleep = process::command("sleep");
            sleep.arg("60");
            let process = Process::start(sleep);
            let words = [
                "acquire",
                "--while-pid",
                &process.pid().to_string(),
                "-k",
                &of_process,
            ];
            let acquired = route.spawn(&url, &words).wait(LIMIT);
            assert_eq!(acquired.code(), 0, "{url}: {}", acquired.stderr);
            process
        });
        let holder = await_file(&file("holds"), holder);
        let broken = await_file(&file("runs"), broken);
        let breaking = route.spawn(&url, &["break", &of_broken, "--yes", "--reason", "test"]);
        let mut jobs = Self {
            url,
            lock,
            alone,
            holder,
            waiters: Vec::new(),
            hold,
            kept,
            broken,
            breaking,
        };
        jobs.add_waiter(route, "the waiter");
        let state = |key: &str| {
            route
                .spawn(&jobs.url, &["inspect", "--json", key])
                .wait(LIMIT)
                .stdout
        };
        must("the waiter waits, or has ended", LIMIT, || {
            state(&jobs.lock).contains("waiting_for") || jobs.waiters[0].1.has_ended()
        });
        must("hold holds, or has ended", LIMIT, || {
            state(&of_hold).contains("fence") || jobs.hold.has_ended()
        });
        jobs.broken = await_file(&file("stops"), jobs.broken);
        jobs
    }

    /// Starts one more waiter for the lock.
    fn add_waiter(&mut self, route: &Route, who: &'static str) {
        let waiter = route.spawn(
            &self.url,
            &[
                "run",
                "-k",
                &self.lock,
                "-w",
                "90s",
                "--",
                "flock",
                "-n",
                &self.alone,
                "true",
            ],
        );
        self.waiters.push((who, waiter));
    }

    /// All go on as if nothing had happened, but those whose lock was part of a lost session: the
    /// next in line gets it.
    #[track_caller]
    fn assert_kept(self, sessions_end: bool) {
        let url = &self.url;
        let is_lost = sessions_end && is_session(url);
        let status = if is_lost { 76 } else { 0 };
        let judge = |who: &str, job: Process, wanted: &[i32]| {
            let ended = job.wait(LIMIT);
            assert!(
                wanted.contains(&ended.code()),
                "{who} of {url}: {}, not {wanted:?}: {}",
                ended.code(),
                ended.stderr
            );
        };
        judge("the holder", self.holder, &[status]);
        for (who, waiter) in self.waiters {
            judge(who, waiter, &[0]);
        }
        judge("the broken run", self.broken, &[76]);
        // No holder is left to break.
        judge(
            "break",
            self.breaking,
            if is_lost { &[0, 77] } else { &[0] },
        );
        if let Some(mut kept) = self.kept {
            assert!(
                !kept.has_ended(),
                "the process that kept a lock of {url} was stopped"
            );
            kept.signal(Signal::KILL);
        }
        if !is_lost {
            self.hold.signal(Signal::TERM);
        }
        judge("hold", self.hold, &[status]);
    }
}

/// Starts commands of all kinds, changes the way to the server with `change`, and judges all of
/// them.
#[track_caller]
fn under_way(mut route: Route, sessions_end: bool, change: impl FnOnce(&mut Route, &mut [Jobs])) {
    for url in &route.urls {
        if url.contains("table=") {
            let init = route.spawn(url, &["init"]).wait(LIMIT);
            assert_eq!(init.code(), 0, "{url}: {}", init.stderr);
        }
    }
    let ways = &route;
    let mut jobs: Vec<_> = thread::scope(|scope| {
        let starting: Vec<_> = (0..ways.urls.len())
            .map(|nth| scope.spawn(move || Jobs::start(ways, nth)))
            .collect();
        starting
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    change(&mut route, &mut jobs);
    for jobs in jobs {
        jobs.assert_kept(sessions_end);
    }
}

fn failover(test: &str, start: Start, cut: bool) {
    let Some(place) = start(test, true) else {
        return;
    };
    let mut route = Route::to(place);
    // A session of the old server is lost for want of renewals.
    route.seconds = route.ttl;
    under_way(route, true, |route, jobs| {
        let old = route
            .place
            .urls(&[format!("127.0.0.1:{}", route.place.ports()[0])]);
        let status = route.place.demote(!cut);
        for jobs in &mut *jobs {
            jobs.add_waiter(route, "the late waiter");
        }
        let port = route.place.promote();
        route.switches[0].turn(port);
        if cut {
            route.cut();
        }
        route.assert_attempts("5s", 0);
        // A client that knows the old server alone.
        if let Some(status) = status {
            route.assert_attempts_at(&old, SHORT, status);
        }
    });
}

fn a_planned_failover(test: &str, start: Start) {
    failover(test, start, false);
}

fn a_failover_with_a_cut(test: &str, start: Start) {
    failover(test, start, true);
}

/// The server comes first, so that the old password is refused for a while.
fn rotation(test: &str, start: Start, cut: bool) {
    let Some(place) = start(test, false) else {
        return;
    };
    under_way(Route::to(place), cut, |route, _| {
        route.place.set_password("new");
        if cut {
            route.cut();
        }
        route.assert_attempts(SHORT, 78);
        write_password(&route.password_file(), "new");
        route.assert_attempts("5s", 0);
    });
}

fn a_rotated_password(test: &str, start: Start) {
    rotation(test, start, false);
}

fn a_rotated_password_and_a_cut(test: &str, start: Start) {
    rotation(test, start, true);
}

/// The user has no login, or no rights, for a while: only those who had both go on.
fn a_user_shut_out_for_a_while(test: &str, start: Start) {
    let Some(place) = start(test, false) else {
        return;
    };
    under_way(Route::to(place), true, |route, _| {
        let mut step = 0;
        while let Some(status) = route.place.shut_out(step) {
            route.cut();
            route.assert_attempts(SHORT, status);
            step += 1;
        }
    });
}

/// The first address of the name does not answer, and the second one leads to the server.
fn a_dead_address(test: &str, start: Start) {
    let Some(place) = start(test, false) else {
        return;
    };
    let route = Route::new(place, "localhost", |port| {
        let dead = Deaf::new();
        (
            Switch::at((Ipv6Addr::LOCALHOST.into(), dead.port), port),
            Some(dead),
        )
    });
    under_way(route, true, |route, jobs| {
        route.cut();
        for jobs in &mut *jobs {
            jobs.add_waiter(route, "the late waiter");
        }
        for ended in route.assert_attempts("5s", 0) {
            assert!(
                ended.took < stretched(Duration::from_secs(3)),
                "{:?}",
                ended.took
            );
        }
    });
}

/// Occupies the address of a resolver that answers nothing, and writes the configuration that names
/// it. `None` if the test can't run.
fn silent_resolver(folder: &Path, test: &str) -> Option<UdpSocket> {
    let [high, low] = ports::free().to_be_bytes();
    let address = Ipv4Addr::new(127, 153, high, low);
    let Ok(silent) = UdpSocket::bind((address, 53)) else {
        support::skip(test, "only root may be a resolver");
        return None;
    };
    fs::write(
        folder.join("resolv.conf"),
        format!("nameserver {address}\n"),
    )
    .unwrap();
    fs::write(folder.join("hosts"), "").unwrap();
    let allowed = Process::collect(resolved_by(folder, &process::command("true"))).wait(LIMIT);
    if allowed.code() != 0 {
        support::skip(test, &allowed.stderr);
        return None;
    }
    Some(silent)
}

/// Returns the command with a folder's files in place of the system's.
fn resolved_by(folder: &Path, command: &std::process::Command) -> std::process::Command {
    let mut inside = process::command("unshare");
    let mounts = ["hosts", "resolv.conf"]
        .map(|name| {
            format!(
                "mount --bind {} /etc/{name} && ",
                folder.join(name).display()
            )
        })
        .concat();
    inside
        .args([
            "--mount",
            "sh",
            "-c",
            &format!("{mounts} exec \"$@\""),
            "sh",
        ])
        .arg(command.get_program())
        .args(command.get_args());
    inside
        .env_clear()
        .envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .stdin(Stdio::null());
    inside
}

/// Who knows the address goes on without the resolver, and a waiter that does not waits for it.
fn a_resolver_that_falls_silent(test: &str, start: Start) {
    let Some(place) = start(test, false) else {
        return;
    };
    let mut route = Route::new(place, NAME, |port| (Switch::to(port), None));
    let Some(silent) = silent_resolver(route.folder.path(), test) else {
        return;
    };
    route.resolver = Some(silent);
    let hosts = route.path("hosts");
    let known = format!("127.0.0.1 {NAME}\n");
    fs::write(&hosts, &known).unwrap();
    under_way(route, true, |route, jobs| {
        fs::write(&hosts, "").unwrap();
        route.cut();
        for jobs in &mut *jobs {
            jobs.add_waiter(route, "the late waiter");
        }
        for ended in route.assert_attempts(SHORT, 69) {
            assert!(
                ended.stderr.contains("name can't be resolved"),
                "{}",
                ended.stderr
            );
        }
        for jobs in jobs {
            must("the holder has ended", LIMIT, || jobs.holder.has_ended());
        }
        fs::write(&hosts, &known).unwrap();
    });
}

/// A proxy delivers requests for the lock after the run has ended, or has given up.
#[test]
fn a_late_request_takes_no_lock_for_a_run_that_is_gone() {
    let server = Redis::plain();
    let proxy = Proxy::to(server.port);
    let (direct, proxied) = (server.url(), format!("redis://127.0.0.1:{}", proxy.port));
    let late = stretched(Duration::from_secs(4));
    let once: &[&str] = &["--once", "--keep", "1d"];
    let runs =
        [&[][..], &["-s"], &["--permits", "1"], once].map(|kind| (dlock::unique("job"), kind));
    for (key, kind) in &runs {
        let (times, status) = if *kind == once {
            (usize::MAX, 69)
        } else {
            (1, 0)
        };
        // A release does not name this key.
        proxy.trap_nth(
            format!("{{dlock:{key}}}:fair-readers"),
            0,
            times,
            Fault::Late(late),
        );
        let (began, sprung) = (Instant::now(), proxy.sprung());
        let ran = dlock::run(
            &proxied,
            &[
                &["run", "-k", key, "--backend-timeout", "2s"],
                *kind,
                &["--", "true"],
            ]
            .concat(),
        );
        assert_eq!(ran.code(), status, "{kind:?}: {}", ran.stderr);
        assert!(
            proxy.sprung() > sprung && began.elapsed() < late,
            "{kind:?}: {:?}",
            began.elapsed()
        );
        proxy.disarm();
    }
    sleep(late * 2);
    for (key, kind) in &runs {
        let state = dlock::run(&direct, &["inspect", "--json", key]).stdout;
        assert!(
            state.contains(r#""holders":[]"#) && state.contains(r#""waiters":[]"#),
            "{kind:?}: {state}"
        );
        let next = dlock::run(
            &direct,
            &[&["run", "-k", key], *kind, &["--", "true"]].concat(),
        );
        assert_eq!(next.code(), 0, "{kind:?}: {}", next.stderr);
    }
}

/// A resolver that does not answer is named as the reason, and delays no signal.
#[test]
fn a_silent_resolver() {
    let folder = support::folder();
    let Some(_silent) = silent_resolver(folder.path(), "a_silent_resolver") else {
        return;
    };
    let start = |options: &[&str]| {
        let mut command = dlock::command();
        command
            .args(["run", "-b", "redis://db.example:1", "-k", "j"])
            .args(options)
            .args(["--", "true"]);
        Process::collect(resolved_by(folder.path(), &command))
    };
    let tried = start(&[]).wait(LIMIT);
    assert_eq!(tried.code(), 69, "{}", tried.stderr);
    assert!(
        tried.stderr.contains("name can't be resolved") && !tried.stderr.contains("port"),
        "{}",
        tried.stderr
    );
    assert!(
        tried.took < stretched(Duration::from_secs(6)),
        "{:?}",
        tried.took
    );
    let waiting = start(&["-w", "30s"]);
    sleep(Duration::from_secs(2));
    waiting.signal(Signal::TERM);
    let began = Instant::now();
    let ended = waiting.wait(LIMIT);
    assert_eq!(ended.code(), 143, "{}", ended.stderr);
    assert!(
        began.elapsed() < stretched(Duration::from_millis(700)),
        "{:?}",
        began.elapsed()
    );
}

/// Each login to a sentinel runs the command of the configuration.
#[test]
fn a_command_prints_the_password_of_sentinels() {
    let plan = sentinel::Plan {
        replicas: 0,
        sentinel_password: Some("hunter2"),
        ..sentinel::Plan::default()
    };
    let deployment = sentinel::Deployment::with(&plan);
    let folder = support::folder();
    let file = |name: &str| folder.path().join(name);
    let (config, password) = (file("config.toml"), file("password"));
    let command = format!("sentinel_password_command = 'cat {}'", password.display());
    fs::write(
        &config,
        format!("[backends.prod]\nurl = '{}'\n{command}\n", deployment.url()),
    )
    .unwrap();
    let dlock = |words: &[&str]| {
        let mut dlock = dlock::command();
        dlock
            .args(["-b", "prod", "--config"])
            .arg(&config)
            .args(words);
        Process::collect(dlock).wait(LIMIT)
    };
    let run = ["run", "--backend-timeout", "2s", "-k", "j", "--", "true"];
    for (text, status) in [("wrong", 78), ("hunter2", 0)] {
        fs::write(&password, text).unwrap();
        let ended = dlock(&run);
        assert_eq!(ended.code(), status, "{text}: {}", ended.stderr);
    }
    let doctor = dlock(&["doctor"]);
    let told = "the sentinels' password from sentinel_password_command";
    assert!(
        doctor.stdout.contains(told) && !doctor.stdout.contains("hunter2"),
        "{}",
        doctor.stdout
    );
}

/// A try that finds nothing but a replica says so, even where the replica's copy has a hold: it may
/// be out of date.
#[track_caller]
fn assert_refused_by_a_replica(primary: &str, replica: &str) {
    let mut held = dlock::spawn(primary, &["run", "-k", "held", "--", "sleep", "20"]);
    must("the replica has the hold", LIMIT, || {
        held.has_ended()
            || dlock::run(replica, &["inspect", "held"])
                .stdout
                .contains("HELD")
    });
    for key in ["held", "free"] {
        let tried = dlock::run(
            replica,
            &["run", "--backend-timeout", "1s", "-k", key, "--", "true"],
        );
        assert_eq!(tried.code(), 78, "{key}: {}", tried.stderr);
        assert!(
            tried.stderr.contains("read-only replica"),
            "{}",
            tried.stderr
        );
    }
    let waited = dlock::run(replica, &["run", "-w", "2s", "-k", "free", "--", "true"]);
    assert_eq!(waited.code(), 69, "{}", waited.stderr);
    held.signal(Signal::TERM);
    held.wait(LIMIT);
}

#[test]
fn a_replica_of_redis_alone() {
    let (primary, replica) = (Redis::plain(), Redis::plain());
    replica.command(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    assert_refused_by_a_replica(&primary.url(), &replica.url());
}

#[test]
fn a_replica_of_tair_alone() {
    let primary = Tair::start();
    let replica = primary.second();
    replica.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    let url = |server: &Tair, mode| format!("tair://127.0.0.1:{}?mode={mode}", server.port());
    for mode in ["plain", "version"] {
        assert_refused_by_a_replica(&url(&primary, mode), &url(&replica, mode));
        primary.command(&["FLUSHALL"]);
    }
}
