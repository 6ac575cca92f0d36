//! dlock, its guardian or both process groups are killed or stopped while a command runs that
//! ignores TERM.

use std::time::Duration;

use rustix::process::Signal;

use crate::{
    stores::{Store, on_every_store},
    support::{process, stretched},
    world::{LIMIT, TTL, World},
};

on_every_store!(
    dlock_killed,
    dlock_stopped,
    guardian_killed,
    guardian_stopped,
    group_of_dlock_killed,
    command_killed,
    dlock_killed_in_a_chain_of_waiters,
    nested_dlock_killed,
);

/// How long the second holder may wait beyond the lease.
fn after_the_lease() -> Duration {
    stretched(Duration::from_secs(2))
}

pub fn dlock_killed(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first();
    first.signal(Signal::KILL);
    let took = world.second();
    assert!(took < TTL + after_the_lease(), "{took:?}");
    world.assert_gone();
    world.assert_free();
}

pub fn dlock_stopped(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first();
    first.signal(Signal::STOP);
    let took = world.second();
    assert!(took < TTL + after_the_lease(), "{took:?}");
    crate::support::must("the guardian killed the tree", LIMIT, || {
        world.tree().is_empty()
    });
    first.signal(Signal::CONT);
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    // The resumed dlock touched no other hold.
    world.second();
    world.assert_gone();
    world.assert_free();
}

pub fn guardian_killed(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first();
    process::signal(World::guardian(&first), Signal::KILL);
    world.second();
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    world.assert_gone();
    world.assert_free();
}

pub fn guardian_stopped(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first();
    process::signal(World::guardian(&first), Signal::STOP);
    world.second();
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    world.assert_gone();
    world.assert_free();
}

pub fn group_of_dlock_killed(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first();
    first.signal_group(Signal::KILL);
    world.second();
    world.assert_gone();
    world.assert_free();
}

/// The tree that the killed command leaves behind keeps the lock. Killing the tree frees the lock
/// at once.
pub fn command_killed(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first();
    let group = world.tree().iter().map(|stat| stat.group).min().unwrap();
    process::signal(group, Signal::KILL);
    std::thread::sleep(TTL + Duration::from_millis(500));
    assert!(
        !world.is_free(),
        "descendants of the killed command are alive"
    );
    for stat in world.tree() {
        process::signal(stat.pid, Signal::KILL);
    }
    // The shell in its own session starts a new sleep for each one that is killed.
    crate::support::must("all processes are gone", LIMIT, || {
        world
            .tree()
            .iter()
            .for_each(|stat| process::signal(stat.pid, Signal::KILL));
        world.tree().is_empty()
    });
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 137, "{}", first.stderr);
    world.second();
}

pub fn dlock_killed_in_a_chain_of_waiters(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first();
    let waiting: Vec<_> = (0..3).map(|_| world.start(&["-w", "25"], "true")).collect();
    std::thread::sleep(Duration::from_millis(300));
    // One waiter dies too, and another one gives up.
    waiting[0].signal(Signal::KILL);
    waiting[1].signal(Signal::TERM);
    first.signal(Signal::KILL);
    world.second();
    let codes: Vec<_> = waiting
        .into_iter()
        .map(|waiter| waiter.wait(LIMIT).code())
        .collect();
    assert_eq!(codes, [137, 143, 0]);
    world.assert_gone();
    crate::support::must("no waiter is left over", LIMIT, || world.is_free());
}

/// The inner dlock's hold ends with its process. The outer hold goes on.
fn nested_dlock_killed(store: &dyn Store) {
    let world = World::new(store.url());
    let inner = world.path("inner");
    let dlock = crate::support::dlock::binary();
    let script = format!(
        "{dlock} run -k {key} --ttl 2s -- sleep {tag} & echo $! > {inner}; wait $!; echo $? > {inner}.status; sleep 3",
        dlock = dlock.display(),
        key = world.key,
        tag = world.tagged("TAG"),
        inner = inner.display(),
    );
    let outer = world.start(&[], &script);
    crate::support::must("the inner command runs", LIMIT, || {
        world.tree().iter().any(|stat| stat.name == "sleep")
    });
    let pid: u32 = world.file("inner").trim().parse().unwrap();
    process::signal(pid, Signal::KILL);
    crate::support::must("the inner tree is gone", LIMIT, || {
        !world.tree().iter().any(|stat| stat.name == "sleep")
    });
    assert!(!world.is_free(), "the outer run holds the lock");
    let outer = outer.wait(LIMIT);
    assert_eq!(
        (outer.code(), world.file("inner.status").trim()),
        (0, "137"),
        "{}",
        outer.stderr
    );
    world.assert_free();
}
