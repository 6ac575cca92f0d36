//! The run policy: a run's conditions on earlier runs (when they began, and where), and the run records that a store
//! keeps for that.
//!
//! A store judges and records in the granting step, by its own clock, and next to the lock: the records outlive the
//! hold, and a crashed runner. [`RunRecord`] is the reference for stores that judge by themselves. It judges for those stores
//! that can read, decide and write while no other client can be granted the lock.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Fence, Metadata, Request, Token, length};

/// The policy of one run. Only for fresh exclusive holds: a nested hold is part of its ancestor's run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPolicy {
    /// Tells this machine and PID namespace from others, independently of their names ([`Metadata::place`]).
    pub place: String,
    /// For this long from the start, requests from other places are denied. This request is denied within the guard of an earlier
    /// run; `None` for neither. Never applied to a waiter.
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
    /// A run is denied while the last recorded start is younger than this by the store's clock, or lies in the future.
    pub window: Duration,
    /// How many more runs may follow one that failed within the window.
    pub retry_failed: u32,
    /// Whether a run may follow one that began and never reported an outcome.
    pub retry_crashed: bool,
}

impl RunPolicy {
    /// Returns a policy that no earlier run denies. Its record, once it is cancelled, delays no later run.
    pub const fn forgetting(place: String) -> Self {
        let once = Once { window: Duration::ZERO, retry_failed: 0, retry_crashed: false };
        Self { place, skew_guard: Some(Duration::ZERO), at_least: None, once: Some(once), anyway: true }
    }

    /// Returns for how long the record of a run with this policy may matter.
    pub fn relevant(&self) -> Duration {
        let once = self.once.map(|once| once.window);
        [self.skew_guard, self.at_least, once].into_iter().flatten().max().unwrap_or_default()
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
    /// No command was started after all.
    Cancelled,
}

impl RunState {
    /// Returns the text that stores keep.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Ok => "ok",
            Self::Failed => "failed",
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
            "undone" => Self::Cancelled,
            _ => Self::Started,
        }
    }
}

/// A recorded start that denies the lock to other runs for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cooldown {
    /// The time of the start, in ms by the store's clock.
    #[serde(rename = "s")]
    pub at_ms: u64,
    /// The fence of the hold.
    #[serde(rename = "f")]
    pub fence: Fence,
    /// [`RunPolicy::place`].
    #[serde(rename = "p")]
    pub place: String,
    /// The skew guard in ms; 0 for none.
    #[serde(rename = "g", default)]
    pub guard_ms: u64,
    /// For how many ms all runs are denied; 0 for none.
    #[serde(rename = "l", default)]
    pub at_least_ms: u64,
    /// The runner.
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// The hold that wrote the record, as [`Token::hold_text`].
    #[serde(rename = "h", default, skip_serializing_if = "String::is_empty")]
    pub hold: String,
}

/// The last start of a run with [`Once`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRun {
    /// The time of the start, in ms by the store's clock.
    #[serde(rename = "s")]
    pub at_ms: u64,
    /// The fence of the hold.
    #[serde(rename = "f")]
    pub fence: Fence,
    /// The outcome.
    #[serde(rename = "x")]
    pub state: RunState,
    /// Attempt number within the window, starting at 1.
    #[serde(rename = "n")]
    pub tries: u32,
    /// The runner's window in ms: the record must be kept this long.
    #[serde(rename = "w")]
    pub window_ms: u64,
    /// The runner.
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// The hold that wrote the record, as [`Token::hold_text`].
    #[serde(rename = "h", default, skip_serializing_if = "String::is_empty")]
    pub hold: String,
}

/// All run records of a lock. A run replaces only those parts that its run policy has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The record for skew guard and at-least.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub cooldown: Option<Cooldown>,
    /// The record for once.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub start: Option<LastRun>,
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

impl Cooldown {
    /// Returns the rest of a length from the start, unless it is over. A clock that was set back by more than the length
    /// delays no run.
    fn within(&self, length_ms: u64, now_ms: u64) -> Option<Duration> {
        let over = self.at_ms.saturating_add(length_ms);
        (now_ms.abs_diff(self.at_ms) < length_ms && now_ms < over).then(|| Duration::from_millis(over - now_ms))
    }

    fn denial(&self, rule: Rule, left: Duration, now_ms: u64) -> Denial {
        Denial {
            rule,
            fence: Some(self.fence),
            began: Some(Duration::from_millis(now_ms.saturating_sub(self.at_ms))),
            metadata: self.metadata.clone(),
            again_in: Some(left),
        }
    }
}

impl LastRun {
    /// Whether an attempt of this hold wrote the record without starting its command: a run reports its outcome.
    fn is_of(&self, hold: &str) -> bool {
        self.hold == hold && self.state == RunState::Started
    }

    /// Whether `once` lets another run follow this one.
    pub fn allows(&self, once: &Once, now_ms: u64) -> bool {
        self.is_over(once, now_ms)
            || match self.state {
                RunState::Started => once.retry_crashed,
                RunState::Ok => false,
                RunState::Failed => self.tries <= once.retry_failed,
                RunState::Cancelled => true,
            }
    }

    /// Whether the run began before the window. A start in the future did not.
    fn is_over(&self, once: &Once, now_ms: u64) -> bool {
        now_ms.checked_sub(self.at_ms).is_some_and(|age| age >= whole_ms(once.window))
    }

