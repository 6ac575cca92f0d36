//! The checker: judges a round from its [`Facts`] alone, and shares no code with dlock.

use std::fmt;

use serde_json::Value;

use crate::{
    facts::{Facts, INNER, InjectedFault, Run, Section, outermost},
    plan::{FaultKind, Kind, ONCE_KEY, Route},
};

/// A violation of one rule in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub what: String,
}

/// The rule that was violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Two sections that exclude each other, or more than N permits, were alive at once.
    Overlap,
    /// A fence was missing, repeated or fell.
    Fence,
    /// No fault explains an exit status.
    Status,
    /// A lock was free for longer than promised while a run waited.
    Idle,
    /// A later waiter of a fair queue got the lock first.
    Order,
    /// A period of `--once-per` had two runs, or `--once` ran again after a success.
    Twice,
    /// A run was refused because of an earlier one, and there was none.
    Never,
    /// The history lacks a run or records it wrongly.
    History,
    /// A process, session, file or queue entry is left over.
    Left,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.what)
    }
}

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// Returns all violations in a round.
pub fn check(facts: &Facts) -> Vec<Violation> {
    let mut violations = Vec::new();
    overlaps(facts, &mut violations);
    fences(facts, &mut violations);
    statuses(facts, &mut violations);
    idle(facts, &mut violations);
    order(facts, &mut violations);
    crate::check_once::check(facts, &mut violations);
    crate::check_history::check(facts, &mut violations);
    left(facts, &mut violations);
    violations
}

fn violation(violations: &mut Vec<Violation>, rule: Rule, what: String) {
    violations.push(Violation { rule, what });
}

/// Whether two holds of these kinds may exist at once.
fn compatible(one: Kind, other: Kind) -> bool {
    matches!(
        (one, other),
        (Kind::Shared, Kind::Shared) | (Kind::Permits(_), Kind::Permits(_))
    )
}

fn overlaps(facts: &Facts, violations: &mut Vec<Violation>) {
    for section in &facts.sections {
        let Some(run) = facts.run(section.run) else {
            violation(
                violations,
                Rule::Status,
                format!("a section of run {}, which does not exist", section.run),
            );
            continue;
        };
        let mut permits = Vec::new();
        for (key, other) in &section.alive {
            let other = outermost(*other);
            if other == run.id {
                continue;
            }
            let Some(other_run) = facts.run(other) else {
                continue;
            };
            // README promises nothing for a run that has neither its dlock nor its guardian.
            let lacks = |faults: &[FaultKind]| was_hit(facts, other_run, faults);
            if lacks(&[FaultKind::KillDlock, FaultKind::StopDlock])
                && lacks(&[FaultKind::KillGuardian, FaultKind::StopGuardian])
            {
                continue;
            }
            if lost_its_session_unawares(facts, other_run) {
                continue;
            }
            if !compatible(run.step.kind, other_run.step.kind) {
                let what = format!(
                    "run {} began on key {key} while run {other} was alive ({:?} next to {:?})",
                    section.run, run.step.kind, other_run.step.kind
                );
                violation(violations, Rule::Overlap, what);
            } else if let Kind::Permits(_) = other_run.step.kind
                && !permits.contains(&other)
            {
                permits.push(other);
            }
        }
        if let Kind::Permits(most) = run.step.kind {
            if permits.len() as u64 >= most {
                violation(
                    violations,
                    Rule::Overlap,
                    format!(
                        "run {} had one of {most} permits next to {permits:?}",
                        run.id
                    ),
                );
            }
            let same = permits.iter().find(|other| {
                facts
                    .section(**other)
                    .is_some_and(|other_run| other_run.permit == section.permit)
            });
            if let Some(same) = same {
                violation(
                    violations,
                    Rule::Overlap,
                    format!(
                        "runs {} and {same} had permit {:?} at once",
                        run.id, section.permit
                    ),
                );
            }
            if section.permit.is_none_or(|permit| permit >= most) {
                violation(
                    violations,
                    Rule::Status,
                    format!(
                        "run {} of {most} permits had permit {:?}",
                        run.id, section.permit
                    ),
                );
            }
        }
    }
}

