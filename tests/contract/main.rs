//! One suite for all backends: the promises of [`dlock::lock::Backend`] as cases. A backend passes
//! each case, or does not declare the capability, and then refuses the request before it contacts
//! its store.
//!
//! `cargo test --test contract -- redis::` runs the cases of one backend, `-- fence` those about
//! fences.
#![allow(
    clippy::await_holding_refcell_ref,
    reason = "one thread, and no case restarts a server while it inspects that server"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "cases measure and wait in real time"
)]

use ::support::{
    self,
    stores::{self, Kind},
};

mod cases;
mod lab;
mod sql;
mod targets;

use std::{
    sync::{Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use libtest_mimic::{Arguments, Failed, Trial};

/// The number of concurrent cases. Half of them wait for leases to end, so there can be more of
/// them than cores.
const AT_ONCE: usize = 8;

/// Whether a case has so many clients that a small machine can run only this case. Such cases run
/// last, one at a time.
fn runs_alone(case: &cases::Case) -> bool {
    ["many_waiters", "many_readers"]
        .iter()
        .any(|part| case.name.contains(part))
}

/// What the cases are about that MySQL itself gets in the short form: the statements in which it is
/// unlike MariaDB, and the run record. The SQL is shared, and a second server of this size slows
/// down the cases of all others. `tests/run --all` runs everything.
const MYSQL_IN_SHORT: [&str; 11] = [
    "collation",
    "mode",
    "the_record",
    "puts_back",
    "once",
    "cancelled",
    "success",
    "unknown_outcome",
    "fence_rises",
    "verified_by",
    "names",
];

/// Whether the short form leaves the case out.
fn is_long_form(kind: Kind, case: &cases::Case) -> bool {
    kind.is_mysql_itself()
        && support::long_or(false, true)
        && !MYSQL_IN_SHORT.iter().any(|part| case.name.contains(part))
}

/// Sorts the long cases first, and mixes the others: consecutive cases of one store would keep its
/// server busy and the machine idle.
fn position(name: &str) -> (bool, u64) {
    let is_long = [
        "::random_",
        "::no_run_is_denied",
        "within_bounds",
        "server_that_crashed",
    ]
    .iter()
    .any(|part| name.contains(part));
    (!is_long, dlock::lock::fingerprint(&[name]))
}

static MACHINE: RwLock<()> = RwLock::new(());

/// How long each case took, written to the file that `DLOCK_TEST_TIMES` names.
static TIMES: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

fn write_times() {
    let Ok(file) = std::env::var("DLOCK_TEST_TIMES") else {
        return;
    };
    let mut times = std::mem::take(&mut *TIMES.lock().unwrap_or_else(PoisonError::into_inner));
    times.sort();
    let lines: Vec<String> = times
        .iter()
        .rev()
        .map(|(took, name)| format!("{:.3} {name}\n", took.as_secs_f64()))
        .collect();
    std::fs::write(&file, lines.concat())
        .expect("the file named by DLOCK_TEST_TIMES can be written");
}

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    // Measured before the cases themselves use the processors.
    lab::short();
    let (mut trials, mut alone, mut left_out) = (Vec::new(), Vec::new(), 0);
    stores::keep_running();
    for kind in Kind::all() {
        let runs = kind.runs(&format!("contract of {}", kind.name()));
        for case in cases::all().into_iter().filter(|case| (case.on)(kind)) {
            let name = format!("{}::{}", kind.name(), case.name);
            let list = if runs_alone(&case) {
                &mut alone
            } else {
                &mut trials
            };
            let ignored = !runs || is_long_form(kind, &case);
            left_out += usize::from(runs && ignored);
            let trial = Trial::test(name.clone(), move || run(kind, &case, &name));
            list.push(trial.with_ignored_flag(ignored));
        }
    }
    if left_out > 0 {
        support::say(&format!(
            "SKIPPED {left_out} cases on MySQL itself: tests/run --all runs them"
        ));
    }
    trials.sort_by_cached_key(|trial| position(trial.name()));
    trials.append(&mut alone);
    let conclusion = libtest_mimic::run(&arguments, trials);
    stores::end();
    write_times();
    conclusion.exit();
}

/// Runs a case on its own store.
fn run(kind: Kind, case: &cases::Case, name: &str) -> Result<(), Failed> {
    // A failed case poisons the lock that it had exclusively.
    let (_alone, _shared) = if runs_alone(case) {
        (
            Some(MACHINE.write().unwrap_or_else(PoisonError::into_inner)),
            None,
        )
    } else {
        (
            None,
            Some(MACHINE.read().unwrap_or_else(PoisonError::into_inner)),
        )
    };
    let began = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(kind.clock_is_ours())
        .build()?;
    runtime.block_on(async {
        let lab = lab::Lab::new(kind);
        (case.run)(&lab).await;
    });
    TIMES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push((began.elapsed(), name.to_owned()));
    Ok(())
}
