//! `dlock acquire`: take a lock that outlives this process, and print the token that holds it.

mod while_pid;

use super::{
    Context, WantedArgs, interrupted,
    take::{AcquireResult, TakenLock, WantedLocks, release, take},
};
use crate::{
    exit,
    lease::{Limits, Released},
    lock::{Error, Key, Kind, ReleaseInfo, Result, Scope},
    output::json,
    supervise::{Signal, Signals},
};

/// The arguments of `dlock acquire`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock acquire KEY --ttl D | --while-pid PID [OPTIONS]",
    after_help = "Example:\n  token=$(dlock acquire deploy --while-pid $$) || exit\n  ./deploy.sh; dlock release deploy --token \"$token\""
)]
pub struct Args {
    /// How long it is held unless renewed or released
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub ttl: Option<String>,
    /// Keep it while PID lives; TERM to it on loss
    #[arg(long, value_name = "PID")]
    pub while_pid: Option<String>,
    /// What is taken.
    #[command(flatten)]
    pub wanted: WantedArgs,
}

/// The validated settings of `dlock acquire`.
#[derive(Clone, Debug)]
pub struct AcquireSettings {
    /// The locks to take; without a TTL if a renewer renews them.
    pub wanted: WantedLocks,
    /// The process during whose life a renewer renews the lock; `None` without a renewer.
    pub while_pid: Option<i32>,
}

/// Acquires the lock and prints its token. If the token can't be printed, dlock releases the lock.
///
/// # Errors
/// The store's error; nothing is left behind as far as it can be reached.
pub fn run(settings: &AcquireSettings, context: &Context) -> Result<u8> {
    match settings.while_pid {
        Some(pid) => while_pid::run(settings, pid, context),
        None => super::block_on(acquire_once(settings, context)),
    }
}

/// Acquires the lock for one TTL, without a renewer.
async fn acquire_once(settings: &AcquireSettings, context: &Context) -> Result<u8> {
    context.out.check_token_has_a_reader()?;
    let mut signals = Signals::new()
        .map_err(|error| Error::new(Kind::Unavailable, "signals can't be watched").source(error))?;
    match take(
        &settings.wanted,
        true,
        None,
        context,
        interrupted(&mut signals),
    )
    .await?
    {
        AcquireResult::Granted(mut holds) => {
            Ok(print(&mut holds, context).await.unwrap_or(exit::OK))
        }
        AcquireResult::Stopped(signal) => Ok(stopped(signal, &settings.wanted.key, context)),
        AcquireResult::Not(status) => Ok(status),
    }
}

/// Prints the token of one lock; of several locks a line for each, `TOKEN KEY`, in the order of the
/// command line. If printing fails, releases the locks and returns an exit status.
async fn print(holds: &mut [TakenLock], context: &Context) -> Option<u8> {
    let out = &context.out;
    let written = match &*holds {
        _ if out.is_json() => out.json(&acquired(holds)),
        [TakenLock { lease, .. }] => out.data(&format!("{}\n", lease.token.reveal())),
        _ => {
            let line = |TakenLock { lease, .. }: &TakenLock| {
                format!("{} {}\n", lease.token.reveal(), lease.key)
            };
            out.data(&holds.iter().map(line).collect::<String>())
        }
    };
    let error = written.err()?;
    Some(out.unwritten(&error, undo(holds, context.limits()).await))
}

/// Releases unused locks. Returns whether that succeeded, for a message.
async fn undo(holds: &mut [TakenLock], limits: Limits<'_>) -> &'static str {
    let info = ReleaseInfo {
        scope: Scope::Tree,
        ..ReleaseInfo::UNDO
    };
    let free = release(holds, &info, limits)
        .await
        .iter()
        .all(|released| matches!(released, Released::Free));
    if free {
        "the lock was released"
    } else {
        "the lock stays until its lease ends"
    }
}

/// Returns the JSON output.
pub(super) fn acquired(holds: &[TakenLock]) -> json::Acquired<'_> {
    let leases: Vec<_> = holds.iter().map(|hold| &hold.lease).collect();
    json::Acquired::new(
        &leases,
        holds
            .first()
            .map(|hold| hold.backend.identity().url)
            .unwrap_or_default(),
    )
}

/// Reports that a signal ended the wait.
fn stopped(signal: Signal, key: &Key, context: &Context) -> u8 {
    let status = context.out.interrupted(key, signal.number);
    if signal.from_terminal {
        super::die_by_signal(signal);
    }
    status
}
