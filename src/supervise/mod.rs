//! Runs a command under a lease, and sees to it that it is dead when the lease is.
//!
//! ```text
//! dlock run        lease, renewal, signals                       (async, one thread)
//!   └ guardian     forked before any thread exists; child subreaper; kills the tree by itself
//!       └ command  joins the foreground group of a terminal, else has a group of its own
//! ```
//! The guardian knows the deadlines on `CLOCK_BOOTTIME` and learns of each extension over a socket pair.
//! When the deadline is near, when the socket closes because dlock died, or when it is told to, it stops *all* of
//! its descendants: as a subreaper every orphan comes back to it, daemons included. dlock is a subreaper behind it
//! and does the same if the guardian dies or doesn't answer. The tree counts as empty only when the kernel says
//! that there is no child left to wait for; what can't be killed is therefore never reported as gone.
//!
//! Not covered: dlock *and* guardian killed by pid at the same instant (the command itself dies even then), a frozen
//! host, work that the command had others do for it (`systemd-run`, `at`, a container daemon), and a process that moves to
//! another PID namespace: its orphans become children of that namespace's first process, never the guardian's.
//!
//! Hooks run in a process of their own, apart from all of that.
//!
//! Nothing here knows locks or stores: it is given deadlines and tells what became of the command. It never prints.

mod capture;
mod cgroup;
mod command;
mod guardian;
mod hooks;
mod hunt;
mod keeper;
mod message;
mod monitor;
mod signals;
mod supervisor;
mod sys;
mod takeover;
mod terminal;
mod tree;

use std::{ffi::OsString, time::Duration};

use serde::{Deserialize, Serialize};

pub use capture::Printed;
pub use command::{check_command, may_kill_all};
pub use hooks::{HookEvent, Hooks, fork_hooks};
pub use keeper::{Detach, Keeper, fork_keeper};
pub use monitor::{Monitor, fork_monitor};
pub use signals::{Signal, Signals, reraise, stop_self, unblock as unblock_signals, with_usual as with_usual_signals};
pub use supervisor::{Guardian, Supervisor, fork_guardian};
pub use sys::{survive_large_files, watch as watch_fd};
pub use tree::name as process_name;

use crate::{
    exit,
    lock::{BootTime, Error, Kind},
};

/// Whether the keys of a terminal are for dlock: it has one, and is in its foreground.
pub fn has_keyboard() -> bool {
    terminal::controlling().zip(sys::own_group()).is_some_and(|(terminal, group)| terminal::is_foreground(&terminal, group))
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
    /// How to hold the tree together.
    pub contain: Contain,
    /// The time between TERM and KILL when there is no other deadline: after dlock died, for leftovers.
    pub grace: Duration,
    /// How long the tree may live from the command's start on; then TERM, `grace`, KILL. The guardian sees to it whatever dlock does.
    pub max_runtime: Option<Duration>,
    /// The only `DLOCK_*` variables of our own environment that the command gets to see.
    pub kept_variables: Vec<String>,
    /// Whether stdout and stderr of the command are kept for its end, instead of being passed on.
    pub capture: bool,
}

/// What happens to the command when the lease ends under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLost {
    /// TERM, then KILL. KILL at once if another process has the lock.
    #[default]
    Kill,
    /// This signal in the place of TERM; KILL still follows.
    Signal(i32),
    /// Nothing: exclusion is given up. If dlock dies, the command is killed even so.
    Continue,
}

/// What happens to descendants that outlive the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leftover {
    /// Wait until the last one ended, as flock(1)'s inherited descriptor does.
    #[default]
    Wait,
    /// TERM, grace, KILL.
    Kill,
    /// Leave them alone, no longer under the lock.
    Leave,
}

/// How the tree is held together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contain {
    /// A cgroup where one is delegated to us, else [`Contain::Group`].
    #[default]
    Auto,
    /// The guardian's descendants.
    Group,
    /// A cgroup (version 2) of its own as well, which the kernel kills as a whole; refused where there is none.
    Cgroup,
}

