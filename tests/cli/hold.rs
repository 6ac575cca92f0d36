//! `hold` and `verify` in scripts.
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

use std::{
    io::{self, BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::lab::Lab;

/// Starts `dlock hold`, waits until it holds the lock, and returns its output.
fn hold(lab: &Lab, arguments: &str, stdin: Stdio) -> (Child, Value) {
    let mut command = lab.dlock(arguments.split(' '));
    let mut child = command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    let taken: Value =
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
    assert_eq!(
        (&taken["schema"], &taken["result"]),
        (&"dlock/1".into(), &"ok".into())
    );
    (child, taken)
}

fn ended(mut child: Child) -> (Option<i32>, String) {
    let until = Instant::now() + Duration::from_secs(20);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < until, "dlock doesn't end");
        thread::sleep(Duration::from_millis(5));
    };
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    (status.code(), said)
}

fn verified(lab: &Lab, token: &str) -> (i32, Value) {
    let output = lab.run(["verify", "job", "--token", token, "--json"]);
    (
        output.status.code().unwrap(),
        serde_json::from_slice(&output.stdout).unwrap(),
    )
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

/// stdin is already at its end when the lock is acquired.
#[test]
fn the_json_is_printed_even_if_stdin_has_ended() {
    let lab = Lab::new();
    let mut child = lab
        .dlock(["hold", "job", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    crate::schema::assert_is("acquire", &output.stdout);
}

#[test]
fn a_lock_is_held_until_stdin_ends() {
    let lab = Lab::new();
    let (mut child, taken) = hold(&lab, "hold job --ttl 5s", Stdio::piped());
    let token = taken["token"].as_str().unwrap();
    let (status, held) = verified(&lab, token);
    assert_eq!((status, &held["result"]), (0, &"ok".into()));
    assert!(
        (1..=5000).contains(&held["expires_in_ms"].as_u64().unwrap()),
        "{held}"
    );
    assert_eq!(
        lab.run(["hold", "job", "--until-signal"]).status.code(),
        Some(75)
    );
    // dlock discards its stdin.
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), &[b'x'; 100_000]).unwrap();
    assert_eq!(verified(&lab, token).0, 0);
    drop(child.stdin.take());
    assert_eq!(ended(child), (Some(0), String::new()));
    let (status, held) = verified(&lab, token);
    assert_eq!((status, &held["result"]), (77, &"not_held".into()));
    assert_eq!(
        lab.run(["run", "-k", "job", "--", "true"]).status.code(),
        Some(0)
    );
}

#[test]
fn a_hold_is_renewed_and_released_on_a_signal() {
    let lab = Lab::new();
    for (arguments, status) in [
        ("hold job --ttl 3s --until-signal", 0),
        ("hold job --ttl 3s", 143),
    ] {
        // A stdin that doesn't end first.
        let (mut child, taken) = hold(&lab, arguments, Stdio::piped());
        let stdin = child.stdin.take();
        // Longer than the lease without renewals.
        thread::sleep(Duration::from_millis(3500));
        assert_eq!(
            verified(&lab, taken["token"].as_str().unwrap()).0,
            0,
            "{arguments}"
        );
        signal(&child, rustix::process::Signal::TERM);
        assert_eq!(ended(child), (Some(status), String::new()), "{arguments}");
        assert_eq!(
            lab.run(["run", "-k", "job", "--", "true"]).status.code(),
            Some(0)
        );
        drop(stdin);
    }
}

#[test]
fn a_hold_lasts_as_long_as_a_process() {
    let lab = Lab::new();
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    let (child, taken) = hold(
        &lab,
        &format!("hold job --while-pid {}", other.id()),
        Stdio::null(),
    );
    assert_eq!(verified(&lab, taken["token"].as_str().unwrap()).0, 0);
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(ended(child), (Some(0), String::new()));
    assert_eq!(
        lab.run(["run", "-k", "job", "--", "true"]).status.code(),
        Some(0)
    );
    // A process that is already dead holds nothing.
    let run = lab.run(["hold", "job", "--while-pid", &other.id().to_string()]);
    assert_eq!(run.status.code(), Some(64), "{run:?}");
    assert!(run.stdout.is_empty());
    // A wait on behalf of a process stops when the process ends.
    let (mut holder, _) = hold(&lab, "hold job", Stdio::piped());
    let mut other = Command::new("sleep").arg("0.3").spawn().unwrap();
    let began = Instant::now();
    let run = lab.run([
        "hold",
        "job",
        "-w",
        "30",
        "--while-pid",
        &other.id().to_string(),
    ]);
    assert_eq!(
        (run.status.code(), run.stdout.len()),
        (Some(64), 0),
        "{run:?}"
    );
    assert!(began.elapsed() < Duration::from_secs(10));
    other.wait().unwrap();
    drop(holder.stdin.take());
    assert_eq!(ended(holder).0, Some(0));
}

#[test]
fn a_lost_lock_is_reported() {
    let lab = Lab::new();
    let (mut child, taken) = hold(&lab, "hold job --ttl 3s", Stdio::piped());
    let stdin = child.stdin.take();
    let given_away = lab.run([
        "release",
        "job",
        "--token",
        taken["token"].as_str().unwrap(),
    ]);
    assert_eq!(given_away.status.code(), Some(0), "{given_away:?}");
    let (status, said) = ended(child);
    assert_eq!(status, Some(76), "{said}");
    assert!(
        said.starts_with("dlock: job: the lock was lost") && said.contains("\nhint: "),
        "{said}"
    );
    drop(stdin);
}

#[test]
fn a_stdin_that_never_ends_is_refused() {
    let mut lab = Lab::new();
    for arguments in [
        "hold job",
        "hold job --while-pid x",
        "hold job --while-pid 0",
        "hold job --while-pid 1 --until-signal",
    ] {
        lab.say(arguments);
    }
    assert!(!lab.path("store.db").exists(), "the store was not used");
    lab.say("verify job")
        .say("verify")
        .say("verify job --token x")
        .say("verify job -q")
        .say("verify job --json");
    snapbox::assert_data_eq!(lab.transcript(), snapbox::file!["snapshots/hold.txt"]);
}

/// A script that acquires its own lock: started twice at once in each shell, it runs once at a
/// time.
#[test]
fn a_script_runs_itself_under_a_lock() {
    for shell in ["/bin/sh", "bash", "zsh"] {
        let lab = Lab::new();
        let dlock = env!("CARGO_BIN_EXE_dlock");
        let script = format!(
            "#!{}\n'{dlock}' verify -qk job || exec '{dlock}' run -k job -w 30 -- \"$0\" \"$@\"\n\
             mkdir busy || exit 9\necho \"$1\" >> done\nsleep 0.2\nrmdir busy\n'{dlock}' verify job || exit 8\n",
            if shell == "/bin/sh" {
                shell.to_owned()
            } else {
                format!("/usr/bin/env {shell}")
            }
        );
        let path = lab.write("job.sh", 0o755, &script);
        let start = |word: &str| {
            let mut command = lab.dlock([""; 0]);
            let env: Vec<_> = command
                .get_envs()
                .map(|(name, value)| (name.to_owned(), value.unwrap().to_owned()))
                .collect();
            command = Command::new(&path);
            command
                .arg(word)
                .env_clear()
                .envs(env)
                .stdin(Stdio::null())
                .current_dir(lab.path(""))
                .stderr(Stdio::piped());
            loop {
                match command.spawn() {
                    // Another case forked while the script was written.
                    Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                        thread::sleep(Duration::from_millis(10));
                    }
                    child => return child.unwrap(),
                }
            }
        };
        for child in [start("a b"), start("c")] {
            let (status, said) = ended(child);
            let waits = |line: &str| line.starts_with("dlock: waiting for job: ");
            assert!(
                status == Some(0) && said.lines().all(waits),
                "{shell}: {said}"
            );
        }
        let done = std::fs::read_to_string(lab.path("done")).unwrap();
        assert_eq!(done.lines().count(), 2, "{done}");
    }
}

