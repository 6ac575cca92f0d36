//! Redis with replicas and failover: Sentinel and Cluster.
//!
//! dlock waits for replication only if `replicas=` asks for it, so README promises nothing about a
//! hold on a lost master; the tests print what happened. Two rules must hold anyway: an unconfirmed
//! holder is stopped in time, and where replicas confirm, no second holder runs at the same time.

use std::time::{Duration, Instant};

use crate::{
    deployments::Replicated,
    stores::Store,
    support::{
        self,
        cluster::Cluster,
        must,
        netns::Netns,
        proxy::Mode,
        redis::Redis,
        say,
        sentinel::{Deployment, Plan},
        stretched,
    },
    world::{LIMIT, TTL, World},
};

/// A lease that outlasts a failover: TERM comes after 12 s.
const LONG: [&str; 2] = ["--ttl", "20s"];
/// The longest wait: a second until the master counts as dead, the election, and dlock's timeout
/// for an answer.
const FAILOVER: Duration = Duration::from_secs(20);

macro_rules! on_deployment {
    ($store:ident: $($name:ident),*) => {
        mod $store {
            $(#[test]
            fn $name() {
                let test = concat!(stringify!($store), "::", stringify!($name));
                if let Some(mut store) = crate::deployments::$store(test) {
                    super::$name(&mut store);
                }
            })*
        }
    };
}

macro_rules! on_every_deployment {
    ($($name:ident),* $(,)?) => {
        on_deployment!(own_sentinel: $($name),*);
        on_deployment!(own_cluster: $($name),*);
    };
}

on_every_deployment!(
    a_master_that_is_killed_stops_a_short_lease_in_time,
    a_long_lease_outlives_a_killed_master,
    a_long_lease_outlives_a_frozen_master,
    a_planned_switch_of_masters_is_reported_correctly,
    a_waiter_gets_the_lock_from_the_new_master,
    a_run_during_a_failover_waits_for_the_new_master,
    a_short_timeout_ends_before_the_failover_and_a_wait_does_not,
    a_hold_survives_a_master_restarted_with_its_data,
    a_master_that_restarts_without_its_data_stops_the_holder,
    a_failover_works_without_a_minority,
    a_dead_majority_and_master_stop_the_holder,
);

/// Starts a command of this length under a lease that outlasts a failover, and waits until it runs.
fn long_job(world: &World, seconds: u32) -> support::process::Process {
    let script = format!(
        "touch {}; sleep {seconds}; echo done",
        world.path("ready").display()
    );
    let job = world.start(&LONG, &script);
    must("the command runs", LIMIT, || world.path("ready").exists());
    // Longer than replication takes, although no client waits for it.
    std::thread::sleep(Duration::from_millis(300));
    job
}

/// Returns when the hold was last renewed, by the clock of the current master.
fn renewed(server: &Redis, key: &str) -> Option<i64> {
    let record = format!("dlock:{{dlock:{key}}}:record");
    redis::from_redis_value(server.command(&["HGET", &record, "renewed"])).ok()
}

/// Waits until this server gets a newer renewal than the one it has now.
fn await_renewal(server: &Redis, key: &str, limit: Duration) -> bool {
    let before = renewed(server, key);
    before.is_some() && support::eventually(limit, || renewed(server, key) > before)
}

fn a_master_that_is_killed_stops_a_short_lease_in_time(store: &mut impl Replicated) {
    let world = World::new(store.url());
    let first = world.first();
    let master = store.master(&world.key);
    store.server(master).kill();
    let began = Instant::now();
    must("the tree is dead", LIMIT, || world.tree().is_empty());
    let dead = began.elapsed();
    assert!(dead < TTL, "{dead:?}");
    assert_eq!(first.wait(LIMIT).code(), 76);
    store.await_failover(&world.key, master);
    let failover = began.elapsed();
    world.second();
    say(&format!(
        "{}: tree dead {dead:.2?} after the master, failover after {failover:.2?}",
        store.kind()
    ));
    world.assert_gone();
    world.assert_free();
}

