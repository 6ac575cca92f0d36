//! `dlock break`: ask a holder to stop and give up, and wait until it has.

pub mod host;

use std::time::Duration;

use super::{Context, KeyArg, consent, interrupted, stopped_by};
use crate::{
    exit,
    lease::{self, BootClock, BreakOutcome, BreakRequest, Clock as _, ask},
    lock::{Backend, Break, Error, Holder, Key, Kind, LockState, Result},
    output::{age, described, fence, json, mark, shell},
    supervise::Signals,
};

/// How a lock is broken; of `dlock release --force` as well.
#[derive(clap::Args, Debug, Default)]
pub struct BreakArgs {
    /// Break only this hold; the last 4 digits are enough
    #[arg(long, value_name = "N")]
    pub fence: Option<String>,
    /// The reason, for the history and the holder
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Free the lock at once, if its holder is dead
    #[arg(long)]
    pub now: bool,
}

impl BreakArgs {
    /// Whether any of the flags was given.
    pub const fn is_given(&self) -> bool {
        self.fence.is_some() || self.reason.is_some() || self.yes || self.now
    }
}

/// The arguments of `dlock break`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock break KEY [OPTIONS]\n       dlock break --host NAME [OPTIONS]",
    after_help = "The holder's dlock stops its command and releases the lock; until then the lock\nstays held. A holder that does not answer keeps it until its lease ends.\n--host NAME, without a key, breaks all holds of a host that is dead.\nExample:  dlock break nightly --fence 1042 --yes --reason 'NFS hangs'"
)]
pub struct Args {
    /// The key.
    #[command(flatten)]
    pub key: KeyArg,
    /// How.
    #[command(flatten)]
    pub how: BreakArgs,
}

/// How long a hold that looks like another program's may turn out to be dlock's.
const FOREIGN: Duration = Duration::from_secs(1);
/// How often to look whether a hold is recorded.
const LOOK: Duration = Duration::from_millis(50);

/// The fewest trailing digits that identify a fence.
const ENDING: usize = 4;

/// The end of a fence, as operators type it: enough of the last digits to identify the fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending(String);

impl Ending {
    /// Parses the digits, after an optional ellipsis; `None` if the text has other characters.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text
            .strip_prefix('…')
            .or_else(|| text.strip_prefix("..."))
            .unwrap_or(text);
        let is_number = !digits.is_empty()
            && digits.len() <= 20
            && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| Self(digits.to_owned()))
    }

    /// Returns the holders whose fence ends with these digits; on a full match, only that holder.
    fn of<'a>(&self, holders: &'a [Holder]) -> Vec<&'a Holder> {
        let fence = |holder: &Holder| holder.fence.map(|fence| fence.to_string());
        if let Some(whole) = holders
            .iter()
            .find(|holder| fence(holder).as_ref() == Some(&self.0))
        {
            return vec![whole];
        }
        // Fewer digits may match another hold that began meanwhile.
        let tells = self.0.len() >= ENDING;
        holders
            .iter()
            .filter(|holder| tells && fence(holder).is_some_and(|fence| fence.ends_with(&self.0)))
            .collect()
    }
}

/// The validated settings of `dlock break`.
#[derive(Clone, Debug)]
pub struct BreakSettings {
    /// The lock's key.
    pub key: Key,
    /// The hold to break; `None` for the only holder.
    pub fence: Option<Ending>,
    /// The operator's reason.
    pub reason: Option<String>,
    /// Whether to skip the confirmation.
    pub yes: bool,
    /// Whether to break without waiting for the holder.
    pub now: bool,
}

