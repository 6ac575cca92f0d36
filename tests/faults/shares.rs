//! Readers, permits and those who wait in order: what becomes of one of them is its own affair.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{
    stores::{Store, on_store},
    support::{dlock, lines, must, process::Process, stretched},
    world::{LIMIT, TTL, World, shell},
};

/// All stores but Redlock, which has readers alone.
macro_rules! on_stores_with_shares {
    ($($name:ident),* $(,)?) => {
        on_store!(sqlite: $($name),*);
        on_store!(redis: $($name),*);
        on_store!(sentinel: $($name),*);
        on_store!(cluster: $($name),*);
        on_store!(tair: $($name),*);
        on_store!(tair_version: $($name),*);
        on_store!(etcd: $($name),*);
        on_store!(postgres: $($name),*);
        on_store!(mariadb: $($name),*);
        on_store!(zookeeper: $($name),*);
    };
}

on_stores_with_shares!(
    a_killed_reader_is_dead_before_a_writer_starts,
    a_killed_permit_is_the_next_ones_while_the_others_go_on,
    a_stopped_permit_is_lost_and_the_others_are_not,
    nested_runs_share_what_their_ancestor_has,
    a_stream_of_readers_keeps_no_writer_out,
    who_waits_in_line_is_served_in_order,
    a_broken_permit_is_stopped_by_itself,
);

mod readers_alone {
    use super::{a_killed_reader_is_dead_before_a_writer_starts, a_stream_of_readers_keeps_no_writer_out};

    crate::stores::on_store!(redlock: a_killed_reader_is_dead_before_a_writer_starts, a_stream_of_readers_keeps_no_writer_out);
}

/// The lease, a second for one in line that does not come, and a moment more on a loaded machine.
const AFTER_THE_LEASE: Duration = Duration::from_secs(4);

fn holders(world: &World) -> usize {
    let state: serde_json::Value = serde_json::from_str(&world.inspect().stdout).expect("JSON");
    state["holders"].as_array().expect("holders").len()
}

fn waiters(world: &World) -> usize {
    let state: serde_json::Value = serde_json::from_str(&world.inspect().stdout).expect("JSON");
    state["waiters"].as_array().expect("waiters").len()
}

fn probe(world: &World) -> String {
    format!("sh {} {}", shell(&world.path("probe.sh")), world.path("").display())
}

fn a_killed_reader_is_dead_before_a_writer_starts(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first_on(&store.url(), &["-s"]);
    let other = world.start(&["-s"], "sleep 1");
    must("both read", LIMIT, || holders(&world) == 2);
    first.signal(Signal::KILL);
    let took = world.second();
    assert!(took < TTL + AFTER_THE_LEASE, "{took:?}");
    assert_eq!(other.wait(LIMIT).code(), 0);
    world.assert_gone();
    world.assert_free();
}

fn a_killed_permit_is_the_next_ones_while_the_others_go_on(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first_on(&store.url(), &["--permits", "2"]);
    let other = world.start(&["--permits", "2"], "echo $DLOCK_PERMIT; sleep 9");
    must("both have one", LIMIT, || holders(&world) == 2);
    let none = dlock::run(&store.url(), &["run", "-k", &world.key, "--permits", "2", "--", "true"]);
    assert_eq!(none.code(), 75, "{}", none.stderr);
    first.signal(Signal::KILL);
    let began = Instant::now();
    let next = world.start(&["--limit", "2", "-w", "25"], &format!("{}; echo $DLOCK_PERMIT", probe(&world))).wait(LIMIT);
    assert_eq!((next.code(), next.stdout.trim()), (0, "0"), "{}", next.stderr);
    assert!(began.elapsed() < TTL + AFTER_THE_LEASE, "{:?}", began.elapsed());
    world.assert_no_overlap();
    let other = other.wait(LIMIT);
    assert_eq!((other.code(), other.stdout.trim()), (0, "1"), "{}", other.stderr);
    world.assert_gone();
    world.assert_free();
}

fn a_stopped_permit_is_lost_and_the_others_are_not(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first_on(&store.url(), &["--permits", "2"]);
    let other = world.start(&["--permits", "2"], "sleep 6");
    must("both have one", LIMIT, || holders(&world) == 2);
    first.signal(Signal::STOP);
    let next = world.start(&["--permits", "2", "-w", "25"], &probe(&world)).wait(LIMIT);
    assert_eq!(next.code(), 0, "{}", next.stderr);
    world.assert_no_overlap();
    first.signal(Signal::CONT);
    assert_eq!(first.wait(LIMIT).code(), 76);
    assert_eq!(other.wait(LIMIT).code(), 0);
    world.assert_gone();
    world.assert_free();
}

