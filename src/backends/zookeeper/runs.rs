//! The run records that earlier runs leave for later ones: at-least, skew guard, and once.
//!
//! They are one node next to the lock, written in the transaction that grants. The server's clock is what it writes into the nodes
//! that are made: a run began when its record was written, and it is now when a node is made for that. It is the leader's, so that
//! another leader's may go ahead or behind: what began in the future refuses once, and by more than its length nothing else.
//!
//! The worst interleavings:
//! - **The answer to a grant is lost:** the mark of the grant was made in the same transaction. Asked again, it is there, and no
//!   run is recorded anew.
//! - **A contender joins the queue between a look and the joining:** the joining can't tell. So a run is recorded by a contender that is known
//!   to be first, in a step of its own.
//! - **Another process takes and frees the lock between a try's look and its step**, which has no run to record: each grant writes the
//!   lock's own node, and the step is done only in the version that was read before all that it was judged by. Readers, which come
//!   together, don't: they look at the run records after they joined, and take their grant back if need be.
//! - **The session ends between being first and the grant:** that checks the contender's node, and records nothing then.
//! - **At-least delays a waiter:** it stays first, without a mark of its grant. So others see that the lock has no holder,
//!   and other libraries don't take it either.
//! - **A release is late:** it writes the outcome only into the record of its own fence, in the version that it has read.

use super::{
    failure::Asked,
    hold::{Hold, Seen, unexpected},
    names::Names,
    wire::{Answer, Ask, Code, Node, Reply},
};
use crate::{
    backends::queue::record::{read_runs, write_runs},
    lock::{Denial, Fence, Request, Result, RunPolicy, RunRecord, RunState, random},
};

/// The run records of a lock, as they were read.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    pub(super) record: RunRecord,
    /// Of the node; `None` if it isn't there.
    version: Option<i32>,
}

/// What a contender is judged by.
#[derive(Clone, Debug, Default)]
pub(super) struct Basis {
    pub(super) runs: Runs,
    /// The version of the lock's own node, which each grant writes, before that.
    pub(super) version: i32,
    /// The server's time in ms, if it was asked for.
    pub(super) now: Option<u64>,
}

/// A change of the run records, as a step of a transaction.
#[derive(Clone, Debug)]
pub(super) struct Change {
    path: String,
    /// `None` to remove the node.
    data: Option<Vec<u8>>,
    before: Option<i32>,
    /// The records after that.
    then: Runs,
}

impl Change {
    pub(super) fn step(&self) -> Ask<'_> {
        let path = &*self.path;
        match (&self.data, self.before) {
            (Some(data), None) => Ask::Create(path, data, Node::Persistent),
            (Some(data), Some(version)) => Ask::WriteSince(path, data, version),
            (None, version) => Ask::DeleteSince(path, version.unwrap_or_default()),
        }
    }

    /// The records once it is done; `None` if the time of that is not known.
    pub(super) fn done(self, at: Option<i64>) -> Option<Runs> {
        let mut runs = self.then;
        fill(&mut runs.record, at?);
        Some(runs)
    }
}

/// What is written can't name its own time.
fn fill(record: &mut RunRecord, written: i64) {
    let times = [record.cooldown.as_mut().map(|cooldown| &mut cooldown.at_ms), record.start.as_mut().map(|start| &mut start.at_ms)];
    for at_ms in times.into_iter().flatten().filter(|at_ms| **at_ms == 0) {
        *at_ms = u64::try_from(written).unwrap_or_default();
    }
}

/// Whether a run with this request is recorded.
pub(super) fn records(request: &Request) -> bool {
    request.run_policy.as_ref().is_some_and(RunPolicy::record_anything)
}

impl Runs {
    /// From the answer to reading [`Names::runs`].
    pub(super) fn read(answer: Option<Answer>) -> Result<Self> {
        match answer {
            Some(Ok(Reply::Data { data, stat })) => {
                let mut record = read_runs(&data)?;
                fill(&mut record, stat.mtime);
                Ok(Self { record, version: Some(stat.version) })
            }
            Some(Err(Code::NoNode)) => Ok(Self::default()),
            answer => Err(unexpected(answer)),
        }
    }

    /// Whether the time tells whether a request with these run policy is refused.
    fn matter_to(&self, run_policy: Option<&RunPolicy>) -> bool {
        let guarded = run_policy.is_some_and(|run_policy| run_policy.skew_guard.is_some());
        self.record.cooldown.as_ref().is_some_and(|cooldown| cooldown.at_least_ms > 0 || guarded && cooldown.guard_ms > 0)
            || self.record.start.is_some() && run_policy.is_some_and(|run_policy| run_policy.once.is_some())
    }

    fn change(&self, path: &str, record: RunRecord) -> Change {
        let data = (record != RunRecord::default()).then(|| write_runs(&record));
        let version = data.is_some().then(|| self.version.map_or(0, |version| version.wrapping_add(1)));
        Change { path: path.to_owned(), data, before: self.version, then: Self { record, version } }
    }

