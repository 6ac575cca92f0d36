//! How long a lock is held by `dlock hold`.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, fstat, major, minor},
    process::{Pid, PidfdFlags, pidfd_open},
};
use tokio::io::unix::AsyncFd;

use super::HoldUntil;
use crate::{
    lock::{Error, Kind, Result},
    output::plain,
    supervise::{Signal, watch_fd},
};

/// Why holding is over.
#[derive(Clone, Copy, Debug)]
pub enum Over {
    /// What it lasted for has ended.
    Ended,
    /// A signal came.
    Signal(Signal),
}

/// What the hold lasts for.
pub enum Until {
    Signal,
    /// Stdin, if it is not a file, which has no end to wait for.
    Stdin(AsyncFd<OwnedFd>),
    /// A process, by a descriptor: its number may be another's later.
    Process(AsyncFd<OwnedFd>),
}

impl Until {
    /// Gets ready to watch, before any lock is taken.
    ///
    /// # Errors
    /// [`Kind::Usage`] if that is over already.
    pub fn open(until: HoldUntil) -> Result<Self> {
        let internal = |error: io::Error| Error::new(Kind::Internal, "it can't be watched").source(error);
        match until {
            HoldUntil::Signal => Ok(Self::Signal),
            HoldUntil::StdinEnds => {
                let stdin = io::stdin();
                let kind = fstat(&stdin).map_err(|error| internal(error.into()))?;
                let file_type = FileType::from_raw_mode(kind.st_mode);
                let is_null = file_type.is_char_device() && (major(kind.st_rdev), minor(kind.st_rdev)) == (1, 3);
                if is_null || file_type.is_file() || file_type.is_dir() {
                    let what = if is_null { "/dev/null" } else { "a file" };
                    return Err(Error::new(
                        Kind::Usage,
                        format!("stdin is {what}, which ends at once, and the lock is held until it ends"),
                    )
                    .hint("--until-signal, or --while-pid PID, say how long instead; a pipe or a terminal for stdin works too"));
                }
                let copy = stdin.as_fd().try_clone_to_owned().map_err(internal)?;
                Ok(Self::Stdin(watch_fd(copy).map_err(internal)?))
            }
            HoldUntil::ProcessEnds(number) => {
                let no_process = || Error::new(Kind::Usage, format!("--while-pid {number}: there is no such process"));
                let pid = Pid::from_raw(number).ok_or_else(no_process)?;
                let watched = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from).and_then(watch_fd);
                let watched = watched.map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => no_process(),
                    _ if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => no_process(),
                    _ => Error::new(Kind::Usage, format!("--while-pid {number}: {}", plain(&error))),
                })?;
                Ok(Self::Process(watched))
            }
        }
    }

    /// Ready when that has ended, or with the signal that comes before. Cancel safe.
    pub async fn ended_or(&self, signal: impl Future<Output = Signal>) -> Over {
        tokio::select! {
            biased;
            signal = signal => Over::Signal(signal),
            () = self.ended() => Over::Ended,
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
                let Ok(mut ready) = stdin.readable().await else { return };
                // It is left as it is for whoever shares it, blocking: so it is read only if there is something.
                if !has_input(stdin.get_ref()) {
                    ready.clear_ready();
                } else if rustix::io::read(stdin.get_ref(), &mut [0; 4096]).is_ok_and(|length| length == 0) {
                    return;
                }
            },
        }
    }
}

fn has_input(fd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}
