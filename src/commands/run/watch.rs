//! What is known of a run while its command runs, and what is said of it.

use std::{io, time::Duration};

use jiff::Timestamp;
use tokio::task::{JoinHandle, spawn_blocking};

use super::RunSettings;
use crate::{
    commands::Context,
    exit,
    lease::{BootClock, Budget, Released, wall_ms},
    lock::{self, BootTime, Break, Key, Parting, Scope, Stage},
    output::{CommandEnd, GivenBack, age},
    supervise::{CannotStart, Ended, Event, OnLost, Signal, Supervisor, Why, stop_self},
};

/// How the supervision of the command ended.
pub(super) enum End {
    /// The tree is empty, or was left on purpose.
    Ended(Ended),
    /// The command was never executed: the status that says so, and why.
    NotStarted(u8, String),
    /// The lock is lost, and this process lives on.
    Unkillable(i32),
}

/// What is known while the command runs.
pub(super) struct Watch<'a> {
    settings: &'a RunSettings,
    context: &'a Context,
    pub budget: Budget,
    /// When the command gets TERM, as last confirmed.
    pub term_at: BootTime,
    /// How the lock was lost, if it was.
    pub lost: Option<String>,
    /// Who is taking it away, if somebody is.
    pub broken: Option<Break>,
    /// Whether the command ran for as long as it may.
    pub timed_out: bool,
    /// Whether nothing of the command is left.
    pub ended: bool,
    /// Since when the command's descendants outlive it, and which they were.
    pub leftover: Option<(BootTime, Vec<i32>)>,
    /// A signal of the terminal that may end the command.
    pub reraise: Option<i32>,
    /// The process that can't be killed, while the lock is kept because of it.
    pub stuck: Option<i32>,
    /// The start's metrics being written.
    pub noting: Option<JoinHandle<io::Result<()>>>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(settings: &'a RunSettings, context: &'a Context, budget: Budget) -> Self {
        let term_at = BootClock::read();
        Self {
            settings,
            context,
            budget,
            term_at,
            lost: None,
            broken: None,
            timed_out: false,
            ended: false,
            leftover: None,
            reraise: None,
            stuck: None,
            noting: None,
        }
    }

    pub(super) fn event(&mut self, event: Event) -> Option<End> {
        match event {
            Event::Started { .. } => self.note_start(),
            Event::Continued => {}
            Event::CannotStart(why) => return Some(End::NotStarted(why.status(), self.not_started(why))),
            Event::Stopped { signal } => {
                let left = self.term_at.since(BootClock::read());
                self.warn(&format!("stopped; the lock is lost unless this goes on within {}", age(left)));
                stop_self(signal);
            }
            Event::Leftover { pids } => self.leftover = Some((BootClock::read(), pids)),
            Event::TimeUp => self.time_up(),
            Event::DeadlineTerm => {
                if self.lost.is_none() {
                    self.lose(&self.settings.key, "no renewal was confirmed in time: was dlock stopped?");
                }
            }
            Event::Unkillable { pid, why } => {
                if self.lost.is_some() {
                    return Some(End::Unkillable(pid));
                }
                self.stuck = Some(pid);
                self.warn(&format!("process {pid} can't be killed ({why}): the lock is kept as long as it lives"));
            }
            Event::GuardianLost { frozen } => {
                let what = if frozen { "did not answer" } else { "was killed" };
                self.lose(&self.settings.key, &format!("the guardian {what}, and the command with it"));
            }
            Event::Ended(ended) => {
                if self.lost.is_none() && matches!(ended.stopped, Some(Why::Deadline | Why::Lost | Why::Guardian)) {
                    self.lose(&self.settings.key, "the command had to be stopped");
                }
                if ended.stopped == Some(Why::TimeUp) {
                    self.time_up();
                }
                return Some(End::Ended(ended));
            }
        }
        None
    }

    /// Writes the metrics of the start, beside all else: the file may have to be waited for.
    fn note_start(&mut self) {
        if let Some(file) = self.settings.metrics_file.clone() {
            let (key, now) = (self.settings.key.clone(), Timestamp::now());
            self.noting = Some(spawn_blocking(move || file.started(&key, now)));
        }
    }

    pub(super) fn signal(&mut self, signal: Signal, supervisor: &mut Supervisor) {
        if signal.from_terminal && signal.ends_wait() {
            self.reraise = Some(signal.number);
        }
        if signal.is_orderly_stop() {
            // Goes on renewing until the tree is empty.
            supervisor.stop(self.budget.grace());
        } else {
            supervisor.forward(signal);
        }
    }

    /// Says how a lock was lost. The first loss is the one that counts.
    pub(super) fn lose(&mut self, key: &Key, how: &str) {
        let what = match self.settings.on_lost {
            _ if self.ended => "the command had ended by then",
            OnLost::Continue => "the command goes on without it, as --on-lost continue says",
            OnLost::Kill | OnLost::Signal(_) => "the command is being stopped",
        };
        let hint = format!("{what}; dlock inspect {} tells who has the lock", crate::output::shell(key));
        self.context.out.lost(key, how, &hint);
        self.lost.get_or_insert_with(|| if self.settings.also.is_empty() { how.to_owned() } else { format!("{}: {how}", key.escaped()) });
    }

    /// Says that the command ran for as long as it may.
    fn time_up(&mut self) {
        if !std::mem::replace(&mut self.timed_out, true) {
            self.context.out.timed_out(&self.settings.key, &self.settings.max_runtime());
        }
    }

    /// Says that somebody takes a lock away.
    pub(super) fn broken(&mut self, key: &Key, mark: Break) {
        self.context.out.broken(key, &mark);
        self.broken = Some(mark);
    }

    /// How the hold ended, for the history.
    pub(super) fn parting(&self, scope: Scope, end: &End, command: Option<CommandEnd>, ran: Duration) -> Parting {
        let became = match (&self.broken, command) {
            (None, Some(CommandEnd::Exited(0))) if !self.timed_out => Stage::Ok,
            _ => Stage::Failed,
        };
        let (end, why) = match (&self.lost, &self.broken, end, command) {
            (Some(how), ..) => (lock::End::Lost, Some(how.clone())),
            (None, Some(mark), ..) => mark.into(),
            // However the command took its TERM, it did not do what it was to do.
            (None, None, ..) if self.timed_out => (lock::End::Exited(exit::TIMED_OUT), Some(self.settings.max_runtime())),
            (None, None, End::NotStarted(_, why), _) => (lock::End::NotStarted, Some(why.clone())),
            (None, None, _, Some(CommandEnd::Exited(status))) => (lock::End::Exited(status), None),
            (None, None, _, Some(CommandEnd::Signalled(signal))) => (lock::End::Signalled(signal), None),
            (None, None, _, None) => (lock::End::Released, None),
        };
        Parting { scope, end: Some(end), why, at_ms: Some(wall_ms()), held_ms: u64::try_from(ran.as_millis()).ok(), became: Some(became) }
    }

    /// Says that the lock is lost and this process of the tree is not.
    pub(super) fn give_up_on(&mut self, pid: i32) {
        let what = if pid == 0 { "what the command started".to_owned() } else { format!("process {pid}") };
        let what = format!("{what} could not be killed, and runs on without the lock");
        self.warn(&what);
        if let Some(how) = &mut self.lost {
            how.push_str("; ");
            how.push_str(&what);
        }
    }

    pub(super) fn tell_leftover(&mut self) {
        if let Some((_, pids)) = self.leftover.take() {
            let pids: Vec<String> = pids.iter().take(5).map(i32::to_string).collect();
            self.warn(&format!("the command ended, but not all that it started ({}): the lock is kept until then", pids.join(", ")));
        }
    }

    pub(super) fn warn(&self, what: &str) {
        self.context.out.warn(&format!("{}: {what}", self.settings.key.escaped()));
    }

    /// What giving the lock back tells.
    pub(super) fn released(&mut self, key: &Key, released: Released) -> GivenBack {
        match released {
            Released::Free => GivenBack::Yes,
            Released::StillHeld(_) => GivenBack::Nested,
            Released::NotHeld => {
                if self.lost.is_none() {
                    self.lose(key, "it was gone when it was to be given back");
                }
                GivenBack::NotHeld
            }
            Released::Unknown(error) => {
                if self.lost.is_none() {
                    self.context.out.warn_with_hint(
                        &format!("{error}: it is unknown whether the lock was given back"),
                        "it ends with its lease at the latest",
                    );
                }
                GivenBack::Unknown
            }
        }
    }

    fn not_started(&self, why: CannotStart) -> String {
        let program = self.settings.command.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        format!("{program}: {why}")
    }
}
