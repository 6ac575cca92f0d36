//! Reading locks: plain read commands to every node, so that a read-only user can run them.

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use ::redis::{Pipeline, Value};

use super::{
    Failures, Redlock,
    examine::NodeInfo,
    node::Question,
    view::{MajorityView, NodeLock, last_fence},
};
use crate::{
    backends::redis::{
        examine::field,
        failure,
        names::{ENCODING, RedisNames, is_run_data, key_of, pattern, prefix, side_of, side_start},
        reading::{add_scanned, read_time, readable},
        reply,
        state::{read_shares, waiters},
    },
    lock::{Effect, Error, Key, Kind, LockState, NodeView, Progress, Result, Waiter, Which},
};

/// The number of commands per lock.
pub(super) const PER_LOCK: usize = 11;

/// The number of locks read in one packet.
const BATCH: usize = 50;

pub(super) fn add_reads(pipeline: &mut Pipeline, names: &RedisNames) {
    pipeline
        .cmd("TIME")
        .cmd("TYPE")
        .arg(&names.lock)
        // Bounded: with an empty namespace the key may hold another program's huge value.
        .cmd("GETRANGE")
        .arg(&names.lock)
        .arg(0)
        .arg(99)
        .cmd("PTTL")
        .arg(&names.lock)
        .cmd("HGETALL")
        .arg(&names.record)
        .cmd("ZRANGE")
        .arg(&names.queue)
        .arg(0)
        .arg(-1)
        .arg("WITHSCORES")
        .cmd("HGETALL")
        .arg(&names.waiters)
        .cmd("GET")
        .arg(&names.fence)
        .cmd("HGET")
        .arg(&names.shares)
        .arg("lock")
        .cmd("HVALS")
        .arg(&names.shares)
        .cmd("ZRANGE")
        .arg(&names.ordered_queue)
        .arg(0)
        .arg(-1)
        .arg("WITHSCORES");
}

/// One node's view of a lock.
pub(super) struct NodeRead {
    pub(super) seen: NodeLock,
    waiters: Vec<Waiter>,
    counter: Option<u64>,
}

impl Redlock {
    pub(super) async fn read_lock(&mut self, key: &Key) -> Result<LockState> {
        let names = self.names(key)?;
        let mut pipeline = ::redis::pipe();
        add_reads(&mut pipeline, &names);
        pipeline
            .cmd("INFO")
            .arg("server")
            .cmd("INFO")
            .arg("replication");
        let answers = self.read(|_| Some(pipeline.clone())).await?;
        self.check_independence(&answers);
        let each = answers
            .iter()
            .map(|answer| {
                answer
                    .as_ref()
                    .map(|replies| replies.get(..PER_LOCK).unwrap_or_default())
            })
            .collect();
        self.put_together(key.clone(), &names, each)
    }

