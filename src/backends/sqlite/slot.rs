//! What this process has of one key: bytes of the lock file, holds, and a position in the queue.

use std::{collections::BTreeSet, io, sync::Arc};

use uuid::Uuid;

use super::{
    lock_file::{Bytes, LockFile, LockKind, Range},
    range_lock::RangeLock,
};
use crate::lock::{Entry, Fence, Mode, Request, Token, Ttl, document::Document};

/// Why the lock was last refused, and so what to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// Another process has the bytes.
    Bytes,
    /// A lease is running, and the document has no queue.
    Lease,
    /// The document has other holders, or earlier waiters go first.
    Document,
    /// Another owner in this very process, which can't release the lock while this one waits.
    Ourselves,
}

/// Which byte of the key an owner has in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyByte {
    /// The first one, for writing.
    Alone,
    /// The first one, for reading.
    Shared,
    /// The one of nested holds, for reading: another process has the hold that they are nested in.
    Nested,
}

/// The holds of one owner in this process.
pub(super) struct OwnHolds {
    owner: Uuid,
    way: KeyByte,
    /// Those with bytes of their own, which are the attached ones.
    holds: BTreeSet<u64>,
    pub fence: Fence,
    pub ttl: Ttl,
    /// A release was begun; its answer may have been lost.
    leaving: bool,
    /// The first hold was asked for, and no answer was seen.
    pub unsure: bool,
}

impl OwnHolds {
    /// Whether the lock file alone keeps other processes out.
    pub(super) fn is_guarded(&self) -> bool {
        self.way != KeyByte::Shared
    }
}

/// How a waiter in the document's queue notices a change.
#[derive(Default)]
pub(super) struct WaiterWatch {
    /// The waiters whose end is waited for, and their bytes; none if this waiter is among the first
    /// of its kind, which watch the lock file.
    pub ahead: Vec<(String, RangeLock)>,
    /// What stays locked until something changes without a notice.
    pub bytes: Vec<WatchedByte>,
}

/// Bytes that another process has locked, and the kind of lock that is refused for it.
type WatchedByte = (Range, LockKind);

pub(super) struct Slot {
    pub bytes: Bytes,
    pub file: Arc<LockFile>,
    /// The byte of an exclusive holder.
    pub hold: RangeLock,
    /// The byte that keeps nested holds out while the lock is taken.
    nested: RangeLock,
    pub watcher: RangeLock,
    /// The byte that all sharing holders have locked for reading.
    shared: RangeLock,
    ours: Vec<OwnHolds>,
    /// The waiters of this process: one, as a rule.
    queued: Vec<Token>,
    pub obstacle: Obstacle,
    pub watching: WaiterWatch,
    /// The waiter that was last refused only because another process is about to have the lock.
    pub passed: Option<Token>,
    /// The document as it was last read for a request, or written.
    pub seen: Document,
    /// The time in ms when it was read.
    pub seen_at: u64,
    /// The fence in the row that was last read.
    pub last_fence: Option<Fence>,
    /// The token that was last granted the lock.
    pub granted: Option<Token>,
}

impl Slot {
    pub(super) fn new(file: &Arc<LockFile>, bytes: Bytes) -> Self {
        let range_lock = |range, kind| RangeLock::new(Arc::clone(file), range, kind);
        Self {
            bytes,
            file: Arc::clone(file),
            hold: range_lock(bytes.first(), LockKind::Write),
            nested: range_lock(bytes.nested(), LockKind::Write),
            watcher: range_lock(bytes.watcher(), LockKind::Write),
            shared: range_lock(bytes.first(), LockKind::Read),
            ours: Vec::new(),
            queued: Vec::new(),
            obstacle: Obstacle::Bytes,
            watching: WaiterWatch::default(),
            passed: None,
            seen: Document::default(),
            seen_at: 0,
            last_fence: None,
            granted: None,
        }
    }

    /// The bytes of one hold.
    fn of(&self, token: &Token) -> Bytes {
        self.bytes.of_hold(&token.hold_text())
    }

    /// The holds of this owner.
    pub(super) fn ours(&self, token: &Token) -> Option<&OwnHolds> {
        self.ours.iter().find(|ours| ours.owner == token.owner)
    }

