//! The guardian's terminal handling: forwards signals, and hands the foreground over and back.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::{GuardianLoop, Phase};
use crate::supervise::{sys, terminal, tree};

impl GuardianLoop {
    /// Hands the foreground on to the command's group. Returns whether it did. A job that was
    /// started in the background has its own group, and a shell brings only dlock's group to the
    /// foreground.
    pub(super) fn lend_terminal(&mut self) -> bool {
        let (Some(terminal), Some(ours), Some(command)) =
            (&self.terminal, self.setup.group, &self.command)
        else {
            return false;
        };
        let lends =
            !self.joined && self.outcome.is_none() && terminal::is_foreground(terminal, ours);
        let lent = lends && terminal::bring_forward(terminal, command.pid);
        self.lent |= lent;
        lent
    }

    /// Gives the terminal back before dlock ends, so that its caller can read.
    pub(super) fn return_terminal(&mut self) {
        let (Some(terminal), Some(ours), Some(command)) =
            (&self.terminal, self.setup.group, &self.command)
        else {
            return;
        };
        if std::mem::take(&mut self.lent) && terminal::is_foreground(terminal, command.pid) {
            terminal::bring_forward(terminal, ours);
        }
    }

    /// Whether dlock stopped itself for a command that now runs again, while the tree is not being
    /// stopped.
    pub(super) fn wakes_dlock(&self) -> bool {
        let stopped = self.stopped && self.outcome.is_none();
        self.paused && !stopped && !self.orphaned && matches!(self.phase, Phase::Running)
    }

    /// Sends CONT to dlock. dlock may be just about to stop itself, so repeat this until dlock
    /// reports that it continues.
    pub(super) fn wake_dlock(&self) {
        if let Some(dlock) = self.dlock.filter(|_| self.wakes_dlock()) {
            let _ = kill_process(dlock, Signal::CONT);
        }
    }

    /// Forwards a signal as the terminal or a user meant it: a signal that ends a job goes to the
    /// whole job.
    pub(super) fn forward(&mut self, number: i32) {
        let Some(signal) = sys::signal(number) else {
            return;
        };
        let ends = [Signal::TERM, Signal::HUP].contains(&signal);
        let alive = self.alive();
        let for_all =
            ends || [Signal::INT, Signal::QUIT, Signal::TSTP, Signal::CONT].contains(&signal);
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
            // dlock itself is in the command's group, or the group's ID is no longer valid.
            _ => {
                let me = rustix::process::getpid().as_raw_pid();
                let group = self.setup.group.map_or(0, Pid::as_raw_pid);
                let all = tree::below(me, &[]).unwrap_or_default();
                // Once the command has ended, the signal goes to all its leftover processes.
                for process in all
                    .iter()
                    .filter(|process| alive.is_none() || process.group == group)
                {
                    let _ = tree::signal(process, me, signal);
                    if ends {
                        let _ = tree::signal(process, me, Signal::CONT);
                    }
                }
            }
        }
    }
}
