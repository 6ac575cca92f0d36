//! A campaign against the promises of README: contenders of all kinds run real `dlock` processes on real servers, faults that are drawn from a
//! seed strike them, and a checker that shares no code with dlock judges what came of it.
//!
//! `plan` draws a round; `round` plays it and `blows` strike; `section` is what runs under the locks; `live` has the kernel say which
//! sections live; `facts` is what is known afterwards, and `judge` and `histories` say what is wrong with it.
//!
//! ```sh
//! tests/run --test campaign -- --store redis --seed 7 --rounds 200 [--from N] [--calm | --rough | --blows StopDlock,BlackHole] [-v]
//! ```
#![allow(missing_docs, reason = "a test program")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(clippy::exit, reason = "a section ends with the status that it was told")]
#![allow(clippy::disallowed_methods, reason = "tests measure and wait in real time")]

use ::support;

mod blows;
mod campaign;
mod facts;
mod histories;
mod judge;
mod judge_tests;
mod live;
mod plan;
mod planted;
mod round;
mod section;
mod sight;
mod stores;

use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::{
    campaign::{Order, Tally, play},
    plan::{Blow, Mix},
};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, orders] = &arguments[..]
        && role == section::ROLE
    {
        std::process::exit(section::run(orders));
    }
    if arguments.iter().any(|argument| argument == "--store") {
        let order = order(&arguments).unwrap_or_else(|why| {
            support::say(&why);
            std::process::exit(64);
        });
        std::process::exit(i32::from(!passes(&order).unwrap_or_else(|why| {
            support::say(&why);
            false
        })));
    }
    let mut arguments = Arguments::from_args();
    // Mostly waiting for leases to end.
    arguments.test_threads.get_or_insert(6);
    libtest_mimic::run(&arguments, trials()).exit();
}

/// What the command line asks for.
fn order(arguments: &[String]) -> Result<Order, String> {
    let mut order = Order { store: String::new(), seed: 1, from: 0, rounds: 20, mix: Mix::Both, blows: Vec::new(), verbose: false };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{argument} needs a value"));
        let number = |text: &String| text.parse::<u64>().map_err(|_| format!("{text} is no number"));
        match argument.as_str() {
            "--store" => order.store.clone_from(value()?),
            "--seed" => order.seed = number(value()?)?,
            "--from" => order.from = number(value()?)?,
            "--rounds" => order.rounds = number(value()?)?,
            "--calm" => order.mix = Mix::Calm,
            "--rough" => order.mix = Mix::Rough,
            "--blows" => {
                let named = |name| Blow::named(name).ok_or(format!("no such fault: {name}"));
                (order.mix, order.blows) = (Mix::Rough, value()?.split(',').map(named).collect::<Result<_, _>>()?);
            }
            "-v" | "--verbose" => order.verbose = true,
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(order)
}

/// Plays it and prints the summary; of several stores, one after the other.
fn passes(order: &Order) -> Result<bool, String> {
    let stores: Vec<&str> = if order.store == "all" { stores::NAMES.to_vec() } else { order.store.split(',').collect() };
    let mut all_pass = true;
    for store in stores {
        let order = Order { store: store.to_owned(), ..order.clone() };
        let began = Instant::now();
        let tally = play(&order)?;
        support::say(&tally.summary(&order, began.elapsed()));
        all_pass &= tally.faults.is_empty();
    }
    Ok(all_pass)
}

/// The rounds of each store in the short form and in the long one: without faults, and with them.
const SHARES: [(&str, [u64; 2], [u64; 2]); 16] = [
    ("sqlite", [8, 400], [3, 150]),
    ("redis", [8, 400], [4, 150]),
    ("redlock", [1, 20], [1, 50]),
    ("sentinel", [0, 20], [1, 20]),
    ("cluster", [0, 20], [1, 20]),
    ("tair", [1, 20], [1, 50]),
    ("postgres", [1, 40], [1, 60]),
    ("postgres-advisory", [0, 20], [1, 40]),
    ("postgres-row", [0, 20], [1, 40]),
    ("mariadb", [1, 40], [1, 60]),
    ("mariadb-advisory", [0, 20], [1, 40]),
    ("mariadb-row", [0, 20], [1, 40]),
    ("etcd", [1, 20], [1, 50]),
    ("etcd-cluster", [0, 10], [1, 30]),
    ("zookeeper", [1, 20], [1, 50]),
    ("zookeeper-ensemble", [0, 10], [1, 30]),
];

fn trials() -> Vec<Trial> {
    // DLOCK_TEST_SEED draws other rounds.
    let seed = std::env::var("DLOCK_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut trials: Vec<Trial> = judge_tests::trials();
    trials.push(Trial::test("planted::every_patch_applies", || {
        planted::every_patch_applies();
        Ok(())
    }));
    for (name, see) in [
        ("a_redis_that_forgets_lets_two_run", sight::a_redis_that_forgets_lets_two_run as fn()),
        ("what_is_left_behind_on_request_lives_beside_the_next", sight::what_is_left_behind_on_request_lives_beside_the_next),
        ("dlock_and_guardian_killed_in_one_instant_leave_a_daemon", sight::dlock_and_guardian_killed_in_one_instant_leave_a_daemon),
    ] {
        trials.push(Trial::test(format!("sight::{name}"), move || {
            see();
            Ok(())
        }));
    }
    for (store, calm, rough) in SHARES {
        for (mix, name, [short, long]) in [(Mix::Calm, "calm", calm), (Mix::Rough, "rough", rough)] {
            let rounds = support::long_or(long, short);
            let order = Order { store: store.into(), seed, from: 0, rounds, mix, blows: Vec::new(), verbose: false };
            if rounds > 0 {
                trials.push(Trial::test(format!("{store}::{name}"), move || trial(&order)));
            }
        }
    }
    trials
}

fn trial(order: &Order) -> Result<(), Failed> {
    let began = Instant::now();
    match play(order) {
        Ok(tally) => {
            support::say(&tally.summary(order, began.elapsed()));
            fails(&tally).map_or(Ok(()), |why| Err(why.into()))
        }
        Err(why) => {
            support::skip(&format!("campaign on {}", order.store), &why);
            Ok(())
        }
    }
}

fn fails(tally: &Tally) -> Option<String> {
    (!tally.faults.is_empty()).then(|| tally.faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}
