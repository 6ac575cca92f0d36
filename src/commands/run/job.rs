//! One run, from the lock to the verdict: keeps the lease and the command's supervision side by side.

use std::{ffi::OsString, time::Duration};

use jiff::Timestamp;
use tokio::sync::mpsc;

use super::{
    Often, RunSettings,
    watch::{End, Watch},
};
use crate::{
    commands::Context,
    exit,
    lease::{self, BootClock, Budget, Clock, Held, Lease, Limits, Loss, give_back, keep, may_warn, note, note_skip, wall_ms},
    lock::{self, Backend, Busy, Error, Kind, Metadata, Note, Past, Purpose, Request, Result, Scope},
    output::{self, Cause, CommandEnd, GivenBack, Outcome, Output, Skip, Syslog, Verdict, Waiting, age, plain},
    supervise::{self, Deadlines, Signal, Signals, Supervisor, stop_self},
};

/// How long descendants may outlive the command before somebody is told.
const LEFTOVER_NOTICE: Duration = Duration::from_secs(5);
/// How long a store that did not confirm a lease any more is asked to take it back.
const LOST_RELEASE: Limits = Limits { answer: Duration::from_secs(1) };

/// What is at hand once the guardian lives.
pub(super) struct Job<'a> {
    pub settings: &'a RunSettings,
    pub context: &'a Context,
    pub budget: Budget,
    pub held: Held,
    pub backend: Box<dyn Backend>,
    pub supervisor: Supervisor,
    pub signals: Signals,
    /// Who runs it, for people; `None` to leave it out.
    pub metadata: Option<Metadata>,
}

/// A verdict, and the signal that dlock is to end by so that a calling shell sees what the terminal did.
pub(super) struct Done {
    pub verdict: Verdict,
    pub reraise: Option<i32>,
}

