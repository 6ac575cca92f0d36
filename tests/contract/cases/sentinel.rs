//! Redis behind sentinels: dlock finds and follows the master, and waits for replicas where the
//! options require them.
//!
//! Each case has its own deployment. Where a hold must outlive its master, the case waits for
//! replicas: otherwise nothing is promised.

use std::{
    future::pending,
    time::{Duration, Instant},
};

use dlock::{
    backends::{
        Secret, Tls,
        redis::{Redis, RedisOptions, Replicas},
    },
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{
        Attempt, Backend as _, Effect, Kind as ErrorKind, Progress, Release, Renewal, Request,
        Scope,
    },
};

use super::{
    Case, cases,
    redis_access::{LEAST, full_cycle},
};
use crate::{
    lab::{Client, LONG, Lab, key, request, short, soon, waiting},
    support::{
        self,
        proxy::Mode,
        sentinel::{Deployment, NAME, Plan},
    },
    targets::{Kind, options, places},
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind == Kind::Sentinel =>
        a_hold_outlives_its_master,
        a_waiter_outlives_its_master,
        a_demoted_master_that_still_runs_is_left,
        an_acquire_unanswered_by_a_frozen_master_is_granted_once,
        a_master_cut_off_from_its_replicas_grants_and_renews_nothing,
        too_few_replicas_leave_nothing_behind,
        unreachable_sentinels_are_skipped,
        an_unknown_master_is_reported_with_the_known_ones,
        sentinels_and_servers_have_credentials_of_their_own,
        sentinels_and_servers_are_reached_over_tls,
        a_user_with_the_least_rights_can_do_all_and_may_ask_for_the_role,
        any_sentinel_leads_to_the_same_store,
    ]
}

const LIMITS: Limits<'static> = Limits::of(Duration::from_secs(2));
/// Longer than a failover takes: a second until the master counts as dead, and the elections.
const FAILOVER: Duration = Duration::from_secs(25);

/// Returns options to reach the master through the sentinels with these ports.
fn options_at(sentinels: impl IntoIterator<Item = u16>) -> RedisOptions {
    let url = format!("redis+sentinel://{}/{NAME}", places(sentinels));
    options(&url, "dlock")
}

fn all_of(deployment: &Deployment) -> RedisOptions {
    options(&deployment.url(), "dlock")
}

fn client(options: RedisOptions) -> Client {
    Client(Box::new(Redis::new(options)))
}

/// Waits for existing replicas, for as long as a loaded machine may need.
fn confirmed(count: u32, options: RedisOptions) -> RedisOptions {
    RedisOptions {
        replicas: Some(Replicas {
            count,
            within: Duration::from_secs(2),
        }),
        ..options
    }
}

/// Waits only briefly, for replicas that don't exist.
fn briefly(count: u32, options: RedisOptions) -> RedisOptions {
    RedisOptions {
        replicas: Some(Replicas {
            count,
            within: Duration::from_millis(300),
        }),
        ..options
    }
}

