//! Killed, frozen and competing processes.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use super::*;

const TASK: &str = "DLOCK_SQLITE_TEST_TASK";

/// Not a test, but the entry point of the other processes. Does nothing without the environment
/// variable.
#[tokio::test]
async fn process() {
    let Ok(task) = env::var(TASK) else { return };
    let words: Vec<&str> = task.split('|').collect();
    let path = Path::new(words[1]);
    match words[0] {
        "hold" => hold(path, words[2], request("job")).await,
        "hold-s" => {
            hold(
                path,
                words[2],
                Request {
                    mode: Mode::Shared,
                    ..request("job")
                },
            )
            .await;
        }
        "hold-p" => {
            hold(
                path,
                words[2],
                Request {
                    mode: Mode::Permits(2),
                    ..request("job")
                },
            )
            .await;
        }
        "hold-f" => {
            hold(
                path,
                words[2],
                Request {
                    fair: true,
                    ..request("job")
                },
            )
            .await;
        }
        "mix" => mix(path, Path::new(words[2])).await,
        "count" => count(path, Path::new(words[2])).await,
        "refused" => say(&format!(
            "{:?}",
            backend(path)
                .try_acquire(&request("job"))
                .await
                .unwrap_err()
                .kind
        )),
        "drain" => drain(path).await,
        other => panic!("{other}"),
    }
}

fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@{what}").unwrap();
    out.flush().unwrap();
}

fn read_order() -> String {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Holds `job`. If `child` asks for it, leaves a child process that has inherited the lock file.
#[allow(clippy::zombie_processes)] // the child must go on
async fn hold(path: &Path, child: &str, request: Request) {
    let mut backend = backend(path);
    backend.prepare(true).unwrap();
    let held = Request {
        waiting: true,
        ttl: ttl(1),
        ..request
    };
    say("ready");
    let grant = acquire(&mut backend, &held).await;
    say(&grant.fence.to_string());
    if child == "child" {
        let child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        say(&child.id().to_string());
    }
    if read_order() == "release" {
        assert_eq!(release(&mut backend, &held).await, Release::Released);
        say("released");
        read_order();
    }
}

/// Adds one to a number in a file under the lock, with no other protection.
async fn count(path: &Path, counter: &Path) {
    for _ in 0..25 {
        let mut backend = backend(path);
        let held = Request {
            waiting: true,
            ..request("job")
        };
        let grant = acquire(&mut backend, &held).await;
        let before: (u64, u64) = fs::read_to_string(counter).map_or((0, 0), |text| {
            let (count, fence) = text.split_once(' ').unwrap();
            (count.parse().unwrap(), fence.parse().unwrap())
        });
        assert!(
            grant.fence.0 > before.1,
            "fence {} after {}",
            grant.fence,
            before.1
        );
        fs::write(counter, format!("{} {}", before.0 + 1, grant.fence)).unwrap();
        assert_eq!(release(&mut backend, &held).await, Release::Released);
    }
}

/// Takes `job` in all modes at random, and checks that each concurrent hold is allowed.
async fn mix(path: &Path, marks: &Path) {
    use std::fs::File;

    use rustix::fs::{FlockOperation, flock};

    let me = std::process::id().to_string();
    for _ in 0..20 {
        let dice = crate::lock::random();
        let (kind, mode) = match dice % 4 {
            0 => ("x", Mode::Exclusive),
            1 => ("s", Mode::Shared),
            _ => ("p", Mode::Permits(2)),
        };
        let mut backend = backend(path);
        let held = Request {
            waiting: true,
            mode,
            fair: dice & 16 > 0,
            ..request("job")
        };
        let grant = acquire(&mut backend, &held).await;
        let name = format!(
            "{kind}{}.{me}",
            grant
                .permit
                .map(|permit| permit.to_string())
                .unwrap_or_default()
        );
        // The mark of a process that dies is unlocked.
        let mark = File::create(marks.join(&name)).unwrap();
        flock(&mark, FlockOperation::NonBlockingLockExclusive).unwrap();
        for other in fs::read_dir(marks).unwrap() {
            let other = other.unwrap();
            let text = other.file_name().into_string().unwrap();
            let Ok(file) = File::open(other.path()) else {
                continue;
            };
            if text == name || flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
                continue;
            }
            let (theirs, ours) = (
                text.split('.').next().unwrap(),
                name.split('.').next().unwrap(),
            );
            let alike = theirs.starts_with(kind) && kind != "x" && (kind == "s" || theirs != ours);
            assert!(alike, "{name} next to {text}");
        }
        tokio::time::sleep(Duration::from_millis(dice >> 8 & 7)).await;
        fs::remove_file(marks.join(&name)).unwrap();
        drop(mark);
        assert_eq!(release(&mut backend, &held).await, Release::Released);
    }
}

