//! Breaking a hold. The holder of a marked hold stops by itself; an evicted hold ends at once.

use std::time::Duration;

use dlock::lock::{
    Amendment, Attempt, Break, End, Fence, Intent, Key, Mode, Release, ReleaseInfo, Renewal,
    Request, Scope,
};

use super::{
    Case, cases, everywhere,
    history::{broken, history},
};
use crate::{
    lab::{Client, LONG, Lab, key, nested, request, short, soon, waiting},
    support::slowness,
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![everywhere =>
        a_marked_hold_is_renewed_only_to_drain,
        a_mark_is_shown_and_the_hold_continues,
        a_mark_that_was_seen_stays_seen,
        a_marked_hold_is_recorded_as_broken,
        a_marked_hold_ends_with_its_lease,
        only_the_hold_with_the_given_fence_is_marked,
        a_hold_can_be_marked_again,
        breaking_another_fence_leaves_the_mark,
        a_mark_ends_with_its_hold,
        only_the_hold_with_the_given_fence_is_evicted,
    ];
    all.extend(cases![|kind| !kind.bound_to_processes() =>
        an_evicted_holder_holds_nothing,
        an_eviction_frees_the_lock_for_a_waiter,
    ]);
    all.extend(cases![|kind| kind.crosses_processes() =>
        a_nested_hold_is_broken_with_its_outer_hold,
        a_nested_hold_that_outlives_its_outer_hold_is_broken,
    ]);
    all.extend(
        cases![|kind| kind.crosses_processes() && !kind.bound_to_processes() =>
            nested_holds_are_evicted_with_their_outer_hold,
        ],
    );
    // One node of Redlock claims a warning, and that node may not have the hold.
    all.extend(
        cases![|kind| kind != Kind::Redlock => no_client_claims_a_warning_about_a_released_hold],
    );
    all.extend(cases![|kind| kind.keeps_positions() => a_waiter_is_not_broken]);
    all.extend(cases![|kind| kind.shared() => breaking_one_reader_leaves_the_others]);
    all
}

async fn mark(client: &mut Client, key: &Key, fence: Fence, why: &str) -> bool {
    client
        .0
        .amend(key, Amendment::Mark(fence, &broken(why)))
        .await
        .unwrap_or_else(|error| panic!("mark: {error:?}"))
}

async fn evict(client: &mut Client, key: &Key, fence: Fence) -> bool {
    client
        .0
        .amend(key, Amendment::Evict(fence, &broken("NFS")))
        .await
        .unwrap_or_else(|error| panic!("evict: {error:?}"))
}

/// Renews with the intent to drain: the lock stays held until the command is dead.
async fn drain(client: &mut Client, of: &Request) -> Renewal {
    client
        .0
        .renew(&of.key, &of.token, Intent::Drain)
        .await
        .unwrap_or_else(|error| panic!("renew: {error:?}"))
}

async fn shown_break(client: &mut Client, key: &Key) -> Option<Break> {
    let state = client.inspect(key).await;
    assert_eq!(state.holders.len(), 1, "{state:?}");
    state.holders[0].broken.clone()
}

async fn a_marked_hold_is_renewed_only_to_drain(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let asked = request(&job, LONG);
    let fence = a.take(&asked).await.fence;
    a.renewed(&asked, None).await;
    assert!(mark(&mut b, &job, fence, "NFS \"hangs\"\n\u{2600}").await);
    for _ in 0..2 {
        assert_eq!(
            a.renew(&asked, None).await,
            Renewal::Broken(broken("NFS \"hangs\"\n\u{2600}"))
        );
    }
    assert!(
        matches!(drain(&mut a, &asked).await, Renewal::Renewed { fence: same, .. } if same == fence)
    );
    assert!(matches!(
        drain(&mut a, &asked).await,
        Renewal::Renewed { .. }
    ));
    b.refused(&request(&job, LONG)).await;
    a.free(&asked).await;
}

async fn a_mark_is_shown_and_the_hold_continues(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let asked = request(&job, LONG);
    let fence = a.take(&asked).await.fence;
    assert_eq!(shown_break(&mut b, &job).await, None);
    mark(&mut b, &job, fence, "NFS").await;
    assert_eq!(shown_break(&mut b, &job).await, Some(broken("NFS")));
    b.refused(&request(&job, LONG)).await;
    assert!(matches!(
        b.0.renew(&job, &asked.token, Intent::Probe).await,
        Ok(Renewal::Kept { .. })
    ));
    drain(&mut a, &asked).await;
    assert_eq!(
        shown_break(&mut b, &job).await,
        Some(Break {
            seen: true,
            ..broken("NFS")
        })
    );
    b.refused(&request(&job, LONG)).await;
    a.free(&asked).await;
    assert!(b.inspect(&job).await.holders.is_empty());
}

