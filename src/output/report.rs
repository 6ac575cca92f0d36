//! The page of `dlock report`: all jobs in one static HTML file, without scripts and without
//! anything that a browser would have to fetch.

use std::time::Duration;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{Now, age, history::RunOf, holders, overview::Summary, usual::Usual};
use crate::lock::{Key, SkipCount};

/// How many of the last runs are drawn.
const TICKS: usize = 20;
/// How many of the hosts that skipped are named: those that skipped last.
const HOSTS: usize = 4;

/// One job on the page.
pub struct Job {
    summary: Summary,
    usual: Option<Usual>,
    /// The last runs, the oldest first.
    runs: Vec<RunOf>,
    /// The hosts that skipped, the last first.
    skips: Vec<SkipCount>,
}

/// The state of a job, the most urgent first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Failed,
    Late,
    Running,
    Ok,
    NeverRan,
}

impl State {
    const fn word(self) -> &'static str {
        match self {
            Self::Failed => "FAILED",
            Self::Late => "LATE",
            Self::Running => "HELD",
            Self::Ok => "ok",
            Self::NeverRan => "never ran",
        }
    }

    const fn class(self) -> &'static str {
        match self {
            Self::Failed => "bad",
            Self::Late => "late",
            Self::Running => "run",
            Self::Ok => "ok",
            Self::NeverRan => "none",
        }
    }
}

impl Job {
    /// Returns the job of a key, from its `runs`, the latest first.
    pub fn new(key: Key, runs: &[RunOf], mut skips: Vec<SkipCount>, now: &Now) -> Self {
        let skipped = skips.iter().map(|skips| skips.count).sum();
        skips.sort_by_key(|skips| std::cmp::Reverse(skips.last_ms));
        let mut last: Vec<RunOf> = runs
            .iter()
            .filter(|run| run.is_run())
            .take(TICKS)
            .cloned()
            .collect();
        last.reverse();
        Self {
            summary: Summary::new(key, runs, skipped, now),
            usual: Usual::of(runs),
            runs: last,
            skips,
        }
    }

    fn state(&self) -> State {
        match &self.summary.last {
            None => State::NeverRan,
            Some(run) if run.is_bad() => State::Failed,
            Some(run) if run.end.is_none() => State::Running,
            Some(_) if self.summary.late => State::Late,
            Some(_) => State::Ok,
        }
    }

    /// Returns what the state alone does not say.
    fn why(&self) -> String {
        let Some(last) = &self.summary.last else {
            return String::new();
        };
        match self.state() {
            State::Failed => last.outcome_and_anyway(),
            State::Late => self
                .summary
                .every
                .map(|every| format!("runs every {}", age(every)))
                .unwrap_or_default(),
            State::Running => holders::command(last.metadata.as_ref()).unwrap_or_default(),
            State::Ok | State::NeverRan => String::new(),
        }
    }

    fn ticks(&self, now: &Now) -> Markup {
        let class = |run: &RunOf| match &run.end {
            None => "run",
            Some(end) if end.is_bad() => "bad",
            Some(_) => "ok",
        };
        let bad = self.runs.iter().filter(|run| run.is_bad()).count();
        let label = format!("the last {} runs: {bad} ended badly", self.runs.len());
        html! {
            @if !self.runs.is_empty() {
                div.ticks role="img" aria-label=(label) {
                    @for run in &self.runs {
                        i class=(class(run)) title=(format!(
                            "{} {}: {}, {}", run.started(now), run.host(), run.outcome_and_anyway(), run.ran(now)
                        )) {}
                    }
                }
            }
        }
    }

    fn skipping(&self) -> String {
        let all = self.skips.len();
        let (named, others) = self
            .skips
            .split_at(if all <= HOSTS + 1 { all } else { HOSTS });
        let mut hosts: Vec<String> = named
            .iter()
            .map(|skips| format!("{} {}", holders::clean(&skips.host, 40), skips.count))
            .collect();
        if !others.is_empty() {
            let count: u64 = others.iter().map(|skips| skips.count).sum();
            hosts.push(format!("{} other hosts {count}", others.len()));
        }
        hosts.join(", ")
    }

    fn row(&self, now: &Now) -> Markup {
        let (one, state) = (&self.summary, self.state());
        let ago = |ms: u64| age(Duration::from_millis(now.unix_ms().saturating_sub(ms)));
        let last = one.last.as_ref();
        html! {
            tr {
                th scope="row" { (holders::clean(one.key.as_str(), 255)) }
                td { span class={ "state " (state.class()) } { (state.word()) } small { (self.why()) } }
                td.far data-name="last run" { @if let Some(run) = last { (run.started(now)) } }
                td data-name="on" { @if let Some(run) = last { (run.host()) } }
                td.far data-name="ran" {
                    @if let Some(run) = last { (run.ran(now)) }
                    @if let Some(usual) = self.usual { small { "usually " (usual) } }
                }
                td.far data-name="last ok" { @if let Some(ok) = one.ok_ms { (ago(ok)) " ago" } }
                td { (self.ticks(now)) }
                td data-name="skipped by" { (self.skipping()) }
            }
        }
    }
}

