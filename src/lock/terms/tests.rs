use super::*;
use crate::lock::{Key, Ttl};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn terms(place: &str) -> Terms {
    Terms { place: place.into(), skew_guard: None, at_least: None, once: None, anyway: false }
}

fn guarded(place: &str) -> Terms {
    Terms { skew_guard: Some(secs(5)), ..terms(place) }
}

fn once(window: u64, retry_failed: u32, retry_crashed: bool) -> Terms {
    Terms { once: Some(Once { window: secs(window), retry_failed, retry_crashed }), ..terms("a") }
}

fn request(terms: Terms) -> Request {
    Request { ttl_asked: false, terms: Some(terms), ..Request::new(Key::new("job").unwrap(), Ttl::DEFAULT) }
}

fn begun(terms: Terms, at_ms: u64) -> Record {
    let mut record = Record::default();
    record.begin(&request(terms), Fence(7), at_ms);
    record
}

fn rule(record: &Record, terms: &Terms, now_ms: u64) -> Option<Rule> {
    record.judge(Some(terms), &Token::random(), now_ms).map(|refusal| refusal.rule)
}

#[test]
fn the_skew_guard_refuses_tries_from_elsewhere_until_it_is_over() {
    let record = begun(guarded("a"), 10_000);
    assert_eq!(rule(&record, &guarded("b"), 14_999), Some(Rule::SkewGuard(secs(5))));
    assert_eq!(rule(&record, &guarded("b"), 15_000), None);
    assert_eq!(rule(&record, &guarded("a"), 10_001), None, "the same place");
    assert_eq!(rule(&record, &terms("b"), 10_001), None, "who waits, and who has none");
    assert_eq!(record.judge(None, &Token::random(), 10_001), None);
    assert_eq!(rule(&record, &guarded("b"), 9_000), Some(Rule::SkewGuard(secs(5))), "the clock was set back a little");
    assert_eq!(rule(&record, &guarded("b"), 4_000), None, "and by far");
}

#[test]
fn at_least_refuses_everybody() {
    let record = begun(Terms { at_least: Some(secs(30)), ..terms("a") }, 10_000);
    assert_eq!(
        record.judge(None, &Token::random(), 39_000).map(|refusal| (refusal.rule, refusal.again_in)),
        Some((Rule::AtLeast(secs(30)), Some(secs(1))))
    );
    assert_eq!(rule(&record, &guarded("a"), 10_000), Some(Rule::AtLeast(secs(30))));
    assert_eq!(record.judge(None, &Token::random(), 40_000), None);
}

#[test]
fn a_window_has_one_run() {
    let record = begun(once(30, 0, false), 10_000);
    assert_eq!(rule(&record, &once(30, 0, false), 39_999), Some(Rule::Once(Stage::Started)));
    assert_eq!(rule(&record, &once(30, 0, false), 40_000), None);
    assert_eq!(rule(&record, &once(30, 0, false), 1), Some(Rule::Once(Stage::Started)), "a start in the future");
    assert_eq!(rule(&record, &once(30, 0, true), 11_000), None, "it may have crashed");
    assert_eq!(rule(&record, &guarded("b"), 11_000), None, "who does not ask for it");
}

#[test]
fn failures_are_retried_so_often() {
    let twice = once(30, 1, false);
    let mut record = begun(twice.clone(), 10_000);
    assert!(record.end(Fence(7), Stage::Failed));
    assert_eq!(rule(&record, &once(30, 0, false), 11_000), Some(Rule::Once(Stage::Failed)));
    assert_eq!(rule(&record, &twice, 11_000), None);
    record.begin(&request(twice.clone()), Fence(8), 11_000);
    assert!(!record.end(Fence(7), Stage::Ok), "another run's");
    assert!(record.end(Fence(8), Stage::Failed));
    assert_eq!(rule(&record, &twice, 12_000), Some(Rule::Once(Stage::Failed)));
    assert_eq!(rule(&record, &twice, 41_000), None);
    record.begin(&request(twice.clone()), Fence(9), 41_000);
    assert_eq!(record.start.as_ref().map(|start| start.tries), Some(1), "a window of its own");
    assert!(record.end(Fence(9), Stage::Ok));
    assert!(!record.end(Fence(9), Stage::Failed), "what is known stays");
    assert_eq!(rule(&record, &once(30, 9, true), 42_000), Some(Rule::Once(Stage::Ok)));
}

#[test]
fn what_is_undone_leaves_nothing() {
    let terms = Terms { skew_guard: Some(secs(5)), at_least: Some(secs(9)), ..once(30, 1, false) };
    let mut record = begun(terms.clone(), 10_000);
    assert!(record.end(Fence(7), Stage::Undone));
    assert_eq!(rule(&record, &Terms { place: "b".into(), ..terms.clone() }, 10_001), None);
    record.begin(&request(terms.clone()), Fence(8), 10_001);
    record.end(Fence(8), Stage::Failed);
    record.begin(&request(terms.clone()), Fence(9), 10_002);
    record.end(Fence(9), Stage::Undone);
    assert_eq!(record.start.as_ref().map(|start| (start.stage, start.tries)), Some((Stage::Failed, 1)), "the one before failed");
}

#[test]
fn no_request_is_refused_by_its_own_record() {
    let terms = Terms { skew_guard: Some(secs(5)), at_least: Some(secs(9)), ..once(30, 1, false) };
    let mut record = begun(terms.clone(), 9_000);
    record.end(Fence(7), Stage::Failed);
    record.paced = None;
    let own = request(terms.clone());
    record.begin(&own, Fence(8), 10_000);
    assert_eq!(record.judge(Some(&terms), &own.token, 11_000), None);
    assert_eq!(rule(&record, &terms, 11_000), Some(Rule::AtLeast(secs(9))));
    record.begin(&own, Fence(9), 11_000);
    assert_eq!(record.start.as_ref().map(|start| (start.fence, start.tries)), Some((Fence(9), 2)), "asked again, it is one try");
    assert!(record.end(Fence(9), Stage::Failed));
    assert_eq!(rule(&record, &Terms { at_least: None, ..terms }, 21_000), Some(Rule::Once(Stage::Failed)));
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let record = begun(Terms { at_least: Some(secs(9)), ..once(30, 1, false) }, 10_000);
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    assert_eq!(record.relevant(10_000), secs(30));
    assert_eq!(record.relevant(50_000), Duration::ZERO);
}
