//! The run record: what a lock's store keeps of earlier runs, and how it judges later ones.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Denial, Once, Rule, RunPolicy, RunState, whole_ms};
use crate::lock::{Fence, Metadata, Request, Token};

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
///
/// A run counts from the moment its command is executed. The record is written before that, in the
/// granting step, so the record keeps what it replaces: a run that executes nothing puts it back. A
/// record that no rule can need any more is not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The record for skew guard and at-least.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub cooldown: Option<Cooldown>,
    /// The record for once.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub start: Option<LastRun>,
    /// What the last run replaced, until its outcome is recorded.
    #[serde(rename = "b", default, skip_serializing_if = "Replaced::is_empty")]
    pub replaced: Replaced,
}

/// What a run replaced in the run record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    /// The cooldown that was replaced.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub cooldown: Option<Box<Cooldown>>,
    /// The start that was replaced.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Box<LastRun>>,
    /// The last success before the start in the record. A later run does not take it back, whatever
    /// becomes of that run.
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    pub success: Option<Box<LastRun>>,
}

impl Replaced {
    /// Whether nothing was replaced.
    pub const fn is_empty(&self) -> bool {
        self.cooldown.is_none() && self.start.is_none() && self.success.is_none()
    }
}

impl Cooldown {
    /// Whether a rule may still need the record, as far as its own run policy says.
    fn matters(&self, now_ms: u64) -> bool {
        now_ms
            < self
                .at_ms
                .saturating_add(self.guard_ms.max(self.at_least_ms))
    }

