//! Whole processes, timed one after the other in turns (A B C A B C …), so that a slower moment of the machine
//! falls on all of them. Prints tables; proves nothing and fails for nothing.
//!
//! `cargo bench --bench whole_process`, with `-- processes`, `handoff`, `drain`, `commands` or `kinds` for a part of it, and with
//! the names of stores for those instead of SQLite and Redis. `DLOCK_BENCH_BEFORE=/path/to/dlock` compares with another build in the same turns.
#![allow(missing_docs, reason = "a program of its own")]
#![allow(clippy::disallowed_methods, reason = "it measures real time")]
#![allow(clippy::print_stdout, reason = "its output is the point")]
#![allow(clippy::format_push_string, reason = "short texts")]
#![allow(clippy::zombie_processes, reason = "wait4 reaps them, for their figures")]
#![allow(clippy::cast_precision_loss, reason = "milliseconds in tables")]

use ::support;

mod child;
mod commands;
mod drain;
mod floor;
mod handoff;
mod kinds;
mod lockers;
mod processes;
mod table;

use std::env;

/// A table of its own.
type Part = fn(&lockers::Stores);

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        // What this program runs as a child of itself.
        ["child", "floor", port, ref command @ ..] => floor::run(port, command),
        ["child", "stamp", file, after] => child::stamp(file, after),
        ["child", "end-with", gate, file] => child::end_with(gate, file),
        _ => {
            let (named, asked): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| lockers::NAMES.contains(word));
            let wanted = |part: &str| asked.is_empty() || asked.contains(&part);
            let parts: [(&str, Part); 5] = [
                ("processes", processes::run),
                ("handoff", handoff::run),
                ("drain", drain::run),
                ("commands", commands::run),
                ("kinds", kinds::run),
            ];
            let stores = lockers::Stores::start(if named.is_empty() { &["sqlite", "redis"] } else { &named });
            for (name, run) in parts {
                if wanted(name) {
                    run(&stores);
                }
            }
        }
    }
}
