//! Run policies on the command line: which runs are denied, with which message, and with which
//! history entries.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    self,
    dlock::{self, unique},
    process::{self, Ended, Process, Sweep},
    procfs,
};

const LIMIT: Duration = Duration::from_secs(60);

/// A store with one key.
struct Lab {
    folder: tempfile::TempDir,
    backend: String,
    key: String,
    _sweep: Sweep,
}

impl Lab {
    fn new() -> Self {
        let folder = support::folder();
        let backend = format!("sqlite://{}", folder.path().join("locks.db").display());
        let key = unique("policy");
        Self {
            folder,
            backend,
            _sweep: Sweep(key.clone()),
            key,
        }
    }

    fn words<'a>(&'a self, options: &'a str, script: &'a str) -> Vec<&'a str> {
        let options = options.split(' ').filter(|word| !word.is_empty());
        ["run", "-v", "-k", &self.key]
            .into_iter()
            .chain(options)
            .chain(["--", "sh", "-c", script])
            .collect()
    }

    fn spawn(&self, options: &str, script: &str) -> Process {
        dlock::spawn(&self.backend, &self.words(options, script))
    }

    fn run(&self, options: &str, script: &str) -> Ended {
        self.spawn(options, script).wait(LIMIT)
    }

    /// Runs dlock as if on another host, by means of a PID namespace.
    fn run_elsewhere(&self, options: &str) -> Ended {
        let mut command = process::command("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"])
            .arg(dlock::binary());
        command
            .args(self.words(options, "exit 0"))
            .env("DLOCK_BACKEND", &self.backend);
        Process::collect(command).wait(LIMIT)
    }

    fn history(&self) -> Value {
        let report = dlock::run(&self.backend, &["history", &self.key, "--json"]);
        serde_json::from_str(&report.stdout).expect("JSON")
    }

    fn file(&self) -> &Path {
        self.folder.path()
    }

    /// Asserts that a run was denied, and that its message and the history name the option.
    #[track_caller]
    fn assert_denied(&self, ended: &Ended, option: &str) {
        assert_eq!(ended.code(), 75, "{ended:?}");
        assert!(
            ended.stderr.contains(&format!(", {option}: not run\n")),
            "{ended:?}"
        );
        assert_eq!(
            self.history()["skips"][0]["reason"],
            option,
            "{:#}",
            self.history()
        );
    }
}

#[test]
fn a_skew_guard_denies_other_hosts_for_a_while() {
    let name = "a_skew_guard_denies_other_hosts_for_a_while";
    if !rustix::process::geteuid().is_root() {
        return support::skip(name, "only root can make a PID namespace");
    }
    let lab = Lab::new();
    assert_eq!(lab.run("", "exit 0").code(), 0);
    lab.assert_denied(&lab.run_elsewhere(""), "skew guard 5s");
    assert_eq!(
        lab.run("", "exit 0").code(),
        0,
        "the same host is not denied"
    );
    assert_eq!(
        lab.run_elsewhere("-w 30").code(),
        0,
        "a waiter is not denied"
    );
    assert_eq!(lab.run("--skew-guard 4s", "exit 0").code(), 0);
    lab.assert_denied(&lab.run_elsewhere("--skew-guard 1h"), "skew guard 4s");
    assert_eq!(lab.run_elsewhere("--skew-guard 0").code(), 0);
    assert_eq!(lab.run("--skew-guard 1s", "exit 0").code(), 0);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(lab.run_elsewhere("").code(), 0, "the guard has ended");
}

#[test]
fn at_least_denies_runs_for_that_long() {
    let lab = Lab::new();
    let began = Instant::now();
    assert_eq!(lab.run("--at-least 3s", "exit 0").code(), 0);
    lab.assert_denied(&lab.run("", "exit 0"), "at least 3s");
    let waited = lab.run("-w 30", "exit 4");
    assert_eq!(waited.code(), 4, "{waited:?}");
    assert!(began.elapsed() >= Duration::from_secs(3), "{waited:?}");
}

