//! A lock's history as people read it.

use std::fmt::Write as _;

use super::{Look, Now, age, inspect, who};
use crate::lock::{self, End, Fence, LockState, Metadata, Past, Record, Skips, Stage};

/// One run: over, or going on.
#[derive(Clone, Debug)]
pub struct RunOf {
    /// Its fence.
    pub fence: Option<Fence>,
    /// Who had it.
    pub metadata: Option<Metadata>,
    /// In ms since 1970.
    pub started_ms: Option<u64>,
    /// In ms since 1970; `None` if it goes on, or nobody knows.
    pub ended_ms: Option<u64>,
    /// How it ended; `None` if it goes on.
    pub end: Option<End>,
    /// Why.
    pub why: Option<String>,
}

impl RunOf {
    fn host(&self) -> String {
        self.metadata.as_ref().and_then(|m| m.host.as_deref()).map_or_else(|| "?".into(), |host| who::clean(host, 20))
    }

    /// For how long it ran, up to `now`.
    pub fn ran_ms(&self, now: u64) -> Option<u64> {
        let end = if self.end.is_some() { self.ended_ms? } else { now };
        Some(end.saturating_sub(self.started_ms?))
    }

    fn is_bad(&self) -> bool {
        self.end.as_ref().is_some_and(End::is_bad)
    }

    /// How it ended, in a few words: what somebody has to look after in capitals.
    fn words(&self) -> String {
        let why = self.why.as_deref().map(|why| who::clean(why, 120));
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
                    End::Signalled(signal) => signal_name(*signal).map_or_else(|| end.to_string(), Into::into),
                    end => who::clean(&end.to_string(), 40),
                };
                match why.as_deref().and_then(|why| why.strip_prefix("max runtime ")) {
                    Some(most) => format!("TIMED OUT after {most}"),
                    None => why.map(|why| format!("{word}: {why}")).unwrap_or(word),
                }
            }
        }
    }

    /// The same, with why it ran past its run policy.
    fn told(&self) -> String {
        let anyway = self.metadata.as_ref().and_then(|metadata| metadata.anyway.as_deref());
        let anyway = anyway.map(|why| format!(", anyway: \"{}\"", who::clean(why, 120))).unwrap_or_default();
        self.words() + &anyway
    }
}

/// A signal without its SIG, as `kill -l` names it.
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

/// All runs, the latest first: those that go on, then those that are over.
pub fn runs(state: &LockState, past: Vec<Past>, now: &Now) -> Vec<RunOf> {
    let now = now.unix_ms();
    let ms = |ago: std::time::Duration| now.saturating_sub(super::time::millis(ago));
    let over = |fence: Option<Fence>| fence.is_some() && past.iter().any(|past| past.fence == fence);
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
            why: None,
        })
        .collect();
    runs.sort_by_key(|run| std::cmp::Reverse(run.fence));
    runs.extend(past.into_iter().map(|past| RunOf {
        fence: past.fence,
        metadata: past.metadata,
        started_ms: past.started_ms,
        ended_ms: past.ended_ms,
        end: Some(past.end),
        why: past.why,
    }));
    runs
}

/// The table, and below it the starts that later runs go by, and the skips.
pub fn view(runs: &[RunOf], last: usize, record: &Record, skips: &[Skips], now: &Now, look: Look) -> String {
    let mut text = String::new();
    if runs.is_empty() {
        text.push_str("no runs are remembered\n");
    } else {
        let width = look.width.unwrap_or(80);
        let shown: Vec<[String; 6]> = runs.iter().take(last).map(|run| cells(run, now)).collect();
        let titles = ["STARTED", "HOST", "WAITED", "RAN", "END", "FENCE"].map(str::to_owned);
        let widest = |column: usize| shown.iter().chain([&titles]).map(|row| row[column].chars().count()).max().unwrap_or(0);
        let (started, host, waited, ran, fence) = (widest(0), widest(1), widest(2), widest(3), widest(5));
        let end = width.saturating_sub(started + host + waited + ran + fence + 10).max(10);
        // Off a terminal nobody has to be spared a long line.
        let end = if look.width.is_some() { end } else { end.max(widest(4)) };
        for (n, row) in [&titles].into_iter().chain(&shown).enumerate() {
            let [begun, by, wait, run, how, number] = row;
            let how = who::cut(how, end);
            let line = format!("{begun:<started$}  {by:<host$}  {wait:<waited$}  {run:<ran$}  {how:<end$}  {number:>fence$}");
            let bad = n > 0 && runs.get(n - 1).is_some_and(RunOf::is_bad);
            let line = line.trim_end();
            text.push_str(&if n == 0 {
                look.paint("1", line)
            } else if bad {
                look.paint("31", line)
            } else {
                line.to_owned()
            });
            text.push('\n');
        }
        if runs.len() > last {
            let _ = writeln!(text, "and {} older; -n {} shows all", runs.len() - last, runs.len());
        }
    }
    starts(&mut text, record, now);
    if let Some(latest) = skips.iter().max_by_key(|skips| skips.last_ms) {
        let since =
            skips.iter().filter_map(|skips| skips.since_ms).min().map(|since| format!(" since {}", now.local(since))).unwrap_or_default();
        let alike = skips.iter().all(|skips| skips.reason == latest.reason);
        let reason = |skips: &Skips| if alike { String::new() } else { format!(" ({})", who::clean(&skips.reason, 40)) };
        let each: Vec<String> =
            skips.iter().map(|skips| format!("{} {}{}", who::clean(&skips.host, 40), skips.count, reason(skips))).collect();
        let last = latest.last_ms.map(|last| format!("{} ", now.local(last))).unwrap_or_default();
        let (host, reason) = (who::clean(&latest.host, 40), who::clean(&latest.reason, 80));
        let _ = writeln!(text, "skipped{since}: {}; last {last}{host}, {reason}", each.join(", "));
    }
    text
}

