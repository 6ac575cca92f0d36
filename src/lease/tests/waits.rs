//! How long a waiter waits, and answers that the in-memory store does not give.

use super::*;
use crate::lock::StoreSession;

/// Returns how long a waiter waits at a time while it gets this answer for 20 seconds.
async fn waits(busy: Busy) -> Vec<Duration> {
    let world = LeaseWorld::new();
    let mut client = Faulty {
        planned: [Attempt::Busy(busy)].into(),
        ..world.client(&[])
    };
    let outcome = world
        .acquire(&mut client, WaitPolicy::For(secs(20)))
        .await
        .unwrap();
    assert!(matches!(outcome, Outcome::Busy(_)), "{outcome:?}");
    let mut waits = client.waits.take();
    // The end of the wait cut the last one short.
    waits.pop();
    waits
}

#[tokio::test(start_paused = true)]
async fn a_waiter_looks_again_when_the_lock_may_be_free() {
    let told = Busy {
        notifies: true,
        ..Busy::default()
    };
    let all = |waits: &[Duration], least: u64, most: u64| {
        !waits.is_empty()
            && waits
                .iter()
                .all(|wait| (least..=most).contains(&u64::try_from(wait.as_millis()).unwrap()))
    };
    let of_told = waits(told.clone()).await;
    assert!(all(&of_told, 5000, 5000), "{of_told:?}");
    // The waiters of a holder that announces no release do not all ask at once.
    let of_untold = waits(Busy::default()).await;
    assert!(
        all(&of_untold, 187, 250) && of_untold.iter().min() < of_untold.iter().max(),
        "{of_untold:?}"
    );
    // An expiry is known to the millisecond.
    let of_expiring = waits(Busy {
        expires_in: Some(Duration::from_millis(10)),
        ..told
    })
    .await;
    assert!(
        all(&of_expiring, 11, 61) && of_expiring.iter().min() < of_expiring.iter().max(),
        "{of_expiring:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_fresh_request_that_is_answered_as_a_nested_one_is_an_error() {
    let world = LeaseWorld::new();
    let mut client = Faulty {
        planned: [Attempt::NotHeld].into(),
        ..world.client(&[])
    };
    let error = world
        .acquire(&mut client, WaitPolicy::Forever)
        .await
        .expect_err("no answer to a fresh request");
    assert_eq!(error.kind, Kind::Internal, "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_session_is_passed_on_with_a_detached_hold_only() {
    let world = LeaseWorld::new();
    let session = Some(StoreSession {
        id: 7,
        password: [1; 16],
    });
    for detached in [true, false] {
        let planned = [Attempt::Granted(Grant {
            session,
            ..grant(1)
        })]
        .into();
        let mut client = Faulty {
            planned,
            ..world.client(&[])
        };
        let wanted = Request {
            detached,
            ..request()
        };
        let outcome = acquire(
            &mut client,
            &world.clock,
            wanted,
            WaitPolicy::Try,
            LIMITS,
            pending::<()>(),
            |_| (),
        )
        .await
        .unwrap();
        let Outcome::Granted(lease) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(lease.token.session, session.filter(|_| detached));
    }
}
