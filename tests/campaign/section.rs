//! What each contender runs under its lock: this very program, started again as `campaign section ORDERS`.
//!
//! It locks its byte of the keys' files ([`Live`]), looks who else lives, writes that down, starts its tree, works, and writes its end.

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

use crate::live::{Live, now};

/// The argument that makes this program a section.
pub const ROLE: &str = "section";

/// What one section does.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Orders {
    pub folder: PathBuf,
    pub run: u64,
    /// The numbers of the keys that it is run under.
    pub keys: Vec<usize>,
    pub hold_ms: u64,
    /// What it exits with.
    pub code: i32,
    pub tree: Vec<Member>,
    /// A `dlock run` to start inside: its arguments.
    pub inner: Option<Vec<String>>,
}

/// One process that outlives the section's own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Member {
    pub ms: u64,
    /// In a session of its own, and its parent is gone.
    pub daemon: bool,
}

/// The file that all sections of a round append to, a line of JSON for each event.
pub fn log_of(folder: &Path) -> PathBuf {
    folder.join("sections")
}

/// Runs as a section, and returns its exit status.
pub fn run(orders: &str) -> i32 {
    match try_run(orders) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "section: {error}");
            99
        }
    }
}

fn try_run(orders: &str) -> Result<i32, Box<dyn std::error::Error>> {
    let orders: Orders = serde_json::from_str(orders)?;
    let files = orders.keys.iter().map(|key| Live::open(&orders.folder, *key)).collect::<Result<Vec<_>, _>>()?;
    for file in &files {
        file.enter(orders.run)?;
    }
    let began = now();
    let mut alive = Vec::new();
    for (key, file) in orders.keys.iter().zip(&files) {
        alive.extend(file.living()?.into_iter().map(|run| json!([key, run])));
    }
    write(&orders, &json!({"at": "begin", "run": orders.run, "t": began, "alive": alive, "fences": fences(&orders), "permit": permit()}))?;
    for member in &orders.tree {
        start(member)?;
    }
    sleep(Duration::from_millis(orders.hold_ms));
    let mut code = orders.code;
    if let Some(inner) = &orders.inner {
        let status = Command::new(&inner[0]).args(&inner[1..]).stdin(Stdio::null()).status()?;
        write(&orders, &json!({"at": "inner", "run": orders.run, "t": now(), "code": status.code()}))?;
        code = status.code().unwrap_or(98);
        sleep(Duration::from_millis(orders.hold_ms));
    }
    write(&orders, &json!({"at": "end", "run": orders.run, "t": now(), "code": code}))?;
    Ok(code)
}

/// One write appends the line as a whole.
fn write(orders: &Orders, line: &Value) -> std::io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(log_of(&orders.folder))?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// The fence of each key, as `[key, fence]`.
fn fences(orders: &Orders) -> Vec<Value> {
    let number = |text: &str| text.trim().parse::<u64>().unwrap_or_default();
    if let Ok(several) = std::env::var("DLOCK_FENCES") {
        let of_key = |name: &str| name.rsplit('-').next().and_then(|key| key.parse::<usize>().ok());
        return several.lines().filter_map(|line| line.split_once('=')).map(|(name, fence)| json!([of_key(name), number(fence)])).collect();
    }
    let fence = std::env::var("DLOCK_FENCE").unwrap_or_default();
    orders.keys.iter().take(1).map(|key| json!([key, number(&fence)])).collect()
}

fn permit() -> Option<u64> {
    std::env::var("DLOCK_PERMIT").ok()?.parse().ok()
}

/// Starts a process that ignores TERM and inherits the locks.
fn start(member: &Member) -> std::io::Result<()> {
    let linger = format!("trap '' TERM HUP INT; sleep {}.{:03}", member.ms / 1000, member.ms % 1000);
    let mut shell = Command::new("/bin/sh");
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if member.daemon {
        shell.args(["-c", "setsid sh -c \"$0\" &", &linger]).status()?;
    } else {
        shell.args(["-c", &linger]).spawn()?;
    }
    Ok(())
}