    fn ours_mut(&mut self, token: &Token) -> Option<&mut OwnHolds> {
        self.ours.iter_mut().find(|ours| ours.owner == token.owner)
    }

    /// Whether this process has this very hold.
    pub(super) fn has(&self, token: &Token) -> bool {
        self.ours(token)
            .is_some_and(|ours| ours.holds.contains(&token.hold))
    }

    /// Takes the bytes for a request before the row is read. Returns what is in the way, if
    /// anything, and whether this process has had this very hold before.
    ///
    /// The bytes stay until [`Slot::confirm`] or [`Slot::undo`]: a write whose answer is missing
    /// may still happen, and must not find a lock that another process has taken meanwhile.
    pub(super) fn secure(&mut self, request: &Request) -> io::Result<(Option<Obstacle>, bool)> {
        let (token, known) = (&request.token, self.has(&request.token));
        if self.ours(token).is_none() {
            let way = match (request.entry, request.mode) {
                (Entry::Reenter, _) => KeyByte::Nested,
                (Entry::Fresh, Mode::Exclusive) => KeyByte::Alone,
                (Entry::Fresh, _) => KeyByte::Shared,
            };
            if let Some(obstacle) = self.own_obstacle(way) {
                return Ok((Some(obstacle), known));
            }
            let taken = match way {
                KeyByte::Alone => self.take_alone()?,
                KeyByte::Shared => self.shared.try_take()?,
                // Keeps every process from taking the lock anew: a hold that is found after this
                // stays, whatever its process does.
                KeyByte::Nested => self.file.try_lock(self.bytes.nested(), LockKind::Read)?,
            };
            if !taken {
                return Ok((Some(Obstacle::Bytes), known));
            }
            let ours = OwnHolds {
                owner: token.owner,
                way,
                holds: BTreeSet::new(),
                fence: Fence(0),
                ttl: request.ttl,
                leaving: false,
                unsure: true,
            };
            self.ours.push(ours);
        }
        if !request.detached {
            if !self
                .file
                .try_lock(self.of(token).first(), LockKind::Write)?
            {
                self.undo(token, known);
                return Ok((Some(Obstacle::Bytes), known));
            }
            if let Some(ours) = self.ours_mut(token) {
                ours.holds.insert(token.hold);
            }
        }
        Ok((None, known))
    }

    /// Takes both bytes of an exclusive holder. A waiter that has the first one keeps it, and goes
    /// on to wait for the other.
    fn take_alone(&self) -> io::Result<bool> {
        let waits = self.hold.is_locked() || self.hold.is_waiting();
        let taken = self.hold.try_take()? && self.nested.try_take()?;
        if !taken && !waits {
            self.hold.unlock();
        }
        Ok(taken)
    }

    /// What keeps another owner of this very process from the bytes: the kernel would convert its
    /// lock to the other kind.
    fn own_obstacle(&self, way: KeyByte) -> Option<Obstacle> {
        let any = |way: KeyByte| self.ours.iter().any(|ours| ours.way == way);
        let alone = any(KeyByte::Alone) || way == KeyByte::Alone && any(KeyByte::Nested);
        let other_kind = match way {
            KeyByte::Alone => {
                any(KeyByte::Shared) || self.shared.is_locked() || self.shared.is_waiting()
            }
            KeyByte::Shared => self.hold.is_locked() || self.hold.is_waiting(),
            KeyByte::Nested => false,
        };
        alone
            .then_some(Obstacle::Ourselves)
            .or(other_kind.then_some(Obstacle::Document))
    }

    /// Notes that a request was granted.
    pub(super) fn confirm(&mut self, request: &Request, fence: Fence) {
        if let Some(ours) = self
            .ours
            .iter_mut()
            .find(|ours| ours.owner == request.token.owner)
        {
            if request.detached {
                // Its lease keeps it, and no byte.
                self.undo(&request.token, true);
            } else {
                (ours.fence, ours.ttl, ours.unsure) = (fence, request.ttl, false);
                if ours.way == KeyByte::Alone {
                    // From here on other processes may enter.
                    self.nested.unlock();
                }
            }
        }
        self.stop_waiting(&request.token);
    }

