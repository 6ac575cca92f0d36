//! Too little CPU time: the tree must still be dead before its lease ends.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rustix::process::geteuid;

use crate::{
    trials,
    world::{World, until},
};

trials!(
    a_throttled_tree_is_dead_before_its_lease_ends,
    a_throttled_tree_in_many_sessions_is_dead_before_its_lease_ends
);

/// A cgroup with a CPU limit; removed when dropped.
struct Limited(PathBuf);

impl Limited {
    /// Returns `None` if no such cgroup can be made.
    fn new(name: &str) -> Option<Self> {
        if !geteuid().is_root() {
            return None;
        }
        let name = format!("dlock-test-{name}-{}", std::process::id());
        let (old, new) = (Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup"));
        if old.join("cpu.cfs_quota_us").exists() || old.join("cgroup.procs").exists() {
            let group = Self(old.join(name));
            fs::create_dir(&group.0).ok()?;
            return group.0.join("cpu.cfs_quota_us").exists().then_some(group);
        }
        fs::write(new.join("cgroup.subtree_control"), "+cpu").ok()?;
        let group = Self(new.join(name));
        fs::create_dir(&group.0).ok()?;
        group.0.join("cpu.max").exists().then_some(group)
    }

    /// Returns the shell command that moves the shell into the cgroup.
    fn enter(&self) -> String {
        format!("echo 0 > {}/cgroup.procs; exec \"$@\"", self.0.display())
    }

    /// Limits the cgroup to this many µs of CPU time per 100 ms.
    fn limit(&self, quota: u32) {
        let old = self.0.join("cpu.cfs_quota_us");
        if old.exists() {
            fs::write(old, quota.to_string()).unwrap();
        } else {
            fs::write(self.0.join("cpu.max"), format!("{quota} 100000")).unwrap();
        }
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let old = self.0.join("cpu.cfs_quota_us");
        let _ = if old.exists() {
            fs::write(old, "-1")
        } else {
            fs::write(self.0.join("cpu.max"), "max 100000")
        };
        for _ in 0..400 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

fn now() -> u64 {
    u64::try_from(dlock::lease::BootClock::read().since_boot().as_millis()).unwrap()
}

/// Runs 13 processes on 3 % of a CPU with an unrenewed 10 s lease. Returns when the last one died,
/// in ms after the start.
fn starve(test: &str, script: &str) -> Option<u64> {
    let Some(group) = Limited::new(test) else {
        eprintln!("SKIPPED {test}: no cgroup with a limit of CPU time can be made here");
        return None;
    };
    let mut world = World::new();
    world.start_behind(
        &["sh", "-c", &group.enter(), "sh"],
        "term=5938 kill=7918",
        &["sh", "-c", script],
    );
    let (started, _) = world.event("Started");
    world.await_processes(13);
    group.limit(3_000);
    until("the death of the tree", || {
        world.alive().is_empty().then_some(())
    });
    let took = now() - started;
    group.limit(100_000);
    assert_eq!(world.status(), 76);
    Some(took)
}

/// The end of a 10 s lease, in ms.
const LEASE: u64 = 9_898;

fn a_throttled_tree_is_dead_before_its_lease_ends() {
    let hogs = "trap '' TERM; for n in 1 2 3 4 5 6 7 8 9 10 11 12; do while :; do :; done & done; while :; do :; done; : TOKEN";
    let Some(took) = starve("throttled", hogs) else {
        return;
    };
    assert!(
        (5_900..LEASE).contains(&took),
        "the last one died {took} ms after the start"
    );
}

fn a_throttled_tree_in_many_sessions_is_dead_before_its_lease_ends() {
    let hog = "while :; do :; done; : TOKEN";
    let hogs = format!(
        "trap '' TERM; for n in 1 2 3 4 5 6 7 8 9 10 11 12; do setsid sh -c '{hog}' & done; wait; : TOKEN"
    );
    let Some(took) = starve("sessions", &hogs) else {
        return;
    };
    assert!(
        (5_900..LEASE).contains(&took),
        "the last one died {took} ms after the start"
    );
}
