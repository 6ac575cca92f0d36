//! The checker: what must hold of a round, judged from its [`Facts`] alone. It knows nothing of dlock's code.

use std::fmt;

use crate::{
    facts::{Facts, INNER, Run, Section, Struck, outermost},
    plan::{Blow, Kind, ONCE_KEY, Way},
};

/// What must not have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub rule: Rule,
    pub what: String,
}

/// What was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Two sections that exclude each other were alive at once, or more than N permits.
    Overlap,
    /// A fence was missing, repeated or fell.
    Fence,
    /// Nothing that happened explains an exit status.
    Status,
    /// A lock was free for longer than promised while a run waited.
    Idle,
    /// A later one in a fair queue came first.
    Order,
    /// A period of `--once-per` had two runs.
    Twice,
    /// The history lacks a run or tells it wrong.
    History,
    /// Something is left over.
    Left,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.what)
    }
}

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// Everything that is wrong with a round.
pub fn judge(facts: &Facts) -> Vec<Fault> {
    let mut faults = Vec::new();
    overlaps(facts, &mut faults);
    fences(facts, &mut faults);
    statuses(facts, &mut faults);
    idle(facts, &mut faults);
    order(facts, &mut faults);
    twice(facts, &mut faults);
    crate::histories::judge(facts, &mut faults);
    left(facts, &mut faults);
    faults
}

fn fault(faults: &mut Vec<Fault>, rule: Rule, what: String) {
    faults.push(Fault { rule, what });
}

/// Whether two holds of these kinds may be there at once.
fn go_together(one: Kind, other: Kind) -> bool {
    matches!((one, other), (Kind::Shared, Kind::Shared) | (Kind::Permits(_), Kind::Permits(_)))
}

fn overlaps(facts: &Facts, faults: &mut Vec<Fault>) {
    for section in &facts.sections {
        let Some(run) = facts.run(section.run) else {
            fault(faults, Rule::Status, format!("a section of run {}, which there was not", section.run));
            continue;
        };
        let mut permits = Vec::new();
        for (key, other) in &section.alive {
            let other = outermost(*other);
            if other == run.id {
                continue;
            }
            let Some(beside) = facts.run(other) else { continue };
            if !go_together(run.step.kind, beside.step.kind) {
                let what = format!(
                    "run {} began on key {key} while run {other} was alive ({:?} beside {:?})",
                    section.run, run.step.kind, beside.step.kind
                );
                fault(faults, Rule::Overlap, what);
            } else if let Kind::Permits(_) = beside.step.kind
                && !permits.contains(&other)
            {
                permits.push(other);
            }
        }
        if let Kind::Permits(most) = run.step.kind {
            if permits.len() as u64 >= most {
                fault(faults, Rule::Overlap, format!("run {} had one of {most} permits beside {permits:?}", run.id));
            }
            let same = permits.iter().find(|other| facts.section(**other).is_some_and(|beside| beside.permit == section.permit));
            if let Some(same) = same {
                fault(faults, Rule::Overlap, format!("runs {} and {same} had permit {:?} at once", run.id, section.permit));
            }
            if section.permit.is_none_or(|permit| permit >= most) {
                fault(faults, Rule::Status, format!("run {} of {most} permits had permit {:?}", run.id, section.permit));
            }
        }
    }
}

/// Every section of a run itself on this key, in the order of their beginnings, with its fence.
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

fn fences(facts: &Facts, faults: &mut Vec<Fault>) {
    for section in &facts.sections {
        let Some(run) = facts.run(section.run) else { continue };
        let known = run.step.keys.iter().all(|key| section.fences.iter().any(|(of, fence)| of == key && *fence > 0));
        if !known {
            fault(faults, Rule::Fence, format!("run {} was told {:?} as the fences of {:?}", section.run, section.fences, run.step.keys));
        }
        // One inside of another has its fence.
        if section.run >= INNER && facts.section(run.id).is_some_and(|outer| outer.fences != section.fences) {
            fault(faults, Rule::Fence, format!("run {} inside of {} has {:?}", section.run, run.id, section.fences));
        }
    }
    for key in facts.keys.iter().map(|end| end.key) {
        let holds = holds(facts, key);
        for (nth, (first, first_run, fence)) in holds.iter().enumerate() {
            for (second, second_run, later) in &holds[nth + 1..] {
                let ordered = !go_together(first_run.step.kind, second_run.step.kind) || first.began < second_run.spawned;
                if later == fence || ordered && later < fence {
                    let what = format!("on key {key} run {} began with {fence}, and later run {} with {later}", first.run, second.run);
                    fault(faults, Rule::Fence, what);
                }
            }
        }
    }
}

