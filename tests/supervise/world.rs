//! Starts the role and inspects its processes.

use std::{
    fs,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The argument that turns this test program into a dlock.
pub const ROLE: &str = "be-dlock";
/// A limit that no step exceeds, even on a loaded machine.
const LIMIT: Duration = Duration::from_secs(20);

/// One dlock with its command.
pub struct World {
    pub directory: TempDir,
    /// A sleep duration in seconds that only this test uses; it identifies the processes of its
    /// tree.
    pub token: String,
    /// This test program, or a copy of it.
    pub program: String,
    pub child: Option<Child>,
    pub pid: i32,
}

impl World {
    /// Creates a world without processes.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let token = format!(
            "9{:07}{:03}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let program = std::env::current_exe()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        Self {
            directory: tempfile::tempdir().unwrap(),
            token,
            program,
            child: None,
            pid: 0,
        }
    }

    /// Returns the path of a file in this test's folder.
    pub fn path(&self, name: &str) -> String {
        self.directory
            .path()
            .join(name)
            .to_str()
            .unwrap()
            .to_owned()
    }

    /// Returns the role's command line for a shell script, with `TOKEN` and `DIR` filled in.
    pub fn line(&self, instructions: &str, command: &[&str]) -> Vec<String> {
        let fill = |word: &str| {
            word.replace("TOKEN", &self.token)
                .replace("DIR", self.directory.path().to_str().unwrap())
        };
        let mut line = vec![
            self.program.clone(),
            ROLE.to_owned(),
            format!("log={}", self.path("log")),
        ];
        line.extend(instructions.split_whitespace().map(str::to_owned));
        line.push("--".into());
        line.extend(command.iter().map(|word| fill(word)));
        line
    }

    /// Starts the role around a shell script in its own process group, after the words of `prefix`
    /// (`setsid`, `nohup` …).
    pub fn start_behind(&mut self, prefix: &[&str], instructions: &str, command: &[&str]) {
        use std::os::unix::process::CommandExt as _;
        let line = self.line(instructions, command);
        let all: Vec<&str> = prefix
            .iter()
            .copied()
            .chain(line.iter().map(String::as_str))
            .collect();
        let output = || {
            fs::File::options()
                .create(true)
                .append(true)
                .open(self.path("output"))
                .unwrap()
        };
        let child = Command::new(all[0])
            .args(&all[1..])
            .stdin(Stdio::null())
            .stdout(output())
            .stderr(output())
            .env("DLOCK_WAIT", "5")
            .env("DLOCK_BACKEND", "kept")
            .env_remove("DLOCK_KEY")
            .process_group(0)
            .spawn()
            .unwrap();
        self.pid = i32::try_from(child.id()).unwrap();
        self.child = Some(child);
    }

    /// Starts the role around a shell script.
    pub fn start(&mut self, instructions: &str, script: &str) {
        self.start_behind(&[], instructions, &["sh", "-c", script]);
    }

    /// Returns the log so far, with times in ms.
    pub fn log(&self) -> Vec<(u64, String)> {
        let text = fs::read_to_string(self.path("log")).unwrap_or_default();
        let split = |line: &str| {
            line.split_once(' ')
                .map(|(at, what)| (at.parse().unwrap(), what.to_owned()))
        };
        text.lines().filter_map(split).collect()
    }

    /// Returns when the first event with this prefix came, if it did.
    pub fn when(&self, what: &str) -> Option<u64> {
        self.log()
            .into_iter()
            .find(|(_, line)| line.starts_with(what))
            .map(|(at, _)| at)
    }

    /// Waits for an event with this prefix, and returns its time and the rest of its text.
    pub fn event(&self, what: &str) -> (u64, String) {
        until(&format!("event {what}"), || {
            let found = self
                .log()
                .into_iter()
                .find(|(_, line)| line.starts_with(what));
            found.map(|(at, line)| (at, line[what.len()..].trim().to_owned()))
        })
    }

    /// Waits until the command runs and its script has created the file `ready`.
    pub fn ready(&self) -> &Self {
        self.event("Started");
        self.file("ready");
        self
    }

    /// Waits until this file has content, and returns it.
    pub fn file(&self, name: &str) -> String {
        until(&format!("file {name}"), || {
            fs::read_to_string(self.path(name))
                .ok()
                .filter(|text| !text.is_empty())
        })
    }

    /// Returns the guardian's pid.
    pub fn guardian(&self) -> i32 {
        self.event("Guardian").1.parse().unwrap()
    }

    /// Waits for dlock's end, and returns its exit status, or 128 + the signal.
    pub fn status(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt as _;
        let mut child = self.child.take().unwrap();
        let status = until("the end of dlock", || child.try_wait().unwrap());
        status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap())
    }

    /// Returns the living processes of the tree, without dlock and the guardian.
    pub fn alive(&self) -> Vec<i32> {
        living(&self.token, false)
    }

    /// Returns the living dlocks and guardians.
    pub fn supervisors(&self) -> Vec<i32> {
        living(&self.token, true)
    }

    /// Waits until no process is left.
    pub fn await_end(&self) {
        until(
            &format!("the end of {:?} and {:?}", self.alive(), self.supervisors()),
            || (self.alive().is_empty() && self.supervisors().is_empty()).then_some(()),
        );
    }

    /// Waits until the tree has `count` processes.
    pub fn await_processes(&self, count: usize) {
        until(&format!("{count} processes"), || {
            (self.alive().len() == count).then_some(())
        });
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for _ in 0..3 {
            for pid in self.alive().into_iter().chain(self.supervisors()) {
                send(pid, Signal::KILL);
            }
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!(
                "{:#?}\n{}",
                self.log(),
                fs::read_to_string(self.path("output")).unwrap_or_default()
            );
        }
    }
}

/// Signals a process, if it exists.
pub fn send(pid: i32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}

/// Returns a field of /proc/PID/stat after the name: 0 is the state.
pub fn stat(pid: i32, field: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?
        .1
        .split(' ')
        .nth(field)
        .map(str::to_owned)
}

fn living(token: &str, supervisors: bool) -> Vec<i32> {
    let pids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let line =
            String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default())
                .into_owned();
        let ours = line.contains(ROLE);
        line.contains(token)
            && ours == supervisors
            && stat(*pid, 0).is_some_and(|state| state != "Z" && state != "X")
    })
    .collect()
}

/// Waits until `look` returns a value.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "timed out waiting for {what}");
        sleep(Duration::from_millis(5));
    }
}
