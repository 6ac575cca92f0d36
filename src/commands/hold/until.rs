//! How long a lock is held by `dlock hold`.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, fstat, major, minor},
    io::Errno,
    process::{Pid, PidfdFlags, getpgid, getpid, pidfd_open},
    termios::tcgetpgrp,
};
use tokio::io::unix::AsyncFd;

use super::HoldUntil;
use crate::{
    lease::{BootClock, Clock as _},
    lock::{Error, Kind, Result, plain},
    supervise::{Signal, watch_fd},
};

/// The interval at which a background process checks whether it may read from its terminal.
const BACKGROUND: Duration = Duration::from_secs(1);

/// Why the hold is over.
#[derive(Clone, Copy, Debug)]
pub enum HoldEnd {
    /// Stdin or the process has ended.
    Ended,
    /// A signal came.
    Signal(Signal),
}

/// The end condition of the hold.
pub enum EndCondition {
    Signal,
    /// Stdin, unless it is a file: a file has no end to wait for.
    Stdin(AsyncFd<OwnedFd>),
    /// A process, by a descriptor, since its PID may be reused.
    Process(AsyncFd<OwnedFd>),
}

impl EndCondition {
    /// Prepares the watch, before any lock is taken.
    ///
    /// # Errors
    /// [`Kind::Usage`] if the condition is already met.
    pub fn open(until: HoldUntil) -> Result<Self> {
        let internal =
            |error: io::Error| Error::new(Kind::Internal, "it can't be watched").source(error);
        match until {
            HoldUntil::Signal => Ok(Self::Signal),
            HoldUntil::StdinEnds => {
                let stdin = io::stdin();
                let kind = fstat(&stdin).map_err(|error| internal(error.into()))?;
                let file_type = FileType::from_raw_mode(kind.st_mode);
                let is_null = file_type.is_char_device()
                    && (major(kind.st_rdev), minor(kind.st_rdev)) == (1, 3);
                if is_null || file_type.is_file() || file_type.is_dir() {
                    let what = if is_null { "/dev/null" } else { "a file" };
                    return Err(Error::new(
                        Kind::Usage,
                        format!("stdin is {what}, which ends at once: the lock would be released at once"),
                    )
                    .hint("--until-signal, or --while-pid PID, say how long instead; a pipe or a terminal for stdin works too"));
                }
                let copy = stdin.as_fd().try_clone_to_owned().map_err(internal)?;
                Ok(Self::Stdin(watch_fd(copy).map_err(internal)?))
            }
            HoldUntil::ProcessEnds(number) => {
                check_process(number)?;
                Self::process(open_process(number)?)
            }
        }
    }

    /// Prepares the watch of a process, inside the runtime.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn process(process: OwnedFd) -> Result<Self> {
        let failed = |error: io::Error| {
            Error::new(
                Kind::Unavailable,
                format!("the process can't be watched: {}", plain(&error)),
            )
        };
        watch_fd(process).map(Self::Process).map_err(failed)
    }

    /// Whether stdin is a terminal and this process is in its background.
    pub fn is_kept_from_reading(&self) -> bool {
        matches!(self, Self::Stdin(stdin) if is_in_background(stdin.get_ref()))
    }

    /// Waits for the end condition, or for an earlier signal. Cancel safe.
    pub async fn ended_or(&self, signal: impl Future<Output = Signal>) -> HoldEnd {
        tokio::select! {
            biased;
            signal = signal => HoldEnd::Signal(signal),
            () = self.ended() => HoldEnd::Ended,
        }
    }

    async fn ended(&self) {
        match self {
            Self::Signal => std::future::pending().await,
            Self::Process(process) => {
                // Readable once the process is dead.
                let _ = process.readable().await;
            }
            Self::Stdin(stdin) => loop {
                let Ok(mut ready) = stdin.readable().await else {
                    return;
                };
                // The descriptor stays blocking, since other processes may share it: dlock reads
                // only when input is ready.
                if !has_input(stdin.get_ref()) {
                    ready.clear_ready();
                    continue;
                }
                match rustix::io::read(stdin.get_ref(), &mut [0; 4096]) {
                    // The terminal's input goes to the foreground process. This process may become
                    // that later.
                    Err(Errno::IO) if is_in_background(stdin.get_ref()) => {
                        BootClock
                            .sleep_until(BootClock.now().plus(BACKGROUND))
                            .await;
                    }
                    Ok(0) | Err(Errno::IO) => return,
                    _ => {}
                }
            },
        }
    }
}

/// The hint for a process that is not the one meant. `$( )` is a process of its own.
pub const NAME_THE_PROCESS: &str = "name the process that needs the lock: $$ in a script; in a subshell of bash me=$BASHPID, before the $( )";

/// Refuses processes whose end can't be waited for, or that must not be told to end.
///
/// # Errors
/// [`Kind::Usage`].
pub fn check_process(number: i32) -> Result<()> {
    let what = match number {
        1 => "is the init process, which dlock would stop if the lock is lost",
        _ if Pid::from_raw(number) == Some(getpid()) => "is dlock itself",
        _ => return Ok(()),
    };
    Err(
        Error::new(Kind::Usage, format!("--while-pid {number}: this {what}"))
            .hint(NAME_THE_PROCESS),
    )
}

/// A descriptor of the process: its number may be another's later.
///
/// # Errors
/// [`Kind::Usage`] if there is none.
pub fn open_process(number: i32) -> Result<OwnedFd> {
    let no_process = || {
        Error::new(
            Kind::Usage,
            format!("--while-pid {number}: there is no such process"),
        )
    };
    let pid = Pid::from_raw(number).ok_or_else(no_process)?;
    pidfd_open(pid, PidfdFlags::empty()).map_err(|error| match error {
        Errno::SRCH | Errno::NOENT => no_process(),
        error => Error::new(
            Kind::Usage,
            format!("--while-pid {number}: {}", plain(&error.into())),
        ),
    })
}

/// Whether this is a terminal that has another process group in its foreground.
fn is_in_background(terminal: &OwnedFd) -> bool {
    tcgetpgrp(terminal).is_ok_and(|foreground| getpgid(None).is_ok_and(|own| own != foreground))
}

fn has_input(fd: &OwnedFd) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}
