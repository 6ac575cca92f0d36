//! Parts that the objects of several commands share.

use std::error::Error as _;

use serde::Serialize;

use super::{
    super::{
        LockView, Now,
        history::RunOf,
        time::{Time, millis, rfc3339_ms},
    },
    words::{ModeWord, StateWord},
};
use crate::lock::{
    self, Break, Denial, Effect, End, Error, Holder, Key, Kind, Mode, NodeView, Rule, SkipCount,
    Waiter,
};

/// One lock.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LockReport<'a> {
    key: &'a str,
    stored_as: &'a str,
    held: bool,
    /// When a free lock can be taken again, if an earlier run keeps it from others.
    refused_until: Option<Time>,
    refused: Option<DeniedReport<'a>>,
    last_fence: Option<u64>,
    holders: Vec<HolderReport<'a>>,
    waiters: Vec<WaiterReport<'a>>,
    nodes: Vec<NodeReport<'a>>,
}

impl<'a> LockReport<'a> {
    pub(super) fn new(lock: &'a LockView, now: &Now) -> Self {
        let state = &lock.state;
        let denial = lock.denial.as_ref();
        Self {
            key: state.key.as_str(),
            stored_as: &state.stored_as,
            held: !state.holders.is_empty(),
            refused_until: denial.and_then(|denial| now.utc_after(denial.again_in?)),
            refused: denial.map(|denial| DeniedReport::new(denial, &lock.option, now)),
            last_fence: state.last_fence.map(|fence| fence.0),
            holders: state
                .holders
                .iter()
                .map(|holder| HolderReport::new(holder, now))
                .collect(),
            waiters: state.waiters.iter().map(WaiterReport::new).collect(),
            nodes: state.nodes.iter().map(NodeReport::new).collect(),
        }
    }
}

/// One node of a lock that several nodes keep.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NodeReport<'a> {
    node: &'a str,
    held: Option<bool>,
    /// Another owner holds it there.
    others: bool,
    fence: Option<u64>,
    expires_in_ms: Option<u64>,
    error: Option<&'a str>,
}

impl<'a> NodeReport<'a> {
    pub(super) fn new(node: &'a NodeView) -> Self {
        Self {
            node: &node.node,
            held: node.held,
            others: node.others,
            fence: node.fence.map(|fence| fence.0),
            expires_in_ms: node.expires_in.map(millis),
            error: node.error.as_deref(),
        }
    }
}

/// One hold.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HolderReport<'a> {
    mode: ModeWord,
    /// Which of the permits, from 0.
    permit: Option<u32>,
    /// Of how many.
    permits: Option<u32>,
    host: Option<&'a str>,
    user: Option<&'a str>,
    pid: Option<u32>,
    boot_id: Option<&'a str>,
    pid_ns: Option<u64>,
    command: Option<&'a str>,
    description: Option<&'a str>,
    /// Why it ran past its run policy.
    anyway: Option<&'a str>,
    fence: Option<u64>,
    foreign: bool,
    detached: bool,
    since: Option<Time>,
    held_for_ms: Option<u64>,
    renewed_ago_ms: Option<u64>,
    expires_in_ms: Option<u64>,
    holds: u32,
    broken: Option<BreakReport<'a>>,
}

/// An earlier run that denies a free lock to other runs.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeniedReport<'a> {
    reason: &'a str,
    host: Option<&'a str>,
    user: Option<&'a str>,
    pid: Option<u32>,
    fence: Option<u64>,
    started: Option<Time>,
    state: Option<StateWord>,
    again_in_ms: Option<u64>,
}

impl<'a> DeniedReport<'a> {
    /// Reports a denial by the rule of `option`; `now` dates it.
    pub fn new(denial: &'a Denial, option: &'a str, now: &Now) -> Self {
        let metadata = denial.metadata.as_ref();
        Self {
            reason: option,
            host: metadata.and_then(|m| m.host.as_deref()),
            user: metadata.and_then(|m| m.user.as_deref()),
            pid: metadata.and_then(|m| m.pid),
            fence: denial.fence.map(|fence| fence.0),
            started: denial.began.and_then(|ago| now.utc_before(ago)),
            state: match denial.rule {
                Rule::Once(state) => Some(StateWord(state)),
                Rule::SkewGuard(_) | Rule::AtLeast(_) => None,
            },
            again_in_ms: denial.again_in.map(millis),
        }
    }
}