fn a_long_lease_outlives_a_killed_master(store: &mut impl Replicated) {
    let world = World::new(store.url());
    let job = long_job(&world, 8);
    let master = store.master(&world.key);
    store.server(master).kill();
    let began = Instant::now();
    let now = store.await_failover(&world.key, master);
    let failover = began.elapsed();
    let kept = await_renewal(store.server(now), &world.key, FAILOVER);
    say(&format!(
        "{}: master killed: failover {failover:.2?}, next renewal {}",
        store.kind(),
        if kept {
            format!("{:.2?}", began.elapsed())
        } else {
            "never: the lock was not replicated".into()
        }
    ));
    let job = job.wait(LIMIT);
    assert_eq!(job.code(), if kept { 0 } else { 76 }, "{}", job.stderr);
    world.assert_free();
}

fn a_long_lease_outlives_a_frozen_master(store: &mut impl Replicated) {
    let world = World::new(store.url());
    let job = long_job(&world, 10);
    let master = store.master(&world.key);
    store.server(master).freeze();
    let began = Instant::now();
    // A frozen server can't be asked, so the test asks the others.
    let now = store.await_failover(&world.key, master);
    let failover = began.elapsed();
    let kept = await_renewal(store.server(now), &world.key, FAILOVER);
    say(&format!(
        "{}: master frozen: failover {failover:.2?}, next renewal {kept} after {:.2?}",
        store.kind(),
        began.elapsed()
    ));
    store.server(master).thaw();
    let job = job.wait(LIMIT);
    assert_eq!(job.code(), if kept { 0 } else { 76 }, "{}", job.stderr);
    world.assert_free();
}

fn a_planned_switch_of_masters_is_reported_correctly(store: &mut impl Replicated) {
    let world = World::new(store.url());
    let job = long_job(&world, 5);
    let began = Instant::now();
    let now = store.switch(&world.key);
    let kept = await_renewal(store.server(now), &world.key, FAILOVER);
    say(&format!(
        "{}: master replaced: next renewal {kept} after {:.2?}",
        store.kind(),
        began.elapsed()
    ));
    let job = job.wait(LIMIT);
    assert_eq!(job.code(), if kept { 0 } else { 76 }, "{}", job.stderr);
    world.assert_free();
}

fn a_waiter_gets_the_lock_from_the_new_master(store: &mut impl Replicated) {
    let world = World::new(store.url());
    let job = long_job(&world, 6);
    let second = world.start(&["-w", "30"], "date +%s.%N");
    std::thread::sleep(Duration::from_millis(500));
    let master = store.master(&world.key);
    store.server(master).kill();
    let job = job.wait(LIMIT);
    let ended = Instant::now();
    let second = second.wait(LIMIT);
    let handed_over = ended.elapsed();
    assert_eq!(second.code(), 0, "{}", second.stderr);
    if job.code() == 0 {
        assert!(
            handed_over < stretched(Duration::from_secs(2)),
            "{handed_over:?} after the release"
        );
    }
    say(&format!(
        "{}: waiter across a failover: first ended with {}, second {handed_over:.3?} later",
        store.kind(),
        job.code()
    ));
    world.assert_free();
}

fn a_run_during_a_failover_waits_for_the_new_master(store: &mut impl Replicated) {
    let world = World::new(store.url());
    let master = store.master(&world.key);
    store.server(master).kill();
    let run = world
        .start(&["--backend-timeout", "15s"], "true")
        .wait(LIMIT);
    say(&format!(
        "{}: a run started with the failover: {} after {:.2?}",
        store.kind(),
        run.code(),
        run.took
    ));
    assert_eq!(run.code(), 0, "{}", run.stderr);
}

