//! `dlock doctor`: can this store, as configured, keep its promises?
//!
//! The checks are independent: a failed check is a finding, and the others continue. Tables
//! describe the checks, and the man page uses the same tables.

mod files;
mod host;
mod probe;

pub use files::{FoundSecret, SecretPlace};

use std::ffi::OsStr;

use super::{Context, explain::works_elsewhere};
use crate::{
    exit,
    lease::{BootClock, ask, ask_long},
    lock::{Backend, Check, Error, Finding, Result, Role, Severity, Ttl, check},
    output::doctor::{DoctorReport, GrantsReport, Measured, Source, view},
};

/// The arguments of `dlock doctor`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock doctor [OPTIONS]",
    after_help = "Takes, renews and releases a test lock, under a reserved key.\nStatus: 0 fine, 1 warnings, 2 unsafe, 69 no store. Checks: man dlock-doctor\nExample:  dlock doctor -b prod --ttl 30s\n          dlock doctor --print-grants run"
)]
pub struct Args {
    /// The TTL to judge by [60s]
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub ttl: Option<String>,
    /// Only print the least rights of this role
    #[arg(long, value_name = "run|view|break", hide_possible_values = true, value_parser = clap::builder::PossibleValuesParser::new(["run", "view", "break"]))]
    pub print_grants: Option<String>,
}

/// The validated settings of `dlock doctor`.
#[derive(Clone, Debug)]
pub struct DoctorSettings {
    /// The TTL to check against, if given.
    pub ttl: Option<Ttl>,
    /// Print only the privileges of this role.
    pub print_grants: Option<Role>,
    /// The source of the store's URL.
    pub from: Option<String>,
    /// All settings that were given.
    pub sources: Vec<Source>,
    /// The places of secrets.
    pub secrets: Vec<FoundSecret>,
}

/// Most locks that one finding names.
const NAMED: usize = 5;

/// The checks for all stores.
pub const CHECKS: &[Check] = &[
    check("settings", "which settings count, and where each came from"),
    check(
        "secrets",
        "which users can read passwords and keys, and change the configuration",
    ),
    check(
        "host",
        "whether dlock has the CPU time and the rights to kill in time, and a TTL that is long enough for it",
    ),
    check(
        "reachable",
        "whether the store answers, and lets this user in",
    ),
    check(
        "acquire-renew-release",
        "a test lock, taken, renewed and released",
    ),
    check("hand-over", "whether a waiter gets that lock, and how soon"),
    check(
        "round-trip",
        "how long a renewal takes, against how often there is one (a sixth of the TTL)",
    ),
    check(
        "jobs",
        "whether commands that run now let another process or host do their work, as ssh and docker do",
    ),
    check(
        "clock",
        "how far the store's clock is from this host's, and its servers' clocks are from one another",
    ),
];

/// Runs all checks, and reports the verdict.
///
/// # Errors
/// Findings are not errors.
pub async fn run(settings: DoctorSettings, context: &Context) -> Result<u8> {
    let mut backend = context.target.store.backend();
    if let Some(role) = settings.print_grants {
        return Ok(print_grants(&*backend, role, context));
    }
    let mut report = DoctorReport {
        name: context.target.name.clone(),
        backend: backend.identity().url,
        from: settings.from.clone(),
        findings: vec![sources(&settings, context)],
        measured: Measured::default(),
        sources: settings.sources.clone(),
        error: None,
    };
    report.findings.push(files::examine(&settings.secrets));
    report.findings.extend(host::examine(settings.ttl));
    let examined = ask(
        &mut *backend,
        &BootClock,
        context.limits(),
        ("doctor", None),
        async |b| b.examine().await,
    )
    .await;
    match examined {
        Ok(findings) => {
            report
                .findings
                .push(Finding::ok("reachable", "the store answers"));
            report.findings.extend(findings);
            report.findings.extend(jobs(&mut *backend, context).await);
            let tried = probe::try_out(&mut *backend, &settings, context, &mut report).await;
            if let Some(status) = tried {
                return Ok(status);
            }
        }
        Err(error) => {
            report.findings.push(failed(
                "reachable",
                &error,
                "no lock can be taken, and no job runs",
            ));
            report.error = Some(error);
        }
    }
    // The worst is last, next to the prompt.
    report.findings.sort_by_key(|finding| finding.severity);
    let status = report.status();
    let out = &context.out;
    let written = if out.is_json() {
        out.json(&report.json(status))
    } else {
        out.data(&view(&report, out.quiet, out.table_style()))
    };
    Ok(out.finish(written, status))
}

/// Names the held locks whose commands hand their work on. Without one, or without a list, this is
/// no finding.
async fn jobs(backend: &mut dyn Backend, context: &Context) -> Option<Finding> {
    let states = ask_long(
        backend,
        &BootClock,
        context.limits(),
        ("doctor", None),
        async |b, progress| b.list("", progress).await,
    )
    .await
    .ok()?;
    let mut found = Vec::new();
    for state in &states {
        let commands = state
            .holders
            .iter()
            .filter_map(|holder| holder.metadata.as_ref()?.command.as_deref());
        found.extend(
            commands
                .filter_map(|command| works_elsewhere(OsStr::new(command)))
                .map(|program| format!("{} ({program})", state.key.escaped())),
        );
    }
    let more = found.len().saturating_sub(NAMED);
    found.truncate(NAMED);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    let text = format!(
        "work that goes on elsewhere when the lock is lost: {}{more}; man dlock-cron has a recipe for each",
        found.join(", ")
    );
    (!found.is_empty()).then(|| Finding::ok("jobs", text))
}

/// Returns the finding for a failed request.
fn failed(check: &'static str, error: &Error, risk: &str) -> Finding {
    let finding = Finding::not_safe(check, error.message.clone(), risk);
    error
        .hint
        .iter()
        .fold(finding, |finding, hint| finding.fix(hint.clone()))
}

fn sources(settings: &DoctorSettings, context: &Context) -> Finding {
    const ID: &str = "settings";
    if !context.target.asked_for {
        let risk = "locks hold for this user on this host only: each node runs the job";
        return Finding::warn(ID, "no store is configured", risk)
            .fix("name one in /etc/dlock/config.toml, DLOCK_BACKEND or --backend");
    }
    let of = |source: &Source| match &source.value {
        Some(value) => format!("{} {value} ({})", source.name, source.from),
        None => format!("{} ({})", source.name, source.from),
    };
    let changed: Vec<String> = settings
        .sources
        .iter()
        .filter(|source| !["backend", "url"].contains(&source.name.as_str()))
        .map(of)
        .collect();
    Finding::ok(
        ID,
        if changed.is_empty() {
            "all settings are at their defaults".into()
        } else {
            changed.join(", ")
        },
    )
}

fn print_grants(backend: &dyn Backend, role: Role, context: &Context) -> u8 {
    let grants = context.target.store.grants(role);
    let out = &context.out;
    if out.is_json() {
        return out.finish(
            out.json(&GrantsReport::new(&grants, role, &backend.identity().url)),
            exit::OK,
        );
    }
    for note in &grants.notes {
        out.notice(note);
    }
    out.finish(out.data(&grants.text), exit::OK)
}

impl DoctorReport {
    /// Returns the exit status: 69 or 78 if nothing could be checked; else by the worst finding.
    fn status(&self) -> u8 {
        if let Some(error) = &self.error {
            return exit::of(error);
        }
        match self.worst() {
            Severity::Ok => exit::OK,
            Severity::Warn => exit::WARNINGS,
            Severity::Unsafe => exit::UNSAFE,
        }
    }
}
