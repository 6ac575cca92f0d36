//! Runs of several locks: dlock takes all of them or none, whatever happens to one of them.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{
    stores::{Store, on_every_store},
    support::{dlock, must, process::Process},
    world::{LIMIT, TTL, World},
};

on_every_store!(
    opposite_orders_do_not_wait_for_each_other,
    losing_one_stops_the_command_and_frees_the_rest,
    acquired_locks_are_renewed_while_the_next_is_waited_for,
    a_killed_holder_of_two_is_dead_before_either_is_free,
    a_timed_out_wait_releases_all_locks,
);

/// A key that sorts after the world's own key, so that dlock takes it second.
fn second_key(world: &World) -> String {
    format!("{}-z", world.key)
}

fn held(store: &dyn Store, key: &str) -> bool {
    let report = dlock::run(&store.url(), &["inspect", key, "--json"]);
    let state: serde_json::Value = serde_json::from_str(&report.stdout).expect("JSON");
    state["held"] == true
}

fn opposite_orders_do_not_wait_for_each_other(store: &dyn Store) {
    let world = World::new(store.url());
    let second = second_key(&world);
    // No two sections overlap, and both processes finish all their runs.
    let alone = world.path("alone");
    let script = format!(
        "mkdir {0} || exit 9; sleep 0.02; rmdir {0}",
        alone.display()
    );
    let runs = |one: String, other: String| {
        let (url, script) = (store.url(), script.clone());
        std::thread::spawn(move || {
            for _ in 0..6 {
                let ended = dlock::run(
                    &url,
                    &[
                        "run", "-k", &one, "-k", &other, "-w", "25", "--", "sh", "-c", &script,
                    ],
                );
                assert_eq!(ended.code(), 0, "{}", ended.stderr);
            }
        })
    };
    let began = Instant::now();
    let both = [
        runs(world.key.clone(), second.clone()),
        runs(second.clone(), world.key.clone()),
    ];
    for one in both {
        one.join().expect("all runs succeed");
    }
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    world.assert_free();
}

fn losing_one_stops_the_command_and_frees_the_rest(store: &dyn Store) {
    let world = World::new(store.url());
    let second = second_key(&world);
    let first = world.first_on(&store.url(), &["-k", &second]);
    assert!(held(store, &second));
    let broken = dlock::run(
        &store.url(),
        &["break", &second, "--yes", "--reason", "NFS"],
    );
    assert_eq!(broken.code(), 0, "{}", broken.stderr);
    world.second();
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    assert!(
        first
            .stderr
            .contains(&format!("{second}: the lock is being broken by")),
        "{}",
        first.stderr
    );
    world.assert_gone();
    world.assert_free();
    assert!(!held(store, &second));
}

fn acquired_locks_are_renewed_while_the_next_is_waited_for(store: &dyn Store) {
    let world = World::new(store.url());
    let second = second_key(&world);
    let taken = dlock::run(&store.url(), &["acquire", &second, "--ttl", "60s"]);
    assert_eq!(taken.code(), 0, "{}", taken.stderr);
    let both = world.start(
        &["-k", &second, "-w", "25"],
        "echo \"$DLOCK_FENCES\"; env | grep -c '^DLOCK_\\(KEY\\|TOKEN\\|FENCE\\)='",
    );
    must("the first lock is held", LIMIT, || !world.is_free());
    // Longer than one lease.
    let until = Instant::now() + TTL * 2;
    while Instant::now() < until {
        let other = dlock::run(&store.url(), &["run", "-k", &world.key, "--", "true"]);
        assert_eq!(other.code(), 75, "{}", other.stderr);
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(
        dlock::run(
            &store.url(),
            &["release", &second, "--token", taken.stdout.trim()]
        )
        .code(),
        0
    );
    let both = both.wait(LIMIT);
    // grep found none of the three variables, which exist for a single lock only.
    assert_eq!(both.code(), 1, "{}", both.stderr);
    let lines: Vec<_> = both.stdout.lines().collect();
    let [first, last, "0"] = lines[..] else {
        panic!("{lines:?}")
    };
    for (line, key) in [(first, &world.key), (last, &second)] {
        let fence = line
            .strip_prefix(&format!("{key}="))
            .and_then(|fence| fence.parse::<u64>().ok());
        assert!(fence.is_some_and(|fence| fence > 0), "{lines:?}");
    }
    world.assert_free();
    assert!(!held(store, &second));
}

fn a_killed_holder_of_two_is_dead_before_either_is_free(store: &dyn Store) {
    let world = World::new(store.url());
    let second = second_key(&world);
    let first = world.first_on(&store.url(), &["-k", &second]);
    first.signal(Signal::KILL);
    let next = Process::collect({
        let mut command = dlock::command();
        let probe = format!("sh {0}/probe.sh {0}", world.path("").display());
        command
            .args(["run", "-k", &second, "-w", "25", "--", "sh", "-c", &probe])
            .env("DLOCK_BACKEND", store.url())
            .env("DLOCK_TTL", "2s");
        command
    });
    let next = next.wait(LIMIT);
    assert_eq!(next.code(), 0, "{}", next.stderr);
    world.assert_no_overlap();
    world.second();
    world.assert_gone();
    world.assert_free();
}

fn a_timed_out_wait_releases_all_locks(store: &dyn Store) {
    let world = World::new(store.url());
    let second = second_key(&world);
    let taken = dlock::run(&store.url(), &["acquire", &second, "--ttl", "60s"]);
    assert_eq!(taken.code(), 0, "{}", taken.stderr);
    let both = world.start(&["-k", &second, "-w", "25"], "true");
    must("the first lock is held", LIMIT, || !world.is_free());
    both.signal(Signal::TERM);
    assert_eq!(both.wait(LIMIT).code(), 143);
    assert!(!held(store, &world.key));
    let tried = dlock::run(
        &store.url(),
        &[
            "run",
            "-k",
            &world.key,
            "-k",
            &second,
            "--skew-guard",
            "0",
            "--json",
            "--",
            "true",
        ],
    );
    assert_eq!(tried.code(), 75, "{}", tried.stderr);
    let report: serde_json::Value =
        serde_json::from_str(tried.stderr.lines().last().unwrap_or_default()).expect("JSON");
    assert_eq!(
        (&report["key"], &report["by"]),
        (&world.key.clone().into(), &second.clone().into()),
        "{report}"
    );
    assert!(!held(store, &world.key));
    assert_eq!(
        dlock::run(
            &store.url(),
            &["release", &second, "--token", taken.stdout.trim()]
        )
        .code(),
        0
    );
}
