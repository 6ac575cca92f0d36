//! Renewing a lease for as long as it is in use.

use std::time::Duration;

use super::{
    Budget, Clock, Lease, Limits,
    ask::{no_answer, timeout_factor},
    bounded,
};
use crate::lock::{Backend, BootTime, Break, Error, Intent, Renewal};

/// Why dlock can't rely on a lease any more.
#[derive(Debug)]
pub enum Loss {
    /// The store says that the token does not hold the lock: another process may have it already.
    NotOwner,
    /// No renewal was confirmed for so long that the command must be stopped now, to be dead before
    /// the lease ends.
    Unconfirmed {
        /// How long ago the last confirmed renewal was sent.
        since: Duration,
        /// How the last attempt failed; `None` if there was none, or this process was stopped
        /// meanwhile.
        last: Option<Error>,
    },
    /// An operator marked the hold to be broken. The hold was not extended, and lasts to the end of
    /// its lease.
    Broken(Break),
}

/// Renews `lease` every sixth of it, and when the store hints at its end. Returns only when the
/// lease is lost.
///
/// A hold with the mark of a break is lost, unless the `intent` is to drain. To drain, dlock keeps
/// the lease until the tree is empty, and renews at once, so that the store learns of it.
/// `extended` gets the new t₀ after each confirmed renewal, before any other step. A missing answer
/// is unknown, never renewed: dlock asks again until TERM time. dlock waits for no answer beyond
/// TERM time. Cancel safe: dropping the future leaves `lease` as last confirmed.
pub async fn keep(
    backend: &mut dyn Backend,
    clock: &dyn Clock,
    lease: &mut Lease,
    budget: Budget,
    limits: Limits<'_>,
    intent: Intent,
    mut extended: impl FnMut(&Lease, &Budget),
) -> Loss {
    let url = backend.identity().url;
    let mut budget = budget.for_ttl(lease.ttl);
    let mut next = if intent == Intent::Drain {
        clock.now()
    } else {
        lease.t0.plus(budget.renew_every())
    };
    let (mut last, mut silences) = (None, 0);
    // After a wrong hint, dlock ignores hints until this time.
    let mut deaf_until = lease.t0;
    loop {
        let term_at = budget.term_at(lease.t0);
        let listening = async {
            clock.sleep_until(deaf_until).await;
            backend.watch(&lease.key, &lease.token).await;
        };
        let planned = next.min(term_at);
        tokio::select! {
            biased;
            () = clock.sleep_until(planned) => {}
            () = listening => deaf_until = clock.now().plus(budget.renew_every() / 8),
        }
        let sent = clock.now();
        let was_stopped = |planned: BootTime| clock.now() >= planned.plus(budget.renew_every() * 2);
        if was_stopped(planned) {
            // An earlier failure is not the cause.
            last = None;
        }
        if sent >= term_at {
            return Loss::Unconfirmed {
                since: sent.since(lease.t0),
                last,
            };
        }
        // An outage may end at any moment, and only few attempts fit before TERM time.
        let attempt = limits.attempt().min(budget.renew_every()) * timeout_factor(silences).min(2);
        let question = backend.renew(&lease.key, &lease.token, intent);
        let end = sent.plus(attempt).min(term_at);
        let answer = bounded(clock, end, question).await;
        silences = if answer.is_some() { 0 } else { silences + 1 };
        let confirmed = match answer {
            Some(Ok(Renewal::Renewed { ttl, .. })) => Some(ttl),
            // Another process with this token extended the lease: the lease lasts at least as long
            // as dlock knows.
            Some(Ok(Renewal::Kept { .. })) => Some(lease.ttl),
            Some(Ok(Renewal::NotHeld)) => return Loss::NotOwner,
            Some(Ok(Renewal::Broken(mark))) => return Loss::Broken(mark),
            Some(Err(error)) => {
                last = Some(error.about("renew", &url, Some(&lease.key)));
                None
            }
            None => {
                last = (!was_stopped(end)).then(|| no_answer(attempt).backend(&url));
                None
            }
        };
        match confirmed {
            // The clock is read again: a suspend may lie between the send and now.
            Some(_) if clock.now() >= term_at => {}
            Some(ttl) => {
                lease.ttl = ttl;
                lease.t0 = sent;
                last = None;
                budget = budget.for_ttl(ttl);
                next = sent.plus(budget.renew_every());
                extended(lease, &budget);
            }
            None => {
                next = clock
                    .now()
                    .plus((budget.renew_every() / 8).min(Duration::from_millis(500)));
            }
        }
    }
}
