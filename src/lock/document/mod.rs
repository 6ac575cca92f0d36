//! One lock as one document: its holders with their nested holds, its queue, the run record, the
//! warnings given, and an outbox of ended holds. All rules of a lock are decided here.
//!
//! The module does no I/O and reads no clock. A store reads the document, expires old holds by its
//! own time in ms, and calls one method. It writes the document back in a step that fails if
//! another client changed it meanwhile. An exclusive hold may be in the document, or outside, if
//! the store keeps such holds itself. In that case each call gets the end of that hold.
//!
//! Worst cases: a hold is never released (it ends by its own time, independently of other holds);
//! the clock is set back (no sign of life and no offer lies in the future); a waiter dies (see
//! [`queue`]); an answer is lost (the same token asks again and gets the same answer).

mod acquire;
mod check;
#[cfg(test)]
mod damaged;
pub(crate) mod holder;
#[cfg(test)]
mod model;
mod parts;
mod queue;
mod renewal;
#[cfg(test)]
mod tests;
pub(super) mod turn;
mod witness;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::queue::Queue;
pub use self::{
    acquire::{AskOutcome, RequestContext},
    holder::{HoldEntry, HolderEntry},
    parts::Times,
    queue::QueueEntry,
    witness::SessionState,
};
use super::{
    Break, DRAIN_DELAY, Error, Fence, HistoryEntry, Holder, Kind, Metadata, Mode, Release,
    ReleaseInfo, Result, RunRecord, Scope, Token, Waiter,
};

/// The layout that this version writes: a hundred times its major number, plus its minor one.
const LAYOUT: u16 = 100;
/// Layouts from this number on have a newer major number, and must not be touched.
const LAYOUT_REFUSED: u16 = 200;
/// How long a lock that has room is reserved for the waiter that it was offered to.
pub const OFFER: Duration = Duration::from_millis(queue::OFFER);
/// [`DRAIN_DELAY`] in ms.
#[allow(clippy::cast_possible_truncation)] // less than a second
const DRAIN_MS: u64 = DRAIN_DELAY.as_millis() as u64;
/// How many waiters are woken at the same time: one of them may be frozen.
const WOKEN: usize = 2;

/// All of dlock's data on one lock. The short names are part of the stored layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    #[serde(rename = "v")]
    layout: u16,
    #[serde(rename = "s", default, skip_serializing_if = "Vec::is_empty")]
    holders: Vec<HolderEntry>,
    /// Wake-up counter.
    #[serde(rename = "n", default, skip_serializing_if = "is_zero")]
    notified: u64,
    #[serde(rename = "q", default, skip_serializing_if = "Queue::is_empty")]
    queue: Queue,
    /// The run record: earlier starts, by which later runs are judged.
    #[serde(rename = "p", default, skip_serializing_if = "is_default")]
    run_record: RunRecord,
    /// The fence of the last hold that was warned about, and the highest level of a warning.
    #[serde(rename = "w", default, skip_serializing_if = "is_default")]
    warned: (u64, u32),
    /// Outbox: ended holds that are not in the history yet.
    #[serde(rename = "e", default, skip_serializing_if = "Vec::is_empty")]
    ended: Vec<HistoryEntry>,
    /// Until when the commands of holders whose sessions ended may still run: see
    /// [`Grant::drain_delay`].
    #[serde(rename = "d", default, skip_serializing_if = "is_zero")]
    drained: u64,
    /// A change lets other waiters be granted the lock.
    #[serde(skip)]
    dirty: bool,
    /// Waiters whose offer has just begun, or is over.
    #[serde(skip)]
    offered: Vec<WakeUp>,
}

impl Default for Document {
    fn default() -> Self {
        Self {
            layout: LAYOUT,
            holders: Vec::new(),
            notified: 0,
            queue: Queue::default(),
            run_record: RunRecord::default(),
            warned: (0, 0),
            ended: Vec::new(),
            drained: 0,
            dirty: false,
            offered: Vec::new(),
        }
    }
}

/// A waiter that should ask now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeUp {
    /// The hold, as in [`Token::hold_text`].
    pub hold: String,
    /// Whether it is an unfair exclusive waiter: any other of this kind can replace it.
    pub plain: bool,
}

