//! What happens in a round, drawn from its seed: which runs there are, and what strikes when.

use std::time::Duration;

use crate::{section::Member, support::dice::Dice};

/// What a store can do beyond exclusive locks.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each by itself")]
pub struct Abilities {
    pub shared: bool,
    pub permits: bool,
    pub fair: bool,
    /// A run can enter the hold of the run around it.
    pub nested: bool,
    pub once: bool,
    /// It is reached over a network.
    pub network: bool,
    /// There is a server to strike.
    pub server: bool,
    /// The server's clock can be set off, which is to be no matter.
    pub clock: bool,
    /// The disk can be full.
    pub disk: bool,
    /// A failover forgets what was confirmed just before: README promises a lock, and no history.
    pub forgets: bool,
    /// How many seconds after the end of a dead holder's lease the next one starts at the latest.
    pub handover_s: u64,
}

/// How a run wants its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Exclusive,
    Shared,
    Permits(u64),
}

/// One `dlock run`.
#[derive(Clone, Debug)]
pub struct Step {
    /// How long its contender rests before.
    pub pause_ms: u64,
    pub kind: Kind,
    pub keys: Vec<usize>,
    /// How long it waits for the lock; `None` tries once.
    pub wait_ms: Option<u64>,
    pub fair: bool,
    /// `--once-per`, on a key of its own.
    pub once_per_ms: Option<u64>,
    pub hold_ms: u64,
    pub code: i32,
    pub tree: Vec<Member>,
    /// Its command ignores TERM.
    pub stubborn: bool,
    /// Its command runs another `dlock run` of the same key.
    pub nested: bool,
    /// `--leftover`: what becomes of processes that outlive the command.
    pub leftover: &'static str,
}

/// Which way a contender reaches the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Direct,
    Proxy,
    /// From a network namespace of its own.
    Netns,
}

#[derive(Clone, Debug)]
pub struct Contender {
    pub way: Way,
    /// Comes once a section lives.
    pub second: bool,
    pub steps: Vec<Step>,
}

/// What strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blow {
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
    /// Requests that arrive, and whose replies don't.
    LoseReplies,
    /// Requests that don't arrive.
    LoseRequests,
    LateRequests,
    Split,
    Partition,
    Starve,
    /// The server's clock is set off, back or forth.
    StepClock,
    /// There is no room on the disk.
    FillDisk,
    /// The server forgets everything, and dlock and its guardian die in one instant: what README doesn't cover. Never drawn.
    Forget,
    KillBoth,
}

impl Blow {
    /// On one run.
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
    /// On the store.
    pub const SERVER: [Self; 2] = [Self::FreezeServer, Self::RestartServer];
    /// On the way to it.
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

    /// The one with this name, as the summary has it.
    pub fn named(name: &str) -> Option<Self> {
        let mut all =
            Self::PROCESSES.iter().chain(&Self::SERVER).chain(&Self::NETWORK).chain(&[Self::Starve, Self::StepClock, Self::FillDisk]);
        all.find(|blow| format!("{blow:?}") == name).copied()
    }

