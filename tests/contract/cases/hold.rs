//! Acquire, renew and release: one holder at a time, and only the holder's token has an effect.

use std::time::{Duration, Instant};

use dlock::lock::{Release, Renewal, Scope};

use super::{Case, cases, everywhere};
use crate::{
    lab::{LONG, Lab, key, request, short},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![everywhere =>
        a_held_lock_is_refused_to_others,
        a_free_lock_is_given_to_the_next,
        a_repeated_request_counts_once,
        a_repeated_request_resets_the_expiry,
        a_renewal_extends,
        a_renewal_without_a_ttl_uses_that_of_the_grant,
        a_stale_token_can_not_renew,
        a_stale_token_can_not_release,
        another_hold_of_the_owner_is_not_this_hold,
        a_free_lock_can_be_neither_renewed_nor_released,
        init_can_be_repeated,
    ];
    // Only for stores whose holds can change their TTL (see the cases in `unsupported`).
    all.extend(
        cases![Kind::adjusts_ttl => a_repeated_request_does_not_shorten, a_renewal_never_shortens],
    );
    all.extend(cases![Kind::crosses_processes => detached_holds_exclude_and_are_excluded, a_detached_hold_is_kept_by_its_token_alone]);
    all
}

async fn a_held_lock_is_refused_to_others(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = request(&job, LONG);
    let grant = a.take(&held).await;
    assert_eq!(grant.holds, 1);
    assert_eq!(grant.ttl.get(), LONG);
    for _ in 0..3 {
        let busy = b.refused(&request(&job, LONG)).await;
        assert_eq!(busy.holders.len(), 1);
        assert_eq!(busy.holders[0].fence, Some(grant.fence));
        assert_eq!(
            busy.notifies,
            b.capabilities().notification,
            "whether a release by dlock wakes the waiter"
        );
        assert_eq!(
            busy.position, None,
            "a client that does not wait has no position"
        );
    }
    // A new token makes a request another owner's, even from the same client.
    a.refused(&request(&job, LONG)).await;
    // The refused request changed nothing.
    assert_eq!(a.renewed(&held, None).await, grant.fence);
}

async fn a_free_lock_is_given_to_the_next(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    for _ in 0..5 {
        let held = a.hold(&job).await;
        b.refused(&request(&job, LONG)).await;
        a.free(&held).await;
        let held = b.hold(&job).await;
        a.refused(&request(&job, LONG)).await;
        b.free(&held).await;
    }
    assert!(a.inspect(&job).await.holders.is_empty());
}

async fn detached_holds_exclude_and_are_excluded(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let detached = |lease| dlock::lock::Request {
        detached: true,
        ..request(&job, lease)
    };
    let kept = detached(LONG);
    a.take(&kept).await;
    b.refused(&request(&job, LONG)).await;
    b.refused(&detached(LONG)).await;
    a.free(&kept).await;
    let held = b.hold(&job).await;
    a.refused(&detached(LONG)).await;
    b.free(&held).await;
}

async fn a_repeated_request_counts_once(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = request(&job, LONG);
    let first = a.take(&held).await;
    for _ in 0..3 {
        let again = a.take(&held).await;
        assert_eq!((again.fence, again.holds), (first.fence, 1));
    }
    b.refused(&request(&job, LONG)).await;
    a.free(&held).await;
    b.hold(&job).await;
}

async fn a_repeated_request_resets_the_expiry(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = lab.expiring(&job, short() * 2);
    a.take(&held).await;
    lab.pass(short()).await;
    let again = Instant::now();
    a.take(&held).await;
    let left = a.left(&job).await;
    // A busy machine takes its time between the request and the look.
    assert!(
        left + again.elapsed() > short() * 3 / 2,
        "only {left:?} are left"
    );
}

async fn a_repeated_request_does_not_shorten(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = lab.expiring(&job, short());
    a.take(&held).await;
    let renewed = Instant::now();
    a.renewed(&held, Some(short() * 4)).await;
    a.take(&held).await;
    let left = a.left(&job).await;
    assert!(
        left + renewed.elapsed() > short() * 3,
        "only {left:?} are left"
    );
    lab.pass(short() * 2).await;
    a.renewed(&held, Some(LONG)).await;
}

async fn a_renewal_extends(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    // Long enough for a machine that is busy with other cases to answer in time.
    let held = lab.expiring(&job, short() * 3);
    a.take(&held).await;
    for _ in 0..3 {
        lab.pass(short() * 3 / 2).await;
        a.renewed(&held, None).await;
    }
    // The first TTL is over, and the lock is still held.
    b.refused(&request(&job, LONG)).await;
    let Some(longer) = lab.other_ttl(LONG).await else {
        return;
    };
    a.renewed(&held, Some(longer)).await;
    let left = b.left(&job).await;
    assert!(
        left > LONG / 2 && left <= LONG + Duration::from_millis(5),
        "{left:?}"
    );
}