    pub(super) async fn read_locks(
        &mut self,
        start: &str,
        progress: &Progress,
    ) -> Result<Vec<LockState>> {
        let keys: Vec<Key> = self.scan(start, progress).await?.into_iter().collect();
        let mut states = Vec::new();
        for batch in keys.chunks(BATCH) {
            let mut pipeline = ::redis::pipe();
            let names: Vec<RedisNames> = batch
                .iter()
                .map(|key| self.names(key))
                .collect::<Result<_>>()?;
            for names in &names {
                add_reads(&mut pipeline, names);
            }
            let answers = self.read(|_| Some(pipeline.clone())).await?;
            progress.part();
            for (at, (key, names)) in batch.iter().zip(&names).enumerate() {
                let each = answers.iter().map(|answer| {
                    answer
                        .as_ref()
                        .map(|replies| replies.chunks(PER_LOCK).nth(at).unwrap_or_default())
                });
                let each = each.collect();
                match self.put_together(key.clone(), names, each) {
                    Ok(state) if state.holders.is_empty() => {}
                    // With an empty namespace, a foreign lock may be any program's temporary value.
                    Ok(state)
                        if state.holders[0].foreign
                            && self.options.namespace.as_str().is_empty() => {}
                    Ok(state) => states.push(state),
                    Err(error) if error.kind == Kind::Data => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(states)
    }

    /// Returns the keys that begin with `start` and have a string on some node.
    async fn scan(&mut self, start: &str, progress: &Progress) -> Result<BTreeSet<Key>> {
        let namespace = self.options.namespace.clone();
        let pattern = pattern(&(prefix(&namespace) + &ENCODING.encode_str(start)));
        self.scan_for(
            (&pattern, Some("string")),
            |name| key_of(&namespace, name),
            progress,
        )
        .await
    }

    pub(super) async fn known_keys(
        &mut self,
        start: &str,
        which: Which,
        progress: &Progress,
    ) -> Result<Vec<Key>> {
        let namespace = self.options.namespace.clone();
        let wanted = |what: &str| {
            if which == Which::Kept {
                what == "starts"
            } else {
                is_run_data(what)
            }
        };
        let of = |name: &str| {
            side_of(&namespace, name)
                .filter(|(_, what)| wanted(what))
                .map(|(key, _)| key)
        };
        Ok(self
            .scan_for(
                (&pattern(&side_start(&namespace, start)), None),
                of,
                progress,
            )
            .await?
            .into_iter()
            .collect())
    }

    /// Returns the keys of the Redis names that match `pattern` on any node.
    async fn scan_for(
        &mut self,
        (pattern, kind): (&str, Option<&str>),
        key_of: impl Fn(&str) -> Option<Key>,
        progress: &Progress,
    ) -> Result<BTreeSet<Key>> {
        let mut found = BTreeSet::new();
        let mut cursors = vec![Some("0".to_owned()); self.nodes.len()];
        while cursors.iter().any(Option::is_some) {
            let answers = self
                .read(|n| {
                    let mut pipeline = ::redis::pipe();
                    pipeline
                        .cmd("SCAN")
                        .arg(cursors[n].as_ref()?)
                        .arg("MATCH")
                        .arg(pattern)
                        .arg("COUNT")
                        .arg(1000);
                    if let Some(kind) = kind {
                        pipeline.arg("TYPE").arg(kind);
                    }
                    Some(pipeline)
                })
                .await?;
            progress.part();
            for (cursor, answer) in cursors.iter_mut().zip(answers) {
                let was = cursor.take();
                let (Some(_), Ok(replies)) = (was, answer) else {
                    continue;
                };
                *cursor = Some(add_scanned(replies.first(), &mut found, &key_of)?)
                    .filter(|next| next != "0");
            }
        }
        Ok(found)
    }

    /// Runs `commands` on each node that they name. Fails unless a majority answers.
    pub(super) async fn read(
        &mut self,
        mut commands: impl FnMut(usize) -> Option<Pipeline>,
    ) -> Result<Vec<Result<Vec<Value>>>> {
        let bound = self.options.bound(None, 1);
        let answers = self
            .nodes
            .ask(bound, |n| Some(Question::Reads(Rc::new(commands(n)?))))
            .await;
        let mut each = Vec::new();
        for answer in answers {
            each.push(match answer {
                Some(Ok(Value::Array(replies))) => Ok(replies),
                Some(Ok(_)) => Err(failure::unreadable()),
                Some(Err(error)) => Err(error),
                // Not asked: the node had already returned everything.
                None => Ok(Vec::new()),
            });
        }
        let answered = each.iter().filter(|answer| answer.is_ok()).count();
        if answered < self.nodes.majority() {
            let failures: Failures = each
                .into_iter()
                .enumerate()
                .filter_map(|(n, answer)| Some((n, answer.err()?)))
                .collect();
            return Err(self
                .nodes
                .too_few(answered, failures)
                .effect(Effect::NotApplied));
        }
        Ok(each)
    }

    pub(super) fn put_together(
        &self,
        key: Key,
        names: &RedisNames,
        each: Vec<Result<&[Value], &Error>>,
    ) -> Result<LockState> {
        let mut reads = Vec::new();
        let mut failed = Vec::new();
        for answer in each {
            match answer.map(read_one) {
                Ok(Ok(read)) => {
                    reads.push(Some(read));
                    failed.push(None);
                }
                // Without read rights the lock's state is unknown, and must not be reported as
                // free.
                Ok(Err(error)) => return Err(error),
                Err(error) => {
                    reads.push(None);
                    failed.push(Some(error.message.clone()));
                }
            }
        }
        let needed = self.nodes.majority();
        let seen: Vec<Option<NodeLock>> = reads
            .iter()
            .map(|read| read.as_ref().map(|read| read.seen.clone()))
            .collect();
        let no_locks: Vec<_> = seen
            .iter()
            .flatten()
            .filter(|seen| seen.is_no_lock())
            .collect();
        if let Some(first) = no_locks.first()
            && self.nodes.len() - no_locks.len() < needed
        {
            return Err(failure::no_lock(&format!("a {}", first.kind)));
        }
        let picture = MajorityView::of(&seen, needed);
        let nodes = seen
            .iter()
            .zip(failed)
            .enumerate()
            .map(|(n, (seen, error))| NodeView {
                node: self.nodes.name(n).to_owned(),
                held: seen.as_ref().map(|seen| !seen.is_free()),
                fence: seen.as_ref().and_then(NodeLock::fence),
                expires_in: seen
                    .as_ref()
                    .filter(|seen| !seen.is_free())
                    .and_then(NodeLock::left),
                others: seen.as_ref().is_some_and(|seen| !seen.is_free())
                    && !picture.held_on.contains(&n),
                error,
            });
        let nodes = nodes.collect();
        let unknown = reads.iter().filter(|read| read.is_none()).count();
        let counters = reads
            .iter()
            .flatten()
            .filter_map(|read| read.counter)
            .collect();
        Ok(LockState {
            key,
            stored_as: names.lock.clone(),
            holders: picture.holders,
            waiters: reads
                .into_iter()
                .flatten()
                .map(|read| read.waiters)
                .max_by_key(Vec::len)
                .unwrap_or_default(),
            last_fence: last_fence(counters, unknown, needed),
            nodes,
        })
    }

    /// Adds notices about nodes that are one server or replicas: their votes are not independent.
    fn check_independence(&mut self, answers: &[Result<Vec<Value>>]) {
        let told = answers.iter().enumerate().map(|(n, answer)| {
            let info = move |at| {
                answer
                    .as_ref()
                    .ok()
                    .and_then(|replies| reply::text(replies.get(at)?))
            };
            let field = move |name: &str| {
                [info(PER_LOCK), info(PER_LOCK + 1)]
                    .iter()
                    .flatten()
                    .find_map(|info| field(info, name).map(str::to_owned))
            };
            NodeInfo {
                n,
                field: Box::new(field),
            }
        });
        for notice in self.related_nodes(told.collect()) {
            self.notice(notice.warning, notice.text, notice.hint);
        }
    }
}

pub(super) fn read_one(replies: &[Value]) -> Result<NodeRead> {
    let [
        time,
        kind,
        value,
        pttl,
        record,
        queue,
        infos,
        counter,
        shared_as,
        shares,
        ordered_queue,
    ] = replies
    else {
        return Err(failure::unreadable());
    };
    let now = readable(time)?.and_then(read_time);
    if let Value::ServerError(error) = kind {
        return Err(failure::refused(error));
    }
    let seen = NodeLock {
        now,
        pttl: readable(pttl)?.and_then(reply::int),
        kind: reply::text(kind).ok_or_else(failure::unreadable)?,
        value: readable(value)?.and_then(reply::text).unwrap_or_default(),
        record: readable(record)?.and_then(reply::pairs).unwrap_or_default(),
        shared_as: readable(shared_as)?
            .and_then(reply::text)
            .unwrap_or_default(),
        shares: readable(shares)?.map(read_shares).unwrap_or_default(),
        kept: Duration::ZERO,
    };
    seen.check()?;
    let pairs = |reply| Ok::<_, Error>(readable(reply)?.and_then(reply::pairs).unwrap_or_default());
    Ok(NodeRead {
        seen,
        waiters: waiters(now, [pairs(queue)?, pairs(ordered_queue)?], &pairs(infos)?),
        counter: readable(counter)?
            .and_then(reply::int)
            .and_then(|count| u64::try_from(count).ok()),
    })
}
