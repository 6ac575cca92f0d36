//! Watches the path of a store with inotify: the database, the lock file, the directories above
//! them up to the root, and symbolic links among these.

use std::{
    collections::BTreeSet,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tokio::io::{Interest, unix::AsyncFd};

use super::lock_file::LockFile;

/// A watch on all that a database's path depends on.
pub(super) struct PathWatch(AsyncFd<OwnedFd>);

impl PathWatch {
    pub(super) fn new(database: &Path) -> io::Result<Self> {
        let fd = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let moved = WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
        for file in [database, &LockFile::path_for(database)] {
            // A file that is open elsewhere isn't deleted yet when its last name is.
            let _ = add_watch(
                &fd,
                file,
                moved | WatchFlags::ATTRIB | WatchFlags::DONT_FOLLOW,
            );
        }
        for directory in directories(database) {
            // What can't be read can't be watched.
            let _ = add_watch(&fd, &directory, moved | WatchFlags::DONT_FOLLOW);
        }
        // Deprecated because a type's descriptor might change or be closed under tokio's feet; an
        // OwnedFd's can't.
        #[allow(deprecated)]
        let watch = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self(watch))
    }

    /// Waits until something happened since the last call. Cancel safe.
    pub(super) async fn stirred(&self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(read) = ready.try_io(|fd| Ok(rustix::io::read(fd, &mut [0; 4096])?)) {
                return read.map(|_| ());
            }
        }
    }
}

/// The directories that lead to a file, also where symbolic links lead.
fn directories(file: &Path) -> BTreeSet<PathBuf> {
    let real = file
        .parent()
        .and_then(|directory| directory.canonicalize().ok());
    let ancestors = file
        .ancestors()
        .skip(1)
        .chain(real.iter().flat_map(|real| real.ancestors()));
    ancestors.map(Path::to_path_buf).collect()
}
