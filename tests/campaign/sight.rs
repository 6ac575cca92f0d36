//! That the campaign sees what it looks for: where README says that two may run, two are made to, and it has to say so.

use std::time::Duration;

use crate::{
    campaign::round,
    judge::{Fault, Rule},
    plan::{Blow, Contender, Plan, Planned, Step, TTL, Way},
    round::Arena,
    section::Member,
    stores, support,
};

/// One that has the lock for long, and one that comes while it does.
fn plan(first: Step, blow: Option<Blow>) -> Plan {
    let alone = |step, second| Contender { way: Way::Direct, second, steps: vec![step] };
    let next = Step { wait_ms: Some(30_000), hold_ms: 20, ..Step::plain(0) };
    Plan {
        name: "sight",
        ttl: TTL,
        keys: 1,
        contenders: vec![alone(first, false), alone(next, true)],
        blows: blow.map(|blow| Planned { at_ms: 0, blow, ms: 0, whom: 0 }).into_iter().collect(),
    }
}

fn seen(store: &str, name: &str, plan: &Plan) -> Vec<Fault> {
    match stores::start(store) {
        Ok(store) => round(&Arena::new(store), plan, name).1,
        Err(why) => {
            support::skip(name, &why);
            vec![Fault { rule: Rule::Overlap, what: why }]
        }
    }
}

#[track_caller]
fn must_see(faults: &[Fault], rule: Rule) {
    assert!(faults.iter().any(|fault| fault.rule == rule), "no {rule:?} was seen: {faults:?}");
}

pub fn a_redis_that_forgets_lets_two_run() {
    let first = Step { hold_ms: 4000, ..Step::plain(0) };
    // The next renewal, which finds out, is seconds away.
    let plan = Plan { ttl: Duration::from_secs(20), ..plan(first, Some(Blow::Forget)) };
    must_see(&seen("redis", "sight-forget", &plan), Rule::Overlap);
}

pub fn what_is_left_behind_on_request_lives_beside_the_next() {
    let tree = vec![Member { ms: 4000, daemon: true }];
    let first = Step { hold_ms: 800, tree, leftover: "leave", ..Step::plain(0) };
    must_see(&seen("sqlite", "sight-leave", &plan(first, None)), Rule::Overlap);
}

pub fn dlock_and_guardian_killed_in_one_instant_leave_a_daemon() {
    // The kernel ends the command itself with the guardian. What it started lives on, for longer than the lease.
    let ms = u64::try_from((TTL + Duration::from_secs(4)).as_millis()).unwrap_or_default();
    let first = Step { hold_ms: ms, tree: vec![Member { ms, daemon: true }], ..Step::plain(0) };
    must_see(&seen("redis", "sight-both", &plan(first.clone(), Some(Blow::KillBoth))), Rule::Overlap);
    // On SQLite the kernel keeps the lock for what lives.
    let on_sqlite = seen("sqlite", "sight-both", &plan(first, Some(Blow::KillBoth)));
    assert!(on_sqlite.iter().all(|fault| fault.rule != Rule::Overlap), "{on_sqlite:?}");
}