/// Whether this run's session was ended while the run was cut off: dlock-stores(7) promises nothing
/// then.
fn lost_its_session_unawares(facts: &Facts, run: &Run) -> bool {
    let ends_sessions = |fault| {
        matches!(
            fault,
            FaultKind::Refuse | FaultKind::Cut | FaultKind::LoseReplies | FaultKind::LoseRequests
        )
    };
    let cut_off = |cut: &InjectedFault| {
        cut.fault == FaultKind::Partition && cut.from < run.ended && run.spawned < cut.until
    };
    let ended = |cut: &InjectedFault| {
        facts
            .injected
            .iter()
            .any(|end| ends_sessions(end.fault) && end.from < cut.until && cut.from < end.until)
    };
    facts.can.sessions
        && run.route == Route::Netns
        && facts.injected.iter().any(|cut| cut_off(cut) && ended(cut))
}

/// Returns every section on this key with its run and fence, in the order of their starts, without
/// nested runs.
pub fn holds(facts: &Facts, key: usize) -> Vec<(&Section, &Run, u64)> {
    let mut holds: Vec<_> = facts
        .sections
        .iter()
        .filter(|section| section.run < INNER)
        .filter_map(|section| {
            let fence = section.fences.iter().find(|(of, _)| *of == key)?.1;
            Some((section, facts.run(section.run)?, fence))
        })
        .collect();
    holds.sort_by_key(|(section, ..)| section.began);
    holds
}

fn fences(facts: &Facts, violations: &mut Vec<Violation>) {
    for section in &facts.sections {
        let Some(run) = facts.run(section.run) else {
            continue;
        };
        let known = run.step.keys.iter().all(|key| {
            section
                .fences
                .iter()
                .any(|(of, fence)| of == key && *fence > 0)
        });
        if !known {
            violation(
                violations,
                Rule::Fence,
                format!(
                    "run {} got {:?} as the fences of {:?}",
                    section.run, section.fences, run.step.keys
                ),
            );
        }
        // A nested run has the fence of the run around it.
        if section.run >= INNER
            && facts
                .section(run.id)
                .is_some_and(|outer| outer.fences != section.fences)
        {
            violation(
                violations,
                Rule::Fence,
                format!(
                    "run {} inside of {} has {:?}",
                    section.run, run.id, section.fences
                ),
            );
        }
    }
    for key in facts.keys.iter().map(|end| end.key) {
        let holds = holds(facts, key);
        for (nth, (first, first_run, fence)) in holds.iter().enumerate() {
            for (second, second_run, later) in &holds[nth + 1..] {
                let ordered = !compatible(first_run.step.kind, second_run.step.kind)
                    || first.began < second_run.spawned;
                if later == fence || ordered && later < fence {
                    let what = format!(
                        "on key {key} run {} began with {fence}, and later run {} with {later}",
                        first.run, second.run
                    );
                    violation(violations, Rule::Fence, what);
                }
            }
        }
    }
}

/// Whether one of these faults hit this run.
pub fn was_hit(facts: &Facts, run: &Run, faults: &[FaultKind]) -> bool {
    facts
        .injected
        .iter()
        .any(|injected| injected.run == Some(run.id) && faults.contains(&injected.fault))
}

/// Whether a fault that hits no single run is one for this run.
fn reaches(injected: &InjectedFault, run: &Run) -> bool {
    match injected.fault {
        FaultKind::Partition => run.route == Route::Netns,
        fault if FaultKind::NETWORK.contains(&fault) => run.route != Route::Direct,
        fault => !fault.hits_one_run(),
    }
}

/// Whether a fault hit the store, the network or the machine while this run was active.
pub fn was_disturbed(facts: &Facts, run: &Run) -> bool {
    // A process that gets no CPU time finds its store silent.
    if facts.slow >= 3 {
        return true;
    }
    // A process that reconnects, or backs off before a retry, feels the fault for a while longer.
    facts.injected.iter().any(|injected| {
        reaches(injected, run)
            && injected.from <= run.ended
            && run.spawned <= injected.until + 2 * SECOND
    })
}

