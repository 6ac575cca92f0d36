//! The queue of a lock, and which waiter goes first: the reference for every store.
//!
//! A waiter never holds up earlier waiters. It holds up later ones in two cases: it asked for fair
//! order, or it is a writer, which a stream of readers would otherwise keep out forever. Readers
//! never hold each other up.
//!
//! The worst cases are waiters that die. A waiter that has not asked for [`GONE`] is dropped. The
//! lock is offered to a waiter if there is room for the waiter and a later one had to let it go
//! first. The waiter then has [`OFFER`] to ask. A slow waiter that does not ask in this time loses
//! its position too. Only its own request brings it another offer.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    super::{Metadata, Mode, Request, Token, Waiter},
    WakeUp, holder,
    turn::{first_before, goes_before},
};

/// A waiter that has not asked for this many ms is gone: the core asks every five seconds.
const GONE: u64 = 15_000;
/// A sign of life younger than this many ms is not renewed.
const FRESH: u64 = 2_000;
/// For this many ms the lock is offered only to the first waiter, and then also to later ones.
const HEAR: u64 = 200;
/// A lock that has room is reserved for this many ms for the waiter that it was offered to.
pub(super) const OFFER: u64 = 1_000;

/// The waiters, the longest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Queue(Vec<QueueEntry>);

/// One waiter. Times are ms of the store's clock; the short names are part of the layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueEntry {
    /// The hold, as in [`Token::hold_text`].
    #[serde(rename = "h")]
    pub hold: String,
    /// The mode that the waiter wants.
    #[serde(rename = "m", with = "holder")]
    pub mode: Mode,
    /// Whether the waiter asked for fair order.
    #[serde(rename = "f", default, skip_serializing_if = "std::ops::Not::not")]
    pub fair: bool,
    /// The waiter's metadata.
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// When the waiter came.
    #[serde(rename = "b")]
    pub since: u64,
    /// When the waiter last asked.
    #[serde(rename = "l")]
    pub seen: u64,
    /// Since when the lock is offered to the waiter: a later waiter has let it go first.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub offered: Option<u64>,
}

impl QueueEntry {
    /// A waiter that has just asked.
    pub fn new(request: &Request, now: u64) -> Self {
        let metadata = request.metadata.clone();
        let hold = request.token.hold_text();
        Self {
            hold,
            mode: request.mode,
            fair: request.fair,
            metadata,
            since: now,
            seen: now,
            offered: None,
        }
    }

    fn goes_before(&self, mode: Mode) -> bool {
        goes_before(self.mode, self.fair, mode)
    }

    /// Whether it is an unfair exclusive waiter.
    pub fn is_plain(&self) -> bool {
        self.mode == Mode::Exclusive && !self.fair
    }

    /// Whether the waiter's next sign of life comes soon enough.
    pub fn may_skip(&self, now: u64) -> bool {
        now.saturating_sub(self.seen) < GONE / 2
    }

    fn wake_up(&self) -> WakeUp {
        WakeUp {
            hold: self.hold.clone(),
            plain: self.is_plain(),
        }
    }
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn all(&self) -> &[QueueEntry] {
        &self.0
    }

    pub fn find(&self, hold: &str) -> Option<&QueueEntry> {
        self.0.iter().find(|queued| queued.hold == hold)
    }

    pub fn find_mut(&mut self, hold: &str) -> Option<&mut QueueEntry> {
        self.0.iter_mut().find(|queued| queued.hold == hold)
    }

    /// Drops waiters that are gone; returns whether there was one.
    pub fn expire(&mut self, now: u64) -> bool {
        for queued in &mut self.0 {
            queued.seen = queued.seen.min(now);
            queued.offered = queued.offered.map(|offered| offered.min(now));
        }
        let before = self.0.len();
        self.0
            .retain(|queued| now.saturating_sub(queued.seen) < GONE);
        self.0.len() < before
    }

