//! Taking a lock: both phases, and undoing what did not come to a majority.

use std::{cmp::Reverse, time::Duration};

use ::redis::Value;

use super::{
    CAPABILITIES, Failures, Redlock, flag, most_common,
    nodes::{NodeAnswers, majority},
    release_keys, script, script_reply,
    view::{MajorityView, NodeLock},
};
use crate::{
    backends::redis::{failure, history::to_json, reply, starts},
    lock::{
        Attempt, Busy, Cooldown, Denial, Effect, Entry, Error, Fence, Grant, Kind, LastRun, Mode, Notice, Request, Result, RunRecord,
        RunState, random,
    },
};

/// What the nodes answered to phase 1.
#[derive(Default)]
pub(super) struct Votes {
    /// The nodes that were taken, and their counts.
    counted: Vec<(usize, u64)>,
    /// Those that the owner has already, committed: attempt, fence, and holds.
    entered: Vec<(String, u64, u32)>,
    not_held: usize,
    /// Nodes where the owner to enter only reads.
    otherwise: usize,
    /// What each node that another owner has says of it; `None` for those that did not answer.
    pub(super) seen: Vec<Option<NodeLock>>,
    places: Vec<i64>,
    /// Nodes that refuse it for the start of another run.
    refused: usize,
    /// What each node that was taken, or refuses, knows of starts, and its time in ms.
    pub(super) starts: Vec<(RunRecord, u64)>,
    /// Nodes that turned out to be others under another name.
    twins: Vec<usize>,
    failures: Failures,
}

impl Redlock {
    pub(super) async fn take(&mut self, request: &Request) -> Result<Attempt> {
        CAPABILITIES.check(request)?;
        // Never sent twice: what an attempt counted is worth something only for the nodes that it took itself.
        let mut attempt = format!("{:016x}", random());
        let bound = self.options.bound(Some(request.ttl.get()), 4);
        let mut votes = self.first_phase(request, &attempt, bound, false).await?;
        let needed = self.nodes.majority();
        let denial = judge(&votes.starts, self.nodes.len(), request).filter(|_| votes.refused > 0);
        if votes.refused > 0 && denial.is_none() && votes.counted.len() < needed {
            // Nodes refuse it that missed what a majority knows.
            attempt = format!("{:016x}", random());
            votes = self.first_phase(request, &attempt, bound, true).await?;
        }
        if let Some(((_, fence), count)) = most_common(votes.entered.iter().map(|(attempt, fence, _)| (attempt, *fence)))
            && count >= needed
        {
            let holds = votes.entered.iter().map(|(_, _, holds)| *holds).max().unwrap_or(1);
            self.note_granted(request, count);
            return Ok(granted(request, fence, holds));
        }
        if request.entry == Entry::Reenter {
            if votes.otherwise >= needed {
                return Err(Mode::Shared.not_enough().effect(Effect::NotApplied));
            }
            if votes.not_held > self.nodes.len() - needed {
                return Ok(Attempt::NotHeld);
            }
            return Err(self.nodes.too_few(votes.entered.len(), votes.failures).effect(Effect::Unknown));
        }
        if denial.is_none()
            && votes.counted.len() >= needed
            && let Some(fence) = fence_of(&votes.counted)
        {
            return self.second_phase(request, &attempt, bound, votes, fence).await;
        }
        if !votes.entered.is_empty() && votes.entered.len() + votes.failures.len() >= needed {
            // It may be held already, by an answer that was lost: nothing to undo yet.
            return Err(self.nodes.too_few(votes.entered.len(), votes.failures).effect(Effect::Unknown));
        }
        let may_have = |(_, error): &(usize, Error)| error.effect != Effect::NotApplied;
        let undone = if votes.counted.is_empty() && votes.entered.is_empty() && !votes.failures.iter().any(may_have) {
            true
        } else {
            self.undo(request, bound).await
        };
        if let Some(denial) = denial {
            // What a node without an answer may have of this attempt was never committed, and ends by itself.
            return Ok(Attempt::Denied(Box::new(denial)));
        }
        self.refused(votes, undone)
    }

