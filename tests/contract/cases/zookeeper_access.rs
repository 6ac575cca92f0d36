//! Access to ZooKeeper: logins, certificates, session ranges, and a server that is cut off from the
//! others.

use std::time::{Duration, Instant};

use dlock::{
    backends::{
        Secret, Tls,
        zookeeper::{ZooKeeper, ZooKeeperOptions},
    },
    lease::{self, BootClock, Limits},
    lock::{
        Amendment, Attempt, Backend as _, Effect, Error, Kind as ErrorKind, Note, Renewal, Request,
    },
};
use zookeeper_client::{Acl, Acls, AuthId, Client as Admin, CreateMode, Permission};

use super::{
    Case, cases,
    history::{broken, history},
};
use crate::{
    lab::{Client, LONG, Lab, key, request, short, stretched, waiting},
    support::{
        self, ports,
        zookeeper::{Options as Plan, ZooKeeper as Servers, tree},
    },
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind == Kind::ZooKeeper =>
        a_login_keeps_others_out,
        an_unreadable_chroot_is_denied,
        a_read_only_user_sees_the_history,
        a_user_without_history_rights_still_gets_the_lock,
        a_removed_history_starts_again,
        tls_verifies_the_certificate,
        a_tls_connection_to_a_plain_server_fails,
        a_lease_outside_the_servers_range_is_refused_and_the_range_named,
        a_missing_server_is_unavailable,
        one_reachable_server_of_several_is_enough,
        a_server_that_is_cut_off_confirms_nothing,
        a_lost_leader_is_survived,
    ]
}

/// Uses a lock in every way: take, renew, enter, inspect, list, release, and a detached hold.
async fn full_cycle(options: ZooKeeperOptions) {
    let mut client = Client(Box::new(ZooKeeper::new(options)));
    let held = waiting(&key("a{b}c"), LONG);
    client.take(&held).await;
    client.renewed(&held, None).await;
    client.refused(&request(&key("a{b}c"), LONG)).await;
    client.take(&crate::lab::nested(&held)).await;
    client.inspect(&key("a{b}c")).await;
    assert_eq!(client.keys("").await, ["a{b}c"]);
    client.release(&held, dlock::lock::Scope::Tree).await;
    let mut detached = Request {
        detached: true,
        ..request(&key("detached"), LONG)
    };
    detached.token.session = client.take(&detached).await.session;
    client.renewed(&detached, None).await;
    client.free(&detached).await;
}

