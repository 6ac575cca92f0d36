//! The text of `dlock list --all`: one line per key that the store knows, with its last run.

use std::{fmt::Write as _, time::Duration};

use super::{
    Now, TableStyle, age,
    columns::{Column, Cut, TableRow, grouped, table},
    history::RunOf,
    holders,
    usual::is_ok,
};
use crate::lock::Key;

/// The summary of a key.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The key.
    pub key: Key,
    /// Its last run, which may still be running; `None` if there are only skips.
    pub last: Option<RunOf>,
    /// Start of its last successful run, in ms since 1970.
    pub ok_ms: Option<u64>,
    /// Number of runs in the history.
    pub runs: usize,
    /// Number of skips on all hosts.
    pub skips: u64,
    /// Median time between starts, if the history has enough runs.
    pub every: Option<Duration>,
    /// Whether the last start is more than twice that time ago.
    pub late: bool,
}

/// Runs needed to estimate a period.
const MIN_RUNS: usize = 5;

/// Keys with a shorter period are not run by a schedule.
const MIN_PERIOD: Duration = Duration::from_secs(30);

impl Summary {
    /// Summarizes a key's `runs`, the latest first.
    pub fn new(key: Key, runs: &[RunOf], skips: u64, now: &Now) -> Self {
        let runs: Vec<&RunOf> = runs.iter().filter(|run| run.is_run()).collect();
        let starts: Vec<u64> = runs
            .iter()
            .filter_map(|run| run.started_ms)
            .take(4 * MIN_RUNS)
            .collect();
        let mut gaps: Vec<u64> = starts
            .windows(2)
            .map(|pair| pair[0].saturating_sub(pair[1]))
            .collect();
        gaps.sort_unstable();
        let every =
            (gaps.len() >= MIN_RUNS - 1).then(|| Duration::from_millis(gaps[gaps.len() / 2]));
        let every = every.filter(|every| *every >= MIN_PERIOD);
        let last = runs.first().map(|run| (*run).clone());
        let idle = last
            .as_ref()
            .filter(|run| run.end.is_some())
            .and_then(|run| run.started_ms);
        let idle = idle.map(|started| Duration::from_millis(now.unix_ms().saturating_sub(started)));
        Self {
            late: idle
                .zip(every)
                .is_some_and(|(idle, every)| idle > 2 * every + Duration::from_secs(60)),
            ok_ms: runs
                .iter()
                .find(|run| is_ok(run))
                .and_then(|run| run.started_ms),
            runs: runs.len(),
            key,
            last,
            skips,
            every,
        }
    }
}

impl Summary {
    /// Whether the last run ended badly.
    pub fn failed(&self) -> bool {
        self.last.as_ref().is_some_and(RunOf::is_bad)
    }

    /// Returns the start of the last run, in ms since 1970.
    pub fn started_ms(&self) -> Option<u64> {
        self.last.as_ref()?.started_ms
    }
}

const COLUMNS: [Column; 7] = [
    Column::new("KEY", 11).cut_by(Cut::Middle(9)),
    Column::new("LAST RUN", 15),
    Column::new("HOST", 4).cut_by(Cut::Middle(8)),
    Column::new("RAN", 6),
    Column::new("LAST OK", 7),
    Column::new("END", 3).cut_by(Cut::End(12)),
    Column::new("NOTE", 0).cut_by(Cut::End(12)),
];

