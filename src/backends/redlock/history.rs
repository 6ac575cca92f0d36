//! The nodes' histories of a lock, merged; and breaks of current holds.
//!
//! Each node has its own history. A hold may have expired or been broken on one node and have been
//! released on the others: the node with the outcome wins.

use std::collections::BTreeMap;

use super::{
    Failures, Redlock, acquire::counted_records, flag, reading::PER_LOCK, script, script_reply,
};
use crate::{
    backends::redis::{
        failure,
        history::{HISTORY_READS, add_history_reads, read_history, to_json},
        names::RedisNames,
        reply,
    },
    lock::{
        Break, Effect, Fence, History, Key, Note, Result, RunRecord, SKIPPING_HOSTS, SkipCount,
    },
};

impl Redlock {
    pub(super) async fn remember(&mut self, key: &Key, note: &Note) -> Result<()> {
        let names = self.names(key)?;
        let keys = note_keys(names);
        let arguments = match note {
            Note::Skipped { host, reason, .. } => vec![
                "skipped".into(),
                host.clone(),
                reason.clone(),
                SKIPPING_HOSTS.to_string(),
            ],
            Note::Lost(past) => {
                vec![
                    "lost".into(),
                    past.fence
                        .map(|fence| fence.to_string())
                        .unwrap_or_default(),
                    to_json(past)?,
                ]
            }
        };
        let bound = self.options.bound(None, 1);
        let answers = self
            .ask(bound, &script::NOTE, keys, |_| Some(arguments.clone()))
            .await;
        let failures: Failures = answers
            .into_iter()
            .enumerate()
            .filter_map(|(n, answer)| Some((n, answer?.err()?)))
            .collect();
        let told = self.nodes.len() - failures.len();
        if told < self.nodes.majority() {
            Err(self.nodes.too_few(told, failures).effect(Effect::Unknown))
        } else {
            Ok(())
        }
    }

    /// Claims a warning. The first node that answers decides; all runs ask in the same order. A
    /// second warning does no harm.
    pub(super) async fn claim(&mut self, key: &Key, fence: Fence, level: u32) -> Result<bool> {
        let bound = self.options.bound(None, 4);
        let arguments = vec!["warn".to_owned(), fence.to_string(), level.to_string()];
        let mut failures: Failures = Vec::new();
        for first in 0..self.nodes.len() {
            let names = self.names(key)?;
            let keys = note_keys(names);
            let answers = self
                .ask(bound, &script::NOTE, keys, |n| {
                    (n == first).then(|| arguments.clone())
                })
                .await;
            match answers.into_iter().flatten().next() {
                Some(Ok(reply)) => return Ok(reply::int(&reply) == Some(1)),
                Some(Err(error)) => failures.push((first, error)),
                None => {}
            }
        }
        Err(self.nodes.too_few(0, failures).effect(Effect::Unknown))
    }

    /// Marks a hold for a break, or evicts it. A mark on a majority meets every renewal's majority;
    /// an eviction takes the hold's majority.
    pub(super) async fn break_hold(
        &mut self,
        key: &Key,
        fence: Fence,
        mark: &Break,
        at_once: bool,
    ) -> Result<bool> {
        let names = self.names(key)?;
        let keys = vec![
            names.lock,
            names.record,
            names.runs,
            names.bad_runs,
            names.shares,
            names.ends,
        ];
        let arguments = vec![fence.to_string(), to_json(mark)?, flag(at_once)];
        let bound = self.options.bound(None, 1);
        let answers = self
            .ask(bound, &script::BREAK, keys, |_| Some(arguments.clone()))
            .await;
        let (mut done, mut changed) = (0, 0);
        let mut failures: Failures = Vec::new();
        for (n, answer) in answers.into_iter().enumerate() {
            let Some(answer) = answer else { continue };
            match script_reply(answer) {
                Ok((status, _)) if status == "done" => done += 1,
                Ok((status, _)) if status == "changed" => changed += 1,
                Ok(_) => failures.push((n, failure::unreadable())),
                Err(error) => failures.push((n, error)),
            }
        }
        // Nodes that answer "changed" no longer had the hold, or took it late: it is broken on all
        // the others.
        if done > 0 && done + changed >= self.nodes.majority() {
            return Ok(true);
        }
        if changed > self.nodes.len() - self.nodes.majority() {
            return Ok(false);
        }
        Err(self.nodes.too_few(done, failures).effect(Effect::Unknown))
    }

    pub(super) async fn read_history(&mut self, key: &Key) -> Result<History> {
        let names = self.names(key)?;
        let mut pipeline = ::redis::pipe();
        super::reading::add_reads(&mut pipeline, &names);
        add_history_reads(&mut pipeline, &names);
        let answers = self.read(|_| Some(pipeline.clone())).await?;
        let each = answers
            .iter()
            .map(|answer| {
                answer
                    .as_ref()
                    .map(|replies| replies.get(..PER_LOCK).unwrap_or_default())
            })
            .collect();
        let state = self.put_together(key.clone(), &names, each)?;
        let held: Vec<Fence> = state
            .holders
            .iter()
            .filter_map(|holder| holder.fence)
            .collect();
        let mut found = Vec::new();
        let mut records = Vec::new();
        let mut skips: BTreeMap<String, SkipCount> = BTreeMap::new();
        for replies in answers.iter().flatten() {
            let (Some(lock), Some(history)) = (
                replies.get(..PER_LOCK),
                replies.get(PER_LOCK..PER_LOCK + HISTORY_READS),
            ) else {
                return Err(failure::unreadable());
            };
            let told = read_history(history, super::reading::read_one(lock)?.seen.vanished())?;
            found.extend(told.past);
            records.push((told.record, 0));
            for one in told.skips {
                let known = skips.entry(one.host.clone()).or_insert_with(|| one.clone());
                if (one.count, one.last_ms) > (known.count, known.last_ms) {
                    *known = one;
                }
            }
        }
        // A hold that one node lost may still be held on the others.
        found.retain(|past| past.fence.is_none_or(|fence| !held.contains(&fence)));
        let [cooldown, start] = counted_records(&records, self.nodes.len())
            .map(|counted| counted.map(|(record, _)| record).unwrap_or_default());
        let record = RunRecord {
            cooldown: cooldown.cooldown,
            ..start
        };
        Ok(History {
            record,
            ..History::new(found, skips.into_values().collect())
        })
    }
}

fn note_keys(names: RedisNames) -> Vec<String> {
    vec![
        names.lock,
        names.record,
        names.runs,
        names.bad_runs,
        names.skips,
        names.starts,
        names.shares,
        names.ends,
    ]
}
