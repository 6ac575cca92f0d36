//! The message when a lock is not taken: another process has it, or a run policy denies it.

use std::{fmt::Write as _, time::Duration};

use super::{age, holders, waited};
use crate::lock::{Busy, Denial, Key, Mode, Rule, RunState};

/// The last word of `outcome` for a command that can't wait.
const NO_WAIT: &str = "forgotten";

/// A lock that was not taken.
#[derive(Clone, Copy, Debug)]
pub struct Skip<'a> {
    /// The lock.
    pub key: &'a Key,
    /// The requested mode.
    pub mode: Mode,
    /// Why it was not taken.
    pub cause: Cause<'a>,
    /// How long dlock waited for it.
    pub waited: Duration,
    /// The consequence: `not run`, `not taken`.
    pub outcome: &'static str,
}

/// Why a lock was not taken.
#[derive(Clone, Copy, Debug)]
pub enum Cause<'a> {
    /// Another process has it.
    Busy(&'a Busy),
    /// An earlier run denies it, by the rule of this option: `skew guard 5s`.
    Denied(&'a Denial, &'a str),
}

impl Skip<'_> {
    /// Returns the message: `demo is held by ana@lap, pid 4711, for 3s (sleep): not run`.
    pub fn text(&self) -> String {
        match self.cause {
            Cause::Busy(busy) => self.busy(busy),
            Cause::Denied(denial, option) => self.denied(denial, option),
        }
    }

    /// Returns `demo: ana@lap started it 3s ago (fence 17), skew guard 5s: not run`.
    fn denied(&self, denial: &Denial, option: &str) -> String {
        let who = holders::user_at_host(denial.metadata.as_ref())
            .unwrap_or_else(|| "another process".into());
        let (did, more) = match denial.rule {
            Rule::Once(RunState::Ok) => ("ran", ""),
            Rule::Once(RunState::Failed) => ("ran", " and failed"),
            Rule::Once(RunState::Started) => ("started", " and was not heard of since"),
            Rule::Once(RunState::Unknown) => (
                "ran",
                " and was stopped before its work was known to be done",
            ),
            _ => ("started", ""),
        };
        let when = denial.began.map_or_else(
            || ", when is unknown".into(),
            |ago| format!(" {} ago", age(ago)),
        );
        let fence = denial
            .fence
            .map(|fence| format!(" (fence {fence})"))
            .unwrap_or_default();
        format!(
            "{}: {who} {did} it{when}{fence}{more}, {option}: {}",
            self.key.escaped(),
            self.outcome
        )
    }

    fn busy(&self, busy: &Busy) -> String {
        let mut text = format!("{} is ", self.key.escaped());
        if !self.waited.is_zero() {
            text += "still ";
        }
        match busy.holders.as_slice() {
            [] => text += "held by another process",
            [first, others @ ..] => {
                let _ = write!(text, "held by {}", holders::holder(first));
                if let Some(pid) = first
                    .metadata
                    .as_ref()
                    .and_then(|m| m.pid)
                    .filter(|_| !first.detached)
                {
                    let _ = write!(text, ", pid {pid},");
                }
                if let Some(held) = first.held_for {
                    let _ = write!(text, " for {}", age(held));
                }
                if let Some(command) = holders::command(first.metadata.as_ref()) {
                    let _ = write!(text, " ({command})");
                }
                if let Some(note) = holders::note(first.metadata.as_ref()) {
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
            format!(
                "{text}, after a wait of {}: {}",
                waited(self.waited),
                self.outcome
            )
        }
    }

    /// Returns the hint: what to do next.
    pub fn hint(&self) -> String {
        let tells = format!("dlock inspect {} shows more", holders::shell(self.key));
        let denial = match self.cause {
            Cause::Denied(denial, _) => denial,
            Cause::Busy(busy) => {
                return match (busy.holders.first().map(|holder| holder.mode), self.mode) {
                    // The two runs are configured with different numbers of permits.
                    (Some(Mode::Permits(theirs)), Mode::Permits(ours)) if theirs != ours => {
                        format!(
                            "the holder asked for one of {theirs} permits, this run for one of {ours}; {tells}"
                        )
                    }
                    _ if self.waited.is_zero() && self.outcome.ends_with(NO_WAIT) => tells,
                    _ if self.waited.is_zero() => format!("-w 30s waits; {tells}"),
                    _ => tells,
                };
            }
        };
        let history = format!("dlock history {} shows more", holders::shell(self.key));
        let override_hint = if self.outcome == "not run" {
            "--anyway --reason TEXT runs it now; "
        } else {
            ""
        };
        let again = denial
            .again_in
            .map(|left| format!("free again in {}; ", age(left)))
            .unwrap_or_default();
        match denial.rule {
            Rule::Once(RunState::Failed) => format!("--retry-failed N runs it again; {history}"),
            Rule::Once(RunState::Started) => {
                format!("if it is dead, --retry-crashed runs it again; {history}")
            }
            Rule::Once(RunState::Unknown) => {
                format!("if its work is not done, --retry-crashed runs it again; {history}")
            }
            Rule::Once(_) => format!("{override_hint}{history}"),
            Rule::SkewGuard(_) | Rule::AtLeast(_) => format!("{again}{override_hint}{history}"),
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
            removal: None,
            holds: 1,
            broken: None,
        }
    }

    #[test]
    fn a_skip_names_the_holder_and_its_duration() {
        let key = Key::new("demo").unwrap();
        let ana = Metadata {
            user: Some("ana".into()),
            host: Some("lap".into()),
            pid: Some(4711),
            command: Some("sleep".into()),
            ..Metadata::default()
        };
        let mut busy = Busy {
            holders: vec![holder(Some(ana))],
            ..Busy::default()
        };
        let skip = Skip {
            key: &key,
            mode: Mode::Exclusive,
            cause: Cause::Busy(&busy),
            waited: Duration::ZERO,
            outcome: "not run",
        };
        assert_eq!(
            skip.text(),
            "demo is held by ana@lap, pid 4711, for 3s (sleep): not run"
        );
        assert_eq!(skip.hint(), "-w 30s waits; dlock inspect demo shows more");
        let skip = Skip {
            waited: Duration::from_secs(30),
            ..skip
        };
        assert_eq!(
            skip.text(),
            "demo is still held by ana@lap, pid 4711, for 3s (sleep), after a wait of 30s: not run"
        );
        busy.holders = vec![holder(None)];
        let skip = Skip {
            key: &key,
            mode: Mode::Exclusive,
            cause: Cause::Busy(&busy),
            waited: Duration::ZERO,
            outcome: "not taken",
        };
        assert_eq!(
            skip.text(),
            "demo is held by another process for 3s: not taken"
        );
        busy.holders.clear();
        let skip = Skip {
            key: &key,
            mode: Mode::Exclusive,
            cause: Cause::Busy(&busy),
            waited: Duration::ZERO,
            outcome: "not taken",
        };
        assert_eq!(skip.text(), "demo is held by another process: not taken");
    }

    #[test]
    fn a_different_number_of_permits_is_explained() {
        let key = Key::new("pool").unwrap();
        let busy = Busy {
            holders: vec![
                Holder {
                    mode: Mode::Permits(5),
                    ..holder(None)
                };
                3
            ],
            ..Busy::default()
        };
        let skip = Skip {
            key: &key,
            mode: Mode::Permits(3),
            cause: Cause::Busy(&busy),
            waited: Duration::ZERO,
            outcome: "not run",
        };
        assert_eq!(
            skip.text(),
            "pool is held by another process for 3s and 2 more: not run"
        );
        assert_eq!(
            skip.hint(),
            "the holder asked for one of 5 permits, this run for one of 3; dlock inspect pool shows more"
        );
        let alike = Skip {
            mode: Mode::Permits(5),
            ..skip
        };
        assert_eq!(alike.hint(), "-w 30s waits; dlock inspect pool shows more");
    }

    #[test]
    fn a_denial_names_its_option() {
        let key = Key::new("demo").unwrap();
        let denial = |rule| Denial {
            rule,
            fence: Some(crate::lock::Fence(17)),
            began: Some(Duration::from_secs(3)),
            metadata: Some(Metadata {
                host: Some("lap".into()),
                ..Metadata::default()
            }),
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
        assert_eq!(
            text,
            "demo: lap started it 3s ago (fence 17), skew guard 5s: not run"
        );
        assert_eq!(
            hint,
            "free again in 2s; --anyway --reason TEXT runs it now; dlock history demo shows more"
        );
        let (text, hint) = said(Rule::Once(RunState::Failed), "once per 1m");
        assert_eq!(
            text,
            "demo: lap ran it 3s ago (fence 17) and failed, once per 1m: not run"
        );
        assert_eq!(
            hint,
            "--retry-failed N runs it again; dlock history demo shows more"
        );
    }
}
