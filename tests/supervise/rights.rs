//! Cases that need root for their setup: unkillable processes, cgroups, PID namespaces. Printed as
//! ignored elsewhere.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use libtest_mimic::Trial;
use rustix::{
    fs::XattrFlags,
    process::{Signal, geteuid},
};

use crate::world::{World, send, stat, until};

const FREEZER: &str = "/sys/fs/cgroup/freezer";

/// Returns the cases of this file.
pub fn trials() -> Vec<Trial> {
    let root = geteuid().is_root();
    let namespaces = root
        && Command::new("unshare")
            .args(["--pid", "--fork", "--mount-proc", "true"])
            .status()
            .is_ok_and(|status| status.success());
    let freezer = root && Path::new(FREEZER).join("cgroup.procs").exists();
    let cgroup = root && unified().is_some();
    let cases: [(&str, fn(), bool); 12] = [
        (
            "a_set_uid_command_is_refused_before_the_lock",
            a_set_uid_command_is_refused_before_the_lock,
            root,
        ),
        (
            "root_without_cap_kill_counts_as_unprivileged",
            root_without_cap_kill_counts_as_unprivileged,
            root,
        ),
        (
            "an_unkillable_process_counts_as_alive",
            an_unkillable_process_counts_as_alive,
            root,
        ),
        (
            "a_process_stuck_in_the_kernel_counts_as_alive",
            a_process_stuck_in_the_kernel_counts_as_alive,
            freezer,
        ),
        (
            "a_slow_death_is_awaited_until_the_lease_ends",
            a_slow_death_is_awaited_until_the_lease_ends,
            freezer,
        ),
        (
            "dlock_works_for_an_unprivileged_user",
            dlock_works_for_an_unprivileged_user,
            root,
        ),
        (
            "as_pid_1_everything_is_reaped",
            as_pid_1_everything_is_reaped,
            namespaces,
        ),
        (
            "proc_of_another_namespace_is_not_trusted",
            proc_of_another_namespace_is_not_trusted,
            namespaces,
        ),
        (
            "processes_hidden_in_proc_are_killed_too",
            processes_hidden_in_proc_are_killed_too,
            namespaces,
        ),
        ("a_cgroup_holds_the_tree", a_cgroup_holds_the_tree, cgroup),
        (
            "a_cgroup_is_removed_when_dlock_or_the_guardian_is_killed",
            a_cgroup_is_removed_when_dlock_or_the_guardian_is_killed,
            cgroup,
        ),
        (
            "auto_uses_only_a_delegated_cgroup",
            auto_uses_only_a_delegated_cgroup,
            cgroup,
        ),
    ];
    cases
        .into_iter()
        .map(|(name, case, possible)| {
            Trial::test(name, move || {
                case();
                Ok(())
            })
            .with_ignored_flag(!possible)
        })
        .collect()
}

/// Returns the root of a writable cgroup v2 hierarchy.
fn unified() -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))?
        .to_owned();
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .into_iter()
        .map(Path::new);
    roots
        .filter(|root| root.join("cgroup.controllers").exists())
        .map(|root| root.join(&own))
        .find(|path| path.join("cgroup.procs").exists())
}

fn as_nobody(world: &World) -> [&'static str; 4] {
    fs::set_permissions(world.directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ]
}

/// Copies a program and makes it set-uid root.
fn set_uid_copy(world: &World, program: &str) -> String {
    let path = world.path(program);
    support::program::copy(format!("/usr/bin/{program}"), &path, 0o4755);
    path
}

/// Copies this test program to a place where every user can execute it.
fn public(world: &mut World) {
    support::program::copy(
        std::env::current_exe().unwrap(),
        world.path("program"),
        0o755,
    );
    world.program = world.path("program");
}

