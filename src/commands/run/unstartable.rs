//! The reason why a command could not be started, and the hint.

use std::{fs, io::Read as _, path::Path};

use crate::supervise::CannotStart;

/// Shell builtins that have no program of the same name.
const BUILTINS: [&str; 18] = [
    ".", "alias", "cd", "eval", "exec", "exit", "export", "local", "read", "return", "set",
    "shift", "source", "trap", "ulimit", "umask", "unset", "wait",
];

/// Returns the reason and the hint. `slow` if the store granted the lock in time; `nonblock` if
/// `-n` was given.
pub(super) fn explain(
    why: CannotStart,
    program: &str,
    slow: bool,
    nonblock: bool,
) -> (String, String) {
    let text = |what: &str| format!("{program}: {what}");
    let path = Path::new(program);
    match why {
        CannotStart::NotFound if program.contains('/') => not_there(program, path),
        CannotStart::NotFound if nonblock && program.bytes().all(|byte| byte.is_ascii_digit()) => (
            text("no such command"),
            format!("-n takes no number; --permits {program} lets up to {program} hold the lock"),
        ),
        CannotStart::NotFound if BUILTINS.contains(&program) => (
            text("it is a shell builtin, no program"),
            format!("-c takes a shell line, as in -c '{program} … && ./job'"),
        ),
        CannotStart::NotFound
            if program.contains([' ', ';', '|', '&', '<', '>', '$', '`', '*']) =>
        {
            (
                text("no such command"),
                "-c takes a shell line, in quotes".into(),
            )
        }
        CannotStart::NotFound => (
            text("no such command"),
            format!("PATH is {}", std::env::var("PATH").unwrap_or_default()),
        ),
        CannotStart::NotExecutable(_) if program.contains('/') && path.is_dir() => (
            text("it is a directory"),
            "after -- stands the program and its arguments".into(),
        ),
        CannotStart::NotExecutable(errno) if errno == rustix::io::Errno::TOOBIG.raw_os_error() => (
            text(&why.to_string()),
            "pass fewer or shorter arguments and variables, or put them into a file".into(),
        ),
        CannotStart::NotExecutable(_) => (
            text(&why.to_string()),
            "chmod +x makes a file executable; -c takes a shell line".into(),
        ),
        CannotStart::TooLate if slow => (
            text(&format!("{why}: this host was too slow")),
            "give this host more CPU time, or the lease a longer --ttl".into(),
        ),
        CannotStart::TooLate => (
            text(&why.to_string()),
            "try again, or give the lease a longer --ttl".into(),
        ),
        CannotStart::System(_) => (
            text(&why.to_string()),
            "processes, descriptors or memory may have run out on this host".into(),
        ),
    }
}

/// Explains a path that can't be executed because a file is missing: the program itself, or its
/// interpreter or loader.
fn not_there(program: &str, path: &Path) -> (String, String) {
    if !path.exists() {
        let folder = std::env::current_dir()
            .map(|folder| folder.display().to_string())
            .unwrap_or_default();
        let hint = if path.is_absolute() {
            "give the path of a program".into()
        } else {
            format!("the current directory is {folder}")
        };
        return (format!("{program}: no such file"), hint);
    }
    match interpreter(path) {
        Some(missing) => (
            format!("{program}: its interpreter {missing} is missing"),
            "install it, or correct the script's first line".into(),
        ),
        None => (
            format!("{program}: its dynamic loader is missing"),
            "is it built for this system? ldd tells what it needs".into(),
        ),
    }
}

/// Returns the interpreter in the first line of a script.
fn interpreter(path: &Path) -> Option<String> {
    let mut start = Vec::new();
    fs::File::open(path)
        .ok()?
        .take(256)
        .read_to_end(&mut start)
        .ok()?;
    let line = start
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let line = String::from_utf8_lossy(line);
    // A script from Windows has a carriage return here.
    line.trim_start()
        .split([' ', '\t'])
        .next()
        .map(|name| name.escape_debug().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(why: CannotStart, program: &str) -> (String, String) {
        explain(why, program, false, true)
    }

    #[test]
    fn a_host_without_free_processes_gets_no_hint_about_the_lease() {
        assert!(!of(CannotStart::System(11), "x").1.contains("--ttl"));
        assert!(
            explain(CannotStart::TooLate, "x", true, false)
                .1
                .contains("CPU")
        );
        assert!(!of(CannotStart::TooLate, "x").1.contains("host"));
    }

    #[test]
    fn a_missing_command_or_interpreter_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        fs::write(&script, "#!/nonexistent/interp -x\n").unwrap();
        let script = script.to_str().unwrap();
        assert_eq!(
            of(CannotStart::NotFound, script).0,
            format!("{script}: its interpreter /nonexistent/interp is missing")
        );
        fs::write(script, "#!/bin/sh\r\n").unwrap();
        assert!(
            of(CannotStart::NotFound, script)
                .0
                .contains("interpreter /bin/sh\\r is missing")
        );
        assert!(
            of(CannotStart::NotFound, "./no/such")
                .0
                .ends_with("no such file")
        );
        assert!(of(CannotStart::NotFound, "cd").1.starts_with("-c"));
        assert!(
            of(CannotStart::NotFound, "echo hi; exit")
                .1
                .contains("shell line")
        );
        assert!(of(CannotStart::NotFound, "3").1.contains("--permits 3"));
        assert!(
            of(CannotStart::NotFound, "nosuch")
                .1
                .starts_with("PATH is ")
        );
        assert_eq!(
            of(CannotStart::NotExecutable(13), "/").0,
            "/: it is a directory"
        );
    }
}
