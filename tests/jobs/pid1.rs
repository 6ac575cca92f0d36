//! dlock as PID 1 of a container, where no other process reaps orphans and forwards signals.

use std::{fs, path::Path, time::Duration};

use rustix::process::Signal;

use crate::support::{
    self,
    dlock::{self, unique},
    process::{self, Process, Sweep},
    procfs,
};

const LIMIT: Duration = Duration::from_secs(60);

/// A container in which dlock runs a shell script.
struct Container {
    folder: tempfile::TempDir,
    run: Process,
    sweep: Sweep,
}

impl Container {
    /// Starts the container, or prints a skip note and returns `None` if the user isn't root.
    fn start(test: &str, options: &[&str], script: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            support::skip(test, "only root can make a PID namespace");
            return None;
        }
        let (folder, key) = (support::folder(), unique("container"));
        let mut command = process::command("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"])
            .arg(dlock::binary());
        command
            .args(["run", "-k", &key])
            .args(options)
            .args(["--", "sh", "-c", script, "sh"])
            .arg(folder.path());
        command.env("DLOCK_BACKEND", store(folder.path()));
        Some(Self {
            run: Process::collect(command),
            folder,
            sweep: Sweep(key),
        })
    }

    /// Returns the outer pid of PID 1.
    fn init(&self) -> u32 {
        procfs::children(self.run.pid()).first().expect("PID 1").pid
    }

    fn file(&self, name: &str) -> String {
        let path = self.folder.path().join(name);
        support::must(name, LIMIT, || path.exists());
        fs::read_to_string(path).expect("text")
    }
}

fn store(folder: &Path) -> String {
    format!("sqlite://{}", folder.join("locks.db").display())
}

#[test]
fn as_pid_1_dlock_reaps_zombies_and_passes_the_status_on() {
    // Starts orphans that end at once, and lists all processes half a second later.
    let script = r#"
for n in 1 2 3 4 5; do (sh -c 'sleep 0.1 & exec sleep 0.05' &) ; done
sleep 0.5
grep -l '^State:.Z' /proc/[0-9]*/status > "$1/zombies"
echo /proc/[0-9]* > "$1/processes"
exit 7"#;
    let Some(container) = Container::start(
        "as_pid_1_dlock_reaps_zombies_and_passes_the_status_on",
        &[],
        script,
    ) else {
        return;
    };
    let folder = container.folder.path().to_owned();
    container.file("processes");
    let said = |name| fs::read_to_string(folder.join(name)).expect("text");
    let ended = container.run.wait(LIMIT);
    assert_eq!((ended.code(), ended.stderr.as_str()), (7, ""));
    assert_eq!(said("zombies"), "");
    // dlock, the guardian and the shell.
    assert!(
        said("processes").starts_with("/proc/1 ") && said("processes").split(' ').count() == 3,
        "{}",
        said("processes")
    );
}

#[test]
fn as_pid_1_dlock_forwards_term_and_releases_the_lock() {
    let script = r#"trap 'exit 9' TERM; echo > "$1/ready"; while :; do sleep 0.05; done"#;
    let Some(container) = Container::start(
        "as_pid_1_dlock_forwards_term_and_releases_the_lock",
        &[],
        script,
    ) else {
        return;
    };
    container.file("ready");
    process::signal(container.init(), Signal::TERM);
    let Container { folder, run, sweep } = container;
    assert_eq!(run.wait(LIMIT).code(), 9);
    // For the skew guard another PID namespace is another host.
    let again = dlock::run(
        &store(folder.path()),
        &["run", "-k", &sweep.0, "--skew-guard", "0", "--", "true"],
    );
    assert_eq!(again.code(), 0, "{again:?}");
}

#[test]
fn as_pid_1_dlock_enforces_max_runtime_and_skips_with_0() {
    let script =
        r#"trap '' TERM; echo > "$1/ready"; setsid sleep 1000 & while :; do sleep 0.05; done"#;
    let options = ["--max-runtime", "1s", "--grace", "300ms", "-E", "0"];
    let Some(container) = Container::start(
        "as_pid_1_dlock_enforces_max_runtime_and_skips_with_0",
        &options,
        script,
    ) else {
        return;
    };
    container.file("ready");
    let other = ["run", "-k", &container.sweep.0, "-E", "0", "--", "false"];
    assert_eq!(
        dlock::run(&store(container.folder.path()), &other).code(),
        0
    );
    assert_eq!(container.run.wait(LIMIT).code(), 124);
}
