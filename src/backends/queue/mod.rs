//! The queue of a lock in a store that keeps one entry for each contender, in order of arrival:
//! etcd and ZooKeeper.
//!
//! The store reads the contenders and their grants. This module decides the rules, without I/O and
//! without a clock:
//! - An exclusive contender waits for each contender in front of it, a reader for each one that is
//!   no reader.
//! - A permit is granted as soon as there is room for all that wait in front of it and for itself,
//!   in whichever order they ask. Held permits are counted, not their numbers: a lower number of
//!   permits applies to the contenders that ask for it.
//! - A contender without a record belongs to another library. Its position tells whether it holds
//!   the lock.
//!
//! [`record`] has the records that both stores write next to their contenders, [`history`] those of
//! ended holds and skips.

pub mod history;
#[cfg(test)]
mod model;
pub mod record;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::lock::{Busy, Holder, Mode};

/// The evidence of a contender's grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantEvidence {
    /// The record says that the contender was granted the lock.
    Granted,
    /// The record says that the contender was not granted the lock so far.
    Waits,
    /// The contender has no record.
    Unknown,
}

/// One contender, as far as the rules need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender {
    pub mode: Mode,
    pub state: GrantEvidence,
}

impl Contender {
    fn has_permit(self) -> bool {
        is_permit(self.mode) && self.state == GrantEvidence::Granted
    }

    fn waits_for_permit(self) -> bool {
        is_permit(self.mode) && self.state != GrantEvidence::Granted
    }
}

/// All contenders of a lock, in order of arrival. Positions count from 0; a contender still to come
/// has [`Contenders::len`].
#[derive(Clone, Debug, Default)]
pub struct Contenders {
    all: Vec<Contender>,
    /// The numbers of the held permits.
    permits: Vec<u32>,
}

