//! One run, from the lock to the verdict: renews the lease and supervises the command at the same
//! time.

use std::{cell::RefCell, io, time::Duration};

use futures_util::future::FutureExt as _;
use jiff::Timestamp;
use tokio::sync::mpsc;

use super::{
    RunSettings,
    ends::{disturbed, wait_ended, warn_of_future_start, warn_of_long_hold},
    events::Events,
    outcome::Outcome,
    watch::{RunWatch, SupervisionEnd},
};
use crate::{
    commands::Context,
    exit,
    lease::{
        BootClock, Budget, Claim, Clock, GroupOutcome, Held, Lease, Loss, acquire_all, bounded,
        keep_all, note_skip, undo_all,
    },
    lock::{Backend, BootTime, Error, Intent, Kind, Metadata, Result, Scope, Token, plain},
    output::{self, Cause, CommandEnd, RunResult, Skip, Verdict, Waiting},
    supervise::{self, CapturedOutput, Deadlines, Signal, Signals, Supervisor},
};

/// How long descendants may outlive the command before dlock reports them.
const LEFTOVER_NOTICE: Duration = Duration::from_secs(5);
/// How long dlock waits for the renewals to give a reason, after the guardian reported that the
/// lease ran out.
const REASON: Duration = Duration::from_millis(200);
/// How long writing the start's metrics may take once all other work is done.
const NOTING: Duration = Duration::from_secs(5);

/// The parts of a run that exist once the guardian is forked.
pub(super) struct Job<'a> {
    pub settings: &'a RunSettings,
    pub context: &'a Context,
    pub events: &'a Events<'a>,
    pub budget: Budget,
    pub held: Held,
    pub supervisor: Supervisor,
    pub signals: Signals,
    /// Human-readable metadata of the runner; `None` to omit the metadata.
    pub metadata: Option<Metadata>,
}

/// A lock that the command runs under, with its backend and lease.
pub(super) struct JobLock {
    pub backend: Box<dyn Backend>,
    pub lease: Lease,
    pub standing: Ownership,
}

/// Whether dlock still holds a lock that the command runs under.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ownership {
    /// dlock holds the lock: every renewal was confirmed in time.
    Ours,
    /// No renewal was confirmed for too long.
    Unsure,
    /// The store said that dlock does not hold the lock.
    Gone,
    /// dlock released the lock.
    Released,
}

/// A verdict, and the signal that dlock re-raises on itself so that a calling shell sees the
/// terminal's signal.
pub(super) struct FinishedRun {
    pub verdict: Verdict,
    pub reraise: Option<i32>,
    /// The command's output, if it was captured.
    pub printed: Option<CapturedOutput>,
}

