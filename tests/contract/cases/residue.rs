//! Only fences stay in a Redis server; everything else expires, the history after 100 days.

use std::time::Duration;

use dlock::lock::{Amendment, End, Mode, Note, ReleaseInfo, Request, Scope};
use tokio::time::timeout;

use super::{Case, cases};
use crate::{
    lab::{LONG, Lab, key, nested, request, runner, short, waiting},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind == Kind::Redis =>
        everything_but_fences_expires,
        a_history_expires_after_the_last_run,
        a_released_lock_leaves_its_fence_only,
        only_an_unanswered_request_leaves_a_mark,
        a_vanished_holders_record_outlives_its_lease,
        a_refused_attempt_leaves_nothing,
        the_last_waiter_that_leaves_leaves_no_wake_up,
        under_memory_pressure_a_release_works,
        under_memory_pressure_no_lock_is_left_without_an_expiry,
    ]
}

/// How long a history is kept after the last run, in ms: 100 days.
const KEPT: i64 = 100 * 24 * 3600 * 1000;

/// Whether the key is a fence counter, which never expires, so that no fence repeats.
fn is_fence(name: &str) -> bool {
    name.starts_with("redisson_lock_token:{")
}

/// Whether the key belongs to the history.
fn is_history(name: &str) -> bool {
    [":runs", ":bad-runs", ":skips"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// Returns the keys except fences and history, with their remaining life in ms.
fn stored(lab: &Lab) -> Vec<(String, i64)> {
    lab.redis()
        .keys()
        .into_iter()
        .filter(|(name, _)| !is_fence(name) && !is_history(name))
        .collect()
}

async fn everything_but_fences_expires(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let held = Request {
        metadata: Some(runner("web1")),
        ..request(&job, LONG)
    };
    a.take(&held).await;
    let inner = nested(&held);
    a.take(&inner).await;
    let wanted = Request {
        metadata: Some(runner("web2")),
        ..waiting(&job, LONG)
    };
    b.refused(&wanted).await;
    c.refused(&waiting(&job, LONG)).await;
    let _ = timeout(Duration::from_millis(20), b.wait(&wanted, LONG)).await;
    a.renewed(&held, Some(LONG * 2)).await;
    // A release without a blocked waiter leaves its wake-up behind.
    a.release(&held, Scope::Tree).await;
    let mut d = lab.client().await;
    d.take(&Request {
        detached: true,
        ..request(&job, LONG)
    })
    .await;
    let stored = stored(lab);
    assert!(stored.len() >= 3, "{stored:?}");
    let longest = i64::try_from((LONG * 2).as_millis()).expect("small");
    for (name, left) in &stored {
        // A record outlives its lock, since the history needs it.
        let longest = if name.ends_with(":record") {
            longest + KEPT
        } else {
            longest
        };
        assert!(*left > 0 && *left <= longest, "{name} ends in {left} ms");
    }
}

async fn a_history_expires_after_the_last_run(lab: &Lab) {
    let mut a = lab.client().await;
    let held = a.hold(&key("job")).await;
    let info = ReleaseInfo {
        end: Some(End::Lost),
        ..Scope::Tree.into()
    };
    a.0.release(&held.key, &held.token, &info)
        .await
        .expect("release");
    a.0.amend(
        &held.key,
        Amendment::Note(&Note::Skipped {
            host: "web1".into(),
            reason: "busy".into(),
            at_ms: 0,
        }),
    )
    .await
    .expect("a note");
    let kept: Vec<_> = lab
        .redis()
        .keys()
        .into_iter()
        .filter(|(name, _)| is_history(name))
        .collect();
    assert_eq!(kept.len(), 3, "{kept:?}");
    assert!(
        kept.iter()
            .all(|(_, left)| *left > KEPT - 60_000 && *left <= KEPT),
        "{kept:?}"
    );
}

async fn a_released_lock_leaves_its_fence_only(lab: &Lab) {
    let mut a = lab.client().await;
    for name in ["job", "a{b}c"] {
        let held = Request {
            metadata: Some(runner("web1")),
            ..request(&key(name), LONG)
        };
        a.take(&held).await;
        a.take(&nested(&held)).await;
        a.release(&held, Scope::Tree).await;
    }
    assert_eq!(stored(lab), []);
    let other = lab
        .redis()
        .keys()
        .into_iter()
        .filter(|(name, _)| !is_history(name))
        .count();
    assert_eq!(other, 2);
}

/// The mark refuses the request if it arrives late, and expires after 20 minutes.
async fn only_an_unanswered_request_leaves_a_mark(lab: &Lab) {
    lab.isolate();
    for (is_taken, mode) in [
        (false, Mode::Exclusive),
        (true, Mode::Exclusive),
        (false, Mode::Shared),
        (true, Mode::Permits(2)),
    ] {
        let mut a = lab.client().await;
        let held = Request {
            mode,
            ..request(&key(&format!("job-{is_taken}-{mode:?}")), LONG)
        };
        lab.store().freeze();
        assert!(
            timeout(Duration::from_millis(50), a.0.try_acquire(&held))
                .await
                .is_err()
        );
        lab.store().thaw();
        if is_taken {
            a.take(&held).await;
        }
        a.release(&held, Scope::Hold).await;
        let left: Vec<_> = stored(lab)
            .into_iter()
            .filter(|(name, _)| !name.ends_with(":record"))
            .collect();
        let minutes = |ms: i64| ms > 0 && ms <= 20 * 60_000;
        assert!(
            left.len() == 1 && left[0].0.contains(":late:") && minutes(left[0].1),
            "{left:?}"
        );
        lab.redis().command(&["DEL", &left[0].0]);
    }
}

async fn a_vanished_holders_record_outlives_its_lease(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = Request {
        metadata: Some(runner("web1")),
        ..request(&job, short())
    };
    a.take(&held).await;
    b.take(&nested(&held)).await;
    drop((a, b));
    lab.outlast(short()).await;
    // The next holder and the history need the record.
    let left = stored(lab);
    assert!(
        left.len() == 1 && left[0].0.ends_with(":record") && left[0].1 <= KEPT,
        "{left:?}"
    );
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
    b.leave_queue(&wanted).await;
    let after: Vec<_> = stored(lab).into_iter().map(|(name, _)| name).collect();
    assert_eq!(after, before);
    a.free(&held).await;
    assert_eq!(stored(lab), []);
}

/// Lets the server refuse every command that needs memory.
fn starve(lab: &Lab) {
    lab.redis()
        .command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    lab.redis().command(&["CONFIG", "SET", "maxmemory", "1"]);
}

/// The lock is released between a waiter's request and its wait; then the waiter gives up.
async fn the_last_waiter_that_leaves_leaves_no_wake_up(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    for (fair, mode) in [
        (false, Mode::Exclusive),
        (true, Mode::Exclusive),
        (false, Mode::Shared),
    ] {
        let job = key(&format!("job-{fair}-{mode:?}"));
        let wanted = [(); 2].map(|()| Request {
            fair,
            mode,
            ..waiting(&job, LONG)
        });
        let held = a.hold(&job).await;
        b.refused(&wanted[0]).await;
        c.refused(&wanted[1]).await;
        a.free(&held).await;
        assert!(
            stored(lab).iter().any(|(name, _)| name.contains(":wake")),
            "{:?}",
            stored(lab)
        );
        b.leave_queue(&wanted[0]).await;
        // The wake-up is the other waiter's now.
        assert!(
            stored(lab).iter().any(|(name, _)| name.contains(":wake")),
            "{:?}",
            stored(lab)
        );
        c.leave_queue(&wanted[1]).await;
        assert!(
            stored(lab)
                .iter()
                .all(|(name, _)| name.ends_with(":record")),
            "{:?}",
            stored(lab)
        );
    }
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

async fn under_memory_pressure_no_lock_is_left_without_an_expiry(lab: &Lab) {
    let mut a = lab.client().await;
    let warm = a.hold(&key("warm")).await;
    starve(lab);
    let error =
        a.0.try_acquire(&request(&key("job"), LONG))
            .await
            .expect_err("out of memory");
    assert!(error.is_transient(), "{error:?}");
    assert!(
        stored(lab).iter().all(|(_, left)| *left > 0),
        "{:?}",
        stored(lab)
    );
    lab.redis().command(&["CONFIG", "SET", "maxmemory", "0"]);
    a.hold(&key("job")).await;
    a.free(&warm).await;
}
