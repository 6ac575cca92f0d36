//! The queue of a lock in a store that keeps one entry for each contender, in order of arrival: etcd and ZooKeeper.
//!
//! The store reads the contenders and states what is known of each grant; the rules are decided here, without I/O and without a clock:
//! - An exclusive contender waits for each contender in front of it, a reader for each one that is no reader.
//! - A permit is granted as soon as there is room for all that wait in front of it and for itself, in whichever order they ask. Held
//!   permits are counted, not their numbers: a lower number of permits rules for the contenders that ask for it.
//! - A contender without a record is another library's. Its position tells whether it holds the lock.
//!
//! [`record`] is what both stores write next to their contenders, [`history`] what they remember of them.

pub mod history;
#[cfg(test)]
mod model;
pub mod record;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::lock::{Busy, Holder, Mode};

/// How long a successor gives a vanished holder to stop what it ran.
pub const DRAIN_DELAY: Duration = Duration::from_millis(500);

/// What is known of a contender's grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its record says that it was granted the lock.
    Granted,
    /// Its record says that it was not granted the lock so far.
    Waits,
    /// It has no record.
    Unknown,
}

/// One contender, as far as the rules need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender {
    pub mode: Mode,
    pub state: State,
}

impl Contender {
    fn has_permit(self) -> bool {
        is_permit(self.mode) && self.state == State::Granted
    }

    fn waits_for_permit(self) -> bool {
        is_permit(self.mode) && self.state != State::Granted
    }
}

/// All contenders of a lock, in order of arrival. Positions in it count from 0; that of a contender still to come is [`Contenders::len`].
#[derive(Clone, Debug, Default)]
pub struct Contenders {
    all: Vec<Contender>,
    /// The numbers of the held permits.
    permits: Vec<u32>,
}

/// What a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// This contender has to go, or to be granted the permit that it waits for.
    pub contender: Option<usize>,
    /// Any held permit may come back.
    pub permits: bool,
}

impl Contenders {
    pub fn new(all: Vec<Contender>, permits: Vec<u32>) -> Self {
        Self { all, permits }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn all(&self) -> &[Contender] {
        &self.all
    }

    /// How many permits are held.
    pub fn permits(&self) -> usize {
        self.permits.len()
    }

    /// The last contender in front of `at` that one of `mode` has to wait for, however many permits there are.
    pub fn blocker(&self, mode: Mode, at: usize) -> Option<usize> {
        self.all[..at].iter().rposition(|other| !go_together(mode, other.mode))
    }

    /// Whether one of `mode` can have the lock at this position, as far as the other contenders matter.
    pub fn may_hold(&self, mode: Mode, at: usize) -> bool {
        if self.blocker(mode, at).is_some() {
            return false;
        }
        let Mode::Permits(most) = mode else { return true };
        // A contender whose number was deleted from outside has not stopped yet.
        let held = self.permits.len().max(self.all.iter().filter(|one| one.has_permit()).count());
        let own = usize::from(self.all.get(at).is_some_and(|own| own.has_permit()));
        let waiting = self.all[..at].iter().filter(|one| one.waits_for_permit()).count();
        held.saturating_sub(own) + waiting < usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// The lowest number that no permit has.
    pub fn free_number(&self) -> u32 {
        let mut taken = self.permits.clone();
        taken.sort_unstable();
        taken.into_iter().fold(0, |free, number| if number == free { free + 1 } else { free })
    }

    /// What one of `mode` waits for at this position, where it can't have the lock yet.
    ///
    /// Of the waiters for permits only the first one waits for held permits. Each one behind waits for the one in front of it, so that one
    /// permit that comes back wakes one waiter. A waiter that asks for more permits than all in front of it may be next while they are not.
    pub fn awaited(&self, mode: Mode, at: usize) -> Awaited {
        let blocker = self.blocker(mode, at);
        let Mode::Permits(most) = mode else { return Awaited { contender: blocker, permits: false } };
        let fewer = |one: &Contender| !one.waits_for_permit() || matches!(one.mode, Mode::Permits(other) if other < most);
        Awaited {
            // A contender in between may have been granted a permit out of turn.
            contender: self.all[..at].iter().rposition(|one| !one.has_permit()),
            permits: blocker.is_none() && self.all[..at].iter().all(fewer),
        }
    }

    /// Whether the contender at this position has the lock.
    pub fn holds(&self, at: usize) -> bool {
        match self.all[at] {
            Contender { state: State::Waits, .. } => false,
            one if is_permit(one.mode) => one.has_permit(),
            one => self.blocker(one.mode, at).is_none(),
        }
    }

    /// The positions of the holders.
    pub fn holders(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(|at| self.holds(*at))
    }

    /// The positions of the waiters.
    pub fn waiters(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(|at| !self.holds(*at))
    }

    /// Its position among the waiters, from 1.
    pub fn place(&self, at: usize) -> u32 {
        u32::try_from(self.waiters().take_while(|waiter| *waiter < at).count() + 1).unwrap_or(u32::MAX)
    }

    /// Whether it waits by its record, as dlock's waiters do.
    pub fn waits(&self, at: usize) -> bool {
        self.all[at].state == State::Waits
    }

    /// Whether an exclusive holder has the lock: a dead waiter is in no other's way then, and may only be slow.
    pub fn is_held_alone(&self) -> bool {
        self.all.first().is_some_and(|first| first.mode == Mode::Exclusive) && self.holds(0)
    }

    /// Whether only waiters keep one of `mode` from the lock.
    pub fn only_waiters_block(&self, mode: Mode) -> bool {
        self.holders().all(|at| is_permit(mode) && is_permit(self.all[at].mode))
    }
}

fn is_permit(mode: Mode) -> bool {
    matches!(mode, Mode::Permits(_))
}

/// Whether holds of two modes can go together. For permits that also depends on their number.
pub fn go_together(one: Mode, other: Mode) -> bool {
    one == Mode::Shared && other == Mode::Shared || is_permit(one) && is_permit(other)
}

/// What a request of `mode` is told that is not granted. Only the `next` one in the queue can tell when the lock will be free.
pub fn busy(mode: Mode, holders: Vec<Holder>, position: Option<u32>, next: bool) -> Busy {
    let ends: Option<Vec<Duration>> = holders.iter().map(|holder| holder.expires_in).collect();
    // The first permit that comes back is enough.
    let end = |ends: Vec<Duration>| if is_permit(mode) { ends.into_iter().min() } else { ends.into_iter().max() };
    Busy { expires_in: ends.and_then(end).filter(|_| next), notifies: true, passing: holders.is_empty(), position, holders }
}
