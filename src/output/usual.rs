//! What the runs of a key were like: the last one, the last success, and the usual length.

use std::{fmt, time::Duration};

use super::{Now, age, history::RunOf};
use crate::lock::End;

/// How many successful runs are compared.
const RUNS: usize = 20;
/// How many are needed to tell what is usual.
const ENOUGH: usize = 5;

/// Whether a run was successful, as far as is known.
pub(super) fn is_ok(run: &RunOf) -> bool {
    matches!(run.end, Some(End::Exited(0) | End::Released))
}

/// The earlier runs of a key, in short.
#[derive(Clone, Debug, Default)]
pub struct EarlierRuns {
    /// The last run that ended.
    pub last: Option<RunOf>,
    /// The start of the last successful run, in ms since 1970.
    pub ok_ms: Option<u64>,
    /// How long its runs usually take.
    pub usual: Option<Usual>,
}

impl EarlierRuns {
    /// Returns `runs` in short, the latest first.
    pub fn of(runs: &[RunOf]) -> Self {
        let ended = |run: &&RunOf| run.is_run() && run.end.is_some();
        Self {
            last: runs.iter().find(ended).cloned(),
            ok_ms: runs
                .iter()
                .find(|run| is_ok(run))
                .and_then(|run| run.started_ms),
            usual: Usual::of(runs),
        }
    }

    /// Returns what `inspect` tells, with titles. Of a held lock it tells whether the hold is
    /// unusually long.
    pub(super) fn rows(&self, free: bool, now: &Now) -> Vec<(&'static str, String)> {
        let last = self.last.as_ref().filter(|_| free).map(|last| {
            let (started, host, ran) = (last.started(now), last.host(), last.ran(now));
            format!("{started} {host}, {ran}, {}", last.outcome_and_anyway())
        });
        // Of a free lock, the last run tells by itself that it was successful.
        let ok = self
            .ok_ms
            .filter(|_| !(free && self.last.as_ref().is_some_and(is_ok)));
        let ok = ok.map(|ok| age(Duration::from_millis(now.unix_ms().saturating_sub(ok))));
        let usual = match (self.usual, ok) {
            (Some(usual), Some(ok)) => Some(("usual", format!("{usual}, last ok {ok} ago"))),
            (Some(usual), None) => Some(("usual", usual.to_string())),
            (None, Some(ok)) => Some(("last ok", format!("{ok} ago"))),
            (None, None) => None,
        };
        let last = last.map(|last| ("last run", last));
        last.into_iter().chain(usual).collect()
    }
}

/// The usual length of a run: nine of ten successful runs are between both lengths, or outside by
/// one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usual {
    /// The length of the shorter runs.
    pub least: Duration,
    /// The length of the longer runs.
    pub most: Duration,
}

impl Usual {
    /// Returns what is usual in `runs`, the latest first; `None` if too few were successful.
    pub fn of(runs: &[RunOf]) -> Option<Self> {
        let mut lengths: Vec<u64> = runs
            .iter()
            .filter(|run| is_ok(run))
            .filter_map(|run| run.ran_ms(0))
            .take(RUNS)
            .collect();
        lengths.sort_unstable();
        let outliers = lengths.len() / 10;
        let usual = lengths.get(outliers..lengths.len() - outliers)?;
        match usual {
            [least, .., most] if lengths.len() >= ENOUGH => Some(Self {
                least: Duration::from_millis(*least),
                most: Duration::from_millis(*most),
            }),
            _ => None,
        }
    }
}

impl fmt::Display for Usual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = (age(self.least), age(self.most));
        if self.most < Duration::from_secs(1) {
            f.write_str("under 1s")
        } else if least == most {
            f.write_str(&most)
        } else {
            write!(f, "{least} to {most}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::RunOutcome;

    fn runs(lengths: &[u64]) -> Vec<RunOf> {
        lengths
            .iter()
            .map(|seconds| RunOf {
                fence: None,
                metadata: None,
                started_ms: Some(5),
                ended_ms: Some(5 + seconds * 1000),
                end: Some(End::Exited(u8::from(*seconds == 99))),
                outcome: RunOutcome::default(),
            })
            .collect()
    }

    fn usual(lengths: &[u64]) -> Option<String> {
        Usual::of(&runs(lengths)).map(|usual| usual.to_string())
    }

    #[test]
    fn a_held_lock_tells_what_is_usual_and_a_free_one_its_last_run() {
        let now = Now::at(
            "1970-01-01T01:00:00Z".parse().unwrap(),
            jiff::tz::TimeZone::UTC,
        );
        let rows = |lengths: &[u64], free| EarlierRuns::of(&runs(lengths)).rows(free, &now);
        let five = [40, 50, 60, 70, 120];
        assert_eq!(
            rows(&five, false),
            [("usual", "40s to 2m, last ok 59m 59s ago".into())]
        );
        let [last, usual] = &rows(&five, true)[..] else {
            panic!("two rows");
        };
        assert!(last.1.ends_with("?, 40s, ok"), "{last:?}");
        assert_eq!(usual.1, "40s to 2m", "the last run was ok");
        assert_eq!(rows(&[99, 40], false), [("last ok", "59m 59s ago".into())]);
        assert_eq!(rows(&[99, 40], true).len(), 2, "the last run failed");
        assert_eq!(rows(&[], true), []);
    }

    #[test]
    fn the_usual_length_needs_five_successes_and_leaves_out_the_rare() {
        assert_eq!(usual(&[40, 50, 60, 70]), None);
        assert_eq!(usual(&[40, 50, 60, 70, 99]), None, "99 failed");
        assert_eq!(usual(&[40, 50, 60, 70, 120]).as_deref(), Some("40s to 2m"));
        assert_eq!(usual(&[7; 5]).as_deref(), Some("7s"));
        assert_eq!(usual(&[0; 5]).as_deref(), Some("under 1s"));
        let mut hourly = [60; 10];
        (hourly[3], hourly[4]) = (1, 3600);
        assert_eq!(usual(&hourly).as_deref(), Some("1m"));
        assert_eq!(
            usual(&[vec![5; 20], vec![900; 9]].concat()).as_deref(),
            Some("5s"),
            "the last twenty"
        );
    }
}
