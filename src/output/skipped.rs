//! The table of the hosts that skipped runs of a key.

use super::{
    Now, TableStyle,
    columns::{Column, Cut, TableRow, table},
    holders,
};
use crate::lock::SkipCount;

const COLUMNS: [Column; 5] = [
    Column::new("SKIPPED BY", 10).cut_by(Cut::Middle(8)),
    Column::new("TIMES", 5).right(),
    Column::new("SINCE", 15),
    Column::new("LAST", 15),
    Column::new("WHY", 3).cut_by(Cut::End(12)),
];

/// How many hosts are shown: those that skipped last. JSON has all.
const SHOWN: usize = 8;

/// Returns a line for each host, the last that skipped first; none if no host did.
pub(super) fn lines(skips: &[SkipCount], now: &Now, style: TableStyle) -> Vec<String> {
    if skips.is_empty() {
        return Vec::new();
    }
    let mut hosts: Vec<&SkipCount> = skips.iter().collect();
    hosts.sort_by_key(|skips| std::cmp::Reverse(skips.last_ms));
    let others = hosts.split_off(SHOWN.min(hosts.len()));
    let time = |ms: Option<u64>| ms.map_or_else(|| "?".to_owned(), |ms| now.local(ms));
    let row = |skips: &&SkipCount| TableRow {
        cells: [
            holders::clean(&skips.host, 255),
            skips.count.to_string(),
            time(skips.since_ms),
            time(skips.last_ms),
            holders::clean(&skips.reason, 80),
        ],
        sgr: "",
    };
    let rows: Vec<TableRow<5>> = hosts.iter().map(row).collect();
    let mut lines = table(&COLUMNS, &rows, style);
    if !others.is_empty() {
        let times: u64 = others.iter().map(|skips| skips.count).sum();
        let many = others.len();
        lines.push(format!(
            "and {many} other hosts, {times} times; --json has all"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    fn shown(skips: &[SkipCount]) -> String {
        let now = Now::at("2026-11-20T02:04:01Z".parse().unwrap(), TimeZone::UTC);
        let style = TableStyle {
            width: Some(80),
            color: false,
        };
        lines(skips, &now, style).join("\n")
    }

    fn skip(host: &str, ago: u64, reason: &str) -> SkipCount {
        let now = 1_795_140_241_000;
        SkipCount {
            host: host.into(),
            count: 2,
            since_ms: Some(now - 86_400_000),
            last_ms: Some(now - ago * 1000),
            reason: reason.into(),
        }
    }

    #[test]
    fn each_host_has_its_own_last_skip_and_reason() {
        let text = shown(&[skip("web1", 60, "busy"), skip("web2", 5, "skew guard 5s")]);
        assert_eq!(
            text,
            "SKIPPED BY  TIMES  SINCE            LAST             WHY\n\
             web2            2  Thu 19 02:04:01  Fri 20 02:03:56  skew guard 5s\n\
             web1            2  Thu 19 02:04:01  Fri 20 02:03:01  busy"
        );
        assert_eq!(shown(&[]), "");
    }

    #[test]
    fn of_many_hosts_the_last_ones_are_shown() {
        let many: Vec<SkipCount> = (0..20)
            .map(|n| skip(&format!("pod-{n:02}"), n, "busy"))
            .collect();
        let text = shown(&many);
        assert!(text.contains("pod-00") && text.contains("pod-07") && !text.contains("pod-08"));
        assert!(
            text.ends_with("\nand 12 other hosts, 24 times; --json has all"),
            "{text}"
        );
    }
}
