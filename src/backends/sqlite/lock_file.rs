//! The lock file: the kernel's word on the holders of a lock.
//!
//! One file next to the database, never unlinked, with four bytes for each key and for each hold.
//! They are locked with OFD locks (fcntl(2)). Such a lock belongs to the open file description:
//! each process that inherits the descriptor keeps the lock. The end of the last such process frees
//! it, and so does an explicit unlock by any of them.

use std::{
    fs::{File, Metadata, OpenOptions},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
};
use rustix::{
    fs::{Timespec, Timestamps, UTIME_NOW},
    io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd},
};

use crate::lock::fingerprint;

/// The lowest descriptor number of an inherited lock file. Scripts use 3 to 9, and bash uses 10 and
/// up.
const INHERITED_FD: i32 = 100;

/// How long a holder may take to notice that the store was removed, and to kill its command.
const REMOVAL: Duration = Duration::from_millis(250);

/// Some bytes of the lock file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    start: libc::off_t,
    len: libc::off_t,
}

impl Range {
    /// The whole file, to its end wherever that is.
    pub(super) const EVERYTHING: Self = Self { start: 0, len: 0 };
}

/// The bytes of one key, or of one hold.
///
/// An exclusive holder has the key's `first` locked for writing. A reader, or a holder of a permit,
/// has it locked for reading, which keeps out exclusive requests and nothing else. A nested hold of
/// another process has `nested` locked for reading. An exclusive request must have both locked for
/// writing at once, so that either keeps it out; then it unlocks `nested`.
///
/// The two are no neighbours: the kernel would keep them as one lock, and would wake every waiter
/// for `first` when `nested` is unlocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes(libc::off_t);

impl Bytes {
    /// The bytes of this text: a 61-bit hash that will never change. Two keys that share one
    /// exclude each other, which is safe.
    pub(super) fn of(parts: &[&str]) -> Self {
        Self(libc::off_t::try_from(fingerprint(parts) >> 3).unwrap_or_default() << 2)
    }

    /// The bytes of one hold of this key, by its text. Its process has `first` locked for writing;
    /// a waiter for it has `alive` and `position`.
    pub(super) fn of_hold(self, hold: &str) -> Self {
        Self::of(&["hold", &self.0.to_string(), hold])
    }

    /// The byte of the hold that took the lock; or that of one hold.
    pub(super) fn first(self) -> Range {
        Range {
            start: self.0,
            len: 1,
        }
    }

    /// The byte of nested holds.
    pub(super) fn nested(self) -> Range {
        Range {
            start: self.0 + 2,
            len: 1,
        }
    }

    /// The byte whose holder watches a detached hold for all waiters.
    pub(super) fn watcher(self) -> Range {
        Range {
            start: self.0 + 3,
            len: 1,
        }
    }

    /// The byte that a waiter has locked while it lives.
    pub(super) fn alive(self) -> Range {
        Range {
            start: self.0 + 3,
            len: 1,
        }
    }

    /// The byte that a waiter has locked, as a rule, while it keeps its position.
    pub(super) fn position(self) -> Range {
        Range {
            start: self.0 + 1,
            len: 1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockKind {
    Read,
    Write,
}

/// One open file description of the lock file.
#[derive(Debug)]
pub(super) struct LockFile {
    fd: OwnedFd,
    device: u64,
    inode: u64,
    path: PathBuf,
}

impl LockFile {
    /// The lock file of a database.
    pub(super) fn path_for(database: &Path) -> PathBuf {
        let mut name = database.as_os_str().to_owned();
        name.push(".lock");
        name.into()
    }

    /// Opens or creates the file. With `inherited`, the programs that this process executes have it
    /// too.
    ///
    /// If the file or the database is missing, they may have been removed under a holder, which is
    /// about to notice. No process creates either before that took effect. So a process that finds
    /// both need not wait.
    pub(super) fn open(database: &Path, inherited: bool) -> io::Result<Self> {
        let path = Self::path_for(database);
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW);
        let found = options.open(&path);
        if found.as_ref().map_or_else(
            |error| error.kind() == io::ErrorKind::NotFound,
            |_| !database.exists(),
        ) {
            thread::sleep(REMOVAL);
        }
        let file = match found {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match options.clone().create_new(true).open(&path) {
                    Ok(file) => {
                        share_as(&file, database);
                        file
                    }
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        options.open(&path)?
                    }
                    Err(error) => return Err(error),
                }
            }
            opened => opened?,
        };
        let metadata = file.metadata()?;
        check_lock_file(&metadata, database)?;
        let fd = if inherited {
            let fd = inherited_copy(&file)?;
            fcntl_setfd(&fd, FdFlags::empty())?;
            fd
        } else {
            file.into()
        };
        Ok(Self {
            fd,
            device: metadata.dev(),
            inode: metadata.ino(),
            path,
        })
    }

