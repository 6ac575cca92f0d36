//! What this process itself has of one key: bytes of the lock file, holds, shares, a place in the queue.

use std::{collections::BTreeSet, io, sync::Arc};

use uuid::Uuid;

use super::{
    latch::Latch,
    lock_file::{Bytes, Kind, LockFile, Range},
};
use crate::lock::{Fence, Request, Token, Ttl};

/// Why the lock was last refused, and so what to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// Another process has the bytes.
    Bytes,
    /// A lease is running.
    Lease,
    /// Other holders share the lock, or earlier waiters go first.
    Document,
    /// Another owner in this very process, which can't give it back while we wait.
    Ourselves,
}

/// Attached holds of this process, all of one owner: the lock's, or those of a share.
pub(super) struct Mine {
    pub owner: Uuid,
    pub holds: BTreeSet<u64>,
    /// The hold that took the lock, if that was in this process.
    pub first: Option<u64>,
    pub fence: Fence,
    pub ttl: Ttl,
    /// A release was begun; its answer may have been lost.
    pub leaving: bool,
    /// The share was asked for, and its answer not seen.
    pub unsure: bool,
}

/// How a place in the document's queue is watched.
#[derive(Default)]
pub(super) struct Line {
    /// The waiter whose end is waited for, and its byte; none: this one is among the first of its kind, which watch the lock file.
    pub ahead: Option<(String, Latch)>,
    /// What is locked as long as nothing changes without a word.
    pub watched: Vec<Watched>,
}

/// Bytes that another process has locked, and the kind of lock that is refused for it.
pub(super) type Watched = (Range, Kind);

pub(super) struct Slot {
    pub bytes: Bytes,
    pub file: Arc<LockFile>,
    pub hold: Latch,
    pub gate: Latch,
    pub mine: Option<Mine>,
    /// The byte that all shares have locked for reading.
    pub shared: Latch,
    pub shares: Vec<Mine>,
    /// Whose grant was asked for without an answer so far.
    pub unsure: Option<Uuid>,
    /// The last token that asked for a grant: it may be asking again.
    pub asked: Option<Uuid>,
    /// The tokens in the queue: one, as a rule.
    pub queued: Vec<Token>,
    pub obstacle: Obstacle,
    pub line: Line,
    /// The holder that was last notified that a waiter is about to take the lock.
    pub passed: Option<Token>,
}

impl Slot {
    pub(super) fn new(file: &Arc<LockFile>, bytes: Bytes) -> Self {
        Self {
            bytes,
            file: Arc::clone(file),
            hold: Latch::new(Arc::clone(file), bytes.all(), Kind::Write),
            gate: Latch::new(Arc::clone(file), bytes.gate(), Kind::Write),
            mine: None,
            shared: Latch::new(Arc::clone(file), bytes.first(), Kind::Read),
            shares: Vec::new(),
            unsure: None,
            asked: None,
            queued: Vec::new(),
            obstacle: Obstacle::Bytes,
            line: Line::default(),
            passed: None,
        }
    }

    /// The bytes of one hold.
    pub(super) fn of(&self, token: &Token) -> Bytes {
        self.bytes.of_hold(&token.hold_text())
    }

    /// The attached holds of this owner.
    pub(super) fn mine_of(&self, token: &Token) -> Option<&Mine> {
        self.mine.as_ref().filter(|mine| mine.owner == token.owner)
    }

    /// Whether this very hold is one of this process.
    pub(super) fn has(&self, token: &Token) -> bool {
        self.mine_of(token).is_some_and(|mine| mine.holds.contains(&token.hold))
    }

    /// Whether a process has the lock alone as far as its bytes tell, this process included.
    pub(super) fn is_locked(&self) -> io::Result<bool> {
        Ok(self.mine.is_some() || self.hold.is_locked() || self.file.others_have_it_alone(self.bytes)?)
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
        let mine = self.mine.get_or_insert_with(|| Mine::new(token.owner, fence, ttl));
        mine.holds.insert(token.hold);
        if first {
            mine.first = Some(token.hold);
        }
        (mine.fence, mine.ttl) = (fence, ttl);
    }

