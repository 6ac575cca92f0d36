//! The result of a `dlock run`: for the status file, for `--json` and for syslog.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::{Now, holders, json, time};
use crate::lock::{Denial, Error, Fence, Holder, Key, printable};

/// The result of a run, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunResult {
    /// The command ran to its end under the lock.
    Ok,
    /// Another process had the lock.
    Busy,
    /// The lock was lost while the command ran.
    Lost,
    /// An operator broke the hold while the command ran; the command was stopped.
    Broken,
    /// The command reached `--max-runtime` and was stopped.
    TimedOut,
    /// A signal ended the wait.
    Interrupted,
    /// An error: the command did not run, or could not be supervised.
    Error,
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// With this status.
    Exited(u8),
    /// By this signal.
    Signalled(i32),
}

impl From<crate::supervise::ProcessEnd> for CommandEnd {
    fn from(outcome: crate::supervise::ProcessEnd) -> Self {
        match outcome {
            crate::supervise::ProcessEnd::Exited(status) => Self::Exited(status),
            crate::supervise::ProcessEnd::Signalled(signal) => Self::Signalled(signal),
        }
    }
}

/// Whether the lock is free after the run. For several locks the worst result counts, which is the
/// last in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReleaseResult {
    /// The lock was released.
    Yes,
    /// An outer `dlock run` keeps it.
    Nested,
    /// The store did not say; the lease ends by itself.
    Unknown,
    /// The token no longer held the lock.
    NotHeld,
}

/// The result of a run. `None` stands for events that did not happen.
#[derive(Debug)]
pub struct Verdict {
    /// The result in a word.
    pub outcome: RunResult,
    /// The lock; the first one if there are several.
    pub key: Key,
    /// The store, without secrets.
    pub backend: String,
    /// dlock's exit status.
    pub status: u8,
    /// How the command ended.
    pub command: Option<CommandEnd>,
    /// The fence of the hold.
    pub fence: Option<Fence>,
    /// All locks of the run with their fences, in the order of their keys; empty if they were not
    /// taken.
    pub keys: Vec<(Key, Fence)>,
    /// The permit's number.
    pub permit: Option<u32>,
    /// The lock that was busy or denied, if there was one.
    pub by: Option<Key>,
    /// When the command was started.
    pub started: Option<Timestamp>,
    /// How long dlock waited for the lock.
    pub waited: Duration,
    /// How long the command ran.
    pub ran: Option<Duration>,
    /// Whether the lock is free now.
    pub release_result: Option<ReleaseResult>,
    /// The holders, if the lock was busy.
    pub holders: Vec<Holder>,
    /// Why a free lock was denied, and the option with the rule.
    pub refused: Option<(Box<Denial>, String)>,
    /// The failure, or how the lock was lost.
    pub error: Option<Error>,
}

impl Verdict {
    /// Creates a verdict without the optional facts.
    pub fn new(outcome: RunResult, key: &Key, backend: impl Into<String>, status: u8) -> Self {
        Self {
            outcome,
            key: key.clone(),
            backend: backend.into(),
            status,
            command: None,
            fence: None,
            keys: Vec::new(),
            permit: None,
            by: None,
            started: None,
            waited: Duration::ZERO,
            ran: None,
            release_result: None,
            holders: Vec::new(),
            refused: None,
            error: None,
        }
    }

    /// Whether the outcome needs attention.
    pub fn is_bad(&self) -> bool {
        matches!(
            self.outcome,
            RunResult::Lost | RunResult::Broken | RunResult::TimedOut | RunResult::Error
        )
    }

    /// Returns the line for syslog: `sms-job skipped busy holder=web1 fence=812`.
    pub fn line(&self) -> String {
        let mut parts = vec![word(self.key.as_str())];
        let mut add = |text: String| parts.push(text);
        match self.outcome {
            RunResult::Ok => {
                add("ran".into());
                match self.command {
                    Some(CommandEnd::Exited(status)) => add(format!("status={status}")),
                    Some(CommandEnd::Signalled(signal)) => add(format!("signal={signal}")),
                    None => {}
                }
            }
            RunResult::Busy => {
                let (metadata, fence) = if let Some((denial, option)) = &self.refused {
                    add(format!("skipped {}", word(option)));
                    (denial.metadata.as_ref(), denial.fence)
                } else {
                    add("skipped busy".into());
                    let holder = self.holders.first();
                    (
                        holder.and_then(|holder| holder.metadata.as_ref()),
                        holder.and_then(|holder| holder.fence),
                    )
                };
                if let Some(by) = self.by.as_ref().filter(|by| **by != self.key) {
                    add(format!("key={}", word(by.as_str())));
                }
                if self.refused.is_some() || !self.holders.is_empty() {
                    let host = metadata.and_then(|m| m.host.as_deref());
                    add(format!(
                        "holder={}",
                        host.map_or("?".into(), |host| word(&holders::clean(host, 64)))
                    ));
                }
                if let Some(fence) = fence {
                    add(format!("fence={fence}"));
                }
            }
            RunResult::Lost => add("lost".into()),
            RunResult::Broken => add("broken".into()),
            RunResult::TimedOut => add("timed out".into()),
            RunResult::Interrupted => add("interrupted".into()),
            RunResult::Error => add("failed".into()),
        }
        if let Some(fence) = self.fence {
            add(format!("fence={fence}"));
        }
        if let Some(ran) = self.ran {
            add(format!("ran={:.3}s", ran.as_secs_f64()));
        }
        if self.outcome == RunResult::Ok && self.release_result == Some(ReleaseResult::Unknown) {
            add("release=unknown".into());
        }
        if let Some(error) = &self.error {
            add(format!("error={:?}", error.message));
        }
        parts.join(" ")
    }