/// Whether one of these struck this run.
pub fn was_struck(facts: &Facts, run: &Run, blows: &[Blow]) -> bool {
    facts.struck.iter().any(|struck| struck.run == Some(run.id) && blows.contains(&struck.blow))
}

/// Whether the store, the way to it or the machine were struck while this run went on.
pub fn was_shaken(facts: &Facts, run: &Run) -> bool {
    let reaches = |struck: &Struck| match struck.blow {
        Blow::Partition => run.way == Way::Netns,
        blow if Blow::NETWORK.contains(&blow) => run.way != Way::Direct,
        blow => !blow.is_on_one_run(),
    };
    // Who gets no CPU time finds its store silent.
    if facts.slow >= 3 {
        return true;
    }
    // Who reconnects, or tries again after a while, feels it for a while.
    facts.struck.iter().any(|struck| reaches(struck) && struck.from <= run.ended && run.spawned <= struck.until + 2 * SECOND)
}

/// What stopped a run's dlock or guardian, so that its hold could be lost.
const LOSSES: [Blow; 5] = [Blow::StopDlock, Blow::KillGuardian, Blow::StopGuardian, Blow::Break, Blow::KillDlock];

fn statuses(facts: &Facts, faults: &mut Vec<Fault>) {
    for run in &facts.runs {
        let section = facts.section(run.id);
        let hit = |blows: &[Blow]| was_struck(facts, run, blows);
        let shaken = was_shaken(facts, run);
        let own = section.and_then(|section| section.ended).map(|(_, code)| code);
        let explained = match run.code {
            137 if run.signalled => hit(&[Blow::KillDlock]),
            _ if run.signalled => false,
            code if own == Some(code) && matches!(run.verdict["result"].as_str(), Some("ok") | None) => {
                // What it ran inside may have been lost with it.
                code == run.step.code || run.step.nested && (shaken || hit(&LOSSES))
            }
            75 => section.is_none() && is_kept_out(facts, run),
            // A command that was killed at its start wrote nothing.
            76 => (section.is_some() || run.verdict["ran_ms"].as_u64().is_some_and(|ms| ms < 100)) && (shaken || hit(&LOSSES)),
            69 => section.is_none() && (shaken || hit(&[Blow::StopDlock, Blow::KillGuardian, Blow::StopGuardian])),
            137 => section.is_some() && hit(&[Blow::KillCommand, Blow::TermDlock]),
            143 => hit(&[Blow::TermDlock]),
            _ => false,
        };
        if !explained {
            let wrote = section.map_or("no section".to_owned(), |section| format!("a section that ended with {:?}", section.ended));
            let what =
                format!("run {} exited with {} ({}), and there is {wrote}: {}", run.id, run.code, run.verdict["result"], run.stderr.trim());
            fault(faults, Rule::Status, what);
        }
    }
    for hung in &facts.hung {
        fault(faults, Rule::Status, format!("{hung} does not end"));
    }
}

/// Whether times of the store tell nothing.
pub fn clock_moved(facts: &Facts) -> bool {
    facts.struck.iter().any(|struck| struck.blow == Blow::StepClock)
}

/// Whether another run explains that this one did not get its lock.
fn is_kept_out(facts: &Facts, run: &Run) -> bool {
    if run.step.wait_ms.is_some_and(|ms| run.ended - run.spawned < ms * MS) {
        return false;
    }
    // A dead holder keeps its lock to the end of its lease, which is counted from when the store heard of it.
    let after = if facts.calm { 0 } else { facts.ttl + facts.can.handover_s * SECOND + outages(facts, 0, u64::MAX) };
    let recent = run.step.once_per_ms.unwrap_or_default() * MS;
    // A period is counted by the store's clock.
    if recent > 0 && clock_moved(facts) {
        return true;
    }
    facts.runs.iter().any(|other| {
        other.id != run.id
            && other.step.keys.iter().any(|key| run.step.keys.contains(key))
            && !(run.step.kind == Kind::Shared && other.step.kind == Kind::Shared)
            && other.spawned <= run.ended
            && run.spawned <= other.ended + after.max(recent)
    })
}

