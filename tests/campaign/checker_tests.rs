//! Tests of the checker on made-up records: it finds each violation and reports none in a correct
//! round.

use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::{
    checker::{Rule, check},
    facts::{Facts, INNER, InjectedFault, KeyEnd, Run, Section},
    plan::{FaultKind, Kind, ONCE_KEY, Route, Step},
};

const MS: u64 = 1_000_000;
const TTL_MS: u64 = 3000;

/// Returns a run, from its spawn to its end, and its section. Times are in milliseconds.
fn run(id: u64, step: Step, spawned: u64, began: u64, ended: u64, fence: u64) -> (Run, Section) {
    let verdict = json!({"result": "ok", "released": "yes"});
    let (code, fences) = (
        step.code,
        step.keys.iter().map(|key| (*key, fence)).collect(),
    );
    let permit = matches!(step.kind, Kind::Permits(_)).then_some(id % 2);
    let run = Run {
        id,
        step,
        route: Route::Direct,
        spawned: spawned * MS,
        ended: (ended + 2) * MS,
        code,
        signalled: false,
        verdict,
        stderr: String::new(),
    };
    let section = Section {
        run: id,
        began: began * MS,
        ended: Some((ended * MS, code)),
        fences,
        permit,
        alive: Vec::new(),
        last_seen: ended * MS,
    };
    (run, section)
}

/// Returns the facts of these runs, with a complete history.
fn facts(runs: Vec<(Run, Section)>) -> Facts {
    let (runs, sections): (Vec<_>, Vec<_>) = runs.into_iter().unzip();
    let mut facts = Facts {
        calm: true,
        ttl: TTL_MS * MS,
        slow: 1,
        runs,
        sections,
        ..Facts::default()
    };
    let mut keys: Vec<usize> = facts
        .runs
        .iter()
        .flat_map(|run| run.step.keys.clone())
        .collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let of_key = facts
            .sections
            .iter()
            .filter_map(|section| section.fences.iter().find(|(of, _)| *of == key));
        let entries: Vec<_> = of_key
            .map(|(_, fence)| json!({"fence": fence, "end": "ok", "started": "2026-01-01T00:00:00.000Z", "ended": "2026-01-01T00:00:01.000Z"}))
            .collect();
        let history = json!({"runs": entries, "skips": []});
        facts.keys.push(KeyEnd {
            key,
            history,
            state: json!({"holders": [], "waiters": []}),
        });
    }
    facts
}

fn waiting(key: usize) -> Step {
    Step {
        wait_ms: Some(60_000),
        ..Step::plain(key)
    }
}

#[track_caller]
fn assert_rules(facts: &Facts, rules: &[Rule]) {
    let mut found: Vec<_> = check(facts)
        .into_iter()
        .map(|violation| violation.rule)
        .collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, rules, "{:#?}", check(facts));
}

/// Two runs, one after the other.
fn two() -> Facts {
    facts(vec![
        run(1, waiting(0), 0, 10, 500, 7),
        run(2, waiting(0), 5, 510, 900, 8),
    ])
}

fn an_ordinary_round_passes() {
    assert_rules(&two(), &[]);
    assert_rules(&facts(Vec::new()), &[]);
}

fn two_sections_at_once_are_an_overlap() {
    let mut bad = two();
    bad.sections[1].alive = vec![(0, 1)];
    assert_rules(&bad, &[Rule::Overlap]);
    for run in &mut bad.runs {
        run.step.kind = Kind::Shared;
    }
    assert_rules(&bad, &[]);
    bad.runs[0].step.kind = Kind::Exclusive;
    assert_rules(&bad, &[Rule::Overlap]);
}

