//! The settings of the commands that look at locks, and of those that take them away.

use std::time::Duration;

use super::{
    args::Globals,
    resolve,
    setting::{Origin, Setting, short},
};
use crate::{
    commands::{
        breaking, history, list,
        overview::{Choice, ChoiceArgs},
    },
    lock::{Error, Key, Kind, Result},
};

/// What `break` is to do.
///
/// # Errors
/// The first thing that is wrong.
pub(super) fn break_settings(key: Key, how: breaking::BreakArgs) -> Result<breaking::BreakSettings> {
    let ending = |text: String| {
        let no_fence = || Error::new(Kind::Usage, format!("--fence: {:?} is no fence", short(&text))).hint("dlock inspect shows it");
        breaking::Ending::parse(&text).ok_or_else(no_fence)
    };
    let fence = how.fence.map(ending).transpose()?;
    let reason = how.reason.map(resolve::reason).transpose()?;
    Ok(breaking::BreakSettings { key, fence, reason, yes: how.yes, now: how.now })
}

/// What `break` without a key is to do.
///
/// # Errors
/// The first thing that is wrong.
pub(super) fn break_host_settings(globals: &Globals, how: breaking::BreakArgs) -> Result<breaking::host::HostSettings> {
    if how.fence.is_some() {
        return Err(Error::new(Kind::Usage, "--fence is for one key").hint("--host NAME breaks all holds of a host"));
    }
    let host = globals.host.clone().unwrap_or_default();
    Ok(breaking::host::HostSettings { host, reason: how.reason.map(resolve::reason).transpose()?, yes: how.yes, now: how.now })
}

/// What `list` is to do.
///
/// # Errors
/// The first thing that is wrong.
pub(super) fn list_settings(args: list::Args, host: Option<String>) -> Result<list::ListSettings> {
    let flag = |text: Option<String>, name| text.map(|text| Setting { text, origin: Origin::Flag(name) });
    let order = match args.sort.as_deref() {
        Some("since") => list::Order::Since,
        Some("expires") => list::Order::Expires,
        Some("wait") => list::Order::Wait,
        _ => list::Order::Key,
    };
    let held_longer_than =
        flag(args.held_longer_than, "--held-longer-than").map(|setting| setting.duration("a time is 0 or more")).transpose()?;
    let (least, most, range) = (Duration::from_millis(100), Duration::from_secs(24 * 3600), "a look is taken every 100ms to 24h");
    let watch = flag(args.watch, "--watch").map(|setting| resolve::within(&setting, least, most, range)).transpose()?;
    let all = args.all || args.choice.failed || args.choice.since.is_some();
    let choice = choice(args.choice, host)?;
    Ok(list::ListSettings { start: args.start.unwrap_or_default(), order, held_longer_than, watch, all, choice })
}

/// What `history` is to do.
///
/// # Errors
/// The first thing that is wrong.
pub(super) fn history_settings(key: Option<Key>, args: history::Args, host: Option<String>) -> Result<history::HistorySettings> {
    Ok(history::HistorySettings { key, last: args.last, timeline: args.timeline, choice: choice(args.choice, host)? })
}

/// Which runs are shown. These commands take no lock, so that `--host` is not this machine's name there.
fn choice(args: ChoiceArgs, host: Option<String>) -> Result<Choice> {
    let since = args.since.map(|text| Setting { text, origin: Origin::Flag("--since") });
    Ok(Choice {
        failed: args.failed,
        host,
        user: args.user,
        since: since.map(|setting| setting.duration("a time is 0 or more")).transpose()?,
    })
}
