//! Everything about a lease that is the same for all backends: asking again, waiting, renewing,
//! releasing, entering an ancestor's hold, and how the lease's time is spent.
//!
//! A backend answers one question once; this module decides how long to wait for the answer,
//! whether to ask again, and what an answer that did not come means. It never prints and knows no
//! exit status.

mod acquire;
mod ask;
mod breaking;
mod budget;
mod clock;
mod held;
mod keep;
mod note;
mod outage;
mod together;
mod undo;

pub use acquire::{Outcome, WaitPolicy, acquire};
pub use ask::{Limits, Released, ask, ask_long, release};
pub use breaking::{BreakOutcome, BreakRequest, break_hold};
pub use budget::Budget;
pub use clock::{BootClock, Clock, bounded, wall_ms};
pub use held::Held;
pub use keep::{Loss, keep};
pub use note::{entry, may_warn, note, note_skip};
pub use outage::{Outage, Silence};
pub use together::{Claim, GroupOutcome, acquire_all, in_order, keep_all, undo_all};

use crate::lock::{BootTime, Fence, Key, Token, Ttl};

/// A lock that this process holds, as far as it knows.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The lock.
    pub key: Key,
    /// The token for renewing and releasing.
    pub token: Token,
    /// The hold's public number.
    pub fence: Fence,
    /// The length that the store granted.
    pub ttl: Ttl,
    /// When the last confirmed acquire or renewal was sent: the lease counts from here.
    pub t0: BootTime,
    /// How many holds the owner had when this one was granted: 1 unless it was entered.
    pub holds: u32,
    /// The number of the permit, from 0; only of a lock that is held by permits.
    pub permit: Option<u32>,
}

#[cfg(test)]
mod tests;
