//! One lock, and the failures of each request about it.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_acquire_with_a_lost_answer_is_retried_and_counts_once() {
    for fault in [
        CallFault::AnswerLost,
        CallFault::AnswerHangs,
        CallFault::Refused,
        CallFault::Hangs,
    ] {
        let world = LeaseWorld::new();
        let mut client = world.client(&[Some(fault)]);
        let lease = world.taken(&mut client).await;
        assert_eq!(lease.holds, 1);
        assert_eq!(world.state().await.holders[0].holds, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_lease_counts_from_before_the_send() {
    let world = LeaseWorld::new();
    let before = world.clock.now();
    let late = CallFault::AnswerLate(Duration::from_millis(1500));
    let lease = world.taken(&mut world.client(&[Some(late)])).await;
    assert_eq!(lease.t0, before);
}

#[tokio::test(start_paused = true)]
async fn a_grant_with_too_little_lease_left_is_requested_again() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[Some(CallFault::AnswerLate(Duration::from_millis(1500)))]);
    let short = Request {
        ttl: Ttl::new(secs(2)).unwrap(),
        ..request()
    };
    let before = world.clock.now();
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
    let Outcome::Granted(lease) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(lease.t0.since(before) >= Duration::from_millis(1500));
    assert_eq!(*client.calls.borrow(), ["acquire", "acquire"]);
}

#[tokio::test(start_paused = true)]
async fn a_possible_grant_is_undone_when_giving_up() {
    let world = LeaseWorld::new();
    let always: Vec<_> = (0..3).map(|_| Some(CallFault::AnswerHangs)).collect();
    let error = world
        .acquire(&mut world.client(&always), WaitPolicy::Try)
        .await
        .unwrap_err();
    assert_eq!((error.kind, error.effect), (Kind::Timeout, Effect::Unknown));
    assert!(world.is_free().await);
}

#[tokio::test(start_paused = true)]
async fn a_possible_grant_is_undone_after_a_permanent_error() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[Some(CallFault::AnswerLost), Some(CallFault::Denied)]);
    assert_eq!(
        world
            .acquire(&mut client, WaitPolicy::Try)
            .await
            .unwrap_err()
            .kind,
        Kind::Denied
    );
    assert!(world.is_free().await);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_slowly_gets_more_time() {
    let world = LeaseWorld::new();
    let slow: Vec<_> = (0..100)
        .map(|_| Some(CallFault::AnswerLate(LIMITS.attempt() * 3 / 2)))
        .collect();
    let outcome = world
        .acquire(&mut world.client(&slow), WaitPolicy::For(secs(60)))
        .await
        .unwrap();
    assert!(matches!(outcome, Outcome::Granted(_)), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_store_is_an_error_within_the_limit() {
    let world = LeaseWorld::new();
    let refused: Vec<_> = (0..1000).map(|_| Some(CallFault::Refused)).collect();
    let before = world.clock.now();
    let error = world
        .acquire(&mut world.client(&refused), WaitPolicy::Try)
        .await
        .unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable);
    assert!(world.clock.now().since(before) <= LIMITS.answer);
}

/// Nine retry pauses take at least 3.2 s, so the attempt after them has too little time.
#[tokio::test(start_paused = true)]
async fn the_error_survives_a_last_attempt_without_an_answer() {
    let world = LeaseWorld::new();
    let faults: Vec<_> = [Some(CallFault::Refused); 9]
        .into_iter()
        .chain([Some(CallFault::Hangs); 5])
        .collect();
    let error = world
        .acquire(&mut world.client(&faults), WaitPolicy::Try)
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.effect, error.message.as_str()),
        (Kind::Unavailable, Effect::Unknown, "connection reset")
    );
    let mut client = world.client(&faults);
    let (key, token) = (key(), Token::random());
    let question = async |backend: &mut dyn Backend| backend.renew(&key, &token, None.into()).await;
    let error = ask(
        &mut client,
        &world.clock,
        LIMITS,
        ("renew", Some(&key)),
        question,
    )
    .await
    .unwrap_err();
    assert_eq!(
        (error.kind, error.effect, error.message.as_str()),
        (Kind::Unavailable, Effect::Unknown, "connection reset")
    );
}

