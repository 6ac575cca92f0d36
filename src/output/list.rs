//! The text of `dlock list`: one line per lock, in the terminal's width.

use std::{fmt::Write as _, time::Duration};

use super::{
    LockView, Now, TableStyle, age,
    columns::{Column, Cut, TableRow, grouped},
    holders, inspect, lock_view,
};
use crate::lock::{Holder, Mode, length};

const COLUMNS: [Column; 7] = [
    Column::new("KEY", 11).cut_by(Cut::Middle(9)),
    Column::new("HOLDER", 9).cut_by(Cut::Middle(8)),
    Column::new("SINCE", 7),
    Column::new("EXPIRES", 7),
    Column::new("WAIT", 4).right(),
    Column::new("FENCE", 5).right(),
    Column::new("NOTE", 0).cut_by(Cut::End(12)),
];

/// Returns the table of held locks, and of free locks that an earlier run denies: the headings, then
/// one group of lines per lock; nothing without locks.
pub fn groups(locks: &[LockView], now: &Now, style: TableStyle) -> Vec<Vec<String>> {
    if locks.is_empty() {
        return Vec::new();
    }
    let rows: Vec<TableRow<7>> = locks.iter().map(|lock| row(lock, now)).collect();
    grouped(&COLUMNS, &rows, style)
}

/// Returns a table for a window of `height` lines.
pub fn screen(
    count: &str,
    table: &[Vec<String>],
    now: &Now,
    every: Duration,
    height: usize,
) -> Vec<String> {
    let mut text = vec![
        format!("every {}, last at {}: {count}", length(every), now.clock()),
        String::new(),
    ];
    // The window's last line stays empty: a line feed there would scroll the header away.
    let room = height.saturating_sub(text.len() + 2).max(1);
    let all = table.iter().map(Vec::len).sum::<usize>();
    let (mut shown, mut left) = (0, if all > room + 1 { room } else { room + 1 });
    for lines in table {
        if lines.len() > left {
            break;
        }
        left -= lines.len();
        shown += 1;
        text.extend_from_slice(lines);
    }
    if shown < table.len() {
        text.push(format!("… {} more", table.len() - shown));
    }
    text
}

/// Returns the escape sequences that turn one screen into the next. Only changed lines are drawn.
pub fn redraw(before: &[String], after: &[String]) -> String {
    let mut text = String::new();
    for n in 0..after.len().max(before.len()) {
        let line = after.get(n).map_or("", String::as_str);
        if before.get(n).map(String::as_str) != Some(line) {
            let _ = write!(text, "\x1b[{};1H{line}\x1b[K", n + 1);
        }
    }
    if before.is_empty() {
        text = format!("\x1b[H\x1b[2J{text}");
    }
    text + &format!("\x1b[{};1H", after.len() + 1)
}

