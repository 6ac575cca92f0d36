//! Breaking a hold: a mark that its holder answers, or an eviction at the end of its lease.

use std::{future::Future, time::Duration};

use super::{
    Clock, Limits,
    ask::{Pause, ask},
    bounded,
    note::entry,
};
use crate::lock::{Amendment, Backend, Break, End, Fence, Holder, Key, Result};

/// How breaking a hold ended.
#[derive(Debug)]
pub enum BreakOutcome<S> {
    /// The hold is over: its holder released it, or its lease ended. With the end that the holder
    /// wrote, if that was not this break.
    Over(Option<End>),
    /// The holder did not answer for all of its lease, and was evicted; or the caller asked for an
    /// eviction.
    Evicted,
    /// The hold no longer exists: nothing was done.
    Changed,
    /// `stop` was ready first. The mark stays.
    Stopped(S),
}

/// The hold to break, the operator, and the way to break it.
#[derive(Clone, Copy, Debug)]
pub struct BreakRequest<'a> {
    /// The lock.
    pub key: &'a Key,
    /// The hold, as the operator saw it.
    pub seen: &'a Holder,
    /// Its fence.
    pub fence: Fence,
    /// The operator and the reason.
    pub mark: &'a Break,
    /// Evict the holder without asking.
    pub at_once: bool,
}

/// How often to look whether the hold is over.
const LOOK: Duration = Duration::from_millis(200);
/// How much longer than its lease dlock waits for a hold before the eviction.
const SLACK: Duration = Duration::from_secs(1);

/// Returns the end of a hold, if it ended by itself: a command may end before its holder sees the
/// mark.
async fn ended(
    backend: &mut dyn Backend,
    key: &Key,
    fence: Fence,
    limits: Limits<'_>,
) -> Option<End> {
    entry(backend, key, fence, limits)
        .await
        .map(|entry| entry.end)
        .filter(|end| !matches!(end, End::Broken | End::Expired))
}

/// Marks the hold that was seen, and waits until it is over. Its holder stops the command, however
/// long that takes. A holder without a sign of life for a whole lease has nothing running, and is
/// evicted if the store still has the hold.
///
/// `on_holder` gets the store's state of the hold after each look.
///
/// # Errors
/// What kept the store from answering the mark. After the mark, dlock asks without limit.
pub async fn break_hold<S>(
    backend: &mut dyn Backend,
    clock: &dyn Clock,
    request: BreakRequest<'_>,
    limits: Limits<'_>,
    stop: impl Future<Output = S>,
    mut on_holder: impl FnMut(&Holder),
) -> Result<BreakOutcome<S>> {
    let BreakRequest {
        key,
        seen,
        fence,
        mark,
        at_once,
    } = request;
    let about = ("break", Some(key));
    let evict = async |backend: &mut dyn Backend| {
        let change = Amendment::Evict(fence, mark);
        let done = ask(
            backend,
            clock,
            limits,
            about,
            async |backend: &mut dyn Backend| backend.amend(key, change).await,
        )
        .await?;
        Ok(if done {
            BreakOutcome::Evicted
        } else {
            BreakOutcome::Changed
        })
    };
    if at_once {
        return evict(backend).await;
    }
    // A renewal may be under way: the lease counts from when the mark is there.
    let lease = seen
        .expires_in
        .map(|left| left + seen.renewed_ago.unwrap_or_default());
    let change = Amendment::Mark(fence, mark);
    if !ask(
        backend,
        clock,
        limits,
        about,
        async |backend: &mut dyn Backend| backend.amend(key, change).await,
    )
    .await?
    {
        return Ok(BreakOutcome::Changed);
    }
    let evict_at = lease.map(|lease| clock.now().plus(lease + SLACK));
    let watch = async {
        let mut pause = Pause::new();
        loop {
            clock.sleep_until(clock.now().plus(LOOK)).await;
            let looked = bounded(
                clock,
                clock.now().plus(limits.attempt()),
                backend.inspect(key),
            )
            .await;
            let Some(Ok(state)) = looked else {
                clock.sleep_until(clock.now().plus(pause.next())).await;
                continue;
            };
            let Some(holder) = state
                .holders
                .iter()
                .find(|holder| holder.fence == Some(fence))
            else {
                return Ok(BreakOutcome::Over(ended(backend, key, fence, limits).await));
            };
            on_holder(holder);
            let answered = holder.broken.as_ref().is_some_and(|mark| mark.seen);
            if !answered && evict_at.is_some_and(|end| clock.now() >= end) {
                let done = evict(&mut *backend).await?;
                // The hold ended by itself meanwhile.
                return Ok(if matches!(done, BreakOutcome::Changed) {
                    BreakOutcome::Over(None)
                } else {
                    done
                });
            }
        }
    };
    tokio::select! {
        biased;
        stopped = stop => Ok(BreakOutcome::Stopped(stopped)),
        done = watch => done,
    }
}
