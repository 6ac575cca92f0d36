//! `acquire --while-pid` in scripts.
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

use std::{
    io::Read as _,
    os::unix::process::ExitStatusExt as _,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::lab::Lab;

/// The common shells for scripts.
const SHELLS: [&str; 3] = ["sh", "bash", "zsh"];

fn shell(lab: &Lab, shell: &str, script: &str) -> Command {
    let of_dlock = lab.dlock([""; 0]);
    let env: Vec<_> = of_dlock
        .get_envs()
        .map(|(name, value)| (name.to_owned(), value.unwrap().to_owned()))
        .collect();
    let mut command = Command::new(shell);
    command
        .args(["-c", script])
        .env_clear()
        .envs(env)
        .env("D", env!("CARGO_BIN_EXE_dlock"));
    command
        .current_dir(lab.path(""))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(lab: &Lab, name: &str, script: &str) -> Output {
    let output = shell(lab, name, script).output().unwrap();
    assert!(
        output.stderr.is_empty(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn must(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < until, "not so: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn inspected(lab: &Lab) -> Value {
    serde_json::from_slice(&lab.run(["inspect", "job", "--json"]).stdout).unwrap()
}

fn is_free(lab: &Lab) -> bool {
    inspected(lab)["held"] == false
}

/// Returns the process that renews the lock.
fn renewer(lab: &Lab) -> Pid {
    // During the acquire the holder's metadata may be missing.
    let pid = || inspected(lab)["holders"][0]["pid"].as_i64();
    must("the lock has a holder", || pid().is_some());
    Pid::from_raw(i32::try_from(pid().unwrap()).unwrap()).unwrap()
}

fn is_alive(pid: Pid) -> bool {
    let stat =
        std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim_start().starts_with('Z'))
        && !stat.is_empty()
}

fn ended(mut child: Child) -> Output {
    let until = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "the script doesn't end");
        thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn a_script_holds_a_lock_as_long_as_it_runs() {
    // For longer than a lease lasts without renewals.
    let script = "token=$(\"$D\" acquire job --while-pid $$ --ttl 3s) || exit 9
        sleep 3.5
        \"$D\" verify job --token \"$token\" || exit 8
        \"$D\" run -k job -- true; echo $?";
    thread::scope(|scope| {
        for name in SHELLS {
            scope.spawn(move || {
                let lab = Lab::new();
                let began = Instant::now();
                let output = run(&lab, name, script);
                assert_eq!(
                    (output.status.code(), &*output.stdout),
                    (Some(0), &b"75\n"[..]),
                    "{name}"
                );
                assert!(began.elapsed() < Duration::from_secs(15));
                must("the lock is released when the script ends", || {
                    is_free(&lab)
                });
                let report: Value =
                    serde_json::from_slice(&lab.run(["history", "job", "--json"]).stdout).unwrap();
                assert_eq!(report["runs"][0]["end"], "released", "{name}: {report}");
            });
        }
    });
}

/// As flock's `( flock -n 9 || exit; … ) 9> file`.
#[test]
fn a_subshell_of_bash_holds_a_lock_as_long_as_it_runs() {
    let lab = Lab::new();
    let script = "( me=$BASHPID
          token=$(\"$D\" acquire job --while-pid $me) || exit 9
          \"$D\" verify job --token \"$token\" ) || exit 8
        \"$D\" run -k job -w 5s -- true || exit 7
        ( token=$(\"$D\" acquire job --while-pid $BASHPID) ) 2>&1 && exit 6; exit 0";
    let output = run(&lab, "bash", script);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(told.contains("me=$BASHPID, before the $( )"), "{told}");
}

#[test]
fn a_process_that_releases_its_lock_is_not_killed() {
    for name in SHELLS {
        let lab = Lab::new();
        let script = "token=$(\"$D\" acquire job --while-pid $$ --ttl 3s) || exit 9
            \"$D\" release job --token \"$token\" || exit 8
            sleep 1.5; echo alive";
        let output = run(&lab, name, script);
        assert_eq!(
            (output.status.code(), &*output.stdout),
            (Some(0), &b"alive\n"[..]),
            "{name}"
        );
        assert!(is_free(&lab));
    }
}

#[test]
fn the_process_gets_term_when_the_lock_is_broken_or_lost() {
    let lab = Lab::new();
    let script = "token=$(\"$D\" acquire job --while-pid $$ --ttl 4s) || exit 9
        trap 'echo told; exit 7' TERM; touch ready; while :; do sleep 0.05; done";
    for lost in [false, true] {
        let child = shell(&lab, "bash", script).spawn().unwrap();
        must("the script is ready", || lab.path("ready").exists());
        std::fs::remove_file(lab.path("ready")).unwrap();
        let kept_by = renewer(&lab);
        if lost {
            // A break that the renewer doesn't know of, as if the store had lost the hold.
            let fence = inspected(&lab)["holders"][0]["fence"].to_string();
            let broken = lab.run([
                "break", "job", "--yes", "--reason", "x", "--now", "--fence", &fence,
            ]);
            assert_eq!(broken.status.code(), Some(0), "{broken:?}");
        } else {
            let broken = lab.run(["break", "job", "--yes", "--reason", "x"]);
            assert_eq!(broken.status.code(), Some(0), "{broken:?}");
        }
        let output = ended(child);
        assert_eq!(
            (output.status.code(), &*output.stdout),
            (Some(7), &b"told\n"[..]),
            "{lost}"
        );
        must("the renewer ends", || !is_alive(kept_by));
        assert!(is_free(&lab));
    }
}

#[test]
fn a_terminated_renewer_releases_the_lock() {
    let lab = Lab::new();
    let script =
        "token=$(\"$D\" acquire job --while-pid $$) || exit 9; read -r line; echo \"$line\"";
    let mut child = shell(&lab, "bash", script)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    must("the lock is held", || !is_free(&lab));
    kill_process(renewer(&lab), Signal::TERM).unwrap();
    must("the lock is released", || is_free(&lab));
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"still here\n").unwrap();
    let output = ended(child);
    assert_eq!(
        &*output.stdout, b"still here\n",
        "the process is unaffected"
    );
}

#[test]
fn a_renewer_closes_the_callers_descriptors() {
    let lab = Lab::new();
    // A high descriptor, as flock(1) users open it, and a pipe with a reader.
    let script = "exec 9>lock; exec 8>&1; token=$(\"$D\" acquire job --while-pid $PPID) || exit 9; echo taken";
    let mut child = shell(&lab, "bash", script).spawn().unwrap();
    let mut said = String::new();
    let began = Instant::now();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!(said, "taken\n");
    assert!(began.elapsed() < Duration::from_secs(15));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let kept_by = renewer(&lab);
    let open: Vec<_> = std::fs::read_dir(format!("/proc/{}/fd", kept_by.as_raw_nonzero()))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .filter(|target| *target == lab.path("lock"))
        .collect();
    assert!(open.is_empty(), "{open:?}");
    kill_process(kept_by, Signal::TERM).unwrap();
    must("the lock is released", || is_free(&lab));
}

#[test]
fn a_waiting_acquire_can_be_ended_and_leaves_no_waiter() {
    let lab = Lab::new();
    let mut holder = lab
        .dlock(["hold", "job"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    must("the lock is held", || !is_free(&lab));
    let busy = lab.run([
        "acquire",
        "job",
        "--while-pid",
        &std::process::id().to_string(),
    ]);
    assert_eq!(
        (busy.status.code(), busy.stdout.len()),
        (Some(75), 0),
        "{busy:?}"
    );
    let waiting = |lab: &Lab| inspected(lab)["waiters"].as_array().map_or(0, Vec::len);
    let me = std::process::id().to_string();
    // INT to the whole process group, as from a terminal; TERM to dlock alone, as from a service
    // manager.
    for (signal, to_group) in [(Signal::INT, true), (Signal::TERM, false)] {
        use std::os::unix::process::CommandExt as _;
        let mut command = lab.dlock(["acquire", "job", "-w", "60", "--while-pid", &me]);
        let child = command
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        must("the acquire waits", || waiting(&lab) == 1);
        let pid = Pid::from_child(&child);
        if to_group {
            rustix::process::kill_process_group(pid, signal)
        } else {
            kill_process(pid, signal)
        }
        .unwrap();
        let output = ended(child);
        let status = output
            .status
            .code()
            .or(output.status.signal().map(|signal| 128 + signal));
        assert_eq!(
            (status, output.stdout.len()),
            (Some(128 + signal.as_raw()), 0),
            "{output:?}"
        );
        must("no waiter is left", || waiting(&lab) == 0);
    }
    // The wait also ends with the process of `--while-pid`.
    let mut other = Command::new("sleep").arg("0.5").spawn().unwrap();
    let began = Instant::now();
    let gone = lab.run([
        "acquire",
        "job",
        "-w",
        "60",
        "--while-pid",
        &other.id().to_string(),
    ]);
    assert_eq!(
        (gone.status.code(), gone.stdout.len()),
        (Some(64), 0),
        "no token was printed: {gone:?}"
    );
    assert!(
        String::from_utf8_lossy(&gone.stderr)
            .contains("the process ended before the lock was taken"),
        "{gone:?}"
    );
    assert!(began.elapsed() < Duration::from_secs(15));
    other.wait().unwrap();
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
}

#[test]
fn an_invalid_while_pid_is_refused() {
    let mut lab = Lab::new();
    for words in [
        "acquire job",
        "acquire job --while-pid x",
        "acquire job --while-pid 0",
        "acquire job --while-pid 4194305",
    ] {
        lab.say(words);
    }
    snapbox::assert_data_eq!(lab.transcript(), snapbox::file!["snapshots/while-pid.txt"]);
    assert!(!lab.path("store.db").exists());
}

/// Sends `signal` to the renewer, and returns how long its process takes to get TERM.
fn time_until_term(signal: Signal) -> Duration {
    let lab = Lab::new();
    let script = "token=$(\"$D\" acquire job --while-pid $$ --ttl 5s) || exit 9
        trap 'echo told; exit 7' TERM; touch ready; while :; do sleep 0.02; done";
    let child = shell(&lab, "bash", script).spawn().unwrap();
    must("the script is ready", || lab.path("ready").exists());
    let kept_by = renewer(&lab);
    let began = Instant::now();
    kill_process(kept_by, signal).unwrap();
    let output = ended(child);
    let took = began.elapsed();
    assert_eq!(
        (output.status.code(), &*output.stdout),
        (Some(7), &b"told\n"[..]),
        "{signal:?}"
    );
    let _ = kill_process(kept_by, Signal::KILL);
    took
}

#[test]
fn the_process_gets_term_when_its_renewer_is_killed_or_stopped() {
    time_until_term(Signal::KILL);
    let took = time_until_term(Signal::STOP);
    assert!(
        took < Duration::from_secs(5),
        "the lease was over: {took:?}"
    );
}

#[test]
fn a_renewer_inherits_nothing_from_its_caller() {
    let lab = Lab::new();
    let script = "token=$(\"$D\" acquire job --while-pid $$) || exit 9; touch ready; read -r line; echo done";
    let mut child = shell(&lab, "bash", script)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    must("the script is ready", || lab.path("ready").exists());
    let kept_by = renewer(&lab).as_raw_nonzero();
    assert_eq!(
        std::fs::read_link(format!("/proc/{kept_by}/cwd")).unwrap(),
        std::path::Path::new("/")
    );
    let monitor =
        std::fs::read_to_string(format!("/proc/{kept_by}/task/{kept_by}/children")).unwrap();
    let monitor = monitor.trim().to_owned();
    assert_eq!(
        std::fs::read_link(format!("/proc/{monitor}/cwd")).unwrap(),
        std::path::Path::new("/")
    );
    let open = std::fs::read_dir(format!("/proc/{monitor}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let open: Vec<_> = open.map(|target| target.display().to_string()).collect();
    let own = |name: &String| {
        name == "/dev/null"
            || name.contains("[timerfd]")
            || name.contains("[pidfd]")
            || name.starts_with("socket:")
    };
    assert!(open.iter().all(own), "{open:?}");
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"x\n").unwrap();
    ended(child);
    must("renewer and monitor end", || {
        !is_alive(Pid::from_raw(kept_by.get()).unwrap())
            && !is_alive(Pid::from_raw(monitor.parse().unwrap()).unwrap())
    });
}

#[test]
fn a_caller_that_ignores_its_children_learns_the_status() {
    let lab = Lab::new();
    lab.line("acquire job --ttl 60s");
    let script = "trap '' CHLD; exec \"$D\" acquire job --while-pid $PPID";
    let output = shell(&lab, "bash", script).output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{output:?}");
}

#[test]
fn a_process_that_must_not_get_term_is_refused() {
    let lab = Lab::new();
    for command in ["acquire", "hold"] {
        let init = lab.run([command, "job", "--while-pid", "1"]);
        assert_eq!(init.status.code(), Some(64), "{init:?}");
        let script = format!("exec \"$D\" {command} job --while-pid $$");
        let itself = shell(&lab, "sh", &script).output().unwrap();
        assert_eq!(itself.status.code(), Some(64), "{itself:?}");
    }
    assert!(!lab.path("store.db").exists());
}
