//! `dlock run`: take a lock, run a command under it, keep renewing, release.

use std::{ffi::OsString, time::Duration};

use clap::builder::PossibleValuesParser;

use super::Context;
use crate::{
    lease::Patience,
    lock::{Error, Key, Kind, Result, Ttl},
    output::{StatusFile, SyslogPolicy},
};

/// The arguments of `dlock run`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock run -k KEY [OPTIONS] -- COMMAND [ARG]...",
    after_help = "Also, see man dlock-run: --on-lost --leftover --contain --no-metadata --no-reentrant\n  --log --config --password-file --backend-timeout --host --namespace -o -q -v\nExample: four nodes skip and one runs, or each waits for its turn up to 5 minutes:\n  dlock run -k sms-job -- ./send_sms.sh\n  dlock run -k deploy -w 5m --ttl 2m -- ./deploy.sh"
)]
#[allow(clippy::struct_excessive_bools)] // flags
pub struct Args {
    /// The lock's name
    #[arg(short, long, value_name = "KEY")]
    pub key: Option<OsString>,
    /// Wait so long for the lock: 30s, 5m, forever
    #[arg(short, long, value_name = "D", allow_negative_numbers = true)]
    pub wait: Option<String>,
    /// Do not wait (the default, and -w 0)
    #[arg(short, long)]
    pub nonblock: bool,
    /// The status when somebody else holds it [75]
    #[arg(short = 'E', long, value_name = "N", allow_negative_numbers = true)]
    pub conflict_exit_code: Option<String>,
    /// The length of the lease, renewed all along [60s]
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub ttl: Option<String>,
    /// Time between TERM and KILL [10s]
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub grace: Option<String>,
    /// A shell line to run (/bin/sh -c) instead of COMMAND
    #[arg(short = 'c', value_name = "STRING", allow_hyphen_values = true)]
    pub shell: Option<OsString>,
    /// A note for those who look at the lock
    #[arg(long, value_name = "TEXT")]
    pub describe: Option<String>,
    /// Write how it ended to a file, as JSON
    #[arg(long, value_name = "FILE")]
    pub status_file: Option<String>,
    /// If the lock is lost: kill, signal:SIG before the KILL, or continue
    #[arg(long, value_name = "ACTION", hide_short_help = true)]
    pub on_lost: Option<String>,
    /// Processes that outlive the command: wait for them, kill them, or leave them
    #[arg(long, value_name = "HOW", value_parser = PossibleValuesParser::new(["wait", "kill", "leave"]), hide_short_help = true)]
    pub leftover: Option<String>,
    /// How the command's processes are kept together
    #[arg(long, value_name = "HOW", value_parser = PossibleValuesParser::new(["auto", "group", "cgroup"]), hide_short_help = true)]
    pub contain: Option<String>,
    /// Leave out who holds the lock
    #[arg(long, hide_short_help = true)]
    pub no_metadata: bool,
    /// Refuse to run inside of a `dlock run` of the same key, instead of entering its lock
    #[arg(long, hide_short_help = true)]
    pub no_reentrant: bool,
    /// Lines for syslog: auto is when stderr is no terminal
    #[arg(long, value_name = "WHEN", value_parser = PossibleValuesParser::new(["auto", "off", "json"]), hide_short_help = true)]
    pub log: Option<String>,
    /// Hold the lock alone (the default)
    #[arg(short = 'x', visible_short_alias = 'e', long, hide_short_help = true)]
    pub exclusive: bool,
    /// The command and its arguments, untouched
    #[arg(value_name = "COMMAND", trailing_var_arg = true, hide_short_help = true)]
    pub command: Vec<OsString>,
}

/// What `dlock run` is to do, checked.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // independent wishes
pub struct RunSettings {
    /// Which lock.
    pub key: Key,
    /// What to run: a program and its arguments. `-c STRING` has become `/bin/sh -c STRING`.
    pub command: Vec<OsString>,
    /// The lease that was asked for; `None` for the default, which the backend may move into its range.
    pub ttl: Option<Ttl>,
    /// The grace that was asked for; it fits the TTL.
    pub grace: Option<Duration>,
    /// How long to wait.
    pub patience: Patience,
    /// The status when the lock is busy.
    pub conflict_status: u8,
    /// What happens to the command when the lock is lost.
    pub on_lost: OnLost,
    /// What happens to processes that outlive the command.
    pub leftover: Leftover,
    /// How the tree is kept together.
    pub contain: Contain,
    /// The note of the lease.
    pub describe: Option<String>,
    /// Whether the lease says who holds it.
    pub metadata: bool,
    /// Whether an ancestor's hold of the same lock is entered.
    pub reentrant: bool,
    /// Where the verdict goes.
    pub status_file: Option<StatusFile>,
    /// What syslog gets.
    pub log: SyslogPolicy,
    /// Variables that are dlock's own and are taken out of the command's environment.
    pub stripped_variables: Vec<String>,
}

/// What happens to the command when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// TERM, and KILL a grace later.
    Kill,
    /// Another signal instead of TERM, and KILL a grace later.
    Signal(i32),
    /// Nothing, and the job goes on without a lock.
    Continue,
}

/// What happens to processes that outlive the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// The lock is kept until they are gone.
    Wait,
    /// They are stopped.
    Kill,
    /// The lock is released beside them, with a warning.
    Leave,
}

/// How the command's tree is kept together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contain {
    /// A cgroup where one is ours to use, else a group.
    Auto,
    /// A process group, a subreaper and the death signal.
    Group,
    /// A cgroup of its own, or failure.
    Cgroup,
}

/// Runs the command under the lock and returns the exit status.
///
/// # Errors
/// What kept the command from being started; it has not been then.
pub fn run(_settings: &RunSettings, _context: &Context) -> Result<u8> {
    Err(Error::new(Kind::Internal, "not wired yet"))
}
