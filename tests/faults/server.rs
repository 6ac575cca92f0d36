//! The server is killed, frozen, restarted or cut off, or another client deletes the lock, while a
//! command runs.

use std::time::{Duration, Instant};

use crate::{
    stores::{Store, on_every_server},
    support::{
        self, have, must,
        netns::Netns,
        proxy::{Fault, Mode, Proxy},
        redis::Redis,
        stretched,
    },
    world::{LIMIT, TTL, World},
};

/// When the tree must be dead, counted from the last confirmed renewal: KILL comes at 0.8 of the
/// lease.
const DEAD_BY: Duration = TTL;

on_every_server!(
    cut_off,
    cut_off_by_the_network,
    frozen_for_longer_than_the_lease,
    a_short_freeze_is_ridden_out,
    killed,
    restarted_with_its_data,
    restarted_without_its_data,
    deleted_by_another_client,
    deleted_just_before_the_release,
    a_waiter_recovers_from_lost_replies,
    on_lost_selects_the_reaction_to_a_loss,
    the_reason_of_a_loss_is_printed_once_and_recorded,
);

macro_rules! with_redis {
    ($name:expr) => {
        if !have($name, &["redis-server"]) {
            return;
        }
    };
}

pub fn cut_off(server: &mut dyn Store) {
    for mode in [Mode::BlackHole, Mode::Refuse] {
        let mut proxy = Proxy::to(server.port());
        let world = World::new(server.url());
        let first = world.first_on(&server.through(&proxy), &[]);
        let began = Instant::now();
        proxy.set(mode);
        // The second holder reaches the server.
        let took = world.second();
        assert!(took < TTL + stretched(Duration::from_secs(2)), "{took:?}");
        let first = first.wait(LIMIT);
        assert_eq!(first.code(), 76, "{mode:?}: {}", first.stderr);
        assert!(began.elapsed() < DEAD_BY + stretched(Duration::from_secs(5)));
        world.assert_gone();
        world.assert_free();
    }
}

/// dlock prints one line with the store's error, and writes it to the history once the store is
/// back.
pub fn the_reason_of_a_loss_is_printed_once_and_recorded(server: &mut dyn Store) {
    let mut proxy = Proxy::to(server.port());
    let world = World::new(server.url());
    let status = world.path("status").display().to_string();
    let first = world.first_on(&server.through(&proxy), &["--status-file", &status]);
    proxy.set(Mode::Refuse);
    must("the tree is dead", LIMIT, || world.tree().is_empty());
    std::thread::sleep(Duration::from_millis(1500));
    proxy.set(Mode::Pass);
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    let printed: Vec<&str> = first
        .stderr
        .lines()
        .filter(|line| line.contains("the lock was lost"))
        .collect();
    assert!(
        matches!(printed[..], [line] if line.contains("no renewal for") && !line.contains("was dlock stopped")),
        "{}",
        first.stderr
    );
    let verdict: serde_json::Value = serde_json::from_str(&world.file("status")).unwrap();
    let reason = verdict["error"]["message"].as_str().unwrap().to_owned();
    assert!(printed[0].ends_with(&reason), "{reason}");
    let history = support::dlock::run(&server.url(), &["history", &world.key, "--json"]).stdout;
    let history: serde_json::Value = serde_json::from_str(&history).unwrap();
    assert_eq!(
        (&history["runs"][0]["end"], &history["runs"][0]["reason"]),
        (&"lost".into(), &reason.into()),
        "{history}"
    );
    // It is dated when it happened, not when the store was back.
    let ran = |run: &serde_json::Value| {
        let at = |name: &str| {
            let text = run[name]
                .as_str()
                .unwrap_or_else(|| panic!("{name} in {run}"));
            humantime::parse_rfc3339(text).expect("a time")
        };
        (at("started"), run["ran_ms"].as_u64().expect("a number"))
    };
    let (told, recorded) = (ran(&verdict), ran(&history["runs"][0]));
    let apart = told
        .0
        .duration_since(recorded.0)
        .unwrap_or_else(|error| error.duration());
    assert!(
        apart < Duration::from_millis(300) && told.1.abs_diff(recorded.1) < 300,
        "{verdict} {history}"
    );
    assert!(history["runs"][0]["waited_ms"].is_u64(), "{history}");
    world.assert_gone();
    world.assert_free();
}

