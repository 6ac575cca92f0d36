//! Proofs that a waiter lives, and the removal of one that gives none.
//!
//! A session lasts as long as the lease that its holder wants, so that the node of a waiter that was killed would keep the others waiting
//! for all of that. So each waiter writes a node of its own every few seconds, and looks at that of the waiter before it in the same go.
//! The leader's clock tells how long ago that was written: by the time of the own write.
//!
//! The worst interleavings:
//! - **The waiter is granted the lock meanwhile:** its removal makes the mark of a grant and drops it again, in one transaction, which
//!   fails where the mark is. The grant checks the contender's node, which is gone after a removal.
//! - **The waiter lives after all** (it was stopped, or cut off): it is told that its node is gone, and joins the line anew.
//! - **Another leader's clock is ahead:** a waiter that lives may be removed, and joins the line anew.
//! - **The waiter is another library's:** its node is not dlock's, and stays.
#![allow(clippy::disallowed_methods, reason = "a waiter keeps the time of its own proofs")]

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::{
    ZooKeeper,
    contender::ContenderNode,
    failure::{Asked, Fault},
    hold::{Hold, Place, Seen},
    names::guid,
    runs::{ask_time, moment, time},
    wire::{Answer, Ask, Code, Node, Reply},
};
use crate::{
    backends::queue::record::Said,
    lock::{Attempt, Busy, Mode, Request, Result, Wake},
};

/// How often a waiter proves that it lives.
const BEAT: Duration = Duration::from_millis(1500);
/// How long a server may take to confirm that before another one is asked.
const ANSWER: Duration = Duration::from_secs(1);
/// A waiter is gone that gave no proof for so long, in ms of the leader's clock.
const GONE_MS: i64 = 4000;
/// So many times a place in the line is only checked before all of the line is read again.
const CHECKS: u32 = 5;

/// What one that waits knows of its waiting.
#[derive(Default)]
pub(super) struct Waits {
    /// Its own node was made.
    made: bool,
    /// When the next proof is due.
    due: Option<Instant>,
    /// The waiter before it.
    ahead: Option<ContenderNode>,
    /// What it was told last.
    busy: Option<Busy>,
    /// How often its place was only checked since then.
    checks: u32,
}

