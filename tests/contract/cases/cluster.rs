//! Redis Cluster: dlock finds and follows the node that has a lock, and waits while the lock's slot
//! is moved.
//!
//! Each case that moves a slot or ends a node has its own cluster.

use std::{
    future::pending,
    time::{Duration, Instant},
};

use dlock::{
    backends::{
        Secret, Tls,
        redis::{Redis, RedisOptions, Replicas},
    },
    lease::{self, BootClock, Limits, Outcome, Released, WaitPolicy},
    lock::{
        Attempt, Backend as _, Effect, Intent, Kind as ErrorKind, Mode, Progress, Release, Renewal,
        Request, Scope,
    },
};

use super::{
    Case, cases,
    redis_access::{LEAST, full_cycle},
    sentinel::renew_until_answered,
};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, nested, request, short, soon, waiting},
    support::{
        self,
        cluster::{Cluster, MASTERS},
    },
    targets::{Kind, options, places},
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind == Kind::Cluster =>
        unreachable_nodes_are_skipped,
        locks_of_all_nodes_are_listed,
        a_hold_outlives_the_move_of_its_slot,
        a_slot_marked_for_a_move_keeps_its_holds,
        a_waiter_outlives_the_move_of_its_slot,
        a_half_moved_lock_is_refused_until_the_move_is_done,
        half_moved_shares_are_refused_until_the_move_is_done,
        a_hold_and_a_waiter_outlive_their_node,
        an_acquire_unanswered_by_a_frozen_node_is_granted_once,
        a_demoted_node_that_still_runs_is_left,
        a_lock_is_unavailable_without_its_node,
        redisson_listeners_are_notified,
        all_nodes_are_reached_over_tls,
        a_user_with_the_least_rights_can_do_all,
        a_hold_outlives_all_nodes_of_the_url,
        any_node_leads_to_the_same_store,
    ]
}

const LIMITS: Limits<'static> = Limits::of(Duration::from_secs(2));
/// Longer than a failover takes.
const FAILOVER: Duration = Duration::from_secs(20);

/// Returns options to reach the cluster through the nodes on these ports.
fn options_at(seeds: impl IntoIterator<Item = u16>) -> RedisOptions {
    options(&format!("redis+cluster://{}", places(seeds)), "dlock")
}

fn client_at(cluster: &Cluster, nodes: &[usize]) -> Client {
    Client(Box::new(Redis::new(options_at(
        nodes.iter().map(|nth| cluster.nodes[*nth].port),
    ))))
}

fn client(cluster: &Cluster) -> Client {
    client_at(cluster, &[0, 1, 2])
}

/// Returns a client whose grants wait for the replica.
fn replicated(cluster: &Cluster) -> Client {
    let replicas = Some(Replicas {
        count: 1,
        within: Duration::from_secs(2),
    });
    Client(Box::new(Redis::new(RedisOptions {
        replicas,
        ..options_at([cluster.nodes[0].port])
    })))
}

/// Returns a key whose slot belongs to a node.
fn key_at(cluster: &Cluster, node: usize) -> dlock::lock::Key {
    let name = (0..1000)
        .map(|nth| format!("job-{nth}"))
        .find(|name| cluster.owner(&format!("dlock:{name}")) == node);
    key(&name.expect("a key"))
}

async fn core_acquire(
    client: &mut Client,
    request: Request,
    wait_policy: WaitPolicy,
) -> dlock::lock::Result<Outcome<()>> {
    lease::acquire(
        &mut *client.0,
        &BootClock,
        request,
        wait_policy,
        LIMITS,
        pending::<()>(),
        |_| {},
    )
    .await
}

async fn unreachable_nodes_are_skipped(_: &Lab) {
    let cluster = Cluster::with(true, false);
    let job = key_at(&cluster, 2);
    // A replica knows the slots too.
    for seeds in [vec![3], vec![1, 0], vec![2], vec![5, 0]] {
        let mut a = client_at(&cluster, &seeds);
        let held = a.hold(&job).await;
        assert_eq!(client_at(&cluster, &seeds).keys("").await, [job.as_str()]);
        a.free(&held).await;
    }
    cluster.nodes[3].kill();
    cluster.nodes[4].freeze();
    let began = Instant::now();
    let mut a = client_at(&cluster, &[3, 4, 0]);
    let held = a.hold(&job).await;
    assert!(began.elapsed() < soon(), "{:?}", began.elapsed());
    cluster.nodes[4].kill();
    let error = client_at(&cluster, &[3, 4])
        .0
        .try_acquire(&request(&job, LONG))
        .await
        .expect_err("no node is reachable");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Unavailable, Effect::NotApplied),
        "{error:?}"
    );
    assert!(
        error.message.contains("none of 2 nodes can tell"),
        "{error:?}"
    );
    a.free(&held).await;
}

