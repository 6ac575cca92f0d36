//! The critical section that each contender runs under its lock: this program, started again as
//! `campaign section TASK`.
//!
//! A section locks its byte of the keys' files ([`LivenessFile`]), records which others are alive,
//! starts its tree, works, and records its end.

use std::{
    fs::OpenOptions,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::liveness::{LivenessFile, now};

/// The argument that makes this program a section.
pub const ROLE: &str = "section";

/// The task of one section.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SectionTask {
    pub folder: PathBuf,
    pub run: u64,
    /// The numbers of the section's keys.
    pub keys: Vec<usize>,
    pub hold_ms: u64,
    /// The exit status.
    pub code: i32,
    pub tree: Vec<Member>,
    /// The command line of a nested `dlock run`.
    pub inner: Option<Vec<String>>,
}

/// A process that outlives the section's own process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Member {
    pub ms: u64,
    /// Whether the process has its own session and no parent left.
    pub daemon: bool,
}

/// Returns the file that all sections of a round append to, one line of JSON per event.
pub fn log_of(folder: &Path) -> PathBuf {
    folder.join("sections")
}

/// Runs as a section, and returns its exit status.
pub fn run(task: &str) -> i32 {
    match try_run(task) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "section: {error}");
            99
        }
    }
}

fn try_run(task: &str) -> Result<i32, Box<dyn std::error::Error>> {
    let task: SectionTask = serde_json::from_str(task)?;
    let files = task
        .keys
        .iter()
        .map(|key| LivenessFile::open(&task.folder, *key))
        .collect::<Result<Vec<_>, _>>()?;
    for file in &files {
        file.enter(task.run)?;
    }
    let began = now();
    let mut alive = Vec::new();
    for (key, file) in task.keys.iter().zip(&files) {
        alive.extend(file.living()?.into_iter().map(|run| json!([key, run])));
    }
    write(
        &task,
        &json!({"at": "begin", "run": task.run, "t": began, "alive": alive, "fences": fences(&task), "permit": permit()}),
    )?;
    for member in &task.tree {
        start(member)?;
    }
    sleep(Duration::from_millis(task.hold_ms));
    let mut code = task.code;
    if let Some(inner) = &task.inner {
        let status = Command::new(&inner[0])
            .args(&inner[1..])
            .stdin(Stdio::null())
            .status()?;
        write(
            &task,
            &json!({"at": "inner", "run": task.run, "t": now(), "code": status.code()}),
        )?;
        code = status.code().unwrap_or(98);
        sleep(Duration::from_millis(task.hold_ms));
    }
    write(
        &task,
        &json!({"at": "end", "run": task.run, "t": now(), "code": code}),
    )?;
    Ok(code)
}

/// Appends the line with a single write.
fn write(task: &SectionTask, line: &Value) -> std::io::Result<()> {
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(log_of(&task.folder))?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// Returns the fence of each key, as `[key, fence]`.
fn fences(task: &SectionTask) -> Vec<Value> {
    let number = |text: &str| text.trim().parse::<u64>().unwrap_or_default();
    if let Ok(several) = std::env::var("DLOCK_FENCES") {
        let of_key = |name: &str| {
            name.rsplit('-')
                .next()
                .and_then(|key| key.parse::<usize>().ok())
        };
        return several
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, fence)| json!([of_key(name), number(fence)]))
            .collect();
    }
    let fence = std::env::var("DLOCK_FENCE").unwrap_or_default();
    task.keys
        .iter()
        .take(1)
        .map(|key| json!([key, number(&fence)]))
        .collect()
}

fn permit() -> Option<u64> {
    std::env::var("DLOCK_PERMIT").ok()?.parse().ok()
}

/// Starts a process that ignores TERM and inherits the locks.
fn start(member: &Member) -> std::io::Result<()> {
    let linger = format!(
        "trap '' TERM HUP INT; sleep {}.{:03}",
        member.ms / 1000,
        member.ms % 1000
    );
    let mut shell = Command::new("/bin/sh");
    shell
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if member.daemon {
        shell
            .args(["-c", "setsid sh -c \"$0\" &", &linger])
            .status()?;
    } else {
        shell.args(["-c", &linger]).spawn()?;
    }
    Ok(())
}
