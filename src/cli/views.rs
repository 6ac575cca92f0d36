//! The settings of the commands that show locks or stores, and of `break`.

use std::time::Duration;

use super::{
    args::{Command, Globals},
    env::Env,
    layers::Layers,
    setting::{Origin, Setting, reason, short},
    sources,
};
use crate::{
    commands::{
        Context, breaking, doctor, history, list,
        overview::{Choice, ChoiceArgs},
        report, verify,
    },
    lease::Held,
    lock::{Error, Key, Kind, Result, Role, Token},
};

/// Returns the settings of `break KEY`.
///
/// # Errors
/// The first invalid setting.
pub(super) fn break_settings(
    key: Key,
    how: breaking::BreakArgs,
) -> Result<breaking::BreakSettings> {
    let ending = |text: String| {
        let no_fence = || {
            Error::new(
                Kind::Usage,
                format!("--fence: {:?} is no fence", short(&text)),
            )
            .hint("dlock inspect shows it")
        };
        breaking::Ending::parse(&text).ok_or_else(no_fence)
    };
    let fence = how.fence.map(ending).transpose()?;
    let reason = how.reason.map(reason).transpose()?;
    Ok(breaking::BreakSettings {
        key,
        fence,
        reason,
        yes: how.yes,
        now: how.now,
    })
}

/// Returns the settings of `break --host`.
///
/// # Errors
/// The first invalid setting.
pub(super) fn break_host_settings(
    globals: &Globals,
    how: breaking::BreakArgs,
) -> Result<breaking::host::HostSettings> {
    if how.fence.is_some() {
        return Err(Error::new(Kind::Usage, "--fence is for one key")
            .hint("--host NAME breaks all holds of a host"));
    }
    let host = globals.host.clone().unwrap_or_default();
    Ok(breaking::host::HostSettings {
        host,
        reason: how.reason.map(reason).transpose()?,
        yes: how.yes,
        now: how.now,
    })
}

/// Returns the settings of `verify`.
pub(super) fn verify_settings(
    key: Key,
    token: Option<Token>,
    env: &Env,
    globals: &Globals,
) -> verify::VerifySettings {
    // A value that is not UTF-8 counts as empty.
    let held = env
        .get_os(Held::VARIABLE)
        .and_then(|value| value.to_str())
        .map(Held::parse)
        .unwrap_or_default();
    verify::VerifySettings {
        key,
        token,
        held,
        host: globals.host.clone(),
    }
}

/// Returns the settings of `list`.
///
/// # Errors
/// The first invalid setting.
pub(super) fn list_settings(args: list::Args, host: Option<String>) -> Result<list::ListSettings> {
    let flag = |text: Option<String>, name| {
        text.map(|text| Setting {
            text,
            origin: Origin::Flag(name),
        })
    };
    let held_longer_than = flag(args.held_longer_than, "--held-longer-than")
        .map(|setting| setting.duration("a time is 0 or more"))
        .transpose()?;
    let range = (
        Duration::from_millis(100),
        Duration::from_secs(24 * 3600),
        "a look is taken every 100ms to 24h",
    );
    let watch = flag(args.watch, "--watch")
        .map(|setting| setting.within(range))
        .transpose()?;
    let sort = args.sort.as_deref();
    let all =
        args.all || args.choice.failed || args.choice.since.is_some() || sort == Some("failed");
    let order = match sort {
        Some(by @ ("expires" | "wait")) if all => {
            return Err(Error::new(
                Kind::Usage,
                format!("--sort {by} is for held locks, not for all keys"),
            )
            .hint("--all can be sorted by key, since or failed"));
        }
        Some("since") => list::SortBy::Since,
        Some("expires") => list::SortBy::Expires,
        Some("wait") => list::SortBy::Wait,
        Some("failed") => list::SortBy::Failed,
        // The end of the table may not fit on the screen.
        None if all && watch.is_some() => list::SortBy::Failed,
        _ => list::SortBy::Key,
    };
    let choice = choice(args.choice, host)?;
    Ok(list::ListSettings {
        start: args.start.unwrap_or_default(),
        order,
        held_longer_than,
        watch,
        all,
        choice,
    })
}

/// Returns the settings of `history`.
///
/// # Errors
/// The first invalid setting.
pub(super) fn history_settings(
    key: Option<Key>,
    args: history::Args,
    host: Option<String>,
) -> Result<history::HistorySettings> {
    Ok(history::HistorySettings {
        key,
        last: args.last,
        timeline: args.timeline,
        choice: choice(args.choice, host)?,
    })
}

/// Returns the settings of `report`.
pub(super) fn report_settings(args: report::Args) -> report::ReportSettings {
    report::ReportSettings {
        start: args.start.unwrap_or_default(),
        to: args.to,
    }
}

/// Returns the filter for runs. These commands take no lock, so `--host` filters instead of naming
/// this machine.
fn choice(args: ChoiceArgs, host: Option<String>) -> Result<Choice> {
    let since = args.since.map(|text| Setting {
        text,
        origin: Origin::Flag("--since"),
    });
    Ok(Choice {
        failed: args.failed,
        host,
        user: args.user,
        since: since
            .map(|setting| setting.duration("a time is 0 or more"))
            .transpose()?,
    })
}

/// Whether the command's output needs no store.
pub(super) fn is_offline(command: &Command) -> bool {
    match command {
        Command::Doctor(args) => args.print_grants.is_some(),
        Command::Init(args) => args.print,
        Command::Names(_) => true,
        _ => false,
    }
}

/// Returns the settings of `doctor`.
///
/// # Errors
/// If the TTL is invalid, or a variable is not UTF-8.
pub(super) fn doctor_settings(
    args: &doctor::Args,
    globals: &Globals,
    layers: &Layers<'_>,
    context: &Context,
) -> Result<doctor::DoctorSettings> {
    let role = |text: &str| match text {
        "view" => Role::View,
        "break" => Role::Break,
        _ => Role::Run,
    };
    Ok(doctor::DoctorSettings {
        ttl: layers
            .get("ttl", args.ttl.as_deref())?
            .map(|setting| setting.ttl())
            .transpose()?,
        print_grants: args.print_grants.as_deref().map(role),
        from: sources::origin(globals, layers)?,
        sources: sources::sources(globals, args.ttl.as_deref(), layers)?,
        secrets: sources::secrets(globals, layers, &context.target)?,
    })
}