impl Plan {
    /// Finds out, before any lock is taken, whether this can be done here.
    ///
    /// # Errors
    /// [`Kind::Usage`] if the command would run with rights that dlock can't kill, or the signal has no name;
    /// [`Kind::Unsupported`] if the cgroup that was asked for is not available.
    pub fn check(&self) -> Result<(), Error> {
        check_command(self)?;
        if let OnLost::Signal(number) = self.on_lost {
            sys::signal(number).ok_or_else(|| Error::new(Kind::Usage, format!("there is no signal {number}")))?;
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

/// When the command is told to end, and when it is made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlines {
    /// TERM comes then.
    pub term_at: BootTime,
    /// KILL comes then.
    pub kill_at: BootTime,
}

/// What became of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It runs.
    Started {
        /// Its process.
        pid: i32,
    },
    /// It was never executed, and nothing of it is left. The last event.
    CannotStart(CannotStart),
    /// It was stopped by this signal on a terminal. Where that is what the user wants, call [`Supervisor::stop_with_command`].
    Stopped {
        /// What stopped it.
        signal: i32,
    },
    /// It goes on.
    Continued,
    /// It ended, but its descendants go on ([`Leftover::Wait`] only).
    Leftover {
        /// Those that were seen.
        pids: Vec<i32>,
    },
    /// It ran for [`Plan::max_runtime`], and the tree is being stopped: go on renewing and extending meanwhile.
    TimeUp,
    /// The lease ran out and the tree is being stopped. No extension is of use from here on.
    DeadlineTerm,
    /// This process can't be killed (yet); the attempts go on. The lock must not be released.
    Unkillable {
        /// The process; 0 if it can't be seen.
        pid: i32,
        /// What is in the way.
        why: Unkillable,
    },
    /// A process that could not be killed is gone.
    Gone {
        /// The process; 0 if it couldn't be seen.
        pid: i32,
    },
    /// The guardian is gone, or doesn't answer and was killed. dlock stops what is left; [`Event::Ended`] follows.
    GuardianLost {
        /// Whether it was there, but didn't answer.
        frozen: bool,
    },
    /// The tree is empty (or was left on purpose). The last event.
    Ended(Ended),
}

/// How it all ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// How the command itself ended; `None` if that can't be known any more, or it was never started.
    pub outcome: Option<ProcessEnd>,
    /// Why the tree was stopped, if it was.
    pub stopped: Option<Why>,
    /// Whether descendants were left running ([`Leftover::Leave`]).
    pub leftover_left: bool,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessEnd {
    /// By itself, with this status.
    Exited(u8),
    /// By this signal.
    Signalled(i32),
}

impl ProcessEnd {
    /// The exit status that passes this on.
    pub fn status(self) -> u8 {
        match self {
            Self::Exited(status) => status,
            Self::Signalled(signal) => exit::signalled(signal),
        }
    }
}

/// Why the tree was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// The lease ran out.
    Deadline,
    /// The lock is not ours any more.
    Lost,
    /// [`Supervisor::stop`].
    Stop,
    /// The command had ended, its descendants hadn't ([`Leftover::Kill`]).
    Leftover,
    /// The guardian died or didn't answer.
    Guardian,
    /// dlock died. No process reads this.
    Orphaned,
    /// It ran for [`Plan::max_runtime`].
    TimeUp,
}

/// Why a command was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CannotStart {
    /// Too little of the lease was left.
    TooLate,
    /// There is no such command.
    NotFound,
    /// It can't be executed: this `errno`.
    NotExecutable(i32),
    /// What has to come before failed with this `errno` (processes or memory ran out, the cgroup vanished).
    System(i32),
}

impl CannotStart {
    /// The exit status that says so: as `env(1)` and the shells, or 69 for what may work the next time.
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
                f.write_str(&text.split(" (os error").next().unwrap_or_default().to_lowercase())
            }
        }
    }
}

/// What keeps a process from being killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unkillable {
    /// It runs with rights that dlock doesn't have.
    NotPermitted,
    /// It waits in the kernel for a device or a file server (state D).
    Uninterruptible,
    /// It was killed and is there all the same, or /proc doesn't show it.
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
