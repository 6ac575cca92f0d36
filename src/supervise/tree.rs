//! The processes below a process, as /proc shows them, and the safe way to signal one of them.
//!
//! A look at /proc is never complete while processes fork and end. So what is found here is only ever *signalled*;
//! that a tree is empty is for the kernel to say (no child left to wait for).

use std::{collections::HashMap, fmt::Write as _, io};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal},
};

/// One process, named so that a later one with the same number isn't taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub group: i32,
    /// `R`, `S`, `D`, `Z`, …
    pub state: u8,
    /// In clock ticks after the machine's start.
    pub started: u64,
}

impl Process {
    /// A child of this process that /proc keeps from us (`hidepid`), as it does with every process that is not dumpable:
    /// a nested dlock, for example. The number can't be reused as long as we have not reaped it.
    fn hidden(pid: i32) -> Self {
        Self { pid, parent: rustix::process::getpid().as_raw_pid(), group: 0, state: b'?', started: 0 }
    }

    fn is_hidden(&self) -> bool {
        self.started == 0
    }

    fn is(&self, other: &Self) -> bool {
        self.pid == other.pid && self.started == other.started
    }

    /// Whether it has ended and only waits to be reaped.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// What /proc says about a process now.
pub fn look(pid: i32) -> Option<Process> {
    let mut path = String::with_capacity(24);
    write!(path, "/proc/{pid}/stat").ok()?;
    let file = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 1024];
    let length = rustix::io::read(&file, &mut text[..]).ok()?;
    parse(pid, &text[..length])
}

fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    // The name may contain anything, also parentheses and spaces: the fields start after the last one.
    let fields = stat.iter().rposition(|&byte| byte == b')')? + 2;
    let mut fields = std::str::from_utf8(stat.get(fields..)?).ok()?.split(' ');
    Some(Process {
        pid,
        state: *fields.next()?.as_bytes().first()?,
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
        // Field 22 of proc_pid_stat(5); the group was the fifth.
        started: fields.nth(16)?.parse().ok()?,
    })
}

/// All that is below `root`, parents first, without `spared` and what is below those.
///
/// # Errors
/// If /proc isn't there, or belongs to another PID namespace.
pub fn below(root: i32, spared: &[Process]) -> io::Result<Vec<Process>> {
    let me = std::fs::read_link("/proc/self")?;
    if me.to_str().and_then(|pid| pid.parse().ok()) != Some(rustix::process::getpid().as_raw_pid()) {
        return Err(io::Error::other("/proc belongs to another PID namespace"));
    }
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(process) = look(pid) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    let mut found = children.remove(&root).unwrap_or_default();
    found.extend(hidden_children(root));
    found.retain(|process| !spared.iter().any(|spared| spared.is(process)));
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        // Each list is taken out once, so that a loop, which a racing look could show, ends.
        let below = children.remove(&parent.pid).unwrap_or_default();
        found.extend(below.into_iter().filter(|process| !spared.iter().any(|spared| spared.is(process))));
        next += 1;
    }
    found.retain(|process| process.pid != root);
    Ok(found)
}

/// The children of `root`, if that is this process, that /proc doesn't show. What is below them shows once they are gone,
/// since it becomes ours then.
fn hidden_children(root: i32) -> Vec<Process> {
    if root != rustix::process::getpid().as_raw_pid() {
        return Vec::new();
    }
    // A kernel may be built without this file; then what is hidden stays so.
    let children = std::fs::read_to_string(format!("/proc/self/task/{root}/children")).unwrap_or_default();
    let pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    pids.filter(|pid| look(*pid).is_none()).map(Process::hidden).collect()
}

/// The children that this process has now.
pub fn children() -> Vec<Process> {
    let me = rustix::process::getpid().as_raw_pid();
    below(me, &[]).unwrap_or_default().into_iter().filter(|process| process.parent == me).collect()
}

/// Signals exactly this process, if it is still there and still below `root`; otherwise nothing happens.
///
/// # Errors
/// [`Errno::PERM`] if it has rights that we don't have.
pub fn signal(process: &Process, root: i32, signal: Signal) -> Result<(), Errno> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(()) };
    // First get hold of whoever has the number, then look who it is.
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => Some(handle),
        Err(Errno::SRCH) => return Ok(()),
        // Before Linux 5.3.
        Err(_) => None,
    };
    let still = match look(process.pid) {
        Some(now) => now.is(process) && is_below(now, root),
        None => process.is_hidden() && hidden_children(root).iter().any(|child| child.is(process)),
    };
    if !still {
        return Ok(());
    }
    let sent = match handle {
        Some(handle) => pidfd_send_signal(handle, signal),
        None => kill_process(pid, signal),
    };
    match sent {
        Err(Errno::SRCH) => Ok(()),
        other => other,
    }
}

fn is_below(mut process: Process, root: i32) -> bool {
    // Longer than any real chain; a loop can only be seen while pids are being reused.
    for _ in 0..10_000 {
        if process.parent == root {
            return true;
        }
        match look(process.parent) {
            Some(parent) if parent.pid > 1 => process = parent,
            Some(_) => return false,
            None => return hidden_children(root).iter().any(|child| child.pid == process.parent),
        }
    }
    false
}

/// Signals everything below `root` once, and wakes what is stopped, so that the signal is acted on.
///
/// # Errors
/// As [`below`]; nobody was signalled then.
pub fn signal_all(root: i32, spared: &[Process], which: Signal) -> io::Result<()> {
    for process in below(root, spared)? {
        let _ = signal(&process, root, which);
        let _ = signal(&process, root, Signal::CONT);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_full_of_parentheses_does_not_shift_the_fields() {
        let stat = b"42 (a) R 1 (b) S 7 8 9 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 12345 1000 10 18446744073709551615";
        let process = parse(42, stat).unwrap();
        assert_eq!(process, Process { pid: 42, parent: 7, group: 8, state: b'S', started: 12345 });
    }

    #[test]
    fn a_process_with_a_reused_number_is_not_signalled() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let me = rustix::process::getpid().as_raw_pid();
        let pid = i32::try_from(child.id()).unwrap();
        let real = look(pid).unwrap();
        assert!(below(me, &[]).unwrap().iter().any(|process| process.is(&real)));
        assert!(below(me, &[real]).unwrap().iter().all(|process| process.pid != pid));

        let older = Process { started: real.started - 1, ..real };
        signal(&older, me, Signal::KILL).unwrap();
        signal(&real, pid, Signal::KILL).unwrap(); // it is not below itself
        assert!(child.try_wait().unwrap().is_none());
        signal(&real, me, Signal::KILL).unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
