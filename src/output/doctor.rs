//! The report of `doctor`, as text and as JSON.

use std::{fmt::Write as _, time::Duration};

use serde::Serialize;

use super::{
    TableStyle,
    json::{ErrorReport, ReportHead, head},
    wrapped,
};
use crate::{
    exit,
    lock::{Error, Finding, Grants, Role, Severity, UNCHECKED, printable},
};

/// A setting and its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Source {
    /// Its name in the configuration file.
    pub name: String,
    /// Its value; `None` for a secret.
    pub value: Option<String>,
    /// The flag, the variable, or the file and the line.
    pub from: String,
}

/// The measured times; `None` if not measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// Time of a renewal.
    pub round_trip: Option<Duration>,
    /// Time from a release to the grant to another process.
    pub hand_over: Option<Duration>,
}

/// The report about one store.
#[derive(Debug)]
pub struct DoctorReport {
    /// Its name in the configuration file.
    pub name: Option<String>,
    /// Its URL, without secrets.
    pub backend: String,
    /// The origin of the URL.
    pub from: Option<String>,
    /// The findings, in the order of display.
    pub findings: Vec<Finding>,
    /// The measured times.
    pub measured: Measured,
    /// All settings.
    pub sources: Vec<Source>,
    /// Why the store could not be examined.
    pub error: Option<Error>,
}

impl DoctorReport {
    /// Returns the highest severity of the findings.
    pub fn worst(&self) -> Severity {
        self.findings
            .iter()
            .map(|finding| finding.severity)
            .max()
            .unwrap_or(Severity::Ok)
    }

    /// Returns the JSON object.
    pub fn json(&self, status: u8) -> Json<'_> {
        let micros = |length: Option<Duration>| {
            length.map(|length| u64::try_from(length.as_micros()).unwrap_or(u64::MAX))
        };
        Json {
            head: head(word(self.worst()), status),
            backend: &self.backend,
            name: self.name.as_deref(),
            from: self.from.as_deref(),
            findings: self.findings.iter().map(FindingReport::new).collect(),
            round_trip_us: micros(self.measured.round_trip),
            hand_over_us: micros(self.measured.hand_over),
            settings: &self.sources,
            error: self.error.as_ref().map(ErrorReport::new),
        }
    }
}

/// `doctor --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Json<'a> {
    #[serde(flatten)]
    head: ReportHead,
    backend: &'a str,
    name: Option<&'a str>,
    from: Option<&'a str>,
    findings: Vec<FindingReport<'a>>,
    round_trip_us: Option<u64>,
    hand_over_us: Option<u64>,
    settings: &'a [Source],
    error: Option<ErrorReport<'a>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FindingReport<'a> {
    check: &'a str,
    severity: Severity,
    text: &'a str,
    risk: Option<&'a str>,
    #[serde(rename = "mend")]
    fix: Option<&'a str>,
}

impl<'a> FindingReport<'a> {
    fn new(finding: &'a Finding) -> Self {
        Self {
            check: finding.check,
            severity: finding.severity,
            text: &finding.text,
            risk: finding.risk.as_deref(),
            fix: finding.fix.as_deref(),
        }
    }
}

/// `doctor --print-grants --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GrantsReport<'a> {
    #[serde(flatten)]
    head: ReportHead,
    backend: &'a str,
    role: &'static str,
    text: &'a str,
    notes: &'a [String],
}

impl<'a> GrantsReport<'a> {
    /// Creates the report of a role's rights.
    pub fn new(grants: &'a Grants, role: Role, backend: &'a str) -> Self {
        let role = role.user().trim_start_matches("dlock-");
        Self {
            head: head("ok", exit::OK),
            backend,
            role,
            text: &grants.text,
            notes: &grants.notes,
        }
    }
}

const fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Ok => "ok",
        Severity::Warn => "warn",
        Severity::Unsafe => "unsafe",
    }
}

/// The indentation of a finding's text.
const INDENT: usize = 8;

/// Returns the findings as lines, the last one a summary.
pub fn view(report: &DoctorReport, only_bad: bool, style: TableStyle) -> String {
    let mut text = style.paint("1", &header(report, style)) + "\n";
    for finding in &merge_unchecked(&report.findings)
        .into_iter()
        .filter(|finding| !only_bad || finding.severity != Severity::Ok)
        .collect::<Vec<_>>()
    {
        let (label, sgr) = match finding.severity {
            Severity::Ok => ("ok", "32"),
            Severity::Warn => ("WARN", "33"),
            Severity::Unsafe => ("UNSAFE", "1;31"),
        };
        let line = match &finding.risk {
            Some(risk) => format!("{}: {risk}", finding.text),
            None => finding.text.clone(),
        };
        let gap = " ".repeat(INDENT - label.len());
        let _ = writeln!(
            text,
            "{}{gap}{}",
            style.paint(sgr, label),
            wrapped(&line, INDENT, style)
        );
        if let Some(fix) = &finding.fix {
            let _ = writeln!(
                text,
                "{}{}",
                " ".repeat(INDENT),
                wrapped(&format!("fix: {fix}"), INDENT, style)
            );
        }
    }
    text + &summary(report) + "\n"
}

