//! `--output on-failure`: the command's output is printed only if the run failed, and the history
//! keeps the end of it.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::{
    self,
    dlock::{self, unique},
    process::{self, Ended, Process, Sweep},
    redis::Redis,
};

const LIMIT: Duration = Duration::from_secs(30);

struct Site {
    folder: tempfile::TempDir,
    key: String,
    _sweep: Sweep,
}

impl Site {
    fn new() -> Self {
        let key = unique("output");
        Self {
            folder: support::folder(),
            _sweep: Sweep(key.clone()),
            key,
        }
    }

    fn store(&self) -> String {
        format!("sqlite://{}", self.folder.path().join("locks.db").display())
    }

    fn command(&self, options: &[&str], script: &str) -> Command {
        let mut command = dlock::command();
        command.env("DLOCK_BACKEND", self.store()).args([
            "run",
            "-k",
            &self.key,
            "--output",
            "on-failure",
        ]);
        command
            .args(options)
            .args(["--", "sh", "-c", script, &self.key]);
        command
    }

    fn run(&self, options: &[&str], script: &str) -> Ended {
        Process::collect(self.command(options, script)).wait(LIMIT)
    }

    /// Returns the history entry of the last run.
    fn last(&self) -> Value {
        let report = dlock::run(&self.store(), &["history", &self.key, "--json"]);
        serde_json::from_str::<Value>(&report.stdout).expect("JSON")["runs"][0].clone()
    }
}

/// The shell's own work, a child that it waits for, and one that it leaves to the guardian count.
#[test]
fn the_history_has_the_resources_that_the_command_used() {
    let site = Site::new();
    let number = |run: &Value, field: &str| run[field].as_u64().unwrap_or_else(|| panic!("{run}"));
    let work = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; sleep 0.5";
    let small = "dd if=/dev/zero of=/dev/null bs=1M count=1 2>&1";
    let large = "dd if=/dev/zero of=/dev/null bs=50M count=1 2>&1";
    for (script, most_cpu, memory) in [
        (small.to_owned(), 400, 1..50),
        (format!("{large}; exit 3"), 400, 50..100),
        (format!("(setsid {large} &)"), 400, 50..100),
        (work.to_owned(), u64::MAX, 1..50),
    ] {
        site.run(&[], &script);
        let run = site.last();
        let (cpu, ran) = (number(&run, "cpu_ms"), number(&run, "ran_ms"));
        assert!(cpu <= most_cpu, "{script}: {run}");
        assert!(
            memory.contains(&(number(&run, "max_rss_bytes") >> 20)),
            "{script}: {run}"
        );
        if script == work {
            assert!(cpu >= 50 && cpu + 400 <= ran, "{run}");
        }
    }
    let token = dlock::run(&site.store(), &["acquire", &site.key, "--ttl", "1m"]).stdout;
    dlock::run(
        &site.store(),
        &["release", &site.key, "--token", token.trim()],
    );
    let run = site.last();
    assert_eq!(run["end"], "released");
    assert!(
        run["cpu_ms"].is_null() && run["max_rss_bytes"].is_null(),
        "{run}"
    );
}

/// Any process that shares the pipe can make it non-blocking, as Node.js does.
#[test]
fn a_non_blocking_stdout_loses_no_output() {
    let site = Site::new();
    let script = r#"python3 -c 'import os; os.set_blocking(1, False)'; "$D" run -k "$K" --output on-failure -- sh -c 'seq 60000; exit 3'; echo $? >&2"#;
    let mut command = process::command("sh");
    command.args(["-c", &format!("{{ {script}; }} | {{ sleep 0.5; wc -c; }}")]);
    command
        .env("D", dlock::binary())
        .env("K", &site.key)
        .env("DLOCK_BACKEND", site.store());
    let ended = Process::collect(command).wait(LIMIT);
    assert_eq!((ended.stdout.trim(), ended.stderr.trim()), ("348894", "3"));
}

#[test]
fn a_success_is_silent_and_a_failure_prints_all_output_in_order() {
    let site = Site::new();
    let ended = site.run(&[], "echo out; echo err >&2");
    assert_eq!((ended.code(), &*ended.stdout, &*ended.stderr), (0, "", ""));
    assert!(site.last()["reason"].is_null(), "{}", site.last());
    let ended = site.run(&[], "echo one; echo two >&2; echo three; exit 3");
    assert_eq!(
        (ended.code(), &*ended.stdout, &*ended.stderr),
        (3, "one\ntwo\nthree\n", "")
    );
    assert_eq!(
        (&site.last()["end"], &site.last()["reason"]),
        (&"exit 3".into(), &"three\none\ntwo\nthree".into())
    );
    let table = dlock::run(&site.store(), &["history", &site.key]).stdout;
    assert!(
        table.contains("exit 3: three") && !table.contains("one"),
        "{table}"
    );
    let ended = site.run(&["--json"], "echo data; exit 4");
    assert_eq!((ended.code(), &*ended.stdout), (4, "data\n"));
    assert!(
        ended.stderr.starts_with("{\"schema\":") && ended.stderr.lines().count() == 1,
        "{}",
        ended.stderr
    );
}

