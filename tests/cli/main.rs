//! What the commands print, and with which status they end: snapshots of the real binary.
//!
//! `SNAPSHOTS=overwrite cargo test --test cli` writes the snapshots, `man/` and `completions/` anew.

mod commands;
mod configuration;
mod generated;
mod help;
mod lab;
mod streams;
mod usage;
