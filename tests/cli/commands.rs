//! The commands acquire, renew, release, inspect, list and init on a real store.

use std::{io::Write as _, process::Stdio, thread, time::Duration};

use serde_json::Value;
use snapbox::{assert_data_eq, file};

use crate::lab::{Lab, without_days};

fn json(lab: &Lab, arguments: &str) -> Value {
    let output = lab.run(arguments.split(' '));
    assert!(output.stderr.is_empty(), "{output:?}");
    assert_eq!(
        std::str::from_utf8(&output.stdout).unwrap().lines().count(),
        1,
        "{output:?}"
    );
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], "dlock/1");
    assert_eq!(json["status"].as_i64(), output.status.code().map(i64::from));
    json
}

#[test]
fn a_lock_is_acquired_renewed_and_released() {
    let mut lab = Lab::new();
    let token = lab.line("acquire demo --ttl 5m --host lap --describe v2.3");
    assert_eq!(token.len(), 53);
    lab.say("acquire demo --ttl 5m")
        .say("acquire demo --ttl 5m -E 3")
        .say("acquire demo --ttl 5m -q")
        .say("acquire demo --ttl 5m -w .2");
    lab.say("inspect demo")
        .say("list")
        .say("list dem")
        .say("list x")
        .say("list %");
    lab.note("a token that nobody has");
    let stale = "00000000-0000-4000-8000-000000000000.0000000000000000";
    lab.say_args(&["renew", "demo", "--token", stale])
        .say_args(&["release", "demo", "--token", stale]);
    lab.note("a renewal never shortens")
        .say_args(&["renew", "demo", "--token", &token, "--ttl", "10"]);
    lab.say_args(&["renew", "demo", "--token", &token])
        .say_args(&["renew", "demo", "--token", &token, "--ttl", "10m"]);
    lab.note("without a length it is content with a longer lease")
        .say_args(&["renew", "demo", "--token", &token]);
    lab.say_args(&["release", "demo", "--token", &token])
        .say_args(&["release", "demo", "--token", &token]);
    lab.say("inspect demo")
        .say("list")
        .say("init")
        .say("init --print")
        .say("gc")
        .say("gc --older-than x")
        .say("gc --older-than 90d");
    let text = redacted(&lab.transcript(), &token);
    assert!(!text.contains(&token));
    assert_data_eq!(text, file!["snapshots/commands.txt"]);
}