/// Breaks the lock.
///
/// # Errors
/// The store's error, or a missing precondition of the break.
pub async fn run(settings: BreakSettings, context: &Context) -> Result<u8> {
    let out = &context.out;
    let decision = (settings.yes, settings.reason.as_deref());
    let to_ask = consent::check(context, &settings.key, decision, "break it").map_err(|error| match error.hint {
        None => error.hint("--yes --reason TEXT breaks it without asking; add --fence N, as dlock inspect shows it"),
        Some(_) => error,
    })?;
    let mut signals = Signals::new()
        .map_err(|error| Error::new(Kind::Internal, "signals can't be watched").source(error))?;
    let mut backend = super::open(context);
    let state = tokio::select! {
        biased;
        signal = interrupted(&mut signals) => return Ok(stopped_by(signal, &settings.key, out)),
        state = look(&settings.key, context, &mut *backend) => state?,
    };
    context.tell(&mut *backend);
    let store = backend.identity().url;
    let Some(seen) = choose(&settings, &state.holders)? else {
        return Ok(out.not_broken(&settings.key, &store, gone(&settings, &state.holders)));
    };
    // On etcd each key has a fence, also another program's.
    let number = seen
        .fence
        .filter(|_| !seen.foreign)
        .ok_or_else(|| unrecorded(seen, &state, context).key(&settings.key))?;
    // The operator must know that no process can answer.
    if !settings.now && !listens(seen) {
        announce(&settings, seen, context);
    }
    if to_ask && !agreed(&settings, seen)? {
        out.notice(&format!("{}: not broken", settings.key.escaped()));
        return Ok(exit::NOT_HELD);
    }
    let us = Break::new(consent::operator(context), settings.reason.clone());
    if !settings.now && listens(seen) {
        announce(&settings, seen, context);
    }
    let began = BootClock.now();
    let mut stopping = false;
    let breaking = lease::break_hold(
        &mut *backend,
        &BootClock,
        BreakRequest {
            key: &settings.key,
            seen,
            fence: number,
            mark: &us,
            at_once: settings.now,
        },
        context.limits(),
        interrupted(&mut signals),
        |holder| {
            if holder.broken.as_ref().is_some_and(|mark| mark.seen)
                && !std::mem::replace(&mut stopping, true)
            {
                out.notice(&format!(
                    "{}: the holder is stopping what it runs",
                    settings.key.escaped()
                ));
            }
        },
    );
    let (how, end) = match breaking.await? {
        BreakOutcome::Over(end) => ("given_back", end),
        BreakOutcome::Evicted => ("evicted", None),
        BreakOutcome::Changed => {
            return Ok(out.not_broken(
                &settings.key,
                &store,
                ("the holder changed meanwhile: nothing was done", true),
            ));
        }
        BreakOutcome::Stopped(signal) => {
            out.notice(&format!(
                "{}: the request to stop stays, {}; dlock inspect {} tells whether the holder did",
                settings.key.escaped(),
                mark(&us),
                shell(&settings.key)
            ));
            return Ok(stopped_by(signal, &settings.key, out));
        }
    };
    if out.is_json() {
        let waited = BootClock.now().since(began);
        return Ok(out.finish(
            out.json(&json::WasBroken::new(
                &settings.key,
                &store,
                number,
                how,
                waited,
            )),
            exit::OK,
        ));
    }
    let rest = if state.holders.len() > 1 {
        "that hold is over, the others have the lock"
    } else {
        "the lock is free"
    };
    let what = end.map_or_else(
        || "broken".to_owned(),
        |end| format!("it ended by itself meanwhile ({end})"),
    );
    out.notice(&format!("{}: {what}, {rest}", settings.key.escaped()));
    Ok(exit::OK)
}

/// Returns the state of the lock. A store whose lock is taken before the hold is recorded shows no
/// fence in between, and a hold of a session looks like another program's: such holds are looked at
/// again.
async fn look(key: &Key, context: &Context, backend: &mut dyn Backend) -> Result<LockState> {
    let (limits, began) = (context.limits(), BootClock.now());
    loop {
        let question = async |backend: &mut dyn Backend| backend.inspect(key).await;
        let state = ask(
            &mut *backend,
            &BootClock,
            limits,
            ("break", Some(key)),
            question,
        )
        .await?;
        let mut unrecorded = state
            .holders
            .iter()
            .filter(|holder| holder.fence.is_none())
            .peekable();
        if unrecorded.peek().is_none() {
            return Ok(state);
        }
        let longest = if unrecorded.all(|holder| holder.foreign) {
            FOREIGN
        } else {
            limits.answer
        };
        let next = BootClock.now().plus(LOOK);
        if next.since(began) > longest {
            return Ok(state);
        }
        BootClock.sleep_until(next).await;
    }
}

