//! Kernel locks that show which sections are alive: each section locks one byte of a file, and
//! every process of its tree inherits it.
//!
//! An OFD lock ends with the last process that inherited the descriptor, before the parent learns
//! of the exit. A query for locks of others (`F_OFD_GETLK`) takes no lock.

use std::{
    fs::{File, OpenOptions},
    io,
    path::Path,
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};
use rustix::io::{FdFlags, fcntl_setfd};

/// The file of one key: byte N is locked while any process of run N's section lives.
pub struct LivenessFile(File);

/// Higher than the number of any run.
const END: libc::off_t = 1 << 20;

impl LivenessFile {
    pub fn open(folder: &Path, key: usize) -> io::Result<Self> {
        let path = folder.join(format!("liveness-{key}"));
        Ok(Self(
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?,
        ))
    }

    /// Marks `run` as alive until this process and all of its later descendants are gone.
    pub fn enter(&self, run: u64) -> io::Result<()> {
        fcntl(&self.0, FcntlArg::F_OFD_SETLK(&range(offset(run), 1)))?;
        fcntl_setfd(&self.0, FdFlags::empty())?;
        Ok(())
    }

    /// Returns the runs with a living process, except those marked through this descriptor.
    pub fn living(&self) -> io::Result<Vec<u64>> {
        let mut found = Vec::new();
        let mut ranges = vec![(0, END)];
        while let Some((from, to)) = ranges.pop() {
            let mut lock = range(from, to - from);
            fcntl(&self.0, FcntlArg::F_OFD_GETLK(&mut lock))?;
            if i32::from(lock.l_type) == libc::F_UNLCK {
                continue;
            }
            found.extend(
                (lock.l_start.max(from)..(lock.l_start + lock.l_len).min(to))
                    .map(libc::off_t::cast_unsigned),
            );
            ranges.extend(
                [(from, lock.l_start), (lock.l_start + lock.l_len, to)]
                    .into_iter()
                    .filter(|(from, to)| from < to),
            );
        }
        found.sort_unstable();
        Ok(found)
    }
}

fn offset(run: u64) -> libc::off_t {
    libc::off_t::try_from(run).unwrap_or(END - 1)
}

fn range(start: libc::off_t, len: libc::off_t) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(libc::F_WRLCK).unwrap_or_default(),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Returns the time of `CLOCK_BOOTTIME` in nanoseconds.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
