//! Waiting on stores without release notifications: a random pause, then a retry.

use std::time::Duration;

use crate::lock::{Wake, random};

/// Pauses for `delay` ± 50 %; or, if the lock is busy only in passing, for 2.5 % to 25 % of
/// `delay`.
///
/// The pause is random, so that of contenders that blocked each other, one comes first the next
/// time.
pub(super) async fn pause(delay: Duration, transient: bool, at_most: Duration) -> Wake {
    let thousandths = |most: u64| u32::try_from(random() % most).unwrap_or_default();
    let pause = if transient {
        delay / 4 * (100 + thousandths(900)) / 1000
    } else {
        delay * (500 + thousandths(1000)) / 1000
    };
    // These stores send no notification to wait for.
    #[allow(clippy::disallowed_methods)]
    tokio::time::sleep(pause.min(at_most)).await;
    if pause < at_most {
        Wake::Changed
    } else {
        Wake::TimedOut
    }
}
