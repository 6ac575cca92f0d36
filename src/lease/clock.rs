//! The clock that leases are counted by, and the only place that sleeps.

use std::{
    future::Future,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;

use crate::lock::BootTime;

/// A clock that goes on while the machine is suspended, and can be waited on.
#[async_trait(?Send)]
pub trait Clock {
    /// Now.
    fn now(&self) -> BootTime;

    /// Waits until `when` has come. Cancel safe. May return late, after a suspend for example: check [`Clock::now`].
    async fn sleep_until(&self, when: BootTime);
}

/// `CLOCK_BOOTTIME` of this host.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl BootClock {
    /// Now, for code that has no use for a clock of another kind (the guardian).
    pub fn read() -> BootTime {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
        BootTime::from_boot(Duration::new(seconds, nanos))
    }

    /// The wall clock, since the Unix epoch: for comparing it with others', never for a lease.
    pub fn wall() -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Duration::new(u64::try_from(now.tv_sec).unwrap_or_default(), u32::try_from(now.tv_nsec).unwrap_or_default())
    }
}

/// This host's calendar time in ms since 1970: for people to read, never to judge a lease by.
#[allow(clippy::disallowed_methods)] // the one place
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[async_trait(?Send)]
impl Clock for BootClock {
    fn now(&self) -> BootTime {
        Self::read()
    }

    async fn sleep_until(&self, when: BootTime) {
        let left = when.since(Self::read());
        #[allow(clippy::disallowed_methods)] // the one place
        tokio::time::sleep(left).await;
    }
}

/// Runs `work` for at most until `until`; `None` if the time ran out, which drops `work`.
pub async fn bounded<T>(clock: &dyn Clock, until: BootTime, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = clock.sleep_until(until) => None,
    }
}
