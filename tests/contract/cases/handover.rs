//! Waiting, waking up, and passing a wake-up on.

use std::time::Duration;

use dlock::{
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{Intent, Renewal, Request, Scope, Wake},
};
use tokio::time::{Instant, timeout};

use super::{Case, cases, everywhere};
use crate::lab::{Client, LONG, Lab, SLACK, key, runner, short, soon, stretched, waiting};

pub fn all() -> Vec<Case> {
    let mut all = cases![everywhere =>
        a_release_wakes_a_waiter,
        a_release_before_the_wait_is_not_missed,
        a_wait_ends_after_its_time_limit,
        a_waiter_gets_the_lock_of_a_vanished_holder,
        every_waiter_gets_the_lock,
        a_woken_waiter_that_leaves_passes_the_offer_on,
        an_offer_that_arrives_while_giving_up_is_passed_on,
        a_vanished_waiter_does_not_swallow_the_offer,
        leaving_leaves_nothing_in_the_queue,
        leaving_without_waiting_changes_nothing,
        a_holder_that_waited_is_reported_as_holder,
        releases_without_waiters_pile_up_no_wake_ups,
    ];
    all.extend(cases![crate::targets::Kind::crosses_processes => a_release_of_the_last_nested_hold_wakes_a_waiter]);
    all.extend(cases![|kind| !kind.clock_is_ours() =>
        the_core_hands_over_at_once,
        the_core_takes_a_lock_right_after_a_waiter_left,
        the_core_leaves_nothing_when_it_gives_up,
    ]);
    // A waiter that polls is never woken.
    all.extend(cases![crate::targets::Kind::notifies => one_release_wakes_one_waiter]);
    // Other stores detect frozen or dead processes, and an unpolled client in this process does not
    // count as frozen.
    all.extend(cases![|kind| kind == crate::targets::Kind::Redis || kind.is_postgres() => a_frozen_waiter_does_not_keep_the_lock_idle]);
    all
}

/// So long that a waiter that polls would fail the case.
const NEVER: Duration = Duration::from_secs(20);

async fn a_release_wakes_a_waiter(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    for _ in 0..3 {
        let held = a.hold(&job).await;
        let wanted = waiting(&job, LONG);
        assert_eq!(
            b.refused(&wanted).await.notifies,
            b.capabilities().notification
        );
        let release = async {
            lab.pass(Duration::from_millis(100)).await;
            a.free(&held).await;
            Instant::now()
        };
        let ((), released) = tokio::join!(
            async {
                b.wait_for(&wanted, NEVER).await;
            },
            release
        );
        assert!(
            released.elapsed() < soon(),
            "{:?} after the release",
            released.elapsed()
        );
        b.free(&wanted).await;
    }
}

async fn a_release_before_the_wait_is_not_missed(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let wanted = waiting(&job, LONG);
    b.refused(&wanted).await;
    a.free(&held).await;
    let began = Instant::now();
    b.wait_for(&wanted, NEVER).await;
    assert!(began.elapsed() < soon(), "{:?}", began.elapsed());
}

async fn a_release_of_the_last_nested_hold_wakes_a_waiter(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let outer = lab.expiring(&job, LONG);
    a.take(&outer).await;
    let inner = crate::lab::nested(&outer);
    a.take(&inner).await;
    let wanted = waiting(&job, LONG);
    b.refused(&wanted).await;
    let give_back = async {
        lab.pass(SLACK).await;
        a.release(&outer, Scope::Hold).await;
        lab.pass(SLACK).await;
        a.free(&inner).await;
        Instant::now()
    };
    let ((), released) = tokio::join!(
        async {
            b.wait_for(&wanted, NEVER).await;
        },
        give_back
    );
    assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
}

async fn a_wait_ends_after_its_time_limit(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let wanted = waiting(&job, LONG);
    for length in [Duration::from_millis(50), Duration::from_millis(400)] {
        b.refused(&wanted).await;
        let began = Instant::now();
        let wake = b.wait(&wanted, length).await;
        let took = began.elapsed();
        assert!(took < length + soon(), "{length:?} took {took:?}");
        // A waiter that isn't notified polls, but not in a busy loop.
        if lab.kind.notifies() || wake == Wake::TimedOut {
            assert_eq!(wake, Wake::TimedOut);
            assert!(
                took + Duration::from_millis(5) >= length,
                "{length:?} took {took:?}"
            );
        } else {
            assert!(took > Duration::from_millis(20), "{length:?} took {took:?}");
        }
    }
    a.renewed(&held, None).await;
}

