//! The checker on records that are made up: it says what is wrong with them, and nothing of those with which nothing is.

use libtest_mimic::Trial;
use serde_json::json;

use crate::{
    facts::{Facts, INNER, KeyEnd, Run, Section, Struck},
    judge::{Rule, judge},
    plan::{Blow, Kind, ONCE_KEY, Step, Way},
};

const MS: u64 = 1_000_000;
const TTL_MS: u64 = 3000;

/// A run from its spawning to its end, and its section within.
fn run(id: u64, step: Step, spawned: u64, began: u64, ended: u64, fence: u64) -> (Run, Section) {
    let verdict = json!({"result": "ok", "released": "yes"});
    let (code, fences) = (step.code, step.keys.iter().map(|key| (*key, fence)).collect());
    let permit = matches!(step.kind, Kind::Permits(_)).then_some(id % 2);
    let run = Run {
        id,
        step,
        way: Way::Direct,
        spawned: spawned * MS,
        ended: (ended + 2) * MS,
        code,
        signalled: false,
        verdict,
        stderr: String::new(),
    };
    let section =
        Section { run: id, began: began * MS, ended: Some((ended * MS, code)), fences, permit, alive: Vec::new(), last_seen: ended * MS };
    (run, section)
}

/// The facts of these, with a history that is complete.
fn facts(runs: Vec<(Run, Section)>) -> Facts {
    let (runs, sections): (Vec<_>, Vec<_>) = runs.into_iter().unzip();
    let mut facts = Facts { calm: true, ttl: TTL_MS * MS, slow: 1, runs, sections, ..Facts::default() };
    let mut keys: Vec<usize> = facts.runs.iter().flat_map(|run| run.step.keys.clone()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let of_key = facts.sections.iter().filter_map(|section| section.fences.iter().find(|(of, _)| *of == key));
        let entries: Vec<_> = of_key
            .map(|(_, fence)| json!({"fence": fence, "end": "ok", "started": "2026-01-01T00:00:00.000Z", "ended": "2026-01-01T00:00:01.000Z"}))
            .collect();
        let history = json!({"runs": entries, "skips": []});
        facts.keys.push(KeyEnd { key, history, state: json!({"holders": [], "waiters": []}) });
    }
    facts
}

fn waiting(key: usize) -> Step {
    Step { wait_ms: Some(60_000), ..Step::plain(key) }
}

#[track_caller]
fn only(facts: &Facts, rules: &[Rule]) {
    let mut found: Vec<_> = judge(facts).into_iter().map(|fault| fault.rule).collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, rules, "{:#?}", judge(facts));
}

/// Two that follow each other.
fn two() -> Facts {
    facts(vec![run(1, waiting(0), 0, 10, 500, 7), run(2, waiting(0), 5, 510, 900, 8)])
}

fn an_ordinary_round_is_fine() {
    only(&two(), &[]);
    only(&facts(Vec::new()), &[]);
}

fn two_at_once_are_seen() {
    let mut bad = two();
    bad.sections[1].alive = vec![(0, 1)];
    only(&bad, &[Rule::Overlap]);
    for run in &mut bad.runs {
        run.step.kind = Kind::Shared;
    }
    only(&bad, &[]);
    bad.runs[0].step.kind = Kind::Exclusive;
    only(&bad, &[Rule::Overlap]);
}

fn one_permit_too_many_is_seen() {
    let permits = || Step { kind: Kind::Permits(2), ..waiting(0) };
    let mut round = facts(vec![run(1, permits(), 0, 10, 500, 7), run(2, permits(), 5, 20, 900, 8), run(3, permits(), 6, 510, 950, 9)]);
    round.sections[1].alive = vec![(0, 1)];
    round.sections[2].alive = vec![(0, 2)];
    only(&round, &[]);
    round.sections[2].alive = vec![(0, 1), (0, 2)];
    only(&round, &[Rule::Overlap]);
    round.sections[2].alive = vec![(0, 2)];
    round.sections[2].permit = round.sections[1].permit;
    only(&round, &[Rule::Overlap]);
}

fn nested_runs_are_one() {
    let mut round = two();
    let inner = Section { run: INNER + 1, began: 20 * MS, alive: vec![(0, 1)], ..round.sections[0].clone() };
    round.sections.push(inner);
    only(&round, &[]);
    round.sections[2].fences = vec![(0, 8)];
    only(&round, &[Rule::Fence]);
}

fn fences_that_fall_or_repeat_are_seen() {
    for (first, second) in [(8, 7), (7, 7), (0, 8)] {
        let bad = facts(vec![run(1, waiting(0), 0, 10, 500, first), run(2, waiting(0), 5, 510, 900, second)]);
        assert!(judge(&bad).iter().any(|fault| fault.rule == Rule::Fence), "{first} {second}");
    }
    // Readers that were granted at about the same time may begin in any order.
    let read = || Step { kind: Kind::Shared, ..waiting(0) };
    only(&facts(vec![run(1, read(), 0, 10, 500, 8), run(2, read(), 5, 15, 900, 7)]), &[]);
    only(&facts(vec![run(1, read(), 0, 10, 500, 8), run(2, read(), 11, 15, 900, 7)]), &[Rule::Fence]);
}

