//! Waiting for bytes of the lock file, in the kernel's own queue.
//!
//! For each unlock the kernel wakes one waiter, the one that has waited longest, and that one has
//! the lock then. A waiter that finds the bytes locked again queues up anew, and so do all waiters
//! behind it. So no process unlocks only a part of such a range. No waiter polls, and the cost of a
//! hand-over does not grow with the number of waiters. A stopped process leaves that queue, so that
//! a frozen waiter delays no other.
//!
//! The blocking call has a thread of its own, which nothing can interrupt. A waiter that gives up
//! leaves the thread behind. The thread unlocks the bytes at once if they are no longer wanted.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use tokio::sync::Notify;

use super::lock_file::{LockFile, LockKind, Range};

/// The stack of the thread, which makes one system call.
const STACK: usize = 64 * 1024;

/// A range of the lock file that this process has locked, wants, or does not want.
pub(super) struct RangeLock {
    file: Arc<LockFile>,
    range: Range,
    kind: LockKind,
    shared: Arc<RangeLockShared>,
}

#[derive(Default)]
struct RangeLockShared {
    state: Mutex<RangeLockState>,
    changed: Notify,
}

/// Each lock and unlock of the range happens under the mutex, together with the change of this
/// state.
#[derive(Default)]
struct RangeLockState {
    wanted: bool,
    locked: bool,
    thread: bool,
    failed: Option<io::Error>,
}

impl RangeLockShared {
    fn state(&self) -> MutexGuard<'_, RangeLockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RangeLock {
    pub(super) fn new(file: Arc<LockFile>, range: Range, kind: LockKind) -> Self {
        Self {
            file,
            range,
            kind,
            shared: Arc::default(),
        }
    }

    /// Whether this process has the range.
    pub(super) fn is_locked(&self) -> bool {
        self.shared.state().locked
    }

    /// Whether a thread waits for the range, or is about to unlock it.
    pub(super) fn is_waiting(&self) -> bool {
        self.shared.state().thread
    }

    /// Locks the range if it is free. True also if this process has it already.
    pub(super) fn try_take(&self) -> io::Result<bool> {
        let mut state = self.shared.state();
        if !state.locked && self.file.try_lock(self.range, self.kind)? {
            state.locked = true;
        }
        if state.locked {
            state.wanted = true;
        }
        Ok(state.locked)
    }

    /// Unlocks the range, or stops wanting it.
    pub(super) fn unlock(&self) {
        let mut state = self.shared.state();
        state.wanted = false;
        if state.locked {
            self.file.unlock(self.range);
            state.locked = false;
        }
    }

    /// Waits until this process has the range. A dropped future stays in the kernel's queue until
    /// [`RangeLock::unlock`].
    pub(super) async fn wait(&self) -> io::Result<()> {
        self.queue_up()?;
        loop {
            {
                let mut state = self.shared.state();
                if state.locked {
                    return Ok(());
                }
                if let Some(error) = state.failed.take() {
                    return Err(error);
                }
            }
            self.shared.changed.notified().await;
        }
    }

    fn queue_up(&self) -> io::Result<()> {
        let mut state = self.shared.state();
        state.wanted = true;
        if state.locked || state.thread {
            return Ok(());
        }
        let (file, range, kind, shared) = (
            Arc::clone(&self.file),
            self.range,
            self.kind,
            Arc::clone(&self.shared),
        );
        let work = move || {
            let outcome = file.lock(range, kind);
            let mut state = shared.state();
            state.thread = false;
            match outcome {
                Ok(()) if state.wanted => state.locked = true,
                Ok(()) => file.unlock(range),
                Err(error) => state.failed = Some(error),
            }
            shared.changed.notify_one();
        };
        thread::Builder::new()
            .name("dlock-wait".into())
            .stack_size(STACK)
            .spawn(work)?;
        state.thread = true;
        Ok(())
    }
}
