//! Faults of a store that is a file on this host: it is removed, busy or too large.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use sqlx::{Connection as _, SqliteConnection};

use crate::{
    support::{
        self, dlock, must,
        process::{Ended, Process},
    },
    world::{LIMIT, World, shell},
};

fn url(database: &Path) -> String {
    format!("sqlite://{}", database.display())
}

/// A lease with so few renewals that none of them notices the removal.
const LONG: [&str; 2] = ["--ttl", "120s"];

fn taken_away(take_away: impl FnOnce(&Path)) {
    let root = support::folder();
    let store = root.path().join("store");
    fs::create_dir(&store).unwrap();
    let world = World::new(url(&store.join("locks.db")));
    let first = world.first_on(&url(&store.join("locks.db")), &LONG);
    // The holder is watching the directory by then, as in a long-running job.
    std::thread::sleep(Duration::from_millis(300));
    take_away(&store);
    world.second();
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    assert!(
        first.stderr.contains("another holder, or none"),
        "{}",
        first.stderr
    );
    world.assert_gone();
}

#[test]
fn a_directory_that_is_removed_ends_the_hold_before_the_next_one_starts() {
    taken_away(|store| {
        fs::remove_dir_all(store).unwrap();
        fs::create_dir(store).unwrap();
    });
}

#[test]
fn a_directory_that_is_replaced_ends_the_hold_before_the_next_one_starts() {
    taken_away(|store| {
        fs::rename(store, store.with_extension("old")).unwrap();
        fs::create_dir(store).unwrap();
    });
}

/// Blocks all other writers of the database until it is dropped.
struct Writer(tokio::runtime::Runtime, Option<SqliteConnection>);

impl Writer {
    fn begin(database: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let connection = runtime.block_on(async {
            let mut connection = SqliteConnection::connect(&url(database)).await.unwrap();
            sqlx::raw_sql("PRAGMA busy_timeout = 10000; BEGIN IMMEDIATE")
                .execute(&mut connection)
                .await
                .unwrap();
            connection
        });
        Self(runtime, Some(connection))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(connection) = self.1.take() {
            let _ = self.0.block_on(connection.close());
        }
    }
}

/// A job with `--once`, whose database is busy when the job ends, and its status file.
struct Once {
    world: World,
    folder: tempfile::TempDir,
}

impl Once {
    fn new() -> Self {
        let folder = support::folder();
        Self {
            world: World::new(url(&folder.path().join("locks.db"))),
            folder,
        }
    }

    fn start(&self, options: &[&str]) -> Process {
        let (go, ran) = (
            self.folder.path().join("go"),
            self.folder.path().join("ran"),
        );
        let script = format!(
            "echo ran >> {}; while [ ! -e {} ]; do sleep 0.02; done",
            shell(&ran),
            shell(&go)
        );
        let status = self.folder.path().join("status.json").display().to_string();
        self.world.start(
            &[
                &["--once", "--keep", "1d", "--status-file", &status],
                options,
            ]
            .concat(),
            &script,
        )
    }

    fn runs(&self) -> usize {
        support::lines(&self.folder.path().join("ran")).len()
    }

    fn end_while_busy(&self) -> Writer {
        must("the job runs", LIMIT, || self.runs() == 1);
        let writer = Writer::begin(&self.folder.path().join("locks.db"));
        fs::write(self.folder.path().join("go"), "").unwrap();
        writer
    }

    fn history(&self) -> String {
        dlock::run(
            &url(&self.folder.path().join("locks.db")),
            &["history", &self.world.key],
        )
        .stdout
    }

    fn status(&self) -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(self.folder.path().join("status.json")).unwrap())
            .unwrap()
    }
}

