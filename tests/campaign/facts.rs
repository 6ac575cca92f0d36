//! Everything known about a round after its end: the sections' records, the kernel's locks, the
//! runs, the faults and the store's answers.

use std::{collections::HashMap, path::Path};

use serde_json::Value;

use crate::{
    plan::{FaultKind, Route, Step},
    section::log_of,
    support::stores::Can,
};

/// The offset of nested run numbers: a nested run has this plus the number of the run around it.
pub const INNER: u64 = 1 << 16;

/// One `dlock run`, as the campaign saw it from outside. Times are nanoseconds of `CLOCK_BOOTTIME`.
#[derive(Clone, Debug)]
pub struct Run {
    pub id: u64,
    pub step: Step,
    pub route: Route,
    pub spawned: u64,
    pub ended: u64,
    pub code: i32,
    /// A signal ended dlock itself.
    pub signalled: bool,
    /// Its status file.
    pub verdict: Value,
    pub stderr: String,
}

/// One critical section, from its own records and the kernel's locks.
#[derive(Clone, Debug, Default)]
pub struct Section {
    pub run: u64,
    pub began: u64,
    /// When the section's own process ended, and its exit status.
    pub ended: Option<(u64, i32)>,
    /// The fence of each key.
    pub fences: Vec<(usize, u64)>,
    pub permit: Option<u64>,
    /// The sections alive when this one began: key and run.
    pub alive: Vec<(usize, u64)>,
    /// When any process of the section was last seen alive.
    pub last_seen: u64,
}

/// A fault that was injected.
#[derive(Clone, Debug)]
pub struct InjectedFault {
    pub fault: FaultKind,
    pub from: u64,
    pub until: u64,
    /// The run that the fault hit, if it hit a single run.
    pub run: Option<u64>,
}

/// What the store reports about a key after the round.
#[derive(Clone, Debug, Default)]
pub struct KeyEnd {
    pub key: usize,
    /// `dlock history --json`.
    pub history: Value,
    /// `dlock inspect --json`, once the lock was free or long after it should have been.
    pub state: Value,
}

#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Whether the plan has no faults.
    pub calm: bool,
    /// Whether all runs asked for a place in a fair queue, well apart in time.
    pub fifo: bool,
    pub can: Can,
    pub ttl: u64,
    /// How many times slower this machine is than an idle one.
    pub slow: u64,
    pub runs: Vec<Run>,
    pub sections: Vec<Section>,
    pub injected: Vec<InjectedFault>,
    pub keys: Vec<KeyEnd>,
    /// Processes, sessions and files that are left over.
    pub left: Vec<String>,
    /// Runs that did not end.
    pub hung: Vec<String>,
}

impl Facts {
    pub fn run(&self, id: u64) -> Option<&Run> {
        self.runs.iter().find(|run| run.id == outermost(id))
    }

    /// Returns the section of the run itself, not one of a nested run.
    pub fn section(&self, run: u64) -> Option<&Section> {
        self.sections.iter().find(|section| section.run == run)
    }
}

/// Returns the number of the outermost run around this run, or of the run itself.
pub fn outermost(run: u64) -> u64 {
    run % INNER
}

/// Reads the sections' records.
pub fn sections(folder: &Path, last_seen: &HashMap<u64, u64>) -> Vec<Section> {
    let text = std::fs::read_to_string(log_of(folder)).unwrap_or_default();
    let mut sections: Vec<Section> = Vec::new();
    for line in text.lines() {
        let line: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let (run, time) = (number(&line["run"]), number(&line["t"]));
        match line["at"].as_str() {
            Some("begin") => {
                sections.push(Section {
                    run,
                    began: time,
                    ended: None,
                    fences: pairs(&line["fences"]),
                    permit: line["permit"].as_u64(),
                    alive: pairs(&line["alive"]),
                    last_seen: last_seen.get(&run).copied().unwrap_or_default().max(time),
                });
            }
            Some("end") => {
                let code = line["code"]
                    .as_i64()
                    .and_then(|code| i32::try_from(code).ok())
                    .unwrap_or(-1);
                if let Some(section) = sections.iter_mut().find(|section| section.run == run) {
                    section.ended = Some((time, code));
                    section.last_seen = section.last_seen.max(time);
                }
            }
            _ => {}
        }
    }
    sections
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

fn pairs(value: &Value) -> Vec<(usize, u64)> {
    let pair = |pair: &Value| {
        (
            usize::try_from(number(&pair[0])).unwrap_or(usize::MAX),
            number(&pair[1]),
        )
    };
    value.as_array().into_iter().flatten().map(pair).collect()
}
