//! Taking a lock, entering a hold of the same owner, and joining the queue.

use std::time::Duration;

use super::{
    super::{
        Attempt, Busy, DRAIN_DELAY, Denial, Entry, Fence, Grant, Mode, Request, Result, Token,
    },
    Document,
    holder::{HoldEntry, HolderEntry},
    room,
};

/// The answer to [`Document::ask`].
#[derive(Debug)]
pub enum AskOutcome {
    /// The owner has the lock already, and now also this hold.
    Has(Grant),
    /// The owner has the lock in this mode, which does not cover the request ([`Mode::covers`]).
    Otherwise(Mode),
    /// The request may be granted; it has left the queue.
    Go,
    /// Other holders have the lock, or other waiters go first; a request that waits is in the
    /// queue. Only holders of the document are known.
    Busy(Busy),
    /// There is room, but a run record denies the request.
    Denied(Box<Denial>),
    /// The request may only enter its owner's hold, and the owner is no holder.
    NotHeld,
}

/// The circumstances of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestContext {
    /// The store's time in ms.
    pub now: u64,
    /// When a hold outside of the document ends; `None` without one.
    pub outside: Option<u64>,
    /// The fence for a fresh grant, above all earlier fences.
    pub fence: Fence,
}

impl Document {
    /// Takes the lock, enters it, or joins the queue, and records a fresh run. A grant is fresh if
    /// it has the fence of `moment`.
    ///
    /// # Errors
    /// [`Mode::not_enough`] if the owner has the lock in a mode that does not cover the request.
    pub fn acquire(&mut self, request: &Request, moment: &RequestContext) -> Result<Attempt> {
        let now = moment.now;
        let denial = self
            .run_record
            .judge(request.run_policy.as_ref(), &request.token, now);
        Ok(match self.ask(request, now, moment.outside, || denial) {
            AskOutcome::Has(grant) => {
                if request.entry == Entry::Fresh {
                    self.record_missing(request, grant.fence, now);
                }
                Attempt::Granted(grant)
            }
            AskOutcome::Otherwise(mode) => return Err(mode.not_enough()),
            AskOutcome::Go => {
                self.run_record.begin(request, moment.fence, now);
                Attempt::Granted(self.grant(request, moment.fence, now))
            }
            AskOutcome::Busy(busy) => Attempt::Busy(busy),
            AskOutcome::Denied(denial) => Attempt::Denied(denial),
            AskOutcome::NotHeld => Attempt::NotHeld,
        })
    }

    /// Asks for the lock, while an exclusive hold outside lasts until `outside`; `refused` returns
    /// why a run record denies a fresh hold of a lock that has room. After [`AskOutcome::Go`] the
    /// same step must grant the lock: with [`Document::grant`], or outside.
    pub fn ask(
        &mut self,
        request: &Request,
        now: u64,
        outside: Option<u64>,
        refused: impl FnOnce() -> Option<Denial>,
    ) -> AskOutcome {
        match self.holder(&request.token) {
            Some(holder) if !holder.mode.covers(request.mode) => {
                return AskOutcome::Otherwise(holder.mode);
            }
            _ => {}
        }
        if let Some(grant) = self.enter(request, now) {
            return AskOutcome::Has(grant);
        }
        if request.entry == Entry::Reenter {
            return AskOutcome::NotHeld;
        }
        let mut must_wait_ms = None;
        if self.room(request.mode, outside) > 0 {
            if let Some(denial) = refused() {
                return AskOutcome::Denied(Box::new(denial));
            }
            must_wait_ms = self.must_wait_ms(request, now, outside);
            if must_wait_ms.is_none() {
                self.queue.granted(&request.token);
                self.dirty = true;
                return AskOutcome::Go;
            }
        }
        let position = self.queue.join(request, now);
        let ends = self.holders.iter().map(HolderEntry::ends).chain(outside);
        // The first permit to be released is enough.
        let end = if matches!(request.mode, Mode::Permits(_)) {
            ends.min()
        } else {
            ends.max()
        };
        AskOutcome::Busy(Busy {
            expires_in: must_wait_ms
                .or(end.map(|end| end.saturating_sub(now)))
                .map(Duration::from_millis),
            transient: !self.has_holders() && outside.is_none(),
            holders: self.holders(now),
            notifies: true,
            position,
        })
    }

