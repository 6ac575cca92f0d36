use super::*;
use crate::lock::{Key, Request, Token, Ttl};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn run_policy(place: &str) -> RunPolicy {
    RunPolicy {
        place: place.into(),
        skew_guard: None,
        at_least: None,
        once: None,
        anyway: false,
    }
}

fn guarded(place: &str) -> RunPolicy {
    RunPolicy {
        skew_guard: Some(secs(5)),
        ..run_policy(place)
    }
}

fn once(window: u64, retry_failed: u32, retry_crashed: bool) -> RunPolicy {
    RunPolicy {
        once: Some(Once {
            window: secs(window),
            retry_failed,
            retry_crashed,
        }),
        ..run_policy("a")
    }
}

fn request(run_policy: RunPolicy) -> Request {
    Request {
        ttl_asked: false,
        run_policy: Some(run_policy),
        ..Request::new(Key::new("job").unwrap(), Ttl::DEFAULT)
    }
}

fn begun(run_policy: RunPolicy, at_ms: u64) -> RunRecord {
    let mut record = RunRecord::default();
    record.begin(&request(run_policy), Fence(7), at_ms);
    record
}

fn rule(record: &RunRecord, run_policy: &RunPolicy, now_ms: u64) -> Option<Rule> {
    record
        .judge(Some(run_policy), &Token::random(), now_ms)
        .map(|denial| denial.rule)
}

#[test]
fn the_skew_guard_denies_tries_from_other_places_until_it_ends() {
    let record = begun(guarded("a"), 10_000);
    assert_eq!(
        rule(&record, &guarded("b"), 14_999),
        Some(Rule::SkewGuard(secs(5)))
    );
    assert_eq!(rule(&record, &guarded("b"), 15_000), None);
    assert_eq!(rule(&record, &guarded("a"), 10_001), None, "the same place");
    assert_eq!(
        rule(&record, &run_policy("b"), 10_001),
        None,
        "a run without a guard is not refused"
    );
    assert_eq!(record.judge(None, &Token::random(), 10_001), None);
    assert_eq!(
        rule(&record, &guarded("b"), 9_000),
        Some(Rule::SkewGuard(secs(5))),
        "the clock was set back a little"
    );
    assert_eq!(
        rule(&record, &guarded("b"), 4_000),
        None,
        "the clock was set back by far"
    );
}

#[test]
fn at_least_denies_every_run() {
    let record = begun(
        RunPolicy {
            at_least: Some(secs(30)),
            ..run_policy("a")
        },
        10_000,
    );
    assert_eq!(
        record
            .judge(None, &Token::random(), 39_000)
            .map(|denial| (denial.rule, denial.again_in)),
        Some((Rule::AtLeast(secs(30)), Some(secs(1))))
    );
    assert_eq!(
        rule(&record, &guarded("a"), 10_000),
        Some(Rule::AtLeast(secs(30)))
    );
    assert_eq!(record.judge(None, &Token::random(), 40_000), None);
}

#[test]
fn a_window_has_one_run() {
    let record = begun(once(30, 0, false), 10_000);
    assert_eq!(
        rule(&record, &once(30, 0, false), 39_999),
        Some(Rule::Once(RunState::Started))
    );
    assert_eq!(rule(&record, &once(30, 0, false), 40_000), None);
    assert_eq!(
        rule(&record, &once(30, 0, false), 1),
        Some(Rule::Once(RunState::Started)),
        "a start in the future"
    );
    assert_eq!(
        rule(&record, &once(30, 0, true), 11_000),
        None,
        "a crashed run may be retried"
    );
    assert_eq!(
        rule(&record, &guarded("b"), 11_000),
        None,
        "a run without --once-per is not denied"
    );
}

#[test]
fn failures_are_retried_up_to_the_limit() {
    let twice = once(30, 1, false);
    let mut record = begun(twice.clone(), 10_000);
    assert!(record.end(Fence(7), RunState::Failed));
    assert_eq!(
        rule(&record, &once(30, 0, false), 11_000),
        Some(Rule::Once(RunState::Failed))
    );
    assert_eq!(rule(&record, &twice, 11_000), None);
    record.begin(&request(twice.clone()), Fence(8), 11_000);
    assert!(
        !record.end(Fence(7), RunState::Ok),
        "the fence is of another run"
    );
    assert!(record.end(Fence(8), RunState::Failed));
    assert_eq!(
        rule(&record, &twice, 12_000),
        Some(Rule::Once(RunState::Failed))
    );
    assert_eq!(rule(&record, &twice, 41_000), None);
    record.begin(&request(twice.clone()), Fence(9), 41_000);
    assert_eq!(
        record.start.as_ref().map(|start| start.tries),
        Some(1),
        "a new window starts at one"
    );
    assert!(record.end(Fence(9), RunState::Ok));
    assert!(
        !record.end(Fence(9), RunState::Failed),
        "a known outcome stays"
    );
    assert_eq!(
        rule(&record, &once(30, 9, true), 42_000),
        Some(Rule::Once(RunState::Ok))
    );
}

