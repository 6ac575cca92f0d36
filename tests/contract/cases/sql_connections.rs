//! Connections to a SQL server that are lost without a word.

use std::{future::pending, time::Duration};

use dlock::{
    lease::{self, BootClock, Limits, Outcome, Released, WaitPolicy},
    lock::{Attempt, Scope},
};
use futures_util::future::join_all;
use tokio::time::Instant;

use super::{Case, cases};
use crate::{
    lab::{LONG, Lab, key, request, waiting},
    support::proxy::{Fault, Proxy},
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind.held_by_session() && kind.is_sql() =>
        a_waiter_is_not_locked_out_by_its_own_lost_sessions,
        a_waiter_that_gives_up_leaves_no_lost_session_with_the_lock,
        a_lost_session_with_a_running_command_is_not_ended,
        a_release_over_a_lost_session_frees_the_lock,
    ]
}

const LIMITS: Limits<'static> = Limits::of(Duration::from_secs(2));
/// More requests than one grant takes.
const REQUESTS: usize = 14;

/// The network forgets all connections at each request of a grant, which the server still sees.
async fn a_waiter_is_not_locked_out_by_its_own_lost_sessions(lab: &Lab) {
    lab.until_sessions_can_be_ended().await;
    let each = (0..REQUESTS).map(async |nth| {
        let proxy = Proxy::to(lab.store().port());
        let (mut a, job) = (lab.through(proxy.port), key(&format!("job-{nth}")));
        proxy.trap_nth("", nth, 1, Fault::Forget);
        let wait_policy = WaitPolicy::For(LONG / 2);
        let asked = lease::acquire(
            &mut *a.0,
            &BootClock,
            request(&job, LONG),
            wait_policy,
            LIMITS,
            pending::<()>(),
            |_| {},
        );
        let outcome = asked.await;
        let Ok(Outcome::Granted(lease)) = outcome else {
            panic!("{nth}: {outcome:?}")
        };
        let state = lab.client().await.inspect(&job).await;
        assert!(
            matches!(&state.holders[..], [holder] if holder.fence == Some(lease.fence)),
            "{nth}: {state:?}"
        );
        proxy.sprung()
    });
    let sprung: usize = join_all(each).await.into_iter().sum();
    assert!(sprung > 3, "{sprung}");
}

async fn a_waiter_that_gives_up_leaves_no_lost_session_with_the_lock(lab: &Lab) {
    lab.until_sessions_can_be_ended().await;
    let mut stopped = 0;
    // One after the other: dlock gives up on the undo soon.
    for nth in 0..REQUESTS {
        let proxy = Proxy::to(lab.store().port());
        let (mut a, job) = (lab.through(proxy.port), key(&format!("job-{nth}")));
        proxy.trap_nth("", nth, 1, Fault::Forget);
        let stop = async {
            while proxy.sprung() == 0 {
                lab.pass(Duration::from_millis(5)).await;
            }
            lab.pass(Duration::from_millis(50)).await;
        };
        let outcome = lease::acquire(
            &mut *a.0,
            &BootClock,
            request(&job, LONG),
            WaitPolicy::Forever,
            LIMITS,
            stop,
            |_| {},
        )
        .await;
        match outcome {
            // Beyond the last request of a grant.
            Ok(Outcome::Granted(_)) => break,
            outcome => assert!(
                matches!(outcome, Ok(Outcome::Stopped(()))),
                "{nth}: {outcome:?}"
            ),
        }
        let began = Instant::now();
        lab.client()
            .await
            .wait_for(&waiting(&job, LONG), Duration::from_millis(100))
            .await;
        assert!(began.elapsed() < LONG / 3, "{nth}: {:?}", began.elapsed());
        stopped += 1;
    }
    assert!(stopped > 3, "{stopped}");
}

async fn a_lost_session_with_a_running_command_is_not_ended(lab: &Lab) {
    let proxy = Proxy::to(lab.store().port());
    let (mut a, job) = (lab.through(proxy.port), key("job"));
    let held = a.hold(&job).await;
    proxy.forget();
    for _ in 0..3 {
        let renewal = tokio::time::timeout(
            Duration::from_millis(200),
            a.0.renew(&job, &held.token, None.into()),
        )
        .await;
        assert!(renewal.is_err(), "{renewal:?}");
    }
    // The same client opens and ends other sessions.
    let asked = lease::acquire(
        &mut *a.0,
        &BootClock,
        request(&key("b"), LONG),
        WaitPolicy::For(LONG),
        LIMITS,
        pending::<()>(),
        |_| {},
    );
    assert!(matches!(asked.await, Ok(Outcome::Granted(_))));
    proxy.trap("", Fault::Forget);
    let asked = lease::acquire(
        &mut *a.0,
        &BootClock,
        request(&key("c"), LONG),
        WaitPolicy::For(LONG),
        LIMITS,
        pending::<()>(),
        |_| {},
    );
    assert!(matches!(asked.await, Ok(Outcome::Granted(_))));
    for name in ["job", "b"] {
        let mut other = lab.client().await;
        let attempt = other.attempt(&request(&key(name), LONG)).await;
        assert!(matches!(attempt, Attempt::Busy(_)), "{name}: {attempt:?}");
    }
}

/// The release reaches the server, or does not.
async fn a_release_over_a_lost_session_frees_the_lock(lab: &Lab) {
    lab.until_sessions_can_be_ended().await;
    for arrives in [true, false] {
        let proxy = Proxy::to(lab.store().port());
        let (mut a, job) = (lab.through(proxy.port), key(&format!("job-{arrives}")));
        let held = a.hold(&job).await;
        if arrives {
            proxy.trap("", Fault::Forget);
        } else {
            proxy.forget();
        }
        let released = lease::release(
            &mut *a.0,
            &BootClock,
            &job,
            &held.token,
            &Scope::Tree.into(),
            Limits::DEFAULT,
        )
        .await;
        assert!(matches!(released, Released::Unknown(_)), "{released:?}");
        let mut b = lab.client().await;
        let grant = b
            .wait_for(&waiting(&job, LONG), Duration::from_millis(100))
            .await;
        assert_eq!(
            grant.drain_delay,
            Duration::ZERO,
            "{arrives}: no command runs"
        );
        let history = b.0.history(&job).await.expect("history");
        let ends: Vec<_> = history
            .past
            .iter()
            .map(|past| past.end.to_string())
            .collect();
        assert_eq!(ends, ["released"], "{arrives}: {history:?}");
    }
}
