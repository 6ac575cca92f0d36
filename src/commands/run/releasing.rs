//! The end of a run in the store: dlock releases the locks, or records how they were lost.

use std::time::Duration;

use futures_util::future::join_all;

use super::{
    Frequency,
    job::{Job, JobLock, Ownership},
    outcome::{Disturbance, Outcome},
    watch::{RunWatch, SupervisionEnd},
};
use crate::{
    exit,
    lease::{BootClock, Clock as _, Limits, Released, entry, note, release, wall_ms},
    lock::{
        BootTime, End, HistoryEntry, Metadata, Note, ReleaseInfo, RunOutcome, RunState, Scope,
        whole_ms,
    },
    output::{ReleaseResult, Verdict},
};

/// How long dlock tries to release, or to record the loss, in a store that stopped confirming a
/// lease: it may recover.
const AFTERWARDS: Duration = Duration::from_secs(3);
/// The same limit if the lease is already over.
const LAST_TRY: Duration = Duration::from_secs(1);

impl RunWatch<'_> {
    /// Returns the release info of the hold, for the history.
    pub(super) fn info(&self, scope: Scope, end: &SupervisionEnd, ran: Duration) -> ReleaseInfo {
        let Outcome {
            status,
            end: how,
            state,
            ..
        } = self.outcome(end);
        let mark = self.broken.as_ref().filter(|_| how == End::Broken);
        let why = match (end, self.disturbance()) {
            (SupervisionEnd::NotStarted(_, why, _), _) => Some(why.clone()),
            (_, Disturbance::Lost) => self.lost.clone(),
            (_, Disturbance::Broken) => mark.and_then(|mark| mark.why.clone()),
            (_, Disturbance::TimedOut) => Some(self.settings.max_runtime()),
            (_, Disturbance::None) => None,
        };
        let usage = match end {
            SupervisionEnd::Ended(ended) => ended.usage,
            _ => None,
        };
        let outcome = RunOutcome {
            by: mark.map(|mark| mark.by.clone()),
            why,
            output: self.last_lines.clone().filter(|_| status != exit::OK),
            cpu_ms: usage.map(|usage| usage.cpu_ms),
            max_rss_bytes: usage.map(|usage| usage.max_rss_bytes),
        };
        ReleaseInfo {
            scope,
            end: Some(how),
            outcome: Some(outcome).filter(|outcome| *outcome != RunOutcome::default()),
            at_ms: Some(wall_ms()),
            held_ms: u64::try_from(ran.as_millis()).ok(),
            run_state: Some(state),
        }
    }
}

impl Job<'_> {
    /// Releases the locks. Returns the worst outcome.
    pub(super) async fn release_all(
        &self,
        holds: &mut [JobLock],
        info: &ReleaseInfo,
        watch: &mut RunWatch<'_>,
    ) -> Option<ReleaseResult> {
        let lost = watch.lost.is_some();
        let back = join_all(
            holds
                .iter_mut()
                .map(|hold| self.release(hold, info.clone(), lost)),
        )
        .await;
        let mut worst = None;
        for (
            JobLock {
                lease, standing, ..
            },
            released,
        ) in holds.iter_mut().zip(back)
        {
            let Some(released) = released else { continue };
            let release_result = watch.released(&lease.key, released);
            if release_result == ReleaseResult::Yes {
                *standing = Ownership::Released;
            }
            worst = worst.max(Some(release_result));
        }
        worst
    }

    /// Releases one of the locks, unless the store has said that dlock does not hold it.
    async fn release(
        &self,
        hold: &mut JobLock,
        mut info: ReleaseInfo,
        lost: bool,
    ) -> Option<Released> {
        let JobLock {
            backend,
            lease,
            standing,
        } = hold;
        if *standing == Ownership::Gone {
            return None;
        }
        // Starts are recorded with the job's own lock; a nested run is part of the run around it,
        // whose start was recorded.
        let own = lease.key == self.settings.key && lease.holds == 1;
        info.run_state = info.run_state.filter(|state| own && self.counts(*state));
        let limits = if info
            .run_state
            .is_some_and(|state| state != RunState::Unknown)
        {
            // Try to record the outcome until the lease ends: a missing record could cause a wrong
            // repeat, or none at all.
            let left = lease.t0.plus(lease.ttl.get()).since(BootClock.now());
            Limits::of(self.context.answer.max(left))
        } else if lost {
            Limits::of(AFTERWARDS)
        } else {
            self.context.limits()
        };
        Some(
            release(
                &mut **backend,
                &BootClock,
                &lease.key,
                &lease.token,
                &info,
                limits.once_answered(),
            )
            .await,
        )
    }

    /// Whether the store needs to know this outcome. A cooldown counts whatever became of a command
    /// that was executed.
    fn counts(&self, state: RunState) -> bool {
        let policy = &self.settings.policy;
        policy.frequency != Frequency::Always
            || state == RunState::Cancelled
                && (policy.skew_guard.is_some() || policy.at_least.is_some())
    }

    /// Records how unreleased holds were lost. For released holds, the release carried that
    /// information. The store may not answer, which may have been the reason of the loss.
    pub(super) async fn note_losses(
        &self,
        holds: &mut [JobLock],
        watch: &RunWatch<'_>,
        verdict: &Verdict,
        ended: BootTime,
    ) {
        // The store was tried for a while since then.
        let ended_ms = wall_ms().saturating_sub(whole_ms(BootClock.now().since(ended)));
        let ran = whole_ms(verdict.ran.unwrap_or_default());
        let lost = HistoryEntry {
            fence: None,
            started_ms: Some(ended_ms.saturating_sub(ran)),
            ended_ms: Some(ended_ms),
            end: End::Lost,
            outcome: Some(RunOutcome {
                why: watch.lost.clone(),
                output: watch.last_lines.clone(),
                ..RunOutcome::default()
            }),
            metadata: self.metadata.clone().map(|us| Metadata {
                waited_ms: Some(whole_ms(verdict.waited)),
                ..us
            }),
        };
        let untold = holds
            .iter_mut()
            .filter(|hold| hold.standing != Ownership::Released);
        let answer = ended.plus(AFTERWARDS).since(BootClock.now()).max(LAST_TRY);
        join_all(untold.map(async |JobLock { backend, lease, .. }| {
            let (limits, key, fence) = (Limits::of(answer / 2), &lease.key, lease.fence);
            let mut lost = HistoryEntry {
                fence: Some(fence),
                ..lost.clone()
            };
            // Who broke it, and why, is more than this process knows of the loss.
            let known = entry(&mut **backend, key, fence, limits).await;
            if let Some(broken) = known.filter(|known| known.end == End::Broken) {
                let output = lost.outcome.take().and_then(|lost| lost.output);
                lost.end = End::Broken;
                lost.outcome = Some(RunOutcome {
                    output,
                    ..broken.outcome.unwrap_or_default()
                });
            }
            note(&mut **backend, key, &Note::Lost(lost), limits).await;
        }))
        .await;
    }
}
