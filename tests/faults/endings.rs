//! Signals before and after the lock is taken, commands that ignore them, and processes that
//! outlive the command.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{
    stores::{Store, on_every_store},
    support::{must, process::Process, stretched},
    world::{LIMIT, World, shell},
};

on_every_store!(
    signals_while_waiting_leave_nothing_behind,
    signals_reach_the_command,
    a_command_that_handles_a_signal_sets_the_status,
    a_command_that_ignores_term_is_killed_after_the_grace,
    leftovers_are_waited_for,
    leftovers_are_killed,
    leftovers_can_be_left_running,
);

const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

pub fn signals_while_waiting_leave_nothing_behind(store: &dyn Store) {
    let world = World::new(store.url());
    let holder = world.start(&[], "exec sleep 60");
    must("the lock is held", LIMIT, || !world.is_free());
    for signal in ENDING {
        let waiter = world.start(
            &["-w", "forever"],
            &format!("touch {}", shell(&world.path("ran"))),
        );
        must("the run waits", LIMIT, || waiting(&world) == 1);
        let began = Instant::now();
        waiter.signal(signal);
        let ended = waiter.wait(LIMIT);
        assert_eq!(ended.code(), 128 + signal.as_raw(), "{}", ended.stderr);
        assert!(
            began.elapsed() < stretched(Duration::from_secs(2)),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(waiting(&world), 0);
    }
    end(holder);
    world.assert_free();
    assert!(!world.path("ran").exists());
}

fn signals_reach_the_command(store: &dyn Store) {
    let world = World::new(store.url());
    for signal in ENDING {
        let job = world.start(&[], "exec sleep 60");
        must("the command runs", LIMIT, || running(&job, "sleep"));
        job.signal(signal);
        let ended = job.wait(LIMIT);
        assert_eq!(ended.code(), 128 + signal.as_raw(), "{}", ended.stderr);
        assert!(world.is_free());
    }
}

fn a_command_that_handles_a_signal_sets_the_status(store: &dyn Store) {
    let world = World::new(store.url());
    for (signal, name) in [
        (Signal::TERM, "TERM"),
        (Signal::USR1, "USR1"),
        (Signal::HUP, "HUP"),
    ] {
        let ready = shell(&world.path(name));
        let script = format!(
            "trap 'echo got {name}; exit 7' {name}; touch {ready}; while :; do sleep 0.05; done"
        );
        let job = world.start(&[], &script);
        must("the command is ready", LIMIT, || world.path(name).exists());
        job.signal(signal);
        let ended = job.wait(LIMIT);
        assert_eq!(
            (ended.code(), ended.stdout.as_str()),
            (7, format!("got {name}\n").as_str()),
            "{}",
            ended.stderr
        );
        assert!(world.is_free());
    }
}

fn a_command_that_ignores_term_is_killed_after_the_grace(store: &dyn Store) {
    let world = World::new(store.url());
    let job = world.first_on(&store.url(), &["--grace", "300ms"]);
    let began = Instant::now();
    job.signal(Signal::TERM);
    let ended = job.wait(LIMIT);
    let took = began.elapsed();
    assert_eq!(ended.code(), 137, "{}", ended.stderr);
    assert!(took >= Duration::from_millis(300), "{took:?}");
    world.assert_gone();
    assert!(world.is_free());
}

pub fn leftovers_are_waited_for(store: &dyn Store) {
    let world = World::new(store.url());
    let job = world.start(
        &[],
        &world.tagged("setsid sleep TAG & setsid sleep TAG & exit 5"),
    );
    must("only the descendants are left", LIMIT, || {
        world.tree().iter().all(|stat| stat.name == "sleep") && world.tree().len() == 2
    });
    std::thread::sleep(Duration::from_millis(2500));
    assert!(
        !world.is_free(),
        "the lock is renewed as long as the descendants run"
    );
    world
        .tree()
        .iter()
        .for_each(|stat| crate::support::process::signal(stat.pid, Signal::KILL));
    let ended = job.wait(LIMIT);
    assert_eq!(ended.code(), 5, "{}", ended.stderr);
    assert!(world.is_free());
}

pub fn leftovers_are_killed(store: &dyn Store) {
    let world = World::new(store.url());
    let job = world.start(
        &["--leftover", "kill"],
        &world.tagged("setsid sleep TAG & exit 5"),
    );
    let ended = job.wait(LIMIT);
    assert_eq!(ended.code(), 5, "{}", ended.stderr);
    assert!(world.tree().is_empty(), "{:?}", world.tree());
    assert!(world.is_free());
}

fn leftovers_can_be_left_running(store: &dyn Store) {
    let world = World::new(store.url());
    let job = world.start(
        &["--leftover", "leave"],
        &world.tagged("setsid sleep TAG >/dev/null 2>&1 & exit 5"),
    );
    let ended = job.wait(LIMIT);
    assert_eq!(ended.code(), 5, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("without the lock"),
        "{}",
        ended.stderr
    );
    assert_eq!(world.tree().len(), 1);
    assert!(world.is_free());
}

fn waiting(world: &World) -> usize {
    let state: serde_json::Value = serde_json::from_str(&world.inspect().stdout).expect("JSON");
    state["waiters"].as_array().map_or(0, Vec::len)
}

fn running(job: &Process, name: &str) -> bool {
    crate::support::procfs::descendants(job.pid())
        .iter()
        .any(|stat| stat.name == name)
}

fn end(job: Process) {
    job.signal(Signal::TERM);
    assert_eq!(job.wait(LIMIT).code(), 143);
}