#[test]
fn a_release_retries_on_a_busy_database_until_the_lease_ends() {
    let once = Once::new();
    let job = once.start(&LONG);
    let writer = once.end_while_busy();
    // Longer than the limit of a single answer.
    std::thread::sleep(Duration::from_secs(7));
    drop(writer);
    let job = job.wait(LIMIT);
    assert_eq!((job.code(), job.stderr.as_str()), (0, ""));
    assert_eq!(once.status()["released"], "yes");
    let again = once.start(&["--retry-crashed"]).wait(LIMIT);
    assert_eq!(again.code(), 75, "{}", again.stderr);
    assert_eq!(once.runs(), 1, "the job ran twice");
    let history = once.history();
    assert!(
        history.lines().any(|line| line.trim_end().ends_with(" ok"))
            && !history.contains("EXPIRED"),
        "{history}"
    );
}

#[test]
fn an_unrecorded_success_is_reported() {
    let once = Once::new();
    let job = once.start(&["--ttl", "3s"]);
    let writer = once.end_while_busy();
    let job = job.wait(LIMIT);
    assert_eq!(job.code(), 0, "{}", job.stderr);
    assert!(
        job.stderr.contains("the database is busy")
            && job.stderr.contains("was not told how the run ended"),
        "{}",
        job.stderr
    );
    assert_eq!(once.status()["released"], "unknown");
    drop(writer);
    let again = once.start(&[]).wait(LIMIT);
    assert_eq!(again.code(), 75, "{}", again.stderr);
    assert_eq!(once.runs(), 1);
}

/// Runs dlock from a shell with this limit.
fn limited(limit: &str, backend: &str, arguments: &[&str]) -> Ended {
    let mut command: Command = support::process::command("sh");
    command
        .args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\"")])
        .arg(dlock::binary())
        .args(arguments);
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", "/nonexistent")
        .stdin(Stdio::null());
    command.env("DLOCK_BACKEND", backend).process_group(0);
    Process::collect(command).wait(LIMIT)
}

#[test]
fn a_file_size_limit_stops_no_job() {
    let folder = support::folder();
    let backend = url(&folder.path().join("locks.db"));
    assert_eq!(dlock::run(&backend, &["init"]).code(), 0);
    // Each renewal adds some KiB to the log, until the limit.
    let job = limited(
        "-f 120",
        &backend,
        &[
            "run",
            "-k",
            "job",
            "--ttl",
            "1s",
            "--",
            "sh",
            "-c",
            "sleep 8; exit 7",
        ],
    );
    assert_eq!(job.code(), 7, "{}", job.stderr);
    // The status file can't be written, and no temporary file is left.
    let status = folder.path().join("status/s.json");
    fs::create_dir(status.parent().unwrap()).unwrap();
    let path = status.display().to_string();
    let job = limited("-f 0", &backend, &["verify", "job", "--token", "x"]);
    assert_ne!(job.code(), 153, "{}", job.stderr);
    let job = limited(
        "-f 0",
        &backend,
        &["run", "-k", "job", "--status-file", &path, "--", "true"],
    );
    assert!(job.status.code().is_some(), "{job:?}");
    assert_eq!(
        fs::read_dir(status.parent().unwrap()).unwrap().count(),
        0,
        "{}",
        job.stderr
    );
}

#[test]
fn a_command_keeps_its_file_size_limit() {
    let folder = support::folder();
    let backend = url(&folder.path().join("locks.db"));
    let large = folder.path().join("large");
    let script = format!(
        "ulimit -f 1; exec dd if=/dev/zero of={} bs=4096 count=2",
        shell(&large)
    );
    let job = dlock::run(&backend, &["run", "-k", "job", "--", "sh", "-c", &script]);
    assert_eq!(job.code(), 128 + libc::SIGXFSZ, "{}", job.stderr);
}

#[test]
fn dlock_runs_within_a_descriptor_limit() {
    let folder = support::folder();
    let backend = url(&folder.path().join("locks.db"));
    for limit in ["-n 100", "-n 40"] {
        let job = limited(
            limit,
            &backend,
            &["run", "-k", "job", "--", "sh", "-c", "exit 7"],
        );
        assert_eq!(job.code(), 7, "{limit}: {}", job.stderr);
    }
    // Too few descriptors: the error is in plain words.
    let job = limited("-n 6", &backend, &["run", "-k", "job", "--", "true"]);
    assert!(
        job.code() != 0 && job.code() != 70 && !job.stderr.contains("os error"),
        "{}: {}",
        job.code(),
        job.stderr
    );
}

