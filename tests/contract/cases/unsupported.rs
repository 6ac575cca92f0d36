//! A backend refuses what it does not declare, with the reason, before it contacts its store.

use std::time::Duration;

use dlock::{
    lease::{self, BootClock, Limits, WaitPolicy},
    lock::{Amendment, Effect, Entry, Error, Fence, Kind as ErrorKind, Mode, Renewal, Request},
};

use super::{Case, cases, everywhere};
use crate::{
    lab::{LONG, Lab, key, request, ttl},
    targets::Kind,
};

const LIMITS: Limits<'static> = Limits::of(Duration::from_millis(300));

pub fn all() -> Vec<Case> {
    cases![everywhere =>
        undeclared_capabilities_are_refused_without_asking,
        declared_capabilities_work,
        a_ttl_out_of_range_is_refused_without_asking,
        another_ttl_is_refused_where_a_hold_keeps_one_ttl,
    ]
}

/// Returns each optional feature, whether the backend declares it, and a request for it.
fn asked_for(capabilities: &dlock::lock::Capabilities) -> Vec<(&'static str, bool, Request)> {
    let plain = || request(&key("job"), LONG);
    vec![
        (
            "shared",
            capabilities.shared,
            Request {
                mode: Mode::Shared,
                ..plain()
            },
        ),
        (
            "permits",
            capabilities.permits,
            Request {
                mode: Mode::Permits(3),
                ..plain()
            },
        ),
        (
            "fair",
            capabilities.fair,
            Request {
                fair: true,
                ..plain()
            },
        ),
        (
            "detached",
            capabilities.detached,
            Request {
                detached: true,
                ..plain()
            },
        ),
        (
            "nested",
            capabilities.reentrant,
            Request {
                entry: Entry::Reenter,
                ..plain()
            },
        ),
    ]
}

fn assert_refused(what: &str, backend: &str, error: &Error) {
    assert_eq!(error.kind, ErrorKind::Unsupported, "{what}: {error:?}");
    assert_eq!(error.effect, Effect::NotApplied, "{what}");
    assert!(error.message.contains(backend), "{what}: {error}");
}

async fn undeclared_capabilities_are_refused_without_asking(lab: &Lab) {
    // This client's store is unreachable: any answer but "unavailable" came without contact.
    let mut backend = lab.unreachable().await;
    let capabilities = backend.identity().capabilities.clone();
    for (what, has, request) in asked_for(&capabilities) {
        let never = std::future::pending::<()>();
        let outcome = lease::acquire(
            &mut *backend,
            &BootClock,
            request,
            WaitPolicy::Try,
            LIMITS,
            never,
            |_| {},
        )
        .await;
        match outcome {
            Err(error) if !has => assert_refused(what, capabilities.backend, &error),
            Ok(_) if has && lab.kind == Kind::Memory => {}
            Err(error) if has => {
                assert_ne!(error.kind, ErrorKind::Unsupported, "{what}: {error:?}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    assert_eq!(
        (capabilities.history, capabilities.breakable),
        (true, true),
        "every store has them"
    );
    let job = key("job");
    let mark = super::history::broken("NFS");
    let history = backend
        .history(&job)
        .await
        .err()
        .filter(|_| !capabilities.history);
    let marked = backend
        .amend(&job, Amendment::Mark(Fence(7), &mark))
        .await
        .err()
        .filter(|_| !capabilities.breakable);
    let evicted = backend
        .amend(&job, Amendment::Evict(Fence(7), &mark))
        .await
        .err()
        .filter(|_| !capabilities.breakable);
    for error in [history, marked, evicted].into_iter().flatten() {
        assert_refused("history and break", capabilities.backend, &error);
    }
}

async fn declared_capabilities_work(lab: &Lab) {
    let mut a = lab.client().await;
    for (what, has, request) in asked_for(&a.capabilities()) {
        // There is no hold to enter here; the cases in `reentry` test that.
        if has && request.entry == Entry::Fresh {
            let grant = a.take(&request).await;
            assert!(!a.capabilities().fencing || grant.fence.0 > 0, "{what}");
            a.free(&request).await;
        }
    }
}

async fn another_ttl_is_refused_where_a_hold_keeps_one_ttl(lab: &Lab) {
    let mut backend = lab.unreachable().await;
    let capabilities = backend.identity().capabilities.clone();
    assert_eq!(capabilities.adjustable_ttl, lab.kind.adjusts_ttl());
    if !capabilities.adjustable_ttl {
        let held = request(&key("job"), LONG);
        let error = backend
            .renew(&held.key, &held.token, Some(ttl(LONG * 2)).into())
            .await
            .expect_err("a TTL that can't change");
        assert_refused("another ttl", capabilities.backend, &error);
    }
}

async fn a_ttl_out_of_range_is_refused_without_asking(lab: &Lab) {
    let capabilities = lab.client().await.capabilities();
    assert_eq!(capabilities.shared, lab.kind.shared());
    assert_eq!(
        (capabilities.permits, capabilities.fair),
        (lab.kind.permits(), lab.kind.fair())
    );
    assert!(capabilities.run_policy, "every store applies run policies");
    assert!(capabilities.ttl_min <= capabilities.ttl_max);
    assert!(capabilities.ttl_granularity > Duration::ZERO);
    for end in [capabilities.ttl_min, capabilities.ttl_max] {
        let mut a = lab.client().await;
        let held = request(&key(&format!("{end:?}")), end);
        assert_eq!(a.take(&held).await.ttl.get(), end);
        assert!(matches!(
            a.renew(&held, lab.other_ttl(end).await).await,
            Renewal::Renewed { .. }
        ));
        a.free(&held).await;
    }
    for outside in [capabilities.ttl_min / 2, capabilities.ttl_max * 2] {
        if let Ok(outside) = dlock::lock::Ttl::new(outside) {
            let error = capabilities.check_ttl(outside).expect_err("out of range");
            assert_refused("ttl", capabilities.backend, &error);
        }
    }
    assert_eq!(
        capabilities.clamp_ttl(ttl(LONG)).get(),
        LONG.clamp(capabilities.ttl_min, capabilities.ttl_max)
    );
}