fn nested_runs_share_what_their_ancestor_has(store: &dyn Store) {
    for (kind, number) in [(&["-s"][..], ""), (&["--permits", "1"], "0")] {
        let world = World::new(store.url());
        let run = format!("{} run -k {} {} --", shell(&dlock::binary()), world.key, kind.join(" "));
        let script = format!("{run} {run} sh -c 'echo \"$DLOCK_PERMIT $DLOCK_FENCE\"'; echo \"$DLOCK_PERMIT $DLOCK_FENCE\"");
        let ended = world.start(kind, &script).wait(LIMIT);
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
        let told: Vec<_> = ended.stdout.lines().collect();
        assert!(told.len() == 2 && told[0] == told[1] && told[0].starts_with(&format!("{number} ")), "{told:?}");
        // One of another lock sees neither the number nor the fence of the first.
        let script = format!("{} run -k {}-other -- sh -c 'echo \"$DLOCK_PERMIT.\"'", shell(&dlock::binary()), world.key);
        let ended = world.start(kind, &script).wait(LIMIT);
        assert_eq!((ended.code(), ended.stdout.trim()), (0, "."), "{}", ended.stderr);
        world.assert_free();
    }
}

fn a_stream_of_readers_keeps_no_writer_out(store: &dyn Store) {
    let world = World::new(store.url());
    let until = world.path("written");
    // Two of three read at any moment, for as long as nobody has written.
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
            // A lock of its own around it, which only starts the shell with the store in its environment.
            command.args(["run", "-k", &format!("{}-{number}", world.key), "--", "sh", "-c", &script]).env("DLOCK_BACKEND", store.url());
            Process::collect(command)
        })
        .collect();
    must("they read", LIMIT, || holders(&world) >= 2);
    let began = Instant::now();
    let writer = world.start(&["-w", "25"], &format!("touch {}", shell(&until))).wait(LIMIT);
    assert_eq!(writer.code(), 0, "{}", writer.stderr);
    assert!(began.elapsed() < stretched(Duration::from_secs(10)), "{:?}", began.elapsed());
    for reader in readers {
        let ended = reader.wait(LIMIT);
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
    }
    world.assert_free();
}

fn who_waits_in_line_is_served_in_order(store: &dyn Store) {
    let world = World::new(store.url());
    let (go, order) = (world.path("go"), world.path("order"));
    let first = world.start(&[], &format!("while [ ! -e {} ]; do sleep 0.05; done", shell(&go)));
    must("it is held", LIMIT, || holders(&world) == 1);
    let line: Vec<_> = (0..4)
        .map(|number| {
            let one = world.start(&["--fair", "-w", "25"], &format!("echo {number} >> {}", shell(&order)));
            must("it waits", LIMIT, || waiters(&world) == number + 1);
            one
        })
        .collect();
    // One that dies in line costs the others a second at most.
    line[1].signal(Signal::KILL);
    std::fs::write(&go, "").unwrap();
    let codes: Vec<_> = line.into_iter().map(|one| one.wait(LIMIT).code()).collect();
    assert_eq!((first.wait(LIMIT).code(), codes), (0, vec![0, 137, 0, 0]));
    assert_eq!(lines(&order), ["0", "2", "3"]);
    must("nobody waits", LIMIT, || world.is_free());
}

fn a_broken_permit_is_stopped_by_itself(store: &dyn Store) {
    let world = World::new(store.url());
    let first = world.first_on(&store.url(), &["--permits", "2"]);
    let other = world.start(&["--permits", "2"], "sleep 4");
    must("both have one", LIMIT, || holders(&world) == 2);
    let which = dlock::run(&store.url(), &["break", &world.key, "--yes", "--reason", "NFS"]);
    assert_eq!(which.code(), 64, "{}", which.stderr);
    let state: serde_json::Value = serde_json::from_str(&world.inspect().stdout).expect("JSON");
    let zero = state["holders"].as_array().expect("holders").iter().find(|holder| holder["permit"] == 0).expect("the first");
    let fence = zero["fence"].to_string();
    assert!(which.stderr.contains(&fence[fence.len().saturating_sub(4)..]), "{}", which.stderr);
    let broken = dlock::run(&store.url(), &["break", &world.key, "--yes", "--reason", "NFS", "--fence", &fence]);
    assert_eq!(broken.code(), 0, "{}", broken.stderr);
    assert!(broken.stderr.contains("the others have the lock"), "{}", broken.stderr);
    assert_eq!(first.wait(LIMIT).code(), 76);
    world.assert_gone();
    assert_eq!(holders(&world), 1);
    assert_eq!(other.wait(LIMIT).code(), 0);
    world.assert_free();
}
