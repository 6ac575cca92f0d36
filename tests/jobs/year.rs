//! A year of a crontab on several nodes whose clocks differ, in a moment: the same rules that stores judge by, on the
//! in-memory store under a clock of our own.
//!
//! Nodes fire late and early, die in the middle of a run, and are away for a while; jobs are short, fail, or take longer
//! than their schedule's period. No tick is run twice, and one that is not run has its reason: no node was there, or a run of an
//! earlier tick had the lock.
//!
//! `tests/run --all` simulates a whole year of each schedule; otherwise it is a part of one where ticks are many.

use std::time::Duration;

use dlock::{
    backends::memory::{Memory, MemoryStore},
    lock::{Attempt, Backend as _, End, Fence, Key, Namespace, Once, ReleaseInfo, Request, RunPolicy, RunState, Scope, Token, Ttl},
};
use jiff::{ToSpan as _, Zoned, civil::date, tz::TimeZone};

use crate::support::{self, dice::Dice};

/// What a crontab line says of time, in a zone with daylight saving.
#[derive(Clone, Copy, Debug)]
enum Schedule {
    EveryMinute,
    EveryFiveMinutes,
    HalfPast,
    Noon,
}

impl Schedule {
    fn period(self) -> Duration {
        Duration::from_secs(match self {
            Self::EveryMinute => 60,
            Self::EveryFiveMinutes => 300,
            Self::HalfPast => 3600,
            Self::Noon => 24 * 3600,
        })
    }

    /// When it fires, in ms from the beginning of a year in which the clocks are changed twice, to its `days`th.
    fn ticks(self, days: i32) -> Vec<u64> {
        let zone = TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").expect("a zone");
        let first = date(2027, 1, 1).to_zoned(zone).expect("a day");
        let until = first.checked_add(days.days()).expect("a day");
        let next = |time: &Zoned| match self {
            // The next day's noon by the wall clock; else what is equally far.
            Self::Noon => time.checked_add(1.day()),
            every => time.checked_add(every.period().as_secs().cast_signed().seconds()),
        };
        let mut time = match self {
            Self::EveryMinute | Self::EveryFiveMinutes => first.clone(),
            Self::HalfPast => first.checked_add(30.minutes()).expect("a time"),
            Self::Noon => first.checked_add(12.hours()).expect("a time"),
        };
        let mut ticks = Vec::new();
        while time < until {
            ticks.push(u64::try_from(time.timestamp().as_millisecond() - first.timestamp().as_millisecond()).expect("a time after it"));
            time = next(&time).expect("a time");
        }
        ticks
    }
}

/// What the line's options say, and how far the nodes' clocks are off.
#[derive(Clone, Copy, Debug)]
struct Policy {
    guard: bool,
    once_per: bool,
    at_least: Option<Duration>,
    /// Their standard deviation and their limit, in ms.
    skew: (f64, i64),
}

/// The skew guard alone is enough where no two clocks are further apart than it; a period is enough wherever they are.
const POLICIES: [Policy; 4] = [
    Policy { guard: true, once_per: false, at_least: None, skew: (500.0, 2400) },
    Policy { guard: true, once_per: true, at_least: None, skew: (500.0, 3000) },
    Policy { guard: true, once_per: true, at_least: None, skew: (2000.0, 3000) },
    Policy { guard: true, once_per: true, at_least: Some(Duration::from_secs(10)), skew: (2000.0, 3000) },
];
const GUARD: Duration = Duration::from_secs(5);
/// What a run that died leaves of its lease, at most.
const LEASE: u64 = 30_000;
const NODES: usize = 3;

/// A clock's error.
fn skew(dice: &mut Dice, (deviation, limit): (f64, i64)) -> i64 {
    #[allow(clippy::cast_possible_truncation, reason = "some thousands")]
    let skew = (dice.normal() * deviation) as i64;
    skew.clamp(-limit, limit)
}

struct Node {
    skew: i64,
    /// It comes back with this tick.
    away_until: usize,
    place: String,
}

/// A run that has the lock.
struct Running {
    token: Token,
    fence: Fence,
    /// When it ends, and how; a run whose node died never does.
    ends: Option<(u64, RunState)>,
    over: u64,
}

