//! The command: the check of its privileges, its environment, and the fork that executes it.

use std::{
    ffi::{CString, OsStr, OsString},
    io,
    os::{
        fd::OwnedFd,
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::MetadataExt,
        },
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Access, StatVfsMountFlags, access, getxattr, statvfs},
    pipe::{PipeFlags, pipe_with},
    process::{
        Pid, Signal, getegid, geteuid, getgid, getpid, getppid, getuid,
        set_parent_process_death_signal, setpgid,
    },
    thread::{CapabilitySet, capabilities},
};

use super::{
    CannotStart, Plan,
    cgroup::Cgroup,
    sys::{self, SignalSet},
};
use crate::lock::{Error, Kind};

/// Rejects, before any lock is taken, a command whose privileges would prevent dlock from killing
/// it.
///
/// The function doesn't check whether the command exists and is executable: the exec reports that.
///
/// # Errors
/// [`Kind::Usage`] for a set-uid or set-gid command or one with file capabilities, unless dlock
/// [may kill](may_kill_all) it.
pub fn check_command(plan: &Plan) -> Result<(), Error> {
    let Some(path) = plan.command.first().and_then(|name| find(name)) else {
        return Ok(());
    };
    let Ok(file) = std::fs::metadata(&path) else {
        return Ok(());
    };
    let is_plain =
        || statvfs(&path).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::NOSUID));
    if may_kill_all() || rustix::thread::no_new_privs().unwrap_or(false) || is_plain() {
        return Ok(());
    }
    let raises = |bit: u32, owner: u32, real: u32, effective: u32| {
        file.mode() & bit != 0 && (owner != real || owner != effective)
    };
    let what = if raises(0o4000, file.uid(), getuid().as_raw(), geteuid().as_raw()) {
        "is set-uid"
    } else if raises(0o2000, file.gid(), getgid().as_raw(), getegid().as_raw()) {
        "is set-gid"
    } else if getxattr(&path, "security.capability", &mut [0; 64][..]).is_ok() {
        "has file capabilities"
    } else {
        return Ok(());
    };
    let name = plan.command[0].to_string_lossy().escape_debug().to_string();
    Err(Error::new(
        Kind::Usage,
        format!("{name} {what}: it could not be killed when the lock is lost"),
    )
    .hint(format!("sudo dlock run … -- {name} …")))
}

/// Whether this process may signal every other one, as root usually may. In a container without
/// `CAP_KILL` root may not.
pub fn may_kill_all() -> bool {
    capabilities(None).map_or_else(
        |_| geteuid().is_root(),
        |own| own.effective.contains(CapabilitySet::KILL),
    )
}

/// Returns the file that `execvp` would execute.
fn find(name: &OsStr) -> Option<PathBuf> {
    let runs = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|path| runs(path))
}

/// Returns the command's environment: dlock's own, without `DLOCK_*` options except `kept`, plus
/// `given`.
pub fn environment(kept: &[String], given: &[(String, String)]) -> Vec<CString> {
    merge(std::env::vars_os(), kept, given)
}

fn merge(
    inherited: impl Iterator<Item = (OsString, OsString)>,
    keep: &[String],
    given: &[(String, String)],
) -> Vec<CString> {
    let kept = |name: &OsStr| {
        let name = name.as_bytes();
        (!name.starts_with(b"DLOCK_") || keep.iter().any(|kept| kept.as_bytes() == name))
            && given.iter().all(|(new, _)| new.as_bytes() != name)
    };
    let join = |(name, value): (OsString, OsString)| {
        let mut entry = name.into_vec();
        entry.push(b'=');
        entry.extend(value.into_vec());
        CString::new(entry).ok()
    };
    let given = given
        .iter()
        .map(|(name, value)| (name.into(), value.into()));
    inherited
        .filter(|(name, _)| kept(name))
        .chain(given)
        .filter_map(join)
        .collect()
}

/// The guardian's parameters for executing the command.
pub struct Launch<'a> {
    pub argv: &'a [CString],
    pub environment: &'a [CString],
    /// The descriptor for stdout and stderr; `None` to inherit them.
    pub output: Option<&'a OwnedFd>,
    /// The process group to join; `None` for a new one.
    pub join: Option<Pid>,
    pub cgroup: Option<&'a Cgroup>,
    /// Whether the cgroup is required.
    pub must_enter: bool,
    /// The signal mask that dlock was started with.
    pub mask: &'a SignalSet,
}

/// A forked command. Its pipe reports whether the exec succeeded.
#[derive(Debug)]
pub struct Launched {
    pub pid: Pid,
    /// The pipe that a successful exec closes, and that otherwise carries a [`CannotStart`].
    pub pipe: OwnedFd,
}

