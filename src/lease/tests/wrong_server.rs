//! Servers that may not serve a request any more, refusals that pass, and names without an address.

use super::*;

fn faults(fault: CallFault, count: usize) -> Vec<Option<CallFault>> {
    vec![Some(fault); count]
}

#[tokio::test(start_paused = true)]
async fn a_wrong_server_is_asked_again_within_the_budget() {
    for (patience, kind) in [
        (WaitPolicy::Try, Kind::Config),
        (WaitPolicy::For(secs(20)), Kind::Unavailable),
    ] {
        let world = LeaseWorld::new();
        let before = world.clock.now();
        let error = world
            .acquire(
                &mut world.client(&faults(CallFault::WrongServer, 1000)),
                patience,
            )
            .await
            .unwrap_err();
        assert_eq!((error.kind, error.message.as_str()), (kind, "a replica"));
        let (took, budget) = (
            world.clock.now().since(before),
            if patience == WaitPolicy::Try {
                secs(5)
            } else {
                secs(20)
            },
        );
        assert!(
            budget.saturating_sub(secs(2)) < took && took <= budget,
            "{took:?}"
        );
        let outcome = world
            .acquire(
                &mut world.client(&faults(CallFault::WrongServer, 5)),
                patience,
            )
            .await
            .unwrap();
        assert!(matches!(outcome, Outcome::Granted(_)), "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_survives_a_wrong_server_from_the_same_start() {
    let world = LeaseWorld::new();
    let mut lease = world.taken(&mut world.client(&[])).await;
    let began = lease.t0;
    let mut holder = world.client(&[
        Some(CallFault::WrongServer),
        Some(CallFault::Denied),
        Some(CallFault::NoAddress),
    ]);
    let mut renewed = Vec::new();
    let kept = keep(
        &mut holder,
        &world.clock,
        &mut lease,
        budget(),
        LIMITS,
        Intent::Extend(None),
        |lease, _| renewed.push(lease.t0),
    );
    let _ = tokio::time::timeout(secs(15), kept).await;
    assert!(
        renewed
            .first()
            .is_some_and(|t0| secs(10) < t0.since(began) && t0.since(began) < secs(12)),
        "{renewed:?}"
    );
    // Counted from the last confirmed renewal, as in any outage.
    let mut lost = world.client(&faults(CallFault::WrongServer, 1000));
    let loss = keep(
        &mut lost,
        &world.clock,
        &mut lease,
        budget(),
        LIMITS,
        Intent::Extend(None),
        |_, _| (),
    )
    .await;
    assert!(
        matches!(&loss, Loss::Unconfirmed { last: Some(error), .. } if error.message == "a replica"),
        "{loss:?}"
    );
    assert_about(
        world.clock.now().since(lease.t0),
        budget().term_at(lease.t0).since(lease.t0),
    );
}

/// Rights and passwords are changed while jobs wait.
#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_waiter_that_was_answered_before_may_pass() {
    let world = LeaseWorld::new();
    let _held = world.taken(&mut world.client(&[])).await;
    let denied = |count| [vec![None], faults(CallFault::Denied, count)].concat();
    let outcome = world
        .acquire(&mut world.client(&denied(20)), WaitPolicy::For(secs(120)))
        .await
        .unwrap();
    assert!(matches!(outcome, Outcome::Granted(_)), "{outcome:?}");
    // The last refusal is the reason in the end.
    let before = world.clock.now();
    let error = world
        .acquire(&mut world.client(&denied(1000)), WaitPolicy::For(secs(20)))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (Kind::Denied, "no rights")
    );
    assert!(secs(18) < world.clock.now().since(before));
}

#[tokio::test(start_paused = true)]
async fn a_release_after_a_hold_outlives_a_refusal() {
    let world = LeaseWorld::new();
    let released = async |limits: Limits<'_>| {
        let lease = world.taken(&mut world.client(&[])).await;
        let mut client = world.client(&faults(CallFault::Denied, 3));
        let released = release(
            &mut client,
            &world.clock,
            &lease.key,
            &lease.token,
            &Scope::Tree.into(),
            limits,
        )
        .await;
        world.store.lose_data();
        released
    };
    assert!(matches!(
        released(LIMITS.once_answered()).await,
        Released::Free
    ));
    assert!(
        matches!(released(LIMITS).await, Released::Unknown(error) if error.kind == Kind::Denied)
    );
}

/// Nothing was ever sent, so nothing must be undone.
#[tokio::test(start_paused = true)]
async fn a_wait_without_an_address_ends_at_once() {
    let world = LeaseWorld::new();
    let before = world.clock.now();
    let mut client = world.client(&faults(CallFault::NoAddress, 1000));
    *client.leaving.borrow_mut() = faults(CallFault::NoAddress, 1000).into();
    let stop = world.clock.sleep_until(before.plus(secs(9)));
    let outcome = acquire(
        &mut client,
        &world.clock,
        request(),
        WaitPolicy::Forever,
        LIMITS,
        stop,
        |_: &Busy| (),
    )
    .await
    .unwrap();
    assert!(matches!(outcome, Outcome::Stopped(())), "{outcome:?}");
    assert_about(world.clock.now().since(before), secs(9));
}
