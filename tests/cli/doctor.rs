//! The output of `dlock doctor`, and the rights of SQLite's users after its advice.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use snapbox::{assert_data_eq, file};

use crate::lab::{Lab, copy_of_dlock};

#[test]
fn findings_and_rights() {
    let mut lab = Lab::new();
    lab.say("doctor").say("doctor -q");
    lab.note("a TTL that is none").say("doctor --ttl 0");
    lab.note("nobody is there")
        .say("doctor -b redis://127.0.0.1:1 -q --backend-timeout 200ms");
    lab.note("rights, for what the configuration names; nobody is asked");
    for url in [
        "redis://r1/2",
        "redis+cluster://r1",
        "redlock://r1,r2,r3",
        "tair://r1?mode=version",
        "postgres://ana@p1/app?mode=row",
        "mysql://ana@m1/app",
        "etcd://e1",
        "zookeeper://z1/apps/one",
    ] {
        for role in ["run", "view"] {
            lab.say_args(&["doctor", "--print-grants", role, "-b", url]);
        }
    }
    lab.note("no store is asked, so that no password is needed")
        .say("doctor --print-grants view -b redis://bob@r1");
    lab.say("doctor --print-grants break -b redis://r1 --namespace= --json")
        .say("doctor --print-grants root -b redis://r1");
    assert_data_eq!(
        redacted(&lab.transcript()),
        file!["snapshots/doctor.txt"].raw()
    );
}

/// Simulates a container that drops `CAP_KILL`, and a lease too short for a busy host to kill the
/// tree in time.
#[test]
fn doctor_reports_missing_host_rights() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("locks.db").display());
    let doctor = |prefix: &[&str], options: &[&str]| {
        let line: Vec<&str> = [
            prefix,
            &[
                env!("CARGO_BIN_EXE_dlock"),
                "doctor",
                "--json",
                "-b",
                &store,
            ],
            options,
        ]
        .concat();
        let output = Command::new(line[0])
            .args(&line[1..])
            .env_remove("DLOCK_BACKEND")
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = report["findings"].as_array().unwrap().clone();
        findings
            .into_iter()
            .filter(|finding| finding["check"] == "host")
            .map(|finding| finding["text"].to_string())
            .collect::<Vec<_>>()
    };
    assert!(
        doctor(&[], &["--ttl", "3s"])
            .iter()
            .any(|text| text.contains("a TTL of 3s"))
    );
    assert!(
        doctor(&[], &["--ttl", "10s"])
            .iter()
            .all(|text| !text.contains("a TTL of"))
    );
    if rustix::process::geteuid().is_root() {
        let found = doctor(
            &["setpriv", "--inh-caps=-kill", "--bounding-set=-kill"],
            &[],
        );
        assert!(
            found
                .iter()
                .any(|text| text.contains("root without CAP_KILL")),
            "{found:?}"
        );
    }
}

/// Replaces everything that differs between runs or machines.
fn redacted(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if line.contains(" of uid ") {
            out.push_str("ok      [MODES]\n");
            continue;
        }
        let words: Vec<&str> = line.split(' ').collect();
        let is_number =
            |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let shown = words.iter().enumerate().map(|(at, word)| {
            let next = words
                .get(at + 1)
                .copied()
                .unwrap_or_default()
                .trim_end_matches([',', ':']);
            let before = if at > 0 { words[at - 1] } else { "" };
            let measured = line.contains(" takes ") && before == "takes"
                || line.contains("a waiter gets") && next == "ms";
            if is_number(word) && (measured || next == "MB") {
                "[N]".to_owned() + if word.ends_with(',') { "," } else { "" }
            } else {
                (*word).to_owned()
            }
        });
        out += &shown.collect::<Vec<_>>().join(" ");
        out.push('\n');
    }
    out
}

