//! What the guardian sleeps for: orders, its children, deadlines, and the connections that the lock
//! depends on.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::{CGROUP_LAG, DLOCK_FIRST, GuardianLoop, Phase, WAKE};
use crate::{lease::BootClock, supervise::sys::arm};

impl GuardianLoop {
    /// Sleeps until an order, a child's change or the next deadline.
    pub(super) fn sleep(&mut self) {
        let bound = self.bound;
        let next = match &self.phase {
            Phase::Idle => None,
            Phase::Running => bound
                .then_some(self.deadlines.term_at)
                .into_iter()
                .chain(self.time_up_at)
                .min(),
            Phase::Stopping(kill_at) if bound && self.lapsed => {
                Some((*kill_at).min(self.deadlines.kill_at))
            }
            Phase::Stopping(kill_at) if bound => Some((*kill_at).min(self.deadlines.term_at)),
            Phase::Stopping(kill_at) => Some(*kill_at),
            Phase::Killing(hunt) => Some(hunt.next_at()),
        };
        // The guardian polls: no event reports that a cgroup became empty after the last child was
        // reaped.
        let look_again = self.emptied.map(|emptied| {
            let now = BootClock::read();
            now.plus(if now.since(emptied) < CGROUP_LAG {
                Duration::from_millis(1)
            } else {
                CGROUP_LAG
            })
        });
        let wake = self.wakes_dlock().then(|| BootClock::read().plus(WAKE));
        let severed = self
            .severed
            .filter(|_| !self.lapsed)
            .map(|at| at.plus(DLOCK_FIRST));
        arm(
            &self.timer,
            [next, look_again, wake, severed]
                .into_iter()
                .flatten()
                .min(),
        );
        let mut sources = vec![
            PollFd::new(&self.children, PollFlags::IN),
            PollFd::new(&self.timer, PollFlags::IN),
        ];
        if !self.orphaned {
            sources.push(PollFd::new(&self.setup.socket, PollFlags::IN));
        }
        if let Some(command) = self.command.as_ref().filter(|_| self.verdict.is_none()) {
            sources.push(PollFd::new(&command.pipe, PollFlags::IN));
        }
        let others = sources.len();
        if self.watches_lifelines() {
            sources.extend(
                self.lifelines
                    .iter()
                    .map(|line| PollFd::new(line, PollFlags::RDHUP)),
            );
        }
        let _ = poll(&mut sources, None);
        let severed = sources[others..]
            .iter()
            .any(|line| !line.revents().is_empty());
        drop(sources);
        if severed {
            self.severed = Some(BootClock::read());
        }
    }

    /// Whether a closed lifeline is news: the lock ends with it, while the command may still run.
    fn watches_lifelines(&self) -> bool {
        self.bound && !self.lapsed && self.severed.is_none() && !self.empty
    }
}
