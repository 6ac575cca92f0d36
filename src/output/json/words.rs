//! Words for values that have another form in a store.

use serde::Serialize;

use crate::lock::{Mode, RunState};

/// A mode in a word.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(super) enum ModeWord {
    Exclusive,
    Shared,
    Permits,
}

impl From<Mode> for ModeWord {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared => Self::Shared,
            Mode::Permits(_) => Self::Permits,
        }
    }
}

/// The state of a run record, in the word that people read.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateWord(pub RunState);

impl Serialize for StateWord {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}
