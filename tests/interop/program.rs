//! A process with one lock of a library, which executes commands from the test.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdin, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::support::{
    find_program,
    libraries::{DRIVERS, curator, node_modules, python},
    process,
};

/// Much longer than an answer takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The library's language, and its name in the driver of that language.
#[derive(Clone, Copy, Debug)]
pub enum Language {
    /// `driver.py`: MODULE:KIND
    Python(&'static str),
    /// `driver.js`
    Node(&'static str),
    /// `Driver.java`, for Curator
    Java(&'static str),
}

impl Language {
    /// Returns why no program of this language can run, if so.
    pub fn missing(self) -> Option<String> {
        let (programs, made): (&[&str], fn() -> Option<String>) = match self {
            Self::Python(_) => (&["python3"], || python().err()),
            Self::Node(_) => (&["node", "npm"], || node_modules().err()),
            Self::Java(_) => (&["java", "javac"], || curator().err()),
        };
        let missing = programs
            .iter()
            .find(|program| find_program(program).is_none());
        missing
            .map(|program| format!("not installed: {program}"))
            .or_else(made)
    }

    fn command(self) -> std::process::Command {
        match self {
            Self::Python(kind) => {
                let mut command = process::command(python().unwrap());
                // The generated code of etcd3 is older than its runtime.
                command
                    .arg("-B")
                    .arg(format!("{DRIVERS}/driver.py"))
                    .arg(kind)
                    .env("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python");
                command
            }
            Self::Node(kind) => {
                let mut command = process::command("node");
                command
                    .arg(format!("{DRIVERS}/driver.js"))
                    .arg(kind)
                    .env("NODE_PATH", node_modules().unwrap());
                command
            }
            Self::Java(kind) => {
                let mut command = process::command("java");
                command.args([
                    "-XX:TieredStopAtLevel=1",
                    "-XX:+UseSerialGC",
                    "-cp",
                    &curator().unwrap(),
                    "Driver",
                    kind,
                ]);
                command
            }
        }
    }
}

/// A running driver. It leads a process group, which is killed when this value is dropped.
pub struct Program {
    child: Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
}

impl Program {
    pub fn start(language: Language, address: &str, name: &str, ttl: u32) -> Self {
        let mut command = language.command();
        command
            .args([address, name, &ttl.to_string()])
            .process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = process::start(command).unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (send, answers) = mpsc::channel();
        thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| send.send(line))
        });
        let mut program = Self {
            child,
            stdin,
            answers,
        };
        assert_eq!(program.answer(), "ready");
        program
    }

    /// Sends a command and returns the answer.
    #[track_caller]
    pub fn say(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    /// Sends a command that may take long.
    #[track_caller]
    pub fn tell(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").unwrap();
    }

    /// Returns the next answer.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        self.answers
            .recv_timeout(LIMIT)
            .unwrap_or_else(|error| panic!("no answer: {error}"))
    }

    /// Returns the next answer, if it comes within this time.
    pub fn answer_within(&mut self, time: Duration) -> Option<String> {
        match self.answers.recv_timeout(time) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the driver ended"),
        }
    }

    /// Kills the driver and its descendants.
    pub fn kill(&mut self) {
        let group = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}