/// Returns a full pipe: its write end, and its read end.
fn full_pipe() -> (std::os::fd::OwnedFd, fs::File) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let flags = rustix::fs::fcntl_getfl(&write).unwrap();
    rustix::fs::fcntl_setfl(&write, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&write, &[b'x'; 4096]).is_ok() {}
    while rustix::io::write(&write, b"x").is_ok() {}
    rustix::fs::fcntl_setfl(&write, flags).unwrap();
    (write, fs::File::from(read))
}

/// dlock prints to a full pipe while it holds the lock. The renewals don't wait for the output.
#[test]
fn a_full_stderr_pipe_does_not_block_renewals() {
    use std::io::Read as _;
    let folder = support::folder();
    let done = folder.path().join("done");
    let (write, mut read) = full_pipe();
    let mut command = dlock::command();
    // dlock warns of processes that outlive the command after 5 s.
    let script = format!("(sleep 9; echo > {}) & exit 3", shell(&done));
    command
        .args(["run", "-k", "job", "--ttl", "3s", "--", "sh", "-c", &script])
        .env("DLOCK_BACKEND", url(&folder.path().join("locks.db")));
    command.stdout(Stdio::null()).stderr(write).process_group(0);
    let job = Process::start(command);
    must("the leftover process ends", LIMIT, || done.exists());
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = read.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    });
    let job = job.wait(LIMIT);
    let said = reader.join().unwrap();
    assert_eq!(job.code(), 3, "{}", said.trim_start_matches('x'));
    assert!(
        said.contains("the lock stays held"),
        "the warning is printed once the pipe is read: {}",
        said.trim_start_matches('x')
    );
}

/// Nobody reads, and no signal comes: whoever started dlock gets its status.
#[test]
fn a_stderr_that_stays_blocked_is_given_up() {
    let folder = support::folder();
    let backend = url(&folder.path().join("locks.db"));
    for options in [
        &["--max-runtime", "1s"][..],
        &["--max-runtime", "1s", "--output", "on-failure", "--json"],
    ] {
        let (write, _read) = full_pipe();
        let mut command = dlock::command();
        command.args(["run", "-k", "job"]).args(options).args([
            "--",
            "sh",
            "-c",
            "echo out; sleep 100",
        ]);
        command
            .env("DLOCK_BACKEND", &backend)
            .stdout(Stdio::null())
            .stderr(write)
            .process_group(0);
        let began = Instant::now();
        let job = Process::start(command).wait(LIMIT);
        assert_eq!(job.code(), 124, "{options:?}");
        assert!(
            began.elapsed() > Duration::from_secs(5),
            "{options:?}: a slow reader has time: {:?}",
            began.elapsed()
        );
        assert!(
            began.elapsed() < support::stretched(Duration::from_secs(9)),
            "{options:?}: it is waited for once: {:?}",
            began.elapsed()
        );
    }
}

/// The same for a stop: the command is stopped and the lock is free while the pipe is full, and a
/// signal ends dlock.
#[test]
fn a_full_stderr_pipe_does_not_delay_a_stop() {
    let folder = support::folder();
    let backend = url(&folder.path().join("locks.db"));
    let (write, _read) = full_pipe();
    let mut command = dlock::command();
    let ready = folder.path().join("ready");
    let script = format!("touch {}; sleep 100", shell(&ready));
    command
        .args([
            "run",
            "-k",
            "job",
            "--max-runtime",
            "1s",
            "--",
            "sh",
            "-c",
            &script,
        ])
        .env("DLOCK_BACKEND", &backend);
    command.stdout(Stdio::null()).stderr(write).process_group(0);
    let job = Process::start(command);
    must("the command runs", LIMIT, || ready.exists());
    must("the lock is free", LIMIT, || {
        let state = dlock::run(&backend, &["inspect", "job", "--json"]).stdout;
        serde_json::from_str::<serde_json::Value>(&state).is_ok_and(|state| state["held"] == false)
    });
    must("a signal ends dlock", LIMIT, || {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_raw(job.pid().cast_signed()).unwrap(),
            Signal::TERM,
        );
        support::procfs::stat(job.pid()).is_none_or(|stat| stat.state == 'Z')
    });
}