#[test]
fn a_schedule_fires_once_per_period() {
    let lab = Lab::new();
    let once_per = "--once-per 1h";
    assert_eq!(lab.run(once_per, "exit 3").code(), 3);
    lab.assert_denied(&lab.run(once_per, "exit 0"), "once per 1h");
    assert_eq!(
        lab.run("--once-per 1h --retry-failed 1", "exit 3").code(),
        3
    );
    lab.assert_denied(
        &lab.run("--once-per 1h --retry-failed 1", "exit 0"),
        "once per 1h",
    );
    assert_eq!(
        lab.run("", "exit 0").code(),
        0,
        "a run without the option is not denied"
    );
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(
        lab.run("--once-per 2s", "exit 0").code(),
        0,
        "the last run is older than half the period"
    );
}

#[test]
fn a_key_runs_to_success_once() {
    let lab = Lab::new();
    let once = "--once --keep 1h";
    assert_eq!(lab.run(once, "exit 3").code(), 3);
    assert_eq!(lab.run(once, "exit 3").code(), 3, "not a success yet");
    assert_eq!(
        lab.run(
            "--once --keep 1h --max-runtime 200ms",
            "trap 'exit 0' TERM; sleep 100 & wait"
        )
        .code(),
        124
    );
    lab.assert_denied(&lab.run(once, "exit 0"), "once");
    assert_eq!(
        lab.run("--once --keep 1h --retry-crashed", "exit 0").code(),
        0,
        "a run that was stopped is not known to be done"
    );
    lab.assert_denied(&lab.run(once, "exit 0"), "once");
    lab.assert_denied(&lab.run(once, "exit 0"), "once");
}

/// As after a clock that was set back.
#[test]
fn a_start_in_the_future_is_told() {
    let lab = Lab::new();
    let run = || {
        dlock::run(
            &lab.backend,
            &[
                "run",
                "-k",
                &lab.key,
                "--once-per",
                "1m",
                "--skew-guard",
                "5s",
                "--",
                "true",
            ],
        )
    };
    assert_eq!(run().code(), 0);
    assert_eq!(run().stderr, "", "a run that is not due yet is no news");
    let script = "import json, sqlite3, sys
store = sqlite3.connect(sys.argv[1])
(text,) = store.execute('SELECT document FROM locks').fetchone()
document = json.loads(text)
for record in document['p'].values():
    record['s'] += 3_600_000
store.execute('UPDATE locks SET document = ?', (json.dumps(document),))
store.commit()";
    let mut python = process::command("python3");
    python.args(["-c", script]).arg(lab.file().join("locks.db"));
    let moved = Process::collect(python).wait(LIMIT);
    assert_eq!(moved.code(), 0, "{moved:?}");
    let denied = run();
    assert_eq!(denied.code(), 75, "{denied:?}");
    assert!(
        denied
            .stderr
            .contains(" in the future by the store's clock"),
        "{denied:?}"
    );
    assert!(
        denied.stderr.contains(&format!("dlock forget {}", lab.key)),
        "{denied:?}"
    );
    let history = dlock::run(&lab.backend, &["history", &lab.key]);
    assert!(!history.stdout.contains("kept from"), "{history:?}");
    assert_eq!(
        dlock::run(
            &lab.backend,
            &[
                "forget",
                &lab.key,
                "--yes",
                "--reason",
                "the clock was set back"
            ]
        )
        .code(),
        0
    );
    assert_eq!(run().code(), 0);
}

