//! Several locks at once, on the in-memory store.

use super::*;
use crate::lock::{Amendment, Break, Intent};

fn named(name: &str) -> Request {
    Request {
        key: Key::new(name).unwrap(),
        ..request()
    }
}

fn claim(world: &LeaseWorld, name: &str, faults: &[Option<CallFault>]) -> Claim {
    Claim {
        backend: Box::new(world.client(faults)),
        request: named(name),
    }
}

fn claims(world: &LeaseWorld, names: &[&str]) -> Vec<Claim> {
    let mut claims: Vec<_> = names.iter().map(|name| claim(world, name, &[])).collect();
    in_order(&mut claims);
    claims
}

async fn take(
    world: &LeaseWorld,
    claims: &mut [Claim],
    patience: WaitPolicy,
) -> Result<GroupOutcome<()>> {
    acquire_all(
        claims,
        &world.clock,
        patience,
        LIMITS,
        pending(),
        |_, _: &Busy| (),
    )
    .await
}

async fn held(world: &LeaseWorld, name: &str) -> bool {
    !world
        .client(&[])
        .inspect(&Key::new(name).unwrap())
        .await
        .unwrap()
        .holders
        .is_empty()
}

async fn hold(world: &LeaseWorld, name: &str) -> (Faulty, Lease) {
    let mut client = world.client(&[]);
    let outcome = acquire(
        &mut client,
        &world.clock,
        named(name),
        WaitPolicy::Try,
        LIMITS,
        pending::<()>(),
        |_| (),
    )
    .await;
    let Ok(Outcome::Granted(lease)) = outcome else {
        panic!("{outcome:?}")
    };
    (client, lease)
}

async fn free(world: &LeaseWorld, (mut client, lease): (Faulty, Lease)) {
    let info = ReleaseInfo::UNDO;
    release(
        &mut client,
        &world.clock,
        &lease.key,
        &lease.token,
        &info,
        LIMITS,
    )
    .await;
}

/// Requests a break of a hold, or evicts it at once. Returns the hold's fence.
async fn broken(world: &LeaseWorld, name: &str, at_once: bool) -> Fence {
    let (mut client, key) = (world.client(&[]).inner, Key::new(name).unwrap());
    let fence = client.inspect(&key).await.unwrap().holders[0]
        .fence
        .unwrap();
    let mark = Break {
        by: "ana@ops1".into(),
        why: None,
        seen: false,
    };
    let done = if at_once {
        client.amend(&key, Amendment::Evict(fence, &mark)).await
    } else {
        client.amend(&key, Amendment::Mark(fence, &mark)).await
    };
    assert!(done.unwrap());
    fence
}

#[tokio::test(start_paused = true)]
async fn all_locks_are_acquired_in_key_order() {
    let world = LeaseWorld::new();
    let mut claims = claims(&world, &["c", "a", "b"]);
    let Ok(GroupOutcome::Granted(leases)) = take(&world, &mut claims, WaitPolicy::Try).await else {
        panic!()
    };
    let keys: Vec<_> = leases.iter().map(|lease| lease.key.as_str()).collect();
    assert_eq!(keys, ["a", "b", "c"]);
    assert!(
        leases
            .windows(2)
            .all(|pair| pair[0].token.owner != pair[1].token.owner),
        "each lock has its own token"
    );
}

#[tokio::test(start_paused = true)]
async fn a_busy_lock_releases_the_others_and_cancels_their_run_records() {
    let world = LeaseWorld::new();
    let _busy = hold(&world, "b").await;
    let mut claims = claims(&world, &["a", "b", "c"]);
    let once = Once {
        window: secs(3600),
        retry_failed: 0,
        retry_crashed: false,
    };
    claims[0].request.run_policy = Some(RunPolicy {
        place: "web1".into(),
        skew_guard: None,
        at_least: None,
        once: Some(once),
        anyway: false,
    });
    let Ok(GroupOutcome::Busy(1, _)) = take(&world, &mut claims, WaitPolicy::Try).await else {
        panic!()
    };
    assert!(!held(&world, "a").await && !held(&world, "c").await);
    let report = world
        .client(&[])
        .inner
        .history(&Key::new("a").unwrap())
        .await
        .unwrap();
    assert_eq!(report.record.start, None, "nothing was started");
}

