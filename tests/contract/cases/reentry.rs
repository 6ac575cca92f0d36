//! Entering an ancestor's hold.

use std::time::Duration;

use dlock::lock::{Attempt, Effect, Release, Renewal, Request, Scope};

use super::{Case, cases};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, nested, request, short},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![Kind::crosses_processes =>
        holds_nest_three_deep,
        entering_twice_counts_once,
        entering_a_lock_that_is_not_held_fails,
        entering_does_not_shorten,
        a_nested_hold_ends_by_itself,
        a_nested_renewal_does_not_shorten_the_lock,
        releasing_a_hold_leaves_the_nested_ones,
        releasing_the_tree_drops_the_nested_holds,
        releasing_a_nested_tree_leaves_the_outer_hold,
        nested_holds_keep_others_out,
        a_released_nested_hold_leaves_its_sibling,
        a_hold_is_not_entered_while_the_lock_is_freed,
        one_of_two_simultaneous_releases_frees_the_lock,
        a_dropped_entry_does_not_keep_the_lock,
    ]
}

async fn holds_nest_three_deep(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let outer = a.hold(&job).await;
    let (middle, inner) = (nested(&outer), nested(&outer));
    assert_eq!(b.take(&middle).await.holds, 2);
    assert_eq!(c.take(&inner).await.holds, 3);
    assert_eq!(a.inspect(&job).await.holders.len(), 1, "one owner");
    assert_eq!(a.inspect(&job).await.holders[0].holds, 3);
    for (client, held) in [(&mut a, &outer), (&mut b, &middle), (&mut c, &inner)] {
        client.renewed(held, None).await;
    }
    assert_eq!(c.release(&inner, Scope::Hold).await, Release::StillHeld(2));
    assert_eq!(c.release(&inner, Scope::Hold).await, Release::NotHeld);
    assert_eq!(b.release(&middle, Scope::Hold).await, Release::StillHeld(1));
    assert_eq!(a.release(&outer, Scope::Hold).await, Release::Released);
    assert!(c.inspect(&job).await.holders.is_empty());
}

async fn entering_twice_counts_once(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let outer = a.hold(&job).await;
    let inner = nested(&outer);
    for _ in 0..3 {
        assert_eq!(b.take(&inner).await.holds, 2);
    }
    assert_eq!(b.release(&inner, Scope::Hold).await, Release::StillHeld(1));
}

async fn entering_a_lock_that_is_not_held_fails(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let never = Request {
        entry: dlock::lock::Entry::Reenter,
        ..request(&job, LONG)
    };
    assert!(
        matches!(b.attempt(&never).await, Attempt::NotHeld),
        "a lock that is free"
    );
    let outer = a.hold(&job).await;
    assert!(
        matches!(b.attempt(&never).await, Attempt::NotHeld),
        "a lock that another owner has"
    );
    a.free(&outer).await;
    assert!(
        matches!(b.attempt(&nested(&outer)).await, Attempt::NotHeld),
        "a lock that was released"
    );
    let heir = b.hold(&job).await;
    assert!(
        matches!(a.attempt(&nested(&outer)).await, Attempt::NotHeld),
        "a lock that passed to another owner"
    );
    b.renewed(&heir, None).await;
    let brief = lab.expiring(&key("other"), short());
    a.take(&brief).await;
    lab.outlast(short()).await;
    assert!(
        matches!(b.attempt(&nested(&brief)).await, Attempt::NotHeld),
        "a lock that expired"
    );
    assert!(b.inspect(&key("other")).await.holders.is_empty());
}

async fn entering_does_not_shorten(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let outer = lab.expiring(&job, LONG);
    a.take(&outer).await;
    b.take(&Request {
        ttl: crate::lab::ttl(short()),
        ..nested(&outer)
    })
    .await;
    assert!(a.left(&job).await > LONG / 2);
    // Entering does not shorten the outer hold's next renewal either.
    a.renewed(&outer, None).await;
    assert!(a.left(&job).await > LONG * 9 / 10);
}

