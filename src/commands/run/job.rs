//! One run, from the lock to the verdict: keeps the lease and the command's supervision side by side.

use std::{cell::RefCell, io, time::Duration};

use futures_util::future::FutureExt as _;
use jiff::Timestamp;
use tokio::sync::mpsc;

use super::{
    RunSettings,
    ends::{conclude, tell_of_a_hang, wait_ended},
    events::Events,
    watch::{End, Watch},
};
use crate::{
    commands::Context,
    exit,
    lease::{BootClock, Budget, Claim, Clock, GroupOutcome, Held, Lease, Loss, acquire_all, bounded, keep_all, note_skip},
    lock::{Backend, BootTime, Error, Intent, Kind, Metadata, Result, Scope},
    output::{self, Cause, CommandEnd, RunResult, Skip, Verdict, Waiting, plain},
    supervise::{self, Deadlines, Printed, Signals, Supervisor},
};

/// How long descendants may outlive the command before dlock says so.
const LEFTOVER_NOTICE: Duration = Duration::from_secs(5);
/// How long the renewals may take to say why the lease ran out, after the guardian said that it did.
const REASON: Duration = Duration::from_millis(200);
/// How long the metrics of the start may take once all else is done.
const NOTING: Duration = Duration::from_secs(5);

/// What is at hand once the guardian lives.
pub(super) struct Job<'a> {
    pub settings: &'a RunSettings,
    pub context: &'a Context,
    pub events: &'a Events<'a>,
    pub budget: Budget,
    pub held: Held,
    pub supervisor: Supervisor,
    pub signals: Signals,
    /// The runner, for people; `None` to leave it out.
    pub metadata: Option<Metadata>,
}

/// A lock that the command runs under.
pub(super) struct Hold {
    pub backend: Box<dyn Backend>,
    pub lease: Lease,
    pub standing: Standing,
}

/// Whose a lock is that the command runs under.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Ours, as far as was confirmed in time.
    Ours,
    /// Nothing was confirmed for too long.
    Unsure,
    /// The store said that it is not ours.
    Gone,
    /// No one's: it was released.
    GivenBack,
}

/// A verdict, and the signal that dlock is to end by so that a calling shell sees what the terminal did.
pub(super) struct Done {
    pub verdict: Verdict,
    pub reraise: Option<i32>,
    /// What the command printed, if that was kept.
    pub printed: Option<Printed>,
}

