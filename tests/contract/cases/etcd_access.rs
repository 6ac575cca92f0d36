//! Access to etcd: several members, users, certificates, and a full store.

use std::{path::PathBuf, time::Duration};

use dlock::{
    backends::{
        Secret, Tls,
        etcd::{Etcd, EtcdOptions},
    },
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{
        Amendment, Attempt, Backend as _, Effect, End, Error, Kind as ErrorKind, Note, Progress,
        Release, Result, Scope,
    },
};

use super::{
    Case, cases,
    history::{broken, history},
};
use crate::{
    lab::{Client, LONG, Lab, key, request, soon, waiting},
    support::{
        self, ports,
        proxy::{Fault, Mode, Proxy},
    },
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind == Kind::Etcd =>
        unreachable_members_are_skipped,
        a_silent_member_is_left_for_the_next,
        a_missing_server_is_unavailable,
        a_user_with_the_least_rights_can_do_all,
        a_read_only_user_sees_the_history,
        a_user_without_history_rights_still_gets_the_lock,
        a_user_without_rights_is_denied_and_no_secret_is_shown,
        an_expired_login_is_renewed,
        certificates_are_verified_both_ways,
        a_plain_connection_to_a_tls_server_fails_with_a_hint,
        a_release_that_could_not_connect_is_recorded,
        a_full_store_grants_nothing_and_still_releases,
        a_too_large_request_is_explained,
        a_short_lease_is_raised_to_the_servers_minimum,
    ]
}

fn at(ports: &[u16]) -> EtcdOptions {
    EtcdOptions::new(
        ports
            .iter()
            .map(|port| ("127.0.0.1".into(), *port))
            .collect(),
    )
}

fn client(options: EtcdOptions) -> Client {
    Client(Box::new(Etcd::new(options)))
}

/// Uses a lock in every way: take, renew, wait, enter, break, release, list.
async fn full_cycle(options: EtcdOptions) {
    let mut client = client(options);
    let held = waiting(&key("a/b"), LONG);
    client.take(&held).await;
    client.renewed(&held, None).await;
    client.refused(&request(&key("a/b"), LONG)).await;
    let wanted = waiting(&key("a/b"), LONG);
    client.refused(&wanted).await;
    client.wait(&wanted, Duration::from_millis(20)).await;
    client.leave_queue(&wanted).await;
    client.take(&crate::lab::nested(&held)).await;
    let _ = tokio::time::timeout(
        Duration::from_millis(20),
        client.0.watch(&held.key, &held.token),
    )
    .await;
    client.inspect(&key("a/b")).await;
    assert_eq!(client.keys("").await, ["a/b"]);
    let fence = client.renewed(&held, None).await;
    assert!(
        client
            .0
            .amend(&held.key, Amendment::Mark(fence, &broken("NFS")))
            .await
            .expect("a mark")
    );
    client.release(&held, Scope::Tree).await;
    let fence = client.take(&request(&key("a/b"), LONG)).await.fence;
    assert!(
        client
            .0
            .amend(&held.key, Amendment::Evict(fence, &broken("NFS")))
            .await
            .expect("an eviction")
    );
    client
        .0
        .amend(&held.key, Amendment::Note(&skip()))
        .await
        .expect("a note");
    let known = history(&mut client, &held.key).await;
    assert!(
        known.past[0].end == End::Broken
            && known.past[1].end == End::Released
            && !known.skips.is_empty(),
        "{known:?}"
    );
    client
        .0
        .collect(Duration::from_secs(60), &Progress::default())
        .await
        .expect("gc");
}

fn skip() -> Note {
    Note::Skipped {
        host: "web1".into(),
        reason: "busy".into(),
        at_ms: 1,
    }
}

async fn attempt(options: EtcdOptions) -> Result<Attempt> {
    Etcd::new(options)
        .try_acquire(&request(&key("job"), LONG))
        .await
}

