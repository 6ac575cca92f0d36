//! The drawing of `history --timeline`: which host ran when, how each run ended, and which hosts
//! skipped.

use std::fmt::Write as _;

use super::{
    Now, TableStyle,
    columns::{pad, width},
    history::RunOf,
    holders,
};
use crate::lock::{End, SkipCount};

/// A run in the drawing.
struct Bar {
    host: String,
    from: u64,
    to: u64,
    mark: char,
}

/// The mark at a run's end, its meaning, and its style.
const MARKS: [(char, &str, &str); 8] = [
    ('=', "ran", "32"),
    ('>', "runs", "33"),
    ('x', "failed", "31"),
    ('T', "timed out", "31"),
    ('L', "lost", "31"),
    ('B', "broken", "31"),
    ('E', "expired", "31"),
    ('?', "ended in another way", "31"),
];

fn mark(run: &RunOf) -> char {
    let timed_out = run
        .outcome
        .reason()
        .is_some_and(|why| why.starts_with("max runtime"));
    match &run.end {
        None => '>',
        Some(_) if timed_out => 'T',
        Some(End::Exited(0) | End::Released | End::Forgotten) => '=',
        Some(End::Exited(_) | End::Signalled(_) | End::NotStarted) => 'x',
        Some(End::Lost) => 'L',
        Some(End::Broken) => 'B',
        Some(End::Expired) => 'E',
        Some(End::Other(_)) => '?',
    }
}

/// A time axis on which a second and a day are both visible: the distance of two events is the
/// logarithm of their time difference.
struct Axis {
    /// The events in ms since 1970, with their positions from 0 to 1.
    at: Vec<(u64, f64)>,
    room: usize,
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "columns of a drawing"
)]
impl Axis {
    fn new(mut events: Vec<u64>, room: usize) -> Self {
        events.sort_unstable();
        events.dedup();
        let mut sum = 0.0;
        let mut at = vec![(events[0], 0.0)];
        for pair in events.windows(2) {
            sum += (1.0 + (pair[1] - pair[0]) as f64 / 1000.0).ln().max(0.5);
            at.push((pair[1], sum));
        }
        for (_, position) in &mut at {
            *position /= sum.max(0.1);
        }
        Self { at, room }
    }

    fn column(&self, ms: u64) -> usize {
        let position = self
            .at
            .iter()
            .rev()
            .find(|(event, _)| *event <= ms)
            .map_or(0.0, |(_, position)| *position);
        ((position * (self.room - 1) as f64) as usize).min(self.room - 1)
    }

    /// Returns the time of the event that is nearest to this column.
    fn nearest_event(&self, column: usize) -> u64 {
        let position = column as f64 / (self.room - 1) as f64;
        self.at
            .iter()
            .min_by(|a, b| (a.1 - position).abs().total_cmp(&(b.1 - position).abs()))
            .map_or(0, |(event, _)| *event)
    }
}

/// Returns the drawing of the latest runs, the oldest at the left.
pub fn view(
    (runs, none): (&[RunOf], &str),
    last: usize,
    skips: &[SkipCount],
    now: &Now,
    style: TableStyle,
) -> String {
    let most = style.width.unwrap_or(80);
    let until = now.unix_ms();
    let bar = |run: &RunOf| {
        let from = run.started_ms?;
        let to = if run.end.is_none() {
            until
        } else {
            run.ended_ms.unwrap_or(from)
        };
        Some(Bar {
            host: run.host(),
            from,
            to: to.max(from),
            mark: mark(run),
        })
    };
    let mut bars: Vec<Bar> = runs
        .iter()
        .filter(|run| run.is_run())
        .filter_map(bar)
        .collect();
    let mut hosts: Vec<String> = bars
        .iter()
        .map(|bar| bar.host.clone())
        .chain(skips.iter().map(|skips| holders::clean(&skips.host, 20)))
        .collect();
    hosts.sort();
    hosts.dedup();
    let skipped = |host: &String| {
        let count: u64 = skips
            .iter()
            .filter(|skips| holders::clean(&skips.host, 20) == *host)
            .map(|skips| skips.count)
            .sum();
        if count > 0 {
            format!("  skipped {count}")
        } else {
            String::new()
        }
    };
    let name = hosts.iter().map(|host| width(host)).max().unwrap_or(0);
    let suffix = hosts
        .iter()
        .map(|host| width(&skipped(host)))
        .max()
        .unwrap_or(0);
    let room = most.saturating_sub(name + 3 + suffix).max(20);
    // Each run needs a column and a gap.
    let shown = bars.len().min(last).min(room / 2);
    let older = bars.len() - shown;
    bars.truncate(shown);
    if bars.is_empty() {
        return none.into();
    }
    let axis = Axis::new(
        bars.iter()
            .flat_map(|bar| [bar.from, bar.to])
            .chain([until])
            .collect(),
        room,
    );
    let mut text = String::new();
    for host in &hosts {
        let line = row(&bars, host, &axis, style);
        let _ = writeln!(text, "{} |{line}|{}", pad(host, name), skipped(host));
    }
    let _ = writeln!(text, "{:name$}  {}", "", labels(&axis, now));
    let used = MARKS
        .iter()
        .filter(|(mark, ..)| bars.iter().any(|bar| bar.mark == *mark));
    let legend: Vec<String> = used
        .map(|(mark, means, sgr)| format!("{} {means}", style.paint(sgr, &mark.to_string())))
        .collect();
    let older = if older > 0 {
        format!("   and {older} older")
    } else {
        String::new()
    };
    let _ = writeln!(
        text,
        "{}{older}   (time is not to scale)",
        legend.join("   ")
    );
    text
}

