//! The drain delay of a grant.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_grant_waits_for_its_drain_delay_and_can_be_stopped_meanwhile() {
    let world = LeaseWorld::new();
    let mut client = Faulty {
        drain_delay: Duration::from_millis(500),
        ..world.client(&[])
    };
    let before = world.clock.now();
    let lease = world.taken(&mut client).await;
    assert_about(world.clock.now().since(before), Duration::from_millis(500));
    assert_eq!(lease.t0, before);
    release(
        &mut client,
        &world.clock,
        &lease.key,
        &lease.token,
        &Scope::Tree.into(),
        LIMITS,
    )
    .await;
    let before = world.clock.now();
    let stop = world
        .clock
        .sleep_until(before.plus(Duration::from_millis(100)));
    let outcome = acquire(
        &mut client,
        &world.clock,
        request(),
        WaitPolicy::Try,
        LIMITS,
        stop,
        |_: &Busy| (),
    )
    .await;
    assert!(matches!(outcome, Ok(Outcome::Stopped(()))), "{outcome:?}");
    assert!(world.is_free().await);
    assert_about(world.clock.now().since(before), Duration::from_millis(500));
}

/// The command would start on a hold that is over.
#[tokio::test(start_paused = true)]
async fn a_hold_that_ends_during_its_drain_delay_is_asked_for_again() {
    let world = LeaseWorld::new();
    let mut client = Faulty {
        drain_delay: Duration::from_millis(500),
        ..world.client(&[])
    };
    let (hint, before) = (Rc::clone(&client.hint), world.clock.now());
    let ending = async {
        world
            .clock
            .sleep_until(before.plus(Duration::from_millis(100)))
            .await;
        world.store.lose_data();
        hint.notify_one();
    };
    let (lease, ()) = tokio::join!(world.taken(&mut client), ending);
    let (took, asked) = (world.clock.now().since(before), lease.t0.since(before));
    assert!(
        asked >= Duration::from_millis(100) && took >= asked + Duration::from_millis(500),
        "{asked:?} {took:?}"
    );
    assert_eq!(*client.calls.borrow(), ["acquire", "acquire"]);
}

/// The answer came too late to start a command. The hold is granted again after the delay.
#[tokio::test(start_paused = true)]
async fn a_drain_delay_is_waited_for_once() {
    let world = LeaseWorld::new();
    let late = CallFault::AnswerLate(Duration::from_millis(1500));
    let mut client = Faulty {
        drain_delay: Duration::from_millis(500),
        ..world.client(&[Some(late)])
    };
    let short = Request {
        ttl: Ttl::new(secs(3)).unwrap(),
        ..request()
    };
    let began = world.clock.now();
    let outcome = acquire(
        &mut client,
        &world.clock,
        short,
        WaitPolicy::Try,
        LIMITS,
        pending::<()>(),
        |_| (),
    )
    .await
    .unwrap();
    assert!(matches!(outcome, Outcome::Granted(_)), "{outcome:?}");
    assert_eq!(*client.calls.borrow(), ["acquire", "acquire"]);
    let took = world.clock.now().since(began);
    assert!(took < Duration::from_millis(2200), "{took:?}");
}

/// The first grant was over when the lock was asked for again, and another holder vanished in
/// between.
#[tokio::test(start_paused = true)]
async fn each_grant_has_its_own_drain_delay() {
    let world = LeaseWorld::new();
    let late = CallFault::AnswerLate(Duration::from_millis(1500));
    let planned = [1, 2].map(|fence| Attempt::Granted(grant(fence))).into();
    let mut client = Faulty {
        planned,
        drain_delay: Duration::from_millis(500),
        ..world.client(&[Some(late)])
    };
    let lease = world.taken(&mut client).await;
    assert_eq!((lease.fence, client.calls.borrow().len()), (Fence(2), 2));
    let waited = world.clock.now().since(lease.t0);
    assert!(waited >= Duration::from_millis(500), "{waited:?}");
}