    async fn first_phase(&mut self, request: &Request, attempt: &str, bound: Duration, judged: bool) -> Result<Votes> {
        let names = self.names(&request.key)?;
        let was_queued = self.is_queued(request);
        if request.waiting && !was_queued {
            self.queued.push((request.key.clone(), request.token));
        }
        self.leases.retain(|(token, _)| *token != request.token);
        self.leases.push((request.token, request.ttl));
        let metadata = request.metadata.as_ref().map(to_json).transpose()?.unwrap_or_default();
        let arguments = vec![
            request.token.owner.to_string(),
            request.token.hold_text(),
            attempt.to_owned(),
            request.ttl.as_millis().to_string(),
            flag(request.entry == Entry::Reenter),
            flag(request.waiting),
            flag(was_queued),
            flag(request.detached),
            metadata,
        ];
        let reads = flag(request.mode == Mode::Shared);
        let arguments = [arguments, starts::arguments(request.run_policy.as_ref()).into(), vec![reads, flag(judged)]].concat();
        let waiting = [names.queue, names.waiters];
        let keys = [vec![names.lock, names.fence, names.record], waiting.into(), vec![names.runs, names.bad_runs, names.starts]];
        let keys = [keys.concat(), vec![names.shares, names.ends, names.line]].concat();
        let answers = self.ask(bound, &script::TAKE, keys, |_| Some(arguments.clone())).await;
        let votes = Votes::count(answers);
        for node in &votes.twins {
            let text = format!("{} is the same server as another of the nodes, or copies it, and doesn't count", self.nodes.name(*node));
            self.notice(true, text, Some("`dlock inspect` says which; name independent servers".into()));
        }
        for (node, error) in votes.failures.iter().filter(|(node, _)| !votes.twins.contains(node)) {
            let notice = Notice {
                warning: !error.is_transient() || error.message.contains("replica"),
                text: format!("{}: {}", self.nodes.name(*node), error.message),
                hint: error.hint.clone(),
            };
            if !self.notices.contains(&notice) {
                self.notices.push(notice);
            }
        }
        Ok(votes)
    }

    async fn second_phase(&mut self, request: &Request, attempt: &str, bound: Duration, votes: Votes, fence: u64) -> Result<Attempt> {
        let names = self.names(&request.key)?;
        let owner = request.token.owner.to_string();
        let run_policy = starts::arguments(request.run_policy.as_ref());
        let place = [request.token.hold_text(), flag(self.is_queued(request))];
        // Only where it was counted: a node that was taken without our knowing its count may have a higher one.
        let arguments = |n| {
            let (_, count) = votes.counted.iter().find(|(node, _)| *node == n)?;
            let counted = vec![owner.clone(), attempt.to_owned(), count.to_string(), fence.to_string()];
            Some([counted, run_policy.to_vec(), place.to_vec()].concat())
        };
        let keys = vec![names.lock, names.fence, names.record, names.starts, names.shares, names.queue, names.waiters, names.line];
        let answers = self.ask(bound, &script::COMMIT, keys, arguments).await;
        let mut committed = 0;
        let mut failures = Vec::new();
        for (n, answer) in answers.into_iter().enumerate() {
            match answer.map(script_reply) {
                Some(Ok((said, _))) if said == "committed" => committed += 1,
                Some(Err(error)) => failures.push((n, error)),
                Some(Ok(_)) | None => {}
            }
        }
        if committed >= self.nodes.majority() {
            self.note_granted(request, committed);
            return Ok(granted(request, fence, 1));
        }
        self.undo(request, bound).await;
        if failures.is_empty() {
            // Others have what was lost between the phases, or will have it in a moment.
            self.transient = true;
            return Ok(Attempt::Busy(Busy { transient: true, ..Busy::default() }));
        }
        Err(self.nodes.too_few(committed, failures).effect(Effect::Unknown))
    }