/// Returns the table of keys: the headings, then one group of lines per key; nothing without keys.
pub fn groups(keys: &[Summary], now: &Now, style: TableStyle) -> Vec<Vec<String>> {
    if keys.is_empty() {
        return Vec::new();
    }
    let row = |one: &Summary| {
        let dash = || "-".to_owned();
        let ago = |ms: u64| age(Duration::from_millis(now.unix_ms().saturating_sub(ms)));
        let note = one
            .every
            .filter(|_| one.late)
            .map(|every| format!("late: every {}", age(every)))
            .unwrap_or_default();
        let last = one.last.as_ref();
        let sgr = if one.failed() {
            "31"
        } else if one.late {
            "33"
        } else {
            ""
        };
        let cells = [
            holders::clean(one.key.as_str(), 255),
            last.map_or_else(dash, |run| run.started(now)),
            last.map_or_else(dash, RunOf::host),
            last.map_or_else(dash, |run| run.ran(now)),
            one.ok_ms.map_or_else(dash, ago),
            last.map_or_else(|| "never ran".into(), RunOf::outcome),
            note,
        ];
        TableRow { cells, sgr }
    };
    let rows: Vec<TableRow<7>> = keys.iter().map(row).collect();
    grouped(&COLUMNS, &rows, style)
}

const RUNS: [Column; 6] = [
    Column::new("STARTED", 15),
    Column::new("KEY", 8).cut_by(Cut::Middle(9)),
    Column::new("HOST", 4).cut_by(Cut::Middle(8)),
    Column::new("RAN", 6),
    Column::new("FENCE", 5).right(),
    Column::new("END", 3).cut_by(Cut::End(14)),
];

/// Returns the table of at most `last` runs of several keys, the latest first.
pub fn runs(runs: &[(Key, RunOf)], last: usize, now: &Now, style: TableStyle) -> String {
    if runs.is_empty() {
        return super::history::NONE_SUCH.into();
    }
    let row = |(key, run): &(Key, RunOf)| {
        let fence = run
            .fence
            .map(|fence| holders::fence(fence, std::iter::empty()))
            .unwrap_or_default();
        TableRow {
            cells: [
                run.started(now),
                holders::clean(key.as_str(), 255),
                run.host(),
                run.ran(now),
                fence,
                run.outcome_and_anyway(),
            ],
            sgr: run.sgr(),
        }
    };
    let rows: Vec<TableRow<6>> = runs.iter().take(last).map(row).collect();
    let mut text: String = table(&RUNS, &rows, style)
        .into_iter()
        .flat_map(|line| [line, "\n".into()])
        .collect();
    if runs.len() > last {
        let _ = writeln!(
            text,
            "and {} older; -n {} shows all",
            runs.len() - last,
            runs.len()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;
    use crate::lock::{End, Metadata, RunOutcome};

    fn now() -> Now {
        Now::at("2026-11-20T02:04:01Z".parse().unwrap(), TimeZone::UTC)
    }

    fn run(ago: u64, end: End) -> RunOf {
        let started = now().unix_ms() - ago * 1000;
        RunOf {
            fence: None,
            metadata: Some(Metadata {
                host: Some("web1".into()),
                ..Metadata::default()
            }),
            started_ms: Some(started),
            ended_ms: Some(started + 5000),
            end: Some(end),
            outcome: RunOutcome::default(),
        }
    }

    #[test]
    fn a_key_that_ran_hourly_is_late_after_two_hours() {
        let hourly = |ago: u64| {
            (0..6)
                .map(|n| run(ago + n * 3600, End::Exited(u8::from(n == 0))))
                .collect::<Vec<_>>()
        };
        let of = |ago| Summary::new(Key::new("job").unwrap(), &hourly(ago), 0, &now());
        assert!(
            !of(3700).late && of(8000).late && of(8000).every == Some(Duration::from_secs(3600))
        );
        assert_eq!(
            of(60).ok_ms,
            Some(now().unix_ms() - 3_660_000),
            "the last that was successful"
        );
        let style = TableStyle {
            width: Some(80),
            color: false,
        };
        let text = groups(&[of(8000)], &now(), style).concat().join("\n");
        assert!(
            text.contains("exit 1")
                && text.contains("late: every 1h")
                && text.lines().all(|line| line.len() <= 80),
            "{text}"
        );
        let few = Summary::new(Key::new("job").unwrap(), &hourly(8000)[..3], 0, &now());
        assert!(!few.late && few.every.is_none());
    }
}
