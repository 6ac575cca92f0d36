//! Readers that are killed and stopped next to other readers. A fault on one of them ends only its
//! own share.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{
    stores::{Store, on_store},
    support::{must, process::Process, stretched},
    world::{LIMIT, TTL, World},
};

on_store!(sqlite:
    a_waiter_does_not_wait_for_a_killed_holders_lease,
    reader_killed,
    reader_stopped,
    guardian_of_a_reader_killed,
    group_of_a_reader_killed
);

/// How long the next holder may wait beyond the lease.
fn after_the_lease() -> Duration {
    stretched(Duration::from_secs(2))
}

/// Returns the number of `holders` or `waiters`.
fn count(world: &World, of: &str) -> usize {
    let state: serde_json::Value = serde_json::from_str(&world.inspect().stdout).expect("JSON");
    state[of].as_array().map_or(0, Vec::len)
}

/// Starts a reader that ends when the file `enough` exists.
fn sibling(world: &World) -> Process {
    let script = format!(
        "touch {}; until [ -e {} ]; do sleep 0.05; done",
        world.path("reads").display(),
        world.path("enough").display()
    );
    let reader = world.start(&["-s"], &script);
    must("the sibling holds its share", LIMIT, || {
        world.path("reads").exists()
    });
    reader
}

/// Injects `fault` into the first of two readers while a writer waits for both.
fn with_a_sibling(store: &dyn Store, fault: impl FnOnce(&World, &Process)) -> (World, Process) {
    let world = World::new(store.url());
    let first = world.first_on(&store.url(), &["-s"]);
    let sibling = sibling(&world);
    assert_eq!(count(&world, "holders"), 2);
    let second = world.start_second();
    fault(&world, &first);
    must(
        "the first reader's share has ended",
        TTL + after_the_lease(),
        || count(&world, "holders") == 1,
    );
    must("the first tree is gone", LIMIT, || world.tree().is_empty());
    assert!(
        !world.path("second").exists(),
        "the sibling holds its share"
    );
    std::fs::write(world.path("enough"), "").unwrap();
    let sibling = sibling.wait(LIMIT);
    assert_eq!(sibling.code(), 0, "{}", sibling.stderr);
    let ended = Instant::now();
    let second = second.wait(LIMIT);
    assert_eq!(second.code(), 0, "{}", second.stderr);
    assert!(
        ended.elapsed() < TTL + after_the_lease(),
        "{:?}",
        ended.elapsed()
    );
    world.assert_no_overlap();
    (world, first)
}

fn assert_all_gone(world: &World) {
    world.assert_gone();
    world.assert_free();
}

/// Only dlock is killed: its share lasts until the guardian has killed the tree.
pub fn reader_killed(store: &dyn Store) {
    let (world, _) = with_a_sibling(store, |_, first| first.signal(Signal::KILL));
    assert_all_gone(&world);
}

pub fn group_of_a_reader_killed(store: &dyn Store) {
    let (world, _) = with_a_sibling(store, |_, first| first.signal_group(Signal::KILL));
    assert_all_gone(&world);
}

pub fn guardian_of_a_reader_killed(store: &dyn Store) {
    let (world, first) = with_a_sibling(store, |_, first| {
        crate::support::process::signal(World::guardian(first), Signal::KILL);
    });
    assert_eq!(first.wait(LIMIT).code(), 76);
    assert_all_gone(&world);
}

pub fn reader_stopped(store: &dyn Store) {
    let (world, first) = with_a_sibling(store, |_, first| first.signal(Signal::STOP));
    first.signal(Signal::CONT);
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    assert_all_gone(&world);
}

/// On a store with kernel locks, a killed holder's lock is free at once.
fn a_waiter_does_not_wait_for_a_killed_holders_lease(store: &dyn Store) {
    for (kind, next) in [
        (&["-s"][..], &[][..]),
        (&["--permits", "1"], &["--permits", "1"]),
        (&[], &["-s"]),
        (&["--permits", "1"], &["-s"]),
    ] {
        let world = World::new(store.url());
        // Longer than this test may take.
        let script = format!("touch {}; exec sleep 60", world.path("holds").display());
        let first = world.start(&[kind, &["--ttl", "60s"]].concat(), &script);
        must("the first run holds the lock", LIMIT, || {
            world.path("holds").exists()
        });
        let next = world.start(&[next, &["-w", "25"]].concat(), "true");
        must("the next one waits", LIMIT, || {
            count(&world, "waiters") == 1
        });
        let killed = Instant::now();
        first.signal(Signal::KILL);
        let next = next.wait(LIMIT);
        assert_eq!(next.code(), 0, "{}", next.stderr);
        assert!(
            killed.elapsed() < stretched(Duration::from_secs(3)),
            "{:?}",
            killed.elapsed()
        );
        assert_all_gone(&world);
    }
}
