//! What only etcd has: `etcdctl elect`, the read-write lock of its recipes, one queue for all, and names within names.

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
/// Long enough for anybody who is not kept out to start.
const KEPT_OUT: Duration = Duration::from_millis(600);

macro_rules! etcd_or_return {
    ($name:expr) => {
        if have($name, &Etcd::PROGRAMS) { Etcd::plain() } else { return }
    };
}

/// Waits for a file to appear, saying when it began and ended in a file of its own.
fn job(folder: &Path, who: &str) -> String {
    let folder = folder.display();
    format!("date +%s%N > {folder}/{who}.began; while [ ! -e {folder}/{who}.go ]; do sleep 0.01; done; date +%s%N > {folder}/{who}.ended")
}

fn go(folder: &Path, who: &str) {
    fs::write(folder.join(format!("{who}.go")), "").unwrap();
}

fn runs(folder: &Path, who: &str) -> bool {
    folder.join(format!("{who}.began")).exists()
}

fn at(folder: &Path, who: &str, what: &str) -> i64 {
    fs::read_to_string(folder.join(format!("{who}.{what}"))).unwrap().trim().parse().unwrap()
}

/// How a lock of one name is written for each of them.
struct Name {
    etcdctl: String,
    options: Vec<String>,
    key: String,
}

/// Without a namespace the names are the same; in a namespace, `etcdctl` has to say it.
fn names(what: &str) -> [Name; 2] {
    let (bare, spaced) = (unique(what), unique(what));
    [
        Name { etcdctl: bare.clone(), options: vec!["--namespace=".into()], key: bare },
        Name { etcdctl: format!("dlock/{spaced}"), options: Vec::new(), key: spaced },
    ]
}

fn start_dlock(etcd: &Etcd, name: &Name, wait: &str, script: &str) -> Process {
    let mut command = dlock::command();
    command.arg("run").args(&name.options).args(["-k", &name.key, "-w", wait, "--", "sh", "-c", script]);
    command.env("DLOCK_BACKEND", etcd.url());
    Process::collect(command)
}

fn start_etcdctl(etcd: &Etcd, name: &Name, script: &str) -> Process {
    let mut command = etcd.etcdctl();
    command.args(["lock", &name.etcdctl, "--", "sh", "-c", script]).stdin(std::process::Stdio::null());
    Process::collect(command)
}

/// etcd's read-write lock of the recipes, whose keys anybody can put: its readers and dlock's go together, and its writers and
/// dlock's readers exclude each other. Where it looks for whom to wait for, dlock's keys are.
#[test]
fn the_read_write_lock_of_the_recipes_and_dlock_see_each_other() {
    let etcd = etcd_or_return!("the_read_write_lock_of_the_recipes_and_dlock_see_each_other");
    let name = &names("recipes")[1];
    let put = |what: &str| {
        let granted = etcd.ctl(&["lease", "grant", "60"]);
        let lease = granted.split_whitespace().nth(1).unwrap().to_owned();
        etcd.ctl(&["put", "--lease", &lease, &format!("{}/{what}", name.etcdctl), ""]);
        lease
    };
    let shared = |wait: &str, script: &str| {
        let mut command = dlock::command();
        command.arg("run").args(&name.options).args(["-s", "-k", &name.key, "-w", wait, "--", "sh", "-c", script]);
        command.env("DLOCK_BACKEND", etcd.url());
        Process::collect(command)
    };
    // A reader of theirs: by the nanosecond that it came in.
    let reader = put("read/1732190000000000000");
    assert_eq!(shared("0", "exit 3").wait(LIMIT).code(), 3, "readers go together");
    assert_eq!(start_dlock(&etcd, name, "0", "true").wait(LIMIT).code(), 75, "a reader of theirs keeps a writer out");
    etcd.ctl(&["lease", "revoke", &reader]);
    let writer = put("write/1732190000000000001");
    assert_eq!(shared("0", "true").wait(LIMIT).code(), 75, "a writer of theirs keeps a reader out");
    let folder = support::folder();
    let folder = folder.path();
    let waits = shared("20", &job(folder, "dlock"));
    std::thread::sleep(KEPT_OUT);
    assert!(!runs(folder, "dlock"));
    etcd.ctl(&["lease", "revoke", &writer]);
    must("dlock has its turn", LIMIT, || runs(folder, "dlock"));
    // And the other way round: their writers wait for all below the name, their readers for all that begins with `write`.
    let keys = |what: &str| etcd.keys(&format!("{}/{what}", name.etcdctl)).len();
    assert_eq!((keys(""), keys("read/"), keys("write")), (1, 1, 0));
    go(folder, "dlock");
    assert_eq!(waits.wait(LIMIT).code(), 0);
    let mut command = dlock::command();
    command.arg("run").args(&name.options).args(["--permits=2", "-k", &name.key, "--", "sh", "-c", &job(folder, "permit")]);
    command.env("DLOCK_BACKEND", etcd.url());
    let permit = Process::collect(command);
    must("a permit is held", LIMIT, || runs(folder, "permit"));
    assert_eq!((keys(""), keys("read/"), keys("write")), (1, 0, 1), "to their readers a permit is a writer");
    go(folder, "permit");
    assert_eq!(permit.wait(LIMIT).code(), 0);
}