    /// Returns the denial of another run.
    pub fn denial(&self, once: &Once, now_ms: u64) -> Denial {
        let over = self.at_ms.saturating_add(whole_ms(once.window));
        Denial {
            rule: Rule::Once(self.state),
            fence: Some(self.fence),
            began: now_ms.checked_sub(self.at_ms).map(Duration::from_millis),
            metadata: self.metadata.clone(),
            again_in: Some(Duration::from_millis(over.saturating_sub(now_ms))),
        }
    }
}

impl RunRecord {
    /// Returns why a request with this token is denied although the lock is free; `now_ms` is by the store's clock.
    ///
    /// A request's own record never denies it: an earlier attempt with a lost answer wrote the record, and its command was
    /// never started.
    pub fn judge(&self, run_policy: Option<&RunPolicy>, token: &Token, now_ms: u64) -> Option<Denial> {
        if run_policy.is_some_and(|run_policy| run_policy.anyway) {
            return None;
        }
        let own = token.hold_text();
        if let Some(cooldown) = self.cooldown.as_ref().filter(|cooldown| cooldown.hold != own) {
            if let Some(left) = cooldown.within(cooldown.at_least_ms, now_ms) {
                return Some(cooldown.denial(Rule::AtLeast(Duration::from_millis(cooldown.at_least_ms)), left, now_ms));
            }
            let guarded = run_policy.is_some_and(|run_policy| run_policy.skew_guard.is_some() && run_policy.place != cooldown.place);
            if let Some(left) = cooldown.within(cooldown.guard_ms, now_ms).filter(|_| guarded) {
                return Some(cooldown.denial(Rule::SkewGuard(Duration::from_millis(cooldown.guard_ms)), left, now_ms));
            }
        }
        let once = run_policy?.once?;
        let before = self.start.as_ref().filter(|start| !start.is_of(&own) && !start.allows(&once, now_ms));
        before.map(|start| start.denial(&once, now_ms))
    }

    /// Returns the denial that holds for every host, or for every other host, whatever the request; `now_ms` as
    /// in [`RunRecord::judge`].
    pub fn current_denial(&self, now_ms: u64) -> Option<Denial> {
        let cooldown = self.cooldown.as_ref()?;
        let rules = [(cooldown.at_least_ms, Rule::AtLeast as fn(Duration) -> Rule), (cooldown.guard_ms, Rule::SkewGuard)];
        rules.into_iter().find_map(|(ms, rule)| {
            let left = cooldown.within(ms, now_ms)?;
            Some(cooldown.denial(rule(Duration::from_millis(ms)), left, now_ms))
        })
    }

    /// Records the start of a hold that is granted now with this run policy.
    pub fn begin(&mut self, request: &Request, fence: Fence, now_ms: u64) {
        let Some(run_policy) = &request.run_policy else { return };
        if run_policy.skew_guard.is_some() || run_policy.at_least.is_some() {
            self.cooldown = Some(Cooldown {
                at_ms: now_ms,
                fence,
                place: run_policy.place.clone(),
                guard_ms: run_policy.skew_guard.map_or(0, whole_ms),
                at_least_ms: run_policy.at_least.map_or(0, whole_ms),
                metadata: request.metadata.clone(),
                hold: request.token.hold_text(),
            });
        }
        if let Some(once) = &run_policy.once {
            let hold = request.token.hold_text();
            let before = self.start.as_ref().filter(|start| !run_policy.anyway && !start.is_over(once, now_ms));
            let before = before.map_or(0, |start| start.tries.saturating_sub(u32::from(start.is_of(&hold))));
            self.start = Some(LastRun {
                at_ms: now_ms,
                fence,
                state: RunState::Started,
                tries: before.saturating_add(1),
                window_ms: whole_ms(once.window),
                metadata: request.metadata.clone(),
                hold,
            });
        }
    }

    /// Records the outcome of the start with this fence. Returns whether the record changed. A cancelled start delays no run,
    /// and does not count as an attempt.
    pub fn end(&mut self, fence: Fence, state: RunState) -> bool {
        let mut changed = false;
        if state == RunState::Cancelled && self.cooldown.as_ref().is_some_and(|cooldown| cooldown.fence == fence) {
            self.cooldown = None;
            changed = true;
        }
        if let Some(start) = self.start.as_mut().filter(|start| start.fence == fence && start.state == RunState::Started) {
            start.state = state;
            if state == RunState::Cancelled {
                start.tries = start.tries.saturating_sub(1);
                // The earlier attempt had failed, or this one would have been denied.
                start.state = if start.tries > 0 { RunState::Failed } else { RunState::Cancelled };
            }
            changed = true;
        }
        changed
    }

    /// Returns how long from now the record must be kept.
    pub fn relevant(&self, now_ms: u64) -> Duration {
        let cooldown = self.cooldown.as_ref().map(|cooldown| cooldown.at_ms.saturating_add(cooldown.guard_ms.max(cooldown.at_least_ms)));
        let start = self.start.as_ref().map(|start| start.at_ms.saturating_add(start.window_ms));
        Duration::from_millis(cooldown.max(start).unwrap_or_default().saturating_sub(now_ms))
    }
}

#[cfg(test)]
mod tests;
