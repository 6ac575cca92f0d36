//! Reads the queue with the run records, and judges a contender by them.

use super::{
    failure::{ZkResult, unexpected},
    hold::{LockListing, ZkHold},
    names::ZkNames,
    runs::{JudgementData, RunRecordNode, ask_time, moment, time},
    wire::{Code, Reply, WireRequest},
};
use crate::lock::{Denial, Request, RunPolicy};

impl ZkHold {
    /// Reads the queue, the nodes next to the lock, and the data that a contender is judged by.
    /// Reads the time if it is likely to matter.
    pub(super) async fn read_all(&mut self, request: &Request) -> ZkResult<LockListing> {
        let ZkNames { lock, meta, .. } = self.names.clone();
        let (runs, moment) = (self.names.runs(), moment(self.names.folder()));
        let mut asks = Vec::new();
        if self.place.is_none() {
            asks.push(WireRequest::Sync(&lock));
        }
        let synced = asks.len();
        asks.extend([
            WireRequest::Exists(&meta),
            WireRequest::Children(&lock),
            WireRequest::Children(&meta),
            WireRequest::Read(&runs),
        ]);
        // A waiter asks for the time once it is first.
        let timed = request.run_policy.is_some() && !request.waiting;
        asks.extend(timed.then(|| ask_time(&moment)).into_iter().flatten());
        let mut answers = self.ask(&asks).await?.into_iter().skip(synced);
        let version = match answers.next() {
            Some(Ok(Reply::Stat(stat))) => stat.version,
            // The version that the node will have after its creation.
            Some(Err(Code::NoNode)) => 0,
            answer => return Err(unexpected(answer).into()),
        };
        let seen = LockListing::read(answers.by_ref().take(2).collect())?;
        let runs = RunRecordNode::read(answers.next())?;
        let now = time(answers.next().as_ref().filter(|_| timed));
        Ok(LockListing {
            basis: Some(JudgementData { runs, version, now }),
            ..seen
        })
    }

    /// Returns why the run policy denies the lock to a contender that no other contender blocks.
    pub(super) async fn judge(
        &mut self,
        run_policy: Option<&RunPolicy>,
        basis: &mut JudgementData,
    ) -> ZkResult<Option<Box<Denial>>> {
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
        Ok(basis
            .runs
            .record
            .judge(run_policy, &self.token, basis.now.unwrap_or_default())
            .map(Box::new))
    }
}
