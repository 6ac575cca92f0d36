//! The starts of runs in a row's columns, which [`RunRecord::judge`] reads.
//!
//! The statement that grants looks at the columns of the row that it takes, so that no other grant can come in between, also while it
//! waits for that row. It only knows when nothing can be in the way: then it grants. If not, the row is read and judged here, and
//! the statement is asked once more, for that row as it was read.

use crate::lock::{Cooldown, Fence, LastRun, Metadata, Request, RunRecord, RunState, whole_ms};

/// The longest time that columns can have: a hundred years, in ms.
const LONGEST: u64 = 100 * 366 * 24 * 3_600_000;

/// The columns, times in ms since 1970.
#[derive(Debug, Default)]
pub struct Columns {
    /// The start of the last run with a skew guard or at-least; `None` if there was none, or if it was cancelled.
    pub paced_at_ms: Option<i64>,
    /// See [`Cooldown`].
    pub paced_fence: Option<i64>,
    /// See [`Cooldown`].
    pub paced_place: Option<String>,
    /// See [`Cooldown`].
    pub guard_ms: Option<i64>,
    /// See [`Cooldown`].
    pub at_least_ms: Option<i64>,
    /// As JSON.
    pub paced_who: Option<String>,
    /// See [`Cooldown`].
    pub paced_hold: Option<String>,
    /// The start of the last run with once.
    pub start_at_ms: Option<i64>,
    /// See [`LastRun`].
    pub start_fence: Option<i64>,
    /// The outcome of that run. A cancelled run changes no other column.
    pub start_stage: Option<String>,
    /// See [`LastRun`].
    pub start_tries: Option<i64>,
    /// See [`LastRun`].
    pub start_window_ms: Option<i64>,
    /// As JSON.
    pub start_who: Option<String>,
    /// See [`LastRun`].
    pub start_hold: Option<String>,
}

impl From<Columns> for RunRecord {
    fn from(columns: Columns) -> Self {
        let number = |of: Option<i64>| of.and_then(|of| u64::try_from(of).ok());
        let who = |json: Option<String>| -> Option<Metadata> { serde_json::from_str(&json?).ok() };
        let stage = columns.start_stage.as_deref().map_or(RunState::Started, RunState::from);
        let cooldown = number(columns.paced_at_ms).map(|at_ms| Cooldown {
            at_ms,
            fence: Fence(number(columns.paced_fence).unwrap_or_default()),
            place: columns.paced_place.unwrap_or_default(),
            guard_ms: number(columns.guard_ms).unwrap_or_default(),
            at_least_ms: number(columns.at_least_ms).unwrap_or_default(),
            metadata: who(columns.paced_who),
            hold: columns.paced_hold.unwrap_or_default(),
        });
        let start = number(columns.start_at_ms).map(|at_ms| LastRun {
            at_ms,
            fence: Fence(number(columns.start_fence).unwrap_or_default()),
            state: if stage == RunState::Cancelled { RunState::Started } else { stage },
            tries: number(columns.start_tries).and_then(|tries| u32::try_from(tries).ok()).unwrap_or(1),
            window_ms: number(columns.start_window_ms).unwrap_or_default(),
            metadata: who(columns.start_who),
            hold: columns.start_hold.unwrap_or_default(),
        });
        let mut record = Self { cooldown, start };
        if let Some(fence) = record.start.as_ref().map(|start| start.fence).filter(|_| stage == RunState::Cancelled) {
            let cooldown = record.cooldown.take();
            record.end(fence, stage);
            record.cooldown = cooldown;
        }
        record
    }
}

