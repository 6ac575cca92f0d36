//! The real binary: keys on a terminal, and STOP and CONT from other processes.

use std::{fs, process::Command, time::Duration};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    terminal::{Keyboard, on_terminal_with},
    trials,
    world::{World, send, stat, until},
};

trials!(
    ctrl_c_ends_what_outlives_the_command,
    ctrl_c_twice_kills_what_outlives_the_command,
    ctrl_z_stops_dlock_when_only_leftovers_run,
    stopping_the_command_by_pid_does_not_stop_dlock,
    a_tstp_of_the_command_by_pid_and_its_cont_leave_dlock_running,
    stops_of_both_in_any_order_keep_the_status,
    a_command_that_stops_itself_after_ctrl_z_takes_dlock_along,
    a_dlock_stopped_past_its_term_deadline_reports_a_command_that_ended_in_time,
    the_guardians_final_report_is_not_dropped,
    pkill_of_dlock_leaves_the_guardian_to_kill_the_tree,
    a_slow_host_is_not_mistaken_for_a_slow_store,
);

/// Returns `dlock run OPTIONS -- sh SCRIPT` on a store in the test's folder, with `TOKEN` and `DIR`
/// filled in.
fn line(world: &World, options: &str, script: &str) -> Vec<String> {
    line_on(world, &world.path("store.db"), options, script)
}

fn line_on(world: &World, store: &str, options: &str, script: &str) -> Vec<String> {
    let directory = world.directory.path().to_str().unwrap();
    fs::write(
        world.path("script"),
        script
            .replace("TOKEN", &world.token)
            .replace("DIR", directory),
    )
    .unwrap();
    let store = format!("sqlite://{store}");
    let (status, script) = (world.path("status.json"), world.path("script"));
    // The description marks dlock and the guardian as processes of this test.
    let mut line = vec![
        env!("CARGO_BIN_EXE_dlock"),
        "run",
        "-k",
        "job",
        "-b",
        &store,
        "--describe",
        &world.token,
        "--status-file",
        &status,
    ];
    line.extend(options.split_whitespace());
    line.extend(["--", "sh", &script]);
    line.into_iter().map(str::to_owned).collect()
}

/// Starts dlock on a terminal under a shell, with job control if `LINE` is preceded by `set -m`.
fn terminal(world: &mut World, caller: &str, options: &str, script: &str) -> Keyboard {
    let line = line(world, options, script);
    on_terminal_with(world, &caller.replace("LINE", "ROLE"), &line)
}

/// Starts dlock without a terminal, in its own session.
pub fn detached(world: &mut World, options: &str, script: &str) {
    let line = line(world, options, script);
    detached_with(world, &line);
}

fn detached_with(world: &mut World, line: &[String]) {
    let output = fs::File::create(world.path("output")).unwrap();
    let child = Command::new("setsid")
        .args(line)
        .stdin(std::process::Stdio::null())
        .stderr(output)
        .spawn()
        .unwrap();
    world.pid = i32::try_from(child.id()).unwrap();
    world.child = Some(child);
}

