//! The state of a run while its command runs, and the messages about the run.

use std::{io, time::Duration};

use jiff::Timestamp;
use tokio::task::{JoinHandle, spawn_blocking};

use super::{
    Frequency, RunSettings,
    events::Events,
    outcome::{Disturbance, Fate, Outcome, outcome},
    unstartable,
};
use crate::{
    commands::Context,
    exit,
    lease::{BootClock, Budget, Released},
    lock::{BootTime, Break, Error, Key},
    output::{ReleaseResult, age, drain},
    supervise::{
        CannotStart, CapturedOutput, Ended, Event, OnLost, Signal, StopReason, Supervisor,
        has_keyboard, process_name, stop_self,
    },
};

/// How long after Ctrl-Z a command may take to stop itself.
const STOPS_WITHIN: Duration = Duration::from_secs(2);
/// How long the output of a line may take before dlock stops itself.
const LAST_WORD: Duration = Duration::from_millis(50);

/// How the supervision of the command ended.
pub(super) enum SupervisionEnd {
    /// The tree is empty, or was left on purpose.
    Ended(Ended),
    /// The command was never executed: the exit status, the reason, and the hint.
    NotStarted(u8, String, String),
    /// The lock is lost, and this process is still alive.
    Unkillable(i32),
}

/// The state of a run while its command runs.
#[allow(clippy::struct_excessive_bools)] // independent facts
pub(super) struct RunWatch<'a> {
    pub settings: &'a RunSettings,
    context: &'a Context,
    events: &'a Events<'a>,
    pub budget: Budget,
    /// When the command gets TERM, as last confirmed.
    pub term_at: BootTime,
    /// When another process may hold the lock, as last confirmed.
    pub ends_at: BootTime,
    /// Whether the store granted the lock early enough to start the command.
    pub granted_in_time: bool,
    /// How the lock was lost, if it was.
    pub lost: Option<String>,
    /// The last error of the store before the loss.
    pub trouble: Option<Error>,
    /// Why the last renewal was not confirmed in time; `None` if it was confirmed.
    pub unconfirmed: Option<String>,
    /// The locks whose loss was reported.
    warned_keys: Vec<Key>,
    /// The break of the hold, if there is one.
    pub broken: Option<Break>,
    /// Whether the command reached its maximum runtime.
    pub timed_out: bool,
    /// Whether no process of the command is left.
    pub ended: bool,
    /// When the command ended before its descendants, and the PIDs of these descendants.
    pub leftover: Option<(BootTime, Vec<i32>)>,
    /// A signal from the terminal that may end the command.
    pub reraise: Option<i32>,
    /// The processes that can't be killed, while the lock is kept because of them.
    stuck: Vec<i32>,
    /// The signal that stopped the command on a terminal, while the command is stopped.
    stopped: Option<i32>,
    /// When Ctrl-Z was pressed, if the command was not continued since.
    asked_to_stop: Option<BootTime>,
    /// Whether the command has ended, and processes that it started have not.
    outlived: bool,
    /// Whether dlock has already stopped the processes that outlive the command.
    told_to_end: bool,
    /// The end of the command's output, if it was captured.
    pub last_lines: Option<String>,
    /// The task that writes the start's metrics.
    pub noting: Option<JoinHandle<io::Result<()>>>,
}

impl<'a> RunWatch<'a> {
    pub(super) fn new(
        settings: &'a RunSettings,
        context: &'a Context,
        events: &'a Events<'a>,
        budget: Budget,
    ) -> Self {
        let term_at = BootClock::read();
        Self {
            settings,
            context,
            events,
            budget,
            term_at,
            ends_at: term_at,
            granted_in_time: true,
            lost: None,
            trouble: None,
            unconfirmed: None,
            warned_keys: Vec::new(),
            broken: None,
            timed_out: false,
            ended: false,
            leftover: None,
            reraise: None,
            stuck: Vec::new(),
            stopped: None,
            asked_to_stop: None,
            outlived: false,
            told_to_end: false,
            last_lines: None,
            noting: None,
        }
    }

