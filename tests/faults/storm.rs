//! Contenders for one key whose dlock, guardian and command are killed at random moments: the record
//! of a run and the history stay true.

use std::{
    collections::HashMap,
    os::unix::process::CommandExt as _,
    process::Stdio,
    thread,
    time::{Duration, Instant, SystemTime},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    stores::{Store, on_every_store},
    support::{
        self,
        dice::Dice,
        dlock,
        process::{self, Process},
        procfs,
    },
    world::{self, LIMIT, World, shell},
};

on_every_store!(
    a_storm_of_kills_repeats_no_run_and_forgets_none,
    no_other_host_starts_within_the_skew_guard,
);

/// A run policy, and which runs may be followed by another one within its window of an hour.
struct Policy {
    options: &'static [&'static str],
    repeats: Repeats,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Repeats {
    Nothing,
    /// Runs with an unknown outcome.
    Crashed,
    /// One failed run.
    OneFailed,
}

const POLICIES: [Policy; 5] = [
    Policy {
        options: &["--once-per", "1h"],
        repeats: Repeats::Nothing,
    },
    Policy {
        options: &["--once", "--keep", "1h", "--retry-failed", "0"],
        repeats: Repeats::Nothing,
    },
    Policy {
        options: &["--at-least", "1h"],
        repeats: Repeats::Nothing,
    },
    Policy {
        options: &["--once-per", "1h", "--retry-crashed"],
        repeats: Repeats::Crashed,
    },
    Policy {
        options: &["--once-per", "1h", "--retry-failed", "1"],
        repeats: Repeats::OneFailed,
    },
];
const CONTENDERS: usize = 3;
const SEED: u64 = 20_261_128;

/// Calls `round` with numbers from 0 on, in a thread for each.
fn at_once(rounds: usize, round: impl Fn(usize, Dice) + Sync) {
    let round = &round;
    thread::scope(|scope| {
        for nth in 0..rounds {
            thread::Builder::new()
                .name(format!("storm {nth}"))
                .spawn_scoped(scope, move || {
                    round(nth, Dice(SEED + 7919 * nth as u64));
                })
                .expect("a thread");
        }
    });
}

fn a_storm_of_kills_repeats_no_run_and_forgets_none(store: &dyn Store) {
    let url = store.url();
    at_once(support::long_or(30, 5), |nth, dice| {
        storm(url.clone(), &POLICIES[nth % POLICIES.len()], dice);
    });
}

fn storm(url: String, policy: &Policy, mut dice: Dice) {
    let world = World::new(url);
    let [alone, overlap, begun, done] =
        ["alone", "overlap", "begun", "done"].map(|name| shell(&world.path(name)));
    let script = format!(
        "exec 9>{alone}; flock -n 9 || echo >> {overlap}; echo $DLOCK_FENCE >> {begun}; \
         sleep 0.3; echo $DLOCK_FENCE >> {done}"
    );
    let options = [policy.options, &["-w", "5s"]].concat();
    let runs: Vec<_> = (0..CONTENDERS)
        .map(|_| world.start(&options, &script))
        .collect();
    let mut struck = Vec::new();
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(dice.below(350)));
        struck.push(strike(&runs.iter().collect::<Vec<_>>(), &mut dice));
    }
    let codes: Vec<_> = runs.into_iter().map(|run| run.wait(LIMIT).code()).collect();
    world.assert_free();
    let fences = |name| -> Vec<u64> {
        let lines = support::lines(&world.path(name));
        lines.iter().map(|line| line.parse().unwrap()).collect()
    };
    let (begun, done) = (fences("begun"), fences("done"));
    let history = history(&world);
    let story = format!(
        "{:?}: {struck:?} → {codes:?}, begun {begun:?}, done {done:?}: {history}",
        policy.options
    );
    // Nothing stops the command once both are gone.
    if !struck.contains(&"dlock and guardian") {
        assert!(world.file("overlap").is_empty(), "{story}: two ran at once");
    }
    let ends = ends(&history);
    judge_repeats(policy.repeats, &struck, &begun, &ends, &story);
    let record = if policy.options[0] == "--at-least" {
        &history["cooldown"]
    } else {
        &history["once"]
    };
    judge_record(record, &codes, &begun, &done, &story);

    let again = world.start(policy.options, "exit 0").wait(LIMIT).code();
    let may_run = match policy.repeats {
        _ if begun.is_empty() => true,
        Repeats::Nothing => false,
        Repeats::Crashed => !["ok", "failed"].contains(&record["state"].as_str().unwrap()),
        Repeats::OneFailed => record["state"] == "failed" && begun.len() == 1,
    };
    // Without any run there may be a record of a run that was to start.
    assert!(
        begun.is_empty() || again == if may_run { 0 } else { 75 },
        "{story}, then {again}"
    );
    // A hold that was never released is history once the lock is taken again.
    let anyway = [
        policy.options,
        &["--anyway", "--reason", "after the storm", "-w", "5s"],
    ]
    .concat();
    let last = world.start(&anyway, "exit 0").wait(LIMIT);
    assert_eq!(last.code(), 0, "{story}: {}", last.stderr);
    let ends = self::ends(&self::history(&world));
    for fence in begun {
        let ended = ends.get(&fence).map_or(0, Vec::len);
        assert_eq!(ended, 1, "{story}: run {fence} in {ends:?}");
    }
}

