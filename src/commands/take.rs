//! Acquiring locks for work in another process: the common code of `acquire` and `hold`.

use std::{future::Future, iter};

use futures_util::future::join_all;

use super::Context;
use crate::{
    lease::{
        self, BootClock, Budget, Claim, GroupOutcome, Lease, Limits, Loss, Released, WaitPolicy,
        acquire_all, in_order, note_skip,
    },
    lock::{Backend, Intent, Key, Metadata, Mode, ReleaseInfo, Request, Result, Ttl},
    output::{self, Cause, Skip, Waiting},
};

/// The locks to take, validated.
#[derive(Clone, Debug)]
pub struct WantedLocks {
    /// The first named lock.
    pub key: Key,
    /// The other locks, distinct. dlock acquires all locks, or none.
    pub also: Vec<Key>,
    /// The mode of all locks.
    pub mode: Mode,
    /// Whether the waiter uses the fair queue.
    pub fair: bool,
    /// The requested TTL; `None` for the default, which the backend may clamp to its range.
    pub ttl: Option<Ttl>,
    /// How long to wait.
    pub wait_policy: WaitPolicy,
    /// The status when a lock is busy.
    pub conflict_status: u8,
    /// The note of the lease.
    pub describe: Option<String>,
    /// Whether the lease stores its holder's host, user and command.
    pub metadata: bool,
}

/// A lock that dlock holds, with its store.
pub struct TakenLock {
    pub backend: Box<dyn Backend>,
    pub lease: Lease,
}

/// The outcome of an attempt to acquire locks.
pub enum AcquireResult<S> {
    /// dlock holds all locks, in the order of the command line.
    Granted(Vec<TakenLock>),
    /// Another process holds one of the locks, as already reported; with the exit status.
    Not(u8),
    /// The stop future completed first.
    Stopped(S),
}

/// Acquires the locks, or reports the reason why not. `program` is the program that needs the
/// locks.
///
/// # Errors
/// The store's error; nothing is left behind as far as it can be reached.
pub async fn take<S>(
    wanted: &WantedLocks,
    detached: bool,
    program: Option<String>,
    context: &Context,
    stop: impl Future<Output = S>,
) -> Result<AcquireResult<S>> {
    output::print_in_background();
    let (out, clock) = (&context.out, BootClock);
    let us = wanted.metadata.then(|| Metadata {
        command: program,
        ..super::metadata::collect(context.host.as_deref(), None, wanted.describe.clone())
    });
    let backends = iter::once_with(|| super::open(context))
        .chain(iter::repeat_with(|| context.target.store.backend()));
    let claim = |(key, backend): (&Key, Box<dyn Backend>)| Claim {
        request: Request {
            ttl_asked: wanted.ttl.is_some(),
            mode: wanted.mode,
            fair: wanted.fair,
            detached,
            metadata: us.clone(),
            ..Request::new(
                key.clone(),
                wanted
                    .ttl
                    .unwrap_or_else(|| backend.identity().capabilities.clamp_ttl(Ttl::DEFAULT)),
            )
        },
        backend,
    };
    let mut claims: Vec<_> = wanted.keys().zip(backends).map(claim).collect();
    in_order(&mut claims);
    let waiting = Waiting::new(out, &context.silence, wanted.wait_policy, &clock);
    let stop = waiting.ticking(stop);
    let outcome = acquire_all(
        &mut claims,
        &clock,
        wanted.wait_policy,
        context.limits(),
        stop,
        |key, busy| waiting.update(key, busy),
    )
    .await;
    waiting.clear();
    // All claims use one store.
    if let Some(Claim { backend, .. }) = claims.first_mut() {
        context.tell(&mut **backend);
    }
    let waited = waiting.waited();
    let not_taken =
        async |Claim { backend, request }: &mut Claim, cause: Cause<'_>, reason: &str| {
            note_skip(&mut **backend, &request.key, us.as_ref(), reason).await;
            let skip = Skip {
                key: &request.key,
                mode: request.mode,
                cause,
                waited,
                outcome: "not taken",
            };
            AcquireResult::Not(out.busy(&skip, &backend.identity().url, wanted.conflict_status))
        };
    Ok(match outcome? {
        GroupOutcome::Granted(leases) => {
            let hold = |(Claim { backend, .. }, lease)| TakenLock { backend, lease };
            let mut holds: Vec<_> = claims.into_iter().zip(leases).map(hold).collect();
            holds.sort_by_key(|hold| wanted.keys().position(|key| *key == hold.lease.key));
            AcquireResult::Granted(holds)
        }
        GroupOutcome::Busy(at, busy) => {
            not_taken(&mut claims[at], Cause::Busy(&busy), "busy").await
        }
        GroupOutcome::Denied(at, denial) => {
            let option = denial.rule.to_string();
            not_taken(&mut claims[at], Cause::Denied(&denial, &option), &option).await
        }
        GroupOutcome::Stopped(why) => AcquireResult::Stopped(why),
    })
}

impl WantedLocks {
    fn keys(&self) -> impl Iterator<Item = &Key> {
        iter::once(&self.key).chain(&self.also)
    }
}

/// Renews all locks until the first is lost. Returns its index and loss. Calls `extended` after
/// each confirmed renewal.
///
/// # Errors
/// If the lease has no room for a command to be stopped in.
pub async fn keep(
    holds: &mut [TakenLock],
    limits: Limits<'_>,
    intent: Intent,
    extended: &dyn Fn(usize, &Lease, &Budget),
) -> Result<(usize, Loss)> {
    let Some(hold) = holds.first() else {
        return std::future::pending().await;
    };
    let budget = hold.budget()?;
    let each = holds
        .iter_mut()
        .map(|TakenLock { backend, lease }| (backend, lease))
        .enumerate();
    Ok(lease::keep_all(each, &BootClock, budget, limits, intent, extended).await)
}

impl TakenLock {
    /// Returns the time budget of the lease.
    ///
    /// # Errors
    /// If the lease has no room for a command to be stopped in.
    pub fn budget(&self) -> Result<Budget> {
        Budget::new(
            self.lease.ttl,
            None,
            self.backend.identity().capabilities.pace,
        )
    }
}

/// Releases all locks, which this process took.
pub async fn release(
    holds: &mut [TakenLock],
    info: &ReleaseInfo,
    limits: Limits<'_>,
) -> Vec<Released> {
    let limits = limits.once_answered();
    let each = holds.iter_mut().map(|TakenLock { backend, lease }| {
        lease::release(
            &mut **backend,
            &BootClock,
            &lease.key,
            &lease.token,
            info,
            limits,
        )
    });
    join_all(each).await
}
