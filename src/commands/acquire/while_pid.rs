//! A lock that a detached renewer renews for as long as a process lives.

use std::{
    cell::RefCell,
    fs, io,
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, pidfd_send_signal, test_kill_process},
};

use super::{AcquireResult, AcquireSettings, TakenLock, release, take};
use crate::{
    commands::{
        Context,
        hold::until::{EndCondition, HoldEnd, NAME_THE_PROCESS, check_process, open_process},
        interrupted,
        take::keep,
    },
    exit,
    lease::{self, BootClock, Budget, Clock as _, Lease, Limits, Loss, ask, wall_ms},
    lock::{
        self, Backend, BootTime, Break, End, Error, HistoryEntry, Intent, Key, Kind, ReleaseInfo,
        Result, RunOutcome, Scope,
    },
    output::{Syslog, drain, loss, mark},
    supervise::{Detach, Monitor, RenewerFork, Signals, fork_monitor, fork_renewer},
};

/// The time limit of the query how a lost hold ended.
const ASIDE: Limits<'static> = Limits::of(Duration::from_secs(2));
/// How long the remaining output may take before the renewer detaches from the terminal.
const LAST_WORD: Duration = Duration::from_millis(100);

/// Acquires the lock, prints its token, and leaves a renewer running.
///
/// # Errors
/// The same as for a lock without a renewer.
pub fn run(settings: &AcquireSettings, pid: i32, context: &Context) -> Result<u8> {
    context.out.check_token_has_a_reader()?;
    check_process(pid)?;
    if Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) == Err(Errno::PERM)) {
        let what = format!(
            "--while-pid {pid}: this user may not signal the process, which dlock would stop if the lock is lost"
        );
        return Err(Error::new(Kind::Usage, what)
            .hint("take the lock as the user of the process, or as root"));
    }
    let forked = fork_renewer().map_err(|error| {
        Error::new(Kind::Unavailable, "no renewer can be started").source(error)
    })?;
    match forked {
        RenewerFork::Caller(status) => Ok(status),
        RenewerFork::Renewer(caller) => {
            // Before the wait: the process may end meanwhile, and its PID may be reused.
            let process = open_process(pid)?;
            let key = settings.wanted.key.clone();
            let monitor = fork_monitor(&process, |why| say(&key, &format!("lost: {why}")))
                .map_err(|error| {
                    Error::new(Kind::Unavailable, "no monitor can be started").source(error)
                })?;
            crate::commands::block_on(work(settings, pid, context, caller, process, monitor))
        }
    }
}

async fn work(
    settings: &AcquireSettings,
    pid: i32,
    context: &Context,
    caller: Detach,
    process: OwnedFd,
    monitor: Monitor,
) -> Result<u8> {
    let until = EndCondition::process(process)?;
    let mut signals = Signals::new()
        .map_err(|error| Error::new(Kind::Unavailable, "signals can't be watched").source(error))?;
    let program = fs::read_to_string(format!("/proc/{pid}/comm"))
        .ok()
        .map(|name| name.trim().to_owned());
    let stop = until.ended_or(interrupted(&mut signals));
    let mut holds = match Box::pin(take(&settings.wanted, true, program, context, stop)).await? {
        AcquireResult::Granted(holds) => holds,
        AcquireResult::Stopped(HoldEnd::Ended) => {
            return Err(Error::new(
                Kind::Usage,
                format!("--while-pid {pid}: the process ended before the lock was taken"),
            )
            .key(&settings.wanted.key)
            .hint(NAME_THE_PROCESS));
        }
        AcquireResult::Stopped(HoldEnd::Signal(signal)) => {
            return Ok(super::stopped(signal, &settings.wanted.key, context));
        }
        AcquireResult::Not(status) => return Ok(status),
    };
    if let Some(status) = super::print(&mut holds, context).await {
        return Ok(status);
    }
    drain(LAST_WORD);
    if let Err(error) = caller.detach(exit::OK) {
        super::undo(&mut holds, context.limits()).await;
        return Err(
            Error::new(Kind::Unavailable, "the renewer can't be left behind").source(error),
        );
    }
    keep_on(holds, context.limits(), &until, signals, &monitor).await;
    monitor.dismiss();
    Ok(exit::OK)
}

