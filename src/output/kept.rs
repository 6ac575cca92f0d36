//! A lock as it is shown: what its store says, and what keeps it from other runs while it is free.

use super::{Now, time::millis, who};
use crate::lock::{Denial, LastRun, LockState, Rule, RunRecord};

/// A lock that is shown.
#[derive(Clone, Debug)]
pub struct Lock {
    /// What the store says.
    pub state: LockState,
    /// Why it is denied to every host, or to other hosts, although it is free.
    pub denial: Option<Denial>,
    /// The rule of that, as options are named.
    pub option: String,
    /// The last run that was to be the only one for some time, while that lasts.
    pub start: Option<LastRun>,
}

impl From<LockState> for Lock {
    fn from(state: LockState) -> Self {
        Self { state, denial: None, option: String::new(), start: None }
    }
}

impl Lock {
    /// With what its run records say now.
    pub fn with_record(state: LockState, record: RunRecord, now: &Now) -> Self {
        let denial = record.keeps(now.unix_ms()).filter(|_| state.holders.is_empty());
        let option = denial.as_ref().map(|denial| denial.rule.to_string()).unwrap_or_default();
        let start = record.start.filter(|start| start.at_ms.saturating_add(start.window_ms) > now.unix_ms());
        Self { state, denial, option, start }
    }
}

/// From when on the lock can be taken again: `17:49:54`, and which hosts must wait until then.
pub fn until(denial: &Denial, now: &Now) -> String {
    let at = denial.again_in.map_or_else(|| "?".into(), |left| now.moment(now.unix_ms().saturating_add(millis(left))));
    if matches!(denial.rule, Rule::SkewGuard(_)) { format!("for other hosts not before {at}") } else { format!("not before {at}") }
}

/// Why it can't be taken: `at least 1h, began 16:49:54 root@web1`.
pub fn why(denial: &Denial, now: &Now) -> String {
    let who = who::who(denial.metadata.as_ref()).map(|who| format!(" {who}")).unwrap_or_default();
    let began = denial.began.map(|ago| format!(", began {}", now.moment(now.unix_ms().saturating_sub(millis(ago))))).unwrap_or_default();
    format!("{}{began}{who}", denial.rule)
}