async fn locks_of_all_nodes_are_listed(lab: &Lab) {
    let mut a = lab.client().await;
    let mut names: Vec<String> = (0..30).map(|nth| format!("job-{nth:02}")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(a.hold(&key(name)).await);
    }
    assert_eq!(a.keys("").await, names);
    assert_eq!(lab.client().await.keys("job-1").await, names[10..20]);
    a.free(&held[7]).await;
    names.remove(7);
    assert_eq!(a.keys("").await, names);
}

async fn a_hold_outlives_the_move_of_its_slot(_: &Lab) {
    let cluster = Cluster::start();
    let job = key_at(&cluster, 0);
    let lock = format!("dlock:{job}");
    let slot = cluster.slot(&lock);
    let (mut a, mut b) = (client(&cluster), client(&cluster));
    let held = a.hold(&job).await;
    let fence = a.renewed(&held, None).await;
    let mut c = client(&cluster);
    c.renewed(&held, None).await;
    cluster.begin_move(slot, 0, 1);
    assert_eq!(a.renewed(&held, None).await, fence, "no key has moved yet");
    cluster.move_keys(slot, 0, 1, |_| true);
    // All keys have moved. The new node serves only clients that were redirected (ASK).
    assert_eq!(
        a.renewed(&held, None).await,
        fence,
        "redirected to the new node"
    );
    assert_eq!(client(&cluster).renewed(&held, None).await, fence);
    assert_eq!(b.inspect(&job).await.holders.len(), 1);
    assert_eq!(b.keys("").await, [job.as_str()]);
    cluster.end_move(slot, 0, 1);
    assert_eq!(
        a.renewed(&held, None).await,
        fence,
        "redirected to the new node permanently"
    );
    b.refused(&request(&job, LONG)).await;
    // A client that knows nothing of the move is redirected with its release.
    c.free(&held).await;
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    assert!(
        b.take(&request(&job, LONG)).await.fence > fence,
        "the fence counter has moved too"
    );
}

async fn a_slot_marked_for_a_move_keeps_its_holds(_: &Lab) {
    let cluster = Cluster::start();
    let job = key_at(&cluster, 0);
    let slot = cluster.slot(&format!("dlock:{job}"));
    let mut a = client(&cluster);
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits(2)] {
        let held = Request {
            mode,
            ..request(&job, LONG)
        };
        let inner = Request {
            mode,
            ..nested(&held)
        };
        let fence = a.take(&held).await.fence;
        a.take(&inner).await;
        cluster.begin_move(slot, 0, 1);
        // The process that took the lock, and one that knows only the token.
        assert_eq!(a.renewed(&held, None).await, fence, "{mode:?}");
        assert_eq!(
            client(&cluster).renewed(&held, None).await,
            fence,
            "{mode:?}"
        );
        let holding = client(&cluster)
            .0
            .renew(&job, &held.token, Intent::Probe)
            .await
            .expect("verify");
        assert!(
            matches!(holding, Renewal::Kept { .. }),
            "{mode:?}: {holding:?}"
        );
        assert_eq!(
            client(&cluster).release(&inner, Scope::Hold).await,
            Release::StillHeld(1),
            "{mode:?}"
        );
        a.free(&held).await;
        cluster.nodes[0].command(&["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"]);
        cluster.nodes[1].command(&["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"]);
        assert!(
            client(&cluster).inspect(&job).await.holders.is_empty(),
            "{mode:?}"
        );
    }
}

