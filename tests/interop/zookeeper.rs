//! What the tests with other ZooKeeper libraries have in common: a lock that two programs want, one after the other.

use std::{fs, path::Path, time::Duration};

use crate::support::{
    self,
    dlock::{self, unique},
    must,
    process::Process,
    say,
    zookeeper::ZooKeeper,
};

const LIMIT: Duration = Duration::from_secs(40);
/// Long enough for anybody who is not kept out to start.
const KEPT_OUT: Duration = Duration::from_millis(800);

/// Waits for a file to appear, saying when it began and ended in files of its own.
fn job(folder: &Path, who: &str) -> String {
    let folder = folder.display();
    format!("date +%s%N > {folder}/{who}.began; while [ ! -e {folder}/{who}.go ]; do sleep 0.01; done; date +%s%N > {folder}/{who}.ended")
}

fn at(folder: &Path, file: &str) -> i64 {
    fs::read_to_string(folder.join(file)).unwrap().trim().parse().unwrap()
}

/// A lock as dlock and as others know it.
struct Name {
    options: Vec<&'static str>,
    key: String,
    path: String,
}

fn names(what: &str) -> [Name; 2] {
    let (bare, spaced) = (unique(what), unique(what));
    [
        Name { options: vec!["--namespace="], path: format!("/{bare}"), key: bare },
        Name { options: Vec::new(), path: format!("/dlock/{spaced}"), key: spaced },
    ]
}

fn start_dlock(servers: &ZooKeeper, name: &Name, options: &[&str], script: &str) -> Process {
    let mut command = dlock::command();
    command.arg("run").args(&name.options).args(["-k", &name.key]).args(options).args(["--", "sh", "-c", script]);
    command.env("DLOCK_BACKEND", servers.url());
    Process::collect(command)
}

/// `other` starts a program that runs a shell line under the lock of a path, at servers like `127.0.0.1:2181`.
pub fn exclude_each_other(library: &str, other: &dyn Fn(&str, &str, &str) -> Process) {
    let servers = ZooKeeper::single();
    let at_servers = servers.url().replace("zookeeper://", "");
    for (name, mode) in names(library).iter().flat_map(|name| [(name, "-x"), (name, "-s")]) {
        // The other one has it, and dlock comes next.
        let folder = support::folder();
        let folder = folder.path();
        let runs = |who: &str| folder.join(format!("{who}.began")).exists();
        let go = |who: &str| fs::write(folder.join(format!("{who}.go")), "").unwrap();
        let holder = other(&at_servers, &name.path, &job(folder, "other"));
        must("the other one has it", LIMIT, || runs("other"));
        let refused = start_dlock(&servers, name, &[mode], "true").wait(LIMIT);
        assert_eq!(refused.code(), 75, "{}", refused.stderr);
        let mut look = dlock::command();
        look.arg("inspect").args(&name.options).args([&name.key, "--json"]).env("DLOCK_BACKEND", servers.url());
        let state: serde_json::Value = serde_json::from_str(&Process::collect(look).wait(LIMIT).stdout).unwrap();
        assert_eq!((state["holders"][0]["foreign"].as_bool(), state["holders"].as_array().unwrap().len()), (Some(true), 1), "{state}");
        let next = start_dlock(&servers, name, &[mode, "-w", "30"], &job(folder, "dlock"));
        std::thread::sleep(KEPT_OUT);
        assert!(!runs("dlock"), "dlock {mode} started beside {library}");
        go("dlock");
        go("other");
        assert_eq!(holder.wait(LIMIT).code(), 0);
        let next = next.wait(LIMIT);
        assert_eq!(next.code(), 0, "{}", next.stderr);
        let gap = at(folder, "dlock.began") - at(folder, "other.ended");
        assert!(gap > 0, "they overlap by {gap} ns");
        say(&format!("interop: from {library} to dlock {mode} in {} ms", gap / 1_000_000));

        // And the other way round.
        let folder = support::folder();
        let folder = folder.path();
        let runs = |who: &str| folder.join(format!("{who}.began")).exists();
        let go = |who: &str| fs::write(folder.join(format!("{who}.go")), "").unwrap();
        let holder = start_dlock(&servers, name, &[mode], &job(folder, "dlock"));
        must("dlock has it", LIMIT, || runs("dlock"));
        let next = other(&at_servers, &name.path, &job(folder, "other"));
        must("the other one waits", LIMIT, || servers.line(&name.path) == 2);
        std::thread::sleep(KEPT_OUT);
        assert!(!runs("other"), "{library} started beside dlock {mode}");
        go("other");
        go("dlock");
        let holder = holder.wait(LIMIT);
        assert_eq!(holder.code(), 0, "{}", holder.stderr);
        let next = next.wait(LIMIT);
        assert_eq!(next.code(), 0, "{}", next.stderr);
        let gap = at(folder, "other.began") - at(folder, "dlock.ended");
        assert!(gap > 0, "they overlap by {gap} ns");
        say(&format!("interop: from dlock {mode} to {library} in {} ms", gap / 1_000_000));
    }
}
