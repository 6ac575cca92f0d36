//! A crowd in parts, for stores that keep the shares in one place, and each who waits in one of its own.

use serde::Serialize;

use super::{Crowd, Fence, Mode, Past, Token, queue::Queued};

/// One who waits, as it is kept by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The hold, as [`super::Token::hold_text`] has it.
    pub hold: String,
    /// It wants the lock for itself alone and in no order.
    pub plain: bool,
    /// Since when it waits, in ms.
    pub since: u64,
    /// When it last asked.
    pub seen: u64,
    /// Since when it has its turn.
    pub called: Option<u64>,
    /// All of this but its turn, for [`Crowd::line_up`].
    pub json: String,
}

impl Crowd {
    /// The shares alone, to be written; `None` if there are none.
    pub fn write_shares(&self) -> Option<String> {
        #[derive(Serialize)]
        struct Shares<'a> {
            v: u16,
            s: &'a [super::share::Share],
        }
        // Of texts and numbers, which can always be written.
        if self.is_shared() { serde_json::to_string(&Shares { v: self.layout, s: &self.shares }).ok() } else { None }
    }

    /// How this token's owner shares the lock; `None` if it does not.
    pub fn mode_of(&self, token: &Token) -> Option<Mode> {
        self.share(token).map(|share| share.mode)
    }

    /// The fence of each share.
    pub fn fences(&self) -> impl Iterator<Item = Fence> + '_ {
        self.shares.iter().map(|share| Fence(share.fence))
    }

    /// What is to be remembered of the share with this fence, should it never be given back.
    pub fn vanished(&self, fence: Fence) -> Option<Past> {
        self.shares.iter().find(|share| share.fence == fence.0).map(|share| share.vanished(share.ends()))
    }

    /// Puts somebody into the queue at its place, from what [`Place::json`] was. What a newer dlock wrote in another way is left out.
    pub fn line_up(&mut self, json: &str) {
        if let Ok(queued) = serde_json::from_str::<Queued>(json) {
            self.queue.insert(queued);
        }
    }

    /// Says since when somebody who waits has its turn.
    pub fn call(&mut self, hold: &str, since: u64) {
        if let Some(queued) = self.queue.find_mut(hold) {
            queued.called = Some(since);
        }
    }

    /// Everybody who waits, longest first.
    pub fn places(&self) -> Vec<Place> {
        let place = |queued: &Queued| Place {
            hold: queued.hold.clone(),
            plain: queued.is_plain(),
            since: queued.since,
            seen: queued.seen,
            called: queued.called,
            json: serde_json::to_string(&Queued { called: None, ..queued.clone() }).unwrap_or_default(),
        };
        self.queue.all().iter().map(place).collect()
    }
}