/// The keys of readers and permits arrive one by one.
async fn half_moved_shares_are_refused_until_the_move_is_done(_: &Lab) {
    let cluster = Cluster::start();
    let ways = [Mode::Shared, Mode::Permits(2)].map(|mode| {
        [":shares", ":ends", ":rwlock_timeout:1", "the lock"].map(|ahead| (mode, ahead))
    });
    let ways = ways
        .concat()
        .into_iter()
        .filter(|(mode, ahead)| *mode == Mode::Shared || !ahead.contains("timeout"));
    let names = (0..1000)
        .map(|nth| format!("job-{nth}"))
        .filter(|name| cluster.owner(&format!("dlock:{name}")) == 0);
    let names: Vec<_> = names.take(7).collect();
    for ((mode, ahead), name) in ways.zip(&names) {
        let (job, lock) = (key(name), format!("dlock:{name}"));
        let slot = cluster.slot(&lock);
        let mut a = client(&cluster);
        let held = Request {
            mode,
            ..request(&job, LONG)
        };
        let fence = a.take(&held).await.fence;
        cluster.begin_move(slot, 0, 1);
        cluster.move_keys(slot, 0, 1, |name| {
            name.ends_with(ahead) || ahead == "the lock" && name == lock
        });
        let error =
            a.0.renew(&job, &held.token, None.into())
                .await
                .expect_err("half moved");
        assert!(
            error.kind == ErrorKind::Unavailable && error.message.contains("moving"),
            "{mode:?} {ahead}: {error:?}"
        );
        cluster.move_keys(slot, 0, 1, |_| true);
        assert_eq!(a.renewed(&held, None).await, fence, "{mode:?} {ahead}");
        cluster.end_move(slot, 0, 1);
        assert_eq!(a.renewed(&held, None).await, fence, "{mode:?} {ahead}");
        a.free(&held).await;
    }
}

async fn a_waiter_outlives_the_move_of_its_slot(_: &Lab) {
    let cluster = Cluster::start();
    let job = key_at(&cluster, 0);
    let slot = cluster.slot(&format!("dlock:{job}"));
    let (mut a, mut b) = (client(&cluster), client(&cluster));
    let held = a.hold(&job).await;
    let step = || tokio::time::sleep(short() / 2);
    let release = async {
        step().await;
        cluster.begin_move(slot, 0, 1);
        step().await;
        cluster.move_keys(slot, 0, 1, |_| true);
        step().await;
        cluster.end_move(slot, 0, 1);
        step().await;
        a.free(&held).await;
        Instant::now()
    };
    let wait = core_acquire(&mut b, waiting(&job, LONG), WaitPolicy::For(LONG));
    let (outcome, released) = tokio::join!(wait, release);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
}

async fn a_half_moved_lock_is_refused_until_the_move_is_done(_: &Lab) {
    let cluster = Cluster::start();
    let job = key_at(&cluster, 0);
    let slot = cluster.slot(&format!("dlock:{job}"));
    let mut a = client(&cluster);
    let held = a.hold(&job).await;
    cluster.begin_move(slot, 0, 1);
    cluster.move_keys(slot, 0, 1, |name| name.ends_with(":record"));
    for error in [
        a.0.renew(&job, &held.token, None.into())
            .await
            .expect_err("half moved"),
        a.0.release(&job, &held.token, &Scope::Hold.into())
            .await
            .expect_err("half moved"),
        a.0.try_acquire(&request(&job, LONG))
            .await
            .expect_err("half moved"),
        // A lock that was never held has no keys on either node.
        a.0.try_acquire(&nested(&held))
            .await
            .expect_err("half moved"),
    ] {
        assert_eq!(
            (error.kind, error.effect),
            (ErrorKind::Unavailable, Effect::NotApplied),
            "{error:?}"
        );
        assert!(
            error.message.contains("moving") && error.hint.is_some(),
            "{error:?}"
        );
    }
    assert_eq!(a.inspect(&job).await.holders.len(), 1);
    // The core repeats the request until the move is over.
    let end = async {
        tokio::time::sleep(SLACK * 3).await;
        cluster.move_keys(slot, 0, 1, |_| true);
        cluster.end_move(slot, 0, 1);
    };
    let info = Scope::Tree.into();
    let give_back = lease::release(&mut *a.0, &BootClock, &job, &held.token, &info, LIMITS);
    let (released, ()) = tokio::join!(give_back, end);
    assert!(matches!(released, Released::Free), "{released:?}");
    client(&cluster).hold(&job).await;
}

