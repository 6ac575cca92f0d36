//! Output about a free lock that the run policy of an earlier run denies, and the operator's ways
//! to override it.

use std::time::Duration;

use snapbox::{assert_data_eq, file};

use crate::lab::{Lab, without_days};

/// Replaces everything that differs between runs.
fn redacted(text: &str) -> String {
    let is_time =
        |word: &str| word.len() == 8 && word.bytes().filter(|byte| *byte == b':').count() == 2;
    let line = |line: &str| {
        if line.starts_with("backend ") {
            return "backend   [URL]   DLOCK_BACKEND\n".to_owned();
        }
        let words = line.split_inclusive(' ').map(|word| {
            let (bare, gap) = (word.trim_end_matches([' ', ':', ',', ';', ')']), word.len());
            let rest = &word[bare.len()..gap];
            let number = bare.starts_with('…')
                || bare.len() > 12 && bare.bytes().all(|byte| byte.is_ascii_digit());
            let age = !line.starts_with('$')
                && bare.len() > 1
                && bare.ends_with(['s', 'm'])
                && bare
                    .trim_end_matches(['s', 'm'])
                    .bytes()
                    .all(|b| b.is_ascii_digit());
            let known = if number {
                "[FENCE]"
            } else if is_time(bare) {
                "[TIME]"
            } else if age {
                "[AGE]"
            } else if bare.contains("@lap") {
                "[USER]@lap"
            } else {
                return word.to_owned();
            };
            format!("{known}{rest}")
        });
        words
            .collect::<String>()
            .split("[AGE] [AGE]")
            .collect::<Vec<_>>()
            .join("[AGE]")
            .trim_end()
            .to_owned()
            + "\n"
    };
    let mut text: String = without_days(text).lines().map(line).collect();
    while text.contains("    ") {
        text = text.replace("    ", "   ");
    }
    text
}

#[test]
fn a_denied_run_explains_itself_and_can_be_overridden() {
    let mut lab = Lab::new();
    lab.note("kept for an hour, whoever asks")
        .say("run -k job --at-least 1h --host lap -- true");
    lab.say("inspect job")
        .say("list")
        .say("run -k job -v -- true");
    lab.say("run -k job --anyway -- true")
        .say("run -k job --reason x -- true");
    lab.say("run -k job --anyway --reason rerun --host lap --at-least 1h -- echo ran");
    lab.say("forget job")
        .say("forget job --yes")
        .say("forget job --yes --reason fixed --host lap")
        .say("inspect job")
        .say("list");
    lab.say("forget job --yes --reason again");
    lab.note("once in a day")
        .say("run -k once --once-per 1d --skew-guard 0 --host lap -- true")
        .say("inspect once");
    lab.say("run -k once --once-per 1d -v -- true")
        .say("run -k once --once-per none --host lap -- echo ran");
    lab.say("forget once --yes --reason fixed --host lap")
        .say("run -k once --once-per 1d --host lap -- echo ran");
    assert_data_eq!(redacted(&lab.transcript()), file!["snapshots/records.txt"]);
}

#[test]
fn all_known_keys_are_listed_with_their_history() {
    let mut lab = Lab::new();
    for (key, host, end) in [
        ("backup", "web1", "true"),
        ("nightly", "web2", "exit 3"),
        ("nightly", "web2", "true"),
        ("report", "web1", "exit 1"),
    ] {
        assert!(
            lab.run([
                "run",
                "-k",
                key,
                "--host",
                host,
                "--skew-guard",
                "0",
                "-c",
                end
            ])
            .status
            .code()
            .is_some()
        );
    }
    lab.say("list --all")
        .say("list rep --all")
        .say("list --failed")
        .say("list --all --host web2")
        .say("list --all --user nemo");
    lab.say("history")
        .say("history --failed --host web2")
        .say("history --since 1h -n 1")
        .say("history nightly --failed");
    lab.say("history --timeline")
        .say("list --sort failed")
        .say("list --all --sort wait")
        .say("list --since soon")
        .say("list --all nothing");
    assert_data_eq!(redacted(&lab.transcript()), file!["snapshots/overview.txt"]);
}

#[test]
fn explain_does_not_run_the_command() {
    let mut lab = Lab::new();
    let config = lab.write(
        "c.toml",
        0o600,
        "grace = \"5s\"\n[keys.job]\nonce_per = \"1d\"\nmax_runtime = \"5m\"\n",
    );
    lab.set("DLOCK_CONFIG", &config)
        .set("DLOCK_WARN_HELD", "2h");
    lab.say("explain job --host lap")
        .say("run -k job --host lap -- true")
        .say("explain -k job --host lap --ttl 90 -- ./job.sh");
    lab.say("explain job --host lap --anyway --reason x")
        .say("explain")
        .say("explain job --ttl 0");
    lab.say("explain --host lap --ttl 90 job --wait 5");
    assert_data_eq!(redacted(&lab.transcript()), file!["snapshots/explain.txt"]);
}

