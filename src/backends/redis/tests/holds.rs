//! Acquire, renew, enter and release.

use std::{collections::HashSet, time::Duration};

use super::server::{TestServer, busy, granted, nested, pause, request, ttl};
use crate::lock::{
    Attempt, Backend as _, Effect, Kind, Mode, Namespace, Release, Renewal, Request, Scope,
};

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
