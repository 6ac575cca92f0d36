//! The text of `dlock history KEY`.

use std::fmt::Write as _;

use super::{
    Now, TableStyle, age,
    columns::{Column, Cut, TableRow, table},
    holders, skipped, wrapped,
};
use crate::lock::{
    self, End, Fence, HistoryEntry, LockState, Metadata, RunOutcome, RunRecord, RunState, SkipCount,
};

/// One run: ended, or still running.
#[derive(Clone, Debug)]
pub struct RunOf {
    /// Its fence.
    pub fence: Option<Fence>,
    /// The holder.
    pub metadata: Option<Metadata>,
    /// Start, in ms since 1970.
    pub started_ms: Option<u64>,
    /// End, in ms since 1970; `None` if the run has not ended, or its end is unknown.
    pub ended_ms: Option<u64>,
    /// How it ended; `None` if it is still running.
    pub end: Option<End>,
    /// What else is known of its end.
    pub outcome: RunOutcome,
}

impl RunOf {
    pub(super) fn host(&self) -> String {
        self.metadata
            .as_ref()
            .and_then(|m| m.host.as_deref())
            .map_or_else(|| "?".into(), |host| holders::clean(host, 20))
    }

    /// Returns how long it ran, up to `now`, in ms.
    pub fn ran_ms(&self, now: u64) -> Option<u64> {
        let end = if self.end.is_some() {
            self.ended_ms?
        } else {
            now
        };
        Some(end.saturating_sub(self.started_ms?))
    }

    pub(super) fn is_bad(&self) -> bool {
        self.end.as_ref().is_some_and(End::is_bad)
    }

    /// Whether this entry is a run, and not the removal of run records.
    pub fn is_run(&self) -> bool {
        self.end != Some(End::Forgotten)
    }

    pub(super) fn started(&self, now: &Now) -> String {
        self.started_ms
            .map_or_else(|| "?".into(), |started| now.local(started))
    }

    pub(super) fn ran(&self, now: &Now) -> String {
        length(self.ran_ms(now.unix_ms()))
    }

    pub(super) fn sgr(&self) -> &'static str {
        if self.is_bad() { "31" } else { "" }
    }

    /// Returns how it ended, in a few words; in capitals if it needs attention.
    pub(super) fn outcome(&self) -> String {
        // The lines after the first are the command's output.
        let why = self.outcome.reason();
        let why = why.as_deref().and_then(|why| why.lines().next());
        let why = why.map(|why| holders::clean(why, 120));
        match &self.end {
            None => "running".into(),
            Some(end @ (End::Lost | End::Broken | End::Expired | End::NotStarted)) => {
                let word = end.to_string().to_uppercase();
                match why {
                    Some(why) if *end == End::Broken => format!("{word} {why}"),
                    Some(why) => format!("{word}: {why}"),
                    None => word,
                }
            }
            Some(end) => {
                let word = match end {
                    End::Signalled(signal) => {
                        signal_name(*signal).map_or_else(|| end.to_string(), Into::into)
                    }
                    end => holders::clean(&end.to_string(), 40),
                };
                match why
                    .as_deref()
                    .and_then(|why| why.strip_prefix("max runtime "))
                {
                    Some(most) => format!("TIMED OUT after {most}"),
                    None => why.map(|why| format!("{word}: {why}")).unwrap_or(word),
                }
            }
        }
    }

    /// Returns [`RunOf::outcome`], and the reason for which an operator overrode the run policy.
    pub(super) fn outcome_and_anyway(&self) -> String {
        let anyway = self
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.anyway.as_deref());
        let anyway = anyway
            .map(|why| format!(", anyway: \"{}\"", holders::clean(why, 120)))
            .unwrap_or_default();
        self.outcome() + &anyway
    }
}

/// Returns a signal's name without SIG, as `kill -l` prints it.
fn signal_name(number: i32) -> Option<&'static str> {
    Some(match number {
        1 => "HUP",
        2 => "INT",
        3 => "QUIT",
        6 => "ABRT",
        7 => "BUS",
        8 => "FPE",
        9 => "KILL",
        10 => "USR1",
        11 => "SEGV",
        12 => "USR2",
        13 => "PIPE",
        14 => "ALRM",
        15 => "TERM",
        24 => "XCPU",
        25 => "XFSZ",
        _ => return None,
    })
}

