//! Several locks that are taken together: all of them or none.
//!
//! Every command takes its locks in the order of their keys, so that no two can wait for each
//! other. dlock renews the locks that it has while it waits for the next one. Worst cases: one of
//! them is lost meanwhile (all are released, and dlock begins again if there is time to wait); the
//! wait ends, or the next one is refused (all are released); the store is away when dlock releases
//! (its leases end by themselves); the server has not enough connections for all clients (each
//! client has all of its connections before it asks, or none).

use std::{
    future::{Future, pending},
    time::Duration,
};

use futures_util::future::{join_all, select_all};

use super::{
    Budget, Clock, Lease, Limits, Loss, Outcome, WaitPolicy,
    acquire::acquire,
    ask::{Pause, no_answer, timeout_factor},
    bounded, keep,
    undo::{UNDO, undo_lease, worth_until},
};
use crate::lock::{
    Backend, BootTime, Busy, Denial, Effect, Entry, Error, Intent, Key, Kind, Request, Result,
    Token,
};

/// A requested lock, with a client of its own: no lock waits for another lock's store.
pub struct Claim {
    /// The lock's store.
    pub backend: Box<dyn Backend>,
    /// The request.
    pub request: Request,
}

/// How an attempt to take several locks ended.
#[derive(Debug)]
pub enum GroupOutcome<S> {
    /// All locks are granted, in the order of the claims.
    Granted(Vec<Lease>),
    /// Another process held the claim with this index until the wait ended; no lock is held.
    Busy(usize, Busy),
    /// The claim with this index is free, but a run record denies it to this run; no lock is held.
    Denied(usize, Box<Denial>),
    /// `stop` was ready first; no hold and no waiter is left behind.
    Stopped(S),
}

/// Sorts claims into the one order in which every process takes them.
pub fn in_order(claims: &mut [Claim]) {
    claims.sort_by(|one, other| one.request.key.cmp(&other.request.key));
}

/// Takes all locks of `claims`, which are [`in_order`], or none. `wait_policy` says how long to
/// wait for all of them.
///
/// Otherwise the same as [`acquire`](super::acquire()): `busy` is called for each lock that is
/// found held while waiting.
///
/// # Errors
/// As for one lock. Also if a granted lock is broken, or is lost with no time to begin again, while
/// dlock takes the others.
pub async fn acquire_all<S>(
    claims: &mut [Claim],
    clock: &dyn Clock,
    wait_policy: WaitPolicy,
    limits: Limits<'_>,
    stop: impl Future<Output = S>,
    mut busy: impl FnMut(&Key, &Busy),
) -> Result<GroupOutcome<S>> {
    for Claim { backend, request } in &*claims {
        backend.identity().capabilities.check(request)?;
    }
    let until = match wait_policy {
        WaitPolicy::Try => Some(clock.now()),
        WaitPolicy::For(length) => Some(clock.now().plus(length)),
        WaitPolicy::Forever => None,
    };
    tokio::pin!(stop);
    loop {
        if claims.len() > 1
            && let Some(stopped) = connect_all(claims, clock, until, limits, &mut stop).await?
        {
            return Ok(GroupOutcome::Stopped(stopped));
        }
        let mut leases = Vec::new();
        let end = loop {
            let (taken, wanted) = claims.split_at_mut(leases.len());
            let Some(Claim { backend, request }) = wanted.first_mut() else {
                return Ok(GroupOutcome::Granted(leases));
            };
            let wait_policy = if taken.is_empty() {
                wait_policy
            } else {
                remaining_wait(until, clock.now())
            };
            let budget = Budget::new(request.ttl, None, backend.identity().capabilities.pace)?;
            let held = taken
                .iter_mut()
                .map(|claim| &mut claim.backend)
                .zip(&mut leases)
                .enumerate();
            let interrupted = async {
                tokio::select! {
                    biased;
                    stopped = &mut stop => GroupFailure::Stopped(stopped),
                    (at, loss) = keep_all(held, clock, budget, limits, Intent::Extend(None), &|_, _, _| ()) => GroupFailure::Lost(at, loss),
                }
            };
            let told = |found: &Busy| busy(&request.key, found);
            match acquire(
                &mut **backend,
                clock,
                request.clone(),
                wait_policy,
                limits,
                interrupted,
                told,
            )
            .await
            {
                Ok(Outcome::Granted(lease)) => leases.push(lease),
                Ok(Outcome::Stopped(end)) => break end,
                Ok(Outcome::Busy(found)) => {
                    break GroupFailure::Not(GroupOutcome::Busy(leases.len(), found));
                }
                Ok(Outcome::Denied(denial)) => {
                    break GroupFailure::Not(GroupOutcome::Denied(leases.len(), denial));
                }
                Err(error) => break GroupFailure::Failed(error),
            }
        };
        undo_all(
            claims,
            &leases,
            clock,
            limits,
            matches!(end, GroupFailure::Stopped(_)),
        )
        .await;
        if claims.len() > 1 {
            for claim in &mut *claims {
                claim.backend.disconnect();
            }
        }
        match end {
            GroupFailure::Not(outcome) => return Ok(outcome),
            GroupFailure::Stopped(stopped) => return Ok(GroupOutcome::Stopped(stopped)),
            GroupFailure::Failed(error) => return Err(error),
            GroupFailure::Lost(_, Loss::NotOwner | Loss::Unconfirmed { .. })
                if until.is_none_or(|end| clock.now() < end) =>
            {
                for Claim { request, .. } in &mut *claims {
                    request.token = if request.entry == Entry::Fresh {
                        Token::random()
                    } else {
                        request.token.nested()
                    };
                }
            }
            GroupFailure::Lost(at, loss) => {
                let what = if matches!(loss, Loss::Broken(_)) {
                    "it was broken"
                } else {
                    "it was lost"
                };
                let hint = format!("dlock history {} shows more", leases[at].key.escaped());
                let error = Error::new(
                    Kind::Unavailable,
                    format!("{what} while the other locks were being taken: all are released"),
                );
                return Err(error.during("acquire").key(&leases[at].key).hint(hint));
            }
        }
    }
}