impl Document {
    /// Reads a document as [`Document::write`] wrote it; an empty one from `None`.
    ///
    /// # Errors
    /// [`Kind::Layout`] if a newer dlock wrote it, [`Kind::Data`] if no dlock did.
    pub fn read(json: Option<&str>) -> Result<Self> {
        #[derive(Deserialize)]
        struct DocumentVersion {
            v: u16,
        }
        let Some(json) = json else {
            return Ok(Self::default());
        };
        let bad = |error| {
            Error::new(Kind::Data, "the lock's document is not as dlock writes it").source(error)
        };
        let DocumentVersion { v } = serde_json::from_str(json).map_err(bad)?;
        if v >= LAYOUT_REFUSED {
            let text = format!(
                "a newer dlock wrote the lock's document, in layout {}.{} which this one can't read",
                v / 100,
                v % 100
            );
            return Err(Error::new(Kind::Layout, text).hint("update dlock on this machine"));
        }
        serde_json::from_str(json).map_err(bad)
    }

    /// Returns the document as JSON; `None` if it is empty.
    pub fn write(&self) -> Option<String> {
        // The document has only texts and numbers, so serializing can't fail.
        if self.is_empty() {
            None
        } else {
            serde_json::to_string(self).ok()
        }
    }

    /// Whether the document is empty: a warning matters only as long as its hold.
    pub fn is_empty(&self) -> bool {
        !self.has_holders()
            && self.queue.is_empty()
            && self.run_record == RunRecord::default()
            && self.ended.is_empty()
            && self.drained == 0
    }

