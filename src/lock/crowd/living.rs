//! What a store that sees processes live and die puts over the times of a crowd.

use super::{
    super::{Mode, Token},
    Crowd, room,
};

impl Crowd {
    /// Says who lives: `stands` whether a process stands behind a hold, `awaits` whether one waits for it. A share that was taken
    /// by a process lasts as long as any of its holds has one, and no longer; a detached one by its times, or longer if a hold
    /// within it has one. To be settled next.
    pub fn witness(&mut self, now: u64, stands: impl Fn(&str) -> bool, awaits: impl Fn(&str) -> bool) {
        for share in &mut self.shares {
            let mut alive = share.detached;
            for (hold, held) in &mut share.holds {
                if stands(hold) {
                    alive = true;
                    held.ends = held.ends.max(now + 1);
                }
            }
            if !alive {
                share.holds.values_mut().for_each(|held| held.ends = held.ends.min(now));
            }
        }
        self.stirred |= self.queue.keep(awaits);
    }

    /// Nobody can say any more who lives: shares last by their times.
    pub fn detach(&mut self) {
        self.shares.iter_mut().for_each(|share| share.detached = true);
    }

    /// Drops the other holds of this token's share behind which no process stands, if processes rule it.
    pub fn forsake(&mut self, token: &Token, stands: impl Fn(&str) -> bool) {
        let own = token.hold_text();
        if let Some(share) = self.share_mut(token).filter(|share| !share.detached) {
            share.holds.retain(|hold, _| *hold == own || stands(hold));
        }
    }

    /// Whether there is room for a hold of this mode, whoever may have to go first.
    pub fn has_room(&self, mode: Mode, outside: Option<u64>) -> bool {
        room(&self.shares, mode, outside) > 0
    }

    /// When shares that no process keeps will have ended so that there may be room; `None` if processes keep it.
    pub fn ends_by_itself(&self, mode: Mode) -> Option<u64> {
        let detached = self.shares.iter().filter(|share| share.detached);
        if matches!(mode, Mode::Permits(_)) {
            return detached.map(super::Share::ends).min();
        }
        if self.shares.iter().all(|share| share.detached) { detached.map(super::Share::ends).max() } else { None }
    }

    /// Whether the share with this fence lasts by its times alone; `None` if there is none.
    pub fn is_detached(&self, fence: super::Fence) -> Option<bool> {
        self.shares.iter().find(|share| share.fence == fence.0).map(|share| share.detached)
    }

    /// The holds of shares that processes rule.
    pub fn attached(&self) -> impl Iterator<Item = &str> {
        self.shares.iter().filter(|share| !share.detached).flat_map(|share| share.holds.keys().map(String::as_str))
    }

    /// Those who wait before this token, longest first.
    pub fn before(&self, token: &Token) -> Vec<&str> {
        self.queue.before(&token.hold_text()).map(|queued| &*queued.hold).collect()
    }

    /// Whom to wait for before anything that happens to the lock can concern this waiter: the second before it who wants the same.
    /// `None` for the first two, of whom one may be frozen.
    pub fn ahead(&self, token: &Token) -> Option<&str> {
        let own = self.queue.find(&token.hold_text())?;
        let alike = |other: &&super::Queued| other.mode == own.mode && other.fair == own.fair;
        self.queue.before(&own.hold).filter(alike).nth_back(1).map(|queued| &*queued.hold)
    }
}