/// A short timeout fails soon without a store, while `-w` waits for the store too.
fn a_short_timeout_ends_before_the_failover_and_a_wait_does_not(store: &mut impl Replicated) {
    let world = World::new(store.url());
    let master = store.master(&world.key);
    store.server(master).kill();
    let short = world
        .start(&["--backend-timeout", "300ms"], "true")
        .wait(LIMIT);
    assert_eq!(short.code(), 69, "{}", short.stderr);
    let waits = world
        .start(&["--backend-timeout", "300ms", "-w", "20"], "true")
        .wait(LIMIT);
    say(&format!(
        "{}: a waiter that came with the failover: {} after {:.2?}",
        store.kind(),
        waits.code(),
        short.took + waits.took
    ));
    assert_eq!(waits.code(), 0, "{}", waits.stderr);
}

fn a_hold_survives_a_master_restarted_with_its_data(store: &mut impl Replicated) {
    let world = World::new(store.url());
    let job = long_job(&world, 5);
    let master = store.master(&world.key);
    store.server(master).kill();
    store.server(master).start();
    let began = Instant::now();
    let job = job.wait(LIMIT);
    say(&format!(
        "{}: master restarted with its data: {} {:.2?} later",
        store.kind(),
        job.code(),
        began.elapsed()
    ));
    assert_eq!(job.code(), 0, "{}", job.stderr);
    world.assert_free();
}

fn a_master_that_restarts_without_its_data_stops_the_holder(store: &mut impl Replicated) {
    let world = World::new(store.url());
    let first = world.first();
    let master = store.master(&world.key);
    store.server(master).kill();
    store.server(master).restart_empty();
    let began = Instant::now();
    let ended = support::eventually(TTL, || world.tree().is_empty());
    say(&format!(
        "{}: master restarted without its data: tree dead {ended} after {:.2?}",
        store.kind(),
        began.elapsed()
    ));
    assert!(ended, "neither lost nor confirmed");
    assert_eq!(first.wait(LIMIT).code(), 76);
    world.assert_gone();
}

fn a_failover_works_without_a_minority(store: &mut impl Replicated) {
    let world = World::new(store.url());
    let job = long_job(&world, 5);
    store.kill_voters(&world.key, false);
    let other = World::new(store.url());
    let run = other
        .start(&["--backend-timeout", "15s"], "true")
        .wait(LIMIT);
    assert_eq!(run.code(), 0, "{}", run.stderr);
    let master = store.master(&world.key);
    if store.kind() == "sentinel" {
        must("both replicas have the lock", LIMIT, || {
            (0..3).all(|nth| renewed(store.server(nth), &world.key).is_some())
        });
        // The two remaining voters elect a new master.
        store.server(master).kill();
    }
    let job = job.wait(LIMIT);
    say(&format!(
        "{}: a minority down: {}",
        store.kind(),
        job.code()
    ));
    assert_eq!(job.code(), 0, "{}", job.stderr);
    world.assert_free();
}

