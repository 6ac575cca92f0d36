//! Inspect and list.

use std::time::Duration;

use super::server::{TestServer, busy, granted, key, nested, pause, request, waiting};
use crate::lock::{Backend as _, Kind, Metadata, Mode, Progress, Request};

fn ana() -> Metadata {
    Metadata {
        host: Some("web1".into()),
        pid: Some(4711),
        description: Some("a \"note\"\u{202e}".into()),
        ..Metadata::default()
    }
}

#[tokio::test]
async fn a_free_lock_and_a_held_one() {
    let server = TestServer::start();
    let (mut a, mut waiter) = (server.backend(), server.backend());
    let free = a.inspect(&key("job")).await.unwrap();
    assert_eq!(
        (
            free.stored_as.as_str(),
            free.holders.len(),
            free.waiters.len(),
            free.last_fence
        ),
        ("dlock:job", 0, 0, None)
    );

    let held = Request {
        metadata: Some(ana()),
        detached: true,
        ..request("job")
    };
    let grant = granted(&mut a, &held).await;
    pause(30).await;
    granted(&mut a, &nested(&held)).await;
    a.renew(&held.key, &held.token, None.into()).await.unwrap();
    let asked = Request {
        metadata: Some(Metadata {
            host: Some("web2".into()),
            ..Metadata::default()
        }),
        ..waiting("job")
    };
    busy(&mut waiter, &asked).await;
    pause(5).await;
    let unnamed = Request {
        metadata: None,
        ..waiting("job")
    };
    busy(&mut waiter, &unnamed).await;

    let state = a.inspect(&key("job")).await.unwrap();
    let [holder] = &*state.holders else {
        panic!("{state:?}")
    };
    assert_eq!(
        (holder.metadata.as_ref(), holder.fence, holder.holds),
        (Some(&ana()), Some(grant.fence), 2)
    );
    assert!(holder.detached && !holder.foreign && holder.mode == Mode::Exclusive);
    let (held_for, renewed_ago) = (holder.held_for.unwrap(), holder.renewed_ago.unwrap());
    assert!(held_for >= Duration::from_millis(29) && renewed_ago < held_for);
    assert!(holder.expires_in.unwrap() > Duration::from_secs(9));
    assert_eq!(state.last_fence, Some(grant.fence));
    let hosts: Vec<_> = state
        .waiters
        .iter()
        .map(|waiter| {
            waiter
                .metadata
                .as_ref()
                .and_then(|metadata| metadata.host.as_deref())
        })
        .collect();
    assert_eq!(hosts, [Some("web2"), None]);
    assert!(state.waiters[0].waiting_for > state.waiters[1].waiting_for);
    let busy = busy(&mut waiter, &request("job")).await;
    assert_eq!(busy.holders[0].metadata, holder.metadata);
    assert!(
        !format!("{state:?}").contains(&held.token.owner.to_string()),
        "the token stays secret"
    );
}

#[tokio::test]
async fn dead_waiters_are_not_shown() {
    let server = TestServer::start();
    let mut a = server.backend();
    granted(&mut a, &request("job")).await;
    let dead = waiting("job");
    busy(&mut a, &dead).await;
    server.raw(&[
        "HSET",
        "dlock:{dlock:job}:waiters",
        &dead.token.hold_text(),
        "1000:{}",
    ]);
    assert!(a.inspect(&key("job")).await.unwrap().waiters.is_empty());
}

