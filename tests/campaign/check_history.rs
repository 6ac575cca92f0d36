//! The part of the checker about `dlock history`: every hold has exactly one entry with its real
//! outcome, and no other entry exists.

use serde_json::Value;

use crate::{
    checker::{
        Rule, Violation, clock_was_stepped, ends_in_the_future, holds, was_disturbed, was_hit,
    },
    facts::{Facts, INNER, KeyEnd, Run},
    plan::FaultKind,
};

/// A store keeps the 100 holds of a lock that ended last. At most 16 contenders can have overtaken
/// a hold, so at least this many of the highest fences are among those 100.
const REMEMBERED: usize = 84;

pub fn check(facts: &Facts, violations: &mut Vec<Violation>) {
    for end in &facts.keys {
        let mut say = |what: String| {
            violations.push(Violation {
                rule: Rule::History,
                what: format!("key {}: {what}", end.key),
            });
        };
        let Some(entries) = end.history["runs"].as_array() else {
            say(format!("no history: {}", end.history));
            continue;
        };
        complete(facts, end, entries, &mut say);
        no_invented_entries(facts, end, entries, &mut say);
        if facts.calm {
            skips(facts, end, &mut say);
        }
    }
}

/// Each of the last holds has one entry with its outcome.
fn complete(facts: &Facts, end: &KeyEnd, entries: &[Value], say: &mut impl FnMut(String)) {
    let mut holds = holds(facts, end.key);
    holds.sort_by_key(|(_, _, fence)| std::cmp::Reverse(*fence));
    for (section, run, fence) in holds.into_iter().take(REMEMBERED) {
        let found: Vec<&str> = entries
            .iter()
            .filter(|entry| entry["fence"] == fence)
            .filter_map(|entry| entry["end"].as_str())
            .collect();
        let [recorded] = found[..] else {
            if found.is_empty() && facts.can.forgets && was_disturbed(facts, run) {
                continue;
            }
            say(format!(
                "run {} with fence {fence} has the history entries {found:?}",
                section.run
            ));
            continue;
        };
        if recorded == "running" && ends_in_the_future(facts, &fence.into()) {
            continue;
        }
        if !may_be_recorded_as(facts, run, recorded) {
            say(format!(
                "run {} with fence {fence} exited with {} and is recorded as {recorded:?}",
                run.id, run.code
            ));
        }
    }
}

/// Whether the history may record this outcome for a run with this exit status.
fn may_be_recorded_as(facts: &Facts, run: &Run, recorded: &str) -> bool {
    let given_back =
        run.verdict["released"] == "yes" && !(facts.can.forgets && was_disturbed(facts, run));
    let own = match run.code {
        0 => "ok".to_owned(),
        code => format!("exit {code}"),
    };
    match run.code {
        // dlock may have been killed before or after the release.
        137 if run.signalled => true,
        76 if ["lost", "expired", "broken", "released"].contains(&recorded) => true,
        // A server that is killed may lose what it confirmed in the second before, except for what
        // a later run depends on.
        _ if recorded == "expired" && is_soon_before_a_restart(facts, run) => true,
        // A hold whose release did not arrive ended with its lease, or by the break that hit it.
        _ if !given_back && recorded == "broken" => was_hit(facts, run, &[FaultKind::Break]),
        // Of several locks, one was lost after the command's end.
        76 if run.step.keys.len() < 2 || run.verdict["released"].is_null() => false,
        76 | 137 | 143 => {
            recorded.starts_with("signal ")
                || recorded == own
                || recorded == "ok"
                || recorded.starts_with("exit ")
                || !given_back && recorded == "expired"
        }
        _ => {
            recorded == own
                || !given_back
                    && recorded == "expired"
                    && (was_disturbed(facts, run) || was_hit(facts, run, &FaultKind::PROCESSES))
        }
    }
}

fn is_soon_before_a_restart(facts: &Facts, run: &Run) -> bool {
    let of = |fault| {
        facts
            .injected
            .iter()
            .filter(move |injected| injected.fault == fault)
    };
    // A server that is stopped or gets little CPU time writes to its disk later.
    let stopped: u64 = of(FaultKind::FreezeServer)
        .map(|injected| injected.until - injected.from)
        .sum();
    let soon = run.ended + facts.slow * 1_000_000_000 + stopped;
    of(FaultKind::RestartServer).any(|injected| injected.from < soon && run.ended < injected.until)
}

/// Every entry belongs to a hold that existed.
fn no_invented_entries(
    facts: &Facts,
    end: &KeyEnd,
    entries: &[Value],
    say: &mut impl FnMut(String),
) {
    let fences: Vec<u64> = holds(facts, end.key)
        .into_iter()
        .map(|(_, _, fence)| fence)
        .collect();
    // A host that was too slow to start the command within the lease says so, and asks again.
    let unused =
        |entry: &Value| entry["end"] == "not started" || facts.slow >= 3 && entry["end"] == "lost";
    let known = |entry: &Value| {
        unused(entry)
            || entry["fence"]
                .as_u64()
                .is_some_and(|fence| fences.contains(&fence))
    };
    let strange: Vec<&Value> = entries.iter().filter(|entry| !known(entry)).collect();
    // Runs that a fault hit between the grant and the start of the command.
    let hit_before_start = facts.runs.iter().filter(|run| {
        let began = facts
            .sections
            .iter()
            .any(|section| section.run == run.id && section.run < INNER);
        run.step.keys.contains(&end.key) && !began && (run.code != 75 || run.step.keys.len() > 1)
    });
    // A run of several locks may be granted a lock twice: after the loss of one lock, dlock
    // acquires all of them again.
    let most = if facts.calm {
        hit_before_start
            .filter(|run| run.step.keys.len() > 1)
            .count()
    } else {
        usize::MAX
    };
    if strange.len() > most {
        say(format!(
            "the history has holds that never existed: {strange:?}"
        ));
    }
    for entry in entries {
        let (started, ended) = (entry["started"].as_str(), entry["ended"].as_str());
        if entry["end"] == "running" && !ends_in_the_future(facts, &entry["fence"]) {
            say(format!(
                "recorded as running after the round has ended: {entry}"
            ));
        } else if !clock_was_stepped(facts)
            && started
                .zip(ended)
                .is_some_and(|(started, ended)| ended < started)
        {
            say(format!("ended before it started: {entry}"));
        }
    }
}

/// Each skip is counted, within what the store guarantees: dlock drops a skip note that takes
/// longer than a second.
fn skips(facts: &Facts, end: &KeyEnd, say: &mut impl FnMut(String)) {
    let skipped = |run: &&Run| run.code == 75 && run.step.keys.contains(&end.key);
    let all: u64 = facts.runs.iter().filter(skipped).count() as u64;
    let certain: u64 = facts
        .runs
        .iter()
        .filter(|run| skipped(run) && run.step.keys.len() == 1)
        .count() as u64;
    let counted: u64 = end.history["skips"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| one["count"].as_u64())
        .sum();
    // On a busy machine a skip note may be sent twice if the first answer is slow. Of many notes, a
    // few may be missing.
    let missing = if facts.slow >= 3 {
        certain
    } else {
        certain / 10
    };
    if !(certain - missing..=all + 1 + all / 10).contains(&counted) {
        say(format!(
            "{counted} skips are counted, but {certain} to {all} runs skipped"
        ));
    }
}
