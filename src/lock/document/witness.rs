//! The evidence of a store that sees whether processes live, or which sessions of a server have the
//! lock. It overrides the times of a document.

use super::{
    super::{Mode, Token},
    DRAIN_MS, Document, HolderEntry, room,
};

/// What a server knows of a session that took a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// It has the lock.
    Has,
    /// It has the lock no more.
    Gone,
    /// Its server was restarted, or another one took its place: the hold lasts until then, in ms of
    /// this server's clock.
    Left(u64),
}

impl Document {
    /// Records which processes live: `has_process` returns whether a hold has a process,
    /// `has_waiter` whether a waiter has one. A process's holder lasts exactly as long as one of
    /// its holds has a process. A detached holder lasts by its times, or longer if a nested hold
    /// has a process. Call [`Document::expire`] next.
    pub fn witness(
        &mut self,
        now: u64,
        has_process: impl Fn(&str) -> bool,
        has_waiter: impl Fn(&str) -> bool,
    ) {
        for holder in &mut self.holders {
            let mut alive = holder.detached;
            for (hold, held) in &mut holder.holds {
                if has_process(hold) {
                    alive = true;
                    held.ends = held.ends.max(now + 1);
                }
            }
            if !alive {
                holder
                    .holds
                    .values_mut()
                    .for_each(|held| held.ends = held.ends.min(now));
            }
        }
        self.dirty |= self.queue.keep(has_waiter, now);
    }

    /// Records that the processes are unknown from now on: holds last by their times.
    pub fn detach(&mut self) {
        self.holders
            .iter_mut()
            .for_each(|holder| holder.detached = true);
    }

    /// Records what the server knows of the sessions that took the lock: a holder lasts exactly as
    /// long as its session has it. If a session ended by itself, what its holder runs may not have
    /// ended yet: grants have a drain delay for a moment. A holder whose server is gone lasts by
    /// its times from now on. Call [`Document::expire`] next.
    pub fn witness_sessions(
        &mut self,
        now: u64,
        state: impl Fn(&HolderEntry, &str) -> SessionState,
    ) {
        for holder in &mut self.holders {
            let Some(session) = &holder.session else {
                // Its server is gone. A clock that was set back makes no lease longer.
                for hold in holder.holds.values_mut() {
                    let most = now.saturating_add(hold.ttl);
                    self.dirty |= hold.ends > most;
                    hold.ends = hold.ends.min(most);
                }
                continue;
            };
            let (state, holds) = (state(holder, session), holder.holds.values_mut());
            // What is found here is written with the next change, or in any case.
            self.dirty |= state != SessionState::Has;
            match state {
                // A server ends a session that is silent for longer than the TTL.
                SessionState::Has => holds.for_each(|hold| {
                    hold.ends = hold.ends.max(now + 1).min(now.saturating_add(hold.ttl));
                }),
                SessionState::Gone => {
                    holds.for_each(|hold| hold.ends = hold.ends.min(now));
                    self.drained = now.saturating_add(DRAIN_MS);
                }
                SessionState::Left(until) => {
                    holds.for_each(|hold| hold.ends = until);
                    (holder.session, holder.renewed) = (None, 0);
                }
            }
        }
    }

    /// Whether no holder has a session; then this is as [`Document::witness_sessions`].
    pub fn without_sessions(&mut self, now: u64) -> bool {
        if self.sessions().next().is_some() {
            return false;
        }
        self.witness_sessions(now, |_, _| SessionState::Has);
        true
    }

    /// Records the session that has the lock by this token's hold.
    pub fn attach(&mut self, token: &Token, session: &str) {
        if let Some(holder) = self.holder_mut(token) {
            holder.session = Some(session.to_owned());
        }
    }

    /// Forgets the session of this token's hold, since another one asks for it anew: its answer is
    /// written in any case.
    pub fn forget_session(&mut self, token: &Token, now: u64) {
        if let Some(holder) = self.holder_mut(token) {
            (holder.session, holder.renewed) = (None, 0);
            for hold in holder.holds.values_mut() {
                hold.ends = hold.ends.max(now.saturating_add(hold.ttl));
            }
        }
    }

