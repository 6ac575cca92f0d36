//! Who waits for a lock, and who of them goes first: the reference for every store.
//!
//! Nobody is held up by those behind. Those in front are gone past, but for two: who asked for fair order, and a writer, whom
//! a stream of readers would otherwise keep out for ever. Readers never hold each other up.
//!
//! The worst cases are waiters that die. One that has not asked for [`GONE`] is dropped. One whose turn it is, since the lock has
//! room for it and somebody behind it was told to let it go first, has [`TURN`] to ask; then it has lost its place, also if
//! it was only slow. Nothing but its own grant, or asking itself, gives it another turn.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    super::{Metadata, Mode, Request, Token, Waiter},
    Woken, share,
};

/// A waiter that has not asked for so many ms is gone: the core asks every five seconds.
const GONE: u64 = 15_000;
/// For how many ms a sign of life is as good as a new one.
const FRESH: u64 = 2_000;
/// For how many ms a lock that has room is kept for who is to go first.
pub(super) const TURN: u64 = 1_000;

/// Who waits, longest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Queue(Vec<Queued>);

/// Times are ms of the store's clock; the short names are part of the layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Queued {
    #[serde(rename = "h")]
    pub hold: String,
    #[serde(rename = "m", with = "share")]
    pub mode: Mode,
    #[serde(rename = "f", default, skip_serializing_if = "std::ops::Not::not")]
    pub fair: bool,
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    #[serde(rename = "b")]
    pub since: u64,
    #[serde(rename = "l")]
    pub seen: u64,
    /// Since when somebody behind it has let it go first.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub called: Option<u64>,
}

impl Queued {
    fn goes_before(&self, mode: Mode) -> bool {
        match (self.mode, mode) {
            (Mode::Shared, Mode::Shared) => false,
            (Mode::Exclusive, Mode::Shared) => true,
            _ => self.fair,
        }
    }

    pub fn is_plain(&self) -> bool {
        self.mode == Mode::Exclusive && !self.fair
    }

    pub fn woken(&self) -> Woken {
        Woken { hold: self.hold.clone(), plain: self.is_plain() }
    }
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn all(&self) -> &[Queued] {
        &self.0
    }

    pub fn find(&self, hold: &str) -> Option<&Queued> {
        self.0.iter().find(|queued| queued.hold == hold)
    }

    pub fn find_mut(&mut self, hold: &str) -> Option<&mut Queued> {
        self.0.iter_mut().find(|queued| queued.hold == hold)
    }

    /// Drops who is gone; whether anybody was.
    pub fn settle(&mut self, now: u64) -> bool {
        for queued in &mut self.0 {
            queued.seen = queued.seen.min(now);
            queued.called = queued.called.map(|called| called.min(now));
        }
        let before = self.0.len();
        self.0.retain(|queued| now.saturating_sub(queued.seen) < GONE);
        self.0.len() < before
    }

    /// For how many ms yet `request` must let others go first, where `room` says how many of a mode can be granted now;
    /// `None` if it may go. Whoever has let its turn pass is dropped: that is to be `told` too, if it was only slow, as whose turn has
    /// begun.
    pub fn held_up(&mut self, request: &Request, room: impl Fn(Mode) -> usize, now: u64, told: &mut Vec<Woken>) -> Option<u64> {
        loop {
            let end = self.place(&request.token.hold_text()).unwrap_or(self.0.len());
            let mut before = self.0[..end].iter_mut().filter(|queued| queued.goes_before(request.mode));
            let first = before.next()?;
            let alike = |queued: &Queued| matches!(queued.mode, Mode::Permits(_)) && matches!(request.mode, Mode::Permits(_));
            let (all_alike, count) = before.fold((alike(first), 1), |(all, count), queued| (all && alike(queued), count + 1));
            if all_alike && count < room(request.mode) {
                return None;
            }
            if room(first.mode) == 0 {
                return Some(GONE.saturating_sub(now.saturating_sub(first.seen)));
            }
            if first.called.is_none() {
                told.push(first.woken());
            }
            let left = TURN.saturating_sub(now.saturating_sub(*first.called.get_or_insert(now)));
            if left > 0 {
                return Some(left);
            }
            let late = first.woken();
            self.leave(&late.hold);
            told.push(late);
        }
    }

    /// Joins the queue, or shows that it is still there; the place, from 1.
    pub fn join(&mut self, request: &Request, now: u64) -> Option<u32> {
        let hold = request.token.hold_text();
        let place = self.place(&hold).or_else(|| {
            request.waiting.then(|| {
                self.0.push(Queued {
                    hold,
                    mode: request.mode,
                    fair: request.fair,
                    metadata: request.metadata.clone(),
                    since: now,
                    seen: now,
                    called: None,
                });
                self.0.len() - 1
            })
        })?;
        let queued = &mut self.0[place];
        // What was heard of a moment ago need not be written again.
        if queued.called.take().is_some() || now.saturating_sub(queued.seen) >= FRESH {
            queued.seen = now;
        }
        u32::try_from(place + 1).ok()
    }

    /// Puts one in who came at some other time, unless it is there.
    pub fn insert(&mut self, queued: Queued) {
        if self.place(&queued.hold).is_none() {
            let at = self.0.iter().position(|other| other.since > queued.since).unwrap_or(self.0.len());
            self.0.insert(at, queued);
        }
    }

    /// Drops those who don't live; whether there was one.
    pub fn keep(&mut self, lives: impl Fn(&str) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|queued| lives(&queued.hold));
        self.0.len() < before
    }

    /// Those in front of it.
    pub fn before(&self, hold: &str) -> impl DoubleEndedIterator<Item = &Queued> {
        self.0[..self.place(hold).unwrap_or(self.0.len())].iter()
    }

    /// Leaves it; whether it was there.
    pub fn leave(&mut self, hold: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|queued| queued.hold != hold);
        self.0.len() < before
    }

    /// Somebody was granted the lock: whose turn it was waits for the next one.
    pub fn granted(&mut self, token: &Token) {
        self.leave(&token.hold_text());
        self.0.iter_mut().for_each(|queued| queued.called = None);
    }

    /// Those who can be granted the lock now, or will be once who is in front of them has let its turn pass; so many at most, and one
    /// of those who want it for themselves alone and in no order: any of them would do.
    pub fn may_go(&self, room: impl Fn(Mode) -> usize, most: usize) -> Vec<Woken> {
        let blocked = |at: usize, mode| self.0[..at].iter().any(|other| other.goes_before(mode) && room(other.mode) == 0);
        let mut woken: Vec<Woken> = Vec::new();
        for (at, queued) in self.0.iter().enumerate() {
            if woken.len() == most {
                break;
            }
            let another = queued.is_plain() && woken.iter().any(|other| other.plain);
            if !another && room(queued.mode) > 0 && !blocked(at, queued.mode) {
                woken.push(queued.woken());
            }
        }
        woken
    }

    pub fn waiters(&self, now: u64) -> Vec<(&str, Waiter)> {
        let waiter = |queued: &Queued| Waiter {
            metadata: queued.metadata.clone(),
            waiting_for: Some(Duration::from_millis(now.saturating_sub(queued.since))),
        };
        self.0.iter().map(|queued| (&*queued.hold, waiter(queued))).collect()
    }

    pub fn in_front_of(&self, hold: &str) -> Option<&str> {
        let at = self.place(hold)?.checked_sub(1)?;
        Some(&*self.0[at].hold)
    }

    fn place(&self, hold: &str) -> Option<usize> {
        self.0.iter().position(|queued| queued.hold == hold)
    }
}
