//! Access to a Redis server: passwords, users, sockets, databases and certificates.

use std::{path::PathBuf, time::Duration};

use dlock::{
    backends::{
        Secret, Tls,
        redis::{Redis, RedisOptions, RedisServer},
    },
    lock::{Attempt, Effect, Error, Kind as ErrorKind, Result},
};

use super::{Case, cases};
use crate::{
    lab::{Client, LONG, Lab, key, request, waiting},
    support::{self, proxy::Proxy},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind == Kind::Redis =>
        the_right_password_opens,
        a_refused_password_is_denied_and_never_shown,
        a_user_with_the_least_rights_can_do_all,
        a_user_without_the_rights_is_denied,
        a_unix_socket_serves,
        databases_are_apart,
        tls_verifies_the_certificate,
        tls_never_falls_back_to_plain_text,
        a_missing_server_is_unavailable,
    ]
}

fn at(port: u16) -> RedisOptions {
    RedisOptions::new(RedisServer::Tcp {
        host: "127.0.0.1".into(),
        port,
    })
}

/// Uses a lock in every way: take, renew, wait, leave the queue, inspect, list, release.
pub async fn full_cycle(options: RedisOptions) {
    let mut client = Client(Box::new(Redis::new(options)));
    let held = waiting(&key("a{b}c"), LONG);
    client.take(&held).await;
    client.renewed(&held, None).await;
    client.refused(&waiting(&key("a{b}c"), LONG)).await;
    client
        .wait(&waiting(&key("a{b}c"), LONG), Duration::from_millis(20))
        .await;
    client.leave_queue(&waiting(&key("a{b}c"), LONG)).await;
    client.inspect(&key("a{b}c")).await;
    assert_eq!(client.keys("").await, ["a{b}c"]);
    client.free(&held).await;
}

async fn attempt(options: RedisOptions) -> Result<Attempt> {
    use dlock::lock::Backend as _;
    Redis::new(options)
        .try_acquire(&request(&key("job"), LONG))
        .await
}

fn assert_denied(error: &Error, secret: &str) {
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Denied, Effect::NotApplied),
        "{error:?}"
    );
    assert!(
        !error.to_string().contains(secret) && !format!("{error:?}").contains(secret),
        "{error:?}"
    );
}

async fn the_right_password_opens(_: &Lab) {
    let server = support::redis::Redis::with(support::redis::Options {
        password: Some("p@ss:w/rd"),
        ..Default::default()
    });
    full_cycle(RedisOptions {
        password: Some(Secret::new("p@ss:w/rd")),
        ..at(server.port)
    })
    .await;
}

async fn a_refused_password_is_denied_and_never_shown(_: &Lab) {
    let server = support::redis::Redis::with(support::redis::Options {
        password: Some("right"),
        ..Default::default()
    });
    for password in [None, Some(Secret::new("wr0ng-secret"))] {
        let error = attempt(RedisOptions {
            password,
            ..at(server.port)
        })
        .await
        .expect_err("refused");
        assert_denied(&error, "wr0ng-secret");
    }
    let user = RedisOptions {
        user: Some("nobody".into()),
        password: Some(Secret::new("wr0ng-secret")),
        ..at(server.port)
    };
    assert_denied(&attempt(user).await.expect_err("refused"), "wr0ng-secret");
}

/// The rights of a user for the locks of the namespace `dlock` and nothing else.
pub const LEAST: &str = "on >secret resetchannels -@all +@connection +eval +evalsha +@hash +@sortedset +@list +@string +@keyspace +@pubsub +time \
                     -@dangerous ~dlock:* ~redisson_lock_token:{dlock:* &redisson_lock__channel:{dlock:* &redisson_rwlock:{dlock:*";

fn server_with(user: &'static str) -> support::redis::Redis {
    support::redis::Redis::with(support::redis::Options {
        users: vec![("app", user)],
        ..Default::default()
    })
}

async fn a_user_with_the_least_rights_can_do_all(_: &Lab) {
    let server = server_with(LEAST);
    full_cycle(RedisOptions {
        user: Some("app".into()),
        password: Some(Secret::new("secret")),
        ..at(server.port)
    })
    .await;
}

