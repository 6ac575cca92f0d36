//! Waiters that died without leaving the queue, in stores that grant in queue order. They don't
//! block the queue for their whole lease.

use std::time::Duration;

use dlock::lock::{Attempt, Mode, Request};
use tokio::time::Instant;

use super::{Case, cases};
use crate::{
    lab::{LONG, Lab, SLACK, key, request, waiting},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![Kind::keeps_positions =>
        a_dead_waiter_is_removed_by_the_next_one,
        a_dead_waiter_blocks_no_try,
        a_reader_passes_a_dead_writer,
        a_dead_waiter_for_a_permit_is_removed,
        a_holder_that_waited_is_never_removed,
        a_live_waiter_keeps_its_position,
    ]
}

/// The time after which a dead waiter no longer blocks the queue.
const BLOCKED: Duration = Duration::from_secs(6);
/// Enough for that on a busy machine, and much less than a lease.
const LIMIT: Duration = Duration::from_secs(20);

/// Dead waiters are removed together, however many they are.
async fn a_dead_waiter_is_removed_by_the_next_one(lab: &Lab) {
    for dead in [3, 20] {
        let (mut a, mut b) = (lab.client().await, lab.client().await);
        let job = key(&format!("job-{dead}"));
        let held = a.hold(&job).await;
        let mut gone = Vec::new();
        for _ in 0..dead {
            let mut one = lab.client().await;
            one.refused(&waiting(&job, LONG)).await;
            gone.push(one);
        }
        let began = Instant::now();
        let wanted = waiting(&job, LONG);
        assert_eq!(b.refused(&wanted).await.position, Some(dead + 1));
        let free = async {
            lab.pass(SLACK).await;
            a.free(&held).await;
        };
        let ((), grant) = tokio::join!(free, b.wait_for(&wanted, LIMIT));
        assert_eq!(
            grant.drain_delay,
            Duration::ZERO,
            "the dead waiters ran nothing"
        );
        crate::support::say(&format!(
            "{}: {dead} dead waiters blocked the queue for {:?}; {BLOCKED:?} are allowed",
            lab.kind.name(),
            began.elapsed()
        ));
        assert!(began.elapsed() < LIMIT);
        b.free(&wanted).await;
        lab.client().await.hold(&job).await;
    }
}

async fn a_dead_waiter_blocks_no_try(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let began = Instant::now();
    b.refused(&waiting(&job, LONG)).await;
    a.free(&held).await;
    loop {
        let wanted = request(&job, LONG);
        if let Attempt::Granted(_) = c.attempt(&wanted).await {
            break;
        }
        assert!(began.elapsed() < LIMIT);
        lab.pass(SLACK).await;
    }
    assert!(
        began.elapsed() > Duration::from_secs(2),
        "a waiter was passed before it was silent for long: {:?}",
        began.elapsed()
    );
}

async fn a_reader_passes_a_dead_writer(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let reads = |of: Request| Request {
        mode: Mode::Shared,
        ..of
    };
    a.take(&reads(request(&job, LONG))).await;
    b.refused(&waiting(&job, LONG)).await;
    let wanted = reads(waiting(&job, LONG));
    c.refused(&wanted).await;
    c.wait_for(&wanted, LIMIT).await;
}

async fn a_dead_waiter_for_a_permit_is_removed(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let permit = |of: Request| Request {
        mode: Mode::Permits(1),
        ..of
    };
    let held = permit(request(&job, LONG));
    a.take(&held).await;
    b.refused(&permit(waiting(&job, LONG))).await;
    let wanted = permit(waiting(&job, LONG));
    c.refused(&wanted).await;
    a.free(&held).await;
    c.wait_for(&wanted, LIMIT).await;
}

/// A waiter that got the lock no longer proves that it lives.
async fn a_holder_that_waited_is_never_removed(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let (first, second) = (waiting(&job, LONG), waiting(&job, LONG));
    b.refused(&first).await;
    c.refused(&second).await;
    a.free(&held).await;
    let fence = b.wait_for(&first, LIMIT).await.fence;
    let began = Instant::now();
    while began.elapsed() < BLOCKED * 2 {
        c.wait(&second, Duration::from_secs(1)).await;
        c.refused(&second).await;
        lab.client().await.refused(&request(&job, LONG)).await;
    }
    assert_eq!(b.renewed(&first, None).await, fence);
    b.free(&first).await;
    c.wait_for(&second, LIMIT).await;
}

async fn a_live_waiter_keeps_its_position(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let (first, second) = (waiting(&job, LONG), waiting(&job, LONG));
    b.refused(&first).await;
    c.refused(&second).await;
    let free = async {
        lab.pass(BLOCKED * 2).await;
        a.renewed(&held, None).await;
        a.free(&held).await;
    };
    let first_grant = async {
        b.wait_for(&first, LIMIT).await;
        lab.pass(SLACK).await;
        b.free(&first).await;
        Instant::now()
    };
    let second_grant = async {
        c.wait_for(&second, LIMIT).await;
        Instant::now()
    };
    let ((), first, second) = tokio::join!(free, first_grant, second_grant);
    assert!(
        first <= second + SLACK,
        "the waiters were not served in order"
    );
}
