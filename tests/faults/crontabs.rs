//! The crontabs of five nodes that run two hundred ticks as real processes. Clocks differ, nodes
//! die in the middle of a run and lose the store. No tick runs twice, a tick is missed only if no
//! node could run it, and every skip has a known reason.
//!
//! A minute is six seconds here (up to nine on a busy machine); other times shrink with it.
//! `DLOCK_CRONTAB_MINUTE=60s` sets its length.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    stores::{Store, on_store},
    support::{
        self,
        dice::Dice,
        dlock,
        process::{self, Process, Sweep},
        procfs,
        proxy::{Mode, Proxy},
    },
};

on_store!(redis: each_tick_of_five_crontabs_is_run_once);
on_store!(postgres: each_tick_of_five_crontabs_is_run_once);
on_store!(etcd: each_tick_of_five_crontabs_is_run_once);
on_store!(zookeeper: each_tick_of_five_crontabs_is_run_once);

const NODES: usize = 5;
/// The jobs of all crontabs, each with its own ticks. One half of them has larger clock errors than
/// the other.
const JOBS: usize = 20;
const TICKS: usize = 10;
/// Standard deviation and limit of the clock errors, in fractions of a minute.
const SKEWS: [f64; 2] = [0.5 / 60.0, 2.0 / 60.0];
const LIMIT: f64 = 3.0 / 60.0;

/// One start of a job by one crontab at one tick.
struct Firing {
    at: Duration,
    job: usize,
    tick: usize,
    node: usize,
    /// Whether the node dies during the run.
    dies: bool,
}

/// A firing that was started.
struct Fired {
    firing: Firing,
    began: Instant,
    process: Process,
    tag: String,
}

/// The outcome of a firing.
#[derive(Debug)]
struct Outcome {
    tick: (usize, usize),
    node: usize,
    /// Whether the node was cut off from the store during part of the run.
    cut: bool,
    dies: bool,
    /// When the run started, counted from the start of the test.
    from: Duration,
    verdict: Option<Value>,
    stderr: String,
}

impl Outcome {
    fn says(&self, result: &str) -> bool {
        self.verdict
            .as_ref()
            .is_some_and(|verdict| verdict["result"] == result)
    }
}

/// Returns the length of a minute in these crontabs.
fn minute() -> Duration {
    let asked = std::env::var("DLOCK_CRONTAB_MINUTE")
        .ok()
        .map(|asked| humantime::parse_duration(&asked).expect("a length of time"));
    asked.unwrap_or_else(|| Duration::from_secs(5) + Duration::from_secs(1) * support::slowness())
}

/// Returns all firings, in order of time.
fn firings(dice: &mut Dice, minute: Duration) -> Vec<Firing> {
    let mut all = Vec::new();
    for job in 0..JOBS {
        let phase = minute * u32::try_from(job).unwrap_or(0) / u32::try_from(JOBS).unwrap_or(1);
        let mut away = [0; NODES];
        let deviation = SKEWS[job % SKEWS.len()];
        for tick in 0..TICKS {
            let nominal = minute * u32::try_from(tick + 1).unwrap_or(1) + phase;
            // One of the five nodes dies if it is the one that runs the job.
            let dies = (dice.below(8) == 0).then(|| usize::try_from(dice.below(5)).unwrap_or(0));
            for (node, away) in away.iter_mut().enumerate() {
                if *away > tick {
                    continue;
                }
                if dice.below(12) == 0 {
                    *away = tick + 1 + usize::try_from(dice.below(3)).unwrap_or(0);
                    continue;
                }
                let skew = (dice.normal() * deviation).clamp(-LIMIT, LIMIT);
                let at = nominal + minute.mul_f64(LIMIT + skew);
                all.push(Firing {
                    at,
                    job,
                    tick,
                    node,
                    dies: dies == Some(node),
                });
            }
        }
    }
    all.sort_by_key(|firing| firing.at);
    all
}

/// Returns when each node is cut off from the store: twice, each time for longer than a tick.
fn outages(dice: &mut Dice, minute: Duration) -> Vec<Vec<(Duration, Duration)>> {
    let ticks = minute.mul_f64(11.0);
    let one = |dice: &mut Dice, half: f64| {
        let from = ticks.mul_f64(f64::midpoint(half, dice.part() * 0.7));
        (from, from + minute.mul_f64(0.5 + dice.part()))
    };
    (0..NODES)
        .map(|_| vec![one(dice, 0.1), one(dice, 1.1)])
        .collect()
}

/// One store runs its crontabs at a time: a small machine can't start more processes at once.
static MACHINE: Mutex<()> = Mutex::new(());