async fn a_mark_that_was_seen_stays_seen(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let asked = request(&job, LONG);
    let fence = a.take(&asked).await.fence;
    mark(&mut b, &job, fence, "NFS").await;
    assert!(matches!(
        drain(&mut a, &asked).await,
        Renewal::Renewed { .. } | Renewal::Kept { .. }
    ));
    let seen = Break {
        seen: true,
        ..broken("NFS")
    };
    assert_eq!(a.renew(&asked, None).await, Renewal::Broken(seen.clone()));
    assert_eq!(shown_break(&mut b, &job).await, Some(seen));
}

async fn no_client_claims_a_warning_about_a_released_hold(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let asked = request(&job, LONG);
    let fence = a.take(&asked).await.fence;
    let warn = async |client: &mut Client, level| {
        client
            .0
            .amend(&job, Amendment::Warn(fence, level))
            .await
            .expect("warn")
    };
    assert!(warn(&mut b, 1).await && !warn(&mut b, 1).await && warn(&mut b, 2).await);
    a.free(&asked).await;
    assert!(!warn(&mut b, 3).await);
}

async fn a_marked_hold_is_recorded_as_broken(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let asked = request(&job, LONG);
    let fence = a.take(&asked).await.fence;
    mark(&mut b, &job, fence, "NFS").await;
    let Renewal::Broken(decision) = a.renew(&asked, None).await else {
        panic!("renewed")
    };
    drain(&mut a, &asked).await;
    let info = ReleaseInfo {
        end: Some(End::Broken),
        outcome: Some((&decision).into()),
        ..Scope::Tree.into()
    };
    assert_eq!(
        a.0.release(&job, &asked.token, &info)
            .await
            .expect("release"),
        Release::Released
    );
    let next = b.hold(&job).await;
    let past = history(&mut b, &job).await.past;
    assert!(
        past.len() == 1 && past[0].end == End::Broken && past[0].fence == Some(fence),
        "{past:?}"
    );
    assert_eq!(past[0].outcome, Some((&broken("NFS")).into()));
    b.free(&next).await;
}

async fn a_marked_hold_ends_with_its_lease(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let asked = lab.expiring(&job, short() * slowness());
    let grant = a.take(&asked).await;
    mark(&mut b, &job, grant.fence, "NFS").await;
    b.refused(&request(&job, LONG)).await;
    drop(a);
    lab.outlast(grant.ttl.get()).await;
    let next = request(&job, LONG);
    let until = std::time::Instant::now() + Duration::from_secs(5);
    while !matches!(b.attempt(&next).await, Attempt::Granted(_)) {
        assert!(std::time::Instant::now() < until, "not free");
        lab.pass(Duration::from_millis(50)).await;
    }
    b.renewed(&next, None).await;
    assert_eq!(shown_break(&mut b, &job).await, None);
    let past = history(&mut b, &job).await.past;
    assert!(
        past.len() == 1 && past[0].end == End::Broken && past[0].fence == Some(grant.fence),
        "{past:?}"
    );
    assert_eq!(past[0].outcome, Some((&broken("NFS")).into()));
}

async fn only_the_hold_with_the_given_fence_is_marked(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    assert!(
        !mark(&mut b, &job, Fence(7), "NFS").await,
        "the lock is free"
    );
    let first = request(&job, LONG);
    let before = a.take(&first).await.fence;
    a.free(&first).await;
    assert!(
        !mark(&mut b, &job, before, "NFS").await,
        "the hold was released"
    );
    let second = request(&job, LONG);
    let fence = a.take(&second).await.fence;
    for other in [before, Fence(fence.0 + 1), Fence(0)] {
        assert!(!mark(&mut b, &job, other, "NFS").await);
    }
    assert!(!mark(&mut b, &key("other"), fence, "NFS").await);
    a.renewed(&second, None).await;
    assert_eq!(shown_break(&mut b, &job).await, None);
    a.free(&second).await;
}

async fn a_hold_can_be_marked_again(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let asked = request(&job, LONG);
    let fence = a.take(&asked).await.fence;
    mark(&mut b, &job, fence, "one").await;
    mark(&mut b, &job, fence, "two").await;
    assert_eq!(a.renew(&asked, None).await, Renewal::Broken(broken("two")));
    drain(&mut a, &asked).await;
    // A holder that is draining already goes on draining.
    mark(&mut b, &job, fence, "three").await;
    assert_eq!(
        shown_break(&mut b, &job).await,
        Some(Break {
            seen: true,
            ..broken("three")
        })
    );
    a.free(&asked).await;
}

