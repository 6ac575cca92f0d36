//! Waiting without polling, and leaving the queue.
//!
//! An attached hold is waited for in the kernel's queue for its bytes. Behind a detached one there is no process: those
//! who wait for it queue for the gate byte, and whoever has that watches the lock file for all of them.

use std::time::Duration;

use tokio::time::timeout;

use super::{
    Sqlite,
    alarm::Alarm,
    lock_file::Bytes,
    opened, ours,
    slot::Obstacle,
    store::{Locked, Whose},
};
use crate::lock::{Parting, Request, Result, Wake};

/// How long to trust that whoever has the gate is awake: a frozen one must not let the others sleep on after a release.
const GATE_KEEPER: Duration = Duration::from_secs(5);

impl Sqlite {
    pub(super) async fn await_change(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        self.slot(&request.key)?;
        let Self { slots, alarm, .. } = self;
        let Some(slot) = slots.get_mut(&request.key) else { return Ok(Wake::Changed) };
        let failed = |error| ours(&error);
        match slot.obstacle {
            Obstacle::Bytes => match timeout(at_most, slot.hold.wait()).await {
                Ok(waited) => waited.map(|()| Wake::Changed).map_err(failed),
                Err(_) => Ok(Wake::TimedOut),
            },
            Obstacle::Lease if slot.gate.is_locked() => {
                let Some(alarm) = alarm else {
                    *alarm = Some(Alarm::new(slot.file.path()).map_err(failed)?);
                    // It may have been released just before.
                    return Ok(Wake::Changed);
                };
                match timeout(at_most, alarm.rung()).await {
                    Ok(rung) => rung.map(|()| Wake::Changed).map_err(failed),
                    Err(_) => Ok(Wake::TimedOut),
                }
            }
            Obstacle::Lease => match timeout(at_most.min(GATE_KEEPER), slot.gate.wait()).await {
                Ok(waited) => waited.map(|()| Wake::Changed).map_err(failed),
                Err(_) if at_most > GATE_KEEPER => Ok(Wake::Changed),
                Err(_) => Ok(Wake::TimedOut),
            },
            Obstacle::Ourselves => {
                let _ = timeout(at_most, std::future::pending::<()>()).await;
                Ok(Wake::TimedOut)
            }
        }
    }

    pub(super) async fn leave(&mut self, request: &Request) -> Result<()> {
        let Self { options, store, slots, alarm, .. } = self;
        let Some(slot) = slots.get_mut(&request.key) else { return Ok(()) };
        let owner = request.token.owner;
        let held = slot.mine.is_some();
        slot.gate.let_go();
        *alarm = None;
        if slot.unsure == Some(owner) && !held {
            // A grant of which nobody heard: undone before its bytes are given back.
            let whose = Whose { namespace: &options.namespace, key: &request.key, token: &request.token };
            let lock = Locked { locked: true, file: slot.file.id() };
            let undone = async { opened(store, &options.path).await?.0.release(whose, &Parting::UNDO, lock, true, false).await };
            // What could not be undone is of an attached hold, which ends with its bytes, or of a detached one, which ends with its lease.
            let _ = undone.await;
        }
        if !held {
            slot.give_back();
        }
        if slot.queued == Some(owner) {
            slot.queued = None;
            slot.file.unlock(Bytes::of(&[&owner.to_string()]).alive());
            // One whose byte is free is skipped and swept: whoever was granted has better things to do.
            if !held && let Some(store) = store {
                let _ = store.leave_queue(&options.namespace, &request.key, &owner.to_string()).await;
            }
        }
        Ok(())
    }
}