    /// What records the outcome of the run of the hold with this fence.
    pub(super) fn end(&self, names: &Names, fence: Fence, stage: RunState) -> Option<Change> {
        let mut record = self.record.clone();
        record.end(fence, stage).then(|| self.change(&names.runs(), record))
    }

    /// What removes the node at this path; `None` if it isn't there, or its records still count.
    pub(super) fn removal(&self, path: &str, now_ms: u64) -> Option<Change> {
        (self.version.is_some() && self.record.relevant(now_ms).is_zero()).then(|| self.change(path, RunRecord::default()))
    }
}

impl Basis {
    /// What records the run that follows.
    pub(super) fn begin(&self, names: &Names, request: &Request, fence: Fence) -> Option<Change> {
        let mut record = self.runs.record.clone();
        // Where the time was not asked for it makes no difference.
        record.begin(request, fence, self.now.unwrap_or_default());
        if let Some(cooldown) = record.cooldown.as_mut().filter(|cooldown| cooldown.fence == fence) {
            cooldown.at_ms = 0;
        }
        if let Some(start) = record.start.as_mut().filter(|start| start.fence == fence) {
            start.at_ms = 0;
        }
        (record != self.runs.record).then(|| self.runs.change(&names.runs(), record))
    }
}

/// A node that is made and dropped to learn the time.
pub(super) fn moment(folder: &str) -> String {
    format!("{folder}/%now-{:016x}", random())
}

/// What does that.
pub(super) fn ask_time(path: &str) -> [Ask<'_>; 2] {
    [Ask::Create(path, &[], Node::Ephemeral), Ask::Delete(path)]
}

/// The time in ms, by the answer to the first of these.
pub(super) fn time(answer: Option<&Answer>) -> Option<u64> {
    match answer {
        Some(Ok(Reply::Made { stat, .. })) => u64::try_from(stat.ctime).ok(),
        _ => None,
    }
}

impl Hold {
    /// The queue, what lies next to the lock, and what a contender is judged by; the time too where that is likely to matter.
    pub(super) async fn read_all(&mut self, request: &Request) -> Asked<Seen> {
        let Names { lock, meta, .. } = self.names.clone();
        let (runs, moment) = (self.names.runs(), moment(self.names.folder()));
        let mut asks = Vec::new();
        if self.place.is_none() {
            asks.push(Ask::Sync(&lock));
        }
        let synced = asks.len();
        asks.extend([Ask::Exists(&meta), Ask::Children(&lock), Ask::Children(&meta), Ask::Read(&runs)]);
        // A waiter asks for the time when its turn comes.
        let timed = request.run_policy.is_some() && !request.waiting;
        asks.extend(timed.then(|| ask_time(&moment)).into_iter().flatten());
        let mut answers = self.ask(&asks).await?.into_iter().skip(synced);
        let version = match answers.next() {
            Some(Ok(Reply::Stat(stat))) => stat.version,
            // As it will be when it is made.
            Some(Err(Code::NoNode)) => 0,
            answer => return Err(unexpected(answer).into()),
        };
        let seen = Seen::read(answers.by_ref().take(2).collect())?;
        let runs = Runs::read(answers.next())?;
        let now = time(answers.next().as_ref().filter(|_| timed));
        Ok(Seen { basis: Some(Basis { runs, version, now }), ..seen })
    }

    /// Why the run policy denies the lock to a contender that may have it.
    pub(super) async fn judge(&mut self, run_policy: Option<&RunPolicy>, basis: &mut Basis) -> Asked<Option<Box<Denial>>> {
        if !basis.runs.matter_to(run_policy) {
            return Ok(None);
        }
        if basis.now.is_none() {
            let moment = moment(self.names.folder());
            let made = self.ask(&ask_time(&moment)).await?.into_iter().next();
            basis.now = time(made.as_ref());
            if basis.now.is_none() {
                return Err(unexpected(made).into());
            }
        }
        Ok(basis.runs.record.judge(run_policy, &self.token, basis.now.unwrap_or_default()).map(Box::new))
    }

    /// What records the outcome of this hold's run, if it has one.
    pub(super) async fn ending(&mut self, stage: Option<RunState>) -> Asked<Option<Change>> {
        // The outcome of a nested hold is nothing to the run around it.
        let (Some(stage), Some(fence), true) = (stage, self.place.as_ref().map(|place| place.fence), self.root) else {
            return Ok(None);
        };
        // Only the first attempt uses what is known.
        let runs = if let Some(runs) = self.runs.take() {
            runs
        } else {
            let path = self.names.runs();
            Runs::read(self.ask(&[Ask::Read(&path)]).await?.pop())?
        };
        Ok(runs.end(&self.names, fence, stage))
    }
}