/// How often the thread fell asleep in which a waiter waits in the kernel's queue; `None` if there
/// is no such thread.
fn falls_asleep(waiter: &Process) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{}/task", waiter.pid())).ok()?;
    let thread = threads.flatten().find(|thread| {
        fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name == "dlock-wait\n")
    })?;
    let status = fs::read_to_string(thread.path().join("status")).ok()?;
    status.lines().find_map(|line| {
        line.strip_prefix("voluntary_ctxt_switches:")?
            .trim()
            .parse()
            .ok()
    })
}

#[test]
fn a_hand_over_wakes_one_waiter() {
    let folder = support::folder();
    let world = World::new(url(&folder.path().join("locks.db")));
    let [started, go, taken, end] = ["started", "go", "taken", "end"].map(|name| world.path(name));
    let script = |begun: &Path, end: &Path| {
        format!(
            "echo >> {}; until [ -e {} ]; do sleep 0.05; done",
            begun.display(),
            end.display()
        )
    };
    let holder = world.start(&[], &script(&started, &go));
    must("the holder has the lock", LIMIT, || started.exists());
    let waiters: Vec<Process> = (0..6)
        .map(|_| world.start(&["-w", "forever"], &script(&taken, &end)))
        .collect();
    must("all wait in the kernel", LIMIT, || {
        waiters
            .iter()
            .all(|waiter| falls_asleep(waiter).is_some_and(|times| times > 0))
    });
    std::thread::sleep(Duration::from_millis(300));
    let asleep = || -> Vec<Option<u64>> { waiters.iter().map(falls_asleep).collect() };
    let before = asleep();
    fs::write(&go, "").unwrap();
    must("a waiter has the lock", LIMIT, || taken.exists());
    std::thread::sleep(Duration::from_millis(300));
    let woken = before
        .iter()
        .zip(asleep())
        .filter(|(before, after)| **before != *after)
        .count();
    fs::write(&end, "").unwrap();
    for ended in waiters
        .into_iter()
        .chain([holder])
        .map(|process| process.wait(LIMIT))
    {
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
    }
    assert_eq!(woken, 1);
}

/// A run that is slow between the lock of its bytes and the row: its hold has no record that the
/// request to stop could be written on.
#[test]
fn a_hold_that_is_not_recorded_yet_can_be_broken() {
    let folder = support::folder();
    let database = folder.path().join("locks.db");
    let world = World::new(url(&database));
    assert_eq!(dlock::run(&url(&database), &["init"]).code(), 0);
    let writer = Writer::begin(&database);
    // On a busy machine the stops take long.
    let patient = ["--backend-timeout", "60s"];
    let job = world.start(&patient, "sleep 100");
    must(
        "the run is stopped before it could write its row",
        LIMIT,
        || {
            job.signal(Signal::CONT);
            std::thread::sleep(Duration::from_millis(20));
            job.signal(Signal::STOP);
            world.inspect().stdout.contains("\"fence\":null")
        },
    );
    drop(writer);
    let start_break = || {
        let mut command = dlock::command();
        command
            .args(["break", &world.key, "--yes", "--reason", "x"])
            .args(patient)
            .env("DLOCK_BACKEND", url(&database));
        let breaking = Process::start(command);
        std::thread::sleep(Duration::from_millis(500));
        breaking
    };
    let interrupted = start_break();
    interrupted.signal(Signal::INT);
    assert_eq!(interrupted.wait(LIMIT).code(), 130);
    let breaking = start_break();
    job.signal(Signal::CONT);
    let breaking = breaking.wait(LIMIT);
    assert_eq!(breaking.code(), 0, "{}", breaking.stderr);
    assert_eq!(job.wait(LIMIT).code(), 76);
}
