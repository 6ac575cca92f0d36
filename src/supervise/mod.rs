//! Runs a command under a lease, and ends the command before the lease ends.
//!
//! ```text
//! dlock run        lease, renewal, signals                       (async, one thread)
//!   └ guardian     forked before any thread exists; child subreaper; kills the tree by itself
//!       └ command  joins the foreground group of a terminal, else has a group of its own
//! ```
//! The guardian knows the deadlines on `CLOCK_BOOTTIME` and receives each extension over a socket
//! pair. The guardian stops *all* of its descendants near the deadline, on an order, or when the
//! socket closes because dlock died. The guardian is a subreaper: every orphan becomes its child,
//! daemons included. dlock is a subreaper above the guardian and does the same if the guardian dies
//! or doesn't answer. The tree counts as empty only when the kernel reports that no child is left
//! to wait for. An unkillable process is therefore never reported as gone.
//!
//! Not covered: dlock *and* guardian killed by pid at the same instant (the command itself dies
//! even then); a frozen host; work that the command delegated to a service (`systemd-run`, `at`, a
//! container daemon); a process that moves to another PID namespace. The orphans of such a process
//! become children of that namespace's first process, never the guardian's.
//!
//! Hooks run in a separate process outside the supervised tree.
//!
//! This module knows no locks or stores: it takes deadlines, reports the command's events, and
//! never prints.

mod capture;
mod cgroup;
mod command;
mod detached_renewer;
mod guardian;
mod hooks;
mod hunt;
mod message;
mod monitor;
mod signals;
mod supervisor;
mod sys;
mod takeover;
mod terminal;
mod tree;

use std::{ffi::OsString, time::Duration};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike as _,
};
use serde::{Deserialize, Serialize};

pub use capture::CapturedOutput;
pub use command::{check_command, may_kill_all};
pub use detached_renewer::{Detach, RenewerFork, fork_renewer};
pub use hooks::{HookEvent, Hooks, fork_hooks};
pub use monitor::{Monitor, fork_monitor};
pub use signals::{
    Signal, Signals, reraise, stop_self, unblock as unblock_signals,
    with_usual as with_usual_signals,
};
pub use supervisor::{Guardian, Supervisor, fork_guardian};
pub use sys::{survive_large_files, watch as watch_fd};
pub use tree::name as process_name;

use crate::{
    exit,
    lock::{BootTime, Error, Kind},
};

/// Whether dlock has a terminal and is in its foreground, so that the terminal's keys go to dlock.
pub fn has_keyboard() -> bool {
    terminal::controlling()
        .zip(sys::own_group())
        .is_some_and(|(terminal, group)| terminal::is_foreground(&terminal, group))
}

/// Everything about the command that is known before the lock is taken.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The command and its arguments; for a shell `/bin/sh`, `-c`, the text.
    pub command: Vec<OsString>,
    /// What to do to the command when its lease ends.
    pub on_lost: OnLost,
    /// What to do with descendants that outlive the command.
    pub leftover: Leftover,
    /// How the tree's processes are tracked.
    pub contain: Contain,
    /// The time between TERM and KILL when there is no other deadline: after dlock died, for
    /// leftovers.
    pub grace: Duration,
    /// How long the tree may live after the command's start; then TERM, `grace`, KILL. The guardian
    /// enforces it even without dlock.
    pub max_runtime: Option<Duration>,
    /// The only `DLOCK_*` variables of dlock's environment that the command inherits.
    pub kept_variables: Vec<String>,
    /// Whether the command's stdout and stderr are captured until its end, instead of passed
    /// through.
    pub capture: bool,
}

/// What happens to the command when the lease ends under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLost {
    /// TERM, then KILL. KILL at once if another process has the lock.
    #[default]
    Kill,
    /// This signal instead of TERM; KILL still follows.
    Signal(i32),
    /// Nothing: exclusion is given up. If dlock dies, the guardian still kills the command.
    Continue,
}

/// What happens to descendants that outlive the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leftover {
    /// Wait until the last descendant ended, as flock(1)'s inherited descriptor does.
    #[default]
    Wait,
    /// TERM, grace, KILL.
    Kill,
    /// Leave the descendants running, no longer under the lock.
    Leave,
}

/// How the tree's processes are tracked and killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contain {
    /// A cgroup where one is delegated to dlock, else [`Contain::Group`].
    #[default]
    Auto,
    /// The guardian's descendants.
    Group,
    /// The same with an own cgroup (version 2), which the kernel kills as a whole. An error where
    /// no cgroup is available.
    Cgroup,
}

impl Plan {
    /// Checks, before any lock is taken, whether the plan can be carried out on this host.
    ///
    /// # Errors
    /// [`Kind::Usage`] if the command would run with privileges that prevent dlock from killing it,
    /// or the signal has no name; [`Kind::Unsupported`] if the requested cgroup is not available.
    pub fn check(&self) -> Result<(), Error> {
        check_command(self)?;
        if let OnLost::Signal(number) = self.on_lost {
            sys::signal(number)
                .ok_or_else(|| Error::new(Kind::Usage, format!("there is no signal {number}")))?;
        }
        if self.contain == Contain::Cgroup {
            cgroup::Parent::try_out().map_err(|problem| {
                Error::new(Kind::Unsupported, format!("no cgroup for the command: {problem}"))
                    .hint("--contain group works everywhere; systemd-run --user --scope -p Delegate=yes gives a cgroup")
            })?;
        }
        Ok(())
    }
}

