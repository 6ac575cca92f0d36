//! The runtime's clock, by which this process times its leases and its waits.

use std::time::Duration;

use tokio::time::Instant;

/// The moment after so long.
pub(super) fn after(length: Duration) -> Instant {
    Instant::now() + length
}

pub(super) fn is_past(moment: Instant) -> bool {
    moment <= Instant::now()
}