async fn unreachable_members_are_skipped(lab: &Lab) {
    let there = lab.etcd().port();
    // Whichever member the client starts with.
    for _ in 0..6 {
        let mut options = at(&[ports::free(), there, ports::free()]);
        options.namespace =
            dlock::lock::Namespace::new(lab.namespace("dlock")).expect("a namespace");
        full_cycle(options).await;
    }
}

async fn a_silent_member_is_left_for_the_next(lab: &Lab) {
    let there = lab.etcd().port();
    let namespace = dlock::lock::Namespace::new(lab.namespace("dlock")).expect("a namespace");
    let limits = Limits::of(Duration::from_secs(1));
    for n in 0..4 {
        let mut hole = Proxy::to(there);
        hole.set(Mode::BlackHole);
        let mut a = client(EtcdOptions {
            namespace: namespace.clone(),
            ..at(&[hole.port, there])
        });
        let job = key(&format!("job{n}"));
        let taken = lease::acquire(
            &mut *a.0,
            &BootClock,
            request(&job, LONG),
            WaitPolicy::Try,
            limits,
            std::future::pending::<()>(),
            |_| {},
        );
        let Ok(Outcome::Granted(lease)) = taken.await else {
            panic!("the second member answers")
        };
        // Now the member that the client uses falls silent, whichever that is.
        hole.set(Mode::Pass);
        let mut other = Proxy::to(there);
        let mut b = client(EtcdOptions {
            namespace: namespace.clone(),
            ..at(&[other.port, hole.port])
        });
        b.inspect(&job).await;
        other.set(Mode::BlackHole);
        hole.set(if n % 2 == 0 { Mode::Pass } else { Mode::Refuse });
        if n % 2 == 0 {
            let renewed = lease::ask(
                &mut *b.0,
                &BootClock,
                limits,
                ("ask", None),
                async |backend| backend.renew(&job, &lease.token, None.into()).await,
            )
            .await;
            assert!(
                matches!(renewed, Ok(dlock::lock::Renewal::Renewed { .. })),
                "{renewed:?}"
            );
        }
        a.0.release(&job, &lease.token, &Scope::Tree.into())
            .await
            .expect("release");
    }
}

async fn a_missing_server_is_unavailable(_: &Lab) {
    let error = attempt(at(&[ports::free(), ports::free()]))
        .await
        .expect_err("refused");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Unavailable, Effect::NotApplied),
        "{error:?}"
    );
    // The proxy answers, but no etcd is behind it.
    let proxy = Proxy::to(ports::free());
    let error = attempt(at(&[proxy.port]))
        .await
        .expect_err("no server behind the proxy");
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error:?}");
}

fn guarded(arguments: Vec<&'static str>) -> support::etcd::Etcd {
    let mut etcd = support::etcd::Etcd::with(support::etcd::Options {
        arguments,
        ..Default::default()
    });
    etcd.authenticate("app", "p@ss:w/rd", &["dlock/", "dlock.meta/"]);
    etcd
}

fn user(port: u16, password: &str) -> EtcdOptions {
    EtcdOptions {
        user: Some("app".into()),
        password: Some(Secret::new(password)),
        ..at(&[port])
    }
}

async fn a_user_with_the_least_rights_can_do_all(_: &Lab) {
    let etcd = guarded(Vec::new());
    full_cycle(user(etcd.port(), "p@ss:w/rd")).await;
}