/// What became of some years.
#[derive(Debug, Default)]
struct Tally {
    ticks: u64,
    runs: u64,
    nobody: u64,
    busy: u64,
    refused: u64,
}

/// One year on one store.
struct World {
    backend: Memory,
    key: Key,
    began: tokio::time::Instant,
    running: Option<Running>,
    tally: Tally,
}

impl World {
    async fn pass_to(&self, ms: u64) {
        let now = self.began.elapsed();
        tokio::time::advance(Duration::from_millis(ms).saturating_sub(now)).await;
    }

    /// Ends the run whose end has come.
    async fn settle(&mut self, now: u64) {
        let Some((ends, state)) = self.running.as_ref().and_then(|running| running.ends).filter(|(ends, _)| *ends <= now) else {
            // The lease of one that died.
            self.running.take_if(|running| running.ends.is_none() && running.over <= now);
            return;
        };
        self.pass_to(ends).await;
        if let Some(running) = self.running.take() {
            let end = if state == RunState::Ok { End::Exited(0) } else { End::Exited(1) };
            let info = ReleaseInfo { end: Some(end), run_state: Some(state), ..Scope::Tree.into() };
            self.backend.release(&self.key, &running.token, &info).await.expect("a release");
        }
    }

    fn request(&self, run_policy: RunPolicy, ttl: u64) -> Request {
        Request {
            ttl_asked: false,
            run_policy: Some(run_policy),
            ..Request::new(self.key.clone(), Ttl::new(Duration::from_millis(ttl)).expect("a TTL"))
        }
    }
}

