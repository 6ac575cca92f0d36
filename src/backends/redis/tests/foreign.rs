//! Other libraries on the same key: they block dlock, and dlock blocks them.

use std::time::Duration;

use super::server::{TestServer, busy, granted, key, request};
use crate::lock::{Attempt, Backend as _, Kind, Mode, Release, Renewal, Request, Scope};

const REDISSON: &str = "6f3f1e1e-0c5d-4d0e-a3f7-1c7b6a1f0001:42";

#[tokio::test]
async fn locks_of_redisson_are_busy() {
    let server = TestServer::start();
    let mut a = server.backend();
    server.raw(&["HSET", "dlock:plain", REDISSON, "2"]);
    server.raw(&[
        "HSET",
        "dlock:readers",
        "mode",
        "read",
        REDISSON,
        "1",
        "6f3f1e1e-0c5d-4d0e-a3f7-1c7b6a1f0002:7",
        "1",
    ]);
    server.raw(&[
        "HSET",
        "dlock:writer",
        "mode",
        "write",
        &format!("{REDISSON}:write"),
        "1",
    ]);
    for name in ["plain", "readers", "writer"] {
        let refused = busy(&mut a, &request(name)).await;
        assert!(
            refused.holders[0].foreign && !refused.notifies && refused.expires_in.is_none(),
            "{name}"
        );
        server.raw(&["PEXPIRE", &format!("dlock:{name}"), "30000"]);
        let refused = busy(&mut a, &request(name)).await;
        assert!(
            refused.expires_in.unwrap() > Duration::from_secs(29) && !refused.notifies,
            "{name}"
        );
        assert!(matches!(
            a.try_acquire(&Request {
                entry: crate::lock::Entry::Reenter,
                ..request(name)
            })
            .await
            .unwrap(),
            Attempt::NotHeld
        ));
    }
    let readers = busy(&mut a, &request("readers")).await.holders;
    assert_eq!((readers.len(), readers[0].mode), (2, Mode::Shared));
    assert_eq!(busy(&mut a, &request("plain")).await.holders[0].holds, 2);
    assert_eq!(
        server.number(&[
            "EXISTS",
            "dlock:{dlock:plain}:record",
            "redisson_lock_token:{dlock:plain}"
        ]),
        0,
        "untouched"
    );
}

#[tokio::test]
async fn a_dlock_hold_blocks_redisson_and_set_nx() {
    let server = TestServer::start();
    let mut a = server.backend();
    granted(&mut a, &request("job")).await;
    // The checks that their scripts make before they write.
    assert_eq!(
        server.number(&["EXISTS", "dlock:job"]),
        1,
        "plain: must be absent"
    );
    assert_eq!(
        server.number(&["HEXISTS", "dlock:job", REDISSON]),
        0,
        "plain: or theirs"
    );
    assert_eq!(
        server.raw(&["HGET", "dlock:job", "mode"]),
        "$5\r\nwrite",
        "readers: must be absent or in mode read"
    );
    assert_eq!(
        server.number(&["HEXISTS", "dlock:job", &format!("{REDISSON}:write")]),
        0,
        "or the reader's own"
    );
    assert_eq!(
        server.raw(&["SET", "dlock:job", "x", "NX", "PX", "1000"]),
        "$-1"
    );
}

#[tokio::test]
async fn a_string_is_busy_with_or_without_an_expiry() {
    let server = TestServer::start();
    let mut a = server.backend();
    server.raw(&["SET", "dlock:job", "x", "PX", "5000"]);
    let refused = busy(&mut a, &request("job")).await;
    assert!(
        refused.holders[0].foreign
            && !refused.notifies
            && refused.expires_in.unwrap() > Duration::from_secs(4)
    );
    server.raw(&["SET", "dlock:job", "x"]);
    let refused = busy(&mut a, &request("job")).await;
    assert!(refused.holders[0].foreign && !refused.notifies && refused.expires_in.is_none());
    let stranger = request("job").token;
    assert_eq!(
        a.renew(&key("job"), &stranger, None.into()).await.unwrap(),
        Renewal::NotHeld
    );
    assert_eq!(
        a.release(&key("job"), &stranger, &Scope::Tree.into())
            .await
            .unwrap(),
        Release::NotHeld
    );
    assert_eq!(server.raw(&["GET", "dlock:job"]), "$1\r\nx");
}