fn each_tick_of_five_crontabs_is_run_once(store: &dyn Store) {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = ::dlock::lock::random() | 1;
    let (mut dice, minute) = (Dice(seed), minute());
    let (firings, outages) = (firings(&mut dice, minute), outages(&mut dice, minute));
    let (folder, keys) = (
        support::folder(),
        (0..JOBS)
            .map(|_| dlock::unique("crontab"))
            .collect::<Vec<_>>(),
    );
    let _sweeps: Vec<Sweep> = keys.iter().cloned().map(Sweep).collect();
    let mut proxies: Vec<Proxy> = (0..NODES).map(|_| Proxy::to(store.port())).collect();
    let urls: Vec<String> = proxies.iter().map(|proxy| store.through(proxy)).collect();
    let log = |job: usize| -> PathBuf { folder.path().join(format!("job-{job}")) };

    let began = Instant::now();
    let mut is_cut = [false; NODES];
    let mut running: Vec<Fired> = Vec::new();
    let mut over: Vec<thread::JoinHandle<Outcome>> = Vec::new();
    let mut left = firings.into_iter().peekable();
    while left.peek().is_some() || !running.is_empty() {
        let now = began.elapsed();
        for (node, proxy) in proxies.iter_mut().enumerate() {
            let cut = outages[node]
                .iter()
                .any(|(from, to)| (*from..*to).contains(&now));
            if std::mem::replace(&mut is_cut[node], cut) != cut {
                proxy.set(if cut { Mode::BlackHole } else { Mode::Pass });
                if !cut {
                    // Connections whose packets were dropped must not resume.
                    proxy.cut();
                }
            }
        }
        while let Some(firing) = left.next_if(|firing| firing.at <= now) {
            // If the machine is too busy to fire in time, the node counts as down.
            if began.elapsed().saturating_sub(firing.at) < minute.mul_f64(LIMIT / 2.0) {
                running.push(fire(firing, &keys, &urls, &log, minute));
            }
        }
        let mut going = Vec::new();
        for mut fired in running {
            let ran = fired.firing.dies
                && fs::read_to_string(log(fired.firing.job))
                    .is_ok_and(|log| log.contains(&fired.tag));
            if ran {
                // All processes at once, like a machine that fails.
                for stat in procfs::tagged(&fired.tag) {
                    process::signal(stat.pid, rustix::process::Signal::KILL);
                }
            }
            if fired.process.has_ended() {
                // The output may arrive a while after the end.
                let outages = outages.clone();
                over.push(thread::spawn(move || ended(fired, &outages, began)));
            } else {
                going.push(fired);
            }
        }
        running = going;
        thread::sleep(Duration::from_millis(5));
    }
    let outcomes: Vec<Outcome> = over
        .into_iter()
        .map(|over| over.join().expect("an outcome"))
        .collect();
    let skipped = check(seed, &outcomes, &log);
    // The history is read after the last tick.
    let (url, mut remembered) = (store.url(), 0);
    for key in &keys {
        let report = dlock::run(&url, &["history", key, "--json"]);
        assert_eq!(report.code(), 0, "{}", report.stderr);
        let report: Value = serde_json::from_str(&report.stdout).expect("JSON");
        for skip in report["skips"].as_array().expect("skips") {
            let reason = skip["reason"].as_str().unwrap_or_default();
            assert!(
                reason == "busy" || reason.starts_with("once per "),
                "{report}"
            );
            remembered += skip["count"].as_u64().unwrap_or_default();
        }
    }
    // dlock doesn't wait for a skip note if the store doesn't answer, and may send one twice.
    assert!(
        remembered * 10 >= skipped * 9 && remembered <= skipped + skipped / 10,
        "{remembered} skips of {skipped} are in the history"
    );
}

fn fire(
    firing: Firing,
    keys: &[String],
    urls: &[String],
    log: &dyn Fn(usize) -> PathBuf,
    minute: Duration,
) -> Fired {
    let key = &keys[firing.job];
    let tag = format!("{key}-{}-{}", firing.tick, firing.node);
    let mut command = dlock::command();
    let (period, ttl) = (
        format!("{}ms", minute.as_millis()),
        format!("{}ms", (minute / 3).as_millis()),
    );
    let (host, length) = (
        format!("node-{}", firing.node),
        if firing.dies {
            60.0
        } else {
            minute.as_secs_f64() / 30.0
        },
    );
    command.args([
        "run",
        "-k",
        key,
        "--once-per",
        &period,
        "--ttl",
        &ttl,
        "--host",
        &host,
    ]);
    command
        .args([
            "--backend-timeout",
            "1s",
            "--json",
            "--",
            "sh",
            "-c",
            "echo \"$1 $2 $4\" >> \"$0\"; sleep $3",
        ])
        .arg(log(firing.job));
    command.args([
        firing.tick.to_string(),
        firing.node.to_string(),
        length.to_string(),
        tag.clone(),
    ]);
    command.env("DLOCK_BACKEND", &urls[firing.node]);
    Fired {
        firing,
        began: Instant::now(),
        process: Process::collect(command),
        tag,
    }
}