    pub(super) fn event(&mut self, event: Event) -> Option<SupervisionEnd> {
        match event {
            Event::Started { .. } => self.note_start(),
            Event::Continued => (self.stopped, self.asked_to_stop) = (None, None),
            Event::CannotStart(why) => return Some(self.not_started(why)),
            Event::Stopped { signal } => self.stopped = Some(signal),
            Event::Leftover { pids } => {
                self.outlived = true;
                self.leftover = Some((BootClock::read(), pids));
            }
            Event::TimeUp => self.time_up(),
            Event::DeadlineTerm => {
                if self.lost.is_none() {
                    self.lost_by_guardian(
                        "the guardian heard of no renewal in time: was dlock stopped?",
                    );
                }
            }
            Event::Unkillable { pid, why } => {
                self.stuck.retain(|stuck| *stuck != pid);
                self.stuck.push(pid);
                if self.lost.is_none() {
                    self.warn(&format!("process {pid} can't be killed ({why}): the lock is kept as long as it lives"));
                }
            }
            Event::Gone { pid } => self.stuck.retain(|stuck| *stuck != pid),
            Event::GuardianLost { frozen } => {
                let what = if frozen {
                    "did not answer"
                } else {
                    "was killed"
                };
                self.lose(
                    &self.settings.key,
                    &format!("the guardian {what}, and the command with it"),
                );
            }
            Event::Ended(ended) => {
                if self.lost.is_none()
                    && matches!(
                        ended.stopped,
                        Some(StopReason::Deadline | StopReason::Lost | StopReason::Guardian)
                    )
                {
                    self.lost_by_guardian("the command had to be stopped");
                }
                if ended.stopped == Some(StopReason::TimeUp) {
                    self.time_up();
                }
                return Some(SupervisionEnd::Ended(ended));
            }
        }
        None
    }

    /// Whether the event reports an expired lease with an unknown reason. The renewals know the
    /// reason, but may be late too.
    pub(super) fn is_unexplained(&self, event: &Event) -> bool {
        let late = match event {
            Event::DeadlineTerm => true,
            Event::Ended(ended) => ended.stopped == Some(StopReason::Deadline),
            _ => false,
        };
        late && self.lost.is_none()
    }

    /// Writes the metrics of the start in the background, since the file may block.
    fn note_start(&mut self) {
        if let Some(file) = self.settings.metrics_file.clone() {
            let (key, now) = (self.settings.key.clone(), Timestamp::now());
            self.noting = Some(spawn_blocking(move || file.started(&key, now)));
        }
    }

    /// Returns an unkillable process that outlives the lost lease: waiting for such a process
    /// protects nothing. Before the end of the lease, the process may just be slow to die.
    pub(super) fn outlived_by(&self, now: BootTime) -> Option<i32> {
        self.stuck
            .first()
            .copied()
            .filter(|_| self.lost.is_some() && now >= self.ends_at)
    }

    /// Whether an unkillable process exists and may outlive the lost lease.
    pub(super) fn may_be_outlived(&self) -> bool {
        self.lost.is_some() && !self.stuck.is_empty()
    }

    /// Stops dlock with a command that was stopped from the terminal. Call it after all pending
    /// events are handled.
    pub(super) fn stop_with_command(&mut self, supervisor: &mut Supervisor) {
        let Some(mut signal) = self.stopped else {
            return;
        };
        if signal == rustix::process::Signal::STOP.as_raw() {
            // A debugger, cpulimit or an administrator sent STOP; or the program stopped itself
            // after Ctrl-Z.
            if self
                .asked_to_stop
                .is_none_or(|at| BootClock::read().since(at) >= STOPS_WITHIN)
            {
                return;
            }
            signal = rustix::process::Signal::TSTP.as_raw();
        }
        self.warn_of_the_stop();
        supervisor.stop_with_command(signal);
        (self.stopped, self.asked_to_stop) = (None, None);
    }