async fn a_waiter_gets_the_lock_of_a_vanished_holder(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    a.take(&lab.expiring(&job, short())).await;
    drop(a);
    let wanted = waiting(&job, LONG);
    let began = Instant::now();
    loop {
        let busy = match b.attempt(&wanted).await {
            dlock::lock::Attempt::Granted(_) => break,
            dlock::lock::Attempt::Busy(busy) => busy,
            other => panic!("{other:?}"),
        };
        // A hold that is just ending is gone by the next inspection.
        let left = busy
            .expires_in
            .or(busy.transient.then_some(Duration::ZERO))
            .expect("an expiry");
        b.wait(&wanted, left + Duration::from_millis(1)).await;
    }
    assert!(
        began.elapsed() < short() + lab.kind.late() + soon(),
        "{:?}",
        began.elapsed()
    );
}

/// Puts waiters into a lock's queue, and returns them in order.
async fn queue(lab: &Lab, job: &dlock::lock::Key, length: usize) -> Vec<(Client, Request)> {
    queue_for(lab, job, length, LONG).await
}

async fn queue_for(
    lab: &Lab,
    job: &dlock::lock::Key,
    length: usize,
    lease: Duration,
) -> Vec<(Client, Request)> {
    let mut queue = Vec::new();
    for _ in 0..length {
        let (mut client, request) = (lab.client().await, waiting(job, lease));
        client.refused(&request).await;
        queue.push((client, request));
    }
    queue
}

async fn one_release_wakes_one_waiter(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let mut waiters = queue(lab, &job, 3).await.into_iter();
    let mut wait = || {
        let (mut client, request) = waiters.next().expect("a waiter");
        let most = short();
        async move {
            let began = Instant::now();
            let wake = client.wait(&request, most).await;
            let took = began.elapsed();
            assert!(
                took < stretched(most + SLACK * 3),
                "a waiter that moved up waited for {took:?}"
            );
            // The waiter lives on: if it died with the offer, the next waiter would rightly be
            // woken.
            lab.pass(most).await;
            wake
        }
    };
    let release = async {
        // Well before the end of the waits, on a busy machine too.
        lab.pass(Duration::from_millis(400)).await;
        a.free(&held).await;
    };
    let (one, two, three, ()) = tokio::join!(wait(), wait(), wait(), release);
    let woken = [one, two, three]
        .into_iter()
        .filter(|wake| *wake == Wake::Changed)
        .count();
    assert_eq!(woken, 1, "waiters were woken by one release");
}

