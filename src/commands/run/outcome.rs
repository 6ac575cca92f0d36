//! The verdict on a run that was granted its locks: one table decides its result, its history entry
//! and its run record.
//!
//! A run counts from the moment its command is executed. What the command did by itself before
//! dlock's first TERM stands, whatever came later. What it did after that TERM is not known to be
//! its work: many commands end with 0 when they are told to stop.

#[cfg(test)]
mod model;

use crate::{
    exit,
    lock::{End, RunState},
    output::{CommandEnd, RunResult},
};

/// What became of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was never executed.
    NotExecuted,
    /// It ended before dlock's first signal to stop it.
    Ended(CommandEnd),
    /// It ended after that signal.
    Stopped(CommandEnd),
    /// dlock did not see its end.
    Unseen,
}

/// What disturbed the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// Nothing.
    None,
    /// The maximum runtime was over.
    TimedOut,
    /// An operator broke the hold.
    Broken,
    /// The lock was lost, or dlock could not be sure of it.
    Lost,
}

/// What is reported of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// For the status file and `--json`.
    pub result: RunResult,
    /// dlock's exit status.
    pub status: u8,
    /// For the history.
    pub end: End,
    /// For the run record.
    pub state: RunState,
}

/// Returns the verdict. `not_executed` is the status that says why the command was not executed.
pub(super) fn outcome(fate: Fate, disturbance: Disturbance, not_executed: u8) -> Outcome {
    let state = match fate {
        Fate::NotExecuted => RunState::Cancelled,
        Fate::Ended(CommandEnd::Exited(0)) => RunState::Ok,
        Fate::Stopped(CommandEnd::Exited(0)) | Fate::Unseen => RunState::Unknown,
        Fate::Stopped(_) if disturbance == Disturbance::Lost => RunState::Unknown,
        Fate::Ended(_) | Fate::Stopped(_) => RunState::Failed,
    };
    let (result, status, end) = match (disturbance, fate) {
        (_, Fate::NotExecuted) => (RunResult::Error, not_executed, End::NotStarted),
        (Disturbance::Lost, _) => (RunResult::Lost, exit::LOST, End::Lost),
        (Disturbance::Broken, _) => (RunResult::Broken, exit::LOST, End::Broken),
        (Disturbance::TimedOut, _) => (
            RunResult::TimedOut,
            exit::TIMED_OUT,
            End::Exited(exit::TIMED_OUT),
        ),
        (Disturbance::None, Fate::Ended(end) | Fate::Stopped(end)) => match end {
            CommandEnd::Exited(status) => (RunResult::Ok, status, End::Exited(status)),
            CommandEnd::Signalled(signal) => (
                RunResult::Ok,
                exit::signalled(signal),
                End::Signalled(signal),
            ),
        },
        (Disturbance::None, Fate::Unseen) => (RunResult::Ok, exit::LOST, End::Released),
    };
    Outcome {
        result,
        status,
        end,
        state,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ends() -> impl Strategy<Value = CommandEnd> {
        prop_oneof![
            3 => Just(CommandEnd::Exited(0)),
            2 => any::<u8>().prop_map(CommandEnd::Exited),
            1 => (1..=31).prop_map(CommandEnd::Signalled),
        ]
    }

    fn fates() -> impl Strategy<Value = Fate> {
        prop_oneof![
            Just(Fate::NotExecuted),
            Just(Fate::Unseen),
            ends().prop_map(Fate::Ended),
            ends().prop_map(Fate::Stopped)
        ]
    }

    const DISTURBANCES: [Disturbance; 4] = [
        Disturbance::None,
        Disturbance::TimedOut,
        Disturbance::Broken,
        Disturbance::Lost,
    ];

    proptest! {
        #[test]
        fn status_history_and_record_agree(fate in fates(), at in 0..4_usize, not_executed in 1..=127_u8) {
            let disturbance = DISTURBANCES[at];
            let Outcome { result, status, end, state } = outcome(fate, disturbance, not_executed);
            let finished = |end| matches!(fate, Fate::Ended(ended) if ended == end);
            // A lost or broken run is never a success for its caller.
            if matches!(disturbance, Disturbance::Lost | Disturbance::Broken) {
                prop_assert!(status != 0 && result != RunResult::Ok && end.is_bad());
            }
            // Only a command that ended with 0 by itself did its work, and that is never recorded
            // as a failure.
            prop_assert_eq!(state == RunState::Ok, finished(CommandEnd::Exited(0)));
            prop_assert_eq!(state == RunState::Cancelled, fate == Fate::NotExecuted);
            prop_assert!(state != RunState::Started);
            if let Fate::Ended(CommandEnd::Exited(1..) | CommandEnd::Signalled(_)) = fate {
                prop_assert_eq!(state, RunState::Failed);
            }
            if disturbance == Disturbance::Lost {
                prop_assert!(!matches!(fate, Fate::Stopped(_) | Fate::Unseen) || state == RunState::Unknown);
            }
            if fate == Fate::NotExecuted {
                prop_assert_eq!((status, end), (not_executed, End::NotStarted));
            }
        }
    }

    #[test]
    fn each_row_of_the_table() {
        use {
            CommandEnd::{Exited, Signalled},
            Disturbance as D,
            Fate::{Ended, NotExecuted, Stopped, Unseen},
            RunState::{Cancelled, Failed, Ok, Unknown},
        };
        let rows = [
            (Ended(Exited(0)), D::None, 0, Ok),
            (Ended(Exited(0)), D::Lost, 76, Ok),
            (Ended(Exited(0)), D::Broken, 76, Ok),
            (Ended(Exited(0)), D::TimedOut, 124, Ok),
            (Ended(Exited(3)), D::None, 3, Failed),
            (Ended(Exited(3)), D::Lost, 76, Failed),
            (Ended(Signalled(9)), D::None, 137, Failed),
            (Stopped(Exited(0)), D::None, 0, Unknown),
            (Stopped(Exited(0)), D::Lost, 76, Unknown),
            (Stopped(Exited(0)), D::Broken, 76, Unknown),
            (Stopped(Exited(0)), D::TimedOut, 124, Unknown),
            (Stopped(Exited(3)), D::None, 3, Failed),
            (Stopped(Exited(3)), D::Lost, 76, Unknown),
            (Stopped(Signalled(15)), D::TimedOut, 124, Failed),
            (Stopped(Signalled(15)), D::Broken, 76, Failed),
            (Stopped(Signalled(9)), D::Lost, 76, Unknown),
            (Unseen, D::None, 76, Unknown),
            (Unseen, D::Lost, 76, Unknown),
            (NotExecuted, D::None, 126, Cancelled),
            (NotExecuted, D::Lost, 126, Cancelled),
        ];
        for (fate, disturbance, status, state) in rows {
            let found = outcome(fate, disturbance, 126);
            assert_eq!(
                (found.status, found.state),
                (status, state),
                "{fate:?} {disturbance:?}"
            );
        }
    }
}