impl Job<'_> {
    /// Takes the lock, then runs the command under it.
    pub(super) async fn run(mut self, request: Request) -> Result<Done> {
        let (settings, out, clock) = (self.settings, &self.context.out, BootClock);
        let waiting = Waiting::new(out, &settings.key, settings.patience, &clock);
        let stop = waiting.ticking(wait_ended(&mut self.signals, &mut self.supervisor));
        let limits = self.context.limits;
        let outcome =
            lease::acquire(&mut *self.backend, &clock, request, settings.patience, limits, stop, |busy| waiting.update(busy)).await;
        waiting.clear();
        self.context.tell(&mut *self.backend);
        let waited = waiting.waited();
        if let Ok(lease::Outcome::Granted(lease)) = outcome {
            return self.hold(lease, waited).await;
        }
        self.supervisor.give_up();
        let store = self.backend.describe();
        let verdict = |outcome, status| Verdict { waited, ..Verdict::new(outcome, &settings.key, &*store, status) };
        match outcome? {
            lease::Outcome::Busy(busy) => {
                out.skipped(&Skip { key: &settings.key, cause: Cause::Busy(&busy), waited, outcome: "not run" });
                note_skip(&mut *self.backend, &settings.key, self.metadata.as_ref(), "busy").await;
                tell_of_a_hang(&mut *self.backend, settings, out, &busy).await;
                let verdict = Verdict { holders: busy.holders, ..verdict(Outcome::Busy, settings.conflict_status) };
                Ok(Done { verdict, reraise: None })
            }
            lease::Outcome::Refused(refusal) => {
                let option = settings.policy.option(refusal.rule);
                out.skipped(&Skip { key: &settings.key, cause: Cause::Refused(&refusal, &option), waited, outcome: "not run" });
                note_skip(&mut *self.backend, &settings.key, self.metadata.as_ref(), &option).await;
                let verdict = Verdict { refused: Some((refusal, option)), ..verdict(Outcome::Busy, settings.conflict_status) };
                Ok(Done { verdict, reraise: None })
            }
            lease::Outcome::Stopped(Some(signal)) => {
                let verdict = verdict(Outcome::Interrupted, exit::signalled(signal.number));
                Ok(Done { verdict, reraise: Some(signal.number).filter(|_| signal.from_terminal) })
            }
            _ => {
                Err(Error::new(Kind::Unavailable, "the guardian was killed while the lock was waited for")
                    .hint("the command was not started"))
            }
        }
    }

    /// Has the command run under `lease`, and gives the lease back when nothing of the command is left.
    async fn hold(mut self, mut lease: Lease, waited: Duration) -> Result<Done> {
        let (settings, clock) = (self.settings, BootClock);
        let started = Timestamp::now();
        let began = clock.now();
        let mut watch = Watch::new(self.settings, self.context, self.budget.for_ttl(lease.ttl));
        watch.term_at = watch.budget.term_at(lease.t0);
        let environment = self.environment(&lease);
        let start_by = watch.budget.start_by(lease.t0);
        let lifelines = self.backend.lifelines();
        let launch = lifelines.and_then(|lines| self.supervisor.start(&environment, start_by, deadlines(&lease, &watch.budget), &lines));
        let end = match launch {
            Ok(()) => self.watch(&mut lease, &mut watch).await,
            Err(error) => End::NotStarted(exit::CANNOT_EXECUTE, format!("the command can't be started: {}", plain(&error))),
        };
        let ran = clock.now().since(began);
        watch.ended = !matches!(end, End::Unkillable(_));
        let command = match &end {
            End::Ended(ended) => ended.outcome,
            _ => None,
        };
        let mut verdict = Verdict {
            waited,
            fence: Some(lease.fence),
            started: Some(started).filter(|_| !matches!(end, End::NotStarted(..))),
            ran: Some(ran).filter(|_| !matches!(end, End::NotStarted(..))),
            command: command.map(CommandEnd::from),
            ..Verdict::new(Outcome::Ok, &settings.key, self.backend.describe(), command.map_or(exit::LOST, supervise::Outcome::status))
        };
        // What is still alive keeps the lock.
        if !matches!(end, End::Unkillable(_)) && watch.owner {
            let left = matches!(&end, End::Ended(ended) if ended.leftover_left);
            let scope = if left { Scope::Hold } else { Scope::Tree };
            let mut parting = watch.parting(scope, &end, verdict.command, ran);
            // Who entered a lock is part of the run around it, whose start was recorded.
            parting.became = parting.became.filter(|_| lease.holds == 1 && settings.policy.often != Often::Always);
            let limits = match watch.lost {
                Some(_) => LOST_RELEASE,
                // What became of it is worth telling for as long as the lock lasts: it may not be run again by mistake, or not at all.
                None if parting.became.is_some() => {
                    let left = lease.t0.plus(lease.ttl.get()).since(clock.now());
                    Limits { answer: self.context.limits.answer.max(left) }
                }
                None => self.context.limits,
            };
            let released = give_back(&mut *self.backend, &clock, &lease.key, &lease.token, &parting, limits).await;
            verdict.given_back = Some(watch.released(released));
        }
        if let (Some(how), false) = (&watch.lost, verdict.given_back == Some(GivenBack::Yes)) {
            self.note_loss(&lease, how, ran).await;
        }
        match end {
            End::Unkillable(pid) => watch.give_up_on(pid),
            End::NotStarted(status, why) => {
                self.supervisor.finish();
                let error = Error::new(Kind::Usage, why).key(&settings.key).hint(not_started_hint(status));
                let verdict = Verdict { outcome: Outcome::Error, status, error: Some(error), ..verdict };
                return Ok(Done { verdict, reraise: None });
            }
            End::Ended(ended) => {
                if ended.leftover_left {
                    watch.warn("processes that the command left behind run on without the lock");
                }
                self.supervisor.finish();
            }
        }
        if let Some(noting) = watch.noting.take() {
            // Whether they could be written is told of the metrics of the end.
            let _ = noting.await;
        }
        let reraise = watch.reraise.filter(|_| {
            watch.lost.is_none()
                && watch.broken.is_none()
                && !watch.timed_out
                && verdict.command == watch.reraise.map(CommandEnd::Signalled)
        });
        if watch.timed_out {
            verdict.outcome = Outcome::TimedOut;
            verdict.status = exit::TIMED_OUT;
            verdict.error = Some(Error::new(Kind::Timeout, settings.max_runtime()));
        }
        if let (None, Some(mark)) = (&watch.lost, &watch.broken) {
            verdict.outcome = Outcome::Broken;
            verdict.status = exit::LOST;
            verdict.error = Some(Error::new(Kind::Unavailable, format!("broken {}", crate::output::mark(mark))));
        }
        if let Some(how) = watch.lost {
            verdict.outcome = Outcome::Lost;
            verdict.status = exit::LOST;
            verdict.error = Some(Error::new(Kind::Unavailable, how));
        }
        Ok(Done { verdict, reraise })
    }

    /// Renews, passes signals on and listens to the guardian until the tree is empty, or can't be emptied.
    async fn watch(&mut self, lease: &mut Lease, watch: &mut Watch<'_>) -> End {
        let clock = BootClock;
        let (extended, mut extensions) = mpsc::unbounded_channel();
        let mut purpose = Purpose::GoOn;
        'keeping: loop {
            let renewals = keep(&mut *self.backend, &clock, lease, watch.budget, self.context.limits, purpose, |lease, budget| {
                // Its receiver lives as long as this future does.
                let _ = extended.send(deadlines(lease, budget));
            });
            tokio::pin!(renewals);
            loop {
                let notice = watch.leftover.as_ref().map(|(at, _)| at.plus(LEFTOVER_NOTICE));
                tokio::select! {
                    // The guardian first: after a stop, what it says of the deadline comes before all else.
                    biased;
                    event = self.supervisor.next() => {
                        if let Some(end) = watch.event(event) {
                            return end;
                        }
                    }
                    Some(deadlines) = extensions.recv() => {
                        watch.term_at = deadlines.term_at;
                        self.supervisor.extend(deadlines);
                    }
                    signal = self.signals.next() => watch.signal(signal, &mut self.supervisor),
                    loss = &mut renewals, if watch.lost.is_none() => match loss {
                        Loss::NotOwner => {
                            watch.owner = false;
                            self.supervisor.lost();
                            watch.lose("the store says that it is not ours any more");
                        }
                        Loss::Unconfirmed { since, last } => {
                            let last = last.map(|error| format!(" ({error})")).unwrap_or_default();
                            watch.lose(&format!("no renewal for {}{last}", age(since)));
                        }
                        Loss::Broken(mark) => {
                            watch.broken(mark);
                            // Goes on renewing until the tree is empty.
                            self.supervisor.stop(watch.budget.grace());
                            purpose = Purpose::Stop;
                            continue 'keeping;
                        }
                    },
                    () = clock.sleep_until(notice.unwrap_or(watch.term_at)), if notice.is_some() => watch.tell_leftover(),
                }
                // Whichever came first: with the lock gone there is nothing that waiting for such a process could save.
                if let (Some(pid), true) = (watch.stuck, watch.lost.is_some()) {
                    return End::Unkillable(pid);
                }
            }
        }
    }

    /// Tells the store how the hold was lost, which it can't know by itself. It may not answer: that was the reason perhaps.
    async fn note_loss(&mut self, lease: &Lease, how: &str, ran: Duration) {
        let ended_ms = wall_ms();
        let past = Past {
            fence: Some(lease.fence),
            started_ms: u64::try_from(ran.as_millis()).ok().map(|ran| ended_ms.saturating_sub(ran)),
            ended_ms: Some(ended_ms),
            end: lock::End::Lost,
            why: Some(how.to_owned()),
            metadata: self.metadata.clone(),
        };
        note(&mut *self.backend, &lease.key, &Note::Lost(past), LOST_RELEASE).await;
    }

    /// What the command gets in addition to our environment.
    fn environment(&self, lease: &Lease) -> Vec<(OsString, OsString)> {
        let held = self.held.clone().and(self.backend.fingerprint(), &lease.key, lease.token);
        [
            ("DLOCK_KEY", lease.key.to_string()),
            ("DLOCK_TOKEN", lease.token.reveal()),
            ("DLOCK_FENCE", lease.fence.to_string()),
            (Held::VARIABLE, held.reveal()),
        ]
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
    }
}

