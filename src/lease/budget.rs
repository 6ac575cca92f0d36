//! How a lease's time is spent: when dlock renews, when the command gets TERM, when it must be
//! dead.

use std::time::Duration;

use crate::lock::{BootTime, Error, Kind, Pace, Result, Ttl};

/// The thresholds of one lease, all counted from t₀: the moment *before* the last confirmed acquire
/// or renewal was sent.
///
/// With L the TTL less the clock drift that is allowed for (1 % + 2 ms): renew every L/6; nothing
/// confirmed by 0.6 L: TERM; KILL a grace later, by 0.8 L at the latest. The last fifth is for the
/// kernel to kill and reap. A backend's [`Pace`] can be stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    lease: Duration,
    grace: Duration,
    pace: Pace,
}

impl Budget {
    /// The default time between TERM and KILL.
    pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);

    /// Returns the budget of a lease of `ttl` at this pace, with the requested grace.
    ///
    /// # Errors
    /// [`Kind::Usage`] with the arithmetic if an explicit grace doesn't fit.
    pub fn new(ttl: Ttl, grace: Option<Duration>, pace: Pace) -> Result<Self> {
        let lease = without_drift(ttl.get());
        let room = lease * (pace.kill - pace.term) / 100;
        match grace {
            Some(grace) if grace > room => {
                let secs = |d: Duration| format!("{:.1}s", d.as_secs_f64());
                let needed =
                    (grace.as_secs_f64() * 100.0 / f64::from(pace.kill - pace.term) / 0.99 + 0.02)
                        .ceil();
                Err(Error::new(
                    Kind::Usage,
                    format!(
                        "a grace of {} does not fit a TTL of {}: TERM comes at {} of it, KILL by {}, which leaves {}",
                        humantime::format_duration(grace),
                        humantime::format_duration(ttl.get()),
                        f64::from(pace.term) / 100.0,
                        f64::from(pace.kill) / 100.0,
                        secs(room)
                    ),
                )
                .hint(format!("--ttl {needed:.0}s makes room for it")))
            }
            _ => Ok(Self {
                lease,
                grace: grace.unwrap_or(Self::DEFAULT_GRACE).min(room),
                pace,
            }),
        }
    }

    /// Returns the budget with the same grace for the TTL that a store granted, which may differ
    /// from the requested one.
    #[must_use]
    pub fn for_ttl(self, ttl: Ttl) -> Self {
        let lease = without_drift(ttl.get());
        Self {
            lease,
            grace: self
                .grace
                .min(lease * (self.pace.kill - self.pace.term) / 100),
            ..self
        }
    }

    /// Returns how long after t₀ the next renewal is sent.
    pub fn renew_every(&self) -> Duration {
        self.lease / 6
    }

    /// Returns the time between TERM and KILL.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// Returns until when a command may start: usually with half of the lease left.
    pub fn start_by(&self, t0: BootTime) -> BootTime {
        t0.plus(self.lease * self.pace.start / 100)
    }

    /// Returns when the command gets TERM.
    pub fn term_at(&self, t0: BootTime) -> BootTime {
        t0.plus(self.lease * self.pace.term / 100)
    }

    /// Returns when the command gets KILL.
    pub fn kill_at(&self, t0: BootTime) -> BootTime {
        self.term_at(t0).plus(self.grace)
    }

    /// Returns when another process may get the lock.
    pub fn ends_at(&self, t0: BootTime) -> BootTime {
        t0.plus(self.lease)
    }
}

fn without_drift(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 100)
        .saturating_sub(Duration::from_millis(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(ttl: u64, grace: Option<u64>) -> Result<Budget> {
        Budget::new(
            Ttl::new(Duration::from_secs(ttl)).unwrap(),
            grace.map(Duration::from_secs),
            Pace::USUAL,
        )
    }

    #[test]
    fn every_threshold_comes_before_the_next() {
        let t0 = BootTime::from_boot(Duration::from_secs(100));
        for ttl in [1, 2, 7, 60, 86_400] {
            let budget = budget(ttl, None).unwrap();
            let order = [
                t0,
                t0.plus(budget.renew_every()),
                budget.start_by(t0),
                budget.term_at(t0),
                budget.kill_at(t0),
                budget.ends_at(t0),
                t0.plus(Duration::from_secs(ttl)),
            ];
            assert!(order.is_sorted_by(|a, b| a < b), "{ttl}: {order:?}");
        }
    }

    #[test]
    fn a_default_grace_is_clamped_and_an_explicit_one_is_refused_with_the_arithmetic() {
        assert_eq!(budget(60, None).unwrap().grace(), Budget::DEFAULT_GRACE);
        assert!(budget(10, None).unwrap().grace() < Duration::from_secs(2));
        assert_eq!(budget(60, Some(5)).unwrap().grace(), Duration::from_secs(5));
        let refused = budget(60, Some(30)).unwrap_err();
        assert_eq!(refused.kind, Kind::Usage);
        assert!(refused.message.contains("leaves 11.9s"), "{refused}");
        assert_eq!(
            refused.hint.as_deref(),
            Some("--ttl 152s makes room for it")
        );
        assert!(budget(152, Some(30)).is_ok());
    }

    #[test]
    fn another_ttl_keeps_the_grace_as_far_as_it_has_room() {
        let ttl = |secs| Ttl::new(Duration::from_secs(secs)).unwrap();
        assert_eq!(
            budget(60, None).unwrap().for_ttl(ttl(10)),
            budget(10, None).unwrap()
        );
        assert_eq!(
            budget(10, Some(1)).unwrap().for_ttl(ttl(60)),
            budget(60, Some(1)).unwrap()
        );
    }
}