/// Faults on a run's dlock or guardian that can cost it its hold.
const LOSSES: [FaultKind; 5] = [
    FaultKind::StopDlock,
    FaultKind::KillGuardian,
    FaultKind::StopGuardian,
    FaultKind::Break,
    FaultKind::KillDlock,
];

fn statuses(facts: &Facts, violations: &mut Vec<Violation>) {
    for run in &facts.runs {
        let section = facts.section(run.id);
        let hit = |faults: &[FaultKind]| was_hit(facts, run, faults);
        let disturbed = was_disturbed(facts, run);
        let own = section
            .and_then(|section| section.ended)
            .map(|(_, code)| code);
        let explained = match run.code {
            137 if run.signalled => hit(&[FaultKind::KillDlock]),
            // A dlock that has just been started dies of TERM like any program, without a lock.
            143 if run.signalled => {
                let began = !run.verdict.is_null() && run.verdict["result"] != "running";
                section.is_none() && !began && hit(&[FaultKind::TermDlock])
            }
            _ if run.signalled => false,
            code if own == Some(code)
                && matches!(run.verdict["result"].as_str(), Some("ok") | None) =>
            {
                // The hold around a nested run may have been lost.
                code == run.step.code || run.step.nested && (disturbed || hit(&LOSSES))
            }
            75 => section.is_none() && was_blocked(facts, run),
            // Only a granted lock can be lost; a command that was killed at its start wrote
            // nothing.
            76 => {
                (section.is_some() || run.verdict["fence"].is_u64()) && (disturbed || hit(&LOSSES))
            }
            69 => {
                section.is_none()
                    && (disturbed
                        || hit(&[
                            FaultKind::StopDlock,
                            FaultKind::KillGuardian,
                            FaultKind::StopGuardian,
                        ]))
            }
            137 => section.is_some() && hit(&[FaultKind::KillCommand, FaultKind::TermDlock]),
            143 => hit(&[FaultKind::TermDlock]),
            _ => false,
        };
        if !explained {
            let wrote = section.map_or("no section".to_owned(), |section| {
                format!("a section that ended with {:?}", section.ended)
            });
            let what = format!(
                "run {} exited with {} ({}), and there is {wrote}: {}",
                run.id,
                run.code,
                run.verdict["result"],
                run.stderr.trim()
            );
            violation(violations, Rule::Status, what);
        }
    }
    for hung in &facts.hung {
        violation(violations, Rule::Status, format!("{hung} did not end"));
    }
}

/// Whether a clock step made the store's times meaningless.
pub fn clock_was_stepped(facts: &Facts) -> bool {
    facts
        .injected
        .iter()
        .any(|injected| injected.fault == FaultKind::StepClock)
}

/// Whether the store may go on showing this hold: its session ended without a release, and it was
/// granted before the clock was set back, so the end of its lease lies in the future.
pub fn ends_in_the_future(facts: &Facts, fence: &Value) -> bool {
    let is_of = |run: &Run| {
        let mut began = facts
            .section(run.id)
            .into_iter()
            .flat_map(|section| &section.fences);
        began.any(|(_, own)| *fence == *own) || run.verdict["fence"] == *fence
    };
    facts.can.sessions
        && clock_was_stepped(facts)
        && facts
            .runs
            .iter()
            .any(|run| run.verdict["released"] != "yes" && is_of(run))
}

/// Whether another run explains that this run didn't get its lock.
fn was_blocked(facts: &Facts, run: &Run) -> bool {
    // A success of `--once` refuses at once.
    if !run.step.once
        && run
            .step
            .wait_ms
            .is_some_and(|ms| run.ended - run.spawned < ms * MS)
    {
        return false;
    }
    // A dead holder keeps its lock until its lease ends. The lease counts from the store's last
    // renewal.
    let after = if facts.calm {
        0
    } else {
        facts.ttl + facts.can.handover_s * SECOND + outages(facts, run, 0, u64::MAX)
    };
    let recent = run.step.once_per_ms.unwrap_or_default() * MS;
    // The store's clock counts the period.
    if recent > 0 && clock_was_stepped(facts) {
        return true;
    }
    let claimed = |other: &Run| {
        facts.can.claims
            && (was_disturbed(facts, other) || was_hit(facts, other, &FaultKind::PROCESSES))
    };
    facts.runs.iter().any(|other| {
        other.id != run.id
            && other
                .step
                .keys
                .iter()
                .any(|key| run.step.keys.contains(key))
            && !(run.step.kind == Kind::Shared
                && other.step.kind == Kind::Shared
                && !claimed(other))
            && other.spawned <= run.ended
            && run.spawned <= other.ended + after.max(recent)
    })
}

