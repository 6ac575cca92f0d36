//! The processes below a process, as /proc shows them, and the safe way to signal one of them.
//!
//! The walk starts at the root and follows the kernel's lists of children: its cost grows with the
//! tree, not with the host. No walk is complete while processes fork and end. Processes found here
//! are therefore only *signalled*. Only the kernel decides that a tree is empty (no child left to
//! wait for).

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt::Write as _,
    io,
    os::fd::OwnedFd,
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal},
};

/// One process, identified so that a later process with the same PID isn't mistaken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub group: i32,
    /// `R`, `S`, `D`, `Z`, …
    pub state: u8,
    threads: u32,
    /// The start time in clock ticks after the boot.
    pub started: u64,
}

impl Process {
    /// Returns a process that /proc hides (`hidepid`), as it does every process that is not
    /// dumpable, such as a nested dlock. Only its parent's list of children shows such a process.
    fn hidden(pid: i32, parent: i32) -> Self {
        Self {
            pid,
            parent,
            group: 0,
            state: b'?',
            threads: 1,
            started: 0,
        }
    }

    fn is_hidden(&self) -> bool {
        self.started == 0
    }

    fn is(&self, other: &Self) -> bool {
        self.pid == other.pid && self.started == other.started
    }

    /// Whether the process has ended and only waits to be reaped.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    /// Returns the children of all its threads, adopted orphans included; `None` if this kernel has
    /// no such lists.
    fn children(&self) -> Option<Vec<i32>> {
        let mut found = Vec::new();
        if self.threads <= 1 {
            return listed(self.pid, self.pid, &mut found).then_some(found);
        }
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).ok()?;
        let threads = threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        // The children of a thread that has ended meanwhile belong to another thread.
        threads
            .map(|thread| listed(self.pid, thread, &mut found))
            .fold(false, |any, read| any | read)
            .then_some(found)
    }
}

/// Reads the list of one thread's children. Returns whether the list exists.
fn listed(pid: i32, thread: i32, into: &mut Vec<i32>) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")) else {
        return false;
    };
    into.extend(
        text.split_ascii_whitespace()
            .filter_map(|pid| pid.parse::<i32>().ok()),
    );
    true
}

/// Returns the process as /proc shows it now.
pub fn look(pid: i32) -> Option<Process> {
    #[cfg(test)]
    tests::LOOKS.with(|looks| looks.set(looks.get() + 1));
    let mut path = String::with_capacity(24);
    write!(path, "/proc/{pid}/stat").ok()?;
    let file = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 1024];
    let length = rustix::io::read(&file, &mut text[..]).ok()?;
    parse(pid, &text[..length])
}

fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    // The name may contain anything, also parentheses and spaces: the fields start after the last
    // one.
    let fields = stat.iter().rposition(|&byte| byte == b')')? + 2;
    let mut fields = std::str::from_utf8(stat.get(fields..)?).ok()?.split(' ');
    Some(Process {
        pid,
        state: *fields.next()?.as_bytes().first()?,
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
        // Fields 20 and 22 of proc_pid_stat(5); the group was the fifth.
        threads: fields.nth(14)?.parse().ok()?,
        started: fields.nth(1)?.parse().ok()?,
    })
}

/// A process that was found below the root, and a handle that never refers to another process.
pub struct FoundProcess {
    pub process: Process,
    /// `None` before Linux 5.3.
    handle: Option<OwnedFd>,
}

impl FoundProcess {
    /// Opens a handle of the process that has this PID now; `None` if there is none.
    fn open(pid: i32) -> Option<(Pid, Option<OwnedFd>)> {
        let pid = Pid::from_raw(pid)?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Some((pid, Some(handle))),
            Err(Errno::SRCH) => None,
            Err(_) => Some((pid, None)),
        }
    }

    /// Returns the child `pid` of `parent`, if it is still one, or has been reparented to `root`
    /// meanwhile.
    fn child(pid: i32, parent: &Process, root: i32) -> Option<Self> {
        // First open a handle of the PID's process, then check which process it is.
        let (_, handle) = Self::open(pid)?;
        let process = match look(pid) {
            Some(process) => {
                Some(process).filter(|process| [parent.pid, root].contains(&process.parent))
            }
            None => parent
                .children()
                .filter(|all| all.contains(&pid))
                .map(|_| Process::hidden(pid, parent.pid)),
        };
        process.map(|process| Self { process, handle })
    }

    /// Signals exactly this process; does nothing if the process is gone.
    ///
    /// # Errors
    /// [`Errno::PERM`] if the process has privileges that the caller doesn't have.
    pub fn send(&self, signal: Signal) -> Result<(), Errno> {
        let sent = match (&self.handle, Pid::from_raw(self.process.pid)) {
            (Some(handle), Some(pid)) => {
                let same = || {
                    self.process.is_hidden()
                        || look(self.process.pid).is_some_and(|now| now.is(&self.process))
                };
                send_by_handle(handle, pid, signal, same)
            }
            (None, Some(pid)) => kill_process(pid, signal),
            (_, None) => Ok(()),
        };
        sent.or_else(|error| {
            if error == Errno::SRCH {
                Ok(())
            } else {
                Err(error)
            }
        })
    }
}

