//! Acquire, renew, enter and release.

use std::{collections::HashSet, time::Duration};

use super::server::{TestServer, busy, granted, key, nested, pause, request, ttl};
use crate::lock::{
    Attempt, Backend as _, Effect, Entry, Grant, Kind, Mode, Namespace, Release, Renewal, Request,
    Scope, Token,
};

#[tokio::test]
async fn one_client_holds_and_fences_rise() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.backend(), server.backend());
    let (first, second) = (request("job"), request("job"));
    let grant = granted(&mut a, &first).await;
    assert_eq!((grant.ttl, grant.holds), (first.ttl, 1));
    let refused = busy(&mut b, &second).await;
    assert_eq!(refused.holders.len(), 1);
    assert_eq!(refused.holders[0].fence, Some(grant.fence));
    assert!(
        refused.notifies
            && refused.expires_in.unwrap() <= Duration::from_secs(10)
            && refused.position.is_none()
    );
    assert_eq!(
        a.release(&first.key, &first.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::Released
    );
    assert!(granted(&mut b, &second).await.fence > grant.fence);
    assert_eq!(
        a.release(&first.key, &first.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::NotHeld
    );
    assert_eq!(
        a.renew(&first.key, &first.token, None.into())
            .await
            .unwrap(),
        Renewal::NotHeld
    );
    busy(&mut a, &request("job")).await;
}

#[tokio::test]
async fn the_layout_is_redissons_write_lock_and_every_name_expires_but_the_fence() {
    let server = TestServer::start();
    let mut a = server.backend();
    let asked = request("job");
    granted(&mut a, &asked).await;
    let field = format!("{}:1:write", asked.token.owner);
    assert_eq!(server.number(&["HLEN", "dlock:job"]), 2);
    assert_eq!(server.raw(&["HGET", "dlock:job", "mode"]), "$5\r\nwrite");
    assert_eq!(server.raw(&["HGET", "dlock:job", &field]), "$1\r\n1");
    let left = server.number(&["PTTL", "dlock:job"]);
    assert!((9_000..=10_001).contains(&left), "{left}");
    // The record outlives the lock for the history.
    let kept = server.number(&["PEXPIRETIME", "dlock:{dlock:job}:record"])
        - server.number(&["PEXPIRETIME", "dlock:job"]);
    assert_eq!(kept, 100 * 24 * 3600 * 1000);
    assert_eq!(
        server.number(&["PTTL", "redisson_lock_token:{dlock:job}"]),
        -1
    );
    assert_eq!(server.number(&["DBSIZE"]), 3);
    a.release(&asked.key, &asked.token, &Scope::Tree.into())
        .await
        .unwrap();
    assert_eq!(
        server.names(),
        ["dlock:{dlock:job}:runs", "redisson_lock_token:{dlock:job}"],
        "the fence and the history stay"
    );
}

#[tokio::test]
async fn a_repeated_request_counts_once() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.backend(), server.backend());
    let asked = request("job");
    let first = granted(&mut a, &asked).await;
    server.raw(&["PEXPIRE", "dlock:job", "500"]);
    let again = granted(&mut b, &asked).await;
    assert_eq!((again.fence, again.holds), (first.fence, 1));
    assert!(
        server.number(&["PTTL", "dlock:job"]) > 9_000,
        "the expiry is renewed"
    );
    assert!(server.number(&["PTTL", "dlock:{dlock:job}:record"]) > 9_000);
    assert_eq!(
        b.release(&asked.key, &asked.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::Released
    );
}

