//! A store, a first holder that ignores TERM, and a second holder whose command checks the first
//! holder's tree when it starts.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::support::{
    self, dlock,
    netns::Netns,
    process::{Ended, Process, Sweep},
    procfs::{self, Stat},
};

/// The TTL of the leases here: TERM comes 1.2 s after the last confirmed renewal, KILL by 1.6 s.
pub const TTL: Duration = Duration::from_secs(2);
/// A limit that no step exceeds, even on a loaded machine.
pub const LIMIT: Duration = Duration::from_secs(30);

/// One lock, and the processes around it.
pub struct World {
    pub url: String,
    pub key: String,
    folder: TempDir,
    /// A sleep duration in seconds that only the first holder's tree uses; it identifies those
    /// processes.
    tag: String,
    _sweep: Sweep,
}

/// Lists the living processes of the first tree, then records that the second command started.
const PROBE: &str = r#"
for file in $(grep -lasFf "$1/tag" /proc/[0-9]*/cmdline); do
  read -r name < "${file%/cmdline}/comm" 2>/dev/null || continue
  case $name in dlock*) ;; *) echo "$name" >> "$1/overlap" ;; esac
done
echo started >> "$1/second"
"#;

impl World {
    pub fn new(url: String) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let tag = format!(
            "8{:07}{:03}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = support::folder();
        fs::write(folder.path().join("tag"), &tag).unwrap();
        fs::write(folder.path().join("probe.sh"), PROBE).unwrap();
        Self {
            url,
            key: dlock::unique("job"),
            folder,
            _sweep: Sweep(tag.clone()),
            tag,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a command that ignores TERM, with a child, and a grandchild in its own session that
    /// also ignores TERM.
    pub fn stubborn(&self) -> String {
        format!(
            "trap '' TERM INT HUP; setsid sh -c 'trap \"\" TERM; while :; do sleep {tag}; done' & sleep {tag} & touch {ready}; \
             while :; do sleep {tag}; done",
            tag = self.tag,
            ready = self.path("ready").display()
        )
    }

    /// Returns `text` with the tag in place of TAG.
    pub fn tagged(&self, text: &str) -> String {
        text.replace("TAG", &self.tag)
    }

    /// Starts `dlock run` with these options around a shell script, in a process group of its own.
    pub fn start(&self, options: &[&str], script: &str) -> Process {
        self.start_on(&self.url, options, script)
    }

    /// Like [`World::start`], through another URL of the same store.
    pub fn start_on(&self, url: &str, options: &[&str], script: &str) -> Process {
        use std::os::unix::process::CommandExt as _;
        let mut command = dlock::command();
        let ttl = format!("{}s", TTL.as_secs());
        command
            .args(["run", "-k", &self.key])
            .args(options)
            .args(["--", "sh", "-c", script]);
        command
            .env("DLOCK_BACKEND", url)
            .env("DLOCK_TTL", ttl)
            .process_group(0);
        Process::collect(command)
    }

    /// Like [`World::first_on`], in another network namespace.
    pub fn first_in(&self, netns: &Netns, url: &str) -> Process {
        use std::os::unix::process::CommandExt as _;
        let [ip, rest @ ..] = netns.prefix();
        let mut command = crate::support::process::command(ip);
        let ttl = format!("{}s", TTL.as_secs());
        command.args(rest).arg(dlock::binary()).args([
            "run",
            "-k",
            &self.key,
            "--",
            "sh",
            "-c",
            &self.stubborn(),
        ]);
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", "/nonexistent")
            .stdin(std::process::Stdio::null());
        command
            .env("DLOCK_BACKEND", url)
            .env("DLOCK_TTL", ttl)
            .process_group(0);
        self.await_tree(Process::collect(command))
    }

    /// Starts the stubborn first holder, and waits until its whole tree runs.
    pub fn first(&self) -> Process {
        self.first_on(&self.url, &[])
    }

    /// Like [`World::first`], through another URL of the same store.
    pub fn first_on(&self, url: &str, options: &[&str]) -> Process {
        self.await_tree(self.start_on(url, options, &self.stubborn()))
    }

    #[track_caller]
    fn await_tree(&self, mut first: Process) -> Process {
        // The shell, its child and its sleep, the shell in the other session and its sleep.
        let runs = || self.path("ready").exists() && self.tree().len() >= 5;
        support::must(
            "the first holder's tree runs, or dlock has ended",
            LIMIT,
            || runs() || first.has_ended(),
        );
        if first.has_ended() {
            let first = first.wait(LIMIT);
            panic!(
                "the first holder ended with {}: {}",
                first.code(),
                first.stderr
            );
        }
        first
    }

    /// Returns the living processes of the first holder's tree.
    pub fn tree(&self) -> Vec<Stat> {
        procfs::tagged(&self.tag)
            .into_iter()
            .filter(|stat| !stat.name.starts_with("dlock") && stat.name != "lock-guard")
            .collect()
    }

    /// Starts a second holder, which waits for the lock and runs the probe.
    #[track_caller]
    pub fn start_second(&self) -> Process {
        let probe = format!(
            "sh {} {}",
            self.path("probe.sh").display(),
            self.folder.path().display()
        );
        self.start(&["-w", "25"], &probe)
    }

    /// Waits for a second holder that runs the probe, and returns how long that took.
    #[track_caller]
    pub fn second(&self) -> Duration {
        let began = Instant::now();
        let second = self.start_second().wait(LIMIT);
        assert_eq!(second.code(), 0, "{}", second.stderr);
        self.assert_no_overlap();
        began.elapsed()
    }

    #[track_caller]
    pub fn assert_no_overlap(&self) {
        assert!(
            self.path("second").exists(),
            "the second command never started"
        );
        let overlap = support::lines(&self.path("overlap"));
        assert!(
            overlap.is_empty(),
            "the second command started while these of the first tree were alive: {overlap:?}"
        );
    }

    /// Asserts that no process of the first tree is left, not even the guardian.
    #[track_caller]
    pub fn assert_gone(&self) {
        support::must("the first tree is gone", LIMIT, || {
            procfs::tagged(&self.tag).is_empty()
        });
    }

    /// Asserts that the lock becomes free, at the latest when its lease ends.
    #[track_caller]
    pub fn assert_free(&self) {
        support::must("the lock is free", LIMIT, || self.is_free());
    }

    pub fn is_free(&self) -> bool {
        let state: serde_json::Value = serde_json::from_str(&self.inspect().stdout).expect("JSON");
        state["holders"].as_array().is_some_and(Vec::is_empty)
            && state["waiters"].as_array().is_some_and(Vec::is_empty)
    }

    pub fn inspect(&self) -> Ended {
        dlock::run(&self.url, &["inspect", &self.key, "--json"])
    }

    /// Returns the guardian of a running `dlock run`.
    pub fn guardian(dlock: &Process) -> u32 {
        procfs::children(dlock.pid())
            .iter()
            .find(|stat| stat.name == "lock-guard")
            .expect("a guardian")
            .pid
    }

    pub fn file(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

/// Returns `path` as one word of a shell script.
pub fn shell(path: &Path) -> String {
    format!("'{}'", path.display())
}
