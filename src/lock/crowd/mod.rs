//! Who has a lock together with others, and who waits for it: the rules of shared locks, permits and fair order, as a state that stores
//! can keep as one line of JSON.
//!
//! Nothing here is I/O or reads a clock: each step is given the store's time, in ms. A store reads the state, settles it, asks it one
//! question, and writes it back in a step that fails if somebody else changed it meanwhile. An exclusive hold may be one of the shares,
//! or lie outside, where the store keeps such holds: then each question is told until when it lasts.
//!
//! Worst cases: a share is never given back (it ends by its own time, whatever becomes of others); the clock is set back (no sign of life and
//! no call lies in the future); a waiter died (see [`queue`]); an answer is lost (asked again with the same token, all is as it was).

mod living;
mod parts;
mod queue;
mod share;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::parts::Place;
use self::{
    queue::{Queue, Queued},
    share::{Held, Share},
};
use super::{
    Break, Busy, Entry, Error, Extension, Fence, Grant, Holder, Holding, Kind, Marking, Metadata, Mode, Parting, Past, Purpose, Refusal,
    Release, Renewal, Request, Result, Scope, Token, Ttl, Waiter,
};

/// The layout that this version writes: its major number by a hundred, and its minor one.
const LAYOUT: u16 = 100;
/// From here on a layout is a newer major one, which must not be touched.
const LAYOUT_REFUSED: u16 = 200;
/// How long a lock that has room is kept for who is to go first.
pub const TURN: Duration = Duration::from_millis(queue::TURN);
/// How many are woken at a time: one of them may be frozen.
const WOKEN: usize = 2;

/// The shares of one lock, and its queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crowd {
    #[serde(rename = "v")]
    layout: u16,
    #[serde(rename = "s", default, skip_serializing_if = "Vec::is_empty")]
    shares: Vec<Share>,
    #[serde(rename = "n", default, skip_serializing_if = "is_zero")]
    told: u64,
    #[serde(rename = "q", default, skip_serializing_if = "Queue::is_empty")]
    queue: Queue,
    /// Others may go now.
    #[serde(skip)]
    stirred: bool,
    /// Whose turn has just begun, or is over.
    #[serde(skip)]
    called: Vec<Woken>,
}

impl Default for Crowd {
    fn default() -> Self {
        Self { layout: LAYOUT, shares: Vec::new(), told: 0, queue: Queue::default(), stirred: false, called: Vec::new() }
    }
}

/// What is said to who asks for the lock.
#[derive(Debug)]
pub enum Answer {
    /// Its owner has the lock already, and now this hold.
    Has(Grant),
    /// Its owner has the lock in this mode, which is not what is asked for ([`Mode::covers`]).
    Otherwise(Mode),
    /// It may be granted; it is out of the queue.
    Go,
    /// Others have it, or go first; it is in the queue if it waits. Of holders it knows the shares only.
    Busy(Busy),
    /// There is room, but a run before keeps it from this one.
    Refused(Box<Refusal>),
    /// The owner to be entered has no share.
    NotHeld,
}

/// Somebody who waits and should ask now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Woken {
    /// The hold, as [`Token::hold_text`] has it.
    pub hold: String,
    /// It wants the lock for itself alone and in no order: any other such waiter is as good.
    pub plain: bool,
}

