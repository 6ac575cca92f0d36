//! Readers, permits and fair waiters: a fault on one of them affects no other.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{
    stores::{Store, on_stores_with_shares},
    support::{dlock, lines, must, process::Process, stretched},
    world::{LIMIT, TTL, World, shell},
};

on_stores_with_shares!(
    a_killed_reader_is_dead_before_a_writer_starts,
    a_killed_holders_permit_goes_to_the_next_waiter,
    a_stopped_holder_loses_only_its_own_permit,
    nested_runs_share_their_ancestors_hold,
    a_stream_of_readers_does_not_starve_a_writer,
    fair_waiters_are_served_in_order,
    breaking_a_permit_stops_only_its_holder,
);

mod readers_alone {
    use super::{
        a_killed_reader_is_dead_before_a_writer_starts,
        a_stream_of_readers_does_not_starve_a_writer,
    };

    crate::stores::on_store!(redlock: a_killed_reader_is_dead_before_a_writer_starts, a_stream_of_readers_does_not_starve_a_writer);
}

/// The lease, a second for an offer that isn't taken, and a margin.
fn after_the_lease() -> Duration {
    stretched(Duration::from_secs(4))
}

fn holders(world: &World) -> usize {
    let state: serde_json::Value = serde_json::from_str(&world.inspect().stdout).expect("JSON");
    state["holders"].as_array().expect("holders").len()
}

fn waiters(world: &World) -> usize {
    let state: serde_json::Value = serde_json::from_str(&world.inspect().stdout).expect("JSON");
    state["waiters"].as_array().expect("waiters").len()
}

fn probe(world: &World) -> String {
    format!(
        "sh {} {}",
        shell(&world.path("probe.sh")),
        world.path("").display()
    )
}

fn a_killed_reader_is_dead_before_a_writer_starts(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first_on(&store.url(), &["-s"]);
    let other = world.start(&["-s"], "sleep 1");
    must("both hold a share", LIMIT, || holders(&world) == 2);
    first.signal(Signal::KILL);
    let took = world.second();
    assert!(took < TTL + after_the_lease(), "{took:?}");
    assert_eq!(other.wait(LIMIT).code(), 0);
    world.assert_gone();
    world.assert_free();
}

fn a_killed_holders_permit_goes_to_the_next_waiter(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first_on(&store.url(), &["--permits", "2"]);
    let other = world.start(&["--permits", "2"], "echo $DLOCK_PERMIT; sleep 9");
    must("both hold a permit", LIMIT, || holders(&world) == 2);
    let none = dlock::run(
        &store.url(),
        &["run", "-k", &world.key, "--permits", "2", "--", "true"],
    );
    assert_eq!(none.code(), 75, "{}", none.stderr);
    first.signal(Signal::KILL);
    let began = Instant::now();
    let next = world
        .start(
            &["--limit", "2", "-w", "25"],
            &format!("{}; echo $DLOCK_PERMIT", probe(&world)),
        )
        .wait(LIMIT);
    assert_eq!(
        (next.code(), next.stdout.trim()),
        (0, "0"),
        "{}",
        next.stderr
    );
    assert!(
        began.elapsed() < TTL + after_the_lease(),
        "{:?}",
        began.elapsed()
    );
    world.assert_no_overlap();
    let other = other.wait(LIMIT);
    assert_eq!(
        (other.code(), other.stdout.trim()),
        (0, "1"),
        "{}",
        other.stderr
    );
    world.assert_gone();
    world.assert_free();
}

fn a_stopped_holder_loses_only_its_own_permit(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first_on(&store.url(), &["--permits", "2"]);
    let other = world.start(&["--permits", "2"], "sleep 6");
    must("both hold a permit", LIMIT, || holders(&world) == 2);
    first.signal(Signal::STOP);
    let next = world
        .start(&["--permits", "2", "-w", "25"], &probe(&world))
        .wait(LIMIT);
    assert_eq!(next.code(), 0, "{}", next.stderr);
    world.assert_no_overlap();
    first.signal(Signal::CONT);
    assert_eq!(first.wait(LIMIT).code(), 76);
    assert_eq!(other.wait(LIMIT).code(), 0);
    world.assert_gone();
    world.assert_free();
}

fn nested_runs_share_their_ancestors_hold(store: &dyn Store) {
    for (kind, number) in [(&["-s"][..], ""), (&["--permits", "1"], "0")] {
        let world = World::new(store.url());
        let run = format!(
            "{} run -k {} {} --",
            shell(&dlock::binary()),
            world.key,
            kind.join(" ")
        );
        let script = format!(
            "{run} {run} sh -c 'echo \"$DLOCK_PERMIT $DLOCK_FENCE\"'; echo \"$DLOCK_PERMIT $DLOCK_FENCE\""
        );
        let ended = world.start(kind, &script).wait(LIMIT);
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
        let report: Vec<_> = ended.stdout.lines().collect();
        assert!(
            report.len() == 2
                && report[0] == report[1]
                && report[0].starts_with(&format!("{number} ")),
            "{report:?}"
        );
        // A run of another lock inherits neither the permit number nor the fence.
        let script = format!(
            "{} run -k {}-other -- sh -c 'echo \"$DLOCK_PERMIT.\"'",
            shell(&dlock::binary()),
            world.key
        );
        let ended = world.start(kind, &script).wait(LIMIT);
        assert_eq!(
            (ended.code(), ended.stdout.trim()),
            (0, "."),
            "{}",
            ended.stderr
        );
        world.assert_free();
    }
}