async fn a_read_only_user_sees_the_history(_: &Lab) {
    let etcd = guarded(Vec::new());
    let mut a = client(user(etcd.port(), "p@ss:w/rd"));
    let held = a.hold(&key("job")).await;
    a.free(&held).await;
    let fence = a.take(&request(&key("job"), LONG)).await.fence;
    etcd.ctl(&["user", "add", "viewer:only-looks"]);
    etcd.ctl(&["role", "add", "viewers"]);
    for start in ["dlock/", "dlock.meta/"] {
        etcd.ctl(&[
            "role",
            "grant-permission",
            "viewers",
            "--prefix=true",
            "read",
            start,
        ]);
    }
    etcd.ctl(&["user", "grant-role", "viewer", "viewers"]);
    let mut viewer = client(EtcdOptions {
        user: Some("viewer".into()),
        ..user(etcd.port(), "only-looks")
    });
    assert_eq!(history(&mut viewer, &key("job")).await.past.len(), 1);
    assert_denied(
        &viewer
            .0
            .amend(&key("job"), Amendment::Note(&skip()))
            .await
            .expect_err("a user without the right"),
    );
    assert_denied(
        &viewer
            .0
            .amend(&key("job"), Amendment::Mark(fence, &broken("NFS")))
            .await
            .expect_err("a user without the right"),
    );
    assert_denied(
        &viewer
            .0
            .amend(&key("job"), Amendment::Evict(fence, &broken("NFS")))
            .await
            .expect_err("a user without the right"),
    );
}

async fn a_user_without_history_rights_still_gets_the_lock(_: &Lab) {
    let mut etcd = support::etcd::Etcd::with(support::etcd::Options::default());
    etcd.authenticate(
        "app",
        "p@ss:w/rd",
        &[
            "dlock/",
            "dlock.meta/%open/",
            "dlock.meta/%last/",
            "dlock.meta/%nested/",
        ],
    );
    let mut a = client(user(etcd.port(), "p@ss:w/rd"));
    for _ in 0..2 {
        let held = a.hold(&key("job")).await;
        a.renewed(&held, None).await;
        a.free(&held).await;
    }
    // The grant after a vanished hold needs no history rights either.
    a.hold(&key("job")).await;
    let own = etcd.keys("dlock/job/").remove(0);
    etcd.ctl(&["del", &own]);
    let mut b = client(user(etcd.port(), "p@ss:w/rd"));
    let next = b.hold(&key("job")).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    b.renewed(&next, None).await;
    b.free(&next).await;
    assert_eq!(
        b.take(&request(&key("job"), LONG)).await.drain_delay,
        Duration::ZERO
    );
    assert_eq!(etcd.keys("dlock.meta/").len(), 1);
    assert_denied(
        &a.0.history(&key("job"))
            .await
            .expect_err("a user without the right to read"),
    );
}

fn assert_denied(error: &Error) {
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Denied, Effect::NotApplied),
        "{error:?}"
    );
    assert!(
        !format!("{error} {error:?}").contains("wr0ng-secret"),
        "{error:?}"
    );
}

async fn a_user_without_rights_is_denied_and_no_secret_is_shown(lab: &Lab) {
    let etcd = guarded(Vec::new());
    assert_denied(&attempt(at(&[etcd.port()])).await.expect_err("no user"));
    assert_denied(
        &attempt(user(etcd.port(), "wr0ng-secret"))
            .await
            .expect_err("the wrong password"),
    );
    let other = dlock::lock::Namespace::new("other").expect("a namespace");
    assert_denied(
        &attempt(EtcdOptions {
            namespace: other,
            ..user(etcd.port(), "p@ss:w/rd")
        })
        .await
        .expect_err("no rights in that namespace"),
    );
    assert_eq!(etcd.keys(""), [""; 0]);
    assert_denied(
        &attempt(user(lab.etcd().port(), "wr0ng-secret"))
            .await
            .expect_err("a server without users"),
    );
}

async fn an_expired_login_is_renewed(_: &Lab) {
    let mut etcd = guarded(vec!["--auth-token-ttl", "1"]);
    let mut a = client(user(etcd.port(), "p@ss:w/rd"));
    let held = a.hold(&key("job")).await;
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(3200)).await;
        // The login is renewed within the failing call, not before the next one.
        a.renewed(&held, None).await;
    }
    // A restarted server knows no logins.
    etcd.kill();
    etcd.restart();
    let answer = lease::ask(
        &mut *a.0,
        &BootClock,
        Limits::DEFAULT,
        ("ask", None),
        async |backend| backend.renew(&held.key, &held.token, None.into()).await,
    )
    .await;
    assert!(
        matches!(answer, Ok(dlock::lock::Renewal::Renewed { .. })),
        "{answer:?}"
    );
    a.free(&held).await;
}