#[test]
fn a_cancelled_run_leaves_no_trace() {
    let run_policy = RunPolicy {
        skew_guard: Some(secs(5)),
        at_least: Some(secs(9)),
        ..once(30, 1, false)
    };
    let mut record = begun(run_policy.clone(), 10_000);
    assert!(record.end(Fence(7), RunState::Cancelled));
    assert_eq!(
        rule(
            &record,
            &RunPolicy {
                place: "b".into(),
                ..run_policy.clone()
            },
            10_001
        ),
        None
    );
    record.begin(&request(run_policy.clone()), Fence(8), 10_001);
    record.end(Fence(8), RunState::Failed);
    record.begin(&request(run_policy.clone()), Fence(9), 10_002);
    record.end(Fence(9), RunState::Cancelled);
    assert_eq!(
        record
            .start
            .as_ref()
            .map(|start| (start.state, start.tries)),
        Some((RunState::Failed, 1)),
        "the earlier run failed"
    );
}

#[test]
fn a_request_is_not_denied_by_its_own_record() {
    let run_policy = RunPolicy {
        skew_guard: Some(secs(5)),
        at_least: Some(secs(9)),
        ..once(30, 1, false)
    };
    let mut record = begun(run_policy.clone(), 9_000);
    record.end(Fence(7), RunState::Failed);
    record.cooldown = None;
    let own = request(run_policy.clone());
    record.begin(&own, Fence(8), 10_000);
    assert_eq!(record.judge(Some(&run_policy), &own.token, 11_000), None);
    assert_eq!(
        rule(&record, &run_policy, 11_000),
        Some(Rule::AtLeast(secs(9)))
    );
    record.begin(&own, Fence(9), 11_000);
    assert_eq!(
        record
            .start
            .as_ref()
            .map(|start| (start.fence, start.tries)),
        Some((Fence(9), 2)),
        "a repeated request is one attempt"
    );
    assert!(record.end(Fence(9), RunState::Failed));
    assert_eq!(
        rule(
            &record,
            &RunPolicy {
                at_least: None,
                ..run_policy
            },
            21_000
        ),
        Some(Rule::Once(RunState::Failed))
    );
}

#[test]
fn a_record_survives_a_round_trip() {
    let record = begun(
        RunPolicy {
            at_least: Some(secs(9)),
            ..once(30, 1, false)
        },
        10_000,
    );
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<RunRecord>(&text).unwrap(), record);
    assert_eq!(record.relevant(10_000), secs(30));
    assert_eq!(record.relevant(50_000), Duration::ZERO);
}

#[test]
fn only_a_policy_with_a_rule_is_recorded_for_the_longest_of_its_rules() {
    assert!(
        !run_policy("a").record_anything()
            && guarded("a").record_anything()
            && once(9, 0, false).record_anything()
    );
    assert_eq!(
        RunPolicy {
            at_least: Some(secs(30)),
            once: once(9, 0, false).once,
            ..guarded("a")
        }
        .relevant(),
        secs(30)
    );
}

#[test]
fn states_and_rules_have_their_texts() {
    for (state, text) in [
        (RunState::Started, "started"),
        (RunState::Ok, "ok"),
        (RunState::Failed, "failed"),
        (RunState::Cancelled, "undone"),
    ] {
        assert_eq!((state.as_str(), RunState::from(text)), (text, state));
    }
    assert_eq!(RunState::from("of a newer dlock"), RunState::Started);
    let texts = [
        Rule::SkewGuard(secs(5)),
        Rule::AtLeast(secs(90)),
        Rule::Once(RunState::Ok),
    ]
    .map(|rule| rule.to_string());
    assert_eq!(texts, ["skew guard 5s", "at least 1m 30s", "once"]);
}

#[test]
fn a_cooldown_denies_all_for_its_least_time_and_other_hosts_for_its_guard() {
    let record = begun(
        RunPolicy {
            at_least: Some(secs(2)),
            ..guarded("a")
        },
        10_000,
    );
    let denied = |now| {
        record
            .current_denial(now)
            .map(|denial| (denial.rule, denial.again_in))
    };
    assert_eq!(
        denied(11_999),
        Some((Rule::AtLeast(secs(2)), Some(Duration::from_millis(1))))
    );
    assert_eq!(
        denied(12_000),
        Some((Rule::SkewGuard(secs(5)), Some(secs(3))))
    );
    assert_eq!([15_000, 5_000, 0].map(denied), [None; 3]);
    assert_eq!(
        denied(8_001),
        Some((Rule::AtLeast(secs(2)), Some(Duration::from_millis(3_999)))),
        "the clock was set back a little"
    );
    assert_eq!(RunRecord::default().current_denial(0), None);
}