async fn a_renewal_never_shortens(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = lab.expiring(&job, LONG);
    a.take(&held).await;
    match a.renew(&held, Some(LONG / 2)).await {
        Renewal::Kept {
            expires_in: Some(expires_in),
        } => {
            assert!(
                expires_in > LONG / 2 && expires_in <= LONG + Duration::from_millis(5),
                "{expires_in:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(a.left(&job).await > LONG * 9 / 10);
    // A hold that was once extended further isn't reset to its own TTL either.
    a.renewed(&held, Some(LONG * 3)).await;
    assert!(matches!(a.renew(&held, None).await, Renewal::Kept { .. }));
    assert!(a.left(&job).await > LONG * 2);
}

async fn a_renewal_without_a_ttl_uses_that_of_the_grant(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = lab.expiring(&job, short() * 3);
    a.take(&held).await;
    lab.pass(short() * 2).await;
    let renewed = Instant::now();
    match a.renew(&held, None).await {
        Renewal::Renewed { ttl, .. } => assert_eq!(ttl.get(), short() * 3),
        other => panic!("{other:?}"),
    }
    let left = a.left(&job).await;
    assert!(
        left + renewed.elapsed() > short() * 5 / 2
            && left <= short() * 3 + Duration::from_millis(5),
        "{left:?}"
    );
    // One renewal with another TTL doesn't change the default.
    let Some(longer) = lab.other_ttl(short() * 4).await else {
        return;
    };
    a.renewed(&held, Some(longer)).await;
    lab.pass(short() * 2).await;
    match a.renew(&held, None).await {
        Renewal::Renewed { ttl, .. } => assert_eq!(ttl.get(), short() * 3),
        other => panic!("{other:?}"),
    }
}

async fn a_stale_token_can_not_renew(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let stale = a.hold(&job).await;
    a.free(&stale).await;
    let held = b.hold(&job).await;
    let before = b.inspect(&job).await;
    assert_eq!(a.renew(&stale, None).await, Renewal::NotHeld);
    assert_eq!(
        a.renew(&stale, lab.other_ttl(LONG * 10).await).await,
        Renewal::NotHeld
    );
    let after = b.inspect(&job).await;
    assert_eq!(after.holders[0].fence, before.holders[0].fence);
    assert!(
        after.holders[0].expires_in <= before.holders[0].expires_in,
        "the stale renewal extended the newer hold"
    );
    b.renewed(&held, None).await;
}

async fn a_stale_token_can_not_release(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let stale = a.hold(&job).await;
    a.free(&stale).await;
    let held = b.hold(&job).await;
    for scope in [Scope::Hold, Scope::Tree] {
        assert_eq!(a.release(&stale, scope).await, Release::NotHeld);
    }
    c.refused(&request(&job, LONG)).await;
    b.renewed(&held, None).await;
    b.free(&held).await;
    assert_eq!(
        b.release(&held, Scope::Hold).await,
        Release::NotHeld,
        "released twice"
    );
}

async fn another_hold_of_the_owner_is_not_this_hold(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let other = dlock::lock::Request {
        token: held.token.nested(),
        ..held.clone()
    };
    assert_eq!(a.renew(&other, None).await, Renewal::NotHeld);
    for scope in [Scope::Hold, Scope::Tree] {
        assert_eq!(a.release(&other, scope).await, Release::NotHeld);
    }
    a.renewed(&held, None).await;
    a.free(&held).await;
}

async fn a_free_lock_can_be_neither_renewed_nor_released(lab: &Lab) {
    let mut a = lab.client().await;
    let never = request(&key("never"), LONG);
    assert_eq!(a.renew(&never, None).await, Renewal::NotHeld);
    for scope in [Scope::Hold, Scope::Tree] {
        assert_eq!(a.release(&never, scope).await, Release::NotHeld);
    }
    let state = a.inspect(&never.key).await;
    assert!(
        state.holders.is_empty() && state.last_fence.is_none(),
        "a failed request created something: {state:?}"
    );
}

async fn a_detached_hold_is_kept_by_its_token_alone(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let mut held = dlock::lock::Request {
        detached: true,
        ..request(&job, LONG)
    };
    let grant = a.take(&held).await;
    held.token.session = grant.session;
    drop(a);
    b.refused(&request(&job, LONG)).await;
    let longer = lab.other_ttl(LONG * 2).await;
    assert_eq!(b.renewed(&held, longer).await, grant.fence);
    assert!(b.left(&job).await > longer.unwrap_or(LONG) / 2);
    b.free(&held).await;
    b.hold(&job).await;
}

async fn init_can_be_repeated(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    for _ in 0..2 {
        a.0.init().await.expect("init");
        lab.client().await.0.init().await.expect("init");
    }
    a.renewed(&held, None).await;
    lab.client().await.refused(&request(&job, LONG)).await;
}
