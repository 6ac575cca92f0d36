//! The signals of dlock itself: blocked from the start and read from a descriptor, so that none is
//! lost and none interrupts.
//!
//! This module doesn't interpret signals: it returns the number, the sender, and whether the
//! terminal sent the signal.

use std::{io, os::fd::OwnedFd};

use rustix::process::{Resource, Rlimit};
use tokio::io::unix::AsyncFd;

use super::sys::{self, SignalSet};

/// The signals that dlock forwards to the command. TSTP is included because dlock stops together
/// with the command.
const HANDLED: [i32; 9] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGTSTP,
];

/// `si_code` of signals from the kernel; among the handled signals, only those from the terminal.
const SI_KERNEL: i32 = 0x80;

/// Blocks the handled signals and SIGCHLD, and restores SIGCHLD's default action. Returns the
/// previous mask.
///
/// TTIN and TTOU are blocked too, since they would stop a background process and its renewals. When
/// blocked, a read from the terminal returns an error, and a write with `stty tostop` succeeds.
///
/// Signals that were ignored when dlock was started (nohup, a shell's background job) stay ignored
/// and untouched.
pub(super) fn block() -> SignalSet {
    sys::set_ignored(libc::SIGCHLD, false);
    let mut blocked = handled();
    blocked.extend([libc::SIGCHLD, libc::SIGTTIN, libc::SIGTTOU]);
    sys::block(&SignalSet::of(&blocked))
}

fn handled() -> Vec<i32> {
    HANDLED
        .into_iter()
        .filter(|&signal| !sys::is_ignored(signal))
        .collect()
}

/// A signal that dlock received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The signal's number.
    pub number: i32,
    /// Whether it came from the terminal (Ctrl-C, a hang-up, a new size), which sends it to the
    /// whole foreground group.
    pub from_terminal: bool,
    /// The process that sent it; 0 if the kernel did.
    pub sender: i32,
}

impl Signal {
    /// Whether the signal ends the wait for a lock.
    pub fn ends_wait(self) -> bool {
        [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT].contains(&self.number)
    }

    /// Whether the signal requests an orderly stop: the command gets TERM, and KILL after the
    /// grace.
    pub fn is_orderly_stop(self) -> bool {
        self.number == libc::SIGTERM
    }

    /// Whether the signal reports a new size of the terminal's window.
    pub fn is_new_size(self) -> bool {
        self.number == libc::SIGWINCH
    }

    /// Whether the signal requests a stop (Ctrl-Z). Before the command's start, call [`stop_self`].
    pub fn is_stop(self) -> bool {
        self.number == libc::SIGTSTP
    }
}

/// The stream of signals that dlock receives, also while it waits for a lock.
#[derive(Debug)]
pub struct Signals {
    fd: AsyncFd<OwnedFd>,
}

impl Signals {
    /// Blocks the signals if needed, and starts to receive them. Call it inside the runtime.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        block();
        Ok(Self {
            fd: sys::watch(sys::signalfd(&SignalSet::of(&handled()))?)?,
        })
    }

    /// Returns the next signal. Cancel safe.
    pub async fn next(&mut self) -> Signal {
        loop {
            if let Some((number, code, sender)) = sys::read_signal(self.fd.get_ref()) {
                return Signal {
                    number,
                    from_terminal: code == SI_KERNEL,
                    sender,
                };
            }
            match self.fd.readable().await {
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => std::future::pending().await,
            }
        }
    }
}

/// Restores the signals' usual effect on this process. Call it when dlock holds no lock any more.
pub fn unblock() {
    let mut ending = handled();
    ending.retain(|signal| ![libc::SIGTSTP, libc::SIGCONT, libc::SIGWINCH].contains(signal));
    sys::unblock(&SignalSet::of(&ending));
}

/// Restores the signals' usual effect during `work`, which may block. Call it only while dlock
/// holds no lock.
pub fn with_usual<T>(work: impl FnOnce() -> T) -> T {
    let before = sys::block(&SignalSet::of(&[]));
    sys::unblock(&SignalSet::of(&handled()));
    let done = work();
    sys::set_mask(&before);
    done
}

/// Stops dlock as `signal` (TSTP, TTIN, TTOU, STOP) would have, and returns when it was continued.
///
/// Check the deadline first after the return: any amount of time may have passed.
pub fn stop_self(signal: i32) {
    let own = SignalSet::of(&[signal]);
    let before = sys::block(&own);
    sys::raise(signal);
    // The pending signal takes effect inside this call.
    sys::unblock(&own);
    sys::set_mask(&before);
}

/// Ends dlock by `signal`, as the command ended, so that a calling shell sees what a plain command
/// would have shown.
///
/// Call it only after the release. No core is dumped. If the signal has no effect, as for PID 1, it
/// returns: exit with 128+N.
pub fn reraise(signal: i32) {
    let _ = rustix::process::setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    );
    sys::set_ignored(signal, false);
    sys::raise(signal);
    sys::unblock(&SignalSet::of(&[signal]));
}
