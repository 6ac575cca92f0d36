//! The programs under the locks: they record their start and end, in ns of the monotonic clock.

use std::{fs, path::Path, thread, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// Returns the current time, comparable between processes.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or_default() * 1_000_000_000
        + u64::try_from(now.tv_nsec).unwrap_or_default()
}

/// Records its start, works for this many ms, and records its end.
pub fn stamp(file: &str, ms: &str) {
    let begin = now_ns();
    let ms: u64 = ms.parse().expect("milliseconds");
    if ms > 0 {
        thread::sleep(Duration::from_millis(ms));
    }
    fs::write(file, format!("{begin} {}", now_ns())).expect("the stamp");
}

/// Records its start, waits until `gate` exists, and records its end.
pub fn end_with(gate: &str, file: &str) {
    let begin = now_ns();
    while !Path::new(gate).exists() {
        thread::sleep(Duration::from_millis(5));
    }
    fs::write(file, format!("{begin} {}", now_ns())).expect("the stamp");
}

/// Returns when the program with this stamp started and ended.
pub fn read(file: &Path) -> Option<(u64, u64)> {
    let text = fs::read_to_string(file).ok()?;
    let (begin, end) = text.split_once(' ')?;
    Some((begin.parse().ok()?, end.parse().ok()?))
}