#[tokio::test]
async fn other_types_are_errors_and_stay_unchanged() {
    let server = TestServer::start();
    let mut a = server.backend();
    server.raw(&["RPUSH", "dlock:a", "x"]);
    server.raw(&["SADD", "dlock:b", "x"]);
    server.raw(&["HSET", "dlock:c", "name", "ana"]);
    for name in ["a", "b", "c"] {
        assert_eq!(
            a.try_acquire(&request(name)).await.unwrap_err().kind,
            Kind::Data,
            "{name}"
        );
    }
    // The same for the lock's other keys: nothing is granted, and no key without an expiry is left.
    server.raw(&["SET", "redisson_lock_token:{dlock:d}", "many"]);
    server.raw(&["RPUSH", "dlock:{dlock:e}:record", "x"]);
    assert_eq!(
        a.try_acquire(&request("d")).await.unwrap_err().kind,
        Kind::Data
    );
    server.raw(&[
        "SET",
        "redisson_lock_token:{dlock:d}",
        "9223372036854775807",
    ]);
    assert_eq!(
        a.try_acquire(&request("d")).await.unwrap_err().kind,
        Kind::Data
    );
    assert_eq!(server.number(&["EXISTS", "dlock:d"]), 0);
    granted(&mut a, &request("e")).await;
    for side in ["queue", "waiters", "wake"] {
        server.raw(&["SET", &format!("dlock:{{dlock:e}}:{side}"), "x"]);
    }
    busy(
        &mut a,
        &Request {
            waiting: true,
            ..request("e")
        },
    )
    .await;
}

#[tokio::test]
async fn deleting_the_lock_frees_it_and_our_hold_is_lost() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.backend(), server.backend());
    let held = request("job");
    let first = granted(&mut a, &held).await;
    server.raw(&["DEL", "dlock:job"]);
    assert_eq!(
        a.renew(&held.key, &held.token, None.into()).await.unwrap(),
        Renewal::NotHeld
    );
    let next = request("job");
    assert!(granted(&mut b, &next).await.fence > first.fence);
    assert_eq!(
        a.renew(&held.key, &held.token, None.into()).await.unwrap(),
        Renewal::NotHeld
    );
    assert_eq!(
        a.release(&held.key, &held.token, &Scope::Tree.into())
            .await
            .unwrap(),
        Release::NotHeld
    );
    assert!(matches!(
        b.renew(&next.key, &next.token, None.into()).await.unwrap(),
        Renewal::Renewed { .. }
    ));
    // Redisson acquired the deleted lock: a left-over record of ours must not count for it.
    server.raw(&["DEL", "dlock:job"]);
    server.raw(&["HSET", "dlock:job", REDISSON, "1"]);
    assert!(busy(&mut a, &request("job")).await.holders[0].foreign);
    assert_eq!(
        b.release(&next.key, &next.token, &Scope::Tree.into())
            .await
            .unwrap(),
        Release::NotHeld
    );
    assert_eq!(server.number(&["EXISTS", "dlock:job"]), 1);
}

#[tokio::test]
async fn only_the_owner_reacquires_a_lock_without_its_record() {
    let server = TestServer::start();
    let mut a = server.backend();
    let held = request("job");
    let first = granted(&mut a, &held).await;
    server.raw(&["DEL", "dlock:{dlock:job}:record"]);
    assert!(busy(&mut a, &request("job")).await.holders[0].foreign);
    assert_eq!(
        a.renew(&held.key, &held.token, None.into()).await.unwrap(),
        Renewal::NotHeld
    );
    assert!(granted(&mut a, &held).await.fence > first.fence);
    assert_eq!(server.number(&["HLEN", "dlock:job"]), 2);
}

#[tokio::test]
async fn releases_are_published_on_redissons_channels() {
    let server = TestServer::start();
    let mut a = server.backend();
    let held = request("job");
    granted(&mut a, &held).await;
    let client = std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let mut client = std::io::BufReader::new(client);
    let mut subscribe = redis::cmd("SUBSCRIBE");
    subscribe
        .arg("redisson_lock__channel:{dlock:job}")
        .arg("redisson_rwlock:{dlock:job}");
    // The first waiter of Redisson's fair lock listens on its own channel.
    server.raw(&[
        "RPUSH",
        "redisson_lock_queue:{dlock:job}",
        REDISSON,
        "other:7",
    ]);
    subscribe.arg(format!("redisson_lock__channel:{{dlock:job}}:{REDISSON}"));
    std::io::Write::write_all(client.get_mut(), &subscribe.get_packed_command()).unwrap();
    let mut parser = redis::Parser::new();
    for _ in 0..3 {
        parser.parse_value(&mut client).unwrap();
    }
    a.release(&held.key, &held.token, &Scope::Hold.into())
        .await
        .unwrap();
    let mut heard = Vec::new();
    for _ in 0..3 {
        let message: Vec<String> =
            redis::from_redis_value(parser.parse_value(&mut client).unwrap()).unwrap();
        heard.push(message[1..].join(" "));
    }
    let first = format!("redisson_lock__channel:{{dlock:job}}:{REDISSON} 0");
    assert_eq!(
        heard,
        [
            "redisson_lock__channel:{dlock:job} 0",
            "redisson_rwlock:{dlock:job} 1",
            &first
        ]
    );
}

#[tokio::test]
async fn a_newer_record_of_another_hold_is_ignored() {
    let server = TestServer::start();
    let mut a = server.backend();
    server.raw(&[
        "HSET",
        "dlock:{dlock:job}:record",
        "v",
        "2.0",
        "owner",
        "before",
    ]);
    server.raw(&["HSET", "dlock:job", REDISSON, "1"]);
    assert!(busy(&mut a, &request("job")).await.holders[0].foreign);
    assert_eq!(a.inspect(&key("job")).await.unwrap().holders.len(), 1);
}