/// Returns the page, with the jobs that need attention first. `store` is the store's URL without
/// secrets, `writer` who writes the page.
pub fn page(mut jobs: Vec<Job>, store: &str, writer: &str, now: &Now) -> String {
    jobs.sort_by(|a, b| (a.state(), &a.summary.key).cmp(&(b.state(), &b.summary.key)));
    let count = |state| jobs.iter().filter(|job| job.state() == state).count();
    let states = [State::Failed, State::Late, State::Running];
    let counts = states
        .map(|state| (count(state), state))
        .into_iter()
        .filter(|(count, _)| *count > 0);
    let title = format!("Jobs on {}", holders::clean(store, 300));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { (title) }
                style { (PreEscaped(include_str!("report.css"))) }
            }
            body {
                h1 {
                    (jobs.len()) @if jobs.len() == 1 { " job" } @else { " jobs" }
                    @for (count, state) in counts { ", " span class=(state.class()) { (count) " " (state.word()) } }
                }
                p { (title) ", as of " (now.local_before(Duration::ZERO)) ", written by " (holders::clean(writer, 255)) }
                @if !jobs.is_empty() {
                    table {
                        thead {
                            tr {
                                @for name in ["Job", "State", "Last run", "Host", "Ran", "Last ok", "Last 20 runs", "Skips"] {
                                    th scope="col" { (name) }
                                }
                            }
                        }
                        tbody { @for job in &jobs { (job.row(now)) } }
                    }
                }
            }
        }
    };
    page.into_string() + "\n"
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;
    use crate::lock::{End, Metadata, RunOutcome};

    fn now() -> Now {
        Now::at("2026-11-20T02:04:01Z".parse().unwrap(), TimeZone::UTC)
    }

    fn run(host: &str, ago: u64, end: Option<End>, why: Option<&str>) -> RunOf {
        let started = now().unix_ms() - ago * 1000;
        RunOf {
            fence: None,
            metadata: Some(Metadata {
                host: Some(host.into()),
                ..Metadata::default()
            }),
            started_ms: Some(started),
            ended_ms: end.is_some().then_some(started + 5000),
            end,
            outcome: why.map(RunOutcome::because).unwrap_or_default(),
        }
    }

    fn job(key: &str, runs: &[RunOf], skips: Vec<SkipCount>) -> Job {
        Job::new(Key::new(key).unwrap(), runs, skips, &now())
    }

    #[test]
    fn what_needs_attention_comes_first() {
        let hourly = |ago: u64| {
            (0..8)
                .map(|n| run("web1", ago + n * 3600, Some(End::Exited(0)), None))
                .collect::<Vec<_>>()
        };
        let failed = run("web2", 60, Some(End::Lost), Some("no renewal for 36s"));
        let jobs = vec![
            job("a-fine", &hourly(60), vec![]),
            job("b-never", &[], vec![]),
            job("c-held", &[run("web3", 9, None, None)], vec![]),
            job("d-late", &hourly(9000), vec![]),
            job("e-failed", &[vec![failed], hourly(7200)].concat(), vec![]),
        ];
        let page = page(jobs, "redis://r1:6379/0", "web1", &now());
        let at = |text: &str| {
            page.find(text)
                .unwrap_or_else(|| panic!("no {text:?} in {page}"))
        };
        let order = ["e-failed", "d-late", "c-held", "a-fine", "b-never"].map(at);
        assert!(order.is_sorted(), "{order:?}");
        at("5 jobs, <span class=\"bad\">1 FAILED</span>");
        at("LOST: no renewal for 36s");
        at("runs every 1h");
        at("usually 5s");
        assert_eq!(page.matches("<i class=").count(), 8 + 1 + 8 + 9);
    }

    #[test]
    fn texts_of_others_are_escaped_and_nothing_is_fetched() {
        let evil = "<script>alert(1)</script>\u{1b}[2J\"'&";
        let skip = |host: &str| SkipCount {
            host: host.into(),
            count: 3,
            since_ms: None,
            last_ms: None,
            reason: evil.into(),
        };
        let runs = [run(evil, 5, Some(End::Exited(1)), Some(evil))];
        let skips = ["a", "b", "c", "d", "e", evil].map(skip).to_vec();
        let page = page(vec![job("x<y", &runs, skips)], evil, evil, &now());
        assert!(
            !page.contains("<script") && !page.contains('\u{1b}'),
            "{page}"
        );
        assert!(
            page.contains("x&lt;y") && page.contains("2 other hosts 6"),
            "{page}"
        );
        assert!(!page.contains("src=") && !page.contains("href=") && !page.contains("url("));
    }
}
