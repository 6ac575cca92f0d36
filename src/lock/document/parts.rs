//! A document in parts, for stores that keep the holders in one place, and the queue or the run policy in others.

use serde::Serialize;

use super::{Document, Fence, Mode, Past, QueueEntry, Record, Token};

impl Document {
    /// The holders alone, as [`Document::read`] reads them; `None` if there are none.
    pub fn write_holders(&self) -> Option<String> {
        #[derive(Serialize)]
        struct Holders<'a> {
            v: u16,
            s: &'a [super::holder::HolderEntry],
        }
        // Texts and numbers, which can always be written.
        if self.has_holders() { serde_json::to_string(&Holders { v: self.layout, s: &self.holders }).ok() } else { None }
    }

    /// The mode in which this token's owner holds the lock; `None` if it does not.
    pub fn mode_of(&self, token: &Token) -> Option<Mode> {
        self.holder(token).map(|holder| holder.mode)
    }

    /// The fence of each holder.
    pub fn fences(&self) -> impl Iterator<Item = Fence> + '_ {
        self.holders.iter().map(|holder| Fence(holder.fence))
    }

    /// The history entry of the hold with this fence, should it never be released.
    pub fn vanished(&self, fence: Fence) -> Option<Past> {
        self.holders.iter().find(|holder| holder.fence == fence.0).map(|holder| holder.vanished(holder.ends()))
    }

    /// Since when the only hold of the only holder has the lock for itself; `None` if there are more, or it is shared.
    pub fn alone(&self) -> Option<u64> {
        match &*self.holders {
            [only] if only.mode == Mode::Exclusive && only.holds.len() == 1 => Some(only.since),
            _ => None,
        }
    }

    /// Puts an ended hold into the outbox that was stored by itself.
    pub fn add_ended(&mut self, past: Past) {
        self.ended.push(past);
    }

    /// The hold that was last warned about, and up to which level.
    pub fn warned(&self) -> (u64, u32) {
        self.warned
    }

    /// The run policy.
    pub fn policy(&self) -> &Record {
        &self.policy
    }

    /// Puts in a run policy that was stored by itself.
    pub fn set_policy(&mut self, policy: Record) {
        self.policy = policy;
    }

    /// The queue, longest waiter first.
    pub fn queue(&self) -> &[QueueEntry] {
        self.queue.all()
    }

    /// Puts a waiter that was stored by itself into the queue, at its place.
    pub fn line_up(&mut self, waiter: QueueEntry) {
        self.queue.insert(waiter);
    }

    /// Says since when the lock is offered to a waiter.
    pub fn offer(&mut self, hold: &str, since: u64) {
        if let Some(waiter) = self.queue.find_mut(hold) {
            waiter.offered = Some(since);
        }
    }
}