fn a_dead_majority_and_master_stop_the_holder(store: &mut impl Replicated) {
    let world = World::new(store.url());
    let first = world.first();
    let master = store.master(&world.key);
    store.kill_voters(&world.key, true);
    store.server(master).kill();
    let began = Instant::now();
    must("the tree is dead", LIMIT, || world.tree().is_empty());
    assert!(
        began.elapsed() < support::beyond_stalls(TTL),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(first.wait(LIMIT).code(), 76);
    // No master can be elected: dlock fails closed.
    let run = world
        .start(&["--backend-timeout", "3s"], "true")
        .wait(LIMIT);
    assert_eq!(run.code(), 69, "{}", run.stderr);
    world.assert_gone();
}

/// The holder is on the side of the old master, and everything else is on the other side.
#[test]
fn a_master_cut_off_with_its_holder() {
    const NAME: &str = "a_master_cut_off_with_its_holder";
    if !support::have(NAME, &["redis-server"]) {
        return;
    }
    for gated in [true, false] {
        let mut deployment = Deployment::with(&Plan {
            replicas: 1,
            proxied: true,
            ..Plan::default()
        });
        let world = World::new(deployment.url());
        let way = format!(
            "redis://127.0.0.1:{}{}",
            deployment.servers[0].port,
            if gated {
                "?replicas=1&replica_timeout=200ms"
            } else {
                ""
            }
        );
        let first = world.first_on(&way, &["--ttl", "3s"]);
        std::thread::sleep(Duration::from_millis(300));
        deployment.front.as_mut().unwrap().set(Mode::BlackHole);
        let began = Instant::now();
        if gated {
            // Asserts that no process of the first tree is alive when the second command starts.
            let took = world.second();
            say(&format!(
                "cut off with its master, replicas=1: second granted after {took:.2?}, no overlap"
            ));
            assert_eq!(first.wait(LIMIT).code(), 76);
        } else {
            let probe = format!(
                "sh {} {}",
                world.path("probe.sh").display(),
                world.path("").display()
            );
            let second = world.start(&["-w", "25"], &probe).wait(LIMIT);
            assert_eq!(second.code(), 0, "{}", second.stderr);
            let overlap = support::lines(&world.path("overlap")).len();
            say(&format!(
                "cut off with its master, no replicas asked for: second granted after {:.2?}, {overlap} processes of the first alive",
                began.elapsed()
            ));
        }
    }
}

/// The master is cut off together with one of two replicas, which goes on confirming. The other
/// replica is promoted.
#[test]
fn a_master_cut_off_with_one_of_two_replicas() {
    const NAME: &str = "a_master_cut_off_with_one_of_two_replicas";
    if !support::have(NAME, &["redis-server"]) {
        return;
    }
    for wanted in ["all", "2"] {
        let deployment = Deployment::with(&Plan {
            replicas: 2,
            ..Plan::default()
        });
        // The test decides which replica is promoted.
        let Deployment {
            servers, sentinels, ..
        } = &deployment;
        sentinels.iter().for_each(Redis::freeze);
        let promoted = format!("redis://127.0.0.1:{}", servers[2].port);
        let world = World::new(promoted);
        let master = format!(
            "redis://127.0.0.1:{}?replicas={wanted}&replica_timeout=200ms",
            servers[0].port
        );
        let first = world.first_on(&master, &["--ttl", "3s"]);
        must("the replica has the lock", LIMIT, || {
            renewed(&servers[2], &world.key).is_some()
        });
        servers[2].command(&["REPLICAOF", "NO", "ONE"]);
        let took = world.second();
        say(&format!(
            "cut off with one of two replicas, replicas={wanted}: second granted after {took:.2?}, no overlap"
        ));
        assert_eq!(first.wait(LIMIT).code(), 76);
        world.assert_gone();
    }
}

/// Drops all packets between the holder and the servers, without any error.
fn holder_cut_off(netns: &Netns, store: &impl Store) {
    let world = World::new(store.url());
    let first = world.first_in(netns, &store.url());
    netns.cut();
    let took = world.second();
    assert!(took < TTL + stretched(Duration::from_secs(2)), "{took:?}");
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    world.assert_gone();
    netns.heal();
    world.assert_free();
}

#[test]
fn a_holder_cut_off_from_sentinels_and_servers() {
    const NAME: &str = "a_holder_cut_off_from_sentinels_and_servers";
    if support::have(NAME, &["redis-server"])
        && let Some(netns) = Netns::make(NAME)
    {
        holder_cut_off(
            &netns,
            &Deployment::with(&Plan {
                host: netns.host,
                ..Plan::default()
            }),
        );
    }
}

#[test]
fn a_holder_cut_off_from_its_cluster() {
    const NAME: &str = "a_holder_cut_off_from_its_cluster";
    if support::have(NAME, &["redis-server"])
        && let Some(netns) = Netns::make(NAME)
    {
        holder_cut_off(&netns, &Cluster::on(netns.host));
    }
}
