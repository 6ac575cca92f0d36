//! Injects the faults of a round into processes, servers and networks.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    facts::InjectedFault,
    liveness::now,
    plan::{FaultKind, PlannedFault},
    round::{Round, lock},
    section::log_of,
    support::{
        self, process, procfs,
        proxy::{Fault, Mode},
    },
};

impl Round<'_> {
    /// Injects the fault at its planned time, unless the round ends first.
    pub fn inject(&self, planned: PlannedFault, began: Instant) {
        while began.elapsed() < Duration::from_millis(planned.at_ms) {
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            sleep(Duration::from_millis(10));
        }
        if matches!(planned.fault, FaultKind::Forget | FaultKind::KillBoth) {
            // An overlap needs a run that holds the lock and another run that waits for it.
            support::must("all contenders run", Duration::from_secs(20), || {
                self.slots.iter().all(|slot| lock(slot).is_some())
            });
            sleep(support::stretched(Duration::from_millis(300)));
        }
        let (mut from, length) = (now(), Duration::from_millis(planned.ms));
        let run = match planned.fault {
            fault if fault.hits_one_run() || fault == FaultKind::KillBoth => {
                match self.inject_into_run(planned.fault, planned.contender, length) {
                    Some(run) => Some(run),
                    None => return,
                }
            }
            FaultKind::Partition if self.arena.netns.is_none() => return,
            fault if fault.hits_the_server() => {
                from = self.inject_into_server(fault, length);
                None
            }
            fault => {
                self.inject_into_network(fault, length);
                None
            }
        };
        lock(&self.injected).push(InjectedFault {
            fault: planned.fault,
            from,
            until: now(),
            run,
        });
    }

    /// Returns the run that the fault hit, or `None` if no process was there.
    fn inject_into_run(&self, fault: FaultKind, contender: usize, length: Duration) -> Option<u64> {
        // Two of three faults hit a run that holds its lock.
        let holds = !length.as_millis().is_multiple_of(3);
        let mut found = None;
        support::eventually(Duration::from_secs(3), || {
            found = self.target(contender, holds);
            found.is_some() || self.over.load(Ordering::SeqCst)
        });
        let (run, dlock) = found?;
        let guardian = || {
            procfs::children(dlock)
                .into_iter()
                .find(|stat| stat.name == "lock-guard")
                .map(|stat| stat.pid)
        };
        let pause = |pid: u32| {
            process::signal(pid, Signal::STOP);
            sleep(length);
            process::signal(pid, Signal::CONT);
        };
        match fault {
            FaultKind::KillDlock => process::signal(dlock, Signal::KILL),
            FaultKind::TermDlock => process::signal(dlock, Signal::TERM),
            FaultKind::StopDlock => pause(dlock),
            FaultKind::KillGuardian => process::signal(guardian()?, Signal::KILL),
            FaultKind::StopGuardian => pause(guardian()?),
            FaultKind::KillCommand => {
                process::signal(procfs::children(guardian()?).first()?.pid, Signal::KILL);
            }
            FaultKind::StopCommand => pause(procfs::children(guardian()?).first()?.pid),
            FaultKind::KillBoth => {
                let guardian = guardian()?;
                // Both are stopped first, so that neither notices the death of the other.
                for signal in [Signal::STOP, Signal::KILL] {
                    process::signal(guardian, signal);
                    process::signal(dlock, signal);
                }
            }
            FaultKind::Break => {
                let (key, fence) = self.hold_of(run)?;
                self.arena.dlock(&[
                    "break",
                    &self.key(key),
                    "--yes",
                    "--reason",
                    "campaign",
                    "--fence",
                    &fence.to_string(),
                ]);
            }
            _ => return None,
        }
        Some(run)
    }

    /// Returns the first contender, starting at this one, that runs dlock (if `holds`: whose
    /// section is alive).
    fn target(&self, contender: usize, holds: bool) -> Option<(u64, u32)> {
        let living = self.living();
        let count = self.slots.len();
        let mut running =
            (contender..contender + count).filter_map(|nth| *lock(&self.slots[nth % count]));
        running.find(|(run, _)| !holds || living.contains(run))
    }

    /// Returns a key that this run holds, and the fence of that hold.
    fn hold_of(&self, run: u64) -> Option<(usize, u64)> {
        let text = std::fs::read_to_string(log_of(self.folder)).ok()?;
        let begin = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|line| line["run"] == run && line["at"] == "begin")?;
        let first = begin["fences"].get(0)?;
        Some((
            usize::try_from(first[0].as_u64()?).ok()?,
            first[1].as_u64()?,
        ))
    }

    /// Returns when the fault hit: such faults come one after the other.
    fn inject_into_server(&self, fault: FaultKind, length: Duration) -> u64 {
        let mut store = lock(&self.arena.store);
        let from = now();
        match fault {
            FaultKind::FreezeServer => store.freeze(length),
            FaultKind::RestartServer => store.restart(length),
            FaultKind::Forget => store.restart_empty(),
            FaultKind::StepClock => {
                let seconds = [-3600, -2, 2, 3600]
                    [usize::try_from(length.as_millis() % 4).unwrap_or_default()];
                store.step_clock(seconds, length);
            }
            _ => store.fill_disk(length),
        }
        from
    }

    fn inject_into_network(&self, fault: FaultKind, length: Duration) {
        let mode = |mode| {
            lock(&self.arena.proxies)
                .iter_mut()
                .for_each(|proxy| proxy.set(mode));
        };
        let trap = |fault| {
            lock(&self.arena.proxies)
                .iter()
                .for_each(|proxy| proxy.trap_nth("", 0, 3, fault));
            sleep(length);
            lock(&self.arena.proxies)
                .iter()
                .for_each(support::proxy::Proxy::disarm);
        };
        let delay = |by| {
            lock(&self.arena.proxies)
                .iter()
                .for_each(|proxy| proxy.delay(by));
        };
        let split = |on| {
            lock(&self.arena.proxies)
                .iter()
                .for_each(|proxy| proxy.split(on));
        };
        match fault {
            FaultKind::BlackHole | FaultKind::Refuse => {
                mode(if fault == FaultKind::Refuse {
                    Mode::Refuse
                } else {
                    Mode::BlackHole
                });
                sleep(length);
                mode(Mode::Pass);
            }
            FaultKind::Cut => lock(&self.arena.proxies)
                .iter()
                .for_each(support::proxy::Proxy::cut),
            FaultKind::Delay => {
                delay(Duration::from_millis(20) + length / 20);
                sleep(length);
                delay(Duration::ZERO);
            }
            FaultKind::Split => {
                split(true);
                sleep(length);
                split(false);
            }
            FaultKind::LoseReplies => trap(if length.as_millis().is_multiple_of(2) {
                Fault::Swallow
            } else {
                Fault::CutAfter
            }),
            FaultKind::LoseRequests => trap(Fault::CutBefore),
            FaultKind::LateRequests => trap(Fault::Late(length)),
            FaultKind::Partition => {
                let Some(netns) = &self.arena.netns else {
                    return;
                };
                netns.cut();
                sleep(length);
                netns.heal();
            }
            FaultKind::Starve => starve(length),
            _ => {}
        }
    }
}

/// Runs four busy threads per processor.
fn starve(length: Duration) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 * thread::available_parallelism().map_or(2, std::num::NonZero::get) {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        sleep(length);
        over.store(true, Ordering::Relaxed);
    });
}