fn name(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Returns the process of this test with that command name.
fn named(world: &World, wanted: &str) -> i32 {
    until(&format!("a process named {wanted}"), || {
        world.alive().into_iter().find(|pid| name(*pid) == wanted)
    })
}

fn state(pid: i32) -> String {
    stat(pid, 0).unwrap_or_default()
}

fn in_state(pid: i32, wanted: &str) {
    until(&format!("state {wanted} of {pid}"), || {
        (state(pid) == wanted).then_some(())
    });
}

fn goes_on(pid: i32) {
    until(&format!("{pid} to go on"), || {
        (state(pid) != "T").then_some(())
    });
}

/// Returns the pid that the command wrote to `ready`.
fn command(world: &World) -> i32 {
    world.file("ready").trim().parse().unwrap()
}

/// Returns the status file after the run.
fn verdict(world: &World) -> Value {
    until("the verdict", || {
        let found: Value = serde_json::from_str(&world.file("status.json")).unwrap();
        (found["result"] != "running").then_some(found)
    })
}

fn says(world: &World, what: &str) -> String {
    until(what, || {
        Some(world.file("output")).filter(|said| said.contains(what))
    })
}

/// Ends with 4 when `DIR/end` is written. Not a loop of `sleep`: a shell in vfork doesn't stop.
const WAITS: &str = "mkfifo DIR/end; echo $$ > DIR/ready; read word < DIR/end; exit 4";

/// A shell that continues when its job is stopped. Without job control the shell is in the job's
/// process group, and the kernel hangs that group up when the command ends while dlock is stopped.
/// bash leaves its own loops when TSTP stops a job, so another shell waits.
const JOB_CONTROL: &str = "set -m; LINE; sh -c 'while ! [ -e DIR/over ]; do sleep 0.02; done'; :";

fn ctrl_c_ends_what_outlives_the_command() {
    let mut world = World::new();
    let mut keyboard = terminal(
        &mut world,
        "LINE; echo $? > DIR/status",
        "",
        "sleep TOKEN & echo $! > DIR/ready",
    );
    let sleep = command(&world);
    says(
        &world,
        &format!("dlock: job: sleep (pid {sleep}) is still running: the lock stays held"),
    );
    says(
        &world,
        "hint: Ctrl-C stops it; --leftover kill|leave decides beforehand",
    );
    keyboard.press(3);
    assert_eq!(world.file("status"), "0\n");
    assert_eq!(verdict(&world)["released"], "yes");
    world.status();
    world.await_end();
}

fn ctrl_c_twice_kills_what_outlives_the_command() {
    let mut world = World::new();
    let stubborn = "(trap 'echo >> DIR/term' TERM; echo > DIR/ready; while :; do sleep 0.05; done; : TOKEN) & exit 3";
    let mut keyboard = terminal(
        &mut world,
        "LINE; echo $? > DIR/status",
        "--ttl 10m --grace 1m",
        stubborn,
    );
    says(&world, "still running");
    keyboard.press(3);
    world.file("term");
    assert!(
        fs::metadata(world.path("status")).is_err(),
        "TERM ended a process that ignores it"
    );
    keyboard.press(3);
    assert_eq!(world.file("status"), "3\n");
    world.status();
    world.await_end();
}

fn ctrl_z_stops_dlock_when_only_leftovers_run() {
    let mut world = World::new();
    let caller = "set -m; LINE; echo $? > DIR/stopped; while ! [ -e DIR/go ]; do sleep 0.02; done; fg; echo $? > DIR/status";
    let mut keyboard = terminal(&mut world, caller, "--ttl 10m", "sleep TOKEN & exit 3");
    says(&world, "still running");
    keyboard.press(26);
    assert_eq!(world.file("stopped"), "148\n");
    in_state(named(&world, "dlock"), "T");
    fs::write(world.path("go"), "x").unwrap();
    goes_on(named(&world, "dlock"));
    keyboard.press(3);
    assert_eq!(world.file("status"), "3\n");
    world.status();
    world.await_end();
}

fn stopping_the_command_by_pid_does_not_stop_dlock() {
    let mut world = World::new();
    let _keyboard = terminal(&mut world, "set -m; LINE; echo $? > DIR/status", "", WAITS);
    let (command, dlock) = (command(&world), named(&world, "dlock"));
    for _ in 0..3 {
        send(command, Signal::STOP);
        in_state(command, "T");
        send(command, Signal::CONT);
        goes_on(command);
    }
    send(command, Signal::STOP);
    in_state(command, "T");
    // Long enough to see whether dlock stops.
    std::thread::sleep(Duration::from_millis(300));
    assert_ne!(state(dlock), "T");
    assert!(fs::metadata(world.path("status")).is_err());
    send(command, Signal::CONT);
    fs::write(world.path("end"), "x\n").unwrap();
    assert_eq!(world.file("status"), "4\n");
    world.status();
    world.await_end();
}

fn a_tstp_of_the_command_by_pid_and_its_cont_leave_dlock_running() {
    let mut world = World::new();
    let _keyboard = terminal(&mut world, "LINE; echo $? > DIR/status", "", WAITS);
    let (command, dlock) = (command(&world), named(&world, "dlock"));
    for _ in 0..20 {
        send(command, Signal::TSTP);
        in_state(command, "T");
        send(command, Signal::CONT);
        goes_on(command);
    }
    send(command, Signal::TSTP);
    in_state(dlock, "T");
    send(command, Signal::CONT);
    goes_on(dlock);
    fs::write(world.path("end"), "x\n").unwrap();
    assert_eq!(world.file("status"), "4\n");
    world.status();
    world.await_end();
}

fn stops_of_both_in_any_order_keep_the_status() {
    for on_a_terminal in [true, false] {
        for stop in [Signal::STOP, Signal::TSTP] {
            let mut world = World::new();
            let _keyboard = if on_a_terminal {
                Some(terminal(&mut world, JOB_CONTROL, "", WAITS))
            } else {
                detached(&mut world, "", WAITS);
                None
            };
            let (command, dlock) = (command(&world), named(&world, "dlock"));
            send(dlock, Signal::STOP);
            in_state(dlock, "T");
            send(command, stop);
            in_state(command, "T");
            send(command, Signal::CONT);
            goes_on(command);
            send(dlock, Signal::CONT);
            goes_on(dlock);
            // dlock forwards its own CONT, which may arrive in between.
            until("the command's stop", || {
                send(command, stop);
                (state(command) == "T").then_some(())
            });
            send(dlock, Signal::STOP);
            in_state(dlock, "T");
            send(command, Signal::CONT);
            goes_on(command);
            fs::write(world.path("end"), "x\n").unwrap();
            until("the command's end", || {
                state(command).is_empty().then_some(())
            });
            send(dlock, Signal::CONT);
            assert_eq!(verdict(&world)["status"], 4, "{stop:?}");
            fs::write(world.path("over"), "x").unwrap();
            world.status();
            world.await_end();
        }
    }
}

/// Some programs reset the terminal before they stop themselves.
fn a_command_that_stops_itself_after_ctrl_z_takes_dlock_along() {
    let mut world = World::new();
    let caller = "set -m; LINE; echo $? > DIR/stopped; while ! [ -e DIR/go ]; do sleep 0.02; done; fg; echo $? > DIR/status";
    let stops = "trap 'kill -STOP $$' TSTP; echo $$ > \"$0/ready\"; while ! [ -e \"$0/end\" ]; do read -t 0.05 word <> \"$0/none\"; done; exit 4";
    fs::write(world.path("stops"), stops).unwrap();
    let script = "mkfifo DIR/none; exec bash -c \"$(cat DIR/stops)\" DIR";
    let mut keyboard = terminal(&mut world, caller, "", script);
    command(&world);
    keyboard.press(26);
    assert_eq!(world.file("stopped"), "148\n");
    fs::write(world.path("go"), "x").unwrap();
    fs::write(world.path("end"), "x").unwrap();
    assert_eq!(world.file("status"), "4\n");
    world.status();
    world.await_end();
}

fn a_dlock_stopped_past_its_term_deadline_reports_a_command_that_ended_in_time() {
    for status in [0, 4] {
        let mut world = World::new();
        detached(
            &mut world,
            "--ttl 3s",
            &WAITS.replace('4', &status.to_string()),
        );
        let (command, dlock) = (command(&world), named(&world, "dlock"));
        send(dlock, Signal::STOP);
        in_state(dlock, "T");
        fs::write(world.path("end"), "x\n").unwrap();
        until("the command's end", || {
            state(command).is_empty().then_some(())
        });
        // Past the deadline for TERM, whenever the last renewal was.
        std::thread::sleep(Duration::from_millis(2_200));
        send(dlock, Signal::CONT);
        assert_eq!(world.status(), status, "{}", world.file("status.json"));
        assert_eq!(verdict(&world)["result"], "ok");
        world.await_end();
    }
}

/// The guardian sends more reports than the socket holds before the decisive one.
fn the_guardians_final_report_is_not_dropped() {
    for on_a_terminal in [true, false] {
        let mut world = World::new();
        let _keyboard = if on_a_terminal {
            Some(terminal(&mut world, JOB_CONTROL, "--ttl 10m", WAITS))
        } else {
            detached(&mut world, "--ttl 10m", WAITS);
            None
        };
        let (command, dlock, guardian) = (
            command(&world),
            named(&world, "dlock"),
            named(&world, "lock-guard"),
        );
        send(dlock, Signal::STOP);
        in_state(dlock, "T");
        for _ in 0..400 {
            send(command, Signal::TSTP);
            in_state(command, "T");
            in_state(guardian, "S");
            send(command, Signal::CONT);
            goes_on(command);
            in_state(guardian, "S");
        }
        fs::write(world.path("end"), "x\n").unwrap();
        until("the command's end", || {
            state(command).is_empty().then_some(())
        });
        send(dlock, Signal::CONT);
        assert_eq!(verdict(&world)["status"], 4);
        fs::write(world.path("over"), "x").unwrap();
        world.status();
        world.await_end();
    }
}

fn pkill_of_dlock_leaves_the_guardian_to_kill_the_tree() {
    let mut world = World::new();
    detached(
        &mut world,
        "--ttl 1m",
        "trap '' TERM; setsid sleep TOKEN & sleep TOKEN & echo $$ > DIR/ready; wait",
    );
    command(&world);
    // dlock, the guardian and two sleep processes.
    world.await_processes(4);
    let session = world.pid.to_string();
    let killed = Command::new("pkill")
        .args(["-KILL", "-s", &session, "dlock"])
        .status()
        .unwrap();
    assert!(killed.success(), "pkill found no process");
    assert_eq!(world.status(), 137);
    world.await_end();
}

/// The store answers at once, but the guardian gets no CPU time to start the command.
fn a_slow_host_is_not_mistaken_for_a_slow_store() {
    let (mut first, mut second) = (World::new(), World::new());
    detached(&mut first, "", WAITS);
    command(&first);
    let waiter = line_on(
        &second,
        &first.path("store.db"),
        "-w 1m --ttl 20s",
        "touch DIR/ran",
    );
    detached_with(&mut second, &waiter);
    let guardian = named(&second, "lock-guard");
    // The guardian waits for the start order once it has its name, at the latest when it sleeps.
    in_state(guardian, "S");
    send(guardian, Signal::STOP);
    in_state(guardian, "T");
    fs::write(first.path("end"), "x\n").unwrap();
    assert_eq!(first.status(), 4);
    // Between the latest start of the command, at half of the lease, and TERM.
    std::thread::sleep(Duration::from_millis(10_800));
    send(guardian, Signal::CONT);
    assert_eq!(second.status(), 69);
    assert!(fs::metadata(second.path("ran")).is_err());
    let said = second.file("output");
    assert!(
        said.contains(
            "too little of the lease was left to start the command: this host was too slow"
        ),
        "{said}"
    );
    assert!(
        said.contains("hint: give this host more CPU time, or the lease a longer --ttl"),
        "{said}"
    );
    second.await_end();
}
