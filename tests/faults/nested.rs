//! Nested runs of one key: they enter the lock of the outer run, and the last one to end frees it.

use std::time::Duration;

use crate::{
    stores::{Store, on_every_store},
    support::{dlock, must},
    world::{LIMIT, World, shell},
};

on_every_store!(
    three_deep,
    an_inner_run_that_outlives_the_outer_keeps_the_lock,
    forbidden_nesting_is_a_usage_error,
    a_command_cannot_release_the_lock_of_its_run,
);

fn dlock(world: &World, options: &str) -> String {
    format!(
        "{} run -k {} {options} --",
        shell(&dlock::binary()),
        world.key
    )
}

fn three_deep(store: &dyn Store) {
    let world = World::new(store.url());
    let run = dlock(&world, "");
    let inspect = format!("{} inspect {} --json", shell(&dlock::binary()), world.key);
    let other = format!("DLOCK_HELD= {run} true; echo other $?");
    let script = format!(
        "echo $DLOCK_FENCE; {run} {run} sh -c 'echo $DLOCK_FENCE; {inspect}; {other}'; {inspect}"
    );
    let ended = world.start(&[], &script).wait(LIMIT);
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let report: Vec<_> = ended.stdout.lines().collect();
    let [outer, inner, three, "other 75", one] = report[..] else {
        panic!("{report:?} {}", ended.stderr)
    };
    assert_eq!(outer, inner);
    for (state, holds) in [(three, 3), (one, 1)] {
        let state: serde_json::Value = serde_json::from_str(state).expect("JSON");
        assert_eq!(
            (
                &state["holders"][0]["holds"],
                state["holders"].as_array().map(Vec::len)
            ),
            (&holds.into(), Some(1)),
            "{state}"
        );
    }
    world.assert_free();
}

fn an_inner_run_that_outlives_the_outer_keeps_the_lock(store: &dyn Store) {
    let world = World::new(store.url());
    let (began, done) = (world.path("began"), world.path("done"));
    let inner = format!("touch {}; sleep 3; touch {}", shell(&began), shell(&done));
    let script = format!(
        "setsid {} sh -c \"{inner}\" >/dev/null 2>{} & while [ ! -e {} ]; do sleep 0.05; done",
        dlock(&world, ""),
        shell(&world.path("inner")),
        shell(&began)
    );
    let outer = world.start(&["--leftover", "leave"], &script).wait(LIMIT);
    assert_eq!(outer.code(), 0, "{}", outer.stderr);
    assert!(
        !done.exists() && !world.is_free(),
        "the inner run has the lock"
    );
    while !done.exists() {
        // The inner lease would be over by now without renewals.
        let other = dlock::run(
            &store.url(),
            &[
                "run",
                "-k",
                &world.key,
                "--",
                "test",
                "-e",
                &done.display().to_string(),
            ],
        );
        assert!(
            [0, 75].contains(&other.code()),
            "{} {} {}",
            other.code(),
            other.stderr,
            world.file("inner")
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    must("the lock is free", LIMIT, || world.is_free());
}

/// A script that was written for `dlock acquire` releases at its end. The command would run on
/// without the lock.
fn a_command_cannot_release_the_lock_of_its_run(store: &dyn Store) {
    let world = World::new(store.url());
    let release = format!("{} release", shell(&dlock::binary()));
    let other = format!("DLOCK_HELD= {} true", dlock(&world, ""));
    let script = format!(
        "{release}; echo $?; {release} {} --token \"$DLOCK_TOKEN\"; echo $?; {other}; echo $?",
        world.key
    );
    let ended = world.start(&[], &script).wait(LIMIT);
    assert_eq!(
        (ended.code(), &*ended.stdout),
        (0, "64\n64\n75\n"),
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains("it ends with the run's command"),
        "{}",
        ended.stderr
    );
}

fn forbidden_nesting_is_a_usage_error(store: &dyn Store) {
    let world = World::new(store.url());
    let ended = world
        .start(&[], &format!("{} true", dlock(&world, "--no-reentrant")))
        .wait(LIMIT);
    assert_eq!(ended.code(), 64);
    assert!(
        ended.stderr.contains("this would deadlock"),
        "{}",
        ended.stderr
    );
    world.assert_free();
}
