//! The plan of a round, drawn from its seed: the runs, and the faults with their times.

use std::time::Duration;

use crate::{
    section::Member,
    support::{dice::Dice, stores::Can},
};

/// The lock mode that a run asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Exclusive,
    Shared,
    Permits(u64),
}

/// One `dlock run`.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each by itself")]
pub struct Step {
    /// How long the contender pauses before this run.
    pub pause_ms: u64,
    pub kind: Kind,
    pub keys: Vec<usize>,
    /// How long the run waits for the lock; `None` tries once.
    pub wait_ms: Option<u64>,
    pub fair: bool,
    /// `--once-per`, on a key of its own.
    pub once_per_ms: Option<u64>,
    /// `--once` instead, which keeps a success for that long.
    pub once: bool,
    pub at_least_ms: u64,
    pub hold_ms: u64,
    pub code: i32,
    pub tree: Vec<Member>,
    /// Whether the command ignores TERM.
    pub stubborn: bool,
    /// Whether the command runs another `dlock run` on the same key.
    pub nested: bool,
    /// `--leftover`: how dlock treats processes that outlive the command.
    pub leftover: &'static str,
}

/// The route from a contender to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Direct,
    Proxy,
    /// From a network namespace of its own.
    Netns,
}

/// When a contender starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    AtOnce,
    /// When a section is alive.
    Second,
    /// When all others have ended.
    Last,
}

#[derive(Clone, Debug)]
pub struct Contender {
    pub route: Route,
    pub when: When,
    pub steps: Vec<Step>,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    KillDlock,
    StopDlock,
    TermDlock,
    KillGuardian,
    StopGuardian,
    KillCommand,
    StopCommand,
    Break,
    FreezeServer,
    RestartServer,
    Delay,
    BlackHole,
    Refuse,
    Cut,
    /// Requests arrive, but their replies are lost.
    LoseReplies,
    /// Requests are lost.
    LoseRequests,
    LateRequests,
    Split,
    Partition,
    Starve,
    /// The server's clock is stepped back or forth.
    StepClock,
    /// The disk is full.
    FillDisk,
    /// The server loses all data, or dlock and its guardian die at the same time. README doesn't
    /// cover either; never drawn.
    Forget,
    KillBoth,
}

impl FaultKind {
    /// Faults on one run.
    pub const PROCESSES: [Self; 8] = [
        Self::KillDlock,
        Self::StopDlock,
        Self::TermDlock,
        Self::KillGuardian,
        Self::StopGuardian,
        Self::KillCommand,
        Self::StopCommand,
        Self::Break,
    ];
    /// Faults on the server.
    pub const SERVER: [Self; 2] = [Self::FreezeServer, Self::RestartServer];
    /// Faults on the network.
    pub const NETWORK: [Self; 9] = [
        Self::Delay,
        Self::BlackHole,
        Self::Refuse,
        Self::Cut,
        Self::LoseReplies,
        Self::LoseRequests,
        Self::LateRequests,
        Self::Split,
        Self::Partition,
    ];

    /// Returns the fault of this name, as the summary prints it.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::PROCESSES
            .iter()
            .chain(&Self::SERVER)
            .chain(&Self::NETWORK)
            .chain(&[Self::Starve, Self::StepClock, Self::FillDisk]);
        all.find(|fault| format!("{fault:?}") == name).copied()
    }

    pub fn hits_the_server(self) -> bool {
        Self::SERVER.contains(&self)
            || matches!(self, Self::Forget | Self::StepClock | Self::FillDisk)
    }

    pub fn hits_one_run(self) -> bool {
        Self::PROCESSES.contains(&self)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct PlannedFault {
    pub at_ms: u64,
    pub fault: FaultKind,
    /// The duration.
    pub ms: u64,
    /// The contender to hit, for faults on one run.
    pub contender: usize,
}

/// The plan of a round.
#[derive(Clone, Debug)]
pub struct Plan {
    pub name: &'static str,
    pub ttl: Duration,
    pub keys: usize,
    pub contenders: Vec<Contender>,
    pub faults: Vec<PlannedFault>,
}

/// Which rounds of a campaign have faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Three of four.
    Both,
    /// None.
    Calm,
    /// All.
    Rough,
}