/// What keeps, or may keep, the lock from the next run although nobody has it.
fn starts(text: &mut String, record: &Record, now: &Now) {
    let whose = |metadata: &Option<Metadata>, fence: Fence| {
        let who = who::who(metadata.as_ref()).unwrap_or_else(|| "somebody".into());
        format!("{who}, fence {fence}")
    };
    let length = |ms: u64| lock::length(std::time::Duration::from_millis(ms));
    if let Some(paced) = &record.paced {
        let kept = [(paced.at_least_ms, "kept from everybody", "at least"), (paced.guard_ms, "kept from other hosts", "skew guard")];
        for (ms, what, option) in kept.into_iter().filter(|(ms, ..)| paced.at_ms.saturating_add(*ms) > now.unix_ms()) {
            let until = now.local(paced.at_ms.saturating_add(ms));
            let _ = writeln!(text, "{what} until {until}: {option} {} ({})", length(ms), whose(&paced.metadata, paced.fence));
        }
    }
    // One that was undone keeps no run away.
    if let Some(start) = record.start.as_ref().filter(|start| start.stage != Stage::Undone) {
        let stage = inspect::outcome(start.stage);
        let tries = if start.tries > 1 { format!(", try {}", start.tries) } else { String::new() };
        let (at, whose, window) = (now.local(start.at_ms), whose(&start.metadata, start.fence), length(start.window_ms));
        let _ = writeln!(text, "once in {window}: begun {at} ({whose}): {stage}{tries}");
    }
}

fn cells(run: &RunOf, now: &Now) -> [String; 6] {
    let length = |ms: Option<u64>| ms.map_or_else(|| "?".into(), |ms| age(std::time::Duration::from_millis(ms)));
    let (waited, ran) = (run.metadata.as_ref().and_then(|metadata| metadata.waited_ms), run.ran_ms(now.unix_ms()));
    [
        run.started_ms.map_or_else(|| "?".into(), |started| now.local(started)),
        run.host(),
        length(waited),
        length(ran),
        run.told(),
        run.fence.map(|fence| fence.to_string()).unwrap_or_default(),
    ]
}

/// Hosts against time, the oldest run at the left: `=` while one ran, `x` where it ended badly, `>` where it goes on.
pub fn timeline(runs: &[RunOf], last: usize, now: &Now, look: Look) -> String {
    let until = now.unix_ms();
    let drawn: Vec<&RunOf> = runs.iter().take(last).filter(|run| run.started_ms.is_some()).collect();
    let Some(first) = drawn.iter().filter_map(|run| run.started_ms).min() else { return "no runs are remembered\n".into() };
    let mut hosts: Vec<String> = drawn.iter().map(|run| run.host()).collect();
    hosts.sort();
    hosts.dedup();
    let name = hosts.iter().map(|host| host.chars().count()).max().unwrap_or(0);
    let width = look.width.unwrap_or(80).saturating_sub(name + 3).max(20);
    let span = until.saturating_sub(first).max(1);
    let column = |ms: u64| {
        let place = u128::from(ms.saturating_sub(first)) * (width as u128 - 1) / u128::from(span);
        usize::try_from(place).unwrap_or(width - 1).min(width - 1)
    };
    let mut text = String::new();
    for host in &hosts {
        let mut line = vec!['.'; width];
        for run in drawn.iter().filter(|run| run.host() == *host) {
            let from = column(run.started_ms.unwrap_or(first));
            let to = column(run.ended_ms.or(run.end.is_none().then_some(until)).unwrap_or(run.started_ms.unwrap_or(first)));
            for cell in &mut line[from..=to.max(from)] {
                if *cell != 'x' {
                    *cell = '=';
                }
            }
            match &run.end {
                None => line[to] = '>',
                Some(end) if end.is_bad() => line[to] = 'x',
                Some(_) => {}
            }
        }
        let _ = writeln!(text, "{host:<name$} |{}|", line.into_iter().collect::<String>());
    }
    let (from, to) = (now.local(first), now.local(until));
    let gap = width.saturating_sub(from.chars().count() + to.chars().count());
    let _ = writeln!(text, "{:name$}  {from}{:gap$}{to}", "", "");
    text.push_str("= ran   x ended badly   > runs\n");
    text
}