/// Returns the error for a hold without a record to put the request on.
fn unrecorded(holder: &Holder, state: &LockState, context: &Context) -> Error {
    let who = described(holder);
    if holder.foreign {
        let without_lease = context.target.store.info().without_lease;
        let hint = match (&holder.removal, holder.expires_in) {
            (Some(removal), _) => {
                format!("{removal} frees it, once the program that took it is dead")
            }
            (None, Some(left)) => {
                let left = age(left);
                format!("the program that took it must release it, or its lease ends in {left}")
            }
            (None, None) => without_lease.replace("{name}", &shell(&state.stored_as)),
        };
        let text = format!("{who} has it, and does not listen to dlock");
        return Error::new(Kind::Unsupported, text).hint(hint);
    }
    Error::new(
        Kind::Unavailable,
        format!("{who} has it, but could not record its hold yet"),
    )
    .hint("try again; dlock doctor tells whether the store accepts changes")
}

/// Returns the hold to break; `None` if it does not exist.
fn choose<'a>(settings: &BreakSettings, holders: &'a [Holder]) -> Result<Option<&'a Holder>> {
    let (meant, why): (Vec<&Holder>, _) = match &settings.fence {
        Some(ending) => (ending.of(holders), "have a fence that ends so"),
        None => (holders.iter().collect(), "have it together"),
    };
    if meant.len() > 1 {
        let each = || holders.iter().filter_map(|holder| holder.fence);
        let fences: Vec<String> = each().map(|one| fence(one, each())).collect();
        return Err(Error::new(Kind::Usage, format!("{} {why}", meant.len()))
            .key(&settings.key)
            .hint(format!("--fence N says which: {}", fences.join(", "))));
    }
    Ok(meant.first().copied())
}

/// Reports whose hold dlock breaks, and the expected effect.
fn announce(settings: &BreakSettings, seen: &Holder, context: &Context) {
    let (key, who, left) = (
        settings.key.escaped(),
        described(seen),
        seen.expires_in.map(crate::output::age),
    );
    if listens(seen) {
        let left = left
            .map(|left| format!("; free in {left} at most"))
            .unwrap_or_default();
        context
            .out
            .notice(&format!("{key}: held by {who}: asked to stop{left}"));
        return;
    }
    let pid = seen
        .metadata
        .as_ref()
        .and_then(|metadata| metadata.pid)
        .map(|pid| format!(" by pid {pid}"))
        .unwrap_or_default();
    let left = left.map(|left| format!(" in {left}")).unwrap_or_default();
    context.out.notice_with_hint(
        &format!("{key}: held by {who}: acquired{pid}; no dlock answers, the lease ends{left}"),
        "--now takes the lock at once; a process that uses its token keeps running",
    );
}

/// Whether a process renews the hold and can react to a break: a hold that was acquired for no
/// program has none.
pub(super) fn listens(seen: &Holder) -> bool {
    !seen.detached
        || seen
            .metadata
            .as_ref()
            .is_some_and(|metadata| metadata.command.is_some())
}

/// Returns why there is nothing to break, and whether the lock is held.
fn gone(settings: &BreakSettings, holders: &[Holder]) -> (&'static str, bool) {
    let why = if settings.fence.is_some() {
        "no such hold has the lock any more"
    } else {
        "the lock has no holder"
    };
    (why, !holders.is_empty())
}

/// Asks for confirmation on the terminal.
fn agreed(settings: &BreakSettings, seen: &Holder) -> Result<bool> {
    let consequence = if settings.now {
        " Its command may still run, next to the next holder's."
    } else {
        ""
    };
    consent::agreed(&format!(
        "break {}, held by {}?{consequence}",
        settings.key.escaped(),
        described(seen)
    ))
}
