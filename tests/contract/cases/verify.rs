//! Verification: whether a token holds a lock.

use std::time::{Duration, Instant};

use dlock::lock::{Intent, Key, Release, Renewal, Scope, Token};

use super::{Case, cases, everywhere};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, nested, request, short},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![everywhere =>
        a_hold_is_verified_by_its_token_alone,
        the_lease_left_never_exceeds_the_ttl,
        a_free_lock_is_held_by_no_token,
        a_stale_token_holds_nothing,
        a_waiters_token_holds_nothing,
        a_token_holds_its_own_lock_only,
        verifying_does_not_extend_a_hold,
    ];
    all.extend(
        cases![Kind::crosses_processes => each_nested_hold_is_verified, a_detached_hold_is_verified, an_immediate_renewal_shortens_nothing],
    );
    all
}

/// Returns the remaining lease of `token`; `None` if `token` has no hold.
async fn left(client: &mut Client, key: &Key, token: &Token) -> Option<Duration> {
    match client
        .0
        .renew(key, token, Intent::Probe)
        .await
        .unwrap_or_else(|error| panic!("verify: {error:?}"))
    {
        Renewal::Kept { expires_in } => Some(expires_in.expect("an expiry")),
        Renewal::NotHeld => None,
        other => panic!("a probe was answered by {other:?}"),
    }
}

/// Checks that `token` has a hold, and of its lease, which began after `since`, no more is gone
/// than the time that has passed and what stores round off.
async fn assert_left(client: &mut Client, key: &Key, token: &Token, since: Instant) {
    let left = left(client, key, token).await.expect("a hold");
    let passed = since.elapsed() + SLACK + Duration::from_secs(2);
    assert!(
        left <= LONG && left + passed >= LONG,
        "{left:?} of {LONG:?} after {:?}",
        since.elapsed()
    );
}

async fn a_hold_is_verified_by_its_token_alone(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let since = Instant::now();
    let held = a.hold(&job).await;
    for client in [&mut a, &mut b] {
        assert_left(client, &job, &held.token, since).await;
    }
    // The holder can still renew and release.
    a.renewed(&held, None).await;
    assert_left(&mut b, &job, &held.token, since).await;
    a.free(&held).await;
    for client in [&mut a, &mut b] {
        assert_eq!(left(client, &job, &held.token).await, None);
    }
}

/// A store that rounds an expiry up and its clock down would report a millisecond too much for
/// every other hold.
async fn the_lease_left_never_exceeds_the_ttl(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    for _ in 0..20 {
        let since = Instant::now();
        let held = a.hold(&job).await;
        assert_left(&mut a, &job, &held.token, since).await;
        let reported = a.inspect(&job).await.holders[0].expires_in;
        assert!(
            reported.is_none_or(|reported| reported <= LONG),
            "{reported:?} of {LONG:?}"
        );
        a.free(&held).await;
    }
}

async fn a_free_lock_is_held_by_no_token(lab: &Lab) {
    let mut a = lab.client().await;
    assert_eq!(left(&mut a, &key("never"), &Token::random()).await, None);
    assert!(a.inspect(&key("never")).await.holders.is_empty());
    // The verification left nothing that would hold the lock.
    a.hold(&key("never")).await;
}

async fn a_stale_token_holds_nothing(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let first = a.hold(&job).await;
    a.free(&first).await;
    let since = Instant::now();
    let second = b.hold(&job).await;
    assert_eq!(left(&mut a, &job, &first.token).await, None);
    assert_eq!(left(&mut b, &job, &first.token).await, None);
    // An ungranted nested hold of the owner holds nothing.
    assert_eq!(left(&mut a, &job, &second.token.nested()).await, None);
    assert_left(&mut a, &job, &second.token, since).await;
}

async fn a_waiters_token_holds_nothing(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let waiting = crate::lab::waiting(&job, LONG);
    b.refused(&waiting).await;
    assert_eq!(left(&mut c, &job, &waiting.token).await, None);
    b.leave_queue(&waiting).await;
    a.free(&held).await;
}

async fn a_token_holds_its_own_lock_only(lab: &Lab) {
    let mut a = lab.client().await;
    let held = a.hold(&key("a")).await;
    a.hold(&key("b")).await;
    for other in ["b", "a/b", "A", "c"] {
        assert_eq!(
            left(&mut a, &key(other), &held.token).await,
            None,
            "{other}"
        );
    }
}

async fn verifying_does_not_extend_a_hold(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = lab.expiring(&job, short());
    let ttl = a.take(&held).await.ttl.get();
    drop(a);
    // Repeated verifications don't renew the hold.
    let step = ttl / 8;
    let mut asked = Duration::ZERO;
    while left(&mut b, &job, &held.token).await.is_some() {
        assert!(
            asked < ttl + lab.kind.late() + SLACK,
            "still held after {asked:?}"
        );
        lab.pass(step).await;
        asked += step;
    }
    let next = request(&job, LONG);
    let until = std::time::Instant::now() + lab.kind.late() + SLACK;
    while !matches!(b.attempt(&next).await, dlock::lock::Attempt::Granted(_)) {
        assert!(
            std::time::Instant::now() < until,
            "no token holds the lock, and it isn't free"
        );
        lab.pass(step).await;
    }
}

async fn each_nested_hold_is_verified(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let since = Instant::now();
    let outer = a.hold(&job).await;
    let inner = nested(&outer);
    b.take(&inner).await;
    for token in [&outer.token, &inner.token] {
        assert_left(&mut c, &job, token, since).await;
    }
    assert_eq!(b.release(&inner, Scope::Hold).await, Release::StillHeld(1));
    assert_eq!(left(&mut c, &job, &inner.token).await, None);
    assert_left(&mut c, &job, &outer.token, since).await;
    // The nested hold then keeps the lock alone.
    b.take(&inner).await;
    assert_eq!(a.release(&outer, Scope::Hold).await, Release::StillHeld(1));
    assert_eq!(left(&mut c, &job, &outer.token).await, None);
    assert_left(&mut c, &job, &inner.token, since).await;
}

async fn a_detached_hold_is_verified(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let mut held = dlock::lock::Request {
        detached: true,
        ..request(&job, LONG)
    };
    let since = Instant::now();
    held.token.session = a.take(&held).await.session;
    drop(a);
    assert_left(&mut b, &job, &held.token, since).await;
    b.free(&held).await;
    assert_eq!(left(&mut b, &job, &held.token).await, None);
}

/// A store that rounds an expiry up and its clock down would compute an earlier expiry within the
/// same millisecond.
async fn an_immediate_renewal_shortens_nothing(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    for _ in 0..20 {
        let mut held = dlock::lock::Request {
            detached: true,
            ..request(&job, LONG)
        };
        held.token.session = a.take(&held).await.session;
        b.renewed(&held, None).await;
        b.free(&held).await;
    }
}
