//! Writes proofs that a waiter lives, and removes a waiter that writes none.
//!
//! A session lasts as long as the lease that its holder wants, so the node of a killed waiter would
//! block the others for that long. So each waiter writes a node every few seconds, and reads the
//! preceding waiter's node in the same batch. The leader's clock tells how long ago that one was
//! written, compared with the own write. Far back in a long queue the proofs are rarer, because
//! each is a write on all servers: a proof says when the next one comes.
//!
//! The worst interleavings:
//! - **The waiter is granted the lock meanwhile:** its removal makes a grant's mark and drops the
//!   mark again, in one transaction, which fails if a mark exists. The grant checks the contender's
//!   node, which is gone after a removal.
//! - **The waiter lives after all** (it was stopped, or cut off): it learns that its node is gone,
//!   and joins the queue anew.
//! - **Another leader's clock is ahead:** a waiter that lives may be removed, and joins the queue
//!   anew.
//! - **The waiter is another library's:** its node is not dlock's, and stays.
#![allow(
    clippy::disallowed_methods,
    reason = "a waiter keeps the time of its own proofs"
)]

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::{
    ZooKeeper,
    contender::ContenderNode,
    failure::{Fault, ZkResult},
    hold::{LockListing, Place, Waits, ZkHold},
    names::guid,
    runs::{ask_time, moment, time},
    wire::{Code, NodeKind, Reply, WireReply, WireRequest},
};
use crate::{
    backends::queue::record::ContenderInfo,
    lock::{Attempt, Busy, Mode, Request, Result, Wake},
};

/// How often a waiter proves that it lives.
const BEAT: Duration = Duration::from_millis(1500);
/// The number of waiters ahead for each further [`BEAT`] between two proofs.
const STEP: u32 = 40;
/// The longest time between two proofs, in beats.
const MOST_BEATS: u32 = 5;
/// How long a server may take to confirm a proof before another server is asked.
const ANSWER: Duration = Duration::from_secs(1);
/// How late a proof may be, by the leader's clock, before its waiter is dead.
const LATE: Duration = Duration::from_millis(2500);
/// How many times a queue position is only checked before the whole queue is read again.
const CHECKS: u32 = 5;

impl ZooKeeper {
    pub(super) async fn await_change(
        &mut self,
        request: &Request,
        at_most: Duration,
    ) -> Result<Wake> {
        let until = Instant::now() + at_most;
        let hold = self
            .holds
            .iter_mut()
            .find(|hold| hold.is(&request.key, &request.token));
        let Some(hold) = hold.filter(|hold| hold.blocker.is_some()) else {
            // No watch tells when a lock that is busy only in passing becomes free.
            self.prove_if_due(request).await;
            sleep_until(until.min(Instant::now() + Duration::from_millis(10))).await;
            return Ok(Wake::TimedOut);
        };
        loop {
            let due = *hold.waits.due.get_or_insert_with(|| Instant::now() + BEAT);
            let Some((_, watch)) = &mut hold.blocker else {
                return Ok(Wake::Changed);
            };
            tokio::select! {
                biased;
                () = watch => {
                    hold.blocker = None;
                    return Ok(Wake::Changed);
                }
                () = sleep_until(until) => return Ok(Wake::TimedOut),
                () = sleep_until(due) => {}
            }
            // A waiter that is late itself, on a busy host, does not judge others. Without an
            // answer, another server is asked at once.
            let on_time = due + ANSWER > Instant::now();
            match timeout(ANSWER, hold.prove_life(on_time.then_some(request))).await {
                Ok(Ok(false)) | Err(_) => {}
                // The next request reports the state of the session, or of the queue.
                Ok(Ok(true) | Err(Fault::Expired)) => {
                    (hold.blocker, hold.waits.busy) = (None, None);
                    return Ok(Wake::Changed);
                }
                Ok(Err(Fault::Error(error))) => return Err(error),
            }
        }
    }
}

