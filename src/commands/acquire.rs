//! `dlock acquire`: take a lock that outlives this process, and print the token that holds it.

use super::{Context, KeyArg, interrupted, metadata};
use crate::{
    exit,
    lease::{self, BootClock, Outcome, Patience, Released, give_back, note_skip},
    lock::{Entry, Error, Key, Kind, Mode, Request, Result, Scope, Token, Ttl},
    output::{Skip, Waiting, json},
    supervise::{Signals, reraise},
};

/// The arguments of `dlock acquire`.
#[derive(clap::Args, Debug)]
#[allow(clippy::struct_excessive_bools)] // flags
#[command(
    override_usage = "dlock acquire KEY --ttl D [OPTIONS]",
    after_help = "Example:\n  token=$(dlock acquire deploy --ttl 5m) || exit\n  ./deploy.sh\n  dlock release deploy --token \"$token\""
)]
pub struct Args {
    /// The key.
    #[command(flatten)]
    pub key: KeyArg,
    /// How long it is held unless renewed or released
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub ttl: Option<String>,
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
    #[arg(long, value_name = "TEXT")]
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
    /// For how long.
    pub ttl: Ttl,
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
pub async fn run(settings: AcquireSettings, context: &Context) -> Result<u8> {
    let out = &context.out;
    out.check_token_has_a_reader()?;
    let clock = BootClock;
    let mut signals = Signals::new().map_err(|error| Error::new(Kind::Internal, "signals can't be watched").source(error))?;
    let mut backend = super::open(context);
    let us = settings.metadata.then(|| metadata::collect(context.host.as_deref(), None, settings.describe.clone()));
    let request = Request {
        key: settings.key.clone(),
        token: Token::random(),
        ttl: settings.ttl,
        ttl_asked: true,
        mode: settings.mode,
        fair: false,
        entry: Entry::Fresh,
        detached: true,
        waiting: false,
        metadata: us.clone(),
        at_ms: None,
    };
    let waiting = Waiting::new(out, &settings.key, settings.patience, &clock);
    let outcome = lease::acquire(
        &mut *backend,
        &clock,
        request,
        settings.patience,
        context.limits,
        waiting.ticking(interrupted(&mut signals)),
        |busy| {
            waiting.update(busy);
        },
    )
    .await;
    waiting.clear();
    context.tell(&mut *backend);
    let waited = waiting.waited();
    let lease = match outcome? {
        Outcome::Granted(lease) => lease,
        Outcome::Busy(busy) => {
            note_skip(&mut *backend, &settings.key, us.as_ref(), "busy").await;
            let skip = Skip { key: &settings.key, busy: &busy, waited, outcome: "not taken" };
            return Ok(out.busy(&skip, &backend.describe(), settings.conflict_status));
        }
        Outcome::Stopped(signal) => {
            let status = out.interrupted(&settings.key, signal.number);
            if signal.from_terminal {
                // So that a calling script ends too.
                reraise(signal.number);
            }
            return Ok(status);
        }
    };
    let written = if out.is_json() {
        out.json(&json::Acquired::new(&lease, &backend.describe()))
    } else {
        out.data(&format!("{}\n", lease.token.reveal()))
    };
    if let Err(error) = written {
        let given_back = give_back(&mut *backend, &clock, &lease.key, &lease.token, &Scope::Tree.into(), context.limits).await;
        let kept = !matches!(given_back, Released::Free);
        return Ok(out.unwritten(&error, if kept { "the lock stays until its lease ends" } else { "the lock was given back" }));
    }
    Ok(exit::OK)
}
