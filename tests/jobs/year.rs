//! Simulates a year of a crontab on several nodes with different clocks, in a moment: the real run
//! policies on the in-memory store under a simulated clock.
//!
//! Nodes fire late and early, die in the middle of a run, and are down for a while. Jobs are short,
//! fail, or run longer than the period. No tick runs twice, and every missed tick has a reason: no
//! node was up, or the run of an earlier tick held the lock.
//!
//! `tests/run --all` simulates a whole year of each schedule; the short form simulates a part of
//! the frequent schedules.

use std::time::Duration;

use dlock::{
    backends::memory::{Memory, MemoryStore},
    lock::{
        Attempt, Backend as _, End, Fence, Key, Namespace, Once, ReleaseInfo, Request, RunPolicy,
        RunState, Scope, Token, Ttl,
    },
};
use jiff::{ToSpan as _, Zoned, civil::date, tz::TimeZone};

use crate::support::{self, dice::Dice};

/// The schedule of a crontab line, in a time zone with daylight saving time.
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

    /// Returns the ticks in ms from the start of a year with two clock changes, up to day `days`.
    fn ticks(self, days: i32) -> Vec<u64> {
        let zone = TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").expect("a zone");
        let first = date(2027, 1, 1).to_zoned(zone).expect("a day");
        let until = first.checked_add(days.days()).expect("a day");
        let next = |time: &Zoned| match self {
            // Noon of the next day by the wall clock, otherwise a fixed interval.
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
            ticks.push(
                u64::try_from(
                    time.timestamp().as_millisecond() - first.timestamp().as_millisecond(),
                )
                .expect("a time after it"),
            );
            time = next(&time).expect("a time");
        }
        ticks
    }
}

/// The line's options, and the clock errors of the nodes.
#[derive(Clone, Copy, Debug)]
struct Policy {
    guard: bool,
    once_per: bool,
    at_least: Option<Duration>,
    /// Standard deviation and limit of the clock errors, in ms.
    skew: (f64, i64),
}

/// The skew guard suffices if no two clocks differ by more than it; `--once-per` suffices for any
/// clocks.
const POLICIES: [Policy; 4] = [
    Policy {
        guard: true,
        once_per: false,
        at_least: None,
        skew: (500.0, 2400),
    },
    Policy {
        guard: true,
        once_per: true,
        at_least: None,
        skew: (500.0, 3000),
    },
    Policy {
        guard: true,
        once_per: true,
        at_least: None,
        skew: (2000.0, 3000),
    },
    Policy {
        guard: true,
        once_per: true,
        at_least: Some(Duration::from_secs(10)),
        skew: (2000.0, 3000),
    },
];
const GUARD: Duration = Duration::from_secs(5);
/// The longest remaining lease of a dead run, in ms.
const LEASE: u64 = 30_000;
const NODES: usize = 3;

/// Draws a clock error, in ms.
fn skew(dice: &mut Dice, (deviation, limit): (f64, i64)) -> i64 {
    #[allow(clippy::cast_possible_truncation, reason = "some thousands")]
    let skew = (dice.normal() * deviation) as i64;
    skew.clamp(-limit, limit)
}

struct Node {
    skew: i64,
    /// The tick at which the node comes back.
    away_until: usize,
    place: String,
}

/// A run that holds the lock.
struct Running {
    token: Token,
    fence: Fence,
    /// The end of the run and its outcome; `None` if its node died.
    ends: Option<(u64, RunState)>,
    over: u64,
}

/// The totals over several years.
#[derive(Debug, Default)]
struct Tally {
    ticks: u64,
    runs: u64,
    nobody: u64,
    busy: u64,
    refused: u64,
}

/// A year on one store.
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

    /// Ends the run if its end is due.
    async fn end_due_run(&mut self, now: u64) {
        let Some((ends, outcome)) = self
            .running
            .as_ref()
            .and_then(|running| running.ends)
            .filter(|(ends, _)| *ends <= now)
        else {
            // The lease of a dead run expires.
            self.running
                .take_if(|running| running.ends.is_none() && running.over <= now);
            return;
        };
        self.pass_to(ends).await;
        if let Some(running) = self.running.take() {
            let end = if outcome == RunState::Ok {
                End::Exited(0)
            } else {
                End::Exited(1)
            };
            let info = ReleaseInfo {
                end: Some(end),
                run_state: Some(outcome),
                ..Scope::Tree.into()
            };
            self.backend
                .release(&self.key, &running.token, &info)
                .await
                .expect("a release");
        }
    }

    fn request(&self, run_policy: RunPolicy, ttl: u64) -> Request {
        Request {
            ttl_asked: false,
            run_policy: Some(run_policy),
            ..Request::new(
                self.key.clone(),
                Ttl::new(Duration::from_millis(ttl)).expect("a TTL"),
            )
        }
    }
}

