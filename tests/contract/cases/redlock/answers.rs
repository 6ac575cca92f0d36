//! Answers that are late or lost on some of the nodes.

use std::time::{Duration, Instant};

use dlock::{
    backends::redlock::{Redlock, RedlockOptions},
    lease::{self, BootClock, Outcome},
    lock::{Effect, Fence, Release, Renewal, Scope},
};

use super::{
    super::{Case, cases},
    Fronts, HASTY, LIMITS, PATIENT, core_acquire, counter, held_on, record,
};
use crate::{
    lab::{Client, LONG, Lab, SHORT, SLACK, key, request},
    support::{
        self,
        proxy::{Fault, Mode},
    },
    targets::{
        Kind,
        redlock::{NODES, options},
    },
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind == Kind::Redlock =>
        a_silent_node_costs_its_bound_once,
        a_node_that_is_heard_of_again_counts_again,
        a_late_node_is_released_behind_its_attempt,
        a_late_attempt_proves_nothing_in_a_renewal,
        answers_lost_on_a_minority_change_nothing,
        answers_lost_on_a_majority_are_asked_for_again,
        a_commit_that_comes_after_the_lease_is_refused,
        a_release_is_remembered_node_by_node,
    ]
}

async fn a_silent_node_costs_its_bound_once(lab: &Lab) {
    let mut fronts = Fronts::of(lab);
    fronts.0[2].set(Mode::BlackHole);
    let ports: Vec<u16> = fronts.0.iter().map(|proxy| proxy.port).collect();
    let mut a = Client(Box::new(Redlock::new(RedlockOptions { node_timeout: PATIENT, ..options(&ports, "dlock") })));
    let job = key("job");
    let began = Instant::now();
    let held = a.hold(&job).await;
    let first = began.elapsed();
    assert!(first >= PATIENT && first < PATIENT + Duration::from_millis(300), "{first:?}");
    let began = Instant::now();
    for _ in 0..4 {
        a.renewed(&held, None).await;
    }
    a.free(&held).await;
    let rest = began.elapsed();
    assert!(rest < PATIENT * 3, "five more questions took {rest:?}");
    support::say(&format!("redlock: a silent node costs {first:?} at first, then {:?} a question", rest / 5));
}

async fn a_node_that_is_heard_of_again_counts_again(lab: &Lab) {
    let mut fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    let held = a.hold(&key("job")).await;
    fronts.0[2].set(Mode::BlackHole);
    for _ in 0..3 {
        a.renewed(&held, None).await;
    }
    fronts.0[2].set(Mode::Pass);
    for n in [0, 1] {
        fronts.0[n].set(Mode::Refuse);
    }
    // The silent connection is given up, another one made, and its answer is needed.
    let renewal = lease::ask(&mut *a.0, &BootClock, LIMITS, ("ask", None), async |b: &mut dyn dlock::lock::Backend| {
        b.renew(&held.key, &held.token, None.into()).await
    });
    let renewal = renewal.await;
    assert!(matches!(renewal, Ok(Renewal::Renewed { .. })), "{renewal:?}");
}

async fn a_late_node_is_released_behind_its_attempt(lab: &Lab) {
    let fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    fronts.0[4].trap("", Fault::Late(HASTY * 2));
    let held = a.hold(&key("job")).await;
    assert_eq!(fronts.0[4].sprung(), 1);
    assert_eq!(held_on(lab), 4);
    // It has not been decided with it, and is released with it all the same.
    a.free(&held).await;
    lab.pass(HASTY * 3).await;
    assert_eq!(held_on(lab), 0);
}

async fn a_late_attempt_proves_nothing_in_a_renewal(lab: &Lab) {
    let fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    for n in [3, 4] {
        fronts.0[n].trap("", Fault::Late(HASTY * 2));
    }
    let held = a.hold(&key("job")).await;
    lab.pass(HASTY * 3).await;
    assert_eq!(held_on(lab), NODES);
    assert_eq!((record(lab, 0, "fence").is_some(), record(lab, 4, "fence")), (true, None));
    // They are extended, since they keep others out.
    a.renewed(&held, Some(LONG * 2)).await;
    assert!(lab.redlock().node(4).int(&["PTTL", "dlock:job"]) > i64::try_from(LONG.as_millis()).expect("small"));
    lab.redlock().node(0).command(&["DEL", "dlock:job"]);
    // Two of its three are left, and two that nobody vouches for.
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
}

