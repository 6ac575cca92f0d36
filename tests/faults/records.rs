//! What the record of a run says of each end of the run, and which later runs it denies.

use std::{thread, time::Duration};

use rustix::process::Signal;

use crate::{
    stores::{Store, on_every_store},
    support::{dlock, must, process::Ended},
    world::{LIMIT, World, shell},
};

on_every_store!(
    a_command_that_is_not_executed_does_not_count,
    a_grant_without_a_run_puts_back_the_record,
    what_a_command_did_before_it_outlived_its_run_counts,
    a_command_that_ends_with_0_when_it_is_stopped_is_not_known_to_be_done,
    an_operators_failed_run_takes_back_no_success,
);

mod lost {
    use super::a_lost_run_is_neither_done_nor_repeated;

    crate::stores::on_every_server!(a_lost_run_is_neither_done_nor_repeated);
}

const ONCE: [&str; 3] = ["--once", "--keep", "1h"];

impl World {
    /// Runs a script with these options.
    fn with(&self, options: &[&str], script: &str) -> Ended {
        self.start(options, script).wait(LIMIT)
    }

    /// Runs a program with these options, from the host `host`.
    fn program(&self, host: &str, options: &[&str], program: &str) -> Ended {
        let mut arguments = vec!["run", "-k", &self.key, "--host", host];
        arguments.extend(options);
        arguments.extend(["--", program]);
        dlock::run(&self.url, &arguments)
    }
}

#[track_caller]
fn assert_status(ended: &Ended, status: i32) {
    assert_eq!(ended.code(), status, "{}{}", ended.stdout, ended.stderr);
}

fn a_command_that_is_not_executed_does_not_count(store: &dyn Store) {
    let not_executable = "/etc/passwd";
    for (program, status) in [("/no/such", 127), (not_executable, 126)] {
        for options in [&["--once-per", "1d"][..], &["--at-least", "5m"], &[], &ONCE] {
            let world = World::new(store.url());
            assert_status(&world.program("web1", options, program), status);
            assert_status(&world.program("web1", options, "true"), 0);
        }
    }
}

fn a_grant_without_a_run_puts_back_the_record(store: &dyn Store) {
    let world = World::new(store.url());
    assert_status(&world.with(&ONCE, "exit 0"), 0);
    let anyway = ["--anyway", "--reason", "x"];
    let forced = [&ONCE[..], &anyway].concat();
    assert_status(&world.program("web1", &forced, "/no/such"), 127);
    assert_status(&world.with(&ONCE, "exit 0"), 75);
    // The second lock is busy.
    let other = World::new(store.url());
    let holder = other.start(&[], "exec sleep 60");
    must("the other lock is held", LIMIT, || !other.is_free());
    assert_status(
        &world.with(&[&forced[..], &["-k", &other.key]].concat(), "exit 0"),
        75,
    );
    assert_status(&world.with(&ONCE, "exit 0"), 75);
    // A run that crashed stays crashed.
    let crashed = World::new(store.url());
    let ready = shell(&crashed.path("ready"));
    let run = crashed.start(&ONCE, &format!("touch {ready}; exec sleep 60"));
    must("the command runs", LIMIT, || crashed.path("ready").exists());
    run.signal(Signal::KILL);
    run.wait(LIMIT);
    crashed.assert_free();
    let retried = [&ONCE[..], &["--retry-crashed"]].concat();
    must("the crashed run may be repeated", LIMIT, || {
        crashed.program("web1", &retried, "/no/such").code() == 127
    });
    let denied = crashed.with(&ONCE, "exit 0");
    assert_status(&denied, 75);
    assert_status(&crashed.with(&retried, "exit 0"), 0);
    holder.signal(Signal::TERM);
    holder.wait(LIMIT);
}

