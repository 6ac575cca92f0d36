//! Locks that belong to a session of a SQL server: they end with the session, but never before the
//! command's tree is dead.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{
    breaking::{
        a_break_spares_a_new_holder, a_broken_holder_is_dead_before_the_next_one_starts,
        a_stopped_holder_keeps_the_lock_until_its_lease_ends,
    },
    endings::{
        leftovers_are_killed, leftovers_are_waited_for, signals_while_waiting_leave_nothing_behind,
    },
    killed::{
        command_killed, dlock_killed, dlock_killed_in_a_chain_of_waiters, dlock_stopped,
        group_of_dlock_killed, guardian_killed, guardian_stopped,
    },
    server::{
        a_short_freeze_is_ridden_out, cut_off, cut_off_by_the_network,
        frozen_for_longer_than_the_lease, killed,
    },
    stores::{Store, on_store},
    support::{
        beyond_stalls, must,
        proxy::{Fault, Proxy},
    },
    world::{LIMIT, TTL, World},
};

macro_rules! on_sessions {
    ($($name:ident),* $(,)?) => {
        on_store!(postgres_row: $($name),*);
        on_store!(postgres_advisory: $($name),*);
        on_store!(mariadb_row: $($name),*);
        on_store!(mariadb_advisory: $($name),*);
        on_store!(mysql_row: $($name),*);
        on_store!(mysql_advisory: $($name),*);
    };
}

on_sessions!(
    dlock_killed,
    dlock_stopped,
    guardian_killed,
    guardian_stopped,
    group_of_dlock_killed,
    command_killed,
    dlock_killed_in_a_chain_of_waiters,
    leftovers_are_killed,
    leftovers_are_waited_for,
    signals_while_waiting_leave_nothing_behind,
    cut_off,
    cut_off_by_the_network,
    frozen_for_longer_than_the_lease,
    a_short_freeze_is_ridden_out,
    killed,
    restarted,
    ended_by_an_administrator,
    no_lost_connection_keeps_the_lock,
    ended_while_dlock_is_stopped,
    a_broken_holder_is_dead_before_the_next_one_starts,
    a_break_spares_a_new_holder,
    a_stopped_holder_keeps_the_lock_until_its_lease_ends,
);

/// The session ends with the server. The command is stopped even if the server is back in time for
/// a renewal.
fn restarted(server: &mut dyn Store) {
    let world = World::new(server.url());
    let first = world.first_on(&server.url(), &["--ttl", "10s"]);
    server.kill();
    let began = Instant::now();
    server.restart();
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    assert!(
        began.elapsed() < crate::support::stretched(Duration::from_secs(5)),
        "{:?}: the second run did not wait for the lease to end",
        began.elapsed()
    );
    world.second();
    world.assert_gone();
    world.assert_free();
}

/// The network forgets all connections at one of dlock's requests, from the login to the release.
/// The server keeps the sessions.
fn no_lost_connection_keeps_the_lock(server: &mut dyn Store) {
    // On MySQL, dlock ends no session that began within two seconds of its server's start.
    std::thread::sleep(Duration::from_secs(3));
    let runs: Vec<_> = (0..14)
        .map(|nth| {
            let (proxy, world) = (Proxy::to(server.port()), World::new(server.url()));
            proxy.trap_nth("", nth, 1, Fault::Forget);
            let run = world.start_on(
                &server.through(&proxy),
                &["--ttl", "60s", "-w", "25s"],
                "true",
            );
            (proxy, world, run)
        })
        .collect();
    for (nth, (_proxy, world, run)) in runs.into_iter().enumerate() {
        let run = run.wait(LIMIT);
        assert_eq!(run.code(), 0, "{nth}: {}", run.stderr);
        let next = world.start(&["-w", "10s"], "true").wait(LIMIT);
        assert_eq!(next.code(), 0, "{nth}: {}", next.stderr);
    }
}

/// dlock can't see that its session is over: the guardian does, before the next holder starts its
/// command.
fn ended_while_dlock_is_stopped(server: &mut dyn Store) {
    let world = World::new(server.url());
    let first = world.first_on(&server.url(), &["--ttl", "10s"]);
    let second = world.start_second();
    must("the second one waits", LIMIT, || {
        world.inspect().stdout.contains("waiting_for")
    });
    first.signal(Signal::STOP);
    server.take_away(&world.key);
    let second = second.wait(LIMIT);
    assert_eq!(second.code(), 0, "{}", second.stderr);
    world.assert_no_overlap();
    first.signal(Signal::CONT);
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    world.assert_gone();
    world.assert_free();
}

/// The next holder gets the lock immediately, and leaves the previous one time to stop its command.
fn ended_by_an_administrator(server: &mut dyn Store) {
    let world = World::new(server.url());
    let first = world.first_on(&server.url(), &["--ttl", "10s"]);
    let second = world.start_second();
    must("a waiter waits", LIMIT, || {
        world.inspect().stdout.contains("waiting_for")
    });
    server.take_away(&world.key);
    let began = Instant::now();
    must("the tree is dead", LIMIT, || world.tree().is_empty());
    assert!(
        began.elapsed() < beyond_stalls(TTL / 2),
        "{:?}",
        began.elapsed()
    );
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    let second = second.wait(LIMIT);
    assert_eq!(second.code(), 0, "{}", second.stderr);
    world.assert_no_overlap();
    world.assert_gone();
    world.assert_free();
}
