//! What is said when a lock is not taken: another process has it, or an earlier run's record keeps it from this one.

use std::{fmt::Write as _, time::Duration};

use super::{age, who};
use crate::lock::{Busy, Denial, Key, Mode, Rule, RunState};

/// How the outcome ends of a command that can't wait.
const NO_WAIT: &str = "forgotten";

/// A lock that was not taken.
#[derive(Clone, Copy, Debug)]
pub struct Skip<'a> {
    /// Which.
    pub key: &'a Key,
    /// How it was asked for.
    pub mode: Mode,
    /// Why.
    pub cause: Cause<'a>,
    /// How long it was waited for.
    pub waited: Duration,
    /// What follows: `not run`, `not taken`.
    pub outcome: &'static str,
}

/// Why a lock was not taken.
#[derive(Clone, Copy, Debug)]
pub enum Cause<'a> {
    /// Another process has it.
    Busy(&'a Busy),
    /// A run before keeps it from this one, by what was asked with this option: `skew guard 5s`.
    Denied(&'a Denial, &'a str),
}

impl Skip<'_> {
    /// The line for people: `demo is held by ana@lap, pid 4711, for 3s (sleep): not run`.
    pub fn text(&self) -> String {
        match self.cause {
            Cause::Busy(busy) => self.busy(busy),
            Cause::Denied(denial, option) => self.refused(denial, option),
        }
    }

    /// `demo: ana@lap began it 3s ago (fence 17), skew guard 5s: not run`.
    fn refused(&self, denial: &Denial, option: &str) -> String {
        let who = who::who(denial.metadata.as_ref()).unwrap_or_else(|| "another process".into());
        let (did, more) = match denial.rule {
            Rule::Once(RunState::Ok) => ("ran", ""),
            Rule::Once(RunState::Failed) => ("ran", " and failed"),
            Rule::Once(RunState::Started) => ("began", " and was not heard of since"),
            _ => ("began", ""),
        };
        let when = denial.began.map_or_else(|| ", when is unknown".into(), |ago| format!(" {} ago", age(ago)));
        let fence = denial.fence.map(|fence| format!(" (fence {fence})")).unwrap_or_default();
        format!("{}: {who} {did} it{when}{fence}{more}, {option}: {}", self.key.escaped(), self.outcome)
    }

    fn busy(&self, busy: &Busy) -> String {
        let mut text = format!("{} is ", self.key.escaped());
        if !self.waited.is_zero() {
            text += "still ";
        }
        match busy.holders.as_slice() {
            [] => text += "held by another process",
            [first, others @ ..] => {
                let _ = write!(text, "held by {}", who::holder(first));
                if let Some(pid) = first.metadata.as_ref().and_then(|m| m.pid).filter(|_| !first.detached) {
                    let _ = write!(text, ", pid {pid},");
                }
                if let Some(held) = first.held_for {
                    let _ = write!(text, " for {}", age(held));
                }
                if let Some(command) = who::command(first.metadata.as_ref()) {
                    let _ = write!(text, " ({command})");
                }
                if let Some(note) = who::note(first.metadata.as_ref()) {
                    let _ = write!(text, " {note}");
                }
                if !others.is_empty() {
                    let _ = write!(text, " and {} more", others.len());
                }
            }
        }
        let text = text.trim_end_matches(',');
        if self.waited.is_zero() {
            format!("{text}: {}", self.outcome)
        } else {
            format!("{text}, after a wait of {}: {}", age(self.waited), self.outcome)
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        let tells = format!("dlock inspect {} tells more", who::shell(self.key));
        let denial = match self.cause {
            Cause::Denied(denial, _) => denial,
            Cause::Busy(busy) => {
                return match (busy.holders.first().map(|holder| holder.mode), self.mode) {
                    // The number of permits was changed, or is wrong on one side.
                    (Some(Mode::Permits(theirs)), Mode::Permits(ours)) if theirs != ours => {
                        format!("the holder asked for one of {theirs} permits, this run for one of {ours}; {tells}")
                    }
                    _ if self.waited.is_zero() && self.outcome.ends_with(NO_WAIT) => tells,
                    _ if self.waited.is_zero() => format!("-w 30s waits; {tells}"),
                    _ => tells,
                };
            }
        };
        let history = format!("dlock history {} tells more", who::shell(self.key));
        let past = if self.outcome == "not run" { "--anyway --reason TEXT runs it now; " } else { "" };
        let again = denial.again_in.map(|left| format!("free again in {}; ", age(left))).unwrap_or_default();
        match denial.rule {
            Rule::Once(RunState::Failed) => format!("--retry-failed N runs it again; {history}"),
            Rule::Once(RunState::Started) => format!("if it is dead, --retry-crashed runs it again; {history}"),
            Rule::Once(_) => format!("{past}{history}"),
            Rule::SkewGuard(_) | Rule::AtLeast(_) => format!("{again}{past}{history}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Holder, Metadata};

    fn holder(metadata: Option<Metadata>) -> Holder {
        Holder {
            permit: None,
            mode: Mode::Exclusive,
            metadata,
            fence: None,
            foreign: false,
            detached: false,
            held_for: Some(Duration::from_secs(3)),
            renewed_ago: None,
            expires_in: None,
            holds: 1,
            broken: None,
        }
    }

    #[test]
    fn a_skip_says_who_and_since_when() {
        let key = Key::new("demo").unwrap();
        let ana = Metadata {
            user: Some("ana".into()),
            host: Some("lap".into()),
            pid: Some(4711),
            command: Some("sleep".into()),
            ..Metadata::default()
        };
        let mut busy = Busy { holders: vec![holder(Some(ana))], ..Busy::default() };
        let skip = Skip { key: &key, mode: Mode::Exclusive, cause: Cause::Busy(&busy), waited: Duration::ZERO, outcome: "not run" };
        assert_eq!(skip.text(), "demo is held by ana@lap, pid 4711, for 3s (sleep): not run");
        assert_eq!(skip.hint(), "-w 30s waits; dlock inspect demo tells more");
        let skip = Skip { waited: Duration::from_secs(30), ..skip };
        assert_eq!(skip.text(), "demo is still held by ana@lap, pid 4711, for 3s (sleep), after a wait of 30s: not run");
        busy.holders = vec![holder(None)];
        let skip = Skip { key: &key, mode: Mode::Exclusive, cause: Cause::Busy(&busy), waited: Duration::ZERO, outcome: "not taken" };
        assert_eq!(skip.text(), "demo is held by another process for 3s: not taken");
        busy.holders.clear();
        let skip = Skip { key: &key, mode: Mode::Exclusive, cause: Cause::Busy(&busy), waited: Duration::ZERO, outcome: "not taken" };
        assert_eq!(skip.text(), "demo is held by another process: not taken");
    }

    #[test]
    fn who_asks_for_another_number_of_permits_is_told() {
        let key = Key::new("pool").unwrap();
        let busy = Busy { holders: vec![Holder { mode: Mode::Permits(5), ..holder(None) }; 3], ..Busy::default() };
        let skip = Skip { key: &key, mode: Mode::Permits(3), cause: Cause::Busy(&busy), waited: Duration::ZERO, outcome: "not run" };
        assert_eq!(skip.text(), "pool is held by another process for 3s and 2 more: not run");
        assert_eq!(skip.hint(), "the holder asked for one of 5 permits, this run for one of 3; dlock inspect pool tells more");
        let alike = Skip { mode: Mode::Permits(5), ..skip };
        assert_eq!(alike.hint(), "-w 30s waits; dlock inspect pool tells more");
    }

    #[test]
    fn a_refusal_names_its_option() {
        let key = Key::new("demo").unwrap();
        let denial = |rule| Denial {
            rule,
            fence: Some(crate::lock::Fence(17)),
            began: Some(Duration::from_secs(3)),
            metadata: Some(Metadata { host: Some("lap".into()), ..Metadata::default() }),
            again_in: Some(Duration::from_secs(2)),
        };
        let said = |rule, option| {
            let denial = denial(rule);
            let skip = Skip {
                key: &key,
                mode: Mode::Exclusive,
                cause: Cause::Denied(&denial, option),
                waited: Duration::ZERO,
                outcome: "not run",
            };
            (skip.text(), skip.hint())
        };
        let (text, hint) = said(Rule::SkewGuard(Duration::from_secs(5)), "skew guard 5s");
        assert_eq!(text, "demo: lap began it 3s ago (fence 17), skew guard 5s: not run");
        assert_eq!(hint, "free again in 2s; --anyway --reason TEXT runs it now; dlock history demo tells more");
        let (text, hint) = said(Rule::Once(RunState::Failed), "once per 1m");
        assert_eq!(text, "demo: lap ran it 3s ago (fence 17) and failed, once per 1m: not run");
        assert_eq!(hint, "--retry-failed N runs it again; dlock history demo tells more");
    }
}
