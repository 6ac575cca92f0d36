//! Late and lost answers of some nodes.

use std::time::{Duration, Instant};

use dlock::{
    backends::redlock::Redlock,
    lease::{self, BootClock, Outcome},
    lock::{Amendment, Break, Effect, End, Fence, Mode, Release, Renewal, Request, Scope},
};

use super::{
    super::{Case, cases},
    Fronts, HASTY, LIMITS, NODES, PATIENT, core_acquire, counter, held_on, record,
};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, overtaking_delay, request, short, stretched},
    support::{
        self,
        proxy::{self, Fault, Proxy},
    },
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind == Kind::Redlock =>
        a_silent_node_costs_its_timeout_once,
        a_node_that_answers_again_counts_again,
        a_late_node_is_released_after_its_attempt,
        a_late_attempt_does_not_count_in_a_renewal,
        a_late_undo_leaves_a_later_attempt,
        an_attempt_that_is_undone_is_not_granted_later,
        a_late_attempt_after_an_undo_leaves_a_later_one,
        attempts_that_arrive_after_their_undo_take_no_node,
        answers_lost_on_a_minority_change_nothing,
        requests_without_a_majority_of_answers_are_repeated,
        a_commit_after_the_lease_is_refused,
        a_release_is_tracked_per_node,
        a_marked_hold_whose_release_missed_a_node_was_released,
    ]
}

async fn a_silent_node_costs_its_timeout_once(lab: &Lab) {
    let mut fronts = Fronts::of(lab);
    fronts.0[2].set(proxy::Mode::BlackHole);
    let mut a = Client(Box::new(Redlock::new(fronts.options(PATIENT))));
    let job = key("job");
    let began = Instant::now();
    let held = a.hold(&job).await;
    let first = began.elapsed();
    assert!(
        first >= PATIENT && first < PATIENT + stretched(Duration::from_millis(300)),
        "{first:?}"
    );
    let began = Instant::now();
    for _ in 0..4 {
        a.renewed(&held, None).await;
    }
    a.free(&held).await;
    let rest = began.elapsed();
    assert!(rest < PATIENT * 3, "five more requests took {rest:?}");
    support::say(&format!(
        "redlock: a silent node costs {first:?} at first, then {:?} per request",
        rest / 5
    ));
}

async fn a_node_that_answers_again_counts_again(lab: &Lab) {
    let mut fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    let held = a.hold(&key("job")).await;
    fronts.0[2].set(proxy::Mode::BlackHole);
    for _ in 0..3 {
        a.renewed(&held, None).await;
    }
    fronts.0[2].set(proxy::Mode::Pass);
    for n in [0, 1] {
        fronts.0[n].set(proxy::Mode::Refuse);
    }
    // The silent connection is replaced, and the answer over the new one is needed for a majority.
    let renewal = lease::ask(
        &mut *a.0,
        &BootClock,
        LIMITS,
        ("ask", None),
        async |b: &mut dyn dlock::lock::Backend| b.renew(&held.key, &held.token, None.into()).await,
    );
    let renewal = renewal.await;
    assert!(
        matches!(renewal, Ok(Renewal::Renewed { .. })),
        "{renewal:?}"
    );
}

async fn a_late_node_is_released_after_its_attempt(lab: &Lab) {
    let fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    fronts.0[4].trap("", Fault::Late(HASTY * 2));
    let held = a.hold(&key("job")).await;
    assert_eq!(fronts.0[4].sprung(), 1);
    assert_eq!(held_on(lab), 4);
    // The late node did not count in the decision, but is released too.
    a.free(&held).await;
    lab.pass(HASTY * 3).await;
    assert_eq!(held_on(lab), 0);
}

async fn a_late_attempt_does_not_count_in_a_renewal(lab: &Lab) {
    let fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    for n in [3, 4] {
        fronts.0[n].trap("", Fault::Late(HASTY * 2));
    }
    let held = a.hold(&key("job")).await;
    lab.pass(HASTY * 3).await;
    assert_eq!(held_on(lab), NODES);
    assert_eq!(
        (record(lab, 0, "fence").is_some(), record(lab, 4, "fence")),
        (true, None)
    );
    // The late attempts are extended, since they keep others out.
    a.renewed(&held, Some(LONG * 2)).await;
    assert!(
        lab.redlock()[4].int(&["PTTL", "dlock:job"])
            > i64::try_from(LONG.as_millis()).expect("small")
    );
    lab.redlock()[0].command(&["DEL", "dlock:job"]);
    // Two committed nodes are left, and two that were never confirmed.
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
}