#[cfg(test)]
mod tests {
    use jiff::tz::{TimeZone, offset};

    use super::*;
    use crate::lock::{Paced, Start};

    const NOW: &str = "2026-11-20T02:04:01Z";

    fn now() -> Now {
        Now::at(NOW.parse().unwrap(), TimeZone::fixed(offset(1)))
    }

    fn run(host: &str, ago: u64, ran: u64, end: Option<End>, why: Option<&str>, fence: u64) -> RunOf {
        let started = now().unix_ms() - ago * 1000;
        RunOf {
            fence: Some(Fence(fence)),
            metadata: Some(Metadata { host: Some(host.into()), waited_ms: Some(12_000), ..Metadata::default() }),
            started_ms: Some(started),
            ended_ms: end.is_some().then_some(started + ran * 1000),
            end,
            why: why.map(Into::into),
        }
    }

    fn some() -> Vec<RunOf> {
        vec![
            run("web3", 3840, 0, None, None, 1042),
            run("web1", 86_641, 362, Some(End::Exited(0)), None, 1041),
            run("web2", 173_040, 358, Some(End::Exited(1)), None, 1040),
            run("web3", 259_440, 1180, Some(End::Lost), Some("no renewal for 36s"), 1039),
            run("web1", 345_840, 731, Some(End::Broken), Some("by ana@ops1: \"NFS\""), 1038),
        ]
    }

    #[test]
    fn runs_are_told_in_eighty_columns() {
        let skips = |host: &str, count, ago: u64| Skips {
            host: host.into(),
            count,
            since_ms: Some(now().unix_ms() - 345_000_000),
            last_ms: Some(now().unix_ms() - ago * 1000),
            reason: "busy".into(),
        };
        let text = view(&some(), 20, &Record::default(), &[skips("web2", 4, 86_000), skips("web5", 5, 3839)], &now(), Look::default());
        let expected = "\
STARTED          HOST  WAITED  RAN      END                     FENCE
Fri 20 02:00:01  web3  12s     1h 4m    running                  1042
Thu 19 03:00:00  web1  12s     6m 2s    ok                       1041
";
        assert_eq!(text.lines().count(), 7, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for line in expected.lines() {
            let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert!(text.lines().any(|told| words(told) == words(line)), "{line}\n{text}");
        }
        assert!(text.contains("LOST: no renewal for 36s") && text.contains("BROKEN by ana@ops1: \"NFS\""), "{text}");
        assert!(text.ends_with("web2 4, web5 5; last Fri 20 02:00:02 web5, busy\n"), "{text}");
        assert!(view(&some(), 2, &Record::default(), &[], &now(), Look::default()).ends_with("and 3 older; -n 5 shows all\n"));
    }

    #[test]
    fn what_is_not_known_is_not_invented() {
        let strange = RunOf { started_ms: None, ended_ms: None, metadata: None, ..run("", 1, 1, Some(End::Expired), None, 7) };
        let text = view(&[strange], 20, &Record::default(), &[], &now(), Look::default());
        let line: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(line, ["?", "?", "?", "?", "EXPIRED", "7"]);
        assert_eq!(view(&[], 20, &Record::default(), &[], &now(), Look::default()), "no runs are remembered\n");
        assert_eq!(timeline(&[], 20, &now(), Look::default()), "no runs are remembered\n");
    }

    #[test]
    fn a_timeline_has_a_row_for_each_host() {
        let text = timeline(&some(), 20, &now(), Look::default());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        assert!(lines[0].starts_with("web1 |x") && lines[2].starts_with("web3 |") && lines[2].ends_with(">|"), "{text}");
        assert_eq!(lines[1].matches('x').count(), 1, "{text}");
    }

    #[test]
    fn starts_that_later_runs_go_by_are_told() {
        let web1 = Some(Metadata { host: Some("web1".into()), ..Metadata::default() });
        let at_ms = now().unix_ms() - 1000;
        let mut record = Record {
            paced: Some(Paced {
                at_ms,
                fence: Fence(7),
                place: "p".into(),
                guard_ms: 5000,
                at_least_ms: 30_000,
                metadata: web1,
                hold: String::new(),
            }),
            start: Some(Start {
                at_ms: 0,
                fence: Fence(3),
                stage: Stage::Failed,
                tries: 2,
                window_ms: 1_800_000,
                metadata: None,
                hold: String::new(),
            }),
        };
        let told = |record: &Record| view(&[], 20, record, &[], &now(), Look::default());
        let text = told(&record);
        assert!(text.contains("kept from everybody until ") && text.contains(": at least 30s (web1, fence 7)\n"), "{text}");
        assert!(text.contains("kept from other hosts until ") && text.contains(": skew guard 5s (web1, fence 7)\n"), "{text}");
        assert!(text.contains("once in 30m: begun ") && text.ends_with(" (somebody, fence 3): failed, try 2\n"), "{text}");
        record.paced = record.paced.map(|paced| Paced { at_ms: 0, ..paced });
        assert!(!told(&record).contains("kept"), "what is over is not told");
    }
}
