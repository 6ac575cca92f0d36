//! `--on-event`: the events that hooks get, and that no hook disturbs a run.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    manual::examples,
    support::{
        self,
        dlock::{self, unique},
        process::{Ended, Process, Sweep},
        redis::Redis,
    },
};

const LIMIT: Duration = Duration::from_secs(30);

/// A folder with a store and a hook that records its input.
struct Site {
    folder: tempfile::TempDir,
    key: String,
    _sweep: Sweep,
}

impl Site {
    fn new() -> Self {
        let key = unique("hooks");
        Self {
            folder: support::folder(),
            _sweep: Sweep(key.clone()),
            key,
        }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// A hook that appends each event to a file, as one line.
    fn notes(&self) -> String {
        format!("cat >> {}", self.path("events"))
    }

    fn command(&self, options: &[&str], hook: &str, script: &str) -> Command {
        let mut command = dlock::command();
        command.env(
            "DLOCK_BACKEND",
            format!("sqlite://{}", self.path("locks.db")),
        );
        command
            .args(["run", "-k", &self.key, "--on-event", hook])
            .args(options)
            .args(["--", "sh", "-c", script, &self.key]);
        command
    }

    fn run(&self, options: &[&str], hook: &str, script: &str) -> Ended {
        Process::collect(self.command(options, hook, script)).wait(LIMIT)
    }

    fn events(&self) -> Vec<Value> {
        let lines = support::lines(Path::new(&self.path("events")));
        lines
            .iter()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    fn names(&self) -> Vec<String> {
        self.events()
            .iter()
            .map(|event| event["event"].as_str().expect("a name").to_owned())
            .collect()
    }
}

#[test]
fn a_run_sends_a_start_and_an_end_event() {
    let site = Site::new();
    let ended = site.run(&["--describe", "x"], &site.notes(), "exit 3");
    assert_eq!((ended.code(), &*ended.stdout, &*ended.stderr), (3, "", ""));
    let events = site.events();
    assert_eq!(site.names(), ["acquired", "ended"]);
    assert!(
        events[0]["run"].is_null()
            && events[0]["fence"] == events[1]["fence"]
            && events[0]["fence"].is_u64(),
        "{events:?}"
    );
    assert_eq!(
        (&events[1]["run"]["status"], &events[1]["run"]["released"]),
        (&3.into(), &"yes".into())
    );
    assert!(
        events[1]["text"]
            .as_str()
            .is_some_and(|text| text.contains("ran status=3")),
        "{events:?}"
    );
}

#[test]
fn a_skip_and_an_unreachable_store_send_events() {
    let site = Site::new();
    let token = site.key.clone();
    let ended = site.run(
        &[],
        "true",
        &format!(
            "{} run -k {token} --no-reentrant --on-event '{}' -- true",
            dlock::binary().display(),
            site.notes()
        ),
    );
    // A deadlock with its own lock, which is a usage error.
    assert_eq!(
        (ended.code(), site.names()),
        (64, vec!["failed".to_owned()])
    );
    let holder = Process::collect(site.command(&[], &site.notes(), "sleep 30"));
    support::must("the lock is held", LIMIT, || {
        site.names().last().is_some_and(|name| name == "acquired")
    });
    assert_eq!(site.run(&[], &site.notes(), "true").code(), 75);
    let last = site.events().pop().expect("an event");
    assert_eq!(
        (&last["event"], &last["run"]["result"]),
        (&"skipped".into(), &"busy".into())
    );
    holder.signal(Signal::TERM);
    holder.wait(LIMIT);
    let nowhere = ["-b", "redis://127.0.0.1:1", "--backend-timeout", "300ms"];
    assert_eq!(site.run(&nowhere, &site.notes(), "true").code(), 69);
    assert_eq!(site.names().last().map(String::as_str), Some("failed"));
}

#[test]
fn a_break_and_a_loss_send_events() {
    let site = Site::new();
    let run = Process::collect(site.command(&["--ttl", "2s"], &site.notes(), "sleep 60"));
    support::must("the run started", LIMIT, || site.names() == ["acquired"]);
    let store = format!("sqlite://{}", site.path("locks.db"));
    assert_eq!(
        dlock::run(
            &store,
            &["break", &site.key, "--yes", "--reason", "NFS hangs"]
        )
        .code(),
        0
    );
    assert_eq!(run.wait(LIMIT).code(), 76);
    assert_eq!(site.names(), ["acquired", "broken", "ended"]);
    assert!(
        site.events()[1]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("NFS hangs"))
    );
    if !support::have("a_break_and_a_loss_send_events", &[Redis::PROGRAM]) {
        return;
    }
    let (site, server) = (Site::new(), Redis::plain());
    let url = server.url();
    let run = Process::collect(site.command(
        &["-b", &url, "--ttl", "3s", "--grace", "100ms"],
        &site.notes(),
        "sleep 60",
    ));
    support::must("the run started", LIMIT, || site.names() == ["acquired"]);
    drop(server);
    assert_eq!(run.wait(LIMIT).code(), 76);
    assert_eq!(site.names(), ["acquired", "lost", "ended"]);
    assert_eq!(site.events()[2]["run"]["result"], "lost");
}

#[test]
fn a_hanging_hook_delays_neither_the_command_nor_the_lock() {
    let site = Site::new();
    let began = Instant::now();
    let run = Process::collect(site.command(
        &[],
        "exec sleep 600",
        &format!("date > {}", site.path("ran")),
    ));
    support::must("the command ran", LIMIT, || {
        Path::new(&site.path("ran")).exists()
    });
    let store = format!("sqlite://{}", site.path("locks.db"));
    let second = dlock::run(&store, &["run", "-k", &site.key, "-w", "3s", "--", "true"]);
    assert_eq!(
        second.code(),
        0,
        "the lock is free while the hook hangs: {}",
        second.stderr
    );
    assert!(
        began.elapsed() < Duration::from_secs(4) * support::slowness(),
        "{:?}",
        began.elapsed()
    );
    let ended = run.wait(LIMIT);
    assert_eq!((ended.code(), &*ended.stdout), (0, ""));
    assert!(
        began.elapsed() < Duration::from_secs(8) * support::slowness(),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn a_failing_hook_gives_a_warning_and_changes_no_status() {
    let site = Site::new();
    let ended = site.run(
        &[],
        "echo out; echo 'no such host' >&2; exit 6",
        "echo data; exit 5",
    );
    assert_eq!((ended.code(), &*ended.stdout), (5, "data\n"));
    let said = format!(
        "dlock: {0}: --on-event: acquired: exit 6: no such host\ndlock: {0}: --on-event: ended: exit 6: no such host\n",
        site.key
    );
    assert_eq!(ended.stderr, said);
}

#[test]
fn a_hook_may_ignore_its_input_or_leave_a_process_behind() {
    let site = Site::new();
    let ended = site.run(&[], "exit 0", "exit 0");
    assert_eq!((ended.code(), &*ended.stderr), (0, ""));
    // The leftover process has dlock's output closed, and is killed at the hook's time limit.
    let ended = site.run(
        &[],
        &format!("(setsid sleep 900 & echo $! > {}) &", site.path("pid")),
        "echo done",
    );
    assert_eq!((ended.code(), &*ended.stdout), (0, "done\n"));
    let pid = fs::read_to_string(site.path("pid")).expect("a pid");
    let proc = format!("/proc/{}", pid.trim());
    support::must("the process is gone", LIMIT, || !Path::new(&proc).exists());
}

#[test]
fn a_hook_gets_no_token_no_descriptor_and_no_hooks() {
    let site = Site::new();
    let hook = format!(
        "env > {0}; ls -l /proc/self/fd > {1}; {2} run -k {3}-inner --on-event 'echo inner >> {0}' -- true",
        site.path("environment"),
        site.path("fds"),
        dlock::binary().display(),
        site.key
    );
    assert_eq!(site.run(&[], &hook, "exit 0").code(), 0);
    let environment = fs::read_to_string(site.path("environment")).expect("an environment");
    for secret in ["DLOCK_TOKEN", "DLOCK_HELD", "inner"] {
        assert!(!environment.contains(secret), "{environment}");
    }
    assert!(
        environment.contains("DLOCK_EVENT=")
            && environment.contains(&format!("DLOCK_KEY={}\n", site.key)),
        "{environment}"
    );
    let descriptors = fs::read_to_string(site.path("fds")).expect("a list");
    assert!(
        !descriptors.contains("locks.db") && !descriptors.contains("socket:"),
        "{descriptors}"
    );
}

#[test]
fn ctrl_c_ends_the_command_and_sends_an_event() {
    let site = Site::new();
    let run = Process::collect(site.command(
        &[],
        &format!("sleep 0.5; {}", site.notes()),
        "echo up; sleep 60",
    ));
    std::thread::sleep(Duration::from_millis(700));
    run.signal(Signal::INT);
    let ended = run.wait(LIMIT);
    assert_eq!(ended.code(), 130);
    assert_eq!(site.names(), ["acquired", "ended"]);
}

/// The manual's configurations, with a `curl` that records its arguments.
#[test]
fn the_manuals_hooks_send_pings_and_messages() {
    if !support::have("the_manuals_hooks_send_pings_and_messages", &["jq"]) {
        return;
    }
    let recipes = examples("cron");
    let recipes: Vec<&String> = recipes
        .iter()
        .filter(|recipe| recipe.contains("on_event"))
        .collect();
    assert_eq!(recipes.len(), 2);
    let site = Site::new();
    support::program::write(
        site.folder.path().join("curl"),
        &format!(
            "#!/bin/sh\n(echo \"$@\"; case $* in *@-*) cat;; esac) >> {}\n",
            site.path("asked")
        ),
    );
    let asked = |recipe: &str, script: &str| {
        let _ = fs::remove_file(site.path("asked"));
        fs::write(
            site.path("config.toml"),
            recipe.replace("/etc/dlock/chat.url", &site.path("url")),
        )
        .expect("a file");
        fs::write(site.path("url"), "https://chat").expect("a file");
        let mut command = dlock::command();
        command.env(
            "PATH",
            format!("{}:/usr/bin:/bin", site.folder.path().display()),
        );
        command.env(
            "DLOCK_BACKEND",
            format!("sqlite://{}", site.path("locks.db")),
        );
        command.args([
            "run",
            "--config",
            &site.path("config.toml"),
            "-k",
            "sms-job",
            "-c",
            script,
        ]);
        let ended = Process::collect(command).wait(LIMIT);
        assert_eq!(ended.stderr, "");
        fs::read_to_string(site.path("asked")).unwrap_or_default()
    };
    let pings = asked(recipes[0], "exit 4");
    assert_eq!(
        pings.matches("/start\n").count() + pings.matches("/4\n").count(),
        pings.lines().count(),
        "{pings}"
    );
    assert_eq!(pings.lines().count(), 2, "{pings}");
    assert_eq!(asked(recipes[1], "exit 0"), "");
    let message = asked(recipes[1], "exit 4");
    assert!(
        message.contains("--json @- https://chat")
            && message.contains("\"text\": \"sms-job ran status=4"),
        "{message}"
    );
}

#[test]
fn the_configuration_sets_a_hook_and_a_job_can_disable_it() {
    let site = Site::new();
    let config = site.path("config.toml");
    let text = format!(
        "on_event = \"{}\"\n[keys.\"{}\"]\non_event = \"\"\n",
        site.notes(),
        site.key
    );
    fs::write(&config, text).expect("a file");
    let run = |key: &str| {
        let mut command = dlock::command();
        // An environment as empty as under cron.
        command.env_remove("PATH").env(
            "DLOCK_BACKEND",
            format!("sqlite://{}", site.path("locks.db")),
        );
        command.args(["run", "--config", &config, "-k", key, "--", "true"]);
        Process::collect(command).wait(LIMIT).code()
    };
    assert_eq!(
        (run(&site.key), Path::new(&site.path("events")).exists()),
        (0, false)
    );
    assert_eq!(
        (run(&format!("{}-other", site.key)), site.names().len()),
        (0, 2)
    );
}
