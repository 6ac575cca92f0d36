//! The settings of all commands that take locks.

use std::ffi::OsString;

use super::{
    layers::Layers,
    setting::{DESCRIPTION, short},
};
use crate::{
    commands::{ModeArgs, WantedArgs, WantedLocks},
    exit,
    lease::WaitPolicy,
    lock::{Error, Key, Kind, Mode, Result, Ttl},
};

/// Most keys of one command.
const KEYS: usize = 32;
/// Most permits of one lock: more are of no use, and much work for the store.
const PERMITS: u32 = 1000;

/// Returns the locks that `acquire` or `hold` is to take.
///
/// # Errors
/// The first invalid setting.
pub fn wanted(
    key: Key,
    args: &WantedArgs,
    ttl: Option<Ttl>,
    layers: &Layers<'_>,
) -> Result<WantedLocks> {
    let also = also(&key, &args.keys.key_flags)?;
    Ok(WantedLocks {
        mode: mode(&args.taking.mode, &also, layers)?,
        key,
        also,
        fair: layers.yes("fair", args.taking.mode.fair)?,
        ttl,
        wait_policy: wait_policy(args.taking.wait.as_deref(), args.taking.nonblock, layers)?,
        conflict_status: conflict_status(args.taking.conflict_exit_code.as_deref(), layers)?,
        describe: describe(args.describe.as_deref(), layers)?,
        metadata: !layers.yes("no_metadata", args.no_metadata)?,
    })
}

/// Returns the further keys of a command, in the given order; `first` is the first entry of
/// `named`.
///
/// # Errors
/// If a key is invalid or given twice, or if there are too many.
pub fn also(first: &Key, named: &[OsString]) -> Result<Vec<Key>> {
    let mut also = Vec::new();
    for name in named.iter().skip(1) {
        let key = Key::from_os(name)?;
        if key == *first || also.contains(&key) {
            return Err(Error::new(Kind::Usage, "this key is given twice")
                .key(&key)
                .hint("each lock is taken once"));
        }
        also.push(key);
    }
    if also.len() < KEYS {
        Ok(also)
    } else {
        Err(
            Error::new(Kind::Usage, format!("{} keys are given", also.len() + 1))
                .hint(format!("{KEYS} locks can be taken together")),
        )
    }
}

/// Returns the mode of the lock.
///
/// # Errors
/// If the number of permits is invalid, or if permits are requested for several locks.
pub fn mode(args: &ModeArgs, also: &[Key], layers: &Layers<'_>) -> Result<Mode> {
    if args.shared {
        return Ok(Mode::Shared);
    }
    let Some(setting) = layers
        .get("permits", args.permits.as_deref())?
        .filter(|_| !args.exclusive)
    else {
        return Ok(Mode::Exclusive);
    };
    let most = setting
        .text
        .parse()
        .ok()
        .filter(|most| (1..=PERMITS).contains(most));
    let Some(most) = most else {
        let why = format!("{:?} is no number of permits", short(&setting.text));
        return Err(setting
            .refuse(why)
            .hint(format!("1 to {PERMITS} holders at once")));
    };
    if !also.is_empty() {
        // With several locks, it would be ambiguous to which lock DLOCK_PERMIT and the number of
        // permits belong.
        return Err(setting
            .refuse("it is for one key")
            .hint("a run inside of a run takes permits of another lock"));
    }
    Ok(Mode::Permits(most))
}

/// Returns the wait policy: `-n` or `-w` from the command line, else the setting `wait`.
///
/// # Errors
/// If both flags are given, or the value is not a duration.
pub fn wait_policy(wait: Option<&str>, nonblock: bool, layers: &Layers<'_>) -> Result<WaitPolicy> {
    match (wait, nonblock) {
        (Some(_), true) => {
            return Err(
                Error::new(Kind::Usage, "--wait and --nonblock exclude each other")
                    .hint("-w 30s waits for 30 seconds, -n does not wait"),
            );
        }
        (None, true) => return Ok(WaitPolicy::Try),
        _ => {}
    }
    let Some(setting) = layers.get("wait", wait)? else {
        return Ok(WaitPolicy::Try);
    };
    if setting.text == "forever" {
        return Ok(WaitPolicy::Forever);
    }
    let length = setting.duration("a wait is 0 or more, or forever")?;
    Ok(if length.is_zero() {
        WaitPolicy::Try
    } else {
        WaitPolicy::For(length)
    })
}

/// Returns the exit status for a busy lock.
///
/// # Errors
/// If the value is not an exit status.
pub fn conflict_status(flag: Option<&str>, layers: &Layers<'_>) -> Result<u8> {
    layers
        .get("conflict_exit_code", flag)?
        .map_or(Ok(exit::BUSY), |setting| setting.status())
}

/// Returns the note of the hold.
///
/// # Errors
/// If the text is too long or has control characters.
pub fn describe(flag: Option<&str>, layers: &Layers<'_>) -> Result<Option<String>> {
    let text = layers
        .get("describe", flag)?
        .map(|setting| setting.line(DESCRIPTION))
        .transpose()?;
    Ok(text.filter(|text| !text.is_empty()))
}
