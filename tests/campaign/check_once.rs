//! The part of the checker about `--once-per` and `--once`: no work is done twice, and none is
//! skipped because of a run that never was.

use crate::{
    checker::{Rule, Violation, clock_was_stepped, holds, was_hit},
    facts::{Facts, Run},
    plan::{FaultKind, ONCE_KEY},
};

const MS: u64 = 1_000_000;

pub fn check(facts: &Facts, violations: &mut Vec<Violation>) {
    if !clock_was_stepped(facts) {
        twice(facts, violations);
        never(facts, violations);
    }
}

/// Two starts of `--once-per` are at least half a period apart. A start of `--once` follows only a
/// failure.
fn twice(facts: &Facts, violations: &mut Vec<Violation>) {
    let starts: Vec<_> = holds(facts, ONCE_KEY);
    for pair in starts.windows(2) {
        let ((first, first_run, _), (second, run, _)) = (pair[0], pair[1]);
        if run.step.once && first_run.code == 143 {
            continue;
        }
        let half = run.step.once_per_ms.unwrap_or_default() * MS / 2;
        // The store's clock counts from the grant, the start of the command comes later.
        if second.began - first.began + 250 * MS * facts.slow < half {
            let what = format!(
                "run {} began {} ms after run {}",
                second.run,
                (second.began - first.began) / MS,
                first.run
            );
            violations.push(Violation {
                rule: Rule::Twice,
                what,
            });
        }
    }
}

/// The last run is refused only if an earlier one may have recorded a start.
fn never(facts: &Facts, violations: &mut Vec<Violation>) {
    let asked = |run: &&Run| run.step.keys == [ONCE_KEY];
    let Some(last) = facts
        .runs
        .iter()
        .filter(asked)
        .max_by_key(|run| run.spawned)
    else {
        return;
    };
    let earlier = facts
        .runs
        .iter()
        .filter(asked)
        .find(|run| run.id != last.id && may_have_recorded(facts, run));
    if last.code == 75 && holds(facts, ONCE_KEY).is_empty() && earlier.is_none() {
        violations.push(Violation {
            rule: Rule::Never,
            what: format!("run {} was refused, but no run had begun", last.id),
        });
    }
}

/// Whether the store may have a start of this run that had no section.
fn may_have_recorded(facts: &Facts, run: &Run) -> bool {
    match run.code {
        // The store may have granted the lock just before it could not be reached any more, so that
        // neither the answer nor the undo arrived.
        69 => true,
        // The lock was granted, and the command was stopped before its first word.
        76 => run.verdict["fence"].is_u64(),
        143 => was_hit(facts, run, &[FaultKind::TermDlock]),
        // A dlock that was killed undoes nothing.
        137 => run.signalled,
        _ => false,
    }
}