/// Renews as a holder does until an answer arrives. Returns the answer and how long it took.
pub async fn renew_until_answered(client: &mut Client, held: &Request) -> (Renewal, Duration) {
    let began = Instant::now();
    loop {
        let answer = tokio::time::timeout(
            LIMITS.attempt(),
            client.0.renew(&held.key, &held.token, None.into()),
        )
        .await;
        match answer {
            Ok(Ok(renewal)) => return (renewal, began.elapsed()),
            Ok(Err(error)) if !error.is_transient() => panic!("{error:?}"),
            _ if began.elapsed() > FAILOVER => panic!("not answered within {FAILOVER:?}"),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn a_hold_outlives_its_master(_: &Lab) {
    let deployment = Deployment::with(&Plan {
        replicas: 1,
        ..Plan::default()
    });
    let job = key("job");
    let mut a = client(confirmed(1, all_of(&deployment)));
    let held = request(&job, LONG);
    let fence = a.take(&held).await.fence;
    deployment.servers[0].kill();
    // No replica is left to confirm anything.
    let mut a = {
        drop(a);
        client(all_of(&deployment))
    };
    let (renewal, _) = renew_until_answered(&mut a, &held).await;
    assert!(
        matches!(renewal, Renewal::Renewed { fence: now, .. } if now == fence),
        "{renewal:?}"
    );
    assert_eq!(deployment.await_failover(0), 1);
    client(all_of(&deployment))
        .refused(&request(&job, LONG))
        .await;
    a.free(&held).await;
    assert!(
        client(all_of(&deployment))
            .take(&request(&job, LONG))
            .await
            .fence
            > fence
    );
}

async fn a_waiter_outlives_its_master(_: &Lab) {
    let deployment = Deployment::with(&Plan::default());
    let job = key("job");
    let mut a = client(confirmed(2, all_of(&deployment)));
    let mut b = client(all_of(&deployment));
    let held = request(&job, LONG);
    a.take(&held).await;
    let wait = lease::acquire(
        &mut *b.0,
        &BootClock,
        waiting(&job, LONG),
        WaitPolicy::For(LONG),
        LIMITS,
        pending::<()>(),
        |_| {},
    );
    let release = async {
        // The waiter blocks at the old master.
        tokio::time::sleep(short() / 2).await;
        deployment.servers[0].kill();
        drop(a);
        let mut a = client(all_of(&deployment));
        let (renewal, _) = renew_until_answered(&mut a, &held).await;
        assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
        // Now the waiter blocks at the new master.
        tokio::time::sleep(short() * 2).await;
        a.free(&held).await;
        Instant::now()
    };
    let (outcome, released) = tokio::join!(wait, release);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    assert!(
        released.elapsed() < soon(),
        "{:?} after the release",
        released.elapsed()
    );
}

async fn a_demoted_master_that_still_runs_is_left(_: &Lab) {
    let deployment = Deployment::with(&Plan {
        replicas: 1,
        ..Plan::default()
    });
    let (mut a, mut b) = (
        client(confirmed(1, all_of(&deployment))),
        client(all_of(&deployment)),
    );
    let job = key("job");
    let held = request(&job, LONG);
    a.take(&held).await;
    let wanted = waiting(&job, LONG);
    b.refused(&wanted).await;
    assert_eq!(deployment.switch(), 1);
    deployment.settle();
    let (renewal, _) = renew_until_answered(&mut a, &held).await;
    assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
    // The waiter must not block on its old connection.
    let release = async {
        tokio::time::sleep(short() / 2).await;
        a.free(&held).await;
        Instant::now()
    };
    let take = lease::acquire(
        &mut *b.0,
        &BootClock,
        wanted,
        WaitPolicy::For(LONG),
        LIMITS,
        pending::<()>(),
        |_| {},
    );
    let (outcome, released) = tokio::join!(take, release);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
}

async fn an_acquire_unanswered_by_a_frozen_master_is_granted_once(_: &Lab) {
    let deployment = Deployment::with(&Plan {
        replicas: 1,
        ..Plan::default()
    });
    let mut a = client(all_of(&deployment));
    let warm = a.hold(&key("warm")).await;
    a.free(&warm).await;
    let job = key("job");
    // The frozen master has the request, and serves it when it thaws.
    deployment.servers[0].freeze();
    let asked = request(&job, LONG);
    let outcome = lease::acquire(
        &mut *a.0,
        &BootClock,
        asked,
        WaitPolicy::For(FAILOVER),
        LIMITS,
        pending::<()>(),
        |_| {},
    )
    .await;
    let Ok(Outcome::Granted(lease)) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(deployment.await_failover(0), 1);
    deployment.servers[0].thaw();
    deployment.settle();
    let state = client(all_of(&deployment)).inspect(&job).await;
    assert_eq!(
        (
            state.holders.len(),
            state.holders[0].holds,
            state.holders[0].fence
        ),
        (1, 1, Some(lease.fence))
    );
    assert_eq!(
        a.0.release(&job, &lease.token, &Scope::Hold.into())
            .await
            .expect("release"),
        Release::Released
    );
    client(all_of(&deployment)).hold(&job).await;
}

/// The old master can't know of the new one, but its clients can.
async fn a_master_cut_off_from_its_replicas_grants_and_renews_nothing(_: &Lab) {
    let mut deployment = Deployment::with(&Plan {
        replicas: 1,
        proxied: true,
        ..Plan::default()
    });
    let (job, other) = (key("job"), key("other"));
    deployment
        .front
        .as_mut()
        .expect("a proxy")
        .set(Mode::BlackHole);
    deployment.await_failover(0);
    let stray = deployment.stray();
    let believing = || options_at([stray.port]);
    let mut alone = client(briefly(1, believing()));
    let error = alone
        .0
        .try_acquire(&request(&job, LONG))
        .await
        .expect_err("no replica has the change");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Unavailable, Effect::NotApplied),
        "{error:?}"
    );
    assert!(
        error.message.contains("0 of 1 replicas") && error.hint.is_some(),
        "{error:?}"
    );
    assert!(
        client(believing()).inspect(&job).await.holders.is_empty(),
        "an unconfirmed grant was left behind"
    );
    // Grants from before the cut, and grants that required no replicas, aren't renewed.
    let held = client(believing()).hold(&other).await;
    let error = alone
        .0
        .renew(&held.key, &held.token, None.into())
        .await
        .expect_err("no replica has the change");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Unavailable, Effect::Unknown),
        "{error:?}"
    );
    let mut believed = client(all_of(&deployment));
    believed.hold(&job).await;
    believed.hold(&other).await;
}