/// Opens the connections of all claims, or none: no connection is kept while another one is refused
/// or waited for, since its owner may wait for this one. Returns what `stop` returned, if that was
/// ready first.
async fn connect_all<S>(
    claims: &mut [Claim],
    clock: &dyn Clock,
    wait_until: Option<BootTime>,
    limits: Limits<'_>,
    mut stop: impl Future<Output = S> + Unpin,
) -> Result<Option<S>> {
    let until = wait_until.map(|end| end.max(clock.now().plus(limits.answer)));
    let (mut pause, mut silences) = (Pause::new(), 0);
    loop {
        let (sent, length) = (clock.now(), limits.attempt() * timeout_factor(silences));
        limits.asked(|| claims[0].backend.identity().url, sent, until);
        let all = async {
            for Claim { backend, request } in &mut *claims {
                backend
                    .connect(request)
                    .await
                    .map_err(|error| error.key(&request.key))?;
            }
            Ok(())
        };
        let answer = tokio::select! {
            biased;
            stopped = &mut stop => return Ok(Some(stopped)),
            answer = bounded(clock, sent.plus(length), all) => answer,
        };
        limits.record_answer(matches!(answer, Some(Ok(()))));
        silences = if answer.is_some() { 0 } else { silences + 1 };
        let error = match answer {
            Some(Ok(())) => return Ok(None),
            Some(Err(error)) => error,
            None => no_answer(clock.now().since(sent))
                .effect(Effect::NotApplied)
                .key(&claims[0].request.key),
        };
        for claim in &mut *claims {
            claim.backend.disconnect();
        }
        let again = clock.now().plus(pause.next());
        if !limits.may_retry(&error) || until.is_some_and(|end| again >= end) {
            limits.record_answer(true);
            return Err(error
                .during("acquire")
                .backend(&claims[0].backend.identity().url));
        }
        limits.failed(&error);
        tokio::select! {
            biased;
            stopped = &mut stop => return Ok(Some(stopped)),
            () = clock.sleep_until(again) => {}
        }
    }
}

/// Renews all of `holds` until the first one is lost. Returns its index and the loss; never returns
/// otherwise.
///
/// Renews each as [`keep`] does, at its own pace. Cancel safe.
pub async fn keep_all<'a>(
    holds: impl IntoIterator<Item = (usize, (&'a mut Box<dyn Backend>, &'a mut Lease))>,
    clock: &dyn Clock,
    budget: Budget,
    limits: Limits<'_>,
    intent: Intent,
    extended: &dyn Fn(usize, &Lease, &Budget),
) -> (usize, Loss) {
    let each = |(at, (backend, lease)): (usize, (&'a mut Box<dyn Backend>, &'a mut Lease))| {
        Box::pin(async move {
            let told = |lease: &Lease, budget: &Budget| extended(at, lease, budget);
            (
                at,
                keep(&mut **backend, clock, lease, budget, limits, intent, told).await,
            )
        })
    };
    let kept: Vec<_> = holds.into_iter().map(each).collect();
    if kept.is_empty() {
        return pending().await;
    }
    select_all(kept).await.0
}

/// Releases holds under which no command was executed, each as long as its record matters; quickly
/// if a signal ended the run.
pub async fn undo_all(
    claims: &mut [Claim],
    leases: &[Lease],
    clock: &dyn Clock,
    limits: Limits<'_>,
    stopped: bool,
) {
    let each = claims.iter_mut().zip(leases).map(|(claim, lease)| {
        let left = worth_until(&claim.request, lease.t0).since(clock.now());
        let time = if stopped {
            UNDO.min(limits.answer)
        } else {
            limits.answer.max(left)
        };
        undo_lease(&mut *claim.backend, clock, lease, limits.within(time))
    });
    join_all(each).await;
}

/// Why dlock does not have all locks.
enum GroupFailure<S> {
    Not(GroupOutcome<S>),
    Stopped(S),
    Failed(Error),
    /// The claim with this index is lost.
    Lost(usize, Loss),
}

/// Returns how much longer dlock may wait for the others.
fn remaining_wait(until: Option<BootTime>, now: BootTime) -> WaitPolicy {
    match until.map(|end| end.since(now)) {
        None => WaitPolicy::Forever,
        Some(Duration::ZERO) => WaitPolicy::Try,
        Some(left) => WaitPolicy::For(left),
    }
}