async fn a_nested_hold_ends_by_itself(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let outer = lab.expiring(&job, LONG);
    a.take(&outer).await;
    let inner = Request {
        ttl: crate::lab::ttl(short()),
        ..nested(&outer)
    };
    assert_eq!(b.take(&inner).await.holds, 2);
    lab.outlast(short()).await;
    assert_eq!(a.inspect(&job).await.holders[0].holds, 1);
    assert_eq!(b.renew(&inner, None).await, Renewal::NotHeld);
    assert_eq!(b.release(&inner, Scope::Hold).await, Release::NotHeld);
    a.free(&outer).await;
}

async fn a_nested_renewal_does_not_shorten_the_lock(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let outer = lab.expiring(&job, LONG);
    a.take(&outer).await;
    let inner = Request {
        ttl: crate::lab::ttl(short()),
        ..nested(&outer)
    };
    b.take(&inner).await;
    lab.pass(SLACK).await;
    b.renewed(&inner, None).await;
    assert!(a.left(&job).await > LONG / 2);
}

async fn releasing_a_hold_leaves_the_nested_ones(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let outer = lab.expiring(&job, LONG);
    a.take(&outer).await;
    let inner = nested(&outer);
    b.take(&inner).await;
    assert_eq!(a.release(&outer, Scope::Hold).await, Release::StillHeld(1));
    c.refused(&request(&job, LONG)).await;
    b.renewed(&inner, None).await;
    assert_eq!(b.release(&inner, Scope::Hold).await, Release::Released);
    c.hold(&job).await;
}

async fn releasing_the_tree_drops_the_nested_holds(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let outer = a.hold(&job).await;
    let inner = nested(&outer);
    b.take(&inner).await;
    if lab.kind.bound_to_processes() {
        // Here a living process keeps its hold, so the nested process ends before the tree is
        // released.
        b = lab.client().await;
    }
    assert_eq!(a.release(&outer, Scope::Tree).await, Release::Released);
    assert_eq!(b.renew(&inner, None).await, Renewal::NotHeld);
    c.hold(&job).await;
    assert_eq!(b.release(&inner, Scope::Tree).await, Release::NotHeld);
    assert_eq!(a.inspect(&job).await.holders.len(), 1);
}

async fn releasing_a_nested_tree_leaves_the_outer_hold(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let outer = a.hold(&job).await;
    let inner = nested(&outer);
    b.take(&inner).await;
    assert_eq!(b.release(&inner, Scope::Tree).await, Release::StillHeld(1));
    lab.client().await.refused(&request(&job, LONG)).await;
    a.renewed(&outer, None).await;
}

async fn nested_holds_keep_others_out(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let outer = a.hold(&job).await;
    let inner = nested(&outer);
    b.take(&inner).await;
    c.refused(&request(&job, LONG)).await;
    assert_eq!(b.release(&inner, Scope::Hold).await, Release::StillHeld(1));
    c.refused(&request(&job, LONG)).await;
    a.free(&outer).await;
    c.hold(&job).await;
}

async fn a_released_nested_hold_leaves_its_sibling(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let outer = a.hold(&job).await;
    let (one, two) = (nested(&outer), nested(&outer));
    b.take(&one).await;
    c.take(&two).await;
    assert_eq!(b.release(&one, Scope::Hold).await, Release::StillHeld(2));
    c.renewed(&two, None).await;
    assert_eq!(b.renew(&one, None).await, Renewal::NotHeld);
    a.renewed(&outer, None).await;
}

/// The delays between two calls, in microseconds.
const OFFSETS: [u64; 12] = [0, 100, 200, 300, 400, 500, 700, 900, 1200, 1500, 2000, 3000];

/// Releases, and repeats the request on a conflict, as the core does.
async fn release_retrying(client: &mut Client, held: &Request) -> Release {
    loop {
        match client
            .0
            .release(&held.key, &held.token, &Scope::Hold.into())
            .await
        {
            Ok(answer) => return answer,
            Err(error) => assert!(
                error.is_transient() && error.effect == Effect::NotApplied,
                "{error:?}"
            ),
        }
    }
}