impl Job<'_> {
    /// Takes all that is claimed, then runs the command under it.
    pub(super) async fn run(mut self, mut claims: Vec<Claim>) -> Result<Done> {
        output::write_aside();
        let (settings, out, clock) = (self.settings, &self.context.out, BootClock);
        let waiting = Waiting::new(out, &self.context.silence, settings.patience, &clock);
        let stop = waiting.ticking(wait_ended(&mut self.signals, &mut self.supervisor));
        let limits = self.context.limits();
        let outcome = acquire_all(&mut claims, &clock, settings.patience, limits, stop, |key, busy| waiting.update(key, busy)).await;
        waiting.clear();
        // All are clients of one store.
        if let Some(Claim { backend, .. }) = claims.first_mut() {
            self.context.tell(&mut **backend);
        }
        let waited = waiting.waited();
        let store = claims.first().map(|claim| claim.backend.identity().url).unwrap_or_default();
        let verdict = |outcome, status| Verdict { waited, ..Verdict::new(outcome, &settings.key, &*store, status) };
        let outcome = match outcome {
            Ok(GroupOutcome::Granted(leases)) => {
                let holds = claims
                    .into_iter()
                    .zip(leases)
                    .map(|(Claim { backend, .. }, lease)| Hold { backend, lease, standing: Standing::Ours })
                    .collect();
                return self.hold(holds, waited).await;
            }
            other => other,
        };
        self.supervisor.give_up();
        let verdict = match outcome? {
            GroupOutcome::Busy(at, busy) => {
                let Claim { backend, request } = &mut claims[at];
                let skip = Skip { key: &request.key, mode: request.mode, cause: Cause::Busy(&busy), waited, outcome: "not run" };
                out.skipped(&skip);
                note_skip(&mut **backend, &request.key, self.metadata.as_ref(), "busy").await;
                tell_of_a_hang(&mut **backend, settings, &request.key, out, &busy).await;
                let by = Some(request.key.clone());
                Verdict { by, holders: busy.holders, ..verdict(RunResult::Busy, settings.conflict_status) }
            }
            GroupOutcome::Denied(at, denial) => {
                let Claim { backend, request } = &mut claims[at];
                let option = settings.policy.option(denial.rule);
                let cause = Cause::Denied(&denial, &option);
                out.skipped(&Skip { key: &request.key, mode: request.mode, cause, waited, outcome: "not run" });
                note_skip(&mut **backend, &request.key, self.metadata.as_ref(), &option).await;
                let by = Some(request.key.clone());
                Verdict { by, refused: Some((denial, option)), ..verdict(RunResult::Busy, settings.conflict_status) }
            }
            GroupOutcome::Stopped(Some(signal)) => {
                let verdict = verdict(RunResult::Interrupted, exit::signalled(signal.number));
                return Ok(Done { verdict, reraise: Some(signal.number).filter(|_| signal.from_terminal), printed: None });
            }
            _ => {
                return Err(Error::new(Kind::Unavailable, "the guardian was killed while the lock was waited for")
                    .hint("the command was not started"));
            }
        };
        Ok(Done { verdict, reraise: None, printed: None })
    }

    /// Has the command run under `holds`, and gives them back when nothing of the command is left.
    async fn hold(mut self, mut holds: Vec<Hold>, waited: Duration) -> Result<Done> {
        let (settings, clock) = (self.settings, BootClock);
        let started = Timestamp::now();
        let began = clock.now();
        let mut watch = Watch::new(self.settings, self.context, self.events, self.budget);
        let budgets: Vec<_> = holds.iter().map(|Hold { lease, .. }| (lease, self.budget.for_ttl(lease.ttl))).collect();
        let start_by = budgets.iter().map(|(lease, budget)| budget.start_by(lease.t0)).min().unwrap_or(began);
        let deadlines: Vec<_> = budgets.iter().map(|(lease, budget)| deadlines(lease, budget)).collect();
        let (first, ends_at) = earliest(&deadlines);
        (watch.term_at, watch.ends_at, watch.granted_in_time) = (first.term_at, ends_at, began < start_by);
        self.events.acquired(holds.iter().find(|hold| hold.lease.key == settings.key).map(|hold| hold.lease.fence));
        let end = match self.launch(&mut holds, start_by, first) {
            Ok(()) => self.watch(&mut holds, deadlines, &mut watch).await,
            Err(error) => {
                let why = format!("the command can't be started: {}", plain(&error));
                End::NotStarted(exit::CANNOT_EXECUTE, why, "fewer keys make a shorter environment".into())
            }
        };
        let ran = clock.now().since(began);
        let ended = clock.now();
        watch.ended = !matches!(end, End::Unkillable(_));
        let printed = watch.take_printed(&mut self.supervisor);
        let command = match &end {
            End::Ended(ended) => ended.outcome,
            _ => None,
        };
        let mut verdict = Verdict {
            waited,
            fence: holds.iter().find(|hold| hold.lease.key == settings.key).map(|hold| hold.lease.fence),
            keys: holds.iter().map(|hold| (hold.lease.key.clone(), hold.lease.fence)).collect(),
            permit: holds.first().and_then(|hold| hold.lease.permit),
            started: Some(started).filter(|_| !matches!(end, End::NotStarted(..))),
            ran: Some(ran).filter(|_| !matches!(end, End::NotStarted(..))),
            command: command.map(CommandEnd::from),
            ..Verdict::new(
                RunResult::Ok,
                &settings.key,
                holds[0].backend.identity().url,
                command.map_or(exit::LOST, supervise::ProcessEnd::status),
            )
        };
        // What is still alive keeps the locks.
        if !matches!(end, End::Unkillable(_)) {
            let left = matches!(&end, End::Ended(ended) if ended.leftover_left);
            let scope = if left { Scope::Hold } else { Scope::Tree };
            let info = watch.info(scope, &end, verdict.command, ran);
            verdict.given_back = self.release_all(&mut holds, &info, &mut watch).await;
        }
        if let Some(how) = watch.reason(watch.lost.clone()).filter(|_| watch.lost.is_some()) {
            self.note_losses(&mut holds, &how, ran, ended).await;
        }
        match end {
            End::Unkillable(pid) => watch.give_up_on(pid),
            End::NotStarted(status, why, hint) => {
                self.supervisor.finish();
                let error = Error::new(Kind::Usage, why).key(&settings.key).hint(hint);
                let verdict = Verdict { outcome: RunResult::Error, status, error: Some(error), ..verdict };
                return Ok(Done { verdict, reraise: None, printed: None });
            }
            End::Ended(ended) => {
                if ended.leftover_left {
                    watch.warn("processes that the command left behind run on without the lock");
                }
                self.supervisor.finish();
            }
        }
        if let Some(noting) = watch.noting.take() {
            // The metrics of the end say whether these could be written.
            let _ = bounded(&clock, clock.now().plus(NOTING), noting).await;
        }
        let reraise = watch.reraise.filter(|_| {
            watch.lost.is_none()
                && watch.broken.is_none()
                && !watch.timed_out
                && verdict.command == watch.reraise.map(CommandEnd::Signalled)
        });
        conclude(&mut verdict, watch, settings);
        Ok(Done { verdict, reraise, printed })
    }

    /// Has the guardian start the command.
    fn launch(&mut self, holds: &mut [Hold], start_by: BootTime, first: Deadlines) -> io::Result<()> {
        let environment = self.environment(holds);
        let tethers = holds.iter_mut().filter_map(|hold| hold.backend.tether());
        let lifelines = tethers.map(|tether| tether.lifelines()).collect::<io::Result<Vec<_>>>()?;
        let lifelines: Vec<_> = lifelines.into_iter().flatten().collect();
        self.supervisor.start(&environment, start_by, first, &lifelines)
    }

    /// Renews, passes signals on and listens to the guardian until the tree is empty, or can't be emptied.
    async fn watch(&mut self, holds: &mut [Hold], known: Vec<(Deadlines, BootTime)>, watch: &mut Watch<'_>) -> End {
        let clock = BootClock;
        let (extended, mut extensions) = mpsc::unbounded_channel();
        let known = RefCell::new(known);
        let told = |at: usize, lease: &Lease, budget: &Budget| {
            let mut known = known.borrow_mut();
            known[at] = deadlines(lease, budget);
            // Its receiver lives as long as this future does.
            let _ = extended.send(earliest(&known));
        };
        let mut intent = Intent::Extend(None);
        loop {
            let (event, (at, loss)) = {
                let ours = holds.iter_mut().enumerate().filter(|(_, hold)| hold.standing == Standing::Ours);
                let ours = ours.map(|(at, Hold { backend, lease, .. })| (at, (backend, lease)));
                let renewals = keep_all(ours, &clock, self.budget, self.context.limits(), intent, &told);
                tokio::pin!(renewals);
                loop {
                    if let Some(pid) = watch.outlived_by(clock.now()) {
                        return End::Unkillable(pid);
                    }
                    let notice = watch.leftover.as_ref().map(|(at, _)| at.plus(LEFTOVER_NOTICE));
                    tokio::select! {
                        // The guardian first: after a stop, what it says of the deadline comes before all else.
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
                        // Once one lock is lost, nothing that becomes of the others gives the command more time.
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
            let Hold { lease, standing, .. } = &mut holds[at];
            let how = output::loss(&loss);
            match loss {
                Loss::NotOwner => {
                    *standing = Standing::Gone;
                    self.supervisor.lost();
                    watch.ends_at = clock.now();
                    watch.lose(&lease.key, &how);
                }
                Loss::Unconfirmed { last, .. } => {
                    watch.trouble = watch.trouble.take().or(last);
                    watch.unconfirmed = Some(how.clone());
                    // After a stop of dlock only timers have run so far: what the guardian said meanwhile is still to be read.
                    if event.is_none()
                        && let Some(end) = self.learn(None, watch)
                    {
                        return end;
                    }
                    *standing = Standing::Unsure;
                    watch.lose(&lease.key, &how);
                }
                Loss::Broken(mark) => {
                    // Goes on renewing until the tree is empty.
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

    /// Takes note of an event, if one is given, and of all others that have come; how it ended, if it did.
    fn learn(&mut self, first: Option<supervise::Event>, watch: &mut Watch<'_>) -> Option<End> {
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

    /// What the command gets in addition to our environment.
    fn environment(&self, holds: &[Hold]) -> Vec<(String, String)> {
        let and = |held: Held, Hold { backend, lease, .. }: &Hold| held.and(backend.identity().fingerprint, &lease.key, lease.token);
        let held = holds.iter().fold(self.held.clone(), and);
        let mut environment = vec![(Held::VARIABLE, held.reveal())];
        if let [Hold { lease, .. }] = holds {
            environment.push(("DLOCK_KEY", lease.key.to_string()));
            environment.push(("DLOCK_TOKEN", lease.token.reveal()));
            environment.push(("DLOCK_FENCE", lease.fence.to_string()));
            environment.extend(lease.permit.map(|permit| ("DLOCK_PERMIT", permit.to_string())));
        } else {
            // No key has a line break, and no fence an equals sign.
            let pairs: Vec<_> = holds.iter().map(|Hold { lease, .. }| format!("{}={}", lease.key, lease.fence)).collect();
            environment.push(("DLOCK_FENCES", pairs.join("\n")));
        }
        environment.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// When the command is told to end and made to, and when the lease is over.
fn deadlines(lease: &Lease, budget: &Budget) -> (Deadlines, BootTime) {
    (Deadlines { term_at: budget.term_at(lease.t0), kill_at: budget.kill_at(lease.t0) }, budget.ends_at(lease.t0))
}

/// The deadlines of a command that runs under several locks.
fn earliest(all: &[(Deadlines, BootTime)]) -> (Deadlines, BootTime) {
    let never = BootTime::from_boot(Duration::MAX);
    let first = |of: fn(&(Deadlines, BootTime)) -> BootTime| all.iter().map(of).min().unwrap_or(never);
    (Deadlines { term_at: first(|one| one.0.term_at), kill_at: first(|one| one.0.kill_at) }, first(|one| one.1))
}