async fn attempt(options: ZooKeeperOptions) -> dlock::lock::Result<Attempt> {
    ZooKeeper::new(options)
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

#[allow(clippy::unnecessary_wraps)] // the type of the options
fn login(user: &str, password: &str) -> Option<(String, Secret)> {
    Some((user.into(), Secret::new(password)))
}

async fn a_login_keeps_others_out(lab: &Lab) {
    let at = |login| ZooKeeperOptions {
        login,
        ..lab.options("dlock")
    };
    full_cycle(at(login("ana", "p@ss:w/rd"))).await;
    for other in [
        None,
        login("ana", "wr0ng-secret"),
        login("ben", "p@ss:w/rd"),
    ] {
        assert_denied(
            &attempt(at(other)).await.expect_err("nodes of another user"),
            "wr0ng-secret",
        );
    }
    full_cycle(at(login("ana", "p@ss:w/rd"))).await;
    let admin = lab.admin().await;
    assert!(
        admin
            .list_children(&format!("{}/dlock", lab.chroot()))
            .await
            .is_err(),
        "another user can read the lock's nodes"
    );
}

async fn an_unreadable_chroot_is_denied(lab: &Lab) {
    let port = lab.store().port();
    let owner = Admin::connector()
        .with_auth("digest", b"ana:secret")
        .connect(&format!("127.0.0.1:{port}"))
        .await
        .expect("a connection");
    owner
        .create(
            &lab.chroot(),
            b"",
            &CreateMode::Persistent.with_acls(Acls::creator_all()),
        )
        .await
        .expect("a node");
    let options: ZooKeeperOptions = lab.options("dlock");
    assert_denied(
        &attempt(options.clone()).await.expect_err("no rights"),
        "secret",
    );
    full_cycle(ZooKeeperOptions {
        login: login("ana", "secret"),
        ..options
    })
    .await;
}

async fn a_read_only_user_sees_the_history(lab: &Lab) {
    let job = key("job");
    let mut owner = Client(Box::new(ZooKeeper::new(ZooKeeperOptions {
        login: login("ana", "secret"),
        ..lab.options("dlock")
    })));
    let held = owner.hold(&job).await;
    owner.free(&held).await;
    let fence = owner.take(&request(&job, LONG)).await.fence;
    let port = lab.store().port();
    let admin = Admin::connector()
        .with_auth("digest", b"ana:secret")
        .connect(&format!("127.0.0.1:{port}"))
        .await
        .expect("a connection");
    let both = [
        Acl::new(Permission::ALL, AuthId::authed()),
        Acl::new(Permission::READ, AuthId::anyone()),
    ];
    for node in tree(&admin, &lab.chroot()).await {
        admin.set_acl(&node, &both, None).await.expect("its rights");
    }
    let mut viewer = Client(Box::new(ZooKeeper::new(lab.options("dlock"))));
    assert_eq!(history(&mut viewer, &job).await.past.len(), 1);
    let skip = Note::Skipped {
        host: "web1".into(),
        reason: "busy".into(),
        at_ms: 1,
    };
    assert_denied(
        &viewer
            .0
            .amend(&job, Amendment::Note(&skip))
            .await
            .expect_err("a user without the right"),
        "secret",
    );
    assert_denied(
        &viewer
            .0
            .amend(&job, Amendment::Mark(fence, &broken("NFS")))
            .await
            .expect_err("a user without the right"),
        "secret",
    );
    assert_denied(
        &viewer
            .0
            .amend(&job, Amendment::Evict(fence, &broken("NFS")))
            .await
            .expect_err("a user without the right"),
        "secret",
    );
}

async fn a_user_without_history_rights_still_gets_the_lock(lab: &Lab) {
    let admin = lab.admin().await;
    let (mut a, job) = (lab.client().await, key("job"));
    let held = a.hold(&job).await;
    a.free(&held).await;
    for node in tree(&admin, &format!("{}/dlock.meta/%fine", lab.chroot())).await {
        admin
            .set_acl(&node, &[Acl::new(Permission::READ, AuthId::anyone())], None)
            .await
            .expect("its rights");
    }
    for _ in 0..2 {
        let held = a.hold(&job).await;
        a.renewed(&held, None).await;
        a.free(&held).await;
    }
    assert_eq!(history(&mut a, &job).await.past.len(), 1);
}

/// Locks of a version without a history lack its folders.
async fn a_removed_history_starts_again(lab: &Lab) {
    let admin = lab.admin().await;
    let (mut a, mut b, job) = (lab.client().await, lab.client().await, key("job"));
    let first = a.hold(&job).await;
    a.free(&first).await;
    for evicted in [false, true] {
        let held = request(&job, LONG);
        let fence = a.take(&held).await.fence;
        for folder in ["%fine", "%bad"] {
            for node in tree(&admin, &format!("{}/dlock.meta/{folder}", lab.chroot())).await {
                let _ = admin.delete(&node, None).await;
            }
        }
        if evicted {
            b.0.amend(&job, Amendment::Evict(fence, &broken("NFS")))
                .await
                .expect("an eviction");
        } else {
            a.free(&held).await;
        }
        let past = history(&mut b, &job).await.past;
        assert!(past.len() == 1 && past[0].fence == Some(fence), "{past:?}");
    }
}

fn with_tls(names: Vec<&'static str>) -> Servers {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Servers::with(Plan {
        tls_names: names,
        ..Plan::default()
    })
}

fn over_tls(port: u16, ca_file: Option<std::path::PathBuf>) -> ZooKeeperOptions {
    ZooKeeperOptions {
        tls: Some(Tls {
            ca_file,
            ..Tls::default()
        }),
        ..ZooKeeperOptions::new(vec![("127.0.0.1".into(), port)])
    }
}