/// Waits for `job`, reports the time of the grant, and releases it at once.
pub(super) async fn drain(path: &Path) {
    let mut backend = backend(path);
    backend.prepare(true).unwrap();
    let held = Request {
        waiting: true,
        ..request("job")
    };
    busy(&mut backend, &held).await;
    say("ready");
    acquire(&mut backend, &held).await;
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    release(&mut backend, &held).await;
    say(&(now.tv_sec * 1_000_000_000 + now.tv_nsec).to_string());
}

/// Another process, killed at the end of the test.
pub(super) struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    pub(super) fn start(task: &str) -> Self {
        Self::run(Command::new(env::current_exe().unwrap()), task)
    }

    fn run(mut command: Command, task: &str) -> Self {
        command
            .args([
                "backends::sqlite::tests::processes::process",
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(TASK, task);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (
            child.stdin.take(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        Self {
            child,
            input,
            output,
        }
    }

    /// Returns the next message of the process.
    pub(super) fn says(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.output.read_line(&mut line).unwrap(),
                0,
                "the process ended"
            );
            if let Some((_, said)) = line.split_once('@') {
                return said.trim().to_owned();
            }
        }
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.input.as_mut().unwrap(), "{what}").unwrap();
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Whether the process ended without another message.
    pub(super) fn is_silent(&mut self) -> bool {
        self.child.wait().unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap() == 0 || !line.contains('@')
    }

    pub(super) fn ends_well(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a process that holds `job`, and returns it with its fence.
fn holder(path: &Path, child: &str) -> (Other, u64) {
    let mut other = Other::start(&format!("hold|{}|{child}", path.display()));
    assert_eq!(other.says(), "ready");
    let fence = other.says().parse().unwrap();
    (other, fence)
}

#[tokio::test]
async fn a_killed_holders_lock_is_free_at_once() {
    let (_keep, path) = place();
    let mut last = 0;
    for _ in 0..3 {
        let (other, fence) = holder(&path, "alone");
        assert!(fence > last, "fences rise over crashes");
        let mut waiter = backend(&path);
        let wants = Request {
            waiting: true,
            ..request("job")
        };
        busy(&mut waiter, &wants).await;
        other.signal(Signal::KILL);
        let start = Instant::now();
        last = acquire(&mut waiter, &wants).await.fence.0;
        assert!(
            start.elapsed() < Duration::from_millis(500),
            "{:?}",
            start.elapsed()
        );
        assert!(last > fence);
        release(&mut waiter, &wants).await;
    }
}

#[tokio::test]
async fn a_lock_is_held_as_long_as_a_child_of_a_killed_holder_lives() {
    let (_keep, path) = place();
    let (mut other, _) = holder(&path, "child");
    let child: i32 = other.says().parse().unwrap();
    other.signal(Signal::KILL);
    other.child.wait().unwrap();
    let mut waiter = backend(&path);
    let wants = Request {
        waiting: true,
        ..request("job")
    };
    // Longer than the lease of one second.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    busy(&mut waiter, &wants).await;
    kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
    let start = Instant::now();
    acquire(&mut waiter, &wants).await;
    assert!(
        start.elapsed() < Duration::from_millis(500),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn a_release_frees_the_lock_although_a_child_has_the_descriptor() {
    let (_keep, path) = place();
    let (mut other, _) = holder(&path, "child");
    let child: i32 = other.says().parse().unwrap();
    other.tell("release");
    assert_eq!(other.says(), "released");
    granted(&mut backend(&path), &request("job")).await;
    kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_frozen_holder_keeps_the_lock_beyond_its_lease() {
    let (_keep, path) = place();
    let (mut other, fence) = holder(&path, "alone");
    other.signal(Signal::STOP);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let found = busy(&mut backend(&path), &request("job")).await;
    assert_eq!(found.holders[0].fence.unwrap().0, fence);
    other.signal(Signal::CONT);
    other.tell("release");
    assert_eq!(other.says(), "released");
}

#[tokio::test]
async fn a_frozen_waiter_delays_no_other() {
    let (_keep, path) = place();
    let mut a = backend(&path);
    let held = request("job");
    granted(&mut a, &held).await;
    let mut frozen = Other::start(&format!("hold|{}|alone", path.display()));
    assert_eq!(frozen.says(), "ready");
    let mut queued = false;
    for _ in 0..200 {
        queued = !backend(&path)
            .inspect(&held.key)
            .await
            .unwrap()
            .waiters
            .is_empty();
        tokio::time::sleep(Duration::from_millis(10)).await;
        if queued {
            break;
        }
    }
    assert!(queued);
    frozen.signal(Signal::STOP);
    tokio::time::sleep(Duration::from_millis(50)).await;
    release(&mut a, &held).await;
    let start = Instant::now();
    let next = request("job");
    acquire(&mut a, &next).await;
    assert!(
        start.elapsed() < Duration::from_millis(500),
        "{:?}",
        start.elapsed()
    );
    frozen.signal(Signal::CONT);
    tokio::time::sleep(Duration::from_millis(50)).await;
    release(&mut a, &next).await;
    assert!(
        frozen.says().parse::<u64>().is_ok(),
        "the resumed waiter gets the lock"
    );
}

#[tokio::test]
async fn a_waiter_that_died_is_not_shown() {
    let (_keep, path) = place();
    let mut a = backend(&path);
    let held = request("job");
    granted(&mut a, &held).await;
    let mut dead = Other::start(&format!("drain|{}", path.display()));
    assert_eq!(dead.says(), "ready");
    assert_eq!(a.inspect(&held.key).await.unwrap().waiters.len(), 1);
    dead.signal(Signal::KILL);
    dead.child.wait().unwrap();
    assert!(a.inspect(&held.key).await.unwrap().waiters.is_empty());
    let mut second = backend(&path);
    let wants = Request {
        waiting: true,
        ..request("job")
    };
    busy(&mut second, &wants).await;
    assert_eq!(a.inspect(&held.key).await.unwrap().waiters.len(), 1);
    let mut connection = sql(&path, "SELECT 1").await;
    let listed: i64 = sqlx::query_scalar("SELECT count(*) FROM waiters")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(listed, 1, "later waiters remove it");
}

#[test]
fn twenty_processes_exclude_each_other() {
    let (keep, path) = place();
    let counter = keep.path().join("counter");
    let task = format!("count|{}|{}", path.display(), counter.display());
    let all: Vec<_> = (0..20).map(|_| Other::start(&task)).collect();
    for one in all {
        one.ends_well();
    }
    let count = fs::read_to_string(counter).unwrap();
    assert_eq!(count.split_once(' ').unwrap().0, "500");
}

#[test]
fn a_directory_that_cannot_be_written_is_refused() {
    let (keep, path) = place();
    let exe = env::current_exe().unwrap();
    let mut command = Command::new(&exe);
    if rustix::process::geteuid().is_root() {
        // Permissions don't restrict root. Another user may not reach a build directory, so the
        // binary is copied.
        let copy = keep.path().join("test");
        // Another process writes the copy: a child forked by another test could inherit a writable
        // descriptor, which prevents execution.
        assert!(
            Command::new("cp")
                .arg(&exe)
                .arg(&copy)
                .status()
                .unwrap()
                .success()
        );
        command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(copy);
    }
    fs::set_permissions(
        keep.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o555),
    )
    .unwrap();
    let mut other = Other::run(command, &format!("refused|{}", path.display()));
    assert_eq!(other.says(), "Denied");
    other.ends_well();
    fs::set_permissions(
        keep.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
}
