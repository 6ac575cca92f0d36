//! Cancel safety: a call may be dropped at any moment, and the backend still answers the next one.

use std::time::Duration;

use dlock::lock::{Key, Progress, Release, Renewal, Request, Scope, Wake};
use tokio::time::timeout;

use super::{Case, cases, everywhere};
use crate::{
    lab::{Client, LONG, Lab, key, request, soon, waiting},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![everywhere =>
        a_dropped_acquire_can_be_repeated,
        a_dropped_refusal_grants_nothing,
        a_dropped_acquire_can_be_undone,
        a_dropped_renewal_can_be_repeated,
        a_dropped_release_can_be_repeated,
        a_dropped_wait_can_be_followed_by_anything,
        a_dropped_inspection_can_be_repeated,
        a_dropped_entry_can_be_undone,
    ]
}

/// Before the first step of a call, in the middle, and after its end.
const MOMENTS: [Duration; 10] = [
    Duration::ZERO,
    Duration::from_micros(20),
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(200),
    Duration::from_micros(400),
    Duration::from_micros(800),
    Duration::from_micros(1500),
    Duration::from_millis(4),
    Duration::from_millis(30),
];

/// Longer than a few calls take, on a busy machine too, and short enough to await its end.
const LEASE: Duration = Duration::from_secs(4);

/// Polls once, then drops at the given moment.
async fn drop_after<T>(moment: Duration, call: impl Future<Output = T>) -> Option<T> {
    timeout(moment, call).await.ok()
}

/// A dropped request may reach the store after its undo or release, and then ends with its lease,
/// unless the store refuses late requests.
async fn free_after_its_lease(other: &mut Client, job: &Key, moment: Duration) {
    let began = tokio::time::Instant::now();
    other
        .wait_for(&waiting(job, LONG), Duration::from_millis(50))
        .await;
    assert!(
        began.elapsed() < LEASE + soon(),
        "{moment:?}: {:?}",
        began.elapsed()
    );
}

async fn a_dropped_acquire_can_be_repeated(lab: &Lab) {
    let mut other = lab.client().await;
    for warm in [false, true] {
        for moment in MOMENTS {
            let mut a = lab.client().await;
            if warm {
                a.inspect(&key("warm")).await;
            }
            let job = key(&format!("job-{warm}-{moment:?}"));
            let held = request(&job, LEASE);
            let _ = drop_after(moment, a.0.try_acquire(&held)).await;
            assert_eq!(a.take(&held).await.holds, 1, "{moment:?}");
            other.refused(&request(&job, LONG)).await;
            a.renewed(&held, None).await;
            a.free(&held).await;
            free_after_its_lease(&mut other, &job, moment).await;
        }
    }
}

/// An attempt at a busy lock is dropped while it is given up; the next one gets a lock that
/// excludes others.
async fn a_dropped_refusal_grants_nothing(lab: &Lab) {
    let mut other = lab.client().await;
    for step in 0..48 {
        let moment = Duration::from_micros(50 * step);
        let mut a = lab.client().await;
        let job = key(&format!("job-{step}"));
        let first = other.hold(&job).await;
        let wanted = waiting(&job, LONG);
        a.refused(&wanted).await;
        let _ = drop_after(moment, a.0.try_acquire(&wanted)).await;
        other.free(&first).await;
        a.take(&wanted).await;
        other.refused(&request(&job, LONG)).await;
        a.renewed(&wanted, None).await;
        a.free(&wanted).await;
    }
}

async fn a_dropped_acquire_can_be_undone(lab: &Lab) {
    let mut other = lab.client().await;
    for moment in MOMENTS {
        let mut a = lab.client().await;
        let job = key(&format!("job-{moment:?}"));
        let held = lab.expiring(&job, LEASE);
        let _ = drop_after(moment, a.0.try_acquire(&held)).await;
        let answer = a.release(&held, Scope::Hold).await;
        assert!(
            matches!(answer, Release::Released | Release::NotHeld),
            "{answer:?}"
        );
        if matches!(lab.kind, Kind::Redis | Kind::Sentinel | Kind::Cluster) {
            other.hold(&job).await;
        } else {
            free_after_its_lease(&mut other, &job, moment).await;
        }
    }
}

async fn a_dropped_renewal_can_be_repeated(lab: &Lab) {
    let mut a = lab.client().await;
    for moment in MOMENTS {
        let job = key(&format!("job-{moment:?}"));
        let held = a.hold(&job).await;
        let _ = drop_after(moment, a.0.renew(&held.key, &held.token, None.into())).await;
        let longer = lab.other_ttl(LONG * 2).await;
        a.renewed(&held, longer).await;
        assert!(
            a.left(&job).await > longer.unwrap_or(LONG) / 2,
            "{moment:?}"
        );
        a.free(&held).await;
    }
}

