//! Renewing and releasing a hold.

use super::{
    CAPABILITIES, Failures, Redlock, acquire::attempts_of, flag, most_common, release_keys, script,
    script_reply,
};
use crate::{
    backends::redis::{answer::read_mark, failure, history::how, reply},
    lock::{
        Effect, End, Fence, Intent, Key, Release, ReleaseInfo, Renewal, Result, Scope, Token, Ttl,
    },
};
use std::time::Duration;

impl Redlock {
    /// Extends the hold on every node that has it. Only nodes where this hold's attempt was
    /// committed count: a node that was taken late, after the decision, proves nothing about the
    /// time in between.
    pub(super) async fn extend(
        &mut self,
        key: &Key,
        token: &Token,
        intent: Intent,
    ) -> Result<Renewal> {
        let ttl = intent.ttl();
        if let Some(ttl) = ttl {
            CAPABILITIES.check_ttl(ttl)?;
        }
        let wanted = ttl
            .map(|ttl| ttl.as_millis().to_string())
            .unwrap_or_default();
        // An unknown TTL may be short. But then another process asks, which has nothing else to do
        // in that time.
        let bound = self
            .options
            .bound(self.ttl_of(token).or(ttl.map(Ttl::get)), 8);
        let purpose = if intent == Intent::Drain {
            "stop"
        } else {
            "go-on"
        };
        self.extend_by(key, token, wanted, purpose, bound).await
    }

    /// Probes for the hold: asks the nodes for a TTL of 0, which would shorten any hold and so
    /// changes nothing.
    pub(super) async fn look_for(&mut self, key: &Key, token: &Token) -> Result<Renewal> {
        let bound = self.options.bound(self.ttl_of(token), 8);
        self.extend_by(key, token, "0".into(), "look", bound).await
    }

    async fn extend_by(
        &mut self,
        key: &Key,
        token: &Token,
        wanted: String,
        purpose: &str,
        bound: Duration,
    ) -> Result<Renewal> {
        let names = self.names(key)?;
        let arguments = vec![
            token.owner.to_string(),
            token.hold_text(),
            wanted,
            purpose.to_owned(),
        ];
        let answers = self
            .ask(
                bound,
                &script::RENEW,
                vec![names.lock, names.record, names.shares, names.ends],
                |_| Some(arguments.clone()),
            )
            .await;
        let mut not_held = 0;
        let mut extended = Vec::new();
        let mut shorter = Vec::new();
        let mut failures: Failures = Vec::new();
        for (n, answer) in answers.into_iter().enumerate() {
            let Some(answer) = answer else { continue };
            match script_reply(answer) {
                Ok((status, rest)) => match (&*status, &rest[..]) {
                    ("not-held", []) => not_held += 1,
                    // One node with the mark is enough: a majority has the mark, or will have it.
                    ("broken", [mark, seen]) => return read_mark(mark, seen).map(Renewal::Broken),
                    ("renewed" | "shorter", [ms, attempt, fence]) => {
                        let Some(ms) = reply::int(ms)
                            .and_then(|ms| u64::try_from(ms).ok())
                            .map(Duration::from_millis)
                        else {
                            failures.push((n, failure::unreadable()));
                            continue;
                        };
                        let committed =
                            reply::int(fence).and_then(|fence| u64::try_from(fence).ok());
                        match (committed.zip(reply::text(attempt)), &*status) {
                            (None, _) => not_held += 1,
                            (Some(hold), "renewed") => extended.push((hold, ms)),
                            (Some(hold), _) => shorter.push((hold, ms)),
                        }
                    }
                    _ => failures.push((n, failure::unreadable())),
                },
                Err(error) => failures.push((n, error)),
            }
        }
        let needed = self.nodes.majority();
        let hold = most_common(
            extended
                .iter()
                .chain(&shorter)
                .map(|(hold, _)| hold.clone()),
        );
        if let Some(((fence, attempt), count)) = hold
            && count >= needed
        {
            let of_hold = |reports: &Vec<((u64, String), Duration)>| -> Vec<Duration> {
                reports
                    .iter()
                    .filter(|((f, a), _)| (*f, a) == (fence, &attempt))
                    .map(|(_, ms)| *ms)
                    .collect()
            };
            let (extended, mut shorter) = (of_hold(&extended), of_hold(&shorter));
            if shorter.len() >= needed {
                // The lease ends when fewer than a majority have the hold.
                shorter.sort_unstable_by(|a, b| b.cmp(a));
                return Ok(Renewal::Kept {
                    expires_in: Some(shorter[needed - 1]),
                });
            }
            let ttl = extended.into_iter().min().unwrap_or_default();
            return Ok(Renewal::Renewed {
                ttl: Ttl::new(ttl).map_err(|_| failure::unreadable())?,
                fence: Fence(fence),
            });
        }
        if not_held > self.nodes.len() - needed {
            return Ok(Renewal::NotHeld);
        }
        Err(self
            .nodes
            .too_few(extended.len() + shorter.len(), failures)
            .effect(Effect::Unknown))
    }

