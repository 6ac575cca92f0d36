//! The hook process: runs the command of `--on-event` next to a run, and never blocks the run.
//!
//! dlock forks the hook process before dlock opens or connects anything. The hook process is no
//! descendant of dlock and has none of its descriptors: neither the lock, the guardian nor a reader
//! of dlock's output waits for a hook. Hooks run one after the other, in the order of their events.
//! Each hook, with everything that it starts, may run for [`LIMIT`].

use std::{
    ffi::{OsStr, OsString},
    io::{self, Write as _},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, process::ExitStatusExt as _},
    },
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, Mode, OFlags, memfd_create, open},
    net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair},
    process::{Pid, Signal, WaitOptions, getpid, set_child_subreaper, setsid, wait, waitpid},
    thread::set_name,
};
use serde::{Deserialize, Serialize};

use super::{
    detached_renewer::close_others,
    message::{Received, decode, encode, receive, transmit},
    sys::{self, Fork, SignalSet},
    tree,
};
use crate::{lease::BootClock, lock::BootTime};

/// How long a hook may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long killed processes may take to end.
const DYING: Duration = Duration::from_secs(1);
/// The interval at which the hook process checks for their end.
const LOOK: Duration = Duration::from_millis(20);
/// How many bytes of a hook's stderr are kept.
const OUTPUT_LIMIT: usize = 4096;

/// An event in the form that its hook gets.
#[derive(Debug, Serialize, Deserialize)]
pub struct HookEvent {
    /// The event's name, for messages about a failed hook.
    pub name: String,
    /// The text on the hook's stdin.
    pub json: String,
    /// Variables that are added to the hook's environment.
    pub variables: Vec<(String, String)>,
}

/// dlock's end of the hook process.
#[derive(Debug)]
pub struct Hooks(OwnedFd);

/// Forks the hook process, which runs `line` with `/bin/sh` for each event. Hooks inherit only the
/// `DLOCK_*` variables in `kept`.
///
/// Call it before any thread exists.
///
/// # Errors
/// If the system has no processes or descriptors left.
pub fn fork_hooks(line: &OsStr, kept: &[String]) -> io::Result<Hooks> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    match sys::fork()? {
        Fork::Child => {
            drop(ours);
            let lived = std::panic::catch_unwind(|| match sys::fork()? {
                Fork::Parent(_) => Ok(()),
                Fork::Child => live(line, kept, &theirs),
            });
            sys::exit_now(if matches!(lived, Ok(Ok(()))) { 0 } else { 70 })
        }
        Fork::Parent(between) => {
            while matches!(
                waitpid(Some(between), WaitOptions::empty()),
                Err(rustix::io::Errno::INTR)
            ) {}
            Ok(Hooks(ours))
        }
    }
}

impl Hooks {
    /// Sends an event to the hook process, without waiting.
    ///
    /// # Errors
    /// If the event is too long, or the hook process is gone.
    pub fn tell(&self, event: &HookEvent) -> io::Result<()> {
        transmit(&self.0, &encode(event), &[])
    }

    /// Waits until all hooks have run, for `at_most` or until a signal ends the wait. Returns the
    /// failures.
    ///
    /// The hook process runs the remaining hooks by itself.
    pub fn finish(self, at_most: Duration) -> Vec<String> {
        let until = BootClock::read().plus(at_most);
        let mut failures = Vec::new();
        // No event follows.
        let _ = shutdown(&self.0, Shutdown::Write);
        let Ok(signals) = sys::signalfd(&SignalSet::of(&[
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGHUP,
            libc::SIGQUIT,
        ])) else {
            return failures;
        };
        loop {
            match receive(&self.0) {
                Received::Datagram(datagram, _) => failures.extend(decode::<String>(&datagram)),
                Received::Closed => return failures,
                Received::Nothing => {
                    if BootClock::read() >= until || sys::read_signal(&signals).is_some() {
                        return failures;
                    }
                    wait_for(&[&self.0, &signals], until);
                }
            }
        }
    }
}

/// Waits until one of the sources is readable, or until the given time.
fn wait_for(sources: &[&OwnedFd], until: BootTime) {
    let left = until.since(BootClock::read());
    let left = Timespec {
        tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    };
    let mut sources: Vec<_> = sources
        .iter()
        .map(|source| PollFd::new(*source, PollFlags::IN))
        .collect();
    let _ = poll(&mut sources, Some(&left));
}

/// Runs hooks until dlock is gone or has sent all events, and all hooks have ended.
fn live(line: &OsStr, kept: &[String], dlock: &OwnedFd) -> io::Result<()> {
    sys::block_all();
    sys::restore_dispositions();
    let _ = set_name(c"lock-hooks");
    // Hooks must not get the terminal's keys or signals to the caller's group.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    drop(null);
    close_others(&[dlock])?;
    let children = sys::signalfd(&SignalSet::of(&[libc::SIGCHLD]))?;
    loop {
        match receive(dlock) {
            Received::Closed => return Ok(()),
            Received::Nothing => {
                wait_for(&[dlock], BootClock::read().plus(Duration::from_secs(3600)));
            }
            Received::Datagram(datagram, _) => {
                let Some(event) = decode::<HookEvent>(&datagram) else {
                    continue;
                };
                let failure = run(line, kept, &event, &children)
                    .unwrap_or_else(|error| Some(format!("it can't be started: {error}")));
                if let Some(failure) = failure {
                    let _ = transmit(dlock, &encode(&format!("{}: {failure}", event.name)), &[]);
                }
            }
        }
    }
}