fn a_status_without_a_reason_is_seen() {
    for code in [1, 70, 76, 69, 75, 137, 143] {
        let mut bad = two();
        bad.runs[0].code = code;
        assert!(judge(&bad).iter().any(|fault| fault.rule == Rule::Status), "{code}");
    }
    // A success without an end.
    let mut bad = two();
    bad.sections[1].ended = None;
    only(&bad, &[Rule::Status]);
    bad = two();
    bad.hung.push("run 3".into());
    only(&bad, &[Rule::Status]);
}

fn a_loss_is_explained_by_what_struck() {
    let mut round = two();
    round.calm = false;
    round.runs[0].code = 76;
    round.runs[0].verdict = json!({"result": "lost", "released": "not_held"});
    round.sections[0].ended = None;
    round.keys[0].history["runs"][0]["end"] = json!("lost");
    only(&round, &[Rule::Status]);
    let struck = |blow, from: u64, run| Struck { blow, from: from * MS, until: (from + 100) * MS, run };
    round.struck = vec![struck(Blow::FreezeServer, 100, None)];
    only(&round, &[]);
    round.struck = vec![struck(Blow::StopDlock, 100, Some(1))];
    only(&round, &[]);
    // Another run's, one on a way that is not its own, and one long after.
    for other in [struck(Blow::StopDlock, 100, Some(2)), struck(Blow::BlackHole, 100, None), struck(Blow::FreezeServer, 5000, None)] {
        round.struck = vec![other];
        only(&round, &[Rule::Status]);
    }
}

fn a_skip_needs_somebody_who_had_it() {
    let skipped = |spawned| {
        let (mut run, _) = run(3, Step::plain(0), spawned, spawned, spawned + 10, 0);
        (run.code, run.verdict) = (75, json!({"result": "busy"}));
        run
    };
    let mut round = two();
    round.runs.push(skipped(300));
    round.keys[0].history["skips"] = json!([{"count": 1}]);
    only(&round, &[]);
    round.runs[2] = skipped(2000);
    only(&round, &[Rule::Status]);
    round = two();
    round.runs.push(skipped(300));
    only(&round, &[Rule::History]);
}

fn a_lock_that_lies_idle_is_seen() {
    let idle = |gap: u64| facts(vec![run(1, waiting(0), 0, 10, 500, 7), run(2, waiting(0), 5, 500 + gap, 900 + gap, 8)]);
    only(&idle(1000), &[]);
    only(&idle(4000), &[Rule::Idle]);
    // Of a dead holder the lease has to end first.
    let mut round = idle(4000);
    round.calm = false;
    only(&round, &[Rule::Idle]);
    round.struck = vec![Struck { blow: Blow::KillDlock, from: 490 * MS, until: 491 * MS, run: Some(1) }];
    only(&round, &[]);
    let mut round = idle(9000);
    (round.calm, round.struck) = (false, vec![Struck { blow: Blow::KillDlock, from: 490 * MS, until: 491 * MS, run: Some(1) }]);
    only(&round, &[Rule::Idle]);
}

fn an_order_that_is_not_kept_is_seen() {
    let mut round =
        facts(vec![run(1, waiting(0), 0, 10, 900, 7), run(3, waiting(0), 1600, 1700, 1800, 8), run(2, waiting(0), 700, 1810, 1900, 9)]);
    only(&round, &[]);
    round.line = true;
    only(&round, &[Rule::Order]);
}

fn a_period_with_two_runs_is_seen() {
    let once = || Step { once_per_ms: Some(2000), ..Step::plain(ONCE_KEY) };
    let pair = |second: u64| facts(vec![run(1, once(), 0, 10, 20, 7), run(2, once(), second, second + 10, second + 20, 8)]);
    only(&pair(1000), &[]);
    only(&pair(400), &[Rule::Twice]);
}

fn a_history_that_lies_is_seen() {
    let mut missing = two();
    missing.keys[0].history["runs"].as_array_mut().unwrap().pop();
    only(&missing, &[Rule::History]);
    let mut wrong = two();
    wrong.keys[0].history["runs"][1]["end"] = json!("expired");
    only(&wrong, &[Rule::History]);
    let mut more = two();
    more.keys[0].history["runs"].as_array_mut().unwrap().push(json!({"fence": 99, "end": "ok"}));
    only(&more, &[Rule::History]);
    let mut twice = two();
    let again = twice.keys[0].history["runs"][0].clone();
    twice.keys[0].history["runs"].as_array_mut().unwrap().push(again);
    only(&twice, &[Rule::History]);
}

fn what_is_left_over_is_seen() {
    let mut held = two();
    held.keys[0].state = json!({"holders": [{}], "waiters": []});
    only(&held, &[Rule::Left]);
    let mut session = two();
    session.left.push("a session".into());
    only(&session, &[Rule::Left]);
    let mut unknown = two();
    unknown.keys[0].state = json!("can't be reached");
    only(&unknown, &[Rule::Left]);
}

macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        pub fn trials() -> Vec<Trial> {
            vec![$(Trial::test(concat!("judge::", stringify!($name)), || { $name(); Ok(()) })),*]
        }
    };
}

trials!(
    an_ordinary_round_is_fine,
    two_at_once_are_seen,
    one_permit_too_many_is_seen,
    nested_runs_are_one,
    fences_that_fall_or_repeat_are_seen,
    a_status_without_a_reason_is_seen,
    a_loss_is_explained_by_what_struck,
    a_skip_needs_somebody_who_had_it,
    a_lock_that_lies_idle_is_seen,
    an_order_that_is_not_kept_is_seen,
    a_period_with_two_runs_is_seen,
    a_history_that_lies_is_seen,
    what_is_left_over_is_seen,
);
