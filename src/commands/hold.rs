//! `dlock hold`: keep a lock in the foreground, for a script that does the work itself.
//!
//! Nothing is killed here: whoever holds a lock this way stops its work when this command ends with 76.

pub(super) mod until;

use std::time::Duration;

use self::until::{Over, Until};
use super::{Context, KeyArg, interrupted, metadata};
use crate::{
    exit,
    lease::{self, BootClock, Budget, Clock as _, Lease, Loss, Outcome, Patience, Released, give_back, note_skip, wall_ms},
    lock::{Backend, Entry, Error, Key, Kind, Mode, Parting, Purpose, Request, Result, Scope, Token, Ttl},
    output::{Cause, Skip, Waiting, age, json},
    supervise::{Signals, reraise},
};

/// The arguments of `dlock hold`.
#[derive(clap::Args, Debug)]
#[allow(clippy::struct_excessive_bools)] // flags
#[command(
    override_usage = "dlock hold KEY [OPTIONS]",
    after_help = "Prints a line of JSON once the lock is taken. It is given back when stdin ends.\nExample, in bash:\n  coproc dlock hold deploy -w 10m; read -r taken <&${COPROC[0]} && ./deploy.sh"
)]
pub struct Args {
    /// The key.
    #[command(flatten)]
    pub key: KeyArg,
    /// Wait so long for the lock: 30s, 5m, forever
    #[arg(short, long, value_name = "D", allow_negative_numbers = true)]
    pub wait: Option<String>,
    /// Do not wait (the default, and -w 0)
    #[arg(short, long)]
    pub nonblock: bool,
    /// Hold it together with other readers
    #[arg(short, long, conflicts_with = "exclusive")]
    pub shared: bool,
    /// Hold it until a signal comes instead
    #[arg(long, conflicts_with = "while_pid")]
    pub until_signal: bool,
    /// Hold it for as long as this process lives
    #[arg(long, value_name = "PID")]
    pub while_pid: Option<String>,
    /// The status when somebody else holds it [75]
    #[arg(short = 'E', long, value_name = "N", allow_negative_numbers = true)]
    pub conflict_exit_code: Option<String>,
    /// The length of the lease, renewed all along [60s]
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub ttl: Option<String>,
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

/// How long it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldUntil {
    /// Until stdin ends.
    StdinEnds,
    /// Until a signal comes.
    Signal,
    /// Until this process ends.
    ProcessEnds(i32),
}

/// What `dlock hold` is to do, checked.
#[derive(Clone, Debug)]
pub struct HoldSettings {
    /// Which lock.
    pub key: Key,
    /// How it is held.
    pub mode: Mode,
    /// The lease that was asked for; `None` for the default, which the backend may move into its range.
    pub ttl: Option<Ttl>,
    /// How long to wait.
    pub patience: Patience,
    /// How long it is held.
    pub until: HoldUntil,
    /// The status when the lock is busy.
    pub conflict_status: u8,
    /// The note of the lease.
    pub describe: Option<String>,
    /// Whether the lease says who holds it.
    pub metadata: bool,
}

