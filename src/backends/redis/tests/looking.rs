//! Inspect and list.

use super::server::{TestServer, busy, granted, key, request, waiting};
use crate::lock::{Backend as _, Kind, Progress};

#[tokio::test]
async fn dead_waiters_are_not_shown() {
    let server = TestServer::start();
    let mut a = server.backend();
    granted(&mut a, &request("job")).await;
    let dead = waiting("job");
    busy(&mut a, &dead).await;
    server.command(&[
        "HSET",
        "dlock:{dlock:job}:waiters",
        &dead.token.hold_text(),
        "1000:{}",
    ]);
    assert!(a.inspect(&key("job")).await.unwrap().waiters.is_empty());
}

#[tokio::test]
async fn read_rights_suffice_for_inspect_and_list() {
    let server = TestServer::start();
    let mut a = server.backend();
    let grant = granted(&mut a, &request("job")).await;
    server.command(&[
        "ACL", "SETUSER", "viewer", "on", ">pw", "~dlock:*", "+@read", "+time", "+type",
    ]);
    let mut viewer = crate::backends::redis::Redis::new(crate::backends::redis::RedisOptions {
        user: Some("viewer".into()),
        password: Some(crate::backends::Secret::new("pw")),
        ..server.options()
    });
    let state = viewer.inspect(&key("job")).await.unwrap();
    assert_eq!(state.holders[0].fence, Some(grant.fence));
    assert_eq!(
        state.last_fence, None,
        "the counter is unreadable, so the last fence is unknown"
    );
    assert_eq!(
        viewer.list("", &Progress::default()).await.unwrap().len(),
        1
    );
    assert_eq!(
        viewer.try_acquire(&request("job")).await.unwrap_err().kind,
        Kind::Denied
    );
}
