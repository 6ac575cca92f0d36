//! Random steps, compared with the document as the reference: the rules alone, without a store.

use std::{env, fmt::Write as _, time::Duration};

use dlock::lock::{
    Amendment, Attempt, Break, Busy, End, Fence, HistoryEntry, Holder, Intent, Key, Metadata, Mode,
    Once, Release, ReleaseInfo, Renewal, Request, RunOutcome, RunPolicy, RunState, Scope,
    document::{Document, RequestContext},
};
use tokio::time::Instant;

use super::{
    Case, cases,
    model::{Dice, Fences},
};
use crate::{
    lab::{Client, LONG, Lab, key, nested, request, runner, short, ttl},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![
        // The stores that keep the document, and those that will: others are queues themselves.
        |kind| kind == Kind::Memory || kind.has_server() && !kind.keeps_positions()
            => random_steps_match_the_document]
}

const ROUNDS: u64 = 12;
/// The rounds on stores that run in real time.
const FEW_ROUNDS: u64 = 3;
const STEPS: usize = 120;
const CLIENTS: usize = 4;
/// How long a run policy denies other runs: longer than a case.
const WINDOW: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
enum Step {
    Acquire(Request),
    /// Takes the lock with a short TTL, and lets that TTL pass.
    Crash(Request),
    Renew(Request, Intent),
    Verify(Request),
    Release(Request, ReleaseInfo),
    Leave(Request),
    /// The argument counts back from the latest grant.
    Mark(usize),
    Evict(usize),
    Warn(usize, u32),
}

/// The document and the data that a store keeps with it.
struct Model {
    document: Document,
    past: Vec<HistoryEntry>,
    fence: u64,
    start: Instant,
}

fn mark() -> Break {
    Break {
        by: "ana@ops1".into(),
        why: Some("stuck".into()),
        seen: false,
    }
}

/// Writes answers as text. Durations are exact where the test controls the clock.
struct Wording {
    fences: Fences,
    granted: Vec<Fence>,
    exact: bool,
}

impl Wording {
    fn new(exact: bool) -> Self {
        Self {
            fences: Fences::default(),
            granted: Vec::new(),
            exact,
        }
    }

    fn fence(&mut self, fence: Option<Fence>) -> String {
        fence.map_or("no fence".into(), |fence| {
            format!("fence {}", self.fences.index("job", fence))
        })
    }

    fn length(&self, length: Option<Duration>) -> Option<Duration> {
        length.map(|length| if self.exact { length } else { Duration::ZERO })
    }

    fn holders(&mut self, holders: &[Holder]) -> String {
        let mut transcript = Vec::new();
        for holder in holders {
            let lengths = [
                self.length(holder.expires_in),
                self.length(holder.held_for),
                self.length(holder.renewed_ago),
            ];
            let Holder {
                mode,
                permit,
                holds,
                detached,
                broken,
                metadata,
                ..
            } = holder;
            let host = metadata.as_ref().and_then(|metadata| metadata.host.clone());
            let rest =
                format!("{mode:?} {permit:?} {holds} {detached} {broken:?} {host:?} {lengths:?}");
            transcript.push(format!("{}: {rest}", self.fence(holder.fence)));
        }
        transcript.sort_unstable();
        transcript.join(", ")
    }

    fn attempt(&mut self, attempt: &Attempt) -> String {
        match attempt {
            Attempt::Granted(grant) => {
                if !self.granted.contains(&grant.fence) {
                    self.granted.push(grant.fence);
                }
                format!(
                    "granted {} {:?} {:?} {}",
                    self.fence(Some(grant.fence)),
                    grant.permit,
                    grant.ttl,
                    grant.holds
                )
            }
            Attempt::Busy(Busy {
                holders,
                expires_in,
                transient,
                position,
                ..
            }) => {
                format!(
                    "busy [{}] {:?} {transient} {position:?}",
                    self.holders(holders),
                    self.length(*expires_in)
                )
            }
            Attempt::Denied(refusal) => {
                let (began, again) = (self.length(refusal.began), self.length(refusal.again_in));
                format!(
                    "refused {:?} {} {began:?} {again:?}",
                    refusal.rule,
                    self.fence(refusal.fence)
                )
            }
            Attempt::NotHeld => "not held".into(),
        }
    }