#[tokio::test(start_paused = true)]
async fn a_busy_lock_keeps_the_run_record_around_a_nested_hold() {
    let world = LeaseWorld::new();
    let _busy = hold(&world, "b").await;
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
        anyway: false,
    };
    let outer = Request {
        run_policy: Some(run_policy),
        ..named("a")
    };
    let mut client = world.client(&[]);
    let taken = acquire(
        &mut client,
        &world.clock,
        outer.clone(),
        WaitPolicy::Try,
        LIMITS,
        pending::<()>(),
        |_| (),
    )
    .await;
    assert!(matches!(taken, Ok(Outcome::Granted(_))), "{taken:?}");
    let mut claims = claims(&world, &["a", "b"]);
    claims[0].request = Request {
        token: outer.token.nested(),
        entry: Entry::Reenter,
        ..outer
    };
    let Ok(GroupOutcome::Busy(1, _)) = take(&world, &mut claims, WaitPolicy::Try).await else {
        panic!()
    };
    let report = client.history(&Key::new("a").unwrap()).await.unwrap();
    assert_eq!(
        report.record.start.map(|start| start.state),
        Some(RunState::Started)
    );
}

#[tokio::test(start_paused = true)]
async fn held_locks_are_renewed_while_the_next_is_waited_for() {
    let world = LeaseWorld::new();
    let busy = hold(&world, "b").await;
    let mut claims = claims(&world, &["a", "b"]);
    let first = async {
        // The busy lock has a lease of one minute, and is held for three.
        let mut busy = busy;
        for _ in 0..18 {
            tokio::time::sleep(secs(10)).await;
            let intent = Intent::Extend(None);
            busy.0
                .renew(&busy.1.key, &busy.1.token, intent)
                .await
                .unwrap();
            assert!(held(&world, "a").await);
        }
        free(&world, busy).await;
        world.clock.now()
    };
    let (taken, freed) = tokio::join!(take(&world, &mut claims, WaitPolicy::Forever), first);
    let Ok(GroupOutcome::Granted(leases)) = taken else {
        panic!()
    };
    assert!(leases[0].t0.plus(secs(11)) >= freed && leases[1].t0.plus(secs(1)) >= freed);
}