#[tokio::test]
async fn a_listing_has_only_the_locks_of_the_namespace() {
    let server = TestServer::start();
    let mut a = server.backend();
    let names = [
        "a", "a*", "a*b", "ab", "a[b]", "a\\", "a?", "a{b}", "b", "job", "Job", "a^", "a-b",
    ];
    for name in names {
        granted(&mut a, &request(name)).await;
    }
    granted(&mut server.in_namespace("dlock2"), &request("elsewhere")).await;
    granted(&mut server.in_namespace(""), &request("elsewhere")).await;
    server.raw(&["SET", "dlock:string", "x"]);
    server.raw(&["HSET", "dlock:object", "name", "ana"]);
    server.raw(&["RPUSH", "dlock:list", "x"]);
    server.raw(&[
        "HSET",
        "dlock:redisson",
        "6f3f1e1e-0c5d-4d0e-a3f7-1c7b6a1f0001:42",
        "2",
    ]);
    let listed = |states: Vec<crate::lock::LockState>| {
        states
            .into_iter()
            .map(|state| state.key.to_string())
            .collect::<Vec<_>>()
    };
    let mut all: Vec<_> = names
        .iter()
        .map(ToString::to_string)
        .chain(["redisson", "string"].map(ToOwned::to_owned))
        .collect();
    all.sort();
    assert_eq!(listed(a.list("", &Progress::default()).await.unwrap()), all);
    for start in [
        "a", "a*", "a[", "a\\", "a?", "a{", "j", "J", "a^", "a-", "nothing",
    ] {
        let expected: Vec<_> = all
            .iter()
            .filter(|name| name.starts_with(start))
            .cloned()
            .collect();
        assert_eq!(
            listed(a.list(start, &Progress::default()).await.unwrap()),
            expected,
            "{start}"
        );
    }
    let foreign = a
        .list("redisson", &Progress::default())
        .await
        .unwrap()
        .remove(0);
    assert!(
        foreign.holders[0].foreign
            && foreign.holders[0].holds == 2
            && foreign.holders[0].expires_in.is_none()
    );
    // Without a namespace, the whole name of a lock is its key.
    let bare = listed(
        server
            .in_namespace("")
            .list("", &Progress::default())
            .await
            .unwrap(),
    );
    assert!(
        bare.contains(&"elsewhere".to_owned())
            && bare.contains(&"dlock:job".to_owned())
            && !bare.contains(&"dlock:object".to_owned())
    );
}

#[tokio::test]
async fn a_long_listing_is_complete() {
    let server = TestServer::start();
    let mut a = server.backend();
    for i in 0..300 {
        granted(&mut a, &request(&format!("k{i:03}"))).await;
    }
    let states = a.list("k", &Progress::default()).await.unwrap();
    assert_eq!(states.len(), 300);
    assert!(
        states.is_sorted_by(|a, b| a.key < b.key)
            && states.iter().all(|state| state.holders.len() == 1)
    );
}

#[tokio::test]
async fn foreign_keys_and_newer_layouts_are_distinguished() {
    let server = TestServer::start();
    let mut a = server.backend();
    server.raw(&["RPUSH", "dlock:list", "x"]);
    server.raw(&["SET", "dlock:string", "x"]);
    server.raw(&["HSET", "dlock:object", "name", "ana"]);
    let state = a.inspect(&key("string")).await.unwrap();
    assert!(
        state.holders[0].foreign && state.holders[0].expires_in.is_none(),
        "a lock of SET NX"
    );
    for name in ["list", "object"] {
        assert_eq!(
            a.inspect(&key(name)).await.unwrap_err().kind,
            Kind::Data,
            "{name}"
        );
    }
    server.raw(&["SET", "dlock:string", "x", "PX", "9000"]);
    let state = a.inspect(&key("string")).await.unwrap();
    assert!(state.holders[0].foreign && state.holders[0].expires_in.is_some());
    granted(&mut a, &request("job")).await;
    server.raw(&["HSET", "dlock:{dlock:job}:record", "v", "2.0"]);
    assert_eq!(a.inspect(&key("job")).await.unwrap_err().kind, Kind::Layout);
    assert_eq!(
        a.list("job", &Progress::default()).await.unwrap_err().kind,
        Kind::Layout
    );
}

#[tokio::test]
async fn read_rights_suffice_for_inspect_and_list() {
    let server = TestServer::start();
    let mut a = server.backend();
    let grant = granted(&mut a, &request("job")).await;
    server.raw(&[
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
