//! The end of a run in the store: dlock releases the locks, or records how they were lost.

use std::time::Duration;

use futures_util::future::join_all;

use super::{
    Frequency,
    job::{Job, JobLock, Ownership},
    watch::RunWatch,
};
use crate::{
    lease::{BootClock, Clock as _, Limits, Released, note, release, wall_ms},
    lock::{self, BootTime, HistoryEntry, Metadata, Note, ReleaseInfo, RunState, whole_ms},
    output::{ReleaseResult, Verdict},
};

/// How long dlock tries to release, or to record the loss, in a store that stopped confirming a
/// lease: it may recover.
const AFTERWARDS: Duration = Duration::from_secs(3);
/// The same limit if the lease is already over.
const LAST_TRY: Duration = Duration::from_secs(1);

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
    /// information.
    pub(super) async fn note_losses(
        &self,
        holds: &mut [JobLock],
        how: &str,
        verdict: &Verdict,
        ended: BootTime,
    ) {
        let untold = holds
            .iter_mut()
            .filter(|hold| hold.standing != Ownership::Released);
        let answer = ended.plus(AFTERWARDS).since(BootClock.now()).max(LAST_TRY);
        join_all(
            untold.map(|hold| self.note_loss(hold, how, (verdict, ended), Limits::of(answer))),
        )
        .await;
    }

    /// Records in the store how the hold was lost. The store may not answer, which may have been
    /// the reason of the loss.
    async fn note_loss(
        &self,
        JobLock { backend, lease, .. }: &mut JobLock,
        how: &str,
        (verdict, ended): (&Verdict, BootTime),
        limits: Limits<'_>,
    ) {
        // The store was tried for a while since then.
        let ended_ms = wall_ms().saturating_sub(whole_ms(BootClock.now().since(ended)));
        let started_ms = ended_ms.saturating_sub(whole_ms(verdict.ran.unwrap_or_default()));
        let past = HistoryEntry {
            fence: Some(lease.fence),
            started_ms: Some(started_ms),
            ended_ms: Some(ended_ms),
            end: lock::End::Lost,
            why: Some(how.to_owned()),
            metadata: self.metadata.clone().map(|us| Metadata {
                waited_ms: Some(whole_ms(verdict.waited)),
                ..us
            }),
        };
        note(&mut **backend, &lease.key, &Note::Lost(past), limits).await;
    }
}