/// Runs one hook to its end, or to its limit. Returns the failure, if any.
fn run(
    line: &OsStr,
    kept: &[String],
    event: &HookEvent,
    children: &OwnedFd,
) -> io::Result<Option<String>> {
    // Not a pipe: the hook process must not block on a hook that doesn't read its stdin.
    let mut stdin = std::fs::File::from(memfd_create("dlock-event", MemfdFlags::CLOEXEC)?);
    stdin.write_all(event.json.as_bytes())?;
    io::Seek::rewind(&mut stdin)?;
    let (output, stderr) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&output, true)?;
    let until = BootClock::read().plus(LIMIT);
    let mut command = Command::new("/bin/sh");
    command
        .arg("-c")
        .arg(line)
        .env_clear()
        .envs(environment(std::env::vars_os(), kept))
        .envs(event.variables.iter().cloned());
    let child = command
        .stdin(stdin)
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()?;
    // `command` holds the other end of the pipe.
    drop(command);
    let mut hook = Hook {
        pid: child.id(),
        ended: None,
        stderr: Some(output),
        output: Vec::new(),
        empty: false,
    };
    while !hook.empty && BootClock::read() < until {
        let sources: Vec<&OwnedFd> = [children].into_iter().chain(&hook.stderr).collect();
        wait_for(&sources, until);
        hook.read();
        hook.reap(children);
    }
    let late = !hook.empty;
    let gone = BootClock::read().plus(DYING);
    while !hook.empty && BootClock::read() < gone {
        let _ = tree::signal_all(getpid().as_raw_pid(), &[], None, Signal::KILL);
        wait_for(&[children], BootClock::read().plus(LOOK));
        hook.reap(children);
    }
    hook.read();
    Ok(hook.failure(late))
}

/// A hook that was started.
struct Hook {
    pid: u32,
    ended: Option<ExitStatus>,
    /// The read end of the hook's stderr; `None` after the end of file.
    stderr: Option<OwnedFd>,
    /// The end of the hook's stderr output.
    output: Vec<u8>,
    /// No process of the hook is left.
    empty: bool,
}

impl Hook {
    fn reap(&mut self, children: &OwnedFd) {
        while sys::read_signal(children).is_some() {}
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Pid::from_raw(self.pid.cast_signed()) == Some(pid) => {
                    self.ended = Some(ExitStatus::from_raw(status.as_raw()));
                }
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return,
                Err(_) => return self.empty = true,
            }
        }
    }

    fn read(&mut self) {
        let mut buffer = [0; OUTPUT_LIMIT];
        // At most one pipe's capacity, so that a hook that writes endlessly is still stopped at its
        // limit.
        for _ in 0..16 {
            let Some(Ok(length)) = self
                .stderr
                .as_ref()
                .map(|stderr| rustix::io::read(stderr, &mut buffer))
            else {
                return;
            };
            if length == 0 {
                return self.stderr = None;
            }
            self.output.extend_from_slice(&buffer[..length]);
            self.output
                .drain(..self.output.len().saturating_sub(OUTPUT_LIMIT));
        }
    }

    /// Returns how the hook failed, for a message.
    fn failure(&self, late: bool) -> Option<String> {
        let how = match self.ended {
            _ if late => format!("stopped after {}s", LIMIT.as_secs()),
            Some(ended) if ended.success() => return None,
            Some(ended) => match (ended.code(), ended.signal()) {
                (Some(status), _) => format!("exit {status}"),
                (None, signal) => format!("signal {}", signal.unwrap_or_default()),
            },
            None => "unknown how it ended".into(),
        };
        let output = String::from_utf8_lossy(&self.output);
        let last = output
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default();
        Some(if last.is_empty() {
            how
        } else {
            format!(
                "{how}: {}",
                last.trim().chars().take(200).collect::<String>()
            )
        })
    }
}

/// Returns dlock's own environment, without locks and passwords.
fn environment(
    all: impl Iterator<Item = (OsString, OsString)>,
    kept: &[String],
) -> impl Iterator<Item = (OsString, OsString)> {
    all.filter(|(name, _)| {
        !name.as_bytes().starts_with(b"DLOCK_") || kept.iter().any(|kept| name == OsStr::new(kept))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_sees_no_token() {
        let all = [
            ("PATH", "/bin"),
            ("DLOCK_TOKEN", "t"),
            ("DLOCK_HELD", "h"),
            ("DLOCK_PASSWORD", "p"),
            ("DLOCK_BACKEND", "b"),
        ];
        let kept = ["DLOCK_BACKEND".into()];
        let left = environment(
            all.into_iter()
                .map(|(name, value)| (name.into(), value.into())),
            &kept,
        );
        let left: Vec<_> = left.map(|(name, _)| name.into_string().unwrap()).collect();
        assert_eq!(left, ["PATH", "DLOCK_BACKEND"]);
    }

    #[test]
    fn the_last_line_is_the_reason() {
        let output = b"a\ncurl: (6) no host\n\n".to_vec();
        let hook = Hook {
            pid: 1,
            ended: Some(ExitStatus::from_raw(6 << 8)),
            stderr: None,
            output,
            empty: true,
        };
        assert_eq!(
            hook.failure(false).as_deref(),
            Some("exit 6: curl: (6) no host")
        );
        assert_eq!(
            Hook {
                output: Vec::new(),
                ..hook
            }
            .failure(true)
            .as_deref(),
            Some("stopped after 10s")
        );
    }
}
