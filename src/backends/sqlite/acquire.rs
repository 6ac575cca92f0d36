//! Taking a lock, and entering one that an ancestor has.

use std::time::Duration;

use super::{
    Sqlite,
    lock_file::Kind as LockKind,
    opened, ours, row,
    slot::Obstacle,
    starts::Taken,
    store::{Locked, Whose},
};
use crate::lock::{Attempt, Busy, Entry, Error, Fence, Grant, Kind, Mode, Request, Result};

impl Sqlite {
    pub(super) async fn acquire(&mut self, request: &Request) -> Result<Attempt> {
        match request.entry {
            Entry::Fresh if request.mode == Mode::Exclusive => self.take(request).await,
            Entry::Fresh => self.share(request).await,
            Entry::Reenter => self.enter(request).await,
        }
    }

    /// The bytes first, then the row.
    ///
    /// While the answer of the row is missing (an error, a dropped future) the bytes stay ours: the statement may still be
    /// executed, and must not come upon a lock that another process has taken meanwhile. Asking again or giving
    /// back settles it.
    async fn take(&mut self, request: &Request) -> Result<Attempt> {
        self.slot(&request.key)?;
        let Self { options, store, slots, prepared, .. } = self;
        let Some(slot) = slots.get_mut(&request.key) else { return Err(lost_slot()) };
        if slot.mine.as_ref().is_some_and(|mine| mine.owner != request.token.owner) {
            return self.refuse(request, Obstacle::Ourselves).await;
        }
        if slot.wants_to_share() {
            // The kernel would turn what is locked for that into what is asked for now, or this into that later.
            return self.ask_alone(request, false, Obstacle::Document).await;
        }
        let whose = Whose { namespace: &options.namespace, key: &request.key, token: &request.token };
        if !slot.hold.try_take().map_err(|error| ours(&error))? {
            if request.detached {
                let (store, _) = opened(store, &options.path).await?;
                if let Some(fence) = store.regrant(whose, request.ttl, true).await? {
                    return Ok(granted(request, fence, 1));
                }
            }
            return self.refuse(request, Obstacle::Bytes).await;
        }
        let file = &slot.file;
        if slot.mine.is_none() && !file.is_current() {
            let error = slot.replaced(*prepared);
            slot.give_back();
            return Err(error);
        }
        slot.unsure = Some(request.token.owner);
        let again = slot.asked.replace(request.token.owner) == Some(request.token.owner);
        let row = async {
            let (store, _) = opened(store, &options.path).await?;
            let (ttl, detached) = (request.ttl, request.detached);
            if again && let Some(fence) = store.regrant(whose, ttl, detached).await? {
                return Ok::<_, Error>(Taken::Granted(fence));
            }
            match store.grant(whose, request, file.id()).await? {
                // It may be our own: asked for by a process that is gone.
                Taken::InTheWay | Taken::Document if detached && let Some(fence) = store.regrant(whose, ttl, detached).await? => {
                    Ok(Taken::Granted(fence))
                }
                taken => Ok(taken),
            }
        };
        let taken = row.await;
        match taken {
            Ok(Taken::Granted(fence)) => Ok(granted(request, fence, slot.hold_alone(request, fence))),
            Ok(Taken::InTheWay) => {
                slot.give_back();
                self.refuse(request, Obstacle::Lease).await
            }
            Ok(Taken::Denied(denial)) => {
                // A refused waiter keeps no other process from the lock.
                slot.give_back();
                Ok(Attempt::Denied(denial))
            }
            Ok(Taken::Document) => {
                let attempt = self.ask_alone(request, true, Obstacle::Document).await?;
                if let (Attempt::Granted(grant), Some(slot)) = (&attempt, self.slots.get_mut(&request.key)) {
                    slot.hold_alone(request, grant.fence);
                }
                Ok(attempt)
            }
            Err(error) => {
                if error.effect == crate::lock::Effect::NotApplied && slot.mine.is_none() {
                    slot.give_back();
                }
                Err(error)
            }
        }
    }

