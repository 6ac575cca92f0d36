//! Cases for etcd only: `etcdctl elect`, the read-write lock of its recipes, the common queue, and
//! nested names.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::support::{
    self,
    dlock::{self, unique},
    etcd::Etcd,
    have, must,
    process::Process,
};

const LIMIT: Duration = Duration::from_secs(30);
/// Long enough for a program to start if the lock doesn't block it.
const KEPT_OUT: Duration = Duration::from_millis(600);

macro_rules! etcd_or_return {
    ($name:expr) => {
        if have($name, &Etcd::PROGRAMS) {
            Etcd::plain()
        } else {
            return;
        }
    };
}

/// Returns a script that waits for a file, and writes its start and end times to files.
fn job(folder: &Path, who: &str) -> String {
    let folder = folder.display();
    format!(
        "date +%s%N > {folder}/{who}.began; while [ ! -e {folder}/{who}.go ]; do sleep 0.01; done; date +%s%N > {folder}/{who}.ended"
    )
}

fn go(folder: &Path, who: &str) {
    fs::write(folder.join(format!("{who}.go")), "").unwrap();
}

fn runs(folder: &Path, who: &str) -> bool {
    folder.join(format!("{who}.began")).exists()
}

fn at(folder: &Path, who: &str, what: &str) -> i64 {
    fs::read_to_string(folder.join(format!("{who}.{what}")))
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

/// A lock's name in both programs.
struct Name {
    etcdctl: String,
    options: Vec<String>,
    key: String,
}

/// Without a namespace the names are equal. In a namespace, `etcdctl` has to add it.
fn names(what: &str) -> [Name; 2] {
    let (bare, spaced) = (unique(what), unique(what));
    [
        Name {
            etcdctl: bare.clone(),
            options: vec!["--namespace=".into()],
            key: bare,
        },
        Name {
            etcdctl: format!("dlock/{spaced}"),
            options: Vec::new(),
            key: spaced,
        },
    ]
}

fn start_dlock(etcd: &Etcd, name: &Name, wait: &str, script: &str) -> Process {
    let mut command = dlock::command();
    command
        .arg("run")
        .args(&name.options)
        .args(["-k", &name.key, "-w", wait, "--", "sh", "-c", script]);
    command.env("DLOCK_BACKEND", etcd.url());
    Process::collect(command)
}

fn start_etcdctl(etcd: &Etcd, name: &Name, script: &str) -> Process {
    let mut command = etcd.etcdctl();
    command
        .args(["lock", &name.etcdctl, "--", "sh", "-c", script])
        .stdin(std::process::Stdio::null());
    Process::collect(command)
}

/// The read-write lock of etcd's recipes: its readers are compatible with dlock's, and its writers
/// and dlock's readers exclude each other. Any client can put its keys, and it finds dlock's keys
/// where it looks for holders.
#[test]
fn the_recipes_read_write_lock_works_with_dlock() {
    let etcd = etcd_or_return!("the_recipes_read_write_lock_works_with_dlock");
    let name = &names("recipes")[1];
    let put = |what: &str| {
        let granted = etcd.ctl(&["lease", "grant", "60"]);
        let lease = granted.split_whitespace().nth(1).unwrap().to_owned();
        etcd.ctl(&[
            "put",
            "--lease",
            &lease,
            &format!("{}/{what}", name.etcdctl),
            "",
        ]);
        lease
    };
    let shared = |wait: &str, script: &str| {
        let mut command = dlock::command();
        command
            .arg("run")
            .args(&name.options)
            .args(["-s", "-k", &name.key, "-w", wait, "--", "sh", "-c", script]);
        command.env("DLOCK_BACKEND", etcd.url());
        Process::collect(command)
    };
    // A recipe's reader has the time of its arrival in ns as its name.
    let reader = put("read/1732190000000000000");
    assert_eq!(
        shared("0", "exit 3").wait(LIMIT).code(),
        3,
        "readers are compatible"
    );
    assert_eq!(
        start_dlock(&etcd, name, "0", "true").wait(LIMIT).code(),
        75,
        "a recipe's reader blocks a writer"
    );
    etcd.ctl(&["lease", "revoke", &reader]);
    let writer = put("write/1732190000000000001");
    assert_eq!(
        shared("0", "true").wait(LIMIT).code(),
        75,
        "a recipe's writer blocks a reader"
    );
    let folder = support::folder();
    let folder = folder.path();
    let waits = shared("20", &job(folder, "dlock"));
    std::thread::sleep(KEPT_OUT);
    assert!(!runs(folder, "dlock"));
    etcd.ctl(&["lease", "revoke", &writer]);
    must("dlock gets the lock", LIMIT, || runs(folder, "dlock"));
    // In the other direction: a recipe's writer waits for all keys under the name, a reader for all
    // keys that start with `write`.
    let keys = |what: &str| etcd.keys(&format!("{}/{what}", name.etcdctl)).len();
    assert_eq!((keys(""), keys("read/"), keys("write")), (1, 1, 0));
    go(folder, "dlock");
    assert_eq!(waits.wait(LIMIT).code(), 0);
    let mut command = dlock::command();
    command.arg("run").args(&name.options).args([
        "--permits=2",
        "-k",
        &name.key,
        "--",
        "sh",
        "-c",
        &job(folder, "permit"),
    ]);
    command.env("DLOCK_BACKEND", etcd.url());
    let permit = Process::collect(command);
    must("a permit is held", LIMIT, || runs(folder, "permit"));
    assert_eq!(
        (keys(""), keys("read/"), keys("write")),
        (1, 0, 1),
        "for a recipe's reader a permit is a writer"
    );
    go(folder, "permit");
    assert_eq!(permit.wait(LIMIT).code(), 0);
}

/// Both wait in one queue and get the lock in the order of their arrival.
#[test]
fn etcdctl_and_dlock_share_one_queue() {
    let etcd = etcd_or_return!("etcdctl_and_dlock_share_one_queue");
    for name in names("queue") {
        let folder = support::folder();
        let folder = folder.path();
        let mut all = Vec::new();
        for n in 0..6 {
            let script = job(folder, &n.to_string());
            all.push(if n % 2 == 0 {
                start_etcdctl(&etcd, &name, &script)
            } else {
                start_dlock(&etcd, &name, "25", &script)
            });
            // Only keys directly in the folder: deeper keys belong to other names.
            must("the waiter is in the queue", LIMIT, || {
                etcd.keys(&format!("{}/", name.etcdctl)).len() == n + 1
            });
        }
        (0..6).for_each(|n| go(folder, &n.to_string()));
        for one in all {
            assert_eq!(one.wait(LIMIT).code(), 0);
        }
        for n in 1..6 {
            let (before, this) = ((n - 1).to_string(), n.to_string());
            assert!(
                at(folder, &this, "began") > at(folder, &before, "ended"),
                "{n} began before {before} had ended"
            );
        }
    }
}

/// No two run at once, with or without waiting.
#[test]
fn contending_etcdctl_and_dlock_runs_never_overlap() {
    let etcd = etcd_or_return!("contending_etcdctl_and_dlock_runs_never_overlap");
    let name = &names("contention")[0];
    let folder = support::folder();
    let inside = folder.path().join("inside");
    let script = format!(
        "mkdir {inside} || echo overlap >> {folder}/overlap; sleep 0.02; rmdir {inside}; echo done >> {folder}/done",
        inside = inside.display(),
        folder = folder.path().display()
    );
    let began = Instant::now();
    let mut all = Vec::new();
    for _ in 0..6 {
        all.push(start_etcdctl(&etcd, name, &script));
        all.push(start_dlock(&etcd, name, "25", &script));
    }
    for one in all {
        assert_eq!(one.wait(LIMIT).code(), 0);
    }
    assert_eq!(support::lines(&folder.path().join("done")).len(), 12);
    assert!(!folder.path().join("overlap").exists());
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
}

/// An election is held like a lock, with a value that isn't dlock's metadata.
#[test]
fn an_elected_leader_keeps_dlock_out() {
    let etcd = etcd_or_return!("an_elected_leader_keeps_dlock_out");
    let name = &names("election")[0];
    let mut command = etcd.etcdctl();
    command
        .args(["elect", &name.etcdctl, "{\"dlock\":true}"])
        .stdin(std::process::Stdio::null());
    let leader = Process::collect(command);
    must("the leader is elected", LIMIT, || {
        !etcd.keys(&format!("{}/", name.etcdctl)).is_empty()
    });
    assert_eq!(start_dlock(&etcd, name, "0", "true").wait(LIMIT).code(), 75);
    leader.signal(Signal::INT);
    let waiter = start_dlock(&etcd, name, "20", "exit 3").wait(LIMIT);
    assert_eq!(waiter.code(), 3, "{}", waiter.stderr);
}

/// For `etcdctl`, lock `a` contains lock `a/b`. dlock's locks are independent, and dlock doesn't
/// wait for `etcdctl`'s inner lock.
#[test]
fn dlock_locks_with_slashes_are_independent() {
    let etcd = etcd_or_return!("dlock_locks_with_slashes_are_independent");
    let name = &names("path")[0];
    let folder = support::folder();
    let below = Name {
        etcdctl: format!("{}/1", name.etcdctl),
        options: Vec::new(),
        key: String::new(),
    };
    let holder = start_etcdctl(&etcd, &below, &job(folder.path(), "below"));
    must("etcdctl holds the inner lock", LIMIT, || {
        runs(folder.path(), "below")
    });
    let free = start_dlock(&etcd, name, "0", "exit 4").wait(LIMIT);
    assert_eq!(free.code(), 4, "{}", free.stderr);
    go(folder.path(), "below");
    holder.wait(LIMIT);
}
