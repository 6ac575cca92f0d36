//! A detached process that outlives its caller and renews a lock for a third process.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::OwnedFd,
};

use rustix::{
    fs::{Mode, OFlags, open},
    pipe::{PipeFlags, pipe_with},
    process::{Signal, WaitOptions, set_parent_process_death_signal, setsid, waitpid},
};

use super::{
    reraise,
    sys::{self, Fork},
};

/// Which side of the fork this is.
pub enum RenewerFork {
    /// The original process, with its exit status from the worker.
    Caller(u8),
    /// The forked process that does the work, and may outlive the caller.
    Renewer(Detach),
}

/// The worker's handle to let the caller exit.
pub struct Detach {
    caller: File,
}

/// Forks a worker, and waits as its caller until the worker has detached or ended: the caller
/// exits, or dies by a signal, as the worker did. Until it detaches, the worker dies with its
/// caller.
///
/// Call it before any thread exists. The worker closes inherited descriptors except the standard
/// ones, so that no process waits for their end.
///
/// # Errors
/// If the system has no processes or descriptors left.
pub fn fork_renewer() -> io::Result<RenewerFork> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    // If SIGCHLD were ignored, the kernel would reap the worker and the caller would lose its
    // status.
    sys::set_ignored(libc::SIGCHLD, false);
    match sys::fork()? {
        Fork::Child => {
            set_parent_process_death_signal(Some(Signal::TERM))?;
            drop(read);
            close_others(&[&write])?;
            Ok(RenewerFork::Renewer(Detach {
                caller: write.into(),
            }))
        }
        Fork::Parent(renewer) => {
            drop(write);
            // The terminal sends these signals to the worker as well, and the worker handles them.
            for signal in [Signal::INT, Signal::QUIT] {
                sys::set_ignored(signal.as_raw(), true);
            }
            let mut status = [0];
            if File::from(read).read_exact(&mut status).is_ok() {
                return Ok(RenewerFork::Caller(status[0]));
            }
            loop {
                match waitpid(Some(renewer), WaitOptions::empty()) {
                    Err(rustix::io::Errno::INTR) | Ok(None) => {}
                    Err(error) => return Err(error.into()),
                    Ok(Some((_, ended))) => {
                        if let Some(signal) = ended.terminating_signal() {
                            sys::set_ignored(signal, false);
                            reraise(signal);
                        }
                        return Ok(RenewerFork::Caller(
                            ended
                                .exit_status()
                                .and_then(|status| u8::try_from(status).ok())
                                .unwrap_or(70),
                        ));
                    }
                }
            }
        }
    }
}

/// Closes all descriptors above the standard ones except `kept`.
pub(super) fn close_others(kept: &[&OwnedFd]) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    let listed = std::fs::read_dir("/proc/self/fd")?;
    let open: Vec<i32> = listed
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for number in open {
        if number > 2 && kept.iter().all(|kept| kept.as_raw_fd() != number) {
            sys::close(number);
        }
    }
    Ok(())
}

impl Detach {
    /// Lets the caller exit with `status`, and moves the worker to a new session, with /dev/null
    /// for the standard streams.
    ///
    /// # Errors
    /// If the detachment fails. The caller then still waits.
    pub fn detach(mut self, status: u8) -> io::Result<()> {
        let null = open("/dev/null", OFlags::RDWR, Mode::empty())?;
        // A daemon's working directory would keep a file system from being unmounted.
        rustix::process::chdir("/")?;
        set_parent_process_death_signal(None)?;
        // Fails only for a group leader, and a forked process leads a group only if it already has
        // its own session.
        let _ = setsid();
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        // A caller that is gone needs no answer.
        let _ = self.caller.write_all(&[status]);
        Ok(())
    }
}