#[test]
fn breaking_an_unattended_lock_is_reported_at_once() {
    let mut lab = Lab::new();
    let token = lab.line("acquire job --ttl 5m --host lap");
    let fence =
        serde_json::from_slice::<serde_json::Value>(&lab.run(["inspect", "job", "--json"]).stdout)
            .unwrap()["holders"][0]["fence"]
            .to_string();
    let end = &fence[fence.len() - 5..];
    assert_eq!(
        lab.run([
            "break", "job", "--yes", "--reason", "NFS", "--now", "--fence", "99999"
        ])
        .status
        .code(),
        Some(77)
    );
    assert_eq!(
        lab.run(["verify", "job", "--token", &token]).status.code(),
        Some(0)
    );
    assert_eq!(
        lab.run([
            "break",
            "job",
            "--yes",
            "--reason",
            "NFS",
            "--now",
            "--fence",
            &format!("…{end}")
        ])
        .status
        .code(),
        Some(0)
    );
    lab.line("acquire job --ttl 1s --host lap");
    lab.say("break job --yes --reason NFS --host ops");
    lab.line("acquire job --ttl 5m --host lap");
    lab.say("break job --yes --reason NFS --fence x")
        .say("break job --yes --reason NFS --now --host ops");
    lab.note("all of a host");
    for (key, host) in [("a", "lap"), ("b", "lap"), ("c", "web1")] {
        lab.line(&format!("acquire {key} --ttl 5m --host {host}"));
    }
    lab.say("break --host lap")
        .say("break --host lap --yes --reason dead --now --fence 7")
        .say("break --host lap --yes --reason dead --now");
    lab.say("break --host lap --yes --reason dead --now");
    let listed: serde_json::Value =
        serde_json::from_slice(&lab.run(["list", "--json"]).stdout).unwrap();
    assert_eq!(
        listed["locks"].as_array().map(Vec::len),
        Some(1),
        "{listed}"
    );
    let why = lab.run(["history", "a", "--json"]).stdout;
    assert!(String::from_utf8(why).unwrap().contains("dead"));
    // Each break is reported when it is done, in any order.
    let text = lab.transcript().replace(
        "dlock: b: broken\ndlock: a: broken\n",
        "dlock: a: broken\ndlock: b: broken\n",
    );
    assert_data_eq!(without_pids(&redacted(&text)), file!["snapshots/break.txt"]);
}

fn without_pids(text: &str) -> String {
    let after = |rest: &str| {
        format!(
            "pid [PID]{}",
            rest.trim_start_matches(|c: char| c.is_ascii_digit())
        )
    };
    let mut parts = text.split("pid ");
    parts.next().map(str::to_owned).unwrap_or_default() + &parts.map(after).collect::<String>()
}

/// What `explain` says with these options, in both forms, if it agrees with itself.
fn explained(lab: &Lab, options: &str) -> String {
    let words = |more: &str| -> String {
        let said = lab.run(format!("explain {options}{more}").split(' '));
        assert!(said.status.success(), "{options}: {said:?}");
        String::from_utf8(said.stdout).unwrap()
    };
    let (text, json) = (words(""), words(" --json"));
    let line = text.lines().next().unwrap().to_owned();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let would = json["would"].as_str().unwrap();
    let reason = json["reason"]
        .as_str()
        .map(|reason| format!(": {reason}"))
        .unwrap_or_default();
    // Only the times may differ.
    assert_eq!(
        redacted(&line),
        redacted(&format!("job   would {would}{reason}"))
    );
    redacted(&line).trim_end().to_owned()
}

#[test]
fn explain_knows_who_goes_first() {
    let lab = Lab::new();
    let reader = lab.line("acquire job -s --ttl 1m --host web1");
    let mut writer = lab
        .dlock("run -k job -w 1m --host web2 -- true".split(' '))
        .spawn()
        .unwrap();
    let is_queued = || lab.line("inspect job").contains("web2");
    assert!(support::eventually(Duration::from_secs(60), is_queued));
    let said = explained(&lab, "job -s");
    assert!(said.starts_with("job   would skip: "), "{said}");
    assert!(
        said.ends_with("@web2, which has waited [AGE], goes first"),
        "{said}"
    );
    assert_eq!(
        lab.run("run -k job -s -- true".split(' ')).status.code(),
        Some(75)
    );
    assert!(explained(&lab, "job -s -w 9s").starts_with("job   would wait: "));
    assert!(
        explained(&lab, "job").contains("held by "),
        "a writer meets the holder first"
    );
    lab.run(["release", "job", "--token", &reader]);
    assert!(writer.wait().unwrap().success());
    assert_eq!(explained(&lab, "job -s"), "job   would run");
}

#[test]
fn explain_knows_the_runs_around_it() {
    let lab = Lab::new();
    let dlock = env!("CARGO_BIN_EXE_dlock");
    let inside = |outer: &str, options: &str| {
        let line = format!("{dlock} explain job{options}");
        let words = format!("run -k job {outer}-c");
        let said = lab.run(words.split(' ').chain([&*line]));
        let (out, err) = (
            String::from_utf8_lossy(&said.stdout),
            String::from_utf8_lossy(&said.stderr),
        );
        out.lines()
            .chain(err.lines())
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(inside("", ""), "job   would run");
    assert_eq!(inside("", " -s"), "job   would run");
    assert_eq!(inside("-s ", " -s"), "job   would run");
    for refused in [inside("", " --no-reentrant"), inside("-s ", "")] {
        assert!(refused.contains("this would deadlock"), "{refused}");
    }
    let held = lab.line("acquire job --ttl 1m");
    let mut stale = lab.dlock(["explain", "job"]);
    stale.env("DLOCK_HELD", format!("0000000000000000/{held}/job"));
    let said = String::from_utf8(stale.output().unwrap().stdout).unwrap();
    assert!(
        said.starts_with("job   would skip: held by "),
        "another store's: {said}"
    );
}
