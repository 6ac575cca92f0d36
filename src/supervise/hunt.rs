//! Killing a tree in rounds: find, kill, look again, until the kernel reports that no child is
//! left.
//!
//! A round never waits. The caller reaps between rounds and starts the next round when it is due.

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
/// The longest pause between two rounds.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// How long a round repeats its search at once while it finds new processes.
const CHASE: Duration = Duration::from_millis(40);

/// The hunt for everything below one process.
#[derive(Debug)]
pub struct Hunt {
    root: i32,
    spared: Vec<Process>,
    /// The processes that got the signal before KILL. They are killed before the first search.
    known: Vec<Process>,
    seen: Vec<SurvivingProcess>,
    began: BootTime,
    pause: Duration,
    told_unseen: bool,
    next_at: BootTime,
}

/// A round's news about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessNews {
    /// The process can't be killed (yet). PID 0 stands for an invisible process.
    Stuck(i32, Unkillable),
    /// The process was stuck, and is gone.
    Gone(i32),
}

#[derive(Debug)]
struct SurvivingProcess {
    process: Process,
    since: BootTime,
    reported: Option<Unkillable>,
}

impl Hunt {
    /// Returns a hunt below `root` that skips `spared` and begins with `known`.
    pub fn new(root: i32, spared: Vec<Process>, known: Vec<Process>, now: BootTime) -> Self {
        Self {
            root,
            spared,
            known,
            seen: Vec::new(),
            began: now,
            pause: PAUSE,
            told_unseen: false,
            next_at: now,
        }
    }

    /// Returns when the next round is due.
    pub fn next_at(&self) -> BootTime {
        self.next_at
    }

    /// Kills all processes that it finds, beginning with the command's process group, if that group
    /// is still valid.
    pub fn round(
        &mut self,
        group: Option<Pid>,
        cgroup: Option<&Cgroup>,
        now: BootTime,
    ) -> Vec<ProcessNews> {
        // One call kills most of the tree, which could otherwise take the CPU time that the search
        // needs.
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        if let Some(cgroup) = cgroup {
            cgroup.kill();
        }
        for process in std::mem::take(&mut self.known) {
            let _ = tree::signal(&process, self.root, Signal::KILL);
        }
        let mut news = Vec::new();
        let mut more = true;
        while more && BootClock::read().since(now) < CHASE {
            more = self.kill(now, &mut news);
        }
        if self.seen.is_empty() && !self.told_unseen && now.since(self.began) >= STUCK {
            self.told_unseen = true;
            news.push(ProcessNews::Stuck(0, Unkillable::Unknown));
        } else if self.told_unseen && !self.seen.is_empty() {
            self.told_unseen = false;
            news.push(ProcessNews::Gone(0));
        }
        self.next_at = now.plus(self.pause);
        if !more {
            self.pause = (self.pause * 2).min(MAX_PAUSE);
        }
        news
    }

    /// Kills every process found. Returns whether some were new, since their children may have been
    /// missed.
    fn kill(&mut self, now: BootTime, news: &mut Vec<ProcessNews>) -> bool {
        let mut found = Vec::new();
        let _ = tree::walk(self.root, &self.spared, |one| {
            found.push((one.process, one.send(Signal::KILL)));
        });
        let there = |seen: &SurvivingProcess| {
            found.iter().any(|(process, _)| {
                process.pid == seen.process.pid && process.started == seen.process.started
            })
        };
        for gone in self
            .seen
            .extract_if(.., |seen| !there(seen))
            .filter(|seen| seen.reported.is_some())
        {
            news.push(ProcessNews::Gone(gone.process.pid));
        }
        let mut more = false;
        for (process, sent) in found {
            let known = self
                .seen
                .iter()
                .position(|seen| seen.process.pid == process.pid);
            let index = known.unwrap_or_else(|| {
                more |= !process.is_dead();
                self.seen.push(SurvivingProcess {
                    process,
                    since: now,
                    reported: None,
                });
                self.seen.len() - 1
            });
            let seen = &mut self.seen[index];
            let late = now.since(seen.since) >= STUCK;
            let why = match sent {
                Err(Errno::PERM) => Some(Unkillable::NotPermitted),
                // A dead process waits for its parent, which is in the list as well.
                _ if !late || process.is_dead() => None,
                _ if process.state == b'D' => Some(Unkillable::Uninterruptible),
                _ => Some(Unkillable::Unknown),
            };
            if let Some(why) = why.filter(|_| why != seen.reported) {
                seen.reported = Some(why);
                news.push(ProcessNews::Stuck(process.pid, why));
            }
        }
        more
    }
}
