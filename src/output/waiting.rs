//! The line that shows a wait on a terminal. It is redrawn in place, and cleared when the wait is
//! over.

use std::{cell::RefCell, future::Future, io, os::fd::AsFd as _, time::Duration};

use super::{Output, age, holders, stderr, window};
use crate::{
    lease::{Clock, Outage, Silence, WaitPolicy},
    lock::{BootTime, Busy, Key, printable},
};

/// How long a store may be silent before the line shows that.
const SILENT: Duration = Duration::from_millis(900);

/// A wait in progress.
pub struct Waiting<'a> {
    silence: &'a Silence,
    policy: WaitPolicy,
    clock: &'a dyn Clock,
    began: BootTime,
    shown: bool,
    /// The lock, the store's last answer, and when it arrived.
    last: RefCell<Option<(Key, Busy, BootTime)>>,
}

impl<'a> Waiting<'a> {
    /// Starts a wait now. Without a terminal, nothing is drawn.
    pub fn new(
        out: &Output,
        silence: &'a Silence,
        policy: WaitPolicy,
        clock: &'a dyn Clock,
    ) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let shown = out.attended() && !out.quiet && !out.json && !dumb;
        Self {
            silence,
            policy,
            clock,
            began: clock.now(),
            shown,
            last: RefCell::default(),
        }
    }

    /// Shows the current holders.
    pub fn update(&self, key: &Key, busy: &Busy) {
        if self.shown {
            *self.last.borrow_mut() = Some((key.clone(), busy.clone(), self.clock.now()));
            self.draw();
        }
    }

    /// Awaits `stop`, and redraws the line each second until then. Cancel safe if `stop` is.
    pub async fn ticking<T>(&self, stop: impl Future<Output = T>) -> T {
        tokio::pin!(stop);
        loop {
            let next = self.clock.now().plus(Duration::from_secs(1));
            tokio::select! {
                biased;
                stopped = &mut stop => return stopped,
                () = self.clock.sleep_until(next), if self.shown => self.draw(),
            }
        }
    }

    fn draw(&self) {
        let now = self.clock.now();
        let silent = self
            .silence
            .outage()
            .filter(|outage| now.since(outage.since) >= SILENT);
        if let Some(outage) = &silent {
            Self::draw_line(&no_answer(outage, now));
        } else if let Some((key, busy, at)) = &*self.last.borrow() {
            let mut busy = busy.clone();
            for holder in &mut busy.holders {
                holder.held_for = holder
                    .held_for
                    .map(|held| held.saturating_add(now.since(*at)));
            }
            let text = line(key, &busy, now.since(self.began), self.policy);
            Self::draw_line(&text);
        } else {
            self.clear();
        }
    }

    fn draw_line(text: &str) {
        let text = holders::cut(
            &printable(text),
            window(io::stderr().as_fd()).0.saturating_sub(1),
        );
        stderr::draw(&text);
    }

    /// Clears the line.
    pub fn clear(&self) {
        if self.shown {
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
        |until| format!("trying for {} more", age(until.since(now))),
    );
    format!("dlock: {}: {why}; {more}", outage.url)
}

fn line(key: &Key, busy: &Busy, waited: Duration, policy: WaitPolicy) -> String {
    let holder = busy
        .holders
        .first()
        .map_or_else(|| "another process".into(), holders::described);
    let mut text = format!("dlock: waiting for {}: {holder}", key.escaped());
    let most = match policy {
        WaitPolicy::For(most) => format!("{} of {}", age(waited), age(most)),
        _ => age(waited),
    };
    text += &busy.position.map_or_else(
        || format!("; {most}"),
        |position| format!("; {} in queue, {most}", ordinal(position)),
    );
    text
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
            line(
                &key,
                &busy,
                Duration::from_secs(17),
                WaitPolicy::For(Duration::from_secs(600))
            ),
            "dlock: waiting for deploy: ana@ops1, 4m 12s, \"v2.3\"; 2nd in queue, 17s of 10m"
        );
        assert_eq!(
            line(
                &key,
                &Busy::default(),
                Duration::from_secs(17),
                WaitPolicy::Forever
            ),
            "dlock: waiting for deploy: another process; 17s"
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
