//! Taking a lock: asking, waiting, asking again, and leaving the queue on every way out.
//!
//! The loop covers these interleavings. The grant's answer is lost: the same token asks again,
//! which counts once. The grant comes so late that too little of the lease is left: dlock asks
//! again, which sets the expiry anew. The wait ends during an attempt: dlock undoes the attempt.
//! The waiter is notified while it leaves: `leave_queue` passes the offer on. The store goes away
//! and comes back: dlock goes on asking until the wait ends.

use std::{future::Future, pin::pin, time::Duration};

use super::{
    Budget, Clock, Lease, Limits,
    ask::{Pause, no_answer, silence, spread, timeout_factor},
    bounded,
    undo::{UNDO, Undo, worth_until},
    wall_ms,
};
use crate::lock::{
    Attempt, Backend, BootTime, Busy, Capabilities, Denial, Effect, Entry, Error, Fence, Grant,
    Identity, Kind, Origin, Request, Result, Rule, Token,
};

/// How long to wait for a lock that another process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Not at all.
    Try,
    /// At most this long.
    For(Duration),
    /// Without limit.
    Forever,
}

/// How an attempt to take a lock ended.
#[derive(Debug)]
pub enum Outcome<S> {
    /// The lock is granted.
    Granted(Lease),
    /// Another process held the lock until the wait ended.
    Busy(Busy),
    /// The lock is free, but a run record denies it to this run.
    Denied(Box<Denial>),
    /// `stop` was ready first; no hold and no waiter is left behind.
    Stopped(S),
}

/// The longest time that a waiter relies on a wake-up. It covers lost wake-ups and keeps the queue
/// entry fresh.
const RECHECK: Duration = Duration::from_secs(5);
/// How often a waiter asks when it is next in the queue and a run record still denies the lock.
const KEPT: Duration = Duration::from_millis(1500);
/// How often to look at a lock whose holder announces no release.
const POLL: Duration = Duration::from_millis(250);
/// The hint for a start that could not be undone.
const RECORDED: &str = "the start may be recorded, though nothing was started: --retry-crashed runs past it, dlock forget removes it";
/// How long a request in try mode waits for a lock that is free, or is busy only in passing.
const PASSING: Duration = Duration::from_millis(100);

/// Takes the lock that `request` describes, and waits as long as `wait_policy` says.
///
/// `stop` ends the attempt from outside; `busy` is called each time the lock is found held while
/// waiting. Not cancel safe: end it through `stop`.
///
/// # Errors
/// What the store can't do ([`crate::lock::Capabilities::check`]), and failures that asking again
/// didn't fix: within `limits.answer`, or by the end of the wait if that is later.
pub async fn acquire<S>(
    backend: &mut dyn Backend,
    clock: &dyn Clock,
    mut request: Request,
    wait_policy: WaitPolicy,
    limits: Limits<'_>,
    stop: impl Future<Output = S>,
    mut busy: impl FnMut(&Busy),
) -> Result<Outcome<S>> {
    let identity = backend.identity();
    identity.capabilities.check(&request)?;
    request.waiting = wait_policy != WaitPolicy::Try;
    if let Some(run_policy) = request.run_policy.as_mut().filter(|_| request.waiting) {
        // It has not come with those that fire together.
        run_policy.skew_guard = None;
    }
    request.run_policy = request
        .run_policy
        .filter(|run_policy| run_policy.anyway || run_policy.record_anything());
    let mut attempts = AcquireLoop::new(clock, wait_policy, limits);
    let mut stop = pin!(stop);
    let mut result = {
        let work = attempts.run(backend, clock, &identity, &mut request, &mut busy);
        tokio::select! {
            biased;
            stopped = &mut stop => Ok(Outcome::Stopped(stopped)),
            result = work => result,
        }
    };
    let granted = matches!(result, Ok(Outcome::Granted(_)));
    let maybe_granted = !granted && (attempts.in_flight || attempts.unsure);
    if maybe_granted && let Some(end) = attempts.drained_at {
        // The store tells only the first successor that a holder vanished.
        clock.sleep_until(end).await;
    }
    let mut undo = Undo {
        request: &request,
        maybe_granted,
        waited: attempts.waited,
    };
    let undone = undo
        .run(backend, clock, attempts.limits, UNDO.min(limits.answer))
        .await;
    let left = worth_until(&request, attempts.sent).since(clock.now());
    if !undone
        && undo.maybe_granted
        && !left.is_zero()
        && !matches!(result, Ok(Outcome::Stopped(_)))
    {
        let undone = tokio::select! {
            biased;
            stopped = &mut stop => {
                result = Ok(Outcome::Stopped(stopped));
                true
            }
            undone = undo.run(backend, clock, attempts.limits, left) => undone,
        };
        if !undone {
            result = result.map_err(|error| error.hint(RECORDED));
        }
    }
    result.map_err(|error| error.during("acquire").key(&request.key))
}