async fn a_hold_and_a_waiter_outlive_their_node(_: &Lab) {
    let cluster = Cluster::with(true, false);
    let job = key_at(&cluster, 0);
    let (mut a, mut b) = (replicated(&cluster), client(&cluster));
    let held = request(&job, LONG);
    let fence = a.take(&held).await.fence;
    drop(a);
    let wait = core_acquire(&mut b, waiting(&job, LONG), WaitPolicy::For(LONG));
    let release = async {
        tokio::time::sleep(short() / 2).await;
        cluster.nodes[0].kill();
        let mut a = client_at(&cluster, &[0, 1]);
        let (renewal, _) = renew_until_answered(&mut a, &held).await;
        assert!(
            matches!(renewal, Renewal::Renewed { fence: now, .. } if now == fence),
            "{renewal:?}"
        );
        tokio::time::sleep(short() * 2).await;
        a.free(&held).await;
        Instant::now()
    };
    let (outcome, released) = tokio::join!(wait, release);
    let Ok(Outcome::Granted(lease)) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
    assert!(lease.fence > fence);
    assert_eq!(cluster.owner(&format!("dlock:{job}")), usize::from(MASTERS));
}

async fn an_acquire_unanswered_by_a_frozen_node_is_granted_once(_: &Lab) {
    let cluster = Cluster::with(true, false);
    let job = key_at(&cluster, 0);
    let mut a = client(&cluster);
    let warm = a.hold(&job).await;
    a.free(&warm).await;
    cluster.nodes[0].freeze();
    let outcome = core_acquire(&mut a, request(&job, LONG), WaitPolicy::For(FAILOVER)).await;
    let Ok(Outcome::Granted(lease)) = outcome else {
        panic!("{outcome:?}")
    };
    cluster.nodes[0].thaw();
    cluster.settle();
    let state = client(&cluster).inspect(&job).await;
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
    client(&cluster).hold(&job).await;
}

async fn a_demoted_node_that_still_runs_is_left(_: &Lab) {
    let cluster = Cluster::with(true, false);
    let job = key_at(&cluster, 0);
    let (mut a, mut b) = (replicated(&cluster), client(&cluster));
    let held = a.hold(&job).await;
    let wait = core_acquire(&mut b, waiting(&job, LONG), WaitPolicy::For(LONG));
    let release = async {
        tokio::time::sleep(short() / 2).await;
        let now = cluster.switch(&format!("dlock:{job}"));
        assert_eq!(now, usize::from(MASTERS));
        cluster.settle();
        let (renewal, _) = renew_until_answered(&mut a, &held).await;
        assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
        tokio::time::sleep(short()).await;
        a.free(&held).await;
        Instant::now()
    };
    let (outcome, released) = tokio::join!(wait, release);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
}

async fn a_lock_is_unavailable_without_its_node(_: &Lab) {
    let cluster = Cluster::start();
    let (here, there) = (key_at(&cluster, 0), key_at(&cluster, 1));
    let mut a = client(&cluster);
    let held = a.hold(&here).await;
    a.hold(&there).await;
    cluster.nodes[0].kill();
    for seeds in [&[1, 2][..], &[0, 1]] {
        let mut other = client_at(&cluster, seeds);
        let error = other
            .0
            .try_acquire(&request(&here, LONG))
            .await
            .expect_err("its node is down");
        assert_eq!(
            (error.kind, error.effect),
            (ErrorKind::Unavailable, Effect::NotApplied),
            "{error:?}"
        );
        other
            .0
            .list("", &Progress::default())
            .await
            .expect_err("a listing must not omit a node's locks");
    }
    let error =
        a.0.renew(&here, &held.token, None.into())
            .await
            .expect_err("its node is down");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Unavailable, Effect::NotApplied),
        "{error:?}"
    );
}

