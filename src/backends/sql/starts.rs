//! The run record in a row's columns, which [`RunRecord::judge`] reads.
//!
//! The statement that grants checks the columns of the row that it takes, so that no other grant
//! can come in between, even while the statement waits for that row. The statement grants only if
//! no record can deny the grant, and if it replaces no start that may still matter. Otherwise dlock
//! reads and judges the row, and repeats the statement for the row as it was read.
//!
//! The step that records an outcome changes only the state, or removes the time of a cooldown that
//! is cancelled. What follows from that for the replaced records is decided when the columns are
//! read, by [`RunRecord::end`].

use super::Fields;
use crate::lock::{
    Cooldown, Fence, LastRun, Metadata, Replaced, Request, Result, RunRecord, RunState, whole_ms,
};

/// The longest time that columns can have: a hundred years, in ms.
const LONGEST: u64 = 100 * 366 * 24 * 3_600_000;

/// The value of a run record's column.
pub enum RunColumn {
    /// A time in ms since 1970.
    Time(Option<i64>),
    /// A number.
    Int(Option<i64>),
    /// A text that is compared by its bytes.
    Bytes(Option<String>),
    /// A text.
    Text(Option<String>),
    /// Metadata, as JSON.
    Json(Option<String>),
}

/// Returns the columns of a run record, in their order.
pub fn columns(record: &RunRecord) -> [(&'static str, RunColumn); 16] {
    // Texts and numbers, which can always be written.
    let json = |metadata: &Option<Metadata>| serde_json::to_string(metadata.as_ref()?).ok();
    let int = |number: u64| i64::try_from(number).ok();
    let (cooldown, start) = (record.cooldown.as_ref(), record.start.as_ref());
    [
        (
            "paced_at",
            RunColumn::Time(cooldown.and_then(|cooldown| int(cooldown.at_ms))),
        ),
        (
            "paced_fence",
            RunColumn::Int(cooldown.and_then(|cooldown| int(cooldown.fence.0))),
        ),
        (
            "paced_place",
            RunColumn::Bytes(cooldown.map(|cooldown| cooldown.place.clone())),
        ),
        (
            "guard_ms",
            RunColumn::Int(cooldown.and_then(|cooldown| int(cooldown.guard_ms.min(LONGEST)))),
        ),
        (
            "at_least_ms",
            RunColumn::Int(cooldown.and_then(|cooldown| int(cooldown.at_least_ms.min(LONGEST)))),
        ),
        (
            "paced_who",
            RunColumn::Json(cooldown.and_then(|cooldown| json(&cooldown.metadata))),
        ),
        (
            "paced_hold",
            RunColumn::Text(cooldown.map(|cooldown| cooldown.hold.clone())),
        ),
        (
            "start_at",
            RunColumn::Time(start.and_then(|start| int(start.at_ms))),
        ),
        (
            "start_fence",
            RunColumn::Int(start.and_then(|start| int(start.fence.0))),
        ),
        (
            "start_stage",
            RunColumn::Text(start.map(|start| start.state.as_str().to_owned())),
        ),
        (
            "start_tries",
            RunColumn::Int(start.and_then(|start| int(start.tries.into()))),
        ),
        (
            "start_window_ms",
            RunColumn::Int(start.and_then(|start| int(start.window_ms.min(LONGEST)))),
        ),
        (
            "start_who",
            RunColumn::Json(start.and_then(|start| json(&start.metadata))),
        ),
        (
            "start_hold",
            RunColumn::Text(start.map(|start| start.hold.clone())),
        ),
        ("paced_replaced", RunColumn::Json(replaced_cooldown(record))),
        ("start_replaced", RunColumn::Json(replaced_start(record))),
    ]
}

/// Returns the cooldown that was replaced, as JSON.
fn replaced_cooldown(record: &RunRecord) -> Option<String> {
    // Texts and numbers, which can always be written.
    serde_json::to_string(record.replaced.cooldown.as_ref()?).ok()
}

/// Returns the start that was replaced, and the last success before it, as JSON.
fn replaced_start(record: &RunRecord) -> Option<String> {
    let replaced = Replaced {
        cooldown: None,
        ..record.replaced.clone()
    };
    if replaced.is_empty() {
        None
    } else {
        serde_json::to_string(&replaced).ok()
    }
}

impl Fields<'_> {
    /// Reads a run record, from its [`columns`], as it is after the outcome in them.
    pub fn run_record(&mut self) -> Result<RunRecord> {
        let at_ms = self.unsigned()?;
        let cooldown = Cooldown {
            at_ms: at_ms.unwrap_or_default(),
            fence: Fence(self.unsigned()?.unwrap_or_default()),
            place: self.text_or_null()?.unwrap_or_default(),
            guard_ms: self.unsigned()?.unwrap_or_default(),
            at_least_ms: self.unsigned()?.unwrap_or_default(),
            metadata: self.json()?,
            hold: self.text_or_null()?.unwrap_or_default(),
        };
        let cooldown = at_ms.map(|_| cooldown);
        let at_ms = self.unsigned()?;
        let start = LastRun {
            at_ms: at_ms.unwrap_or_default(),
            fence: Fence(self.unsigned()?.unwrap_or_default()),
            state: self
                .text_or_null()?
                .as_deref()
                .map_or(RunState::Started, RunState::from),
            tries: self
                .unsigned()?
                .and_then(|tries| u32::try_from(tries).ok())
                .unwrap_or(1),
            window_ms: self.unsigned()?.unwrap_or_default(),
            metadata: self.json()?,
            hold: self.text_or_null()?.unwrap_or_default(),
        };
        let start = at_ms.map(|_| start);
        let replaced_cooldown = self.json::<Box<Cooldown>>()?;
        let replaced = self.json::<Replaced>()?.unwrap_or_default();
        let Some(LastRun { fence, state, .. }) = start else {
            return Ok(RunRecord {
                start,
                ..of_cooldown(cooldown, replaced_cooldown)
            });
        };
        // A cancelled start says nothing about the cooldown, whose time does.
        let mut ended = RunRecord {
            start: start.map(|start| LastRun {
                state: RunState::Started,
                ..start
            }),
            replaced,
            cooldown: None,
        };
        if state != RunState::Started {
            ended.end(fence, state);
        }
        let RunRecord {
            cooldown,
            replaced:
                Replaced {
                    cooldown: replaced_cooldown,
                    ..
                },
            ..
        } = of_cooldown(cooldown, replaced_cooldown);
        let replaced = Replaced {
            cooldown: replaced_cooldown,
            ..ended.replaced
        };
        Ok(RunRecord {
            cooldown,
            start: ended.start,
            replaced,
        })
    }
}

