//! Sends one line per run, skip or loss to syslog.
//!
//! It never blocks and never fails: without a syslog daemon, the line is dropped.

use std::{
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
};

use super::{Now, Output, Verdict};
use crate::lock::printable;

/// What is sent to syslog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyslogPolicy {
    /// A line, if stderr is not a terminal.
    #[default]
    Auto,
    /// Nothing.
    Off,
    /// The verdict as JSON.
    Json,
}

/// Priorities: facility cron, severities error and informational.
const ERROR: u8 = 9 * 8 + 3;
const INFO: u8 = 9 * 8 + 6;

/// A client of the syslog daemon.
#[derive(Clone, Debug)]
pub struct Syslog {
    socket: PathBuf,
}

impl Default for Syslog {
    fn default() -> Self {
        Self {
            socket: "/dev/log".into(),
        }
    }
}

impl Syslog {
    /// Uses another socket, for tests.
    pub fn at(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
        }
    }

    /// Sends the result of a run, as `policy` says.
    pub fn report(&self, policy: SyslogPolicy, out: &Output, verdict: &Verdict) {
        let text = match policy {
            SyslogPolicy::Auto if !out.attended() => verdict.line(),
            SyslogPolicy::Json => verdict.json().trim_end().to_owned(),
            _ => return,
        };
        self.send(if verdict.is_bad() { ERROR } else { INFO }, &text);
    }

    /// Sends news of a run that goes on, as `policy` says: the line, or the JSON object.
    pub fn progress(&self, policy: SyslogPolicy, out: &Output, line: &str, json: &str) {
        match policy {
            SyslogPolicy::Auto if !out.attended() => self.send(INFO, line),
            SyslogPolicy::Json => self.send(INFO, json.trim_end()),
            _ => {}
        }
    }

    /// Sends a warning during a run, unless `policy` is off or stderr is a terminal.
    pub fn warn_of(&self, policy: SyslogPolicy, out: &Output, text: &str) {
        if policy != SyslogPolicy::Off && !out.attended() {
            self.warn(text);
        }
    }

    /// Sends a warning.
    pub fn warn(&self, text: &str) {
        self.send(ERROR, text);
    }

    /// Sends a line, or drops it if that would block.
    fn send(&self, priority: u8, text: &str) {
        let Ok(socket) = UnixDatagram::unbound() else {
            return;
        };
        // `connect` also blocks when the daemon's queue is full.
        if socket.set_nonblocking(true).is_ok() && socket.connect(&self.socket).is_ok() {
            let line = format!(
                "<{priority}>{} dlock[{}]: {}",
                Now::read().syslog(),
                std::process::id(),
                printable(text)
            );
            let _ = socket.send(line.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_and_a_missing_or_full_daemon_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        Syslog::at(&path).send(INFO, "no server");
        let daemon = UnixDatagram::bind(&path).unwrap();
        Syslog::at(&path).send(INFO, "sms-job skipped\nbusy");
        let mut buffer = [0; 1024];
        let length = daemon.recv(&mut buffer).unwrap();
        let line = std::str::from_utf8(&buffer[..length]).unwrap();
        assert!(
            line.starts_with("<78>")
                && line.ends_with(&format!(
                    "dlock[{}]: sms-job skipped\\nbusy",
                    std::process::id()
                )),
            "{line}"
        );
        for _ in 0..5000 {
            Syslog::at(&path).send(INFO, "no reader");
        }
    }
}
