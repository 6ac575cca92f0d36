//! Replies and records that no dlock and no server wrote: each is refused or read, and none causes
//! a panic.

use ::redis::Value;
use serde_json::json;

use super::{answer, history, state};
use crate::{
    damage,
    lock::{Key, Request, Ttl},
};

pub(in crate::backends) fn reply(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Nil,
        serde_json::Value::Array(items) => Value::Array(items.iter().map(reply).collect()),
        serde_json::Value::Number(number) => number
            .as_i64()
            .map_or_else(|| Value::BulkString(number.to_string().into()), Value::Int),
        serde_json::Value::String(text) => Value::BulkString(text.clone().into()),
        other => Value::BulkString(other.to_string().into()),
    }
}

const OWNER: &str = "0b0e0d52-9f1f-4a43-9c80-0d3a6a3a0001";
const WHO: &str = r#"{"host":"web1","pid":4711,"waited_ms":17}"#;
const MARK: &str = r#"{"by":"ana@ops1","why":"stuck"}"#;

fn record() -> serde_json::Value {
    json!([
        "v",
        "1.0",
        "owner",
        OWNER,
        "since",
        "1700000000000",
        "renewed",
        "1700000000500",
        "fence",
        "812",
        "meta",
        WHO,
        "mark",
        MARK,
        "hold:00000000000000aa",
        "1700000060000:60000"
    ])
}

fn share() -> String {
    json!({"owner": OWNER, "kind": "permits", "most": "3", "permit": "1", "since": "1700000000000", "fence": "813", "meta": WHO,
        "hold:00000000000000ab": "1700000060000:60000"})
    .to_string()
}

#[test]
fn damaged_answers_are_refused_or_read() {
    let request = Request::new(Key::new("job").unwrap(), Ttl::DEFAULT);
    let locks = [
        json!(["mode", "write", format!("{OWNER}:1:write"), "1"]),
        json!(["mode", "permits", format!("{OWNER}:1:permit"), "1"]),
        json!(["mode", "read", "u:1", "1", format!("{OWNER}:1"), "2"]),
    ];
    let busy = locks.map(|lock| {
        json!([
            "busy",
            1_700_000_001_000_i64,
            59_000,
            lock,
            record(),
            2,
            [share(), share()],
            500
        ])
    });
    let others = [
        json!(["granted", 812, 1, 0]),
        json!(["refused", "at-least", 60_000, 812, 1000, 59_000, WHO]),
        json!(["refused", "once", "failed", 812, 1000, 59_000, WHO]),
        json!(["alien", "string", 5000]),
        json!(["renewed", 60_000, 812]),
        json!(["broken", MARK, "1"]),
        json!(["layout", "2.0"]),
    ];
    let all: Vec<_> = busy.into_iter().chain(others).collect();
    let mut read = 0;
    damage::each(|dice| {
        let damaged = reply(&damage::json(&all[dice.below(all.len())], dice));
        read += u64::from(answer::read_attempt(&damaged, &request).is_ok());
        let _ = (answer::read_renewal(&damaged), answer::otherwise(&damaged));
    });
    assert!(
        read > damage::TRIES / 20,
        "only {read} could be read at all"
    );
}

#[test]
fn damaged_histories_and_queues_are_refused_or_read() {
    let run = json!({"fence": 811, "started_ms": 1_700_000_000_000_u64, "ended_ms": 1_700_000_009_000_u64, "end": "ok", "metadata": {"host": "web1"}}).to_string();
    let starts = json!([
        "ps",
        "1700000000000",
        "pf",
        "811",
        "pp",
        "web1",
        "pg",
        "5000",
        "pl",
        "60000",
        "pm",
        WHO,
        "os",
        "1700000000000",
        "of",
        "811",
        "ox",
        "failed",
        "on",
        "2",
        "ow",
        "86400000",
        "om",
        WHO
    ]);
    let replies = json!([
        ["1700000001", "500000"],
        [run, run],
        [run],
        ["web2", "3:1700000000000:1700000001000:it is held"],
        starts
    ]);
    let infos = json!(["00000000000000aa", format!("1700000000900:{WHO}")]);
    damage::each(|dice| {
        let Value::Array(damaged) = reply(&damage::json(&replies, dice)) else {
            return;
        };
        let pairs =
            |json: &serde_json::Value| super::reply::pairs(&reply(json)).unwrap_or_default();
        let record = pairs(&damage::json(&record(), dice));
        let of_record = |name: &str| {
            record
                .iter()
                .find(|(field, _)| field == name)
                .map(|(_, value)| value.as_str())
        };
        let _ = history::read_history(&damaged, history::vanished(of_record, &record));
        let queue = pairs(&damage::json(
            &json!(["00000000000000aa", "1700000000000000"]),
            dice,
        ));
        state::waiters(
            Some(1_700_000_001_000),
            [queue.clone(), queue],
            &pairs(&damage::json(&infos, dice)),
        );
    });
}
