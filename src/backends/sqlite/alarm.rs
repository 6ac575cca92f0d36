//! Being told that a detached hold was given back: inotify on the lock file.
//!
//! No process stands behind a detached hold, so that there is no lock to block on. Whoever releases one sets the
//! lock file's times; the head of those who wait for it watches the file.

use std::{io, mem::MaybeUninit, os::fd::OwnedFd, path::Path};

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tokio::io::{Interest, unix::AsyncFd};

pub(super) struct Alarm {
    watch: AsyncFd<OwnedFd>,
}

impl Alarm {
    /// Watches the file from now on: what rings after this is not missed.
    pub(super) fn new(lock_file: &Path) -> io::Result<Self> {
        let fd = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        add_watch(&fd, lock_file, WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF)?;
        // Deprecated because a type's descriptor might change or be closed under tokio's feet; an OwnedFd's can't.
        #[allow(deprecated)]
        let watch = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self { watch })
    }

    /// Waits until it has rung since the last call. Cancel safe.
    pub(super) async fn rung(&self) -> io::Result<()> {
        loop {
            let mut ready = self.watch.readable().await?;
            let drained = ready.try_io(|fd| {
                let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
                rustix::io::read(fd, &mut buffer)?;
                Ok(())
            });
            // Err: nothing there after all.
            if let Ok(read) = drained {
                return read;
            }
        }
    }
}
