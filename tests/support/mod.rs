//! The base of all tests: real servers on free ports in temporary folders, a TCP proxy that injects
//! faults, and processes that are tracked and ended by their ids.
//!
//! Nothing here is mocked, nothing is looked up or killed by name, and nothing outlives an aborted
//! test run.
#![allow(missing_docs, reason = "only tests use it")]
#![allow(
    clippy::new_without_default,
    reason = "starting a server is no default"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests measure and wait in real time"
)]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

pub mod clock;
pub mod cluster;
pub mod deaf;
pub mod dice;
pub mod disk;
pub mod dlock;
pub mod etcd;
pub mod libraries;
pub mod mariadb;
pub mod netns;
pub mod ports;
pub mod postgres;
pub mod process;
pub mod procfs;
pub mod program;
pub mod proxy;
mod pulse;
pub mod redis;
pub mod redlock;
pub mod sentinel;
pub mod stores;
pub mod switch;
pub mod tair;
pub mod tls;
pub mod zookeeper;

use std::{
    env,
    io::Write as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Returns the folder of cargo's that is `above` steps above this test program.
fn built(above: usize) -> PathBuf {
    let program = env::current_exe().expect("a test program");
    program
        .ancestors()
        .nth(above)
        .expect("folders of cargo")
        .to_owned()
}

/// Returns the folder for files that tests make once and keep.
pub fn kept() -> PathBuf {
    let kept = built(3).join("tmp");
    std::fs::create_dir_all(&kept).expect("a folder next to cargo's");
    kept
}

/// Returns the folder with this name in cargo's target folder, where `tests/run` puts programs that
/// no package installs.
pub fn unpacked(name: &str) -> PathBuf {
    // With `--target`, cargo's folders are one deeper.
    [4, 3]
        .map(|above| built(above).join(name))
        .into_iter()
        .find(|folder| folder.exists())
        .unwrap_or_else(|| built(3).join(name))
}

/// Whether a test that can't run here must fail instead of being skipped.
pub fn skips_fail() -> bool {
    env::var("DLOCK_TEST_REQUIRE").is_ok_and(|v| v == "1")
        || env::var("CI").is_ok_and(|v| v == "true")
}

/// Returns the program's full path, looked up in PATH and in the folders of system programs.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Reports a skipped test, bypassing the test runner's capturing. Fails the test where skips are
/// not allowed.
pub fn skip(test: &str, why: &str) {
    assert!(
        !skips_fail(),
        "{test} can't run here and may not be skipped: {why}"
    );
    say(&format!("SKIPPED {test}: {why}"));
}

/// Prints a line, bypassing the test runner's capturing.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Returns which programs are not installed; `None` if all are.
pub fn missing(programs: &[&str]) -> Option<String> {
    let missing: Vec<_> = programs
        .iter()
        .filter(|name| find_program(name).is_none())
        .copied()
        .collect();
    (!missing.is_empty()).then(|| format!("not installed: {}", missing.join(", ")))
}

/// Returns whether all `programs` are installed; otherwise reports the test as skipped, or fails
/// it.
pub fn have(test: &str, programs: &[&str]) -> bool {
    let missing = missing(programs);
    if let Some(why) = &missing {
        skip(test, why);
    }
    missing.is_none()
}

/// Makes a temporary folder, which is removed with the returned value.
pub fn folder() -> tempfile::TempDir {
    // Nearly every test makes a folder, so stalls are recorded from the first test on.
    pulse::worst();
    tempfile::Builder::new()
        .prefix("dlock-test-")
        .tempdir()
        .expect("a temporary folder")
}

/// Returns how much longer than on an idle machine a step may take now. 1 if no task waited for a
/// processor in the last seconds; up to 4 if tasks waited half of the time or more, or if the whole
/// machine stalled, as a virtual one may. Time limits in tests are multiplied by this factor.
pub fn slowness() -> u32 {
    let pressure = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let average = pressure
        .strip_prefix("some avg10=")
        .and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    // A kernel without pressure data may be busy.
    let busy = average.map_or(3, |percent| (percent * 3).div_ceil(50).min(3));
    let stalled = u32::try_from(pulse::worst().as_millis() / 200)
        .unwrap_or(3)
        .min(3);
    1 + busy.max(stalled)
}

/// Measures the part of the processors' time that this process gets: 1 on an idle machine, a third
/// beside two busy programs for each processor. Takes a fifth of a second.
pub fn processor_share() -> f64 {
    const FOR: Duration = Duration::from_millis(200);
    let spin = || {
        let began = Instant::now();
        while began.elapsed() < FOR {
            std::hint::spin_loop();
        }
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        (
            Duration::try_from(used).unwrap_or_default(),
            began.elapsed(),
        )
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads: Vec<_> = (0..processors).map(|_| std::thread::spawn(spin)).collect();
    let times: Vec<(Duration, Duration)> = threads
        .into_iter()
        .map(|thread| thread.join().expect("a measurement"))
        .collect();
    let (used, passed) = (
        times.iter().map(|time| time.0),
        times.iter().map(|time| time.1),
    );
    used.sum::<Duration>().div_duration_f64(passed.sum())
}

/// Returns a time limit, extended for a busy machine.
pub fn stretched(limit: Duration) -> Duration {
    limit * slowness()
}

/// Returns a time limit, extended by the machine's longest stall of the last seconds: no process
/// runs, or is killed, during a stall.
pub fn beyond_stalls(limit: Duration) -> Duration {
    limit + pulse::worst()
}

/// Returns a test's long value in `tests/run --all`, and the short one otherwise.
pub fn long_or<T>(long: T, short: T) -> T {
    if std::env::var_os("DLOCK_TEST_ALL").is_some() {
        long
    } else {
        short
    }
}

/// Returns the number of waiters in tests with many waiters.
pub fn many_waiters() -> usize {
    long_or(1000, 150)
}

/// Polls `done` every few milliseconds until it returns true, for at most `limit`. Returns whether
/// it did.
pub fn eventually(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if done() {
            return true;
        }
        if began.elapsed() >= limit {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits like [`eventually`], longer on a busy machine, and fails the test with `what` if the limit
/// is reached.
#[track_caller]
pub fn must(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !eventually(limit, &mut done) {
        assert!(
            began.elapsed() < stretched(limit),
            "not within {:?}: {what}",
            began.elapsed()
        );
    }
}

/// Returns the lines of a file; none if the file does not exist yet.
pub fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file)
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect()
}
