//! Times whole processes, one after the other in turns (A B C B A C …), so that a slow moment of
//! the machine affects all of them. Prints tables and never fails because of a result.
//!
//! `cargo bench --bench whole_process` runs everything. After `--`, `processes`, `handover`,
//! `drain`, `commands`, `kinds`, `waiters`, `held` or `history` select a part, and names of stores
//! replace SQLite and Redis; `publish` also writes `results.md` and the picture.
//! `DLOCK_BENCH=/path/to/dlock` measures that binary instead of a release build;
//! `DLOCK_BENCH_BEFORE=/path/to/dlock` adds another one.
#![allow(missing_docs, reason = "a program of its own")]
#![allow(clippy::disallowed_methods, reason = "it measures real time")]
#![allow(clippy::print_stdout, reason = "its output is the point")]
#![allow(clippy::format_push_string, reason = "short texts")]
#![allow(
    clippy::zombie_processes,
    reason = "wait4 reaps them, for their figures"
)]
#![allow(clippy::cast_precision_loss, reason = "milliseconds in tables")]

use ::support;

mod child;
mod commands;
mod drain;
mod floor;
mod growth;
mod handover;
mod kinds;
mod lockers;
mod processes;
mod published;
mod table;

use std::env;

/// A group of measurements.
type Part = fn(&lockers::Stores) -> Vec<table::Table>;

const PARTS: [(&str, Part); 8] = [
    ("processes", processes::run),
    ("handover", handover::run),
    ("drain", drain::run),
    ("commands", commands::run),
    ("kinds", kinds::run),
    ("waiters", growth::with_waiters),
    ("held", growth::with_held_locks),
    ("history", growth::with_history),
];

fn main() {
    let arguments: Vec<String> = env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        // The program that runs as a child of this one.
        ["child", "floor", store, address, ref command @ ..] => floor::run(store, address, command),
        ["child", "stamp", file, after] => child::stamp(file, after),
        ["child", "end-with", gate, file] => child::end_with(gate, file),
        _ => measure(&words),
    }
}

fn measure(words: &[&str]) {
    let named: Vec<_> = words
        .iter()
        .copied()
        .filter(|word| lockers::KINDS.iter().any(|kind| kind.also() == *word))
        .collect();
    let asked = |part: &str| words.contains(&part);
    let all = !PARTS.iter().any(|(name, _)| asked(name));
    if let Some(word) = words.iter().find(|word| {
        !named.contains(word) && **word != "publish" && !PARTS.iter().any(|(name, _)| name == *word)
    }) {
        panic!("{word} is neither a part nor a store");
    }
    let stores = lockers::Stores::start(if named.is_empty() {
        &["sqlite", "redis"]
    } else {
        &named
    });
    let version = stores
        .own()
        .find_map(lockers::Locker::version)
        .unwrap_or_default();
    let mut tables = Vec::new();
    for (_, run) in PARTS.into_iter().filter(|(name, _)| all || asked(name)) {
        for table in run(&stores) {
            println!("{}", table.text());
            tables.push(table);
        }
        if asked("publish") {
            published::write(&tables, &version, words);
        }
    }
}