/// The command of a user keeps the lock even if dlock and the guardian are killed at once. Root's
/// may go on as another user.
#[test]
fn only_a_users_command_shares_the_lock_file() {
    let lab = Lab::new();
    let root = rustix::process::geteuid().is_root();
    if root {
        let shown = lab.run("", "ls -l /proc/self/fd");
        assert!(
            shown.code() == 0 && !shown.stdout.contains("locks.db"),
            "{shown:?}"
        );
    }
    let lab = Lab::new();
    let ready = lab.file().join("ready");
    let script = format!(
        "setsid sh -c 'ls -l /proc/self/fd > {0}.list; mv {0}.list {0}; sleep 3' > /dev/null 2>&1 & wait",
        ready.display()
    );
    let program = lab.file().join("program");
    support::program::copy(dlock::binary(), &program, 0o755);
    let as_user = |script: &str| {
        let mut command = process::command(if root { Path::new("setpriv") } else { &program });
        if root {
            command
                .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
                .arg(&program);
        }
        command
            .args(lab.words("", script))
            .env_remove("HOME")
            .env("DLOCK_BACKEND", &lab.backend);
        Process::collect(command)
    };
    if root {
        std::os::unix::fs::chown(lab.file(), Some(65534), Some(65534)).expect("another owner");
    }
    let run = as_user(&script);
    support::must("the command runs", LIMIT, || ready.exists());
    let guardian = procfs::children(run.pid())
        .iter()
        .find(|stat| stat.name == "lock-guard")
        .expect("a guardian")
        .pid;
    for signal in [Signal::STOP, Signal::KILL] {
        process::signal(guardian, signal);
        run.signal(signal);
    }
    run.wait(LIMIT);
    let shown = fs::read_to_string(&ready).expect("a list");
    assert!(shown.contains("locks.db.lock"), "{shown}");
    let denied = as_user("exit 0").wait(LIMIT);
    assert_eq!(denied.code(), 75, "the daemon lives: {denied:?}");
    support::must("the daemon has ended", LIMIT, || {
        as_user("exit 0").wait(LIMIT).code() == 0
    });
}

#[test]
fn a_crashed_run_has_an_unknown_outcome() {
    let lab = Lab::new();
    let ready = lab.file().join("ready");
    let run = lab.spawn(
        "--once --keep 1h",
        &format!("echo > {}; sleep 1000", ready.display()),
    );
    support::must("the command runs", LIMIT, || ready.exists());
    run.signal(Signal::KILL);
    assert_eq!(run.wait(LIMIT).code(), 137);
    support::must("the lock is free", LIMIT, || {
        let tried = lab.run("--once --keep 1h", "exit 0");
        assert_eq!(tried.code(), 75, "{tried:?}");
        tried
            .stderr
            .contains("was not heard of since, once: not run")
            && tried.stderr.contains("--retry-crashed")
    });
    assert_eq!(
        lab.run("--once --keep 1h --retry-crashed", "exit 0").code(),
        0
    );
    lab.assert_denied(
        &lab.run("--once --keep 1h --retry-crashed", "exit 0"),
        "once",
    );
}

#[test]
fn one_node_warns_of_a_long_hold() {
    let lab = Lab::new();
    let over = lab.file().join("over");
    let script = format!(
        "echo > {}; until [ -e {} ]; do sleep 0.05; done",
        lab.file().join("ready").display(),
        over.display()
    );
    let run = lab.spawn("", &script);
    support::must("the command runs", LIMIT, || {
        lab.file().join("ready").exists()
    });
    let skip = |after: &str| {
        let ended = dlock::run(
            &lab.backend,
            &["run", "-k", &lab.key, "--warn-held", after, "--", "true"],
        );
        assert_eq!(ended.code(), 75, "{ended:?}");
        ended.stderr
    };
    assert_eq!(skip("1h"), "");
    thread::sleep(Duration::from_secs(3));
    let said = [skip("3s"), skip("3s")];
    assert!(
        said[0].contains("does it hang?") && said[0].contains("--warn-held 0 is silent"),
        "{said:?}"
    );
    assert_eq!(said[1], "", "the second skip warned again");
    assert_eq!(skip("0"), "");
    fs::write(over, "").expect("the end");
    assert_eq!(run.wait(LIMIT).code(), 0);
}