async fn certificates_are_verified_both_ways(_: &Lab) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let etcd = support::etcd::Etcd::with(support::etcd::Options {
        tls_names: vec!["127.0.0.1"],
        client_certificates: true,
        ..Default::default()
    });
    let files = etcd.certificates.clone().expect("certificates");
    let with = |tls| EtcdOptions {
        tls: Some(tls),
        ..at(&[etcd.port()])
    };
    let ours = Tls {
        ca_file: Some(files.ca.clone()),
        cert_file: Some(files.certificate.clone()),
        key_file: Some(files.key.clone()),
    };
    full_cycle(with(ours.clone())).await;
    let without_certificate = Tls {
        cert_file: None,
        key_file: None,
        ..ours.clone()
    };
    assert_denied(
        &attempt(with(without_certificate))
            .await
            .expect_err("the server wants a certificate"),
    );
    let unknown = Tls {
        ca_file: None,
        ..ours.clone()
    };
    assert_denied(
        &attempt(with(unknown))
            .await
            .expect_err("the certificate is of no public authority"),
    );
    let elsewhere = support::folder();
    let theirs = support::tls::Certificates::make(elsewhere.path(), &["127.0.0.1"]).ca;
    assert_denied(
        &attempt(with(Tls {
            ca_file: Some(theirs),
            ..ours.clone()
        }))
        .await
        .expect_err("another authority"),
    );
    let mut named = with(ours.clone());
    named.endpoints[0].0 = "localhost".into();
    assert_denied(&attempt(named).await.expect_err("another name"));
    let missing = Tls {
        ca_file: Some(PathBuf::from("/nonexistent/ca.pem")),
        ..ours
    };
    assert_eq!(
        attempt(with(missing)).await.expect_err("no such file").kind,
        ErrorKind::Config
    );
}

async fn a_plain_connection_to_a_tls_server_fails_with_a_hint(_: &Lab) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let etcd = support::etcd::Etcd::with(support::etcd::Options {
        tls_names: vec!["127.0.0.1"],
        ..Default::default()
    });
    let error = attempt(at(&[etcd.port()]))
        .await
        .expect_err("the server wants TLS");
    assert!(error.is_transient(), "{error:?}");
    assert!(
        error
            .hint
            .as_deref()
            .is_some_and(|hint| hint.contains("etcds://")),
        "{error:?}"
    );
}

/// A failed connection is no refusal: the release must not be repeated without its history entry.
async fn a_release_that_could_not_connect_is_recorded(_: &Lab) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let etcd = support::etcd::Etcd::with(support::etcd::Options {
        tls_names: vec!["127.0.0.1"],
        ..Default::default()
    });
    let files = etcd.certificates.clone().expect("certificates");
    let proxy = Proxy::to(etcd.port());
    let tls = Tls {
        ca_file: Some(files.ca),
        cert_file: None,
        key_file: None,
    };
    let mut a = client(EtcdOptions {
        tls: Some(tls),
        ..at(&[proxy.port])
    });
    let held = a.hold(&key("job")).await;
    proxy.cut();
    // The next handshake.
    proxy.trap("", Fault::CutBefore);
    let released = loop {
        match a
            .0
            .release(&held.key, &held.token, &Scope::Tree.into())
            .await
        {
            Ok(released) => break released,
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
    };
    assert_eq!((released, proxy.sprung()), (Release::Released, 1));
    assert_eq!(
        history(&mut a, &held.key)
            .await
            .past
            .iter()
            .map(|past| past.end.clone())
            .collect::<Vec<_>>(),
        [End::Released]
    );
}

