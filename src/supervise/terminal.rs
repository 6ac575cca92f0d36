//! The controlling terminal: whether there is one, and its foreground process group.

use std::os::fd::OwnedFd;

use rustix::{
    fs::{Mode, OFlags},
    process::Pid,
};

/// Returns the controlling terminal, if this session has one.
pub fn controlling() -> Option<OwnedFd> {
    rustix::fs::open(
        "/dev/tty",
        OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK,
        Mode::empty(),
    )
    .ok()
}

/// Whether `group` is in the foreground of this terminal: Ctrl-C goes to `group`, and `group` may
/// read.
pub fn is_foreground(terminal: &OwnedFd, group: Pid) -> bool {
    rustix::termios::tcgetpgrp(terminal).is_ok_and(|foreground| foreground == group)
}

/// Makes `group` the foreground group. Returns whether that succeeded.
pub fn bring_forward(terminal: &OwnedFd, group: Pid) -> bool {
    rustix::termios::tcsetpgrp(terminal, group).is_ok()
}