    /// Whether the document has a holder.
    pub fn has_holders(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Returns when the last hold ends unless it is renewed.
    pub fn ends(&self) -> Option<u64> {
        self.holders.iter().map(HolderEntry::ends).max()
    }

    /// Returns when the hold of this token's owner ends; `None` if the owner is no holder.
    pub fn lasts(&self, token: &Token) -> Option<u64> {
        self.holder(token).map(HolderEntry::ends)
    }

    /// Returns the fence of this token's hold, if that hold exists.
    pub fn fence(&self, token: &Token) -> Option<Fence> {
        let holder = self.holder(token)?;
        holder
            .holds
            .contains_key(&token.hold_text())
            .then_some(Fence(holder.fence))
    }

    /// Ends the holds whose time is over; a holder ends with its last hold. Removes waiters that
    /// are gone.
    pub fn expire(&mut self, now: u64) {
        let mut over = Vec::new();
        self.holders.retain_mut(|holder| {
            let last = holder.ends();
            holder.holds.retain(|_, hold| hold.ends > now);
            if holder.holds.is_empty() {
                over.push(holder.vanished(last));
            }
            !holder.holds.is_empty()
        });
        self.dirty |= self.queue.expire(now) || !over.is_empty();
        self.ended.extend(over);
        self.drained = if self.drained > now {
            // A clock that was set back makes no delay longer.
            self.drained.min(now.saturating_add(DRAIN_MS))
        } else {
            0
        };
    }

    /// Ends all holds, since a client that does not know them took the lock.
    pub fn lose(&mut self, now: u64) {
        self.dirty |= self.has_holders();
        self.ended.extend(
            self.holders
                .drain(..)
                .map(|holder| holder.vanished(holder.ends().min(now))),
        );
    }

    /// Releases a hold. Releasing the first hold of a tree releases all others. Records the outcome
    /// of the run.
    pub fn release(&mut self, token: &Token, info: &ReleaseInfo, now: u64) -> Release {
        let hold = token.hold_text();
        let Some(holder) = self.holders.iter_mut().find(|holder| holder.is_of(token)) else {
            return Release::NotHeld;
        };
        if holder.holds.remove(&hold).is_none() {
            return Release::NotHeld;
        }
        if let Some(state) = info.run_state {
            self.run_record.end(Fence(holder.fence), state);
        }
        // Which hold entered which is not recorded: only the first one is known to enclose all.
        if info.scope == Scope::Tree && holder.root == hold {
            holder.holds.clear();
        }
        if !holder.holds.is_empty() {
            return Release::StillHeld(holder.count());
        }
        let past = info.end.clone().map(|end| HistoryEntry {
            end,
            outcome: info.outcome.clone(),
            ..holder.vanished(now)
        });
        let fence = holder.fence;
        self.ended.extend(past);
        self.remove(fence);
        Release::Released
    }

    /// Leaves the queue; returns whether the token was in it.
    pub fn leave(&mut self, token: &Token) -> bool {
        let left = self.queue.leave(&token.hold_text());
        // The waiter may have held others up, or may have been woken instead of another one.
        self.dirty |= left;
        left
    }

    /// Marks the hold with this fence to be broken. A mark that was seen before stays seen.
    pub fn mark(&mut self, fence: Fence, mark: &Break) -> bool {
        let Some(holder) = self
            .holders
            .iter_mut()
            .find(|holder| holder.fence == fence.0)
        else {
            return false;
        };
        let seen = holder.mark.as_ref().is_some_and(|known| known.seen);
        holder.mark = Some(Break {
            seen,
            ..mark.clone()
        });
        true
    }

    /// Ends the hold with this fence at once, with all holds nested in it.
    pub fn evict(&mut self, fence: Fence, mark: &Break, now: u64) -> bool {
        let Some(mut holder) = self.remove(fence.0) else {
            return false;
        };
        holder.mark = Some(mark.clone());
        self.ended.push(holder.vanished(now));
        true
    }

    /// Claims the warning of this level for a hold; true for the first claim of that level or a
    /// higher one, while the hold exists.
    pub fn claim_warning(&mut self, fence: Fence, level: u32) -> bool {
        let new = self.fences().any(|held| held == fence) && self.warned < (fence.0, level);
        if new {
            self.warned = (fence.0, level);
        }
        new
    }

    /// Moves a waiter from the plain wait list into this queue, keeping its arrival time.
    pub fn absorb(&mut self, hold: String, metadata: Option<Metadata>, since: u64, seen: u64) {
        self.queue.insert(QueueEntry {
            hold,
            mode: Mode::Exclusive,
            fair: false,
            metadata,
            since,
            seen,
            offered: None,
        });
    }

    /// Returns the waiters that should ask now, since the last call. Call it before the document is
    /// written. Not all waiters are woken at the same time: each grant lets the next ones be woken.
    pub fn take_wake_ups(&mut self, outside: Option<u64>) -> Vec<WakeUp> {
        let offered = std::mem::take(&mut self.offered);
        let most = if std::mem::take(&mut self.dirty) {
            WOKEN
        } else {
            0
        };
        let mut woken = self.queue.may_go(|mode| self.room(mode, outside), most);
        for one in offered {
            if !woken.contains(&one) {
                woken.push(one);
            }
        }
        self.notified += u64::from(!woken.is_empty());
        woken
    }

    /// Empties the outbox, for a store that writes the history in the same step, or has written it.
    pub fn take_ended(&mut self) -> Vec<HistoryEntry> {
        std::mem::take(&mut self.ended)
    }

    /// Returns the holds that this one waits for: the one in front of it in the queue, or the first
    /// holds of some holders.
    pub fn blocking_holds(&self, hold: &str) -> Vec<&str> {
        match self.queue.ahead_of(hold) {
            Some(other) => vec![other],
            None => self
                .holders
                .iter()
                .take(WOKEN)
                .map(|holder| &*holder.root)
                .collect(),
        }
    }

    /// Wake-up counter. A waiter that sees it rise may have missed a wake-up and must ask again.
    pub fn notified(&self) -> u64 {
        self.notified
    }

    /// Returns each holder.
    pub fn holders(&self, now: u64) -> Vec<Holder> {
        self.holders
            .iter()
            .map(|holder| holder.holder(now))
            .collect()
    }

    /// Returns each waiter by hold, the longest first.
    pub fn waiters(&self, now: u64) -> Vec<(&str, Waiter)> {
        self.queue.waiters(now)
    }

    /// Returns how many more holds of this mode the lock has room for.
    fn room(&self, mode: Mode, outside: Option<u64>) -> usize {
        room(&self.holders, mode, outside)
    }

    fn holder(&self, token: &Token) -> Option<&HolderEntry> {
        self.holders.iter().find(|holder| holder.is_of(token))
    }

    fn holder_mut(&mut self, token: &Token) -> Option<&mut HolderEntry> {
        self.holders.iter_mut().find(|holder| holder.is_of(token))
    }

    fn remove(&mut self, fence: u64) -> Option<HolderEntry> {
        let at = self
            .holders
            .iter()
            .position(|holder| holder.fence == fence)?;
        self.dirty = true;
        Some(self.holders.remove(at))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Returns how many holds of `mode` fit next to `holders`, and to a hold outside.
fn room(holders: &[HolderEntry], mode: Mode, outside: Option<u64>) -> usize {
    match outside {
        Some(_) => 0,
        None => turn::room(holders.iter().map(|holder| holder.mode), mode),
    }
}