/// dlock sent no renewal, so the message asks whether dlock itself was stopped.
#[test]
fn a_stopped_dlock_asks_if_it_was_stopped() {
    with_redis!("a_stopped_dlock_asks_if_it_was_stopped");
    let server = Redis::plain();
    let world = World::new(server.url());
    let first = world.first();
    first.signal(rustix::process::Signal::STOP);
    must("the tree is dead", LIMIT, || world.tree().is_empty());
    first.signal(rustix::process::Signal::CONT);
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    assert_eq!(
        first.stderr.matches("the lock was lost").count(),
        1,
        "{}",
        first.stderr
    );
    assert!(
        first.stderr.contains("was dlock stopped?"),
        "{}",
        first.stderr
    );
}

/// The network drops all packets in both directions, without any error.
pub fn cut_off_by_the_network(server: &mut dyn Store) {
    let Some(netns) = Netns::make("cut_off_by_the_network") else {
        return;
    };
    let proxy = Proxy::at(netns.host, server.port());
    let world = World::new(server.url());
    let first = world.first_in(&netns, &server.through(&proxy));
    netns.cut();
    let began = Instant::now();
    let took = world.second();
    assert!(took < TTL + stretched(Duration::from_secs(2)), "{took:?}");
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    assert!(began.elapsed() < DEAD_BY + stretched(Duration::from_secs(5)));
    world.assert_gone();
    netns.heal();
    world.assert_free();
}

pub fn frozen_for_longer_than_the_lease(server: &mut dyn Store) {
    let world = World::new(server.url());
    let first = world.first();
    server.freeze();
    let began = Instant::now();
    must("the tree is dead", LIMIT, || world.tree().is_empty());
    assert!(
        began.elapsed() < support::beyond_stalls(DEAD_BY),
        "{:?}",
        began.elapsed()
    );
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    server.thaw();
    world.second();
    world.assert_gone();
    world.assert_free();
}

pub fn a_short_freeze_is_ridden_out(server: &mut dyn Store) {
    let world = World::new(server.url());
    let job = world.start(&["--ttl", "6s"], "sleep 4");
    must("the lock is held", LIMIT, || !world.is_free());
    server.freeze();
    std::thread::sleep(Duration::from_millis(1800));
    server.thaw();
    let job = job.wait(LIMIT);
    assert_eq!(job.code(), 0, "{}", job.stderr);
    world.assert_free();
}