/// One attempt at one lock, with all of its questions.
struct AcquireLoop<'a> {
    limits: Limits<'a>,
    began: BootTime,
    /// When waiting ends; `None` if it has no end.
    wait_until: Option<BootTime>,
    /// When dlock gives up on a silent store; `None` for never.
    outage_until: Option<BootTime>,
    /// An attempt was sent, and its answer is still missing.
    in_flight: bool,
    /// An attempt's answer was lost: the attempt may have been granted, and may still be.
    unsure: bool,
    /// The queue may have an entry of this waiter.
    waited: bool,
    /// Until when dlock asks again for a lock that is busy in passing.
    transient_until: Option<BootTime>,
    /// When all drain delays of grants are over.
    drained_at: Option<BootTime>,
    /// The last grant with a drain delay, which is part of that. The same grant adds no delay when
    /// it is repeated.
    counted: Option<Fence>,
    /// When the last attempt was sent.
    sent: BootTime,
    /// How many attempts in a row have had no answer so far.
    silences: u32,
}

impl<'a> AcquireLoop<'a> {
    fn new(clock: &dyn Clock, wait_policy: WaitPolicy, limits: Limits<'a>) -> Self {
        let now = clock.now();
        let wait_until = match wait_policy {
            WaitPolicy::Try => Some(now),
            WaitPolicy::For(length) => Some(now.plus(length)),
            WaitPolicy::Forever => None,
        };
        let outage_until = wait_until.map(|end| end.max(now.plus(limits.answer)));
        Self {
            limits,
            began: now,
            wait_until,
            outage_until,
            in_flight: false,
            unsure: false,
            waited: false,
            transient_until: None,
            drained_at: None,
            counted: None,
            sent: now,
            silences: 0,
        }
    }

    async fn run<S>(
        &mut self,
        backend: &mut dyn Backend,
        clock: &dyn Clock,
        Identity {
            capabilities, url, ..
        }: &Identity,
        request: &mut Request,
        busy: &mut dyn FnMut(&Busy),
    ) -> Result<Outcome<S>> {
        let mut pause = Pause::new();
        let mut last_error = None;
        loop {
            let sent = clock.now();
            let end = self.send(request, sent);
            self.limits.asked(|| url.clone(), sent, self.outage_until);
            let full = self.attempt();
            let answer = bounded(clock, end, backend.try_acquire(request)).await;
            self.limits.record_answer(matches!(answer, Some(Ok(_))));
            self.limits.answered |= matches!(answer, Some(Ok(_)));
            self.silences = if answer.is_some() {
                0
            } else {
                self.silences + 1
            };
            let error = match answer {
                Some(Ok(Attempt::Granted(grant))) => match self
                    .granted(backend, clock, capabilities, request, grant, sent)
                    .await?
                {
                    Ok(lease) => return Ok(Outcome::Granted(lease)),
                    Err(error) => error,
                },
                Some(Ok(Attempt::NotHeld)) if request.entry == Entry::Reenter => {
                    request.entry = Entry::Fresh;
                    request.token = Token::random();
                    continue;
                }
                Some(Ok(Attempt::NotHeld)) => {
                    return Err(Error::new(
                        Kind::Internal,
                        "a fresh request was answered as a nested one",
                    ));
                }
                Some(Ok(Attempt::Busy(mut found))) => {
                    (self.in_flight, self.counted) = (false, None);
                    // If a newcomer may go first, a position would promise too much.
                    found.position = found
                        .position
                        .filter(|_| request.fair || capabilities.always_fair);
                    pause = Pause::new();
                    let now = clock.now();
                    let Some(most) = self.wait_for_busy(now, &found, capabilities, busy) else {
                        return Ok(Outcome::Busy(found));
                    };
                    // The next request shows whether the store failed.
                    let grown = most.saturating_add(self.limits.attempt());
                    match bounded(clock, now.plus(grown), backend.wait(request, most)).await {
                        Some(Ok(_)) | None => continue,
                        Some(Err(error)) => error,
                    }
                }
                Some(Ok(Attempt::Denied(denial))) => {
                    self.in_flight = false;
                    pause = Pause::new();
                    let now = clock.now();
                    if !(matches!(denial.rule, Rule::AtLeast(_)) && self.may_wait(now)) {
                        return Ok(Outcome::Denied(denial));
                    }
                    // The waiter is first in the queue, and shows by asking that it is alive.
                    clock
                        .sleep_until(
                            now.plus(self.longest_wait(now, denial.again_in, true).min(KEPT)),
                        )
                        .await;
                    continue;
                }
                Some(Err(error)) => {
                    self.in_flight = false;
                    self.unsure |= error.effect != Effect::NotApplied;
                    error
                }
                None => {
                    self.unsure = true;
                    silence(
                        clock.now().since(sent),
                        last_error.take().filter(|_| end < sent.plus(full)),
                    )
                }
            };
            let again = clock.now().plus(pause.next());
            if !self.limits.may_retry(&error) || self.outage_until.is_some_and(|end| again >= end) {
                self.limits.record_answer(true);
                // While a request waits, the right server may still come.
                let kind = if error.origin == Origin::WrongServer && request.waiting {
                    Kind::Unavailable
                } else {
                    error.kind
                };
                return Err(Error { kind, ..error }.backend(url));
            }
            self.limits.failed(&error);
            last_error = Some(error);
            clock.sleep_until(again).await;
        }
    }

