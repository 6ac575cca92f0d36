//! The line that shows a wait: on a terminal it is redrawn in place, and cleared when the wait is
//! over. In a log it is printed once.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    io,
    os::fd::AsFd as _,
    time::Duration,
};

use super::{Output, holders, stderr, waited, window};
use crate::{
    lease::{Clock, Outage, Silence, WaitPolicy},
    lock::{BootTime, Busy, Key, length, printable},
};

/// How long a store may be silent before the line shows that.
const SILENT: Duration = Duration::from_millis(900);

/// How long a wait lasts before a log has its line: a lock that is free again in a moment is no
/// news.
const TOLD_AFTER: Duration = Duration::from_millis(400);

/// How a wait is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// By a line that is redrawn.
    Drawn,
    /// By one line, which is due.
    Due,
    /// That line was printed.
    Told,
    Not,
}

/// A wait in progress.
pub struct Waiting<'a> {
    silence: &'a Silence,
    policy: WaitPolicy,
    clock: &'a dyn Clock,
    began: BootTime,
    shown: Cell<Shown>,
    /// The lock, the store's last answer, and when it arrived.
    last: RefCell<Option<(Key, Busy, BootTime)>>,
}

impl<'a> Waiting<'a> {
    /// Starts a wait now. Without a terminal, only a wait that was asked for is shown, and not
    /// where output counts only if the run fails.
    pub fn new(
        out: &Output,
        silence: &'a Silence,
        policy: WaitPolicy,
        clock: &'a dyn Clock,
    ) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let shown = if out.quiet || out.json {
            Shown::Not
        } else if out.attended() && !dumb {
            Shown::Drawn
        } else if policy == WaitPolicy::Try || out.only_on_failure {
            Shown::Not
        } else {
            Shown::Due
        };
        Self {
            silence,
            policy,
            clock,
            began: clock.now(),
            shown: Cell::new(shown),
            last: RefCell::default(),
        }
    }

    /// Shows the current holders.
    pub fn update(&self, key: &Key, busy: &Busy) {
        if matches!(self.shown.get(), Shown::Drawn | Shown::Due) {
            *self.last.borrow_mut() = Some((key.clone(), busy.clone(), self.clock.now()));
            self.show();
        }
    }

    /// Whether the wait has a line in a log, which the end of the wait should follow.
    pub fn is_told(&self) -> bool {
        self.shown.get() == Shown::Told
    }

    /// Awaits `stop`, and shows the wait each second until then. Cancel safe if `stop` is.
    pub async fn ticking<T>(&self, stop: impl Future<Output = T>) -> T {
        tokio::pin!(stop);
        loop {
            let shown = self.shown.get();
            let every = if shown == Shown::Due {
                TOLD_AFTER
            } else {
                Duration::from_secs(1)
            };
            let next = self.clock.now().plus(every);
            tokio::select! {
                biased;
                stopped = &mut stop => return stopped,
                () = self.clock.sleep_until(next), if matches!(shown, Shown::Drawn | Shown::Due) => self.show(),
            }
        }
    }

    fn show(&self) {
        let now = self.clock.now();
        if self.shown.get() == Shown::Due && now.since(self.began) < TOLD_AFTER {
            return;
        }
        let silent = self
            .silence
            .outage()
            .filter(|outage| now.since(outage.since) >= SILENT);
        if let Some(outage) = &silent {
            self.print(&no_answer(outage, now));
        } else if let Some((key, busy, at)) = &*self.last.borrow() {
            let mut busy = busy.clone();
            for holder in &mut busy.holders {
                holder.held_for = holder
                    .held_for
                    .map(|held| held.saturating_add(now.since(*at)));
            }
            let most = match (self.shown.get(), self.policy) {
                (Shown::Due, WaitPolicy::For(most)) => Some(format!("up to {}", length(most))),
                (Shown::Due, _) => None,
                (_, WaitPolicy::For(most)) => Some(format!(
                    "{} of {}",
                    waited(now.since(self.began)),
                    length(most)
                )),
                _ => Some(waited(now.since(self.began))),
            };
            self.print(&line(key, &busy, most));
        } else {
            self.clear();
        }
    }

    fn print(&self, text: &str) {
        if self.shown.get() == Shown::Due {
            self.shown.set(Shown::Told);
            stderr::lines(&format!("{}\n", printable(text)));
            return;
        }
        let text = holders::cut(
            &printable(text),
            window(io::stderr().as_fd()).0.saturating_sub(1),
        );
        stderr::draw(&text);
    }

    /// Clears the line.
    pub fn clear(&self) {
        if self.shown.get() == Shown::Drawn {
            stderr::clear();
        }
    }

    /// Returns how long the wait has lasted; zero in try mode.
    pub fn waited(&self) -> Duration {
        if self.policy == WaitPolicy::Try {
            Duration::ZERO
        } else {
            self.clock.now().since(self.began)
        }
    }
}

/// Returns the line for a store that does not answer: the reason, and how long dlock goes on
/// trying.
fn no_answer(outage: &Outage, now: BootTime) -> String {
    let why = outage.why.as_deref().unwrap_or("no answer yet");
    let more = outage.until.map_or_else(
        || "trying on".into(),
        |until| format!("trying for {} more", waited(until.since(now))),
    );
    format!("dlock: {}: {why}; {more}", outage.url)
}

/// Returns the line for a busy lock; `most` says how long the wait lasts, or may last.
fn line(key: &Key, busy: &Busy, most: Option<String>) -> String {
    let holder = busy
        .holders
        .first()
        .map_or_else(|| "another process".into(), holders::described);
    let position = busy
        .position
        .map(|position| format!("{} in queue", ordinal(position)));
    let more: Vec<_> = position.into_iter().chain(most).collect();
    let joint = if more.is_empty() { "" } else { "; " };
    format!(
        "dlock: waiting for {}: {holder}{joint}{}",
        key.escaped(),
        more.join(", ")
    )
}

fn ordinal(number: u32) -> String {
    let ending = match (number % 10, number % 100) {
        (1, rest) if rest != 11 => "st",
        (2, rest) if rest != 12 => "nd",
        (3, rest) if rest != 13 => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Holder, Metadata, Mode};

    #[test]
    fn the_line_shows_holder_and_duration() {
        let metadata = Metadata {
            user: Some("ana".into()),
            host: Some("ops1".into()),
            description: Some("v2.3".into()),
            ..Metadata::default()
        };
        let holder = Holder {
            permit: None,
            mode: Mode::Exclusive,
            metadata: Some(metadata),
            fence: None,
            foreign: false,
            detached: false,
            held_for: Some(Duration::from_secs(252)),
            renewed_ago: None,
            expires_in: None,
            removal: None,
            holds: 1,
            broken: None,
        };
        let busy = Busy {
            holders: vec![holder],
            position: Some(2),
            ..Busy::default()
        };
        let key = Key::new("deploy").unwrap();
        assert_eq!(
            line(&key, &busy, Some("17s of 10m".into())),
            "dlock: waiting for deploy: ana@ops1, 4m 12s, \"v2.3\"; 2nd in queue, 17s of 10m"
        );
        assert_eq!(
            line(&key, &Busy::default(), None),
            "dlock: waiting for deploy: another process"
        );
    }

    #[test]
    fn ordinals() {
        assert_eq!(
            [1, 2, 3, 4, 11, 12, 13, 21, 112].map(ordinal),
            [
                "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th"
            ]
        );
    }
}