async fn too_few_replicas_leave_nothing_behind(_: &Lab) {
    let deployment = Deployment::with(&Plan::default());
    let job = key("job");
    let mut three = client(briefly(3, all_of(&deployment)));
    let mut two = client(confirmed(2, all_of(&deployment)));
    let wanted = waiting(&job, LONG);
    for _ in 0..2 {
        let error = three
            .0
            .try_acquire(&wanted)
            .await
            .expect_err("there are only two replicas");
        assert_eq!(
            (error.kind, error.effect),
            (ErrorKind::Unavailable, Effect::NotApplied),
            "{error:?}"
        );
        assert!(error.message.contains("of 3 replicas"), "{error:?}");
    }
    three.leave_queue(&wanted).await;
    let left: Vec<_> = deployment.servers[0]
        .keys()
        .into_iter()
        .filter(|(name, _)| !name.starts_with("redisson_lock_token"))
        .collect();
    assert_eq!(left, [], "keys of an unconfirmed grant");
    let held = request(&job, short() * 2);
    two.take(&held).await;
    two.renewed(&held, None).await;
    // An entry into an ancestor's hold needs the same confirmation, and only the entry is undone.
    let inner = crate::lab::nested(&held);
    three
        .0
        .try_acquire(&inner)
        .await
        .expect_err("there are only two replicas");
    assert_eq!(
        client(all_of(&deployment)).inspect(&job).await.holders[0].holds,
        1
    );
    // Without replicas no renewal counts, and the hold is lost before its lease ends.
    let wanted = request(&key("other"), short() * 2);
    let outcome = lease::acquire(
        &mut *two.0,
        &BootClock,
        wanted,
        WaitPolicy::Try,
        LIMITS,
        pending::<()>(),
        |_| {},
    )
    .await;
    let Ok(Outcome::Granted(mut lease)) = outcome else {
        panic!("{outcome:?}")
    };
    deployment.servers[1].kill();
    let budget = lease::Budget::new(lease.ttl, None, dlock::lock::Pace::USUAL).expect("a budget");
    let mut renewals = 0;
    let loss = lease::keep(
        &mut *two.0,
        &BootClock,
        &mut lease,
        budget,
        LIMITS,
        dlock::lock::Intent::Extend(None),
        |_, _| renewals += 1,
    )
    .await;
    assert!(matches!(loss, lease::Loss::Unconfirmed { .. }), "{loss:?}");
    assert_eq!(renewals, 0);
}

