//! A campaign against the promises of README: real `dlock` processes contend on real servers, a
//! seed decides which faults are injected, and a checker that shares no code with dlock judges the
//! outcome.
//!
//! `plan` draws a round; `round` runs it and `faults` injects the faults; `section` is the command
//! under the locks; `liveness` asks the kernel which sections are alive; `facts` collects the
//! results, and `checker`, `check_history` and `check_once` find violations.
//!
//! With `--sweep` a round is a scene of `scenes`, and `packets` injects one fault at every packet
//! in turn; `sweep` runs the cases.
//!
//! ```sh
//! tests/run --campaign --store redis --seed 7 --rounds 200 [--from N] [--calm | --rough | --faults StopDlock,BlackHole] [-v]
//! tests/run --campaign --store redis --sweep [--scenes solo,two] [--modes rst,hole] [--step N] [--first K] [--last K] [--seed N] [-v]
//! ```
#![allow(missing_docs, reason = "a test program")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(clippy::exit, reason = "a section ends with the status of its task")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests measure and wait in real time"
)]

use ::support;

mod campaign;
mod check_history;
mod check_once;
mod checker;
mod checker_tests;
mod detection;
mod facts;
mod faults;
mod liveness;
mod packets;
mod plan;
mod planted;
mod round;
mod scenes;
mod section;
mod stores;
mod sweep;

use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::{
    campaign::{Options, Tally, play},
    plan::{FaultKind, Mix},
};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, task] = &arguments[..]
        && role == section::ROLE
    {
        std::process::exit(section::run(task));
    }
    if arguments.iter().any(|argument| argument == "--store") {
        let passed = if arguments.iter().any(|argument| argument == "--sweep") {
            let options = sweep::options(&arguments).unwrap_or_else(refuse);
            each_store(&options.store, &stores::with_packets(), |store| {
                sweep_passes(&sweep::Options {
                    store: store.to_owned(),
                    ..options.clone()
                })
            })
        } else {
            let options = options(&arguments).unwrap_or_else(refuse);
            each_store(&options.store, &stores::names(), |store| {
                passes(&Options {
                    store: store.to_owned(),
                    ..options.clone()
                })
            })
        };
        std::process::exit(i32::from(!passed.unwrap_or_else(|why| {
            support::say(&why);
            false
        })));
    }
    let mut arguments = Arguments::from_args();
    // The trials mostly wait for leases to end.
    arguments.test_threads.get_or_insert(6);
    libtest_mimic::run(&arguments, trials()).exit();
}

/// Parses the command line.
fn options(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        store: String::new(),
        seed: 1,
        from: 0,
        rounds: 20,
        mix: Mix::Both,
        faults: Vec::new(),
        verbose: false,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{argument} needs a value"));
        let number = |text: &String| {
            text.parse::<u64>()
                .map_err(|_| format!("{text} is not a number"))
        };
        match argument.as_str() {
            "--store" => options.store.clone_from(value()?),
            "--seed" => options.seed = number(value()?)?,
            "--from" => options.from = number(value()?)?,
            "--rounds" => options.rounds = number(value()?)?,
            "--calm" => options.mix = Mix::Calm,
            "--rough" => options.mix = Mix::Rough,
            "--faults" => {
                let named = |name| FaultKind::named(name).ok_or(format!("no such fault: {name}"));
                (options.mix, options.faults) = (
                    Mix::Rough,
                    value()?.split(',').map(named).collect::<Result<_, _>>()?,
                );
            }
            "-v" | "--verbose" => options.verbose = true,
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(options)
}

#[allow(clippy::needless_pass_by_value, reason = "as `unwrap_or_else` has it")]
fn refuse<T>(why: String) -> T {
    support::say(&why);
    std::process::exit(64)
}

/// Runs the campaign, or a sweep, on one store after the other.
fn each_store(
    named: &str,
    all: &[&str],
    passes: impl Fn(&str) -> Result<bool, String>,
) -> Result<bool, String> {
    let stores: Vec<&str> = if named == "all" {
        all.to_vec()
    } else {
        named.split(',').collect()
    };
    stores
        .into_iter()
        .try_fold(true, |all, store| Ok(passes(store)? && all))
}

fn passes(options: &Options) -> Result<bool, String> {
    let began = Instant::now();
    let tally = play(options)?;
    support::say(&tally.summary(options, began.elapsed()));
    Ok(tally.violations.is_empty())
}

fn sweep_passes(options: &sweep::Options) -> Result<bool, String> {
    let began = Instant::now();
    let tally = sweep::play(options)?;
    support::say(&tally.summary(options, began.elapsed()));
    Ok(tally.violations.is_empty())
}

fn trials() -> Vec<Trial> {
    // DLOCK_TEST_SEED selects other rounds.
    let seed = std::env::var("DLOCK_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    let mut trials: Vec<Trial> = checker_tests::trials();
    trials.push(Trial::test("planted::every_patch_applies", || {
        planted::every_patch_applies();
        Ok(())
    }));
    for (name, check) in [
        (
            "data_loss_on_redis_lets_two_runs_overlap",
            detection::data_loss_on_redis_lets_two_runs_overlap as fn(),
        ),
        (
            "leftovers_kept_on_request_overlap_the_next_run",
            detection::leftovers_kept_on_request_overlap_the_next_run,
        ),
        (
            "dlock_and_guardian_killed_together_leave_a_daemon_running",
            detection::dlock_and_guardian_killed_together_leave_a_daemon_running,
        ),
    ] {
        trials.push(Trial::test(format!("detection::{name}"), move || {
            check();
            Ok(())
        }));
    }
    for (kind, calm, rough) in stores::SHARES {
        let store = kind.also();
        for (mix, name, [short, long]) in [(Mix::Calm, "calm", calm), (Mix::Rough, "rough", rough)]
        {
            let rounds = support::long_or(long, short);
            let options = Options {
                store: store.into(),
                seed,
                from: 0,
                rounds,
                mix,
                faults: Vec::new(),
                verbose: false,
            };
            if rounds > 0 {
                trials.push(Trial::test(format!("{store}::{name}"), move || {
                    trial(&options)
                }));
            }
        }
    }
    for store in stores::with_packets() {
        let long = sweep::Options {
            step: 8,
            ..sweep::Options::of(store, seed)
        };
        let options = support::long_or(
            long,
            sweep::Options {
                sample: true,
                ..sweep::Options::of(store, seed)
            },
        );
        trials.push(Trial::test(format!("{store}::sweep"), move || {
            sweep_trial(&options)
        }));
    }
    trials
}

fn sweep_trial(options: &sweep::Options) -> Result<(), Failed> {
    let began = Instant::now();
    match sweep::play(options) {
        Ok(tally) => {
            support::say(&tally.summary(options, began.elapsed()));
            if tally.violations.is_empty() {
                Ok(())
            } else {
                Err(tally.violations.join("\n").into())
            }
        }
        Err(why) => {
            support::skip(&format!("sweep on {}", options.store), &why);
            Ok(())
        }
    }
}

fn trial(options: &Options) -> Result<(), Failed> {
    let began = Instant::now();
    match play(options) {
        Ok(tally) => {
            support::say(&tally.summary(options, began.elapsed()));
            fails(&tally).map_or(Ok(()), |why| Err(why.into()))
        }
        Err(why) => {
            support::skip(&format!("campaign on {}", options.store), &why);
            Ok(())
        }
    }
}

fn fails(tally: &Tally) -> Option<String> {
    (!tally.violations.is_empty()).then(|| {
        tally
            .violations
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    })
}
