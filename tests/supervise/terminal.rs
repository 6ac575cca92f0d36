//! dlock on a terminal, started by a shell: Ctrl-C, Ctrl-Z, fg and the background.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::{
    trials,
    world::{World, stat, until},
};

trials!(
    ctrl_c_reaches_command_and_caller_once,
    death_by_ctrl_c_is_passed_on,
    ctrl_z_and_fg_work,
    a_job_stopped_beyond_its_lease_is_killed,
    in_the_background_the_command_has_its_own_group,
    a_background_job_that_is_brought_forward_may_read,
    a_hang_up_ends_the_command_of_the_sessions_leader,
);

/// The user's side of a terminal.
pub struct Keyboard(File);

impl Keyboard {
    /// Presses a key: 3 is Ctrl-C, 26 is Ctrl-Z.
    pub fn press(&mut self, key: u8) {
        self.0.write_all(&[key]).unwrap();
    }
}

/// Starts bash on its own terminal. `ROLE` in the script stands for dlock with these instructions
/// and this command.
fn on_terminal(world: &mut World, script: &str, instructions: &str, command: &str) -> Keyboard {
    let role = world.line(instructions, &["sh", "-c", command]);
    on_terminal_with(world, script, &role)
}

/// Like [`on_terminal`], with this command line for `ROLE`.
pub fn on_terminal_with(world: &mut World, script: &str, role: &[String]) -> Keyboard {
    let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&user).unwrap();
    unlockpt(&user).unwrap();
    let name = ptsname(&user, Vec::new()).unwrap();
    let line = |()| {
        File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap()
    };
    let quoted: Vec<String> = role
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', "'\\''")))
        .collect();
    let script = script
        .replace("ROLE", &quoted.join(" "))
        .replace("DIR", world.directory.path().to_str().unwrap());
    let child = Command::new("setsid")
        .args(["--ctty", "bash", "-c", &script])
        .stdin(Stdio::from(OwnedFd::from(line(()))))
        .stdout(line(()))
        .stderr(line(()))
        .spawn()
        .unwrap();
    world.pid = i32::try_from(child.id()).unwrap();
    world.child = Some(child);
    let mut reader = File::from(user.try_clone().unwrap());
    let copy = world.path("output");
    // A full terminal blocks its writers, so a thread reads it.
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = reader.read(&mut buffer) {
            let copied = File::options()
                .create(true)
                .append(true)
                .open(&copy)
                .and_then(|mut file| file.write_all(&buffer[..length]));
            if copied.is_err() {
                return;
            }
        }
    });
    Keyboard(File::from(user))
}

fn ctrl_c_reaches_command_and_caller_once() {
    let mut world = World::new();
    let caller = "trap 'echo caller >> DIR/signals' INT; ROLE; echo $? > DIR/status";
    let command = "trap 'echo command >> DIR/signals' INT; echo > DIR/ready; while ! [ -e DIR/end ]; do sleep 0.02; done; exit 3; : TOKEN";
    let mut keyboard = on_terminal(&mut world, caller, "", command);
    world.ready();
    keyboard.press(3);
    world.event("Signal { number: 2, from_terminal: true");
    // Long enough for a second signal, which would be a bug, to arrive.
    sleep(Duration::from_millis(300));
    fs::write(world.path("end"), "x").unwrap();
    assert_eq!(world.file("status"), "3\n");
    let signals = world.file("signals");
    let mut signals: Vec<&str> = signals.lines().collect();
    signals.sort_unstable();
    assert_eq!(signals, ["caller", "command"]);
    world.status();
    world.await_end();
}

fn death_by_ctrl_c_is_passed_on() {
    let mut world = World::new();
    // bash ends itself by INT only if its child did.
    let mut keyboard = on_terminal(
        &mut world,
        "ROLE; echo survived > DIR/survived",
        "",
        "echo > DIR/ready; exec sleep TOKEN",
    );
    world.ready();
    keyboard.press(3);
    assert_eq!(world.status(), 130);
    assert!(!fs::exists(world.path("survived")).unwrap());
    world.await_end();
}