/// Returns all runs: first those that are still running, then the ended ones, the latest first.
pub fn runs(state: &LockState, past: Vec<HistoryEntry>, now: &Now) -> Vec<RunOf> {
    let now = now.unix_ms();
    let ms = |ago: std::time::Duration| now.saturating_sub(super::time::millis(ago));
    let over =
        |fence: Option<Fence>| fence.is_some() && past.iter().any(|past| past.fence == fence);
    let mut runs: Vec<RunOf> = state
        .holders
        .iter()
        .filter(|holder| !over(holder.fence))
        .map(|holder| RunOf {
            fence: holder.fence,
            metadata: holder.metadata.clone(),
            started_ms: holder.held_for.map(ms),
            ended_ms: None,
            end: None,
            outcome: RunOutcome::default(),
        })
        .collect();
    runs.sort_by_key(|run| std::cmp::Reverse(run.fence));
    runs.extend(past.into_iter().map(|past| RunOf {
        fence: past.fence,
        metadata: past.metadata,
        started_ms: past.started_ms,
        ended_ms: past.ended_ms,
        end: Some(past.end),
        outcome: past.outcome.unwrap_or_default(),
    }));
    runs
}

const COLUMNS: [Column; 6] = [
    Column::new("STARTED", 15),
    Column::new("HOST", 4).cut_by(Cut::Middle(8)),
    Column::new("WAITED", 6),
    Column::new("RAN", 6),
    Column::new("FENCE", 5).right(),
    Column::new("END", 3).cut_by(Cut::Wrap(14)),
];

/// No run is known.
pub const NONE: &str = "no runs are remembered\n";
/// Runs are known, but none that was asked for.
pub const NONE_SUCH: &str = "no such run is remembered\n";

/// Returns the table of runs, or the text for none, followed by the run records that may deny later runs, and the skips.
pub fn view(
    (runs, none): (&[RunOf], &str),
    last: usize,
    record: &RunRecord,
    skips: &[SkipCount],
    now: &Now,
    style: TableStyle,
) -> String {
    let mut text = String::new();
    if runs.is_empty() {
        text.push_str(none);
    } else {
        let fences = || runs.iter().filter_map(|run| run.fence);
        let rows: Vec<TableRow<6>> = runs
            .iter()
            .take(last)
            .map(|run| TableRow {
                cells: cells(run, fences(), now),
                sgr: run.sgr(),
            })
            .collect();
        for line in table(&COLUMNS, &rows, style) {
            let _ = writeln!(text, "{line}");
        }
        if runs.len() > last {
            let _ = writeln!(
                text,
                "and {} older; -n {} shows all",
                runs.len() - last,
                runs.len()
            );
        }
    }
    for note in record_notes(record, now) {
        let _ = writeln!(text, "{}", wrapped(&note, 2, style));
    }
    for (at, line) in skipped::lines(skips, now, style).iter().enumerate() {
        let gap = if at == 0 { "\n" } else { "" };
        let _ = writeln!(text, "{gap}{line}");
    }
    text
}