/// A bash script takes the lock through a coprocess, which reports the grant and releases the lock
/// when the script ends.
#[test]
fn a_coprocess_holds_a_lock_for_a_script() {
    let lab = Lab::new();
    let script = format!(
        "coproc '{}' hold job -w 10\nread -r taken <&\"${{COPROC[0]}}\" || exit 9\n'{0}' run -k job -- true; echo \"$? $taken\"\n",
        env!("CARGO_BIN_EXE_dlock")
    );
    let mut command = lab.dlock([""; 0]);
    let env: Vec<_> = command
        .get_envs()
        .map(|(name, value)| (name.to_owned(), value.unwrap().to_owned()))
        .collect();
    command = Command::new("bash");
    let output = command
        .args(["-c", &script])
        .env_clear()
        .envs(env)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.starts_with("75 {\"schema\":\"dlock/1\",\"result\":\"ok\""),
        "{said} {:?}",
        output.stderr
    );
    let until = Instant::now() + Duration::from_secs(10);
    while lab.run(["run", "-k", "job", "--", "true"]).status.code() != Some(0) {
        assert!(Instant::now() < until, "the lock is still held");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a shell with job control on a terminal, and returns it with the user's side of the
/// terminal.
fn on_terminal(lab: &Lab, script: &str) -> (Child, std::fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&user).unwrap();
    unlockpt(&user).unwrap();
    let name = ptsname(&user, Vec::new()).unwrap();
    let line = || {
        Stdio::from(
            std::fs::File::options()
                .read(true)
                .write(true)
                .open(name.to_str().unwrap())
                .unwrap(),
        )
    };
    let of_dlock = lab.dlock([""; 0]);
    let env: Vec<_> = of_dlock
        .get_envs()
        .map(|(name, value)| (name.to_owned(), value.unwrap().to_owned()))
        .collect();
    let mut command = Command::new("setsid");
    command
        .args(["--ctty", "bash", "-c", script])
        .env_clear()
        .envs(env)
        .env("D", env!("CARGO_BIN_EXE_dlock"));
    let child = command
        .current_dir(lab.path(""))
        .stdin(line())
        .stdout(line())
        .stderr(line())
        .spawn()
        .unwrap();
    (child, std::fs::File::from(user))
}

