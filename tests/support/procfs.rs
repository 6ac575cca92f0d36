//! Processes in `/proc`. A killed process can stay a zombie for seconds, so sending
//! signal 0 proves nothing.

use std::{collections::HashMap, fs};

/// One process, from `/proc/PID/stat`.
#[derive(Clone, Debug)]
pub struct Stat {
    pub pid: u32,
    pub name: String,
    pub state: char,
    pub parent: u32,
    pub group: u32,
    pub session: u32,
}

/// Returns the process with this id, zombies included.
pub fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let mut rest = text.get(close + 2..)?.split(' ');
    Some(Stat {
        pid,
        name: text.get(open + 1..close)?.to_owned(),
        state: rest.next()?.chars().next()?,
        parent: rest.next()?.parse().ok()?,
        group: rest.next()?.parse().ok()?,
        session: rest.next()?.parse().ok()?,
    })
}

/// Returns whether the process is alive and no zombie.
pub fn alive(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

/// Returns all processes except zombies.
pub fn all() -> Vec<Stat> {
    let pids = fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(stat)
        .filter(|stat| !matches!(stat.state, 'Z' | 'X'))
        .collect()
}

/// Returns the living children of a process.
pub fn children(pid: u32) -> Vec<Stat> {
    all()
        .into_iter()
        .filter(|stat| stat.parent == pid)
        .collect()
}

/// Returns all living descendants of a process.
pub fn descendants(pid: u32) -> Vec<Stat> {
    let mut by_parent: HashMap<u32, Vec<Stat>> = HashMap::new();
    for stat in all() {
        by_parent.entry(stat.parent).or_default().push(stat);
    }
    let mut found = Vec::new();
    let mut queue = vec![pid];
    while let Some(parent) = queue.pop() {
        let children = by_parent.remove(&parent).unwrap_or_default();
        queue.extend(children.iter().map(|stat| stat.pid));
        found.extend(children);
    }
    found
}

/// Returns all living processes with `tag` in their command line or environment, wherever in the
/// tree.
///
/// An undumpable process hides its environment from other users, but not its command line.
pub fn tagged(tag: &str) -> Vec<Stat> {
    let has = |pid: u32, file: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        bytes
            .windows(tag.len())
            .any(|window| window == tag.as_bytes())
    };
    let own = std::process::id();
    all()
        .into_iter()
        .filter(|stat| stat.pid != own && (has(stat.pid, "cmdline") || has(stat.pid, "environ")))
        .collect()
}

/// Returns the peak resident memory of the process, in KiB.
pub fn peak_rss_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?
        .trim()
        .strip_suffix(" kB")?
        .parse()
        .ok()
}

/// Returns the resident memory of the process, in KiB; 0 if the process is gone.
pub fn rss_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok())
        .unwrap_or_default()
}