/// How long the store or the way to it was struck within this time.
fn outages(facts: &Facts, from: u64, until: u64) -> u64 {
    let within = |struck: &&Struck| struck.from < until && from < struck.until + facts.ttl;
    facts.struck.iter().filter(within).map(|struck| struck.until - struck.from).sum()
}

/// Between two sections of a key for which a run waited all along, only so much time may pass.
fn idle(facts: &Facts, faults: &mut Vec<Fault>) {
    for key in facts.keys.iter().map(|end| end.key).filter(|key| *key != ONCE_KEY) {
        let holds = holds(facts, key);
        for (section, run, _) in &holds {
            if run.step.wait_ms.is_none() || run.step.keys.len() > 1 {
                continue;
            }
            let mut free_since = run.spawned + 300 * MS * facts.slow;
            for (other, ..) in holds.iter().filter(|(other, ..)| other.began <= section.began) {
                let (free, taken) = (free_since, other.began);
                free_since = free_since.max(other.last_seen);
                if taken <= free {
                    continue;
                }
                let strikes = facts.struck.iter().any(|struck| struck.from < taken && free < struck.until + facts.ttl + 5 * SECOND);
                let limit = if facts.calm || !strikes {
                    // Less than after how long a waiter looks by itself.
                    (1500 + 700 * facts.slow) * MS
                } else {
                    facts.ttl + (facts.can.handover_s + 2 + facts.slow) * SECOND + outages(facts, free.saturating_sub(facts.ttl), taken)
                };
                // One that wants several locks may have this one while it waits for the next.
                let several = |other: &Run| other.step.keys.len() > 1 && other.step.keys.contains(&key);
                let excused = facts.runs.iter().any(|other| several(other) && other.spawned < taken && free < other.ended);
                if taken - free > limit && !excused {
                    let what = format!(
                        "key {key} was free for {} ms while run {} waited, until run {} began",
                        (taken - free) / MS,
                        run.id,
                        other.run
                    );
                    fault(faults, Rule::Idle, what);
                }
            }
        }
    }
}

/// Who asked long before another one had the lock first.
fn order(facts: &Facts, faults: &mut Vec<Fault>) {
    if !facts.line {
        return;
    }
    for (nth, (_, first, _)) in holds(facts, 0).iter().enumerate() {
        for (_, second, _) in &holds(facts, 0)[nth + 1..] {
            if second.spawned + 500 * MS * facts.slow < first.spawned {
                fault(faults, Rule::Order, format!("run {} asked before run {}, and had the lock after it", second.id, first.id));
            }
        }
    }
}

/// Two starts of `--once-per` are half a period apart.
fn twice(facts: &Facts, faults: &mut Vec<Fault>) {
    if clock_moved(facts) {
        return;
    }
    let starts: Vec<_> = holds(facts, ONCE_KEY);
    for pair in starts.windows(2) {
        let ((first, ..), (second, run, _)) = (pair[0], pair[1]);
        let half = run.step.once_per_ms.unwrap_or_default() * MS / 2;
        // What a start takes after the grant, when the store's clock counts from.
        if second.began - first.began + 250 * MS * facts.slow < half {
            let what = format!("run {} began {} ms after run {}", second.run, (second.began - first.began) / MS, first.run);
            fault(faults, Rule::Twice, what);
        }
    }
}

fn left(facts: &Facts, faults: &mut Vec<Fault>) {
    for end in &facts.keys {
        let empty = |field: &str| end.state[field].as_array().is_some_and(Vec::is_empty);
        if !empty("holders") || !empty("waiters") {
            fault(faults, Rule::Left, format!("key {}: {}", end.key, end.state));
        }
    }
    faults.extend(facts.left.iter().map(|what| Fault { rule: Rule::Left, what: what.clone() }));
}
