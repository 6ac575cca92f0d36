//! `dlock acquire`: take a lock that outlives this process, and print the token that holds it.

mod kept;

use std::future::Future;

use super::{Context, KeyArg, interrupted, metadata};
use crate::{
    exit,
    lease::{self, BootClock, Lease, Limits, Outcome, Patience, Released, note_skip},
    lock::{Backend, Entry, Error, Key, Kind, Metadata, Mode, Parting, Request, Result, Scope, Token, Ttl},
    output::{Cause, Skip, Waiting, json},
    supervise::{Signal, Signals, reraise},
};

/// The arguments of `dlock acquire`.
#[derive(clap::Args, Debug)]
#[allow(clippy::struct_excessive_bools)] // flags
#[command(
    override_usage = "dlock acquire KEY --ttl D | --while-pid PID [OPTIONS]",
    after_help = "Example:\n  token=$(dlock acquire deploy --while-pid $$) || exit\n  ./deploy.sh; dlock release deploy --token \"$token\""
)]
pub struct Args {
    /// The key.
    #[command(flatten)]
    pub key: KeyArg,
    /// How long it is held unless renewed or released
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub ttl: Option<String>,
    /// Keep it while PID lives; TERM to it on loss
    #[arg(long, value_name = "PID")]
    pub while_pid: Option<String>,
    /// Wait so long for the lock: 30s, 5m, forever
    #[arg(short, long, value_name = "D", allow_negative_numbers = true)]
    pub wait: Option<String>,
    /// Do not wait (the default, and -w 0)
    #[arg(short, long)]
    pub nonblock: bool,
    /// Hold it together with other readers
    #[arg(short, long, conflicts_with = "exclusive")]
    pub shared: bool,
    /// The status when somebody else holds it [75]
    #[arg(short = 'E', long, value_name = "N", allow_negative_numbers = true)]
    pub conflict_exit_code: Option<String>,
    /// A note for those who look at the lock
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub describe: Option<String>,
    /// Leave out who holds the lock
    #[arg(long, hide_short_help = true)]
    pub no_metadata: bool,
    /// Hold the lock alone (the default)
    #[arg(short = 'x', visible_short_alias = 'e', long, hide_short_help = true)]
    pub exclusive: bool,
}

/// What `dlock acquire` is to do, checked.
#[derive(Clone, Debug)]
pub struct AcquireSettings {
    /// Which lock.
    pub key: Key,
    /// How it is held.
    pub mode: Mode,
    /// For how long; `None` for the usual length, where a keeper renews it.
    pub ttl: Option<Ttl>,
    /// The process for whose life a keeper renews it; `None` if nobody does.
    pub while_pid: Option<i32>,
    /// How long to wait.
    pub patience: Patience,
    /// The status when the lock is busy.
    pub conflict_status: u8,
    /// The note of the lease.
    pub describe: Option<String>,
    /// Whether the lease says who holds it.
    pub metadata: bool,
}

/// Takes the lock and prints its token. If the token can't be printed, the lock is given back.
///
/// # Errors
/// What kept the store from answering; nothing is left behind as far as it can be reached.
pub fn run(settings: AcquireSettings, context: &Context) -> Result<u8> {
    match settings.while_pid {
        Some(pid) => kept::run(settings, pid, context),
        None => super::block_on(unkept(settings, context)),
    }
}

/// For as long as the TTL says.
async fn unkept(settings: AcquireSettings, context: &Context) -> Result<u8> {
    context.out.check_token_has_a_reader()?;
    let mut signals = Signals::new().map_err(|error| Error::new(Kind::Internal, "signals can't be watched").source(error))?;
    let mut backend = super::open(context);
    match take(&settings, context, &mut *backend, None, interrupted(&mut signals)).await? {
        Taken::Granted(lease) => Ok(print(&lease, &mut *backend, context).await.unwrap_or(exit::OK)),
        Taken::Stopped(signal) => Ok(stopped(signal, &settings.key, context)),
        Taken::Not(status) => Ok(status),
    }
}

/// What came of an attempt to take the lock.
enum Taken<S> {
    Granted(Lease),
    /// Somebody else has it, which was said: the status.
    Not(u8),
    Stopped(S),
}

async fn take<S>(
    settings: &AcquireSettings,
    context: &Context,
    backend: &mut dyn Backend,
    program: Option<String>,
    stop: impl Future<Output = S>,
) -> Result<Taken<S>> {
    let (out, clock) = (&context.out, BootClock);
    let us = settings
        .metadata
        .then(|| Metadata { command: program, ..metadata::collect(context.host.as_deref(), None, settings.describe.clone()) });
    let request = Request {
        key: settings.key.clone(),
        token: Token::random(),
        ttl: settings.ttl.unwrap_or_else(|| backend.capabilities().clamp_ttl(Ttl::DEFAULT)),
        ttl_asked: settings.ttl.is_some(),
        mode: settings.mode,
        fair: false,
        entry: Entry::Fresh,
        detached: true,
        waiting: false,
        metadata: us.clone(),
        at_ms: None,
        terms: None,
    };
    let waiting = Waiting::new(out, &settings.key, settings.patience, &clock);
    let stop = waiting.ticking(stop);
    let outcome =
        lease::acquire(&mut *backend, &clock, request, settings.patience, context.limits, stop, |busy| waiting.update(busy)).await;
    waiting.clear();
    context.tell(&mut *backend);
    let waited = waiting.waited();
    Ok(match outcome? {
        Outcome::Granted(lease) => Taken::Granted(lease),
        Outcome::Busy(busy) => {
            note_skip(&mut *backend, &settings.key, us.as_ref(), "busy").await;
            let skip = Skip { key: &settings.key, cause: Cause::Busy(&busy), waited, outcome: "not taken" };
            Taken::Not(out.busy(&skip, &backend.describe(), settings.conflict_status))
        }
        Outcome::Refused(refusal) => {
            let option = refusal.rule.to_string();
            note_skip(&mut *backend, &settings.key, us.as_ref(), &option).await;
            let skip = Skip { key: &settings.key, cause: Cause::Refused(&refusal, &option), waited, outcome: "not taken" };
            Taken::Not(out.busy(&skip, &backend.describe(), settings.conflict_status))
        }
        Outcome::Stopped(why) => Taken::Stopped(why),
    })
}

/// Prints what the lock is renewed and released with; a status if that can't be done, and the lock was given back.
async fn print(lease: &Lease, backend: &mut dyn Backend, context: &Context) -> Option<u8> {
    let out = &context.out;
    let written = if out.is_json() {
        out.json(&json::Acquired::new(lease, &backend.describe()))
    } else {
        out.data(&format!("{}\n", lease.token.reveal()))
    };
    let error = written.err()?;
    let kept = !matches!(give_back(backend, lease, context.limits).await, Released::Free);
    Some(out.unwritten(&error, if kept { "the lock stays until its lease ends" } else { "the lock was given back" }))
}

/// Gives back what nothing was done under.
async fn give_back(backend: &mut dyn Backend, lease: &Lease, limits: Limits) -> Released {
    let parting = Parting { scope: Scope::Tree, ..Parting::UNDO };
    lease::give_back(backend, &BootClock, &lease.key, &lease.token, &parting, limits).await
}

/// Says that a signal ended the wait.
fn stopped(signal: Signal, key: &Key, context: &Context) -> u8 {
    let status = context.out.interrupted(key, signal.number);
    if signal.from_terminal {
        // So that a calling script ends too.
        reraise(signal.number);
    }
    status
}