impl Job<'_> {
    /// Acquires all claims, then runs the command under the locks.
    pub(super) async fn run(mut self, mut claims: Vec<Claim>) -> Result<FinishedRun> {
        output::print_in_background();
        let (settings, out, clock) = (self.settings, &self.context.out, BootClock);
        let waiting = Waiting::new(out, &self.context.silence, settings.wait_policy, &clock);
        let stop = waiting.ticking(wait_ended(&mut self.signals, &mut self.supervisor));
        let limits = self.context.limits();
        let outcome = acquire_all(
            &mut claims,
            &clock,
            settings.wait_policy,
            limits,
            stop,
            |key, busy| self.events.waiting(&waiting, key, busy),
        )
        .await;
        waiting.clear();
        // All claims use one store.
        if let Some(Claim { backend, .. }) = claims.first_mut() {
            self.context.tell(&mut **backend);
        }
        let waited = waiting.waited();
        let store = claims
            .first()
            .map(|claim| claim.backend.identity().url)
            .unwrap_or_default();
        let verdict = |outcome, status| Verdict {
            waited,
            ..Verdict::new(outcome, &settings.key, &*store, status)
        };
        let outcome = match outcome {
            Ok(GroupOutcome::Granted(leases)) => {
                // A signal that came with the grant ends the run before the command is ordered to
                // start.
                if let Some(Some(signal)) =
                    wait_ended(&mut self.signals, &mut self.supervisor).now_or_never()
                {
                    undo_all(&mut claims, &leases, &clock, limits, true).await;
                    self.supervisor.give_up();
                    return Ok(interrupted(
                        verdict(RunResult::Interrupted, exit::signalled(signal.number)),
                        signal,
                    ));
                }
                let holds = claims
                    .into_iter()
                    .zip(leases)
                    .map(|(Claim { backend, .. }, lease)| JobLock {
                        backend,
                        lease,
                        standing: Ownership::Ours,
                    })
                    .collect();
                return self.hold(holds, waited).await;
            }
            other => other,
        };
        self.supervisor.give_up();
        let verdict = match outcome? {
            GroupOutcome::Busy(at, busy) => {
                let Claim { backend, request } = &mut claims[at];
                let skip = Skip {
                    key: &request.key,
                    mode: request.mode,
                    cause: Cause::Busy(&busy),
                    waited,
                    outcome: "not run",
                };
                out.skipped(&skip, !waited.is_zero());
                note_skip(&mut **backend, &request.key, self.metadata.as_ref(), "busy").await;
                warn_of_long_hold(&mut **backend, settings, &request.key, out, &busy).await;
                let by = Some(request.key.clone());
                Verdict {
                    by,
                    holders: busy.holders,
                    ..verdict(RunResult::Busy, settings.conflict_status)
                }
            }
            GroupOutcome::Denied(at, denial) => {
                let Claim { backend, request } = &mut claims[at];
                let option = settings.policy.option(denial.rule);
                let skip = Skip {
                    key: &request.key,
                    mode: request.mode,
                    cause: Cause::Denied(&denial, &option),
                    waited,
                    outcome: "not run",
                };
                out.skipped(&skip, waiting.is_told());
                note_skip(
                    &mut **backend,
                    &request.key,
                    self.metadata.as_ref(),
                    &option,
                )
                .await;
                warn_of_future_start(settings, &request.key, out, &denial);
                let (by, status) = (Some(request.key.clone()), settings.denied_status(&denial));
                Verdict {
                    by,
                    refused: Some((denial, option)),
                    ..verdict(RunResult::Busy, status)
                }
            }
            GroupOutcome::Stopped(Some(signal)) => {
                return Ok(interrupted(
                    verdict(RunResult::Interrupted, exit::signalled(signal.number)),
                    signal,
                ));
            }
            _ => {
                return Err(Error::new(
                    Kind::Unavailable,
                    "the guardian was killed while the lock was waited for",
                )
                .hint("the command was not started"));
            }
        };
        Ok(FinishedRun {
            verdict,
            reraise: None,
            printed: None,
        })
    }

    /// Runs the command under `holds`, and releases the locks when no process of the command is
    /// left.
    async fn hold(mut self, mut holds: Vec<JobLock>, waited: Duration) -> Result<FinishedRun> {
        let (settings, clock) = (self.settings, BootClock);
        let started = Timestamp::now();
        let began = clock.now();
        let mut watch = RunWatch::new(self.settings, self.context, self.events, self.budget);
        let budgets: Vec<_> = holds
            .iter()
            .map(|JobLock { lease, .. }| (lease, self.budget.for_ttl(lease.ttl)))
            .collect();
        let start_by = budgets
            .iter()
            .map(|(lease, budget)| budget.start_by(lease.t0))
            .min()
            .unwrap_or(began);
        let deadlines: Vec<_> = budgets
            .iter()
            .map(|(lease, budget)| deadlines(lease, budget))
            .collect();
        let (first, ends_at) = earliest(&deadlines);
        (watch.term_at, watch.ends_at, watch.granted_in_time) =
            (first.term_at, ends_at, began < start_by);
        let fence = holds
            .iter()
            .find(|hold| hold.lease.key == settings.key)
            .map(|hold| hold.lease.fence);
        self.events.acquired(fence, started, waited);
        let end = match self.launch(&mut holds, start_by, first) {
            Ok(()) => self.watch(&mut holds, deadlines, &mut watch).await,
            Err(error) => {
                let why = format!("the command can't be started: {}", plain(&error));
                SupervisionEnd::NotStarted(
                    exit::CANNOT_EXECUTE,
                    why,
                    "fewer keys make a shorter environment".into(),
                )
            }
        };
        let ran = clock.now().since(began);
        let ended = clock.now();
        watch.ended = !matches!(end, SupervisionEnd::Unkillable(_));
        let printed = watch.take_output(&mut self.supervisor);
        let command = match &end {
            SupervisionEnd::Ended(ended) => ended.outcome,
            _ => None,
        };
        let mut verdict = Verdict {
            waited,
            fence,
            keys: holds
                .iter()
                .map(|hold| (hold.lease.key.clone(), hold.lease.fence))
                .collect(),
            permit: holds.first().and_then(|hold| hold.lease.permit),
            started: Some(started).filter(|_| !matches!(end, SupervisionEnd::NotStarted(..))),
            ran: Some(ran).filter(|_| !matches!(end, SupervisionEnd::NotStarted(..))),
            command: command.map(CommandEnd::from),
            ..Verdict::new(
                RunResult::Ok,
                &settings.key,
                holds[0].backend.identity().url,
                exit::LOST,
            )
        };
        // A tree that is still alive keeps the locks.
        if !matches!(end, SupervisionEnd::Unkillable(_)) {
            let left = matches!(&end, SupervisionEnd::Ended(ended) if ended.leftover_left);
            let scope = if left { Scope::Hold } else { Scope::Tree };
            let info = watch.info(scope, &end, ran);
            verdict.release_result = self.release_all(&mut holds, &info, &mut watch).await;
        }
        if watch.lost.is_some() {
            self.note_losses(&mut holds, &watch, &verdict, ended).await;
        }
        let Outcome { result, status, .. } = watch.outcome(&end);
        (verdict.outcome, verdict.status) = (result, status);
        match end {
            SupervisionEnd::Unkillable(pid) => watch.give_up_on(pid),
            SupervisionEnd::NotStarted(_, why, hint) => {
                self.supervisor.finish();
                let error = Error::new(Kind::Usage, why).key(&settings.key).hint(hint);
                return Ok(FinishedRun {
                    verdict: Verdict {
                        error: Some(error),
                        ..verdict
                    },
                    reraise: None,
                    printed: None,
                });
            }
            SupervisionEnd::Ended(ended) => {
                if ended.leftover_left {
                    watch.warn("processes that the command left behind run on without the lock");
                }
                self.supervisor.finish();
            }
        }
        if let Some(noting) = watch.noting.take() {
            // A failure is ignored: the metrics of the end show whether metrics can be written.
            let _ = bounded(&clock, clock.now().plus(NOTING), noting).await;
        }
        let reraise = watch.reraise.filter(|_| {
            watch.lost.is_none()
                && watch.broken.is_none()
                && !watch.timed_out
                && verdict.command == watch.reraise.map(CommandEnd::Signalled)
        });
        verdict.error = disturbed(watch, settings);
        Ok(FinishedRun {
            verdict,
            reraise,
            printed,
        })
    }

    /// Orders the guardian to start the command.
    fn launch(
        &mut self,
        holds: &mut [JobLock],
        start_by: BootTime,
        first: Deadlines,
    ) -> io::Result<()> {
        let environment = self.environment(holds);
        let lifelines = holds
            .iter()
            .map(|hold| hold.backend.lifelines())
            .collect::<io::Result<Vec<_>>>()?;
        let lifelines: Vec<_> = lifelines.into_iter().flatten().collect();
        self.supervisor
            .start(&environment, start_by, first, &lifelines)
    }

    /// Renews the leases, forwards signals and reads the guardian's events until the tree is empty
    /// or unkillable.
    async fn watch(
        &mut self,
        holds: &mut [JobLock],
        known: Vec<(Deadlines, BootTime)>,
        watch: &mut RunWatch<'_>,
    ) -> SupervisionEnd {
        let clock = BootClock;
        let (extended, mut extensions) = mpsc::unbounded_channel();
        let known = RefCell::new(known);
        let on_renewal = |at: usize, lease: &Lease, budget: &Budget| {
            let mut known = known.borrow_mut();
            known[at] = deadlines(lease, budget);
            // The receiver lives as long as this future.
            let _ = extended.send(earliest(&known));
        };
        let mut intent = Intent::Extend(None);
        loop {
            let (event, (at, loss)) = {
                let ours = holds
                    .iter_mut()
                    .enumerate()
                    .filter(|(_, hold)| hold.standing == Ownership::Ours);
                let ours = ours.map(|(at, JobLock { backend, lease, .. })| (at, (backend, lease)));
                let renewals = keep_all(
                    ours,
                    &clock,
                    self.budget,
                    self.context.limits(),
                    intent,
                    &on_renewal,
                );
                tokio::pin!(renewals);
                loop {
                    if let Some(pid) = watch.outlived_by(clock.now()) {
                        return SupervisionEnd::Unkillable(pid);
                    }
                    let notice = watch
                        .leftover
                        .as_ref()
                        .map(|(at, _)| at.plus(LEFTOVER_NOTICE));
                    tokio::select! {
                        // The guardian first: after a stop, its report on the deadline takes
                        // precedence.
                        biased;
                        event = self.supervisor.next() => {
                            if watch.is_unexplained(&event)
                                && let Some(loss) = bounded(&clock, clock.now().plus(REASON), &mut renewals).await
                            {
                                break (Some(event), loss);
                            }
                            if let Some(end) = self.learn(Some(event), watch) {
                                return end;
                            }
                        }
                        // Once one lock is lost, renewals of the others give the command no more
                        // time.
                        Some((deadlines, ends_at)) = extensions.recv(), if watch.lost.is_none() => {
                            (watch.term_at, watch.ends_at) = (deadlines.term_at, ends_at);
                            self.supervisor.extend(deadlines);
                        }
                        signal = self.signals.next() => watch.signal(signal, &mut self.supervisor),
                        loss = &mut renewals => break (None, loss),
                        () = clock.sleep_until(notice.unwrap_or(watch.term_at)), if notice.is_some() => watch.tell_leftover(),
                        () = clock.sleep_until(watch.ends_at), if watch.may_be_outlived() => {}
                    }
                }
            };
            let JobLock {
                lease, standing, ..
            } = &mut holds[at];
            let how = output::loss(&loss);
            match loss {
                Loss::NotOwner => {
                    *standing = Ownership::Gone;
                    self.supervisor.lost();
                    watch.ends_at = clock.now();
                    watch.lose(&lease.key, &how);
                }
                Loss::Unconfirmed { last, .. } => {
                    watch.trouble = watch.trouble.take().or(last);
                    watch.unconfirmed = Some(how.clone());
                    // After a stop of dlock, only timers have run so far: the guardian's reports
                    // are still unread.
                    if event.is_none()
                        && let Some(end) = self.learn(None, watch)
                    {
                        return end;
                    }
                    *standing = Ownership::Unsure;
                    watch.lose(&lease.key, &how);
                }
                Loss::Broken(mark) => {
                    // dlock renews until the tree is empty.
                    self.supervisor.stop(watch.budget.grace());
                    watch.broken(&lease.key, mark);
                    intent = Intent::Drain;
                }
            }
            if let Some(end) = event.and_then(|event| watch.event(event)) {
                return end;
            }
        }
    }

    /// Handles the given event and all further events that have arrived. Returns how the run ended,
    /// if it did.
    fn learn(
        &mut self,
        first: Option<supervise::Event>,
        watch: &mut RunWatch<'_>,
    ) -> Option<SupervisionEnd> {
        let mut next = first.or_else(|| self.supervisor.next().now_or_never());
        while let Some(event) = next {
            if let Some(end) = watch.event(event) {
                return Some(end);
            }
            next = self.supervisor.next().now_or_never();
        }
        watch.stop_with_command(&mut self.supervisor);
        None
    }

    /// Returns the variables that the command gets in addition to dlock's environment.
    fn environment(&self, holds: &[JobLock]) -> Vec<(String, String)> {
        let and = |held: Held, JobLock { backend, lease, .. }: &JobLock| {
            held.and(backend.identity().fingerprint, &lease.key, lease.token)
        };
        let held = holds.iter().fold(self.held.clone(), and);
        let mut environment = vec![(Held::VARIABLE, held.reveal())];
        if let [JobLock { lease, .. }] = holds {
            environment.push(("DLOCK_KEY", lease.key.to_string()));
            environment.push((
                "DLOCK_TOKEN",
                Token {
                    kept_by_run: true,
                    ..lease.token
                }
                .reveal(),
            ));
            environment.push(("DLOCK_FENCE", lease.fence.to_string()));
            environment.extend(
                lease
                    .permit
                    .map(|permit| ("DLOCK_PERMIT", permit.to_string())),
            );
        } else {
            // No key has a line break, and no fence an equals sign.
            let pairs: Vec<_> = holds
                .iter()
                .map(|JobLock { lease, .. }| format!("{}={}", lease.key, lease.fence))
                .collect();
            environment.push(("DLOCK_FENCES", pairs.join("\n")));
        }
        environment
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

/// Returns the end of a run that a signal ended before its command was started.
fn interrupted(verdict: Verdict, signal: Signal) -> FinishedRun {
    FinishedRun {
        verdict,
        reraise: Some(signal.number).filter(|_| signal.from_terminal),
        printed: None,
    }
}

/// Returns when the command gets TERM and KILL, and when the lease is over.
fn deadlines(lease: &Lease, budget: &Budget) -> (Deadlines, BootTime) {
    (
        Deadlines {
            term_at: budget.term_at(lease.t0),
            kill_at: budget.kill_at(lease.t0),
        },
        budget.ends_at(lease.t0),
    )
}

/// Returns the earliest deadlines of all locks that the command runs under.
fn earliest(all: &[(Deadlines, BootTime)]) -> (Deadlines, BootTime) {
    let never = BootTime::from_boot(Duration::MAX);
    let first =
        |of: fn(&(Deadlines, BootTime)) -> BootTime| all.iter().map(of).min().unwrap_or(never);
    (
        Deadlines {
            term_at: first(|one| one.0.term_at),
            kill_at: first(|one| one.0.kill_at),
        },
        first(|one| one.1),
    )
}