fn ctrl_z_and_fg_work() {
    let mut world = World::new();
    let caller = "set -m; ROLE; echo $? > DIR/stopped; while ! [ -e DIR/go ]; do sleep 0.02; done; fg; echo $? > DIR/status";
    // Not a loop of `sleep`: a shell in vfork doesn't stop, with or without dlock.
    let command = "mkfifo DIR/end; echo $$ > DIR/ready; read word < DIR/end; exit 4; : TOKEN";
    let mut keyboard = on_terminal(&mut world, caller, "", command);
    let pid: i32 = world.ready().file("ready").trim().parse().unwrap();
    keyboard.press(26);
    assert_eq!(world.file("stopped"), "148\n");
    world.event("Stopped { signal: 20 }");
    assert_eq!(stat(pid, 0).unwrap(), "T");
    fs::write(world.path("go"), "x").unwrap();
    world.event("Resumed");
    until("the command to go on", || {
        (stat(pid, 0).unwrap() != "T").then_some(())
    });
    fs::write(world.path("end"), "x\n").unwrap();
    assert_eq!(world.file("status"), "4\n");
    world.status();
    world.await_end();
}

fn a_job_stopped_beyond_its_lease_is_killed() {
    let mut world = World::new();
    let caller = "set -m; ROLE; echo $? > DIR/stopped; while ! [ -e DIR/go ]; do sleep 0.02; done; fg; echo $? > DIR/status";
    let command =
        "trap 'echo term > DIR/term; exit 1' TERM; sleep TOKEN & echo $$ > DIR/ready; wait";
    let mut keyboard = on_terminal(&mut world, caller, "term=900 kill=1300 renew=100", command);
    world.ready();
    keyboard.press(26);
    assert_eq!(world.file("stopped"), "148\n");
    assert_eq!(world.file("term"), "term\n");
    until("the tree's death", || {
        world
            .alive()
            .iter()
            .all(|pid| *pid == world.pid)
            .then_some(())
    });
    fs::write(world.path("go"), "x").unwrap();
    assert_eq!(world.file("status"), "76\n");
    world.status();
    world.await_end();
}

/// A background job is stopped when it reads and then brought forward, or brought forward first.
fn a_background_job_that_is_brought_forward_may_read() {
    for reads_first in [true, false] {
        let mut world = World::new();
        let caller = "set -m; ROLE & while ! [ -e DIR/go ]; do sleep 0.02; done; fg; echo $? > DIR/status; read word; echo $word > DIR/after";
        let waits = if reads_first {
            ""
        } else {
            "while ! [ -e DIR/late ]; do sleep 0.02; done; "
        };
        let command = format!(
            "echo $$ > DIR/ready; {waits}read word; echo $word > DIR/word; exit 4; : TOKEN"
        );
        let mut keyboard = on_terminal(&mut world, caller, "", &command);
        world.ready();
        if reads_first {
            world.event("Stopped { signal: 21 }");
        }
        fs::write(world.path("go"), "x").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        fs::write(world.path("late"), "x").unwrap();
        keyboard.0.write_all(b"hello\n").unwrap();
        assert_eq!(world.file("word"), "hello\n");
        assert_eq!(world.file("status"), "4\n");
        keyboard.0.write_all(b"again\n").unwrap();
        assert_eq!(world.file("after"), "again\n");
        world.status();
        world.await_end();
    }
}

fn in_the_background_the_command_has_its_own_group() {
    let mut world = World::new();
    let caller = "set -m; ROLE & wait $!; echo $? > DIR/status";
    let command = "cut -d' ' -f1,5 /proc/$$/stat > DIR/ready; exit 4; : TOKEN";
    let _keyboard = on_terminal(&mut world, caller, "", command);
    let text = world.ready().file("ready");
    let (pid, group) = text.trim().split_once(' ').unwrap();
    assert_eq!(pid, group);
    assert_eq!(world.file("status"), "4\n");
    world.status();
    world.await_end();
}

/// Executes its arguments as the leader of a session on a terminal, and hangs up once the file of
/// the first one exists.
const HANG_UP: &str = "
import os, pty, sys, time
leader, terminal = pty.fork()
if leader == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
os.close(terminal)
status = os.waitstatus_to_exitcode(os.waitpid(leader, 0)[1])
sys.exit(status if status >= 0 else 128 - status)
";

/// As with `ssh -t host dlock run …`, whose shell executes its last command. The kernel sends the
/// signal to the leader alone.
fn a_hang_up_ends_the_command_of_the_sessions_leader() {
    let mut world = World::new();
    let ready = world.path("ready");
    let command = [
        "sh",
        "-c",
        "trap 'echo > DIR/hup; exit 5' HUP; echo > DIR/ready; while :; do sleep 0.02; done; : TOKEN",
    ];
    world.start_behind(&["python3", "-c", HANG_UP, &ready], "", &command);
    world.file("hup");
    assert_eq!(world.status(), 5);
    world.await_end();
}