impl From<&RunRecord> for Columns {
    fn from(record: &RunRecord) -> Self {
        let int = |number: u64| i64::try_from(number).ok();
        // Texts and numbers, which can always be written.
        let json = |metadata: &Option<Metadata>| serde_json::to_string(metadata.as_ref()?).ok();
        let (cooldown, start) = (record.cooldown.as_ref(), record.start.as_ref());
        Self {
            paced_at_ms: cooldown.and_then(|cooldown| int(cooldown.at_ms)),
            paced_fence: cooldown.and_then(|cooldown| int(cooldown.fence.0)),
            paced_place: cooldown.map(|cooldown| cooldown.place.clone()),
            guard_ms: cooldown.and_then(|cooldown| int(cooldown.guard_ms.min(LONGEST))),
            at_least_ms: cooldown.and_then(|cooldown| int(cooldown.at_least_ms.min(LONGEST))),
            paced_who: cooldown.and_then(|cooldown| json(&cooldown.metadata)),
            paced_hold: cooldown.map(|cooldown| cooldown.hold.clone()),
            start_at_ms: start.and_then(|start| int(start.at_ms)),
            start_fence: start.and_then(|start| int(start.fence.0)),
            start_stage: start.map(|start| start.state.as_str().to_owned()),
            start_tries: start.map(|start| i64::from(start.tries)),
            start_window_ms: start.and_then(|start| int(start.window_ms.min(LONGEST))),
            start_who: start.and_then(|start| json(&start.metadata)),
            start_hold: start.map(|start| start.hold.clone()),
        }
    }
}

/// The run policy that a grant checks against the columns, and the values that it writes.
#[derive(Debug, Default)]
pub struct Begin<'a> {
    /// [`RunPolicy::place`](crate::lock::RunPolicy::place).
    pub place: Option<&'a str>,
    /// The skew guard in ms.
    pub guard_ms: Option<i64>,
    /// At-least in ms.
    pub at_least_ms: Option<i64>,
    /// The window of once, in ms.
    pub window_ms: Option<i64>,
    /// The number of the attempt, starting at 1.
    pub tries: i64,
}

impl<'a> Begin<'a> {
    /// Of a request. What was recorded before counts if it was `judged` at this time; otherwise nothing of it matters any more.
    pub fn of(request: &'a Request, judged: Option<(&RunRecord, u64)>) -> Self {
        let Some(run_policy) = &request.run_policy else { return Self::default() };
        let ms = |length| i64::try_from(whole_ms(length).min(LONGEST)).unwrap_or(i64::MAX);
        let (mut record, now_ms) = judged.map(|(record, now_ms)| (record.clone(), now_ms)).unwrap_or_default();
        record.begin(request, Fence(0), now_ms);
        Self {
            place: Some(&run_policy.place),
            guard_ms: run_policy.skew_guard.map(ms),
            at_least_ms: run_policy.at_least.map(ms),
            window_ms: run_policy.once.map(|once| ms(once.window)),
            tries: record.start.map_or(1, |start| i64::from(start.tries)),
        }
    }

    /// Whether there is something for skew guard and at-least.
    pub const fn is_paced(&self) -> bool {
        self.guard_ms.is_some() || self.at_least_ms.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_start_is_read_as_the_state_before_it() {
        let columns = |tries, stage: &str| Columns {
            start_at_ms: Some(5),
            start_fence: Some(7),
            start_stage: Some(stage.into()),
            start_tries: Some(tries),
            start_window_ms: Some(9),
            paced_at_ms: Some(5),
            paced_fence: Some(7),
            ..Columns::default()
        };
        let read = |tries, stage| {
            let record = RunRecord::from(columns(tries, stage));
            assert!(record.cooldown.is_some());
            record.start.map(|start| (start.state, start.tries))
        };
        assert_eq!(read(2, "undone"), Some((RunState::Failed, 1)));
        assert_eq!(read(1, "undone"), Some((RunState::Cancelled, 0)));
        assert_eq!(read(2, "failed"), Some((RunState::Failed, 2)));
        assert_eq!(read(1, "words of a newer one"), Some((RunState::Started, 1)));
        assert_eq!(RunRecord::from(Columns::default()), RunRecord::default());
    }
}