    /// Returns the session that has the lock by the hold with this fence.
    pub fn session_of(&self, fence: super::Fence) -> Option<&str> {
        self.holders
            .iter()
            .find(|holder| holder.fence == fence.0)?
            .session
            .as_deref()
    }

    /// Returns each session that has the lock, as far as is written.
    pub fn sessions(&self) -> impl Iterator<Item = &str> {
        self.holders
            .iter()
            .filter_map(|holder| holder.session.as_deref())
    }

    /// Returns the hold and the session of each reader.
    pub fn readers(&self) -> impl Iterator<Item = (&str, &str)> {
        let readers = self
            .holders
            .iter()
            .filter(|holder| holder.mode == Mode::Shared);
        readers.filter_map(|holder| Some((&*holder.root, holder.session.as_deref()?)))
    }

    /// Takes back the mark of a hold that could not be broken, unless its holder knows of it.
    pub fn unmark(&mut self, fence: super::Fence) {
        for holder in &mut self.holders {
            if holder.fence == fence.0 {
                holder.mark.take_if(|mark| !mark.seen);
            }
        }
    }

    /// Drops the other holds of this token's owner that have no process, unless the hold is
    /// detached.
    pub fn drop_dead_holds(&mut self, token: &Token, has_process: impl Fn(&str) -> bool) {
        let own = token.hold_text();
        if let Some(holder) = self.holder_mut(token).filter(|holder| !holder.detached) {
            holder
                .holds
                .retain(|hold, _| *hold == own || has_process(hold));
        }
    }

    /// Whether there is room for a hold of this mode, regardless of the queue.
    pub fn has_room(&self, mode: Mode, outside: Option<u64>) -> bool {
        room(&self.holders, mode, outside) > 0
    }

    /// Returns when enough detached holds will have ended for room; `None` while processes hold the
    /// lock.
    pub fn ends_by_itself(&self, mode: Mode) -> Option<u64> {
        let detached = self.holders.iter().filter(|holder| holder.detached);
        if matches!(mode, Mode::Permits(_)) {
            return detached.map(super::HolderEntry::ends).min();
        }
        if self.holders.iter().all(|holder| holder.detached) {
            detached.map(super::HolderEntry::ends).max()
        } else {
            None
        }
    }

    /// Whether a holder lasts by its times alone.
    pub fn has_detached(&self) -> bool {
        self.holders.iter().any(|holder| holder.detached)
    }

    /// Whether the holder with this fence lasts by its times alone; `None` if it does not exist.
    pub fn is_detached(&self, fence: super::Fence) -> Option<bool> {
        self.holders
            .iter()
            .find(|holder| holder.fence == fence.0)
            .map(|holder| holder.detached)
    }

    /// Returns the holds of processes.
    pub fn attached(&self) -> impl Iterator<Item = &str> {
        self.holders
            .iter()
            .filter(|holder| !holder.detached)
            .flat_map(|holder| holder.holds.keys().map(String::as_str))
    }

    /// Returns the position of this token in the queue, from 0.
    pub fn position(&self, token: &Token) -> Option<usize> {
        self.queue
            .find(&token.hold_text())
            .map(|queued| self.queue.before(&queued.hold).count())
    }

    /// Returns the waiters in front of this token, the longest first.
    pub fn before(&self, token: &Token) -> Vec<&str> {
        self.queue
            .before(&token.hold_text())
            .map(|queued| &*queued.hold)
            .collect()
    }

