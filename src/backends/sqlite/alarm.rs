//! A notice that a hold was released for which there is no lock to block on: inotify on the lock file.
//!
//! No process stands behind a detached hold, and the order in which several shares end is unknown. Each release of one sets the
//! lock file's times, and the waiters that it may concern watch the file. They notice the end of a killed process too, since the
//! kernel then closes the file that it had open: a moment before its locks go.

use std::{io, mem::MaybeUninit, os::fd::OwnedFd, path::Path};

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use tokio::io::{Interest, unix::AsyncFd};

/// What is listened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sound {
    /// A process rang.
    Bell,
    /// The same, or a process that could write the file has closed it.
    Door,
}

pub(super) struct Alarm {
    watch: AsyncFd<OwnedFd>,
    sound: Sound,
}

impl Alarm {
    /// Watches the file from now on: what is heard after this is not missed.
    pub(super) fn new(lock_file: &Path, sound: Sound) -> io::Result<Self> {
        let fd = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let bell = WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let flags = if sound == Sound::Door { bell | WatchFlags::CLOSE_WRITE } else { bell };
        add_watch(&fd, lock_file, flags)?;
        // Deprecated because a type's descriptor might change or be closed under tokio's feet; an OwnedFd's can't.
        #[allow(deprecated)]
        let watch = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self { watch, sound })
    }

    /// Whether it hears that.
    pub(super) fn hears(&self, sound: Sound) -> bool {
        sound == Sound::Bell || self.sound == sound
    }

    /// Waits until something was heard since the last call. Cancel safe.
    pub(super) async fn rung(&self) -> io::Result<Sound> {
        loop {
            let mut ready = self.watch.readable().await?;
            let drained = ready.try_io(|fd| {
                let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
                let mut events = Reader::new(fd, &mut buffer);
                let mut heard = Sound::Door;
                loop {
                    if events.next()?.events() != ReadFlags::CLOSE_WRITE {
                        heard = Sound::Bell;
                    }
                    if events.is_buffer_empty() {
                        return Ok(heard);
                    }
                }
            });
            // Err: nothing there after all.
            if let Ok(read) = drained {
                return read;
            }
        }
    }
}
