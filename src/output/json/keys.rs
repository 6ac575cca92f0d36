//! The objects of commands about many keys.

use serde::Serialize;

use super::{ErrorReport, HistoryEntryReport, ReportHead, head};
use crate::{
    exit,
    lock::{Fence, Key, Result},
    output::{
        history::RunOf,
        overview::Summary,
        time::{Time, millis, rfc3339_ms},
    },
};

/// `list --all`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KnownKeys<'a> {
    #[serde(flatten)]
    head: ReportHead,
    backend: &'a str,
    keys: Vec<KnownKeyReport<'a>>,
}

/// A key with its last run.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct KnownKeyReport<'a> {
    key: &'a str,
    last: Option<HistoryEntryReport<'a>>,
    last_ok: Option<Time>,
    runs: usize,
    skips: u64,
    /// How far its runs are usually apart.
    usually_every_ms: Option<u64>,
    /// It has not started for twice as long.
    late: bool,
}

impl<'a> KnownKeys<'a> {
    /// Reports the keys of a store.
    pub fn new(keys: &'a [Summary], backend: &'a str) -> Self {
        let report = |one: &'a Summary| KnownKeyReport {
            key: one.key.as_str(),
            last: one
                .last
                .as_ref()
                .map(|run| HistoryEntryReport::new(&one.key, run)),
            last_ok: one.ok_ms.and_then(rfc3339_ms),
            runs: one.runs,
            skips: one.skips,
            usually_every_ms: one.every.map(millis),
            late: one.late,
        };
        Self {
            head: head("ok", exit::OK),
            backend,
            keys: keys.iter().map(report).collect(),
        }
    }
}

/// `history` without a key.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AllRuns<'a> {
    #[serde(flatten)]
    head: ReportHead,
    backend: &'a str,
    runs: Vec<HistoryEntryReport<'a>>,
}

impl<'a> AllRuns<'a> {
    /// Reports runs of several keys.
    pub fn new(runs: &'a [(Key, RunOf)], backend: &'a str) -> Self {
        Self {
            head: head("ok", exit::OK),
            backend,
            runs: runs
                .iter()
                .map(|(key, run)| HistoryEntryReport::new(key, run))
                .collect(),
        }
    }
}

/// `break --host`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostBroken<'a> {
    #[serde(flatten)]
    head: ReportHead,
    host: &'a str,
    backend: &'a str,
    holds: Vec<BrokenReport<'a>>,
}

/// A hold of the host, and whether it was broken.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct BrokenReport<'a> {
    key: &'a str,
    fence: u64,
    /// `given_back`, `evicted`, or `changed`: nothing was done. Without `how` and `error`, it was asked
    /// to end, and not waited for.
    how: Option<&'static str>,
    error: Option<ErrorReport<'a>>,
}

impl<'a> HostBroken<'a> {
    /// Reports the holds. After an interruption, some have no outcome.
    pub fn new(
        host: &'a str,
        backend: &'a str,
        outcomes: &'a [(&Key, Fence, Option<Result<&'static str>>)],
        status: u8,
        interrupted: bool,
    ) -> Self {
        let report =
            |(key, fence, outcome): &'a (&Key, Fence, Option<Result<&'static str>>)| BrokenReport {
                key: key.as_str(),
                fence: fence.0,
                how: outcome
                    .as_ref()
                    .and_then(|outcome| outcome.as_ref().ok().copied()),
                error: outcome
                    .as_ref()
                    .and_then(|outcome| outcome.as_ref().err().map(ErrorReport::new)),
            };
        let result = match status {
            _ if interrupted => "interrupted",
            exit::OK => "ok",
            exit::NOT_HELD => "not_held",
            _ => "error",
        };
        Self {
            head: head(result, status),
            host,
            backend,
            holds: outcomes.iter().map(report).collect(),
        }
    }
}
