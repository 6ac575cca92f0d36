//! What a run asks of the runs before it: that they began long enough ago, and from where; and what a store keeps of them
//! for that.
//!
//! A store judges and records in the step that grants, by its own clock, and beside the lock: what is kept outlives the
//! hold, and a runner that crashed. [`RunRecord`] is the reference for stores that judge by themselves, and does it for those
//! that can read, decide and write while no other client can be granted the lock.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Fence, Metadata, Request, Token, length};

/// What a run asks. Only for exclusive holds that are taken anew: who enters an ancestor's hold is part of that run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPolicy {
    /// Tells this machine and PID namespace from others, whatever they are called ([`Metadata::place`]).
    pub place: String,
    /// Tries from other places are refused for so long from the start, and so is this one within the guard of a run before;
    /// `None` for neither. Never for a waiter.
    pub skew_guard: Option<Duration>,
    /// Everybody is refused for so long from the start, whatever becomes of the hold.
    pub at_least: Option<Duration>,
    /// At most one run within some time.
    pub once: Option<Once>,
    /// No earlier run refuses this one: an operator decided so. It is recorded like any other.
    pub anyway: bool,
}

/// One run within some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Once {
    /// Refused while the last recorded start is younger than this by the store's clock. Also while that is in the future.
    pub window: Duration,
    /// How many more runs may follow one that failed within the window.
    pub retry_failed: u32,
    /// Whether one may follow that began and was never heard of again.
    pub retry_crashed: bool,
}

impl RunPolicy {
    /// RunPolicy that no earlier run refuses, and whose record, once it is undone, keeps no later run waiting.
    pub const fn forgetting(place: String) -> Self {
        let once = Once { window: Duration::ZERO, retry_failed: 0, retry_crashed: false };
        Self { place, skew_guard: Some(Duration::ZERO), at_least: None, once: Some(once), anyway: true }
    }

    /// For how long what is recorded of a run with these run policy may matter.
    pub fn relevant(&self) -> Duration {
        let once = self.once.map(|once| once.window);
        [self.skew_guard, self.at_least, once].into_iter().flatten().max().unwrap_or_default()
    }

    /// Whether a start is to be recorded at all.
    pub const fn record_anything(&self) -> bool {
        self.skew_guard.is_some() || self.at_least.is_some() || self.once.is_some()
    }
}

/// What became of a recorded start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Nothing was heard of it since. It runs, or its runner crashed.
    Started,
    /// The command ended well.
    Ok,
    /// It did not.
    Failed,
    /// Nothing was started after all.
    Cancelled,
}

impl RunState {
    /// As stores keep it.
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
    /// What a newer dlock wrote may mean that it ran: that is the safe side.
    fn from(text: &str) -> Self {
        match text {
            "ok" => Self::Ok,
            "failed" => Self::Failed,
            "undone" => Self::Cancelled,
            _ => Self::Started,
        }
    }
}

/// A start that is kept from others for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cooldown {
    /// When, in ms by the store's clock.
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
    /// For how many ms it is kept from everybody; 0 for none.
    #[serde(rename = "l", default)]
    pub at_least_ms: u64,
    /// Who began it.
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// The hold that wrote it, as [`Token::hold_text`].
    #[serde(rename = "h", default, skip_serializing_if = "String::is_empty")]
    pub hold: String,
}

/// The last start of a run that was to be the only one for some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRun {
    /// When, in ms by the store's clock.
    #[serde(rename = "s")]
    pub at_ms: u64,
    /// The fence of the hold.
    #[serde(rename = "f")]
    pub fence: Fence,
    /// What became of it.
    #[serde(rename = "x")]
    pub stage: RunState,
    /// Attempt number within the window, starting at 1.
    #[serde(rename = "n")]
    pub tries: u32,
    /// The window of who began it, in ms: for so long it must be kept.
    #[serde(rename = "w")]
    pub window_ms: u64,
    /// Who began it.
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// The hold that wrote it, as [`Token::hold_text`].
    #[serde(rename = "h", default, skip_serializing_if = "String::is_empty")]
    pub hold: String,
}

/// All that a store keeps of the runs of a lock beyond their holds. Each part is replaced by runs that have the run policy only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// What skew guard and at-least go by.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub cooldown: Option<Cooldown>,
    /// What once goes by.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub start: Option<LastRun>,
}

/// Why a lock that is free is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// By which rule.
    pub rule: Rule,
    /// The fence of the run that it is about, where it is known.
    pub fence: Option<Fence>,
    /// How long ago that began; `None` if it can't be told.
    pub began: Option<Duration>,
    /// Whose it was.
    pub metadata: Option<Metadata>,
    /// After how long it is worth asking again; `None` if it can't be told.
    pub again_in: Option<Duration>,
}

