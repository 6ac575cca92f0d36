//! All keys that a store knows, with their last runs: a line each.

use std::{fmt::Write as _, time::Duration};

use super::{
    Look, Now, age,
    columns::{Column, Gives, Row, table},
    history::RunOf,
    who,
};
use crate::lock::{End, Key};

/// The summary of a key.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Which.
    pub key: Key,
    /// Its last run, which may go on; `None` if hosts skipped only.
    pub last: Option<RunOf>,
    /// When its last successful run began, in ms since 1970.
    pub ok_ms: Option<u64>,
    /// How many runs are remembered.
    pub runs: usize,
    /// How often hosts skipped.
    pub skips: u64,
    /// How far its runs are usually apart, where enough of them are remembered.
    pub every: Option<Duration>,
    /// It has not begun for twice as long.
    pub late: bool,
}

/// So many runs tell how far they are usually apart.
const ENOUGH: usize = 5;

/// What runs more often is not run by a schedule.
const SHORTEST: Duration = Duration::from_secs(30);

impl Summary {
    /// Of a key's runs, the latest first.
    pub fn new(key: Key, runs: &[RunOf], skips: u64, now: &Now) -> Self {
        let runs: Vec<&RunOf> = runs.iter().filter(|run| run.is_run()).collect();
        let starts: Vec<u64> = runs.iter().filter_map(|run| run.started_ms).take(4 * ENOUGH).collect();
        let mut gaps: Vec<u64> = starts.windows(2).map(|pair| pair[0].saturating_sub(pair[1])).collect();
        gaps.sort_unstable();
        let every = (gaps.len() >= ENOUGH - 1).then(|| Duration::from_millis(gaps[gaps.len() / 2]));
        let every = every.filter(|every| *every >= SHORTEST);
        let last = runs.first().map(|run| (*run).clone());
        let idle = last.as_ref().filter(|run| run.end.is_some()).and_then(|run| run.started_ms);
        let idle = idle.map(|started| Duration::from_millis(now.unix_ms().saturating_sub(started)));
        Self {
            late: idle.zip(every).is_some_and(|(idle, every)| idle > 2 * every + Duration::from_secs(60)),
            ok_ms: runs.iter().find(|run| matches!(run.end, Some(End::Exited(0) | End::Released))).and_then(|run| run.started_ms),
            runs: runs.len(),
            key,
            last,
            skips,
            every,
        }
    }
}

const COLUMNS: [Column; 7] = [
    Column::new("KEY", 11).giving(Gives::Middle(9)),
    Column::new("LAST RUN", 15),
    Column::new("HOST", 4).giving(Gives::Middle(8)),
    Column::new("RAN", 6),
    Column::new("LAST OK", 7),
    Column::new("END", 3).giving(Gives::End(12)),
    Column::new("NOTE", 0).giving(Gives::End(12)),
];

/// The table.
pub fn view(keys: &[Summary], now: &Now, look: Look) -> String {
    let row = |one: &Summary| {
        let dash = || "-".to_owned();
        let ago = |ms: u64| age(Duration::from_millis(now.unix_ms().saturating_sub(ms)));
        let note = one.every.filter(|_| one.late).map(|every| format!("late: every {}", age(every))).unwrap_or_default();
        let last = one.last.as_ref();
        let style = if last.is_some_and(RunOf::is_bad) {
            "31"
        } else if one.late {
            "33"
        } else {
            ""
        };
        let cells = [
            who::clean(one.key.as_str(), 255),
            last.map_or_else(dash, |run| run.started(now)),
            last.map_or_else(dash, RunOf::host),
            last.map_or_else(dash, |run| run.ran(now)),
            one.ok_ms.map_or_else(dash, ago),
            last.map_or_else(|| "never ran".into(), RunOf::words),
            note,
        ];
        Row { cells, style }
    };
    let rows: Vec<Row<7>> = keys.iter().map(row).collect();
    table(&COLUMNS, &rows, look).into_iter().flat_map(|line| [line, "\n".into()]).collect()
}

const RUNS: [Column; 6] = [
    Column::new("STARTED", 15),
    Column::new("KEY", 8).giving(Gives::Middle(9)),
    Column::new("HOST", 4).giving(Gives::Middle(8)),
    Column::new("RAN", 6),
    Column::new("FENCE", 5).right(),
    Column::new("END", 3).giving(Gives::End(14)),
];

/// Runs of several keys, the latest first.
pub fn runs(runs: &[(Key, RunOf)], last: usize, now: &Now, look: Look) -> String {
    if runs.is_empty() {
        return "no such run is remembered\n".into();
    }
    let row = |(key, run): &(Key, RunOf)| {
        let fence = run.fence.map(|fence| who::fence(fence, std::iter::empty())).unwrap_or_default();
        Row { cells: [run.started(now), who::clean(key.as_str(), 255), run.host(), run.ran(now), fence, run.told()], style: run.style() }
    };
    let rows: Vec<Row<6>> = runs.iter().take(last).map(row).collect();
    let mut text: String = table(&RUNS, &rows, look).into_iter().flat_map(|line| [line, "\n".into()]).collect();
    if runs.len() > last {
        let _ = writeln!(text, "and {} older; -n {} shows all", runs.len() - last, runs.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;
    use crate::lock::Metadata;

    fn now() -> Now {
        Now::at("2026-11-20T02:04:01Z".parse().unwrap(), TimeZone::UTC)
    }

    fn run(ago: u64, end: End) -> RunOf {
        let started = now().unix_ms() - ago * 1000;
        RunOf {
            fence: None,
            metadata: Some(Metadata { host: Some("web1".into()), ..Metadata::default() }),
            started_ms: Some(started),
            ended_ms: Some(started + 5000),
            end: Some(end),
            why: None,
        }
    }

    #[test]
    fn a_key_that_ran_hourly_is_late_after_two_hours() {
        let hourly = |ago: u64| (0..6).map(|n| run(ago + n * 3600, End::Exited(u8::from(n == 0)))).collect::<Vec<_>>();
        let of = |ago| Summary::new(Key::new("job").unwrap(), &hourly(ago), 0, &now());
        assert!(!of(3700).late && of(8000).late && of(8000).every == Some(Duration::from_secs(3600)));
        assert_eq!(of(60).ok_ms, Some(now().unix_ms() - 3_660_000), "the last that was successful");
        let text = view(&[of(8000)], &now(), Look { width: Some(80), color: false });
        assert!(text.contains("exit 1") && text.contains("late: every 1h") && text.lines().all(|line| line.len() <= 80), "{text}");
        let few = Summary::new(Key::new("job").unwrap(), &hourly(8000)[..3], 0, &now());
        assert!(!few.late && few.every.is_none());
    }
}
