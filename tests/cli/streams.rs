//! Closed, full and broken output streams: the job is unaffected, dlock doesn't panic, and no lock
//! is lost.

use std::{
    fs::File,
    io::Read as _,
    process::{Command, Stdio},
};

use crate::lab::Lab;

fn full() -> Stdio {
    File::options()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .into()
}

/// A pipe whose read end is closed.
fn broken() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

/// Runs a shell line with the binary in `DLOCK_BIN`.
fn shell(lab: &Lab, line: &str) -> std::process::Output {
    let dlock = lab.dlock([""; 0]);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]).env_clear().stdin(Stdio::null());
    for (name, value) in dlock.get_envs() {
        command.env(name, value.unwrap());
    }
    command
        .env("DLOCK_BIN", dlock.get_program())
        .output()
        .unwrap()
}

#[test]
fn a_lock_is_released_if_its_token_cannot_be_printed() {
    let lab = Lab::new();
    for arguments in [
        ["acquire", "k", "--ttl", "60"].as_slice(),
        &["acquire", "k", "--ttl", "60", "--json"],
    ] {
        let output = lab
            .dlock(arguments)
            .stdout(full())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        assert_eq!(output.status.code(), Some(74));
        assert_eq!(
            String::from_utf8(output.stderr).unwrap(),
            "dlock: stdout can't be written: no space left on device: the lock was released\n"
        );
        assert!(lab.line("inspect k").contains("FREE"));
    }
    let broken = lab
        .dlock(["acquire", "k", "--ttl", "60"])
        .stdout(broken())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(broken.status.code(), Some(74));
    assert!(
        String::from_utf8(broken.stderr)
            .unwrap()
            .ends_with("the lock was released\n")
    );
    assert!(lab.line("inspect k").contains("FREE"));

    let closed = shell(&lab, r#""$DLOCK_BIN" acquire k --ttl 60 >&-"#);
    assert_eq!(closed.status.code(), Some(64), "{closed:?}");
    assert!(lab.line("inspect k").contains("FREE"));
    let thrown_away = shell(&lab, r#""$DLOCK_BIN" acquire k --ttl 60 >/dev/null"#);
    assert!(thrown_away.status.success(), "{thrown_away:?}");
    assert!(lab.line("inspect k").contains("HELD"));
}

#[test]
fn unwritable_output_is_a_failure_but_a_closed_pipe_is_not() {
    let lab = Lab::new();
    lab.line("acquire k --ttl 60");
    for command in [
        "inspect k",
        "list",
        "list --json",
        "man",
        "completions bash",
        "--help",
        "--version",
    ] {
        let status = lab
            .dlock(command.split(' '))
            .stdout(full())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(74), "{command}");
        let broken = lab
            .dlock(command.split(' '))
            .stdout(broken())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(
            (broken.status.code(), broken.stderr.as_slice()),
            (Some(0), b"".as_slice()),
            "{command}"
        );
    }
}

#[test]
fn lost_messages_do_not_affect_the_job() {
    let lab = Lab::new();
    for line in [
        r#""$DLOCK_BIN" run -k k -- sh -c 'exit 7' >&- 2>&- <&-"#,
        r#""$DLOCK_BIN" run -k k -- sh -c 'exit 7' >/dev/full 2>/dev/full"#,
        r#""$DLOCK_BIN" run -k k --json -- sh -c 'exit 7' 2>/dev/full"#,
        r#""$DLOCK_BIN" run -k k --json -- sh -c 'exit 7' 2>&-"#,
    ] {
        let output = shell(&lab, line);
        assert_eq!(output.status.code(), Some(7), "{line}: {output:?}");
    }
}

#[test]
fn the_streams_of_the_command_are_untouched() {
    let lab = Lab::new();
    let mut child = lab
        .dlock(["run", "-k", "k", "--json", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"\0binary\xff\n").unwrap();
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    assert_eq!(out, b"\0binary\xff\n");
    let mut err = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    assert!(child.wait().unwrap().success());
    let verdict: serde_json::Value = serde_json::from_str(err.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&verdict["result"], &verdict["command"]["status"]),
        (&"ok".into(), &0.into())
    );
}

#[test]
fn a_status_file_has_the_verdict() {
    let lab = Lab::new();
    let path = lab.path("status.json");
    let verdict = |arguments: &str, status: i32| {
        let words: Vec<String> = format!("run -k k --status-file {} {arguments}", path.display())
            .split(' ')
            .map(str::to_owned)
            .collect();
        assert_eq!(lab.run(&words).status.code(), Some(status), "{arguments}");
        serde_json::from_slice::<serde_json::Value>(&std::fs::read(&path).unwrap()).unwrap()
    };
    assert_eq!(verdict("-c false", 1)["result"], "ok");
    assert_eq!(verdict("-c false", 1)["command"]["status"], 1);
    assert_eq!(verdict("/nonexistent", 127)["result"], "error");
    lab.line("acquire k --ttl 60");
    assert_eq!(verdict("true", 75)["result"], "busy");
}

#[test]
fn a_status_file_never_shows_an_earlier_run() {
    let lab = Lab::new();
    let path = lab.path("status.json");
    let said =
        || serde_json::from_slice::<serde_json::Value>(&std::fs::read(&path).unwrap()).unwrap();
    let file = path.display().to_string();
    assert_eq!(
        lab.run(["run", "-k", "k", "--status-file", &file, "--", "true"])
            .status
            .code(),
        Some(0)
    );
    assert_eq!(said()["result"], "ok");
    let mut killed = lab.dlock([
        "run",
        "-k",
        "k",
        "--status-file",
        &file,
        "--",
        "sh",
        "-c",
        "echo; sleep 100",
    ]);
    let mut killed = killed.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = [0];
    std::io::Read::read_exact(killed.stdout.as_mut().unwrap(), &mut line).unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();
    let running = said();
    assert_eq!(
        (&running["result"], &running["pid"]),
        (&"running".into(), &killed.id().into())
    );
    crate::schema::assert_is("running", &std::fs::read(&path).unwrap());
    assert!(
        running["fence"].is_u64() && running["started"].is_string(),
        "{running}"
    );
    assert_eq!(
        lab.run([
            "run",
            "-k",
            "k",
            "-w",
            "10",
            "--status-file",
            &file,
            "--",
            "false"
        ])
        .status
        .code(),
        Some(1)
    );
    assert_eq!(
        (&said()["result"], &said()["status"]),
        (&"ok".into(), &1.into())
    );
}

#[test]
fn a_metrics_path_that_is_no_regular_file_does_not_block() {
    use std::os::unix::fs::symlink;
    let lab = Lab::new();
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        lab.path("fifo"),
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
    )
    .unwrap();
    symlink(lab.path("fifo"), lab.path("to-fifo.prom")).unwrap();
    symlink(lab.path(""), lab.path("to-folder.prom")).unwrap();
    symlink(lab.path("nowhere"), lab.path("to-nothing.prom")).unwrap();
    for (name, warned) in [
        ("to-fifo.prom", true),
        ("to-folder.prom", true),
        ("to-nothing.prom", false),
    ] {
        let file = lab.path(name).display().to_string();
        let mut child = lab.dlock(["run", "-k", name, "--metrics-file", &file, "--", "true"]);
        let mut child = child.stderr(std::process::Stdio::piped()).spawn().unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while child.try_wait().unwrap().is_none() {
            if std::time::Instant::now() >= until {
                child.kill().unwrap();
                panic!("{name}: dlock hangs");
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (
                output.status.code(),
                said.contains("metrics can't be written")
            ),
            (Some(0), warned),
            "{name}: {said}"
        );
    }
}

#[test]
fn a_success_or_a_skip_is_silent_without_a_terminal() {
    let lab = Lab::new();
    let ran = lab.run(["run", "-k", "k", "--", "true"]);
    assert!(
        ran.status.success() && ran.stdout.is_empty() && ran.stderr.is_empty(),
        "{ran:?}"
    );
    lab.line("acquire k --ttl 60");
    let skipped = lab.run(["run", "-k", "k", "--", "true"]);
    assert_eq!(skipped.status.code(), Some(75));
    assert!(
        skipped.stdout.is_empty() && skipped.stderr.is_empty(),
        "{skipped:?}"
    );
}