/// Ready when a signal ends the wait; `None` if the guardian is gone.
async fn wait_ended(signals: &mut Signals, supervisor: &mut Supervisor) -> Option<Signal> {
    loop {
        tokio::select! {
            // Also reaps what is reparented to dlock. Before the start there is no other event.
            _ = supervisor.next() => return None,
            signal = signals.next() => {
                if signal.ends_wait() {
                    return Some(signal);
                }
                if signal.is_stop() {
                    stop_self(signal.number);
                }
            }
        }
    }
}

/// What to do about a command that could not be started.
fn not_started_hint(status: u8) -> String {
    match status {
        exit::NOT_FOUND => format!("PATH is {}", std::env::var("PATH").unwrap_or_default()),
        exit::CANNOT_EXECUTE => "chmod +x makes a file executable; -c takes a shell line".into(),
        _ => "try again, or give the lease a longer --ttl".into(),
    }
}

fn deadlines(lease: &Lease, budget: &Budget) -> Deadlines {
    Deadlines { term_at: budget.term_at(lease.t0), kill_at: budget.kill_at(lease.t0) }
}

/// Warns of a lock that somebody has had for too long, unless somebody else has.
async fn tell_of_a_hang(backend: &mut dyn Backend, settings: &RunSettings, out: &Output, busy: &Busy) {
    let Some(holder) = busy.holders.first() else { return };
    let (Some(after), Some(held), Some(fence)) = (settings.policy.warn_held, holder.held_for, holder.fence) else { return };
    if may_warn(backend, &settings.key, fence, held, after).await {
        let text = format!("{}: {} has had the lock for {}: does it hang?", settings.key.escaped(), output::holder(holder), age(held));
        let key = output::shell(&settings.key);
        out.warn_with_hint(&text, &format!("dlock inspect {key} tells more, dlock break {key} stops it, --warn-held 0 is silent"));
        Syslog::default().warn_of(settings.log, out, &text);
    }
}