fn a_set_uid_command_is_refused_before_the_lock() {
    let mut world = World::new();
    public(&mut world);
    let prefix = as_nobody(&world);
    let command = set_uid_copy(&world, "id");
    world.start_behind(&prefix, "", &[&command]);
    assert_eq!(world.status(), 64);
    assert!(world.event("Refused").1.contains("is set-uid"));
    // On such a file system the bit raises no rights.
    let mut world = World::new();
    public(&mut world);
    let command = set_uid_copy(&world, "id");
    let folder = world.directory.path().display().to_string();
    let mount = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,nosuid \"$0\" && exec \"$@\"";
    let prefix = [
        &["unshare", "-m", "sh", "-c", mount, &folder][..],
        &as_nobody(&world),
    ]
    .concat();
    world.start_behind(&prefix, "", &[&command]);
    assert_eq!(world.status(), 0);
    // Root may kill a set-uid process.
    let mut world = World::new();
    let command = set_uid_copy(&world, "id");
    world.start_behind(&[], "", &[&command]);
    assert_eq!(world.status(), 0);
}

/// Simulates a container that drops `CAP_KILL`.
fn root_without_cap_kill_counts_as_unprivileged() {
    let mut world = World::new();
    public(&mut world);
    let command = set_uid_copy(&world, "id");
    std::os::unix::fs::chown(&command, Some(65534), None).unwrap();
    // chown clears the set-uid bit.
    fs::set_permissions(&command, fs::Permissions::from_mode(0o4755)).unwrap();
    world.start_behind(
        &["setpriv", "--inh-caps=-kill", "--bounding-set=-kill"],
        "",
        &[&command],
    );
    assert_eq!(world.status(), 64);
    assert!(world.event("Refused").1.contains("is set-uid"));
}

fn an_unkillable_process_counts_as_alive() {
    let mut world = World::new();
    public(&mut world);
    let prefix = as_nobody(&world);
    set_uid_copy(&world, "setpriv");
    let script =
        "DIR/setpriv --reuid=0 --regid=0 --clear-groups sleep TOKEN & echo $! > DIR/ready; wait";
    world.start_behind(&prefix, "term=600 kill=800", &["sh", "-c", script]);
    let pid: i32 = world.ready().file("ready").trim().parse().unwrap();
    assert_eq!(
        world.event("Unkillable").1,
        format!("{{ pid: {pid}, why: NotPermitted }}")
    );
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert!(
        world.when("Ended").is_none(),
        "reported as ended, but {pid} is alive"
    );
    assert_eq!(world.alive(), [pid]);
    send(pid, Signal::KILL);
    assert_eq!(world.status(), 76);
    world.await_end();
}

/// A frozen process: it can't die until it is thawed.
struct Frozen(PathBuf);

impl Frozen {
    fn new(pid: i32) -> Self {
        let freezer = PathBuf::from(format!("{FREEZER}/dlock-test-{pid}"));
        fs::create_dir(&freezer).unwrap();
        fs::write(freezer.join("cgroup.procs"), pid.to_string()).unwrap();
        fs::write(freezer.join("freezer.state"), "FROZEN").unwrap();
        Self(freezer)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        until("an empty cgroup", || fs::remove_dir(&self.0).ok());
    }
}

fn a_slow_death_is_awaited_until_the_lease_ends() {
    let mut world = World::new();
    crate::keys::detached(
        &mut world,
        "--ttl 20s --grace 100ms",
        "echo $$ > DIR/ready; exec sleep TOKEN",
    );
    let pid: i32 = world.file("ready").trim().parse().unwrap();
    let frozen = Frozen::new(pid);
    send(world.pid, Signal::STOP);
    let killed = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        // The kernel records a fatal TERM as a pending KILL.
        let pending = status.lines().filter_map(|line| {
            line.strip_prefix("ShdPnd:")
                .or_else(|| line.strip_prefix("SigPnd:"))
        });
        pending
            .map(|set| u64::from_str_radix(set.trim(), 16).unwrap())
            .any(|set| set & 1 << (9 - 1) != 0)
    };
    until("KILL", || killed().then_some(()));
    // After a second the process counts as unkillable.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    send(world.pid, Signal::CONT);
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert!(
        world.alive().contains(&world.pid),
        "dlock gave up before the lease ended"
    );
    drop(frozen);
    assert_eq!(world.status(), 76);
    let said = world.file("output");
    assert!(
        !said.contains("could not be killed") && !said.contains("without the lock"),
        "{said}"
    );
    world.await_end();
}

