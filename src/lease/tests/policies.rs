//! Run policies: the effect of earlier runs on a request, and the record that a run leaves.

use super::*;
use crate::lock::Metadata;

fn with_policy(
    place: &str,
    guard: Option<u64>,
    at_least: Option<u64>,
    once: Option<u64>,
) -> Request {
    let once = once.map(|window| Once {
        window: secs(window),
        retry_failed: 0,
        retry_crashed: false,
    });
    let run_policy = RunPolicy {
        place: place.into(),
        skew_guard: guard.map(secs),
        at_least: at_least.map(secs),
        once,
        anyway: false,
    };
    Request {
        run_policy: Some(run_policy),
        ..request()
    }
}

impl LeaseWorld {
    /// Requests the lock with this wait policy.
    async fn ask(&self, request: Request, patience: WaitPolicy) -> Outcome<()> {
        acquire(
            &mut self.client(&[]),
            &self.clock,
            request,
            patience,
            LIMITS,
            pending(),
            |_: &Busy| (),
        )
        .await
        .unwrap()
    }

    /// Acquires the lock, runs and releases.
    async fn run(&self, request: Request, patience: WaitPolicy) {
        let Outcome::Granted(lease) = self.ask(request, patience).await else {
            panic!("not granted")
        };
        let info = ReleaseInfo {
            run_state: Some(RunState::Ok),
            ..Scope::Tree.into()
        };
        release(
            &mut self.client(&[]),
            &self.clock,
            &lease.key,
            &lease.token,
            &info,
            LIMITS,
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_is_denied_at_once() {
    let world = LeaseWorld::new();
    world
        .run(
            with_policy("a", Some(5), Some(3), Some(30)),
            WaitPolicy::Try,
        )
        .await;
    let began = Instant::now();
    let rule = |outcome| match outcome {
        Outcome::Denied(denial) => Some(denial.rule),
        Outcome::Granted(_) => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        rule(world.ask(request(), WaitPolicy::Try).await),
        Some(Rule::AtLeast(secs(3)))
    );
    assert_about(began.elapsed(), Duration::ZERO);
    tokio::time::sleep(secs(3)).await;
    assert_eq!(
        rule(
            world
                .ask(with_policy("b", Some(5), None, None), WaitPolicy::Try)
                .await
        ),
        Some(Rule::SkewGuard(secs(5)))
    );
    assert_eq!(
        rule(
            world
                .ask(with_policy("b", None, None, Some(30)), WaitPolicy::Try)
                .await
        ),
        Some(Rule::Once(RunState::Ok))
    );
    tokio::time::sleep(secs(2)).await;
    assert_eq!(
        rule(
            world
                .ask(with_policy("b", Some(5), None, None), WaitPolicy::Try)
                .await
        ),
        None
    );
}

#[tokio::test(start_paused = true)]
async fn a_waiter_waits_for_at_least_but_not_for_a_skew_guard() {
    let world = LeaseWorld::new();
    world
        .run(with_policy("a", Some(60), Some(10), None), WaitPolicy::Try)
        .await;
    let began = Instant::now();
    world
        .run(with_policy("b", Some(60), None, None), WaitPolicy::Forever)
        .await;
    assert!(
        (secs(10)..secs(10) + Duration::from_millis(60)).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
    // The run that waited left no record either.
    tokio::time::sleep(secs(50)).await;
    world
        .run(with_policy("c", Some(5), None, None), WaitPolicy::Try)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_timed_out_wait_for_at_least_is_denied() {
    let world = LeaseWorld::new();
    world
        .run(with_policy("a", None, Some(60), None), WaitPolicy::Try)
        .await;
    let began = Instant::now();
    let outcome = world.ask(request(), WaitPolicy::For(secs(7))).await;
    assert!(
        matches!(&outcome, Outcome::Denied(denial) if denial.rule == Rule::AtLeast(secs(60))),
        "{outcome:?}"
    );
    assert_about(began.elapsed(), secs(7));
    assert!(world.state().await.waiters.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_run_does_not_wait_for_the_next_window() {
    let world = LeaseWorld::new();
    world
        .run(with_policy("a", None, None, Some(3600)), WaitPolicy::Try)
        .await;
    let began = Instant::now();
    let outcome = world
        .ask(
            with_policy("b", None, None, Some(3600)),
            WaitPolicy::Forever,
        )
        .await;
    assert!(
        matches!(&outcome, Outcome::Denied(denial) if denial.rule == Rule::Once(RunState::Ok)),
        "{outcome:?}"
    );
    assert_about(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_attempt_leaves_no_run_record() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[Some(CallFault::AnswerHangs)]);
    let stop = tokio::time::sleep(Duration::from_millis(100));
    let asked = with_policy("a", Some(60), Some(60), Some(3600));
    let outcome = acquire(
        &mut client,
        &world.clock,
        asked,
        WaitPolicy::Try,
        LIMITS,
        stop,
        |_: &Busy| (),
    )
    .await
    .unwrap();
    assert!(matches!(outcome, Outcome::Stopped(())), "{outcome:?}");
    world
        .run(
            with_policy("b", Some(60), Some(60), Some(3600)),
            WaitPolicy::Try,
        )
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_nested_attempt_keeps_the_run_record() {
    let world = LeaseWorld::new();
    let once = |place| with_policy(place, None, None, Some(3600));
    let Outcome::Granted(lease) = world.ask(once("a"), WaitPolicy::Try).await else {
        panic!("not granted")
    };
    let nested = Request {
        token: lease.token.nested(),
        entry: Entry::Reenter,
        ..once("a")
    };
    let mut client = world.client(&[Some(CallFault::AnswerHangs)]);
    let stop = tokio::time::sleep(Duration::from_millis(100));
    let outcome = acquire(
        &mut client,
        &world.clock,
        nested,
        WaitPolicy::Try,
        LIMITS,
        stop,
        |_: &Busy| (),
    )
    .await
    .unwrap();
    assert!(matches!(outcome, Outcome::Stopped(())), "{outcome:?}");
    let info = ReleaseInfo {
        run_state: Some(RunState::Ok),
        ..Scope::Tree.into()
    };
    release(
        &mut world.client(&[]),
        &world.clock,
        &lease.key,
        &lease.token,
        &info,
        LIMITS,
    )
    .await;
    let outcome = world.ask(once("b"), WaitPolicy::Try).await;
    assert!(matches!(outcome, Outcome::Denied(_)), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn one_client_warns_at_each_doubling_of_a_hold() {
    let world = LeaseWorld::new();
    let lease = world.taken(&mut world.client(&[])).await;
    let hour = secs(3600);
    let (mut a, mut b) = (world.client(&[]).inner, world.client(&[]).inner);
    let mut warned = Vec::new();
    for minutes in (0..600).step_by(30) {
        let held = secs(60 * minutes);
        let each = [
            may_warn(&mut a, &lease.key, lease.fence, held, hour).await,
            may_warn(&mut b, &lease.key, lease.fence, held, hour).await,
        ];
        assert_ne!(each, [true, true], "{minutes}");
        if each != [false, false] {
            warned.push(minutes / 60);
        }
    }
    assert_eq!(warned, [1, 2, 4, 8]);
    let mut claims = async |level| {
        a.amend(&lease.key, Amendment::Warn(lease.fence, level))
            .await
            .unwrap()
    };
    assert!(
        !claims(4).await && claims(5).await,
        "the levels begin with 1"
    );
    assert!(
        !may_warn(&mut a, &lease.key, lease.fence, hour, Duration::ZERO).await,
        "never"
    );
}

#[tokio::test(start_paused = true)]
async fn a_skip_is_noted_with_its_host() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[]);
    let who = |host: Option<&str>| {
        Some(Metadata {
            host: host.map(str::to_owned),
            ..Metadata::default()
        })
    };
    for (who, reason) in [
        (who(Some("ops1")), "busy"),
        (who(None), "hidden"),
        (None, "hidden"),
        (who(Some("ops1")), "--once"),
    ] {
        note_skip(&mut client, &key(), who.as_ref(), reason).await;
    }
    let skips = client.history(&key()).await.unwrap().skips;
    let [one] = &skips[..] else {
        panic!("{skips:?}")
    };
    assert_eq!((&*one.host, one.count, &*one.reason), ("ops1", 2, "--once"));
}

/// The store is silent from the grant on, for this many seconds.
#[tokio::test(start_paused = true)]
async fn a_start_is_undone_after_an_outage_that_ends_before_the_lease() {
    for (outage, anyway) in [(3, false), (9, false), (30, false), (30, true)] {
        let world = LeaseWorld::new();
        let mut client = world.client(&[Some(CallFault::AnswerHangs)]);
        let once = Once {
            window: secs(3600),
            retry_failed: 0,
            retry_crashed: false,
        };
        let run_policy = RunPolicy {
            place: "web1".into(),
            skew_guard: None,
            at_least: None,
            once: Some(once),
            anyway,
        };
        let asked = Request {
            run_policy: Some(run_policy),
            ..request()
        };
        let faults = client.faults.clone();
        let silent = async {
            tokio::time::sleep(secs(outage)).await;
            faults.borrow_mut().clear();
        };
        faults.borrow_mut().extend([Some(CallFault::Hangs); 100]);
        let taken = acquire(
            &mut client,
            &world.clock,
            asked,
            WaitPolicy::Try,
            LIMITS,
            pending::<()>(),
            |_| (),
        );
        let (outcome, ()) = tokio::join!(taken, silent);
        assert!(
            matches!(&outcome, Ok(Outcome::Granted(_)) | Err(_)),
            "{outcome:?}"
        );
        if let Err(error) = outcome {
            assert_eq!(error.kind, Kind::Timeout, "{outage}");
            let record = world
                .client(&[])
                .inner
                .history(&key())
                .await
                .unwrap()
                .record;
            assert_eq!(record.start, None, "after {outage} s");
            assert!(world.is_free().await, "after {outage} s");
        }
    }
}

/// A start that counts for a short time is not worth a long wait, and a signal ends the wait.
#[tokio::test(start_paused = true)]
async fn undoing_lasts_as_long_as_the_record_matters_or_until_a_signal() {
    let guarded = RunPolicy {
        place: "web1".into(),
        skew_guard: Some(secs(5)),
        at_least: None,
        once: None,
        anyway: false,
    };
    let once = Once {
        window: secs(3600),
        retry_failed: 0,
        retry_crashed: false,
    };
    let once = RunPolicy {
        skew_guard: None,
        once: Some(once),
        ..guarded.clone()
    };
    for (run_policy, stop_after, most) in
        [(guarded, 1000, 8), (once.clone(), 1000, 65), (once, 20, 21)]
    {
        let world = LeaseWorld::new();
        let mut client = world.client(&[Some(CallFault::AnswerHangs); 1]);
        client
            .faults
            .borrow_mut()
            .extend([Some(CallFault::Hangs); 1000]);
        let before = world.clock.now();
        let asked = Request {
            run_policy: Some(run_policy),
            ..request()
        };
        let stop = tokio::time::sleep(secs(stop_after));
        let outcome = acquire(
            &mut client,
            &world.clock,
            asked,
            WaitPolicy::Try,
            LIMITS,
            stop,
            |_| (),
        )
        .await;
        let took = world.clock.now().since(before);
        assert!(
            took <= secs(most) && took > secs(most) * 3 / 5,
            "{took:?} of {most} s"
        );
        match outcome {
            Ok(Outcome::Stopped(())) => assert_eq!(stop_after, 20),
            Err(error) => assert!(
                most == 8
                    || error
                        .hint
                        .is_some_and(|hint| hint.contains("--retry-crashed")),
                "{most}"
            ),
            other => panic!("{other:?}"),
        }
    }
}
