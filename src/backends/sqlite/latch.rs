//! Waiting for bytes of the lock file, in the kernel's own queue.
//!
//! The kernel wakes exactly one waiter for each unlock, the one that has waited longest, with the lock in its
//! hands: no waiter polls, and the cost of a hand-over does not grow with the number of waiters. A stopped process
//! is not in that queue, so that a frozen waiter holds up no other.
//!
//! The blocking call has a thread of its own that nothing can interrupt. A waiter that gives up therefore leaves
//! the thread behind, and the thread gives back at once what it gets when it is no longer wanted.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use tokio::sync::Notify;

use super::lock_file::{Kind, LockFile, Range};

/// Less than a thread would get: it does one system call.
const STACK: usize = 64 * 1024;

/// Some bytes of the lock file that this process has, wants, or does not want.
pub(super) struct Latch {
    file: Arc<LockFile>,
    range: Range,
    kind: Kind,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

/// Every lock and unlock of the range happens under the mutex, together with the change that it means.
#[derive(Default)]
struct State {
    wanted: bool,
    locked: bool,
    thread: bool,
    /// What was given back of a range that is otherwise kept: the thread may take it once more.
    narrowed: Option<Range>,
    failed: Option<io::Error>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Latch {
    pub(super) fn new(file: Arc<LockFile>, range: Range, kind: Kind) -> Self {
        Self { file, range, kind, shared: Arc::default() }
    }

    /// Whether this process has the range.
    pub(super) fn is_locked(&self) -> bool {
        self.shared.state().locked
    }

    /// Whether a thread waits for the range, or will give it back.
    pub(super) fn is_waiting(&self) -> bool {
        self.shared.state().thread
    }

    /// Takes the range if it is free or ours already.
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

    /// Gives the range back, or stops wanting it.
    pub(super) fn let_go(&self) {
        let mut state = self.shared.state();
        state.wanted = false;
        if state.locked {
            self.file.unlock(self.range);
            state.locked = false;
        }
        state.narrowed = None;
    }

    /// Gives a part of the range back and keeps the rest.
    pub(super) fn narrow(&self, part: Range) {
        let mut state = self.shared.state();
        self.file.unlock(part);
        state.narrowed = Some(part);
    }

    /// Waits until this process has the range. Dropping the future leaves the place in the queue; [`Latch::let_go`] ends it.
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
        let (file, range, kind, shared) = (Arc::clone(&self.file), self.range, self.kind, Arc::clone(&self.shared));
        let work = move || {
            let outcome = file.lock(range, kind);
            let mut state = shared.state();
            state.thread = false;
            match outcome {
                Ok(()) if state.wanted => {
                    state.locked = true;
                    if let Some(part) = state.narrowed {
                        file.unlock(part);
                    }
                }
                Ok(()) => file.unlock(range),
                Err(error) => state.failed = Some(error),
            }
            shared.changed.notify_one();
        };
        thread::Builder::new().name("dlock-wait".into()).stack_size(STACK).spawn(work)?;
        state.thread = true;
        Ok(())
    }
}