async fn breaking_another_fence_leaves_the_mark(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let first = request(&job, LONG);
    let before = a.take(&first).await.fence;
    a.free(&first).await;
    let asked = request(&job, LONG);
    let fence = a.take(&asked).await.fence;
    mark(&mut b, &job, fence, "NFS").await;
    for other in [before, Fence(fence.0 + 1)] {
        assert!(!mark(&mut b, &job, other, "late").await);
        assert!(!evict(&mut b, &job, other).await);
    }
    assert_eq!(shown_break(&mut b, &job).await, Some(broken("NFS")));
    assert_eq!(a.renew(&asked, None).await, Renewal::Broken(broken("NFS")));
    drain(&mut a, &asked).await;
    a.free(&asked).await;
}

async fn a_mark_ends_with_its_hold(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let asked = request(&job, LONG);
    let fence = a.take(&asked).await.fence;
    mark(&mut b, &job, fence, "NFS").await;
    a.free(&asked).await;
    let next = b.hold(&job).await;
    b.renewed(&next, None).await;
    assert_eq!(shown_break(&mut a, &job).await, None);
    b.free(&next).await;
}

async fn an_evicted_holder_holds_nothing(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let asked = request(&job, LONG);
    let fence = a.take(&asked).await.fence;
    assert!(evict(&mut b, &job, fence).await);
    let next = b.hold(&job).await;
    assert_eq!(a.renew(&asked, None).await, Renewal::NotHeld);
    assert_eq!(drain(&mut a, &asked).await, Renewal::NotHeld);
    assert_eq!(a.release(&asked, Scope::Tree).await, Release::NotHeld);
    b.renewed(&next, None).await;
    let past = history(&mut b, &job).await.past;
    assert!(
        past.len() == 1 && past[0].end == End::Broken && past[0].fence == Some(fence),
        "{past:?}"
    );
    assert_eq!(past[0].outcome, Some((&broken("NFS")).into()));
    b.free(&next).await;
}