async fn a_user_without_the_rights_is_denied(_: &Lab) {
    for rules in [
        "on >secret +@all ~other:* &*",
        "on >secret -@all +@connection ~* &*",
    ] {
        let server = server_with(rules);
        let options = RedisOptions {
            user: Some("app".into()),
            password: Some(Secret::new("secret")),
            ..at(server.port)
        };
        let error = attempt(options).await.expect_err("no rights");
        assert_eq!(error.kind, ErrorKind::Denied, "{rules}: {error:?}");
        assert!(server.keys().is_empty());
    }
}

async fn a_unix_socket_serves(_: &Lab) {
    let server = support::redis::Redis::with(support::redis::Options {
        unix_socket: true,
        ..Default::default()
    });
    let options = RedisOptions::new(RedisServer::Unix(server.socket()));
    let url = Client(Box::new(Redis::new(options.clone())))
        .0
        .identity()
        .url;
    assert_eq!(url, format!("redis+unix://{}", server.socket().display()));
    full_cycle(options).await;
    let error = attempt(RedisOptions::new(RedisServer::Unix(PathBuf::from(
        "/nonexistent/redis.sock",
    ))))
    .await
    .expect_err("no server");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Unavailable, Effect::NotApplied),
        "{error:?}"
    );
}

async fn databases_are_apart(lab: &Lab) {
    let port = lab.store().port();
    let mut zero = Client(Box::new(Redis::new(at(port))));
    let mut seven = Client(Box::new(Redis::new(RedisOptions { db: 7, ..at(port) })));
    zero.hold(&key("job")).await;
    seven.hold(&key("job")).await;
    assert_ne!(
        zero.0.identity().fingerprint,
        seven.0.identity().fingerprint
    );
    let error = attempt(RedisOptions { db: 99, ..at(port) })
        .await
        .expect_err("there are 16 databases");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Config, Effect::NotApplied),
        "{error:?}"
    );
}

async fn tls_verifies_the_certificate(_: &Lab) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = support::redis::Redis::with(support::redis::Options {
        tls_names: vec!["127.0.0.1"],
        ..Default::default()
    });
    let ours = server
        .certificates
        .as_ref()
        .expect("certificates")
        .ca
        .clone();
    let with = |ca_file| RedisOptions {
        tls: Some(Tls {
            ca_file,
            ..Tls::default()
        }),
        ..at(server.tls_port)
    };
    full_cycle(with(Some(ours.clone()))).await;

    let unknown = attempt(with(None))
        .await
        .expect_err("the certificate is of no public authority");
    let elsewhere = support::folder();
    let theirs = support::tls::Certificates::make(elsewhere.path(), &["127.0.0.1"]).ca;
    let other = attempt(with(Some(theirs)))
        .await
        .expect_err("another authority");
    let misnamed = support::redis::Redis::with(support::redis::Options {
        tls_names: vec!["redis.example"],
        ..Default::default()
    });
    let ca = misnamed
        .certificates
        .as_ref()
        .expect("certificates")
        .ca
        .clone();
    let options = RedisOptions {
        tls: Some(Tls {
            ca_file: Some(ca),
            ..Tls::default()
        }),
        ..at(misnamed.tls_port)
    };
    let name = attempt(options).await.expect_err("another name");
    for (what, error) in [("unknown", unknown), ("other", other), ("name", name)] {
        assert_eq!(
            (error.kind, error.effect),
            (ErrorKind::Denied, Effect::NotApplied),
            "{what}: {error:?}"
        );
    }
    assert!(
        !server
            .keys()
            .iter()
            .any(|(name, _)| name.contains("dlock:job")),
        "dlock sent commands to a refused server"
    );
}

async fn tls_never_falls_back_to_plain_text(lab: &Lab) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A server without TLS, which would accept a password in plain text.
    let proxy = Proxy::to(lab.store().port());
    let options = RedisOptions {
        tls: Some(Tls::default()),
        password: Some(Secret::new("secret")),
        ..at(proxy.port)
    };
    let outcome = tokio::time::timeout(Duration::from_secs(2), attempt(options)).await;
    assert!(!matches!(outcome, Ok(Ok(_))), "{outcome:?}");
    assert!(proxy.connections() > 0, "dlock never connected");
    assert!(lab.redis().keys().is_empty());
}

async fn a_missing_server_is_unavailable(lab: &Lab) {
    let mut proxy = Proxy::to(lab.store().port());
    proxy.set(support::proxy::Mode::Refuse);
    let error = attempt(at(proxy.port)).await.expect_err("refused");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Unavailable, Effect::NotApplied),
        "{error:?}"
    );
}
