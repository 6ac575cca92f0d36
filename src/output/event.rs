//! The events of `dlock run` for its hook: one JSON object each.

use jiff::Timestamp;
use serde::Serialize;

use super::{Now, RunResult, Verdict, json, time, verdict::VerdictReport};
use crate::lock::{Fence, Key, Metadata};

/// An event of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunEvent {
    /// Another holder has the lock, and dlock waits for it.
    Waiting,
    /// The lock was acquired; the command is about to start.
    Acquired,
    /// Another holder had the lock, a run policy refused, or a signal ended the wait.
    Skipped,
    /// The lock was lost; the command is being stopped.
    Lost,
    /// An operator breaks the lock; the command is being stopped.
    Broken,
    /// A run that had the lock has ended, and the lock was released if possible.
    Ended,
    /// The run failed before it had the lock.
    Failed,
}

impl RunEvent {
    /// Returns the event of a run that never had the lock.
    pub fn of(verdict: &Verdict) -> Self {
        if verdict.outcome == RunResult::Error {
            Self::Failed
        } else {
            Self::Skipped
        }
    }

    /// Returns its name in JSON and in `DLOCK_EVENT`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Acquired => "acquired",
            Self::Skipped => "skipped",
            Self::Lost => "lost",
            Self::Broken => "broken",
            Self::Ended => "ended",
            Self::Failed => "failed",
        }
    }
}

/// An event, and the facts known at that time.
pub struct EventReport<'a> {
    /// The event.
    pub event: RunEvent,
    /// The lock; the first one if there are several.
    pub key: &'a Key,
    /// The store, without secrets.
    pub backend: &'a str,
    /// Metadata of this run; `None` with `--no-metadata`.
    pub us: Option<&'a Metadata>,
    /// The fence of the hold.
    pub fence: Option<Fence>,
    /// The reason for a loss or a break, or the holder that dlock waits for.
    pub reason: Option<&'a str>,
    /// The result of the run, once it has ended.
    pub verdict: Option<&'a Verdict>,
}

impl EventReport<'_> {
    /// Returns the one JSON object, as a line.
    pub fn json(&self) -> String {
        let now = Now::read();
        json::line(&EventObject {
            schema: json::SCHEMA,
            event: self.event,
            text: self.text(),
            key: self.key.as_str(),
            backend: self.backend,
            host: self.us.and_then(|us| us.host.as_deref()),
            user: self.us.and_then(|us| us.user.as_deref()),
            pid: std::process::id(),
            at: time::rfc3339(Timestamp::now()),
            fence: self.fence.map(|fence| fence.0),
            reason: self.reason,
            run: self.verdict.map(|verdict| verdict.report(&now)),
        })
    }

    /// Returns a line of text about the event.
    fn text(&self) -> String {
        let on = self
            .us
            .and_then(|us| us.host.as_deref())
            .map(|host| format!(" on {host}"))
            .unwrap_or_default();
        let what = match (self.verdict, self.reason) {
            (Some(verdict), _) => verdict.line(),
            (None, Some(holder)) if self.event == RunEvent::Waiting => {
                format!("{} waiting for {holder}", self.key.escaped())
            }
            (None, Some(reason)) => {
                format!("{} {}: {reason}", self.key.escaped(), self.event.name())
            }
            (None, None) => format!("{} {}", self.key.escaped(), self.event.name()),
        };
        format!("{what}{on}")
    }
}

/// `run`: what a command of `--on-event` reads on its stdin.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct EventObject<'a> {
    schema: &'static str,
    event: RunEvent,
    /// The event as a line for people.
    text: String,
    key: &'a str,
    backend: &'a str,
    host: Option<&'a str>,
    user: Option<&'a str>,
    pid: u32,
    at: time::Time,
    fence: Option<u64>,
    /// Of `lost` and `broken`, and the holder that a `waiting` run waits for.
    reason: Option<&'a str>,
    /// How the run ended, once it has.
    run: Option<VerdictReport<'a>>,
}
