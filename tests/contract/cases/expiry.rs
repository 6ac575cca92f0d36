//! The end of a lease without a release.

use dlock::lock::{Attempt, Release, Renewal, Request, Scope};

use super::{Case, cases, everywhere};
use crate::{
    lab::{LONG, Lab, SLACK, key, request, short, soon},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![everywhere =>
        an_expired_lock_is_free,
        an_expired_token_holds_nothing,
        an_expired_hold_does_not_touch_its_successor,
        no_lease_expires_early,
        busy_reports_when_it_expires,
    ];
    all.extend(
        cases![Kind::lasts_with_its_process => a_living_holders_lock_is_held_beyond_its_lease],
    );
    all.extend(cases![|kind| !kind.ends_with_its_process() => a_vanished_holders_lock_is_free_after_its_lease]);
    all.extend(cases![Kind::ends_with_its_process => a_vanished_holders_lock_is_free_at_once]);
    all
}

async fn an_expired_lock_is_free(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let first = a.take(&lab.expiring(&job, short())).await;
    b.refused(&request(&job, LONG)).await;
    lab.outlast(short()).await;
    assert!(b.inspect(&job).await.holders.is_empty());
    assert!(b.keys("").await.is_empty());
    let second = b.take(&request(&job, LONG)).await;
    assert!(second.fence > first.fence);
}

async fn an_expired_token_holds_nothing(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = lab.expiring(&job, short());
    a.take(&held).await;
    lab.outlast(short()).await;
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    assert_eq!(
        a.renew(&held, lab.other_ttl(LONG).await).await,
        Renewal::NotHeld
    );
    assert_eq!(a.release(&held, Scope::Hold).await, Release::NotHeld);
    assert!(
        a.inspect(&job).await.holders.is_empty(),
        "a renewal recreated the hold"
    );
}

async fn an_expired_hold_does_not_touch_its_successor(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let late = lab.expiring(&job, short());
    a.take(&late).await;
    lab.outlast(short()).await;
    let held = b.hold(&job).await;
    assert_eq!(
        a.renew(&late, lab.other_ttl(LONG).await).await,
        Renewal::NotHeld
    );
    for scope in [Scope::Hold, Scope::Tree] {
        assert_eq!(a.release(&late, scope).await, Release::NotHeld);
    }
    a.refused(&request(&job, LONG)).await;
    b.renewed(&held, None).await;
}

async fn no_lease_expires_early(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    for turn in 0..20 {
        let job = key(&format!("job-{turn}"));
        let began = std::time::Instant::now();
        a.take(&lab.expiring(&job, short())).await;
        lab.pass(short() * 7 / 10).await;
        if !matches!(b.attempt(&request(&job, LONG)).await, Attempt::Granted(_)) {
            return;
        }
        // A busy machine may have taken the rest of the lease.
        assert!(
            began.elapsed() >= short(),
            "granted after {:?}",
            began.elapsed()
        );
    }
    panic!("the machine is too busy");
}

async fn busy_reports_when_it_expires(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let (taken, lease) = (std::time::Instant::now(), short() * 3);
    a.take(&lab.expiring(&job, lease)).await;
    let left = b
        .refused(&request(&job, LONG))
        .await
        .expires_in
        .expect("an expiry");
    assert!(
        left <= lease + SLACK && left + taken.elapsed() > lease / 2,
        "{left:?}"
    );
    lab.outlast(left).await;
    b.hold(&job).await;
}

async fn a_vanished_holders_lock_is_free_after_its_lease(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    a.take(&request(&job, short())).await;
    drop(a);
    b.refused(&request(&job, LONG)).await;
    lab.outlast(short()).await;
    b.hold(&job).await;
}

async fn a_vanished_holders_lock_is_free_at_once(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    a.hold(&job).await;
    drop(a);
    let began = std::time::Instant::now();
    b.wait_for(
        &Request {
            waiting: true,
            ..request(&job, LONG)
        },
        LONG,
    )
    .await;
    assert!(began.elapsed() < soon(), "{:?}", began.elapsed());
}

async fn a_living_holders_lock_is_held_beyond_its_lease(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = request(&job, short());
    a.take(&held).await;
    lab.outlast(short()).await;
    b.refused(&request(&job, LONG)).await;
    assert_eq!(b.keys("").await, ["job"]);
    a.renewed(&held, None).await;
    a.free(&held).await;
    b.hold(&job).await;
}