    /// Adds a hold to an owner's. The byte for nested holds comes first: it keeps every process from taking the lock anew, so that
    /// what is found to be held then stays so, also when the owner's own process ends at this moment.
    async fn enter(&mut self, request: &Request) -> Result<Attempt> {
        self.slot(&request.key)?;
        let Self { options, store, slots, .. } = self;
        let Some(slot) = slots.get_mut(&request.key) else { return Err(lost_slot()) };
        let here = slot.mine_of(&request.token).is_some();
        if slot.mine.is_some() && !here {
            return Ok(Attempt::NotHeld);
        }
        if slot.share_of(&request.token).is_some() {
            return self.share(request).await;
        }
        let locked = |kind: std::io::Result<bool>| kind.map_err(|error| ours(&error));
        let secured = here || locked(slot.file.try_lock(slot.bytes.nested(), LockKind::Read))?;
        let alive = here || (secured && locked(slot.file.others_have(slot.bytes.all()))?);
        if !here {
            slot.unsure = Some(request.token.owner);
        }
        let whose = Whose { namespace: &options.namespace, key: &request.key, token: &request.token };
        let lock = Locked { locked: alive, file: slot.file.id() };
        let row = async { opened(store, &options.path).await?.0.enter(whose, request.ttl, request.mode, lock).await };
        match row.await {
            Ok(Some(row)) => {
                if row.by_lease(Some(lock.file)) {
                    if !here {
                        slot.give_back();
                    }
                } else {
                    slot.unsure = None;
                    slot.add(&request.token, row.is_first_hold(&request.token), row.fence, request.ttl);
                }
                Ok(granted(request, row.fence, row.holds()))
            }
            Ok(None) => {
                if !here {
                    slot.give_back();
                }
                // Perhaps its owner has a share.
                self.share(request).await
            }
            Err(error) => {
                if !here && error.effect == crate::lock::Effect::NotApplied {
                    slot.give_back();
                }
                Err(error)
            }
        }
    }

    /// Reports the holders. A request that waits is entered in the list of waiters.
    async fn refuse(&mut self, request: &Request, obstacle: Obstacle) -> Result<Attempt> {
        self.contended = true;
        let Self { options, store, slots, .. } = self;
        let Some(slot) = slots.get_mut(&request.key) else { return Err(lost_slot()) };
        slot.obstacle = obstacle;
        let file = slot.file.id();
        let by_bytes = obstacle != Obstacle::Lease;
        let found = async {
            let (store, _) = opened(store, &options.path).await?;
            store.look(&options.namespace, &request.key).await
        };
        let row = match found.await {
            // It is busy, whether or not the database can say by which holder.
            Err(error) if by_bytes && error.is_transient() => None,
            found => found?,
        };
        if request.fair && request.waiting || row.as_ref().is_some_and(|row| row.document.is_some()) {
            let obstacle = if obstacle == Obstacle::Lease { Obstacle::Document } else { obstacle };
            return self.ask_alone(request, false, obstacle).await;
        }
        let row = row.filter(|row| row.is_held(Some(file), by_bytes));
        let expires_in = row.as_ref().filter(|row| row.by_lease(Some(file))).map(row::Row::expires_in);
        // Bytes and no row: a waiter that gave up got them, or a grant is half way.
        let passing = by_bytes && obstacle != Obstacle::Ourselves && row.is_none();
        let holders = match &row {
            Some(row) => vec![row.holder()],
            None if by_bytes => vec![row::unknown_holder()],
            None => Vec::new(),
        };
        if request.waiting {
            // The list only informs people: no failure here is one of the request.
            let _ = self.queue_up(request).await;
        }
        Ok(Attempt::Busy(Busy { holders, expires_in, notifies: true, passing, position: None }))
    }

    /// Enters the request in the list of waiters. Those who come sweep: each removes more dead waiters than it can become itself.
    async fn queue_up(&mut self, request: &Request) -> Result<()> {
        let Self { options, store, slots, .. } = self;
        let (Some(slot), Some(store)) = (slots.get_mut(&request.key), store.as_mut()) else { return Ok(()) };
        let whose = Whose { namespace: &options.namespace, key: &request.key, token: &request.token };
        if slot.queued.contains(&request.token) {
            // It may have joined a document that is gone.
            return if store.is_queued(whose).await? { Ok(()) } else { store.join_queue(whose, request.metadata.as_ref()).await };
        }
        if !slot.stand_in_line(&request.token) {
            return Ok(());
        }
        store.join_queue(whose, request.metadata.as_ref()).await?;
        store.prepare_to_take().await?;
        for hold in store.first_queued(whose.namespace, whose.key).await? {
            if !slot.awaits(&hold).map_err(|error| ours(&error))? {
                store.leave_queue(whose.namespace, whose.key, &hold).await?;
            }
        }
        Ok(())
    }
}

fn granted(request: &Request, fence: Fence, holds: u32) -> Attempt {
    Attempt::Granted(Grant { fence, ttl: request.ttl, holds, drain_delay: Duration::ZERO, session: None, permit: None })
}

pub(super) fn lost_slot() -> Error {
    Error::new(Kind::Internal, "the key's place in the lock file is unknown")
}
