//! `dlock doctor` on servers that are healthy, badly configured, silent or down, and the data that
//! it leaves in the store.

use std::time::Duration;

use rustix::process::Signal;

use crate::support::{dlock, have, must, redis::Redis, stretched};

/// The only key that stays: the lock's fence counter.
const COUNTER: &str = "redisson_lock_token:{dlock:%1Fdoctor}";

fn keys(server: &Redis) -> Vec<String> {
    server.keys().into_iter().map(|(name, _)| name).collect()
}

#[test]
fn the_exit_status_shows_the_worst_finding() {
    if !have("the_exit_status_shows_the_worst_finding", &[Redis::PROGRAM]) {
        return;
    }
    let server = Redis::durable();
    let fine = dlock::run(&server.url(), &["doctor"]);
    assert_eq!(fine.code(), 0, "{fine:?}");
    assert!(
        fine.stderr.is_empty() && fine.stdout.ends_with("all is well\n"),
        "{fine:?}"
    );
    server.command(&["CONFIG", "SET", "appendonly", "no"]);
    assert_eq!(dlock::run(&server.url(), &["doctor"]).code(), 1);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let bad = dlock::run(&server.url(), &["doctor", "-q"]);
    assert_eq!(bad.code(), 2, "{bad:?}");
    assert!(
        bad.stdout.contains("UNSAFE  maxmemory-policy allkeys-lru")
            && bad.stdout.contains("fix: CONFIG SET"),
        "{bad:?}"
    );
    assert_eq!(keys(&server), [COUNTER]);
    server.freeze();
    let silent = dlock::run(&server.url(), &["doctor", "--backend-timeout", "1s"]);
    server.thaw();
    assert!(
        silent.code() == 69 && silent.took < stretched(Duration::from_secs(5)),
        "{silent:?}"
    );
    server.kill();
    assert_eq!(dlock::run(&server.url(), &["doctor"]).code(), 69);
}

#[test]
fn concurrent_and_interrupted_doctors_leave_nothing_behind() {
    if !have(
        "concurrent_and_interrupted_doctors_leave_nothing_behind",
        &[Redis::PROGRAM],
    ) {
        return;
    }
    let server = Redis::durable();
    let both: Vec<_> = (0..2)
        .map(|_| dlock::spawn(&server.url(), &["doctor"]))
        .collect();
    for one in both {
        let ended = one.wait(dlock::LIMIT);
        assert_eq!(ended.code(), 0, "{ended:?}");
    }
    // The signal arrives at different moments of the run.
    for ms in [1, 3, 5, 8, 12, 20, 40] {
        let one = dlock::spawn(&server.url(), &["doctor"]);
        std::thread::sleep(Duration::from_millis(ms));
        one.signal(Signal::TERM);
        let code = one.wait(dlock::LIMIT).code();
        assert!([0, 143].contains(&code), "after {ms} ms: {code}");
    }
    // Of an acquire without an answer a note stays for a while, so that it takes nothing if it
    // arrives late.
    must(
        "only the fence counter is left",
        Duration::from_secs(1),
        || {
            let mut left = server.keys();
            left.retain(|(name, ttl)| !(name.contains(":late:") && *ttl > 0));
            left.len() == 1 && left[0].0 == COUNTER
        },
    );
}
