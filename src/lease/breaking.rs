//! Breaking a hold: a mark that its holder answers, or an eviction at the end of its lease.

use std::{future::Future, time::Duration};

use super::{
    Clock, Limits,
    ask::{Pause, ask},
    bounded,
};
use crate::lock::{Amendment, Backend, Break, Fence, Holder, Key, Result};

/// How breaking a hold ended.
#[derive(Debug)]
pub enum Breaking<S> {
    /// The hold is over: its holder gave it back, or its lease ended.
    Over,
    /// The holder did not answer for all of its lease, so the lock was taken from it; or the caller asked for that.
    Evicted,
    /// There is no such hold any more: nothing was done.
    Changed,
    /// `stop` was ready first. The mark stays.
    Stopped(S),
}

/// Which hold to break, for whom, and how.
#[derive(Clone, Copy, Debug)]
pub struct BreakRequest<'a> {
    /// The lock.
    pub key: &'a Key,
    /// The hold, as it was seen.
    pub seen: &'a Holder,
    /// Its fence.
    pub fence: Fence,
    /// The operator, and the reason.
    pub mark: &'a Break,
    /// Evict it without asking.
    pub at_once: bool,
}

/// How often to look whether the hold is over.
const LOOK: Duration = Duration::from_millis(200);
/// How much longer than its lease a hold is waited for before it is taken away.
const SLACK: Duration = Duration::from_secs(1);

/// Marks the hold that was seen, and waits until it is over. Its holder stops what it runs, which may take as long as it takes; one
/// that gives no sign for the whole of its lease has nothing running any more, and is evicted where the store still has it.
///
/// `told` hears what the store says of the hold, each time it was looked at.
///
/// # Errors
/// What kept the store from answering while marking; afterwards it is asked on and on.
pub async fn break_hold<S>(
    backend: &mut dyn Backend,
    clock: &dyn Clock,
    request: BreakRequest<'_>,
    limits: Limits<'_>,
    stop: impl Future<Output = S>,
    mut told: impl FnMut(&Holder),
) -> Result<Breaking<S>> {
    let BreakRequest { key, seen, fence, mark, at_once } = request;
    let about = ("break", Some(key));
    let evict = async |backend: &mut dyn Backend| {
        let change = Amendment::Evict(fence, mark);
        let done = ask(backend, clock, limits, about, async |backend: &mut dyn Backend| backend.amend(key, change).await).await?;
        Ok(if done { Breaking::Evicted } else { Breaking::Changed })
    };
    if at_once {
        return evict(backend).await;
    }
    // A renewal may be under way: the lease counts from when the mark is there.
    let lease = seen.expires_in.map(|left| left + seen.renewed_ago.unwrap_or_default());
    let change = Amendment::Mark(fence, mark);
    if !ask(backend, clock, limits, about, async |backend: &mut dyn Backend| backend.amend(key, change).await).await? {
        return Ok(Breaking::Changed);
    }
    let patience = lease.map(|lease| clock.now().plus(lease + SLACK));
    let watch = async {
        let mut pause = Pause::new();
        loop {
            clock.sleep_until(clock.now().plus(LOOK)).await;
            let looked = bounded(clock, clock.now().plus(limits.attempt()), backend.inspect(key)).await;
            let Some(Ok(state)) = looked else {
                clock.sleep_until(clock.now().plus(pause.next())).await;
                continue;
            };
            let Some(holder) = state.holders.iter().find(|holder| holder.fence == Some(fence)) else { return Ok(Breaking::Over) };
            told(holder);
            let answered = holder.broken.as_ref().is_some_and(|mark| mark.seen);
            if !answered && patience.is_some_and(|end| clock.now() >= end) {
                let done = evict(&mut *backend).await?;
                // It ended by itself meanwhile.
                return Ok(if matches!(done, Breaking::Changed) { Breaking::Over } else { done });
            }
        }
    };
    tokio::select! {
        biased;
        stopped = stop => Ok(Breaking::Stopped(stopped)),
        done = watch => done,
    }
}
