//! Readers next to Redisson's readers, and permits, which Redisson doesn't know.

use std::time::Duration;

use super::server::{TestServer, busy, granted, key, nested, pause, request, ttl};
use crate::lock::{
    Amendment, Attempt, Backend as _, Break, Kind, Mode, Release, Renewal, Request, Scope,
};

const REDISSON: &str = "6f3f1e1e-0c5d-4d0e-a3f7-1c7b6a1f0001:42";

fn reader(name: &str) -> Request {
    Request {
        mode: Mode::Shared,
        ..request(name)
    }
}

/// The key in which Redisson stores how long a reader lasts.
fn timeout_of(who: &str) -> String {
    format!("{{dlock:job}}:{who}:rwlock_timeout:1")
}

/// Redisson's read lock, as its script writes it.
fn redisson_reads(server: &TestServer, ms: u32) {
    server.command(&["HSET", "dlock:job", "mode", "read", REDISSON, "1"]);
    server.command(&["SET", &timeout_of(REDISSON), "1", "PX", &ms.to_string()]);
    let left = server.int(&["PTTL", "dlock:job"]);
    server.command(&["PEXPIRE", "dlock:job", &left.max(ms.into()).to_string()]);
}

#[tokio::test]
async fn a_reader_has_redissons_layout() {
    let server = TestServer::start();
    let mut a = server.backend();
    let ours = reader("job");
    granted(&mut a, &ours).await;
    let who = format!("{}:1", ours.token.owner);
    assert_eq!(
        server.text(&["HGET", "dlock:job", "mode"]),
        "read",
        "Redisson's readers join, its writers don't"
    );
    assert_eq!(server.text(&["HGET", "dlock:job", &who]), "1");
    assert_eq!(server.int(&["HLEN", "dlock:job"]), 2);
    let (lasts, lock) = (
        server.int(&["PTTL", &timeout_of(&who)]),
        server.int(&["PTTL", "dlock:job"]),
    );
    assert!(lasts > 0 && (lasts - lock).abs() < 50, "{lasts} {lock}");
    assert!(matches!(
        a.renew(&ours.key, &ours.token, None.into()).await.unwrap(),
        Renewal::Renewed { .. }
    ));
    assert!(server.int(&["PTTL", &timeout_of(&who)]) >= lasts - 50);
    assert_eq!(
        a.release(&ours.key, &ours.token, &Scope::Tree.into())
            .await
            .unwrap(),
        Release::Released
    );
    assert_eq!(server.int(&["EXISTS", "dlock:job", &timeout_of(&who)]), 0);
}

#[tokio::test]
async fn our_readers_and_redissons_coexist_and_end_independently() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.backend(), server.backend());
    redisson_reads(&server, 20_000);
    let ours = reader("job");
    granted(&mut a, &ours).await;
    let state = a.inspect(&key("job")).await.unwrap();
    assert_eq!(
        state.holders.iter().filter(|holder| holder.foreign).count(),
        1,
        "{state:?}"
    );
    assert!(
        state.holders.len() == 2
            && state
                .holders
                .iter()
                .all(|holder| holder.mode == Mode::Shared),
        "{state:?}"
    );
    assert_eq!(busy(&mut b, &request("job")).await.holders.len(), 2);
    let [of_the_lock, of_theirs] =
        ["dlock:job", &timeout_of(REDISSON)].map(|name| server.int(&["PEXPIRETIME", name]));
    assert!(of_the_lock >= of_theirs, "{of_the_lock} {of_theirs}");
    a.release(&ours.key, &ours.token, &Scope::Tree.into())
        .await
        .unwrap();
    let left = server.int(&["PTTL", "dlock:job"]);
    assert!(
        (19_000..=20_000).contains(&left),
        "Redisson's reader is left with its own expiry: {left}"
    );
    assert!(busy(&mut b, &request("job")).await.holders[0].foreign);
    // A crashed reader blocks no other request beyond its own lease.
    server.command(&["DEL", &timeout_of(REDISSON)]);
    let again = reader("job");
    granted(&mut a, &again).await;
    a.release(&again.key, &again.token, &Scope::Tree.into())
        .await
        .unwrap();
    granted(&mut b, &request("job")).await;
}

#[tokio::test]
async fn a_redisson_reader_without_an_expiry_keeps_the_lock_without_one() {
    let server = TestServer::start();
    let mut a = server.backend();
    server.command(&["HSET", "dlock:job", "mode", "read", REDISSON, "1"]);
    let ours = reader("job");
    granted(&mut a, &ours).await;
    assert_eq!(server.int(&["PTTL", "dlock:job"]), -1);
    assert!(matches!(
        a.renew(&ours.key, &ours.token, None.into()).await.unwrap(),
        Renewal::Renewed { .. }
    ));
    assert_eq!(server.int(&["PTTL", "dlock:job"]), -1);
    a.release(&ours.key, &ours.token, &Scope::Tree.into())
        .await
        .unwrap();
    assert_eq!(
        (
            server.int(&["PTTL", "dlock:job"]),
            server.int(&["HLEN", "dlock:job"])
        ),
        (-1, 2)
    );
}