/// Takes the lock, says so, keeps it, and gives it back.
///
/// # Errors
/// What kept the store from answering before the lock was taken.
pub async fn run(settings: HoldSettings, context: &Context) -> Result<u8> {
    let out = &context.out;
    out.check_token_has_a_reader()?;
    let until = Until::open(settings.until)?;
    let clock = BootClock;
    let mut signals = Signals::new().map_err(|error| Error::new(Kind::Internal, "signals can't be watched").source(error))?;
    let mut backend = super::open(context);
    let ttl = match settings.ttl {
        Some(ttl) => ttl,
        None => backend.capabilities().clamp_ttl(Ttl::DEFAULT),
    };
    let us = settings.metadata.then(|| metadata::collect(context.host.as_deref(), None, settings.describe.clone()));
    let request = Request {
        key: settings.key.clone(),
        token: Token::random(),
        ttl,
        ttl_asked: settings.ttl.is_some(),
        mode: settings.mode,
        fair: false,
        entry: Entry::Fresh,
        detached: false,
        waiting: false,
        metadata: us.clone(),
        at_ms: None,
        terms: None,
    };
    let waiting = Waiting::new(out, &settings.key, settings.patience, &clock);
    let outcome = lease::acquire(
        &mut *backend,
        &clock,
        request,
        settings.patience,
        context.limits,
        waiting.ticking(until.ended_or(interrupted(&mut signals))),
        |busy| waiting.update(busy),
    )
    .await;
    waiting.clear();
    context.tell(&mut *backend);
    let waited = waiting.waited();
    let lease = match outcome? {
        Outcome::Granted(lease) => lease,
        Outcome::Busy(busy) => {
            note_skip(&mut *backend, &settings.key, us.as_ref(), "busy").await;
            let skip = Skip { key: &settings.key, cause: Cause::Busy(&busy), waited, outcome: "not taken" };
            return Ok(out.busy(&skip, &backend.describe(), settings.conflict_status));
        }
        Outcome::Refused(refusal) => {
            let option = refusal.rule.to_string();
            note_skip(&mut *backend, &settings.key, us.as_ref(), &option).await;
            let skip = Skip { key: &settings.key, cause: Cause::Refused(&refusal, &option), waited, outcome: "not taken" };
            return Ok(out.busy(&skip, &backend.describe(), settings.conflict_status));
        }
        // Whoever the lock was for is gone.
        Outcome::Stopped(Over::Ended) => return Ok(exit::OK),
        Outcome::Stopped(Over::Signal(signal)) => {
            let status = out.interrupted(&settings.key, signal.number);
            if signal.from_terminal {
                reraise(signal.number);
            }
            return Ok(status);
        }
    };
    if let Err(error) = out.data(&json::line(&json::Acquired::new(&lease, &backend.describe()))) {
        let kept = !matches!(free(&mut *backend, &lease, context, Duration::ZERO).await, Released::Free);
        return Ok(out.unwritten(&error, if kept { "the lock stays until its lease ends" } else { "the lock was given back" }));
    }
    keep(lease, &settings, context, &mut *backend, until, signals).await
}

/// Renews until it is over.
async fn keep(
    mut lease: Lease,
    settings: &HoldSettings,
    context: &Context,
    backend: &mut dyn Backend,
    until: Until,
    mut signals: Signals,
) -> Result<u8> {
    let out = &context.out;
    let budget = Budget::new(lease.ttl, None, backend.capabilities().pace)?;
    let began = lease.t0;
    let over = {
        let renewals = lease::keep(backend, &BootClock, &mut lease, budget, context.limits, Purpose::GoOn, |_, _| {});
        tokio::select! {
            biased;
            loss = renewals => Err(loss),
            over = until.ended_or(interrupted(&mut signals)) => Ok(over),
        }
    };
    let status = match over {
        Ok(Over::Ended) => exit::OK,
        Ok(Over::Signal(_)) if settings.until == HoldUntil::Signal => exit::OK,
        Ok(Over::Signal(signal)) => exit::signalled(signal.number),
        Err(loss) => {
            let how = match loss {
                Loss::NotOwner => "the store says that it is not ours any more".to_owned(),
                Loss::Unconfirmed { since, last } => {
                    let last = last.map(|error| format!(" ({error})")).unwrap_or_default();
                    format!("no renewal for {}{last}", age(since))
                }
                Loss::Broken(mark) => format!("it is being broken {}", crate::output::mark(&mark)),
            };
            // What is left of the lease is the caller's, to stop its work in.
            out.warn_with_hint(&format!("{}: the lock was lost: {how}", lease.key.escaped()), "stop the work that it protects");
            return Ok(exit::LOST);
        }
    };
    match free(backend, &lease, context, BootClock.now().since(began)).await {
        Released::Free | Released::StillHeld(_) => Ok(status),
        Released::NotHeld => {
            out.warn_with_hint(
                &format!("{}: the lock was lost: it was not ours any more when it was to be given back", lease.key.escaped()),
                "the work that it protects may have met somebody else's",
            );
            Ok(exit::LOST)
        }
        Released::Unknown(error) => {
            out.warn(&format!("{}: the lock could not be given back and ends with its lease: {error}", lease.key.escaped()));
            Ok(status)
        }
    }
}

async fn free(backend: &mut dyn Backend, lease: &Lease, context: &Context, held: Duration) -> Released {
    let parting = Parting { at_ms: Some(wall_ms()), held_ms: u64::try_from(held.as_millis()).ok(), ..Scope::Tree.into() };
    give_back(backend, &BootClock, &lease.key, &lease.token, &parting, context.limits).await
}