async fn unreachable_sentinels_are_skipped(_: &Lab) {
    let deployment = Deployment::with(&Plan {
        replicas: 1,
        ..Plan::default()
    });
    let ports: Vec<_> = deployment
        .sentinels
        .iter()
        .map(|sentinel| sentinel.port)
        .collect();
    deployment.sentinels[0].kill();
    deployment.sentinels[1].freeze();
    let mut a = client(options_at(ports.clone()));
    let began = Instant::now();
    let held = a.hold(&key("job")).await;
    assert!(began.elapsed() < soon(), "{:?}", began.elapsed());
    a.free(&held).await;
    // A known master needs no sentinel.
    let held = a.hold(&key("job")).await;
    deployment.sentinels[1].kill();
    deployment.sentinels[2].kill();
    a.renewed(&held, None).await;
    let error = client(options_at(ports))
        .0
        .try_acquire(&request(&key("job"), LONG))
        .await
        .expect_err("no sentinel answers");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Unavailable, Effect::NotApplied),
        "{error:?}"
    );
    assert!(
        error.message.contains("none of 3 sentinels answers"),
        "{error:?}"
    );
    // A dead master is an error, however often the sentinels are asked.
    let deployment = Deployment::with(&Plan {
        replicas: 1,
        ..Plan::default()
    });
    let port = deployment.servers[0].port;
    deployment.servers[0].kill();
    let error = client(all_of(&deployment))
        .0
        .inspect(&key("job"))
        .await
        .expect_err("the master is down");
    assert!(
        error.is_transient() && error.message.contains(&format!("master 127.0.0.1:{port}")),
        "{error:?}"
    );
}

async fn an_unknown_master_is_reported_with_the_known_ones(_: &Lab) {
    let deployment = Deployment::with(&Plan {
        replicas: 0,
        ..Plan::default()
    });
    let mut wrong = all_of(&deployment);
    if let dlock::backends::redis::RedisServer::Sentinel(sentinel) = &mut wrong.server {
        sentinel.master = "prud".into();
    }
    let error = client(wrong)
        .0
        .try_acquire(&request(&key("job"), LONG))
        .await
        .expect_err("no such name");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Config, Effect::NotApplied),
        "{error:?}"
    );
    assert!(
        error.message.contains("prud")
            && error
                .hint
                .as_deref()
                .is_some_and(|hint| hint.contains(NAME)),
        "{error:?}"
    );
    // A data server is no sentinel.
    let error = client(options_at([deployment.servers[0].port]))
        .0
        .list("", &Progress::default())
        .await
        .expect_err("no sentinel");
    assert_eq!(error.kind, ErrorKind::Config, "{error:?}");
    assert!(
        error
            .hint
            .as_deref()
            .is_some_and(|hint| hint.contains("sentinel")),
        "{error:?}"
    );
}

async fn sentinels_and_servers_have_credentials_of_their_own(_: &Lab) {
    let plan = Plan {
        replicas: 1,
        password: Some("servers-secret"),
        sentinel_password: Some("sentinels-secret"),
        ..Plan::default()
    };
    let deployment = Deployment::with(&plan);
    let with = |sentinels: Option<&str>, servers: Option<&str>| {
        let mut options = RedisOptions {
            password: servers.map(Secret::new),
            ..all_of(&deployment)
        };
        if let dlock::backends::redis::RedisServer::Sentinel(sentinel) = &mut options.server {
            sentinel.password = sentinels.map(Secret::new);
        }
        options
    };
    let (right, wrong) = (Some("sentinels-secret"), Some("wr0ng-secret"));
    let mut a = client(with(right, Some("servers-secret")));
    let held = a.hold(&key("job")).await;
    a.free(&held).await;
    for (sentinels, servers, whose) in [
        (wrong, Some("servers-secret"), "sentinel 127"),
        (None, Some("servers-secret"), "sentinel 127"),
        (right, wrong, "master 127"),
        (right, None, "master 127"),
        (
            Some("servers-secret"),
            Some("servers-secret"),
            "sentinel 127",
        ),
    ] {
        let error = client(with(sentinels, servers))
            .0
            .try_acquire(&request(&key("job"), LONG))
            .await
            .expect_err("refused");
        assert_eq!(
            (error.kind, error.effect),
            (ErrorKind::Denied, Effect::NotApplied),
            "{error:?}"
        );
        assert!(error.message.starts_with(whose), "{error:?}");
        assert!(!format!("{error:?}{error}").contains("secret"), "{error:?}");
        assert_eq!(
            error
                .hint
                .as_deref()
                .is_some_and(|hint| hint.contains("sentinel_password")),
            whose.starts_with('s'),
            "{error:?}"
        );
    }
}

