//! What this process itself has of one key: bytes of the lock file, holds, a place in the queue.

use std::{collections::BTreeSet, io, sync::Arc};

use uuid::Uuid;

use super::{
    latch::Latch,
    lock_file::{Bytes, Kind, LockFile},
};
use crate::lock::{Fence, Token, Ttl};

/// Why the lock was last refused, and so what to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// Somebody has the bytes.
    Bytes,
    /// A lease is running.
    Lease,
    /// Another owner in this very process, who can't give it back while we wait.
    Ourselves,
}

/// Attached holds of this process, all of one owner.
pub(super) struct Mine {
    pub owner: Uuid,
    pub holds: BTreeSet<u64>,
    /// The hold that took the lock, if that was in this process.
    pub first: Option<u64>,
    pub fence: Fence,
    pub ttl: Ttl,
    /// A release was begun; its answer may have been lost.
    pub leaving: bool,
}

pub(super) struct Slot {
    pub bytes: Bytes,
    pub file: Arc<LockFile>,
    pub hold: Latch,
    pub gate: Latch,
    pub mine: Option<Mine>,
    /// Whose grant was asked for without an answer so far.
    pub unsure: Option<Uuid>,
    /// Who was the last to ask for a grant: he may be asking again.
    pub asked: Option<Uuid>,
    /// Who stands in the queue.
    pub queued: Option<Uuid>,
    pub obstacle: Obstacle,
}

impl Slot {
    pub(super) fn new(file: &Arc<LockFile>, bytes: Bytes) -> Self {
        Self {
            bytes,
            file: Arc::clone(file),
            hold: Latch::new(Arc::clone(file), bytes.all()),
            gate: Latch::new(Arc::clone(file), bytes.gate()),
            mine: None,
            unsure: None,
            asked: None,
            queued: None,
            obstacle: Obstacle::Bytes,
        }
    }

    /// The attached holds of this owner.
    pub(super) fn mine_of(&self, token: &Token) -> Option<&Mine> {
        self.mine.as_ref().filter(|mine| mine.owner == token.owner)
    }

    /// Whether this very hold is one of this process.
    pub(super) fn has(&self, token: &Token) -> bool {
        self.mine_of(token).is_some_and(|mine| mine.holds.contains(&token.hold))
    }

    /// Whether anybody has the bytes, this process included.
    pub(super) fn is_locked(&self) -> io::Result<bool> {
        Ok(self.mine.is_some() || self.hold.is_locked() || self.file.others_have(self.bytes.all())?)
    }

    /// Whether the kernel confirms that this hold's byte is ours. It takes the byte anew if it was free.
    pub(super) fn confirm(&self, token: &Token) -> io::Result<bool> {
        match self.mine_of(token) {
            Some(mine) if mine.first.is_some() => self.file.try_lock(self.bytes.first(), Kind::Write),
            Some(_) => self.file.try_lock(self.bytes.nested(), Kind::Read),
            None => Ok(false),
        }
    }

    pub(super) fn add(&mut self, token: &Token, first: bool, fence: Fence, ttl: Ttl) {
        let mine =
            self.mine.get_or_insert_with(|| Mine { owner: token.owner, holds: BTreeSet::new(), first: None, fence, ttl, leaving: false });
        mine.holds.insert(token.hold);
        if first {
            mine.first = Some(token.hold);
        }
        (mine.fence, mine.ttl) = (fence, ttl);
    }

    /// Forgets a hold, with `all` every hold if it is the first, and gives the bytes back with the last.
    pub(super) fn remove(&mut self, token: &Token, all: bool) {
        if let Some(mine) = self.mine.as_mut().filter(|mine| mine.owner == token.owner) {
            let had = mine.holds.remove(&token.hold);
            mine.leaving = false;
            if all && had && mine.first == Some(token.hold) {
                mine.holds.clear();
            }
            if mine.holds.is_empty() {
                self.mine = None;
                self.give_back();
            }
        }
    }

    /// Gives back all bytes of holds.
    pub(super) fn give_back(&mut self) {
        self.unsure = None;
        self.hold.let_go();
        self.file.unlock(self.bytes.all());
    }

    /// Whether nothing would be lost with this slot.
    pub(super) fn is_idle(&self) -> bool {
        self.mine.is_none() && self.unsure.is_none() && self.queued.is_none() && !self.hold.is_locked() && !self.gate.is_locked()
    }
}
