//! Tests that the campaign finds an overlap in the three cases in which README permits one.

use std::time::Duration;

use crate::{
    campaign::round,
    checker::{Rule, Violation},
    plan::{Contender, FaultKind, Plan, PlannedFault, Route, Step, TTL, When},
    round::Arena,
    section::Member,
    stores::Arsenal,
    support,
};

/// A plan with one long hold and one contender that arrives during it.
fn plan(first: Step, fault: Option<FaultKind>) -> Plan {
    let alone = |step, when| Contender {
        route: Route::Direct,
        when,
        steps: vec![step],
    };
    let next = Step {
        wait_ms: Some(30_000),
        hold_ms: 20,
        ..Step::plain(0)
    };
    Plan {
        name: "detection",
        ttl: TTL,
        keys: 1,
        contenders: vec![alone(first, When::AtOnce), alone(next, When::Second)],
        faults: fault
            .map(|fault| PlannedFault {
                at_ms: 0,
                fault,
                ms: 0,
                contender: 0,
            })
            .into_iter()
            .collect(),
    }
}

fn violations_of(store: &str, name: &str, plan: &Plan) -> Vec<Violation> {
    match Arsenal::start(store) {
        Ok(store) => round(&Arena::new(store), plan, name).1,
        Err(why) => {
            support::skip(name, &why);
            vec![Violation {
                rule: Rule::Overlap,
                what: why,
            }]
        }
    }
}

#[track_caller]
fn must_find(violations: &[Violation], rule: Rule) {
    assert!(
        violations.iter().any(|violation| violation.rule == rule),
        "no {rule:?} was found: {violations:?}"
    );
}

pub fn data_loss_on_redis_lets_two_runs_overlap() {
    let first = Step {
        hold_ms: 4000,
        ..Step::plain(0)
    };
    // The next renewal, which would detect the loss, is seconds away.
    let plan = Plan {
        ttl: Duration::from_secs(20),
        ..plan(first, Some(FaultKind::Forget))
    };
    must_find(
        &violations_of("redis", "detection-forget", &plan),
        Rule::Overlap,
    );
}

pub fn leftovers_kept_on_request_overlap_the_next_run() {
    let tree = vec![Member {
        ms: 4000,
        daemon: true,
    }];
    let first = Step {
        hold_ms: 800,
        tree,
        leftover: "leave",
        ..Step::plain(0)
    };
    must_find(
        &violations_of("sqlite", "detection-leave", &plan(first, None)),
        Rule::Overlap,
    );
}

pub fn dlock_and_guardian_killed_together_leave_a_daemon_running() {
    // The kernel kills the command together with the guardian. The daemon that the command started
    // outlives the lease.
    let ms = u64::try_from((TTL + Duration::from_secs(4)).as_millis()).unwrap_or_default();
    let first = Step {
        hold_ms: ms,
        tree: vec![Member { ms, daemon: true }],
        ..Step::plain(0)
    };
    must_find(
        &violations_of(
            "redis",
            "detection-both",
            &plan(first.clone(), Some(FaultKind::KillBoth)),
        ),
        Rule::Overlap,
    );
    let on_sqlite = violations_of(
        "sqlite",
        "detection-both",
        &plan(first, Some(FaultKind::KillBoth)),
    );
    if rustix::process::geteuid().is_root() {
        must_find(&on_sqlite, Rule::Overlap);
    } else {
        // The kernel keeps the lock while the daemon lives.
        assert!(
            on_sqlite
                .iter()
                .all(|violation| violation.rule != Rule::Overlap),
            "{on_sqlite:?}"
        );
    }
}