    fn warn_of_the_stop(&self) {
        let left = self.term_at.since(BootClock::read());
        self.warn(&format!(
            "stopped; the lock is lost unless this goes on within {}",
            age(left)
        ));
        drain(LAST_WORD);
    }

    pub(super) fn signal(&mut self, signal: Signal, supervisor: &mut Supervisor) {
        if signal.is_stop() && signal.from_terminal {
            if self.outlived {
                self.warn_of_the_stop();
                return stop_self(signal.number);
            }
            self.asked_to_stop = Some(BootClock::read());
            self.stop_with_command(supervisor);
        }
        if self.outlived && signal.ends_wait() {
            // The command has ended, so the terminal's keys are for dlock: Ctrl-C must end the run.
            let again = std::mem::replace(&mut self.told_to_end, true);
            return supervisor.stop(if again {
                Duration::ZERO
            } else {
                self.budget.grace()
            });
        }
        if signal.from_terminal && signal.ends_wait() {
            self.reraise = Some(signal.number);
        }
        if signal.is_orderly_stop() {
            // dlock renews until the tree is empty.
            supervisor.stop(self.budget.grace());
        } else {
            supervisor.forward(signal);
        }
    }

    /// Reports that the guardian stopped the command. The reason is the renewals' one, if known,
    /// else `otherwise`.
    fn lost_by_guardian(&mut self, otherwise: &str) {
        let how = self.unconfirmed.take();
        self.lose(&self.settings.key, how.as_deref().unwrap_or(otherwise));
    }

    /// Reports how a lock was lost, once for each lock. The first loss determines the verdict.
    pub(super) fn lose(&mut self, key: &Key, how: &str) {
        if self.warned_keys.contains(key) {
            return;
        }
        self.warned_keys.push(key.clone());
        let what = match self.settings.on_lost {
            _ if self.ended => "the command had ended by then",
            OnLost::Continue => "the command runs on without the lock, as --on-lost continue says",
            OnLost::Kill | OnLost::Signal(_) => "the command is being stopped",
        };
        let hint = format!(
            "{what}; dlock inspect {} shows its holder",
            crate::output::shell(key)
        );
        self.context.out.lost(key, how, &hint);
        self.events.lost(how);
        self.lost.get_or_insert_with(|| {
            if self.settings.also.is_empty() {
                how.to_owned()
            } else {
                format!("{}: {how}", key.escaped())
            }
        });
    }

    /// Reports that the command reached its maximum runtime.
    fn time_up(&mut self) {
        if !std::mem::replace(&mut self.timed_out, true) {
            self.context
                .out
                .timed_out(&self.settings.key, &self.settings.max_runtime());
        }
    }

    /// Reports that an operator breaks a lock.
    pub(super) fn broken(&mut self, key: &Key, mark: Break) {
        self.context.out.broken(key, &mark);
        self.events.broken(&crate::output::mark(&mark));
        self.broken = Some(mark);
    }

    /// Returns the verdict on the run, as far as it is known.
    pub(super) fn outcome(&self, end: &SupervisionEnd) -> Outcome {
        let not_executed = if let SupervisionEnd::NotStarted(status, ..) = end {
            *status
        } else {
            exit::INTERNAL
        };
        let fate = match end {
            SupervisionEnd::NotStarted(..) => Fate::NotExecuted,
            SupervisionEnd::Ended(Ended {
                outcome: Some(outcome),
                by_itself,
                ..
            }) => {
                // With `continue` no signal ends a command that has lost its lock.
                let under_the_lock =
                    self.lost.is_none() || self.settings.on_lost != OnLost::Continue;
                if *by_itself && under_the_lock {
                    Fate::Ended((*outcome).into())
                } else {
                    Fate::Stopped((*outcome).into())
                }
            }
            SupervisionEnd::Ended(Ended { outcome: None, .. }) | SupervisionEnd::Unkillable(_) => {
                Fate::Unseen
            }
        };
        outcome(fate, self.disturbance(), not_executed)
    }