    /// Notes that the lock was granted to it alone; says how many holds it has.
    pub(super) fn hold_alone(&mut self, request: &Request, fence: Fence) -> u32 {
        self.unsure = None;
        if request.detached {
            self.hold.let_go();
        } else {
            // Others may enter from here on.
            self.hold.narrow(self.bytes.nested());
            self.add(&request.token, true, fence, request.ttl);
        }
        self.mine.as_ref().map_or(1, |mine| u32::try_from(mine.holds.len()).unwrap_or(u32::MAX))
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

    /// Gives back all bytes of holds that are not of shares.
    pub(super) fn give_back(&mut self) {
        self.unsure = None;
        self.hold.let_go();
        if self.shares.is_empty() {
            self.shared.let_go();
            self.file.unlock(self.bytes.all());
        } else {
            self.file.unlock(self.bytes.nested());
        }
    }

    /// The share of this owner that this process has.
    pub(super) fn share_of(&self, token: &Token) -> Option<&Mine> {
        self.shares.iter().find(|share| share.owner == token.owner)
    }

    /// Whether this process has that hold of a share.
    pub(super) fn has_share(&self, token: &Token) -> bool {
        self.share_of(token).is_some_and(|share| share.holds.contains(&token.hold))
    }

    /// Whether this process has the lock alone, or may be about to.
    pub(super) fn wants_it_alone(&self) -> bool {
        self.mine.is_some() || self.unsure.is_some() || self.hold.is_locked() || self.hold.is_waiting()
    }

    /// Whether this process has a share, or may be about to.
    pub(super) fn wants_to_share(&self) -> bool {
        !self.shares.is_empty() || self.shared.is_locked() || self.shared.is_waiting()
    }

    /// Takes the bytes of a hold of a share, so that no process gets the lock alone from here on. Never call it during a wait for the whole lock,
    /// which the kernel would grant to this very process.
    pub(super) fn take_share(&mut self, request: &Request) -> io::Result<bool> {
        if self.wants_it_alone() || !self.shared.try_take()? {
            return Ok(false);
        }
        if !request.detached && !self.file.try_lock(self.of(&request.token).first(), Kind::Write)? {
            self.leave_shared();
            return Ok(false);
        }
        Ok(true)
    }

    /// Notes the hold whose bytes were taken, before it is asked for.
    pub(super) fn expect_share(&mut self, token: &Token, ttl: Ttl) {
        if self.share_of(token).is_none() {
            self.shares.push(Mine { unsure: true, ..Mine::new(token.owner, Fence(0), ttl) });
        }
        if let Some(share) = self.shares.iter_mut().find(|share| share.owner == token.owner) {
            share.holds.insert(token.hold);
        }
    }

    /// It was granted.
    pub(super) fn confirm_grant(&mut self, token: &Token, fence: Fence) {
        if let Some(share) = self.shares.iter_mut().find(|share| share.owner == token.owner) {
            (share.fence, share.unsure) = (fence, false);
        }
    }

    /// Notes that a release begins, whose answer may be lost; whether one had begun.
    pub(super) fn begin_to_leave(&mut self, token: &Token) -> bool {
        let share = self.shares.iter_mut().find(|share| share.owner == token.owner);
        share.is_some_and(|share| std::mem::replace(&mut share.leaving, true))
    }

    /// Forgets a hold of a share, or `all` of them, and gives the bytes back.
    pub(super) fn remove_share(&mut self, token: &Token, all: bool) {
        if let Some(at) = self.shares.iter().position(|share| share.owner == token.owner) {
            let share = &mut self.shares[at];
            share.leaving = false;
            let gone: Vec<u64> = share.holds.iter().copied().filter(|hold| all || *hold == token.hold).collect();
            for hold in gone {
                self.file.unlock(self.bytes.of_hold(&format!("{hold:016x}")).first());
                share.holds.remove(&hold);
            }
            if share.holds.is_empty() {
                self.shares.swap_remove(at);
            }
        }
        self.leave_shared();
    }

    /// Forgets a hold that was not granted, unless it is `known` from before.
    pub(super) fn drop_share(&mut self, token: &Token, known: bool) {
        if !known {
            self.remove_share(token, false);
        }
        self.leave_shared();
    }

    /// Takes its place behind the waiter `ahead`.
    pub(super) fn line_up(&mut self, ahead: Option<String>, watched: Vec<Watched>) {
        self.line.watched = watched;
        let same = self.line.ahead.as_ref().map(|(hold, _)| hold) == ahead.as_ref();
        if !same {
            self.leave_line();
            self.line.ahead = ahead.map(|hold| {
                let latch = Latch::new(Arc::clone(&self.file), self.bytes.of_hold(&hold).alive(), Kind::Read);
                (hold, latch)
            });
        }
    }

    /// Stops watching.
    pub(super) fn leave_line(&mut self) {
        if let Some((_, latch)) = self.line.ahead.take() {
            latch.let_go();
        }
    }

    /// Lets go of what shares have in common, if this process has none.
    pub(super) fn leave_shared(&self) {
        if self.shares.is_empty() {
            self.shared.let_go();
        }
    }

    /// Whether a process stands behind this hold of a share, this process included. It takes its bytes anew if they were free: in
    /// its last resort the guardian gives all of them back, and the row tells whether another hold has come since.
    pub(super) fn stands(&self, hold: &str) -> io::Result<bool> {
        let byte = self.bytes.of_hold(hold).first();
        if self.shares.iter().flat_map(|share| &share.holds).any(|ours| format!("{ours:016x}") == hold) {
            return Ok(self.file.try_lock(self.bytes.first(), Kind::Read)? && self.file.try_lock(byte, Kind::Write)?);
        }
        self.file.others_write(byte)
    }

    /// Whether a process waits for this hold.
    pub(super) fn awaits(&self, hold: &str) -> io::Result<bool> {
        let ours = self.queued.iter().any(|token| token.hold_text() == hold);
        Ok(ours || self.file.others_write(self.bytes.of_hold(hold).alive())?)
    }

    /// Stands in the queue as far as the kernel is concerned.
    pub(super) fn stand_in_line(&mut self, token: &Token) -> bool {
        if !self.queued.contains(token) {
            if !self.file.try_lock(self.of(token).alive(), Kind::Write).unwrap_or(false) {
                return false;
            }
            self.queued.push(*token);
        }
        true
    }

    /// Whether nothing would be lost with this slot.
    pub(super) fn is_idle(&self) -> bool {
        let nothing = self.mine.is_none() && self.unsure.is_none() && self.shares.is_empty() && self.queued.is_empty();
        nothing && !self.hold.is_locked() && !self.gate.is_locked() && !self.shared.is_locked()
    }
}

impl Mine {
    fn new(owner: Uuid, fence: Fence, ttl: Ttl) -> Self {
        Self { owner, holds: BTreeSet::new(), first: None, fence, ttl, leaving: false, unsure: false }
    }
}
