//! The takeover: dlock stops its own descendants with the same routine when its guardian is gone.
//!
//! dlock adopts the orphans because it is a subreaper too. Children from before the start (of the
//! program that executed dlock) are spared. As PID 1, dlock can't tell foreign orphans from the
//! command's, and kills both.

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, getpid, kill_process_group, wait},
};

use super::{
    ProcessEnd,
    cgroup::{Cgroup, Parent},
    guardian::outcome,
    hunt::{Hunt, ProcessNews},
    tree::{self, Process},
};
use crate::lock::BootTime;

/// The stopping of a tree without a guardian.
#[derive(Debug)]
pub struct Takeover {
    me: i32,
    spared: Vec<Process>,
    command: Option<Pid>,
    /// How the command ended, if known.
    pub outcome: Option<ProcessEnd>,
    cgroup: Option<Cgroup>,
    kill_at: BootTime,
    /// The processes that got TERM.
    termed: Vec<Process>,
    hunt: Option<Hunt>,
    empty: bool,
}

impl Takeover {
    /// Sends TERM to all remaining processes, unless KILL is already due. KILL follows at
    /// `kill_at`.
    pub fn begin(
        spared: Vec<Process>,
        command: Option<Pid>,
        cgroup: &str,
        kill_at: BootTime,
        now: BootTime,
    ) -> Self {
        let me = getpid().as_raw_pid();
        let mut termed = Vec::new();
        if now < kill_at {
            let group = command.and_then(|command| tree::group_led_by(command, getpid()));
            if let Some(group) = group {
                let _ = kill_process_group(group, Signal::TERM);
                let _ = kill_process_group(group, Signal::CONT);
            }
            // Without /proc only the cgroup is left to kill; the command itself dies with the
            // guardian.
            termed = tree::signal_all(me, &spared, group, Signal::TERM).unwrap_or_default();
        }
        let cgroup = Parent::find()
            .ok()
            .and_then(|parent| parent.existing(cgroup));
        Self {
            me,
            spared,
            command,
            outcome: None,
            cgroup,
            kill_at,
            termed,
            hunt: None,
            empty: false,
        }
    }

    /// Brings KILL forward.
    pub fn kill_no_later_than(&mut self, kill_at: BootTime) {
        self.kill_at = self.kill_at.min(kill_at);
    }

    /// Returns when the next [`Takeover::step`] is due, if no child ends earlier.
    pub fn next_at(&self) -> BootTime {
        self.hunt.as_ref().map_or(self.kill_at, Hunt::next_at)
    }

    /// Whether the tree is empty.
    pub fn is_done(&self) -> bool {
        self.empty
    }

    /// Reaps children and kills due processes. Returns the processes that don't end.
    pub fn step(&mut self, now: BootTime) -> Vec<ProcessNews> {
        self.reap(now);
        let mut news = Vec::new();
        if !self.empty && now >= self.kill_at {
            let termed = &mut self.termed;
            let hunt = self.hunt.get_or_insert_with(|| {
                Hunt::new(self.me, self.spared.clone(), std::mem::take(termed), now)
            });
            if now >= hunt.next_at() {
                let group = self
                    .command
                    .filter(|_| self.outcome.is_none())
                    .and_then(|command| tree::group_led_by(command, getpid()));
                news = hunt.round(group, self.cgroup.as_ref(), now);
                self.reap(now);
            }
        }
        if let Some(cgroup) = self.cgroup.take_if(|_| self.empty) {
            cgroup.remove();
        }
        news
    }

    fn reap(&mut self, now: BootTime) {
        self.empty = loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.command => {
                    self.outcome = outcome(status);
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Err(_) => break true,
                // `wait` also counts the spared children, so check the list of the others.
                Ok(None) => {
                    break !self.spared.is_empty()
                        && tree::children(&self.spared).is_ok_and(|left| left.is_empty());
                }
            }
        };
        if self.empty && self.cgroup.as_ref().is_some_and(Cgroup::is_populated) {
            self.empty = false;
            self.kill_at = now;
        }
    }
}
