//! Waiting without polling, and leaving the queue.
//!
//! A waiter for bytes that a process has locked stands in the kernel's queue for them. Behind a detached hold there is no process: its
//! waiters queue for the gate byte, and the one that has it watches the lock file for all of them. In the document's queue the first
//! two of each kind watch it, since one may be frozen, and each of the others waits for the second before it to go.

use std::time::Duration;

use tokio::time::timeout;

use super::{
    Sqlite,
    alarm::{Alarm, Sound},
    opened, ours,
    slot::{Obstacle, Slot},
    store::{Locked, Whose},
};
use crate::lock::{Mode, ReleaseInfo, Request, Result, Wake};

/// How long to trust that the process at the gate, or the waiter in front, is awake: a frozen one must not let the others sleep on after a release.
const GATE_KEEPER: Duration = Duration::from_secs(5);
/// How often to look without being told.
const DEAF: Duration = Duration::from_secs(1);
/// How soon to look whether the process that closed the file has lost its locks, which the kernel frees just after; then after
/// twice as long, until that can't be late any more.
const LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(512);

impl Sqlite {
    pub(super) async fn await_change(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        self.slot(&request.key)?;
        let Self { slots, alarm, .. } = self;
        let Some(slot) = slots.get_mut(&request.key) else { return Ok(Wake::Changed) };
        let failed = |error| ours(&error);
        let change = |waited: Result<std::io::Result<()>, _>| match waited {
            Ok(waited) => waited.map(|()| Wake::Changed).map_err(failed),
            Err(_) => Ok(Wake::TimedOut),
        };
        let until_trusted = at_most.min(GATE_KEEPER);
        let sound = match slot.obstacle {
            Obstacle::Ourselves => {
                let _ = timeout(at_most, std::future::pending::<()>()).await;
                return Ok(Wake::TimedOut);
            }
            Obstacle::Bytes if request.mode == Mode::Exclusive => return change(timeout(at_most, slot.hold.wait()).await),
            Obstacle::Bytes => return change(timeout(at_most, slot.shared.wait()).await),
            Obstacle::Lease if slot.gate.is_locked() => Sound::Bell,
            Obstacle::Lease => {
                let woken = change(timeout(until_trusted, slot.gate.wait()).await)?;
                return Ok(if at_most > GATE_KEEPER { Wake::Changed } else { woken });
            }
            Obstacle::Document => match &slot.line.ahead {
                Some((_, latch)) => {
                    let woken = change(timeout(until_trusted, latch.wait()).await)?;
                    if woken == Wake::Changed {
                        slot.leave_line();
                    }
                    return Ok(if at_most > GATE_KEEPER { Wake::Changed } else { woken });
                }
                None => Sound::Door,
            },
        };
        let Some(alarm) = alarm.as_ref().filter(|alarm| alarm.hears(sound)) else {
            *alarm = Alarm::new(slot.file.path(), sound).ok();
            if alarm.is_none() {
                // This user has no inotify instance left: only another look can tell.
                let _ = timeout(at_most.min(DEAF), std::future::pending::<()>()).await;
            }
            // It may have been released just before.
            return Ok(Wake::Changed);
        };
        change(timeout(at_most, slot.listen(alarm)).await)
    }

    pub(super) async fn leave(&mut self, request: &Request) -> Result<()> {
        let undo = self.slots.get(&request.key).and_then(|slot| slot.share_of(&request.token)).is_some_and(|share| share.unsure);
        if undo {
            // A grant that was never reported. What can't be undone of it ends with its bytes.
            let _ = self.hand_back_share(&request.key, &request.token, &ReleaseInfo::UNDO).await;
        }
        let Self { options, store, slots, alarm, .. } = self;
        let Some(slot) = slots.get_mut(&request.key) else { return Ok(()) };
        if undo {
            slot.remove_share(&request.token, false);
        }
        let owner = request.token.owner;
        let held = slot.mine.is_some();
        slot.gate.let_go();
        slot.leave_line();
        *alarm = None;
        if slot.unsure == Some(owner) && !held {
            // A grant that was never reported: it is undone before its bytes are given back.
            let whose = Whose { namespace: &options.namespace, key: &request.key, token: &request.token };
            let lock = Locked { locked: true, file: slot.file.id() };
            let undone = async { opened(store, &options.path).await?.0.release(whose, &ReleaseInfo::UNDO, lock, true, false).await };
            // What could not be undone is of an attached hold, which ends with its bytes, or of a detached one, which ends with its lease.
            let _ = undone.await;
        }
        if !held {
            slot.give_back();
        }
        if slot.queued.contains(&request.token) {
            let waited_in_vain = !held && !slot.has_share(&request.token);
            // A waiter whose byte is free is skipped and swept: the process that was granted the lock must not spend time on it.
            if waited_in_vain && let Some(store) = store {
                let left = store.leave_queue(&options.namespace, &request.key, &request.token.hold_text()).await;
                if matches!(left, Ok(false)) {
                    // It was taken into the document, where it may have held others up.
                    let _ = self.leave_line(request).await;
                }
            }
            if let Some(slot) = self.slots.get_mut(&request.key) {
                slot.queued.retain(|queued| *queued != request.token);
                slot.file.unlock(slot.of(&request.token).alive());
            }
        }
        Ok(())
    }
}

impl Slot {
    /// Until it rings, or something ends that is watched.
    async fn listen(&self, alarm: &Alarm) -> std::io::Result<()> {
        let mut look = None;
        loop {
            let heard = match look {
                None => Some(alarm.rung().await?),
                Some(pause) => timeout(pause, alarm.rung()).await.ok().transpose()?,
            };
            look = match (heard, look) {
                (Some(Sound::Bell), _) => return Ok(()),
                (Some(Sound::Door), _) => Some(LOOK),
                (None, Some(pause)) if pause < LAST_LOOK => Some(pause * 2),
                (None, _) => None,
            };
            for (range, kind) in &self.line.watched {
                if !self.file.others_keep_out(*range, *kind)? {
                    return Ok(());
                }
            }
        }
    }
}