async fn an_eviction_frees_the_lock_for_a_waiter(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let asked = request(&job, LONG);
    let fence = a.take(&asked).await.fence;
    let wanted = waiting(&job, LONG);
    b.refused(&wanted).await;
    let began = std::time::Instant::now();
    let ((), grant) = tokio::join!(
        async {
            lab.pass(Duration::from_millis(200)).await;
            assert!(evict(&mut c, &job, fence).await);
        },
        b.wait_for(&wanted, LONG)
    );
    assert!(grant.fence > fence);
    // The grant after a vanished holder may have a drain delay of half a second.
    assert!(
        lab.kind.clock_is_ours()
            || !lab.kind.notifies()
            || began.elapsed() < soon() + Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    b.free(&wanted).await;
}

async fn only_the_hold_with_the_given_fence_is_evicted(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    assert!(!evict(&mut b, &job, Fence(7)).await, "the lock is free");
    let first = request(&job, LONG);
    let before = a.take(&first).await.fence;
    a.free(&first).await;
    let second = request(&job, LONG);
    let fence = a.take(&second).await.fence;
    for other in [before, Fence(fence.0 + 1)] {
        assert!(!evict(&mut b, &job, other).await);
    }
    a.renewed(&second, None).await;
    b.refused(&request(&job, LONG)).await;
    a.free(&second).await;
    assert_eq!(
        history(&mut b, &job)
            .await
            .past
            .iter()
            .filter(|past| past.end == End::Broken)
            .count(),
        0
    );
}

async fn a_nested_hold_is_broken_with_its_outer_hold(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let outer = request(&job, LONG);
    let fence = a.take(&outer).await.fence;
    let inner = nested(&outer);
    b.take(&inner).await;
    mark(&mut c, &job, fence, "NFS").await;
    assert_eq!(b.renew(&inner, None).await, Renewal::Broken(broken("NFS")));
    assert_eq!(a.renew(&outer, None).await, Renewal::Broken(broken("NFS")));
    assert!(matches!(
        drain(&mut b, &inner).await,
        Renewal::Renewed { .. }
    ));
    assert_eq!(b.release(&inner, Scope::Hold).await, Release::StillHeld(1));
    a.free(&outer).await;
}

async fn a_nested_hold_that_outlives_its_outer_hold_is_broken(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    // The hold is marked before its outer hold is released, or after.
    for before in [true, false] {
        let outer = request(&job, LONG);
        let fence = a.take(&outer).await.fence;
        let (inner, other) = (nested(&outer), nested(&outer));
        b.take(&inner).await;
        b.take(&other).await;
        if before {
            assert!(mark(&mut c, &job, fence, "NFS").await);
        }
        assert_eq!(a.release(&outer, Scope::Hold).await, Release::StillHeld(2));
        if !before {
            b.renewed(&inner, None).await;
            assert!(mark(&mut c, &job, fence, "NFS").await);
        }
        assert_eq!(b.renew(&inner, None).await, Renewal::Broken(broken("NFS")));
        assert_eq!(b.renew(&other, None).await, Renewal::Broken(broken("NFS")));
        for of in [&inner, &other, &inner] {
            assert!(
                matches!(drain(&mut b, of).await, Renewal::Renewed { fence: same, .. } if same == fence)
            );
        }
        assert_eq!(
            shown_break(&mut c, &job).await,
            Some(Break {
                seen: true,
                ..broken("NFS")
            })
        );
        assert_eq!(b.release(&other, Scope::Hold).await, Release::StillHeld(1));
        assert!(matches!(
            drain(&mut b, &inner).await,
            Renewal::Renewed { .. }
        ));
        b.free(&inner).await;
        assert_eq!(history(&mut c, &job).await.past[0].fence, Some(fence));
    }
}

async fn nested_holds_are_evicted_with_their_outer_hold(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    // Also after the release of the outer hold.
    for outlived in [false, true] {
        let outer = request(&job, LONG);
        let fence = a.take(&outer).await.fence;
        let inner = nested(&outer);
        b.take(&inner).await;
        if outlived {
            assert_eq!(a.release(&outer, Scope::Hold).await, Release::StillHeld(1));
        }
        assert!(evict(&mut c, &job, fence).await);
        let next = c.hold(&job).await;
        assert_eq!(b.renew(&inner, None).await, Renewal::NotHeld);
        assert_eq!(b.release(&inner, Scope::Tree).await, Release::NotHeld);
        assert_eq!(a.renew(&outer, None).await, Renewal::NotHeld);
        c.renewed(&next, None).await;
        c.free(&next).await;
        let past = history(&mut c, &job).await.past;
        assert!(
            past.iter()
                .any(|past| past.end == End::Broken && past.fence == Some(fence)),
            "{past:?}"
        );
    }
}

async fn a_waiter_is_not_broken(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    // The waiter's position has a visible number, which becomes its fence. Other cases on the same
    // server raise that number too.
    for _ in 0..10 {
        let held = request(&job, LONG);
        let fence = a.take(&held).await.fence;
        let wanted = waiting(&job, LONG);
        b.refused(&wanted).await;
        for later in 1..=20 {
            assert!(!mark(&mut c, &job, Fence(fence.0 + later), "NFS").await);
            assert!(!evict(&mut c, &job, Fence(fence.0 + later)).await);
        }
        a.free(&held).await;
        let next = b.wait_for(&wanted, LONG).await.fence;
        b.renewed(&wanted, None).await;
        b.free(&wanted).await;
        if next.0 <= fence.0 + 20 {
            return;
        }
    }
    panic!("no fence was in the tested range");
}

async fn breaking_one_reader_leaves_the_others(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let (one, two, three) = (
        request(&job, LONG),
        request(&job, LONG),
        request(&job, LONG),
    );
    let [one, two, three] = [one, two, three].map(|reader| Request {
        mode: Mode::Shared,
        ..reader
    });
    let fences = [
        a.take(&one).await.fence,
        b.take(&two).await.fence,
        a.take(&three).await.fence,
    ];
    assert!(mark(&mut c, &job, fences[1], "NFS").await);
    assert_eq!(b.renew(&two, None).await, Renewal::Broken(broken("NFS")));
    a.renewed(&one, None).await;
    a.renewed(&three, None).await;
    let marked: Vec<_> = c
        .inspect(&job)
        .await
        .holders
        .into_iter()
        .filter(|holder| holder.broken.is_some())
        .map(|it| it.fence)
        .collect();
    assert_eq!(marked, [Some(fences[1])]);
    if lab.kind.bound_to_processes() {
        return;
    }
    assert!(evict(&mut c, &job, fences[1]).await);
    assert_eq!(b.renew(&two, None).await, Renewal::NotHeld);
    a.renewed(&one, None).await;
    a.renewed(&three, None).await;
    b.refused(&request(&job, LONG)).await;
    a.release(&one, Scope::Hold).await;
    a.free(&three).await;
    let past = history(&mut b, &job).await.past;
    assert!(
        past.iter()
            .map(|past| (past.fence, past.end == End::Broken))
            .eq([2, 1, 0].map(|n: usize| (Some(fences[n]), n == 1))),
        "{past:?}"
    );
}
