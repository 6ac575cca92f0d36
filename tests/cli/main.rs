//! The output and exit status of the commands: snapshots of the real binary.
//!
//! `SNAPSHOTS=overwrite cargo test --test cli` writes the snapshots, `man/` and `completions/`
//! anew.

#![allow(clippy::unwrap_used)] // in the helpers of tests as well
#![allow(clippy::disallowed_methods, clippy::print_stderr)] // tests measure in real time, and one that is skipped says so
#![allow(
    clippy::format_collect,
    clippy::format_push_string,
    clippy::large_stack_arrays
)] // no test is in a hurry

mod commands;
mod completion;
mod configuration;
mod doctor;
mod generated;
mod help;
mod hold;
mod lab;
mod names;
mod pages;
mod records;
mod schema;
mod several;
mod streams;
mod terminal;
mod usage;
mod while_pid;