#[tokio::test]
async fn an_expired_hold_has_no_owner() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.backend(), server.backend());
    let short = Request {
        ttl: ttl(1_000),
        ..request("job")
    };
    let first = granted(&mut a, &short).await;
    pause(1_020).await;
    assert_eq!(
        server.names(),
        [
            "dlock:{dlock:job}:record",
            "redisson_lock_token:{dlock:job}"
        ],
        "no other key outlives the TTL"
    );
    assert_eq!(
        a.renew(&short.key, &short.token, None.into())
            .await
            .unwrap(),
        Renewal::NotHeld
    );
    assert_eq!(
        server.number(&["EXISTS", "dlock:job"]),
        0,
        "a renewal never re-creates"
    );
    let second = request("job");
    assert!(granted(&mut b, &second).await.fence > first.fence);
    assert_eq!(
        a.release(&short.key, &short.token, &Scope::Tree.into())
            .await
            .unwrap(),
        Release::NotHeld
    );
    assert!(matches!(
        b.renew(&second.key, &second.token, None.into())
            .await
            .unwrap(),
        Renewal::Renewed { .. }
    ));
}

#[tokio::test]
async fn renewing_extends_and_never_shortens() {
    let server = TestServer::start();
    let mut a = server.backend();
    let asked = Request {
        ttl: ttl(5_000),
        ..request("job")
    };
    let Grant { fence, .. } = granted(&mut a, &asked).await;
    pause(1_000).await;
    let renewed = a
        .renew(&asked.key, &asked.token, None.into())
        .await
        .unwrap();
    assert_eq!(
        renewed,
        Renewal::Renewed {
            ttl: ttl(5_000),
            fence
        }
    );
    // Without a renewal it has at most 4 s left; a busy machine may check late.
    assert!(server.number(&["PTTL", "dlock:job"]) > 4_000);
    assert_eq!(
        a.renew(&asked.key, &asked.token, Some(ttl(60_000)).into())
            .await
            .unwrap(),
        Renewal::Renewed {
            ttl: ttl(60_000),
            fence
        }
    );
    match a
        .renew(&asked.key, &asked.token, Some(ttl(2_000)).into())
        .await
        .unwrap()
    {
        Renewal::Kept {
            expires_in: Some(expires_in),
        } => assert!(expires_in > Duration::from_secs(59)),
        other => panic!("{other:?}"),
    }
    for name in ["dlock:job", "dlock:{dlock:job}:record"] {
        assert!(server.number(&["PTTL", name]) > 59_000, "{name}");
    }
}

/// Each computation of the remaining time may be a millisecond off: many renewals must not add that
/// up.
#[tokio::test]
async fn renewals_never_cut_a_longer_nested_hold() {
    let server = TestServer::start();
    let mut a = server.backend();
    let outer = request("job");
    granted(&mut a, &outer).await;
    granted(
        &mut a,
        &Request {
            ttl: ttl(600_000),
            ..nested(&outer)
        },
    )
    .await;
    let end = || server.number(&["PEXPIRETIME", "dlock:job"]);
    let granted_until = end();
    for _ in 0..500 {
        a.renew(&outer.key, &outer.token, None.into())
            .await
            .unwrap();
    }
    assert!(
        end() >= granted_until,
        "cut by {} ms",
        granted_until - end()
    );
}

#[tokio::test]
async fn entering_counts_holds_and_keeps_the_fence() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.backend(), server.backend());
    let outer = request("job");
    let inner = Request {
        ttl: ttl(2_000),
        ..nested(&outer)
    };
    assert!(
        matches!(b.try_acquire(&inner).await.unwrap(), Attempt::NotHeld),
        "there is no hold to enter yet"
    );
    let first = granted(&mut a, &outer).await;
    for _ in 0..2 {
        let entered = granted(&mut b, &inner).await;
        assert_eq!(
            (entered.fence, entered.holds),
            (first.fence, 2),
            "repeated requests count once"
        );
    }
    assert!(
        server.number(&["PTTL", "dlock:job"]) > 9_000,
        "entering with a shorter TTL shortens nothing"
    );
    assert_eq!(
        b.renew(&inner.key, &inner.token, None.into())
            .await
            .unwrap(),
        Renewal::Renewed {
            ttl: ttl(2_000),
            fence: first.fence
        }
    );
    assert!(server.number(&["PTTL", "dlock:job"]) > 9_000);
    assert_eq!(
        b.release(&inner.key, &inner.token, &Scope::Tree.into())
            .await
            .unwrap(),
        Release::StillHeld(1)
    );
    assert_eq!(
        b.release(&inner.key, &inner.token, &Scope::Tree.into())
            .await
            .unwrap(),
        Release::NotHeld
    );
    assert_eq!(
        a.release(&outer.key, &outer.token, &Scope::Tree.into())
            .await
            .unwrap(),
        Release::Released
    );
    assert!(
        matches!(b.try_acquire(&inner).await.unwrap(), Attempt::NotHeld),
        "there is no hold to enter any more"
    );
    assert_eq!(server.number(&["EXISTS", "dlock:job"]), 0);
}