    /// Releases every node, those that did not answer included; whether each of them said so.
    async fn undo(&mut self, request: &Request, bound: Duration) -> bool {
        let Ok(names) = self.names(&request.key) else { return true };
        // Nothing was done under it, so that there is nothing to remember.
        let arguments = vec![
            request.token.owner.to_string(),
            request.token.hold_text(),
            flag(true),
            String::new(),
            flag(false),
            RunState::Cancelled.as_str().into(),
            // A waiter keeps its place, and so keeps readers out.
            flag(false),
        ];
        let keys = release_keys(names);
        let answers = self.ask(bound, &script::RELEASE, keys, |_| Some(arguments.clone())).await;
        answers.into_iter().flatten().all(|answer| match answer {
            Ok(_) => true,
            Err(error) => error.effect == Effect::NotApplied,
        })
    }

    fn refused(&mut self, votes: Votes, undone: bool) -> Result<Attempt> {
        let needed = self.nodes.majority();
        let answered = self.nodes.len() - votes.failures.len();
        if answered < needed {
            let error = self.nodes.too_few(answered, votes.failures);
            let effect = if undone { Effect::NotApplied } else { Effect::Unknown };
            return Err(error.effect(effect));
        }
        let no_locks: Vec<_> = votes.seen.iter().flatten().filter(|seen| seen.is_no_lock()).collect();
        if let Some(seen) = no_locks.first()
            && answered - no_locks.len() < needed
        {
            return Err(failure::no_lock(&format!("a {}", seen.kind)));
        }
        let picture = MajorityView::of(&votes.seen, needed);
        self.transient = picture.transient;
        let mut places = votes.places;
        places.sort_unstable();
        let position = places.get(places.len() / 2).and_then(|place| u32::try_from(*place).ok());
        Ok(Attempt::Busy(Busy {
            holders: picture.holders,
            expires_in: picture.free_in,
            notifies: false,
            transient: picture.transient,
            position,
        }))
    }

    fn is_queued(&self, request: &Request) -> bool {
        self.queued.iter().any(|(key, token)| *key == request.key && *token == request.token)
    }

    /// It was granted on so many nodes. On the others it may be in the queue still, and is until it is given back.
    fn note_granted(&mut self, request: &Request, granted: usize) {
        if self.is_queued(request) && granted < self.nodes.len() {
            self.left_behind.push((request.key.clone(), request.token));
        }
        self.forget_queued(request);
    }

    fn forget_queued(&mut self, request: &Request) {
        self.queued.retain(|(key, token)| *key != request.key || *token != request.token);
    }

    pub(super) async fn leave(&mut self, request: &Request) -> Result<()> {
        if !self.is_queued(request) {
            return Ok(());
        }
        let names = self.names(&request.key)?;
        let bound = self.options.bound(None, 1);
        let arguments = vec![request.token.hold_text()];
        let keys = vec![names.queue, names.waiters, names.line];
        let answers = self.ask(bound, &script::ABANDON, keys, |_| Some(arguments.clone())).await;
        let failures: Failures = answers.into_iter().enumerate().filter_map(|(n, answer)| Some((n, answer?.err()?))).collect();
        if self.nodes.len() - failures.len() < self.nodes.majority() {
            return Err(self.nodes.too_few(self.nodes.len() - failures.len(), failures));
        }
        self.forget_queued(request);
        Ok(())
    }
}

impl Votes {
    pub(super) fn count(answers: NodeAnswers) -> Self {
        let mut votes = Self::default();
        for (n, answer) in answers.into_iter().enumerate() {
            let Some(answer) = answer else { continue };
            // A node that is ours or free is free for us.
            let mut seen = Some(NodeLock { kind: "none".into(), ..NodeLock::default() });
            match script_reply(answer).and_then(|(said, rest)| votes.add(n, &said, &rest)) {
                Ok(None) => {}
                Ok(busy) => seen = busy,
                Err(error) => {
                    votes.failures.push((n, error));
                    seen = None;
                }
            }
            votes.seen.push(seen);
        }
        votes
    }