    /// Whether only a waiter's sign of life is new since `was`, and can be written another time. Of
    /// many waiters that are woken at once, one writes first: if all others repeated that, they would
    /// keep the release and the next grant from being written.
    pub fn only_hears(&self, was: &Self, token: &Token, now: u64) -> bool {
        let hold = token.hold_text();
        let Some(queued) = was.queue.find(&hold).filter(|queued| queued.may_skip(now)) else {
            return false;
        };
        let mut same = self.clone();
        if let Some(new) = same.queue.find_mut(&hold) {
            new.seen = queued.seen;
        }
        same == *was
    }

    /// Grants a hold, after [`AskOutcome::Go`].
    pub fn grant(&mut self, request: &Request, fence: Fence, now: u64) -> Grant {
        let ends = now.saturating_add(request.ttl.as_millis());
        let permit = self.permit(request.mode);
        self.holders
            .push(HolderEntry::new(request, permit, fence, now, ends));
        Grant {
            fence,
            ttl: request.ttl,
            holds: 1,
            drain_delay: self.drain_delay(now),
            session: None,
            permit,
        }
    }

    /// Enters or repeats a hold of an owner that is a holder. Never moves an end backwards.
    fn enter(&mut self, request: &Request, now: u64) -> Option<Grant> {
        let drain_delay = self.drain_delay(now);
        let holder = self.holder_mut(&request.token)?;
        let (ttl, hold) = (request.ttl.as_millis(), request.token.hold_text());
        let before = holder.holds.get(&hold).map_or(0, |hold| hold.ends);
        holder.holds.insert(
            hold,
            HoldEntry {
                ttl,
                ends: before.max(now.saturating_add(ttl)),
            },
        );
        holder.renewed = now;
        let grant = Grant {
            fence: Fence(holder.fence),
            permit: holder.permit,
            ttl: request.ttl,
            holds: holder.count(),
            drain_delay,
            session: None,
        };
        self.leave(&request.token);
        Some(grant)
    }

    /// Records the start of a repeated request, if the granting step was cut short before that.
    fn record_missing(&mut self, request: &Request, fence: Fence, now: u64) {
        let Some(run_policy) = &request.run_policy else {
            return;
        };
        let cooldown = run_policy.skew_guard.is_none() && run_policy.at_least.is_none()
            || self
                .run_record
                .cooldown
                .as_ref()
                .is_some_and(|cooldown| cooldown.fence == fence);
        let once = run_policy.once.is_none()
            || self
                .run_record
                .start
                .as_ref()
                .is_some_and(|start| start.fence == fence);
        if !(cooldown && once) {
            self.run_record.begin(request, fence, now);
        }
    }

    /// How long the commands of holders whose sessions ended may still run.
    fn drain_delay(&self, now: u64) -> Duration {
        if self.drained > now {
            DRAIN_DELAY
        } else {
            Duration::ZERO
        }
    }

    fn must_wait_ms(&mut self, request: &Request, now: u64, outside: Option<u64>) -> Option<u64> {
        let Self {
            queue,
            holders,
            offered,
            ..
        } = self;
        queue.must_wait_ms(request, |mode| room(holders, mode, outside), now, offered)
    }

    /// Returns the lowest number that no permit has.
    fn permit(&self, mode: Mode) -> Option<u32> {
        let Mode::Permits(most) = mode else {
            return None;
        };
        (0..most).find(|number| {
            self.holders
                .iter()
                .all(|holder| holder.permit != Some(*number))
        })
    }
}
