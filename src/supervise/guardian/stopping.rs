//! The guardian's decisions when and how to stop the command and its tree.

use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};

use super::{CGROUP_LAG, DLOCK_FIRST, GuardianLoop, Phase};
use crate::{
    lease::BootClock,
    lock::BootTime,
    supervise::{
        Deadlines, Leftover, OnLost, StopReason,
        cgroup::Cgroup,
        hunt::{Hunt, ProcessNews},
        message::Report,
        sys, tree,
    },
};

impl GuardianLoop {
    /// Acts on the deadlines and the state of the tree.
    pub(super) fn judge(&mut self, now: BootTime) {
        if matches!(self.phase, Phase::Idle) || self.is_done() {
            return;
        }
        if self.bound && !self.lapsed && self.severed.is_some_and(|at| now >= at.plus(DLOCK_FIRST))
        {
            // The next holder starts soon, and a stopped dlock gives no order.
            self.deadlines = Deadlines {
                term_at: now,
                kill_at: now,
            };
        }
        // A command that is gone can't be stopped, but its descendants can.
        if self.bound && !self.lapsed && now >= self.deadlines.term_at {
            self.lapsed = true;
            self.report(&Report::DeadlineTerm);
            if matches!(self.phase, Phase::Running) {
                let signal = match self.setup.plan.on_lost {
                    OnLost::Signal(number) => sys::signal(number).unwrap_or(Signal::TERM),
                    OnLost::Kill | OnLost::Continue => Signal::TERM,
                };
                self.stop(StopReason::Deadline, self.deadlines.kill_at, signal);
            }
        }
        if matches!(self.phase, Phase::Running) && self.time_up_at.is_some_and(|at| now >= at) {
            self.report(&Report::TimeUp);
            self.stop(
                StopReason::TimeUp,
                now.plus(self.setup.plan.grace),
                Signal::TERM,
            );
        }
        // Right after the last process was reaped, its cgroup may still seem populated.
        let settled = self
            .emptied
            .is_none_or(|emptied| now.since(emptied) >= CGROUP_LAG);
        if self.outcome.is_some() && matches!(self.phase, Phase::Running) && settled {
            self.judge_leftover(now);
        }
        if let Phase::Stopping(kill_at) = self.phase {
            let due = if self.bound {
                kill_at.min(self.deadlines.kill_at)
            } else {
                kill_at
            };
            if now >= due {
                self.begin_killing(now);
            }
        }
        self.hunt(now);
    }

    fn judge_leftover(&mut self, now: BootTime) {
        match self.setup.plan.leftover {
            Leftover::Wait if !self.leftover_told => {
                self.leftover_told = true;
                let left = tree::below(getpid().as_raw_pid(), &[]).unwrap_or_default();
                let mut pids: Vec<i32> = left
                    .iter()
                    .filter(|process| !process.is_dead())
                    .map(|process| process.pid)
                    .collect();
                pids.extend(
                    self.cgroup
                        .as_ref()
                        .map(Cgroup::members)
                        .unwrap_or_default(),
                );
                pids.sort_unstable();
                pids.dedup();
                pids.truncate(1000);
                self.report(&Report::Leftover(pids));
            }
            Leftover::Kill => self.stop(
                StopReason::Leftover,
                now.plus(self.setup.plan.grace),
                Signal::TERM,
            ),
            Leftover::Wait | Leftover::Leave => {}
        }
    }

    fn hunt(&mut self, now: BootTime) {
        let group = self.group();
        let Phase::Killing(hunt) = &mut self.phase else {
            return;
        };
        if now < hunt.next_at() {
            return;
        }
        for news in hunt.round(group, self.cgroup.as_ref(), now) {
            self.report(&match news {
                ProcessNews::Stuck(pid, why) => Report::Unkillable(pid, why),
                ProcessNews::Gone(pid) => Report::Gone(pid),
            });
        }
        // Reap at once, without waiting for SIGCHLD: most processes are gone by now.
        self.reap();
    }

    /// Returns the command's PID, unless the command was reaped.
    pub(super) fn alive(&self) -> Option<Pid> {
        self.command
            .as_ref()
            .filter(|_| self.outcome.is_none())
            .map(|command| command.pid)
    }

    /// Returns the command's own process group, as long as its ID can't have been reused.
    pub(super) fn group(&self) -> Option<Pid> {
        self.alive().filter(|_| !self.joined)
    }

    pub(super) fn stop(&mut self, why: StopReason, kill_at: BootTime, signal: Signal) {
        // A command that has ended already ended by itself.
        self.reap();
        if matches!(self.phase, Phase::Running) {
            self.phase = Phase::Stopping(kill_at);
            self.why.get_or_insert(why);
            let group = self.group();
            if let Some(group) = group {
                let _ = kill_process_group(group, signal);
                let _ = kill_process_group(group, Signal::CONT);
            }
            match tree::signal_all(getpid().as_raw_pid(), &[], group, signal) {
                Ok(found) => self.termed = found,
                // Without /proc only the command and its group are known.
                Err(_) => {
                    if let Some(command) = self.alive().filter(|_| group.is_none()) {
                        let _ = kill_process(command, signal);
                        let _ = kill_process(command, Signal::CONT);
                    }
                }
            }
        } else if let Phase::Stopping(before) = self.phase {
            self.phase = Phase::Stopping(before.min(kill_at));
        }
    }

    pub(super) fn kill(&mut self, why: StopReason) {
        self.reap();
        if matches!(self.phase, Phase::Running | Phase::Stopping(_)) {
            self.why.get_or_insert(why);
            self.begin_killing(BootClock::read());
        }
    }

    fn begin_killing(&mut self, now: BootTime) {
        // The processes that are known without /proc.
        let _ = match (self.group(), self.alive()) {
            (Some(group), _) => kill_process_group(group, Signal::KILL),
            (None, Some(command)) => kill_process(command, Signal::KILL),
            (None, None) => Ok(()),
        };
        self.phase = Phase::Killing(Hunt::new(
            getpid().as_raw_pid(),
            Vec::new(),
            std::mem::take(&mut self.termed),
            now,
        ));
    }

    pub(super) fn is_done(&self) -> bool {
        if matches!(self.phase, Phase::Idle) {
            return false;
        }
        let never_ran = self.command.is_none() && self.verdict.is_some();
        let left = self.leaves_leftover();
        let quiet = self.empty && !self.cgroup.as_ref().is_some_and(Cgroup::is_populated);
        never_ran || (self.outcome.is_some() && (quiet || left))
    }

    /// Whether descendants may be left running: never after the tree was stopped.
    pub(super) fn leaves_leftover(&self) -> bool {
        self.setup.plan.leftover == Leftover::Leave
            && self.outcome.is_some()
            && matches!(self.phase, Phase::Running)
            && !self.orphaned
    }
}
