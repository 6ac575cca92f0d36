//! The part of the checker about `dlock history`: every hold is told, once, as it ended, and nothing else.

use serde_json::Value;

use crate::{
    facts::{Facts, INNER, KeyEnd, Run},
    judge::{Fault, Rule, clock_moved, holds, was_shaken, was_struck},
    plan::Blow,
};

/// A store remembers the 100 runs of a lock that ended last. Of those that began last, by their fences, so many are among them: no more
/// than 16 contenders can have overtaken one.
const REMEMBERED: usize = 84;

pub fn judge(facts: &Facts, faults: &mut Vec<Fault>) {
    for end in &facts.keys {
        let mut say = |what: String| faults.push(Fault { rule: Rule::History, what: format!("key {}: {what}", end.key) });
        let Some(entries) = end.history["runs"].as_array() else {
            say(format!("no history: {}", end.history));
            continue;
        };
        complete(facts, end, entries, &mut say);
        true_to_life(facts, end, entries, &mut say);
        if facts.calm {
            skips(facts, end, &mut say);
        }
    }
}

/// Each of the last holds is there, as it ended.
fn complete(facts: &Facts, end: &KeyEnd, entries: &[Value], say: &mut impl FnMut(String)) {
    let mut holds = holds(facts, end.key);
    holds.sort_by_key(|(_, _, fence)| std::cmp::Reverse(*fence));
    for (section, run, fence) in holds.into_iter().take(REMEMBERED) {
        let found: Vec<&str> = entries.iter().filter(|entry| entry["fence"] == fence).filter_map(|entry| entry["end"].as_str()).collect();
        let [told] = found[..] else {
            if found.is_empty() && facts.can.forgets && was_shaken(facts, run) {
                continue;
            }
            say(format!("run {} with fence {fence} is told {found:?}", section.run));
            continue;
        };
        if !may_be_told(facts, run, told) {
            say(format!("run {} with fence {fence} exited with {} and is told as {told:?}", run.id, run.code));
        }
    }
}

/// Whether a run that ended so may be remembered so.
fn may_be_told(facts: &Facts, run: &Run, told: &str) -> bool {
    let release_result = run.verdict["released"] == "yes" && !(facts.can.forgets && was_shaken(facts, run));
    let own = match run.code {
        0 => "ok".to_owned(),
        code => format!("exit {code}"),
    };
    match run.code {
        // It may have been killed before or after it gave the lock back.
        137 if run.signalled => true,
        76 => ["lost", "expired", "broken", "released"].contains(&told),
        137 | 143 => {
            told.starts_with("signal ") || told == own || told == "ok" || told.starts_with("exit ") || !release_result && told == "expired"
        }
        _ => told == own || !release_result && told == "expired" && (was_shaken(facts, run) || was_struck(facts, run, &Blow::PROCESSES)),
    }
}

/// What is told was.
fn true_to_life(facts: &Facts, end: &KeyEnd, entries: &[Value], say: &mut impl FnMut(String)) {
    let fences: Vec<u64> = holds(facts, end.key).into_iter().map(|(_, _, fence)| fence).collect();
    let strange: Vec<&Value> =
        entries.iter().filter(|entry| entry["fence"].as_u64().is_none_or(|fence| !fences.contains(&fence))).collect();
    // A run that was struck between its grant and its command's start.
    let unlucky = facts.runs.iter().filter(|run| {
        let began = facts.sections.iter().any(|section| section.run == run.id && section.run < INNER);
        run.step.keys.contains(&end.key) && !began && (run.code != 75 || run.step.keys.len() > 1)
    });
    // One may be granted a lock more than once: a lost one is asked for again.
    let most = if facts.calm { unlucky.filter(|run| run.step.keys.len() > 1).count() } else { usize::MAX };
    if strange.len() > most {
        say(format!("told of holds that there were not: {strange:?}"));
    }
    for entry in entries {
        let (started, ended) = (entry["started"].as_str(), entry["ended"].as_str());
        if entry["end"] == "running" {
            say(format!("told as running although all is over: {entry}"));
        } else if !clock_moved(facts) && started.zip(ended).is_some_and(|(started, ended)| ended < started) {
            say(format!("ended before it started: {entry}"));
        }
    }
}

/// Each skip is counted, as far as the store takes it: a note of one has a second, and is left out then.
fn skips(facts: &Facts, end: &KeyEnd, say: &mut impl FnMut(String)) {
    let skipped = |run: &&Run| run.code == 75 && run.step.keys.contains(&end.key);
    let all: u64 = facts.runs.iter().filter(skipped).count() as u64;
    let sure: u64 = facts.runs.iter().filter(|run| skipped(run) && run.step.keys.len() == 1).count() as u64;
    let counted: u64 = end.history["skips"].as_array().into_iter().flatten().filter_map(|one| one["count"].as_u64()).sum();
    // On a busy machine one may be told of again whose first answer was slow, and of many a few may not be told of at all.
    if !(sure - sure / 10..=all + 1 + all / 10).contains(&counted) {
        say(format!("{counted} skips are counted, and {sure} to {all} runs skipped"));
    }
}
