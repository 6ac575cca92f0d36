//! The run policy: a run's conditions on earlier runs (when they began, and where), and the run
//! records that a store keeps for that.
//!
//! A store judges and records in the granting step, by its own clock, and next to the lock: the
//! records outlive the hold, and a crashed runner. [`RunRecord`] is the reference for stores that
//! judge by themselves. It judges for those stores that can read, decide and write while no other
//! client can be granted the lock.

mod record;

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

pub use self::record::{Cooldown, LastRun, Replaced, RunRecord};
use super::{Fence, Metadata, length};

/// The policy of one run. Only for fresh exclusive holds: a nested hold is part of its ancestor's
/// run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPolicy {
    /// Tells this machine and PID namespace from others, independently of their names
    /// ([`Metadata::place`]).
    pub place: String,
    /// For this long from the start, requests from other places are denied. This request is denied
    /// within the guard of an earlier run; `None` for neither. Never applied to a waiter.
    pub skew_guard: Option<Duration>,
    /// For this long from the start all requests are denied, however the hold goes.
    pub at_least: Option<Duration>,
    /// At most one run within some time.
    pub once: Option<Once>,
    /// No earlier run denies this one: an operator decided so. This run is recorded like any other.
    pub anyway: bool,
}

/// One run within some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Once {
    /// A run is denied while the last recorded start is younger than this by the store's clock, or
    /// lies in the future.
    pub window: Duration,
    /// How many more runs may follow one that failed within the window.
    pub retry_failed: u32,
    /// Whether a run may follow one that began and never reported an outcome.
    pub retry_crashed: bool,
}

impl RunPolicy {
    /// Returns a policy that no earlier run denies. Its record, once it is cancelled, delays no
    /// later run.
    pub const fn forgetting(place: String) -> Self {
        let once = Once {
            window: Duration::ZERO,
            retry_failed: 0,
            retry_crashed: false,
        };
        Self {
            place,
            skew_guard: Some(Duration::ZERO),
            at_least: None,
            once: Some(once),
            anyway: true,
        }
    }

    /// Returns for how long the record of a run with this policy may matter.
    pub fn relevant(&self) -> Duration {
        let once = self.once.map(|once| once.window);
        [self.skew_guard, self.at_least, once]
            .into_iter()
            .flatten()
            .max()
            .unwrap_or_default()
    }

    /// Whether the run permanently replaces the records of earlier runs
    /// ([`RunPolicy::forgetting`]).
    pub fn forgets(&self) -> bool {
        self.anyway && self.once.is_some_and(|once| once.window.is_zero())
    }

    /// Whether a start is to be recorded at all.
    pub const fn record_anything(&self) -> bool {
        self.skew_guard.is_some() || self.at_least.is_some() || self.once.is_some()
    }
}

/// The outcome of a recorded start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// No outcome was reported. The command runs, or its runner crashed.
    Started,
    /// The command succeeded.
    Ok,
    /// The command failed.
    Failed,
    /// The command ended, but whether it did its work is not known: it ended with 0 after dlock's
    /// TERM, with the lock lost, or unseen.
    Unknown,
    /// No command was executed after all. Never stored: the record is as it was before the start.
    Cancelled,
}

impl RunState {
    /// Returns the text that stores keep.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
            Self::Cancelled => "undone",
        }
    }
}

impl From<&str> for RunState {
    /// Text of a newer dlock may mean that the command ran: that is the safe assumption.
    fn from(text: &str) -> Self {
        match text {
            "ok" => Self::Ok,
            "failed" => Self::Failed,
            "unknown" => Self::Unknown,
            "undone" => Self::Cancelled,
            _ => Self::Started,
        }
    }
}

/// Why a free lock is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The rule.
    pub rule: Rule,
    /// The fence of the earlier run, if known.
    pub fence: Option<Fence>,
    /// How long ago the earlier run began; `None` if unknown.
    pub began: Option<Duration>,
    /// The earlier run's holder.
    pub metadata: Option<Metadata>,
    /// After how long a repeated request makes sense; `None` if unknown.
    pub again_in: Option<Duration>,
}

/// A rule that denies a free lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A run from another place began, with a skew guard of this length.
    SkewGuard(Duration),
    /// A run began that reserves the lock for at least this length.
    AtLeast(Duration),
    /// A run began within the window, and had this outcome.
    Once(RunState),
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SkewGuard(most) => write!(f, "skew guard {}", length(*most)),
            Self::AtLeast(least) => write!(f, "at least {}", length(*least)),
            Self::Once(_) => f.write_str("once"),
        }
    }
}

/// Returns whole ms, as stores keep them.
pub fn whole_ms(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
