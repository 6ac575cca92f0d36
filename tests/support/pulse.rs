//! Measures stalls of this machine: a thread sleeps repeatedly, and records how much too long each
//! sleep took.
//!
//! The kernel's pressure data is an average, and does not include a virtual machine's stalls on a
//! busy host.

use std::{
    sync::{LazyLock, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

const BEAT: Duration = Duration::from_millis(20);
const REMEMBERED: Duration = Duration::from_secs(10);

/// The delays with their times. A longer delay replaces the earlier ones.
static LATE: LazyLock<Mutex<Vec<(Instant, Duration)>>> = LazyLock::new(|| {
    thread::spawn(beat);
    Mutex::default()
});

fn beat() {
    loop {
        let asked = Instant::now();
        thread::sleep(BEAT);
        let late = asked.elapsed().saturating_sub(BEAT);
        let mut noted = LATE.lock().unwrap_or_else(PoisonError::into_inner);
        noted.retain(|(when, other)| when.elapsed() < REMEMBERED && *other > late);
        noted.push((Instant::now(), late));
    }
}

/// Returns the longest delay of the last seconds.
pub fn worst() -> Duration {
    LATE.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .map(|(_, late)| *late)
        .max()
        .unwrap_or_default()
}