/// Merges the findings that could not be checked for the same reason into one.
fn merge_unchecked(findings: &[Finding]) -> Vec<Finding> {
    let mut shown: Vec<Finding> = Vec::new();
    for finding in findings {
        let unchecked = |text: &str| {
            let (what, why) = text.strip_prefix(UNCHECKED)?.rsplit_once(", because ")?;
            Some((what.to_owned(), why.to_owned()))
        };
        let same = shown.iter_mut().find_map(|known| {
            let ((before, because), (what, why)) =
                (unchecked(&known.text)?, unchecked(&finding.text)?);
            (because == why && known.fix == finding.fix)
                .then(|| (format!("{UNCHECKED}{before}; {what}, because {why}"), known))
        });
        match same {
            Some((text, known)) => known.text = text,
            None => shown.push(finding.clone()),
        }
    }
    shown
}

fn header(report: &DoctorReport, style: TableStyle) -> String {
    let mut parts: Vec<String> = report
        .name
        .iter()
        .map(|name| printable(name).into_owned())
        .collect();
    parts.push(printable(&report.backend).into_owned());
    let start = parts.join("  ");
    let Some(from) = report
        .from
        .as_ref()
        .map(|from| format!("from {}", printable(from)))
    else {
        return start;
    };
    let fits = style
        .width
        .is_none_or(|width| start.chars().count() + 2 + from.chars().count() <= width);
    let gap = if fits {
        "  ".to_owned()
    } else {
        format!("\n{}", " ".repeat(INDENT))
    };
    start + &gap + &from
}

fn summary(report: &DoctorReport) -> String {
    let findings = merge_unchecked(&report.findings);
    let count = |severity| {
        findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    };
    let several = |count: usize, one: &str, more: &str| {
        if count == 1 {
            format!("1 {one}")
        } else {
            format!("{count} {more}")
        }
    };
    let warnings = several(count(Severity::Warn), "warning", "warnings");
    match report.worst() {
        Severity::Ok => "all is well".into(),
        Severity::Warn => format!("{warnings}, nothing unsafe unless the store fails"),
        Severity::Unsafe => format!(
            "not safe: {} to fix, {warnings}",
            several(count(Severity::Unsafe), "thing", "things")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> DoctorReport {
        DoctorReport {
            name: Some("prod".into()),
            backend: "rediss://r1:6379".into(),
            from: Some("/etc/dlock/config.toml".into()),
            findings: vec![
                Finding::ok("round-trip", "a renewal takes 1.1 ms"),
                Finding::warn(
                    "persistence",
                    "appendonly no",
                    "a restart forgets locks, so that two may run, and may repeat fences",
                )
                .fix("CONFIG SET appendonly yes"),
                Finding::not_safe(
                    "eviction",
                    "maxmemory-policy allkeys-lru\u{1b}",
                    "may evict a lock under a job",
                )
                .fix("noeviction"),
            ],
            measured: Measured::default(),
            sources: Vec::new(),
            error: None,
        }
    }

    #[test]
    fn findings_fit_the_terminal() {
        let text = view(
            &report(),
            false,
            TableStyle {
                width: Some(60),
                color: false,
            },
        );
        assert_eq!(
            text,
            "prod  rediss://r1:6379  from /etc/dlock/config.toml\n\
             ok      a renewal takes 1.1 ms\n\
             WARN    appendonly no: a restart forgets locks, so that two\n        may run, and may repeat fences\n        \
             fix: CONFIG SET appendonly yes\n\
             UNSAFE  maxmemory-policy allkeys-lru\\u{1b}: may evict a lock\n        under a job\n        fix: noeviction\n\
             not safe: 1 thing to fix, 1 warning\n"
        );
        assert!(!view(&report(), true, TableStyle::default()).contains("1.1 ms"));
        let narrow = view(
            &report(),
            true,
            TableStyle {
                width: Some(40),
                color: false,
            },
        );
        assert!(
            narrow.starts_with("prod  rediss://r1:6379\n        from /etc/dlock/config.toml\n"),
            "{narrow}"
        );
    }

    #[test]
    fn unchecked_findings_with_the_same_reason_are_merged() {
        let unchecked = |what, why| Finding::unchecked("x", what, why).fix("m");
        let findings = [
            unchecked("a", "no right"),
            Finding::ok("y", "fine"),
            unchecked("b, c", "no right"),
            unchecked("d", "no answer"),
        ];
        let texts: Vec<String> = merge_unchecked(&findings)
            .into_iter()
            .map(|finding| finding.text)
            .collect();
        assert_eq!(
            texts,
            [
                "not checked: a; b, c, because no right",
                "fine",
                "not checked: d, because no answer"
            ]
        );
    }

    #[test]
    fn json_has_the_same_findings() {
        let report = report();
        let json = serde_json::to_value(report.json(2)).unwrap();
        assert_eq!(
            (
                &json["result"],
                &json["status"],
                &json["findings"][1]["check"]
            ),
            (&"unsafe".into(), &2.into(), &"persistence".into())
        );
        assert_eq!(
            (&json["findings"][0]["mend"], &json["error"]),
            (&serde_json::Value::Null, &serde_json::Value::Null)
        );
    }
}