/// The request that undoes a failed attempt is delivered after the same hold was granted over new
/// connections.
async fn a_late_undo_leaves_a_later_attempt(lab: &Lab) {
    let fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    for n in [0, 1, 2] {
        lab.redlock()[n].command(&["SET", "dlock:job", "another library's", "PX", "60000"]);
    }
    let late = HASTY * 10;
    fronts
        .0
        .iter()
        .for_each(|proxy| proxy.trap_nth("", 1, 1, Fault::Late(late)));
    let wanted = request(&key("job"), LONG);
    let began = Instant::now();
    a.refused(&wanted).await;
    assert!(fronts.0.iter().all(|proxy| proxy.sprung() == 1));
    // The silent connections are given up.
    while began.elapsed() < late / 2 {
        let _ = a.0.inspect(&key("job")).await;
    }
    for n in [0, 1, 2] {
        lab.redlock()[n].command(&["DEL", "dlock:job"]);
    }
    let Outcome::Granted(lease) = core_acquire(&mut a, wanted.clone()).await.expect("granted")
    else {
        panic!("busy")
    };
    assert!(
        began.elapsed() < late,
        "granted too late for this case: {:?}",
        began.elapsed()
    );
    lab.pass(late + SLACK).await;
    assert_eq!(held_on(lab), NODES);
    lab.client()
        .await
        .refused(&request(&key("job"), LONG))
        .await;
    assert_eq!(a.renewed(&wanted, None).await, lease.fence);
}

/// A commit is delivered after its attempt failed, and the request that undoes the attempt later
/// still.
async fn an_attempt_that_is_undone_is_not_granted_later(lab: &Lab) {
    let fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    let late = HASTY * 6;
    for proxy in &fronts.0 {
        proxy.trap_nth("", 1, 1, Fault::Late(late));
        proxy.trap("undoes_another", Fault::Late(late));
    }
    let wanted = request(&key("job"), LONG);
    let error =
        a.0.try_acquire(&wanted)
            .await
            .expect_err("no commit was confirmed");
    assert!(
        error.is_transient() && error.effect == Effect::Unknown,
        "{error:?}"
    );
    lab.pass(late).await;
    let Outcome::Granted(lease) = core_acquire(&mut a, wanted.clone()).await.expect("granted")
    else {
        panic!("busy")
    };
    lab.pass(late * 2).await;
    assert!(fronts.0.iter().all(|proxy| proxy.sprung() == 2));
    assert_eq!(a.renewed(&wanted, None).await, lease.fence);
    lab.client()
        .await
        .refused(&request(&key("job"), LONG))
        .await;
}

/// Phase 1 of an attempt that follows an undone one is delivered after a later attempt was granted,
/// and its undo after it.
async fn a_late_attempt_after_an_undo_leaves_a_later_one(lab: &Lab) {
    let fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    let late = HASTY * 10;
    fronts
        .0
        .iter()
        .for_each(|proxy| proxy.trap_nth("", 1, 1, Fault::Swallow));
    let wanted = request(&key("job"), LONG);
    a.0.try_acquire(&wanted)
        .await
        .expect_err("no commit was confirmed");
    let began = Instant::now();
    fronts
        .0
        .iter()
        .for_each(|proxy| proxy.trap("", Fault::Late(late)));
    let error = a.0.try_acquire(&wanted).await.expect_err("no node answers");
    assert!(error.is_transient(), "{error:?}");
    fronts.0.iter().for_each(Proxy::disarm);
    let Outcome::Granted(lease) = core_acquire(&mut a, wanted.clone()).await.expect("granted")
    else {
        panic!("busy")
    };
    assert!(
        began.elapsed() < late,
        "granted too late for this case: {:?}",
        began.elapsed()
    );
    lab.pass(late + SLACK).await;
    assert_eq!(a.renewed(&wanted, None).await, lease.fence);
    lab.client()
        .await
        .refused(&request(&key("job"), LONG))
        .await;
}

/// The connections to a majority break. A proxy has taken the attempts, and delivers them after
/// their undo or their release.
async fn attempts_that_arrive_after_their_undo_take_no_node(lab: &Lab) {
    let job = key("job");
    for (mode, repeated) in [
        (Mode::Exclusive, false),
        (Mode::Exclusive, true),
        (Mode::Shared, false),
        (Mode::Shared, true),
    ] {
        let fronts = Fronts::of(lab);
        let mut a = fronts.client(HASTY).await;
        for n in 0..3 {
            fronts.0[n].trap("", Fault::Orphan(overtaking_delay()));
        }
        let wanted = Request {
            mode,
            ..request(&job, LONG)
        };
        let error = a.0.try_acquire(&wanted).await.expect_err("two of five");
        assert!(error.is_transient(), "{error:?}");
        if repeated {
            a.take(&wanted).await;
            a.free(&wanted).await;
        } else {
            assert_eq!(a.release(&wanted, Scope::Hold).await, Release::NotHeld);
        }
        assert_eq!(held_on(lab), 0, "the attempts arrived too early");
        lab.pass(overtaking_delay() + SLACK).await;
        assert_eq!(held_on(lab), 0, "{mode:?} {repeated}");
    }
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
            lab.client()
                .await
                .refused(&request(&key("job"), LONG))
                .await;
            a.free(&held).await;
            assert_eq!(held_on(lab), 0, "{fault:?} {skip}");
        }
    }
}