/// When the command gets TERM, and when it gets KILL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlines {
    /// When the tree gets TERM.
    pub term_at: BootTime,
    /// When the tree gets KILL.
    pub kill_at: BootTime,
}

/// An event of the supervised command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The command runs.
    Started {
        /// The command's PID.
        pid: i32,
    },
    /// The command was never executed, and no process of it is left. The last event.
    CannotStart(CannotStart),
    /// The command was stopped by a signal on a terminal. If the user wants the stop, call
    /// [`Supervisor::stop_with_command`].
    Stopped {
        /// The signal that stopped the command.
        signal: i32,
    },
    /// The command was continued.
    Continued,
    /// The command ended, but its descendants still run ([`Leftover::Wait`] only).
    Leftover {
        /// The descendants that were found.
        pids: Vec<i32>,
    },
    /// The command ran for [`Plan::max_runtime`], and the tree is being stopped. Keep renewing and
    /// extending meanwhile.
    TimeUp,
    /// The lease ran out and the tree is being stopped. Later extensions have no effect.
    DeadlineTerm,
    /// A process can't be killed (yet); the attempts continue. The lock must not be released.
    Unkillable {
        /// The PID; 0 if the process is not visible.
        pid: i32,
        /// Why the process can't be killed.
        why: Unkillable,
    },
    /// A process that could not be killed is gone.
    Gone {
        /// The PID; 0 if the process was not visible.
        pid: i32,
    },
    /// The guardian is gone, or didn't answer and was killed. dlock stops the remaining tree;
    /// [`Event::Ended`] follows.
    GuardianLost {
        /// Whether the guardian was alive, but didn't answer.
        frozen: bool,
    },
    /// The tree is empty, or was left on purpose. The last event.
    Ended(Ended),
}

/// How the supervision ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// How the command itself ended; `None` if its end is unknown, or the command was never
    /// started.
    pub outcome: Option<ProcessEnd>,
    /// Whether the command ended before the first signal that was to stop it.
    pub by_itself: bool,
    /// Why the tree was stopped, if it was.
    pub stopped: Option<StopReason>,
    /// Whether descendants were left running ([`Leftover::Leave`]).
    pub leftover_left: bool,
    /// The resources that the command used; `None` if its guardian was lost.
    pub usage: Option<Usage>,
}

/// The resources that a command and its descendants used, as far as they have ended. A process
/// whose parent ignores the end of its children is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time, user and system, in ms.
    pub cpu_ms: u64,
    /// The peak resident set of the largest process. At least dlock's own memory: for the kernel,
    /// the peak of a process begins before it executes the command.
    pub max_rss_bytes: u64,
}

impl Usage {
    /// Returns what the children of this process used, and all descendants that were waited for.
    fn of_children() -> Option<Self> {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
        let cpu = usage.user_time() + usage.system_time();
        Some(Self {
            cpu_ms: cpu.num_milliseconds().try_into().ok()?,
            max_rss_bytes: u64::try_from(usage.max_rss()).ok()?.checked_mul(1024)?,
        })
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessEnd {
    /// The process exited with this status.
    Exited(u8),
    /// The process was killed by this signal.
    Signalled(i32),
}

impl ProcessEnd {
    /// Returns the exit status with which dlock reports this end.
    pub fn status(self) -> u8 {
        match self {
            Self::Exited(status) => status,
            Self::Signalled(signal) => exit::signalled(signal),
        }
    }
}

/// Why the tree was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// The lease ran out.
    Deadline,
    /// dlock no longer holds the lock.
    Lost,
    /// [`Supervisor::stop`] was called.
    Stop,
    /// The command had ended, but its descendants had not ([`Leftover::Kill`]).
    Leftover,
    /// The guardian died or didn't answer.
    Guardian,
    /// dlock died. No process reads this.
    Orphaned,
    /// The command ran for [`Plan::max_runtime`].
    TimeUp,
}

/// Why a command was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CannotStart {
    /// Too little of the lease was left.
    TooLate,
    /// There is no such command.
    NotFound,
    /// The command can't be executed, with this `errno`.
    NotExecutable(i32),
    /// A step before the execution failed with this `errno` (processes or memory ran out, the
    /// cgroup vanished).
    System(i32),
}

impl CannotStart {
    /// Returns the exit status: as `env(1)` and shells use, or 69 for a failure that a retry may
    /// fix.
    pub fn status(self) -> u8 {
        match self {
            Self::NotFound => exit::NOT_FOUND,
            Self::NotExecutable(_) => exit::CANNOT_EXECUTE,
            Self::TooLate | Self::System(_) => exit::UNAVAILABLE,
        }
    }
}

impl std::fmt::Display for CannotStart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLate => f.write_str("too little of the lease was left to start the command"),
            Self::NotFound => f.write_str("no such command"),
            Self::NotExecutable(errno) | Self::System(errno) => {
                // Rust adds the number in parentheses.
                let text = std::io::Error::from_raw_os_error(*errno).to_string();
                f.write_str(
                    &text
                        .split(" (os error")
                        .next()
                        .unwrap_or_default()
                        .to_lowercase(),
                )
            }
        }
    }
}

/// Why a process can't be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unkillable {
    /// The process runs with privileges that dlock doesn't have.
    NotPermitted,
    /// The process waits in the kernel for a device or a file server (state D).
    Uninterruptible,
    /// The process was killed and still exists, or /proc doesn't show it.
    Unknown,
}

impl std::fmt::Display for Unkillable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotPermitted => "not permitted",
            Self::Uninterruptible => "it waits in the kernel (state D)",
            Self::Unknown => "it does not end",
        })
    }
}
