//! Other libraries on the same key: they block dlock, and dlock blocks them.

use super::server::{TestServer, busy, granted, key, request};
use crate::lock::{Backend as _, Kind, Renewal, Request, Scope};

const REDISSON: &str = "6f3f1e1e-0c5d-4d0e-a3f7-1c7b6a1f0001:42";

#[tokio::test]
async fn other_types_of_side_keys_grant_nothing() {
    let server = TestServer::start();
    let mut a = server.backend();
    // Nothing is granted, and no key without an expiry is left.
    server.command(&["SET", "redisson_lock_token:{dlock:d}", "many"]);
    server.command(&["RPUSH", "dlock:{dlock:e}:record", "x"]);
    assert_eq!(
        a.try_acquire(&request("d")).await.unwrap_err().kind,
        Kind::Data
    );
    server.command(&[
        "SET",
        "redisson_lock_token:{dlock:d}",
        "9223372036854775807",
    ]);
    assert_eq!(
        a.try_acquire(&request("d")).await.unwrap_err().kind,
        Kind::Data
    );
    assert_eq!(server.int(&["EXISTS", "dlock:d"]), 0);
    granted(&mut a, &request("e")).await;
    for side in ["queue", "waiters", "wake"] {
        server.command(&["SET", &format!("dlock:{{dlock:e}}:{side}"), "x"]);
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
async fn only_the_owner_reacquires_a_lock_without_its_record() {
    let server = TestServer::start();
    let mut a = server.backend();
    let held = request("job");
    let first = granted(&mut a, &held).await;
    server.command(&["DEL", "dlock:{dlock:job}:record"]);
    assert!(busy(&mut a, &request("job")).await.holders[0].foreign);
    assert_eq!(
        a.renew(&held.key, &held.token, None.into()).await.unwrap(),
        Renewal::NotHeld
    );
    assert!(granted(&mut a, &held).await.fence > first.fence);
    assert_eq!(server.int(&["HLEN", "dlock:job"]), 2);
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
    server.command(&[
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
    server.command(&[
        "HSET",
        "dlock:{dlock:job}:record",
        "v",
        "2.0",
        "owner",
        "before",
    ]);
    server.command(&["HSET", "dlock:job", REDISSON, "1"]);
    assert!(busy(&mut a, &request("job")).await.holders[0].foreign);
    assert_eq!(a.inspect(&key("job")).await.unwrap().holders.len(), 1);
}
