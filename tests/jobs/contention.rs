//! Twenty simultaneous `dlock run`, and a counter that loses updates as soon as two of them
//! overlap.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use crate::support::{
    self,
    dlock::{self, unique},
    process::{Process, Sweep},
    redis::Redis,
};

const PROCESSES: usize = 20;
/// How often each process takes the lock.
const ROUNDS: usize = 5;
const LIMIT: Duration = Duration::from_secs(120);

/// Reads the counter, gives another process time to interfere, and writes the counter. Reports an
/// overlap.
const COUNT: &str = r#"
cd "$1" || exit 1
mkdir inside 2>/dev/null || echo "$$ met another" >> overlaps
n=$(cat counter)
sleep 0.00$((n % 5))
echo $((n + 1)) > counter
echo "$DLOCK_FENCE" >> fences
rmdir inside
"#;

fn on_sqlite(run: impl Fn(&str)) {
    let folder = support::folder();
    run(&format!(
        "sqlite://{}",
        folder.path().join("locks.db").display()
    ));
}

fn on_redis(test: &str, run: impl Fn(&str)) {
    if support::have(test, &[Redis::PROGRAM]) {
        run(&Redis::plain().url());
    }
}

#[test]
fn sqlite_loses_no_update() {
    on_sqlite(no_update_is_lost);
}

#[test]
fn redis_loses_no_update() {
    on_redis("redis_loses_no_update", no_update_is_lost);
}

#[test]
fn on_sqlite_one_of_twenty_runs() {
    on_sqlite(one_of_twenty_runs);
}

#[test]
fn on_redis_one_of_twenty_runs() {
    on_redis("on_redis_one_of_twenty_runs", one_of_twenty_runs);
}

fn no_update_is_lost(backend: &str) {
    let (folder, key) = (support::folder(), unique("counter"));
    let _sweep = Sweep(key.clone());
    fs::write(folder.path().join("counter"), "0\n").expect("the counter");
    // Each process asks for the lock again at once, so that all of them always contend. -q: a wait
    // is told in a log.
    let again = r#"for round in $(seq "$3"); do "$0" run -q -k "$1" -w 100 -- sh -c "$4" count "$2" || exit; done"#;
    let waiters: Vec<Process> = (0..PROCESSES)
        .map(|_| {
            let mut command = support::process::command("sh");
            command
                .args(["-c", again])
                .arg(dlock::binary())
                .arg(&key)
                .arg(folder.path());
            command
                .arg(ROUNDS.to_string())
                .arg(COUNT)
                .env("DLOCK_BACKEND", backend);
            Process::collect(command)
        })
        .collect();
    for waiter in waiters {
        let ended = waiter.wait(LIMIT);
        assert_eq!((ended.code(), ended.stderr.as_str()), (0, ""), "{ended:?}");
    }
    assert_eq!(support::lines(&folder.path().join("overlaps")), [""; 0]);
    assert_eq!(
        support::lines(&folder.path().join("counter")),
        [(PROCESSES * ROUNDS).to_string()]
    );
    let fences = fences(folder.path());
    assert_eq!(fences.len(), PROCESSES * ROUNDS);
    assert!(
        fences.windows(2).all(|two| two[0] < two[1]),
        "a later holder had a lower fence: {fences:?}"
    );
    let left = dlock::run(backend, &["inspect", &key, "--json"]);
    assert!(
        left.stdout.contains("\"holders\":[]") && left.stdout.contains("\"waiters\":[]"),
        "{left:?}"
    );
}

fn fences(folder: &Path) -> Vec<u64> {
    support::lines(&folder.join("fences"))
        .iter()
        .map(|line| line.parse().expect("a fence"))
        .collect()
}

fn one_of_twenty_runs(backend: &str) {
    let (folder, key) = (support::folder(), unique("skip"));
    let _sweep = Sweep(key.clone());
    // The winner runs until all others have been skipped.
    let job = r#"echo "$DLOCK_FENCE" >> "$1/fences"; until [ -e "$1/over" ]; do sleep 0.05; done"#;
    let folder_name = folder.path().to_str().expect("UTF-8");
    let mut all: Vec<Process> = (0..PROCESSES)
        .map(|_| {
            dlock::spawn(
                backend,
                &["run", "-k", &key, "--", "sh", "-c", job, "job", folder_name],
            )
        })
        .collect();
    let refused = |all: &mut Vec<Process>| {
        all.iter_mut()
            .map(Process::has_ended)
            .filter(|ended| *ended)
            .count()
            == PROCESSES - 1
    };
    support::must("all but one have ended", LIMIT, || refused(&mut all));
    fs::write(folder.path().join("over"), "").expect("the end");
    let mut codes = Vec::new();
    for one in all {
        let ended = one.wait(LIMIT);
        assert_eq!(
            (ended.stdout.as_str(), ended.stderr.as_str()),
            ("", ""),
            "a skip is silent where nobody watches"
        );
        codes.push(ended.code());
    }
    codes.sort_unstable();
    assert_eq!(
        codes.iter().collect::<BTreeSet<_>>(),
        BTreeSet::from([&0, &75])
    );
    assert_eq!(
        codes.iter().filter(|code| **code == 0).count(),
        1,
        "{codes:?}"
    );
    assert_eq!(fences(folder.path()).len(), 1);
}