/// A run record of a skew guard or a minimum hold time (`--at-least`).
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CooldownReport<'a> {
    fence: u64,
    host: Option<&'a str>,
    user: Option<&'a str>,
    started: Option<Time>,
    skew_guard_ms: u64,
    at_least_ms: u64,
}

impl<'a> CooldownReport<'a> {
    pub(super) fn new(cooldown: &'a lock::Cooldown) -> Self {
        let metadata = cooldown.metadata.as_ref();
        Self {
            fence: cooldown.fence.0,
            host: metadata.and_then(|m| m.host.as_deref()),
            user: metadata.and_then(|m| m.user.as_deref()),
            started: rfc3339_ms(cooldown.at_ms),
            skew_guard_ms: cooldown.guard_ms,
            at_least_ms: cooldown.at_least_ms,
        }
    }
}

/// The last run of `--once` or `--once-per`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LastRunReport<'a> {
    fence: u64,
    host: Option<&'a str>,
    user: Option<&'a str>,
    started: Option<Time>,
    state: StateWord,
    tries: u32,
    window_ms: u64,
}

impl<'a> LastRunReport<'a> {
    pub(super) fn new(start: &'a lock::LastRun) -> Self {
        let metadata = start.metadata.as_ref();
        Self {
            fence: start.fence.0,
            host: metadata.and_then(|m| m.host.as_deref()),
            user: metadata.and_then(|m| m.user.as_deref()),
            started: rfc3339_ms(start.at_ms),
            state: StateWord(start.state),
            tries: start.tries,
            window_ms: start.window_ms,
        }
    }
}

/// The operator that is breaking a hold.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BreakReport<'a> {
    by: &'a str,
    reason: Option<&'a str>,
    /// Its holder knows, and is stopping.
    seen: bool,
}

impl<'a> BreakReport<'a> {
    /// Reports the mark of a break.
    pub fn new(mark: &'a Break) -> Self {
        Self {
            by: &mark.by,
            reason: mark.why.as_deref(),
            seen: mark.seen,
        }
    }
}

impl<'a> HolderReport<'a> {
    /// Reports a hold; `now` dates it.
    pub fn new(holder: &'a Holder, now: &Now) -> Self {
        let metadata = holder.metadata.as_ref();
        Self {
            mode: holder.mode.into(),
            permit: holder.permit,
            permits: if let Mode::Permits(most) = holder.mode {
                Some(most)
            } else {
                None
            },
            host: metadata.and_then(|m| m.host.as_deref()),
            user: metadata.and_then(|m| m.user.as_deref()),
            pid: metadata.and_then(|m| m.pid),
            boot_id: metadata.and_then(|m| m.boot_id.as_deref()),
            pid_ns: metadata.and_then(|m| m.pid_ns),
            command: metadata.and_then(|m| m.command.as_deref()),
            description: metadata.and_then(|m| m.description.as_deref()),
            anyway: metadata.and_then(|m| m.anyway.as_deref()),
            fence: holder.fence.map(|fence| fence.0),
            foreign: holder.foreign,
            detached: holder.detached,
            since: holder.held_for.and_then(|ago| now.utc_before(ago)),
            held_for_ms: holder.held_for.map(millis),
            renewed_ago_ms: holder.renewed_ago.map(millis),
            expires_in_ms: holder.expires_in.map(millis),
            holds: holder.holds,
            broken: holder.broken.as_ref().map(BreakReport::new),
        }
    }
}