async fn tls_verifies_the_certificate(_: &Lab) {
    let servers = with_tls(vec!["127.0.0.1"]);
    let (port, ours) = (
        servers.nodes[0].tls_port,
        servers
            .certificates
            .as_ref()
            .expect("certificates")
            .ca
            .clone(),
    );
    full_cycle(over_tls(port, Some(ours))).await;
    let unknown = attempt(over_tls(port, None))
        .await
        .expect_err("the certificate is of no public authority");
    let elsewhere = support::folder();
    let theirs = support::tls::Certificates::make(elsewhere.path(), &["127.0.0.1"]).ca;
    let other = attempt(over_tls(port, Some(theirs)))
        .await
        .expect_err("another authority");
    let misnamed = with_tls(vec!["zookeeper.example"]);
    let ca = misnamed
        .certificates
        .as_ref()
        .expect("certificates")
        .ca
        .clone();
    let name = attempt(over_tls(misnamed.nodes[0].tls_port, Some(ca)))
        .await
        .expect_err("another name");
    for (what, error) in [("unknown", unknown), ("other", other), ("name", name)] {
        assert_eq!(
            (error.kind, error.effect),
            (ErrorKind::Denied, Effect::NotApplied),
            "{what}: {error:?}"
        );
    }
}

async fn a_tls_connection_to_a_plain_server_fails(lab: &Lab) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let outcome = tokio::time::timeout(
        Duration::from_secs(5),
        attempt(over_tls(lab.store().port(), None)),
    )
    .await;
    assert!(!matches!(outcome, Ok(Ok(_))), "{outcome:?}");
}

async fn a_lease_outside_the_servers_range_is_refused_and_the_range_named(_: &Lab) {
    let plan = Plan {
        tick: Duration::from_millis(500),
        sessions: None,
        ..Plan::default()
    };
    let servers = Servers::with(plan);
    let mut backend = ZooKeeper::new(ZooKeeperOptions::new(servers.hosts()));
    let asked = request(&key("job"), LONG);
    let error = backend
        .try_acquire(&asked)
        .await
        .expect_err("beyond the range");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Unsupported, Effect::NotApplied),
        "{error:?}"
    );
    assert!(
        error.message.contains("a lease of 1m") && error.message.contains("1s to 10s"),
        "{error}"
    );
    assert!(
        backend
            .inspect(&key("job"))
            .await
            .expect("inspect")
            .holders
            .is_empty()
    );
    let default = Request {
        ttl_asked: false,
        ..asked
    };
    match backend.try_acquire(&default).await.expect("an answer") {
        Attempt::Granted(grant) => assert_eq!(grant.ttl.get(), Duration::from_secs(10), "clamped"),
        other => panic!("{other:?}"),
    }
    match backend
        .renew(&default.key, &default.token, None.into())
        .await
        .expect("an answer")
    {
        Renewal::Renewed { ttl, .. } => assert_eq!(ttl.get(), Duration::from_secs(10)),
        other => panic!("{other:?}"),
    }
    let long = Servers::with(Plan {
        sessions: Some((Duration::from_secs(4), Duration::from_secs(8))),
        ..Plan::default()
    });
    let error = ZooKeeper::new(ZooKeeperOptions::new(long.hosts()))
        .try_acquire(&request(&key("job"), short()))
        .await
        .expect_err("too short");
    assert!(error.message.contains("4s to 8s"), "{error}");
}

async fn a_missing_server_is_unavailable(_: &Lab) {
    let missing = ZooKeeperOptions::new(vec![
        ("127.0.0.1".into(), ports::free()),
        ("127.0.0.1".into(), ports::free()),
    ]);
    let began = Instant::now();
    let error = attempt(missing).await.expect_err("no server");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Unavailable, Effect::NotApplied),
        "{error:?}"
    );
    assert!(
        began.elapsed() < stretched(Duration::from_secs(2)),
        "{:?}",
        began.elapsed()
    );
    let error = attempt(ZooKeeperOptions::new(vec![(
        "no-such-host.invalid".into(),
        2181,
    )]))
    .await
    .expect_err("no host");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Unavailable, Effect::NotApplied),
        "{error:?}"
    );
}

