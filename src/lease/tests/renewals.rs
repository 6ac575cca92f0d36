//! Keeping a lock: renewals, their failures, and hints that the hold may be gone.

use super::*;

#[tokio::test(start_paused = true)]
async fn renewals_come_every_sixth_and_count_from_their_send() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[]);
    let mut lease = world.taken(&mut client).await;
    let began = lease.t0;
    let mut seen = Vec::new();
    let keeping = keep(
        &mut client,
        &world.clock,
        &mut lease,
        budget(),
        LIMITS,
        Intent::Extend(None),
        |lease, _| seen.push(lease.t0.since(began)),
    );
    let end = world.clock.sleep_until(began.plus(secs(100)));
    tokio::select! { loss = keeping => panic!("{loss:?}"), () = end => {} }
    assert_eq!(seen.len(), 10, "{seen:?}");
    for pair in seen.windows(2) {
        assert_about(pair[1].saturating_sub(pair[0]), budget().renew_every());
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_is_slow_counts_from_its_send() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[]);
    let mut lease = world.taken(&mut client).await;
    let began = lease.t0;
    client
        .faults
        .borrow_mut()
        .push_back(Some(CallFault::AnswerLate(secs(2))));
    let mut seen = Vec::new();
    let keeping = keep(
        &mut client,
        &world.clock,
        &mut lease,
        budget(),
        LIMITS,
        Intent::Extend(None),
        |lease, _| seen.push(lease.t0.since(began)),
    );
    let end = world
        .clock
        .sleep_until(began.plus(budget().renew_every() + secs(3)));
    tokio::select! { loss = keeping => panic!("{loss:?}"), () = end => {} }
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_about(seen[0], budget().renew_every());
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_renewal_never_counts_as_renewed() {
    for fault in [
        CallFault::Refused,
        CallFault::AnswerLost,
        CallFault::AnswerHangs,
        CallFault::Hangs,
        CallFault::Denied,
        CallFault::AnswerLate(secs(11)),
    ] {
        let world = LeaseWorld::new();
        let mut client = world.client(&[]);
        let mut lease = world.taken(&mut client).await;
        let began = lease.t0;
        client
            .faults
            .borrow_mut()
            .extend((0..1000).map(|_| Some(fault)));
        let loss = keep(
            &mut client,
            &world.clock,
            &mut lease,
            budget(),
            LIMITS,
            Intent::Extend(None),
            |_, _| panic!("renewed"),
        )
        .await;
        assert!(
            matches!(loss, Loss::Unconfirmed { last: Some(_), .. }),
            "{loss:?}"
        );
        let took = world.clock.now().since(began);
        assert_about(took, budget().term_at(began).since(began));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_survives_a_short_outage() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[]);
    let mut lease = world.taken(&mut client).await;
    let began = lease.t0;
    client
        .faults
        .borrow_mut()
        .extend((0..6).map(|_| Some(CallFault::Hangs)));
    let mut renewed = 0;
    let keeping = keep(
        &mut client,
        &world.clock,
        &mut lease,
        budget(),
        LIMITS,
        Intent::Extend(None),
        |_, _| renewed += 1,
    );
    let end = world.clock.sleep_until(began.plus(secs(60)));
    tokio::select! { loss = keeping => panic!("{loss:?}"), () = end => {} }
    assert!(renewed >= 3, "{renewed}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_gone_is_lost_at_once() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[]);
    let mut lease = world.taken(&mut client).await;
    let began = lease.t0;
    world.store.lose_data();
    let loss = keep(
        &mut client,
        &world.clock,
        &mut lease,
        budget(),
        LIMITS,
        Intent::Extend(None),
        |_, _| panic!("renewed"),
    )
    .await;
    assert!(matches!(loss, Loss::NotOwner));
    assert_about(world.clock.now().since(began), budget().renew_every());
}

#[tokio::test(start_paused = true)]
async fn a_hint_renews_the_lease_at_once() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[]);
    let mut lease = world.taken(&mut client).await;
    let (hint, began) = (Rc::clone(&client.hint), world.clock.now());
    let mut renewed = Vec::new();
    let keeping = keep(
        &mut client,
        &world.clock,
        &mut lease,
        budget(),
        LIMITS,
        Intent::Extend(None),
        |lease, _| renewed.push(lease.t0.since(began)),
    );
    let happening = async {
        // The first hint is false, because the hold still exists. The second one is true.
        world.clock.sleep_until(began.plus(secs(2))).await;
        hint.notify_one();
        world.clock.sleep_until(began.plus(secs(5))).await;
        world.store.lose_data();
        hint.notify_one();
    };
    let (loss, ()) = tokio::join!(keeping, happening);
    assert!(matches!(loss, Loss::NotOwner), "{loss:?}");
    assert_eq!(renewed, [secs(2)]);
    assert_about(world.clock.now().since(began), secs(5));
}