/// Returns a note per run record that denies, or may deny, a free lock to the next run.
fn record_notes(record: &RunRecord, now: &Now) -> Vec<String> {
    let mut notes = Vec::new();
    let whose = |metadata: &Option<Metadata>, fence: Fence| {
        let who =
            holders::user_at_host(metadata.as_ref()).unwrap_or_else(|| "another process".into());
        format!("{who}, fence {}", holders::fence(fence, std::iter::empty()))
    };
    let window_of = |ms: u64| lock::length(std::time::Duration::from_millis(ms));
    if let Some(cooldown) = &record.cooldown {
        let kept = [
            (cooldown.at_least_ms, "kept from all hosts", "at least"),
            (cooldown.guard_ms, "kept from other hosts", "skew guard"),
        ];
        for (ms, what, option) in kept
            .into_iter()
            .filter(|(ms, ..)| cooldown.within(*ms, now.unix_ms()).is_some())
        {
            let until = now.local(cooldown.at_ms.saturating_add(ms));
            notes.push(format!(
                "{what} until {until}: {option} {} ({})",
                window_of(ms),
                whose(&cooldown.metadata, cooldown.fence)
            ));
        }
    }
    // A cancelled run denies no other run.
    if let Some(start) = record
        .start
        .as_ref()
        .filter(|start| start.state != RunState::Cancelled)
    {
        let state = state(start.state);
        let tries = if start.tries > 1 {
            format!(", try {}", start.tries)
        } else {
            String::new()
        };
        let until = now.local(start.at_ms.saturating_add(start.window_ms));
        let (at, whose) = (now.local(start.at_ms), whose(&start.metadata, start.fence));
        notes.push(format!(
            "once: started {at} ({whose}): {state}{tries}; counts until {until}"
        ));
    }
    notes
}

/// Returns the state of a run record, in words.
pub(super) fn state(state: RunState) -> &'static str {
    match state {
        RunState::Started | RunState::Unknown => "its outcome is unknown",
        RunState::Ok => "ok",
        RunState::Failed => "failed",
        RunState::Cancelled => "nothing was started",
    }
}

fn cells(run: &RunOf, others: impl Iterator<Item = Fence>, now: &Now) -> [String; 6] {
    let waited = run
        .metadata
        .as_ref()
        .and_then(|metadata| metadata.waited_ms);
    [
        run.started(now),
        run.host(),
        length(waited),
        run.ran(now),
        run.fence
            .map(|fence| holders::fence(fence, others))
            .unwrap_or_default(),
        run.outcome_and_anyway(),
    ]
}

fn length(ms: Option<u64>) -> String {
    ms.map_or_else(
        || "?".into(),
        |ms| age(std::time::Duration::from_millis(ms)),
    )
}

#[cfg(test)]
mod tests {
    use jiff::tz::{TimeZone, offset};

    use super::*;
    use crate::lock::{Cooldown, LastRun};

    const NOW: &str = "2026-11-20T02:04:01Z";

    fn now() -> Now {
        Now::at(NOW.parse().unwrap(), TimeZone::fixed(offset(1)))
    }

    fn run(
        host: &str,
        ago: u64,
        ran: u64,
        end: Option<End>,
        why: Option<&str>,
        fence: u64,
    ) -> RunOf {
        let started = now().unix_ms() - ago * 1000;
        RunOf {
            fence: Some(Fence(fence)),
            metadata: Some(Metadata {
                host: Some(host.into()),
                waited_ms: Some(12_000),
                ..Metadata::default()
            }),
            started_ms: Some(started),
            ended_ms: end.is_some().then_some(started + ran * 1000),
            end,
            outcome: why.map(RunOutcome::because).unwrap_or_default(),
        }
    }

    #[test]
    fn ends_are_shown_in_plain_words() {
        let shown = |end, why| run("web1", 9, 1, Some(end), why, 7).outcome_and_anyway();
        assert_eq!(
            shown(End::Exited(124), Some("max runtime 1s")),
            "TIMED OUT after 1s"
        );
        assert_eq!(shown(End::Signalled(15), None), "TERM");
        let mut anyway = run("web1", 9, 1, Some(End::Exited(0)), None, 7);
        anyway.metadata.as_mut().unwrap().anyway = Some("rerun".into());
        assert_eq!(anyway.outcome_and_anyway(), "ok, anyway: \"rerun\"");
    }

    fn some() -> Vec<RunOf> {
        vec![
            run("web3", 3840, 0, None, None, 1042),
            run("web1", 86_641, 362, Some(End::Exited(0)), None, 1041),
            run("web2", 173_040, 358, Some(End::Exited(1)), None, 1040),
            run(
                "web3",
                259_440,
                1180,
                Some(End::Lost),
                Some("no renewal for 36s"),
                1039,
            ),
            run(
                "web1",
                345_840,
                731,
                Some(End::Broken),
                Some("by ana@ops1: \"NFS\""),
                1038,
            ),
        ]
    }