async fn every_waiter_gets_the_lock(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let waiters = queue(lab, &job, 6).await;
    let began = Instant::now();
    let turns: Vec<_> = waiters
        .into_iter()
        .map(|(mut client, request)| async move {
            client.wait_for(&request, NEVER).await;
            client.free(&request).await;
        })
        .collect();
    let release = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
    };
    let all = async {
        let mut all: Vec<_> = turns.into_iter().map(Box::pin).collect();
        std::future::poll_fn(|context| {
            all.retain_mut(|turn| turn.as_mut().poll(context).is_pending());
            if all.is_empty() {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
    };
    tokio::join!(all, release);
    assert!(
        began.elapsed() < SLACK + soon() * 2,
        "{:?}",
        began.elapsed()
    );
}

async fn a_woken_waiter_that_leaves_passes_the_offer_on(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let mut waiters = queue(lab, &job, 2).await;
    let (mut next, wanted) = waiters.pop().expect("a waiter");
    let (mut leaving, unwanted) = waiters.pop().expect("a waiter");
    let leave = async {
        // Either waiter may be woken first. If the leaving one is, it leaves without a request.
        let _ = timeout(Duration::from_millis(500), leaving.wait(&unwanted, NEVER)).await;
        leaving.leave_queue(&unwanted).await;
    };
    let release = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
    };
    let began = Instant::now();
    let (_, (), ()) = tokio::join!(next.wait_for(&wanted, NEVER), leave, release);
    assert!(
        began.elapsed() < SLACK + Duration::from_millis(500) + soon(),
        "{:?}",
        began.elapsed()
    );
}

async fn an_offer_that_arrives_while_giving_up_is_passed_on(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    // The wait is cut off at every moment around the release.
    for step in 0..16_u32 {
        let held = a.hold(&job).await;
        let mut waiters = queue(lab, &job, 2).await;
        let (mut next, wanted) = waiters.pop().expect("a waiter");
        let (mut leaving, unwanted) = waiters.pop().expect("a waiter");
        let give_up_after = Duration::from_millis(20) + Duration::from_micros(150) * step;
        let leave = async {
            let _ = timeout(give_up_after, leaving.wait(&unwanted, NEVER)).await;
            leaving.leave_queue(&unwanted).await;
        };
        let release = async {
            lab.pass(Duration::from_millis(21)).await;
            a.free(&held).await;
        };
        let began = Instant::now();
        let (_, (), ()) = tokio::join!(next.wait_for(&wanted, NEVER), leave, release);
        assert!(
            began.elapsed() < soon(),
            "step {step}: {:?}",
            began.elapsed()
        );
        next.free(&wanted).await;
    }
}

async fn a_vanished_waiter_does_not_swallow_the_offer(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    // A store that keeps positions keeps a dead waiter's position for its lease.
    let mut waiters = queue_for(
        lab,
        &job,
        2,
        if lab.kind.keeps_positions() {
            short()
        } else {
            LONG
        },
    )
    .await;
    let (mut next, wanted) = waiters.pop().expect("a waiter");
    let (mut dying, unwanted) = waiters.pop().expect("a waiter");
    let dead_waiter_delay = if lab.kind.keeps_positions() {
        short() + lab.kind.late()
    } else {
        Duration::ZERO
    };
    let die = async move {
        let _ = timeout(SLACK, dying.wait(&unwanted, NEVER)).await;
        drop(dying);
    };
    let release = async {
        lab.pass(SLACK * 2).await;
        a.free(&held).await;
    };
    let began = Instant::now();
    let (_, (), ()) = tokio::join!(next.wait_for(&wanted, NEVER), die, release);
    assert!(
        began.elapsed() < SLACK * 2 + dead_waiter_delay + soon(),
        "{:?}",
        began.elapsed()
    );
}

async fn leaving_leaves_nothing_in_the_queue(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    a.hold(&job).await;
    for (mut client, request) in queue(lab, &job, 3).await {
        let _ = timeout(Duration::from_millis(20), client.wait(&request, NEVER)).await;
        client.leave_queue(&request).await;
        client.leave_queue(&request).await;
    }
    assert!(a.inspect(&job).await.waiters.is_empty());
    // A granted waiter has left the queue too.
    let job = key("other");
    let held = a.hold(&job).await;
    let (mut client, request) = queue(lab, &job, 1).await.remove(0);
    a.free(&held).await;
    client.wait_for(&request, NEVER).await;
    assert!(a.inspect(&job).await.waiters.is_empty());
}

/// The hold of a former waiter is reported and renewed like any other.
async fn a_holder_that_waited_is_reported_as_holder(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let next = Request {
        metadata: Some(runner("web2")),
        ..waiting(&job, LONG)
    };
    b.refused(&next).await;
    let release = async {
        lab.pass(Duration::from_millis(300)).await;
        a.free(&held).await;
    };
    let ((), grant) = tokio::join!(release, b.wait_for(&next, LONG));
    let state = c.inspect(&job).await;
    assert_eq!(state.holders.len(), 1, "{state:?}");
    assert_eq!(
        (state.holders[0].fence, &state.holders[0].metadata),
        (Some(grant.fence), &Some(runner("web2")))
    );
    assert_eq!(c.keys("").await, ["job"]);
    assert!(matches!(
        c.0.renew(&job, &next.token, Intent::Probe).await,
        Ok(Renewal::Kept { .. })
    ));
    b.free(&next).await;
    assert!(c.inspect(&job).await.holders.is_empty());
}

async fn leaving_without_waiting_changes_nothing(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    b.leave_queue(&waiting(&job, LONG)).await;
    let held = a.hold(&job).await;
    b.leave_queue(&waiting(&job, LONG)).await;
    // Leaving with the holder's own request changes nothing either.
    a.leave_queue(&held).await;
    a.renewed(&held, None).await;
    b.refused(&waiting(&job, LONG)).await;
}

async fn releases_without_waiters_pile_up_no_wake_ups(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    for _ in 0..50 {
        let held = a.hold(&job).await;
        a.free(&held).await;
    }
    let held = a.hold(&job).await;
    let wanted = waiting(&job, LONG);
    let mut woken = 0;
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        b.refused(&wanted).await;
        if b.wait(&wanted, Duration::from_millis(100)).await == Wake::Changed {
            woken += 1;
        }
    }
    assert!(woken <= 3, "woken {woken} times for nothing");
    a.renewed(&held, None).await;
}