    fn renewal(&mut self, renewal: &Renewal) -> String {
        match renewal {
            Renewal::Renewed { ttl, fence } => {
                format!("renewed {} {ttl:?}", self.fence(Some(*fence)))
            }
            Renewal::Kept { expires_in } => format!("kept {:?}", self.length(*expires_in)),
            other => format!("{other:?}"),
        }
    }

    fn past(&mut self, past: &[HistoryEntry]) -> String {
        let mut transcript = Vec::new();
        for one in past {
            let HistoryEntry {
                fence,
                end,
                outcome,
                metadata,
                started_ms,
                ended_ms,
            } = one;
            let host = metadata.as_ref().and_then(|metadata| metadata.host.clone());
            let length = if self.exact {
                started_ms
                    .zip(*ended_ms)
                    .map(|(started, ended)| ended - started)
            } else {
                None
            };
            transcript.push(format!(
                "{}: {end} {outcome:?} {host:?} {length:?}",
                self.fence(*fence)
            ));
        }
        transcript.sort_unstable();
        transcript.join(", ")
    }

    fn fence_before_last(&self, before: usize) -> Fence {
        self.granted[self.granted.len() - 1 - before]
    }
}

impl Model {
    fn new() -> Self {
        #[allow(clippy::disallowed_methods)] // the runtime's clock replaces the store's
        let start = Instant::now();
        Self {
            document: Document::default(),
            past: Vec::new(),
            fence: 0,
            start,
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).expect("small") + 1_000_000
    }

    fn step(&mut self, step: &Step, words: &mut Wording) -> String {
        let now = self.now();
        let document = &mut self.document;
        document.expire(now);
        let answer = match step {
            Step::Acquire(request) | Step::Crash(request) => {
                self.fence += 1;
                let attempt = document.acquire(
                    request,
                    &RequestContext {
                        now,
                        outside: None,
                        fence: Fence(self.fence),
                    },
                );
                attempt.map_or_else(
                    |error| format!("{:?}", error.kind),
                    |attempt| words.attempt(&attempt),
                )
            }
            Step::Renew(request, intent) => {
                words.renewal(&document.renew(&request.token, *intent, now))
            }
            Step::Verify(request) => format!(
                "{:?}",
                std::mem::discriminant(&document.verify(&request.token, now))
            ),
            Step::Release(request, info) => {
                format!("{:?}", document.release(&request.token, info, now))
            }
            Step::Leave(request) => {
                document.leave(&request.token);
                String::new()
            }
            Step::Mark(before) => format!(
                "{:?}",
                document.mark(words.fence_before_last(*before), &mark())
            ),
            Step::Evict(before) => format!(
                "{:?}",
                document.evict(words.fence_before_last(*before), &mark(), now)
            ),
            Step::Warn(before, level) => format!(
                "{}",
                document.claim_warning(words.fence_before_last(*before), *level)
            ),
        };
        self.past.extend(document.take_ended());
        answer
    }

    fn look(&mut self, words: &mut Wording) -> String {
        let now = self.now();
        self.document.expire(now);
        self.past.extend(self.document.take_ended());
        let (holders, waiters) = (self.document.holders(now), self.document.waiters(now).len());
        let (holders, past) = (words.holders(&holders), words.past(&self.past));
        format!(
            "[{holders}], {waiters} wait, past [{past}], {:?}",
            stages(self.document.run_record())
        )
    }
}

fn stages(record: &dlock::lock::RunRecord) -> (bool, Option<(RunState, u32)>) {
    (
        record.cooldown.is_some(),
        record
            .start
            .as_ref()
            .map(|start| (start.state, start.tries)),
    )
}