/// Whether a word is an age: `4m`, or `59s,`.
fn is_age(word: &str) -> bool {
    let word = word.trim_end_matches([',', ':']);
    let digits = word
        .trim_end_matches("ms")
        .trim_end_matches(['s', 'm', 'h', 'd']);
    digits.len() < word.len() && !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// Replaces everything that differs between runs.
fn redacted(text: &str, token: &str) -> String {
    let mut out = String::new();
    for line in without_days(text).replace(token, "[TOKEN]").lines() {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        for index in 0..words.len() {
            let number =
                words[index].bytes().all(|b| b.is_ascii_digit()) && !words[index].is_empty();
            let is_short_fence = words[index].starts_with('…')
                || (index > 0 && words[index - 1] == "--fence" && words[index].len() >= 4);
            if (number && words[index].len() > 12) || is_short_fence {
                words[index] = "[FENCE]".into();
            } else if number && index > 0 && words[index - 1] == "pid" {
                words[index] = "[PID]".into();
            } else if words[index].contains('@') && words[index].ends_with("lap") {
                words[index] = "[USER]@lap".into();
            } else if words[index].len() == 8 && words[index].matches(':').count() == 2 {
                words[index] = "[TIME]".into();
            } else if !line.starts_with('$') && is_age(&words[index]) {
                words[index] = "[AGE]".into();
            }
        }
        let line = words.join(" ").replace("[AGE] [AGE]", "[AGE]");
        out += line.trim_end();
        out.push('\n');
    }
    // The width of the columns depends on the replaced text; their alignment is tested with the
    // tables.
    while out.contains("    ") {
        out = out.replace("    ", "   ");
    }
    out
}

#[test]
fn json_has_the_same_content() {
    let lab = Lab::new();
    let free = json(&lab, "inspect demo --json");
    assert_eq!(
        (&free["result"], &free["held"], &free["holders"]),
        (&"ok".into(), &false.into(), &Value::Array(vec![]))
    );
    assert_eq!(json(&lab, "list --json")["locks"], Value::Array(vec![]));
    let granted = json(&lab, "acquire demo --ttl 90 --json --host lap");
    assert_eq!(
        (&granted["result"], &granted["ttl_ms"]),
        (&"ok".into(), &90_000.into())
    );
    let token = granted["token"].as_str().unwrap();
    let busy = json(&lab, "acquire demo --ttl 90 --json");
    assert_eq!(
        (
            &busy["result"],
            &busy["status"],
            &busy["holders"][0]["host"]
        ),
        (&"busy".into(), &75.into(), &"lap".into())
    );
    let held = json(&lab, "inspect demo --json");
    assert_eq!(
        (
            &held["held"],
            &held["holders"][0]["fence"],
            &held["holders"][0]["detached"]
        ),
        (&true.into(), &granted["fence"], &true.into())
    );
    assert!(
        held["holders"][0]["since"]
            .as_str()
            .is_some_and(|since| since.ends_with('Z')),
        "{held}"
    );
    assert!(!held.to_string().contains(token), "a token is never shown");
    assert_eq!(json(&lab, "list --json")["locks"][0]["key"], "demo");
    assert_eq!(
        json(&lab, &format!("renew demo --json --token {token}"))["fence"],
        granted["fence"]
    );
    assert_eq!(
        json(&lab, &format!("release demo --json --token {token}"))["holds"],
        0
    );
    assert_eq!(
        json(&lab, &format!("release demo --json --token {token}"))["result"],
        "not_held"
    );
    assert_eq!(json(&lab, "init --json")["result"], "ok");
}

#[test]
fn tokens_come_from_files_stdin_and_the_environment() {
    let mut lab = Lab::new();
    let token = lab.line("acquire k --ttl 60");
    let path = lab.write("token", 0o600, &format!("{token}\n"));
    lab.line(&format!("renew k --token @{}", path.display()));
    let mut child = lab
        .dlock(["renew", "k", "--token", "@-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(token.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success());

    lab.set("DLOCK_TOKEN", &token);
    assert_eq!(
        lab.run(["renew"]).status.code(),
        Some(64),
        "a token without its key"
    );
    assert_eq!(
        lab.run(["renew", "k"]).status.code(),
        Some(64),
        "a key from one place and a token from the other"
    );
    lab.set("DLOCK_KEY", "k");
    assert_eq!(lab.run(["renew"]).status.code(), Some(0));
    assert_eq!(
        lab.run(["inspect"]).status.code(),
        Some(64),
        "only renew and release read these variables"
    );
    assert_eq!(lab.run(["run", "--", "true"]).status.code(), Some(64));
    assert_eq!(lab.run(["release"]).status.code(), Some(0));
    assert_eq!(lab.run(["release"]).status.code(), Some(77));
}

#[test]
fn a_stale_token_does_not_affect_the_new_holder() {
    let lab = Lab::new();
    let old = lab.line("acquire k --ttl 1");
    let new = lab.line("acquire k --ttl 60 -w 10");
    assert_ne!(old, new);
    for command in ["renew", "release"] {
        assert_eq!(
            lab.run([command, "k", "--token", &old]).status.code(),
            Some(77)
        );
    }
    assert_eq!(json(&lab, "inspect k --json")["held"], true);
    lab.line(&format!("release k --token {new}"));
}

#[test]
fn odd_keys_are_distinct_and_listed_literally() {
    let lab = Lab::new();
    let keys = [
        "../x",
        ".",
        "/zookeeper/x",
        "a{b}c",
        "{}",
        "job",
        "JOB",
        "job ",
        "a",
        "a/b",
        "%",
        "%25",
        "_",
        "*",
        "é",
        "e\u{301}",
        "-n",
        "日本",
    ];
    for key in keys {
        let output = lab.run(["acquire", "--ttl", "60", "--", key]);
        assert!(output.status.success(), "{key:?}: {output:?}");
    }
    let all = json(&lab, "list --json");
    let mut listed: Vec<&str> = all["locks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lock| lock["key"].as_str().unwrap())
        .collect();
    assert!(listed.is_sorted(), "{listed:?}");
    listed.sort_unstable();
    let mut expected = keys.to_vec();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    for (start, count) in [("%", 2), ("_", 1), ("*", 1), ("job", 2), ("a", 3), ("-", 1)] {
        let output = lab.run(["list", "--json", "--", start]);
        let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            listed["locks"].as_array().map(Vec::len),
            Some(count),
            "{start}"
        );
    }
}

#[test]
fn foreign_metadata_is_escaped() {
    let lab = Lab::new();
    let note = "x\u{202e}\u{200b}y";
    assert!(
        lab.run([
            "acquire",
            "k",
            "--ttl",
            "60",
            "--describe",
            note,
            "--host",
            "h\u{202e}"
        ])
        .status
        .success()
    );
    for command in ["inspect k", "list", "acquire k --ttl 5"] {
        let output = lab.run(command.split(' '));
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(
            text.contains(r"\u{202e}") && !text.contains('\u{202e}') && !text.contains('\u{200b}'),
            "{text}"
        );
    }
    assert_eq!(
        json(&lab, "inspect k --json")["holders"][0]["description"],
        note
    );
}

#[test]
fn no_metadata_stores_none() {
    let lab = Lab::new();
    lab.line("acquire k --ttl 60 --no-metadata");
    let lock = json(&lab, "inspect k --json");
    for field in [
        "host",
        "user",
        "pid",
        "boot_id",
        "pid_ns",
        "command",
        "description",
    ] {
        assert!(lock["holders"][0][field].is_null(), "{field}: {lock}");
    }
}

#[test]
fn a_signal_ends_the_wait_and_leaves_no_waiter() {
    let lab = Lab::new();
    let token = lab.line("acquire k --ttl 60");
    for (signal, number) in [
        (rustix::process::Signal::TERM, 15),
        (rustix::process::Signal::INT, 2),
        (rustix::process::Signal::HUP, 1),
    ] {
        let child = lab
            .dlock(["acquire", "k", "--ttl", "60", "--wait", "forever", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        while json(&lab, "inspect k --json")["waiters"]
            .as_array()
            .is_none_or(Vec::is_empty)
        {
            thread::sleep(Duration::from_millis(10));
        }
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(128 + number));
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&said["result"], &said["signal"]),
            (&"interrupted".into(), &number.into())
        );
        assert_eq!(
            json(&lab, "inspect k --json")["waiters"],
            Value::Array(vec![])
        );
    }
    lab.line(&format!("release k --token {token}"));
    assert_eq!(json(&lab, "inspect k --json")["held"], false);
}

/// Cron mails what is printed, so a try is silent; a script that waits must see whom it waits for.
#[test]
fn a_wait_without_a_terminal_is_told_at_its_start_and_end() {
    let lab = Lab::new();
    let token = lab.line("acquire k --ttl 60");
    let said = |arguments: &str| {
        let output = lab.run(arguments.split(' '));
        assert_eq!(output.status.code(), Some(75), "{arguments}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let (start, end) = ("dlock: waiting for k: ", ", after a wait of ");
    for (command, limit, outcome) in [
        ("run -k k -w 500ms -- true", "500ms", ": not run\n"),
        ("acquire k --ttl 9 -w 1500ms", "1s 500ms", ": not taken\n"),
        ("hold k --until-signal -w 1s", "1s", ": not taken\n"),
    ] {
        let text = said(command);
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        assert!(
            lines[0].starts_with(start) && lines[0].ends_with(&format!("; up to {limit}\n")),
            "{text}"
        );
        assert!(
            lines[1].contains(end) && lines[1].ends_with(outcome),
            "{text}"
        );
        assert!(lines[2].starts_with("hint: ") && lines.len() == 3, "{text}");
        assert_eq!(said(&command.replace("-w", "-q -w")), "");
    }
    assert_eq!(said("run -k k -- true"), "");
    let captured = said("run -k k -w 1s --output on-failure -- true");
    assert!(
        !captured.contains(start) && captured.contains(end),
        "{captured}"
    );
    // A lock that is free again in a moment is no news.
    let waits = lab
        .dlock(["run", "-k", "k", "-w", "9s", "--", "true"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_millis(100));
    lab.line(&format!("release k --token {token}"));
    let output = waits.wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

/// Absence of evidence is told as such, not as a free lock or a quiet host.
#[test]
fn a_mistyped_key_or_host_is_told() {
    let lab = Lab::new();
    lab.line("run -k nightly-report --host web1 -- true");
    lab.line("acquire held --ttl 60 --host web1");
    let said = |arguments: &str, status: i32| {
        let output = lab.run(arguments.split(' '));
        assert_eq!(
            output.status.code(),
            Some(status),
            "{arguments}: {output:?}"
        );
        String::from_utf8(output.stderr).unwrap()
    };
    for command in ["inspect", "history", "explain"] {
        for (key, hint) in [
            ("nightly", "hint: did you mean nightly-report?"),
            ("heldd", "hint: did you mean held?"),
            (
                "other",
                "hint: dlock list --all shows the keys that it knows",
            ),
        ] {
            let text = said(&format!("{command} {key}"), 0);
            assert!(
                text.contains("nothing is known of this key in sqlite://"),
                "{text}"
            );
            assert!(text.contains(hint), "{command} {key}: {text}");
        }
        for key in ["nightly-report", "held"] {
            assert_eq!(said(&format!("{command} {key}"), 0), "");
        }
        said(&format!("{command} other --json"), 0);
    }
    let text = said("break --host web9 --yes --reason x", 77);
    assert_eq!(
        text,
        "dlock: web9 holds no lock\nhint: hosts with locks: web1\n"
    );
    for history in ["history", "history nightly-report"] {
        let text = said(&format!("{history} --host web9"), 0);
        assert_eq!(
            text,
            "dlock: web9: no run of this host is remembered\nhint: hosts with runs: web1\n"
        );
        // This host has runs, only none that failed.
        for other in ["--host web1", "--host web1 --failed", "--host web9 --json"] {
            assert_eq!(said(&format!("{history} {other}"), 0), "", "{other}");
        }
    }
    let object = lab.run("break --host web9 --yes --reason x --json".split(' '));
    let object: Value = serde_json::from_slice(&object.stdout).unwrap();
    assert_eq!(
        (&object["result"], &object["status"]),
        (&"not_held".into(), &77.into())
    );
    // Completion offers what was used, held or not.
    let keys = lab.line("__complete keys");
    assert!(
        keys.contains("held") && keys.contains("nightly-report"),
        "{keys}"
    );
}