    /// Opens the file for looking; `None` if there is none, so that nothing is locked.
    pub(super) fn open_to_look(database: &Path) -> io::Result<Option<Self>> {
        let path = Self::path_for(database);
        // A FIFO of that name must not block.
        match OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)
        {
            Ok(file) => {
                let metadata = file.metadata()?;
                check_lock_file(&metadata, database)?;
                Ok(Some(Self {
                    device: metadata.dev(),
                    inode: metadata.ino(),
                    fd: file.into(),
                    path,
                }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Identifies this file among others at the same path.
    pub(super) fn id(&self) -> i64 {
        id(self.inode)
    }

    /// Whether another process that opens the path gets this very file.
    pub(super) fn is_current(&self) -> bool {
        super::location::file_id(&self.path) == Some((self.device, self.inode))
    }

    /// The file's path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Locks `range` if no other process has a part of it.
    pub(super) fn try_lock(&self, range: Range, kind: LockKind) -> io::Result<bool> {
        match fcntl(
            &self.fd,
            FcntlArg::F_OFD_SETLK(&request(range, lock_type(kind))),
        ) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Locks `range`, and blocks the thread until then.
    pub(super) fn lock(&self, range: Range, kind: LockKind) -> io::Result<()> {
        loop {
            match fcntl(
                &self.fd,
                FcntlArg::F_OFD_SETLKW(&request(range, lock_type(kind))),
            ) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Unlocks `range`, also for every process that has inherited the descriptor.
    pub(super) fn unlock(&self, range: Range) {
        // Unlocking fails only for a bad descriptor, or without memory for splitting a range. Then
        // the lock ends with the process.
        let _ = fcntl(
            &self.fd,
            FcntlArg::F_OFD_SETLK(&request(range, libc::F_UNLCK)),
        );
    }

    /// Whether another process has a part of `range` locked. Locks through this description are not
    /// seen.
    pub(super) fn others_have(&self, range: Range) -> io::Result<bool> {
        self.others_keep_out(range, LockKind::Write)
    }

    /// Whether another process has a part of `range` locked for writing. Waiters for its end are
    /// not seen: they lock for reading, and only for a moment.
    pub(super) fn others_write(&self, range: Range) -> io::Result<bool> {
        self.others_keep_out(range, LockKind::Read)
    }

    /// Whether another process has a key alone, or has a nested hold; not whether it is shared.
    pub(super) fn others_have_it_alone(&self, bytes: Bytes) -> io::Result<bool> {
        Ok(self.others_write(bytes.first())? || self.others_have(bytes.nested())?)
    }

    /// Whether another process's lock excludes one of this kind.
    pub(super) fn others_keep_out(&self, range: Range, kind: LockKind) -> io::Result<bool> {
        let mut found = request(range, lock_type(kind));
        fcntl(&self.fd, FcntlArg::F_OFD_GETLK(&mut found))?;
        Ok(i32::from(found.l_type) != libc::F_UNLCK)
    }

    /// Wakes every process that watches the file ([`super::lock_file_watch`]).
    pub(super) fn notify_watchers(&self) {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        // A wake-up is a hint: a waiter that misses one wakes at the end of the lease.
        let _ = rustix::fs::futimens(
            &self.fd,
            &Timestamps {
                last_access: now,
                last_modification: now,
            },
        );
    }
}

/// Returns a descriptor with a number that scripts don't use. Where the limit of descriptors allows
/// none, the highest free one.
fn inherited_copy(file: &File) -> io::Result<OwnedFd> {
    match fcntl_dupfd_cloexec(file, INHERITED_FD) {
        Err(rustix::io::Errno::INVAL) => {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile)
                .current
                .unwrap_or_default();
            let highest = i32::try_from(limit).unwrap_or(INHERITED_FD);
            let free = (0..highest)
                .rev()
                .find_map(|number| fcntl_dupfd_cloexec(file, number).ok());
            free.ok_or_else(|| rustix::io::Errno::MFILE.into())
        }
        copy => Ok(copy?),
    }
}

/// Refuses a lock file that is not a regular file. Where all users may create files, refuses one
/// that another user created.
fn check_lock_file(metadata: &Metadata, database: &Path) -> io::Result<()> {
    if !metadata.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a file",
        ));
    }
    let us = rustix::process::geteuid().as_raw();
    if [us, 0].contains(&metadata.uid()) {
        return Ok(());
    }
    let open_to_all = std::fs::metadata(super::location::directory(database))
        .is_ok_and(|place| place.mode() & 0o1002 == 0o1002);
    let of_the_database =
        std::fs::metadata(database).is_ok_and(|database| database.uid() == metadata.uid());
    if open_to_all && !of_the_database {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "another user made it",
        ));
    }
    Ok(())
}

/// SQLite's integers have a sign.
fn id(inode: u64) -> i64 {
    inode.cast_signed()
}

fn request(range: Range, lock_type: i32) -> libc::flock {
    libc::flock {
        l_type: libc::c_short::try_from(lock_type).unwrap_or_default(),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: range.start,
        l_len: range.len,
        l_pid: 0,
    }
}

fn lock_type(kind: LockKind) -> i32 {
    match kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
    }
}

/// Gives a new lock file the owner and mode of the database, as SQLite does with its own files.
/// Otherwise root's first use of a user's database would lock the user out.
fn share_as(file: &File, database: &Path) {
    if let Ok(model) = std::fs::metadata(database) {
        // Neither is needed for locking. A failure shows later as a denied access.
        let _ = file.set_permissions(PermissionsExt::from_mode(model.mode() & 0o666));
        if rustix::process::geteuid().is_root() {
            let _ = fchown(file, Some(model.uid()), Some(model.gid()));
        }
    }
}