async fn ask(client: &mut Client, job: &Key, step: &Step, words: &mut Wording) -> String {
    match step {
        Step::Acquire(request) | Step::Crash(request) => {
            match client.0.try_acquire(request).await {
                Ok(attempt) => words.attempt(&attempt),
                Err(error) => format!("{:?}", error.kind),
            }
        }
        Step::Renew(request, intent) => {
            let renewal = client
                .0
                .renew(job, &request.token, *intent)
                .await
                .expect("renew");
            words.renewal(&renewal)
        }
        Step::Verify(request) => {
            format!(
                "{:?}",
                std::mem::discriminant(
                    &client
                        .0
                        .renew(job, &request.token, Intent::Probe)
                        .await
                        .expect("verify")
                )
            )
        }
        Step::Release(request, info) => {
            let release: Release = client
                .0
                .release(job, &request.token, info)
                .await
                .expect("release");
            format!("{release:?}")
        }
        Step::Leave(request) => {
            client.leave_queue(request).await;
            String::new()
        }
        Step::Mark(before) => {
            format!(
                "{:?}",
                client
                    .0
                    .amend(
                        job,
                        Amendment::Mark(words.fence_before_last(*before), &mark())
                    )
                    .await
                    .expect("mark")
            )
        }
        Step::Evict(before) => {
            format!(
                "{:?}",
                client
                    .0
                    .amend(
                        job,
                        Amendment::Evict(words.fence_before_last(*before), &mark())
                    )
                    .await
                    .expect("evict")
            )
        }
        Step::Warn(before, level) => {
            format!(
                "{}",
                client
                    .0
                    .amend(
                        job,
                        Amendment::Warn(words.fence_before_last(*before), *level)
                    )
                    .await
                    .expect("warn")
            )
        }
    }
}

async fn look(client: &mut Client, job: &Key, words: &mut Wording) -> String {
    let state = client.inspect(job).await;
    let history = client.0.history(job).await.expect("history");
    let (holders, past) = (words.holders(&state.holders), words.past(&history.past));
    format!(
        "[{holders}], {} wait, past [{past}], {:?}",
        state.waiters.len(),
        stages(&history.record)
    )
}

async fn random_steps_match_the_document(lab: &Lab) {
    let given = env::var("DLOCK_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let first = given.unwrap_or_else(dlock::lock::random);
    let rounds = if lab.kind.clock_is_ours() {
        ROUNDS
    } else {
        FEW_ROUNDS
    };
    for round in 0..if given.is_some() { 1 } else { rounds } {
        play(lab, first.wrapping_add(round)).await;
    }
}

async fn play(lab: &Lab, seed: u64) {
    let mut dice = Dice(seed);
    let exact = lab.kind.clock_is_ours();
    let (mut model, mut expected_words, mut words) =
        (Model::new(), Wording::new(exact), Wording::new(exact));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(lab.client().await);
    }
    let mut made: Vec<(usize, Request)> = Vec::new();
    let mut transcript = String::new();
    let job = key(&format!("job-{seed:x}"));
    for at in 0..STEPS {
        let (client, step) = next(&mut dice, &job, &mut made, (words.granted.len(), exact));
        if exact && dice.roll(4) == 0 {
            lab.pass(Duration::from_millis(1 + dice.roll(300) as u64))
                .await;
        }
        let mut expected = model.step(&step, &mut expected_words);
        let mut answer = ask(&mut clients[client], &job, &step, &mut words).await;
        if matches!(step, Step::Crash(_)) {
            lab.outlast(short()).await;
        }
        let _ = write!(expected, "; then {}", model.look(&mut expected_words));
        let _ = write!(
            answer,
            "; then {}",
            look(&mut clients[0], &job, &mut words).await
        );
        let _ = writeln!(
            transcript,
            "{at}: client {client} {}: {expected}",
            named(&step)
        );
        assert_eq!(
            answer, expected,
            "DLOCK_TEST_SEED={seed} step {at}; so far, as the document answered:\n{transcript}"
        );
    }
}

fn named(step: &Step) -> String {
    match step {
        Step::Acquire(request) | Step::Crash(request) => {
            let Request {
                token,
                mode,
                waiting,
                fair,
                entry,
                run_policy,
                ..
            } = request;
            let what = if matches!(step, Step::Crash(_)) {
                "crash"
            } else {
                "acquire"
            };
            format!(
                "{what} {} {mode:?} waiting {waiting} fair {fair} {entry:?} {run_policy:?}",
                &token.hold_text()[..4]
            )
        }
        Step::Renew(request, intent) => {
            format!("renew {} {intent:?}", &request.token.hold_text()[..4])
        }
        Step::Verify(request) => format!("verify {}", &request.token.hold_text()[..4]),
        Step::Release(request, info) => {
            format!(
                "release {} {:?} {:?} {:?}",
                &request.token.hold_text()[..4],
                info.scope,
                info.end,
                info.run_state
            )
        }
        Step::Leave(request) => format!("leave {}", &request.token.hold_text()[..4]),
        other => format!("{other:?}"),
    }
}

