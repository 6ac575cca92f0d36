//! The command that prints a password.

use std::{
    io::{self, Read as _},
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal},
    time::{ClockId, clock_gettime},
};

use crate::lock::{Error, Kind, Result};

/// The longest password.
const MOST: usize = 4096;

/// Runs the command without a shell, and returns the first line that it prints. Blocks, for at most
/// `limit`: then the command is killed.
pub(super) fn run(words: &[String], limit: Duration) -> Result<String> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(failed(Kind::Config, "", "it is empty"));
    };
    let fail = |kind, why: &str| failed(kind, program, why);
    // A group of its own, so that all of it can be killed.
    let started = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn();
    let mut child = started.map_err(|error| fail(Kind::Config, &reason(&error)))?;
    let handle = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .and_then(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)));
    let printed = child
        .stdout
        .take()
        .map_or(Ok(Vec::new()), |output| read(output, limit));
    let Ok(printed) = printed else {
        kill(&mut child, handle);
        return Err(fail(
            Kind::Timeout,
            &format!("it took longer than {}", humantime::format_duration(limit)),
        ));
    };
    // The supervisor of a run may have collected the status already.
    if child.wait().is_ok_and(|status| !status.success()) {
        return Err(fail(Kind::Unavailable, "it failed"));
    }
    let text = String::from_utf8(printed).map_err(|_| fail(Kind::Config, "it printed no text"))?;
    match text.lines().next().unwrap_or_default() {
        "" => Err(fail(Kind::Config, "it printed no password")),
        line if line.len() > MOST || line.chars().any(char::is_control) => {
            Err(fail(Kind::Config, "what it printed is no password"))
        }
        line => Ok(line.to_owned()),
    }
}

/// Reads to the end, and keeps the beginning. Fails once the time is over.
fn read(mut output: ChildStdout, limit: Duration) -> io::Result<Vec<u8>> {
    let (end, mut kept, mut part) = (now() + limit, Vec::new(), [0; 1024]);
    loop {
        let left = end.saturating_sub(now());
        let left = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match output.read(&mut part)? {
            0 => return Ok(kept),
            length => {
                kept.extend_from_slice(&part[..length.min((MOST + 2).saturating_sub(kept.len()))]);
            }
        }
    }
}

/// Kills the command's group, if its process still exists, and collects the process.
fn kill(child: &mut Child, handle: Option<(Pid, OwnedFd)>) {
    if let Some((pid, handle)) = handle
        && pidfd_send_signal(&handle, Signal::KILL).is_ok()
    {
        let _ = kill_process_group(pid, Signal::KILL);
    } else {
        let _ = child.kill();
    }
    let _ = child.wait();
}

fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such program".into(),
        io::ErrorKind::PermissionDenied => "it may not be executed".into(),
        _ => "it can't be started".into(),
    }
}

/// Returns the error. Nothing that the command printed is part of it, nor its arguments.
fn failed(kind: Kind, program: &str, why: &str) -> Error {
    let program = crate::lock::printable(program);
    Error::new(
        kind,
        format!("no password: password_command {program}: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(script: &str) -> Result<String> {
        run(
            &["sh".into(), "-c".into(), script.into()],
            Duration::from_millis(500),
        )
    }

    #[test]
    fn the_first_line_is_the_password() {
        assert_eq!(of("echo 's3 cret'; echo more").unwrap(), "s3 cret");
        assert_eq!(of("seq 100000").unwrap(), "1");
    }

    #[test]
    fn what_is_no_password_is_an_error_that_shows_nothing_of_it() {
        for (script, kind) in [
            (":", Kind::Config),
            ("printf 'a\\001b'", Kind::Config),
            ("printf '\\377'", Kind::Config),
            ("echo hunter2; exit 3", Kind::Unavailable),
            ("echo hunter2; sleep 60", Kind::Timeout),
            ("yes hunter2", Kind::Timeout),
        ] {
            let error = of(script).unwrap_err();
            assert_eq!(error.kind, kind, "{script}: {error:?}");
            assert!(!format!("{error:?}").contains("hunter"), "{error:?}");
        }
        assert_eq!(
            run(&["/nonexistent/x".into()], Duration::from_secs(1))
                .unwrap_err()
                .kind,
            Kind::Config
        );
        assert_eq!(
            run(&[], Duration::from_secs(1)).unwrap_err().kind,
            Kind::Config
        );
    }

    #[test]
    fn a_command_that_is_killed_leaves_nothing() {
        let mark = format!("{}.25", 7000 + std::process::id() % 1000);
        of(&format!("sleep {mark} & sleep {mark}")).unwrap_err();
        let lines = || {
            std::fs::read_dir("/proc")
                .unwrap()
                .filter_map(|entry| std::fs::read(entry.ok()?.path().join("cmdline")).ok())
        };
        let is_left = || lines().any(|line| String::from_utf8_lossy(&line).contains(&mark));
        // A process that was killed takes a moment to end.
        let began = now();
        while is_left() {
            assert!(
                now().saturating_sub(began) < Duration::from_secs(10),
                "a process of the command is left"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
