//! Breaking a hold: its holder has a whole lease to answer.

use super::*;
use crate::lock::{Break, End, Fence};

fn mark() -> Break {
    Break {
        by: "ann@desk".into(),
        why: None,
        seen: false,
    }
}

/// Breaks the hold as it is now.
async fn broken(world: &LeaseWorld, fence: Fence, at_once: bool) -> BreakOutcome<()> {
    let (key, mark, state) = (key(), mark(), world.state().await);
    let seen = state.holders.first().expect("a holder");
    let request = BreakRequest {
        key: &key,
        seen,
        fence,
        mark: &mark,
        at_once,
    };
    break_hold(
        &mut world.client(&[]),
        &world.clock,
        request,
        LIMITS,
        pending(),
        |_| (),
    )
    .await
    .unwrap()
}

/// Its lease is extended by a repeated request, as that of a client which does not know marks.
#[tokio::test(start_paused = true)]
async fn a_holder_without_an_answer_is_evicted_after_its_lease() {
    let world = LeaseWorld::new();
    let (mut client, request) = (world.client(&[]), request());
    let Attempt::Granted(grant) = client.try_acquire(&request).await.unwrap() else {
        panic!("not free")
    };
    tokio::time::sleep(secs(20)).await;
    let before = world.clock.now();
    let extending = async {
        tokio::time::sleep(secs(30)).await;
        client.try_acquire(&request).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(broken(&world, grant.fence, false), extending);
    assert!(matches!(outcome, BreakOutcome::Evicted), "{outcome:?}");
    let took = world.clock.now().since(before);
    assert!(secs(61) <= took && took < secs(62), "{took:?}");
    assert!(world.is_free().await);
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_stops_its_command_has_all_the_time_it_needs() {
    let world = LeaseWorld::new();
    let mut client = world.client(&[]);
    let lease = world.taken(&mut client).await;
    let before = world.clock.now();
    let stopping = async {
        for _ in 0..10 {
            tokio::time::sleep(secs(10)).await;
            client
                .renew(&lease.key, &lease.token, Intent::Drain)
                .await
                .unwrap();
        }
        client
            .release(&lease.key, &lease.token, &Scope::Tree.into())
            .await
            .unwrap();
    };
    let (outcome, ()) = tokio::join!(broken(&world, lease.fence, false), stopping);
    assert!(
        matches!(outcome, BreakOutcome::Over(Some(End::Released))),
        "{outcome:?}"
    );
    assert!(world.clock.now().since(before) >= secs(100));
}

#[tokio::test(start_paused = true)]
async fn only_the_hold_that_was_seen_is_broken() {
    let world = LeaseWorld::new();
    let lease = world.taken(&mut world.client(&[])).await;
    for at_once in [false, true] {
        let outcome = broken(&world, Fence(lease.fence.0 + 1), at_once).await;
        assert!(matches!(outcome, BreakOutcome::Changed), "{outcome:?}");
    }
    assert!(!world.is_free().await);
    let outcome = broken(&world, lease.fence, true).await;
    assert!(
        matches!(outcome, BreakOutcome::Evicted) && world.is_free().await,
        "{outcome:?}"
    );
}