impl Launch<'_> {
    /// Forks and executes the command.
    pub fn run(&self) -> io::Result<Launched> {
        let (pipe, report) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let guardian = getpid();
        let pid = sys::fork_to_exec(self.argv.len(), &mut || {
            let (stage, error) = self.exec_command(guardian);
            let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
            let mut message = [stage; 5];
            message[1..].copy_from_slice(&errno.to_le_bytes());
            let _ = rustix::io::write(&report, &message);
            sys::exit_now(127)
        })?;
        Ok(Launched { pid, pipe })
    }

    /// Executes the command in the new process. Returns only on failure: before the exec (0) or in
    /// it (1).
    fn exec_command(&self, guardian: Pid) -> (u8, io::Error) {
        match self.prepare(guardian) {
            Ok(()) => (1, sys::exec(self.argv, self.environment)),
            Err(error) => (0, error),
        }
    }

    fn prepare(&self, guardian: Pid) -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(guardian) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        setpgid(None, self.join)?;
        if let Some(cgroup) = self.cgroup {
            cgroup
                .enter()
                .or_else(|error| if self.must_enter { Err(error) } else { Ok(()) })?;
        }
        sys::keep_closed_stdio();
        if let Some(output) = self.output {
            rustix::stdio::dup2_stdout(output)?;
            rustix::stdio::dup2_stderr(output)?;
        }
        if self.join.is_some() {
            // Ctrl-Z before the exec would stop this process with the guardian waiting for the
            // exec.
            sys::ignore_until_exec(libc::SIGTSTP);
        }
        sys::restore_dispositions();
        sys::set_mask(self.mask);
        Ok(())
    }
}

impl Launched {
    /// Returns whether the command was executed; `None` while unknown.
    pub fn verdict(&self) -> Option<Result<(), CannotStart>> {
        let mut message = [0; 5];
        match rustix::io::read(&self.pipe, &mut message[..]) {
            Ok(0) => Some(Ok(())),
            Ok(5) => {
                let errno = i32::from_le_bytes([message[1], message[2], message[3], message[4]]);
                Some(Err(match (message[0], errno) {
                    (0, _) => CannotStart::System(errno),
                    (_, libc::ENOENT) => CannotStart::NotFound,
                    _ => CannotStart::NotExecutable(errno),
                }))
            }
            Ok(_) => Some(Err(CannotStart::System(libc::EIO))),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::{Contain, Leftover, OnLost};

    #[test]
    fn options_are_removed_and_given_variables_replace_old_ones() {
        let inherited = [
            ("PATH", "/bin"),
            ("DLOCK_WAIT", "5"),
            ("DLOCK_PASSWORD", "s"),
            ("DLOCK_BACKEND", "b"),
            ("DLOCK_CONFIG", "c"),
        ]
        .into_iter()
        .chain([
            ("DLOCK_KEY", "outer"),
            ("DLOCK_HELD", "outer"),
            ("XDLOCK_A", "1"),
            ("EMPTY", ""),
        ])
        .map(|(name, value)| (name.into(), value.into()));
        let merged = merge(
            inherited,
            &["DLOCK_BACKEND".into(), "DLOCK_CONFIG".into()],
            &[("DLOCK_KEY".into(), "inner".into())],
        );
        let merged: Vec<_> = merged.iter().map(|entry| entry.to_str().unwrap()).collect();
        assert_eq!(
            merged,
            [
                "PATH=/bin",
                "DLOCK_BACKEND=b",
                "DLOCK_CONFIG=c",
                "XDLOCK_A=1",
                "EMPTY=",
                "DLOCK_KEY=inner"
            ]
        );
    }

    #[test]
    fn a_command_is_found_as_execvp_finds_it() {
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        assert_eq!(
            find(OsStr::new("./no/such")).unwrap(),
            Path::new("./no/such")
        );
        assert_eq!(find(OsStr::new("no-such-command-anywhere")), None);
    }

    #[test]
    fn a_cgroup_that_cannot_be_entered_is_an_error_only_if_requested() {
        let argv = [c"true".into()];
        // Every write to /dev/full fails.
        let full = Cgroup::entered_by(
            std::fs::File::options()
                .write(true)
                .open("/dev/full")
                .unwrap()
                .into(),
        );
        for (must_enter, expected) in [
            (false, Ok(())),
            (true, Err(CannotStart::System(libc::ENOSPC))),
        ] {
            let mask = SignalSet::of(&[]);
            let launch = Launch {
                argv: &argv,
                environment: &[],
                output: None,
                join: None,
                cgroup: Some(&full),
                must_enter,
                mask: &mask,
            };
            let launched = launch.run().unwrap();
            // A process that another test forks meanwhile has the pipe open for a moment.
            let verdict = std::iter::repeat_with(|| {
                std::thread::sleep(std::time::Duration::from_millis(5));
                launched.verdict()
            });
            assert_eq!(verdict.take(2_000).flatten().next(), Some(expected));
            rustix::process::waitpid(Some(launched.pid), rustix::process::WaitOptions::empty())
                .unwrap();
        }
    }

    #[test]
    fn an_ordinary_command_is_accepted() {
        let plan = Plan {
            command: vec!["sh".into()],
            on_lost: OnLost::Kill,
            leftover: Leftover::Wait,
            contain: Contain::Auto,
            max_runtime: None,
            grace: std::time::Duration::ZERO,
            kept_variables: Vec::new(),
            capture: false,
        };
        check_command(&plan).unwrap();
    }
}