/// Simulates every tick of a schedule, and checks each of them.
async fn simulate(schedule: Schedule, policy: Policy, ticks: &[u64], seed: u64) -> Tally {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut nodes: Vec<Node> = (0..NODES)
        .map(|n| Node {
            skew: skew(&mut dice, policy.skew),
            away_until: 0,
            place: format!("node-{n}"),
        })
        .collect();
    let mut world = World {
        backend: Memory::new(MemoryStore::default(), Namespace::default()),
        key: Key::new("job").expect("a key"),
        began: tokio::time::Instant::now(),
        running: None,
        tally: Tally::default(),
    };
    let period = u64::try_from(schedule.period().as_millis()).expect("a period");
    let once = policy.once_per.then(|| Once {
        window: schedule.period() / 2,
        retry_failed: 0,
        retry_crashed: false,
    });
    for (n, tick) in ticks.iter().enumerate() {
        let mut fired: Vec<(u64, usize)> = Vec::with_capacity(NODES);
        for (at, node) in nodes.iter_mut().enumerate() {
            if dice.one_in(3000) {
                node.away_until = n + 1 + usize::try_from(dice.below(50)).unwrap_or(1);
            }
            if dice.one_in(2000) {
                // The node's clock is set anew.
                node.skew = skew(&mut dice, policy.skew);
            }
            if node.away_until <= n {
                // Cron checks once a second, and starts processes one after the other. The first
                // tick is not before the start of the year.
                let late = node.skew + i64::try_from(dice.below(100)).unwrap_or_default();
                fired.push(((tick + 5000).saturating_add_signed(late), at));
            }
        }
        fired.sort_unstable();
        let (mut runs, mut others) = (0, 0);
        for (now, at) in &fired {
            world.end_due_run(*now).await;
            world.pass_to(*now).await;
            let length = if dice.one_in(200) {
                period + dice.below(period)
            } else {
                20 + dice.below(4000)
            };
            let dies = dice.one_in(500);
            let ttl = if dies {
                dice.below(LEASE) + 1000
            } else {
                length + LEASE
            };
            let run_policy = RunPolicy {
                place: nodes[*at].place.clone(),
                skew_guard: policy.guard.then_some(GUARD),
                at_least: policy.at_least,
                once,
                anyway: false,
            };
            let request = world.request(run_policy, ttl);
            match world
                .backend
                .try_acquire(&request)
                .await
                .expect("an answer")
            {
                Attempt::Granted(grant) => {
                    runs += 1;
                    let outcome = if dice.one_in(20) {
                        RunState::Failed
                    } else {
                        RunState::Ok
                    };
                    let ends = (!dies).then_some((now + length, outcome));
                    world.running = Some(Running {
                        token: request.token,
                        fence: grant.fence,
                        ends,
                        over: now + ttl,
                    });
                    if dies {
                        nodes[*at].away_until =
                            n + 1 + usize::try_from(dice.below(20)).unwrap_or(1);
                    }
                }
                Attempt::Busy(busy) => {
                    let holder = busy.holders.first().and_then(|holder| holder.fence);
                    let known = world.running.as_ref().map(|running| running.fence);
                    assert!(
                        holder.is_some() && holder == known,
                        "seed {seed}, tick {n}: busy with {holder:?}, not {known:?}"
                    );
                    others += 1;
                }
                Attempt::Denied(refusal) => {
                    world.tally.refused += 1;
                    // The denying run is of this tick: a run of an earlier tick must not deny this
                    // one.
                    assert!(
                        runs == 1,
                        "seed {seed}, tick {n} of {schedule:?}, {policy:?}: refused for {refusal:?} although no node ran"
                    );
                }
                Attempt::NotHeld => panic!("not held"),
            }
        }
        assert!(
            runs <= 1,
            "seed {seed}: tick {n} of {schedule:?} ran {runs} times, {policy:?}"
        );
        world.tally.ticks += 1;
        world.tally.runs += runs;
        if runs == 0 && fired.is_empty() {
            world.tally.nobody += 1;
        } else if runs == 0 {
            assert_eq!(
                others,
                fired.len(),
                "seed {seed}: tick {n} of {schedule:?} was missed, {policy:?}"
            );
            world.tally.busy += 1;
        }
    }
    world.tally
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
}

/// Simulates each policy with this many seeds over this many days.
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
    support::say(&format!(
        "{schedule:?}, {days} days, {seeds} seeds from {first} on: {sum:?}"
    ));
    assert_eq!(sum.ticks, sum.runs + sum.nobody + sum.busy);
    assert!(sum.refused > sum.ticks / 2, "the other nodes were denied");
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
    let policy = Policy {
        guard: false,
        once_per: false,
        at_least: None,
        skew: (500.0, 2400),
    };
    runtime().block_on(simulate(
        Schedule::HalfPast,
        policy,
        &Schedule::HalfPast.ticks(365),
        1,
    ));
}

#[test]
#[should_panic(expected = "ran 2 times")]
fn a_skew_guard_below_the_clock_difference_is_not_enough() {
    let policy = Policy {
        guard: true,
        once_per: false,
        at_least: None,
        skew: (2000.0, 3000),
    };
    for seed in 1..100 {
        runtime().block_on(simulate(
            Schedule::HalfPast,
            policy,
            &Schedule::HalfPast.ticks(365),
            seed,
        ));
    }
}

#[test]
fn daylight_saving_time_changes_twice_a_year() {
    let ticks = Schedule::Noon.ticks(365);
    let gaps: Vec<u64> = ticks
        .windows(2)
        .map(|two| (two[1] - two[0]) / 3_600_000)
        .collect();
    assert_eq!(
        (
            gaps.iter().filter(|gap| **gap == 23).count(),
            gaps.iter().filter(|gap| **gap == 25).count()
        ),
        (1, 1)
    );
}
