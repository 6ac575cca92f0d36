//! `dlock hold`: keep a lock in the foreground, for a script that does the work itself.
//!
//! Nothing is killed here: whoever holds a lock this way stops its work when this command ends with 76.

pub(super) mod until;

use std::time::Duration;

use self::until::{Over, Until};
use super::{
    Context, WantedArgs,
    acquire::acquired,
    interrupted,
    take::{Hold, Taken, Wanted, give_back, keep, take},
};
use crate::{
    exit,
    lease::{BootClock, Clock as _, Loss, Released, wall_ms},
    lock::{Error, Kind, Parting, Purpose, Result, Scope},
    output::{age, json},
    supervise::{Signals, reraise},
};

/// The arguments of `dlock hold`.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "dlock hold KEY [OPTIONS]",
    after_help = "Prints a line of JSON once it is taken; gives it back when stdin ends. In bash:\n  coproc dlock hold deploy -w 10m; read -r taken <&${COPROC[0]} && ./deploy.sh"
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
    /// The length of the lease, renewed all along [60s]
    #[arg(long, value_name = "D", allow_negative_numbers = true)]
    pub ttl: Option<String>,
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
    /// What is taken.
    pub wanted: Wanted,
    /// How long it is held.
    pub until: HoldUntil,
}

/// Takes the lock, says so, keeps it, and gives it back.
///
/// # Errors
/// What kept the store from answering before the lock was taken.
pub async fn run(settings: &HoldSettings, context: &Context) -> Result<u8> {
    let out = &context.out;
    out.check_token_has_a_reader()?;
    let until = Until::open(settings.until)?;
    let mut signals = Signals::new().map_err(|error| Error::new(Kind::Internal, "signals can't be watched").source(error))?;
    let stop = until.ended_or(interrupted(&mut signals));
    let mut holds = match take(&settings.wanted, false, None, context, stop).await? {
        Taken::Granted(holds) => holds,
        Taken::Not(status) => return Ok(status),
        // Whoever the lock was for is gone.
        Taken::Stopped(Over::Ended) => return Ok(exit::OK),
        Taken::Stopped(Over::Signal(signal)) => {
            let status = out.interrupted(&settings.wanted.key, signal.number);
            if signal.from_terminal {
                reraise(signal.number);
            }
            return Ok(status);
        }
    };
    let written = out.data(&json::line(&acquired(&holds)));
    if let Err(error) = written {
        let free = give_back(&mut holds, &parting(Duration::ZERO), context.limits).await.iter().all(|one| matches!(one, Released::Free));
        return Ok(out.unwritten(&error, if free { "the lock was given back" } else { "the lock stays until its lease ends" }));
    }
    keep_on(holds, settings, context, until, signals).await
}

/// Renews until it is over.
async fn keep_on(mut holds: Vec<Hold>, settings: &HoldSettings, context: &Context, until: Until, mut signals: Signals) -> Result<u8> {
    let out = &context.out;
    let began = BootClock.now();
    let over = tokio::select! {
        biased;
        loss = keep(&mut holds, context.limits, Purpose::GoOn) => Err(loss?),
        over = until.ended_or(interrupted(&mut signals)) => Ok(over),
    };
    let mut status = match over {
        Ok(Over::Ended) => exit::OK,
        Ok(Over::Signal(_)) if settings.until == HoldUntil::Signal => exit::OK,
        Ok(Over::Signal(signal)) => exit::signalled(signal.number),
        Err((at, loss)) => {
            let how = match loss {
                Loss::NotOwner => "the store says that it is not ours any more".to_owned(),
                Loss::Unconfirmed { since, last } => {
                    let last = last.map(|error| format!(" ({error})")).unwrap_or_default();
                    format!("no renewal for {}{last}", age(since))
                }
                Loss::Broken(mark) => format!("it is being broken {}", crate::output::mark(&mark)),
            };
            // What is left of the lease, and of the others, is the caller's, to stop its work in.
            out.warn_with_hint(&format!("{}: the lock was lost: {how}", holds[at].lease.key.escaped()), "stop the work that it protects");
            return Ok(exit::LOST);
        }
    };
    let released = give_back(&mut holds, &parting(BootClock.now().since(began)), context.limits).await;
    for (Hold { lease, .. }, released) in holds.iter().zip(released) {
        match released {
            Released::Free | Released::StillHeld(_) => {}
            Released::NotHeld => {
                out.warn_with_hint(
                    &format!("{}: the lock was lost: it was not ours any more when it was to be given back", lease.key.escaped()),
                    "the work that it protects may have met somebody else's",
                );
                status = exit::LOST;
            }
            Released::Unknown(error) => {
                out.warn(&format!("{}: the lock could not be given back and ends with its lease: {error}", lease.key.escaped()));
            }
        }
    }
    Ok(status)
}

/// How it ended, for the history.
fn parting(held: Duration) -> Parting {
    Parting { at_ms: Some(wall_ms()), held_ms: u64::try_from(held.as_millis()).ok(), ..Scope::Tree.into() }
}
