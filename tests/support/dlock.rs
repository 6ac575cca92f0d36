//! The binary under test, as a user starts it.

use std::{
    collections::BTreeMap,
    env,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use super::process::{self, Ended, Process};

/// Returns the path of the binary, next to cargo's folder of test programs.
pub fn binary() -> PathBuf {
    env::var_os("DLOCK_TEST_BINARY").map_or_else(|| super::built(2).join("dlock"), Into::into)
}

/// The default time limit of one call in a test.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Returns a command for `dlock` without settings from this process's environment, and with an
/// empty standard input.
pub fn command() -> Command {
    let mut command = process::command(binary());
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", "/nonexistent")
        .stdin(Stdio::null());
    command
}

/// Runs `dlock ARGS` on a backend to its end.
#[track_caller]
pub fn run(backend: &str, args: &[&str]) -> Ended {
    spawn(backend, args).wait(LIMIT)
}

/// Returns the statements that create a store's schema. `kind` tells those of different schemas
/// apart: each is asked for once.
#[track_caller]
pub fn schema(kind: &str, backend: &str) -> String {
    static SCHEMAS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    let scheme = backend.split(':').next().unwrap_or_default();
    let mut schemas = SCHEMAS.lock().unwrap_or_else(PoisonError::into_inner);
    let print = || {
        let printed = run(backend, &["init", "--print"]);
        assert_eq!(printed.code(), 0, "{}", printed.stderr);
        printed.stdout
    };
    let schema = schemas.entry(format!("{scheme}{kind}"));
    schema.or_insert_with(print).clone()
}

/// Starts `dlock ARGS` on a backend.
#[track_caller]
pub fn spawn(backend: &str, args: &[&str]) -> Process {
    let mut command = command();
    command.args(args).env("DLOCK_BACKEND", backend);
    Process::collect(command)
}

/// Returns a key that no other test uses, and that also tags the test's processes.
pub fn unique(name: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // All keys have the same width, so none is a prefix of another.
    format!(
        "{name}-{:07}-{:04}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}