impl ZooKeeper {
    /// Makes a waiter prove that it lives, if it was woken and has not asked since.
    async fn prove_if_due(&mut self, request: &Request) {
        let hold = self
            .holds
            .iter_mut()
            .find(|hold| hold.is(&request.key, &request.token) && !hold.granted);
        if let Some(hold) =
            hold.filter(|hold| hold.waits.due.is_some_and(|due| due <= Instant::now()))
        {
            // The next request reports the outcome.
            if !matches!(timeout(ANSWER, hold.prove_life(None)).await, Ok(Ok(_))) {
                hold.waits.due = Some(Instant::now() + BEAT);
            }
        }
    }
}

impl ZkHold {
    /// Notes a waiter's answer, and the preceding waiter, as of this look.
    pub(super) fn note_waiting(&mut self, seen: &LockListing, attempt: &Attempt) {
        if let Attempt::Busy(busy) = attempt {
            let before = self.blocker.as_ref().map(|(path, _)| path.as_str());
            let ahead = seen
                .contenders
                .iter()
                .position(|one| Some(self.names.contender(&one.name).as_str()) == before);
            let ahead = ahead
                .filter(|at| seen.queue.waits(*at))
                .map(|at| seen.contenders[at].clone());
            // A contender that has just moved behind a waiter checks that waiter at once.
            let new = ahead.is_some()
                && self.waits.ahead.as_ref().map(|one| &one.name)
                    != ahead.as_ref().map(|one| &one.name);
            let due = match self.waits.due {
                _ if new => Instant::now(),
                Some(due) => due.min(Instant::now() + interval(busy.position)),
                None => Instant::now() + BEAT,
            };
            self.waits = Waits {
                made: self.waits.made,
                due: Some(due),
                ahead,
                busy: Some(busy.clone()),
                checks: 0,
            };
        }
    }

    /// Returns the answer for a queue position without reading the whole queue; `None` if something
    /// may have changed.
    pub(super) async fn still_waits(&mut self) -> ZkResult<Option<Busy>> {
        let (
            Some((before, _)),
            Some(Place {
                path, contender, ..
            }),
        ) = (&self.blocker, &self.place)
        else {
            return Ok(None);
        };
        // The order of the permits does not follow from the contenders alone.
        if matches!(contender.mode, Mode::Permits(_)) {
            return Ok(None);
        }
        let Some(busy) = self
            .waits
            .busy
            .clone()
            .filter(|busy| busy.position != Some(1) && self.waits.checks < CHECKS)
        else {
            return Ok(None);
        };
        let (before, path) = (before.clone(), path.clone());
        self.waits.checks += 1;
        let answers = self
            .ask(&[WireRequest::Exists(&path), WireRequest::Exists(&before)])
            .await?;
        Ok(answers
            .iter()
            .all(|answer| matches!(answer, Ok(Reply::Stat(_))))
            .then_some(busy))
    }

    /// Writes the node that proves that this waiter lives. A waiter that is on time also judges the
    /// preceding waiter, and removes a dead one that may be in the way. Returns whether it did.
    pub(super) async fn prove_life(&mut self, judging: Option<&Request>) -> ZkResult<bool> {
        let own = self.names.wait(&guid(&self.token));
        let interval = interval(self.waits.busy.as_ref().and_then(|busy| busy.position));
        let proof = interval.as_millis().to_string();
        let prove = if self.waits.made {
            WireRequest::Write(&own, proof.as_bytes())
        } else {
            WireRequest::Create(&own, proof.as_bytes(), NodeKind::Ephemeral)
        };
        let ahead = self.waits.ahead.clone().filter(|_| judging.is_some());
        let paths = ahead.as_ref().and_then(|ahead| self.paths_of(ahead));
        let asks = [prove]
            .into_iter()
            .chain(paths.iter().flat_map(Paths::asks))
            .collect::<Vec<_>>();
        let mut answers = self.ask(&asks).await?.into_iter();
        self.waits.due = Some(Instant::now() + BEAT);
        let now = match answers.next() {
            Some(Ok(Reply::Created { stat, .. } | Reply::Stat(stat))) => {
                self.waits.made = true;
                self.waits.due = Some(Instant::now() + interval);
                stat.mtime
            }
            // The create's answer was lost, or the node is another session's.
            Some(Err(code)) => {
                self.waits.made = code == Code::NodeExists;
                return Ok(false);
            }
            _ => return Ok(false),
        };
        let (Some(ahead), Some(paths), Some(request)) = (ahead, paths, judging) else {
            return Ok(false);
        };
        if !is_gone(answers.next(), answers.next().as_ref(), now)
            || self.read_all(request).await?.queue.is_held_alone()
        {
            return Ok(false);
        }
        self.remove_waiter(&ahead, &paths).await
    }

