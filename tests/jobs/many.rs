//! A store with thousands of keys: `list --all` and `history` without a key answer soon.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{
    self,
    dlock::{self, unique},
    postgres::{self, Postgres},
    redis::Redis,
};

/// The most keys that one run takes.
const TOGETHER: usize = 32;

#[test]
fn on_sqlite_all_keys_are_listed_soon() {
    let folder = support::folder();
    all_keys_are_listed_soon(&format!(
        "sqlite://{}",
        folder.path().join("locks.db").display()
    ));
}

#[test]
fn on_redis_all_keys_are_listed_soon() {
    if support::have("on_redis_all_keys_are_listed_soon", &[Redis::PROGRAM]) {
        all_keys_are_listed_soon(&Redis::plain().url());
    }
}

#[test]
fn on_postgresql_all_keys_are_listed_soon() {
    if let Some(missing) = postgres::missing() {
        support::skip("on_postgresql_all_keys_are_listed_soon", &missing);
        return;
    }
    let server = Postgres::plain();
    let store = server.url("postgres");
    // Missing tables are one finding, and the summary counts the findings shown.
    let doctor = dlock::run(&store, &["doctor"]);
    assert_eq!(doctor.code(), 2, "{}", doctor.stdout);
    let (missing, warnings) = (
        doctor.stdout.matches("\nUNSAFE ").count(),
        doctor.stdout.matches("\nWARN ").count(),
    );
    let sum = format!(
        "\nnot safe: 1 thing to fix, {warnings} warning{}\n",
        if warnings == 1 { "" } else { "s" }
    );
    assert!(
        missing == 1 && doctor.stdout.ends_with(&sum),
        "{}",
        doctor.stdout
    );
    assert_eq!(dlock::run(&store, &["init"]).code(), 0);
    all_keys_are_listed_soon(&store);
}

fn all_keys_are_listed_soon(store: &str) {
    let (many, start) = (support::long_or(10_000, 600), unique("many"));
    let names: Vec<String> = (0..many).map(|n| format!("{start}-{n:05}")).collect();
    for (at, names) in names.chunks(TOGETHER).enumerate() {
        // One run in ten fails.
        let options: Vec<&str> = names.iter().flat_map(|name| ["-k", name]).collect();
        let ended = dlock::run(
            store,
            &[
                &["run"],
                &*options,
                &["--", if at % 10 == 0 { "false" } else { "true" }],
            ]
            .concat(),
        );
        assert!(ended.code() <= 1, "{}", ended.stderr);
    }
    let failed: usize = names
        .chunks(TOGETHER)
        .step_by(10)
        .map(<[String]>::len)
        .sum();
    // On PostgreSQL and Redis a run needs a round trip per lock, one after the other; these
    // commands pipeline many of them.
    let limit = support::stretched(Duration::from_secs(support::long_or(30, 10)));
    let report = |arguments: &[&str]| -> Value {
        let began = Instant::now();
        let ended = dlock::spawn(store, &[arguments, &["--json"]].concat()).wait(4 * limit);
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
        assert!(
            began.elapsed() < limit,
            "{arguments:?} took {:?}",
            began.elapsed()
        );
        serde_json::from_str(&ended.stdout).expect("JSON")
    };
    let all = report(&["list", &start, "--all"]);
    let listed: Vec<&str> = all["keys"]
        .as_array()
        .expect("keys")
        .iter()
        .filter_map(|one| one["key"].as_str())
        .collect();
    assert_eq!(listed, names, "each once, in order");
    assert!(
        all["keys"]
            .as_array()
            .expect("keys")
            .iter()
            .all(|one| one["runs"] == 1 && one["last"]["end"].is_string()),
        "{}",
        all["keys"][0]
    );
    assert_eq!(
        report(&["list", &start, "--failed"])["keys"]
            .as_array()
            .map(Vec::len),
        Some(failed)
    );
    assert_eq!(
        report(&["history"])["runs"].as_array().map(Vec::len),
        Some(many)
    );
    let latest = report(&["history", "--failed", "-n", "7"]);
    let fences: Vec<u64> = latest["runs"]
        .as_array()
        .expect("runs")
        .iter()
        .filter_map(|run| run["fence"].as_u64())
        .collect();
    assert_eq!(fences.len(), 7, "{latest}");
}

/// All keys except the fence counter expire, as `gc` explains.
#[test]
fn on_redis_only_fence_counters_stay() {
    if !support::have("on_redis_only_fence_counters_stay", &[Redis::PROGRAM]) {
        return;
    }
    let (server, key) = (Redis::plain(), unique("gc"));
    let run = |options: &[&str], status| {
        let ended = dlock::run(&server.url(), &[&["run", "-k", &key], options].concat());
        assert_eq!(ended.code(), status, "{}", ended.stderr);
    };
    run(&["--", "false"], 1);
    run(&["--at-least", "2s", "--", "true"], 0);
    run(&["--", "true"], 75);
    run(
        &[
            "--anyway", "--reason", "test", "--once", "--keep", "30d", "--", "true",
        ],
        0,
    );
    run(&["-s", "-w", "5s", "--", "true"], 0);
    run(&["--permits", "2", "-w", "5s", "--", "true"], 0);
    run(&["--fair", "-w", "5s", "--", "true"], 0);
    let forever: Vec<String> = server
        .keys()
        .into_iter()
        .filter(|(_, left)| *left < 0)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(forever, [format!("redisson_lock_token:{{dlock:{key}}}")]);
    let ended = dlock::run(&server.url(), &["gc", "--older-than", "0"]);
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    assert!(
        ended.stderr.contains(
            "nothing to remove: records end by themselves, and about 90 bytes per key stay"
        ),
        "{}",
        ended.stderr
    );
    let size = server.int(&["MEMORY", "USAGE", &forever[0]]);
    assert!((60..200).contains(&size), "{size} bytes");
}