    /// Drops the hold of a request that was not granted, unless it is `known` from before, and the
    /// bytes that no hold needs.
    pub(super) fn undo(&mut self, token: &Token, known: bool) {
        if !known {
            self.forget(token, false);
        } else if self.ours(token).is_some_and(|ours| ours.holds.is_empty()) {
            self.forget(token, true);
        }
    }

    /// Notes that a release begins, whose answer may be lost. Returns whether one had begun before.
    pub(super) fn begin_to_leave(&mut self, token: &Token) -> bool {
        self.ours_mut(token)
            .is_some_and(|ours| std::mem::replace(&mut ours.leaving, true))
    }

    /// Drops one hold, or `all` of the owner, and the bytes that no hold needs. Returns whether
    /// there was such an owner.
    pub(super) fn forget(&mut self, token: &Token, all: bool) -> bool {
        let Some(at) = self.ours.iter().position(|ours| ours.owner == token.owner) else {
            return false;
        };
        let ours = &mut self.ours[at];
        ours.leaving = false;
        let gone: Vec<u64> = ours
            .holds
            .iter()
            .copied()
            .filter(|hold| all || *hold == token.hold)
            .collect();
        for hold in gone {
            ours.holds.remove(&hold);
            self.file.unlock(self.bytes.of_hold(&text_of(hold)).first());
        }
        if ours.holds.is_empty() {
            self.ours.swap_remove(at);
            self.give_back();
        }
        true
    }

    /// Unlocks the key's bytes that no hold of this process needs.
    pub(super) fn give_back(&self) {
        let any = |way: KeyByte| self.ours.iter().any(|ours| ours.way == way);
        if any(KeyByte::Alone) {
            return;
        }
        self.hold.unlock();
        self.nested.unlock();
        if !any(KeyByte::Shared) {
            self.shared.unlock();
        }
        if !any(KeyByte::Nested) {
            self.file.unlock(self.bytes.nested());
        }
    }

    /// Whether a process is behind this hold. Of a hold of this process the bytes are locked anew
    /// if they are free: the guardian unlocks all of them in its last resort, and the row tells
    /// whether another hold has come since.
    pub(super) fn has_process(&self, hold: &str) -> io::Result<bool> {
        let byte = self.bytes.of_hold(hold).first();
        let Some(ours) = self
            .ours
            .iter()
            .find(|ours| ours.holds.iter().any(|id| text_of(*id) == hold))
        else {
            return self.file.others_write(byte);
        };
        let (range, kind) = match ours.way {
            KeyByte::Alone => (self.bytes.first(), LockKind::Write),
            KeyByte::Shared => (self.bytes.first(), LockKind::Read),
            KeyByte::Nested => (self.bytes.nested(), LockKind::Read),
        };
        Ok(self.file.try_lock(range, kind)? && self.file.try_lock(byte, LockKind::Write)?)
    }

    /// Whether a process waits for this hold.
    pub(super) fn has_waiter(&self, hold: &str) -> io::Result<bool> {
        let ours = self.queued.iter().any(|token| token.hold_text() == hold);
        Ok(ours || self.file.others_write(self.bytes.of_hold(hold).alive())?)
    }

    /// Whether a process has the lock alone as far as its bytes tell, this process included.
    pub(super) fn is_locked_alone(&self) -> io::Result<bool> {
        let ours = self.hold.is_locked() || self.ours.iter().any(|ours| ours.way == KeyByte::Alone);
        Ok(ours || self.file.others_have_it_alone(self.bytes)?)
    }

    /// Whether other holds than this one keep the lock, as far as the bytes tell.
    pub(super) fn others_hold(&self, token: &Token) -> io::Result<bool> {
        Ok(self.ours(token).is_some_and(|ours| ours.holds.len() > 1)
            || self.file.others_have(self.bytes.first())?
            || self.file.others_have(self.bytes.nested())?)
    }

    /// Locks the bytes of a waiter. Returns whether it has the one that tells that it lives.
    pub(super) fn begin_to_wait(&mut self, token: &Token) -> bool {
        if !self.queued.contains(token) {
            if !self
                .file
                .try_lock(self.of(token).alive(), LockKind::Write)
                .unwrap_or(false)
            {
                return false;
            }
            self.queued.push(*token);
            // If this fails, the waiters behind wait for the other byte.
            let _ = self
                .file
                .try_lock(self.of(token).position(), LockKind::Write);
        }
        true
    }

