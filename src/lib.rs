#![doc = include_str!("ARCHITECTURE.md")]

pub mod backends;
mod cli;
pub mod commands;
pub mod exit;
pub mod lease;
pub mod lock;
pub mod output;
pub mod supervise;

/// Does what this process's command line says.
pub fn run() -> std::process::ExitCode {
    cli::main(std::env::args_os().collect()).into()
}