    /// Makes the request ready for an attempt that is sent now. Returns the time limit for its
    /// answer.
    fn send(&mut self, request: &mut Request, sent: BootTime) -> BootTime {
        request.at_ms = Some(wall_ms());
        if let Some(metadata) = &mut request.metadata {
            metadata.waited_ms = u64::try_from(sent.since(self.began).as_millis()).ok();
        }
        (self.in_flight, self.sent) = (true, sent);
        self.waited |= request.waiting;
        self.attempt_until(sent)
    }

    /// Whether waiting goes on.
    fn may_wait(&self, now: BootTime) -> bool {
        self.wait_until.is_none_or(|end| now < end)
    }

    /// Returns the time limit for the answer to an attempt that is sent now.
    fn attempt_until(&self, sent: BootTime) -> BootTime {
        let end = sent.plus(self.attempt());
        match self.outage_until {
            Some(outage) => end.min(outage.max(sent.plus(self.limits.attempt() / 4))),
            None => end,
        }
    }

    fn attempt(&self) -> Duration {
        self.limits.attempt() * timeout_factor(self.silences)
    }

    /// Makes a lease of a grant, after its drain delay. The inner error says that too little of it
    /// is left, or that it may be over.
    async fn granted(
        &mut self,
        backend: &mut dyn Backend,
        clock: &dyn Clock,
        capabilities: &Capabilities,
        request: &Request,
        grant: Grant,
        sent: BootTime,
    ) -> Result<Result<Lease>> {
        let budget = Budget::new(grant.ttl, None, capabilities.pace)?;
        if grant.drain_delay > Duration::ZERO
            && self.counted.replace(grant.fence) != Some(grant.fence)
        {
            self.drained_at = self
                .drained_at
                .max(Some(clock.now().plus(grant.drain_delay)));
        }
        if let Some(end) = self.drained_at.filter(|end| clock.now() < *end) {
            let over = backend.watch(&request.key, &request.token);
            if bounded(clock, end, over).await.is_some() {
                (self.unsure, self.counted) = (true, None);
                return Ok(Err(Error::new(
                    Kind::Unavailable,
                    "the hold ended before its command was started",
                )
                .effect(Effect::Unknown)));
            }
        }
        if clock.now() >= budget.start_by(sent) {
            self.unsure = true;
            return Ok(Err(no_answer(clock.now().since(sent))));
        }
        Ok(Ok(Lease {
            key: request.key.clone(),
            token: Token {
                session: grant.session.filter(|_| request.detached),
                ..request.token
            },
            fence: grant.fence,
            ttl: grant.ttl,
            t0: sent,
            holds: grant.holds,
            permit: grant.permit,
        }))
    }

    /// Returns how long to wait for a lock that was found busy. Returns `None` if waiting has
    /// ended.
    fn wait_for_busy(
        &mut self,
        now: BootTime,
        found: &Busy,
        capabilities: &Capabilities,
        busy: &mut dyn FnMut(&Busy),
    ) -> Option<Duration> {
        if self.may_wait(now) {
            busy(found);
            // A store that announces no release sets the pace of its waiters itself.
            return Some(self.longest_wait(
                now,
                found.expires_in,
                found.notifies || !capabilities.notification,
            ));
        }
        let until = *self.transient_until.get_or_insert(now.plus(PASSING));
        if !found.transient || now >= until {
            return None;
        }
        self.waited = true;
        Some(until.since(now))
    }

    /// Returns how long to wait before the next look at the lock without a wake-up.
    fn longest_wait(
        &self,
        now: BootTime,
        free_in: Option<Duration>,
        ends_by_itself: bool,
    ) -> Duration {
        let mut most = if ends_by_itself {
            RECHECK
        } else {
            POLL.saturating_sub(spread(POLL / 4))
        };
        if let Some(expires) = free_in {
            // Spread over a twentieth of a second, so that the waiters of a dead holder don't all
            // ask at once.
            most = most.min(expires + Duration::from_millis(1) + spread(Duration::from_millis(50)));
        }
        match self.wait_until {
            Some(end) => most.min(end.since(now)),
            None => most,
        }
    }
}
