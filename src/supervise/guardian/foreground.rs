//! What a terminal and its user want of the command: signals passed on, and the foreground handed over and back.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::{Guardian, Phase};
use crate::supervise::{sys, terminal, tree};

impl Guardian {
    /// A job that was started in the background has a group of its own, and a shell brings only dlock's to the foreground:
    /// hands it on. Whether it did.
    pub(super) fn lend_terminal(&mut self) -> bool {
        let (Some(terminal), Some(ours), Some(command)) = (&self.terminal, self.setup.group, &self.command) else { return false };
        let lends = !self.joined && self.outcome.is_none() && terminal::is_foreground(terminal, ours);
        let lent = lends && terminal::bring_forward(terminal, command.pid);
        self.lent |= lent;
        lent
    }

    /// Gives the terminal back before dlock ends, so that its caller can read.
    pub(super) fn return_terminal(&mut self) {
        let (Some(terminal), Some(ours), Some(command)) = (&self.terminal, self.setup.group, &self.command) else { return };
        if std::mem::take(&mut self.lent) && terminal::is_foreground(terminal, command.pid) {
            terminal::bring_forward(terminal, ours);
        }
    }

    /// Whether dlock has stopped itself for a command that is stopped no longer, though the tree is not being stopped.
    pub(super) fn wakes_dlock(&self) -> bool {
        let stopped = self.stopped && self.outcome.is_none();
        self.paused && !stopped && !self.orphaned && matches!(self.phase, Phase::Running)
    }

    /// Continues dlock, which may be about to stop itself just now: so again and again, until it says that it goes on.
    pub(super) fn wake_dlock(&self) {
        if let Some(dlock) = self.dlock.filter(|_| self.wakes_dlock()) {
            let _ = kill_process(dlock, Signal::CONT);
        }
    }

    /// Passes a signal on, as the terminal or a user meant it: those that end a job to all of the job.
    pub(super) fn forward(&mut self, number: i32) {
        let Some(signal) = sys::signal(number) else { return };
        let ends = [Signal::TERM, Signal::HUP].contains(&signal);
        let alive = self.alive();
        let for_all = ends || [Signal::INT, Signal::QUIT, Signal::TSTP, Signal::CONT].contains(&signal);
        if signal == Signal::CONT {
            self.lend_terminal();
        }
        match alive {
            Some(pid) if !for_all => drop(kill_process(pid, signal)),
            Some(pid) if !self.joined => {
                let _ = kill_process_group(pid, signal);
                if ends {
                    let _ = kill_process_group(pid, Signal::CONT);
                }
            }
            None if !for_all => {}
            // dlock itself is in the command's group, or the group is only a number by now.
            _ => {
                let me = rustix::process::getpid().as_raw_pid();
                let group = self.setup.group.map_or(0, Pid::as_raw_pid);
                let all = tree::below(me, &[]).unwrap_or_default();
                // Once the command is over, all of what it left behind is meant.
                for process in all.iter().filter(|process| alive.is_none() || process.group == group) {
                    let _ = tree::signal(process, me, signal);
                    if ends {
                        let _ = tree::signal(process, me, Signal::CONT);
                    }
                }
            }
        }
    }
}
