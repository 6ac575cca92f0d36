//! What strikes in a round: processes, servers and networks.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    facts::Struck,
    live::now,
    plan::{Blow, Planned},
    round::{Round, lock},
    section::log_of,
    support::{
        self, process, procfs,
        proxy::{Fault, Mode},
    },
};

impl Round<'_> {
    /// Strikes when its time comes, unless the round is over by then.
    pub fn strike(&self, planned: Planned, began: Instant) {
        while began.elapsed() < Duration::from_millis(planned.at_ms) {
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            sleep(Duration::from_millis(10));
        }
        if matches!(planned.blow, Blow::Forget | Blow::KillBoth) {
            // An overlap can only come of a run that holds the lock and another one that waits for it.
            support::must("all contend", Duration::from_secs(20), || self.slots.iter().all(|slot| lock(slot).is_some()));
            sleep(support::stretched(Duration::from_millis(300)));
        }
        let (from, length) = (now(), Duration::from_millis(planned.ms));
        let run = match planned.blow {
            blow if blow.is_on_one_run() || blow == Blow::KillBoth => match self.strike_run(planned.blow, planned.whom, length) {
                Some(run) => Some(run),
                None => return,
            },
            Blow::Partition if self.arena.netns.is_none() => return,
            blow => {
                self.strike_store(blow, length);
                None
            }
        };
        lock(&self.struck).push(Struck { blow: planned.blow, from, until: now(), run });
    }

    /// Whom it struck; `None` if no process was there.
    fn strike_run(&self, blow: Blow, whom: usize, length: Duration) -> Option<u64> {
        // Two of three blows are for one that has its lock.
        let holds = !length.as_millis().is_multiple_of(3);
        let mut found = None;
        support::eventually(Duration::from_secs(3), || {
            found = self.target(whom, holds);
            found.is_some() || self.over.load(Ordering::SeqCst)
        });
        let (run, dlock) = found?;
        let guardian = || procfs::children(dlock).into_iter().find(|stat| stat.name == "lock-guard").map(|stat| stat.pid);
        let pause = |pid: u32| {
            process::signal(pid, Signal::STOP);
            sleep(length);
            process::signal(pid, Signal::CONT);
        };
        match blow {
            Blow::KillDlock => process::signal(dlock, Signal::KILL),
            Blow::TermDlock => process::signal(dlock, Signal::TERM),
            Blow::StopDlock => pause(dlock),
            Blow::KillGuardian => process::signal(guardian()?, Signal::KILL),
            Blow::StopGuardian => pause(guardian()?),
            Blow::KillCommand => process::signal(procfs::children(guardian()?).first()?.pid, Signal::KILL),
            Blow::StopCommand => pause(procfs::children(guardian()?).first()?.pid),
            Blow::KillBoth => {
                let guardian = guardian()?;
                // Stopped first: neither may notice that the other one is gone.
                for signal in [Signal::STOP, Signal::KILL] {
                    process::signal(guardian, signal);
                    process::signal(dlock, signal);
                }
            }
            Blow::Break => {
                let (key, fence) = self.hold_of(run)?;
                self.arena.dlock(&["break", &self.key(key), "--yes", "--reason", "campaign", "--fence", &fence.to_string()]);
            }
            _ => return None,
        }
        Some(run)
    }

    /// The next contender from this one on that runs something, or whose section lives.
    fn target(&self, whom: usize, holds: bool) -> Option<(u64, u32)> {
        let living = self.living();
        let count = self.slots.len();
        let mut running = (whom..whom + count).filter_map(|nth| *lock(&self.slots[nth % count]));
        running.find(|(run, _)| !holds || living.contains(run))
    }

    /// A key that this run holds, and its fence there.
    fn hold_of(&self, run: u64) -> Option<(usize, u64)> {
        let text = std::fs::read_to_string(log_of(self.folder)).ok()?;
        let begin = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|line| line["run"] == run && line["at"] == "begin")?;
        let first = begin["fences"].get(0)?;
        Some((usize::try_from(first[0].as_u64()?).ok()?, first[1].as_u64()?))
    }

    fn strike_store(&self, blow: Blow, length: Duration) {
        let mode = |mode| {
            lock(&self.arena.proxies).iter_mut().for_each(|proxy| proxy.set(mode));
        };
        let trap = |fault| {
            lock(&self.arena.proxies).iter().for_each(|proxy| proxy.trap_nth("", 0, 3, fault));
            sleep(length);
            lock(&self.arena.proxies).iter().for_each(support::proxy::Proxy::disarm);
        };
        let delay = |by| lock(&self.arena.proxies).iter().for_each(|proxy| proxy.delay(by));
        let split = |on| lock(&self.arena.proxies).iter().for_each(|proxy| proxy.split(on));
        match blow {
            Blow::FreezeServer => lock(&self.arena.store).freeze(length),
            Blow::RestartServer => lock(&self.arena.store).restart(length),
            Blow::Forget => lock(&self.arena.store).restart_empty(),
            Blow::StepClock => {
                let seconds = [-3600, -2, 2, 3600][usize::try_from(length.as_millis() % 4).unwrap_or_default()];
                lock(&self.arena.store).step_clock(seconds, length);
            }
            Blow::FillDisk => lock(&self.arena.store).fill_disk(length),
            Blow::BlackHole | Blow::Refuse => {
                mode(if blow == Blow::Refuse { Mode::Refuse } else { Mode::BlackHole });
                sleep(length);
                mode(Mode::Pass);
            }
            Blow::Cut => lock(&self.arena.proxies).iter().for_each(support::proxy::Proxy::cut),
            Blow::Delay => {
                delay(Duration::from_millis(20) + length / 20);
                sleep(length);
                delay(Duration::ZERO);
            }
            Blow::Split => {
                split(true);
                sleep(length);
                split(false);
            }
            Blow::LoseReplies => trap(if length.as_millis().is_multiple_of(2) { Fault::Swallow } else { Fault::CutAfter }),
            Blow::LoseRequests => trap(Fault::CutBefore),
            Blow::LateRequests => trap(Fault::Late(length)),
            Blow::Partition => {
                let Some(netns) = &self.arena.netns else { return };
                netns.cut();
                sleep(length);
                netns.heal();
            }
            Blow::Starve => starve(length),
            _ => {}
        }
    }
}

/// Four busy threads for each processor.
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