/// For errors of the store, and for answers that never come.
#[tokio::test(start_paused = true)]
async fn an_error_names_the_operation_the_store_and_the_key() {
    let world = LeaseWorld::new();
    let named = |operation: &str, error: &Error| {
        let text = error.to_string();
        assert!(
            error.operation == Some(operation) && text.starts_with("job: memory:: no "),
            "{operation}: {error:?}"
        );
    };
    for fault in [CallFault::Denied, CallFault::Hangs] {
        let client = || world.client(&[Some(fault); 99]);
        named(
            "acquire",
            &world
                .acquire(&mut client(), WaitPolicy::Try)
                .await
                .unwrap_err(),
        );
        let question = async |backend: &mut dyn Backend| {
            backend.renew(&key(), &Token::random(), None.into()).await
        };
        named(
            "renew",
            &ask(
                &mut client(),
                &world.clock,
                LIMITS,
                ("renew", Some(&key())),
                question,
            )
            .await
            .unwrap_err(),
        );
        match release(
            &mut client(),
            &world.clock,
            &key(),
            &Token::random(),
            &Scope::Tree.into(),
            LIMITS,
        )
        .await
        {
            Released::Unknown(error) => named("release", &error),
            other => panic!("{other:?}"),
        }
        let mut lease = world.taken(&mut world.client(&[])).await;
        match keep(
            &mut client(),
            &world.clock,
            &mut lease,
            budget(),
            LIMITS,
            Intent::Extend(None),
            |_, _| (),
        )
        .await
        {
            Loss::Unconfirmed {
                last: Some(error), ..
            } if matches!(fault, CallFault::Denied) => named("renew", &error),
            Loss::Unconfirmed { .. } => {}
            other => panic!("{other:?}"),
        }
        world.store.lose_data();
    }
}

