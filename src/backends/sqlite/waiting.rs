//! Waiting without polling.
//!
//! A waiter for bytes that a process has locked waits in the kernel's queue for them. A detached
//! hold has no process: its waiters queue for the gate byte, and the one that has it watches the
//! lock file for all of them. In the document's queue the first two of each kind watch the file, or
//! wait for the bytes of a process, since one may be frozen. Each of the others waits for one of
//! the two before it to leave.

use std::time::Duration;

use tokio::time::timeout;

use super::{
    client::SqliteClient,
    lock_file_watch::{LockFileEvent, LockFileWatch},
    ours,
    slot::{Obstacle, Slot},
};
use crate::lock::{Request, Result, Wake};

/// How long to trust that the process at the gate, or the waiter ahead, is awake: a frozen one must
/// not keep the others asleep after a release.
const GATE_KEEPER: Duration = Duration::from_secs(5);
/// How often to look where no notice can be received.
const DEAF: Duration = Duration::from_secs(1);
/// How soon to look whether the process that closed the file has lost its locks, which the kernel
/// frees just after. Each further pause is twice as long, up to the last one.
const LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(512);

impl SqliteClient {
    pub(super) async fn await_change(
        &mut self,
        request: &Request,
        at_most: Duration,
    ) -> Result<Wake> {
        self.slot(&request.key)?;
        let Self {
            slots,
            lock_file_watch,
            ..
        } = self;
        let Some(slot) = slots.get_mut(&request.key) else {
            return Ok(Wake::Changed);
        };
        let failed = |error| ours(&error);
        let change = |waited: Result<std::io::Result<()>, _>| match waited {
            Ok(waited) => waited.map(|()| Wake::Changed).map_err(failed),
            Err(_) => Ok(Wake::TimedOut),
        };
        let until_trusted = at_most.min(GATE_KEEPER);
        let event = match slot.obstacle {
            Obstacle::Ourselves => {
                let _ = timeout(at_most, std::future::pending::<()>()).await;
                return Ok(Wake::TimedOut);
            }
            Obstacle::Bytes => {
                return change(timeout(at_most, slot.wait_for_bytes(request.mode)).await);
            }
            Obstacle::Lease if slot.watcher.is_locked() => LockFileEvent::Touched,
            Obstacle::Lease => {
                let woken = change(timeout(until_trusted, slot.watcher.wait()).await)?;
                return Ok(if at_most > GATE_KEEPER {
                    Wake::Changed
                } else {
                    woken
                });
            }
            Obstacle::Document if slot.watching.ahead.is_empty() => LockFileEvent::TouchedOrClosed,
            Obstacle::Document => {
                let woken = change(timeout(until_trusted, slot.await_ahead()).await)?;
                return Ok(if at_most > GATE_KEEPER {
                    Wake::Changed
                } else {
                    woken
                });
            }
        };
        let Some(lock_file_watch) = lock_file_watch
            .as_ref()
            .filter(|lock_file_watch| lock_file_watch.reports(event))
        else {
            *lock_file_watch = LockFileWatch::new(slot.file.path(), event).ok();
            if lock_file_watch.is_none() {
                // This user has no inotify instance left: only another look can tell.
                let _ = timeout(at_most.min(DEAF), std::future::pending::<()>()).await;
            }
            // It may have been released just before.
            return Ok(Wake::Changed);
        };
        change(timeout(at_most, slot.listen(lock_file_watch)).await)
    }
}

impl Slot {
    /// Waits until the lock file is rung, or a watched byte is free.
    async fn listen(&self, lock_file_watch: &LockFileWatch) -> std::io::Result<()> {
        let mut look = None;
        loop {
            let heard = match look {
                None => Some(lock_file_watch.next_event().await?),
                Some(pause) => timeout(pause, lock_file_watch.next_event())
                    .await
                    .ok()
                    .transpose()?,
            };
            look = match (heard, look) {
                (Some(LockFileEvent::Touched), _) => return Ok(()),
                (Some(LockFileEvent::TouchedOrClosed), _) => Some(LOOK),
                (None, Some(pause)) if pause < LAST_LOOK => Some(pause * 2),
                (None, _) => None,
            };
            for (range, kind) in &self.watching.bytes {
                if !self.file.others_keep_out(*range, *kind)? {
                    return Ok(());
                }
            }
        }
    }
}
