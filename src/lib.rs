#![doc = include_str!("ARCHITECTURE.md")]

pub mod backends;
mod cli;
pub mod commands;
#[cfg(test)]
mod damage;
pub mod exit;
pub mod lease;
pub mod lock;
pub mod output;
pub mod settings;
pub mod supervise;

use std::io::Write as _;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Runs the command line of this process.
pub fn run() -> std::process::ExitCode {
    // Passwords and tokens stay out of core files and of other processes' reach. A command that is
    // executed is its own master.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    supervise::survive_large_files();
    std::panic::set_hook(Box::new(report_bug));
    let arguments: Vec<_> = std::env::args_os().collect();
    cli::main(&arguments).into()
}

/// Ends the process with the status of a bug. If a command runs, its guardian stops it.
fn report_bug(panic: &std::panic::PanicHookInfo<'_>) {
    let place = panic
        .location()
        .map(ToString::to_string)
        .unwrap_or_default();
    let what = panic.payload_as_str().unwrap_or("a panic");
    let text = format!(
        "dlock: a bug in dlock, at {place}: {what}\nhint: please report it, with what you did\n"
    );
    let _ = std::io::stderr().write_all(text.as_bytes());
    #[allow(clippy::exit)] // a panic has no other way to a status of its own
    std::process::exit(exit::INTERNAL.into())
}