fn a_process_stuck_in_the_kernel_counts_as_alive() {
    let mut world = World::new();
    world.start("after=900:lost", "echo $$ > DIR/ready; exec sleep TOKEN");
    let pid: i32 = world.ready().file("ready").trim().parse().unwrap();
    let frozen = Frozen::new(pid);
    assert_eq!(
        world.event("Unkillable").1,
        format!("{{ pid: {pid}, why: Uninterruptible }}")
    );
    assert!(world.when("Ended").is_none());
    drop(frozen);
    assert_eq!(world.status(), 76);
    world.await_end();
}

fn dlock_works_for_an_unprivileged_user() {
    for victim in ["dlock", "guardian"] {
        let mut world = World::new();
        public(&mut world);
        let prefix = as_nobody(&world);
        let script = "trap '' TERM; (setsid sleep TOKEN &); echo > DIR/ready; sleep TOKEN";
        world.start_behind(&prefix, "contain=auto", &["sh", "-c", script]);
        world.ready();
        send(
            if victim == "dlock" {
                world.pid
            } else {
                world.guardian()
            },
            Signal::KILL,
        );
        world.status();
        world.await_end();
    }
}

fn as_pid_1_everything_is_reaped() {
    let mut world = World::new();
    let script = "(setsid sh -c 'sleep 0.2; : TOKEN' &); echo > DIR/ready; while ! [ -e DIR/end ]; do sleep 0.02; done; exit 5";
    world.start_behind(
        &["unshare", "--pid", "--fork", "--mount-proc"],
        "",
        &["sh", "-c", script],
    );
    world.ready();
    let init = until("PID 1", || {
        world.supervisors().into_iter().find(|pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status
                .lines()
                .any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
        })
    });
    // An orphan of another process that entered the namespace.
    let stranger = format!("(sleep 0.3 & echo $! > {}) ", world.path("stranger"));
    assert!(
        Command::new("nsenter")
            .args(["-t", &init.to_string(), "-p", "-m", "sh", "-c", &stranger])
            .status()
            .unwrap()
            .success()
    );
    let orphans = || -> Vec<i32> {
        let all = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<i32>().ok());
        all.filter(|pid| stat(*pid, 1).is_some_and(|parent| parent == init.to_string()))
            .collect()
    };
    assert_eq!(orphans().len(), 2, "the guardian and the orphan");
    until("the orphan to be reaped", || {
        (orphans().len() == 1).then_some(())
    });
    fs::write(world.path("end"), "x").unwrap();
    assert_eq!(world.status(), 5);
    world.await_end();
}

fn proc_of_another_namespace_is_not_trusted() {
    let mut world = World::new();
    world.start_behind(
        &["unshare", "--pid", "--fork"],
        "after=600:lost",
        &[
            "sh",
            "-c",
            "trap '' TERM; echo > DIR/ready; sleep TOKEN & sleep TOKEN",
        ],
    );
    world.ready();
    assert_eq!(world.status(), 76);
    world.await_end();
}