fn what_a_command_did_before_it_outlived_its_run_counts(store: &dyn Store) {
    let world = World::new(store.url());
    let options = [&ONCE[..], &["--max-runtime", "500ms", "--grace", "200ms"]].concat();
    assert_status(&world.with(&options, "sleep 60 & exit 0"), 124);
    assert_status(&world.with(&ONCE, "exit 0"), 75);
    // The guardian is killed while what the command left behind runs.
    let world = World::new(store.url());
    let gone = shell(&world.path("gone"));
    let run = world.start(&ONCE, &format!("(while kill -0 $$ 2>/dev/null; do sleep 0.02; done; touch {gone}; exec sleep 60) & exit 0"));
    must("the command has ended", LIMIT, || {
        world.path("gone").exists()
    });
    thread::sleep(Duration::from_millis(300));
    let guardian =
        rustix::process::Pid::from_raw(World::guardian(&run).try_into().unwrap()).unwrap();
    rustix::process::kill_process(guardian, Signal::KILL).unwrap();
    assert_status(&run.wait(LIMIT), 76);
    assert_status(&world.with(&ONCE, "exit 0"), 75);
    let unknown = [&ONCE[..], &["--retry-crashed"]].concat();
    assert_status(&world.with(&unknown, "exit 0"), 75);
    // It is killed while the command runs: the command's end is not known.
    let world = World::new(store.url());
    let ready = shell(&world.path("ready"));
    let run = world.start(&ONCE, &format!("touch {ready}; exec sleep 60"));
    must("the command runs", LIMIT, || world.path("ready").exists());
    let guardian =
        rustix::process::Pid::from_raw(World::guardian(&run).try_into().unwrap()).unwrap();
    rustix::process::kill_process(guardian, Signal::KILL).unwrap();
    assert_status(&run.wait(LIMIT), 76);
    assert_status(&world.with(&ONCE, "exit 0"), 75);
    assert_status(&world.with(&unknown, "exit 0"), 0);
}

fn a_command_that_ends_with_0_when_it_is_stopped_is_not_known_to_be_done(store: &dyn Store) {
    let world = World::new(store.url());
    let ready = shell(&world.path("ready"));
    let run = world.start(
        &ONCE,
        &format!("trap 'exit 0' TERM; touch {ready}; while :; do sleep 0.05; done"),
    );
    must("the command runs", LIMIT, || world.path("ready").exists());
    run.signal(Signal::TERM);
    assert_status(&run.wait(LIMIT), 0);
    let denied = world.with(&ONCE, "exit 0");
    assert_status(&denied, 75);
    assert_status(
        &world.with(&[&ONCE[..], &["--retry-failed", "9"]].concat(), "exit 0"),
        75,
    );
    assert_status(
        &world.with(&[&ONCE[..], &["--retry-crashed"]].concat(), "exit 0"),
        0,
    );
}

fn an_operators_failed_run_takes_back_no_success(store: &dyn Store) {
    let world = World::new(store.url());
    assert_status(&world.with(&ONCE, "exit 0"), 0);
    assert_status(
        &world.with(
            &[&ONCE[..], &["--anyway", "--reason", "again"]].concat(),
            "exit 3",
        ),
        3,
    );
    assert_status(&world.with(&ONCE, "exit 0"), 75);
}

/// The store is back when 0.75 and 0.9 of the lease are over, and learns how the run ended.
fn a_lost_run_is_neither_done_nor_repeated(store: &mut dyn Store) {
    let worlds = [World::new(store.url()), World::new(store.url())];
    let runs = [("12s", &worlds[0]), ("10s", &worlds[1])].map(|(ttl, world)| {
        let options = [&ONCE[..], &["--ttl", ttl, "--grace", "500ms"]].concat();
        let ready = shell(&world.path("ready"));
        world.start(
            &options,
            &format!("trap 'exit 0' TERM; touch {ready}; while :; do sleep 0.05; done"),
        )
    });
    must("the commands run", LIMIT, || {
        worlds.iter().all(|world| world.path("ready").exists())
    });
    store.freeze();
    thread::sleep(Duration::from_secs(9));
    store.thaw();
    for (world, run) in worlds.iter().zip(runs) {
        assert_status(&run.wait(LIMIT), 76);
        must("the store answers", LIMIT, || world.is_free());
        assert_status(&world.with(&ONCE, "exit 0"), 75);
        assert_status(
            &world.with(&[&ONCE[..], &["--retry-failed", "9"]].concat(), "exit 0"),
            75,
        );
        assert_status(
            &world.with(&[&ONCE[..], &["--retry-crashed"]].concat(), "exit 0"),
            0,
        );
    }
}