/// Signals the process of a handle. A sandbox may deny that call alone: then `kill` sends the
/// signal, if `same` says that the PID is still the process's.
///
/// # Errors
/// [`Errno::PERM`] if the process has privileges that the caller doesn't have.
fn send_by_handle(
    handle: &OwnedFd,
    pid: Pid,
    signal: Signal,
    same: impl Fn() -> bool,
) -> Result<(), Errno> {
    match pidfd_send_signal(handle, signal) {
        Err(Errno::PERM | Errno::NOSYS | Errno::ACCESS) if same() => kill_process(pid, signal),
        sent => sent,
    }
}

/// Passes all processes below `root` to `see`, parents first, except `spared` and their
/// descendants.
///
/// The walk reads a process's children before it calls `see`: once `see` kills the process, its
/// children are reparented.
///
/// # Errors
/// If /proc isn't there, or belongs to another PID namespace.
pub fn walk(root: i32, spared: &[Process], mut see: impl FnMut(&FoundProcess)) -> io::Result<()> {
    let me = std::fs::read_link("/proc/self")?;
    if me.to_str().and_then(|pid| pid.parse().ok()) != Some(getpid().as_raw_pid()) {
        return Err(io::Error::other("/proc belongs to another PID namespace"));
    }
    // The kernel has no such lists, or the root is hidden.
    let Some(first) = look(root).and_then(|top| Some((top, top.children()?))) else {
        return walk_host(root, spared, &mut see);
    };
    let mut shown = HashSet::new();
    let mut todo = VecDeque::from([first]);
    while let Some((parent, children)) = todo.pop_front() {
        for pid in children {
            if !shown.insert(pid) {
                continue;
            }
            let Some(found) = FoundProcess::child(pid, &parent, root) else {
                continue;
            };
            let process = found.process;
            if spared.iter().any(|spared| spared.is(&process)) {
                continue;
            }
            let below = process.children().unwrap_or_default();
            // The list belongs to this process only if the PID was still its own afterwards.
            if !below.is_empty()
                && (process.is_hidden() || look(pid).is_some_and(|now| now.is(&process)))
            {
                todo.push_back((process, below));
            }
            see(&found);
        }
    }
    Ok(())
}

/// Does the same as [`walk`] where the kernel has no lists of children: reads every process of the
/// host.
fn walk_host(root: i32, spared: &[Process], see: &mut dyn FnMut(&FoundProcess)) -> io::Result<()> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if let Some(process) = look(pid) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    let mut todo = VecDeque::from([root]);
    while let Some(parent) = todo.pop_front() {
        // Each list is removed when used, so that a loop from a racing read ends.
        for process in children.remove(&parent).unwrap_or_default() {
            if process.pid == root || spared.iter().any(|spared| spared.is(&process)) {
                continue;
            }
            let Some((_, handle)) = FoundProcess::open(process.pid) else {
                continue;
            };
            if look(process.pid).is_some_and(|now| now.is(&process) && is_below(now, root)) {
                see(&FoundProcess { process, handle });
            }
            todo.push_back(process.pid);
        }
    }
    Ok(())
}

fn is_below(mut process: Process, root: i32) -> bool {
    // Longer than any real chain. A loop appears only while PIDs are being reused.
    for _ in 0..10_000 {
        if process.parent == root {
            return true;
        }
        match look(process.parent) {
            Some(parent) if parent.pid > 1 => process = parent,
            _ => return false,
        }
    }
    false
}

/// Returns all processes below `root`, in the order of [`walk`].
///
/// # Errors
/// As [`walk`].
pub fn below(root: i32, spared: &[Process]) -> io::Result<Vec<Process>> {
    let mut all = Vec::new();
    walk(root, spared, |found| all.push(found.process))?;
    Ok(all)
}

/// Returns the current children of this process, ended ones included, without `spared`.
///
/// The kernel's list is exact for the calling process, since no other process can reap these
/// children: no entry vanishes meanwhile, and adopted orphans are appended at the end.
///
/// # Errors
/// If /proc isn't there, or belongs to another PID namespace.
pub fn children(spared: &[Process]) -> io::Result<Vec<Process>> {
    let me = getpid().as_raw_pid();
    let known = |pid: &i32| {
        spared
            .iter()
            .any(|spared| spared.pid == *pid && look(*pid).is_none_or(|now| now.is(spared)))
    };
    match look(me).and_then(|me| me.children()) {
        Some(pids) => {
            let pids = pids.into_iter().filter(|pid| !known(pid));
            Ok(pids
                .map(|pid| look(pid).unwrap_or(Process::hidden(pid, me)))
                .collect())
        }
        None => Ok(below(me, spared)?
            .into_iter()
            .filter(|process| process.parent == me)
            .collect()),
    }
}