/// Returns the total duration of the faults that reached this run within this time, in nanoseconds.
fn outages(facts: &Facts, run: &Run, from: u64, until: u64) -> u64 {
    let within = |injected: &&InjectedFault| {
        reaches(injected, run) && injected.from < until && from < injected.until + facts.ttl
    };
    facts
        .injected
        .iter()
        .filter(within)
        .map(|injected| injected.until - injected.from)
        .sum()
}

/// Checks how long a key stayed free between two sections while a run waited all the time.
fn idle(facts: &Facts, violations: &mut Vec<Violation>) {
    for key in facts
        .keys
        .iter()
        .map(|end| end.key)
        .filter(|key| *key != ONCE_KEY)
    {
        let holds = holds(facts, key);
        for (section, run, _) in &holds {
            if run.step.wait_ms.is_none() || run.step.keys.len() > 1 {
                continue;
            }
            let mut free_since = run.spawned + 300 * MS * facts.slow;
            for (other, other_run, _) in holds
                .iter()
                .filter(|(other, ..)| other.began <= section.began)
            {
                let (free, taken) = (free_since, other.began);
                free_since = free_since
                    .max(other.last_seen)
                    .max(other.began + other_run.step.at_least_ms * MS);
                if taken <= free {
                    continue;
                }
                let disturbed = facts.injected.iter().any(|injected| {
                    injected.from < taken
                        && free < injected.until + facts.ttl + facts.can.handover_s.max(5) * SECOND
                });
                let limit = if facts.calm || !disturbed {
                    // Less than the interval at which a waiter retries without a wake-up.
                    (1500 + 700 * facts.slow) * MS
                } else {
                    facts.ttl
                        + (facts.can.handover_s + 2 + facts.slow) * SECOND
                        + outages(facts, run, free.saturating_sub(facts.ttl), taken)
                };
                // A run of several locks may hold this key while it waits for the next one.
                let several =
                    |other: &Run| other.step.keys.len() > 1 && other.step.keys.contains(&key);
                let excused = facts
                    .runs
                    .iter()
                    .any(|other| several(other) && other.spawned < taken && free < other.ended);
                if taken - free > limit && !excused {
                    let what = format!(
                        "key {key} was free for {} ms while run {} waited, until run {} began",
                        (taken - free) / MS,
                        run.id,
                        other.run
                    );
                    violation(violations, Rule::Idle, what);
                }
            }
        }
    }
}

/// Checks that a run that asked long before another run got the lock first.
fn order(facts: &Facts, violations: &mut Vec<Violation>) {
    if !facts.fifo {
        return;
    }
    for (nth, (_, first, _)) in holds(facts, 0).iter().enumerate() {
        for (_, second, _) in &holds(facts, 0)[nth + 1..] {
            if second.spawned + 500 * MS * facts.slow < first.spawned {
                violation(
                    violations,
                    Rule::Order,
                    format!(
                        "run {} asked before run {} and got the lock after it",
                        second.id, first.id
                    ),
                );
            }
        }
    }
}

fn left(facts: &Facts, violations: &mut Vec<Violation>) {
    for end in &facts.keys {
        let over = |holder: &Value| ends_in_the_future(facts, &holder["fence"]);
        let free = end.state["holders"]
            .as_array()
            .is_some_and(|holders| holders.iter().all(over));
        if !free || !end.state["waiters"].as_array().is_some_and(Vec::is_empty) {
            violation(
                violations,
                Rule::Left,
                format!("key {}: {}", end.key, end.state),
            );
        }
    }
    violations.extend(facts.left.iter().map(|what| Violation {
        rule: Rule::Left,
        what: what.clone(),
    }));
}