fn a_session_that_was_ended_while_its_holder_was_cut_off_promises_nothing() {
    let mut round = two();
    (round.calm, round.can.sessions) = (false, true);
    round.runs[0].route = Route::Netns;
    round.sections[1].alive = vec![(0, 1)];
    let injected = |fault, from: u64| InjectedFault {
        fault,
        from: from * MS,
        until: (from + 100) * MS,
        run: None,
    };
    round.injected = vec![injected(FaultKind::Partition, 100)];
    assert_rules(&round, &[Rule::Overlap]);
    round.injected.push(injected(FaultKind::Refuse, 300));
    assert_rules(&round, &[Rule::Overlap]);
    round.injected.push(injected(FaultKind::Cut, 150));
    assert_rules(&round, &[]);
    round.can.sessions = false;
    assert_rules(&round, &[Rule::Overlap]);
}

fn one_permit_too_many_is_an_overlap() {
    let permits = || Step {
        kind: Kind::Permits(2),
        ..waiting(0)
    };
    let mut round = facts(vec![
        run(1, permits(), 0, 10, 500, 7),
        run(2, permits(), 5, 20, 900, 8),
        run(3, permits(), 6, 510, 950, 9),
    ]);
    round.sections[1].alive = vec![(0, 1)];
    round.sections[2].alive = vec![(0, 2)];
    assert_rules(&round, &[]);
    round.sections[2].alive = vec![(0, 1), (0, 2)];
    assert_rules(&round, &[Rule::Overlap]);
    round.sections[2].alive = vec![(0, 2)];
    round.sections[2].permit = round.sections[1].permit;
    assert_rules(&round, &[Rule::Overlap]);
}

fn nested_runs_count_as_one_run() {
    let mut round = two();
    let inner = Section {
        run: INNER + 1,
        began: 20 * MS,
        alive: vec![(0, 1)],
        ..round.sections[0].clone()
    };
    round.sections.push(inner);
    assert_rules(&round, &[]);
    round.sections[2].fences = vec![(0, 8)];
    assert_rules(&round, &[Rule::Fence]);
}

fn falling_or_repeated_fences_are_found() {
    for (first, second) in [(8, 7), (7, 7), (0, 8)] {
        let bad = facts(vec![
            run(1, waiting(0), 0, 10, 500, first),
            run(2, waiting(0), 5, 510, 900, second),
        ]);
        assert!(
            check(&bad)
                .iter()
                .any(|violation| violation.rule == Rule::Fence),
            "{first} {second}"
        );
    }
    // Readers that were granted at about the same time may begin in any order.
    let read = || Step {
        kind: Kind::Shared,
        ..waiting(0)
    };
    assert_rules(
        &facts(vec![
            run(1, read(), 0, 10, 500, 8),
            run(2, read(), 5, 15, 900, 7),
        ]),
        &[],
    );
    assert_rules(
        &facts(vec![
            run(1, read(), 0, 10, 500, 8),
            run(2, read(), 11, 15, 900, 7),
        ]),
        &[Rule::Fence],
    );
}

fn an_unexplained_exit_status_is_found() {
    for code in [1, 70, 76, 69, 75, 137, 143] {
        let mut bad = two();
        bad.runs[0].code = code;
        assert!(
            check(&bad)
                .iter()
                .any(|violation| violation.rule == Rule::Status),
            "{code}"
        );
    }
    // TERM before dlock had done anything.
    let mut early = two();
    early.calm = false;
    early.sections.pop();
    early.keys[0].history["runs"].as_array_mut().unwrap().pop();
    let last = early.runs.last_mut().unwrap();
    (last.code, last.signalled, last.verdict) = (143, true, Value::Null);
    let hit = early.runs[1].id;
    assert_rules(&early, &[Rule::Status]);
    early.injected = vec![InjectedFault {
        fault: FaultKind::TermDlock,
        from: 20 * MS,
        until: 21 * MS,
        run: Some(hit),
    }];
    assert_rules(&early, &[]);
    for (result, rules) in [("running", &[][..]), ("ok", &[Rule::Status])] {
        early.runs[1].verdict = json!({"result": result});
        assert_rules(&early, rules);
    }
    // A success without an end record.
    let mut bad = two();
    bad.sections[1].ended = None;
    assert_rules(&bad, &[Rule::Status]);
    bad = two();
    bad.hung.push("run 3".into());
    assert_rules(&bad, &[Rule::Status]);
}