async fn the_core_hands_over_at_once(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let want = waiting(&job, LONG);
    let never = std::future::pending::<()>();
    let acquire = lease::acquire(
        &mut *b.0,
        &BootClock,
        want,
        WaitPolicy::For(NEVER),
        Limits::DEFAULT,
        never,
        |_| {},
    );
    let release = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
        Instant::now()
    };
    let (outcome, released) = tokio::join!(acquire, release);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
}

async fn the_core_leaves_nothing_when_it_gives_up(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    for give_up_after in [WaitPolicy::Try, WaitPolicy::For(Duration::from_millis(200))] {
        let mut b = lab.client().await;
        let never = std::future::pending::<()>();
        let outcome = lease::acquire(
            &mut *b.0,
            &BootClock,
            waiting(&job, LONG),
            give_up_after,
            Limits::DEFAULT,
            never,
            |_| {},
        )
        .await;
        assert!(matches!(outcome, Ok(Outcome::Busy(_))), "{outcome:?}");
    }
    let mut b = lab.client().await;
    let stop = tokio::time::sleep(Duration::from_millis(150));
    let outcome = lease::acquire(
        &mut *b.0,
        &BootClock,
        waiting(&job, LONG),
        WaitPolicy::Forever,
        Limits::DEFAULT,
        stop,
        |_| {},
    )
    .await;
    assert!(matches!(outcome, Ok(Outcome::Stopped(()))), "{outcome:?}");
    let state = a.inspect(&job).await;
    assert!(state.waiters.is_empty(), "{state:?}");
    a.renewed(&held, None).await;
    a.free(&held).await;
    assert!(a.inspect(&job).await.holders.is_empty());
}

/// The store may wake a waiter whose process is frozen.
async fn a_frozen_waiter_does_not_keep_the_lock_idle(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let mut waiters = queue(lab, &job, 1).await;
    let (mut frozen, unwanted) = waiters.pop().expect("a waiter");
    // Polled until its wait is in the store, then never again.
    let mut asleep = Box::pin(frozen.wait(&unwanted, LONG));
    assert!(
        timeout(SLACK, &mut asleep).await.is_err(),
        "woken without a release"
    );
    let mut b = lab.client().await;
    let never = std::future::pending::<()>();
    let next = lease::acquire(
        &mut *b.0,
        &BootClock,
        waiting(&job, LONG),
        WaitPolicy::For(NEVER),
        Limits::DEFAULT,
        never,
        |_| {},
    );
    let release = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
        Instant::now()
    };
    let (outcome, released) = tokio::join!(next, release);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    assert!(
        released.elapsed() < stretched(Duration::from_secs(7)),
        "{:?}",
        released.elapsed()
    );
    drop(asleep);
}

/// A single try gets the lock, even if a waiter gave up at the moment of the release.
async fn the_core_takes_a_lock_right_after_a_waiter_left(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    for step in 0..24_u32 {
        let held = a.hold(&job).await;
        let mut b = lab.client().await;
        let stop =
            tokio::time::sleep(Duration::from_millis(20) + Duration::from_micros(100) * step);
        let waiter = lease::acquire(
            &mut *b.0,
            &BootClock,
            waiting(&job, LONG),
            WaitPolicy::Forever,
            Limits::DEFAULT,
            stop,
            |_| {},
        );
        let release = async {
            lab.pass(Duration::from_millis(21)).await;
            a.free(&held).await;
        };
        let (outcome, ()) = tokio::join!(waiter, release);
        if let Outcome::Granted(lease) = outcome.expect("an answer") {
            b.0.release(&job, &lease.token, &Scope::Tree.into())
                .await
                .expect("release");
        }
        let never = std::future::pending::<()>();
        let request = crate::lab::request(&job, LONG);
        let token = request.token;
        let mut c = lab.client().await;
        let outcome = lease::acquire(
            &mut *c.0,
            &BootClock,
            request,
            WaitPolicy::Try,
            Limits::DEFAULT,
            never,
            |_| {},
        )
        .await;
        assert!(
            matches!(outcome, Ok(Outcome::Granted(_))),
            "step {step}: {outcome:?}"
        );
        c.0.release(&job, &token, &Scope::Tree.into())
            .await
            .expect("release");
    }
}