async fn answers_lost_on_a_minority_change_nothing(lab: &Lab) {
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Swallow] {
        for skip in [0, 1] {
            let fronts = Fronts::of(lab);
            let mut a = fronts.client(HASTY).await;
            for n in [1, 2] {
                fronts.0[n].trap_nth("", skip, 1, fault);
            }
            let held = a.hold(&key("job")).await;
            assert!(fronts.0[1].sprung() == 1 && fronts.0[2].sprung() == 1);
            a.renewed(&held, None).await;
            lab.client().await.refused(&request(&key("job"), LONG)).await;
            a.free(&held).await;
            assert_eq!(held_on(lab), 0, "{fault:?} {skip}");
        }
    }
}

/// Of phase 1, and of phase 2: what was committed without our knowing it is found, what was not is taken over.
async fn answers_lost_on_a_majority_are_asked_for_again(lab: &Lab) {
    let mut last = Fence(0);
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Swallow] {
        for skip in [0, 1] {
            let fronts = Fronts::of(lab);
            let mut a = fronts.client(HASTY).await;
            for n in [0, 1, 2] {
                fronts.0[n].trap_nth("", skip, 1, fault);
            }
            let Outcome::Granted(lease) = core_acquire(&mut a, request(&key("job"), LONG)).await.expect("granted") else {
                panic!("busy: our own unanswered attempt was taken for somebody else's");
            };
            assert!((0..3).all(|n| fronts.0[n].sprung() == 1));
            assert!(lease.fence > last && lease.holds == 1, "{lease:?} after {last}");
            last = lease.fence;
            let state = lab.client().await.inspect(&key("job")).await;
            assert_eq!((state.holders[0].fence, state.holders[0].holds), (Some(last), 1), "{fault:?} {skip}");
            assert_eq!(a.0.release(&lease.key, &lease.token, &Scope::Tree.into()).await.expect("release"), Release::Released);
            lab.pass(SLACK).await;
            assert_eq!(held_on(lab), 0, "{fault:?} {skip}");
        }
    }
}

async fn a_commit_that_comes_after_the_lease_is_refused(lab: &Lab) {
    let fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    for n in [0, 1, 2] {
        fronts.0[n].trap_nth("", 1, 1, Fault::Late(SHORT * 2 + SLACK * 3));
    }
    let late = request(&key("job"), SHORT * 2);
    let error = a.0.try_acquire(&late).await.expect_err("too few commits");
    assert!(error.is_transient() && error.effect == Effect::Unknown, "{error:?}");
    assert!((0..3).all(|n| fronts.0[n].sprung() == 1));
    lab.outlast(SHORT * 2).await;
    let mut b = lab.client().await;
    let held = request(&key("job"), LONG);
    let fence = b.take(&held).await.fence;
    lab.pass(SLACK * 5).await;
    for n in 0..NODES {
        assert_eq!((counter(lab, n), record(lab, n, "fence")), (fence.0, Some(fence.to_string())), "node {n}");
    }
    assert_eq!(b.renewed(&held, None).await, fence);
}

async fn a_release_is_remembered_node_by_node(lab: &Lab) {
    let fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    let held = a.hold(&key("job")).await;
    for n in [0, 1, 2] {
        fronts.0[n].trap("", Fault::CutBefore);
    }
    let error = a.0.release(&held.key, &held.token, &Scope::Tree.into()).await.expect_err("two of five");
    assert_eq!(error.effect, Effect::Unknown, "{error:?}");
    assert_eq!(held_on(lab), 3);
    // The two that are free by now don't speak against it.
    fronts.0[0].trap("", Fault::CutBefore);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::Released);
    assert_eq!(held_on(lab), 1);
}
