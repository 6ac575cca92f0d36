//! `dlock break`: the next command never starts while any process of the first holder's tree is
//! alive.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{
    stores::{Store, on_every_store},
    support::{
        dlock, must,
        process::{Ended, Process},
        stretched,
    },
    world::{LIMIT, World},
};

on_every_store!(
    a_broken_holder_is_dead_before_the_next_one_starts,
    a_break_spares_a_new_holder,
    a_stopped_holder_keeps_the_lock_until_its_lease_ends,
    an_acquired_lock_lasts_its_lease_unless_broken_with_now,
    an_interrupted_break_stays_requested,
    a_run_that_was_evicted_knows_by_whom,
    a_run_that_ends_before_it_sees_the_mark_is_not_broken,
);

const WHY: &str = "NFS \"hangs\"";

fn breaking(store: &dyn Store, world: &World, options: &[&str]) -> Ended {
    dlock::run(
        &store.url(),
        &[&["break", &world.key, "--yes", "--reason", WHY], options].concat(),
    )
}

fn history(store: &dyn Store, world: &World) -> serde_json::Value {
    let report = dlock::run(&store.url(), &["history", &world.key, "--json"]);
    assert_eq!(report.code(), 0, "{}", report.stderr);
    serde_json::from_str(&report.stdout).expect("JSON")
}

fn fence(world: &World) -> u64 {
    let state: serde_json::Value = serde_json::from_str(&world.inspect().stdout).expect("JSON");
    state["holders"][0]["fence"].as_u64().expect("a fence")
}

pub fn a_broken_holder_is_dead_before_the_next_one_starts(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first();
    let held = fence(&world);
    let second = world.start_second();
    must("the second run waits", LIMIT, || {
        world.inspect().stdout.contains("\"waiting_for_ms\"")
    });
    let broken = breaking(store, &world, &["--fence", &held.to_string()]);
    assert_eq!(broken.code(), 0, "{}", broken.stderr);
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    assert!(
        first.stderr.contains("the lock is being broken by") && first.stderr.contains("NFS"),
        "{}",
        first.stderr
    );
    let second = second.wait(LIMIT);
    assert_eq!(second.code(), 0, "{}", second.stderr);
    world.assert_no_overlap();
    world.assert_gone();
    world.assert_free();
    let report = history(store, &world);
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(
        (&runs[0]["end"], &runs[1]["end"]),
        (&"ok".into(), &"broken".into()),
        "{report}"
    );
    assert_eq!(
        (&runs[1]["fence"], runs.len()),
        (&held.into(), 2),
        "{report}"
    );
    assert!(
        runs[1]["reason"]
            .as_str()
            .is_some_and(|why| why.contains("NFS")),
        "{report}"
    );
}

pub fn a_break_spares_a_new_holder(store: &dyn Store) {
    let world = World::new(store.url());
    let job = world.start(&[], "sleep 4; exit 5");
    must("the lock is held", LIMIT, || !world.is_free());
    let other = breaking(store, &world, &["--fence", "7"]);
    assert_eq!(other.code(), 77, "{}", other.stderr);
    assert!(!world.inspect().stdout.contains(WHY));
    let ended = job.wait(LIMIT);
    assert_eq!(ended.code(), 5, "{}", ended.stderr);
    let nobody = breaking(store, &world, &[]);
    assert_eq!(nobody.code(), 77, "{}", nobody.stderr);
    let report = history(store, &world);
    assert_eq!(
        (
            &report["runs"][0]["end"],
            report["runs"].as_array().map(Vec::len)
        ),
        (&"exit 5".into(), Some(1)),
        "{report}"
    );
}

/// A stopped holder can't answer. Its guardian kills the tree shortly before the lease ends, and
/// the lock is free after the lease.
pub fn a_stopped_holder_keeps_the_lock_until_its_lease_ends(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first();
    first.signal(Signal::STOP);
    let second = world.start_second();
    let broken = breaking(store, &world, &[]);
    assert!([0, 77].contains(&broken.code()), "{}", broken.stderr);
    let second = second.wait(LIMIT);
    assert_eq!(second.code(), 0, "{}", second.stderr);
    world.assert_no_overlap();
    first.signal(Signal::CONT);
    assert_eq!(first.wait(LIMIT).code(), 76);
    world.assert_gone();
}