/// With `hidepid` on /proc, a user can't see his own processes that aren't dumpable, such as a
/// nested dlock or a program that he may not read.
fn processes_hidden_in_proc_are_killed_too() {
    let mut world = World::new();
    public(&mut world);
    let nobody = as_nobody(&world);
    support::program::copy("/bin/sh", world.path("sh"), 0o711);
    let hide = "mount -t proc -o hidepid=2 proc /proc && exec \"$@\"";
    let mut prefix = vec![
        "unshare", "--mount", "--pid", "--fork", "sh", "-c", hide, "sh",
    ];
    prefix.extend(nobody);
    let hidden = "trap '' TERM; sleep TOKEN & echo > DIR/ready; while :; do sleep TOKEN; done";
    world.start_behind(
        &prefix,
        "after=600:lost",
        &[
            "sh",
            "-c",
            &format!("setsid DIR/sh -c \"{hidden}\" & sleep TOKEN"),
        ],
    );
    world.ready();
    assert_eq!(world.status(), 76);
    assert!(world.when("Unkillable").is_none());
    assert_eq!(world.alive(), [0; 0]);
    world.await_end();
}

fn members(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    entries.filter(|name| name.starts_with("dlock-")).collect()
}

fn own_cgroup(pid: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{}/cgroup", pid.trim())).unwrap();
    text.lines()
        .find_map(|line| line.strip_prefix("0::"))
        .unwrap()
        .to_owned()
}

fn a_cgroup_holds_the_tree() {
    for (end, status) in [("touch", 5), ("lost", 76)] {
        let mut world = World::new();
        let script = "(setsid sh -c 'echo $$ > DIR/daemon; exec sleep TOKEN' &); echo $$ > DIR/ready; while ! [ -e DIR/end ]; do sleep 0.02; done; \
                      kill $(cat DIR/daemon); exit 5";
        world.start(
            if end == "lost" {
                "contain=cgroup after=900:lost"
            } else {
                "contain=cgroup"
            },
            script,
        );
        let command = own_cgroup(&world.ready().file("ready"));
        assert!(command.contains("/dlock-run-"), "{command}");
        assert_eq!(own_cgroup(&world.file("daemon")), command);
        assert_ne!(own_cgroup(&world.guardian().to_string()), command);
        if end == "touch" {
            fs::write(world.path("end"), "x").unwrap();
        }
        assert_eq!(world.status(), status);
        world.await_end();
        let directory = unified().unwrap().join(command.rsplit('/').next().unwrap());
        assert!(!directory.exists(), "{} is left over", directory.display());
    }
}

fn a_cgroup_is_removed_when_dlock_or_the_guardian_is_killed() {
    for victim in ["dlock", "guardian"] {
        let mut world = World::new();
        world.start(
            "contain=cgroup",
            "trap '' TERM; (setsid sleep TOKEN &); echo $$ > DIR/ready; sleep TOKEN",
        );
        let command = own_cgroup(&world.ready().file("ready"));
        let directory = unified().unwrap().join(command.rsplit('/').next().unwrap());
        assert!(directory.exists());
        send(
            if victim == "dlock" {
                world.pid
            } else {
                world.guardian()
            },
            Signal::KILL,
        );
        world.status();
        world.await_end();
        until("the cgroup's removal", || {
            (!directory.exists()).then_some(())
        });
    }
}

fn auto_uses_only_a_delegated_cgroup() {
    let ours = unified()
        .unwrap()
        .join(format!("delegated-{}", std::process::id()));
    fs::create_dir(&ours).unwrap();
    for delegated in [false, true] {
        if delegated {
            rustix::fs::setxattr(&ours, "user.delegate", b"1", XattrFlags::empty()).unwrap();
        }
        let mut world = World::new();
        let enter = format!("echo 0 > {}/cgroup.procs; exec \"$@\"", ours.display());
        world.start_behind(
            &["sh", "-c", &enter, "sh"],
            "contain=auto",
            &["sh", "-c", "cat /proc/self/cgroup > DIR/cgroup; exit 5"],
        );
        assert_eq!(world.status(), 5);
        assert_eq!(
            world.file("cgroup").contains("/dlock-run-"),
            delegated,
            "{}",
            world.file("cgroup")
        );
        assert_eq!(members(&ours), [""; 0]);
        world.await_end();
    }
    until("an empty cgroup", || fs::remove_dir(&ours).ok());
}
