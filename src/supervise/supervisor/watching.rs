//! The supervisor's checks that the guardian acts in time, and dlock's reaction if it doesn't.

use std::time::Duration;

use rustix::process::{Signal as Signo, kill_process, kill_process_group};

use super::{ACK_TIMEOUT, LONG_ACK_TIMEOUT, Supervisor};
use crate::{
    lease::BootClock,
    lock::BootTime,
    supervise::{
        Deadlines, Ended, Event, OnLost, StopReason, hunt::ProcessNews, message::Order,
        takeover::Takeover, tree,
    },
};

impl Supervisor {
    /// Returns when the guardian must have acted on the maximum runtime of a command started at
    /// `started`.
    pub(super) fn time_up_from(&self, started: BootTime) -> Option<Deadlines> {
        let term_at = started.plus(self.plan.max_runtime?);
        Some(Deadlines {
            term_at,
            kill_at: term_at.plus(self.plan.grace),
        })
    }

    /// Returns when the guardian must have sent TERM and KILL.
    fn due(&self) -> Option<Deadlines> {
        let bound = self
            .acknowledged
            .filter(|_| self.plan.on_lost != OnLost::Continue);
        let lost = self.told_to_kill.map(|at| Deadlines {
            term_at: at,
            kill_at: at,
        });
        let earliest = |one: Deadlines, other: Deadlines| Deadlines {
            term_at: one.term_at.min(other.term_at),
            kill_at: one.kill_at.min(other.kill_at),
        };
        [bound, lost, self.stopping, self.time_up]
            .into_iter()
            .flatten()
            .reduce(earliest)
    }

    pub(super) fn judge(&mut self, now: BootTime) {
        if let Some(takeover) = &mut self.takeover {
            if !self.over {
                self.events
                    .extend(takeover.step(now).into_iter().map(|news| match news {
                        ProcessNews::Stuck(pid, why) => Event::Unkillable { pid, why },
                        ProcessNews::Gone(pid) => Event::Gone { pid },
                    }));
                if takeover.is_done() {
                    self.over = true;
                    self.reaped = true;
                    let ended = Ended {
                        outcome: self.outlived.or(takeover.outcome),
                        by_itself: self.outlived.is_some(),
                        stopped: Some(StopReason::Guardian),
                        ..Ended::default()
                    };
                    self.events.push_back(Event::Ended(ended));
                }
            }
            return;
        }
        let Some(due) = self
            .due()
            .filter(|due| !self.over && self.acknowledged.is_some() && now >= due.term_at)
        else {
            return;
        };
        let ack_timeout = self.ack_timeout(due);
        let late = self
            .unanswered
            .front()
            .is_some_and(|order| now.since(order.since) >= ack_timeout);
        if self.unanswered.is_empty() && now.since(self.last_report) >= ACK_TIMEOUT {
            let _ = self.order(&Order::Ping, None);
        } else if late && now >= due.kill_at {
            self.take_over(true);
        } else if late && !self.termed {
            // The guardian may just be slow, so it gets time to reap. The command gets its full
            // grace.
            self.termed = true;
            let group = self
                .command
                .and_then(|command| tree::group_led_by(command, self.guardian));
            if let Some(group) = group {
                let _ = kill_process_group(group, Signo::TERM);
                let _ = kill_process_group(group, Signo::CONT);
            }
            let _ = tree::signal_all(self.guardian.as_raw_pid(), &[], group, Signo::TERM);
            if self
                .acknowledged
                .is_some_and(|deadlines| now >= deadlines.term_at)
                && !self.lapsed
            {
                self.lapsed = true;
                self.events.push_back(Event::DeadlineTerm);
            }
        }
    }

    fn ack_timeout(&self, due: Deadlines) -> Duration {
        if self.last_report >= due.kill_at {
            LONG_ACK_TIMEOUT
        } else {
            ACK_TIMEOUT
        }
    }

    pub(super) fn wake_at(&self) -> Option<BootTime> {
        if self.over {
            return None;
        }
        if let Some(takeover) = &self.takeover {
            return Some(takeover.next_at());
        }
        let due = self.due().filter(|_| self.acknowledged.is_some())?;
        let answer_by = self
            .unanswered
            .front()
            .map_or(self.last_report.plus(ACK_TIMEOUT), |order| {
                order.since.plus(self.ack_timeout(due))
            });
        Some(if self.termed && !self.unanswered.is_empty() {
            due.kill_at.max(answer_by)
        } else {
            due.term_at.max(answer_by)
        })
    }

    /// Takes over from a guardian that is dead or doesn't answer.
    pub(super) fn take_over(&mut self, frozen: bool) {
        let now = BootClock::read();
        self.events.push_back(Event::GuardianLost { frozen });
        if self.acknowledged.is_none() {
            // The guardian died idle: there is no tree.
            self.over = true;
            self.events.push_back(Event::Ended(Ended {
                stopped: Some(StopReason::Guardian),
                ..Ended::default()
            }));
            return;
        }
        let kill_at = if frozen {
            if let Some(group) = self
                .command
                .and_then(|command| tree::group_led_by(command, self.guardian))
            {
                let _ = kill_process_group(group, Signo::KILL);
            }
            let _ = kill_process(self.guardian, Signo::KILL);
            now
        } else {
            let deadline = self.due().map(|due| due.kill_at);
            deadline
                .into_iter()
                .fold(now.plus(self.plan.grace), BootTime::min)
        };
        self.takeover = Some(Takeover::begin(
            std::mem::take(&mut self.spared),
            self.command,
            &self.cgroup,
            kill_at,
            now,
        ));
        self.judge(now);
    }
}
