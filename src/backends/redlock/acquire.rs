//! Taking a lock: both phases, and undoing an attempt without a majority.

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
        Attempt, Busy, Denial, Effect, Entry, Error, Fence, Grant, Kind, Mode, Notice, Replaced,
        Request, Result, RunRecord, RunState, Token, random,
    },
};

/// The nodes' replies to phase 1. How many undone attempts are remembered. Each was counted by a
/// majority first, and can be committed only within its TTL.
const UNDONE: usize = 128;

#[derive(Default)]
pub(super) struct Votes {
    /// The nodes that were taken, and their counts.
    counted: Vec<(usize, u64)>,
    /// The nodes where the owner already has a committed attempt: attempt, fence, and holds.
    entered: Vec<(String, u64, u32)>,
    not_held: usize,
    /// The number of nodes where the owner only reads.
    otherwise: usize,
    /// Each node's view of the lock; `None` for a node that did not answer.
    pub(super) seen: Vec<Option<NodeLock>>,
    places: Vec<i64>,
    /// The number of nodes that denied it because of another run's start.
    refused: usize,
    /// The run record of each node that was taken or denied the lock, with the node's time in ms.
    pub(super) starts: Vec<(RunRecord, u64)>,
    /// The nodes that turned out to be the same server as another node.
    twins: Vec<usize>,
    failures: Failures,
}

impl Redlock {
    pub(super) async fn take(&mut self, request: &Request) -> Result<Attempt> {
        CAPABILITIES.check(request)?;
        // The id is never sent twice: a count is valid only for a node that this very attempt took.
        let mut attempt = format!("{:016x}", random());
        let mut attempts = attempt.clone();
        let bound = self.options.bound(Some(request.ttl.get()), 4);
        let mut votes = self.first_phase(request, &attempt, bound, false).await?;
        let needed = self.nodes.majority();
        let denial = judge(&votes.starts, self.nodes.len(), request).filter(|_| votes.refused > 0);
        if votes.refused > 0 && denial.is_none() && votes.counted.len() < needed {
            // The denying nodes have run records that no majority confirms: the second try ignores
            // them.
            attempt = format!("{:016x}", random());
            attempts = format!("{attempts} {attempt}");
            votes = self.first_phase(request, &attempt, bound, true).await?;
        }
        if let Some(((_, fence), count)) = most_common(
            votes
                .entered
                .iter()
                .map(|(attempt, fence, _)| (attempt, *fence)),
        ) && count >= needed
        {
            let holds = votes
                .entered
                .iter()
                .map(|(_, _, holds)| *holds)
                .max()
                .unwrap_or(1);
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
            return Err(self
                .nodes
                .too_few(votes.entered.len(), votes.failures)
                .effect(Effect::Unknown));
        }
        if denial.is_none()
            && votes.counted.len() >= needed
            && let Some(fence) = fence_of(&votes.counted)
        {
            let answer = self
                .second_phase(request, &attempt, bound, votes, fence)
                .await;
            if !matches!(answer, Ok(Attempt::Granted(_))) {
                // Noted before asking: it may be committed late, and must not be granted then.
                self.undone
                    .drain(..self.undone.len().saturating_sub(UNDONE - 1));
                self.undone.push((request.token, attempt.clone()));
                if self.undo(request, attempts, bound).await {
                    self.undone.retain(|(_, undone)| *undone != attempt);
                }
            }
            return answer;
        }
        if !votes.entered.is_empty() && votes.entered.len() + votes.failures.len() >= needed {
            // The owner may hold the lock already, through a lost reply: nothing to undo yet.
            return Err(self
                .nodes
                .too_few(votes.entered.len(), votes.failures)
                .effect(Effect::Unknown));
        }
        let may_have = |(_, error): &(usize, Error)| error.effect != Effect::NotApplied;
        let undone = if votes.counted.is_empty()
            && votes.entered.is_empty()
            && !votes.failures.iter().any(may_have)
        {
            true
        } else {
            self.undo(request, attempts, bound).await
        };
        if let Some(denial) = denial {
            // A node that did not answer may have taken this attempt. It was never committed, and
            // expires.
            return Ok(Attempt::Denied(Box::new(denial)));
        }
        self.refused(votes, undone)
    }

