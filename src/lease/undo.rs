//! Undoing a grant under which no command was executed.
//!
//! Without an answer the lease ends by itself, but the start that the granting step recorded stays:
//! later runs would take it for a run. So dlock tries for longer if the record matters, at most
//! until the lease is over.

use std::time::Duration;

use super::{Clock, Lease, Limits, ask::ask, release};
use crate::lock::{Backend, BootTime, Entry, Origin, ReleaseInfo, Request, RunPolicy};

/// The time limit for undoing an attempt: long enough for several tries, so that another server can
/// answer.
pub(super) const UNDO: Duration = Duration::from_secs(2);

/// Returns until when it is worth undoing the start of a request that was last sent at `sent`.
pub(super) fn worth_until(request: &Request, sent: BootTime) -> BootTime {
    let Some(run_policy) = request
        .run_policy
        .as_ref()
        .filter(|_| request.entry == Entry::Fresh)
    else {
        return sent;
    };
    // A skew guard is over by the time that dlock gives up.
    let relevant = RunPolicy {
        skew_guard: None,
        ..run_policy.clone()
    }
    .relevant();
    let relevant = if run_policy.anyway {
        Duration::MAX
    } else {
        relevant
    };
    sent.plus(request.ttl.get().min(relevant))
}

/// A grant that is to be undone, if there was one.
pub(super) struct Undo<'a> {
    pub request: &'a Request,
    /// The grant may exist.
    pub maybe_granted: bool,
    /// The queue may have an entry of this waiter.
    pub waited: bool,
}

impl Undo<'_> {
    /// Releases the grant and leaves the queue, asking several times within `time`. Returns whether
    /// the store has done it.
    pub async fn run(
        &mut self,
        backend: &mut dyn Backend,
        clock: &dyn Clock,
        limits: Limits<'_>,
        time: Duration,
    ) -> bool {
        let Self {
            request,
            maybe_granted,
            waited,
        } = self;
        // The run around a nested hold does not depend on the outcome.
        let info = ReleaseInfo {
            run_state: ReleaseInfo::UNDO
                .run_state
                .filter(|_| request.entry == Entry::Fresh),
            ..ReleaseInfo::UNDO
        };
        let limits = limits.within(time);
        let undone = ask(
            backend,
            clock,
            limits,
            ("acquire", Some(&request.key)),
            async |backend: &mut dyn Backend| {
                let undone = async {
                    if *maybe_granted {
                        match backend.release(&request.key, &request.token, &info).await {
                            Err(error) if error.is_transient() => return Err(error),
                            // Refused permanently: the waiter can still leave the queue.
                            _ => *maybe_granted = false,
                        }
                    }
                    if *waited {
                        backend.leave_queue(request).await
                    } else {
                        Ok(())
                    }
                };
                match undone.await {
                    // No server was ever reached. A silent resolver must not delay the end.
                    Err(error) if error.origin == Origin::Resolver && !limits.answered => Ok(()),
                    undone => undone,
                }
            },
        );
        undone.await.is_ok()
    }
}

/// Releases a hold under which no command ran.
pub(super) async fn undo_lease(
    backend: &mut dyn Backend,
    clock: &dyn Clock,
    lease: &Lease,
    limits: Limits<'_>,
) {
    // The run around a nested hold does not depend on the outcome.
    let info = ReleaseInfo {
        run_state: ReleaseInfo::UNDO.run_state.filter(|_| lease.holds == 1),
        ..ReleaseInfo::UNDO
    };
    // The result does not matter: without a release the lease ends by itself.
    let _ = release(backend, clock, &lease.key, &lease.token, &info, limits).await;
}