/// A rule that keeps a free lock from being granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A run from another place began, with a skew guard of this length.
    SkewGuard(Duration),
    /// A run began that is to count for this length at least.
    AtLeast(Duration),
    /// A run began within the window, and this became of it.
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

/// In whole ms, as stores keep it.
pub fn whole_ms(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

impl Cooldown {
    /// Whether a length from its start is not over, and how long it has yet. A clock that was set back by more than the length
    /// keeps no run waiting for that.
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
    /// Whether an attempt of this hold wrote it, whose command was never started: a run tells how it ended.
    fn is_of(&self, hold: &str) -> bool {
        self.hold == hold && self.stage == RunState::Started
    }

    /// Whether `once` lets another run follow this one.
    pub fn lets(&self, once: &Once, now_ms: u64) -> bool {
        self.is_over(once, now_ms)
            || match self.stage {
                RunState::Started => once.retry_crashed,
                RunState::Ok => false,
                RunState::Failed => self.tries <= once.retry_failed,
                RunState::Cancelled => true,
            }
    }

    /// Whether it began before the window. What began in the future did not.
    fn is_over(&self, once: &Once, now_ms: u64) -> bool {
        now_ms.checked_sub(self.at_ms).is_some_and(|age| age >= whole_ms(once.window))
    }

    /// That another run may not follow.
    pub fn denial(&self, once: &Once, now_ms: u64) -> Denial {
        let over = self.at_ms.saturating_add(whole_ms(once.window));
        Denial {
            rule: Rule::Once(self.stage),
            fence: Some(self.fence),
            began: now_ms.checked_sub(self.at_ms).map(Duration::from_millis),
            metadata: self.metadata.clone(),
            again_in: Some(Duration::from_millis(over.saturating_sub(now_ms))),
        }
    }
}

impl RunRecord {
    /// Returns why a request with this token is refused now, although the lock is free; `now_ms` is by the store's clock.
    ///
    /// A request is never refused by its own record: an earlier attempt whose answer was lost wrote that, and its command was
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
        let before = self.start.as_ref().filter(|start| !start.is_of(&own) && !start.lets(&once, now_ms));
        before.map(|start| start.denial(&once, now_ms))
    }

    /// Returns what keeps the free lock from every host, or else from every other host, whatever they ask; `now_ms` as in
    /// [`RunRecord::judge`].
    pub fn keeps(&self, now_ms: u64) -> Option<Denial> {
        let cooldown = self.cooldown.as_ref()?;
        let rules = [(cooldown.at_least_ms, Rule::AtLeast as fn(Duration) -> Rule), (cooldown.guard_ms, Rule::SkewGuard)];
        rules.into_iter().find_map(|(ms, rule)| {
            let left = cooldown.within(ms, now_ms)?;
            Some(cooldown.denial(rule(Duration::from_millis(ms)), left, now_ms))
        })
    }

    /// Takes down the start of a hold that is granted now with these run policy.
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
                stage: RunState::Started,
                tries: before.saturating_add(1),
                window_ms: whole_ms(once.window),
                metadata: request.metadata.clone(),
                hold,
            });
        }
    }

    /// Takes down what became of the start with this fence. Whether that changed anything. What is undone keeps no run waiting,
    /// and is no try.
    pub fn end(&mut self, fence: Fence, stage: RunState) -> bool {
        let mut changed = false;
        if stage == RunState::Cancelled && self.cooldown.as_ref().is_some_and(|cooldown| cooldown.fence == fence) {
            self.cooldown = None;
            changed = true;
        }
        if let Some(start) = self.start.as_mut().filter(|start| start.fence == fence && start.stage == RunState::Started) {
            start.stage = stage;
            if stage == RunState::Cancelled {
                start.tries = start.tries.saturating_sub(1);
                // What was tried before had failed, or it could not have been tried again.
                start.stage = if start.tries > 0 { RunState::Failed } else { RunState::Cancelled };
            }
            changed = true;
        }
        changed
    }

    /// For how long from now it must be kept.
    pub fn relevant(&self, now_ms: u64) -> Duration {
        let cooldown = self.cooldown.as_ref().map(|cooldown| cooldown.at_ms.saturating_add(cooldown.guard_ms.max(cooldown.at_least_ms)));
        let start = self.start.as_ref().map(|start| start.at_ms.saturating_add(start.window_ms));
        Duration::from_millis(cooldown.max(start).unwrap_or_default().saturating_sub(now_ms))
    }
}

#[cfg(test)]
mod tests;