    /// Releases the hold on all nodes. If too few answer, a repeated call still counts the nodes
    /// that confirmed before.
    pub(super) async fn release_hold(
        &mut self,
        key: &Key,
        token: &Token,
        info: &ReleaseInfo,
    ) -> Result<Release> {
        let names = self.names(key)?;
        let scope = info.scope;
        let bad = flag(info.end.as_ref().is_some_and(End::is_bad));
        let run_state = info
            .run_state
            .map_or_else(String::new, |state| state.as_str().to_owned());
        let arguments = vec![
            token.owner.to_string(),
            token.hold_text(),
            flag(scope == Scope::Tree),
            how(info)?,
            bad,
            run_state,
        ];
        let is_this = |one: &(Key, Token)| (&one.0, &one.1) == (key, token);
        let late = vec![names.late.clone(), attempts_of(&self.lost, token)];
        let arguments = [
            arguments,
            vec![flag(self.still_queued.iter().any(is_this)), String::new()],
            late,
        ]
        .concat();
        let bound = self.options.bound(None, 1);
        let mut done = match self.releasing.take() {
            Some((k, t, s, done)) if (&k, &t, s) == (key, token, scope) => done,
            _ => vec![false; self.nodes.len()],
        };
        let answers = self
            .ask(bound, &script::RELEASE, release_keys(names), |_| {
                Some(arguments.clone())
            })
            .await;
        let (mut not_held, mut holds) = (0, Vec::new());
        let mut failures: Failures = Vec::new();
        for (n, answer) in answers.into_iter().enumerate() {
            let Some(answer) = answer else { continue };
            match script_reply(answer) {
                Ok((status, rest)) => match (&*status, &rest[..]) {
                    ("released", []) => done[n] = true,
                    ("still-held", [count]) => {
                        let count = reply::int(count).and_then(|count| u32::try_from(count).ok());
                        holds.push(count.ok_or_else(failure::unreadable)?);
                    }
                    ("not-held", []) if done[n] => {}
                    ("not-held", []) => not_held += 1,
                    _ => failures.push((n, failure::unreadable())),
                },
                Err(error) => failures.push((n, error)),
            }
        }
        let needed = self.nodes.majority();
        let released = done.iter().filter(|done| **done).count();
        if holds.len() >= needed {
            return Ok(Release::StillHeld(holds.into_iter().max().unwrap_or(1)));
        }
        if released + holds.len() >= needed {
            self.leases.retain(|(known, _)| known != token);
            self.still_queued.retain(|one| !is_this(one));
            return Ok(Release::Released);
        }
        if not_held > self.nodes.len() - needed {
            return Ok(Release::NotHeld);
        }
        self.releasing = Some((key.clone(), *token, scope, done));
        Err(self
            .nodes
            .too_few(released, failures)
            .effect(Effect::Unknown))
    }
}