    /// Returns the two waiters of the same kind just in front of this one: no change of the lock
    /// matters to this one until either leaves. It waits for both, since the one that should leave
    /// first may be frozen. Returns none for the first two waiters of a kind.
    pub fn ahead(&self, token: &Token) -> Vec<&str> {
        let Some(own) = self.queue.find(&token.hold_text()) else {
            return Vec::new();
        };
        let alike = |other: &&super::QueueEntry| other.mode == own.mode && other.fair == own.fair;
        let two: Vec<&str> = self
            .queue
            .before(&own.hold)
            .filter(alike)
            .rev()
            .take(2)
            .map(|queued| &*queued.hold)
            .collect();
        if two.len() == 2 { two } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lock::{
        Entry, Fence, HistoryEntry, Key, Release, ReleaseInfo, Request, Scope, Ttl,
        document::AskOutcome,
    };

    fn request(mode: Mode) -> Request {
        Request {
            mode,
            waiting: true,
            ..Request::new(
                Key::new("job").unwrap(),
                Ttl::new(Duration::from_secs(10)).unwrap(),
            )
        }
    }

    fn take(document: &mut Document, request: &Request, now: u64) {
        assert!(matches!(
            document.ask(request, now, None, || None),
            AskOutcome::Go
        ));
        document.grant(request, Fence(now), now);
    }

    fn ended(document: &mut Document, now: u64) -> Vec<HistoryEntry> {
        document.expire(now);
        document.take_ended()
    }

    fn is(all: &[&Request]) -> impl Fn(&str) -> bool {
        let all: Vec<_> = all
            .iter()
            .map(|request| request.token.hold_text())
            .collect();
        move |hold| all.iter().any(|one| one == hold)
    }

    #[test]
    fn a_living_process_keeps_only_its_own_share_beyond_its_lease() {
        let mut document = Document::default();
        let (lives, dies) = (request(Mode::Shared), request(Mode::Shared));
        take(&mut document, &lives, 0);
        take(&mut document, &dies, 1);
        document.witness(2, is(&[&lives]), |_| true);
        let past = ended(&mut document, 2);
        assert_eq!(
            past.iter()
                .map(|past| (past.fence, past.ended_ms))
                .collect::<Vec<_>>(),
            [(Some(Fence(1)), Some(2))]
        );
        document.witness(60_000, is(&[&lives]), |_| true);
        assert!(ended(&mut document, 60_000).is_empty() && document.has_holders());
        document.detach();
        document.witness(60_002, |_| false, |_| true);
        assert_eq!(
            ended(&mut document, 60_002).len(),
            1,
            "by its time, which had been over"
        );
    }

    #[test]
    fn a_detached_share_needs_no_process() {
        let mut document = Document::default();
        let held = Request {
            detached: true,
            ..request(Mode::Permits(1))
        };
        take(&mut document, &held, 0);
        document.witness(9_999, |_| false, |_| true);
        assert!(ended(&mut document, 9_999).is_empty());
        assert_eq!(document.ends_by_itself(Mode::Permits(1)), Some(10_000));
        document.witness(10_000, |_| false, |_| true);
        assert_eq!(ended(&mut document, 10_000).len(), 1);
    }

    #[test]
    fn a_nested_hold_without_a_process_keeps_nothing() {
        let mut document = Document::default();
        let outer = request(Mode::Shared);
        take(&mut document, &outer, 0);
        let inner = Request {
            token: outer.token.nested(),
            entry: Entry::Reenter,
            ..outer.clone()
        };
        assert!(matches!(
            document.ask(&inner, 1, None, || None),
            AskOutcome::Has(_)
        ));
        document.drop_dead_holds(&outer.token, is(&[&outer]));
        assert_eq!(
            document.release(&outer.token, &ReleaseInfo::from(Scope::Hold), 2),
            Release::Released
        );
    }

    #[test]
    fn dead_waiters_leave_the_queue_and_the_third_waits_for_the_first_two() {
        let mut document = Document::default();
        take(&mut document, &request(Mode::Permits(1)), 0);
        let waiting = [(); 4].map(|()| request(Mode::Permits(1)));
        let other = request(Mode::Shared);
        for one in waiting.iter().chain([&other]) {
            assert!(matches!(
                document.ask(one, 1, None, || None),
                AskOutcome::Busy(_)
            ));
        }
        let text = |at: usize| waiting[at].token.hold_text();
        for (at, ahead) in [
            (0, vec![]),
            (1, vec![]),
            (2, vec![text(1), text(0)]),
            (3, vec![text(2), text(1)]),
        ] {
            assert_eq!(document.ahead(&waiting[at].token), ahead);
        }
        assert!(
            document.ahead(&other.token).is_empty(),
            "the first of its kind"
        );
        document.witness(
            2,
            |_| true,
            is(&[&waiting[0], &waiting[2], &waiting[3], &other]),
        );
        assert_eq!(document.ahead(&waiting[3].token), [text(2), text(0)]);
        assert_eq!(document.before(&other.token), [text(0), text(2), text(3)]);
    }

    #[test]
    fn a_detached_holder_lasts_by_its_times_and_an_attached_one_needs_a_process() {
        let mut document = Document::default();
        let detached = Request {
            detached: true,
            ..request(Mode::Permits(2))
        };
        let attached = request(Mode::Permits(2));
        take(&mut document, &attached, 1);
        assert_eq!(
            (
                document.has_detached(),
                document.has_room(Mode::Permits(2), None)
            ),
            (false, true)
        );
        take(&mut document, &detached, 2);
        assert_eq!(
            (
                document.has_detached(),
                document.has_room(Mode::Permits(2), None)
            ),
            (true, false)
        );
        assert!(
            !document.has_room(Mode::Permits(3), Some(9))
                && document.has_room(Mode::Permits(3), None)
        );
        assert_eq!(
            [1, 2, 3].map(|fence| document.is_detached(Fence(fence))),
            [Some(false), Some(true), None]
        );
        assert_eq!(
            document.attached().collect::<Vec<_>>(),
            [attached.token.hold_text()]
        );
        document.detach();
        document.witness(3, |_| false, |_| true);
        assert!(
            ended(&mut document, 3).is_empty() && document.attached().next().is_none(),
            "whether they live is unknown now"
        );
    }

    #[test]
    fn own_holds_and_those_of_living_processes_stay() {
        let mut document = Document::default();
        let outer = request(Mode::Shared);
        let inner = [(); 2].map(|()| Request {
            token: outer.token.nested(),
            entry: Entry::Reenter,
            ..outer.clone()
        });
        take(&mut document, &outer, 0);
        for one in &inner {
            assert!(matches!(
                document.ask(one, 1, None, || None),
                AskOutcome::Has(_)
            ));
        }
        document.drop_dead_holds(&outer.token, is(&[&inner[1]]));
        let held =
            [&outer, &inner[0], &inner[1]].map(|one| document.has_hold(&one.token.hold_text()));
        assert_eq!(held, [true, false, true]);
    }

    #[test]
    fn a_dead_waiter_wakes_the_one_behind_it() {
        let mut document = Document::default();
        take(&mut document, &request(Mode::Shared), 0);
        let (writer, reader) = (request(Mode::Exclusive), request(Mode::Shared));
        for one in [&writer, &reader] {
            assert!(matches!(
                document.ask(one, 1, None, || None),
                AskOutcome::Busy(_)
            ));
        }
        assert_eq!(
            [&writer, &reader].map(|one| document.position(&one.token)),
            [Some(0), Some(1)]
        );
        document.take_wake_ups(None);
        document.witness(2, |_| true, |_| true);
        assert!(document.take_wake_ups(None).is_empty());
        document.witness(2, |_| true, is(&[&reader]));
        assert_eq!(
            document
                .take_wake_ups(None)
                .iter()
                .map(|woken| &woken.hold)
                .collect::<Vec<_>>(),
            [&reader.token.hold_text()]
        );
        assert_eq!(
            [&writer, &reader].map(|one| document.position(&one.token)),
            [None, Some(0)]
        );
        document.witness(3, |_| true, |_| true);
        assert!(
            document.take_wake_ups(None).is_empty(),
            "nothing has changed"
        );
    }
}