fn row(lock: &LockView, now: &Now) -> TableRow<7> {
    let state = &lock.state;
    let key = holders::clean(state.key.as_str(), 255);
    let (wait, unknown) = (state.waiters.len().to_string(), || "?".to_owned());
    if let Some(denial) = &lock.denial {
        let fence = denial.fence.map_or_else(
            || "-".into(),
            |fence| holders::fence(fence, std::iter::empty()),
        );
        let (since, expires) = (
            denial.began.map_or_else(unknown, age),
            denial.again_in.map_or_else(unknown, age),
        );
        let note = format!(
            "{}: {}",
            lock_view::until(denial, now),
            lock_view::why(denial, now)
        );
        return TableRow {
            cells: [key, "(free)".into(), since, expires, wait, fence, note],
            sgr: "",
        };
    }
    let first = state.holders.first();
    let share = match first.map(|holder| holder.mode) {
        Some(Mode::Permits(most)) => format!(" {}/{most}", state.holders.len()),
        Some(Mode::Shared) => format!(" {} readers", state.holders.len()),
        _ => String::new(),
    };
    let holder = |holder: &Holder| match holders::user_at_host(holder.metadata.as_ref()) {
        Some(who) => who,
        None if holder.foreign => "(foreign)".into(),
        None => "?".into(),
    };
    let late = state.holders.iter().any(inspect::is_late);
    let expires = first.map_or_else(unknown, |holder| {
        match (&holder.removal, holder.expires_in) {
            (Some(_), _) => "never".into(),
            (None, left) => left.map_or_else(unknown, age),
        }
    }) + if late { " LATE" } else { "" };
    let others = || state.holders.iter().filter_map(|holder| holder.fence);
    let cells = [
        key + &share,
        first.map(holder).unwrap_or_default(),
        first
            .and_then(|holder| holder.held_for)
            .map_or_else(unknown, age),
        expires,
        wait,
        first
            .and_then(|holder| holder.fence)
            .map_or_else(|| "-".into(), |fence| holders::fence(fence, others())),
        first
            .and_then(|holder| holders::note(holder.metadata.as_ref()))
            .unwrap_or_default(),
    ];
    TableRow {
        cells,
        sgr: if late { "33" } else { "" },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Fence, Key, LockState, Metadata, Waiter};

    fn lock(
        key: &str,
        who: (&str, &str),
        held: u64,
        left: u64,
        waiters: usize,
        fence: u64,
        note: Option<&str>,
    ) -> LockView {
        let metadata = Metadata {
            user: Some(who.0.into()),
            host: Some(who.1.into()),
            description: note.map(str::to_owned),
            ..Metadata::default()
        };
        LockView::from(LockState {
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
                removal: None,
                holds: 1,
                broken: None,
            }],
            waiters: vec![
                Waiter {
                    metadata: None,
                    mode: None,
                    waiting_for: None,
                    in_order: false
                };
                waiters
            ],
            last_fence: None,
            nodes: Vec::new(),
        })
    }

    fn now() -> Now {
        Now::at(
            "2026-11-20T02:04:01Z".parse().unwrap(),
            jiff::tz::TimeZone::UTC,
        )
    }

    fn view(locks: &[LockView], now: &Now, style: TableStyle) -> String {
        groups(locks, now, style).concat().join("\n") + "\n"
    }

    fn screen_of(locks: &[LockView], style: TableStyle, height: usize) -> Vec<String> {
        let table = groups(locks, &now(), style);
        screen("52 held", &table, &now(), Duration::from_secs(2), height)
    }

    #[test]
    fn a_table() {
        let mut pool = lock("pool", ("app", "web1"), 12, 52, 0, 9, None);
        pool.state.holders[0].mode = Mode::Permits(3);
        pool.state.holders.push(pool.state.holders[0].clone());
        let locks = [
            lock(
                "deploy",
                ("ana", "ops1"),
                252,
                48,
                2,
                77,
                Some("v2.3 rollout"),
            ),
            lock("nightly", ("app", "web3"), 3840, 57, 1, 1042, None),
            pool,
        ];
        let expected = "\
KEY          HOLDER     SINCE    EXPIRES  WAIT  FENCE  NOTE
deploy       ana@ops1   4m 12s   48s         2     77  \"v2.3 rollout\"
nightly      app@web3   1h 4m    57s         1   1042
pool 2/3     app@web1   12s      52s         0      9
";
        assert_eq!(view(&locks, &now(), TableStyle::default()), expected);
    }

    #[test]
    fn a_narrow_terminal_cuts_names_in_the_middle_and_loses_nothing() {
        let long = (1_763_640_000_000_000, Some("a note"));
        let wide = lock(
            "中文锁名字很长的一个名字",
            ("ana", "web1"),
            1,
            1,
            0,
            7,
            None,
        );
        let family = lock("👨\u{200d}👩\u{200d}👧", ("ana", "web1"), 1, 1, 0, 7, None);
        let locks = [
            lock(
                &"k".repeat(100),
                ("administrator", "a-very-long-host-name.example.org"),
                1200,
                1200,
                0,
                long.0,
                long.1,
            ),
            wide,
            family,
        ];
        for most in [50, 64, 80, 120] {
            let text = view(
                &locks,
                &now(),
                TableStyle {
                    width: Some(most),
                    color: false,
                },
            );
            assert!(
                text.lines()
                    .all(|line| super::super::columns::width(line) <= most),
                "{most}:\n{text}"
            );
            assert!(
                text.contains("\"a note\"") && text.contains("…0000") && text.contains("k…k"),
                "{most}:\n{text}"
            );
        }
        let text = view(&locks, &now(), TableStyle::default());
        assert!(
            text.contains(&"k".repeat(100))
                && text.lines().nth(2).is_some_and(|line| line.len() < 150),
            "{text}"
        );
    }

    #[test]
    fn a_screen_fits_its_window_and_draws_what_changed() {
        let locks: Vec<LockView> = (0..52)
            .map(|n| lock(&format!("job{n:02}"), ("app", "web1"), 12, 52, 0, 9, None))
            .collect();
        let style = TableStyle {
            width: Some(80),
            color: false,
        };
        let first = screen_of(&locks, style, 24);
        assert!(
            first.len() <= 23
                && first[2].starts_with("KEY")
                && first.last().is_some_and(|line| line.ends_with(" more")),
            "{first:#?}"
        );
        let shown = first.iter().filter(|line| line.starts_with("job")).count();
        assert_eq!(first.last(), Some(&format!("… {} more", 52 - shown)));
        // A note on its own line does not change the number of locks.
        let noted: Vec<LockView> = (0..9)
            .map(|n| {
                lock(
                    &format!("job{n}"),
                    ("app", "web1"),
                    12,
                    52,
                    0,
                    9,
                    Some("a note"),
                )
            })
            .collect();
        let narrow = TableStyle {
            width: Some(50),
            color: false,
        };
        let small = screen_of(&noted, narrow, 10);
        assert!(
            small.len() <= 9
                && small[4] == "  \"a note\""
                && small.last().is_some_and(|line| line == "… 7 more"),
            "{small:#?}"
        );
        let next = screen_of(&locks[1..], style, 24);
        assert!(redraw(&[], &first).starts_with("\x1b[H\x1b[2J"));
        assert_eq!(
            redraw(&first, &first),
            format!("\x1b[{};1H", first.len() + 1)
        );
        assert!(!redraw(&first, &next).contains("KEY") && redraw(&first, &next).contains("job01"));
    }

    #[test]
    fn a_late_holder_is_marked() {
        let mut one = lock("nightly", ("app", "web3"), 3840, 24, 0, 1042, None);
        one.state.holders[0].renewed_ago = Some(Duration::from_secs(36));
        assert!(view(&[one], &now(), TableStyle::default()).contains("24s LATE"));
    }
}
