//! The clock that leases are counted by, and the only place that sleeps.

use std::{future::Future, time::Duration};

use async_trait::async_trait;

use crate::lock::BootTime;

/// A clock that goes on while the machine is suspended, and can be waited on.
#[async_trait(?Send)]
pub trait Clock {
    /// Returns the present time.
    fn now(&self) -> BootTime;

    /// Waits until `when` has come. Cancel safe. May return late, by up to a second after a
    /// suspend: check [`Clock::now`].
    async fn sleep_until(&self, when: BootTime);
}

/// The longest that a sleep goes on without a look at the clock.
const STEP: Duration = Duration::from_secs(1);

/// `CLOCK_BOOTTIME` of this host.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl BootClock {
    /// Returns the present time, for code that needs no other clock (the guardian).
    pub fn read() -> BootTime {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
        BootTime::from_boot(Duration::new(seconds, nanos))
    }

    /// Returns the wall clock's time since the Unix epoch: for comparison with other clocks, never
    /// for a lease.
    pub fn wall() -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Duration::new(
            u64::try_from(now.tv_sec).unwrap_or_default(),
            u32::try_from(now.tv_nsec).unwrap_or_default(),
        )
    }
}

/// Returns this host's calendar time in ms since 1970: for people to read, never to judge a lease
/// by.
pub fn wall_ms() -> u64 {
    u64::try_from(BootClock::wall().as_millis()).unwrap_or(u64::MAX)
}

#[async_trait(?Send)]
impl Clock for BootClock {
    fn now(&self) -> BootTime {
        Self::read()
    }

    async fn sleep_until(&self, when: BootTime) {
        // Tokio's timers stand still while the machine is suspended. Short steps keep the delay
        // after a suspend short.
        let mut left = when.since(Self::read());
        while !left.is_zero() {
            let step = left.min(STEP);
            #[allow(clippy::disallowed_methods)] // the one place
            tokio::time::sleep(step).await;
            left = left.saturating_sub(step).min(when.since(Self::read()));
        }
    }
}

/// Runs `work` for at most until `until`; `None` if the time ran out, which drops `work`.
pub async fn bounded<T>(
    clock: &dyn Clock,
    until: BootTime,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = clock.sleep_until(until) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, time::SystemTime};

    use tokio::time::{advance, timeout};

    use super::*;

    /// A paused runtime's timers stand still while the thread sleeps, as all timers do in a
    /// suspend.
    #[tokio::test(start_paused = true)]
    async fn a_deadline_during_a_suspend_fires_within_a_second() {
        let when = BootClock::read().plus(Duration::from_millis(1500));
        let mut sleep = pin!(BootClock.sleep_until(when));
        assert!(
            timeout(Duration::ZERO, &mut sleep).await.is_err(),
            "it is too early"
        );
        std::thread::sleep(Duration::from_millis(1600));
        advance(STEP + Duration::from_millis(1)).await;
        assert!(timeout(Duration::ZERO, &mut sleep).await.is_ok(), "late");
    }

    #[test]
    #[allow(clippy::disallowed_methods)] // compares the clocks
    fn the_wall_clock_is_the_systems() {
        let before = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
        let ours = [u128::from(wall_ms()), BootClock::wall().as_millis()];
        let after = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
        assert!(
            ours.iter().all(|ms| (before..=after).contains(ms)),
            "{ours:?} not in {before} to {after}"
        );
    }
}