#[test]
fn a_key_press_does_not_stop_a_background_hold() {
    let lab = Lab::new();
    let script = "set -m; \"$D\" hold job --ttl 3s > taken 2> said & echo $! > pid; sleep 100";
    let (mut shell, mut keyboard) = on_terminal(&lab, script);
    let read = |name: &str| std::fs::read_to_string(lab.path(name)).unwrap_or_default();
    let until = Instant::now() + Duration::from_secs(20);
    while !read("taken").ends_with('\n') {
        assert!(Instant::now() < until, "not acquired: {}", read("said"));
        thread::sleep(Duration::from_millis(10));
    }
    std::io::Write::write_all(&mut keyboard, b"ls\n").unwrap();
    // Longer than the lease without renewals.
    thread::sleep(Duration::from_secs(4));
    let pid: i32 = read("pid").trim().parse().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    assert!(!stat.contains(") T "), "{stat}");
    let taken: Value = serde_json::from_str(&read("taken")).unwrap();
    assert_eq!(verified(&lab, taken["token"].as_str().unwrap()).0, 0);
    assert!(
        read("said").contains("in the background"),
        "{}",
        read("said")
    );
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.contains(") Z "))
    {
        assert!(Instant::now() < until, "dlock doesn't end");
        thread::sleep(Duration::from_millis(10));
    }
    shell.kill().unwrap();
    shell.wait().unwrap();
}