fn a_loss_needs_a_fault_that_explains_it() {
    let mut round = two();
    round.calm = false;
    round.runs[0].code = 76;
    round.runs[0].verdict = json!({"result": "lost", "released": "not_held"});
    round.sections[0].ended = None;
    round.keys[0].history["runs"][0]["end"] = json!("lost");
    assert_rules(&round, &[Rule::Status]);
    let injected = |fault, from: u64, run| InjectedFault {
        fault,
        from: from * MS,
        until: (from + 100) * MS,
        run,
    };
    round.injected = vec![injected(FaultKind::FreezeServer, 100, None)];
    assert_rules(&round, &[]);
    round.injected = vec![injected(FaultKind::StopDlock, 100, Some(1))];
    assert_rules(&round, &[]);
    // A fault on the other run, one on a route that this run doesn't use, and one long after this
    // run.
    for other in [
        injected(FaultKind::StopDlock, 100, Some(2)),
        injected(FaultKind::BlackHole, 100, None),
        injected(FaultKind::FreezeServer, 5000, None),
    ] {
        round.injected = vec![other];
        assert_rules(&round, &[Rule::Status]);
    }
}

fn a_skip_needs_another_holder() {
    let skipped = |spawned| {
        let (mut run, _) = run(3, Step::plain(0), spawned, spawned, spawned + 10, 0);
        (run.code, run.verdict) = (75, json!({"result": "busy"}));
        run
    };
    let mut round = two();
    round.runs.push(skipped(300));
    round.keys[0].history["skips"] = json!([{"count": 1}]);
    assert_rules(&round, &[]);
    round.runs[2] = skipped(2000);
    assert_rules(&round, &[Rule::Status]);
    round = two();
    round.runs.push(skipped(300));
    assert_rules(&round, &[Rule::History]);
    // A reader keeps no other one out, except by a claim that was cut off.
    let mut round = two();
    round.runs.push(skipped(300));
    round.keys[0].history["skips"] = json!([{"count": 1}]);
    round
        .runs
        .iter_mut()
        .for_each(|run| run.step.kind = Kind::Shared);
    round.calm = false;
    assert_rules(&round, &[Rule::Status]);
    round.injected = vec![InjectedFault {
        fault: FaultKind::StopDlock,
        from: 100 * MS,
        until: 101 * MS,
        run: Some(2),
    }];
    assert_rules(&round, &[Rule::Status]);
    round.can.claims = true;
    assert_rules(&round, &[]);
}

fn an_idle_lock_with_a_waiter_is_found() {
    let idle = |gap: u64| {
        facts(vec![
            run(1, waiting(0), 0, 10, 500, 7),
            run(2, waiting(0), 5, 500 + gap, 900 + gap, 8),
        ])
    };
    assert_rules(&idle(1000), &[]);
    assert_rules(&idle(4000), &[Rule::Idle]);
    // After a holder dies, its lease has to end first.
    let mut round = idle(4000);
    round.calm = false;
    assert_rules(&round, &[Rule::Idle]);
    round.injected = vec![InjectedFault {
        fault: FaultKind::KillDlock,
        from: 490 * MS,
        until: 491 * MS,
        run: Some(1),
    }];
    assert_rules(&round, &[]);
    let mut round = idle(9000);
    (round.calm, round.injected) = (
        false,
        vec![InjectedFault {
            fault: FaultKind::KillDlock,
            from: 490 * MS,
            until: 491 * MS,
            run: Some(1),
        }],
    );
    assert_rules(&round, &[Rule::Idle]);
}

fn a_broken_queue_order_is_found() {
    let mut round = facts(vec![
        run(1, waiting(0), 0, 10, 900, 7),
        run(3, waiting(0), 1600, 1700, 1800, 8),
        run(2, waiting(0), 700, 1810, 1900, 9),
    ]);
    assert_rules(&round, &[]);
    round.fifo = true;
    assert_rules(&round, &[Rule::Order]);
}