fn row(bars: &[Bar], host: &str, axis: &Axis, style: TableStyle) -> String {
    let mut cells = vec!['.'; axis.room];
    // The latest run is drawn last, over older ones.
    for bar in bars.iter().rev().filter(|bar| bar.host == host) {
        let (from, to) = (axis.column(bar.from), axis.column(bar.to));
        for cell in &mut cells[from..=to] {
            *cell = '=';
        }
        cells[to] = bar.mark;
    }
    let paint = |cell: &char| {
        let sgr = MARKS
            .iter()
            .find(|(mark, ..)| mark == cell)
            .map_or("2", |(.., sgr)| sgr);
        style.paint(sgr, &cell.to_string())
    };
    cells.iter().map(paint).collect()
}

/// Returns the labels of the axis: its start, its middle, and now.
fn labels(axis: &Axis, now: &Now) -> String {
    let label = |column: usize| now.local(axis.nearest_event(column));
    let (first, last) = (label(0), label(axis.room - 1));
    let middle = label(axis.room / 2);
    let taken = width(&first) + width(&middle) + width(&last);
    if taken + 4 > axis.room {
        return format!(
            "{first}{}{last}",
            " ".repeat(
                axis.room
                    .saturating_sub(width(&first) + width(&last))
                    .max(1)
            )
        );
    }
    let before = (axis.room / 2)
        .saturating_sub(width(&first) + width(&middle) / 2)
        .max(1);
    let after = axis.room.saturating_sub(taken + before).max(1);
    format!(
        "{first}{}{middle}{}{last}",
        " ".repeat(before),
        " ".repeat(after)
    )
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;
    use crate::lock::{Fence, Metadata, RunOutcome};
    use crate::output::history::NONE;

    fn now() -> Now {
        Now::at("2026-11-20T02:04:01Z".parse().unwrap(), TimeZone::UTC)
    }

    fn run(host: &str, ago: u64, ran: u64, end: Option<End>) -> RunOf {
        let started = now().unix_ms() - ago * 1000;
        RunOf {
            fence: Some(Fence(ago)),
            metadata: Some(Metadata {
                host: Some(host.into()),
                ..Metadata::default()
            }),
            started_ms: Some(started),
            ended_ms: end.is_some().then_some(started + ran * 1000),
            end,
            outcome: RunOutcome::default(),
        }
    }

    #[test]
    fn seconds_and_days_are_both_visible() {
        let runs = [
            run("web3", 60, 0, None),
            run("web1", 70, 1, Some(End::Exited(1))),
            run("web2", 700, 300, Some(End::Exited(0))),
            run("web1", 90_000, 2, Some(End::Lost)),
            run("web1", 864_000, 40_000, Some(End::Broken)),
        ];
        let skips = [SkipCount {
            host: "web5".into(),
            count: 4,
            since_ms: None,
            last_ms: None,
            reason: "busy".into(),
        }];
        let text = view(
            (&runs, NONE),
            20,
            &skips,
            &now(),
            TableStyle {
                width: Some(80),
                color: false,
            },
        );
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| width(line) <= 80), "{text}");
        assert!(
            lines[0].starts_with("web1 |=")
                && ['B', 'L', 'x']
                    .iter()
                    .all(|mark| lines[0].matches(*mark).count() == 1),
            "{text}"
        );
        assert!(
            lines[1].matches('=').count() > 5
                && lines[2].contains(">|")
                && lines[3].ends_with("|  skipped 4"),
            "{text}"
        );
        assert!(
            lines[5].contains("B broken") && !lines[5].contains("expired"),
            "{text}"
        );
        let colored = view(
            (&runs, NONE),
            20,
            &skips,
            &now(),
            TableStyle {
                width: Some(80),
                color: true,
            },
        );
        assert!(
            colored.contains("\x1b[31mx\x1b[0m") && colored.contains("\x1b[32m="),
            "{colored}"
        );
        assert_eq!(
            view((&[], NONE), 20, &[], &now(), TableStyle::default()),
            "no runs are remembered\n"
        );
    }
}