    pub fn is_on_one_run(self) -> bool {
        Self::PROCESSES.contains(&self)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Planned {
    pub at_ms: u64,
    pub blow: Blow,
    /// For how long.
    pub ms: u64,
    /// Which contender, where it is one.
    pub whom: usize,
}

/// A round.
#[derive(Clone, Debug)]
pub struct Plan {
    pub name: &'static str,
    pub ttl: Duration,
    pub keys: usize,
    pub contenders: Vec<Contender>,
    pub blows: Vec<Planned>,
}

/// What the rounds of a campaign are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Three rounds of four have faults.
    Both,
    /// None has.
    Calm,
    /// All have.
    Rough,
}

/// The key of `--once-per`, beside those that are drawn.
pub const ONCE_KEY: usize = 9;

/// The lease of all runs.
pub const TTL: Duration = Duration::from_secs(3);

impl Plan {
    /// Draws the round `number` of the campaign with `seed`.
    pub fn draw(seed: u64, number: u64, mix: Mix, only: &[Blow], can: Abilities) -> Self {
        // The first draws of neighbouring seeds are alike.
        let mut dice = Dice((seed << 20 | number).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..8 {
            dice.below(2);
        }
        let rough = mix == Mix::Rough || mix == Mix::Both && !dice.one_in(4);
        if !rough && can.fair && dice.one_in(12) {
            return Self::line(&mut dice);
        }
        let keys = 1 + index(&mut dice, 3);
        let permits = 2 + dice.below(2);
        let contenders =
            (0..4 + dice.below(if rough { 7 } else { 13 })).map(|_| contender(&mut dice, rough, keys, permits, can)).collect::<Vec<_>>();
        let blows = if rough { blows(&mut dice, contenders.len(), only, can) } else { Vec::new() };
        Self { name: if rough { "rough" } else { "calm" }, ttl: TTL, keys, contenders, blows }
    }

    /// One after the other into the queue of a lock, each long enough after the last one that the order is known.
    fn line(dice: &mut Dice) -> Self {
        let one = |nth: u64| Contender {
            way: Way::Direct,
            second: false,
            steps: vec![Step { pause_ms: nth * 700, wait_ms: Some(60_000), fair: true, hold_ms: 900, ..Step::plain(0) }],
        };
        // One that doesn't wait, and asks again and again, comes before none of them.
        let pushes = Step { pause_ms: 10, ..Step::plain(0) };
        let pushy = Contender {
            way: Way::Direct,
            second: false,
            steps: std::iter::once(Step { pause_ms: 600, ..pushes.clone() }).chain(vec![pushes; 99]).collect(),
        };
        let contenders = (0..4 + dice.below(3)).map(one).chain([pushy]).collect();
        Self { name: "line", ttl: TTL, keys: 1, contenders, blows: Vec::new() }
    }
}

impl Step {
    /// An exclusive try of the least kind.
    pub fn plain(key: usize) -> Self {
        Self {
            pause_ms: 0,
            kind: Kind::Exclusive,
            keys: vec![key],
            wait_ms: None,
            fair: false,
            once_per_ms: None,
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

fn contender(dice: &mut Dice, rough: bool, keys: usize, permits: u64, can: Abilities) -> Contender {
    let way = match dice.below(4) {
        0 | 1 if rough && can.network => Way::Proxy,
        2 if rough && can.network => Way::Netns,
        _ => Way::Direct,
    };
    let steps = if rough { 2 + dice.below(3) } else { 10 };
    Contender { way, second: false, steps: (0..steps).map(|_| step(dice, rough, keys, permits, can)).collect() }
}

fn step(dice: &mut Dice, rough: bool, keys: usize, permits: u64, can: Abilities) -> Step {
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
    // Some give up. Drawn aside, so that the rest of a plan is what its seed drew before.
    let mut aside = Dice(dice.0 ^ 0xA5A5_5A5A_0F0F_F0F0);
    if step.wait_ms.is_some() && aside.one_in(6) {
        step.wait_ms = Some(20 + aside.below(if rough { 3000 } else { 60 }));
    }
    step.code = if dice.one_in(5) { 1 + i32::try_from(dice.below(3)).unwrap_or_default() } else { 0 };
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
        let member = |dice: &mut Dice| Member { ms: step.hold_ms + dice.below(if rough { 900 } else { 40 }), daemon: dice.one_in(2) };
        step.tree = (0..=dice.below(2)).map(|_| member(dice)).collect();
        step.leftover = if dice.one_in(3) { "kill" } else { "wait" };
    }
    step.stubborn = rough && dice.one_in(3);
    step
}

fn blows(dice: &mut Dice, contenders: usize, only: &[Blow], can: Abilities) -> Vec<Planned> {
    let count = 2 + dice.below(9);
    let one = |dice: &mut Dice| {
        let blow = match dice.below(20) {
            0..=8 if can.network => Blow::NETWORK[index(dice, Blow::NETWORK.len())],
            9 if can.clock => Blow::StepClock,
            9..=11 if can.server => Blow::SERVER[index(dice, Blow::SERVER.len())],
            12 => Blow::Starve,
            13 if can.disk => Blow::FillDisk,
            _ => Blow::PROCESSES[index(dice, Blow::PROCESSES.len())],
        };
        let blow = if only.is_empty() { blow } else { only[index(dice, only.len())] };
        // What a lease survives, what it may survive, and what it does not.
        let ms = [dice.below(1200), 1200 + dice.below(2500), 3500 + dice.below(3000)][index(dice, 3)];
        Planned { at_ms: 100 + dice.below(4000), blow, ms, whom: index(dice, contenders) }
    };
    (0..count).map(|_| one(dice)).collect()
}
