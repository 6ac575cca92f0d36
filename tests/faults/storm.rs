//! Contenders for one key whose dlock, guardian and command are killed at random moments: the record
//! of a run and the history stay true.

use std::{collections::HashMap, thread, time::Duration};

use rustix::process::Signal;

use crate::{
    stores::{Store, on_every_store},
    support::{
        self,
        dice::Dice,
        dlock,
        process::{self, Process},
        procfs,
    },
    world::{LIMIT, World, shell},
};

on_every_store!(a_storm_of_kills_repeats_no_run_and_forgets_none);

/// Each denies a second run within the hour, whatever became of the first one.
const POLICIES: [&[&str]; 3] = [
    &["--once-per", "1h"],
    &["--once", "--keep", "1h", "--retry-failed", "0"],
    &["--at-least", "1h"],
];
const CONTENDERS: usize = 3;
const SEED: u64 = 20_261_128;

fn a_storm_of_kills_repeats_no_run_and_forgets_none(store: &dyn Store) {
    let url = store.url();
    thread::scope(|scope| {
        for round in 0..support::long_or(24, 6) {
            let url = url.clone();
            thread::Builder::new()
                .name(format!("storm {round}"))
                .spawn_scoped(scope, move || {
                    let policy = POLICIES[round % POLICIES.len()];
                    storm(url, policy, Dice(SEED + 7919 * round as u64));
                })
                .expect("a thread");
        }
    });
}

fn storm(url: String, policy: &[&str], mut dice: Dice) {
    let world = World::new(url);
    let (begun, done) = (shell(&world.path("begun")), shell(&world.path("done")));
    let script =
        format!("echo $DLOCK_FENCE $$ $PPID >> {begun}; sleep 0.3; echo $DLOCK_FENCE >> {done}");
    let options = [policy, &["-w", "5s"]].concat();
    let runs: Vec<_> = (0..CONTENDERS)
        .map(|_| world.start(&options, &script))
        .collect();
    let mut struck = Vec::new();
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(dice.below(350)));
        struck.push(strike(&world, &runs, &mut dice));
    }
    let codes: Vec<_> = runs.into_iter().map(|run| run.wait(LIMIT).code()).collect();
    let story = format!(
        "{policy:?}: {struck:?} → {codes:?}, begun {:?}",
        world.file("begun")
    );

    let begun: Vec<u64> = support::lines(&world.path("begun"))
        .iter()
        .map(|line| line.split(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(begun.len() <= 1, "{story}: it ran twice");
    world.assert_free();
    let history = history(&world);
    let record = if policy[0] == "--at-least" {
        &history["cooldown"]
    } else {
        &history["once"]
    };
    if let [fence] = begun[..] {
        assert_eq!(record["fence"], fence, "{story}: {history}");
        let is_done = !world.file("done").is_empty();
        assert!(
            is_done || record["state"] != "ok",
            "{story}: not done, and recorded as ok"
        );
        let ended_well = codes.contains(&0);
        assert!(
            is_done || !ended_well,
            "{story}: not done, and reported as ok"
        );
        if policy[0] != "--at-least" {
            assert!(
                !ended_well || record["state"] == "ok",
                "{story}: ok, and recorded as {record}"
            );
        }
    } else {
        assert!(!codes.contains(&0), "{story}: no command ran");
    }

    let again = world.start(policy, "exit 0").wait(LIMIT).code();
    assert!(begun.is_empty() || again == 75, "{story}, then {again}");
    // A hold that was never released is history once the lock is taken again.
    let anyway = [
        policy,
        &["--anyway", "--reason", "after the storm", "-w", "5s"],
    ]
    .concat();
    let last = world.start(&anyway, "exit 0").wait(LIMIT);
    assert_eq!(last.code(), 0, "{story}: {}", last.stderr);
    let history = self::history(&world);
    let mut ends: HashMap<_, Vec<_>> = HashMap::new();
    for run in history["runs"].as_array().expect("runs") {
        ends.entry(run["fence"].as_u64())
            .or_default()
            .push(run["end"].to_string());
    }
    for fence in begun {
        let ended = ends.get(&Some(fence)).map_or(0, Vec::len);
        assert_eq!(ended, 1, "{story}: run {fence} in {history}");
    }
}

fn history(world: &World) -> serde_json::Value {
    let read = dlock::run(&world.url, &["history", &world.key, "--json"]);
    serde_json::from_str(&read.stdout).expect("JSON")
}

/// Kills processes of the run that holds the lock, or of any if none does. Returns their names.
fn strike(world: &World, runs: &[Process], dice: &mut Dice) -> &'static str {
    let lines = support::lines(&world.path("begun"));
    let parts = lines.last().map(|line| {
        let mut words = line
            .split(' ')
            .skip(1)
            .map(|word| word.parse::<u32>().unwrap());
        (words.next().unwrap(), words.next().unwrap())
    });
    let guardian_of = |run: &Process| {
        procfs::children(run.pid())
            .into_iter()
            .find(|stat| stat.name == "lock-guard")
            .map(|stat| stat.pid)
    };
    let holder =
        parts.and_then(|(_, guardian)| runs.iter().find(|run| guardian_of(run) == Some(guardian)));
    let run = holder.unwrap_or(&runs[usize::try_from(dice.below(runs.len() as u64)).unwrap()]);
    let guardian = guardian_of(run);
    let kill_guardian = || {
        if let Some(guardian) = guardian {
            process::signal(guardian, Signal::KILL);
        }
    };
    match dice.below(5) {
        0 => {
            run.signal(Signal::KILL);
            "dlock"
        }
        1 => {
            kill_guardian();
            "guardian"
        }
        2 => {
            run.signal(Signal::KILL);
            kill_guardian();
            "dlock and guardian"
        }
        3 => {
            run.signal_group(Signal::KILL);
            "dlock's group"
        }
        _ => {
            let Some((command, _)) = parts.filter(|_| holder.is_some()) else {
                return "nothing";
            };
            process::signal(command, Signal::KILL);
            "the command"
        }
    }
}