fn an_acquired_lock_lasts_its_lease_unless_broken_with_now(store: &dyn Store) {
    let world = World::new(store.url());
    let acquire = |ttl: &str| {
        let taken = dlock::run(&store.url(), &["acquire", &world.key, "--ttl", ttl]);
        assert_eq!(taken.code(), 0, "{}", taken.stderr);
        taken.stdout.trim().to_owned()
    };
    let token = acquire("4s");
    let began = Instant::now();
    let asked = Process::collect({
        let mut command = dlock::command();
        command
            .args(["break", &world.key, "--yes", "--reason", WHY])
            .env("DLOCK_BACKEND", store.url());
        command
    });
    must("the break is requested", LIMIT, || {
        world.inspect().stdout.contains("\"seen\":false")
    });
    let renewed = dlock::run(&store.url(), &["renew", &world.key, "--token", &token]);
    assert_eq!(renewed.code(), 77, "{}", renewed.stderr);
    assert!(
        renewed.stderr.contains("being broken"),
        "{}",
        renewed.stderr
    );
    let asked = asked.wait(LIMIT);
    assert_eq!(asked.code(), 0, "{}", asked.stderr);
    assert!(
        began.elapsed() > Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
    world.assert_free();
    let token = acquire("20s");
    let began = Instant::now();
    let at_once = breaking(store, &world, &["--now"]);
    assert_eq!(at_once.code(), 0, "{}", at_once.stderr);
    assert!(
        world.is_free() && began.elapsed() < stretched(Duration::from_secs(10)),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(
        dlock::run(&store.url(), &["release", &world.key, "--token", &token]).code(),
        77
    );
    let report = history(store, &world);
    let ends: Vec<_> = report["runs"]
        .as_array()
        .expect("runs")
        .iter()
        .map(|run| run["end"].clone())
        .collect();
    assert_eq!(ends, ["broken", "broken"], "{report}");
}

/// The run finds only that it has the lock no more, and notes its loss: the operator and the reason
/// stay.
fn a_run_that_was_evicted_knows_by_whom(store: &dyn Store) {
    let world = World::new(store.url());
    let run = world.start(&["--ttl", "6s"], "echo busy; exec sleep 60");
    must("the lock is held", LIMIT, || !world.is_free());
    let evicted = breaking(store, &world, &["--now"]);
    if evicted.code() == 64 {
        assert!(store.url().starts_with("sqlite:"), "{}", evicted.stderr);
        run.signal(Signal::TERM);
        run.wait(LIMIT);
        return;
    }
    assert_eq!(evicted.code(), 0, "{}", evicted.stderr);
    let run = run.wait(LIMIT);
    assert_eq!(run.code(), 76, "{}", run.stderr);
    let report = history(store, &world);
    let last = &report["runs"][0];
    assert_eq!(last["end"], "broken", "{report}");
    let reason = last["reason"].as_str().expect("a reason");
    assert!(reason.contains("NFS") && reason.contains('@'), "{report}");
}

fn a_run_that_ends_before_it_sees_the_mark_is_not_broken(store: &dyn Store) {
    let world = World::new(store.url());
    let run = world.start(&["--ttl", "90s"], "sleep 2; exit 3");
    must("the lock is held", LIMIT, || !world.is_free());
    let asked = breaking(store, &world, &[]);
    assert_eq!(asked.code(), 0, "{}", asked.stderr);
    let run = run.wait(LIMIT);
    let told = if run.code() == 3 {
        "it ended by itself meanwhile (exit 3), the lock is free"
    } else {
        // The store tells the holder at once.
        assert_eq!(run.code(), 76, "{}", run.stderr);
        "broken, the lock is free"
    };
    assert!(
        asked.stderr.contains(told),
        "{} {}",
        asked.stderr,
        run.stderr
    );
}

fn an_interrupted_break_stays_requested(store: &dyn Store) {
    let world = World::new(store.url());
    let taken = dlock::run(&store.url(), &["acquire", &world.key, "--ttl", "20s"]);
    assert_eq!(taken.code(), 0, "{}", taken.stderr);
    let asked = Process::collect({
        let mut command = dlock::command();
        command
            .args(["break", &world.key, "--yes", "--reason", WHY])
            .env("DLOCK_BACKEND", store.url());
        command
    });
    must("the break is requested", LIMIT, || {
        world.inspect().stdout.contains("\"seen\":false")
    });
    asked.signal(Signal::INT);
    let asked = asked.wait(LIMIT);
    assert_eq!(asked.code(), 130, "{}", asked.stderr);
    let state = world.inspect().stdout;
    assert!(!world.is_free() && state.contains("hangs"), "{state}");
    assert_eq!(
        dlock::run(
            &store.url(),
            &["release", &world.key, "--token", taken.stdout.trim()]
        )
        .code(),
        0
    );
    world.assert_free();
}