async fn redisson_listeners_are_notified(_: &Lab) {
    let cluster = Cluster::start();
    let job = key_at(&cluster, 1);
    let mut a = client(&cluster);
    let held = a.hold(&job).await;
    let mut listening = cluster.nodes[1].connect();
    for channel in ["redisson_lock__channel", "redisson_rwlock"] {
        let mut subscribe = redis::cmd("SSUBSCRIBE");
        subscribe.arg(format!("{channel}:{{dlock:{job}}}"));
        listening
            .send_packed_command(&subscribe.get_packed_command())
            .expect("sent");
        let _: redis::Value = listening.recv_response().expect("subscribed");
    }
    // Redisson before version 3.22 subscribes on any node.
    let mut anywhere = cluster.nodes[2].connect();
    let mut subscribe = redis::cmd("SUBSCRIBE");
    subscribe.arg(format!("redisson_lock__channel:{{dlock:{job}}}"));
    anywhere
        .send_packed_command(&subscribe.get_packed_command())
        .expect("sent");
    let _: redis::Value = anywhere.recv_response().expect("subscribed");
    a.free(&held).await;
    for message in ["0", "1"] {
        let said: Vec<String> =
            redis::from_redis_value(listening.recv_response().expect("a message")).expect("text");
        assert_eq!(
            (said[0].as_str(), said[2].as_str()),
            ("smessage", message),
            "{said:?}"
        );
    }
    let said: Vec<String> =
        redis::from_redis_value(anywhere.recv_response().expect("a message")).expect("text");
    assert_eq!(
        (said[0].as_str(), said[2].as_str()),
        ("message", "0"),
        "{said:?}"
    );
}

async fn all_nodes_are_reached_over_tls(_: &Lab) {
    let folder = support::folder();
    let certificates = support::tls::Certificates::make(folder.path(), &["127.0.0.1"]);
    let ca = &certificates.ca;
    let cluster = Cluster::encrypted(&certificates);
    for node in &cluster.nodes {
        let tls = Some(Tls {
            ca_file: Some(ca.clone()),
            ..Tls::default()
        });
        full_cycle(RedisOptions {
            tls,
            ..options_at([node.tls_port])
        })
        .await;
    }
    let distrustful = RedisOptions {
        tls: Some(Tls::default()),
        ..options_at([cluster.nodes[0].tls_port])
    };
    let error = Redis::new(distrustful)
        .try_acquire(&request(&key("job"), LONG))
        .await
        .expect_err("the tests' own authority is unknown");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Denied, Effect::NotApplied),
        "{error:?}"
    );
}

async fn a_user_with_the_least_rights_can_do_all(_: &Lab) {
    let cluster = Cluster::start();
    let allow = |rules: &[&str]| {
        for node in &cluster.nodes {
            node.command(&[&["ACL", "SETUSER", "app"], rules].concat());
        }
    };
    allow(&LEAST.split_ascii_whitespace().collect::<Vec<_>>());
    let options = || RedisOptions {
        user: Some("app".into()),
        password: Some(Secret::new("secret")),
        ..options_at([cluster.nodes[0].port])
    };
    // Without CLUSTER SLOTS dlock can't list locks, but everything else works.
    let mut a = Client(Box::new(Redis::new(options())));
    let held = a.hold(&key("job")).await;
    a.renewed(&held, None).await;
    a.free(&held).await;
    let error =
        a.0.list("", &Progress::default())
            .await
            .expect_err("a user without CLUSTER SLOTS");
    assert_eq!(error.kind, ErrorKind::Denied, "{error:?}");
    allow(&["+cluster|slots"]);
    full_cycle(options()).await;
}

async fn a_hold_outlives_all_nodes_of_the_url(_: &Lab) {
    let cluster = Cluster::with(true, false);
    let job = key_at(&cluster, 1);
    let mut a = client_at(&cluster, &[0]);
    let held = a.hold(&job).await;
    // While the client holds a lock, it learns the other nodes.
    a.renewed(&held, None).await;
    for master in [0, 1] {
        // The replicas have all data.
        cluster.settle();
        let one = key_at(&cluster, master);
        cluster.nodes[master].kill();
        cluster.await_failover(&format!("dlock:{one}"), master);
    }
    let (renewal, _) = renew_until_answered(&mut a, &held).await;
    assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
    a.free(&held).await;
    client_at(&cluster, &[0])
        .0
        .inspect(&job)
        .await
        .expect_err("a client that knows only the URL finds no node");
}

async fn any_node_leads_to_the_same_store(lab: &Lab) {
    let of = |ports: &[u16]| Redis::new(options_at(ports.iter().copied()));
    assert_eq!(
        of(&[1, 2]).identity().fingerprint,
        of(&[3]).identity().fingerprint
    );
    assert_ne!(of(&[1]).identity().url, of(&[2]).identity().url);
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let held = a.hold(&key("job")).await;
    assert!(matches!(
        b.attempt(&nested(&held)).await,
        Attempt::Granted(_)
    ));
}