#[test]
fn json_has_the_same_content() {
    let mut lab = Lab::new();
    let folder = lab.path("");
    let path = lab.write(
        "config.toml",
        0o600,
        &format!(
            "backend = 'here'\nttl = '30s'\n[backends.here]\nurl = 'sqlite://{}/s.db'\n",
            folder.display()
        ),
    );
    lab.set("DLOCK_BACKEND", "")
        .set("DLOCK_CONFIG", path)
        .set("DLOCK_NAMESPACE", "jobs");
    let output = lab.run(["doctor", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&json["schema"], &json["name"], &json["error"]),
        (&"dlock/1".into(), &"here".into(), &Value::Null)
    );
    assert_eq!(
        (json["status"].as_i64(), output.status.code()),
        (Some(0), Some(0)),
        "{json}"
    );
    assert_eq!(
        (&json["result"], &json["from"]),
        (
            &"ok".into(),
            &lab.path("config.toml").to_str().unwrap().into()
        )
    );
    assert!(json["round_trip_us"].is_u64() && json["hand_over_us"].is_u64());
    let findings = json["findings"].as_array().unwrap();
    let checks: Vec<_> = findings
        .iter()
        .map(|finding| finding["check"].as_str().unwrap())
        .collect();
    for check in [
        "settings",
        "secrets",
        "reachable",
        "file-system",
        "acquire-renew-release",
        "hand-over",
        "round-trip",
        "clock",
    ] {
        assert!(checks.contains(&check), "{check}: {checks:?}");
    }
    let text = findings
        .iter()
        .find(|finding| finding["check"] == "settings")
        .unwrap()["text"]
        .as_str()
        .unwrap();
    assert!(
        text.contains("namespace jobs (DLOCK_NAMESPACE)")
            && text.contains(":2)")
            && text.contains("ttl 30s"),
        "{text}"
    );
    let trip = findings
        .iter()
        .find(|finding| finding["check"] == "round-trip")
        .unwrap()["text"]
        .as_str()
        .unwrap();
    assert!(
        trip.contains("a TTL of 30.0 s") || trip.contains("a TTL of 30 s"),
        "{trip}"
    );
    assert_eq!(
        lab.line("list --json"),
        lab.line("list --json -q"),
        "the probe is not listed"
    );

    let output = lab.run([
        "doctor",
        "--json",
        "-b",
        "redis://127.0.0.1:1",
        "--backend-timeout",
        "200ms",
    ]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (
            &json["result"],
            json["status"].as_i64(),
            output.status.code()
        ),
        (&"unsafe".into(), Some(69), Some(69))
    );
    assert_eq!(json["error"]["kind"], "unavailable");
}

#[test]
fn secrets_are_never_shown() {
    let mut lab = Lab::new();
    lab.set("DLOCK_BACKEND", "redis://ana:hunter2@127.0.0.1:1")
        .set("DLOCK_SENTINEL_PASSWORD", "hunter3");
    for arguments in [
        ["doctor", "--backend-timeout", "200ms", "-v"],
        ["doctor", "--backend-timeout", "200ms", "--json"],
    ] {
        let output = lab.run(arguments);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(
            !text.contains("hunter") && text.contains("the URL in DLOCK_BACKEND"),
            "{text}"
        );
    }
}

#[test]
fn a_world_writable_configuration_is_unsafe() {
    let mut lab = Lab::new();
    let path = lab.write("config.toml", 0o666, "ttl = '30s'\n");
    lab.set("DLOCK_CONFIG", &path);
    let output = lab.run(["doctor", "-q"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.code() == Some(2)
            && text.contains("UNSAFE  the configuration")
            && text.contains("chmod o-w"),
        "{text}"
    );
}

#[test]
fn the_printed_commands_set_the_right_modes() {
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED the_printed_commands_set_the_right_modes: only root can be other users"
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let dlock = copy_of_dlock(folder.path());
    let directory = folder.path().join("locks");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    let url = format!("sqlite://{}/dlock.db", directory.display());
    let of = |user: u32, words: &str| {
        let (uid, gid) = (
            format!("--reuid={}", 50_000 + user),
            format!("--regid={user}"),
        );
        let mut command = Command::new("setpriv");
        command
            .args([&*uid, &gid, "--clear-groups"])
            .arg(&dlock)
            .args(words.split(' '))
            .env_clear()
            .env("DLOCK_BACKEND", &url);
        command.current_dir("/").output().unwrap()
    };
    let (runner, viewer, stranger) = (54_321, 54_322, 54_323);
    assert!(
        Command::new(&dlock)
            .args(["run", "-k", "first", "-b", &url, "--", "true"])
            .status()
            .unwrap()
            .success()
    );
    apply(&dlock, &url, "run", runner);
    let good = |output: Output| {
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout)
            .unwrap()
            .trim_end()
            .to_owned()
    };
    good(of(runner, "run -k job -w 5 -- true"));
    let token = good(of(runner, "acquire job --ttl 60 -w 5"));
    good(of(runner, &format!("renew job --token {token} --ttl 90")));
    assert_eq!(
        of(stranger, "inspect job").status.code(),
        Some(78),
        "this user has no access"
    );
    apply(&dlock, &url, "view", viewer);
    for looker in [runner, viewer] {
        assert!(good(of(looker, "inspect job")).contains("HELD"));
        assert!(good(of(looker, "list")).contains("job"));
        good(of(looker, &format!("verify job --token {token}")));
    }
    assert_eq!(of(viewer, "acquire other --ttl 60").status.code(), Some(78));
    assert_eq!(
        of(viewer, &format!("release job --token {token}"))
            .status
            .code(),
        Some(78)
    );
    good(of(runner, &format!("release job --token {token}")));

    // Without any store, doctor explains the effect.
    let home = folder.path().join("home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(50_000 + stranger), Some(stranger)).unwrap();
    let mut alone = Command::new("setpriv");
    alone.args([
        &*format!("--reuid={}", 50_000 + stranger),
        &format!("--regid={stranger}"),
        "--clear-groups",
    ]);
    let output = alone
        .arg(&dlock)
        .args(["doctor", "-q"])
        .env_clear()
        .env("HOME", &home)
        .current_dir("/")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.code() == Some(1)
            && output.stderr.is_empty()
            && text.contains("WARN    no store is configured"),
        "{text}"
    );
}

