//! The scenes of a sweep, and the faults that strike one packet of contender A, the first of each
//! scene.

use std::time::Duration;

use crate::{
    plan::{Contender, FaultKind, Kind, ONCE_KEY, Plan, Route, Step, TTL, When},
    support::stores::Can,
};

/// The names that `--scenes` takes.
pub const NAMES: [&str; 12] = [
    "solo", "try", "handover", "once", "onceper", "oncetry", "atleast", "fair", "shared",
    "permits", "two", "giveup",
];

/// What happens at the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Is lost, and both ends are reset.
    Rst,
    /// Is delivered, then both ends are reset.
    After,
    /// Is lost, and both ends are closed.
    Fin,
    /// Half of it is delivered, then both ends are reset.
    Half,
    /// The connection swallows it and all that follows.
    Hole,
    /// All connections swallow everything for 2 s.
    Out,
    /// The same for longer than the lease.
    Outage,
    /// It and what follows in its direction arrives after the lease, even if the sender is gone.
    Late,
    /// dlock is killed, stopped for longer than the lease, or terminated.
    Kill,
    Stop,
    Term,
}

/// All modes, by the names that `--modes` takes.
pub const MODES: [(&str, Mode); 11] = [
    ("rst", Mode::Rst),
    ("after", Mode::After),
    ("fin", Mode::Fin),
    ("half", Mode::Half),
    ("hole", Mode::Hole),
    ("out", Mode::Out),
    ("outage", Mode::Outage),
    ("late", Mode::Late),
    ("kill", Mode::Kill),
    ("stop", Mode::Stop),
    ("term", Mode::Term),
];

impl Mode {
    pub fn lasts(self) -> Duration {
        match self {
            Self::Out => Duration::from_secs(2),
            Self::Outage => TTL + Duration::from_secs(2),
            Self::Late => TTL + Duration::from_secs(1),
            Self::Stop => TTL * 3 / 2,
            _ => Duration::ZERO,
        }
    }

    /// Returns the fault of the campaign that the checker judges like this one.
    pub fn fault(self) -> FaultKind {
        match self {
            Self::Rst | Self::After | Self::Fin | Self::Half => FaultKind::Cut,
            Self::Hole | Self::Out | Self::Outage => FaultKind::BlackHole,
            Self::Late => FaultKind::LateRequests,
            Self::Kill => FaultKind::KillDlock,
            Self::Stop => FaultKind::StopDlock,
            Self::Term => FaultKind::TermDlock,
        }
    }
}

/// Returns the plan of a scene, or `None` if the store lacks what the scene needs.
pub fn plan(name: &'static str, can: Can) -> Option<Plan> {
    let able = match name {
        "fair" => can.fair,
        "shared" => can.shared,
        "permits" => can.permits,
        "once" | "onceper" | "oncetry" => can.once,
        _ => true,
    };
    let keys = if name == "two" { 2 } else { 1 };
    able.then(|| Plan {
        name,
        ttl: TTL,
        keys,
        contenders: contenders(name),
        faults: Vec::new(),
    })
}

/// Only A goes through the proxies. The first number of each contender is when it starts, the last
/// how long its command works.
fn contenders(name: &str) -> Vec<Contender> {
    let a = |at, step| contender(Route::Proxy, at, step);
    let other = |at, step| contender(Route::Direct, at, step);
    let last = |step| Contender {
        when: When::Last,
        ..other(0, step)
    };
    let trying = |hold_ms| Step {
        hold_ms,
        ..Step::plain(0)
    };
    let waiting = |hold_ms| Step {
        wait_ms: Some(25_000),
        ..trying(hold_ms)
    };
    let per = |hold_ms| Step {
        keys: vec![ONCE_KEY],
        once_per_ms: Some(3_600_000),
        ..trying(hold_ms)
    };
    let once = |hold_ms| Step {
        once: true,
        ..per(hold_ms)
    };
    let patient = |step| Step {
        wait_ms: Some(20_000),
        ..step
    };
    let kind = |kind, hold_ms| Step {
        kind,
        ..waiting(hold_ms)
    };
    let fair = |hold_ms| Step {
        fair: true,
        ..waiting(hold_ms)
    };
    let permit = |hold_ms| kind(Kind::Permits(1), hold_ms);
    match name {
        "solo" => vec![a(0, waiting(1300)), other(350, waiting(100))],
        "try" => vec![a(0, trying(700)), other(350, waiting(100))],
        "handover" => vec![
            a(200, waiting(700)),
            other(0, waiting(500)),
            other(400, waiting(100)),
        ],
        "once" => vec![
            a(0, patient(once(700))),
            other(350, patient(once(60))),
            last(patient(once(60))),
        ],
        "onceper" => vec![a(0, per(700)), other(50, per(60)), last(per(60))],
        "oncetry" => vec![a(0, once(700)), last(patient(once(60)))],
        "atleast" => vec![
            a(
                0,
                Step {
                    at_least_ms: 2000,
                    ..trying(700)
                },
            ),
            other(350, waiting(60)),
        ],
        "fair" => vec![
            a(200, fair(700)),
            other(0, fair(500)),
            other(400, fair(100)),
        ],
        "shared" => vec![
            a(200, kind(Kind::Shared, 700)),
            other(0, waiting(400)),
            other(600, waiting(100)),
        ],
        "permits" => vec![
            a(200, permit(700)),
            other(0, permit(400)),
            other(600, permit(100)),
        ],
        "two" => {
            let (both, second) = (
                Step {
                    keys: vec![0, 1],
                    ..waiting(900)
                },
                Step {
                    keys: vec![1],
                    ..waiting(100)
                },
            );
            vec![a(0, both), other(350, waiting(100)), other(400, second)]
        }
        _ => vec![
            a(
                200,
                Step {
                    wait_ms: Some(500),
                    ..trying(300)
                },
            ),
            other(0, waiting(900)),
            other(400, waiting(100)),
        ],
    }
}

fn contender(route: Route, pause_ms: u64, step: Step) -> Contender {
    Contender {
        route,
        when: When::AtOnce,
        steps: vec![Step { pause_ms, ..step }],
    }
}