async fn sentinels_and_servers_are_reached_over_tls(_: &Lab) {
    let folder = support::folder();
    let certificates = support::tls::Certificates::make(folder.path(), &["127.0.0.1"]);
    let ca = certificates.ca.clone();
    let deployment = Deployment::with(&Plan {
        replicas: 1,
        certificates: Some(certificates),
        ..Plan::default()
    });
    let ports = || {
        deployment
            .sentinels
            .iter()
            .map(|sentinel| sentinel.tls_port)
    };
    let with = |ca_file| RedisOptions {
        tls: Some(Tls {
            ca_file,
            ..Tls::default()
        }),
        ..options_at(ports())
    };
    full_cycle(with(Some(ca.clone()))).await;
    let error = client(with(None))
        .0
        .try_acquire(&request(&key("job"), LONG))
        .await
        .expect_err("the tests' own authority is unknown");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Denied, Effect::NotApplied),
        "{error:?}"
    );
    // The connection to the master is encrypted too.
    let clear = all_of(&deployment);
    let error = client(clear)
        .0
        .try_acquire(&request(&key("job"), LONG))
        .await
        .expect_err("the master's port wants TLS");
    assert_eq!(error.effect, Effect::NotApplied, "{error:?}");
    assert!(error.hint.is_some_and(|hint| hint.contains("rediss://")));
}

async fn a_user_with_the_least_rights_can_do_all_and_may_ask_for_the_role(_: &Lab) {
    let deployment = Deployment::with(&Plan {
        replicas: 1,
        ..Plan::default()
    });
    let rules: Vec<_> = LEAST.split_ascii_whitespace().collect();
    let with = |more: &[&str]| {
        deployment.servers[0].command(&[&["ACL", "SETUSER", "app"], &rules[..], more].concat());
        RedisOptions {
            user: Some("app".into()),
            password: Some(Secret::new("secret")),
            ..confirmed(1, all_of(&deployment))
        }
    };
    let error = client(with(&[]))
        .0
        .try_acquire(&request(&key("job"), LONG))
        .await
        .expect_err("no right to ROLE");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Denied, Effect::NotApplied),
        "{error:?}"
    );
    assert!(
        error.message.contains("'role'")
            && error
                .hint
                .as_deref()
                .is_some_and(|hint| hint.contains("--print-grants run")),
        "{error:?}"
    );
    full_cycle(with(&["+role"])).await;
}

async fn any_sentinel_leads_to_the_same_store(_: &Lab) {
    let of = |ports: &[u16]| Redis::new(options_at(ports.iter().copied()));
    assert_eq!(
        of(&[1, 2]).identity().fingerprint,
        of(&[2, 3]).identity().fingerprint
    );
    assert_ne!(of(&[1]).identity().url, of(&[2]).identity().url);
    let other = Redis::new(RedisOptions {
        db: 1,
        ..options_at([1])
    });
    assert_ne!(
        of(&[1]).identity().fingerprint,
        other.identity().fingerprint
    );
    let deployment = Deployment::with(&Plan {
        replicas: 0,
        ..Plan::default()
    });
    let mut clients: Vec<_> = deployment
        .sentinels
        .iter()
        .map(|sentinel| client(options_at([sentinel.port])))
        .collect();
    let held = clients[0].hold(&key("job")).await;
    assert!(matches!(
        clients[1].attempt(&crate::lab::nested(&held)).await,
        Attempt::Granted(_)
    ));
    clients[2].refused(&request(&key("job"), LONG)).await;
}
