//! What `dlock list` shows people: a line per lock, in the terminal's width.

use std::time::Duration;

use super::{Lock, Look, Now, age, kept, who};
use crate::lock::{Holder, Mode, length};

/// A table of held locks.
pub fn view(locks: &[Lock], now: &Now, look: Look) -> String {
    let rows: Vec<Row> = locks.iter().map(|lock| Row::new(lock, now)).collect();
    let widest =
        |least: usize, column: fn(&Row) -> &str| rows.iter().map(|row| column(row).chars().count()).chain([least]).max().unwrap_or(least);
    let mut key = widest(11, |row| &row.key);
    let mut holder = widest(9, |row| &row.holder);
    let since = widest(7, |row| &row.since);
    let expires = widest(7, |row| &row.expires);
    let wait = widest(4, |row| &row.wait);
    let fence = widest(5, |row| &row.fence);
    if let Some(width) = look.width {
        // The key and the holder give way first, then the note.
        let fixed = since + expires + wait + fence + 5 * 2;
        let room = width.saturating_sub(fixed);
        holder = holder.min((room / 2).max(9)).min(room.saturating_sub(key.min(11))).max(9);
        key = key.min(room.saturating_sub(holder)).max(11);
    }
    let line = |row: &Row| {
        let start = format!(
            "{:<key$}  {:<holder$}  {:<since$}  {:<expires$}  {:>wait$}  {:>fence$}",
            who::cut(&row.key, key),
            who::cut(&row.holder, holder),
            row.since,
            row.expires,
            row.wait,
            row.fence
        );
        let room = look.width.map_or(usize::MAX, |width| width.saturating_sub(start.chars().count() + 2));
        let note = if room < 6 { String::new() } else { who::cut(&row.note, room) };
        format!("{start}  {note}").trim_end().to_owned()
    };
    let head = Row {
        key: "KEY".into(),
        holder: "HOLDER".into(),
        since: "SINCE".into(),
        expires: "EXPIRES".into(),
        wait: "WAIT".into(),
        fence: "FENCE".into(),
        note: "NOTE".into(),
    };
    let mut text = look.paint("1", &line(&head)) + "\n";
    for row in &rows {
        text += &line(row);
        text.push('\n');
    }
    text
}

/// The table on a screen of its own, over what was there before.
pub fn screen(locks: &[Lock], now: &Now, every: Duration, look: Look) -> String {
    let mut text = format!(
        "every {}, last at {}: {} held\n\n",
        length(every),
        now.clock(),
        locks.iter().filter(|lock| lock.refusal.is_none()).count()
    );
    if !locks.is_empty() {
        text += &view(locks, now, look);
    }
    format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"))
}

struct Row {
    key: String,
    holder: String,
    since: String,
    expires: String,
    wait: String,
    fence: String,
    note: String,
}

impl Row {
    fn new(lock: &Lock, now: &Now) -> Self {
        let state = &lock.state;
        if let Some(refusal) = &lock.refusal {
            return Self {
                key: who::clean(state.key.as_str(), 255),
                holder: "(free)".into(),
                since: refusal.began.map_or_else(|| "?".into(), age),
                expires: refusal.again_in.map_or_else(|| "?".into(), age),
                wait: state.waiters.len().to_string(),
                fence: refusal.fence.map_or_else(|| "-".into(), |fence| fence.to_string()),
                note: format!("{}: {}", kept::until(refusal, now), kept::why(refusal, now)),
            };
        }
        let first = state.holders.first();
        let metadata = first.and_then(|holder| holder.metadata.as_ref());
        let share = match first.map(|holder| holder.mode) {
            Some(Mode::Permits(most)) => format!(" {}/{most}", state.holders.len()),
            Some(Mode::Shared) => format!(" {} readers", state.holders.len()),
            _ => String::new(),
        };
        let holder = |holder: &Holder| match who::who(holder.metadata.as_ref()) {
            Some(who) => who,
            None if holder.foreign => "(foreign)".into(),
            None => "?".into(),
        };
        Self {
            key: who::clean(state.key.as_str(), 255) + &share,
            holder: first.map(holder).unwrap_or_default(),
            since: first.and_then(|holder| holder.held_for).map_or_else(|| "?".into(), age),
            expires: first.and_then(|holder| holder.expires_in).map_or_else(|| "?".into(), age),
            wait: state.waiters.len().to_string(),
            fence: first.and_then(|holder| holder.fence).map_or_else(|| "-".into(), |fence| fence.to_string()),
            note: who::note(metadata).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Fence, Key, LockState, Metadata, Waiter};

    fn lock(key: &str, who: (&str, &str), held: u64, left: u64, waiters: usize, fence: u64, note: Option<&str>) -> Lock {
        let metadata =
            Metadata { user: Some(who.0.into()), host: Some(who.1.into()), description: note.map(str::to_owned), ..Metadata::default() };
        Lock::from(LockState {
            key: Key::new(key).unwrap(),
            stored_as: key.into(),
            holders: vec![Holder {
                permit: None,
                mode: Mode::Exclusive,
                metadata: Some(metadata),
                fence: Some(Fence(fence)),
                foreign: false,
                detached: false,
                held_for: Some(Duration::from_secs(held)),
                renewed_ago: None,
                expires_in: Some(Duration::from_secs(left)),
                holds: 1,
                broken: None,
            }],
            waiters: vec![Waiter { metadata: None, waiting_for: None }; waiters],
            last_fence: None,
            nodes: Vec::new(),
        })
    }

    fn now() -> Now {
        Now::at("2026-11-20T02:04:01Z".parse().unwrap(), jiff::tz::TimeZone::UTC)
    }

    #[test]
    fn a_table() {
        let mut pool = lock("pool", ("app", "web1"), 12, 52, 0, 9, None);
        pool.state.holders[0].mode = Mode::Permits(3);
        pool.state.holders.push(pool.state.holders[0].clone());
        let locks = [
            lock("deploy", ("ana", "ops1"), 252, 48, 2, 77, Some("v2.3 rollout")),
            lock("nightly", ("app", "web3"), 3840, 57, 1, 1042, None),
            pool,
        ];
        let expected = "\
KEY          HOLDER     SINCE    EXPIRES  WAIT  FENCE  NOTE
deploy       ana@ops1   4m 12s   48s         2     77  \"v2.3 rollout\"
nightly      app@web3   1h 4m    57s         1   1042
pool 2/3     app@web1   12s      52s         0      9
";
        assert_eq!(view(&locks, &now(), Look::default()), expected);
    }

    #[test]
    fn a_narrow_terminal_cuts_and_a_file_does_not() {
        let locks = [lock(
            &"k".repeat(100),
            ("administrator", "a-very-long-host-name.example.org"),
            1,
            1,
            0,
            1_763_640_000_000_000,
            Some("a long note, longer than fits"),
        )];
        for width in [64, 80, 120] {
            let text = view(&locks, &now(), Look { width: Some(width), color: false });
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
        }
        assert!(view(&locks, &now(), Look::default()).contains(&"k".repeat(100)));
    }
}