/// Renews until the process has ended, and sends it TERM if a lock is lost or broken. The renewer's
/// output is not read.
async fn keep_on(
    mut holds: Vec<TakenLock>,
    limits: Limits<'_>,
    until: &EndCondition,
    mut signals: Signals,
    monitor: &Monitor,
) {
    let began = BootClock.now();
    let mut intent = Intent::Extend(None);
    let mut broken: Option<Break> = None;
    let mut lost = false;
    let mut signalled = false;
    while !holds.is_empty() {
        let deadlines = RefCell::new(deadlines(&holds));
        monitor.extend(earliest(&deadlines.borrow()));
        let extended = |at: usize, lease: &Lease, budget: &Budget| {
            let mut deadlines = deadlines.borrow_mut();
            deadlines[at] = budget.kill_at(lease.t0);
            monitor.extend(earliest(&deadlines));
        };
        // A renewer that gets a signal releases the locks once; then only the process's end counts.
        let over = tokio::select! {
            biased;
            loss = keep(&mut holds, limits, intent, &extended) => Err(loss),
            over = until.ended_or(interrupted(&mut signals)) => Ok(over),
        };
        match over {
            Ok(HoldEnd::Signal(_))
                if (broken.is_some() || lost) && !std::mem::replace(&mut signalled, true) => {}
            Ok(_) | Err(Err(_)) => break,
            // As with `run`, the release follows the protected process's end; but the renewer never
            // sends KILL.
            Err(Ok((at, Loss::Broken(by)))) => {
                say(&holds[at].lease.key, &format!("broken {}", mark(&by)));
                end(until);
                broken = Some(by);
                intent = Intent::Drain;
            }
            // The renewer renews the other locks until the process has ended.
            Err(Ok((at, Loss::NotOwner))) => {
                let mut hold = holds.remove(at);
                if !was_released(&mut hold).await {
                    say(
                        &hold.lease.key,
                        "lost: the store has another holder, or none",
                    );
                    end(until);
                    lost = true;
                }
            }
            Err(Ok((at, unconfirmed @ Loss::Unconfirmed { .. }))) => {
                let TakenLock { mut backend, lease } = holds.remove(at);
                let how = loss(&unconfirmed);
                say(&lease.key, &format!("lost: {how}"));
                end(until);
                lost = true;
                let past = HistoryEntry {
                    fence: Some(lease.fence),
                    started_ms: None,
                    ended_ms: Some(wall_ms()),
                    end: End::Lost,
                    outcome: Some(RunOutcome::because(how)),
                    metadata: None,
                };
                lease::note(&mut *backend, &lease.key, &lock::Note::Lost(past), ASIDE).await;
            }
        }
    }
    let held = BootClock.now().since(began);
    let held_ms = u64::try_from(held.as_millis()).ok();
    let info = ReleaseInfo {
        end: Some(broken.as_ref().map_or(End::Released, |_| End::Broken)),
        outcome: broken.as_ref().map(Into::into),
        at_ms: Some(wall_ms()),
        held_ms,
        ..Scope::Tree.into()
    };
    release(&mut holds, &info, limits).await;
}

/// Returns when the monitor must signal the process if the renewer sends no extension.
fn deadlines(holds: &[TakenLock]) -> Vec<BootTime> {
    let deadline = |hold: &TakenLock| {
        hold.budget()
            .map_or(hold.lease.t0, |budget| budget.kill_at(hold.lease.t0))
    };
    holds.iter().map(deadline).collect()
}

fn earliest(deadlines: &[BootTime]) -> BootTime {
    deadlines
        .iter()
        .copied()
        .min()
        .unwrap_or_else(|| BootClock.now())
}

/// Whether the lost hold was released by `dlock release` with the printed token.
async fn was_released(TakenLock { backend, lease }: &mut TakenLock) -> bool {
    let question = async |backend: &mut dyn Backend| backend.history(&lease.key).await;
    let history = ask(
        &mut **backend,
        &BootClock,
        ASIDE,
        ("history", Some(&lease.key)),
        question,
    )
    .await;
    history.is_ok_and(|history| {
        history
            .past
            .iter()
            .any(|past| past.fence == Some(lease.fence) && past.end == End::Released)
    })
}

/// Sends TERM to the process.
fn end(until: &EndCondition) {
    if let EndCondition::Process(process) = until {
        let process: &OwnedFd = process.get_ref();
        let _: io::Result<()> =
            pidfd_send_signal(process.as_fd(), Signal::TERM).map_err(Into::into);
    }
}

fn say(key: &Key, what: &str) {
    Syslog::default().warn(&format!("{} {what}", key.escaped()));
}
