//! By how much this machine is late: a thread sleeps again and again, and notes by how much longer than it asked for.
//!
//! The pressure that the kernel tells of is an average, and knows nothing of a virtual machine whose host had other things to do.

use std::{
    sync::{LazyLock, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

const BEAT: Duration = Duration::from_millis(20);
const REMEMBERED: Duration = Duration::from_secs(10);

/// When it was late, and by how much: a later and longer one replaces those before it.
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

/// The longest delay of the last seconds.
pub fn worst() -> Duration {
    LATE.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(_, late)| *late).max().unwrap_or_default()
}
