//! Killing a tree in rounds: find, kill, look again, until the kernel says that no child is left.
//!
//! One round never waits. Whoever runs it reaps in between and decides when the next one is due.

use std::time::Duration;

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process_group},
};

use super::{Unkillable, cgroup::Cgroup, tree, tree::Process};
use crate::{lease::BootClock, lock::BootTime};

/// A process that was killed and isn't gone after this long is reported.
const STUCK: Duration = Duration::from_secs(1);
/// The first pause between two rounds; it doubles.
const PAUSE: Duration = Duration::from_millis(2);
/// The longest.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// How long a round looks again at once because it found processes that weren't there before.
const CHASE: Duration = Duration::from_millis(40);

/// The hunt for everything below one process.
#[derive(Debug)]
pub struct Hunt {
    root: i32,
    spared: Vec<Process>,
    /// The command's process group, if it has one of its own and can't have been reused: for when /proc can't be read.
    group: Option<Pid>,
    seen: Vec<Seen>,
    began: BootTime,
    pause: Duration,
    told_unseen: bool,
    next_at: BootTime,
}

#[derive(Debug)]
struct Seen {
    process: Process,
    since: BootTime,
    told: Option<Unkillable>,
}

impl Hunt {
    /// A hunt below `root` that leaves `spared` alone.
    pub fn new(root: i32, spared: Vec<Process>, group: Option<Pid>, now: BootTime) -> Self {
        Self { root, spared, group, seen: Vec::new(), began: now, pause: PAUSE, told_unseen: false, next_at: now }
    }

    /// When the next round is due.
    pub fn next_at(&self) -> BootTime {
        self.next_at
    }

    /// Kills all that it finds. Returns what turned out to be unkillable since the last time.
    pub fn round(&mut self, cgroup: Option<&Cgroup>, now: BootTime) -> Vec<(i32, Unkillable)> {
        if let Some(cgroup) = cgroup {
            cgroup.kill();
        }
        let mut stuck = Vec::new();
        let mut news = true;
        while news && BootClock::read().since(now) < CHASE {
            let found = tree::below(self.root, &self.spared).unwrap_or_default();
            news = self.kill(&found, now, &mut stuck);
            // Also if /proc can't be read. Not for long: once its last member is gone, the number may be somebody else's.
            if found.iter().all(Process::is_dead) && now.since(self.began) < STUCK {
                self.kill_blindly();
            }
        }
        if self.seen.is_empty() && !self.told_unseen && now.since(self.began) >= STUCK {
            self.told_unseen = true;
            stuck.push((0, Unkillable::Unknown));
        }
        self.next_at = now.plus(self.pause);
        if !news {
            self.pause = (self.pause * 2).min(MAX_PAUSE);
        }
        stuck
    }

    /// Kills each; whether there were new ones among them, which may have had children that this look missed.
    fn kill(&mut self, found: &[Process], now: BootTime, stuck: &mut Vec<(i32, Unkillable)>) -> bool {
        let mut news = false;
        self.seen.retain(|seen| found.iter().any(|process| process.pid == seen.process.pid && process.started == seen.process.started));
        for process in found {
            let known = self.seen.iter().position(|seen| seen.process.pid == process.pid);
            let index = known.unwrap_or_else(|| {
                news |= !process.is_dead();
                self.seen.push(Seen { process: *process, since: now, told: None });
                self.seen.len() - 1
            });
            let sent = tree::signal(process, self.root, Signal::KILL);
            let seen = &mut self.seen[index];
            let late = now.since(seen.since) >= STUCK;
            let why = match sent {
                Err(Errno::PERM) => Some(Unkillable::NotPermitted),
                // A dead one waits for its parent, which is in the list as well.
                _ if !late || process.is_dead() => None,
                _ if process.state == b'D' => Some(Unkillable::Uninterruptible),
                _ => Some(Unkillable::Unknown),
            };
            if why.is_some() && why != seen.told {
                seen.told = why;
                stuck.extend(why.map(|why| (process.pid, why)));
            }
        }
        news
    }

    fn kill_blindly(&self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
