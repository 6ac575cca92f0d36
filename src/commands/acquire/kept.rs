//! A lock that is kept for as long as a process lives, by a keeper that stays behind.

use std::{
    fs, io,
    os::fd::{AsFd as _, OwnedFd},
};

use rustix::process::{Signal, pidfd_send_signal};

use super::{AcquireSettings, Taken, give_back, take};
use crate::{
    commands::{
        Context,
        hold::{
            HoldUntil,
            until::{Over, Until},
        },
        interrupted,
    },
    exit,
    lease::{self, BootClock, Budget, Clock as _, Lease, Limits, Loss, ask, wall_ms},
    lock::{self, Backend, Break, End, Error, Key, Kind, Parting, Past, Purpose, Result, Scope},
    output::{Syslog, age, mark},
    supervise::{Detach, Keeper, Signals, fork_keeper},
};

/// How long the store is asked how a hold ended that is gone.
const ASIDE: Limits = Limits { answer: std::time::Duration::from_secs(2) };

/// Takes the lock, prints its token, and leaves a keeper behind.
///
/// # Errors
/// As for a lock that nobody keeps.
pub fn run(settings: AcquireSettings, pid: i32, context: &Context) -> Result<u8> {
    context.out.check_token_has_a_reader()?;
    let forked = fork_keeper().map_err(|error| Error::new(Kind::Unavailable, "no keeper can be started").source(error))?;
    match forked {
        Keeper::Caller(status) => Ok(status),
        Keeper::Worker(caller) => crate::commands::block_on(work(settings, pid, context, caller)),
    }
}

async fn work(settings: AcquireSettings, pid: i32, context: &Context, caller: Detach) -> Result<u8> {
    // Before the wait: the process may be gone after it, and its number another's.
    let until = Until::open(HoldUntil::ProcessEnds(pid))?;
    let mut signals = Signals::new().map_err(|error| Error::new(Kind::Internal, "signals can't be watched").source(error))?;
    let mut backend = crate::commands::open(context);
    let program = fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim().to_owned());
    let stop = until.ended_or(interrupted(&mut signals));
    let lease = match take(&settings, context, &mut *backend, program, stop).await? {
        Taken::Granted(lease) => lease,
        Taken::Stopped(Over::Ended) => return Ok(exit::OK),
        Taken::Stopped(Over::Signal(signal)) => return Ok(super::stopped(signal, &settings.key, context)),
        Taken::Not(status) => return Ok(status),
    };
    if let Some(status) = super::print(&lease, &mut *backend, context).await {
        return Ok(status);
    }
    if let Err(error) = caller.detach(exit::OK) {
        let _ = give_back(&mut *backend, &lease, context.limits).await;
        return Err(Error::new(Kind::Unavailable, "the keeper can't be left behind").source(error));
    }
    keep(lease, context, &mut *backend, &until, signals).await;
    Ok(exit::OK)
}

/// Renews until the process has ended; tells it to end if the lock is lost or broken. Nobody reads what is printed here.
async fn keep(mut lease: Lease, context: &Context, backend: &mut dyn Backend, until: &Until, mut signals: Signals) {
    let Ok(budget) = Budget::new(lease.ttl, None, backend.capabilities().pace) else { return };
    let began = lease.t0;
    let mut purpose = Purpose::GoOn;
    let mut broken: Option<Break> = None;
    let mut signalled = false;
    loop {
        let over = {
            let renewals = lease::keep(&mut *backend, &BootClock, &mut lease, budget, context.limits, purpose, |_, _| {});
            // A keeper that is told to end gives the lock back once; then only the process's end counts.
            tokio::select! {
                biased;
                loss = renewals => Err(loss),
                over = until.ended_or(interrupted(&mut signals)) => Ok(over),
            }
        };
        match over {
            Ok(Over::Signal(_)) if broken.is_some() && !std::mem::replace(&mut signalled, true) => {}
            Ok(_) => break,
            // What protects the lock is dead before it is given back, as with `run`; but nobody kills it here.
            Err(Loss::Broken(by)) => {
                say(&lease.key, &format!("broken {}", mark(&by)));
                end(until);
                broken = Some(by);
                purpose = Purpose::Stop;
            }
            Err(Loss::NotOwner) => {
                if !was_released(backend, &lease).await {
                    say(&lease.key, "lost: the store says that it is not ours any more");
                    end(until);
                }
                return;
            }
            Err(Loss::Unconfirmed { since, .. }) => {
                let how = format!("no renewal for {}", age(since));
                say(&lease.key, &format!("lost: {how}"));
                end(until);
                let past = Past {
                    fence: Some(lease.fence),
                    started_ms: None,
                    ended_ms: Some(wall_ms()),
                    end: End::Lost,
                    why: Some(how),
                    metadata: None,
                };
                lease::note(backend, &lease.key, &lock::Note::Lost(past), ASIDE).await;
                return;
            }
        }
    }
    let (ended, why) = broken.as_ref().map_or((End::Released, None), Into::into);
    let held = BootClock.now().since(began);
    let held_ms = u64::try_from(held.as_millis()).ok();
    let parting = Parting { end: Some(ended), why, at_ms: Some(wall_ms()), held_ms, ..Scope::Tree.into() };
    lease::give_back(backend, &BootClock, &lease.key, &lease.token, &parting, context.limits).await;
}

/// Whether the hold that is gone was given back: by `dlock release`, with the token that was printed.
async fn was_released(backend: &mut dyn Backend, lease: &Lease) -> bool {
    let question = async |backend: &mut dyn Backend| backend.history(&lease.key).await;
    let told = ask(backend, &BootClock, ASIDE, question).await;
    told.is_ok_and(|told| told.past.iter().any(|past| past.fence == Some(lease.fence) && past.end == End::Released))
}

/// Tells the process to end.
fn end(until: &Until) {
    if let Until::Process(process) = until {
        let process: &OwnedFd = process.get_ref();
        let _: io::Result<()> = pidfd_send_signal(process.as_fd(), Signal::TERM).map_err(Into::into);
    }
}

fn say(key: &Key, what: &str) {
    Syslog::default().warn(&format!("{} {what}", key.escaped()));
}