/// What other programs do to the database: they close it cleanly, which removes what a reader
/// needs, or turn off its log for good.
#[test]
fn what_another_program_left_is_explained() {
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED what_another_program_left_is_explained: only root can be other users"
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (dlock, database) = (copy_of_dlock(folder.path()), folder.path().join("dlock.db"));
    let url = format!("sqlite://{}", database.display());
    let run = |user: &str, words: &str| {
        let mut command = Command::new("setpriv");
        command
            .args([
                &*format!("--reuid={user}"),
                &format!("--regid={user}"),
                "--clear-groups",
            ])
            .arg(&dlock)
            .args(words.split(' '));
        let output = command
            .env_clear()
            .env("DLOCK_BACKEND", &url)
            .current_dir("/")
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    let other = |sql: &str| {
        let script = format!(
            "import sqlite3; db = sqlite3.connect('{}'); db.execute('{sql}').fetchall(); db.close()",
            database.display()
        );
        assert!(
            Command::new("python3")
                .args(["-c", &script])
                .status()
                .unwrap()
                .success()
        );
    };
    assert_eq!(run("0", "run -k job -- true").0, Some(0));
    for file in ["dlock.db", "dlock.db.lock"] {
        fs::set_permissions(folder.path().join(file), fs::Permissions::from_mode(0o644)).unwrap();
    }
    other("PRAGMA user_version");
    let (status, text) = run("65534", "list");
    assert!(
        status == Some(78)
            && text.contains("-shm, which this user can't create")
            && text.contains("hint: dlock list of a user"),
        "{text}"
    );
    assert!(
        run("0", "list").0 == Some(0) && run("65534", "list").0 == Some(0),
        "as the hint says"
    );
    other("PRAGMA journal_mode = DELETE");
    let (_, text) = run("0", "doctor");
    assert!(
        text.contains("WARN    another program has turned off the write-ahead log"),
        "{text}"
    );
    other("PRAGMA journal_mode = WAL");
    assert!(!run("0", "doctor").1.contains("write-ahead log"));
}

#[test]
fn commands_that_work_elsewhere_are_named() {
    let lab = Lab::new();
    let ssh = lab.write("bin/ssh", 0o755, "#!/bin/sh\nread line\n");
    let mut run = lab
        .dlock(["run", "-k", "backup", "--", ssh.to_str().unwrap()])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let report = || String::from_utf8(lab.run(["doctor"]).stdout).unwrap();
    while lab.run(["inspect", "backup", "--json"]).status.code() != Some(0)
        || !report().contains("backup (ssh)")
    {
        assert!(run.try_wait().unwrap().is_none(), "{}", report());
    }
    drop(run.stdin.take());
    assert!(run.wait().is_ok() && !report().contains("elsewhere"));
}

/// Runs the commands printed for a role, with this group number.
fn apply(dlock: &Path, url: &str, role: &str, group: u32) {
    let printed = Command::new(dlock)
        .args(["doctor", "--print-grants", role, "-b", url])
        .output()
        .unwrap();
    let lines = String::from_utf8(printed.stdout)
        .unwrap()
        .replace(&format!("dlock-{role}"), &group.to_string());
    assert!(
        Command::new("sh")
            .args(["-ec", &lines])
            .status()
            .unwrap()
            .success(),
        "{lines}"
    );
}
