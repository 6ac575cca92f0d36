//! Breaking a hold that is being renewed: the real document, with every order of the steps of its
//! holder, the breaker and a successor.
//!
//! **Results.** No successor starts while a holder is still stopping. A broken hold is never
//! renewed after the successor was granted, and never counts as a holder from then on. No late
//! request changes the successor's hold. When no more steps are possible, the successor has had the
//! lock.
//!
//! **The model.** Time is whole ticks, which the store and all others see at the same moment. A
//! request reaches the store at any time or never, and its answer may be lost. The holder counts
//! its lease from before it asked; its command is dead when that lease ends. One abandoned request
//! of the holder may arrive late. The breaker acts as `lease::breaking`: a mark, a lease's time,
//! then perhaps eviction. "Eventually" is checked in each state without a next one: time ends, and
//! before that the holder stops asking.

use stateright::{Checker, HasDiscoveries, Model, Property};
use uuid::Uuid;

use super::{AskOutcome, Document};
use crate::lock::{
    Break, Fence, Intent, Key, Release, ReleaseInfo, Renewal, Request, Scope, Token, Ttl,
};

use std::time::Duration;

/// In ticks.
const LEASE: u64 = 2;
/// The last tick.
const END: u64 = 6;
const TICK_MS: u64 = 1000;
const BROKEN: Fence = Fence(1);
const SUCCESSOR: Fence = Fence(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum JobState {
    Runs,
    /// The holder's command is being stopped, and is still alive.
    Stops,
    /// All of the holder's processes are dead.
    Dead,
    /// The lock was released.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ModelRequest {
    Extend,
    Drain,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Breaker {
    Idle,
    /// The mark is on its way.
    Marks,
    /// When the mark was set.
    Waits(u64),
    /// The eviction is on its way.
    Evicts,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BreakModelState {
    now: u64,
    document: Option<String>,
    job: JobState,
    until: u64,
    /// The holder's request that is on its way, and when it was sent.
    asked: Option<(ModelRequest, u64)>,
    /// A request that the holder abandoned.
    late: Option<ModelRequest>,
    breaker: Breaker,
    /// When the successor's hold ends.
    successor: Option<u64>,
    /// The broken hold existed or was renewed after the successor was granted, or the successor was
    /// touched.
    is_wrong: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum BreakStep {
    Tick,
    Send(ModelRequest),
    /// The holder's request arrives; the flag says whether the holder gets the answer.
    Arrive(bool),
    ArriveLate,
    GiveUp,
    /// The holder's command is dead.
    Die,
    Break,
    ArriveMark,
    Look,
    ArriveEviction,
    Succeed,
}

/// The rules by which a hold is broken.
#[derive(Clone, Copy)]
struct BreakModel {
    /// A holder that does not answer keeps all of its lease.
    waits: bool,
    /// A holder that has answered may take as long as it needs.
    heeds_answers: bool,
    /// The break targets the hold that was seen, not the present one.
    by_fence: bool,
}

const RULE: BreakModel = BreakModel {
    waits: true,
    heeds_answers: true,
    by_fence: true,
};

fn request(nth: u8) -> Request {
    let token = Token {
        owner: Uuid::from_u128(nth.into()),
        hold: nth.into(),
        session: None,
        kept_by_run: false,
    };
    Request {
        token,
        ..Request::new(
            Key::new("job").unwrap(),
            Ttl::new(Duration::from_millis(LEASE * TICK_MS)).unwrap(),
        )
    }
}

fn mark() -> Break {
    Break {
        by: "ana".into(),
        why: None,
        seen: false,
    }
}

impl BreakModelState {
    /// Returns the document after one step of the store.
    fn step<T>(&mut self, step: impl FnOnce(&mut Document, u64) -> T) -> T {
        let mut document = Document::read(self.document.as_deref()).unwrap();
        let now = self.now * TICK_MS;
        document.expire(now);
        let done = step(&mut document, now);
        document.take_ended();
        document.take_wake_ups(None);
        let has = |fence| document.fences().any(|held| held == fence);
        let is_alone =
            document.holders(now).len() <= 1 && !(self.successor.is_some() && has(BROKEN));
        let is_touched = self.successor.is_some_and(|until| self.now < until)
            && (!has(SUCCESSOR) || document.holders(now)[0].broken.is_some());
        self.is_wrong |= !is_alone || is_touched;
        self.document = document.write();
        done
    }

    /// Delivers the holder's request, and the answer. The answer is lost if the lease would end
    /// after the last tick.
    fn serve(&mut self, asked: ModelRequest) -> Option<Renewal> {
        if asked != ModelRequest::Release && self.now + LEASE > END {
            return None;
        }
        let holder = request(1).token;
        let renewal = self.step(|document, now| match asked {
            ModelRequest::Extend => document.renew(&holder, Intent::Extend(None), now),
            ModelRequest::Drain => document.renew(&holder, Intent::Drain, now),
            ModelRequest::Release => {
                match document.release(&holder, &ReleaseInfo::from(Scope::Tree), now) {
                    Release::Released => Renewal::Kept { expires_in: None },
                    _ => Renewal::NotHeld,
                }
            }
        });
        self.is_wrong |= self.successor.is_some() && renewal != Renewal::NotHeld;
        Some(renewal)
    }

    fn hear(&mut self, asked: ModelRequest, sent: u64, renewal: &Renewal) {
        match (asked, renewal) {
            (ModelRequest::Release, _) => self.job = JobState::Over,
            // A late answer, after the end of the lease, revives nothing.
            (_, Renewal::Renewed { .. }) if self.runs() => self.until = sent + LEASE,
            (_, Renewal::Broken(_) | Renewal::NotHeld) if self.job == JobState::Runs => {
                self.job = JobState::Stops;
            }
            _ => {}
        }
    }

    fn runs(&self) -> bool {
        matches!(self.job, JobState::Runs | JobState::Stops)
    }

    fn tick(&mut self) {
        self.now += 1;
        if self.runs() && self.until <= self.now {
            self.job = JobState::Dead;
        }
    }

    /// Returns the hold to mark or evict.
    fn target(document: &Document, rule: BreakModel) -> Fence {
        let there = document.fences().next().filter(|_| !rule.by_fence);
        there.unwrap_or(BROKEN)
    }
}

impl BreakModel {
    fn send(last: &BreakModelState, next: &mut BreakModelState, asked: ModelRequest) -> bool {
        let in_time = last.now + LEASE < END;
        next.asked = Some((asked, last.now));
        last.asked.is_none()
            && match asked {
                ModelRequest::Extend => last.job == JobState::Runs && in_time,
                ModelRequest::Drain => last.job == JobState::Stops && in_time,
                ModelRequest::Release => last.job == JobState::Dead,
            }
    }

    fn look(self, last: &BreakModelState, next: &mut BreakModelState) -> bool {
        let Breaker::Waits(since) = last.breaker else {
            return false;
        };
        let looked = next.step(|document, now| {
            document
                .holders(now)
                .into_iter()
                .find(|holder| holder.fence == Some(BROKEN))
        });
        let Some(holder) = looked else {
            next.breaker = Breaker::Done;
            return true;
        };
        let answered = holder.broken.is_some_and(|mark| mark.seen);
        next.breaker = Breaker::Evicts;
        (!answered || !self.heeds_answers) && (!self.waits || since + LEASE <= last.now)
    }

    fn succeed(next: &mut BreakModelState) -> bool {
        let granted =
            next.step(
                |document, now| match document.ask(&request(2), now, None, || None) {
                    AskOutcome::Go => {
                        document.grant(&request(2), SUCCESSOR, now);
                        true
                    }
                    _ => false,
                },
            );
        next.successor = Some(next.now + LEASE);
        granted
    }
}

impl Model for BreakModel {
    type State = BreakModelState;
    type Action = BreakStep;

    fn init_states(&self) -> Vec<BreakModelState> {
        let mut document = Document::default();
        document.grant(&request(1), BROKEN, 0);
        vec![BreakModelState {
            now: 0,
            document: document.write(),
            job: JobState::Runs,
            until: LEASE,
            asked: None,
            late: None,
            breaker: Breaker::Idle,
            successor: None,
            is_wrong: false,
        }]
    }

    fn actions(&self, state: &BreakModelState, actions: &mut Vec<BreakStep>) {
        use BreakStep::{
            Arrive, ArriveEviction, ArriveLate, ArriveMark, Break, Die, GiveUp, Look, Send,
            Succeed, Tick,
        };
        if state.now < END {
            actions.push(Tick);
        }
        actions.extend(
            [
                ModelRequest::Extend,
                ModelRequest::Drain,
                ModelRequest::Release,
            ]
            .map(Send),
        );
        actions.extend([
            Arrive(true),
            Arrive(false),
            ArriveLate,
            GiveUp,
            Die,
            Break,
            ArriveMark,
            Look,
            ArriveEviction,
            Succeed,
        ]);
    }

    fn next_state(&self, last: &BreakModelState, action: BreakStep) -> Option<BreakModelState> {
        let mut next = last.clone();
        let happens = match action {
            BreakStep::Tick => {
                next.tick();
                true
            }
            BreakStep::Send(asked) => Self::send(last, &mut next, asked),
            BreakStep::Arrive(is_heard) => next.asked.take().is_some_and(|(asked, sent)| {
                if let Some(renewal) = next.serve(asked).filter(|_| is_heard) {
                    next.hear(asked, sent, &renewal);
                }
                true
            }),
            BreakStep::GiveUp => {
                next.late = next.asked.take().map(|(asked, _)| asked);
                last.asked.is_some() && last.late.is_none()
            }
            BreakStep::ArriveLate => next.late.take().is_some_and(|asked| {
                next.serve(asked);
                true
            }),
            BreakStep::Die => {
                next.job = JobState::Dead;
                last.runs()
            }
            BreakStep::Break => {
                next.breaker = Breaker::Marks;
                last.breaker == Breaker::Idle
            }
            BreakStep::ArriveMark => {
                let done = last.breaker == Breaker::Marks
                    && next.step(|document, _| {
                        document.mark(BreakModelState::target(document, *self), &mark())
                    });
                next.breaker = if done {
                    Breaker::Waits(last.now)
                } else {
                    Breaker::Done
                };
                last.breaker == Breaker::Marks
            }
            BreakStep::Look => self.look(last, &mut next),
            BreakStep::ArriveEviction => {
                next.breaker = Breaker::Done;
                let evict = |document: &mut Document, now| {
                    document.evict(BreakModelState::target(document, *self), &mark(), now)
                };
                last.breaker == Breaker::Evicts && {
                    next.step(evict);
                    true
                }
            }
            BreakStep::Succeed => last.successor.is_none() && Self::succeed(&mut next),
        };
        (happens && next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one runs at a time", |_, state: &BreakModelState| {
                !(state.runs() && state.successor.is_some_and(|until| state.now < until))
            }),
            Property::always(
                "what was broken is over, and the successor is left alone",
                |_, state: &BreakModelState| !state.is_wrong,
            ),
            Property::always(
                "none waits for ever",
                |breaking, state: &BreakModelState| {
                    state.successor.is_some() || !breaking.next_states(state).is_empty()
                },
            ),
            Property::sometimes(
                "a holder answers and has all the time that it needs",
                |_, state: &BreakModelState| {
                    matches!(state.breaker, Breaker::Waits(since) if since + LEASE < state.now)
                        && state.job == JobState::Stops
                },
            ),
            Property::sometimes(
                "a marked hold ends by itself",
                |_, state: &BreakModelState| {
                    matches!(state.breaker, Breaker::Waits(_))
                        && state.successor.is_some()
                        && state.job == JobState::Dead
                },
            ),
        ]
    }
}

impl BreakModel {
    /// Shows that this model does not have the property.
    #[track_caller]
    fn fails(self, property: &'static str) {
        self.checker()
            .finish_when(HasDiscoveries::AllOf([property].into()))
            .spawn_bfs()
            .join()
            .assert_any_discovery(property);
    }
}

#[test]
fn model_of_a_hold_that_is_broken_while_it_is_renewed() {
    let checked = RULE.checker().spawn_bfs().join();
    checked.assert_properties();
    assert!(
        checked.unique_state_count() > 5_000,
        "{}",
        checked.unique_state_count()
    );
}

#[test]
fn model_of_breaking_at_once() {
    BreakModel {
        waits: false,
        ..RULE
    }
    .fails("one runs at a time");
}

#[test]
fn model_of_breaking_what_has_answered() {
    BreakModel {
        heeds_answers: false,
        ..RULE
    }
    .fails("one runs at a time");
}

#[test]
fn model_of_breaking_whichever_hold_is_there() {
    BreakModel {
        by_fence: false,
        ..RULE
    }
    .fails("what was broken is over, and the successor is left alone");
}
