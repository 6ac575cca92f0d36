//! Who waits for a lock, and who of them goes first: the reference for every store.
//!
//! Nobody is held up by those behind. Those in front are gone past, but for two: who asked for fair order, and a writer, whom
//! a stream of readers would otherwise keep out for ever. Readers never hold each other up.
//!
//! The worst cases are waiters that die. One that has not asked for [`GONE`] is dropped. One whose turn it is, since the lock has
//! room for it and somebody behind it was told to let it go first, has [`TURN`] to ask; then it has lost its place, also if
//! it was only slow. Nothing but its own grant, or asking itself, gives it another turn.

use std::time::Duration;

use tokio::time::Instant;

use crate::lock::{Metadata, Mode, Request, Token, Waiter};

/// A waiter that has not asked for so long is gone: the core asks every five seconds.
const GONE: Duration = Duration::from_secs(15);
/// How long a lock that has room is kept for who is to go first.
const TURN: Duration = Duration::from_secs(1);

/// Who waits, longest first.
#[derive(Default)]
pub(super) struct Queue(Vec<Queued>);

struct Queued {
    token: Token,
    mode: Mode,
    fair: bool,
    metadata: Option<Metadata>,
    since: Instant,
    seen: Instant,
    /// Since when somebody behind it has let it go first.
    called: Option<Instant>,
}

impl Queued {
    fn goes_before(&self, request: &Request) -> bool {
        match (self.mode, request.mode) {
            (Mode::Shared, Mode::Shared) => false,
            (Mode::Exclusive, Mode::Shared) => true,
            _ => self.fair,
        }
    }
}

impl Queue {
    /// Drops who is gone.
    pub(super) fn settle(&mut self, now: Instant) {
        self.0.retain(|queued| now < queued.seen + GONE);
    }

    /// For how long yet `request` must let others go first, where `room` says how many of a mode can be granted now;
    /// `None` if it may go. Whoever has let its turn pass is dropped.
    pub(super) fn held_up(&mut self, request: &Request, room: impl Fn(Mode) -> usize, now: Instant) -> Option<Duration> {
        loop {
            let end = self.place(&request.token).unwrap_or(self.0.len());
            let mut before = self.0[..end].iter_mut().filter(|queued| queued.goes_before(request));
            let first = before.next()?;
            let alike = |queued: &Queued| matches!(queued.mode, Mode::Permits(_)) && matches!(request.mode, Mode::Permits(_));
            let (all_alike, count) = before.fold((alike(first), 1), |(all, count), queued| (all && alike(queued), count + 1));
            if all_alike && count < room(request.mode) {
                return None;
            }
            if room(first.mode) == 0 {
                return Some(GONE.saturating_sub(now - first.seen));
            }
            let left = TURN.saturating_sub(now - *first.called.get_or_insert(now));
            if left > Duration::ZERO {
                return Some(left);
            }
            let token = first.token;
            self.leave(&token);
        }
    }

    /// Joins the queue, or shows that it is still there; the place, from 1.
    pub(super) fn join(&mut self, request: &Request, now: Instant) -> Option<u32> {
        let place = self.place(&request.token).or_else(|| {
            request.waiting.then(|| {
                self.0.push(Queued {
                    token: request.token,
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
        self.0[place].seen = now;
        self.0[place].called = None;
        u32::try_from(place + 1).ok()
    }

    /// Leaves it; whether it was there.
    pub(super) fn leave(&mut self, token: &Token) -> bool {
        let before = self.0.len();
        self.0.retain(|queued| queued.token != *token);
        self.0.len() < before
    }

    /// Somebody was granted the lock: whose turn it was waits for the next one.
    pub(super) fn granted(&mut self, token: &Token) {
        self.leave(token);
        self.0.iter_mut().for_each(|queued| queued.called = None);
    }

    /// Whether one that is woken may have to let another one go, or can go with others, so that waking one is not enough.
    pub(super) fn wants_all_woken(&self) -> bool {
        self.0.iter().any(|queued| queued.fair || queued.mode != Mode::Exclusive)
    }

    pub(super) fn waiters(&self, now: Instant) -> Vec<Waiter> {
        self.0.iter().map(|queued| Waiter { metadata: queued.metadata.clone(), waiting_for: Some(now - queued.since) }).collect()
    }

    fn place(&self, token: &Token) -> Option<usize> {
        self.0.iter().position(|queued| queued.token == *token)
    }
}
