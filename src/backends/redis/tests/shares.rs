//! Readers beside those of Redisson, and permits, which it doesn't know.

use super::server::{TestServer, busy, granted, key, request};
use crate::lock::{Backend as _, Mode, Release, Renewal, Request, Scope};

const REDISSON: &str = "6f3f1e1e-0c5d-4d0e-a3f7-1c7b6a1f0001:42";

fn reader(name: &str) -> Request {
    Request { mode: Mode::Shared, ..request(name) }
}

/// Where Redisson looks for how long a reader lasts.
fn timeout_of(who: &str) -> String {
    format!("{{dlock:job}}:{who}:rwlock_timeout:1")
}

/// Redisson's read lock, as its script leaves it.
fn redisson_reads(server: &TestServer, ms: u32) {
    server.raw(&["HSET", "dlock:job", "mode", "read", REDISSON, "1"]);
    server.raw(&["SET", &timeout_of(REDISSON), "1", "PX", &ms.to_string()]);
    let left = server.number(&["PTTL", "dlock:job"]);
    server.raw(&["PEXPIRE", "dlock:job", &left.max(ms.into()).to_string()]);
}

#[tokio::test]
async fn a_reader_is_what_redisson_takes_for_one() {
    let server = TestServer::start();
    let mut a = server.backend();
    let ours = reader("job");
    granted(&mut a, &ours).await;
    let who = format!("{}:1", ours.token.owner);
    assert_eq!(server.raw(&["HGET", "dlock:job", "mode"]), "$4\r\nread", "its readers join, its writers don't");
    assert_eq!(server.raw(&["HGET", "dlock:job", &who]), "$1\r\n1");
    assert_eq!(server.number(&["HLEN", "dlock:job"]), 2);
    let (lasts, lock) = (server.number(&["PTTL", &timeout_of(&who)]), server.number(&["PTTL", "dlock:job"]));
    assert!(lasts > 0 && (lasts - lock).abs() < 50, "{lasts} {lock}");
    assert!(matches!(a.renew(&ours.key, &ours.token, None.into()).await.unwrap(), Renewal::Renewed { .. }));
    assert!(server.number(&["PTTL", &timeout_of(&who)]) >= lasts - 50);
    assert_eq!(a.release(&ours.key, &ours.token, &Scope::Tree.into()).await.unwrap(), Release::Released);
    assert_eq!(server.number(&["EXISTS", "dlock:job", &timeout_of(&who)]), 0);
}

#[tokio::test]
async fn our_readers_and_redissons_go_together_and_each_ends_for_itself() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.backend(), server.backend());
    redisson_reads(&server, 20_000);
    let ours = reader("job");
    granted(&mut a, &ours).await;
    let state = a.inspect(&key("job")).await.unwrap();
    assert_eq!(state.holders.iter().filter(|holder| holder.foreign).count(), 1, "{state:?}");
    assert!(state.holders.len() == 2 && state.holders.iter().all(|holder| holder.mode == Mode::Shared), "{state:?}");
    assert_eq!(busy(&mut b, &request("job")).await.holders.len(), 2);
    assert!(server.number(&["PTTL", "dlock:job"]) >= server.number(&["PTTL", &timeout_of(REDISSON)]));
    a.release(&ours.key, &ours.token, &Scope::Tree.into()).await.unwrap();
    let left = server.number(&["PTTL", "dlock:job"]);
    assert!((19_000..=20_000).contains(&left), "theirs is left, and lasts as long as theirs: {left}");
    assert!(busy(&mut b, &request("job")).await.holders[0].foreign);
    // One that crashed keeps nobody beyond its own time.
    server.raw(&["DEL", &timeout_of(REDISSON)]);
    let again = reader("job");
    granted(&mut a, &again).await;
    a.release(&again.key, &again.token, &Scope::Tree.into()).await.unwrap();
    granted(&mut b, &request("job")).await;
}

#[tokio::test]
async fn a_reader_of_redisson_without_an_end_keeps_its_lock_so() {
    let server = TestServer::start();
    let mut a = server.backend();
    server.raw(&["HSET", "dlock:job", "mode", "read", REDISSON, "1"]);
    let ours = reader("job");
    granted(&mut a, &ours).await;
    assert_eq!(server.number(&["PTTL", "dlock:job"]), -1);
    assert!(matches!(a.renew(&ours.key, &ours.token, None.into()).await.unwrap(), Renewal::Renewed { .. }));
    assert_eq!(server.number(&["PTTL", "dlock:job"]), -1);
    a.release(&ours.key, &ours.token, &Scope::Tree.into()).await.unwrap();
    assert_eq!((server.number(&["PTTL", "dlock:job"]), server.number(&["HLEN", "dlock:job"])), (-1, 2));
}

#[tokio::test]
async fn whoever_else_holds_it_keeps_shares_out() {
    let server = TestServer::start();
    let mut a = server.backend();
    for fields in [vec![REDISSON, "2"], vec!["mode", "write", &format!("{REDISSON}:write"), "1"]] {
        server.raw(&["DEL", "dlock:job"]);
        server.raw(&[&["HSET", "dlock:job"], &fields[..]].concat());
        for mode in [Mode::Shared, Mode::Permits(3)] {
            let busy = busy(&mut a, &Request { mode, ..request("job") }).await;
            assert!(busy.holders[0].foreign && !busy.notifies, "{busy:?}");
        }
    }
    server.raw(&["DEL", "dlock:job"]);
    redisson_reads(&server, 20_000);
    busy(&mut a, &Request { mode: Mode::Permits(3), ..request("job") }).await;
    server.raw(&["DEL", "dlock:job"]);
    granted(&mut a, &Request { mode: Mode::Permits(3), ..request("job") }).await;
    assert_eq!(server.raw(&["HGET", "dlock:job", "mode"]), "$7\r\npermits", "neither read nor write");
}

#[tokio::test]
async fn nothing_is_left_of_a_share_but_what_is_remembered() {
    let server = TestServer::start();
    let mut a = server.backend();
    for mode in [Mode::Shared, Mode::Permits(3)] {
        let one = Request { mode, ..request("job") };
        granted(&mut a, &one).await;
        a.release(&one.key, &one.token, &Scope::Tree.into()).await.unwrap();
        let sides = ["shares", "ends", "line", "queue", "waiters", "wake"].map(|side| format!("dlock:{{dlock:job}}:{side}"));
        assert_eq!(server.number(&[&["EXISTS", "dlock:job"], &sides.each_ref().map(String::as_str)[..]].concat()), 0, "{mode:?}");
    }
}
