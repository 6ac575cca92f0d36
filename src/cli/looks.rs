//! The settings of the commands that look at locks, and of those that take them away.

use std::time::Duration;

use super::{
    resolve,
    setting::{Origin, Setting, short},
};
use crate::{
    commands::{breaking, list},
    lock::{Error, Fence, Key, Kind, Result},
};

/// What `break` is to do.
///
/// # Errors
/// The first thing that is wrong.
pub(super) fn break_settings(key: Key, how: breaking::BreakArgs) -> Result<breaking::BreakSettings> {
    let fence = match how.fence {
        Some(text) => Some(Fence(
            text.parse()
                .map_err(|_| Error::new(Kind::Usage, format!("--fence: {:?} is no fence", short(&text))).hint("dlock inspect shows it"))?,
        )),
        None => None,
    };
    let reason = how.reason.map(resolve::reason).transpose()?;
    Ok(breaking::BreakSettings { key, fence, reason, yes: how.yes, now: how.now })
}

/// What `list` is to do.
///
/// # Errors
/// The first thing that is wrong.
pub(super) fn list_settings(args: list::Args) -> Result<list::ListSettings> {
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
    Ok(list::ListSettings { start: args.start.unwrap_or_default(), order, held_longer_than, watch })
}