async fn a_dropped_release_can_be_repeated(lab: &Lab) {
    let (mut a, mut other) = (lab.client().await, lab.client().await);
    for moment in MOMENTS {
        let job = key(&format!("job-{moment:?}"));
        let held = a.hold(&job).await;
        let _ = drop_after(
            moment,
            a.0.release(&held.key, &held.token, &Scope::Hold.into()),
        )
        .await;
        let answer = a.release(&held, Scope::Hold).await;
        assert!(
            matches!(answer, Release::Released | Release::NotHeld),
            "{moment:?}: {answer:?}"
        );
        assert_eq!(a.renew(&held, None).await, Renewal::NotHeld, "{moment:?}");
        other.hold(&job).await;
    }
}

async fn a_dropped_wait_can_be_followed_by_anything(lab: &Lab) {
    lab.until_sessions_can_be_ended().await;
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let wanted = waiting(&job, LONG);
    let other = b.hold(&key("other")).await;
    for moment in MOMENTS {
        b.refused(&wanted).await;
        let _ = drop_after(moment, b.0.wait(&wanted, LONG)).await;
        b.renewed(&other, None).await;
        let _ = drop_after(moment, b.0.wait(&wanted, LONG)).await;
        b.refused(&wanted).await;
        let _ = drop_after(moment, b.0.wait(&wanted, LONG)).await;
        let mut woken = 0;
        while b.wait(&wanted, Duration::from_millis(10)).await == Wake::Changed {
            // A wake-up without a reason is allowed, but not endlessly.
            woken += 1;
            assert!(woken < 4, "{moment:?}");
            b.refused(&wanted).await;
        }
        let _ = drop_after(moment, b.0.wait(&wanted, LONG)).await;
        let _ = drop_after(moment, b.0.leave_queue(&wanted)).await;
        b.leave_queue(&wanted).await;
        assert!(a.inspect(&job).await.waiters.is_empty(), "{moment:?}");
    }
    a.free(&held).await;
    b.hold(&job).await;
}

async fn a_dropped_inspection_can_be_repeated(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    for moment in MOMENTS {
        let _ = drop_after(moment, a.0.inspect(&job)).await;
        assert_eq!(a.inspect(&job).await.holders.len(), 1, "{moment:?}");
        let _ = drop_after(moment, a.0.list("", &Progress::default())).await;
        assert_eq!(a.keys("").await, ["job"], "{moment:?}");
        let _ = drop_after(moment, a.0.init()).await;
    }
    a.renewed(&held, None).await;
}

/// Repeats a request that fails with a transient error, as the core does: the dropped request may
/// interfere.
async fn retry_transient<T>(mut question: impl AsyncFnMut() -> dlock::lock::Result<T>) -> T {
    for _ in 0..5 {
        match question().await {
            Err(error) if error.is_transient() => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer.unwrap_or_else(|error| panic!("{error:?}")),
        }
    }
    question().await.unwrap_or_else(|error| panic!("{error:?}"))
}

/// A dropped entry never changes the hold that it was to enter.
async fn a_dropped_entry_can_be_undone(lab: &Lab) {
    let (mut a, mut other) = (lab.client().await, lab.client().await);
    if !a.capabilities().reentrant {
        return;
    }
    let job = key("job");
    let outer = lab.expiring(&job, LONG);
    a.take(&outer).await;
    for moment in MOMENTS {
        for wait in [false, true] {
            let mut b = lab.client().await;
            let inner = Request {
                waiting: wait,
                ..crate::lab::nested(&outer)
            };
            let _ = drop_after(moment, b.0.try_acquire(&inner)).await;
            let answer = retry_transient(async || {
                b.0.release(&inner.key, &inner.token, &Scope::Hold.into())
                    .await
            })
            .await;
            assert!(
                matches!(answer, Release::StillHeld(_) | Release::NotHeld),
                "{moment:?}: {answer:?}"
            );
            b.leave_queue(&inner).await;
            let mut c = lab.client().await;
            let _ = drop_after(moment, c.0.try_acquire(&inner)).await;
            c.leave_queue(&inner).await;
            let answer =
                retry_transient(async || a.0.renew(&outer.key, &outer.token, None.into()).await)
                    .await;
            assert!(
                matches!(answer, Renewal::Renewed { .. }),
                "{moment:?}: {answer:?}"
            );
            other.refused(&request(&job, LONG)).await;
        }
    }
    assert_eq!(a.release(&outer, Scope::Tree).await, Release::Released);
    other.hold(&job).await;
}
