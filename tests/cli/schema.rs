//! `--json` output matches man/dlock.schema.json exactly.
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

use std::{
    io::{BufRead as _, BufReader},
    process::{Output, Stdio},
};

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::lab::Lab;

/// The schema of one command's output. Programs must accept new fields, but here additional fields
/// are errors.
fn of(what: &str) -> Validator {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("man/dlock.schema.json");
    let mut schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(
        schema["$defs"][what].is_object(),
        "the schema does not define {what}"
    );
    assert!(
        schema["anyOf"]
            .as_array()
            .unwrap()
            .contains(&json!({ "$ref": format!("#/$defs/{what}") })),
        "{what} is not in the list"
    );
    close(&mut schema);
    schema.as_object_mut().unwrap().remove("anyOf");
    schema["$ref"] = format!("#/$defs/{what}").into();
    jsonschema::validator_for(&schema).unwrap()
}

fn close(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(close);
            if fields.get("properties").is_some_and(Value::is_object)
                && fields.contains_key("required")
            {
                fields.insert("additionalProperties".into(), false.into());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

#[track_caller]
pub fn assert_is(what: &str, text: &[u8]) -> Value {
    let text = std::str::from_utf8(text).unwrap();
    assert_eq!(text.matches('\n').count(), 1, "one line: {text:?}");
    let value: Value = serde_json::from_str(text).unwrap();
    let problems: Vec<String> = of(what)
        .iter_errors(&value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(problems.is_empty(), "{what}: {problems:?}\n{value}");
    value
}

#[track_caller]
fn said(lab: &Lab, words: &str, what: &str) -> Value {
    let Output {
        status,
        stdout,
        stderr,
    } = lab.run(words.split(' ').chain(["--json"]));
    let value = assert_is(what, &stdout);
    assert!(
        stderr.is_empty(),
        "{words}: {}",
        String::from_utf8_lossy(&stderr)
    );
    assert_eq!(value["status"], status.code().unwrap(), "{words}");
    value
}

/// `run` prints its JSON as the last line of stderr.
#[track_caller]
fn ran(lab: &Lab, words: &str) -> Value {
    let output = lab.run(["run", "--json"].into_iter().chain(words.split(' ')));
    let last = output
        .stderr
        .split_inclusive(|byte| *byte == b'\n')
        .next_back()
        .unwrap_or_default();
    assert_is("run", last)
}

#[test]
fn the_schema_describes_all_output() {
    let lab = Lab::new();
    said(&lab, "init", "init");
    said(&lab, "init --print", "schema");
    for words in [
        "completions bash",
        "man",
        "man run",
        "help",
        "help run",
        "--version",
        "run --help",
        "inspect -h",
    ] {
        let plain = lab.run(words.split(' ')).stdout;
        assert_eq!(
            said(&lab, words, "printed")["text"],
            String::from_utf8(plain).unwrap(),
            "{words}"
        );
    }
    said(&lab, "list", "list");
    said(&lab, "inspect job", "inspect");
    said(&lab, "history job", "history");
    said(&lab, "names job", "names");
    said(&lab, "names job -b redis://h", "names");
    let token = said(
        &lab,
        "acquire job --ttl 60s --describe a\u{202e}b",
        "acquire",
    )["token"]
        .as_str()
        .unwrap()
        .to_owned();
    said(&lab, "inspect job", "inspect");
    said(&lab, "list", "list");
    said(&lab, &format!("verify job --token {token}"), "verify");
    said(
        &lab,
        &format!("renew job --token {token} --ttl 90s"),
        "renew",
    );
    said(&lab, &format!("renew job --token {token}"), "renew");
    said(&lab, "acquire job --ttl 60s", "busy");
    assert_eq!(ran(&lab, "-k job -- true")["result"], "busy");
    let fence = said(&lab, "inspect job", "inspect")["holders"][0]["fence"].to_string();
    let mut asked = lab
        .dlock(["break", "job", "--yes", "--reason", "NFS", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while said(&lab, "inspect job", "inspect")["holders"][0]["broken"].is_null() {
        assert!(
            std::time::Instant::now() < until,
            "the break was not requested"
        );
    }
    said(&lab, &format!("renew job --token {token}"), "marked");
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&asked),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let mut line = Vec::new();
    BufReader::new(asked.stdout.take().unwrap())
        .read_until(b'\n', &mut line)
        .unwrap();
    assert_is("interrupted", &line);
    asked.wait().unwrap();
    said(
        &lab,
        &format!("break job --yes --reason NFS --now --fence {fence}"),
        "broke",
    );
    said(&lab, &format!("release job --token {token}"), "not_held");
    let token = said(&lab, "acquire job --ttl 60s", "acquire")["token"]
        .as_str()
        .unwrap()
        .to_owned();
    said(&lab, &format!("release job --token {token}"), "release");
    assert_eq!(ran(&lab, "-k job -- sh -c exit+3")["result"], "ok");
    assert_eq!(ran(&lab, "-k job -- /nonexistent")["result"], "error");
    assert_eq!(
        ran(&lab, "-k job --max-runtime .1 -- sleep 5")["result"],
        "timed_out"
    );
    let report = said(&lab, "history job", "history");
    assert!(
        report["runs"].as_array().unwrap().len() >= 3
            && !report["skips"].as_array().unwrap().is_empty(),
        "{report}"
    );
    assert!(said(&lab, "forget job --yes --reason x", "forget")["cooldown"].is_object());
    assert_eq!(
        said(&lab, "forget job --yes --reason x", "forget")["cooldown"],
        Value::Null
    );
    assert_eq!(ran(&lab, "-k kept --at-least 1h -- true")["result"], "ok");
    let kept = said(&lab, "inspect kept", "inspect");
    assert!(
        kept["held"] == false
            && kept["refused"]["reason"] == "at least 1h"
            && kept["refused_until"].is_string(),
        "{kept}"
    );
    let list = said(&lab, "list", "list");
    assert!(
        list["locks"][0]["key"] == "kept"
            && list["locks"][0]["refused"]["again_in_ms"].as_u64() > Some(3_500_000),
        "{list}"
    );
    assert_eq!(
        ran(&lab, "-k kept --anyway --reason rerun -- true")["result"],
        "ok"
    );
    assert_eq!(
        said(&lab, "history kept", "history")["runs"][0]["anyway"],
        "rerun"
    );
    assert_eq!(
        said(&lab, "forget kept --yes --reason x", "forget")["cooldown"]["at_least_ms"],
        0
    );
    assert_eq!(said(&lab, "list", "list")["locks"], json!([]));
    assert_eq!(said(&lab, "explain kept", "explain")["would"], "run");
    let all = said(&lab, "list --all", "list_all");
    assert!(
        all["keys"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["key"] == "kept" && one["last_ok"].is_string()),
        "{all}"
    );
    assert_eq!(
        said(&lab, "list --failed kept", "list_all")["keys"],
        json!([])
    );
    assert!(
        said(&lab, "history --since 1h", "history_all")["runs"]
            .as_array()
            .unwrap()
            .len()
            > 3
    );
    said(&lab, "acquire dead --ttl 60s --host gone", "acquire");
    assert_eq!(
        said(
            &lab,
            "break --host gone --yes --reason dead --now",
            "broke_host"
        )["holds"][0]["how"],
        "evicted"
    );
    said(&lab, "doctor", "doctor");
    said(&lab, "doctor --print-grants run", "grants");
    said(
        &lab,
        "inspect job --backend redis://127.0.0.1:1 --backend-timeout 300ms",
        "failed",
    );
    said(&lab, "acquire job", "failed");
    assert_eq!(said(&lab, "gc --older-than 1d", "gc")["removed"], 0);
}

#[test]
fn the_schema_describes_hook_events() {
    let lab = Lab::new();
    let events = lab.path("events");
    let hook = format!("cat >> {}", events.display());
    for arguments in [
        &["--", "true"][..],
        &[
            "-b",
            "redis://127.0.0.1:1",
            "--backend-timeout",
            "300ms",
            "--no-metadata",
            "--",
            "true",
        ],
    ] {
        lab.run(
            ["run", "-k", "job", "--on-event", &hook]
                .iter()
                .chain(arguments),
        );
    }
    let text = std::fs::read_to_string(events).unwrap();
    let names: Vec<Value> = text
        .split_inclusive('\n')
        .map(|line| assert_is("event", line.as_bytes())["event"].clone())
        .collect();
    assert_eq!(names, ["acquired", "ended", "failed"]);
}

#[test]
fn the_schema_describes_hold_and_watched_lists() {
    let lab = Lab::new();
    let mut child = lab
        .dlock(["hold", "job"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = Vec::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_until(b'\n', &mut line)
        .unwrap();
    assert_is("acquire", &line);
    let mut watch = lab
        .dlock(["list", "--watch=100ms"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap());
    for _ in 0..3 {
        let mut line = Vec::new();
        lines.read_until(b'\n', &mut line).unwrap();
        assert_eq!(assert_is("list", &line)["locks"][0]["key"], "job");
    }
    // A reader that closes the pipe ends `list --watch`.
    drop(lines);
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn the_whole_schema_accepts_valid_output_only() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("man/dlock.schema.json");
    let schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let whole = jsonschema::validator_for(&schema).unwrap();
    let fine = json!({"schema": "dlock/1", "result": "not_held", "status": 77, "key": "k", "backend": "local", "new": 1});
    assert!(whole.is_valid(&fine), "programs must accept new fields");
    for (field, value) in [
        ("schema", json!("dlock/2")),
        ("status", json!(0)),
        ("key", Value::Null),
        ("result", json!("fine")),
    ] {
        let mut other = fine.clone();
        other[field] = value;
        assert!(!whole.is_valid(&other), "{field}: {other}");
    }
}
