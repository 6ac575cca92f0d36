//! What is said when somebody else has the lock.

use std::{fmt::Write as _, time::Duration};

use super::{age, who};
use crate::lock::{Busy, Key};

/// A lock that was not taken.
#[derive(Clone, Copy, Debug)]
pub struct Skip<'a> {
    /// Which.
    pub key: &'a Key,
    /// Who has it.
    pub busy: &'a Busy,
    /// How long it was waited for.
    pub waited: Duration,
    /// What follows: `not run`, `not taken`.
    pub outcome: &'static str,
}

impl Skip<'_> {
    /// The line for people: `demo is held by ana@lap, pid 4711, for 3s (sleep): not run`.
    pub fn text(&self) -> String {
        let mut text = format!("{} is ", self.key.escaped());
        if !self.waited.is_zero() {
            text += "still ";
        }
        match self.busy.holders.as_slice() {
            [] => text += "held by somebody else",
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
        if self.waited.is_zero() { format!("-w 30s waits; {tells}") } else { tells }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Holder, Metadata, Mode};

    fn holder(metadata: Option<Metadata>) -> Holder {
        Holder {
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
        let skip = Skip { key: &key, busy: &busy, waited: Duration::ZERO, outcome: "not run" };
        assert_eq!(skip.text(), "demo is held by ana@lap, pid 4711, for 3s (sleep): not run");
        assert_eq!(skip.hint(), "-w 30s waits; dlock inspect demo tells more");
        let skip = Skip { waited: Duration::from_secs(30), ..skip };
        assert_eq!(skip.text(), "demo is still held by ana@lap, pid 4711, for 3s (sleep), after a wait of 30s: not run");
        busy.holders = vec![holder(None)];
        let skip = Skip { key: &key, busy: &busy, waited: Duration::ZERO, outcome: "not taken" };
        assert_eq!(skip.text(), "demo is held by somebody for 3s: not taken");
        busy.holders.clear();
        let skip = Skip { key: &key, busy: &busy, waited: Duration::ZERO, outcome: "not taken" };
        assert_eq!(skip.text(), "demo is held by somebody else: not taken");
    }
}
