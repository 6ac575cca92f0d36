//! `dlock hold`: keep a lock in the foreground, for a script that does the work itself.
//!
//! `dlock hold` kills no process: the caller stops its work when `dlock hold` ends with 76.

pub(super) mod until;

use std::{
    io::{self, IsTerminal as _},
    time::Duration,
};

use tokio::task::{JoinHandle, spawn_blocking};

use self::until::{EndCondition, HoldEnd};
use super::{
    Context, WantedArgs,
    acquire::acquired,
    interrupted,
    take::{AcquireResult, TakenLock, WantedLocks, keep, release, take},
};
use crate::{
    exit,
    lease::{BootClock, Clock as _, Released, WaitPolicy, bounded, wall_ms},
    lock::{Error, Intent, Kind, ReleaseInfo, Result, Scope},
    output::{json, loss},
    supervise::Signals,
};

/// The arguments of `dlock hold`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock hold KEY [OPTIONS]",
    after_help = "Prints a line of JSON once the lock is taken; releases it when stdin ends.\nExample:  coproc dlock hold deploy -w 10m; read -r taken <&${COPROC[0]}"
)]
pub struct Args {
    /// What is taken.
    #[command(flatten)]
    pub wanted: WantedArgs,
    /// Hold it until a signal comes instead
    #[arg(long, conflicts_with = "while_pid")]
    pub until_signal: bool,
    /// Hold it for as long as this process lives
    #[arg(long, value_name = "PID")]
    pub while_pid: Option<String>,
    /// The TTL of the lease; dlock renews it [60s]
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub ttl: Option<String>,
}

/// How long the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldUntil {
    /// Until stdin ends.
    StdinEnds,
    /// Until a signal comes.
    Signal,
    /// Until this process ends.
    ProcessEnds(i32),
}

/// How long the line about the hold may take once the hold is over.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The validated settings of `dlock hold`.
#[derive(Clone, Debug)]
pub struct HoldSettings {
    /// The locks to take.
    pub wanted: WantedLocks,
    /// How long the lock is held.
    pub until: HoldUntil,
}

/// Acquires the lock, reports it, renews it, and releases it.
///
/// # Errors
/// The store's error before the lock was taken.
pub async fn run(settings: &HoldSettings, context: &Context) -> Result<u8> {
    let out = &context.out;
    out.check_token_has_a_reader()?;
    let until = EndCondition::open(settings.until)?;
    let mut signals = Signals::new()
        .map_err(|error| Error::new(Kind::Unavailable, "signals can't be watched").source(error))?;
    let stop = async {
        if settings.wanted.wait_policy == WaitPolicy::Try {
            // A try is always finished, so that its outcome is reported.
            return HoldEnd::Signal(interrupted(&mut signals).await);
        }
        until.ended_or(interrupted(&mut signals)).await
    };
    let mut holds = match Box::pin(take(&settings.wanted, false, None, context, stop)).await? {
        AcquireResult::Granted(holds) => holds,
        AcquireResult::Not(status) => return Ok(status),
        AcquireResult::Stopped(HoldEnd::Ended) => {
            return Err(Error::new(
                Kind::Usage,
                "the hold was to end before the lock was taken: stdin or the process of --while-pid has ended",
            )
            .key(&settings.wanted.key)
            .hint("keep stdin open for as long as the lock is needed, or use --while-pid $$"));
        }
        AcquireResult::Stopped(HoldEnd::Signal(signal)) => {
            let status = out.interrupted(&settings.wanted.key, signal.number);
            if signal.from_terminal {
                super::die_by_signal(signal);
            }
            return Ok(status);
        }
    };
    if until.is_kept_from_reading() {
        out.notice_with_hint(
            &format!(
                "{}: held in the background, where the terminal's input is not read",
                settings.wanted.key.escaped()
            ),
            "kill releases it; --while-pid $$ does without a terminal",
        );
    }
    // Printed in the background: a slow reader must not delay the renewals.
    let (text, printer) = (json::line(&acquired(&holds)), out.clone());
    // The token is a secret, and terminal output ends up in logs.
    let silent = io::stdout().is_terminal() && !out.is_json();
    if silent {
        let how = if settings.until == HoldUntil::StdinEnds {
            "Ctrl-D releases it"
        } else {
            "Ctrl-C releases it"
        };
        out.notice(&format!("holding {}; {how}", settings.wanted.key.escaped()));
    }
    let printing = spawn_blocking(move || if silent { Ok(()) } else { printer.data(&text) });
    keep_on(&mut holds, settings, context, until, signals, printing).await
}

/// Renews until the hold ends.
async fn keep_on(
    holds: &mut [TakenLock],
    settings: &HoldSettings,
    context: &Context,
    until: EndCondition,
    mut signals: Signals,
    mut printing: JoinHandle<io::Result<()>>,
) -> Result<u8> {
    let out = &context.out;
    let began = BootClock.now();
    let over = tokio::select! {
        biased;
        loss = keep(holds, context.limits(), Intent::Extend(None), &|_, _, _| ()) => Err(loss?),
        Ok(Err(error)) = &mut printing => {
            let free = release(holds, &info(Duration::ZERO), context.limits()).await.iter().all(|one| matches!(one, Released::Free));
            return Ok(out.unwritten(&error, if free { "the lock was released" } else { "the lock stays until its lease ends" }));
        }
        over = until.ended_or(interrupted(&mut signals)) => Ok(over),
    };
    let mut status = match over {
        Ok(HoldEnd::Ended) => exit::OK,
        Ok(HoldEnd::Signal(_)) if settings.until == HoldUntil::Signal => exit::OK,
        Ok(HoldEnd::Signal(signal)) => exit::signalled(signal.number),
        Err((at, lost)) => {
            let how = loss(&lost);
            // No release: the caller needs the rest of the leases to stop its work.
            out.warn_with_hint(
                &format!(
                    "{}: the lock was lost: {how}",
                    holds[at].lease.key.escaped()
                ),
                "stop the protected work",
            );
            return Ok(exit::LOST);
        }
    };
    let released = release(holds, &info(BootClock.now().since(began)), context.limits()).await;
    for (TakenLock { lease, .. }, released) in holds.iter().zip(released) {
        match released {
            Released::Free | Released::StillHeld(_) => {}
            Released::NotHeld => {
                out.warn_with_hint(
                    &format!("{}: the lock was lost: it was not ours any more when it was to be released", lease.key.escaped()),
                    "the protected work may have run next to another holder's",
                );
                status = exit::LOST;
            }
            Released::Untold(error) => out.warn(&format!(
                "{error}: the lock is free, but its history doesn't tell how the hold ended"
            )),
            Released::Unknown(error) => {
                out.warn(&format!(
                    "{}: the lock could not be released and ends with its lease: {error}",
                    lease.key.escaped()
                ));
            }
        }
    }
    if !printing.is_finished() {
        // The hold ended at once: give the reader a moment to read the line.
        let _ = bounded(&BootClock, BootClock.now().plus(LAST_WORD), printing).await;
    }
    Ok(status)
}

/// Returns the release info, for the history.
fn info(held: Duration) -> ReleaseInfo {
    ReleaseInfo {
        at_ms: Some(wall_ms()),
        held_ms: u64::try_from(held.as_millis()).ok(),
        ..Scope::Tree.into()
    }
}