fn a_stream_of_readers_does_not_starve_a_writer(store: &dyn Store) {
    let world = World::new(store.url());
    let until = world.path("written");
    // Two of three readers hold a share at any moment, until the writer has run.
    let script = format!(
        "i=0; while [ ! -e {0} ] && [ $i -lt 60 ]; do {1} run -k {2} -s -w 25 -- sleep 0.5 || exit; i=$((i+1)); done",
        shell(&until),
        shell(&dlock::binary()),
        world.key
    );
    let readers: Vec<_> = (0..3)
        .map(|number| {
            std::thread::sleep(Duration::from_millis(150 * number));
            let mut command = dlock::command();
            // An outer lock of its own only starts the shell, with the store in its environment.
            command
                .args([
                    "run",
                    "-k",
                    &format!("{}-{number}", world.key),
                    "--",
                    "sh",
                    "-c",
                    &script,
                ])
                .env("DLOCK_BACKEND", store.url());
            Process::collect(command)
        })
        .collect();
    must("the readers hold shares", LIMIT, || holders(&world) >= 2);
    let began = Instant::now();
    let writer = world
        .start(&["-w", "25"], &format!("touch {}", shell(&until)))
        .wait(LIMIT);
    assert_eq!(writer.code(), 0, "{}", writer.stderr);
    assert!(
        began.elapsed() < stretched(Duration::from_secs(10)),
        "{:?}",
        began.elapsed()
    );
    for reader in readers {
        let ended = reader.wait(LIMIT);
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
    }
    world.assert_free();
}

fn fair_waiters_are_served_in_order(store: &dyn Store) {
    let world = World::new(store.url());
    let (go, order) = (world.path("go"), world.path("order"));
    let mut first = world.start(
        &[],
        &format!("while [ ! -e {} ]; do sleep 0.05; done", shell(&go)),
    );
    must("the lock is held, or the run has ended", LIMIT, || {
        holders(&world) == 1 || first.has_ended()
    });
    assert!(
        !first.has_ended(),
        "the first run ended: {:?}",
        first.wait(LIMIT)
    );
    let queue: Vec<_> = (0..4)
        .map(|number| {
            let one = world.start(
                &["--fair", "-w", "25"],
                &format!("echo {number} >> {}", shell(&order)),
            );
            must("the waiter waits", LIMIT, || waiters(&world) == number + 1);
            one
        })
        .collect();
    // A waiter that dies in the queue delays the others by a second at most.
    queue[1].signal(Signal::KILL);
    std::fs::write(&go, "").unwrap();
    let codes: Vec<_> = queue
        .into_iter()
        .map(|one| one.wait(LIMIT).code())
        .collect();
    assert_eq!((first.wait(LIMIT).code(), codes), (0, vec![0, 137, 0, 0]));
    assert_eq!(lines(&order), ["0", "2", "3"]);
    must("no waiter is left", LIMIT, || world.is_free());
}

fn breaking_a_permit_stops_only_its_holder(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first_on(&store.url(), &["--permits", "2"]);
    let told = world.path("told");
    let until_told = format!("until [ -e {} ]; do sleep 0.05; done", shell(&told));
    let other = world.start(&["--permits", "2"], &until_told);
    must("both hold a permit", LIMIT, || holders(&world) == 2);
    let which = dlock::run(
        &store.url(),
        &["break", &world.key, "--yes", "--reason", "NFS"],
    );
    assert_eq!(which.code(), 64, "{}", which.stderr);
    let state: serde_json::Value = serde_json::from_str(&world.inspect().stdout).expect("JSON");
    let zero = state["holders"]
        .as_array()
        .expect("holders")
        .iter()
        .find(|holder| holder["permit"] == 0)
        .expect("the first");
    let fence = zero["fence"].to_string();
    assert!(
        which
            .stderr
            .contains(&fence[fence.len().saturating_sub(4)..]),
        "{}",
        which.stderr
    );
    let broken = dlock::run(
        &store.url(),
        &[
            "break", &world.key, "--yes", "--reason", "NFS", "--fence", &fence,
        ],
    );
    assert_eq!(broken.code(), 0, "{}", broken.stderr);
    assert!(
        broken.stderr.contains("the others have the lock"),
        "{}",
        broken.stderr
    );
    assert_eq!(first.wait(LIMIT).code(), 76);
    world.assert_gone();
    assert_eq!(holders(&world), 1);
    std::fs::write(&told, "").unwrap();
    assert_eq!(other.wait(LIMIT).code(), 0);
    world.assert_free();
}