    fn add(&mut self, n: usize, said: &str, rest: &[Value]) -> Result<Option<NodeLock>> {
        let number = |value: &Value| reply::int(value).and_then(|number| u64::try_from(number).ok()).ok_or_else(failure::unreadable);
        match (said, rest) {
            ("taken", [count, now, starts]) => {
                self.counted.push((n, number(count)?));
                self.starts.push(read_starts(now, starts)?);
            }
            ("entered", [attempt, fence, holds]) => {
                let holds = u32::try_from(number(holds)?).unwrap_or(u32::MAX);
                self.entered.push((reply::text(attempt).ok_or_else(failure::unreadable)?, number(fence)?, holds));
            }
            ("busy", rest) => {
                let (seen, place) = NodeLock::of_busy(rest).ok_or_else(failure::unreadable)?;
                seen.check()?;
                self.places.extend((place > 0).then_some(place));
                return Ok(Some(seen));
            }
            ("not-held", []) => self.not_held += 1,
            ("otherwise", []) => self.otherwise += 1,
            ("refused", [now, starts]) => {
                self.refused += 1;
                self.starts.push(read_starts(now, starts)?);
            }
            ("twice", []) => {
                self.twins.push(n);
                return Err(Error::new(Kind::Config, "it is the same server as another of the nodes, or copies it")
                    .hint("name independent servers"));
            }
            _ => return Err(failure::unreadable()),
        }
        Ok(None)
    }
}

fn read_starts(now: &Value, starts: &Value) -> Result<(RunRecord, u64)> {
    let now = reply::int(now).and_then(|now| u64::try_from(now).ok()).ok_or_else(failure::unreadable)?;
    Ok((starts::read_record(&reply::pairs(starts).ok_or_else(failure::unreadable)?), now))
}

/// The reason to refuse the request, from what `known` nodes of so many know of starts, each with its time.
fn judge(known: &[(RunRecord, u64)], nodes: usize, request: &Request) -> Option<Denial> {
    let (cooldown, start) = counted_records(known, nodes);
    let by = |record: RunRecord, now| record.judge(request.run_policy.as_ref(), &request.token, now);
    let cooldown = cooldown.and_then(|(cooldown, now)| by(RunRecord { cooldown: Some(cooldown), start: None }, now));
    cooldown.or_else(|| start.and_then(|(start, now)| by(RunRecord { cooldown: None, start: Some(start) }, now)))
}

/// What a node told, and its time in ms.
type Timed<T> = (T, u64);

/// What counts of what `known` nodes of so many know of starts, each with its time.
///
/// A start counts if a majority may know of it: those that say so, those that know of a later one, and those that said nothing. Fewer prove
/// that it was never granted. Of one that not all nodes heard the end of, the end counts.
pub(super) fn counted_records(known: &[(RunRecord, u64)], nodes: usize) -> (Option<Timed<Cooldown>>, Option<Timed<LastRun>>) {
    let silent = nodes - known.len();
    let counts = |fences: Vec<Fence>, fence: Fence| fences.into_iter().filter(|known| *known >= fence).count() + silent >= majority(nodes);
    let cooldown = || known.iter().filter_map(|(record, now)| Some((record.cooldown.clone()?, *now)));
    let starts = || known.iter().filter_map(|(record, now)| Some((record.start.clone()?, *now)));
    (
        cooldown()
            .filter(|(one, _)| counts(cooldown().map(|(other, _)| other.fence).collect(), one.fence))
            .max_by_key(|(one, now)| (one.fence, Reverse(now.saturating_sub(one.at_ms)))),
        starts()
            .filter(|(one, _)| counts(starts().map(|(other, _)| other.fence).collect(), one.fence))
            .max_by_key(|(one, now)| (one.fence, one.state != RunState::Started, one.tries, Reverse(now.saturating_sub(one.at_ms)))),
    )
}

/// The fence of an attempt that was counted so on these nodes.
pub(super) fn fence_of(counted: &[(usize, u64)]) -> Option<u64> {
    counted.iter().map(|(_, count)| *count).max()
}

fn granted(request: &Request, fence: u64, holds: u32) -> Attempt {
    Attempt::Granted(Grant { fence: Fence(fence), ttl: request.ttl, holds, drain_delay: Duration::ZERO, session: None, permit: None })
}