    /// Wakes the waiters behind one that has lost its position: what they wait for may not concern
    /// them any more. Only a later request locks the byte again, since the kernel wakes no waiter
    /// that finds it locked.
    pub(super) fn note_position(&self, token: &Token, document: &Document) {
        let byte = self.of(token).position();
        match (self.seen.position(token), document.position(token)) {
            (Some(_), None) => self.file.unlock(byte),
            (_, Some(_)) if self.queued.contains(token) => {
                drop(self.file.try_lock(byte, LockKind::Write));
            }
            _ => {}
        }
    }

    pub(super) fn stop_waiting(&mut self, token: &Token) {
        if self.queued.contains(token) {
            self.queued.retain(|queued| queued != token);
            self.file.unlock(self.of(token).alive());
            self.file.unlock(self.of(token).position());
        }
    }

    /// Waits for the bytes of a request in the kernel's queue.
    pub(super) async fn wait_for_bytes(&self, mode: Mode) -> io::Result<()> {
        if mode != Mode::Exclusive {
            return self.shared.wait().await;
        }
        self.hold.wait().await?;
        self.nested.wait().await
    }

    /// Notes how the waiter notices a change of the document that was last seen.
    pub(super) fn watch_queue(&mut self, token: &Token) {
        let document = &self.seen;
        let holds = document
            .attached()
            .map(|hold| (self.bytes.of_hold(hold).first(), LockKind::Read));
        let before = document
            .before(token)
            .into_iter()
            .map(|hold| (self.bytes.of_hold(hold).alive(), LockKind::Read));
        let nested = (self.bytes.nested(), LockKind::Write);
        let bytes = holds.chain(before).chain([nested]);
        let bytes = bytes
            .filter(|(range, kind)| self.file.others_keep_out(*range, *kind).unwrap_or(false))
            .collect();
        let ahead: Vec<String> = document
            .ahead(token)
            .into_iter()
            .map(str::to_owned)
            .collect();
        self.watching.bytes = bytes;
        let mut known = std::mem::take(&mut self.watching.ahead);
        for hold in ahead {
            let watched = known.extract_if(.., |(other, _)| *other == hold).next();
            self.watching.ahead.push(watched.unwrap_or_else(|| {
                let bytes = self.bytes.of_hold(&hold);
                let keeps = self.file.others_write(bytes.position()).unwrap_or(false);
                let range = if keeps {
                    bytes.position()
                } else {
                    bytes.alive()
                };
                (
                    hold,
                    RangeLock::new(Arc::clone(&self.file), range, LockKind::Read),
                )
            }));
        }
        for (_, range_lock) in known {
            range_lock.unlock();
        }
    }

    /// Whether this waiter is among the first of its kind in the queue.
    pub(super) fn is_first(&self, token: &Token) -> bool {
        self.watching.ahead.is_empty() && self.seen.position(token).is_some()
    }

    /// Waits until one of the waiters ahead has left.
    pub(super) async fn await_ahead(&mut self) -> io::Result<()> {
        match &self.watching.ahead[..] {
            [] => {}
            [one] => one.1.wait().await?,
            [one, other, ..] => tokio::select! {
                woken = one.1.wait() => woken?,
                woken = other.1.wait() => woken?,
            },
        }
        for (_, left) in self
            .watching
            .ahead
            .extract_if(.., |(_, range_lock)| range_lock.is_locked())
        {
            left.unlock();
        }
        Ok(())
    }

    /// Stops waiting for the waiters ahead.
    pub(super) fn stop_watching(&mut self) {
        for (_, range_lock) in self.watching.ahead.drain(..) {
            range_lock.unlock();
        }
    }

    /// Whether nothing would be lost with this slot.
    pub(super) fn is_idle(&self) -> bool {
        let range_locks = [&self.hold, &self.nested, &self.watcher, &self.shared];
        self.ours.is_empty()
            && self.queued.is_empty()
            && !range_locks.iter().any(|range_lock| range_lock.is_locked())
    }
}

/// A hold as [`Token::hold_text`] writes it.
fn text_of(hold: u64) -> String {
    format!("{hold:016x}")
}