/// In phase 1 and in phase 2. The repeated request finds commits whose answers were lost, and takes
/// over the rest.
async fn requests_without_a_majority_of_answers_are_repeated(lab: &Lab) {
    let mut last = Fence(0);
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Swallow] {
        for skip in [0, 1] {
            let fronts = Fronts::of(lab);
            let mut a = fronts.client(HASTY).await;
            for n in [0, 1, 2] {
                fronts.0[n].trap_nth("", skip, 1, fault);
            }
            let Outcome::Granted(lease) = core_acquire(&mut a, request(&key("job"), LONG))
                .await
                .expect("granted")
            else {
                panic!("busy: our own unanswered attempt was reported as another client's");
            };
            assert!((0..3).all(|n| fronts.0[n].sprung() == 1));
            assert!(
                lease.fence > last && lease.holds == 1,
                "{lease:?} after {last}"
            );
            last = lease.fence;
            let state = lab.client().await.inspect(&key("job")).await;
            assert_eq!(
                (state.holders[0].fence, state.holders[0].holds),
                (Some(last), 1),
                "{fault:?} {skip}"
            );
            assert_eq!(
                a.0.release(&lease.key, &lease.token, &Scope::Tree.into())
                    .await
                    .expect("release"),
                Release::Released
            );
            lab.pass(SLACK).await;
            assert_eq!(held_on(lab), 0, "{fault:?} {skip}");
        }
    }
}

async fn a_commit_after_the_lease_is_refused(lab: &Lab) {
    let fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    for n in [0, 1, 2] {
        fronts.0[n].trap_nth("", 1, 1, Fault::Late(short() * 2 + SLACK * 3));
    }
    let late = request(&key("job"), short() * 2);
    let error = a.0.try_acquire(&late).await.expect_err("too few commits");
    assert!(
        error.is_transient() && error.effect == Effect::Unknown,
        "{error:?}"
    );
    assert!((0..3).all(|n| fronts.0[n].sprung() == 1));
    lab.outlast(short() * 2).await;
    let mut b = lab.client().await;
    let held = request(&key("job"), LONG);
    let fence = b.take(&held).await.fence;
    lab.pass(SLACK * 5).await;
    for n in 0..NODES {
        assert_eq!(
            (counter(lab, n), record(lab, n, "fence")),
            (fence.0, Some(fence.to_string())),
            "node {n}"
        );
    }
    assert_eq!(b.renewed(&held, None).await, fence);
}

async fn a_release_is_tracked_per_node(lab: &Lab) {
    let fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    let held = a.hold(&key("job")).await;
    for n in [0, 1, 2] {
        fronts.0[n].trap("", Fault::CutBefore);
    }
    let error =
        a.0.release(&held.key, &held.token, &Scope::Tree.into())
            .await
            .expect_err("two of five");
    assert_eq!(error.effect, Effect::Unknown, "{error:?}");
    assert_eq!(held_on(lab), 3);
    // The two nodes that are free by now don't contradict the release.
    fronts.0[0].trap("", Fault::CutBefore);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::Released);
    assert_eq!(held_on(lab), 1);
}

/// The node that missed the release writes later that the hold was broken.
async fn a_marked_hold_whose_release_missed_a_node_was_released(lab: &Lab) {
    for mode in [Mode::Exclusive, Mode::Shared] {
        let fronts = Fronts::of(lab);
        let mut a = fronts.client(HASTY).await;
        let held = Request {
            mode,
            ..request(&key("job"), short())
        };
        let fence = a.take(&held).await.fence;
        let mut b = lab.client().await;
        let mark = Break {
            by: "ann@desk".into(),
            why: None,
            seen: false,
        };
        assert!(
            b.0.amend(&held.key, Amendment::Mark(fence, &mark))
                .await
                .expect("a mark")
        );
        fronts.0[0].trap("", Fault::CutBefore);
        assert_eq!(a.release(&held, Scope::Tree).await, Release::Released);
        assert_eq!(fronts.0[0].sprung(), 1);
        lab.outlast(short()).await;
        let next = Request {
            mode,
            ..request(&key("job"), LONG)
        };
        b.take(&next).await;
        b.free(&next).await;
        let past = b.0.history(&held.key).await.expect("history").past;
        let ends: Vec<_> = past
            .iter()
            .filter(|past| past.fence == Some(fence))
            .map(|past| past.end.clone())
            .collect();
        assert_eq!(ends, [End::Released], "{mode:?}");
    }
}