    pub(super) fn disturbance(&self) -> Disturbance {
        match (&self.lost, &self.broken) {
            (Some(_), _) => Disturbance::Lost,
            (None, Some(_)) => Disturbance::Broken,
            (None, None) if self.timed_out => Disturbance::TimedOut,
            (None, None) => Disturbance::None,
        }
    }

    /// Takes the command's output, if it was captured, and keeps its last part for messages.
    pub(super) fn take_output(&mut self, supervisor: &mut Supervisor) -> Option<CapturedOutput> {
        let printed = supervisor.printed();
        self.last_lines = printed.as_ref().and_then(crate::output::last_lines);
        printed
    }

    /// Reports that the lock is lost while this process of the tree is still alive.
    pub(super) fn give_up_on(&mut self, pid: i32) {
        let what = if pid == 0 {
            "what the command started".to_owned()
        } else {
            format!("process {pid}")
        };
        let what = format!("{what} could not be killed, and runs on without the lock");
        self.warn(&what);
        if let Some(how) = &mut self.lost {
            how.push_str("; ");
            how.push_str(&what);
        }
    }

    pub(super) fn tell_leftover(&mut self) {
        let Some((_, pids)) = self.leftover.take() else {
            return;
        };
        let named = |pid: &i32| Some(format!("{} (pid {pid})", process_name(*pid)?));
        let named: Vec<String> = pids.iter().filter_map(named).collect();
        let what = match &*named {
            [] => "the command's processes are".to_owned(),
            [one] => format!("{one} is"),
            [some @ .., last] if some.len() < 4 => format!("{} and {last} are", some.join(", ")),
            some => format!("{} and {} more are", some[..3].join(", "), some.len() - 3),
        };
        let beforehand = "--leftover kill|leave decides beforehand";
        let hint = if has_keyboard() {
            format!("Ctrl-C stops it; {beforehand}")
        } else {
            beforehand.to_owned()
        };
        let text = format!(
            "{}: {what} still running: the lock stays held",
            self.settings.key.escaped()
        );
        self.context.out.warn_with_hint(&text, &hint);
    }

    pub(super) fn warn(&self, what: &str) {
        self.context
            .out
            .warn(&format!("{}: {what}", self.settings.key.escaped()));
    }

    /// Reports the result of the release.
    pub(super) fn released(&mut self, key: &Key, released: Released) -> ReleaseResult {
        match released {
            Released::Free => ReleaseResult::Yes,
            Released::StillHeld(_) => ReleaseResult::Nested,
            Released::NotHeld => {
                if self.lost.is_none() {
                    self.lose(key, "the lock was lost before its release");
                }
                ReleaseResult::NotHeld
            }
            Released::Untold(error) => {
                if self.lost.is_none() {
                    let mut hint = format!(
                        "dlock history {} does not tell how this run ended",
                        crate::output::shell(key)
                    );
                    if self.settings.policy.frequency != Frequency::Always
                        && *key == self.settings.key
                    {
                        hint = format!(
                            "{hint}: a later run refuses to guess, or runs it again if told to by --retry-crashed"
                        );
                    }
                    self.context
                        .out
                        .warn_with_hint(&format!("{error}: the lock is free, but the store was not told how the run ended"), &hint);
                }
                ReleaseResult::Unknown
            }
            Released::Unknown(error) => {
                if self.lost.is_none() {
                    self.context.out.warn_with_hint(
                        &format!("{error}: it is unknown whether the lock was released"),
                        "it ends with its lease at the latest",
                    );
                }
                ReleaseResult::Unknown
            }
        }
    }

    fn not_started(&self, why: CannotStart) -> SupervisionEnd {
        let program = self
            .settings
            .command
            .first()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let (text, hint) =
            unstartable::explain(why, &program, self.granted_in_time, self.settings.nonblock);
        SupervisionEnd::NotStarted(why.status(), text, hint)
    }
}