    #[test]
    fn runs_fit_eighty_columns() {
        let skips = |host: &str, count, ago: u64| SkipCount {
            host: host.into(),
            count,
            since_ms: Some(now().unix_ms() - 345_000_000),
            last_ms: Some(now().unix_ms() - ago * 1000),
            reason: "busy".into(),
        };
        let text = view(
            (&some(), NONE),
            20,
            &RunRecord::default(),
            &[skips("web2", 4, 86_000), skips("web5", 5, 3839)],
            &now(),
            TableStyle::default(),
        );
        let expected = "\
STARTED          HOST  WAITED  RAN      FENCE  END
Fri 20 02:00:01  web3  12s     1h 4m     1042  running
Thu 19 03:00:00  web1  12s     6m 2s     1041  ok
";
        assert_eq!(text.lines().count(), 10, "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        for line in expected.lines() {
            let words = |line: &str| {
                line.split_whitespace()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            assert!(
                text.lines().any(|shown| words(shown) == words(line)),
                "{line}\n{text}"
            );
        }
        assert!(
            text.contains("LOST: no renewal for 36s")
                && text.contains("BROKEN by ana@ops1: \"NFS\""),
            "{text}"
        );
        assert!(
            text.lines()
                .last()
                .unwrap()
                .starts_with("web2            4  "),
            "{text}"
        );
        assert!(
            view(
                (&some(), NONE),
                2,
                &RunRecord::default(),
                &[],
                &now(),
                TableStyle::default()
            )
            .ends_with("and 3 older; -n 5 shows all\n")
        );
    }

    #[test]
    fn unknown_values_are_question_marks() {
        let strange = RunOf {
            started_ms: None,
            ended_ms: None,
            metadata: None,
            ..run("", 1, 1, Some(End::Expired), None, 7)
        };
        let text = view(
            (&[strange], NONE),
            20,
            &RunRecord::default(),
            &[],
            &now(),
            TableStyle::default(),
        );
        let line: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(line, ["?", "?", "?", "?", "7", "EXPIRED"]);
        assert_eq!(
            view(
                (&[], NONE),
                20,
                &RunRecord::default(),
                &[],
                &now(),
                TableStyle::default()
            ),
            "no runs are remembered\n"
        );
    }

    #[test]
    fn run_records_are_shown() {
        let web1 = Some(Metadata {
            host: Some("web1".into()),
            ..Metadata::default()
        });
        let at_ms = now().unix_ms() - 1000;
        let mut record = RunRecord {
            cooldown: Some(Cooldown {
                at_ms,
                fence: Fence(7),
                place: "p".into(),
                guard_ms: 5000,
                at_least_ms: 30_000,
                metadata: web1,
                hold: String::new(),
            }),
            start: Some(LastRun {
                at_ms: 0,
                fence: Fence(3),
                state: RunState::Failed,
                tries: 2,
                window_ms: 1_800_000,
                metadata: None,
                hold: String::new(),
            }),
            ..RunRecord::default()
        };
        let shown =
            |record: &RunRecord| view((&[], NONE), 20, record, &[], &now(), TableStyle::default());
        let text = shown(&record);
        assert!(
            text.contains("kept from all hosts until ")
                && text.contains(": at least 30s (web1, fence 7)\n"),
            "{text}"
        );
        assert!(
            text.contains("kept from other hosts until ")
                && text.contains(": skew guard 5s (web1, fence 7)\n"),
            "{text}"
        );
        assert!(
            text.contains("once: started ")
                && text.ends_with(
                    " (another process, fence 3): failed, try 2; counts until 1970-01-01 01:30\n"
                ),
            "{text}"
        );
        for (at_ms, why) in [
            (0, "an ended cooldown"),
            (
                at_ms + 3_600_000,
                "a cooldown in the future, which denies nothing",
            ),
        ] {
            record.cooldown = record
                .cooldown
                .map(|cooldown| Cooldown { at_ms, ..cooldown });
            assert!(!shown(&record).contains("kept"), "{why}");
        }
    }
}