/// Judges whether each run but the last one could be followed by another one.
#[track_caller]
fn judge_repeats(
    repeats: Repeats,
    struck: &[&str],
    begun: &[u64],
    ends: &HashMap<u64, Vec<String>>,
    story: &str,
) {
    let commands = struck.iter().filter(|part| **part == "the command").count();
    let nothing = struck.iter().filter(|part| **part == "nothing").count();
    let most = match repeats {
        Repeats::Nothing => 1,
        Repeats::Crashed => 1 + struck.len() - commands - nothing,
        Repeats::OneFailed => 1 + commands.min(1),
    };
    assert!(begun.len() <= most, "{story}: it ran too often");
    assert!(
        begun.is_sorted_by(|one, next| one < next),
        "{story}: fences fall"
    );
    for fence in begun.iter().rev().skip(1) {
        let end = ends.get(fence).into_iter().flatten().next();
        assert!(
            end.is_none_or(|end| end != "ok"),
            "{story}: a run followed the success of {fence}"
        );
    }
}

/// Compares the record of the last run with what was reported and done.
#[track_caller]
fn judge_record(record: &Value, codes: &[i32], begun: &[u64], done: &[u64], story: &str) {
    let succeeded = codes.iter().filter(|code| **code == 0).count();
    let Some(last) = begun.last() else {
        assert_eq!(succeeded, 0, "{story}: no command ran");
        return;
    };
    assert_eq!(record["fence"], *last, "{story}");
    let is_done = done.contains(last);
    assert!(
        is_done || record["state"] != "ok",
        "{story}: not done, and recorded as ok"
    );
    assert!(
        succeeded <= usize::from(is_done),
        "{story}: not done, and reported as ok"
    );
    // The cooldown has no state.
    assert!(
        succeeded == 0 || record["state"].as_str().is_none_or(|state| state == "ok"),
        "{story}: ok, and not recorded so"
    );
}

fn history(world: &World) -> Value {
    let read = dlock::run(&world.url, &["history", &world.key, "--json"]);
    serde_json::from_str(&read.stdout).expect("JSON")
}

/// Returns the ends of each run, by its fence.
fn ends(history: &Value) -> HashMap<u64, Vec<String>> {
    let mut ends: HashMap<_, Vec<_>> = HashMap::new();
    for run in history["runs"].as_array().expect("runs") {
        let end = run["end"].as_str().unwrap_or_default().to_owned();
        ends.entry(run["fence"].as_u64().expect("a fence"))
            .or_default()
            .push(end);
    }
    ends
}

const GUARD: Duration = Duration::from_secs(2);

fn no_other_host_starts_within_the_skew_guard(store: &dyn Store) {
    if !rustix::process::geteuid().is_root() {
        return support::skip("a storm of tries", "only root can make a PID namespace");
    }
    let url = store.url();
    at_once(support::long_or(4, 1), |_, dice| {
        storm_of_tries(url.clone(), dice);
    });
}

/// Another host for dlock: a PID namespace, which lasts as long as this value.
struct Host {
    init: Process,
    pid: u32,
}

impl Host {
    fn new() -> Self {
        let mut unshare = process::command("unshare");
        unshare.args([
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sleep",
            "600",
        ]);
        let mut host = Self {
            init: Process::collect(unshare),
            pid: 0,
        };
        support::must("the namespace is there", LIMIT, || {
            let sleep = procfs::children(host.init.pid())
                .into_iter()
                .find(|child| child.name == "sleep");
            sleep.inspect(|sleep| host.pid = sleep.pid).is_some()
        });
        host
    }

    /// Starts one try.
    fn start(&self, world: &World, script: &str) -> Process {
        let mut command = process::command("nsenter");
        let guard = format!("{}s", GUARD.as_secs());
        command
            .args(["--target", &self.pid.to_string(), "--pid", "--mount"])
            .arg(dlock::binary())
            .args(["run", "-k", &world.key, "--skew-guard", &guard])
            .args(["--", "sh", "-c", script])
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", "/nonexistent")
            .env("DLOCK_BACKEND", &world.url)
            .env("DLOCK_TTL", format!("{}s", world::TTL.as_secs()))
            .stdin(Stdio::null())
            .process_group(0);
        Process::collect(command)
    }
}

