//! Waiting on stores that announce no release: a pause of random length, then another look.

use std::time::Duration;

use crate::lock::{Wake, random};

/// Pauses for `delay`, give or take a half of it; or, where the lock is busy only in passing, for a fraction of that.
///
/// Random pauses: of contenders that hindered each other, one comes first the next time.
pub(super) async fn pause(delay: Duration, transient: bool, at_most: Duration) -> Wake {
    let thousandths = |most: u64| u32::try_from(random() % most).unwrap_or_default();
    let pause = if transient { delay / 4 * (100 + thousandths(900)) / 1000 } else { delay * (500 + thousandths(1000)) / 1000 };
    // The one place where a backend pauses: what it waits for can't be waited for otherwise.
    #[allow(clippy::disallowed_methods)]
    tokio::time::sleep(pause.min(at_most)).await;
    if pause < at_most { Wake::Changed } else { Wake::TimedOut }
}
