//! Damaged replies of nodes and damaged stored data are refused or read, and never cause a panic.

use serde_json::json;

use super::super::{
    acquire::{Votes, counted_records},
    nodes::majority,
    reading::read_one,
    view::{MajorityView, last_fence},
};
use crate::{backends::redis::damaged::reply, damage};

const OWNER: &str = "0b0e0d52-9f1f-4a43-9c80-0d3a6a3a0001";
const WHO: &str = r#"{"host":"web1","pid":4711}"#;
const NODES: usize = 5;

fn record() -> serde_json::Value {
    json!([
        "v",
        "1.0",
        "owner",
        OWNER,
        "attempt",
        "00000000000000ff",
        "count",
        "812",
        "fence",
        "813",
        "since",
        "1700000000000",
        "renewed",
        "1700000000500",
        "meta",
        WHO,
        "mark",
        r#"{"by":"ana@ops1"}"#,
        "hold:00000000000000aa",
        "1700000060000:60000"
    ])
}

fn share() -> String {
    json!({"v": "1.1", "owner": OWNER, "attempt": "00000000000000fe", "count": "812", "fence": "814", "since": "1700000000000",
        "renewed": "1700000000500", "meta": WHO, "hold:00000000000000ab": "1700000060000:60000"})
    .to_string()
}

#[test]
fn damaged_votes_are_refused_or_counted() {
    let starts = json!([
        "ps",
        "1700000000000",
        "pf",
        "811",
        "pp",
        "web1",
        "pg",
        "5000",
        "of",
        "811",
        "os",
        "1700000000000",
        "ow",
        "86400000"
    ]);
    let alone = format!("{OWNER}:00000000000000ff");
    let all = [
        json!(["taken", "812", "1700000000000", starts]),
        json!(["entered", "00000000000000ff", "813", 1]),
        json!([
            "busy",
            1_700_000_001_000_i64,
            59_000,
            "string",
            alone,
            record(),
            2,
            [],
            500
        ]),
        json!([
            "busy",
            1_700_000_001_000_i64,
            59_000,
            "string",
            "shared:00000000000000fe",
            [],
            2,
            [share(), share()],
            500
        ]),
        json!(["refused", "1700000000000", starts]),
        json!(["layout", "2.0"]),
    ];
    let mut counted = 0;
    damage::each(|dice| {
        let answers = (0..NODES)
            .map(|_| Some(Ok(reply(&damage::json(&all[dice.below(all.len())], dice)))))
            .collect();
        let Votes { seen, starts, .. } = Votes::count(answers);
        counted += seen.iter().flatten().count() as u64;
        let picture = MajorityView::of(&seen, majority(NODES));
        assert!(picture.held_on.iter().all(|n| *n < NODES));
        counted_records(&starts, NODES);
    });
    assert!(
        counted > damage::TRIES / 4,
        "only {counted} of {NODES} times as many were counted"
    );
}

#[test]
fn damaged_inspect_answers_are_refused_or_read() {
    let read = |value: &str, shared: serde_json::Value, shares: serde_json::Value| {
        json!([
            ["1700000001", "500000"],
            "string",
            value,
            59_000,
            record(),
            ["00000000000000ac", "1700000000000000"],
            ["00000000000000ac", format!("1700000000900:{WHO}")],
            "815",
            shared,
            shares,
            []
        ])
    };
    let all = [
        read(&format!("{OWNER}:00000000000000ff"), json!(null), json!([])),
        read(
            "shared:00000000000000fe",
            json!("shared:00000000000000fe"),
            json!([share()]),
        ),
    ];
    let mut report = 0;
    damage::each(|dice| {
        let damaged = damage::json(&all[dice.below(all.len())], dice);
        let replies: Vec<_> = damaged
            .as_array()
            .into_iter()
            .flatten()
            .map(reply)
            .collect();
        let Ok(read) = read_one(&replies) else { return };
        report += 1;
        let _ = (read.seen.vanished(), read.seen.fence(), read.seen.left());
        MajorityView::of(
            &[Some(read.seen.clone()), Some(read.seen), None],
            majority(3),
        );
        last_fence(vec![0, u64::MAX], dice.below(4), majority(3));
    });
    assert!(
        report > damage::TRIES / 20,
        "only {report} could be read at all"
    );
}