#[tokio::test(start_paused = true)]
async fn endless_hints_do_not_cause_endless_renewals() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[]);
    let mut lease = world.taken(&mut client).await;
    let (hint, calls) = (Rc::clone(&client.hint), Rc::clone(&client.calls));
    let keeping = keep(
        &mut client,
        &world.clock,
        &mut lease,
        budget(),
        LIMITS,
        Intent::Extend(None),
        |_, _| hint.notify_one(),
    );
    hint.notify_one();
    assert!(tokio::time::timeout(secs(60), keeping).await.is_err());
    assert!(calls.borrow().len() < 70, "{}", calls.borrow().len());
}

/// Neither an earlier failure nor an attempt that was under way is the cause, and an answer from
/// before the stop comes too late.
#[tokio::test(start_paused = true)]
async fn a_process_that_was_stopped_blames_no_answer() {
    for fault in [
        CallFault::Refused,
        CallFault::Hangs,
        CallFault::AnswerLate(secs(1)),
    ] {
        let world = LeaseWorld::new();
        let mut client = world.client(&[]);
        let mut lease = world.taken(&mut client).await;
        let began = lease.t0;
        client.faults.borrow_mut().push_back(Some(fault));
        let keeping = keep(
            &mut client,
            &world.clock,
            &mut lease,
            budget(),
            LIMITS,
            Intent::Extend(None),
            |_, _| panic!("renewed"),
        );
        let stop = async {
            world
                .clock
                .sleep_until(began.plus(budget().renew_every() + Duration::from_millis(100)))
                .await;
            tokio::time::advance(secs(60)).await;
            pending::<()>().await;
        };
        let loss = tokio::select! { loss = keeping => loss, () = stop => unreachable!() };
        assert!(
            matches!(loss, Loss::Unconfirmed { last: None, .. }),
            "{loss:?}"
        );
    }
}

/// A busy machine is late by seconds, too.
#[tokio::test(start_paused = true)]
async fn a_failure_before_a_short_stop_is_reported() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[]);
    let mut lease = world.taken(&mut client).await;
    let began = lease.t0;
    client
        .faults
        .borrow_mut()
        .extend((0..1000).map(|_| Some(CallFault::Refused)));
    let keeping = keep(
        &mut client,
        &world.clock,
        &mut lease,
        budget(),
        LIMITS,
        Intent::Extend(None),
        |_, _| panic!("renewed"),
    );
    let stop = async {
        world
            .clock
            .sleep_until(began.plus(budget().term_at(began).since(began).saturating_sub(secs(1))))
            .await;
        tokio::time::advance(budget().renew_every() * 3 / 2).await;
        pending::<()>().await;
    };
    let loss = tokio::select! { loss = keeping => loss, () = stop => unreachable!() };
    assert!(
        matches!(loss, Loss::Unconfirmed { last: Some(_), .. }),
        "{loss:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_met_by_many_quick_attempts_and_a_silence_by_longer_ones() {
    for (fault, ttl, attempts) in [
        (CallFault::Refused, 60, 50..=53),
        (CallFault::Refused, 6, 19..=22),
        (CallFault::Hangs, 60, 7..=7),
        (CallFault::Hangs, 6, 3..=3),
    ] {
        let world = LeaseWorld::new();
        let mut client = world.client(&[]);
        let wanted = Request {
            ttl: Ttl::new(secs(ttl)).unwrap(),
            ..request()
        };
        let outcome = acquire(
            &mut client,
            &world.clock,
            wanted,
            WaitPolicy::Try,
            LIMITS,
            pending::<()>(),
            |_| (),
        )
        .await
        .unwrap();
        let Outcome::Granted(mut lease) = outcome else {
            panic!("{outcome:?}")
        };
        client
            .faults
            .borrow_mut()
            .extend((0..1000).map(|_| Some(fault)));
        let calls = Rc::clone(&client.calls);
        keep(
            &mut client,
            &world.clock,
            &mut lease,
            budget(),
            LIMITS,
            Intent::Extend(None),
            |_, _| panic!("renewed"),
        )
        .await;
        let asked = calls.borrow().len() - 1;
        assert!(
            attempts.contains(&asked),
            "{asked} attempts within a TTL of {ttl} s"
        );
    }
}
