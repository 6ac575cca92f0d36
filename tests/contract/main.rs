//! One suite for every backend: what [`dlock::lock::Backend`] promises, as cases that a backend passes, or whose
//! capability it does not declare and then refuses before it asks its store anything.
//!
//! `cargo test --test contract -- redis::` runs one backend's, `-- fence` those about fences.
#![allow(clippy::await_holding_refcell_ref, reason = "one thread, and no case restarts a server that it looks at")]
#![allow(clippy::disallowed_methods, reason = "cases measure and wait in real time")]

use ::support;

mod cases;
mod lab;
mod sql;
mod targets;

use std::{
    sync::{Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use libtest_mimic::{Arguments, Failed, Trial};

/// Most of a case's time is spent waiting for a lease to end, so that there can be more of them than cores.
const AT_ONCE: usize = 16;

/// A case with so many clients is as much as a small machine can do: it is run by itself, after all others.
fn is_crowded(case: &cases::Case) -> bool {
    case.name.starts_with("many_waiters")
}

/// The order of the cases: the long ones first, the others mixed. The cases of one store would keep its server busy and the machine idle.
fn position(name: &str) -> (bool, u64) {
    let is_long = ["::random_", "::no_run_is_denied", "within_bounds", "server_that_crashed"].iter().any(|part| name.contains(part));
    (!is_long, dlock::lock::fingerprint(&[name]))
}

static MACHINE: RwLock<()> = RwLock::new(());

/// How long each case took: with `DLOCK_TEST_TIMES=FILE` they are written there.
static TIMES: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

fn write_times() {
    let Ok(file) = std::env::var("DLOCK_TEST_TIMES") else { return };
    let mut times = std::mem::take(&mut *TIMES.lock().unwrap_or_else(PoisonError::into_inner));
    times.sort();
    let lines: Vec<String> = times.iter().rev().map(|(took, name)| format!("{:.3} {name}\n", took.as_secs_f64())).collect();
    std::fs::write(&file, lines.concat()).expect("the file named by DLOCK_TEST_TIMES can be written");
}

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let (mut trials, mut crowded) = (Vec::new(), Vec::new());
    for kind in targets::ALL {
        let missing = kind.missing();
        if let Some(why) = &missing {
            let what = format!("contract of {}", kind.name());
            if kind.is_optional() { support::say(&format!("SKIPPED {what}: {why}")) } else { support::skip(&what, why) }
        }
        for case in cases::all().into_iter().filter(|case| (case.on)(kind)) {
            let name = format!("{}::{}", kind.name(), case.name);
            let of_its_sort = if is_crowded(&case) { &mut crowded } else { &mut trials };
            let trial = Trial::test(name.clone(), move || run(kind, &case, &name));
            of_its_sort.push(trial.with_ignored_flag(missing.is_some()));
        }
    }
    trials.sort_by_cached_key(|trial| position(trial.name()));
    trials.append(&mut crowded);
    let conclusion = libtest_mimic::run(&arguments, trials);
    targets::end();
    write_times();
    conclusion.exit();
}

/// One case on a store of its own.
fn run(kind: targets::Kind, case: &cases::Case, name: &str) -> Result<(), Failed> {
    // A case that failed poisons what it had for itself.
    let (_alone, _beside) = if is_crowded(case) {
        (Some(MACHINE.write().unwrap_or_else(PoisonError::into_inner)), None)
    } else {
        (None, Some(MACHINE.read().unwrap_or_else(PoisonError::into_inner)))
    };
    let began = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(kind.clock_is_ours()).build()?;
    runtime.block_on(async {
        let lab = lab::Lab::new(kind);
        (case.run)(&lab).await;
    });
    TIMES.lock().unwrap_or_else(PoisonError::into_inner).push((began.elapsed(), name.to_owned()));
    Ok(())
}
