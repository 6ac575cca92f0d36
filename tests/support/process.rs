//! Processes that tests start: tracked, limited in time, and ended with the test.

use std::{
    ffi::OsStr,
    io::{self, Read},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Mutex, OnceLock, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::procfs;

/// Returns a command whose process is killed when this test process ends, however that happens.
///
/// `setpriv` requests this from the kernel, and then becomes `program`, with the same process id.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let setpriv = super::find_program("setpriv").expect("setpriv, of util-linux");
    let program = program.as_ref();
    let path = if Path::new(program).components().count() == 1 {
        super::find_program(program.to_str().expect("a name in UTF-8"))
            .unwrap_or_else(|| panic!("{} is not installed", program.display()))
    } else {
        program.into()
    };
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL", "--"]).arg(path);
    command
}

type Job = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts `command` from a thread that lives as long as this process: "the parent died" means
/// the thread that forked, and test runners end threads at will.
pub fn start(command: Command) -> io::Result<Child> {
    static STARTER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (send, jobs) = mpsc::channel::<Job>();
        thread::spawn(move || {
            for (mut command, reply) in jobs {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(send)
    });
    let (send, reply) = mpsc::channel();
    starter
        .lock()
        .expect("the starter")
        .send((command, send))
        .expect("the starter's thread");
    reply.recv().expect("the starter's answer")
}

/// The result of an ended process.
#[derive(Clone, Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// The time from the start to the end of the wait.
    pub took: Duration,
}

impl Ended {
    /// Returns the exit status, with 128+N for a signal, as a shell does.
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| 128 + self.status.signal().unwrap_or_default())
    }
}

/// A running process, killed and reaped when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    started: Instant,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
    what: String,
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all);
        all
    })
}

impl Process {
    /// Starts `command` and collects its output. The standard input is empty unless set before.
    #[track_caller]
    pub fn collect(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::start(command)
    }

    /// Starts `command` with its output as set.
    #[track_caller]
    pub fn start(command: Command) -> Self {
        let what = format!("{command:?}");
        let started = Instant::now();
        let mut child = start(command).unwrap_or_else(|error| panic!("{what}: {error}"));
        let (stdout, stderr) = (
            child.stdout.take().map(collect),
            child.stderr.take().map(collect),
        );
        Self {
            child,
            started,
            stdout,
            stderr,
            what,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes the standard input, if it was piped.
    pub fn stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    fn id(&self) -> Pid {
        Pid::from_raw(self.pid().cast_signed()).expect("a process id")
    }

    /// Sends a signal to this process alone.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill_process(self.id(), signal).unwrap_or_else(|error| panic!("{}: {error}", self.what));
    }

    /// Sends a signal to the process group that this process leads.
    #[track_caller]
    pub fn signal_group(&self, signal: Signal) {
        kill_process_group(self.id(), signal)
            .unwrap_or_else(|error| panic!("{}: {error}", self.what));
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_some()
    }

    /// Waits for the end. Fails the test after `limit`, later on a busy machine, and shows the
    /// process tree.
    #[track_caller]
    pub fn wait(mut self, limit: Duration) -> Ended {
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                break status;
            }
            if self.started.elapsed() >= limit && self.started.elapsed() >= super::stretched(limit)
            {
                let tree = procfs::descendants(self.pid());
                let _ = self.child.kill();
                panic!(
                    "{} is not done after {:?}; below it: {tree:?}",
                    self.what,
                    self.started.elapsed()
                );
            }
            thread::sleep(Duration::from_millis(1));
        };
        let took = self.started.elapsed();
        Ended {
            status,
            stdout: finish(self.stdout.take()),
            stderr: finish(self.stderr.take()),
            took,
        }
    }
}

/// Returns the output, after waiting briefly for other processes that inherited the pipe.
fn finish(reader: Option<JoinHandle<Vec<u8>>>) -> String {
    let Some(reader) = reader else {
        return String::new();
    };
    if !super::eventually(Duration::from_secs(2), || reader.is_finished()) {
        return "(somebody still holds this output open)".into();
    }
    String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned()
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(self.id(), Signal::CONT);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Sends a signal to any process by id; a process that is gone already is no failure.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = kill_process(pid, signal);
    }
}

/// At the end of a test, kills all processes with this tag in their command line or environment.
pub struct Sweep(pub String);

impl Drop for Sweep {
    fn drop(&mut self) {
        for stat in procfs::tagged(&self.0) {
            signal(stat.pid, Signal::KILL);
        }
    }
}
