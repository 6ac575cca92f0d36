//! inotify on the lock file: a notice of releases where no byte can be waited for.
//!
//! A detached hold has no process, and the order in which several shared holds end is unknown. Each
//! release of one sets the lock file's times, and the waiters that it concerns watch the file. They
//! also notice the end of a killed process: the kernel then closes the file, a moment before it
//! frees the locks.

use std::{io, mem::MaybeUninit, os::fd::OwnedFd, path::Path};

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use tokio::io::{Interest, unix::AsyncFd};

/// What happened to the lock file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockFileEvent {
    /// A process set its times
    /// ([`LockFile::notify_watchers`](super::lock_file::LockFile::notify_watchers)).
    Touched,
    /// That, or a process that could write the file has closed it.
    TouchedOrClosed,
}

pub(super) struct LockFileWatch {
    watch: AsyncFd<OwnedFd>,
    event: LockFileEvent,
}

impl LockFileWatch {
    /// Watches the file from now on. No later notice is missed.
    pub(super) fn new(lock_file: &Path, event: LockFileEvent) -> io::Result<Self> {
        let fd = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let touched = WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let flags = if event == LockFileEvent::TouchedOrClosed {
            touched | WatchFlags::CLOSE_WRITE
        } else {
            touched
        };
        add_watch(&fd, lock_file, flags)?;
        // Deprecated because a type's descriptor might change or be closed under tokio's feet; an
        // OwnedFd's can't.
        #[allow(deprecated)]
        let watch = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self { watch, event })
    }

    /// Whether it notices that.
    pub(super) fn reports(&self, event: LockFileEvent) -> bool {
        event == LockFileEvent::Touched || self.event == event
    }

    /// Waits for a notice since the last call. Cancel safe.
    pub(super) async fn next_event(&self) -> io::Result<LockFileEvent> {
        loop {
            let mut ready = self.watch.readable().await?;
            let drained = ready.try_io(|fd| {
                let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
                let mut events = Reader::new(fd, &mut buffer);
                let mut heard = LockFileEvent::TouchedOrClosed;
                loop {
                    if events.next()?.events() != ReadFlags::CLOSE_WRITE {
                        heard = LockFileEvent::Touched;
                    }
                    if events.is_buffer_empty() {
                        return Ok(heard);
                    }
                }
            });
            // Err: there was nothing to read.
            if let Ok(read) = drained {
                return read;
            }
        }
    }
}