async fn a_full_store_grants_nothing_and_still_releases(_: &Lab) {
    let etcd = support::etcd::Etcd::with(support::etcd::Options {
        arguments: vec!["--quota-backend-bytes", "2000000"],
        ..Default::default()
    });
    let mut a = client(at(&[etcd.port()]));
    let held = a.hold(&key("job")).await;
    let mut b = client(at(&[etcd.port()]));
    let wanted = waiting(&key("job"), LONG);
    b.refused(&wanted).await;
    let filling = "x".repeat(100_000);
    for n in 0..60 {
        if etcd
            .try_ctl(&["put", &format!("filling{n}"), &filling])
            .is_err()
        {
            break;
        }
    }
    assert!(etcd.ctl(&["alarm", "list"]).contains("NOSPACE"));
    let error =
        b.0.try_acquire(&request(&key("other"), LONG))
            .await
            .expect_err("no space");
    assert!(
        error.is_transient() && error.effect == Effect::Unknown,
        "{error:?}"
    );
    assert!(
        error
            .hint
            .as_deref()
            .is_some_and(|hint| hint.contains("alarm disarm")),
        "{error:?}"
    );
    a.renewed(&held, None).await;
    let mut c = client(at(&[etcd.port()]));
    let last = waiting(&key("job"), LONG);
    assert!(
        c.0.try_acquire(&last).await.is_err(),
        "no space in the queue either"
    );
    a.free(&held).await;
    // A queued waiter gets the lock, and releases it; or is evicted.
    let fence = b.wait_for(&wanted, soon()).await.fence;
    let error =
        c.0.amend(&key("job"), Amendment::Mark(fence, &broken("NFS")))
            .await
            .expect_err("no space");
    assert!(error.is_transient(), "{error:?}");
    b.renewed(&wanted, None).await;
    assert!(
        c.0.amend(&key("job"), Amendment::Evict(fence, &broken("NFS")))
            .await
            .expect("an eviction")
    );
    assert_eq!(b.renew(&wanted, None).await, dlock::lock::Renewal::NotHeld);
    let state = a.inspect(&key("job")).await;
    assert!(
        state.holders.is_empty() && state.waiters.is_empty(),
        "{state:?}"
    );
}

async fn a_too_large_request_is_explained(lab: &Lab) {
    let mut a = lab.client().await;
    let mut wanted = request(&key("job"), LONG);
    wanted.metadata = Some(dlock::lock::Metadata {
        description: Some("x".repeat(2 << 20)),
        ..crate::lab::runner("web1")
    });
    let error =
        a.0.try_acquire(&wanted)
            .await
            .expect_err("the request exceeds 1.5 MB");
    assert_eq!(error.kind, ErrorKind::Data, "{error:?}");
    assert_eq!(
        a.release(&wanted, Scope::Hold).await,
        dlock::lock::Release::NotHeld
    );
}

async fn a_short_lease_is_raised_to_the_servers_minimum(_: &Lab) {
    // etcd's shortest lease is 1.5 election timeouts.
    let etcd = support::etcd::Etcd::with(support::etcd::Options {
        arguments: vec!["--heartbeat-interval", "200", "--election-timeout", "2000"],
        ..Default::default()
    });
    let mut a = client(at(&[etcd.port()]));
    let held = request(&key("job"), crate::lab::short());
    assert_eq!(a.take(&held).await.ttl.get(), Duration::from_secs(3));
    let notices = a.0.notices();
    assert!(
        notices.len() == 1 && !notices[0].warning && notices[0].text.contains("3s"),
        "{notices:?}"
    );
    assert!(
        matches!(a.renew(&held, None).await, dlock::lock::Renewal::Renewed { ttl, .. } if ttl.get() == Duration::from_secs(3))
    );
}