    /// Returns the one JSON object, as a line.
    pub fn json(&self) -> String {
        json::line(&self.report(&Now::read()))
    }

    /// Returns the one JSON object.
    pub(super) fn report(&self, now: &Now) -> VerdictReport<'_> {
        let (exit_status, signal) = match self.command {
            Some(CommandEnd::Exited(status)) => (Some(status), None),
            Some(CommandEnd::Signalled(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        VerdictReport {
            schema: json::SCHEMA,
            result: self.outcome,
            status: self.status,
            key: self.key.as_str(),
            backend: &self.backend,
            fence: self.fence.map(|fence| fence.0),
            keys: self
                .keys
                .iter()
                .map(|(key, fence)| KeyFenceReport {
                    key: key.as_str(),
                    fence: fence.0,
                })
                .collect(),
            permit: self.permit,
            by: self.by.as_ref().map(Key::as_str),
            started: self.started.map(time::rfc3339),
            waited_ms: time::millis(self.waited),
            ran_ms: self.ran.map(time::millis),
            command: self.command.map(|_| CommandReport {
                status: exit_status,
                signal,
            }),
            released: self.release_result,
            holders: self
                .holders
                .iter()
                .map(|holder| json::HolderReport::new(holder, now))
                .collect(),
            refused: self
                .refused
                .as_ref()
                .map(|(denial, option)| json::DeniedReport::new(denial, option, now)),
            error: self.error.as_ref().map(json::ErrorReport::new),
        }
    }
}

/// `run`, once it began.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct VerdictReport<'a> {
    schema: &'static str,
    result: RunResult,
    status: u8,
    key: &'a str,
    backend: &'a str,
    fence: Option<u64>,
    /// All locks of the run, in the order of their keys; none if they were not taken.
    keys: Vec<KeyFenceReport<'a>>,
    permit: Option<u32>,
    /// The key that kept it from running.
    by: Option<&'a str>,
    started: Option<time::Time>,
    waited_ms: u64,
    ran_ms: Option<u64>,
    command: Option<CommandReport>,
    released: Option<ReleaseResult>,
    holders: Vec<json::HolderReport<'a>>,
    refused: Option<json::DeniedReport<'a>>,
    error: Option<json::ErrorReport<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct KeyFenceReport<'a> {
    key: &'a str,
    fence: u64,
}

/// How a command ended: by itself, or by a signal.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CommandReport {
    status: Option<u8>,
    signal: Option<i32>,
}

/// Returns `text` as one word of a line, in quotes if needed.
pub(super) fn word(text: &str) -> String {
    let text = printable(text);
    if text.chars().any(|c| c == ' ' || c == '"' || c == '=') {
        format!("{text:?}")
    } else {
        text.into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Kind, Metadata, Mode};

    fn verdict(outcome: RunResult, status: u8) -> Verdict {
        Verdict::new(
            outcome,
            &Key::new("sms-job").unwrap(),
            "redis://r1:6379",
            status,
        )
    }

    fn holder() -> Holder {
        Holder {
            permit: None,
            mode: Mode::Exclusive,
            metadata: Some(Metadata {
                host: Some("web1".into()),
                ..Metadata::default()
            }),
            fence: Some(Fence(812)),
            foreign: false,
            detached: false,
            held_for: None,
            renewed_ago: None,
            expires_in: None,
            removal: None,
            holds: 1,
            broken: None,
        }
    }

    #[test]
    fn the_line_summarizes_the_run() {
        let skipped = Verdict {
            holders: vec![holder()],
            ..verdict(RunResult::Busy, 75)
        };
        assert_eq!(skipped.line(), "sms-job skipped busy holder=web1 fence=812");
        let ran = Verdict {
            command: Some(CommandEnd::Exited(3)),
            fence: Some(Fence(7)),
            ran: Some(Duration::from_millis(1500)),
            ..verdict(RunResult::Ok, 3)
        };
        assert_eq!(ran.line(), "sms-job ran status=3 fence=7 ran=1.500s");
        let lost = Verdict {
            error: Some(Error::new(Kind::Timeout, "no renewal for 36s")),
            fence: Some(Fence(7)),
            ..verdict(RunResult::Lost, 76)
        };
        assert_eq!(
            lost.line(),
            "sms-job lost fence=7 error=\"no renewal for 36s\""
        );
        assert!(lost.is_bad() && !ran.is_bad() && !skipped.is_bad());
    }

    #[test]
    fn odd_names_stay_one_word() {
        let key = Key::new("a b=\"c").unwrap();
        assert_eq!(
            Verdict::new(RunResult::Interrupted, &key, "local", 130).line(),
            r#""a b=\"c" interrupted"#
        );
    }

    #[test]
    fn unknown_is_null() {
        let json: serde_json::Value =
            serde_json::from_str(&verdict(RunResult::Interrupted, 130).json()).unwrap();
        assert_eq!(json["schema"], "dlock/1");
        assert_eq!(json["result"], "interrupted");
        for unknown in ["fence", "started", "ran_ms", "command", "released", "error"] {
            assert!(
                json.get(unknown).is_some_and(serde_json::Value::is_null),
                "{unknown}"
            );
        }
    }
}
