//! The hook process: runs the command of `--on-event` next to a run, and never in its way.
//!
//! dlock forks it before anything is opened or connected. It is no descendant of dlock and has none of its descriptors,
//! so that neither the lock, the guardian nor a reader of dlock's output waits for a hook. Hooks run one after the other, in
//! the order of their events. Each has [`LIMIT`], with everything that it starts.

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
    keeper::close_others,
    message::{Received, decode, encode, receive, transmit},
    sys::{self, Fork, SignalSet},
    tree,
};
use crate::{lease::BootClock, lock::BootTime};

/// How long a hook may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long processes that were killed may take to end.
const DYING: Duration = Duration::from_secs(1);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How much of what a hook says on stderr is kept.
const SAID: usize = 4096;

/// An event, as its hook gets it.
#[derive(Debug, Serialize, Deserialize)]
pub struct HookEvent {
    /// Its name, for what is said of a hook that failed.
    pub name: String,
    /// What stands on the hook's stdin.
    pub json: String,
    /// Added to its environment.
    pub variables: Vec<(String, String)>,
}

/// dlock's end of the hook process.
#[derive(Debug)]
pub struct Hooks(OwnedFd);

/// Forks the hook process, which runs `line` by `/bin/sh` for each event. Of the `DLOCK_*` variables, hooks see `kept` alone.
///
/// To be called before any thread exists.
///
/// # Errors
/// If there can be no more processes or descriptors.
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
            while matches!(waitpid(Some(between), WaitOptions::empty()), Err(rustix::io::Errno::INTR)) {}
            Ok(Hooks(ours))
        }
    }
}

impl Hooks {
    /// Passes an event on, without waiting.
    ///
    /// # Errors
    /// If it is too long, or the hook process is gone.
    pub fn tell(&self, event: &HookEvent) -> io::Result<()> {
        transmit(&self.0, &encode(event), &[])
    }

    /// Waits until all hooks have run, at most so long or until a signal ends the wait. Returns what failed.
    ///
    /// The hook process goes on by itself with what is left.
    pub fn finish(self, at_most: Duration) -> Vec<String> {
        let until = BootClock::read().plus(at_most);
        let mut failures = Vec::new();
        // Nothing follows.
        let _ = shutdown(&self.0, Shutdown::Write);
        let Ok(signals) = sys::signalfd(&SignalSet::of(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT])) else {
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

/// Until one of them can be read, or that time has come.
fn wait_for(sources: &[&OwnedFd], until: BootTime) {
    let left = until.since(BootClock::read());
    let left = Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
    let mut sources: Vec<_> = sources.iter().map(|source| PollFd::new(*source, PollFlags::IN)).collect();
    let _ = poll(&mut sources, Some(&left));
}

/// Runs hooks until dlock is gone or has said all, and all hooks have ended.
fn live(line: &OsStr, kept: &[String], dlock: &OwnedFd) -> io::Result<()> {
    sys::block_all();
    sys::restore_dispositions();
    let _ = set_name(c"lock-hooks");
    // Keys of the terminal and signals to the caller's group are not for hooks.
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
            Received::Nothing => wait_for(&[dlock], BootClock::read().plus(Duration::from_secs(3600))),
            Received::Datagram(datagram, _) => {
                let Some(event) = decode::<HookEvent>(&datagram) else { continue };
                let failure = run(line, kept, &event, &children).unwrap_or_else(|error| Some(format!("it can't be started: {error}")));
                if let Some(failure) = failure {
                    let _ = transmit(dlock, &encode(&format!("{}: {failure}", event.name)), &[]);
                }
            }
        }
    }
}

/// Runs one hook to its end, or to its limit. What failed, if it did.
fn run(line: &OsStr, kept: &[String], event: &HookEvent, children: &OwnedFd) -> io::Result<Option<String>> {
    // Not a pipe: a hook that reads nothing is waited for by no one.
    let mut stdin = std::fs::File::from(memfd_create("dlock-event", MemfdFlags::CLOEXEC)?);
    stdin.write_all(event.json.as_bytes())?;
    io::Seek::rewind(&mut stdin)?;
    let (said, stderr) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&said, true)?;
    let until = BootClock::read().plus(LIMIT);
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(line).env_clear().envs(environment(std::env::vars_os(), kept)).envs(event.variables.iter().cloned());
    let child = command.stdin(stdin).stdout(Stdio::null()).stderr(stderr).spawn()?;
    // It holds the other end of the pipe.
    drop(command);
    let mut hook = Hook { pid: child.id(), ended: None, stderr: Some(said), said: Vec::new(), empty: false };
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
    /// What it says there comes here, until nothing can come any more.
    stderr: Option<OwnedFd>,
    /// The end of what it said on stderr.
    said: Vec<u8>,
    /// Nothing of it is left.
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
        let mut buffer = [0; SAID];
        // At most a pipe's worth: a hook that never stops writing is still stopped at its limit.
        for _ in 0..16 {
            let Some(Ok(length)) = self.stderr.as_ref().map(|stderr| rustix::io::read(stderr, &mut buffer)) else { return };
            if length == 0 {
                return self.stderr = None;
            }
            self.said.extend_from_slice(&buffer[..length]);
            self.said.drain(..self.said.len().saturating_sub(SAID));
        }
    }

    /// How the hook ended, for a message.
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
        let said = String::from_utf8_lossy(&self.said);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        Some(if last.is_empty() { how } else { format!("{how}: {}", last.trim().chars().take(200).collect::<String>()) })
    }
}

/// dlock's own environment, without locks and passwords.
fn environment(all: impl Iterator<Item = (OsString, OsString)>, kept: &[String]) -> impl Iterator<Item = (OsString, OsString)> {
    all.filter(|(name, _)| !name.as_bytes().starts_with(b"DLOCK_") || kept.iter().any(|kept| name == OsStr::new(kept)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_sees_no_token() {
        let all = [("PATH", "/bin"), ("DLOCK_TOKEN", "t"), ("DLOCK_HELD", "h"), ("DLOCK_PASSWORD", "p"), ("DLOCK_BACKEND", "b")];
        let kept = ["DLOCK_BACKEND".into()];
        let left = environment(all.into_iter().map(|(name, value)| (name.into(), value.into())), &kept);
        let left: Vec<_> = left.map(|(name, _)| name.into_string().unwrap()).collect();
        assert_eq!(left, ["PATH", "DLOCK_BACKEND"]);
    }

    #[test]
    fn the_last_line_tells_why() {
        let said = b"a\ncurl: (6) no host\n\n".to_vec();
        let hook = Hook { pid: 1, ended: Some(ExitStatus::from_raw(6 << 8)), stderr: None, said, empty: true };
        assert_eq!(hook.failure(false).as_deref(), Some("exit 6: curl: (6) no host"));
        assert_eq!(Hook { said: Vec::new(), ..hook }.failure(true).as_deref(), Some("stopped after 10s"));
    }
}