#[tokio::test]
async fn shares_are_busy_under_another_mode() {
    let server = TestServer::start();
    let mut a = server.backend();
    for fields in [
        vec![REDISSON, "2"],
        vec!["mode", "write", &format!("{REDISSON}:write"), "1"],
    ] {
        server.command(&["DEL", "dlock:job"]);
        server.command(&[&["HSET", "dlock:job"], &fields[..]].concat());
        for mode in [Mode::Shared, Mode::Permits(3)] {
            let busy = busy(
                &mut a,
                &Request {
                    mode,
                    ..request("job")
                },
            )
            .await;
            assert!(busy.holders[0].foreign && !busy.notifies, "{busy:?}");
        }
    }
    server.command(&["DEL", "dlock:job"]);
    redisson_reads(&server, 20_000);
    busy(
        &mut a,
        &Request {
            mode: Mode::Permits(3),
            ..request("job")
        },
    )
    .await;
    server.command(&["DEL", "dlock:job"]);
    granted(
        &mut a,
        &Request {
            mode: Mode::Permits(3),
            ..request("job")
        },
    )
    .await;
    assert_eq!(
        server.text(&["HGET", "dlock:job", "mode"]),
        "permits",
        "neither read nor write"
    );
}

#[tokio::test]
async fn a_released_share_leaves_only_its_history() {
    let server = TestServer::start();
    let mut a = server.backend();
    for mode in [Mode::Shared, Mode::Permits(3)] {
        let one = Request {
            mode,
            ..request("job")
        };
        granted(&mut a, &one).await;
        a.release(&one.key, &one.token, &Scope::Tree.into())
            .await
            .unwrap();
        let sides = ["shares", "ends", "line", "queue", "waiters", "wake"]
            .map(|side| format!("dlock:{{dlock:job}}:{side}"));
        assert_eq!(
            server.int(
                &[
                    &["EXISTS", "dlock:job"],
                    &sides.each_ref().map(String::as_str)[..]
                ]
                .concat()
            ),
            0,
            "{mode:?}"
        );
    }
}

/// Redisson's watchdog sets the expiry of the whole lock to its reader's, and its forced unlock
/// deletes the lock.
#[tokio::test]
async fn readers_keep_a_lock_that_redisson_cut_or_deleted() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.backend(), server.backend());
    let (ours, writer) = (reader("job"), request("job"));
    let fence = granted(&mut a, &ours).await.fence;
    redisson_reads(&server, 20_000);
    server.command(&["PEXPIRE", "dlock:job", "1"]);
    pause(20).await;
    assert_eq!(server.int(&["EXISTS", "dlock:job"]), 0);
    for mode in [Mode::Exclusive, Mode::Permits(2)] {
        let busy = busy(
            &mut b,
            &Request {
                mode,
                ..writer.clone()
            },
        )
        .await;
        assert!(
            busy.expires_in.unwrap() > Duration::from_secs(8) && !busy.transient,
            "{busy:?}"
        );
        assert!(
            busy.holders.len() == 1
                && busy.holders[0].mode == Mode::Shared
                && !busy.holders[0].foreign,
            "{busy:?}"
        );
    }
    assert_eq!(b.inspect(&key("job")).await.unwrap().holders.len(), 1);
    // Another reader creates the lock again, with an expiry after all readers' ends.
    let short = Request {
        ttl: ttl(1000),
        ..reader("job")
    };
    granted(&mut b, &short).await;
    assert!(server.int(&["PTTL", "dlock:job"]) > 8_000);
    b.release(&short.key, &short.token, &Scope::Tree.into())
        .await
        .unwrap();
    busy(&mut b, &writer).await;
    let mark = Break {
        by: "ana".into(),
        why: None,
        seen: false,
    };
    assert!(
        b.amend(&key("job"), Amendment::Evict(fence, &mark))
            .await
            .unwrap()
    );
    granted(&mut b, &writer).await;
}

#[tokio::test]
async fn a_redisson_reader_is_distinguished_from_ours_by_its_name() {
    let server = TestServer::start();
    let mut a = server.backend();
    // More expired readers than one script removes at a time, from a host that died.
    for _ in 0..1100 {
        let dead = Request {
            ttl: ttl(1000),
            ..reader("job")
        };
        granted(&mut a, &dead).await;
    }
    pause(1100).await;
    redisson_reads(&server, 30_000);
    let ours = reader("job");
    granted(&mut a, &ours).await;
    a.release(&ours.key, &ours.token, &Scope::Tree.into())
        .await
        .unwrap();
    let left = server.int(&["PTTL", "dlock:job"]);
    assert!(
        (25_000..=30_000).contains(&left),
        "Redisson's reader is left: {left}"
    );
    let writer = busy(&mut a, &request("job")).await;
    assert!(
        writer.holders.iter().any(|holder| holder.foreign),
        "{writer:?}"
    );
}

