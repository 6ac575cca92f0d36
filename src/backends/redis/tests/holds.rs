//! Acquire, renew, enter and release.

use super::server::{TestServer, granted, nested, request, ttl};
use crate::lock::{Attempt, Backend as _, Effect, Kind, Mode, Release, Request, Scope};

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
    let end = || server.int(&["PEXPIRETIME", "dlock:job"]);
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

/// Like Redis 6.0, which could grant a lock but answer no other client while it is held.
#[tokio::test]
async fn a_server_that_lacks_a_command_for_busy_locks_grants_none() {
    let server = TestServer::with(&["rename-command HRANDFIELD \"\""]);
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
        assert_eq!(server.int(&["DBSIZE"]), 0, "nothing is written");
    }
}