/// Enters, and repeats the request on a conflict, as the core does. Repeated requests enter once.
async fn enter_retrying(client: &mut Client, inner: &Request) -> Attempt {
    loop {
        match client.0.try_acquire(inner).await {
            Ok(answer) => return answer,
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
    }
}

/// A leftover of the outer command (`--leftover leave`) may enter while the hold is released: it
/// either keeps the lock, or finds the lock released.
async fn a_hold_is_not_entered_while_the_lock_is_freed(lab: &Lab) {
    let (mut a, mut b, mut other) = (lab.client().await, lab.client().await, lab.client().await);
    for (offset, entry_first) in OFFSETS
        .into_iter()
        .map(Duration::from_micros)
        .flat_map(|offset| [(offset, true), (offset, false)])
    {
        let job = key(&format!("job-{offset:?}-{entry_first}"));
        let outer = lab.expiring(&job, LONG);
        a.take(&outer).await;
        let inner = nested(&outer);
        let (before_entry, before_release) = if entry_first {
            (Duration::ZERO, offset)
        } else {
            (offset, Duration::ZERO)
        };
        let entry = async {
            lab.pass(before_entry).await;
            enter_retrying(&mut b, &inner).await
        };
        let release = async {
            lab.pass(before_release).await;
            release_retrying(&mut a, &outer).await
        };
        let (entered, left) = tokio::join!(entry, release);
        match entered {
            Attempt::Granted(_) => {
                assert_eq!(
                    left,
                    Release::StillHeld(1),
                    "{job}: a nested hold had entered"
                );
                b.renewed(&inner, None).await;
                other.refused(&request(&job, LONG)).await;
                b.free(&inner).await;
            }
            Attempt::NotHeld => {
                assert_eq!(left, Release::Released, "{job}: no nested hold had entered");
            }
            other => panic!("{job}: {other:?}"),
        }
        other.hold(&job).await;
    }
}

async fn one_of_two_simultaneous_releases_frees_the_lock(lab: &Lab) {
    let (mut a, mut b, mut other) = (lab.client().await, lab.client().await, lab.client().await);
    for offset in OFFSETS.map(Duration::from_micros) {
        let job = key(&format!("job-{offset:?}"));
        let outer = lab.expiring(&job, LONG);
        a.take(&outer).await;
        let inner = nested(&outer);
        b.take(&inner).await;
        let later = async {
            lab.pass(offset).await;
            release_retrying(&mut b, &inner).await
        };
        let answers = tokio::join!(release_retrying(&mut a, &outer), later);
        let both = [Release::Released, Release::StillHeld(1)];
        assert!(
            answers.0 != answers.1 && both.contains(&answers.0) && both.contains(&answers.1),
            "{job}: {answers:?}"
        );
        other.hold(&job).await;
    }
}

/// The dropped entry is the last hold when the outer one is released, and is undone then.
async fn a_dropped_entry_does_not_keep_the_lock(lab: &Lab) {
    let (mut a, mut other) = (lab.client().await, lab.client().await);
    for offset in OFFSETS.map(Duration::from_micros) {
        let job = key(&format!("job-{offset:?}"));
        let outer = lab.expiring(&job, LONG);
        a.take(&outer).await;
        let (mut b, inner) = (lab.client().await, nested(&outer));
        let _ = tokio::time::timeout(offset, b.0.try_acquire(&inner)).await;
        let left = release_retrying(&mut a, &outer).await;
        let undone = release_retrying(&mut b, &inner).await;
        assert!(
            matches!(
                (left, undone),
                (Release::StillHeld(1), Release::Released) | (Release::Released, Release::NotHeld)
            ),
            "{job}: {left:?}, {undone:?}"
        );
        other.hold(&job).await;
    }
}