pub fn killed(server: &mut dyn Store) {
    let world = World::new(server.url());
    let first = world.first();
    server.kill();
    let began = Instant::now();
    must("the tree is dead", LIMIT, || world.tree().is_empty());
    assert!(
        began.elapsed() < support::beyond_stalls(DEAD_BY),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(first.wait(LIMIT).code(), 76);
    world.assert_gone();
}

fn restarted_with_its_data(server: &mut dyn Store) {
    let world = World::new(server.url());
    // A server may start slowly.
    let job = world.start(&["--ttl", "20s"], "sleep 5");
    must("the lock is held", LIMIT, || !world.is_free());
    server.kill();
    server.restart();
    assert!(!world.is_free(), "a durable server remembers the lock");
    let job = job.wait(LIMIT);
    assert_eq!(job.code(), 0, "{}", job.stderr);
    world.assert_free();
}

/// README permits a second grant in between, but the first holder detects the loss and is stopped.
fn restarted_without_its_data(server: &mut dyn Store) {
    let world = World::new(server.url());
    let first = world.first();
    let before = world.inspect().stdout;
    server.kill();
    server.restart_empty();
    let began = Instant::now();
    must("the tree is dead", LIMIT, || world.tree().is_empty());
    assert!(
        began.elapsed() < support::beyond_stalls(DEAD_BY),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(first.wait(LIMIT).code(), 76);
    world.assert_gone();
    let fence = |text: &str| {
        serde_json::from_str::<serde_json::Value>(text).unwrap()["last_fence"].as_u64()
    };
    let old = fence(&before);
    let again = world.start(&[], "echo $DLOCK_FENCE").wait(LIMIT);
    if !server.keeps_fences() {
        assert_eq!(again.code(), 0, "{}", again.stderr);
        return;
    }
    assert!(
        again.stdout.trim().parse::<u64>().ok() > old && old.is_some(),
        "{old:?} {}",
        again.stdout
    );
}

fn deleted_by_another_client(server: &mut dyn Store) {
    let world = World::new(server.url());
    let first = world.first();
    server.take_away(&world.key);
    let began = Instant::now();
    must("the tree is dead", LIMIT, || world.tree().is_empty());
    // The next renewal notices.
    assert!(
        began.elapsed() < support::beyond_stalls(TTL / 2),
        "{:?}",
        began.elapsed()
    );
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    assert!(first.stderr.contains("lost"), "{}", first.stderr);
    world.assert_gone();
}

/// The lock is deleted while a short command runs, before any renewal could notice: dlock must not
/// report success.
fn deleted_just_before_the_release(server: &mut dyn Store) {
    let world = World::new(server.url());
    let job = world.start(
        &["--ttl", "60s"],
        &format!(
            "while [ ! -e {} ]; do sleep 0.02; done",
            world.path("go").display()
        ),
    );
    must("the lock is held", LIMIT, || !world.is_free());
    server.take_away(&world.key);
    std::fs::write(world.path("go"), "").unwrap();
    let job = job.wait(LIMIT);
    assert_eq!(job.code(), 76, "{}", job.stderr);
}

/// Requests arrive and the connection stays open, but no reply comes. The waiter detects that, and
/// delays no other waiter.
fn a_waiter_recovers_from_lost_replies(server: &mut dyn Store) {
    for at in [0, 2] {
        let proxy = Proxy::to(server.port());
        let world = World::new(server.url());
        let go = world.path("go").display().to_string();
        let first = world.start(&[], &format!("while [ ! -e {go} ]; do sleep 0.02; done"));
        must("the lock is held", LIMIT, || !world.is_free());
        proxy.trap_nth("", at, 1, Fault::Swallow);
        let waits = world.start_on(&server.through(&proxy), &["-w", "60s"], "true");
        must("a reply is swallowed", LIMIT, || proxy.sprung() == 1);
        let behind = world.start(&["-w", "60s"], "true");
        std::fs::write(&go, "").unwrap();
        let began = Instant::now();
        assert_eq!(first.wait(LIMIT).code(), 0);
        let (waits, behind) = (waits.wait(LIMIT * 2), behind.wait(LIMIT * 2));
        assert_eq!(
            (waits.code(), behind.code()),
            (0, 0),
            "{}{}",
            waits.stderr,
            behind.stderr
        );
        // The time limit of an answer, plus the wait for the dead waiter in the queue.
        assert!(
            began.elapsed() < stretched(Duration::from_secs(12)),
            "{at}: {:?}",
            began.elapsed()
        );
        world.assert_free();
    }
}

fn on_lost_selects_the_reaction_to_a_loss(server: &mut dyn Store) {
    for (on_lost, expected) in [("continue", "to the end\n"), ("signal:USR1", "got USR1\n")] {
        let mut proxy = Proxy::to(server.port());
        let world = World::new(server.url());
        let script = format!(
            "trap 'echo got USR1; exit 0' USR1; touch {}; for i in 1 2 3 4 5 6 7 8; do sleep 0.4; done; echo to the end",
            world.path("ready").display()
        );
        let job = world.start_on(&server.through(&proxy), &["--on-lost", on_lost], &script);
        must("the command runs", LIMIT, || world.path("ready").exists());
        proxy.set(Mode::BlackHole);
        let job = job.wait(LIMIT);
        assert_eq!(
            (job.code(), job.stdout.as_str()),
            (76, expected),
            "{on_lost}: {}",
            job.stderr
        );
        assert_eq!(
            job.stderr.contains("is being stopped"),
            on_lost != "continue",
            "{}",
            job.stderr
        );
    }
}

/// An unkillable process keeps the lock. Once the lock is lost, dlock exits although the process is
/// alive.
#[test]
fn an_unkillable_process_keeps_the_lock_until_it_is_lost() {
    use std::os::unix::fs::PermissionsExt as _;
    const NAME: &str = "an_unkillable_process_keeps_the_lock_until_it_is_lost";
    with_redis!(NAME);
    if !rustix::process::geteuid().is_root() {
        return support::skip(NAME, "only root can start an unkillable process");
    }
    let server = Redis::plain();
    let world = World::new(server.url());
    let copy = |from: &std::path::Path, to: &str, mode: u32| {
        support::program::copy(from, world.path(to), mode);
    };
    copy(&support::dlock::binary(), "dlock", 0o755);
    copy(std::path::Path::new("/usr/bin/setpriv"), "setpriv", 0o4755);
    std::fs::set_permissions(world.path(""), std::fs::Permissions::from_mode(0o777)).unwrap();
    let script = world.tagged(&format!(
        "{} --reuid=0 --regid=0 --clear-groups sleep TAG & echo $! > {}; wait",
        crate::world::shell(&world.path("setpriv")),
        crate::world::shell(&world.path("ready"))
    ));
    let mut command = support::process::command("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(world.path("dlock"));
    command
        .args([
            "run",
            "-b",
            &server.url(),
            "-k",
            &world.key,
            "--ttl",
            "2s",
            "--status-file",
        ])
        .arg(world.path("status"));
    command.args(["--", "sh", "-c", &script]);
    command.env("HOME", "/nonexistent");
    let job = support::process::Process::collect(command);
    must("the command runs", LIMIT, || {
        world.file("ready").ends_with('\n')
    });
    let pid = world.file("ready").trim().to_owned();
    // Until then the process can be killed.
    must("the process runs as root", LIMIT, || {
        support::procfs::stat(pid.parse().unwrap()).is_some_and(|stat| stat.name == "sleep")
    });
    job.signal(rustix::process::Signal::TERM);
    // Three leases later the lock is still held.
    std::thread::sleep(std::time::Duration::from_secs(6));
    assert!(!world.is_free());
    server.int(&["DEL", &format!("dlock:{}", world.key)]);
    let ended = job.wait(std::time::Duration::from_secs(10));
    assert_eq!(ended.code(), 76, "{}", ended.stderr);
    let verdict = world.file("status");
    assert!(
        verdict.contains(&format!("process {pid} could not be killed")),
        "{verdict}"
    );
    assert_eq!(world.tree().len(), 1, "{pid} is alive");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    world.assert_gone();
}

/// Each answer is lost once: of the acquire, of a renewal, and of the release.
#[test]
fn lost_answers() {
    with_redis!("lost_answers");
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Swallow] {
        let server = Redis::plain();
        let proxy = Proxy::to(server.port);
        let world = World::new(server.url());
        // The server knows the scripts from now on, so the first script that is called is the
        // grant.
        assert_eq!(world.start(&[], "true").wait(LIMIT).code(), 0);
        for nth in 0..3 {
            proxy.trap_nth("EVAL", nth, 1, fault);
            let url = format!("redis://127.0.0.1:{}/0", proxy.port);
            let began = Instant::now();
            let job = world
                .start_on(
                    &url,
                    &["--ttl", "60s", "--backend-timeout", "2s"],
                    "sleep 1",
                )
                .wait(LIMIT);
            assert_eq!(job.code(), 0, "{fault:?} {nth}: {}", job.stderr);
            // A dlock that forgot its first attempt would wait for its own lease to end.
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "{fault:?} {nth}: {:?}",
                began.elapsed()
            );
            // A second grant on top of a lost one would leave a hold behind.
            must("the lock is free", Duration::from_secs(6), || {
                world.is_free()
            });
        }
    }
}