/// Returns a record with a cooldown only. Without its time, the cooldown was cancelled, and the one
/// before counts again.
fn of_cooldown(cooldown: Option<Cooldown>, replaced: Option<Box<Cooldown>>) -> RunRecord {
    match cooldown {
        Some(_) => RunRecord {
            cooldown,
            replaced: Replaced {
                cooldown: replaced,
                ..Replaced::default()
            },
            ..RunRecord::default()
        },
        None => RunRecord {
            cooldown: replaced.map(|cooldown| *cooldown),
            ..RunRecord::default()
        },
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
    /// Returns the run policy of a request, if no earlier run record counts.
    pub fn of(request: &'a Request) -> Self {
        let Some(run_policy) = &request.run_policy else {
            return Self::default();
        };
        let ms = |length| i64::try_from(whole_ms(length).min(LONGEST)).unwrap_or(i64::MAX);
        let mut record = RunRecord::default();
        record.begin(request, Fence(0), 0);
        Self {
            place: Some(&run_policy.place),
            guard_ms: run_policy.skew_guard.map(ms),
            at_least_ms: run_policy.at_least.map(ms),
            window_ms: run_policy.once.map(|once| ms(once.window)),
            tries: record.start.map_or(1, |start| i64::from(start.tries)),
        }
    }

    /// Whether the request has a skew guard or an at-least time.
    pub const fn is_paced(&self) -> bool {
        self.guard_ms.is_some() || self.at_least_ms.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backends::sql::Row,
        lock::{Error, Kind},
    };

    #[test]
    fn what_was_undone_is_read_as_it_was_before() {
        let record = |values: [Option<&str>; 16]| {
            let values = values
                .map(|value| value.map(|text| text.as_bytes().to_vec()))
                .to_vec();
            Fields::of(&Row {
                values,
                unreadable: || Error::new(Kind::Data, "unreadable"),
            })
            .run_record()
            .unwrap()
        };
        let [n, at, fence, window] = [None, Some("5"), Some("7"), Some("9")];
        let read = |stage, replaced| {
            let record = record([
                at,
                fence,
                n,
                n,
                n,
                n,
                n,
                at,
                fence,
                Some(stage),
                Some("2"),
                window,
                n,
                n,
                n,
                replaced,
            ]);
            assert!(record.cooldown.is_some());
            record.start.map(|start| (start.fence.0, start.state))
        };
        let replaced = r#"{"o":{"s":1,"f":3,"x":"failed","n":1,"w":9},"k":{"s":1,"f":2,"x":"ok","n":1,"w":9}}"#;
        assert_eq!(read("undone", n), None);
        assert_eq!(read("undone", Some(replaced)), Some((3, RunState::Failed)));
        assert_eq!(read("failed", n), Some((7, RunState::Failed)));
        assert_eq!(
            read("failed", Some(replaced)),
            Some((2, RunState::Ok)),
            "a success before it stands"
        );
        assert_eq!(read("unknown", Some(replaced)), Some((2, RunState::Ok)));
        assert_eq!(read("ok", Some(replaced)), Some((7, RunState::Ok)));
        assert_eq!(
            read("words of a newer one", n),
            Some((7, RunState::Started))
        );
        let cooldown = r#"{"s":1,"f":3,"p":"a","g":5}"#;
        let undone = record([
            n,
            fence,
            n,
            n,
            n,
            n,
            n,
            n,
            n,
            n,
            n,
            n,
            n,
            n,
            Some(cooldown),
            n,
        ]);
        assert_eq!(
            undone.cooldown.map(|cooldown| cooldown.fence),
            Some(Fence(3)),
            "a cancelled cooldown is as it was before"
        );
        assert_eq!(record([None; 16]), RunRecord::default());
    }
}
