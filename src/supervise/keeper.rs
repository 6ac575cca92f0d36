//! A process that outlives the one that was called, and keeps a lock for a third process.

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
pub enum Keeper {
    /// The process that was called: what it is to exit with, once that is known.
    Caller(u8),
    /// The one that does the work, and may go on.
    Worker(Detach),
}

/// The worker's way to let the caller go.
pub struct Detach {
    caller: File,
}

/// Forks a worker, and waits as its caller until the worker has detached or ended: the caller exits, or dies by a signal, as the
/// worker did. Until it detaches, the worker dies with its caller.
///
/// Call it before any thread exists. The worker closes inherited descriptors except the standard ones, so that no process waits
/// for their end.
///
/// # Errors
/// If there can be no more processes or descriptors.
pub fn fork_keeper() -> io::Result<Keeper> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    // A caller that ignores SIGCHLD has the kernel reap the worker, and loses its status.
    sys::set_ignored(libc::SIGCHLD, false);
    match sys::fork()? {
        Fork::Child => {
            set_parent_process_death_signal(Some(Signal::TERM))?;
            drop(read);
            close_others(&[&write])?;
            Ok(Keeper::Worker(Detach { caller: write.into() }))
        }
        Fork::Parent(worker) => {
            drop(write);
            // The terminal sends them to the worker as well, which decides what becomes of it.
            for signal in [Signal::INT, Signal::QUIT] {
                sys::set_ignored(signal.as_raw(), true);
            }
            let mut status = [0];
            if File::from(read).read_exact(&mut status).is_ok() {
                return Ok(Keeper::Caller(status[0]));
            }
            loop {
                match waitpid(Some(worker), WaitOptions::empty()) {
                    Err(rustix::io::Errno::INTR) | Ok(None) => {}
                    Err(error) => return Err(error.into()),
                    Ok(Some((_, ended))) => {
                        if let Some(signal) = ended.terminating_signal() {
                            sys::set_ignored(signal, false);
                            reraise(signal);
                        }
                        return Ok(Keeper::Caller(ended.exit_status().and_then(|status| u8::try_from(status).ok()).unwrap_or(70)));
                    }
                }
            }
        }
    }
}

/// Closes all descriptors above the standard ones but those that are `kept`.
pub(super) fn close_others(kept: &[&OwnedFd]) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    let listed = std::fs::read_dir("/proc/self/fd")?;
    let open: Vec<i32> = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for number in open {
        if number > 2 && kept.iter().all(|kept| kept.as_raw_fd() != number) {
            sys::close(number);
        }
    }
    Ok(())
}

impl Detach {
    /// Lets the caller exit with `status`, and goes on in a session of its own, with /dev/null for the standard streams.
    ///
    /// # Errors
    /// If it can't; then the caller has heard nothing yet.
    pub fn detach(mut self, status: u8) -> io::Result<()> {
        let null = open("/dev/null", OFlags::RDWR, Mode::empty())?;
        // A folder that a daemon is in can't be unmounted.
        rustix::process::chdir("/")?;
        set_parent_process_death_signal(None)?;
        // Not the leader of a group, having been forked; if it is, it has a session of its own already.
        let _ = setsid();
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        // A caller that is gone needs no answer.
        let _ = self.caller.write_all(&[status]);
        Ok(())
    }
}