    /// Returns the rest of a length from the start, unless it is over. A clock that was set back by
    /// more than the length delays no run.
    pub fn within(&self, length_ms: u64, now_ms: u64) -> Option<Duration> {
        let over = self.at_ms.saturating_add(length_ms);
        (now_ms.abs_diff(self.at_ms) < length_ms && now_ms < over)
            .then(|| Duration::from_millis(over - now_ms))
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
    /// Whether an attempt of this hold wrote the record without starting its command: a run reports
    /// its outcome.
    fn is_of(&self, hold: &str) -> bool {
        self.hold == hold && self.state == RunState::Started
    }

    /// Whether a rule may still need the record, as far as its own run policy says.
    fn matters(&self, now_ms: u64) -> bool {
        now_ms < self.at_ms.saturating_add(self.window_ms)
    }

    /// Whether `once` lets another run follow this one.
    pub fn allows(&self, once: &Once, now_ms: u64) -> bool {
        self.is_over(once, now_ms)
            || match self.state {
                RunState::Started | RunState::Unknown => once.retry_crashed,
                RunState::Ok => false,
                RunState::Failed => self.tries <= once.retry_failed,
                RunState::Cancelled => true,
            }
    }

    /// Whether the run began before the window. A start in the future did not.
    fn is_over(&self, once: &Once, now_ms: u64) -> bool {
        now_ms
            .checked_sub(self.at_ms)
            .is_some_and(|age| age >= whole_ms(once.window))
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
    /// Returns why a request with this token is denied although the lock is free; `now_ms` is by
    /// the store's clock.
    ///
    /// A request's own record never denies it: an earlier attempt with a lost answer wrote the
    /// record, and its command was never started.
    pub fn judge(
        &self,
        run_policy: Option<&RunPolicy>,
        token: &Token,
        now_ms: u64,
    ) -> Option<Denial> {
        if run_policy.is_some_and(|run_policy| run_policy.anyway) {
            return None;
        }
        let own = token.hold_text();
        if let Some(cooldown) = self
            .cooldown
            .as_ref()
            .filter(|cooldown| cooldown.hold != own)
        {
            if let Some(left) = cooldown.within(cooldown.at_least_ms, now_ms) {
                return Some(cooldown.denial(
                    Rule::AtLeast(Duration::from_millis(cooldown.at_least_ms)),
                    left,
                    now_ms,
                ));
            }
            let guarded = run_policy.is_some_and(|run_policy| {
                run_policy.skew_guard.is_some() && run_policy.place != cooldown.place
            });
            if let Some(left) = cooldown
                .within(cooldown.guard_ms, now_ms)
                .filter(|_| guarded)
            {
                return Some(cooldown.denial(
                    Rule::SkewGuard(Duration::from_millis(cooldown.guard_ms)),
                    left,
                    now_ms,
                ));
            }
        }
        let once = run_policy?.once?;
        let start = self.start.as_ref().filter(|start| !start.is_of(&own));
        let success = start.and(self.replaced.success.as_deref());
        let denying = [start, success]
            .into_iter()
            .flatten()
            .find(|start| !start.allows(&once, now_ms));
        denying.map(|start| start.denial(&once, now_ms))
    }

    /// Returns the denial that holds for every host, or for every other host, whatever the request;
    /// `now_ms` as in [`RunRecord::judge`].
    pub fn current_denial(&self, now_ms: u64) -> Option<Denial> {
        let cooldown = self.cooldown.as_ref()?;
        let rules = [
            (cooldown.at_least_ms, Rule::AtLeast as fn(Duration) -> Rule),
            (cooldown.guard_ms, Rule::SkewGuard),
        ];
        rules.into_iter().find_map(|(ms, rule)| {
            let left = cooldown.within(ms, now_ms)?;
            Some(cooldown.denial(rule(Duration::from_millis(ms)), left, now_ms))
        })
    }

    /// Records the start of a hold that is granted now with this run policy.
    pub fn begin(&mut self, request: &Request, fence: Fence, now_ms: u64) {
        let Some(run_policy) = &request.run_policy else {
            return;
        };
        let hold = request.token.hold_text();
        if run_policy.skew_guard.is_some() || run_policy.at_least.is_some() {
            let repeated = self
                .cooldown
                .as_ref()
                .is_some_and(|before| before.hold == hold);
            if let Some(before) = self.cooldown.take().filter(|_| !repeated) {
                self.replaced.cooldown = Some(Box::new(before))
                    .filter(|before| before.matters(now_ms) && !run_policy.forgets());
            }
            self.cooldown = Some(Cooldown {
                at_ms: now_ms,
                fence,
                place: run_policy.place.clone(),
                guard_ms: run_policy.skew_guard.map_or(0, whole_ms),
                at_least_ms: run_policy.at_least.map_or(0, whole_ms),
                metadata: request.metadata.clone(),
                hold: hold.clone(),
            });
        }
        if let Some(once) = &run_policy.once {
            let tries = self
                .start
                .as_ref()
                .filter(|start| !run_policy.anyway && !start.is_over(once, now_ms));
            let tries = tries.map_or(0, |start| {
                start.tries.saturating_sub(u32::from(start.is_of(&hold)))
            });
            if let Some(before) = self.start.take().filter(|before| !before.is_of(&hold)) {
                self.replace(before, run_policy.forgets(), now_ms);
            }
            self.start = Some(LastRun {
                at_ms: now_ms,
                fence,
                state: RunState::Started,
                tries: tries.saturating_add(1),
                window_ms: whole_ms(once.window),
                metadata: request.metadata.clone(),
                hold,
            });
        }
    }

    /// Keeps a start that is being replaced, and the last success, as long as they may matter.
    fn replace(&mut self, before: LastRun, forgets: bool, now_ms: u64) {
        let matters = |start: &LastRun| start.matters(now_ms) && !forgets;
        let success = if before.state == RunState::Ok {
            Some(Box::new(before.clone()))
        } else {
            self.replaced.success.take()
        };
        self.replaced.success = success.filter(|start| matters(start));
        self.replaced.start = Some(before).filter(matters).map(Box::new);
    }

    /// Records the outcome of the start with this fence. Returns whether the record changed. A
    /// cancelled start executed nothing: the record is again as it was before the start. A start
    /// that did not succeed does not take back an earlier success.
    pub fn end(&mut self, fence: Fence, state: RunState) -> bool {
        let mut changed = false;
        if self
            .cooldown
            .as_ref()
            .is_some_and(|cooldown| cooldown.fence == fence)
        {
            let before = self.replaced.cooldown.take();
            changed = before.is_some() || state == RunState::Cancelled;
            if state == RunState::Cancelled {
                self.cooldown = before.map(|before| *before);
            }
        }
        let Some(start) = self
            .start
            .as_mut()
            .filter(|start| start.fence == fence && start.state == RunState::Started)
        else {
            return changed;
        };
        let (before, success) = (self.replaced.start.take(), self.replaced.success.take());
        match state {
            RunState::Started => (self.replaced.start, self.replaced.success) = (before, success),
            RunState::Cancelled => {
                // An earlier success is still needed next to a start without a success.
                self.replaced.success = success.filter(|_| {
                    before
                        .as_ref()
                        .is_some_and(|before| before.state != RunState::Ok)
                });
                self.start = before.map(|before| *before);
            }
            RunState::Ok => start.state = state,
            RunState::Failed | RunState::Unknown => match success {
                Some(success) => *start = *success,
                None => start.state = state,
            },
        }
        true
    }

    /// Returns how long from now the record must be kept.
    pub fn relevant(&self, now_ms: u64) -> Duration {
        let cooldowns = self
            .cooldown
            .iter()
            .chain(self.replaced.cooldown.as_deref());
        let starts = self
            .start
            .iter()
            .chain(self.replaced.start.as_deref())
            .chain(self.replaced.success.as_deref());
        let ends = cooldowns
            .map(|cooldown| {
                cooldown
                    .at_ms
                    .saturating_add(cooldown.guard_ms.max(cooldown.at_least_ms))
            })
            .chain(starts.map(|start| start.at_ms.saturating_add(start.window_ms)));
        Duration::from_millis(ends.max().unwrap_or_default().saturating_sub(now_ms))
    }
}