#[tokio::test]
async fn an_outer_release_ends_or_keeps_the_nested_holds() {
    let server = TestServer::start();
    let mut a = server.backend();
    let outer = request("job");
    let inner = Request {
        ttl: ttl(2_000),
        ..nested(&outer)
    };
    granted(&mut a, &outer).await;
    granted(&mut a, &inner).await;
    assert_eq!(
        a.release(&outer.key, &outer.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::StillHeld(1)
    );
    assert!(
        server.number(&["PTTL", "dlock:job"]) <= 2_001,
        "the lock now ends with the inner hold"
    );
    assert_eq!(
        a.renew(&outer.key, &outer.token, None.into())
            .await
            .unwrap(),
        Renewal::NotHeld
    );
    assert_eq!(
        a.release(&inner.key, &inner.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::Released
    );

    granted(&mut a, &outer).await;
    granted(&mut a, &inner).await;
    assert_eq!(
        a.release(&outer.key, &outer.token, &Scope::Tree.into())
            .await
            .unwrap(),
        Release::Released
    );
    assert_eq!(
        a.renew(&inner.key, &inner.token, None.into())
            .await
            .unwrap(),
        Renewal::NotHeld
    );
}

#[tokio::test]
async fn an_inner_tree_release_keeps_the_outer_hold() {
    // A nested run without remaining processes releases its tree, while the outer command runs on
    // under the lock.
    let server = TestServer::start();
    let mut a = server.backend();
    let outer = request("job");
    let inner = nested(&outer);
    granted(&mut a, &outer).await;
    granted(&mut a, &inner).await;
    assert_eq!(
        a.release(&inner.key, &inner.token, &Scope::Tree.into())
            .await
            .unwrap(),
        Release::StillHeld(1)
    );
    busy(&mut server.backend(), &request("job")).await;
    assert!(matches!(
        a.renew(&outer.key, &outer.token, None.into())
            .await
            .unwrap(),
        Renewal::Renewed { .. }
    ));
}

#[tokio::test]
async fn a_killed_inner_hold_expires() {
    let server = TestServer::start();
    let mut a = server.backend();
    let outer = request("job");
    let killed = Request {
        ttl: ttl(1_000),
        ..nested(&outer)
    };
    granted(&mut a, &outer).await;
    granted(&mut a, &killed).await;
    pause(1_020).await;
    assert_eq!(
        a.renew(&killed.key, &killed.token, None.into())
            .await
            .unwrap(),
        Renewal::NotHeld
    );
    assert_eq!(
        a.release(&killed.key, &killed.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::NotHeld
    );
    assert_eq!(
        granted(&mut a, &nested(&outer)).await.holds,
        2,
        "the killed hold isn't counted"
    );
    assert_eq!(
        server.number(&[
            "HEXISTS",
            "dlock:{dlock:job}:record",
            &format!("hold:{}", killed.token.hold_text())
        ]),
        0
    );
}

#[tokio::test]
async fn one_of_many_simultaneous_requests_is_granted() {
    let server = TestServer::start();
    for _ in 0..20 {
        let mut attempts = Vec::new();
        for _ in 0..10 {
            let (mut backend, asked) = (server.backend(), request("job"));
            attempts.push(async move {
                let got = matches!(
                    backend.try_acquire(&asked).await.unwrap(),
                    Attempt::Granted(_)
                );
                (got, backend, asked)
            });
        }
        let local = tokio::task::LocalSet::new();
        let tasks: Vec<_> = attempts
            .into_iter()
            .map(|attempt| local.spawn_local(attempt))
            .collect();
        local.await;
        let mut winners = 0;
        for task in tasks {
            let (got, mut backend, asked) = task.await.unwrap();
            winners += u32::from(got);
            let expected = if got {
                Release::Released
            } else {
                Release::NotHeld
            };
            assert_eq!(
                backend
                    .release(&asked.key, &asked.token, &Scope::Hold.into())
                    .await
                    .unwrap(),
                expected
            );
            if got {
                break;
            }
        }
        assert_eq!(winners, 1);
    }
}

#[tokio::test]
async fn odd_keys_and_namespaces_are_separate_locks() {
    let server = TestServer::start();
    let mut a = server.backend();
    let names = [
        "../x",
        "a/b",
        "a",
        "a{b}c",
        "{}",
        "%",
        "%25",
        "_",
        "*",
        "job",
        "JOB",
        "job ",
        "a:b",
        "redisson",
        "{dlock:job}:record",
    ];
    let mut fences = HashSet::new();
    for name in names {
        fences.insert(granted(&mut a, &request(name)).await.fence);
    }
    for name in names {
        busy(&mut a, &request(name)).await;
    }
    granted(&mut server.in_namespace("other"), &request("job")).await;
    let mut bare = server.in_namespace("");
    granted(&mut bare, &request("job")).await;
    let shared = busy(&mut bare, &request("dlock:job")).await;
    assert!(
        shared.holders[0].foreign,
        "without a namespace the same name is the same lock"
    );
}

#[tokio::test]
async fn unsupported_requests_are_refused_without_a_query() {
    let mut nowhere = crate::backends::redis::Redis::new(crate::backends::redis::RedisOptions {
        namespace: Namespace::new("x").unwrap(),
        ..crate::backends::redis::RedisOptions::new(crate::backends::redis::RedisServer::Tcp {
            host: "127.0.0.1".into(),
            port: 1,
        })
    });
    let run_policy = crate::lock::RunPolicy {
        place: "web1".into(),
        skew_guard: None,
        at_least: Some(Duration::from_secs(1)),
        once: None,
        anyway: false,
    };
    for mode in [crate::lock::Mode::Shared, crate::lock::Mode::Permits(3)] {
        let refused = Request {
            mode,
            run_policy: Some(run_policy.clone()),
            ..request("job")
        };
        assert_eq!(
            nowhere.try_acquire(&refused).await.unwrap_err().kind,
            Kind::Unsupported
        );
    }
}

#[tokio::test]
async fn an_unknown_token_holds_nothing() {
    let server = TestServer::start();
    let mut a = server.backend();
    let held = request("job");
    granted(&mut a, &held).await;
    let same_owner = Token {
        hold: 1,
        ..held.token
    };
    for stranger in [Token::random(), same_owner] {
        assert_eq!(
            a.renew(&key("job"), &stranger, Some(ttl(1_000)).into())
                .await
                .unwrap(),
            Renewal::NotHeld
        );
        assert_eq!(
            a.release(&key("job"), &stranger, &Scope::Tree.into())
                .await
                .unwrap(),
            Release::NotHeld
        );
    }
    assert!(matches!(
        a.renew(&held.key, &held.token, None.into()).await.unwrap(),
        Renewal::Renewed { .. }
    ));
    assert_eq!(request("x").entry, Entry::Fresh);
}

/// Like Redis 6.0, which could grant a lock but answer no other client while it is held.
#[tokio::test]
async fn a_server_that_lacks_a_command_for_busy_locks_grants_none() {
    let server = TestServer::with(&["--rename-command", "HRANDFIELD", ""]);
    let mut backend = server.backend();
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits(2)] {
        let error = backend
            .try_acquire(&Request {
                mode,
                ..request("job")
            })
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind, error.effect),
            (Kind::Config, Effect::NotApplied),
            "{mode:?}: {error:?}"
        );
        assert!(error.hint.is_some_and(|hint| hint.contains("Redis 6.2")));
        assert_eq!(server.number(&["DBSIZE"]), 0, "nothing is written");
    }
}