/// Signals exactly this process, found below `root` earlier, if it still exists; otherwise does
/// nothing.
///
/// Descendants of a subreaper stay below it, so a check that it is the same process suffices.
///
/// # Errors
/// As [`FoundProcess::send`].
pub fn signal(process: &Process, root: i32, signal: Signal) -> Result<(), Errno> {
    let Some((_, handle)) = FoundProcess::open(process.pid) else {
        return Ok(());
    };
    let same = if let Some(now) = look(process.pid) {
        now.is(process)
    } else {
        // Only the root's own children are sure to have kept their PIDs.
        let parent = look(root).filter(|_| process.is_hidden() && process.parent == root);
        parent
            .and_then(|root| root.children())
            .is_some_and(|all| all.contains(&process.pid))
    };
    if same {
        FoundProcess {
            process: *process,
            handle,
        }
        .send(signal)
    } else {
        Ok(())
    }
}

/// Signals everything below `root` once except `group`, and continues stopped processes so that the
/// signal takes effect. Returns the processes that were found.
///
/// # Errors
/// As [`walk`]; nothing was signalled then.
pub fn signal_all(
    root: i32,
    spared: &[Process],
    group: Option<Pid>,
    which: Signal,
) -> io::Result<Vec<Process>> {
    // First look, then signal: the list of children is gone once a parent ends on the signal.
    let all = below(root, spared)?;
    for process in all
        .iter()
        .filter(|process| group.is_none_or(|group| group.as_raw_pid() != process.group))
    {
        let _ = signal(process, root, which);
        let _ = signal(process, root, Signal::CONT);
    }
    Ok(all)
}

/// Returns the process group that the command leads, if `parent` hasn't reaped the command: then
/// its ID is still valid.
pub fn group_led_by(command: Pid, parent: Pid) -> Option<Pid> {
    let process = look(command.as_raw_pid())?;
    (process.parent == parent.as_raw_pid() && process.group == process.pid).then_some(command)
}

/// Returns the name of a process, as set by its program or by itself.
pub fn name(pid: i32) -> Option<String> {
    look(pid).filter(|process| !process.is_dead())?;
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(
        String::from_utf8_lossy(&name)
            .trim_end_matches('\n')
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        /// How often this thread looked at a process.
        pub static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    #[test]
    fn a_name_full_of_parentheses_does_not_shift_the_fields() {
        let stat = b"42 (a) R 1 (b) S 7 8 9 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 12345 1000 10 18446744073709551615";
        let process = parse(42, stat).unwrap();
        assert_eq!(
            process,
            Process {
                pid: 42,
                parent: 7,
                group: 8,
                state: b'S',
                threads: 1,
                started: 12345
            }
        );
    }

    #[test]
    fn a_process_with_a_reused_number_is_not_signalled() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let me = rustix::process::getpid().as_raw_pid();
        let pid = i32::try_from(child.id()).unwrap();
        let real = look(pid).unwrap();
        assert!(
            below(me, &[])
                .unwrap()
                .iter()
                .any(|process| process.is(&real))
        );
        assert!(
            below(me, &[real])
                .unwrap()
                .iter()
                .all(|process| process.pid != pid)
        );

        let older = Process {
            started: real.started - 1,
            ..real
        };
        signal(&older, me, Signal::KILL).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        signal(&real, me, Signal::KILL).unwrap();
        assert!(!child.wait().unwrap().success());
    }

    /// A process whose child has a child, and so on.
    fn chain(depth: usize) -> std::process::Child {
        let line = "n=$1; [ $n -gt 0 ] || exec sleep 60; sh -c \"$2\" sh $((n-1)) \"$2\" & wait";
        std::process::Command::new("sh")
            .args(["-c", line, "sh", &depth.to_string(), line])
            .spawn()
            .unwrap()
    }

    fn grown(root: i32, count: usize) -> Vec<Process> {
        for _ in 0..2_000 {
            let found = below(root, &[]).unwrap();
            if found.len() == count {
                return found;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("not {count} processes");
    }

    #[test]
    fn a_deep_tree_costs_no_more_than_a_flat_one() {
        let mut child = chain(60);
        let root = i32::try_from(child.id()).unwrap();
        grown(root, 60);
        LOOKS.set(0);
        let found = signal_all(root, &[], None, Signal::KILL).unwrap();
        let looks = LOOKS.get();
        assert!(
            found.len() == 60 && looks <= 4 * 61,
            "{looks} looks at {} processes",
            found.len()
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn both_tree_walks_find_the_same_processes() {
        let mut child = chain(5);
        let root = i32::try_from(child.id()).unwrap();
        let by_lists = grown(root, 5);
        let mut by_host = Vec::new();
        walk_host(root, &[], &mut |found| by_host.push(found.process)).unwrap();
        let pids = |all: &[Process]| all.iter().map(|process| process.pid).collect::<Vec<_>>();
        assert_eq!(pids(&by_lists), pids(&by_host));
        // The process exists before it executes its program.
        let is_named = || name(by_lists[4].pid).is_some_and(|name| name == "sleep");
        assert!((0..2_000).any(|_| is_named() || {
            std::thread::sleep(std::time::Duration::from_millis(5));
            false
        }));
        for process in by_lists.iter().rev() {
            signal(process, root, Signal::KILL).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
