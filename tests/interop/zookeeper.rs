//! What the tests with other ZooKeeper libraries have in common: a lock that two programs want, one after the other.

use std::{fs, path::Path, time::Duration};

use ::dlock::{
    backends::zookeeper::{Options, ZooKeeper as Store},
    lock::Backend,
};

use crate::permit::Asker;
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

/// Both of them, in folders of their own, on a lock of one path.
struct Two<'a> {
    servers: ZooKeeper,
    library: &'a str,
    other: &'a dyn Fn(&str, &str, &str) -> Process,
}

impl Two<'_> {
    fn other(&self, name: &Name, folder: &Path) -> Process {
        (self.other)(&self.servers.url().replace("zookeeper://", ""), &name.path, &job(folder, "other"))
    }

    fn dlock(&self, name: &Name, options: &[&str], folder: &Path) -> Process {
        start_dlock(&self.servers, name, options, &job(folder, "dlock"))
    }

    /// The other one has it, and dlock comes next.
    fn dlock_waits(&self, name: &Name, mode: &str) {
        let (library, folder) = (self.library, support::folder());
        let folder = folder.path();
        let holder = self.other(name, folder);
        must("the other one has it", LIMIT, || runs(folder, "other"));
        let refused = start_dlock(&self.servers, name, &[mode], "true").wait(LIMIT);
        assert_eq!(refused.code(), 75, "{}", refused.stderr);
        let mut look = dlock::command();
        look.arg("inspect").args(&name.options).args([&name.key, "--json"]).env("DLOCK_BACKEND", self.servers.url());
        let state: serde_json::Value = serde_json::from_str(&Process::collect(look).wait(LIMIT).stdout).unwrap();
        assert_eq!((state["holders"][0]["foreign"].as_bool(), state["holders"].as_array().unwrap().len()), (Some(true), 1), "{state}");
        let next = self.dlock(name, &[mode, "-w", "30"], folder);
        std::thread::sleep(KEPT_OUT);
        assert!(!runs(folder, "dlock"), "dlock {mode} started beside {library}");
        go(folder, "dlock");
        go(folder, "other");
        assert_eq!(holder.wait(LIMIT).code(), 0);
        let next = next.wait(LIMIT);
        assert_eq!(next.code(), 0, "{}", next.stderr);
        let gap = at(folder, "dlock.began") - at(folder, "other.ended");
        assert!(gap > 0, "they overlap by {gap} ns");
        say(&format!("interop: from {library} to dlock {mode} in {} ms", gap / 1_000_000));
    }

    /// And the other way round.
    fn other_waits(&self, name: &Name, mode: &str) {
        let (library, folder) = (self.library, support::folder());
        let folder = folder.path();
        let holder = self.dlock(name, &[mode], folder);
        must("dlock has it", LIMIT, || runs(folder, "dlock"));
        let own = self.servers.line(&name.path);
        let next = self.other(name, folder);
        must("the other one waits", LIMIT, || self.servers.line(&name.path) == own + 1);
        std::thread::sleep(KEPT_OUT);
        assert!(!runs(folder, "other"), "{library} started beside dlock {mode}");
        go(folder, "other");
        go(folder, "dlock");
        let holder = holder.wait(LIMIT);
        assert_eq!(holder.code(), 0, "{}", holder.stderr);
        let next = next.wait(LIMIT);
        assert_eq!(next.code(), 0, "{}", next.stderr);
        let gap = at(folder, "other.began") - at(folder, "dlock.ended");
        assert!(gap > 0, "they overlap by {gap} ns");
        say(&format!("interop: from dlock {mode} to {library} in {} ms", gap / 1_000_000));
        must("nothing is left in the line", LIMIT, || self.servers.line(&name.path) == 0);
    }
}

fn runs(folder: &Path, who: &str) -> bool {
    folder.join(format!("{who}.began")).exists()
}

fn go(folder: &Path, who: &str) {
    fs::write(folder.join(format!("{who}.go")), "").unwrap();
}

/// `other` starts a program that runs a shell line under the lock of a path, at servers like `127.0.0.1:2181`.
pub fn exclude_each_other(library: &str, modes: &[&str], other: &dyn Fn(&str, &str, &str) -> Process) {
    let two = Two { servers: ZooKeeper::single(), library, other };
    for (name, mode) in names("lock").iter().flat_map(|name| modes.iter().map(move |mode| (name, mode))) {
        two.dlock_waits(name, mode);
        two.other_waits(name, mode);
    }
}

/// As long as any permit is held, the other one waits, and the other way round.
pub fn excludes_a_permit(library: &str, other: &dyn Fn(&str, &str, &str) -> Process) {
    let two = Two { servers: ZooKeeper::single(), library, other };
    let hosts = two.servers.hosts();
    let make = |namespace| -> Box<dyn Backend> { Box::new(Store::new(Options { namespace, ..Options::new(hosts) })) };
    let (name, folder) = (&names("permit")[1], support::folder());
    let folder = folder.path();
    let mut permit = Asker::new(make, "dlock", &name.key);
    assert!(permit.takes());
    let own = two.servers.line(&name.path);
    let next = two.other(name, folder);
    must("the other one waits", LIMIT, || two.servers.line(&name.path) == own + 1);
    std::thread::sleep(KEPT_OUT);
    assert!(!runs(folder, "other"), "{library} started beside a permit");
    permit.gives_back();
    must("the other one has it", LIMIT, || runs(folder, "other"));
    assert!(!permit.takes(), "a permit beside {library}");
    go(folder, "other");
    assert_eq!(next.wait(LIMIT).code(), 0);
    assert!(permit.takes());
}

/// Whoever comes first, both run at once.
pub fn go_together(library: &str, mode: &str, other: &dyn Fn(&str, &str, &str) -> Process) {
    let two = Two { servers: ZooKeeper::single(), library, other };
    for first in ["dlock", "other"] {
        let (name, folder) = (&names("lock")[0], support::folder());
        let folder = folder.path();
        let start = |who| if who == "dlock" { two.dlock(name, &[mode], folder) } else { two.other(name, folder) };
        let mut both = Vec::new();
        for who in [first, if first == "dlock" { "other" } else { "dlock" }] {
            both.push(start(who));
            must("it runs beside the other one", LIMIT, || runs(folder, who));
        }
        go(folder, "dlock");
        go(folder, "other");
        for one in both {
            let one = one.wait(LIMIT);
            assert_eq!(one.code(), 0, "{}", one.stderr);
        }
    }
}
