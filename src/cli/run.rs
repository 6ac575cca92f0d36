//! The settings of `dlock run`.

use std::ffi::OsString;

use super::{
    layers::Layers,
    policy,
    setting::{Origin, Setting, short},
    signal, spec, taking,
};
use crate::{
    commands::{
        TakingArgs,
        run::{Args, Frequency, PolicyArgs, RunSettings},
    },
    lease::Budget,
    lock::{Error, Key, Kind, Pace, Result, Ttl},
    output::{MetricsFile, StatusFile, SyslogPolicy},
    supervise::{Contain, Leftover, OnLost},
};

/// Checks all settings of `run`.
///
/// # Errors
/// The first invalid setting.
pub fn settings(args: Args, key: Key, layers: &Layers<'_>) -> Result<RunSettings> {
    let command = command(args.shell, args.command)?;
    let wait_policy =
        taking::wait_policy(args.taking.wait.as_deref(), args.taking.nonblock, layers)?;
    let ttl = layers
        .get("ttl", args.ttl.as_deref())?
        .map(|setting| setting.ttl())
        .transpose()?;
    let grace = match layers.get("grace", args.grace.as_deref())? {
        Some(setting) => {
            let grace = setting.duration("a grace is 0 or more")?;
            Budget::new(ttl.unwrap_or(Ttl::DEFAULT), Some(grace), Pace::USUAL)
                .map_err(|error| setting.blame(error))?;
            Some(grace)
        }
        None => None,
    };
    let max_runtime = match layers.get("max_runtime", args.max_runtime.as_deref())? {
        Some(setting) => Some(setting.duration("a limit is 0, for none, or more")?)
            .filter(|most| !most.is_zero()),
        None => None,
    };
    let also = taking::also(&key, &args.key)?;
    let mode = taking::mode(&args.taking.mode, &also, layers)?;
    let policy = policy::policy(&args.policy, mode, wait_policy, layers)?;
    let leftover = [
        ("wait", Leftover::Wait),
        ("kill", Leftover::Kill),
        ("leave", Leftover::Leave),
    ];
    let contain = [
        ("auto", Contain::Auto),
        ("group", Contain::Group),
        ("cgroup", Contain::Cgroup),
    ];
    let log = [
        ("auto", SyslogPolicy::Auto),
        ("off", SyslogPolicy::Off),
        ("json", SyslogPolicy::Json),
    ];
    let (conflict_status, done_status) =
        statuses(&args.taking, &args.policy, policy.frequency, layers)?;
    Ok(RunSettings {
        key,
        also,
        mode,
        fair: layers.yes("fair", args.taking.mode.fair)?,
        command,
        ttl,
        grace,
        max_runtime,
        policy,
        wait_policy,
        nonblock: args.taking.nonblock,
        conflict_status,
        done_status,
        on_lost: layers
            .get("on_lost", args.on_lost.as_deref())?
            .map_or(Ok(OnLost::Kill), |setting| on_lost(&setting))?,
        leftover: layers
            .get("leftover", args.leftover.as_deref())?
            .map_or(Ok(Leftover::Wait), |setting| setting.choice(&leftover))?,
        contain: layers
            .get("contain", args.contain.as_deref())?
            .map_or(Ok(Contain::Auto), |setting| setting.choice(&contain))?,
        describe: taking::describe(args.describe.as_deref(), layers)?,
        metadata: !layers.yes("no_metadata", args.no_metadata)?,
        reentrant: !layers.yes("no_reentrant", args.no_reentrant)?,
        status_file: layers
            .get("status_file", args.status_file.as_deref())?
            .map(|setting| status_file(&setting))
            .transpose()?,
        metrics_file: layers
            .get("metrics_file", args.metrics_file.as_deref())?
            .map(|setting| metrics_file(&setting))
            .transpose()?,
        on_event: layers
            .get("on_event", args.on_event.as_deref())?
            .map(|setting| setting.text)
            .filter(|line| !line.trim().is_empty()),
        log: layers
            .get("log", args.log.as_deref())?
            .map_or(Ok(SyslogPolicy::Auto), |setting| setting.choice(&log))?,
        kept_variables: spec::kept_variables(),
    })
}

/// Returns the statuses of a skip: where the lock is busy, and where another run did the work.
fn statuses(
    taking: &TakingArgs,
    policy: &PolicyArgs,
    frequency: Frequency,
    layers: &Layers<'_>,
) -> Result<(u8, u8)> {
    let busy = taking::conflict_status(taking.conflict_exit_code.as_deref(), layers)?;
    let done = match layers.get("done_exit_code", policy.done_exit_code.as_deref())? {
        Some(setting) if frequency == Frequency::Always => {
            return Err(setting
                .refuse("it needs --once-per or --once")
                .hint("without them no run finds its work done by another"));
        }
        Some(setting) => setting.status()?,
        None => busy,
    };
    Ok((busy, done))
}

fn command(shell: Option<OsString>, command: Vec<OsString>) -> Result<Vec<OsString>> {
    let usage = |why: &str, hint: &str| Err(Error::new(Kind::Usage, why).hint(hint));
    match (shell, command.first()) {
        (Some(_), Some(_)) => usage(
            "both -c and a command are given",
            "quote the shell line: -c 'a | b'",
        ),
        (Some(line), None) => Ok(vec!["/bin/sh".into(), "-c".into(), line]),
        (None, None) => usage(
            "no command is given",
            "it stands after --, as in: dlock run -k sms-job -- ./send_sms.sh",
        ),
        (None, Some(program)) if program.is_empty() => usage(
            "the command's name is empty",
            "it stands after --, as in: dlock run -k sms-job -- ./send_sms.sh",
        ),
        (None, Some(_)) => Ok(command),
    }
}

fn on_lost(setting: &Setting) -> Result<OnLost> {
    if let Some(name) = setting.text.strip_prefix("signal:") {
        return signal::number(name).map(OnLost::Signal).ok_or_else(|| {
            setting
                .refuse(format!(
                    "{:?} is not a signal that a process can handle",
                    short(name)
                ))
                .hint("like signal:INT, signal:USR1 or signal:10")
        });
    }
    let choices = [
        ("kill", OnLost::Kill),
        ("continue", OnLost::Continue),
        ("signal:SIG", OnLost::Kill),
    ];
    if setting.text == "signal:SIG" {
        on_lost(&Setting {
            text: "signal:".into(),
            origin: setting.origin.clone(),
        })
    } else {
        setting.choice(&choices)
    }
}

fn status_file(setting: &Setting) -> Result<StatusFile> {
    StatusFile::new(setting.path()).map_err(|why| wrong_path(setting, &why))
}

fn metrics_file(setting: &Setting) -> Result<MetricsFile> {
    MetricsFile::new(setting.path()).map_err(|why| wrong_path(setting, &why))
}

fn wrong_path(setting: &Setting, why: &str) -> Error {
    match setting.origin {
        Origin::File { .. } => setting.refuse(why),
        _ => setting.refuse(format!("{}: {why}", setting.text)),
    }
}
