//! Points in time and lengths of leases.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Error, Kind, Result};

/// A point on this host's `CLOCK_BOOTTIME`, which also counts while the machine is suspended.
///
/// This is only the value; [`crate::lease::Clock`] reads the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootTime(Duration);

impl BootTime {
    /// Returns the point `since_boot` after the machine started.
    pub const fn from_boot(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    /// Returns the time from the machine's start to this point.
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// Returns the point `by` later, or the latest possible one.
    #[must_use]
    pub const fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }

    /// Returns the time from `earlier` to this point; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The length of a lease: at least a second, at most a year, in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(Duration);

impl Ttl {
    /// The shortest lease: for a shorter one, renewals at every sixth would be lost in scheduling
    /// noise.
    pub const MIN: Duration = Duration::from_secs(1);
    /// The longest lease: a lock held longer is a lock forgotten.
    pub const MAX: Duration = Duration::from_secs(365 * 24 * 3600);
    /// The default.
    pub const DEFAULT: Self = Self(Duration::from_secs(60));

    /// Checks the range, and rounds up to a millisecond.
    ///
    /// # Errors
    /// [`Kind::Usage`] outside of [`Ttl::MIN`] to [`Ttl::MAX`].
    pub fn new(length: Duration) -> Result<Self> {
        if !(Self::MIN..=Self::MAX).contains(&length) {
            return Err(Error::new(Kind::Usage, "a TTL is between 1s and 365d"));
        }
        let ms = length.as_nanos().div_ceil(1_000_000);
        Ok(Self(Duration::from_millis(
            u64::try_from(ms).unwrap_or(u64::MAX),
        )))
    }

    /// Returns the length.
    pub const fn get(self) -> Duration {
        self.0
    }

    /// Returns the length in milliseconds, as stores take it.
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Formats a duration exactly, as options take it: `30d`, `1h 30m`, `1s 500ms`.
pub fn length(length: Duration) -> String {
    let mut left = length.as_millis();
    let mut parts = Vec::new();
    for (size, unit) in [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1000, "s"),
        (1, "ms"),
    ] {
        if left >= size {
            parts.push(format!("{}{unit}", left / size));
            left %= size;
        }
    }
    if parts.is_empty() {
        "0s".into()
    } else {
        parts.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_as_options_accept_them() {
        for (ms, text) in [
            (0, "0s"),
            (1500, "1s 500ms"),
            (60_000, "1m"),
            (5_400_000, "1h 30m"),
            (2_592_000_000, "30d"),
        ] {
            assert_eq!(length(Duration::from_millis(ms)), text);
        }
    }
}