fn ended(fired: Fired, outages: &[Vec<(Duration, Duration)>], began: Instant) -> Outcome {
    let (from, to) = (fired.began - began, began.elapsed());
    let cut = outages[fired.firing.node]
        .iter()
        .any(|(since, until)| from <= *until + Duration::from_millis(100) && to >= *since);
    let ended = fired.process.wait(Duration::from_secs(120));
    Outcome {
        tick: (fired.firing.job, fired.firing.tick),
        node: fired.firing.node,
        cut,
        dies: fired.firing.dies,
        from,
        verdict: ended
            .stderr
            .lines()
            .find_map(|line| serde_json::from_str(line).ok()),
        stderr: ended.stderr,
    }
}

/// Checks the outcomes and returns the number of skips because the lock was busy.
fn check(seed: u64, outcomes: &[Outcome], log: &dyn Fn(usize) -> PathBuf) -> u64 {
    let mut ran: BTreeMap<(usize, usize), Vec<String>> = BTreeMap::new();
    for job in 0..JOBS {
        for line in support::lines(&log(job)) {
            let tick = line
                .split(' ')
                .next()
                .and_then(|tick| tick.parse().ok())
                .expect("a tick");
            ran.entry((job, tick)).or_default().push(line);
        }
    }
    if let Some((tick, runs)) = ran.iter().find(|(_, runs)| runs.len() > 1) {
        let said: Vec<_> = outcomes
            .iter()
            .filter(|outcome| outcome.tick == *tick)
            .collect();
        panic!("seed {seed}: a tick ran twice: {runs:?}; {said:#?}");
    }
    let mut missed = BTreeSet::new();
    let mut skips: BTreeMap<String, usize> = BTreeMap::new();
    for outcome in outcomes {
        let Outcome {
            tick,
            node,
            cut,
            from,
            verdict,
            stderr,
            ..
        } = outcome;
        let started = ran
            .get(tick)
            .is_some_and(|runs| runs[0].starts_with(&format!("{} {node} ", tick.1)));
        if started {
            continue;
        }
        let said = verdict.as_ref().map(|verdict| {
            (
                verdict["result"].as_str().unwrap_or_default(),
                &verdict["refused"]["reason"],
            )
        });
        let reason = match said {
            Some(("busy", Value::String(reason))) => reason.clone(),
            Some(("busy", _)) => "busy".into(),
            Some(("error" | "lost", _)) if *cut => "cut off".into(),
            // The store and all nodes share one machine.
            Some(("error", _))
                if verdict
                    .as_ref()
                    .is_some_and(|verdict| verdict["error"]["kind"] == "timeout") =>
            {
                "too slow".into()
            }
            _ => panic!(
                "seed {seed}: tick {tick:?} on node {node} after {from:?}, cut off: {cut}: no reason in {verdict:?}; {stderr}"
            ),
        };
        if !ran.contains_key(tick) {
            missed.insert(*tick);
        }
        *skips.entry(reason).or_default() += 1;
    }
    let fired: BTreeSet<_> = outcomes.iter().map(|outcome| outcome.tick).collect();
    for tick in &missed {
        // A node that was cut off at that moment got the lock, or every node was cut off.
        let of_tick = || outcomes.iter().filter(|outcome| outcome.tick == *tick);
        let lost_with_its_node = of_tick().any(|outcome| outcome.cut || outcome.says("error"));
        let said: Vec<_> = of_tick()
            .map(|outcome| (outcome.node, outcome.cut, &outcome.verdict))
            .collect();
        assert!(
            lost_with_its_node,
            "seed {seed}: tick {tick:?} was missed: {said:#?}"
        );
    }
    let died = outcomes
        .iter()
        .filter(|outcome| outcome.dies && outcome.verdict.is_none())
        .count();
    support::say(&format!(
        "{} ticks of {}, {} run, {} missed; {died} nodes died in a run; skips: {skips:?}; seed {seed}",
        fired.len(),
        JOBS * TICKS,
        ran.len(),
        missed.len()
    ));
    // At least 90 %; on a machine that delays its nodes, at least 75 %.
    let slowness = support::slowness() as usize;
    assert!(
        ran.len() * 20 >= fired.len() * (19 - slowness),
        "seed {seed}: {} of {} ticks ran",
        ran.len(),
        fired.len()
    );
    let slow = skips.get("too slow").copied().unwrap_or_default();
    assert!(
        slow * 20 <= outcomes.len() * slowness,
        "seed {seed}: {slow} of {} had no answer",
        outcomes.len()
    );
    outcomes
        .iter()
        .filter(|outcome| outcome.says("busy"))
        .count() as u64
}
