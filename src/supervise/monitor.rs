//! The monitor of a renewer: sends TERM to the protected process if the renewer is killed, or is
//! stopped beyond its lease.
//!
//! The monitor resembles the guardian of `dlock run`, but sends only one signal and kills no
//! process. It talks to no store.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Mode, OFlags, open},
    io::write,
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{Signal, chdir, pidfd_send_signal, setsid},
    thread::set_name,
    time::{TimerfdClockId, TimerfdFlags, timerfd_create},
};

use super::{
    detached_renewer::close_others,
    message::{Received, receive},
    sys::{self, Fork, arm},
};
use crate::{lease::BootClock, lock::BootTime};

/// The renewer's handle of the monitor. The lock counts as lost if the handle is dropped
/// undismissed or the renewer ends.
pub struct Monitor(OwnedFd);

impl Monitor {
    /// Sends the monitor the deadline at which it signals the process, unless a later extension
    /// arrives.
    pub fn extend(&self, until: BootTime) {
        let ms = u64::try_from(until.since_boot().as_millis())
            .unwrap_or(u64::MAX)
            .max(1);
        // The renewer can't do anything about a monitor that is gone.
        let _ = write(&self.0, &ms.to_le_bytes());
    }

    /// Dismisses the monitor: no lock is left that could be lost.
    pub fn dismiss(self) {
        let _ = write(&self.0, &0_u64.to_le_bytes());
    }
}

/// Forks a monitor of this process. The monitor does nothing before the first [`Monitor::extend`].
/// It calls `tell` with the reason after it has signalled the process.
///
/// Call it before any thread exists.
///
/// # Errors
/// If the system has no processes or descriptors left.
pub fn fork_monitor(process: &OwnedFd, tell: impl FnOnce(&str)) -> io::Result<Monitor> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
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

/// Waits for the end of the process, the renewer, or its lease. Returns why the process must end,
/// if it must.
fn watch(process: &OwnedFd, renewer: &OwnedFd) -> io::Result<Option<&'static str>> {
    sys::block_all();
    // Not named dlock, so that `pkill dlock` doesn't kill the monitor.
    let _ = set_name(c"lock-monitor");
    // A reader of dlock's output must not wait for this process, and a signal to the caller's group
    // must not reach it.
    let _ = setsid();
    chdir("/")?;
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    drop(null);
    close_others(&[process, renewer])?;
    let timer = timerfd_create(
        TimerfdClockId::Boottime,
        TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
    )?;
    let mut deadline = None;
    loop {
        match receive(renewer) {
            // The renewer may have failed to acquire the lock, which it reports itself.
            Received::Closed => {
                return Ok(deadline.map(|_| "the process that renews the lock was killed"));
            }
            Received::Datagram(message, _) => {
                match u64::from_le_bytes(message.try_into().unwrap_or_default()) {
                    0 => return Ok(None),
                    time => {
                        deadline = Some(BootTime::from_boot(Duration::from_millis(time)));
                        continue;
                    }
                }
            }
            Received::Nothing => {}
        }
        if deadline.is_some_and(|deadline| BootClock::read() >= deadline) {
            return Ok(Some("the process that renews the lock stopped renewing it"));
        }
        arm(&timer, deadline);
        let sources = &mut [
            PollFd::new(process, PollFlags::IN),
            PollFd::new(renewer, PollFlags::IN),
            PollFd::new(&timer, PollFlags::IN),
        ];
        let _ = poll(sources, None);
        if !sources[0].revents().is_empty() {
            return Ok(None);
        }
    }
}