/// One run.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HistoryEntryReport<'a> {
    key: &'a str,
    fence: Option<u64>,
    host: Option<&'a str>,
    user: Option<&'a str>,
    pid: Option<u32>,
    command: Option<&'a str>,
    description: Option<&'a str>,
    /// Why it ran past its run policy.
    anyway: Option<&'a str>,
    started: Option<Time>,
    ended: Option<Time>,
    waited_ms: Option<u64>,
    ran_ms: Option<u64>,
    cpu_ms: Option<u64>,
    max_rss_bytes: Option<u64>,
    /// `running`, `ok`, `exit N`, `signal N`, `not started`, `released`, `expired`, `lost`, `broken`
    /// or `forgotten`; more words may come.
    end: String,
    bad: bool,
    reason: Option<String>,
}

impl<'a> HistoryEntryReport<'a> {
    pub(super) fn new(key: &'a Key, run: &'a RunOf) -> Self {
        let metadata = run.metadata.as_ref();
        Self {
            key: key.as_str(),
            fence: run.fence.map(|fence| fence.0),
            host: metadata.and_then(|m| m.host.as_deref()),
            user: metadata.and_then(|m| m.user.as_deref()),
            pid: metadata.and_then(|m| m.pid),
            command: metadata.and_then(|m| m.command.as_deref()),
            description: metadata.and_then(|m| m.description.as_deref()),
            anyway: metadata.and_then(|m| m.anyway.as_deref()),
            started: run.started_ms.and_then(rfc3339_ms),
            ended: run.ended_ms.and_then(rfc3339_ms),
            waited_ms: metadata.and_then(|m| m.waited_ms),
            ran_ms: run.end.as_ref().and_then(|_| run.ran_ms(0)),
            cpu_ms: run.outcome.cpu_ms,
            max_rss_bytes: run.outcome.max_rss_bytes,
            end: run
                .end
                .as_ref()
                .map_or_else(|| "running".into(), ToString::to_string),
            bad: run.end.as_ref().is_some_and(End::is_bad),
            reason: run.outcome.reason(),
        }
    }
}

/// How often a host skipped.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SkipCountReport<'a> {
    host: &'a str,
    count: u64,
    since: Option<Time>,
    last: Option<Time>,
    reason: &'a str,
}

impl<'a> SkipCountReport<'a> {
    pub(super) fn new(skips: &'a SkipCount) -> Self {
        let (since, last) = (
            skips.since_ms.and_then(rfc3339_ms),
            skips.last_ms.and_then(rfc3339_ms),
        );
        Self {
            host: &skips.host,
            count: skips.count,
            since,
            last,
            reason: &skips.reason,
        }
    }
}

/// One waiter.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WaiterReport<'a> {
    host: Option<&'a str>,
    user: Option<&'a str>,
    pid: Option<u32>,
    command: Option<&'a str>,
    description: Option<&'a str>,
    waiting_for_ms: Option<u64>,
    /// No waiter behind it is served first.
    in_order: bool,
}

impl<'a> WaiterReport<'a> {
    pub(super) fn new(waiter: &'a Waiter) -> Self {
        let metadata = waiter.metadata.as_ref();
        Self {
            host: metadata.and_then(|m| m.host.as_deref()),
            user: metadata.and_then(|m| m.user.as_deref()),
            pid: metadata.and_then(|m| m.pid),
            command: metadata.and_then(|m| m.command.as_deref()),
            description: metadata.and_then(|m| m.description.as_deref()),
            waiting_for_ms: waiter.waiting_for.map(millis),
            in_order: waiter.in_order,
        }
    }
}

/// One error.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ErrorReport<'a> {
    kind: Kind,
    message: &'a str,
    hint: Option<&'a str>,
    operation: Option<&'static str>,
    key: Option<&'a str>,
    backend: Option<&'a str>,
    /// Whether the failed step happened in the store all the same.
    effect: Effect,
    causes: Vec<String>,
}

impl<'a> ErrorReport<'a> {
    /// Reports an error with its causes.
    pub fn new(error: &'a Error) -> Self {
        let mut causes = Vec::new();
        let mut cause = error.source();
        while let Some(error) = cause {
            causes.push(error.to_string());
            cause = error.source();
        }
        Self {
            kind: error.kind,
            message: &error.message,
            hint: error.hint.as_deref(),
            operation: error.operation,
            key: error.key.as_ref().map(Key::as_str),
            backend: error.backend.as_deref(),
            effect: error.effect,
            causes,
        }
    }
}