async fn one_reachable_server_of_several_is_enough(lab: &Lab) {
    let mut hosts = lab.zookeeper().hosts();
    hosts.extend([
        ("127.0.0.1".into(), ports::free()),
        ("127.0.0.1".into(), ports::free()),
    ]);
    for _ in 0..5 {
        full_cycle(ZooKeeperOptions {
            hosts: hosts.clone(),
            ..lab.options("dlock")
        })
        .await;
    }
}

/// The cut-off server still answers reads long after the other servers granted the lock to another
/// client.
async fn a_server_that_is_cut_off_confirms_nothing(_: &Lab) {
    let mut servers = Servers::with(Plan {
        servers: 3,
        apart: true,
        config: vec!["syncLimit=100".into()],
        ..Plan::default()
    });
    for _ in 0..5 {
        if servers.leader() != 0 {
            break;
        }
        // The first server has to be a follower.
        servers.nodes[0].kill();
        servers.start();
    }
    let port = servers.nodes[0].port;
    let others = ZooKeeperOptions::new(servers.hosts()[1..].to_vec());
    let mut a = Client(Box::new(ZooKeeper::new(ZooKeeperOptions::new(vec![(
        "127.0.0.1".into(),
        port,
    )]))));
    let mut b = Client(Box::new(ZooKeeper::new(others)));
    let job = key("job");
    let held = request(&job, short());
    a.take(&held).await;
    let reader = Admin::connect(&format!("127.0.0.1:{port}"))
        .await
        .expect("a connection");
    let name = reader
        .list_children("/dlock/job")
        .await
        .expect("the queue")
        .remove(0);
    let last = Instant::now();
    a.renewed(&held, None).await;
    servers.cut_off_first();
    let cut = Instant::now();
    let mut confirmed = last;
    // The holder keeps renewing while the other client waits.
    let keep = async {
        loop {
            let sent = Instant::now();
            if let Ok(Ok(Renewal::Renewed { .. })) =
                tokio::time::timeout(short() / 6, a.0.renew(&job, &held.token, None.into())).await
            {
                confirmed = sent;
            }
            if cut.elapsed() > short() * 3 {
                return confirmed;
            }
        }
    };
    let next = async {
        let grant = b
            .wait_for(&waiting(&job, LONG), Duration::from_millis(50))
            .await;
        let granted = Instant::now();
        assert_eq!(grant.drain_delay, Duration::from_millis(500));
        // Counts the reads until the server notices that it is cut off.
        let mut reads = 0;
        while let Ok(Ok(Some(_))) = tokio::time::timeout(
            Duration::from_millis(200),
            reader.check_stat(&format!("/dlock/job/{name}")),
        )
        .await
        {
            reads += 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        (granted, reads, granted.elapsed())
    };
    let (confirmed, (granted, reads, longer)) = tokio::join!(keep, next);
    assert!(reads > 0, "the cut-off server answered no read");
    support::say(&format!(
        "a cut-off server showed the old holder's node for {longer:?} after the next was granted the lock"
    ));
    // The command is killed two thirds of the lease after the last confirmation.
    assert!(
        confirmed + short() * 2 / 3 < granted,
        "confirmed {:?} before the next grant",
        granted - confirmed
    );
}

async fn a_lost_leader_is_survived(_: &Lab) {
    let mut servers = Servers::ensemble();
    let mut a = Client(Box::new(ZooKeeper::new(ZooKeeperOptions::new(
        servers.hosts(),
    ))));
    let mut b = Client(Box::new(ZooKeeper::new(ZooKeeperOptions::new(
        servers.hosts(),
    ))));
    let job = key("job");
    let held = request(&job, Duration::from_secs(15));
    let fence = a.take(&held).await.fence;
    let leader = servers.leader();
    servers.nodes[leader].kill();
    let limits = Limits::of(Duration::from_secs(10));
    let renewal = lease::ask(
        &mut *a.0,
        &BootClock,
        limits,
        ("ask", None),
        async |backend: &mut dyn dlock::lock::Backend| {
            backend.renew(&job, &held.token, None.into()).await
        },
    );
    assert!(matches!(renewal.await, Ok(Renewal::Renewed { fence: same, .. }) if same == fence));
    b.refused(&request(&job, LONG)).await;
    a.free(&held).await;
    assert!(b.take(&request(&job, LONG)).await.fence > fence);
}