fn two_runs_in_one_period_are_found() {
    let once = || Step {
        once_per_ms: Some(2000),
        ..Step::plain(ONCE_KEY)
    };
    let pair = |second: u64| {
        facts(vec![
            run(1, once(), 0, 10, 20, 7),
            run(2, once(), second, second + 10, second + 20, 8),
        ])
    };
    assert_rules(&pair(1000), &[]);
    assert_rules(&pair(400), &[Rule::Twice]);
}

/// A of a sweep, which is cut off, and the last contender with `--once`.
fn once_after(code: i32, ran: bool) -> Facts {
    let once = || Step {
        once: true,
        once_per_ms: Some(3_600_000),
        ..Step::plain(ONCE_KEY)
    };
    let mut of = facts(vec![
        run(0, once(), 0, 10, 500, 7),
        run(200, once(), 900, 910, 950, 8),
    ]);
    of.runs[0].route = Route::Proxy;
    of.runs[0].code = code;
    of.calm = false;
    let hit = |fault, run| InjectedFault {
        fault,
        from: 100 * MS,
        until: 100 * MS,
        run,
    };
    of.injected = vec![
        hit(FaultKind::Cut, None),
        hit(FaultKind::TermDlock, Some(0)),
    ];
    of.runs[1].code = 75;
    of.runs[1].verdict = json!({"result": "busy"});
    of.sections.truncate(usize::from(ran));
    of.keys[0].history["runs"]
        .as_array_mut()
        .unwrap()
        .truncate(1);
    of
}

fn work_that_is_done_twice_or_never_is_found() {
    assert_rules(&once_after(0, true), &[]);
    // Nothing refuses the last run, unless the store may have recorded a start whose answer was
    // lost.
    let refused = once_after(75, false);
    assert!(
        check(&refused)
            .iter()
            .any(|violation| violation.rule == Rule::Never),
        "{:?}",
        check(&refused)
    );
    assert_rules(&once_after(69, false), &[]);
    let again = |code: i32| {
        let mut again = once_after(code, true);
        let (mut second, section) = run(200, again.runs[1].step.clone(), 900, 910, 950, 8);
        second.verdict["released"] = json!("no");
        (again.runs[1], again.sections) = (second, vec![again.sections[0].clone(), section]);
        check(&again)
            .iter()
            .any(|violation| violation.rule == Rule::Twice)
    };
    // Only a failure is followed by another run; an unknown outcome isn't.
    assert_eq!([again(0), again(76), again(143)], [true, true, false]);
}

fn an_outage_of_another_runs_route_excuses_no_idle_lock() {
    let mut late = facts(vec![
        run(0, waiting(0), 0, 10, 500, 7),
        run(100, waiting(0), 5, 8000, 8100, 8),
    ]);
    (late.calm, late.runs[0].route) = (false, Route::Proxy);
    late.injected = vec![InjectedFault {
        fault: FaultKind::BlackHole,
        from: 400 * MS,
        until: 5400 * MS,
        run: None,
    }];
    assert_rules(&late, &[Rule::Idle]);
    // `--at-least` keeps the lock for the rest of its time.
    late.runs[0].step.at_least_ms = 5000;
    assert_rules(&late, &[]);
}

fn a_wrong_history_is_found() {
    let mut missing = two();
    missing.keys[0].history["runs"]
        .as_array_mut()
        .unwrap()
        .pop();
    assert_rules(&missing, &[Rule::History]);
    let mut wrong = two();
    wrong.keys[0].history["runs"][1]["end"] = json!("expired");
    assert_rules(&wrong, &[Rule::History]);
    let mut more = two();
    more.keys[0].history["runs"]
        .as_array_mut()
        .unwrap()
        .push(json!({"fence": 99, "end": "ok"}));
    assert_rules(&more, &[Rule::History]);
    let mut twice = two();
    let again = twice.keys[0].history["runs"][0].clone();
    twice.keys[0].history["runs"]
        .as_array_mut()
        .unwrap()
        .push(again);
    assert_rules(&twice, &[Rule::History]);
}

