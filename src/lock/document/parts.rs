//! A document in parts, for stores that keep the holders in one place, and the queue or the run
//! record in others.

use serde::Serialize;

use super::{Document, Fence, HistoryEntry, HolderEntry, Mode, QueueEntry, RunRecord};

/// The result of [`Document::take_times`]. Times are ms of the store's clock.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The hold's fence.
    pub fence: u64,
    /// When it took the lock.
    pub since: u64,
    /// When the hold was last taken or extended.
    pub renewed: u64,
    /// When the hold ends.
    pub ends: u64,
}

impl Document {
    /// Returns the holders alone, as [`Document::read`] reads them; `None` if there are none.
    pub fn write_holders(&self) -> Option<String> {
        #[derive(Serialize)]
        struct Holders<'a> {
            v: u16,
            s: &'a [HolderEntry],
        }
        // The holders have only texts and numbers, so serializing can't fail.
        if self.has_holders() {
            serde_json::to_string(&Holders {
                v: self.layout,
                s: &self.holders,
            })
            .ok()
        } else {
            None
        }
    }

    /// Returns the fence of each holder.
    pub fn fences(&self) -> impl Iterator<Item = Fence> + '_ {
        self.holders.iter().map(|holder| Fence(holder.fence))
    }

    /// Returns the history entry of the hold with this fence for the case that it is never
    /// released.
    pub fn vanished(&self, fence: Fence) -> Option<HistoryEntry> {
        self.holders
            .iter()
            .find(|holder| holder.fence == fence.0)
            .map(|holder| holder.vanished(holder.ends()))
    }

    /// Returns when the only hold of the only holder took the lock exclusively; `None` if there are
    /// more, or the lock is shared.
    pub fn held_alone_since(&self) -> Option<u64> {
        match &*self.holders {
            [only] if only.mode == Mode::Exclusive && only.holds.len() == 1 => Some(only.since),
            _ => None,
        }
    }

    /// Returns the only holder, if it holds the lock exclusively with one hold, and no waiter is in
    /// the queue.
    pub fn only_exclusive_holder(&self) -> Option<&HolderEntry> {
        match &*self.holders {
            [only]
                if only.mode == Mode::Exclusive
                    && only.holds.len() == 1
                    && self.queue.is_empty() =>
            {
                Some(only)
            }
            _ => None,
        }
    }

    /// Takes the times and the fence out of the only hold of an exclusive holder, for a store that
    /// keeps them separately.
    pub fn take_times(&mut self) -> Option<Times> {
        let [only] = &mut *self.holders else {
            return None;
        };
        let mut holds = only.holds.values_mut();
        let (Mode::Exclusive, Some(hold), None) = (only.mode, holds.next(), holds.next()) else {
            return None;
        };
        let take = std::mem::take::<u64>;
        Some(Times {
            fence: take(&mut only.fence),
            since: take(&mut only.since),
            renewed: take(&mut only.renewed),
            ends: take(&mut hold.ends),
        })
    }

    /// Puts back the times and the fence that [`Document::take_times`] took.
    pub fn put_times(&mut self, times: &Times) {
        if let [only] = &mut *self.holders
            && only.fence == 0
        {
            (only.fence, only.since, only.renewed) = (times.fence, times.since, times.renewed);
            only.holds
                .values_mut()
                .for_each(|hold| hold.ends = times.ends);
        }
    }

    /// Returns the owner that holds the lock exclusively.
    pub fn exclusive_owner(&self) -> Option<&str> {
        self.holders
            .iter()
            .find(|holder| holder.mode == Mode::Exclusive)
            .map(|holder| &*holder.owner)
    }

    /// Whether this hold exists, by its [`super::Token::hold_text`].
    pub fn has_hold(&self, hold: &str) -> bool {
        self.holders
            .iter()
            .any(|holder| holder.holds.contains_key(hold))
    }

    /// Returns the earliest end of the holds that exist at `now` and last by their times, unless
    /// they are renewed.
    pub fn holds_end_after(&self, now: u64) -> Option<u64> {
        self.holders
            .iter()
            .filter(|holder| holder.session.is_none())
            .flat_map(|holder| holder.holds.values())
            .map(|hold| hold.ends)
            .filter(|ends| *ends > now)
            .min()
    }

    /// Adds an ended hold, which the store kept separately, to the outbox.
    pub fn add_ended(&mut self, past: HistoryEntry) {
        self.ended.push(past);
    }

    /// Returns the fence of the last hold that was warned about, and the highest level of a
    /// warning.
    pub fn warned(&self) -> (u64, u32) {
        self.warned
    }

    /// Adds a warning that the store kept separately.
    pub fn set_warned(&mut self, fence: Fence, level: u32) {
        self.warned = (fence.0, level);
    }

    /// Returns the run record.
    pub fn run_record(&self) -> &RunRecord {
        &self.run_record
    }

    /// Adds a run record that the store kept separately.
    pub fn set_run_record(&mut self, run_record: RunRecord) {
        self.run_record = run_record;
    }

    /// Returns the queue, the longest waiter first.
    pub fn queue(&self) -> &[QueueEntry] {
        self.queue.all()
    }

    /// Adds a waiter that the store kept separately to the queue, at its position.
    pub fn enqueue(&mut self, waiter: QueueEntry) {
        self.queue.insert(waiter);
    }

    /// Sets the time since when the lock is offered to a waiter.
    pub fn offer(&mut self, hold: &str, since: u64) {
        if let Some(waiter) = self.queue.find_mut(hold) {
            waiter.offered = Some(since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            AskOutcome,
            tests::{request, waiting},
        },
        *,
    };
    use crate::lock::{End, Entry, Request, Token};

    /// Returns a document after these requests, one a ms from 10 on; the first one that is granted
    /// has the fence 10.
    fn after(requests: &[&Request]) -> Document {
        let mut document = Document::default();
        for (now, request) in (10..).zip(requests) {
            if let AskOutcome::Go = document.ask(request, now, None, || None) {
                document.grant(request, Fence(now), now);
            }
        }
        document
    }

    #[test]
    fn holders_are_written_without_the_rest() {
        let (one, waiter) = (request(Mode::Shared), waiting(Mode::Exclusive));
        let document = after(&[&one, &waiter]);
        let read = Document::read(document.write_holders().as_deref()).unwrap();
        assert_eq!(
            (read.holders(10), read.queue()),
            (document.holders(10), &[][..])
        );
        assert_eq!(Document::default().write_holders(), None);
    }

    #[test]
    fn only_a_single_exclusive_hold_can_be_kept_separately() {
        let one = request(Mode::Exclusive);
        let (inner, waiter) = (
            Request {
                token: one.token.nested(),
                entry: Entry::Reenter,
                ..one.clone()
            },
            waiting(Mode::Exclusive),
        );
        let found = |mut document: Document| {
            let owner = document
                .only_exclusive_holder()
                .map(|holder| holder.owner.clone());
            (
                owner.as_deref() == document.exclusive_owner(),
                document.held_alone_since(),
                document.take_times().map(|times| times.since),
            )
        };
        assert_eq!(found(after(&[&one])), (true, Some(10), Some(10)));
        assert_eq!(
            found(after(&[&one, &waiter])),
            (false, Some(10), Some(10)),
            "with a waiter"
        );
        assert_eq!(
            found(after(&[&one, &inner])),
            (false, None, None),
            "with a nested hold"
        );
        assert_eq!(
            found(after(&[&request(Mode::Shared)])),
            (true, None, None),
            "no one owns a shared lock"
        );
        assert_eq!(found(Document::default()), (true, None, None));
        assert_eq!(
            after(&[&one]).exclusive_owner(),
            Some(&*one.token.owner.to_string())
        );
        assert!(after(&[&one]).only_exclusive_holder().is_some());
        assert!(
            after(&[&request(Mode::Shared)])
                .only_exclusive_holder()
                .is_none()
        );
    }

    #[test]
    fn times_are_taken_out_and_put_back_once() {
        let whole = after(&[&request(Mode::Exclusive)]);
        let mut document = whole.clone();
        let times = document.take_times().unwrap();
        assert_eq!(
            (times.fence, times.since, times.renewed, times.ends),
            (10, 10, 10, 60_010)
        );
        assert_ne!(document, whole);
        document.put_times(&times);
        assert_eq!(document, whole);
        document.put_times(&Times { fence: 7, ..times });
        assert_eq!(document, whole, "it has its times");
    }

    #[test]
    fn holds_are_found_by_their_names_fences_and_ends() {
        let (one, two) = (request(Mode::Shared), request(Mode::Shared));
        let document = after(&[&one, &two]);
        assert!(
            document.has_hold(&two.token.hold_text())
                && !document.has_hold(&Token::random().hold_text())
        );
        assert_eq!(
            [0, 60_010, 60_011].map(|now| document.holds_end_after(now)),
            [Some(60_010), Some(60_011), None]
        );
        let past = document.vanished(Fence(11)).unwrap();
        assert_eq!(
            (past.fence, past.started_ms, past.ended_ms, &past.end),
            (Some(Fence(11)), Some(11), Some(60_011), &End::Expired)
        );
        assert_eq!(document.vanished(Fence(12)), None);
        assert_eq!(
            document.fences().collect::<Vec<_>>(),
            [Fence(10), Fence(11)]
        );
        let mut document = document;
        document.add_ended(past.clone());
        document.set_warned(Fence(11), 2);
        assert_eq!(
            (document.warned(), document.take_ended()),
            ((11, 2), vec![past])
        );
    }

    #[test]
    fn a_queue_that_was_kept_separately_is_put_together_again() {
        let waiters = [waiting(Mode::Exclusive), waiting(Mode::Shared)];
        let whole = after(&[&request(Mode::Exclusive), &waiters[0], &waiters[1]]);
        let mut document = Document::default();
        whole
            .queue()
            .iter()
            .rev()
            .cloned()
            .for_each(|waiter| document.enqueue(waiter));
        assert_eq!(document.queue(), whole.queue());
        document.offer(&waiters[1].token.hold_text(), 20);
        assert_eq!(
            document
                .queue()
                .iter()
                .map(|waiter| waiter.offered)
                .collect::<Vec<_>>(),
            [None, Some(20)]
        );
    }
}