#[tokio::test(start_paused = true)]
async fn a_lock_lost_during_the_wait_is_reacquired_with_the_others() {
    for wait_policy in [WaitPolicy::Forever, WaitPolicy::For(secs(60))] {
        let world = LeaseWorld::new();
        let busy = hold(&world, "b").await;
        let mut claims = claims(&world, &["a", "b"]);
        let owners: Vec<_> = claims
            .iter()
            .map(|claim| claim.request.token.owner)
            .collect();
        let administrator = async {
            tokio::time::sleep(secs(5)).await;
            let fence = broken(&world, "a", true).await;
            let thief = hold(&world, "a").await;
            tokio::time::sleep(secs(20)).await;
            free(&world, busy).await;
            assert!(
                !held(&world, "b").await,
                "no lock is held while the first one is waited for again"
            );
            tokio::time::sleep(secs(5)).await;
            free(&world, thief).await;
            fence
        };
        let (taken, lost) = tokio::join!(take(&world, &mut claims, wait_policy), administrator);
        let Ok(GroupOutcome::Granted(leases)) = taken else {
            panic!()
        };
        assert!(leases[0].fence > lost && held(&world, "a").await && held(&world, "b").await);
        // A late request of the lost hold must not reach the new one.
        assert!(
            leases
                .iter()
                .all(|lease| !owners.contains(&lease.token.owner)),
            "{leases:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_break_during_the_wait_ends_the_acquire() {
    let world = LeaseWorld::new();
    let _busy = hold(&world, "b").await;
    let mut claims = claims(&world, &["a", "b"]);
    let administrator = async {
        tokio::time::sleep(secs(5)).await;
        broken(&world, "a", false).await;
    };
    let (taken, ()) = tokio::join!(
        take(&world, &mut claims, WaitPolicy::For(secs(40))),
        administrator
    );
    let error = taken.unwrap_err();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (
            Kind::Unavailable,
            "it was broken while the other locks were being taken: all are released"
        )
    );
    assert!(!held(&world, "a").await);
}

#[tokio::test(start_paused = true)]
async fn the_wait_limit_covers_all_locks() {
    let world = LeaseWorld::new();
    let first = hold(&world, "a").await;
    let _second = hold(&world, "b").await;
    let mut claims = claims(&world, &["a", "b"]);
    let began = world.clock.now();
    let release = async {
        tokio::time::sleep(secs(20)).await;
        free(&world, first).await;
    };
    let (taken, ()) = tokio::join!(
        take(&world, &mut claims, WaitPolicy::For(secs(30))),
        release
    );
    let Ok(GroupOutcome::Busy(1, _)) = taken else {
        panic!()
    };
    assert_about(world.clock.now().since(began), secs(30));
    assert!(!held(&world, "a").await);
}

#[tokio::test(start_paused = true)]
async fn a_stop_releases_all_acquired_locks() {
    let world = LeaseWorld::new();
    let _busy = hold(&world, "b").await;
    let mut claims = claims(&world, &["a", "b"]);
    let stop = tokio::time::sleep(secs(7));
    let outcome = acquire_all(
        &mut claims,
        &world.clock,
        WaitPolicy::Forever,
        LIMITS,
        stop,
        |_, _| (),
    )
    .await;
    assert!(matches!(outcome, Ok(GroupOutcome::Stopped(()))));
    assert!(!held(&world, "a").await);
    assert!(
        world
            .client(&[])
            .inspect(&Key::new("b").unwrap())
            .await
            .unwrap()
            .waiters
            .is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn a_possible_grant_of_the_last_lock_is_undone_with_the_others() {
    let world = LeaseWorld::new();
    let mut claims = vec![
        claim(&world, "a", &[]),
        claim(&world, "b", &[Some(CallFault::AnswerHangs); 9]),
    ];
    assert!(take(&world, &mut claims, WaitPolicy::Try).await.is_err());
    assert!(!held(&world, "a").await && !held(&world, "b").await);
}

#[tokio::test(start_paused = true)]
async fn the_first_lost_lock_is_reported() {
    let world = LeaseWorld::new();
    let (a, b) = (hold(&world, "a").await, hold(&world, "b").await);
    let mut holds = [a, b].map(|(client, lease)| (Box::new(client) as Box<dyn Backend>, lease));
    let each = holds
        .iter_mut()
        .map(|(backend, lease)| (backend, lease))
        .enumerate();
    let keeping = keep_all(
        each,
        &world.clock,
        budget(),
        LIMITS,
        Intent::Extend(None),
        &|_, _, _| (),
    );
    let thief = async {
        tokio::time::sleep(secs(95)).await;
        broken(&world, "b", true).await;
    };
    let ((at, loss), ()) = tokio::join!(keeping, thief);
    assert!(at == 1 && matches!(loss, Loss::NotOwner), "{at} {loss:?}");
    assert!(held(&world, "a").await);
}

#[tokio::test(start_paused = true)]
async fn a_lock_lost_after_the_wait_ends_the_acquire() {
    let world = LeaseWorld::new();
    let first = world.client(&[]);
    let hint = Rc::clone(&first.hint);
    let second = Faulty {
        drain_delay: Duration::from_millis(500),
        ..world.client(&[])
    };
    let mut claims = [
        Claim {
            backend: Box::new(first),
            request: named("a"),
        },
        Claim {
            backend: Box::new(second),
            request: named("b"),
        },
    ];
    let losing = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        broken(&world, "a", true).await;
        hint.notify_one();
    };
    let (outcome, ()) = tokio::join!(take(&world, &mut claims, WaitPolicy::Try), losing);
    let error = outcome.expect_err("the first lock was lost");
    assert!(error.message.starts_with("it was lost"), "{error:?}");
    assert!(!held(&world, "a").await && !held(&world, "b").await);
}

/// Two claims, of which the second meets these faults when it connects; and whether each has a
/// connection.
fn few_connections(world: &LeaseWorld, faults: &[CallFault]) -> (Vec<Claim>, [Rc<Cell<bool>>; 2]) {
    let mut clients = [(); 2].map(|()| world.client(&[]));
    clients[1].connecting = faults.iter().copied().map(Some).collect();
    let connected = [0, 1].map(|nth| Rc::clone(&clients[nth].connected));
    let claim = |(client, name)| Claim {
        backend: Box::new(client),
        request: named(name),
    };
    (
        clients.into_iter().zip(["a", "b"]).map(claim).collect(),
        connected,
    )
}

#[tokio::test(start_paused = true)]
async fn no_connection_is_kept_while_another_one_is_refused() {
    for fault in [CallFault::Refused, CallFault::Hangs] {
        let world = LeaseWorld::new();
        let (mut claims, connected) = few_connections(&world, &[fault; 3]);
        let kept = async {
            let mut closed = 0;
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                if connected[1].get() {
                    return closed;
                }
                assert!(!held(&world, "a").await, "no lock is taken before");
                closed += u32::from(!connected[0].get());
            }
        };
        let (taken, closed) =
            tokio::join!(take(&world, &mut claims, WaitPolicy::For(secs(30))), kept);
        assert!(matches!(taken, Ok(GroupOutcome::Granted(_))), "{taken:?}");
        assert!(closed > 20, "the pauses last that long: {closed}");
    }
}

#[tokio::test(start_paused = true)]
async fn connections_that_are_refused_to_the_end_leave_nothing() {
    let world = LeaseWorld::new();
    let (mut claims, connected) = few_connections(&world, &[CallFault::Refused; 100]);
    let began = world.clock.now();
    let error = take(&world, &mut claims, WaitPolicy::For(secs(10)))
        .await
        .unwrap_err();
    assert_eq!(
        (
            error.kind,
            error.effect,
            error.key.as_ref().map(Key::as_str)
        ),
        (Kind::Unavailable, Effect::NotApplied, Some("b"))
    );
    assert!(world.clock.now().since(began) > secs(8) && !connected[0].get());
    assert!(!held(&world, "a").await);
}