/// The key of `--once-per`, in addition to the drawn keys.
pub const ONCE_KEY: usize = 9;

/// The lease of all runs.
pub const TTL: Duration = Duration::from_secs(3);

impl Plan {
    /// Draws round `number` of the campaign with `seed`.
    pub fn draw(seed: u64, number: u64, mix: Mix, only: &[FaultKind], can: Can) -> Self {
        // The first draws of neighbouring seeds are similar.
        let mut dice = Dice((seed << 20 | number).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..8 {
            dice.below(2);
        }
        let rough = mix == Mix::Rough || mix == Mix::Both && !dice.one_in(4);
        if !rough && can.fair && dice.one_in(12) {
            return Self::fifo(&mut dice);
        }
        if !rough && can.permits && number % 4 == 3 {
            return Self::crowd(&mut dice);
        }
        let keys = 1 + index(&mut dice, 3);
        let permits = 2 + dice.below(2);
        let contenders = (0..4 + dice.below(if rough { 7 } else { 13 }))
            .map(|_| contender(&mut dice, rough, keys, permits, can))
            .collect::<Vec<_>>();
        let faults = if rough {
            faults(&mut dice, contenders.len(), only, can)
        } else {
            Vec::new()
        };
        Self {
            name: if rough { "rough" } else { "calm" },
            ttl: TTL,
            keys,
            contenders,
            faults,
        }
    }

    /// Contenders that join the queue of a lock one after the other, far enough apart that their
    /// order is known.
    fn fifo(dice: &mut Dice) -> Self {
        let one = |nth: u64| Contender {
            route: Route::Direct,
            when: When::AtOnce,
            steps: vec![Step {
                pause_ms: nth * 700,
                wait_ms: Some(60_000),
                fair: true,
                hold_ms: 900,
                ..Step::plain(0)
            }],
        };
        // A contender that doesn't wait, but retries constantly, must not overtake any of them.
        let pushes = Step {
            pause_ms: 10,
            ..Step::plain(0)
        };
        let pushy = Contender {
            route: Route::Direct,
            when: When::AtOnce,
            steps: std::iter::once(Step {
                pause_ms: 600,
                ..pushes.clone()
            })
            .chain(vec![pushes; 99])
            .collect(),
        };
        let contenders = (0..4 + dice.below(3)).map(one).chain([pushy]).collect();
        Self {
            name: "fifo",
            ttl: TTL,
            keys: 1,
            contenders,
            faults: Vec::new(),
        }
    }

    /// More contenders than permits of one lock: in a mixed round, other kinds mostly keep them
    /// apart.
    fn crowd(dice: &mut Dice) -> Self {
        let permits = 2 + dice.below(2);
        let mut holds = || Step {
            kind: Kind::Permits(permits),
            wait_ms: Some(60_000),
            hold_ms: 50 + dice.below(350),
            pause_ms: dice.below(50),
            ..Step::plain(0)
        };
        let contenders = (0..permits + 3)
            .map(|_| Contender {
                route: Route::Direct,
                when: When::AtOnce,
                steps: (0..4).map(|_| holds()).collect(),
            })
            .collect();
        Self {
            name: "crowd",
            ttl: TTL,
            keys: 1,
            contenders,
            faults: Vec::new(),
        }
    }
}

impl Step {
    /// An exclusive attempt without any option.
    pub fn plain(key: usize) -> Self {
        Self {
            pause_ms: 0,
            kind: Kind::Exclusive,
            keys: vec![key],
            wait_ms: None,
            fair: false,
            once_per_ms: None,
            once: false,
            at_least_ms: 0,
            hold_ms: 0,
            code: 0,
            tree: Vec::new(),
            stubborn: false,
            nested: false,
            leftover: "wait",
        }
    }
}

fn index(dice: &mut Dice, below: usize) -> usize {
    usize::try_from(dice.below(below as u64)).unwrap_or_default()
}

fn contender(dice: &mut Dice, rough: bool, keys: usize, permits: u64, can: Can) -> Contender {
    let route = match dice.below(4) {
        0 | 1 if rough && can.network => Route::Proxy,
        2 if rough && can.network => Route::Netns,
        _ => Route::Direct,
    };
    let steps = if rough { 2 + dice.below(3) } else { 10 };
    Contender {
        route,
        when: When::AtOnce,
        steps: (0..steps)
            .map(|_| step(dice, rough, keys, permits, can))
            .collect(),
    }
}

fn step(dice: &mut Dice, rough: bool, keys: usize, permits: u64, can: Can) -> Step {
    let mut step = Step::plain(index(dice, keys));
    step.pause_ms = dice.below(if rough { 300 } else { 10 });
    step.hold_ms = match dice.below(8) {
        // Longer than a lease.
        0 if rough => 3500 + dice.below(2500),
        1 if rough => 500 + dice.below(2500),
        _ if rough => dice.below(400),
        _ => dice.below(6),
    };
    step.wait_ms = (!dice.one_in(4)).then_some(60_000);
    // Some waiters give up. A second generator draws this, so that older seeds still give the same
    // plans.
    let mut aside = Dice(dice.0 ^ 0xA5A5_5A5A_0F0F_F0F0);
    if step.wait_ms.is_some() && aside.one_in(6) {
        step.wait_ms = Some(20 + aside.below(if rough { 3000 } else { 60 }));
    }
    step.code = if dice.one_in(5) {
        1 + i32::try_from(dice.below(3)).unwrap_or_default()
    } else {
        0
    };
    match dice.below(12) {
        0..=2 if can.shared => step.kind = Kind::Shared,
        3 | 4 if can.permits => step.kind = Kind::Permits(permits),
        5 | 6 if can.fair => step.fair = true,
        7 if keys > 1 => {
            step.keys = (0..keys).filter(|_| !dice.one_in(3)).collect();
            if step.keys.is_empty() {
                step.keys.push(0);
            }
        }
        8 if can.nested => step.nested = true,
        9 if can.once => {
            step.keys = vec![ONCE_KEY];
            (step.once_per_ms, step.wait_ms, step.code) = (Some(2000), None, 0);
        }
        _ => {}
    }
    let trees = if rough { 2 } else { 8 };
    if dice.one_in(trees) {
        let member = |dice: &mut Dice| Member {
            ms: step.hold_ms + dice.below(if rough { 900 } else { 40 }),
            daemon: dice.one_in(2),
        };
        step.tree = (0..=dice.below(2)).map(|_| member(dice)).collect();
        step.leftover = if dice.one_in(3) { "kill" } else { "wait" };
    }
    step.stubborn = rough && dice.one_in(3);
    step
}

fn faults(dice: &mut Dice, contenders: usize, only: &[FaultKind], can: Can) -> Vec<PlannedFault> {
    let count = 2 + dice.below(9);
    let one = |dice: &mut Dice| {
        let fault = match dice.below(20) {
            0..=8 if can.network => FaultKind::NETWORK[index(dice, FaultKind::NETWORK.len())],
            9 if can.clock => FaultKind::StepClock,
            9..=11 if can.server => FaultKind::SERVER[index(dice, FaultKind::SERVER.len())],
            12 => FaultKind::Starve,
            13 if can.disk => FaultKind::FillDisk,
            _ => FaultKind::PROCESSES[index(dice, FaultKind::PROCESSES.len())],
        };
        let fault = if only.is_empty() {
            fault
        } else {
            only[index(dice, only.len())]
        };
        // An outage that a lease survives, one that it may survive, and one that it doesn't.
        let ms = [
            dice.below(1200),
            1200 + dice.below(2500),
            3500 + dice.below(3000),
        ][index(dice, 3)];
        PlannedFault {
            at_ms: 100 + dice.below(4000),
            fault,
            ms,
            contender: index(dice, contenders),
        }
    };
    (0..count).map(|_| one(dice)).collect()
}
