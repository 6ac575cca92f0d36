//! Daemons of which one runs in the cluster: what a standby and a leader tell.

use std::{fs, os::unix::net::UnixDatagram, path::Path, time::Duration};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    self,
    dlock::{self, unique},
    must,
    process::{self, Process, Sweep},
};

const LIMIT: Duration = Duration::from_secs(30);

/// Starts a daemon under the lock, as if on the host of this name.
fn daemon(backend: &str, key: &str, host: &str, options: &[&str], socket: &Path) -> Process {
    let mut command = dlock::command();
    command
        .args(["run", "-k", key, "--host", host, "-w", "forever"])
        .args(["--ttl", "15s"])
        .args(options)
        .args(["--", "sh", "-c", "echo $NOTIFY_SOCKET; sleep 60", key])
        .env("DLOCK_BACKEND", backend)
        .env("NOTIFY_SOCKET", socket);
    Process::collect(command)
}

#[test]
fn a_standby_says_that_it_waits_and_then_that_it_leads() {
    let (folder, key) = (support::folder(), unique("daemon"));
    let _sweep = Sweep(key.clone());
    let path = |name: &str| folder.path().join(name);
    let backend = format!("sqlite://{}", path("locks.db").display());
    let manager = UnixDatagram::bind(path("notify")).expect("a socket");
    manager
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let told = || {
        let mut buffer = [0; 1000];
        let length = manager.recv(&mut buffer).expect("a message");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let said = || -> Value {
        let text = fs::read(path("status")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    };
    let leads = |host: &str| dlock::run(&backend, &["verify", &key, "--host", host]).code();

    assert_eq!(leads("web1"), 77);
    let leader = daemon(&backend, &key, "web1", &[], Path::new("/nonexistent"));
    must("web1 leads", LIMIT, || leads("web1") == 0);
    let (file, hook) = (path("status"), path("events"));
    let (file, hook) = (
        file.display().to_string(),
        format!("cat >> {}", hook.display()),
    );
    let options = ["--status-file", &file, "--on-event", &hook];
    let standby = daemon(&backend, &key, "web2", &options, &path("notify"));
    must("the standby waits for the leader", LIMIT, || {
        said()["holders"][0]["host"] == "web1"
    });
    let waiting = said();
    assert_eq!(
        (&waiting["result"], &waiting["by"], &waiting["pid"]),
        (
            &"waiting".into(),
            &key.as_str().into(),
            &standby.pid().into()
        )
    );
    assert_eq!((leads("web1"), leads("web2"), leads("web")), (0, 77, 77));
    assert_eq!(
        told(),
        "STATUS=asking for the lock\nEXTEND_TIMEOUT_USEC=60000000\n"
    );
    let status = told();
    assert!(
        status.starts_with(&format!("STATUS=waiting for {key}: ")) && status.contains("@web1\n"),
        "{status}"
    );
    // Without news the standby asks for more time again.
    assert_eq!(told(), "EXTEND_TIMEOUT_USEC=60000000\n");
    assert_eq!(told(), "EXTEND_TIMEOUT_USEC=60000000\n");

    leader.signal(Signal::TERM);
    assert_eq!(leader.wait(LIMIT).code(), 143);
    must("the standby leads", LIMIT, || said()["result"] == "running");
    let running = said();
    assert!(
        running["fence"].is_u64() && running["started"].is_string(),
        "{running}"
    );
    assert_eq!(running["began"], waiting["began"]);
    assert_eq!((leads("web1"), leads("web2")), (77, 0));
    let fence = &running["fence"];
    assert_eq!(
        told(),
        format!("STATUS=has the lock {key}, fence {fence}\n")
    );
    standby.signal(Signal::TERM);
    let ended = standby.wait(LIMIT);
    assert_eq!(ended.code(), 143, "{}", ended.stderr);
    // The daemon may send messages of its own.
    assert_eq!(ended.stdout.trim(), path("notify").display().to_string());
    assert_eq!(said()["status"], 143);
    let events = support::lines(&path("events"));
    let events: Vec<Value> = events
        .iter()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let names: Vec<_> = events.iter().map(|event| &event["event"]).collect();
    assert_eq!(names, ["waiting", "acquired", "ended"]);
    let reason = events[0]["reason"].as_str().expect("the holder");
    assert!(reason.ends_with("@web1"), "{reason}");
}

/// A try does not wait, and a host and a token are two questions.
#[test]
fn what_is_no_wait_and_no_question() {
    let (folder, key) = (support::folder(), unique("daemon"));
    let _sweep = Sweep(key.clone());
    let backend = format!("sqlite://{}", folder.path().join("locks.db").display());
    let holder = daemon(&backend, &key, "web1", &[], Path::new("/nonexistent"));
    must("web1 leads", LIMIT, || {
        dlock::run(&backend, &["verify", &key, "--host", "web1"]).code() == 0
    });
    let events = folder.path().join("events");
    let hook = format!("echo $DLOCK_EVENT >> {}", events.display());
    let tried = dlock::run(
        &backend,
        &["run", "-k", &key, "--on-event", &hook, "--", "true"],
    );
    assert_eq!(tried.code(), 75, "{}", tried.stderr);
    assert_eq!(support::lines(&events), ["skipped"]);
    let token = "00000000-0000-0000-0000-000000000000";
    let both = ["verify", &key, "--host", "web1", "--token", token];
    let refused = dlock::run(&backend, &both);
    assert_eq!(refused.code(), 64, "{}", refused.stderr);
    process::signal(holder.pid(), Signal::TERM);
}