#[tokio::test]
async fn a_stale_share_does_not_count_for_another_reader() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.backend(), server.backend());
    granted(&mut a, &reader("job")).await;
    server.command(&["DEL", "dlock:job"]);
    redisson_reads(&server, 30_000);
    let ours = Request {
        ttl: ttl(2000),
        ..reader("job")
    };
    granted(&mut b, &ours).await;
    b.release(&ours.key, &ours.token, &Scope::Tree.into())
        .await
        .unwrap();
    let left = server.int(&["PTTL", "dlock:job"]);
    assert!((25_000..=30_000).contains(&left), "{left}");
}

#[tokio::test]
async fn many_crashed_permits_are_freed_at_once() {
    let server = TestServer::start();
    let mut a = server.backend();
    let permit = || Request {
        mode: Mode::Permits(60),
        ..request("job")
    };
    for _ in 0..59 {
        granted(
            &mut a,
            &Request {
                ttl: ttl(1000),
                ..permit()
            },
        )
        .await;
    }
    granted(&mut a, &permit()).await;
    pause(1100).await;
    granted(
        &mut a,
        &Request {
            mode: Mode::Permits(2),
            ..permit()
        },
    )
    .await;
}

#[tokio::test]
async fn a_hash_that_is_no_lock_is_never_shared() {
    let server = TestServer::start();
    let mut a = server.backend();
    let hashes: [&[&str]; 7] = [
        &["mode", "read", "user", "ana"],
        &["mode", "read", "hits", "3000000"],
        &["mode", "read", "a:1", "3000000"],
        &["mode", "read"],
        &["mode", "permits"],
        &["mode", "permits", REDISSON, "1"],
        &["mode", "permits", "user", "ana"],
    ];
    for fields in hashes {
        server.command(&[&["HSET", "dlock:job"], fields].concat());
        server.command(&["PEXPIRE", "dlock:job", "60000"]);
        let before = server.command(&["HGETALL", "dlock:job"]);
        for mode in [Mode::Shared, Mode::Permits(3), Mode::Exclusive] {
            let wanted = Request {
                mode,
                ..request("job")
            };
            match a.try_acquire(&wanted).await {
                Ok(Attempt::Busy(_)) => assert!(
                    mode == Mode::Exclusive && fields.contains(&"a:1"),
                    "{fields:?} {mode:?}"
                ),
                Ok(other) => panic!("{fields:?} {mode:?}: {other:?}"),
                Err(error) => assert_eq!(error.kind, Kind::Data, "{fields:?} {mode:?}"),
            }
            assert_eq!(
                a.release(&wanted.key, &wanted.token, &Scope::Tree.into())
                    .await
                    .unwrap(),
                Release::NotHeld
            );
        }
        assert_eq!(server.command(&["HGETALL", "dlock:job"]), before);
        assert!(server.int(&["PTTL", "dlock:job"]) > 50_000);
        server.command(&["DEL", "dlock:job"]);
    }
}

#[tokio::test]
async fn an_unreadable_share_blocks_no_request() {
    let server = TestServer::start();
    let mut a = server.backend();
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits(2)] {
        server.command(&["HSET", "dlock:{dlock:job}:shares", "me", "not json"]);
        server.command(&["ZADD", "dlock:{dlock:job}:ends", "1", "me"]);
        let wanted = Request {
            mode,
            ..request("job")
        };
        let fence = granted(&mut a, &wanted).await.fence;
        let mark = Break {
            by: "ana".into(),
            why: None,
            seen: false,
        };
        assert!(
            a.amend(&key("job"), Amendment::Mark(fence, &mark))
                .await
                .unwrap()
        );
        assert_eq!(
            a.release(&wanted.key, &wanted.token, &Scope::Tree.into())
                .await
                .unwrap(),
            Release::Released
        );
        assert_eq!(
            server.int(&["EXISTS", "dlock:job", "dlock:{dlock:job}:shares"]),
            0,
            "{mode:?}"
        );
    }
}

#[tokio::test]
async fn an_inner_reader_can_be_released_without_memory() {
    let server = TestServer::start();
    let mut a = server.backend();
    let outer = reader("job");
    granted(&mut a, &outer).await;
    let inner = nested(&outer);
    granted(&mut a, &inner).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(
        a.release(&inner.key, &inner.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::StillHeld(1)
    );
    assert!(matches!(
        a.renew(&outer.key, &outer.token, None.into())
            .await
            .unwrap(),
        Renewal::Renewed { .. }
    ));
    assert_eq!(
        a.release(&outer.key, &outer.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::Released
    );
    assert!(
        a.try_acquire(&reader("job")).await.is_err(),
        "there is no memory"
    );
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(matches!(
        a.try_acquire(&request("job")).await.unwrap(),
        Attempt::Granted(_)
    ));
}
