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

    /// The place at which this token waits, from 0.
    pub fn place(&self, token: &Token) -> Option<usize> {
        self.queue.find(&token.hold_text()).map(|queued| self.queue.before(&queued.hold).count())
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lock::{Entry, Fence, Key, Parting, Release, Request, Scope, Ttl, crowd::Answer};

    fn request(mode: Mode) -> Request {
        Request { mode, waiting: true, ..Request::new(Key::new("job").unwrap(), Ttl::new(Duration::from_secs(10)).unwrap()) }
    }

    fn take(crowd: &mut Crowd, request: &Request, now: u64) {
        assert!(matches!(crowd.ask(request, now, None, || None), Answer::Go));
        crowd.grant(request, Fence(now), now);
    }

    fn is(all: &[&Request]) -> impl Fn(&str) -> bool {
        let all: Vec<_> = all.iter().map(|request| request.token.hold_text()).collect();
        move |hold| all.iter().any(|one| one == hold)
    }

    #[test]
    fn a_process_keeps_its_share_beyond_its_time_and_no_other() {
        let mut crowd = Crowd::default();
        let (lives, dies) = (request(Mode::Shared), request(Mode::Shared));
        take(&mut crowd, &lives, 0);
        take(&mut crowd, &dies, 1);
        crowd.witness(2, is(&[&lives]), |_| true);
        let past = crowd.settle(2);
        assert_eq!(past.iter().map(|past| (past.fence, past.ended_ms)).collect::<Vec<_>>(), [(Some(Fence(1)), Some(2))]);
        crowd.witness(60_000, is(&[&lives]), |_| true);
        assert!(crowd.settle(60_000).is_empty() && crowd.is_shared());
        crowd.detach();
        crowd.witness(60_002, |_| false, |_| true);
        assert_eq!(crowd.settle(60_002).len(), 1, "by its time, which had been over");
    }

    #[test]
    fn a_detached_share_needs_no_process() {
        let mut crowd = Crowd::default();
        let held = Request { detached: true, ..request(Mode::Permits(1)) };
        take(&mut crowd, &held, 0);
        crowd.witness(9_999, |_| false, |_| true);
        assert!(crowd.settle(9_999).is_empty());
        assert_eq!(crowd.ends_by_itself(Mode::Permits(1)), Some(10_000));
        crowd.witness(10_000, |_| false, |_| true);
        assert_eq!(crowd.settle(10_000).len(), 1);
    }

    #[test]
    fn a_nested_hold_without_a_process_keeps_nothing() {
        let mut crowd = Crowd::default();
        let outer = request(Mode::Shared);
        take(&mut crowd, &outer, 0);
        let inner = Request { token: outer.token.nested(), entry: Entry::Reenter, ..outer.clone() };
        assert!(matches!(crowd.ask(&inner, 1, None, || None), Answer::Has(_)));
        crowd.forsake(&outer.token, is(&[&outer]));
        assert_eq!(crowd.release(&outer.token, &Parting::from(Scope::Hold), 2).0, Release::Released);
    }

    #[test]
    fn the_dead_leave_the_line_and_the_third_waits_for_the_first() {
        let mut crowd = Crowd::default();
        take(&mut crowd, &request(Mode::Permits(1)), 0);
        let waiting = [(); 4].map(|()| request(Mode::Permits(1)));
        let other = request(Mode::Shared);
        for one in waiting.iter().chain([&other]) {
            assert!(matches!(crowd.ask(one, 1, None, || None), Answer::Busy(_)));
        }
        let text = |at: usize| waiting[at].token.hold_text();
        let ahead = |crowd: &Crowd, of: &Request| crowd.ahead(&of.token).map(str::to_owned);
        assert_eq!([0, 1, 2, 3].map(|at| ahead(&crowd, &waiting[at])), [None, None, Some(text(0)), Some(text(1))]);
        assert_eq!(ahead(&crowd, &other), None, "the first of its kind");
        crowd.witness(2, |_| true, is(&[&waiting[0], &waiting[2], &waiting[3], &other]));
        assert_eq!(ahead(&crowd, &waiting[3]), Some(text(0)));
        assert_eq!(crowd.before(&other.token), [text(0), text(2), text(3)]);
    }
}
