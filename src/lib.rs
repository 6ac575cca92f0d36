#![doc = include_str!("ARCHITECTURE.md")]

pub mod backends;
mod cli;
pub mod commands;
pub mod exit;
pub mod lease;
pub mod lock;
pub mod output;
pub mod supervise;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Does what this process's command line says.
pub fn run() -> std::process::ExitCode {
    // Passwords and tokens stay out of core files and of other processes' reach. A command that is executed is its own master.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let arguments: Vec<_> = std::env::args_os().collect();
    cli::main(&arguments).into()
}
