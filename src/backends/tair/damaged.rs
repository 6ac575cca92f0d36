//! Damaged replies of Tair, and damaged data stored by others: each is refused or read, and none
//! causes a panic.

use serde_json::json;

use super::{
    history,
    options::TairMode,
    stored_queue::StoredQueue,
    value::{self, StoredValue, TairSnapshot},
};
use crate::{backends::redis::damaged::reply, damage, lock::document::Document};

const HOLDERS: &str = r#"{"v":100,"s":[{"o":"0b0e0d52-9f1f-4a43-9c80-0d3a6a3a0001","r":"00000000000000aa","h":{"00000000000000aa":{"t":60000,"e":1700000060000}},"m":"p3","n":1,"f":812,"b":1700000000000,"l":1700000000500,"k":{"by":"ana@ops1"}}]}"#;

/// A value, as a string and with its version.
fn values() -> [serde_json::Value; 3] {
    let held = format!(r#"{{"dlock":"1.0","nonce":"00000000000000ff","document":{HOLDERS}}}"#);
    let claimed = r#"{"dlock":"1.0","nonce":"00000000000000fe","claim":{"h":"00000000000000ab","w":{"host":"web1"}}}"#;
    [json!(held), json!([held, 77]), json!(claimed)]
}

#[test]
fn damaged_values_are_refused_or_read() {
    let values = values();
    let mut read = 0;
    damage::each(|dice| {
        let at = dice.below(values.len());
        let (mode, kind) = if values[at].is_array() {
            (TairMode::Version, "exstrtype")
        } else {
            (TairMode::Plain, "string")
        };
        let mut value = values[at].clone();
        if let (Some(text), true) = (value.as_str(), dice.below(2) == 0) {
            value = damage::text(text, dice).into();
        }
        let replies = json!([["1700000001", "500000"], kind, 59_000, value, "812"]);
        let replies = damage::json(&replies, dice);
        let replies: Vec<_> = replies
            .as_array()
            .into_iter()
            .flatten()
            .map(reply)
            .collect();
        let Ok(seen) = TairSnapshot::read(mode, &replies) else {
            return;
        };
        read += 1;
        let now = seen.now_us.unwrap_or_default() / 1000;
        if let StoredValue::Held(mut document, _) = seen.what {
            document.expire(now);
            let _ = (document.holders(now), value::holders(&document));
        }
    });
    assert!(
        read > damage::TRIES / 20,
        "only {read} could be read at all"
    );
}

#[test]
fn damaged_queues_and_outboxes_are_refused_or_read() {
    let entry = r#"1700000000000000:{"h":"00000000000000aa","m":"x","f":true,"b":1700000000000,"l":1700000000100}"#;
    let ordered = json!([
        "00000000000000aa",
        entry,
        "c:00000000000000aa",
        "1700000000200"
    ]);
    let plain = json!([
        ["00000000000000ab", "1700000000000001"],
        ["00000000000000ab", r#"1700000000900:{"host":"web1"}"#]
    ]);
    let past = r#"{"fence":811,"started_ms":1700000000000,"ended_ms":1700000009000,"end":"ok"}"#;
    let outbox = json!(["811", past]);
    let answers = [
        json!(1),
        json!("OK"),
        json!(["CAS_FAILED", "", 7]),
        json!(null),
    ];
    damage::each(|dice| {
        let ordered = reply(&damage::json(&ordered, dice));
        let queue: Vec<_> = damage::json(&plain, dice)
            .as_array()
            .into_iter()
            .flatten()
            .map(reply)
            .collect();
        let mut document = Document::default();
        if let Ok(stored_queue) = StoredQueue::read(&ordered, &queue) {
            stored_queue.fill(&mut document);
        }
        let _ = history::fill(&mut document, &reply(&damage::json(&outbox, dice)));
        document.expire(1_700_000_001_000);
        document.waiters(1_700_000_001_000);
        let _ = (document.take_wake_ups(None), document.write());
        let damaged = reply(&damage::json(&answers[dice.below(answers.len())], dice));
        let _ = (
            value::created(&damaged),
            value::compared(&damaged),
            value::stored(&damaged),
        );
    });
}