    /// Returns for how many more ms `request` must let others go first; `None` if it may go. `room`
    /// returns how many of a mode fit now.
    ///
    /// Soon after the first waiter, all others get an offer too: any number of dead waiters lose
    /// their positions after one offer. A waiter that gets an offer or loses its position is
    /// `notified`: it may only have been slow.
    pub fn must_wait_ms(
        &mut self,
        request: &Request,
        room: impl Fn(Mode) -> usize,
        now: u64,
        notified: &mut Vec<WakeUp>,
    ) -> Option<u64> {
        loop {
            let end = self
                .position(&request.token.hold_text())
                .unwrap_or(self.0.len());
            let ahead = self.0[..end]
                .iter()
                .map(|queued| (queued.mode, queued.fair));
            let at = first_before(ahead, request.mode, || room(request.mode))?;
            let mut before = self.0[at..end]
                .iter_mut()
                .filter(|queued| queued.goes_before(request.mode));
            let first = before.next()?;
            if room(first.mode) == 0 {
                return Some(GONE.saturating_sub(now.saturating_sub(first.seen)));
            }
            if first.offered.is_none() {
                notified.push(first.wake_up());
            }
            let offered = *first.offered.get_or_insert(now);
            let since = now.saturating_sub(offered);
            if since < OFFER {
                let mut before = before.peekable();
                if since < HEAR && before.peek().is_some() {
                    return Some(HEAR - since);
                }
                // A waiter that has asked since then is alive.
                for other in before.filter(|other| {
                    other.offered.is_none() && other.seen < offered && room(other.mode) > 0
                }) {
                    other.offered = Some(now);
                    notified.push(other.wake_up());
                }
                return Some(OFFER - since);
            }
            let late = first.wake_up();
            self.leave(&late.hold);
            notified.push(late);
        }
    }

    /// Joins the queue, or refreshes the waiter's sign of life; returns the position, from 1.
    pub fn join(&mut self, request: &Request, now: u64) -> Option<u32> {
        let hold = request.token.hold_text();
        let at = self.position(&hold).or_else(|| {
            request.waiting.then(|| {
                self.0.push(QueueEntry::new(request, now));
                self.0.len() - 1
            })
        })?;
        let queued = &mut self.0[at];
        // A waiter that was moved here from the plain list has no flag for fair order there.
        queued.fair |= request.fair;
        // A fresh sign of life need not be written again.
        if queued.offered.take().is_some() || now.saturating_sub(queued.seen) >= FRESH {
            queued.seen = now;
        }
        u32::try_from(at + 1).ok()
    }

    /// Adds a waiter that came at another time, unless it is in the queue already.
    pub fn insert(&mut self, queued: QueueEntry) {
        if self.position(&queued.hold).is_none() {
            let at = self
                .0
                .iter()
                .position(|other| other.since > queued.since)
                .unwrap_or(self.0.len());
            self.0.insert(at, queued);
        }
    }

    /// Drops waiters that are not alive; returns whether there was one. The others need to give no
    /// sign of life of their own.
    pub fn keep(&mut self, lives: impl Fn(&str) -> bool, now: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|queued| lives(&queued.hold));
        for queued in &mut self.0 {
            queued.seen = now;
        }
        self.0.len() < before
    }

    /// Returns the waiters in front of this hold; all if it is not in the queue.
    pub fn before(&self, hold: &str) -> impl DoubleEndedIterator<Item = &QueueEntry> {
        self.0[..self.position(hold).unwrap_or(self.0.len())].iter()
    }

    /// Removes a waiter; returns whether it was in the queue.
    pub fn leave(&mut self, hold: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|queued| queued.hold != hold);
        self.0.len() < before
    }

    /// Ends all offers, since the lock was granted to this token.
    pub fn granted(&mut self, token: &Token) {
        self.leave(&token.hold_text());
        self.0.iter_mut().for_each(|queued| queued.offered = None);
    }

    /// Returns the waiters that can be granted the lock now, or once the offers to earlier waiters
    /// are over. Returns at most `most` waiters, and only one unfair exclusive waiter: any other of
    /// this kind can replace it.
    pub fn may_go(&self, room: impl Fn(Mode) -> usize, most: usize) -> Vec<WakeUp> {
        let blocked = |at: usize, mode| {
            self.0[..at]
                .iter()
                .any(|other| other.goes_before(mode) && room(other.mode) == 0)
        };
        let mut woken: Vec<WakeUp> = Vec::new();
        for (at, queued) in self.0.iter().enumerate() {
            if woken.len() == most {
                break;
            }
            let another = queued.is_plain() && woken.iter().any(|other| other.plain);
            if !another && room(queued.mode) > 0 && !blocked(at, queued.mode) {
                woken.push(queued.wake_up());
            }
        }
        woken
    }

    pub fn waiters(&self, now: u64) -> Vec<(&str, Waiter)> {
        let waiter = |queued: &QueueEntry| Waiter {
            metadata: queued.metadata.clone(),
            mode: Some(queued.mode),
            waiting_for: Some(Duration::from_millis(now.saturating_sub(queued.since))),
            in_order: queued.fair,
        };
        self.0
            .iter()
            .map(|queued| (&*queued.hold, waiter(queued)))
            .collect()
    }

    pub fn ahead_of(&self, hold: &str) -> Option<&str> {
        let at = self.position(hold)?.checked_sub(1)?;
        Some(&*self.0[at].hold)
    }

    fn position(&self, hold: &str) -> Option<usize> {
        self.0.iter().position(|queued| queued.hold == hold)
    }
}
