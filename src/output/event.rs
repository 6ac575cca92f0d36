//! What a hook of `dlock run` reads: one event as one JSON object.

use jiff::Timestamp;
use serde::Serialize;

use super::{Now, RunResult, Verdict, json, time, verdict::Run};
use crate::lock::{Fence, Key, Metadata};

/// What happened to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEvent {
    /// The lock was acquired; the command is about to start.
    Acquired,
    /// Another holder had the lock, a run policy refused, or a signal ended the wait.
    Skipped,
    /// The lock was lost; the command is being stopped.
    Lost,
    /// Another user takes the lock away; the command is being stopped.
    Broken,
    /// A run that had the lock is over, and the lock was given back if that was possible.
    Ended,
    /// The lock could not be asked for.
    Failed,
}

impl RunEvent {
    /// What a run that never had the lock came to.
    pub fn of(verdict: &Verdict) -> Self {
        if verdict.outcome == RunResult::Error { Self::Failed } else { Self::Skipped }
    }

    /// Its name in JSON and in `DLOCK_EVENT`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Skipped => "skipped",
            Self::Lost => "lost",
            Self::Broken => "broken",
            Self::Ended => "ended",
            Self::Failed => "failed",
        }
    }
}

/// An event, and what is known at that time.
pub struct EventReport<'a> {
    /// What happened.
    pub event: RunEvent,
    /// The job's own lock.
    pub key: &'a Key,
    /// The store, without secrets.
    pub backend: &'a str,
    /// The runner, unless it is hidden.
    pub us: Option<&'a Metadata>,
    /// The hold's number.
    pub fence: Option<Fence>,
    /// Why, of a loss or a break.
    pub reason: Option<&'a str>,
    /// How the run ended, once it has.
    pub verdict: Option<&'a Verdict>,
}

impl EventReport<'_> {
    /// The one JSON object, as a line.
    pub fn json(&self) -> String {
        let now = Now::read();
        json::line(&Report {
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

    /// A line for people.
    fn text(&self) -> String {
        let on = self.us.and_then(|us| us.host.as_deref()).map(|host| format!(" on {host}")).unwrap_or_default();
        let what = match (self.verdict, self.reason) {
            (Some(verdict), _) => verdict.line(),
            (None, Some(reason)) => format!("{} {}: {reason}", self.key.escaped(), self.event.name()),
            (None, None) => format!("{} {}", self.key.escaped(), self.event.name()),
        };
        format!("{what}{on}")
    }
}

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    event: RunEvent,
    text: String,
    key: &'a str,
    backend: &'a str,
    host: Option<&'a str>,
    user: Option<&'a str>,
    pid: u32,
    at: String,
    fence: Option<u64>,
    reason: Option<&'a str>,
    run: Option<Run<'a>>,
}