/// The event that a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// This contender leaves, or is granted the permit that it waits for.
    pub contender: Option<usize>,
    /// Any held permit may be released.
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

    /// Returns how many permits are held.
    pub fn permits(&self) -> usize {
        self.permits.len()
    }

    /// Returns the last contender in front of `at` that blocks one of `mode`, however many permits
    /// there are.
    pub fn blocker(&self, mode: Mode, at: usize) -> Option<usize> {
        self.all[..at]
            .iter()
            .rposition(|other| !go_together(mode, other.mode))
    }

    /// Whether one of `mode` can have the lock at this position, as far as the other contenders
    /// matter.
    pub fn may_hold(&self, mode: Mode, at: usize) -> bool {
        if self.blocker(mode, at).is_some() {
            return false;
        }
        let Mode::Permits(most) = mode else {
            return true;
        };
        // A contender whose number was deleted from outside may still be running.
        let held = self
            .permits
            .len()
            .max(self.all.iter().filter(|one| one.has_permit()).count());
        let own = usize::from(self.all.get(at).is_some_and(|own| own.has_permit()));
        let waiting = self.all[..at]
            .iter()
            .filter(|one| one.waits_for_permit())
            .count();
        held.saturating_sub(own) + waiting < usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Returns the lowest number that no permit has.
    pub fn free_number(&self) -> u32 {
        let mut taken = self.permits.clone();
        taken.sort_unstable();
        taken.into_iter().fold(
            0,
            |free, number| if number == free { free + 1 } else { free },
        )
    }

    /// Returns the event that one of `mode` waits for at this position, while it can't have the
    /// lock.
    ///
    /// Only the first of the waiters for permits waits for held permits. Each other one waits for
    /// the one in front of it. So one released permit wakes one waiter. A waiter that asks for more
    /// permits than all in front of it may be next while they are not.
    pub fn awaited(&self, mode: Mode, at: usize) -> Awaited {
        let blocker = self.blocker(mode, at);
        let Mode::Permits(most) = mode else {
            return Awaited {
                contender: blocker,
                permits: false,
            };
        };
        let fewer = |one: &Contender| {
            !one.waits_for_permit() || matches!(one.mode, Mode::Permits(other) if other < most)
        };
        Awaited {
            // A contender in between may have been granted a permit out of turn.
            contender: self.all[..at].iter().rposition(|one| !one.has_permit()),
            permits: blocker.is_none() && self.all[..at].iter().all(fewer),
        }
    }

    /// Whether the contender at this position has the lock.
    pub fn holds(&self, at: usize) -> bool {
        match self.all[at] {
            Contender {
                state: GrantEvidence::Waits,
                ..
            } => false,
            one if is_permit(one.mode) => one.has_permit(),
            one => self.blocker(one.mode, at).is_none(),
        }
    }

    /// Returns the positions of the holders.
    pub fn holders(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(|at| self.holds(*at))
    }

    /// Returns the positions of the waiters.
    pub fn waiters(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(|at| !self.holds(*at))
    }

    /// Returns its position among the waiters, from 1.
    pub fn position(&self, at: usize) -> u32 {
        u32::try_from(self.waiters().take_while(|waiter| *waiter < at).count() + 1)
            .unwrap_or(u32::MAX)
    }

    /// Whether the contender waits by its record, as dlock's waiters do.
    pub fn waits(&self, at: usize) -> bool {
        self.all[at].state == GrantEvidence::Waits
    }

    /// Whether an exclusive holder has the lock: a dead waiter then delays no other waiter, and may
    /// only be slow.
    pub fn is_held_alone(&self) -> bool {
        self.all
            .first()
            .is_some_and(|first| first.mode == Mode::Exclusive)
            && self.holds(0)
    }

    /// Panics in a debug build if a rule is broken, naming the rule and the lock. Only for contenders
    /// and grants that were read at one moment: else a grant may be newer than the contender before
    /// it that has left, as in ZooKeeper's two lists.
    pub fn check(&self, lock: &str) {
        if cfg!(debug_assertions) {
            let broken = self.broken_rule();
            assert!(
                broken.is_none(),
                "lock {lock}: {}",
                broken.unwrap_or_default()
            );
        }
    }

    /// Returns the first broken rule. Grants stay right while others join behind, or leave. Contenders
    /// of other libraries join behind, too.
    fn broken_rule(&self) -> Option<String> {
        let is_granted = |at: &usize| self.all[*at].state == GrantEvidence::Granted;
        let granted = || (0..self.len()).filter(is_granted);
        if let Some((at, before)) =
            granted().find_map(|at| Some((at, self.blocker(self.all[at].mode, at)?)))
        {
            return Some(format!(
                "the contender {at} was granted the lock behind {before}, which keeps it out"
            ));
        }
        let most = |at: usize| match self.all[at].mode {
            Mode::Permits(most) => Some(most),
            _ => None,
        };
        // The last of these to be granted its permit found all others.
        let (held, most) = (
            granted().filter_map(most).count(),
            granted().filter_map(most).max(),
        );
        most.filter(|most| usize::try_from(*most).is_ok_and(|most| held > most))
            .map(|most| format!("{held} permits of at most {most} are held"))
    }

    /// Whether only waiters block one of `mode`.
    pub fn only_waiters_block(&self, mode: Mode) -> bool {
        self.holders()
            .all(|at| is_permit(mode) && is_permit(self.all[at].mode))
    }
}

fn is_permit(mode: Mode) -> bool {
    matches!(mode, Mode::Permits(_))
}

/// Whether holds of two modes can exist at the same time. For permits that also depends on their
/// number.
pub fn go_together(one: Mode, other: Mode) -> bool {
    one == Mode::Shared && other == Mode::Shared || is_permit(one) && is_permit(other)
}

/// Returns the answer to a request of `mode` that is not granted. Only the `next` one in the queue
/// can tell when the lock will be free.
pub fn busy(mode: Mode, holders: Vec<Holder>, position: Option<u32>, next: bool) -> Busy {
    let ends: Option<Vec<Duration>> = holders.iter().map(|holder| holder.expires_in).collect();
    // The first permit to be released is enough.
    let end = |ends: Vec<Duration>| {
        if is_permit(mode) {
            ends.into_iter().min()
        } else {
            ends.into_iter().max()
        }
    };
    Busy {
        expires_in: ends.and_then(end).filter(|_| next),
        notifies: true,
        transient: holders.is_empty(),
        position,
        holders,
    }
}
