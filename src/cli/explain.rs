//! For `explain`: every setting of a run, with its origin.

use super::{args::Globals, layers::Layers, run, sources, spec};
use crate::{
    commands::{
        collect_metadata,
        explain::{self, ExplainSettings},
        run::Args,
    },
    lock::{Key, Result},
    output::doctor::Source,
};

/// Settings that change nothing about a run; they are not shown.
const PRINT_SETTINGS: &[&str] = &["config", "color", "quiet", "verbose"];

/// Returns the settings of `explain`.
///
/// # Errors
/// The first invalid setting of the run.
pub fn resolve(
    explain: explain::Args,
    key: Key,
    globals: &Globals,
    layers: &Layers<'_>,
) -> Result<ExplainSettings> {
    let explain::Args { all, run: mut args } = explain;
    let sources = settings(&args, globals, layers)?;
    // The command makes no difference.
    args.command = vec!["true".into()];
    args.shell = None;
    Ok(ExplainSettings {
        run: run::settings(args, key, layers)?,
        sources,
        all,
    })
}

/// Returns every setting of a run with these arguments. Secrets have no value.
///
/// # Errors
/// If a variable is not UTF-8.
fn settings(args: &Args, globals: &Globals, layers: &Layers<'_>) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    for spec in spec::SETTINGS
        .iter()
        .filter(|spec| !PRINT_SETTINGS.contains(&spec.name))
    {
        let flag = flag(spec.name, args, globals);
        let given = layers
            .get(spec.name, flag.as_deref())?
            .map(|setting| sources::source(spec.name, setting));
        let default = || {
            default(spec.name).map(|value| Source {
                name: spec.name.to_owned(),
                value: Some(value),
                from: "default".into(),
            })
        };
        found.extend(given.or_else(default));
    }
    Ok(found)
}

/// Returns a setting's value from the command line.
fn flag(name: &str, args: &Args, globals: &Globals) -> Option<String> {
    let yes = |flag: bool| flag.then(|| "true".to_owned());
    let (taking, policy) = (&args.taking, &args.policy);
    match name {
        "backend" => globals.backend.clone(),
        "password_file" => globals.password_file.clone(),
        "backend_timeout" => globals.backend_timeout.clone(),
        "host" => globals.host.clone(),
        "namespace" => globals.namespace.clone(),
        "ttl" => args.ttl.clone(),
        "wait" => taking
            .wait
            .clone()
            .or_else(|| taking.nonblock.then(|| "0".to_owned())),
        "fair" => yes(taking.mode.fair),
        "permits" => taking.mode.permits.clone(),
        "conflict_exit_code" => taking.conflict_exit_code.clone(),
        "grace" => args.grace.clone(),
        "max_runtime" => args.max_runtime.clone(),
        "once_per" => policy.once_per.clone(),
        "skew_guard" => policy.skew_guard.clone(),
        "at_least" => policy.at_least.clone(),
        "once" => yes(policy.once),
        "keep" => policy.keep.clone(),
        "done_exit_code" => policy.done_exit_code.clone(),
        "retry_failed" => policy.retry_failed.clone(),
        "retry_crashed" => yes(policy.retry_crashed),
        "warn_held" => policy.warn_held.clone(),
        "on_lost" => args.on_lost.clone(),
        "leftover" => args.leftover.clone(),
        "contain" => args.contain.clone(),
        "describe" => args.describe.clone(),
        "no_metadata" => yes(args.no_metadata),
        "no_reentrant" => yes(args.no_reentrant),
        "status_file" => args.status_file.clone(),
        "metrics_file" => args.metrics_file.clone(),
        "log" => args.log.clone(),
        "on_event" => args.on_event.clone(),
        "output" => globals.output.clone(),
        _ => None,
    }
}

/// Returns a setting's default; `None` if it has none.
fn default(name: &str) -> Option<String> {
    Some(match name {
        "host" => return collect_metadata(None, None, None).host,
        "backend" => "local".into(),
        "backend_timeout" | "skew_guard" => "5s".into(),
        "namespace" => "dlock".into(),
        "ttl" => "60s".into(),
        "wait" => "0".into(),
        "conflict_exit_code" | "done_exit_code" => "75".into(),
        "grace" => "10s".into(),
        "warn_held" => "1h".into(),
        "on_lost" => "kill".into(),
        "leftover" => "wait".into(),
        "contain" | "log" => "auto".into(),
        "output" => "human".into(),
        "fair" | "once" | "retry_crashed" | "no_metadata" | "no_reentrant" => "false".into(),
        "max_runtime" | "at_least" | "once_per" | "on_event" => "none".into(),
        _ => return None,
    })
}