impl Crowd {
    /// What was written; nobody if nothing was.
    ///
    /// # Errors
    /// [`Kind::Layout`] if a newer dlock wrote it, [`Kind::Data`] if none did.
    pub fn read(json: Option<&str>) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            v: u16,
        }
        let Some(json) = json else { return Ok(Self::default()) };
        let bad = |error| Error::new(Kind::Data, "who shares the lock is not written as dlock does").source(error);
        let Version { v } = serde_json::from_str(json).map_err(bad)?;
        if v >= LAYOUT_REFUSED {
            let text = format!("the lock is shared by a newer dlock, whose layout {}.{} this one can't read", v / 100, v % 100);
            return Err(Error::new(Kind::Layout, text).hint("update dlock on this machine"));
        }
        serde_json::from_str(json).map_err(bad)
    }

    /// To be written; `None` if nobody has a share, and nobody waits.
    pub fn write(&self) -> Option<String> {
        // Of texts and numbers, which can always be written.
        if self.is_empty() { None } else { serde_json::to_string(self).ok() }
    }

    /// Nobody has a share, and nobody waits.
    pub fn is_empty(&self) -> bool {
        self.shares.is_empty() && self.queue.is_empty()
    }

    /// Whether anybody has a share.
    pub fn is_shared(&self) -> bool {
        !self.shares.is_empty()
    }

    /// When the last share ends unless it is extended.
    pub fn ends(&self) -> Option<u64> {
        self.shares.iter().map(Share::ends).max()
    }

    /// Until when this token's owner has a share; `None` if it has none.
    pub fn lasts(&self, token: &Token) -> Option<u64> {
        self.share(token).map(Share::ends)
    }

    /// The fence of this token's hold, if it lasts.
    pub fn fence(&self, token: &Token) -> Option<Fence> {
        let share = self.share(token)?;
        share.holds.contains_key(&token.hold_text()).then_some(Fence(share.fence))
    }

    /// Ends what is over; a share ends with its last hold. What is to be remembered of them.
    pub fn settle(&mut self, now: u64) -> Vec<Past> {
        let mut over = Vec::new();
        self.shares.retain_mut(|share| {
            let last = share.ends();
            share.holds.retain(|_, hold| hold.ends > now);
            if share.holds.is_empty() {
                over.push(share.vanished(last));
            }
            !share.holds.is_empty()
        });
        self.stirred |= self.queue.settle(now) || !over.is_empty();
        over
    }

    /// Ends all shares, since somebody took the lock who knows nothing of them. What is to be remembered of them.
    pub fn lose(&mut self, now: u64) -> Vec<Past> {
        self.stirred |= self.is_shared();
        self.shares.drain(..).map(|share| share.vanished(share.ends().min(now))).collect()
    }

    /// Asks for the lock, where an exclusive hold outside lasts until `outside`, and `refused` says what keeps a fresh hold from a lock
    /// that has room for it. Whoever may go is to be granted it in the same step: by [`Crowd::grant`], or outside.
    pub fn ask(&mut self, request: &Request, now: u64, outside: Option<u64>, refused: impl FnOnce() -> Option<Refusal>) -> Answer {
        match self.share(&request.token) {
            Some(share) if !share.mode.covers(request.mode) => return Answer::Otherwise(share.mode),
            _ => {}
        }
        if let Some(grant) = self.enter(request, now) {
            return Answer::Has(grant);
        }
        if request.entry == Entry::Reenter {
            return Answer::NotHeld;
        }
        let mut held_up = None;
        if self.room(request.mode, outside) > 0 {
            if let Some(refusal) = refused() {
                return Answer::Refused(Box::new(refusal));
            }
            held_up = self.held_up(request, now, outside);
            if held_up.is_none() {
                self.queue.granted(&request.token);
                self.stirred = true;
                return Answer::Go;
            }
        }
        let position = self.queue.join(request, now);
        let ends = self.shares.iter().map(Share::ends).chain(outside);
        // Whichever permit comes back first is enough.
        let end = if matches!(request.mode, Mode::Permits(_)) { ends.min() } else { ends.max() };
        Answer::Busy(Busy {
            expires_in: held_up.or(end.map(|end| end.saturating_sub(now))).map(Duration::from_millis),
            passing: !self.is_shared() && outside.is_none(),
            holders: self.holders(now),
            notifies: true,
            position,
        })
    }

    /// Takes a share, for who may go.
    pub fn grant(&mut self, request: &Request, fence: Fence, now: u64) -> Grant {
        let ends = now.saturating_add(request.ttl.as_millis());
        let permit = self.permit(request.mode);
        self.shares.push(Share::new(request, permit, fence, now, ends));
        Grant { fence, ttl: request.ttl, holds: 1, settle: Duration::ZERO, session: None, permit }
    }

    /// Extends a hold.
    pub fn renew(&mut self, token: &Token, extension: Extension, now: u64) -> Renewal {
        let Some(share) = self.share_mut(token) else { return Renewal::NotHeld };
        let Some(hold) = share.holds.get_mut(&token.hold_text()) else { return Renewal::NotHeld };
        if let Some(mark) = &mut share.mark {
            if extension.purpose == Purpose::GoOn {
                return Renewal::Broken(mark.clone());
            }
            mark.seen = true;
        }
        let ttl = extension.ttl.map_or(hold.ttl, Ttl::as_millis);
        let ends = now.saturating_add(ttl);
        if ends < hold.ends {
            return Renewal::WouldShorten { expires_in: Duration::from_millis(hold.ends - now) };
        }
        hold.ends = ends;
        share.renewed = now;
        Renewal::Renewed { ttl: Ttl::new(Duration::from_millis(ttl)).unwrap_or(Ttl::DEFAULT), fence: Fence(share.fence) }
    }

    /// Whether a token has a hold.
    pub fn verify(&self, token: &Token, now: u64) -> Holding {
        match self.share(token).and_then(|share| share.holds.get(&token.hold_text())) {
            Some(hold) => Holding::Held { expires_in: Some(Duration::from_millis(hold.ends.saturating_sub(now))) },
            None => Holding::NotHeld,
        }
    }

    /// Gives a hold back, and with the first one of a tree all others. What is to be remembered.
    pub fn release(&mut self, token: &Token, parting: &Parting, now: u64) -> (Release, Option<Past>) {
        let Some(share) = self.share_mut(token) else { return (Release::NotHeld, None) };
        let hold = token.hold_text();
        if share.holds.remove(&hold).is_none() {
            return (Release::NotHeld, None);
        }
        // Who entered whom is not recorded: only the first hold is known to enclose all others.
        if parting.scope == Scope::Tree && share.root == hold {
            share.holds.clear();
        }
        if !share.holds.is_empty() {
            return (Release::StillHeld(share.count()), None);
        }
        let past = parting.end.clone().map(|end| share.past(now, end, parting.why.clone()));
        let fence = share.fence;
        self.remove(fence);
        (Release::Released, past)
    }

    /// Leaves the queue; whether it was there.
    pub fn leave(&mut self, token: &Token) -> bool {
        let left = self.queue.leave(&token.hold_text());
        // Who leaves may have held others up, or have been woken in the place of another one.
        self.stirred |= left;
        left
    }

    /// Marks the share with this fence as to be broken. One that was marked before keeps whether it was seen.
    pub fn mark(&mut self, fence: Fence, mark: &Break) -> Marking {
        let Some(share) = self.shares.iter_mut().find(|share| share.fence == fence.0) else { return Marking::Changed };
        let seen = share.mark.as_ref().is_some_and(|known| known.seen);
        share.mark = Some(Break { seen, ..mark.clone() });
        Marking::Done
    }

    /// Takes the share with this fence away, with all of its holds; what is to be remembered.
    pub fn evict(&mut self, fence: Fence, mark: &Break, now: u64) -> Option<Past> {
        let (end, why) = mark.into();
        Some(self.remove(fence.0)?.past(now, end, why))
    }

    /// The exclusive hold outside was given back.
    pub fn freed(&mut self) {
        self.stirred = true;
    }

    /// Puts somebody into the queue, at the place that it had elsewhere: who waited for the whole lock, in no order, while nobody
    /// shared it.
    pub fn absorb(&mut self, hold: String, metadata: Option<Metadata>, since: u64, seen: u64) {
        self.queue.insert(Queued { hold, mode: Mode::Exclusive, fair: false, metadata, since, seen, called: None });
    }

    /// Who should ask now, since this was last asked, before it is written: not all of those who wait, and who is granted a share lets the next ones be woken.
    pub fn woken(&mut self, outside: Option<u64>) -> Vec<Woken> {
        let called = std::mem::take(&mut self.called);
        let most = if std::mem::take(&mut self.stirred) { WOKEN } else { 0 };
        let mut woken = self.queue.may_go(|mode| self.room(mode, outside), most);
        for one in called {
            if !woken.contains(&one) {
                woken.push(one);
            }
        }
        self.told += u64::from(!woken.is_empty());
        woken
    }

    /// Behind whom this hold waits: the one in front of it in the queue, or some who have shares, by the holds that they were taken with.
    pub fn behind_whom(&self, hold: &str) -> Vec<&str> {
        match self.queue.in_front_of(hold) {
            Some(other) => vec![other],
            None => self.shares.iter().take(WOKEN).map(|share| &*share.root).collect(),
        }
    }

    /// How often somebody was woken. Who was busy then, and finds more, may have been told before it could hear.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// Each share.
    pub fn holders(&self, now: u64) -> Vec<Holder> {
        self.shares.iter().map(|share| share.holder(now)).collect()
    }

    /// Who waits, longest first, by hold.
    pub fn waiters(&self, now: u64) -> Vec<(&str, Waiter)> {
        self.queue.waiters(now)
    }

    /// Enters or repeats a hold of an owner that has a share. Never moves an end backwards.
    fn enter(&mut self, request: &Request, now: u64) -> Option<Grant> {
        let share = self.shares.iter_mut().find(|share| share.is_of(&request.token))?;
        let (ttl, hold) = (request.ttl.as_millis(), request.token.hold_text());
        let before = share.holds.get(&hold).map_or(0, |hold| hold.ends);
        share.holds.insert(hold, Held { ttl, ends: before.max(now.saturating_add(ttl)) });
        share.renewed = now;
        let grant = Grant {
            fence: Fence(share.fence),
            permit: share.permit,
            ttl: request.ttl,
            holds: share.count(),
            settle: Duration::ZERO,
            session: None,
        };
        self.leave(&request.token);
        Some(grant)
    }

    fn held_up(&mut self, request: &Request, now: u64, outside: Option<u64>) -> Option<u64> {
        let Self { queue, shares, called, .. } = self;
        queue.held_up(request, |mode| room(shares, mode, outside), now, called)
    }

    /// How many holds of this mode the lock has room for.
    fn room(&self, mode: Mode, outside: Option<u64>) -> usize {
        room(&self.shares, mode, outside)
    }

    /// The lowest number that no permit has.
    fn permit(&self, mode: Mode) -> Option<u32> {
        let Mode::Permits(most) = mode else { return None };
        (0..most).find(|number| self.shares.iter().all(|share| share.permit != Some(*number)))
    }

    fn share(&self, token: &Token) -> Option<&Share> {
        self.shares.iter().find(|share| share.is_of(token))
    }

    fn share_mut(&mut self, token: &Token) -> Option<&mut Share> {
        self.shares.iter_mut().find(|share| share.is_of(token))
    }

    fn remove(&mut self, fence: u64) -> Option<Share> {
        let at = self.shares.iter().position(|share| share.fence == fence)?;
        self.stirred = true;
        Some(self.shares.remove(at))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// How many holds of `mode` there is room for beside `shares`. A new number of permits rules for new ones.
fn room(shares: &[Share], mode: Mode, outside: Option<u64>) -> usize {
    match mode {
        _ if outside.is_some() => 0,
        Mode::Exclusive => usize::from(shares.is_empty()),
        Mode::Shared if shares.iter().all(|share| share.mode == Mode::Shared) => usize::MAX,
        Mode::Permits(most) if shares.iter().all(|share| share.permit.is_some()) => {
            usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(shares.len())
        }
        Mode::Shared | Mode::Permits(_) => 0,
    }
}