    /// Removes the first waiter in the queue if it is dead, for a request that does not wait.
    /// Returns whether it did.
    pub(super) async fn remove_gone(&mut self, seen: &LockListing) -> ZkResult<bool> {
        let first = seen
            .queue
            .waiters()
            .find(|at| seen.queue.waits(*at))
            .map(|at| &seen.contenders[at]);
        let Some(first) = first else { return Ok(false) };
        let Some(paths) = self.paths_of(first) else {
            return Ok(false);
        };
        let moment = moment(self.names.folder());
        let asks = [paths.asks().as_slice(), &ask_time(&moment)].concat();
        let mut answers = self.ask(&asks).await?.into_iter();
        let (node, proof) = (answers.next(), answers.next());
        let Some(now) = time(answers.next().as_ref()).and_then(|now| i64::try_from(now).ok())
        else {
            return Ok(false);
        };
        Ok(is_gone(node, proof.as_ref(), now) && self.remove_waiter(first, &paths).await?)
    }

    fn paths_of(&self, one: &ContenderNode) -> Option<Paths> {
        let guid = one.guid()?;
        Some(Paths {
            node: self.names.contender(&one.name),
            wait: self.names.wait(guid),
            mark: self.names.mark(guid),
        })
    }

    /// Removes a waiter, unless it was granted the lock.
    async fn remove_waiter(&mut self, one: &ContenderNode, paths: &Paths) -> ZkResult<bool> {
        let second_node = one
            .second_node
            .as_ref()
            .map(|second_node| self.names.contender(second_node));
        let mut steps = vec![
            WireRequest::Create(&paths.mark, &[], NodeKind::Persistent),
            WireRequest::Delete(&paths.mark),
            WireRequest::Delete(&paths.node),
        ];
        steps.extend(second_node.iter().map(|path| WireRequest::Delete(path)));
        let answer = self.ask(&[WireRequest::All(steps)]).await?.pop();
        // The removal was done, or the waiter left by itself.
        let gone = matches!(
            answer,
            Some(Ok(Reply::AllDone { .. }
                | Reply::RolledBack {
                    code: Code::NoNode,
                    ..
                }))
        );
        if !gone {
            // The waiter was granted the lock, or this user may not remove it.
            self.waits.ahead = None;
        }
        Ok(gone)
    }
}

/// The nodes of a waiter.
struct Paths {
    node: String,
    wait: String,
    mark: String,
}

impl Paths {
    /// Returns the reads that tell whether the waiter is dead.
    fn asks(&self) -> [WireRequest<'_>; 2] {
        [WireRequest::Read(&self.node), WireRequest::Read(&self.wait)]
    }
}

/// Returns the time until the next proof of a waiter in this position, as of its last look.
fn interval(position: Option<u32>) -> Duration {
    BEAT * (position.unwrap_or_default() / STEP).clamp(1, MOST_BEATS)
}

/// Returns the time until the next proof, as the last proof has it in ms.
fn announced(proof: &[u8]) -> Duration {
    let time = std::str::from_utf8(proof)
        .ok()
        .and_then(|text| text.parse().ok())
        .map_or(BEAT, Duration::from_millis);
    time.clamp(BEAT, BEAT * MOST_BEATS)
}

/// Returns whether a waiter gave no proof for too long, by its node and its proof node.
fn is_gone(node: Option<WireReply>, proof: Option<&WireReply>, now: i64) -> bool {
    let Some(Ok(Reply::Data { data, stat })) = node else {
        return false;
    };
    let (last, next) = match proof {
        Some(Ok(Reply::Data { data, stat: proof })) => {
            (proof.mtime.max(stat.ctime), announced(data))
        }
        // The waiter has not waited for long.
        Some(Err(Code::NoNode)) => (stat.ctime, announced(&[])),
        _ => return false,
    };
    let silent = u64::try_from(now.saturating_sub(last)).unwrap_or_default();
    matches!(ContenderInfo::read(&data), Ok(Some(_))) && Duration::from_millis(silent) > next + LATE
}
