//! Nothing stays in a Redis server but fences; all else ends by itself.

use std::time::Duration;

use dlock::lock::{Request, Scope};
use tokio::time::timeout;

use super::{Case, cases};
use crate::{
    lab::{LONG, Lab, SHORT, key, nested, request, waiting, who},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind == Kind::Redis =>
        everything_but_fences_ends_by_itself,
        a_released_lock_leaves_its_fence_only,
        a_vanished_holder_leaves_nothing_beyond_its_lease,
        a_refused_attempt_leaves_nothing,
        under_memory_pressure_a_release_works,
        under_memory_pressure_no_lock_is_left_without_end,
    ]
}

/// Kept for as long as the server lives, so that no fence repeats.
fn is_fence(name: &str) -> bool {
    name.starts_with("redisson_lock_token:{")
}

/// What is stored besides fences, with what is left of its life in ms.
fn stored(lab: &Lab) -> Vec<(String, i64)> {
    lab.redis().server().keys().into_iter().filter(|(name, _)| !is_fence(name)).collect()
}

async fn everything_but_fences_ends_by_itself(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let held = Request { metadata: Some(who("web1")), ..request(&job, LONG) };
    a.take(&held).await;
    let inner = nested(&held);
    a.take(&inner).await;
    let wanted = Request { metadata: Some(who("web2")), ..waiting(&job, LONG) };
    b.refused(&wanted).await;
    c.refused(&waiting(&job, LONG)).await;
    let _ = timeout(Duration::from_millis(20), b.wait(&wanted, LONG)).await;
    a.renewed(&held, Some(LONG * 2)).await;
    // A release with nobody blocked leaves its wake-up behind.
    a.release(&held, Scope::Tree).await;
    let mut d = lab.client().await;
    d.take(&Request { detached: true, ..request(&job, LONG) }).await;
    let stored = stored(lab);
    assert!(stored.len() >= 3, "{stored:?}");
    let longest = i64::try_from((LONG * 2).as_millis()).expect("small");
    for (name, left) in &stored {
        assert!(*left > 0 && *left <= longest, "{name} ends in {left} ms");
    }
}

async fn a_released_lock_leaves_its_fence_only(lab: &Lab) {
    let mut a = lab.client().await;
    for name in ["job", "a{b}c"] {
        let held = Request { metadata: Some(who("web1")), ..request(&key(name), LONG) };
        a.take(&held).await;
        a.take(&nested(&held)).await;
        a.release(&held, Scope::Tree).await;
    }
    assert_eq!(stored(lab), []);
    assert_eq!(lab.redis().server().keys().len(), 2);
}

async fn a_vanished_holder_leaves_nothing_beyond_its_lease(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = Request { metadata: Some(who("web1")), ..request(&job, SHORT) };
    a.take(&held).await;
    b.take(&nested(&held)).await;
    drop((a, b));
    lab.outlast(SHORT).await;
    assert_eq!(stored(lab), []);
}

async fn a_refused_attempt_leaves_nothing(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let before: Vec<_> = stored(lab).into_iter().map(|(name, _)| name).collect();
    b.refused(&request(&job, LONG)).await;
    let wanted = waiting(&job, LONG);
    b.refused(&wanted).await;
    let _ = timeout(Duration::from_millis(20), b.wait(&wanted, LONG)).await;
    b.abandon(&wanted).await;
    let after: Vec<_> = stored(lab).into_iter().map(|(name, _)| name).collect();
    assert_eq!(after, before);
    a.free(&held).await;
    assert_eq!(stored(lab), []);
}

/// Lets the server refuse whatever needs memory.
fn starve(lab: &Lab) {
    lab.redis().server().command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    lab.redis().server().command(&["CONFIG", "SET", "maxmemory", "1"]);
}

async fn under_memory_pressure_a_release_works(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let wanted = waiting(&job, LONG);
    b.refused(&wanted).await;
    starve(lab);
    a.renewed(&held, None).await;
    a.free(&held).await;
    assert!(a.inspect(&job).await.holders.is_empty());
}

async fn under_memory_pressure_no_lock_is_left_without_end(lab: &Lab) {
    let mut a = lab.client().await;
    let warm = a.hold(&key("warm")).await;
    starve(lab);
    let error = a.0.try_acquire(&request(&key("job"), LONG)).await.expect_err("out of memory");
    assert!(error.is_transient(), "{error:?}");
    assert!(stored(lab).iter().all(|(_, left)| *left > 0), "{:?}", stored(lab));
    lab.redis().server().command(&["CONFIG", "SET", "maxmemory", "0"]);
    a.hold(&key("job")).await;
    a.free(&warm).await;
}