/// Runs every tick of a schedule, and looks at each.
async fn simulate(schedule: Schedule, policy: Policy, ticks: &[u64], seed: u64) -> Tally {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut nodes: Vec<Node> =
        (0..NODES).map(|n| Node { skew: skew(&mut dice, policy.skew), away_until: 0, place: format!("node-{n}") }).collect();
    let mut world = World {
        backend: Memory::new(MemoryStore::default(), Namespace::default()),
        key: Key::new("job").expect("a key"),
        began: tokio::time::Instant::now(),
        running: None,
        tally: Tally::default(),
    };
    let period = u64::try_from(schedule.period().as_millis()).expect("a period");
    let once = policy.once_per.then(|| Once { window: schedule.period() / 2, retry_failed: 0, retry_crashed: false });
    for (n, tick) in ticks.iter().enumerate() {
        let mut fired: Vec<(u64, usize)> = Vec::with_capacity(NODES);
        for (at, node) in nodes.iter_mut().enumerate() {
            if dice.one_in(3000) {
                node.away_until = n + 1 + usize::try_from(dice.below(50)).unwrap_or(1);
            }
            if dice.one_in(2000) {
                // Its clock is set.
                node.skew = skew(&mut dice, policy.skew);
            }
            if node.away_until <= n {
                // Cron looks once a second, and starts processes one after the other. The first tick is not before the beginning.
                let late = node.skew + i64::try_from(dice.below(100)).unwrap_or_default();
                fired.push(((tick + 5000).saturating_add_signed(late), at));
            }
        }
        fired.sort_unstable();
        let (mut runs, mut others) = (0, 0);
        for (now, at) in &fired {
            world.settle(*now).await;
            world.pass_to(*now).await;
            let length = if dice.one_in(200) { period + dice.below(period) } else { 20 + dice.below(4000) };
            let dies = dice.one_in(500);
            let ttl = if dies { dice.below(LEASE) + 1000 } else { length + LEASE };
            let run_policy = RunPolicy {
                place: nodes[*at].place.clone(),
                skew_guard: policy.guard.then_some(GUARD),
                at_least: policy.at_least,
                once,
                anyway: false,
            };
            let request = world.request(run_policy, ttl);
            match world.backend.try_acquire(&request).await.expect("an answer") {
                Attempt::Granted(grant) => {
                    runs += 1;
                    let state = if dice.one_in(20) { RunState::Failed } else { RunState::Ok };
                    let ends = (!dies).then_some((now + length, state));
                    world.running = Some(Running { token: request.token, fence: grant.fence, ends, over: now + ttl });
                    if dies {
                        nodes[*at].away_until = n + 1 + usize::try_from(dice.below(20)).unwrap_or(1);
                    }
                }
                Attempt::Busy(busy) => {
                    let holder = busy.holders.first().and_then(|holder| holder.fence);
                    let known = world.running.as_ref().map(|running| running.fence);
                    assert!(holder.is_some() && holder == known, "seed {seed}, tick {n}: busy with {holder:?}, not {known:?}");
                    others += 1;
                }
                Attempt::Denied(refusal) => {
                    world.tally.refused += 1;
                    // Of the tick itself: an earlier one's start must not keep this one from running.
                    assert!(runs == 1, "seed {seed}, tick {n} of {schedule:?}, {policy:?}: refused for {refusal:?} although nobody ran");
                }
                Attempt::NotHeld => panic!("not held"),
            }
        }
        assert!(runs <= 1, "seed {seed}: tick {n} of {schedule:?} ran {runs} times, {policy:?}");
        world.tally.ticks += 1;
        world.tally.runs += runs;
        if runs == 0 && fired.is_empty() {
            world.tally.nobody += 1;
        } else if runs == 0 {
            assert_eq!(others, fired.len(), "seed {seed}: tick {n} of {schedule:?} was missed, {policy:?}");
            world.tally.busy += 1;
        }
    }
    world.tally
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

/// So many seeds of each policy, over so many days.
fn years(schedule: Schedule, days: i32, seeds: u64) {
    let days = support::long_or(365, days);
    let ticks = schedule.ticks(days);
    let first: u64 = dlock::lock::random() >> 16;
    let runtime = runtime();
    let mut sum = Tally::default();
    for n in 0..seeds {
        let policy = POLICIES[usize::try_from(n).unwrap_or_default() % POLICIES.len()];
        let one = runtime.block_on(simulate(schedule, policy, &ticks, first + n));
        sum.ticks += one.ticks;
        sum.runs += one.runs;
        sum.nobody += one.nobody;
        sum.busy += one.busy;
        sum.refused += one.refused;
    }
    support::say(&format!("{schedule:?}, {days} days, {seeds} seeds from {first} on: {sum:?}"));
    assert_eq!(sum.ticks, sum.runs + sum.nobody + sum.busy);
    assert!(sum.refused > sum.ticks / 2, "the others were refused");
}

#[test]
fn every_minute_of_a_year() {
    years(Schedule::EveryMinute, 15, 8);
}

#[test]
fn every_five_minutes_of_a_year() {
    years(Schedule::EveryFiveMinutes, 90, 8);
}

#[test]
fn half_past_every_hour_of_a_year() {
    years(Schedule::HalfPast, 365, 20);
}

#[test]
fn noon_of_every_day_of_a_year() {
    years(Schedule::Noon, 365, 400);
}

#[test]
#[should_panic(expected = "ran 2 times")]
fn without_a_policy_ticks_are_run_twice() {
    let policy = Policy { guard: false, once_per: false, at_least: None, skew: (500.0, 2400) };
    runtime().block_on(simulate(Schedule::HalfPast, policy, &Schedule::HalfPast.ticks(365), 1));
}

#[test]
#[should_panic(expected = "ran 2 times")]
fn a_guard_is_not_enough_for_clocks_that_are_further_apart() {
    let policy = Policy { guard: true, once_per: false, at_least: None, skew: (2000.0, 3000) };
    for seed in 1..100 {
        runtime().block_on(simulate(Schedule::HalfPast, policy, &Schedule::HalfPast.ticks(365), seed));
    }
}

#[test]
fn clocks_are_changed_twice_a_year() {
    let ticks = Schedule::Noon.ticks(365);
    let gaps: Vec<u64> = ticks.windows(2).map(|two| (two[1] - two[0]) / 3_600_000).collect();
    assert_eq!((gaps.iter().filter(|gap| **gap == 23).count(), gaps.iter().filter(|gap| **gap == 25).count()), (1, 1));
}
