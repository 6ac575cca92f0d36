//! A lock for display: its state in the store, and the run policy that denies it while it is free.

use super::{Now, holders, time::millis};
use crate::lock::{Denial, LastRun, LockState, Rule, RunRecord};

/// A lock for display.
#[derive(Clone, Debug)]
pub struct LockView {
    /// Its state in the store.
    pub state: LockState,
    /// Why the free lock is denied to every host, or to other hosts.
    pub denial: Option<Denial>,
    /// The rule of `denial`, named like the option.
    pub option: String,
    /// The last run of `--once` or `--once-per`, until its window ends.
    pub start: Option<LastRun>,
}

impl From<LockState> for LockView {
    fn from(state: LockState) -> Self {
        Self {
            state,
            denial: None,
            option: String::new(),
            start: None,
        }
    }
}

impl LockView {
    /// Creates a lock from its state and its run records, judged now.
    pub fn with_record(state: LockState, record: RunRecord, now: &Now) -> Self {
        let denial = record
            .current_denial(now.unix_ms())
            .filter(|_| state.holders.is_empty());
        let option = denial
            .as_ref()
            .map(|denial| denial.rule.to_string())
            .unwrap_or_default();
        let start = record
            .start
            .filter(|start| start.at_ms.saturating_add(start.window_ms) > now.unix_ms());
        Self {
            state,
            denial,
            option,
            start,
        }
    }
}

/// Returns when the lock can be taken again, and by which hosts: `not before 17:49:54`.
pub fn until(denial: &Denial, now: &Now) -> String {
    let at = denial.again_in.map_or_else(
        || "?".into(),
        |left| now.moment(now.unix_ms().saturating_add(millis(left))),
    );
    if matches!(denial.rule, Rule::SkewGuard(_)) {
        format!("for other hosts not before {at}")
    } else {
        format!("not before {at}")
    }
}

/// Returns why the lock is denied: `at least 1h, started 16:49:54 root@web1`.
pub fn why(denial: &Denial, now: &Now) -> String {
    let who = holders::user_at_host(denial.metadata.as_ref())
        .map(|who| format!(" {who}"))
        .unwrap_or_default();
    let began = denial
        .began
        .map(|ago| {
            format!(
                ", started {}",
                now.moment(now.unix_ms().saturating_sub(millis(ago)))
            )
        })
        .unwrap_or_default();
    format!("{}{began}{who}", denial.rule)
}