    async fn first_phase(
        &mut self,
        request: &Request,
        attempt: &str,
        bound: Duration,
        judged: bool,
    ) -> Result<Votes> {
        let names = self.names(&request.key)?;
        // Noted before asking, since the call may be dropped.
        self.lost.push((request.token, attempt.to_owned()));
        let was_queued = self.is_queued(request);
        if request.waiting && !was_queued {
            self.queued.push((request.key.clone(), request.token));
        }
        self.leases.retain(|(token, _)| *token != request.token);
        self.leases.push((request.token, request.ttl));
        let metadata = request
            .metadata
            .as_ref()
            .map(to_json)
            .transpose()?
            .unwrap_or_default();
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
        let arguments = [
            arguments,
            starts::arguments(request.run_policy.as_ref()).into(),
            vec![
                reads,
                flag(judged),
                attempts_of(&self.undone, &request.token),
                self.options.silence().as_millis().to_string(),
                names.late,
            ],
        ]
        .concat();
        let waiting = [names.queue, names.waiters];
        let keys = [
            vec![names.lock, names.fence, names.record],
            waiting.into(),
            vec![names.runs, names.bad_runs, names.starts],
        ];
        let keys = [
            keys.concat(),
            vec![names.shares, names.ends, names.ordered_queue],
        ]
        .concat();
        let answers = self
            .ask(bound, &script::TAKE, keys, |_| Some(arguments.clone()))
            .await;
        let votes = Votes::count(answers);
        if !votes.failures.iter().any(|(_, error)| is_broken(error)) {
            // Where there is no answer, a release follows over the same connection.
            self.lost.retain(|(_, lost)| lost != attempt);
        }
        for node in &votes.twins {
            let text = format!(
                "{} is the same server as another of the nodes, or copies it, and doesn't count",
                self.nodes.name(*node)
            );
            self.notice(
                true,
                text,
                Some("`dlock inspect` says which; name independent servers".into()),
            );
        }
        for (node, error) in votes
            .failures
            .iter()
            .filter(|(node, _)| !votes.twins.contains(node))
        {
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

    async fn second_phase(
        &mut self,
        request: &Request,
        attempt: &str,
        bound: Duration,
        votes: Votes,
        fence: u64,
    ) -> Result<Attempt> {
        let names = self.names(&request.key)?;
        let owner = request.token.owner.to_string();
        let run_policy = starts::arguments(request.run_policy.as_ref());
        let place = [request.token.hold_text(), flag(self.is_queued(request))];
        // Only counted nodes are asked: a node whose count is unknown may have a higher one.
        let arguments = |n| {
            let (_, count) = votes.counted.iter().find(|(node, _)| *node == n)?;
            let counted = vec![
                owner.clone(),
                attempt.to_owned(),
                count.to_string(),
                fence.to_string(),
            ];
            Some([counted, run_policy.to_vec(), place.to_vec()].concat())
        };
        let keys = vec![
            names.lock,
            names.fence,
            names.record,
            names.starts,
            names.shares,
            names.queue,
            names.waiters,
            names.ordered_queue,
        ];
        let answers = self.ask(bound, &script::COMMIT, keys, arguments).await;
        let mut committed = 0;
        let mut failures = Vec::new();
        for (n, answer) in answers.into_iter().enumerate() {
            match answer.map(script_reply) {
                Some(Ok((status, _))) if status == "committed" => committed += 1,
                Some(Err(error)) => failures.push((n, error)),
                Some(Ok(_)) | None => {}
            }
        }
        if committed >= self.nodes.majority() {
            self.note_granted(request, committed);
            return Ok(granted(request, fence, 1));
        }
        if failures.is_empty() {
            // Other owners have taken the nodes that were lost between the phases, or will in a
            // moment.
            self.transient = true;
            return Ok(Attempt::Busy(Busy {
                transient: true,
                ..Busy::default()
            }));
        }
        Err(self
            .nodes
            .too_few(committed, failures)
            .effect(Effect::Unknown))
    }

    /// Releases the nodes that `attempts` took, also on nodes that did not answer. Returns false if
    /// a release has an unknown outcome.
    ///
    /// A later attempt of the same hold must survive a request that a slow connection delivers
    /// late.
    async fn undo(&mut self, request: &Request, attempts: String, bound: Duration) -> bool {
        let Ok(names) = self.names(&request.key) else {
            return true;
        };
        // No command ran under it, so there is no history entry.
        let arguments = vec![
            request.token.owner.to_string(),
            request.token.hold_text(),
            flag(true),
            String::new(),
            flag(false),
            RunState::Cancelled.as_str().into(),
            // A waiter keeps its position, and so keeps readers out.
            flag(false),
            attempts,
            names.late.clone(),
            attempts_of(&self.lost, &request.token),
        ];
        let keys = release_keys(names);
        let answers = self
            .ask(bound, &script::RELEASE, keys, |_| Some(arguments.clone()))
            .await;
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
            let effect = if undone {
                Effect::NotApplied
            } else {
                Effect::Unknown
            };
            return Err(error.effect(effect));
        }
        let no_locks: Vec<_> = votes
            .seen
            .iter()
            .flatten()
            .filter(|seen| seen.is_no_lock())
            .collect();
        if let Some(seen) = no_locks.first()
            && answered - no_locks.len() < needed
        {
            return Err(failure::no_lock(&format!("a {}", seen.kind)));
        }
        let picture = MajorityView::of(&votes.seen, needed);
        self.transient = picture.transient;
        let mut places = votes.places;
        places.sort_unstable();
        let position = places
            .get(places.len() / 2)
            .and_then(|place| u32::try_from(*place).ok());
        Ok(Attempt::Busy(Busy {
            holders: picture.holders,
            expires_in: picture.free_in,
            notifies: false,
            transient: picture.transient,
            position,
        }))
    }

    fn is_queued(&self, request: &Request) -> bool {
        self.queued
            .iter()
            .any(|(key, token)| *key == request.key && *token == request.token)
    }

    /// Updates the queued tokens after a grant on `granted` nodes. On the others the token may stay
    /// in the queue until the release.
    fn note_granted(&mut self, request: &Request, granted: usize) {
        if self.is_queued(request) && granted < self.nodes.len() {
            self.still_queued.push((request.key.clone(), request.token));
        }
        self.forget_queued(request);
    }

    fn forget_queued(&mut self, request: &Request) {
        self.queued
            .retain(|(key, token)| *key != request.key || *token != request.token);
    }

    /// Leaves the queue on all nodes. A repeated call asks only the nodes that have not confirmed.
    ///
    /// # Errors
    /// Also if the connection to a single node broke: on that node the waiter would keep out
    /// readers for a while. A node that is down or slow is not waited for.
    pub(super) async fn leave(&mut self, request: &Request) -> Result<()> {
        if !self.is_queued(request) {
            return Ok(());
        }
        let names = self.names(&request.key)?;
        let bound = self.options.bound(None, 1);
        let arguments = vec![request.token.hold_text()];
        let keys = vec![names.queue, names.waiters, names.ordered_queue];
        let mut left = match self.leaving.take() {
            Some((token, left)) if token == request.token => left,
            _ => vec![false; self.nodes.len()],
        };
        let answers = self
            .ask(bound, &script::ABANDON, keys, |n| {
                (!left[n]).then(|| arguments.clone())
            })
            .await;
        let mut failures: Failures = Vec::new();
        for (n, answer) in answers.into_iter().enumerate() {
            match answer {
                Some(Ok(_)) => left[n] = true,
                Some(Err(error)) => failures.push((n, error)),
                None => {}
            }
        }
        let done = left.iter().filter(|left| **left).count();
        let broken = failures.iter().position(|(_, error)| is_broken(error));
        if done >= self.nodes.majority() && broken.is_none() {
            self.forget_queued(request);
            return Ok(());
        }
        self.leaving = Some((request.token, left));
        Err(match broken {
            Some(at) if done >= self.nodes.majority() => failures.swap_remove(at).1,
            _ => self.nodes.too_few(done, failures),
        })
    }
}

impl Votes {
    pub(super) fn count(answers: NodeAnswers) -> Self {
        let mut votes = Self::default();
        for (n, answer) in answers.into_iter().enumerate() {
            let Some(answer) = answer else { continue };
            // A node that is free or held by this owner counts as free.
            let mut seen = Some(NodeLock {
                kind: "none".into(),
                ..NodeLock::default()
            });
            match script_reply(answer).and_then(|(status, rest)| votes.add(n, &status, &rest)) {
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

    fn add(&mut self, n: usize, status: &str, rest: &[Value]) -> Result<Option<NodeLock>> {
        let number = |value: &Value| {
            reply::int(value)
                .and_then(|number| u64::try_from(number).ok())
                .ok_or_else(failure::unreadable)
        };
        match (status, rest) {
            ("taken", [count, now, starts]) => {
                self.counted.push((n, number(count)?));
                self.starts.push(read_starts(now, starts)?);
            }
            ("entered", [attempt, fence, holds]) => {
                let holds = u32::try_from(number(holds)?).unwrap_or(u32::MAX);
                self.entered.push((
                    reply::text(attempt).ok_or_else(failure::unreadable)?,
                    number(fence)?,
                    holds,
                ));
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
                return Err(Error::new(
                    Kind::Config,
                    "it is the same server as another of the nodes, or copies it",
                )
                .hint("name independent servers"));
            }
            _ => return Err(failure::unreadable()),
        }
        Ok(None)
    }
}

/// Whether the connection broke after the request was sent: it may still arrive, and no later
/// request on that connection follows it.
fn is_broken(error: &Error) -> bool {
    error.kind == Kind::Unavailable && error.effect == Effect::Unknown
}

/// Returns the attempts of this hold, as script argument.
pub(super) fn attempts_of(all: &[(Token, String)], token: &Token) -> String {
    let attempts = all
        .iter()
        .filter(|(of, _)| of == token)
        .map(|(_, attempt)| attempt.as_str());
    attempts.collect::<Vec<_>>().join(" ")
}

fn read_starts(now: &Value, starts: &Value) -> Result<(RunRecord, u64)> {
    let now = reply::int(now)
        .and_then(|now| u64::try_from(now).ok())
        .ok_or_else(failure::unreadable)?;
    Ok((
        starts::read_record(&reply::pairs(starts).ok_or_else(failure::unreadable)?),
        now,
    ))
}

/// Returns why the request is denied, from the run records of the `known` of `nodes` nodes, each
/// with its node's time.
fn judge(known: &[(RunRecord, u64)], nodes: usize, request: &Request) -> Option<Denial> {
    let counted = counted_records(known, nodes);
    counted
        .into_iter()
        .flatten()
        .find_map(|(record, now)| record.judge(request.run_policy.as_ref(), &request.token, now))
}

/// A value from a node, and the node's time in ms.
type Timed<T> = (T, u64);

/// Returns the records that count, one with the cooldown and one with the start, from the run
/// records of the `known` of `nodes` nodes, each with its node's time.
///
/// A start counts if a majority may know of it: the nodes that report it, report a later one, or
/// did not answer. Without such a majority it was never granted. If some nodes report an outcome
/// for the start and others don't, the outcome counts.
pub(super) fn counted_records(
    known: &[(RunRecord, u64)],
    nodes: usize,
) -> [Option<Timed<RunRecord>>; 2] {
    let silent = nodes - known.len();
    let counts = |fences: Vec<Fence>, fence: Fence| {
        fences.into_iter().filter(|known| *known >= fence).count() + silent >= majority(nodes)
    };
    let cooldown = || {
        known
            .iter()
            .filter_map(|(record, now)| Some((record.cooldown.clone()?, *now)))
    };
    let starts = || {
        known.iter().filter_map(|(record, now)| {
            Some((
                (record.start.clone()?, record.replaced.success.clone()),
                *now,
            ))
        })
    };
    let cooldown = cooldown()
        .filter(|(one, _)| {
            counts(
                cooldown().map(|(other, _)| other.fence).collect(),
                one.fence,
            )
        })
        .max_by_key(|(one, now)| (one.fence, Reverse(now.saturating_sub(one.at_ms))));
    let start = starts()
        .filter(|((one, _), _)| {
            counts(
                starts().map(|((other, _), _)| other.fence).collect(),
                one.fence,
            )
        })
        .max_by_key(|((one, _), now)| {
            (
                one.fence,
                one.state != RunState::Started,
                one.tries,
                Reverse(now.saturating_sub(one.at_ms)),
            )
        });
    [
        cooldown.map(|(cooldown, now)| {
            (
                RunRecord {
                    cooldown: Some(cooldown),
                    ..RunRecord::default()
                },
                now,
            )
        }),
        start.map(|((start, success), now)| {
            let replaced = Replaced {
                success,
                ..Replaced::default()
            };
            (
                RunRecord {
                    start: Some(start),
                    replaced,
                    ..RunRecord::default()
                },
                now,
            )
        }),
    ]
}

/// Returns the fence for an attempt with these counts: the highest.
pub(super) fn fence_of(counted: &[(usize, u64)]) -> Option<u64> {
    counted.iter().map(|(_, count)| *count).max()
}

fn granted(request: &Request, fence: u64, holds: u32) -> Attempt {
    Attempt::Granted(Grant {
        fence: Fence(fence),
        ttl: request.ttl,
        holds,
        drain_delay: Duration::ZERO,
        session: None,
        permit: None,
    })
}
