//! Noticing that the store was removed under a holder: by a cleaner of temporary files, a deployment, `rm -rf`.
//!
//! The next process finds another database and another lock file, in which nothing is held. inotify watches both files, the
//! directories above them up to the root, and symbolic links among these.

use std::{
    collections::BTreeSet,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::timeout,
};

use super::{client::SqliteClient, lock_file::LockFile, slot::OwnHolds};
use crate::lock::{Key, Token};

/// How long a hold must last to be watched: closing a watch takes the kernel some milliseconds, which would delay a short command.
const SHORT: Duration = Duration::from_millis(50);
/// How often to look where no more watches are available.
const DEAF: Duration = Duration::from_secs(1);

/// A watch on all that a database's path depends on.
pub(super) struct PathWatch(AsyncFd<OwnedFd>);

impl PathWatch {
    fn new(database: &Path) -> io::Result<Self> {
        let fd = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let moved = WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
        for file in [database, &LockFile::path_for(database)] {
            // A file that is open elsewhere isn't deleted yet when its last name is.
            let _ = add_watch(&fd, file, moved | WatchFlags::ATTRIB | WatchFlags::DONT_FOLLOW);
        }
        for directory in directories(database) {
            // What can't be read can't be watched.
            let _ = add_watch(&fd, &directory, moved | WatchFlags::DONT_FOLLOW);
        }
        // Deprecated because a type's descriptor might change or be closed under tokio's feet; an OwnedFd's can't.
        #[allow(deprecated)]
        let watch = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self(watch))
    }

    /// Waits until something happened since the last call. Cancel safe.
    async fn stirred(&self) -> io::Result<()> {
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
    let real = file.parent().and_then(|directory| directory.canonicalize().ok());
    let ancestors = file.ancestors().skip(1).chain(real.iter().flat_map(|real| real.ancestors()));
    ancestors.map(Path::to_path_buf).collect()
}

impl SqliteClient {
    /// Returns once nothing keeps other processes out any more, or counts this hold.
    pub(super) async fn await_removal(&mut self, key: &Key, token: &Token) {
        let path = self.options.path.clone();
        let pause = async |length| {
            let _ = timeout(length, std::future::pending::<()>()).await;
        };
        if self.watch.is_none() {
            pause(SHORT).await;
            self.watch = PathWatch::new(&path).ok();
        }
        // From here on nothing is missed.
        while !self.is_removed(key, token) {
            let heard = match &self.watch {
                Some(watch) => watch.stirred().await.is_ok(),
                None => false,
            };
            if !heard {
                self.watch = None;
                pause(DEAF).await;
            }
        }
    }

    /// Whether nothing keeps other processes out any more, or counts this hold.
    pub(super) fn is_removed(&self, key: &Key, token: &Token) -> bool {
        let database = self.database.as_ref().is_some_and(|database| !database.is_current(&self.options.path));
        let guarded = self.slots.get(key).filter(|slot| slot.ours(token).is_some_and(OwnHolds::is_guarded));
        database && guarded.is_none_or(|slot| !slot.file.is_current())
    }
}
