//! The runtime's clock, by which this process times its leases and its waits; and this host's
//! calendar, for people.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// The moment after so long.
pub(super) fn after(length: Duration) -> Instant {
    Instant::now() + length
}

pub(super) fn is_past(moment: Instant) -> bool {
    moment <= Instant::now()
}

/// Returns how long ago that was, in ms since 1970 by another host's clock; `None` if it is still
/// to come by this host's.
#[allow(clippy::disallowed_methods)] // for people to read, never to judge a lease by
pub(super) fn since(ms: u64) -> Option<Duration> {
    let then = SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
    SystemTime::now().duration_since(then).ok()
}