/// Makes a random request. `waits`: whether it may be a waiter. On a clock that the test doesn't
/// control, the end of an offer is random.
fn new_request(dice: &mut Dice, job: &Key, waits: bool) -> Request {
    let mode = match dice.roll(8) {
        0..=2 => Mode::Exclusive,
        roll @ 3..=5 => Mode::Permits([2, 3, 3][roll - 3]),
        _ => Mode::Shared,
    };
    let waiting = waits && dice.roll(3) == 0;
    let fair = waiting && dice.roll(2) == 0;
    // Run policies apply to exclusive holds only.
    let run_policy = (mode == Mode::Exclusive && dice.roll(3) == 0).then(|| RunPolicy {
        place: ["web1", "web2"][dice.roll(2)].into(),
        skew_guard: (dice.roll(3) == 0 && !waiting).then_some(WINDOW),
        at_least: None,
        once: (dice.roll(2) == 0).then_some(Once {
            window: WINDOW,
            retry_failed: 9,
            retry_crashed: true,
        }),
        anyway: false,
    });
    let run_policy = run_policy.filter(RunPolicy::record_anything);
    let metadata = (dice.roll(2) == 0).then(|| Metadata {
        host: Some("web1".into()),
        ..runner("web1")
    });
    Request {
        mode,
        waiting,
        fair,
        run_policy,
        metadata,
        detached: dice.roll(4) == 0,
        ..request(job, LONG)
    }
}

fn next(
    dice: &mut Dice,
    job: &Key,
    made: &mut Vec<(usize, Request)>,
    (granted, queues): (usize, bool),
) -> (usize, Step) {
    if made.is_empty() || dice.roll(4) == 0 {
        let client = dice.roll(CLIENTS);
        // A process waits for a lock at most once at a time.
        let waits = queues
            && !made
                .iter()
                .any(|(of, request)| *of == client && request.waiting);
        let wanted = new_request(dice, job, waits);
        if !wanted.waiting && dice.roll(10) == 0 {
            return (
                client,
                Step::Crash(Request {
                    ttl: ttl(short()),
                    ..wanted
                }),
            );
        }
        made.push((client, wanted.clone()));
        return (client, Step::Acquire(wanted));
    }
    let at = made.len() - 1 - dice.roll(made.len().min(6));
    let (client, of) = made[at].clone();
    let fence = |dice: &mut Dice| dice.roll(granted.min(4));
    match dice.roll(20) {
        0..=4 => (client, Step::Acquire(of)),
        5 | 6 => {
            let inner = Request {
                waiting: false,
                fair: false,
                run_policy: None,
                ..nested(&of)
            };
            made.push((client, inner.clone()));
            (client, Step::Acquire(inner))
        }
        7 | 8 => {
            let ttl = [None, Some(ttl(LONG / 2)), Some(ttl(LONG * 2))][dice.roll(3)];
            (
                client,
                Step::Renew(of, [Intent::Extend(ttl), Intent::Drain][dice.roll(2)]),
            )
        }
        9 => (dice.roll(CLIENTS), Step::Verify(of)),
        10 if granted > 0 => (dice.roll(CLIENTS), Step::Mark(fence(dice))),
        11 if granted > 0 => (dice.roll(CLIENTS), Step::Evict(fence(dice))),
        12 if granted > 0 => (
            dice.roll(CLIENTS),
            Step::Warn(fence(dice), u32::try_from(dice.roll(3)).expect("small")),
        ),
        13 if of.waiting => {
            (made[at].1.waiting, made[at].1.fair) = (false, false);
            (client, Step::Leave(of))
        }
        _ => {
            // A released hold is not requested again.
            made.remove(at);
            if of.waiting && dice.roll(2) == 0 {
                return (client, Step::Leave(of));
            }
            let scope = [Scope::Hold, Scope::Tree][dice.roll(2)];
            let end = [None, Some(End::Exited(0)), Some(End::Exited(3))][dice.roll(3)].clone();
            let became = of
                .run_policy
                .is_some()
                .then(|| [RunState::Ok, RunState::Failed, RunState::Cancelled][dice.roll(3)]);
            (
                client,
                Step::Release(
                    of,
                    ReleaseInfo {
                        end,
                        run_state: became,
                        outcome: Some(RunOutcome::because("so")),
                        ..scope.into()
                    },
                ),
            )
        }
    }
}