#[test]
fn a_timeout_and_a_loss_print_the_output_too() {
    let site = Site::new();
    let ended = site.run(
        &["--max-runtime", "1s", "--grace", "100ms"],
        "echo working; exec sleep 60",
    );
    assert_eq!((ended.code(), &*ended.stdout), (124, "working\n"));
    assert_eq!(site.last()["reason"], "max runtime 1s\nworking");
    if !support::have(
        "a_timeout_and_a_loss_print_the_output_too",
        &[Redis::PROGRAM],
    ) {
        return;
    }
    let server = Redis::plain();
    let up = site.folder.path().join("up");
    let url = server.url();
    let run = site.command(
        &["-b", &url, "--ttl", "3s", "--grace", "100ms"],
        &format!("echo working; touch {}; exec sleep 60", up.display()),
    );
    let run = Process::collect(run);
    support::must("the command runs", LIMIT, || up.exists());
    drop(server);
    let ended = run.wait(LIMIT);
    assert_eq!((ended.code(), &*ended.stdout), (76, "working\n"));
    assert!(
        ended.stderr.contains("the lock was lost"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_process_that_keeps_the_pipe_open_is_not_waited_for() {
    let site = Site::new();
    let began = Instant::now();
    let ended = site.run(
        &["--leftover", "leave"],
        "echo up; setsid sleep 20 & exit 5",
    );
    assert_eq!((ended.code(), &*ended.stdout), (5, "up\n"));
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    // The same for a process that prints without end.
    let ended = site.run(&["--leftover", "leave"], "setsid yes & sleep 0.2; exit 5");
    assert_eq!(ended.code(), 5);
    assert!(ended.stdout.len() <= 1 << 20, "{}", ended.stdout.len());
}

#[test]
fn long_output_is_cut_to_its_tail_without_delay() {
    let site = Site::new();
    let ended = site.run(
        &["--ttl", "3s"],
        "head -c 300000000 /dev/zero | tr '\\0' x | fold -w 99; echo; echo the end; exit 1",
    );
    assert_eq!(ended.code(), 1, "{}", ended.stderr);
    assert!(
        ended.stdout.len() <= 1 << 20 && ended.stdout.ends_with("\nthe end\n"),
        "{}",
        ended.stdout.len()
    );
    assert!(
        ended
            .stdout
            .lines()
            .next()
            .is_some_and(|line| line.len() == 99),
        "whole lines"
    );
    assert!(
        ended.stderr.contains("bytes of the output are left out"),
        "{}",
        ended.stderr
    );
    assert!(
        site.last()["reason"]
            .as_str()
            .is_some_and(|reason| reason.starts_with("the end\n") && reason.len() < 1100)
    );
}

#[test]
fn the_configuration_sets_output_per_job_and_flags_win() {
    let site = Site::new();
    let config = site.folder.path().join("config.toml");
    fs::write(
        &config,
        format!("[keys.\"{}\"]\noutput = \"on-failure\"\n", site.key),
    )
    .expect("a file");
    let run = |key: &str, options: &[&str]| {
        let mut command = dlock::command();
        command
            .env("DLOCK_BACKEND", site.store())
            .args([
                "run",
                "--config",
                config.to_str().expect("UTF-8"),
                "-k",
                key,
            ])
            .args(options);
        Process::collect({
            command.args(["-c", "echo said"]);
            command
        })
        .wait(LIMIT)
        .stdout
    };
    assert_eq!(run(&site.key, &[]), "");
    assert_eq!(run(&site.key, &["-o", "human"]), "said\n");
    assert_eq!(run(&format!("{}-other", site.key), &[]), "said\n");
    let other = dlock::run(&site.store(), &["inspect", &site.key, "-o", "on-failure"]);
    assert_eq!((other.code(), &*other.stdout), (64, ""));
}

/// Somebody at a terminal sees what the command prints, and what it asks, although the crontab's
/// settings hide a success. `explain` names the setting and where it comes from.
#[test]
fn a_setting_hides_no_output_from_a_terminal() {
    const NAME: &str = "a_setting_hides_no_output_from_a_terminal";
    if !support::have(NAME, &["script"]) {
        return;
    }
    let site = Site::new();
    let (key, free) = (&site.key, format!("{}-free", site.key));
    let config = site.folder.path().join("config.toml");
    fs::write(
        &config,
        format!("[keys.\"{key}\"]\noutput = \"on-failure\"\n"),
    )
    .expect("a file");
    let said = |on_terminal: bool, variable: &str, line: &str| {
        let line = format!("{} {line}", dlock::binary().display());
        let mut command = process::command(if on_terminal { "script" } else { "sh" });
        if on_terminal {
            command.args(["-qec", &line, "/dev/null"]);
        } else {
            command.args(["-c", &line]);
        }
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", "/nonexistent")
            .env("TERM", "xterm")
            .env("DLOCK_BACKEND", site.store())
            .env("DLOCK_CONFIG", &config)
            .env("DLOCK_OUTPUT", variable);
        let ended = Process::collect(command).wait(LIMIT);
        assert_eq!((ended.code(), &*ended.stderr), (0, ""), "{line}");
        ended.stdout.replace("\r\n", "\n")
    };
    let ask = "sh -c 'echo question?; test -t 1 && echo a terminal; true'";
    for (key, variable) in [(key, ""), (&free, "on-failure")] {
        let run = format!("run -k {key} -- {ask}");
        assert_eq!(said(true, variable, &run), "question?\na terminal\n");
        assert_eq!(said(false, variable, &run), "");
        // A flag is meant for this very run.
        let run = format!("run -k {key} -o on-failure -- {ask}");
        assert_eq!(said(true, variable, &run), "");
    }
    let from_file = format!("{}:2", config.display());
    for (key, variable, options, from) in [
        (key, "", "", from_file.as_str()),
        (&free, "on-failure", "", "DLOCK_OUTPUT"),
        (&free, "", "--output on-failure", "--output"),
    ] {
        let explained = said(
            false,
            variable,
            &format!("explain -k {key} {options} -- true"),
        );
        let row = ["output", "on-failure", from];
        assert!(
            explained
                .lines()
                .any(|line| line.split_whitespace().eq(row)),
            "{explained}"
        );
    }
}