#[test]
fn a_keys_policy_applies_to_every_run_and_shows_in_metrics() {
    let lab = Lab::new();
    let metrics = lab.file().join("dlock.prom");
    let config = lab.file().join("config.toml");
    let text = format!(
        "[keys.\"{}\"]\nonce_per = \"1h\"\nmetrics_file = \"{}\"\n",
        lab.key,
        metrics.display()
    );
    fs::write(&config, text).expect("the configuration");
    let options = format!("--config {}", config.display());
    assert_eq!(lab.run(&options, "exit 0").code(), 0);
    lab.assert_denied(&lab.run(&options, "exit 0"), "once per 1h");
    thread::sleep(Duration::from_millis(600));
    assert_eq!(
        lab.run(&format!("{options} --once-per 1s"), "exit 0")
            .code(),
        0,
        "a flag overrides the file"
    );
    let samples = support::lines(&metrics);
    for (reason, count) in [("once_per", 1), ("busy", 0)] {
        let line = format!(
            "dlock_run_skipped_total{{key=\"{}\",reason=\"{reason}\"}} {count}",
            lab.key
        );
        assert!(samples.contains(&line), "{line}: {samples:#?}");
    }
}

/// One host migrates; the others wait until it is done, whatever the play's strategy.
#[test]
fn the_ansible_recipe_migrates_once() {
    let recipe = include_str!("../../contrib/ansible/migrate.yml");
    let (_, command) = recipe.split_once("command: >-").expect("a command");
    let (command, _) = command.split_once("register:").expect("its end");
    let line = command.replace("{{ release }}", "RELEASE");
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    let line = words.join(" ");
    assert!(recipe.contains("failed_when: migrate.rc not in [0, 3]"));
    let lab = Lab::new();
    let log = lab.folder.path().join("log");
    let script = lab.folder.path().join("migrate.sh");
    let text = format!(
        "#!/bin/sh\necho began >> {0}; sleep 1; echo done >> {0}\n",
        log.display()
    );
    fs::write(&script, text).unwrap();
    let play = |release: &str, host: &str| {
        let line = line
            .replace("RELEASE", release)
            .replace("./migrate.sh", &format!("sh {}", script.display()))
            .replacen("run ", &format!("run --host {host} "), 1);
        dlock::spawn(&lab.backend, &line.split(' ').collect::<Vec<_>>())
    };
    // Strategy free, and linear: all hosts at once.
    let hosts = ["web1", "web2", "web3"].map(|host| play(&lab.key, host));
    let mut statuses = hosts.map(|host| host.wait(LIMIT).code());
    statuses.sort_unstable();
    assert_eq!(statuses, [0, 3, 3]);
    assert_eq!(fs::read_to_string(&log).unwrap(), "began\ndone\n");
    // With serial: 1 one host after the other; and a host that is added later.
    let next = format!("{}-next", lab.key);
    let hosts = ["web1", "web2", "web4"].map(|host| play(&next, host).wait(LIMIT));
    assert_eq!(hosts.map(|host| host.code()), [0, 3, 3]);
    assert_eq!(fs::read_to_string(&log).unwrap(), "began\ndone\n".repeat(2));
    // A migration that fails is no success anywhere, and each host tries it.
    fs::write(&script, format!("echo failed >> {}; exit 7", log.display())).unwrap();
    let last = format!("{}-last", lab.key);
    let hosts = ["web1", "web2"].map(|host| play(&last, host).wait(LIMIT).code());
    assert_eq!(hosts, [7, 7]);
}

#[test]
fn the_status_of_done_work_needs_a_rule() {
    let lab = Lab::new();
    let refused = lab.run("--done-exit-code 3", "true");
    assert_eq!(refused.code(), 64, "{}", refused.stderr);
    assert!(refused.stderr.contains("it needs --once-per or --once"));
    for (options, status) in [
        ("--once-per 1h", 75),
        ("--once-per 1h -E 4", 4),
        ("--once-per 1h -E 4 --done-exit-code 0", 0),
    ] {
        lab.run("--once-per 1h", "true");
        assert_eq!(lab.run(options, "true").code(), status, "{options}");
    }
}