/// Each host tries all the time, and runs are killed. A run that was killed counts too.
fn storm_of_tries(url: String, mut dice: Dice) {
    let world = World::new(url);
    let hosts: Vec<_> = (0..CONTENDERS).map(|_| Host::new()).collect();
    let [alone, overlap, begun] =
        ["alone", "overlap", "begun"].map(|name| shell(&world.path(name)));
    let start = |nth: usize| {
        let asked = now().as_millis();
        let script = format!(
            "exec 9>{alone}; flock -n 9 || echo >> {overlap}; \
             echo {nth} {asked} $(date +%s%3N) $DLOCK_FENCE >> {begun}; sleep 0.3"
        );
        hosts[nth].start(&world, &script)
    };
    let mut runs: Vec<_> = (0..hosts.len()).map(&start).collect();
    let mut struck = Vec::new();
    let began = Instant::now();
    let mut next = Duration::ZERO;
    while began.elapsed() < GUARD * 3 {
        for (nth, run) in runs.iter_mut().enumerate() {
            if run.has_ended() {
                *run = start(nth);
            }
        }
        if began.elapsed() > next {
            struck.push(strike(&runs.iter().collect::<Vec<_>>(), &mut dice));
            next = began.elapsed() + Duration::from_millis(dice.below(1200));
        }
        thread::sleep(Duration::from_millis(80));
    }
    for run in runs {
        run.wait(LIMIT);
    }
    let lines = support::lines(&world.path("begun"));
    let story = format!("{struck:?}: {lines:?}");
    assert!(!lines.is_empty(), "{story}: nothing ran");
    if !struck.contains(&"dlock and guardian") {
        assert!(world.file("overlap").is_empty(), "{story}: two ran at once");
    }
    let runs: Vec<[u64; 3]> = lines
        .iter()
        .map(|line| {
            let mut words = line.split(' ').map(|word| word.parse().unwrap());
            [(); 3].map(|()| words.next().unwrap())
        })
        .collect();
    for (nth, [host, asked, _]) in runs.iter().enumerate() {
        for [other, _, begun] in &runs[nth + 1..] {
            // A start is recorded after dlock was started, and before its command is.
            let late = Duration::from_millis(begun.saturating_sub(*asked));
            assert!(
                host == other || late >= GUARD,
                "{story}: host {other} ran {late:?} after a try of host {host}"
            );
        }
    }
    // The guard ends.
    support::must("another host runs", LIMIT, || {
        (0..hosts.len()).any(|nth| {
            runs.last().is_some_and(|[last, ..]| *last != nth as u64)
                && start(nth).wait(LIMIT).code() == 0
        })
    });
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970")
}

/// The processes of one run.
struct Parts<'a> {
    run: &'a Process,
    dlock: u32,
    guardian: Option<u32>,
    command: Option<u32>,
}

impl<'a> Parts<'a> {
    fn of(run: &'a Process) -> Self {
        let tree = procfs::descendants(run.pid());
        let guardian = tree.iter().find(|stat| stat.name == "lock-guard");
        let child = |guardian: &procfs::Stat| {
            let command = tree.iter().find(|stat| stat.parent == guardian.pid)?;
            Some(command.pid)
        };
        Self {
            run,
            // The process that entered the namespace is its parent.
            dlock: guardian.map_or(run.pid(), |guardian| guardian.parent),
            guardian: guardian.map(|guardian| guardian.pid),
            command: guardian.and_then(child),
        }
    }
}

/// Kills processes of the run that holds the lock, or of any if none does. Returns their names.
fn strike(runs: &[&Process], dice: &mut Dice) -> &'static str {
    let mut all: Vec<_> = runs.iter().map(|run| Parts::of(run)).collect();
    let holder = all.iter().position(|parts| parts.command.is_some());
    let any = usize::try_from(dice.below(runs.len() as u64)).unwrap();
    let parts = all.swap_remove(holder.unwrap_or(any));
    let kill = |pid: u32| process::signal(pid, Signal::KILL);
    match dice.below(5) {
        0 => {
            kill(parts.dlock);
            "dlock"
        }
        1 => {
            parts.guardian.map(kill);
            "guardian"
        }
        2 => {
            kill(parts.dlock);
            parts.guardian.map(kill);
            "dlock and guardian"
        }
        3 => {
            parts.run.signal_group(Signal::KILL);
            "dlock's group"
        }
        _ => {
            let Some(command) = parts.command else {
                return "nothing";
            };
            kill(command);
            "the command"
        }
    }
}