/// They stand in one queue, and have their turns in the order of their coming.
#[test]
fn they_stand_in_one_queue() {
    let etcd = etcd_or_return!("they_stand_in_one_queue");
    for name in names("queue") {
        let folder = support::folder();
        let folder = folder.path();
        let mut all = Vec::new();
        for n in 0..6 {
            let script = job(folder, &n.to_string());
            all.push(if n % 2 == 0 { start_etcdctl(&etcd, &name, &script) } else { start_dlock(&etcd, &name, "25", &script) });
            // The folder alone: what is nested deeper has another name.
            must("it stands in the queue", LIMIT, || etcd.keys(&format!("{}/", name.etcdctl)).len() == n + 1);
        }
        (0..6).for_each(|n| go(folder, &n.to_string()));
        for one in all {
            assert_eq!(one.wait(LIMIT).code(), 0);
        }
        for n in 1..6 {
            let (before, this) = ((n - 1).to_string(), n.to_string());
            assert!(at(folder, &this, "began") > at(folder, &before, "ended"), "{n} began before {before} had ended");
        }
    }
}

/// Whoever comes, whenever, and whether they wait: two never run at once.
#[test]
fn a_crowd_of_both_never_overlaps() {
    let etcd = etcd_or_return!("a_crowd_of_both_never_overlaps");
    let name = &names("crowd")[0];
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
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// An election is held as a lock is, with a value that is nobody's metadata.
#[test]
fn an_elected_leader_keeps_dlock_out() {
    let etcd = etcd_or_return!("an_elected_leader_keeps_dlock_out");
    let name = &names("election")[0];
    let mut command = etcd.etcdctl();
    command.args(["elect", &name.etcdctl, "{\"dlock\":true}"]).stdin(std::process::Stdio::null());
    let leader = Process::collect(command);
    must("it is elected", LIMIT, || !etcd.keys(&format!("{}/", name.etcdctl)).is_empty());
    assert_eq!(start_dlock(&etcd, name, "0", "true").wait(LIMIT).code(), 75);
    leader.signal(Signal::INT);
    let waiter = start_dlock(&etcd, name, "20", "exit 3").wait(LIMIT);
    assert_eq!(waiter.code(), 3, "{}", waiter.stderr);
}

/// To `etcdctl` a lock `a` contains a lock `a/b`; dlock's don't contain each other, nor does dlock wait for `etcdctl`'s.
#[test]
fn names_with_slashes_are_strangers() {
    let etcd = etcd_or_return!("names_with_slashes_are_strangers");
    let name = &names("path")[0];
    let folder = support::folder();
    let below = Name { etcdctl: format!("{}/1", name.etcdctl), options: Vec::new(), key: String::new() };
    let holder = start_etcdctl(&etcd, &below, &job(folder.path(), "below"));
    must("etcdctl has the lower one", LIMIT, || runs(folder.path(), "below"));
    let free = start_dlock(&etcd, name, "0", "exit 4").wait(LIMIT);
    assert_eq!(free.code(), 4, "{}", free.stderr);
    go(folder.path(), "below");
    holder.wait(LIMIT);
}
