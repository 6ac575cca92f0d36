//! What dlock does itself when its guardian is gone: the same routine, over its own descendants.
//!
//! The orphans come to dlock because it is a subreaper too. Children that it had before (of the program that
//! executed it) are spared; as PID 1 it can't tell strangers apart from the command's, and kills them as well.

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, getpid, wait},
};

use super::{
    Outcome, Unkillable,
    cgroup::{Cgroup, Parent},
    guardian::outcome,
    hunt::Hunt,
    tree::{self, Process},
};
use crate::lock::BootTime;

/// The stopping of a tree without a guardian.
#[derive(Debug)]
pub struct Takeover {
    me: i32,
    spared: Vec<Process>,
    command: Option<Pid>,
    /// How the command ended, if that could be seen.
    pub outcome: Option<Outcome>,
    cgroup: Option<Cgroup>,
    kill_at: BootTime,
    hunt: Option<Hunt>,
    empty: bool,
}

impl Takeover {
    /// Sends TERM to all that is left; KILL comes at `kill_at`.
    pub fn begin(spared: Vec<Process>, command: Option<Pid>, cgroup: &str, kill_at: BootTime) -> Self {
        let me = getpid().as_raw_pid();
        let cgroup = Parent::find().ok().and_then(|parent| parent.existing(cgroup));
        // Without /proc only the cgroup is left to kill; the command itself dies with the guardian.
        let _ = tree::signal_all(me, &spared, Signal::TERM);
        Self { me, spared, command, outcome: None, cgroup, kill_at, hunt: None, empty: false }
    }

    /// Brings KILL forward.
    pub fn hurry(&mut self, kill_at: BootTime) {
        self.kill_at = self.kill_at.min(kill_at);
    }

    /// When the next [`Takeover::step`] is due, if no child ends before.
    pub fn next_at(&self) -> BootTime {
        self.hunt.as_ref().map_or(self.kill_at, Hunt::next_at)
    }

    /// Whether nothing of the tree is left.
    pub fn is_done(&self) -> bool {
        self.empty
    }

    /// Reaps, and kills what is due. Returns what turned out to be unkillable.
    pub fn step(&mut self, now: BootTime) -> Vec<(i32, Unkillable)> {
        self.reap(now);
        let mut stuck = Vec::new();
        if !self.empty && now >= self.kill_at {
            let hunt = self.hunt.get_or_insert_with(|| Hunt::new(self.me, self.spared.clone(), None, now));
            if now >= hunt.next_at() {
                stuck = hunt.round(self.cgroup.as_ref(), now);
                self.reap(now);
            }
        }
        if let Some(cgroup) = self.cgroup.take_if(|_| self.empty) {
            cgroup.remove();
        }
        stuck
    }

    fn reap(&mut self, now: BootTime) {
        self.empty = loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.command => self.outcome = outcome(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Err(_) => break true,
                // Only with children that were there before us can we not ask the kernel.
                Ok(None) => break !self.spared.is_empty() && tree::below(self.me, &self.spared).is_ok_and(|left| left.is_empty()),
            }
        };
        if self.empty && self.cgroup.as_ref().is_some_and(Cgroup::is_populated) {
            self.empty = false;
            self.kill_at = now;
        }
    }
}
