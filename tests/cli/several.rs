//! Several keys at once in scripts: run, acquire, hold and `acquire --while-pid`.
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::lab::Lab;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn held(lab: &Lab, key: &str) -> bool {
    let state: Value = serde_json::from_slice(&lab.run(["inspect", key, "--json"]).stdout).unwrap();
    state["held"] == true
}

#[track_caller]
fn must(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < until, "not so: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn acquire_prints_one_token_per_key_in_order() {
    let lab = Lab::new();
    let taken = lab.run(["acquire", "-k", "b", "-k", "a b", "--ttl", "30s"]);
    assert_eq!(taken.status.code(), Some(0), "{taken:?}");
    let lines: Vec<_> = std::str::from_utf8(&taken.stdout)
        .unwrap()
        .lines()
        .collect();
    let pairs: Vec<_> = lines
        .iter()
        .map(|line| line.split_once(' ').unwrap())
        .collect();
    assert_eq!(
        pairs.iter().map(|(_, key)| *key).collect::<Vec<_>>(),
        ["b", "a b"]
    );
    assert!(held(&lab, "b") && held(&lab, "a b"));
    let other = lab.run(["acquire", "-k", "0", "-k", "b", "--ttl", "30s"]);
    assert_eq!(other.status.code(), Some(75));
    assert!(
        text(&other.stderr).starts_with("dlock: b is held by"),
        "{}",
        text(&other.stderr)
    );
    assert!(!held(&lab, "0"));
    for (token, key) in pairs {
        assert_eq!(
            lab.run(["release", key, "--token", token]).status.code(),
            Some(0)
        );
    }
    assert!(!held(&lab, "b") && !held(&lab, "a b"));
    let taken: Value = serde_json::from_slice(
        &lab.run(["acquire", "-k", "b", "-k", "a", "--ttl", "30s", "--json"])
            .stdout,
    )
    .unwrap();
    assert_eq!(
        (
            &taken["key"],
            &taken["keys"][0]["key"],
            &taken["keys"][1]["key"]
        ),
        (&"b".into(), &"b".into(), &"a".into())
    );
    assert_eq!(taken["token"], taken["keys"][0]["token"]);
}

#[test]
fn hold_keeps_all_until_stdin_ends() {
    let lab = Lab::new();
    let mut command = lab.dlock(["hold", "-k", "b", "-k", "a", "--ttl", "3s"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    let taken: Value = serde_json::from_str(&line).unwrap();
    // Longer than the lease without renewals.
    thread::sleep(Duration::from_millis(3600));
    for key in taken["keys"].as_array().unwrap() {
        let (name, token) = (key["key"].as_str().unwrap(), key["token"].as_str().unwrap());
        assert_eq!(
            lab.run(["verify", name, "--token", token]).status.code(),
            Some(0),
            "{name}"
        );
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(!held(&lab, "a") && !held(&lab, "b"));
}

#[test]
fn hold_ends_when_one_lock_is_broken() {
    let lab = Lab::new();
    let mut command = lab.dlock([
        "hold",
        "-k",
        "a",
        "-k",
        "b",
        "--ttl",
        "3s",
        "--until-signal",
    ]);
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    must("both are held", || held(&lab, "a") && held(&lab, "b"));
    assert_eq!(
        lab.run(["break", "b", "--yes", "--reason", "x"])
            .status
            .code(),
        Some(0)
    );
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(76));
    assert!(
        text(&output.stderr).starts_with("dlock: b: the lock was lost: it is being broken"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_renewer_holds_all_locks_as_long_as_the_process_lives() {
    let lab = Lab::new();
    let mut other = std::process::Command::new("sleep")
        .arg("5")
        .spawn()
        .unwrap();
    let pid = other.id().to_string();
    let taken = lab.run([
        "acquire",
        "-k",
        "a",
        "-k",
        "b",
        "--ttl",
        "3s",
        "--while-pid",
        &pid,
    ]);
    assert_eq!(
        (taken.status.code(), text(&taken.stdout).lines().count()),
        (Some(0), 2),
        "{taken:?}"
    );
    // Longer than the lease without renewals.
    thread::sleep(Duration::from_millis(3500));
    assert!(held(&lab, "a") && held(&lab, "b"));
    other.wait().unwrap();
    must("both are free", || !held(&lab, "a") && !held(&lab, "b"));
}

#[test]
fn the_command_gets_the_fence_of_each_lock() {
    let lab = Lab::new();
    let dlock = env!("CARGO_BIN_EXE_dlock");
    let script = format!(
        "printf '%s\\n' \"$DLOCK_FENCES\"; echo \"${{DLOCK_KEY-none}} ${{DLOCK_TOKEN-none}} ${{DLOCK_FENCE-none}}\"; \
         {dlock} verify -q a && {dlock} verify -q 'b=c' && {dlock} run -k 'b=c' -- sh -c 'echo $DLOCK_KEY ${{DLOCK_FENCES-none}}'"
    );
    let run = lab.run(["run", "-k", "b=c", "-k", "a", "--", "sh", "-c", &script]);
    assert_eq!(run.status.code(), Some(0), "{run:?}");
    let printed = text(&run.stdout);
    let lines: Vec<_> = printed.lines().collect();
    let [a, bc, "none none none", "b=c none"] = lines[..] else {
        panic!("{lines:?}")
    };
    assert!(a.starts_with("a=") && bc.starts_with("b=c="), "{lines:?}");
    let history: Value =
        serde_json::from_slice(&lab.run(["history", "a", "--json"]).stdout).unwrap();
    assert_eq!(
        (&history["runs"][0]["end"], &history["once"]),
        (&"ok".into(), &Value::Null),
        "{history}"
    );
}

/// The run policy applies to the job's own lock, the first key. The other keys have no part in it.
#[test]
fn the_run_policy_uses_the_first_key() {
    let lab = Lab::new();
    let options = ["--once-per", "1h", "--", "true"];
    let run = |keys: &[&str]| lab.run([&["run"], keys, &options].concat());
    assert_eq!(run(&["-k", "report", "-k", "db"]).status.code(), Some(0));
    let again = lab.run([&["run", "-v"][..], &["-k", "report", "-k", "db"], &options].concat());
    assert_eq!(again.status.code(), Some(75));
    assert!(
        text(&again.stderr).contains("once per 1h: not run"),
        "{}",
        text(&again.stderr)
    );
    assert_eq!(run(&["-k", "backup", "-k", "db"]).status.code(), Some(0));
    assert_eq!(
        run(&["-k", "backup", "-k", "other"]).status.code(),
        Some(75)
    );
    assert!(!held(&lab, "db") && !held(&lab, "other"));
}