impl ZooKeeper {
    pub(super) async fn await_turn(&mut self, request: &Request, at_most: Duration) -> Result<Wake> {
        let until = Instant::now() + at_most;
        let hold = self.holds.iter_mut().find(|hold| hold.is(&request.key, &request.token));
        let Some(hold) = hold.filter(|hold| hold.blocker.is_some()) else {
            // No watch tells when a lock that is busy only in passing is free.
            self.prove_if_due(request).await;
            sleep_until(until.min(Instant::now() + Duration::from_millis(10))).await;
            return Ok(Wake::TimedOut);
        };
        loop {
            let due = *hold.waits.due.get_or_insert_with(|| Instant::now() + BEAT);
            let Some((_, watch)) = &mut hold.blocker else { return Ok(Wake::Changed) };
            tokio::select! {
                biased;
                () = watch => {
                    hold.blocker = None;
                    return Ok(Wake::Changed);
                }
                () = sleep_until(until) => return Ok(Wake::TimedOut),
                () = sleep_until(due) => {}
            }
            // One that is late itself, on a busy host, does not judge others. Without an answer, another server is asked at once.
            let on_time = due + ANSWER > Instant::now();
            match timeout(ANSWER, hold.prove_life(on_time.then_some(request))).await {
                Ok(Ok(false)) => hold.waits.due = Some(Instant::now() + BEAT),
                Err(_) => {}
                // The next question tells what became of the session, or of the line.
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
    /// Has one that was woken, and has not asked since, prove that it lives.
    async fn prove_if_due(&mut self, request: &Request) {
        let hold = self.holds.iter_mut().find(|hold| hold.is(&request.key, &request.token) && !hold.granted);
        if let Some(hold) = hold.filter(|hold| hold.waits.due.is_some_and(|due| due <= Instant::now())) {
            // What becomes of that, the next question tells.
            let _ = timeout(ANSWER, hold.prove_life(None)).await;
            hold.waits.due = Some(Instant::now() + BEAT);
        }
    }
}

impl Hold {
    /// Notes what one that waits is told, and the waiter before it, by what was seen.
    pub(super) fn note_waiting(&mut self, seen: &Seen, attempt: &Attempt) {
        if let Attempt::Busy(busy) = attempt {
            let before = self.blocker.as_ref().map(|(path, _)| path.as_str());
            let ahead = seen.line.iter().position(|one| Some(self.names.contender(&one.name).as_str()) == before);
            let ahead = ahead.filter(|at| seen.queue.waits(*at)).map(|at| seen.line[at].clone());
            // One that has come to stand behind a waiter looks at it at once.
            let new = ahead.is_some() && self.waits.ahead.as_ref().map(|one| &one.name) != ahead.as_ref().map(|one| &one.name);
            let due = if new { Instant::now() } else { self.waits.due.unwrap_or_else(|| Instant::now() + BEAT) };
            self.waits = Waits { made: self.waits.made, due: Some(due), ahead, busy: Some(busy.clone()), checks: 0 };
        }
    }

    /// What a place in the line answers without reading all of it; `None` if something may have happened.
    pub(super) async fn still_waits(&mut self) -> Asked<Option<Busy>> {
        let (Some((before, _)), Some(Place { path, contender, .. })) = (&self.blocker, &self.place) else { return Ok(None) };
        // Whose turn it is for a permit does not follow from the contenders alone.
        if matches!(contender.mode, Mode::Permits(_)) {
            return Ok(None);
        }
        let Some(busy) = self.waits.busy.clone().filter(|busy| busy.position != Some(1) && self.waits.checks < CHECKS) else {
            return Ok(None);
        };
        let (before, path) = (before.clone(), path.clone());
        self.waits.checks += 1;
        let answers = self.ask(&[Ask::Exists(&path), Ask::Exists(&before)]).await?;
        Ok(answers.iter().all(|answer| matches!(answer, Ok(Reply::Stat(_)))).then_some(busy))
    }

    /// Writes the node that says that this waiter lives. One that is on time judges the waiter before it, which is removed if it is gone
    /// and may be in the way; whether it was.
    pub(super) async fn prove_life(&mut self, judging: Option<&Request>) -> Asked<bool> {
        let own = self.names.wait(&guid(&self.token));
        let prove = if self.waits.made { Ask::Write(&own, &[]) } else { Ask::Create(&own, &[], Node::Ephemeral) };
        let ahead = self.waits.ahead.clone().filter(|_| judging.is_some());
        let paths = ahead.as_ref().and_then(|ahead| self.paths_of(ahead));
        let asks = [prove].into_iter().chain(paths.iter().flat_map(Paths::asks)).collect::<Vec<_>>();
        let mut answers = self.ask(&asks).await?.into_iter();
        let now = match answers.next() {
            Some(Ok(Reply::Made { stat, .. } | Reply::Stat(stat))) => {
                self.waits.made = true;
                stat.mtime
            }
            // Its answer was lost, or it is another session's.
            Some(Err(code)) => {
                self.waits.made = code == Code::NodeExists;
                return Ok(false);
            }
            _ => return Ok(false),
        };
        let (Some(ahead), Some(paths), Some(request)) = (ahead, paths, judging) else { return Ok(false) };
        if !is_gone(answers.next(), answers.next().as_ref(), now) || self.read_all(request).await?.queue.is_held_alone() {
            return Ok(false);
        }
        self.remove_waiter(&ahead, &paths).await
    }

    /// Removes the first waiter in the line if it is gone, for one that does not wait itself; whether it was.
    pub(super) async fn remove_gone(&mut self, seen: &Seen) -> Asked<bool> {
        let first = seen.queue.waiters().find(|at| seen.queue.waits(*at)).map(|at| &seen.line[at]);
        let Some(first) = first else { return Ok(false) };
        let Some(paths) = self.paths_of(first) else { return Ok(false) };
        let moment = moment(self.names.folder());
        let asks = [paths.asks().as_slice(), &ask_time(&moment)].concat();
        let mut answers = self.ask(&asks).await?.into_iter();
        let (node, proof) = (answers.next(), answers.next());
        let Some(now) = time(answers.next().as_ref()).and_then(|now| i64::try_from(now).ok()) else { return Ok(false) };
        Ok(is_gone(node, proof.as_ref(), now) && self.remove_waiter(first, &paths).await?)
    }

    fn paths_of(&self, one: &ContenderNode) -> Option<Paths> {
        let guid = one.guid()?;
        Some(Paths { node: self.names.contender(&one.name), wait: self.names.wait(guid), mark: self.names.mark(guid) })
    }

    /// Removes a waiter, unless it was granted the lock.
    async fn remove_waiter(&mut self, one: &ContenderNode, paths: &Paths) -> Asked<bool> {
        let twin = one.twin.as_ref().map(|twin| self.names.contender(twin));
        let mut steps = vec![Ask::Create(&paths.mark, &[], Node::Persistent), Ask::Delete(&paths.mark), Ask::Delete(&paths.node)];
        steps.extend(twin.iter().map(|path| Ask::Delete(path)));
        let answer = self.ask(&[Ask::All(steps)]).await?.pop();
        // Done, or it has gone by itself.
        let gone = matches!(answer, Some(Ok(Reply::AllDone { .. } | Reply::RolledBack { code: Code::NoNode, .. })));
        if !gone {
            // It was granted the lock, or is not this user's to remove.
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
    /// What tells whether it is gone.
    fn asks(&self) -> [Ask<'_>; 2] {
        [Ask::Read(&self.node), Ask::Exists(&self.wait)]
    }
}

/// Whether a waiter gave no proof for long, by its node and that of its proofs.
fn is_gone(node: Option<Answer>, proof: Option<&Answer>, now: i64) -> bool {
    let Some(Ok(Reply::Data { data, stat })) = node else { return false };
    let last = match proof {
        Some(Ok(Reply::Stat(proof))) => proof.mtime.max(stat.ctime),
        // It has not waited for long.
        Some(Err(Code::NoNode)) => stat.ctime,
        _ => return false,
    };
    matches!(Said::read(&data), Ok(Some(_))) && now - last > GONE_MS
}
