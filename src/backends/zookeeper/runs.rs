//! The run records that earlier runs leave for later ones: at-least, skew guard, and once.
//!
//! The run records are one node next to the lock, written in the transaction that grants. The
//! server writes its clock into each new node. A run began when its record was written, and a node
//! made for that purpose tells the present time. The clock is the leader's, so another leader's may
//! be ahead or behind. A start in the future denies a once-run, and delays others by its length at
//! most.
//!
//! The worst interleavings:
//! - **The answer to a grant is lost:** the same transaction made the grant's mark. A repeated
//!   request finds the mark, and records no new run.
//! - **A contender joins the queue between a look and the joining:** the joining can't detect that.
//!   So only a contender that is known to be first records a run, in a separate step.
//! - **Another process takes and frees the lock between a look and its step**, which has no run to
//!   record. Each grant writes the lock's own node, and the step requires the version that was read
//!   before the judged data. Readers, which come together, don't: they read the run records after
//!   they joined, and take their grant back if need be.
//! - **The session ends between becoming first and the grant:** the grant checks the contender's
//!   node, and records nothing then.
//! - **At-least delays a waiter:** it stays first, without a grant's mark. So the lock shows no
//!   holder, and other libraries can't take it either.
//! - **A release is late:** it writes the outcome only into the record of its own fence, in the
//!   version that it read.

use super::{
    failure::unexpected,
    names::ZkNames,
    wire::{Code, NodeKind, Reply, WireReply, WireRequest},
};
use crate::{
    backends::queue::record::{read_runs, write_runs},
    lock::{Fence, Request, Result, RunPolicy, RunRecord, RunState, random},
};

/// The run records of a lock, as they were read.
#[derive(Clone, Debug, Default)]
pub(super) struct RunRecordNode {
    pub(super) record: RunRecord,
    /// The node's version; `None` if the node doesn't exist.
    version: Option<i32>,
}

/// The data that a contender is judged by.
#[derive(Clone, Debug, Default)]
pub(super) struct JudgementData {
    pub(super) runs: RunRecordNode,
    /// The version of the lock's own node, which each grant writes, from before the run records
    /// were read.
    pub(super) version: i32,
    /// The server's time in ms, if it was asked for.
    pub(super) now: Option<u64>,
}

/// A change of the run records, as a step of a transaction.
#[derive(Clone, Debug)]
pub(super) struct RunRecordChange {
    path: String,
    /// The new data; `None` removes the node.
    data: Option<Vec<u8>>,
    before: Option<i32>,
    /// The records after the change.
    then: RunRecordNode,
}

impl RunRecordChange {
    pub(super) fn step(&self) -> WireRequest<'_> {
        let path = &*self.path;
        match (&self.data, self.before) {
            (Some(data), None) => WireRequest::Create(path, data, NodeKind::Persistent),
            (Some(data), Some(version)) => WireRequest::WriteSince(path, data, version),
            (None, version) => WireRequest::DeleteSince(path, version.unwrap_or_default()),
        }
    }

    /// Returns the records after the change; `None` if its time is not known.
    pub(super) fn done(self, at: Option<i64>) -> Option<RunRecordNode> {
        let mut runs = self.then;
        fill(&mut runs.record, at?);
        Some(runs)
    }
}

/// Fills in the time of the write, which written data can't contain.
fn fill(record: &mut RunRecord, written: i64) {
    let times = [
        record.cooldown.as_mut().map(|cooldown| &mut cooldown.at_ms),
        record.start.as_mut().map(|start| &mut start.at_ms),
    ];
    for at_ms in times.into_iter().flatten().filter(|at_ms| **at_ms == 0) {
        *at_ms = u64::try_from(written).unwrap_or_default();
    }
}

/// Returns whether a run with this request is recorded.
pub(super) fn records(request: &Request) -> bool {
    request
        .run_policy
        .as_ref()
        .is_some_and(RunPolicy::record_anything)
}

impl RunRecordNode {
    /// Reads the records from the answer to reading [`ZkNames::runs`].
    pub(super) fn read(answer: Option<WireReply>) -> Result<Self> {
        match answer {
            Some(Ok(Reply::Data { data, stat })) => {
                let mut record = read_runs(&data)?;
                fill(&mut record, stat.mtime);
                Ok(Self {
                    record,
                    version: Some(stat.version),
                })
            }
            Some(Err(Code::NoNode)) => Ok(Self::default()),
            answer => Err(unexpected(answer)),
        }
    }

    /// Returns whether the time decides if a request with this run policy is denied.
    pub(super) fn matter_to(&self, run_policy: Option<&RunPolicy>) -> bool {
        let guarded = run_policy.is_some_and(|run_policy| run_policy.skew_guard.is_some());
        self.record
            .cooldown
            .as_ref()
            .is_some_and(|cooldown| cooldown.at_least_ms > 0 || guarded && cooldown.guard_ms > 0)
            || self.record.start.is_some()
                && run_policy.is_some_and(|run_policy| run_policy.once.is_some())
    }

    fn change(&self, path: &str, record: RunRecord) -> RunRecordChange {
        let data = (record != RunRecord::default()).then(|| write_runs(&record));
        let version = data
            .is_some()
            .then(|| self.version.map_or(0, |version| version.wrapping_add(1)));
        RunRecordChange {
            path: path.to_owned(),
            data,
            before: self.version,
            then: Self { record, version },
        }
    }

    /// Returns the change that records the outcome of the run of the hold with this fence.
    pub(super) fn end(
        &self,
        names: &ZkNames,
        fence: Fence,
        state: RunState,
    ) -> Option<RunRecordChange> {
        let mut record = self.record.clone();
        record
            .end(fence, state)
            .then(|| self.change(&names.runs(), record))
    }

    /// Returns the change that removes the node at this path; `None` if it doesn't exist, or its
    /// records still count.
    pub(super) fn removal(&self, path: &str, now_ms: u64) -> Option<RunRecordChange> {
        (self.version.is_some() && self.record.relevant(now_ms).is_zero())
            .then(|| self.change(path, RunRecord::default()))
    }
}

impl JudgementData {
    /// Returns the change that records the next run.
    pub(super) fn begin(
        &self,
        names: &ZkNames,
        request: &Request,
        fence: Fence,
    ) -> Option<RunRecordChange> {
        let mut record = self.runs.record.clone();
        // If the time was not asked for, it makes no difference.
        record.begin(request, fence, self.now.unwrap_or_default());
        if let Some(cooldown) = record
            .cooldown
            .as_mut()
            .filter(|cooldown| cooldown.fence == fence)
        {
            cooldown.at_ms = 0;
        }
        if let Some(start) = record.start.as_mut().filter(|start| start.fence == fence) {
            start.at_ms = 0;
        }
        (record != self.runs.record).then(|| self.runs.change(&names.runs(), record))
    }
}

/// Returns the path of a node that is made and removed to learn the time.
pub(super) fn moment(folder: &str) -> String {
    format!("{folder}/%now-{:016x}", random())
}

/// Returns the requests that make and remove it.
pub(super) fn ask_time(path: &str) -> [WireRequest<'_>; 2] {
    [
        WireRequest::Create(path, &[], NodeKind::Ephemeral),
        WireRequest::Delete(path),
    ]
}

/// Returns the time in ms, from the answer to the first of these requests.
pub(super) fn time(answer: Option<&WireReply>) -> Option<u64> {
    match answer {
        Some(Ok(Reply::Created { stat, .. })) => u64::try_from(stat.ctime).ok(),
        _ => None,
    }
}