fn a_release_just_before_a_crash_of_the_server_may_be_forgotten() {
    let mut round = two();
    round.calm = false;
    round.keys[0].history["runs"][1]["end"] = json!("expired");
    let injected = |fault, from: u64, until: u64| InjectedFault {
        fault,
        from: from * MS,
        until: until * MS,
        run: None,
    };
    for (injected, rules) in [
        (
            vec![injected(FaultKind::RestartServer, 1500, 3000)],
            &[][..],
        ),
        (vec![injected(FaultKind::RestartServer, 890, 3000)], &[]),
        (
            vec![injected(FaultKind::RestartServer, 4500, 6000)],
            &[Rule::History],
        ),
        (
            vec![
                injected(FaultKind::FreezeServer, 900, 4500),
                injected(FaultKind::RestartServer, 4500, 6000),
            ],
            &[],
        ),
        (
            vec![injected(FaultKind::RestartServer, 100, 200)],
            &[Rule::History],
        ),
    ] {
        round.injected = injected;
        assert_rules(&round, rules);
    }
}

fn a_hold_whose_command_was_not_started_is_no_run() {
    let mut round = two();
    round.keys[0].history["runs"]
        .as_array_mut()
        .unwrap()
        .push(json!({"fence": 99, "end": "not started"}));
    assert_rules(&round, &[]);
    round.keys[0].history["runs"][1]["end"] = json!("not started");
    assert_rules(&round, &[Rule::History]);
}

fn a_lost_session_may_be_shown_until_a_clock_that_was_set_back_gets_there() {
    let mut round = two();
    (round.calm, round.can.sessions) = (false, true);
    (round.runs[1].code, round.runs[1].verdict) =
        (76, json!({"result": "lost", "released": null, "fence": 8}));
    round.keys[0].history["runs"][1]["end"] = json!("running");
    round.keys[0].state = json!({"holders": [{"fence": 8}], "waiters": []});
    let injected = |fault| InjectedFault {
        fault,
        from: 600 * MS,
        until: 700 * MS,
        run: None,
    };
    round.injected = vec![injected(FaultKind::RestartServer)];
    assert_rules(&round, &[Rule::History, Rule::Left]);
    round.injected.push(injected(FaultKind::StepClock));
    assert_rules(&round, &[]);
    round.runs[1].verdict["released"] = json!("yes");
    assert_rules(&round, &[Rule::History, Rule::Left]);
}

fn leftovers_are_found() {
    let mut held = two();
    held.keys[0].state = json!({"holders": [{}], "waiters": []});
    assert_rules(&held, &[Rule::Left]);
    let mut session = two();
    session.left.push("a session".into());
    assert_rules(&session, &[Rule::Left]);
    let mut unknown = two();
    unknown.keys[0].state = json!("can't be reached");
    assert_rules(&unknown, &[Rule::Left]);
}

macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        pub fn trials() -> Vec<Trial> {
            vec![$(Trial::test(concat!("checker::", stringify!($name)), || { $name(); Ok(()) })),*]
        }
    };
}

trials!(
    an_ordinary_round_passes,
    two_sections_at_once_are_an_overlap,
    a_session_that_was_ended_while_its_holder_was_cut_off_promises_nothing,
    one_permit_too_many_is_an_overlap,
    nested_runs_count_as_one_run,
    falling_or_repeated_fences_are_found,
    an_unexplained_exit_status_is_found,
    a_loss_needs_a_fault_that_explains_it,
    a_skip_needs_another_holder,
    an_idle_lock_with_a_waiter_is_found,
    a_broken_queue_order_is_found,
    two_runs_in_one_period_are_found,
    work_that_is_done_twice_or_never_is_found,
    an_outage_of_another_runs_route_excuses_no_idle_lock,
    a_wrong_history_is_found,
    a_release_just_before_a_crash_of_the_server_may_be_forgotten,
    a_hold_whose_command_was_not_started_is_no_run,
    a_lost_session_may_be_shown_until_a_clock_that_was_set_back_gets_there,
    leftovers_are_found,
);
