//! Several locks that are taken together: all of them or none.
//!
//! Every command takes its locks in one order, that of their keys, so that no two can wait for each other. dlock renews the locks that it
//! has while it waits for the next one. Worst cases: one of them is lost meanwhile (all are released, and dlock begins
//! again if there is time to wait); the wait ends, or the next one is refused (all are released); the store is away when
//! dlock releases (its leases end by themselves).

use std::{
    future::{Future, pending},
    time::Duration,
};

use futures_util::future::{join_all, select_all};

use super::{
    Budget, Clock, Lease, Limits, Loss, Outcome, WaitPolicy,
    acquire::{UNDO, acquire},
    give_back, keep,
};
use crate::lock::{Backend, BootTime, Busy, Denial, Entry, Error, Intent, Key, Kind, ReleaseInfo, Request, Result, Token};

/// A lock that is wanted, with a client of its own: no lock is kept waiting by what another one's store does.
pub struct Claim {
    /// Its store.
    pub backend: Box<dyn Backend>,
    /// What is asked for.
    pub request: Request,
}

/// How an attempt to take several locks ended.
#[derive(Debug)]
pub enum GroupOutcome<S> {
    /// All are ours, in the order of the claims.
    Granted(Vec<Lease>),
    /// Another process held the claim with this index until the wait ended; none is ours.
    Busy(usize, Busy),
    /// That claim is free, but an earlier run left a record that keeps it from this one; none is ours.
    Denied(usize, Box<Denial>),
    /// `stop` was ready first; nothing is left behind.
    Stopped(S),
}

/// Sorts claims into the one order in which every process takes them.
pub fn in_order(claims: &mut [Claim]) {
    claims.sort_by(|one, other| one.request.key.cmp(&other.request.key));
}

/// Takes all locks of `claims`, which are [`in_order`], or none, waiting as long as `patience` says for all of it.
///
/// Otherwise as [`acquire`](super::acquire()): `busy` is called for each lock that is found held while waiting.
///
/// # Errors
/// As for one lock. Also if one that was taken is broken, or lost with no time to begin again, while the others are taken.
pub async fn acquire_all<S>(
    claims: &mut [Claim],
    clock: &dyn Clock,
    patience: WaitPolicy,
    limits: Limits<'_>,
    stop: impl Future<Output = S>,
    mut busy: impl FnMut(&Key, &Busy),
) -> Result<GroupOutcome<S>> {
    for Claim { backend, request } in &*claims {
        backend.identity().capabilities.check(request)?;
    }
    let until = match patience {
        WaitPolicy::Try => Some(clock.now()),
        WaitPolicy::For(length) => Some(clock.now().plus(length)),
        WaitPolicy::Forever => None,
    };
    tokio::pin!(stop);
    loop {
        let mut leases = Vec::new();
        let end = loop {
            let (taken, wanted) = claims.split_at_mut(leases.len());
            let Some(Claim { backend, request }) = wanted.first_mut() else { return Ok(GroupOutcome::Granted(leases)) };
            let patience = if taken.is_empty() { patience } else { what_is_left(until, clock.now()) };
            let budget = Budget::new(request.ttl, None, backend.identity().capabilities.pace)?;
            let held = taken.iter_mut().map(|claim| &mut claim.backend).zip(&mut leases).enumerate();
            let interrupted = async {
                tokio::select! {
                    biased;
                    stopped = &mut stop => End::Stopped(stopped),
                    (at, loss) = keep_all(held, clock, budget, limits, Intent::Extend(None), &|_, _, _| ()) => End::Lost(at, loss),
                }
            };
            let told = |found: &Busy| busy(&request.key, found);
            match acquire(&mut **backend, clock, request.clone(), patience, limits, interrupted, told).await {
                Ok(Outcome::Granted(lease)) => leases.push(lease),
                Ok(Outcome::Stopped(end)) => break end,
                Ok(Outcome::Busy(found)) => break End::Not(GroupOutcome::Busy(leases.len(), found)),
                Ok(Outcome::Denied(denial)) => break End::Not(GroupOutcome::Denied(leases.len(), denial)),
                Err(error) => break End::Failed(error),
            }
        };
        let limits = if matches!(end, End::Stopped(_)) { limits.within(UNDO.min(limits.answer)) } else { limits };
        join_all(claims.iter_mut().zip(&leases).map(|(claim, lease)| undo(&mut *claim.backend, clock, lease, limits))).await;
        match end {
            End::Not(outcome) => return Ok(outcome),
            End::Stopped(stopped) => return Ok(GroupOutcome::Stopped(stopped)),
            End::Failed(error) => return Err(error),
            End::Lost(_, Loss::NotOwner | Loss::Unconfirmed { .. }) if until.is_none_or(|end| clock.now() < end) => {
                for Claim { request, .. } in &mut *claims {
                    request.token = if request.entry == Entry::Fresh { Token::random() } else { request.token.nested() };
                }
            }
            End::Lost(at, loss) => {
                let what = if matches!(loss, Loss::Broken(_)) { "it was broken" } else { "it was lost" };
                let hint = format!("dlock history {} tells more", leases[at].key.escaped());
                let error = Error::new(Kind::Unavailable, format!("{what} while the other locks were being taken: all are released"));
                return Err(error.during("acquire").key(&leases[at].key).hint(hint));
            }
        }
    }
}

/// Renews all of `holds` until the first of them is lost: the number that it came with, and how. Never returns otherwise.
///
/// Each as [`keep`] does it, at a pace of its own. Cancel safe.
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
            (at, keep(&mut **backend, clock, lease, budget, limits, intent, told).await)
        })
    };
    let kept: Vec<_> = holds.into_iter().map(each).collect();
    if kept.is_empty() {
        return pending().await;
    }
    select_all(kept).await.0
}

/// Gives back what nothing was done under.
async fn undo(backend: &mut dyn Backend, clock: &dyn Clock, lease: &Lease, limits: Limits<'_>) {
    // What becomes of a nested hold is nothing to the run around it.
    let info = ReleaseInfo { run_state: ReleaseInfo::UNDO.run_state.filter(|_| lease.holds == 1), ..ReleaseInfo::UNDO };
    // However it goes: the lease ends by itself if this doesn't end it.
    let _ = give_back(backend, clock, &lease.key, &lease.token, &info, limits).await;
}

/// Why not all locks are ours.
enum End<S> {
    Not(GroupOutcome<S>),
    Stopped(S),
    Failed(Error),
    /// The claim with this index is not ours any more.
    Lost(usize, Loss),
}

/// For how long yet the others may be waited for.
fn what_is_left(until: Option<BootTime>, now: BootTime) -> WaitPolicy {
    match until.map(|end| end.since(now)) {
        None => WaitPolicy::Forever,
        Some(Duration::ZERO) => WaitPolicy::Try,
        Some(left) => WaitPolicy::For(left),
    }
}