#[tokio::test(start_paused = true)]
async fn a_permission_error_is_not_retried() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[Some(CallFault::Denied)]);
    assert_eq!(
        world
            .acquire(&mut client, WaitPolicy::Forever)
            .await
            .unwrap_err()
            .kind,
        Kind::Denied
    );
    assert_eq!(*client.calls.borrow(), ["acquire", "leave"]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_survives_an_outage() {
    let world = LeaseWorld::new();
    let _held = world.taken(&mut world.client(&[])).await;
    let outage: Vec<_> = (0..60).map(|_| Some(CallFault::Refused)).collect();
    let outcome = world
        .acquire(&mut world.client(&outage), WaitPolicy::For(secs(120)))
        .await
        .unwrap();
    assert!(matches!(outcome, Outcome::Granted(_)), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_in_an_outage_is_unavailable() {
    let world = LeaseWorld::new();
    let outage: Vec<_> = (0..10_000).map(|_| Some(CallFault::Refused)).collect();
    let before = world.clock.now();
    let error = world
        .acquire(&mut world.client(&outage), WaitPolicy::For(secs(120)))
        .await
        .unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable);
    let took = world.clock.now().since(before);
    assert!(secs(118) < took && took <= secs(120), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_release_wakes_the_waiter_and_an_expiry_needs_no_wake_up() {
    let world = LeaseWorld::new();
    let mut holder = world.client(&[]);
    let lease = world.taken(&mut holder).await;
    let before = world.clock.now();
    let mut other = world.client(&[]);
    let waiter = world.acquire(&mut other, WaitPolicy::Forever);
    let releaser = async {
        world.clock.sleep_until(before.plus(secs(2))).await;
        release(
            &mut holder,
            &world.clock,
            &lease.key,
            &lease.token,
            &Scope::Tree.into(),
            LIMITS,
        )
        .await
    };
    let (outcome, released) = tokio::join!(waiter, releaser);
    assert!(matches!(outcome.unwrap(), Outcome::Granted(_)));
    assert!(matches!(released, Released::Free));
    assert_about(world.clock.now().since(before), secs(2));

    // This hold is never released: the waiter retries when the lease ends, neither before nor long
    // after.
    let outcome = world
        .acquire(&mut world.client(&[]), WaitPolicy::Forever)
        .await
        .unwrap();
    assert!(matches!(outcome, Outcome::Granted(_)));
    let took = world.clock.now().since(before.plus(secs(2)));
    assert!(secs(60) <= took && took < secs(61), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_timed_out_wait_is_busy_and_leaves_the_queue() {
    let world = LeaseWorld::new();
    let _held = world.taken(&mut world.client(&[])).await;
    let before = world.clock.now();
    let outcome = world
        .acquire(&mut world.client(&[]), WaitPolicy::For(secs(7)))
        .await
        .unwrap();
    let Outcome::Busy(busy) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(busy.holders.len(), 1);
    assert_eq!(world.clock.now().since(before), secs(7));
    assert!(world.state().await.waiters.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_waiter_leaves_nothing_and_passes_its_offer_on() {
    let world = LeaseWorld::new();
    let mut holder = world.client(&[]);
    let lease = world.taken(&mut holder).await;
    let mut leaver = world.client(&[]);
    let mut stayer = world.client(&[]);
    let before = world.clock.now();
    let leaving = async {
        let stop = world.clock.sleep_until(before.plus(secs(2)));
        acquire(
            &mut leaver,
            &world.clock,
            request(),
            WaitPolicy::Forever,
            LIMITS,
            stop,
            |_: &Busy| (),
        )
        .await
    };
    let staying = async {
        world.clock.sleep_until(before.plus(secs(1))).await;
        world.acquire(&mut stayer, WaitPolicy::Forever).await
    };
    let releasing = async {
        world.clock.sleep_until(before.plus(secs(2))).await;
        release(
            &mut holder,
            &world.clock,
            &lease.key,
            &lease.token,
            &Scope::Tree.into(),
            LIMITS,
        )
        .await
    };
    // The waiter is offered the lock at the moment in which the first waiter leaves.
    let (_, gone, taker) = tokio::join!(releasing, leaving, staying);
    assert!(matches!(gone.unwrap(), Outcome::Stopped(())));
    assert!(matches!(taker.unwrap(), Outcome::Granted(_)));
    assert!(world.clock.now().since(before) < secs(3));
    assert!(world.state().await.waiters.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_waiter_leaves_the_queue_even_if_its_release_is_refused() {
    let world = LeaseWorld::new();
    world.taken(&mut world.client(&[])).await;
    let mut leaver = world.client(&[Some(CallFault::AnswerHangs), Some(CallFault::Denied)]);
    let stop = world.clock.sleep_until(world.clock.now().plus(secs(1)));
    let outcome = acquire(
        &mut leaver,
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
    assert_eq!(*leaver.calls.borrow(), ["acquire", "release", "leave"]);
    assert!(world.state().await.waiters.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stop_during_an_unanswered_attempt_undoes_it() {
    let world = LeaseWorld::new();
    let stop = world.clock.sleep_until(world.clock.now().plus(secs(1)));
    let mut client = world.client(&[Some(CallFault::AnswerHangs)]);
    let outcome = acquire(
        &mut client,
        &world.clock,
        request(),
        WaitPolicy::Forever,
        LIMITS,
        stop,
        |_| (),
    )
    .await
    .unwrap();
    assert!(matches!(outcome, Outcome::Stopped(())));
    assert!(world.is_free().await);
}

/// The first request to leave gets no answer, and the second fails. The waiter still leaves the
/// queue soon.
#[tokio::test(start_paused = true)]
async fn a_leaving_waiter_retries_within_two_seconds() {
    let world = LeaseWorld::new();
    let _held = world.taken(&mut world.client(&[])).await;
    let mut leaver = world.client(&[]);
    leaver
        .leaving
        .borrow_mut()
        .extend([Some(CallFault::Hangs), Some(CallFault::Refused)]);
    let stop = world.clock.sleep_until(world.clock.now().plus(secs(3)));
    let before = world.clock.now();
    let outcome = acquire(
        &mut leaver,
        &world.clock,
        request(),
        WaitPolicy::Forever,
        LIMITS,
        stop,
        |_: &Busy| (),
    )
    .await
    .unwrap();
    assert!(matches!(outcome, Outcome::Stopped(())));
    assert!(world.state().await.waiters.is_empty());
    assert_eq!(
        leaver
            .calls
            .borrow()
            .iter()
            .filter(|call| **call == "leave")
            .count(),
        3
    );
    assert!(world.clock.now().since(before) < secs(4));
    // Without any answer the leave ends too.
    leaver
        .leaving
        .borrow_mut()
        .extend([Some(CallFault::Hangs); 9]);
    let stop = world.clock.sleep_until(world.clock.now().plus(secs(3)));
    let before = world.clock.now();
    acquire(
        &mut leaver,
        &world.clock,
        request(),
        WaitPolicy::Forever,
        LIMITS,
        stop,
        |_: &Busy| (),
    )
    .await
    .unwrap();
    assert_about(world.clock.now().since(before), secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_retry_undoes_a_possible_grant() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[
        Some(CallFault::AnswerHangs),
        Some(CallFault::Hangs),
        Some(CallFault::Refused),
    ]);
    let stop = world.clock.sleep_until(world.clock.now().plus(secs(1)));
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
    assert!(matches!(outcome, Outcome::Stopped(())));
    assert!(world.is_free().await);
    assert_eq!(
        *client.calls.borrow(),
        ["acquire", "release", "release", "release", "leave"]
    );
}

/// If another server can take over, a silent server gets one second.
#[tokio::test(start_paused = true)]
async fn a_release_soon_retries_on_another_server() {
    for (other_servers, after) in [(true, secs(1)), (false, secs(2))] {
        let world = LeaseWorld::new();
        let mut client = Faulty {
            other_servers,
            ..world.client(&[None, Some(CallFault::Hangs)])
        };
        let lease = world.taken(&mut client).await;
        let before = world.clock.now();
        let released = release(
            &mut client,
            &world.clock,
            &lease.key,
            &lease.token,
            &Scope::Tree.into(),
            LIMITS,
        )
        .await;
        assert!(matches!(released, Released::Free), "{released:?}");
        let took = world.clock.now().since(before);
        assert!(
            after <= took && took < after + Duration::from_millis(100),
            "{took:?}"
        );
        assert_eq!(*client.calls.borrow(), ["acquire", "release", "release"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_cuts_the_hold() {
    for (scope, cuts, last) in [
        (Scope::Tree, true, "cut"),
        (Scope::Tree, false, "cut"),
        (Scope::Hold, true, "release"),
    ] {
        let world = LeaseWorld::new();
        let mut client = Faulty {
            cuts,
            ..world.client(&[None, Some(CallFault::Denied)])
        };
        let lease = world.taken(&mut client).await;
        let released = release(
            &mut client,
            &world.clock,
            &lease.key,
            &lease.token,
            &scope.into(),
            LIMITS,
        )
        .await;
        let ended = cuts && scope == Scope::Tree;
        assert!(
            if ended {
                matches!(released, Released::Untold(_))
            } else {
                matches!(released, Released::Unknown(_))
            },
            "{released:?}"
        );
        assert_eq!(client.calls.borrow().last(), Some(&last));
    }
}

#[tokio::test(start_paused = true)]
async fn a_nested_request_enters_or_acquires_anew_without_an_outer_hold() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[]);
    let outer = world.taken(&mut client).await;
    let nested = || Request {
        token: outer.token.nested(),
        entry: Entry::Reenter,
        ..request()
    };
    let run = async |request| match acquire(
        &mut world.client(&[]),
        &world.clock,
        request,
        WaitPolicy::Try,
        LIMITS,
        pending::<()>(),
        |_| (),
    )
    .await
    {
        Ok(Outcome::Granted(lease)) => lease,
        other => panic!("{other:?}"),
    };
    let inner = run(nested()).await;
    assert_eq!((inner.holds, inner.fence), (2, outer.fence));
    release(
        &mut client,
        &world.clock,
        &outer.key,
        &outer.token,
        &Scope::Tree.into(),
        LIMITS,
    )
    .await;
    let fresh = run(nested()).await;
    assert!(fresh.token.owner != outer.token.owner && fresh.fence > outer.fence);
}

#[tokio::test(start_paused = true)]
async fn a_retried_release_is_unknown_and_a_first_one_is_not_held() {
    let world = LeaseWorld::new();
    for (faults, unknown) in [
        (vec![Some(CallFault::AnswerLost)], true),
        (vec![Some(CallFault::AnswerHangs)], true),
        (vec![Some(CallFault::Refused)], false),
        (vec![], false),
    ] {
        let mut client = world.client(&[]);
        let lease = world.taken(&mut client).await;
        if !unknown {
            world.store.lose_data();
        }
        client.faults.borrow_mut().extend(faults);
        let released = release(
            &mut client,
            &world.clock,
            &lease.key,
            &lease.token,
            &Scope::Tree.into(),
            LIMITS,
        )
        .await;
        assert_eq!(
            matches!(released, Released::Unknown(_)),
            unknown,
            "{released:?}"
        );
        assert_eq!(
            matches!(released, Released::NotHeld),
            !unknown,
            "{released:?}"
        );
        assert!(world.is_free().await);
    }
}

#[tokio::test(start_paused = true)]
async fn unsupported_requests_are_refused_without_a_call() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[]);
    let run_policy = RunPolicy {
        place: "web1".into(),
        skew_guard: None,
        at_least: Some(secs(1)),
        once: None,
        anyway: false,
    };
    for bad in [
        Request {
            mode: Mode::Permits(2),
            run_policy: Some(run_policy.clone()),
            ..request()
        },
        Request {
            mode: Mode::Shared,
            run_policy: Some(run_policy),
            ..request()
        },
    ] {
        let refused = acquire(
            &mut client,
            &world.clock,
            bad,
            WaitPolicy::Try,
            LIMITS,
            pending::<()>(),
            |_| (),
        )
        .await
        .unwrap_err();
        assert_eq!(refused.kind, Kind::Unsupported);
    }
    assert!(client.calls.borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_briefly_busy_lock_is_retried_for_a_short_time() {
    let world = LeaseWorld::new();
    let mut client = Faulty {
        transient: 4,
        ..world.client(&[])
    };
    let lease = world.taken(&mut client).await;
    release(
        &mut client,
        &world.clock,
        &lease.key,
        &lease.token,
        &Scope::Tree.into(),
        LIMITS,
    )
    .await;
    let mut client = Faulty {
        transient: u32::MAX,
        ..world.client(&[])
    };
    let before = world.clock.now();
    let outcome = world.acquire(&mut client, WaitPolicy::Try).await.unwrap();
    assert!(
        matches!(
            outcome,
            Outcome::Busy(Busy {
                transient: true,
                ..
            })
        ),
        "{outcome:?}"
    );
    assert!(world.clock.now().since(before) < Duration::from_millis(120));
}

/// The effect is known only if that of every attempt is.
#[tokio::test(start_paused = true)]
async fn one_lost_answer_makes_the_effect_unknown() {
    let world = LeaseWorld::new();
    for (first, effect) in [
        (CallFault::AnswerLost, Effect::Unknown),
        (CallFault::Refused, Effect::NotApplied),
    ] {
        let mut client = world.client(&[Some(first), Some(CallFault::Denied)]);
        let question = async |backend: &mut dyn Backend| {
            backend.renew(&key(), &Token::random(), None.into()).await
        };
        let error = ask(
            &mut client,
            &world.clock,
            LIMITS,
            ("renew", Some(&key())),
            question,
        )
        .await
        .unwrap_err();
        assert_eq!((error.kind, error.effect), (Kind::Denied, effect));
    }
}

#[tokio::test(start_paused = true)]
async fn a_terminal_learns_of_a_store_without_answers() {
    let world = LeaseWorld::new();
    let silence = Silence::default();
    let limits = Limits {
        silence: Some(&silence),
        ..LIMITS
    };
    let mut client = world.client(&[Some(CallFault::Refused)]);
    let mut seen = Vec::new();
    let question = async |backend: &mut dyn Backend| {
        seen.push(silence.outage().map(|outage| outage.why));
        backend.renew(&key(), &Token::random(), None.into()).await
    };
    ask(
        &mut client,
        &world.clock,
        limits,
        ("renew", Some(&key())),
        question,
    )
    .await
    .unwrap();
    assert_eq!(
        seen,
        [Some(None), Some(Some("connection reset".to_owned()))]
    );
    assert!(silence.outage().is_none(), "it has answered");
}

/// A newcomer may overtake a waiter without fair order, so a position would promise too much.
#[tokio::test(start_paused = true)]
async fn only_a_waiter_in_order_has_a_position() {
    for fair in [false, true] {
        let world = LeaseWorld::new();
        let _held = world.taken(&mut world.client(&[])).await;
        let (mut client, mut positions) = (world.client(&[]), Vec::new());
        let wanted = Request { fair, ..request() };
        let wait = WaitPolicy::For(secs(7));
        let told = |busy: &Busy| positions.push(busy.position);
        let outcome = acquire(
            &mut client,
            &world.clock,
            wanted,
            wait,
            LIMITS,
            pending::<()>(),
            told,
        )
        .await
        .unwrap();
        assert!(matches!(outcome, Outcome::Busy(_)), "{outcome:?}");
        assert!(
            positions
                .iter()
                .all(|position| *position == fair.then_some(1)),
            "{positions:?}"
        );
        let asked = client
            .calls
            .borrow()
            .iter()
            .filter(|call| **call == "acquire")
            .count();
        assert!(
            asked <= 4,
            "{asked} questions in 7 s, though a release wakes the waiter"
        );
    }
}

/// An error counts no more once a whole attempt had no answer.
#[tokio::test(start_paused = true)]
async fn a_whole_attempt_without_an_answer_is_reported() {
    let world = LeaseWorld::new();
    let mut client = world.client(
        &[
            CallFault::Refused,
            CallFault::Hangs,
            CallFault::Hangs,
            CallFault::Hangs,
        ]
        .map(Some),
    );
    let error = world
        .acquire(&mut client, WaitPolicy::Try)
        .await
        .expect_err("no answer");
    assert!(error.message.starts_with("no answer within"), "{error:?}");
}
