//! The process behind a keeper: it tells the process that needs the lock to end when the keeper is killed, or is stopped beyond its lease.
//!
//! It is to the keeper what the guardian is to `dlock run`, but it sends one signal and kills nothing. It talks to no store.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Mode, OFlags, open},
    io::{Errno, read, write},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{Signal, chdir, pidfd_send_signal, setsid},
    thread::set_name,
    time::{TimerfdClockId, TimerfdFlags, timerfd_create},
};

use super::{
    keeper::close_others,
    sys::{self, Fork, arm},
};
use crate::{lease::BootClock, lock::BootTime};

/// The keeper's end of it. If it is dropped before it is dismissed, or its process ends, the lock counts as lost.
pub struct Monitor(OwnedFd);

impl Monitor {
    /// Passes on when the process must have been told to end unless something is heard until then.
    pub fn extend(&self, until: BootTime) {
        let ms = u64::try_from(until.since_boot().as_millis()).unwrap_or(u64::MAX).max(1);
        // A monitor that is gone can't be helped.
        let _ = write(&self.0, &ms.to_le_bytes());
    }

    /// Nothing is left that could be lost.
    pub fn dismiss(self) {
        let _ = write(&self.0, &0_u64.to_le_bytes());
    }
}

/// Forks a monitor of this process. It does nothing before the first [`Monitor::extend`]. `tell` is given the reason once the process
/// was told to end.
///
/// To be called before any thread exists.
///
/// # Errors
/// If there can be no more processes or descriptors.
pub fn fork_monitor(process: &OwnedFd, tell: impl FnOnce(&str)) -> io::Result<Monitor> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    match sys::fork()? {
        Fork::Child => {
            drop(ours);
            let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                if let Some(why) = watch(process, &theirs)? {
                    let _ = pidfd_send_signal(process.as_fd(), Signal::TERM);
                    tell(why);
                }
                io::Result::Ok(())
            }));
            sys::exit_now(if matches!(lived, Ok(Ok(()))) { 0 } else { 70 })
        }
        Fork::Parent(_) => Ok(Monitor(ours)),
    }
}

/// Waits until one of three has ended: the process, the keeper, or its lease. Why the process is to end, if it is.
fn watch(process: &OwnedFd, keeper: &OwnedFd) -> io::Result<Option<&'static str>> {
    sys::block_all();
    // Not dlock's name: what kills all that are called so must not kill this one.
    let _ = set_name(c"lock-monitor");
    // A reader of dlock's output must not wait for this process, and a signal to the caller's group must not reach it.
    let _ = setsid();
    chdir("/")?;
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    drop(null);
    close_others(&[process, keeper])?;
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let mut deadline = None;
    loop {
        let mut message = [0; 8];
        match read(keeper, &mut message) {
            // It may have failed to take the lock, which it says itself.
            Ok(0) => return Ok(deadline.map(|_| "the keeper of the lock was killed")),
            Ok(_) if message == [0; 8] => return Ok(None),
            Ok(_) => {
                deadline = Some(BootTime::from_boot(Duration::from_millis(u64::from_le_bytes(message))));
                continue;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if deadline.is_some_and(|deadline| BootClock::read() >= deadline) {
            return Ok(Some("the keeper of the lock renewed it no more: was it stopped?"));
        }
        arm(&timer, deadline);
        let sources = &mut [PollFd::new(process, PollFlags::IN), PollFd::new(keeper, PollFlags::IN), PollFd::new(&timer, PollFlags::IN)];
        let _ = poll(sources, None);
        if !sources[0].revents().is_empty() {
            return Ok(None);
        }
    }
}
