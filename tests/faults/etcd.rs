//! What only an etcd suffers: members that are killed and frozen, leaders that change, leases that
//! are revoked.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use dlock::{
    backends::etcd::{Etcd as Backend, EtcdOptions},
    lock::{Attempt, Backend as _, Grant, Key, Renewal, Request, Scope, Ttl},
};

use crate::{
    support::{
        beyond_stalls,
        deaf::Deaf,
        dlock::{run, unique},
        etcd::Etcd,
        have, many_waiters, must,
        proxy::{Fault, Mode as Network, Proxy},
        say, slowness,
    },
    world::{LIMIT, TTL, World},
};

macro_rules! cluster_or_return {
    ($name:expr) => {
        if have($name, &Etcd::PROGRAMS) {
            Etcd::cluster()
        } else {
            return;
        }
    };
}

#[test]
fn a_hold_survives_a_killed_leader() {
    let mut etcd = cluster_or_return!("a_hold_survives_a_killed_leader");
    let world = World::new(etcd.all());
    let job = world.start(&["--ttl", "10s"], "sleep 5");
    must("the lock is held", LIMIT, || !world.is_free());
    let (leader, _) = etcd.leader();
    etcd.kill_member(leader);
    let (_, _) = etcd.leader();
    assert!(!world.is_free(), "the hold survives");
    let job = job.wait(LIMIT);
    assert_eq!(job.code(), 0, "{}", job.stderr);
    world.assert_free();
}

/// The leader stops, is deposed, and resumes. Its late confirmations are void.
#[test]
fn a_hold_survives_a_frozen_leader() {
    let etcd = cluster_or_return!("a_hold_survives_a_frozen_leader");
    let world = World::new(etcd.all());
    for _ in 0..2 {
        let job = world.start(&["--ttl", "10s"], "sleep 5");
        must("the lock is held", LIMIT, || !world.is_free());
        let (leader, _) = etcd.leader();
        etcd.freeze_member(leader);
        std::thread::sleep(Duration::from_millis(2500));
        etcd.thaw_member(leader);
        let job = job.wait(LIMIT);
        assert_eq!(job.code(), 0, "{}", job.stderr);
        world.assert_free();
    }
}

#[test]
fn a_minority_down() {
    let mut etcd = cluster_or_return!("a_minority_down");
    let world = World::new(etcd.all());
    let (_, others) = etcd.leader();
    etcd.kill_member(others[0]);
    // A run may connect to any member first.
    for _ in 0..6 {
        let job = world.start(&[], "exit 7").wait(LIMIT);
        assert_eq!(job.code(), 7, "{}", job.stderr);
        assert!(world.is_free());
    }
}

#[test]
fn members_restarted_one_after_the_other() {
    let mut etcd = cluster_or_return!("members_restarted_one_after_the_other");
    let world = World::new(etcd.all());
    let ready = world.path("go");
    let job = world.start(
        &["--ttl", "8s"],
        &format!("while [ ! -e {} ]; do sleep 0.05; done", ready.display()),
    );
    must("the lock is held", LIMIT, || !world.is_free());
    for member in 0..3 {
        etcd.kill_member(member);
        etcd.leader();
        etcd.restart();
    }
    std::fs::write(ready, "").unwrap();
    let job = job.wait(LIMIT);
    assert_eq!(job.code(), 0, "{}", job.stderr);
    world.assert_free();
}

/// A single member serves no request: no command starts, and a running one is dead before its lease
/// can end.
#[test]
fn a_majority_down() {
    let mut etcd = cluster_or_return!("a_majority_down");
    let world = World::new(etcd.all());
    let first = world.first();
    let (leader, others) = etcd.leader();
    etcd.kill_member(leader);
    etcd.kill_member(others[0]);
    let began = Instant::now();
    must("the tree is dead", LIMIT, || world.tree().is_empty());
    assert!(
        began.elapsed() < beyond_stalls(TTL),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(first.wait(LIMIT).code(), 76);
    let refused = world
        .start(
            &["--backend-timeout", "2s"],
            &format!("touch {}", world.path("ran").display()),
        )
        .wait(LIMIT);
    assert_eq!(refused.code(), 69, "{}", refused.stderr);
    assert!(!world.path("ran").exists());
    etcd.restart();
    world.second();
    world.assert_gone();
    world.assert_free();
}

fn revoke(etcd: &Etcd, world: &World) {
    // The holder is the node that was created first. It need not be the first one by name.
    let names = etcd.ctl(&[
        "get",
        "--prefix",
        &format!("dlock/{}/", world.key),
        "--sort-by",
        "CREATE",
        "--keys-only",
    ]);
    let lease = names
        .lines()
        .next()
        .and_then(|name| name.rsplit('/').next())
        .expect("a holder");
    etcd.ctl(&["lease", "revoke", lease]);
}

/// A reachable holder's command is dead before the next one starts.
#[test]
fn revoked_by_an_administrator() {
    if !have("revoked_by_an_administrator", &Etcd::PROGRAMS) {
        return;
    }
    let etcd = Etcd::plain();
    let mut longest = Duration::ZERO;
    for waits in [true, false, true, false] {
        let world = World::new(etcd.url());
        let first = world.first_on(&etcd.url(), &["--ttl", "60s"]);
        let probe = format!(
            "sh {} {}",
            world.path("probe.sh").display(),
            world.path("").display()
        );
        let options: &[&str] = if waits { &["-w", "25"] } else { &[] };
        let mut second = waits.then(|| world.start(options, &probe));
        if waits {
            must("the waiter waits", LIMIT, || {
                world.inspect().stdout.contains("\"waiters\":[{")
            });
        }
        revoke(&etcd, &world);
        let began = Instant::now();
        let second = second
            .take()
            .unwrap_or_else(|| world.start(options, &probe));
        must("the tree is dead", LIMIT, || world.tree().is_empty());
        longest = longest.max(began.elapsed());
        assert_eq!(second.wait(LIMIT).code(), 0);
        world.assert_no_overlap();
        let first = first.wait(LIMIT);
        assert_eq!(first.code(), 76, "{}", first.stderr);
        world.assert_gone();
        world.assert_free();
    }
    say(&format!(
        "etcd: revoked by an administrator, the tree was dead after {longest:.0?} at most; the next one starts after 500 ms"
    ));
    assert!(longest < Duration::from_millis(500), "{longest:?}");
}

/// README promises nothing here, because the holder can't learn of the revocation. The overlap
/// lasts until the holder's own deadline.
#[test]
fn revoked_while_the_holder_is_cut_off() {
    if !have("revoked_while_the_holder_is_cut_off", &Etcd::PROGRAMS) {
        return;
    }
    let etcd = Etcd::plain();
    let mut proxy = Proxy::to(etcd.port());
    let world = World::new(etcd.url());
    let first = world.first_on(&format!("etcd://127.0.0.1:{}", proxy.port), &[]);
    proxy.set(Network::BlackHole);
    revoke(&etcd, &world);
    let began = Instant::now();
    let second = world.start(
        &["-w", "25"],
        &format!("touch {}; sleep 3", world.path("ran").display()),
    );
    must("the second run starts", LIMIT, || {
        world.path("ran").exists()
    });
    let started = began.elapsed();
    must("the tree is dead", LIMIT, || world.tree().is_empty());
    let overlap = began.elapsed().saturating_sub(started);
    say(&format!(
        "etcd: revoked while the holder was cut off: two ran at once for {overlap:.1?} with a lease of {TTL:?} (no promise)"
    ));
    assert!(
        began.elapsed() < beyond_stalls(TTL),
        "the first run keeps its own deadline: {:?}",
        began.elapsed()
    );
    assert_eq!(first.wait(LIMIT).code(), 76);
    second.wait(LIMIT);
    world.assert_gone();
}

/// Each answer is lost once: of every step of the acquire, of a renewal, and of the release.
#[test]
fn lost_answers_of_etcd() {
    if !have("lost_answers_of_etcd", &Etcd::PROGRAMS) {
        return;
    }
    let etcd = Etcd::plain();
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Swallow] {
        for nth in 0..5 {
            let proxy = Proxy::to(etcd.port());
            let world = World::new(etcd.url());
            // The first fault hits the grant of the 4-second lease, the others hit the next
            // requests that name the lock.
            match nth {
                0 => proxy.trap("\u{8}\u{4}\u{10}", fault),
                nth => proxy.trap_nth(&world.key, nth - 1, 1, fault),
            }
            let url = format!("etcd://127.0.0.1:{}", proxy.port);
            let job = world
                .start_on(&url, &["--ttl", "4s", "--backend-timeout", "2s"], "sleep 1")
                .wait(LIMIT);
            assert_eq!(job.code(), 0, "{fault:?} {nth}: {}", job.stderr);
            must("the lock is free", Duration::from_secs(6), || {
                world.is_free()
            });
        }
    }
}

fn request(key: &str, ttl: u64, waiting: bool) -> Request {
    Request {
        waiting,
        ..Request::new(
            Key::new(key).unwrap(),
            Ttl::new(Duration::from_secs(ttl)).unwrap(),
        )
    }
}

fn client(etcd: &Etcd) -> Backend {
    Backend::new(EtcdOptions::new(vec![("127.0.0.1".into(), etcd.port())]))
}

/// Retries if the server was too busy to answer, as dlock does, and counts the retries.
async fn retry_when_busy<T>(
    again: &Cell<u32>,
    mut question: impl AsyncFnMut() -> dlock::lock::Result<T>,
) -> T {
    loop {
        match question().await {
            Ok(answer) => return answer,
            Err(error) if error.is_transient() => again.set(again.get() + 1),
            Err(error) => panic!("{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits for the lock, and releases it at once.
async fn wait_and_release(
    (position, mut waiter, wanted): (usize, Backend, Request),
    granted: tokio::sync::mpsc::UnboundedSender<(Instant, usize, Grant)>,
    again: Rc<Cell<u32>>,
) {
    loop {
        if let Attempt::Granted(grant) =
            retry_when_busy(&again, async || waiter.try_acquire(&wanted).await).await
        {
            granted.send((Instant::now(), position, grant)).unwrap();
            retry_when_busy(&again, async || {
                waiter
                    .release(&wanted.key, &wanted.token, &Scope::Tree.into())
                    .await
            })
            .await;
            return;
        }
        // The next attempt finds out about a failed wait.
        again.set(
            again.get() + u32::from(waiter.wait(&wanted, Duration::from_secs(5)).await.is_err()),
        );
    }
}

/// The holder dies while many wait: one waiter is woken, and the others keep their positions.
#[test]
fn a_queue_survives_its_dead_holder() {
    const IDLE: u32 = 12;
    const LEASE: u64 = 6;
    let waiters = many_waiters();
    if !have("a_queue_survives_its_dead_holder", &Etcd::PROGRAMS) {
        return;
    }
    // Each waiter has one connection with a descriptor at both ends; one more descriptor is needed
    // to check it.
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let limit = rustix::process::Rlimit {
        current: most,
        maximum: most,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let etcd = Etcd::plain();
    let name = unique("queue");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut holder = client(&etcd);
        let held = request(&name, LEASE, false);
        assert!(matches!(holder.try_acquire(&held).await.unwrap(), Attempt::Granted(_)));
        let (began, mut renewed) = (Instant::now(), Instant::now());
        let (granted, mut grants) = tokio::sync::mpsc::unbounded_channel();
        let again = Rc::<Cell<u32>>::default();
        let renew = async |holder: &mut Backend| {
            let renewed = retry_when_busy(&again, async || holder.renew(&held.key, &held.token, None.into()).await).await;
            assert!(matches!(renewed, Renewal::Renewed { .. }), "{renewed:?}");
        };
        let mut tasks = Vec::new();
        for position in 1..=waiters {
            let (mut waiter, wanted) = (client(&etcd), request(&name, 60, true));
            let Attempt::Busy(busy) = retry_when_busy(&again, async || waiter.try_acquire(&wanted).await).await else { panic!("granted") };
            assert_eq!(busy.position, u32::try_from(position).ok());
            // A waiter that stops waiting renews nothing and loses its position.
            tasks.push(tokio::task::spawn_local(wait_and_release((position, waiter, wanted), granted.clone(), Rc::clone(&again))));
            if renewed.elapsed() > Duration::from_millis(500) {
                renewed = Instant::now();
                renew(&mut holder).await;
            }
        }
        let gathered = began.elapsed();
        let calls = || etcd.calls().iter().map(|(_, count)| count).sum::<u64>();
        // All waiters have a watch by now.
        let idle = (calls(), Instant::now());
        for _ in 0..IDLE {
            tokio::time::sleep(Duration::from_secs(1)).await;
            renew(&mut holder).await;
        }
        let idle =
            u32::try_from(calls() - idle.0 - 2 * u64::from(IDLE)).unwrap_or(u32::MAX) / u32::try_from(idle.1.elapsed().as_secs()).unwrap();
        // The lease ends at most its own length after its last renewal.
        let (before, last) = (calls(), Instant::now());
        drop((holder, granted));
        for waiter in tasks {
            waiter.await.unwrap();
        }
        let grants: Vec<(Instant, usize, Grant)> = std::iter::from_fn(|| grants.try_recv().ok()).collect();
        assert_eq!(grants.len(), waiters);
        assert!(grants.windows(2).all(|two| two[0].1 < two[1].1 && two[0].2.fence < two[1].2.fence), "in the order of their arrival");
        let first = grants[0].0 - last;
        let drained = grants[waiters - 1].0 - grants[0].0;
        let asked = calls() - before;
        say(&format!(
            "etcd: {waiters} waiters, gathered in {gathered:.1?}, ask {idle} times a second while nothing happens; the holder died with a \
             lease of {LEASE} s: the first waiter got the lock after {first:.2?}, the last one {drained:.1?} later, {asked} requests; {} were \
             made again, since the server was too busy",
            again.get()
        ));
        let most = 20 + u32::try_from(waiters).unwrap() / 15;
        assert!(idle < most, "one keepalive per waiter in twenty seconds, and one waiter that watches all: {idle}");
        assert_eq!(grants[0].2.drain_delay, Duration::from_millis(500), "the drain delay of the dead holder");
        let lease = Duration::from_secs(LEASE);
        assert!(first + Duration::from_secs(1) > lease && first < lease + Duration::from_secs(1) * (1 + slowness()), "{first:?}");
    });
    assert!(
        run(&etcd.url(), &["inspect", &name])
            .stdout
            .contains("FREE")
    );
}

/// A run needs only two of three members: no run fails, keeps its lock, or waits long for the third
/// member.
#[test]
fn a_frozen_follower_barely_delays_runs() {
    let etcd = cluster_or_return!("a_frozen_follower_barely_delays_runs");
    let (_, followers) = etcd.leader();
    etcd.freeze_member(followers[0]);
    crate::stores::run_with_one_silent_server(&etcd.all());
    etcd.thaw_member(followers[0]);
}

/// The same for a host that is off and refuses no connection.
#[test]
fn an_unreachable_member_barely_delays_runs() {
    let etcd = cluster_or_return!("an_unreachable_member_barely_delays_runs");
    let (ports, deaf) = (etcd.ports(), Deaf::new());
    let url = format!(
        "etcd://127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}",
        deaf.port, ports[0], ports[1]
    );
    crate::stores::run_with_one_silent_server(&url);
}

/// The proxy renews leases on a clock of its own, and shares one answer between simultaneous
/// requests for a lease.
#[test]
fn behind_grpc_proxy_holds_are_renewed_and_handed_over() {
    if !have(
        "behind_grpc_proxy_holds_are_renewed_and_handed_over",
        &Etcd::PROGRAMS,
    ) {
        return;
    }
    let etcd = Etcd::plain();
    let proxy = etcd.proxy();
    let world = World::new(format!("etcd://127.0.0.1:{}", proxy.port));
    let section = world.path("section").display().to_string();
    let holder = world.start(
        &["--ttl", "6s"],
        &format!("mkdir {section}; sleep 14; rmdir {section}"),
    );
    must("the lock is held", LIMIT, || world.path("section").exists());
    let waiter = world.start(
        &["--ttl", "6s", "-w", "30"],
        &format!("! test -e {section}"),
    );
    for (process, limit) in [(holder, LIMIT * 2), (waiter, LIMIT)] {
        let ended = process.wait(limit);
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
    }
    world.assert_free();
}

/// Requests arrive, but from some moment on no reply does. Each waiter detects the dead connection
/// and gets the lock.
#[test]
fn waiters_recover_from_lost_replies() {
    if !have("waiters_recover_from_lost_replies", &Etcd::PROGRAMS) {
        return;
    }
    let etcd = Etcd::plain();
    let world = World::new(etcd.url());
    let go = world.path("go").display().to_string();
    let first = world.start(
        &["--ttl", "3s"],
        &format!("while [ ! -e {go} ]; do sleep 0.02; done"),
    );
    must("the lock is held", LIMIT, || !world.is_free());
    // Each proxy swallows another of the waiter's replies.
    let proxies: Vec<_> = (0..8).map(|_| Proxy::to(etcd.port())).collect();
    let wait = |proxy: &Proxy| {
        world.start_on(
            &format!("etcd://{}:{}", proxy.host, proxy.port),
            &["--ttl", "3s", "-w", "2m"],
            "true",
        )
    };
    let waiters: Vec<_> = proxies.iter().map(wait).collect();
    for (proxy, nth) in proxies.iter().zip(0..) {
        must("the waiter waits", LIMIT, || proxy.requests() > 4);
        proxy.trap_nth("", nth * 3, 1, Fault::Swallow);
    }
    must("a reply of each is swallowed", LIMIT, || {
        proxies.iter().all(|proxy| proxy.sprung() == 1)
    });
    std::fs::write(&go, "").unwrap();
    let began = Instant::now();
    assert_eq!(first.wait(LIMIT).code(), 0);
    for waiter in waiters {
        let ended = waiter.wait(LIMIT * 4);
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
    }
    // Twice the time limit of an answer. A waiter with a dead watch would check its position only
    // after five times that.
    assert!(
        began.elapsed() < Duration::from_secs(12) * slowness(),
        "{:?}",
        began.elapsed()
    );
    world.assert_free();
}

/// A member that was dropped as silent may still have granted the leases of the run records. dlock
/// recognizes them as its own.
#[test]
fn a_lease_requested_from_two_members_is_granted() {
    let etcd = cluster_or_return!("a_lease_requested_from_two_members_is_granted");
    let proxies: Vec<_> = etcd.ports().into_iter().map(Proxy::to).collect();
    let members: Vec<_> = proxies
        .iter()
        .map(|proxy| format!("{}:{}", proxy.host, proxy.port))
        .collect();
    let url = format!("etcd://{}", members.join(","));
    // Longer than dlock waits for a silent member.
    let delay = |by| {
        for proxy in &proxies {
            proxy.delay(by);
        }
    };
    delay(Duration::from_millis(300));
    for nth in 0..3 {
        let key = format!("job-{nth}");
        let ended = run(
            &url,
            &[
                "run",
                "-k",
                &key,
                "--once-per",
                "10m",
                "--skew-guard",
                "0",
                "--backend-timeout",
                "15s",
                "--",
                "true",
            ],
        );
        assert_eq!(ended.code(), 0, "{}", ended.stderr);
    }
    delay(Duration::ZERO);
    let again = run(
        &url,
        &[
            "run",
            "-k",
            "job-0",
            "--once-per",
            "10m",
            "--skew-guard",
            "0",
            "--",
            "true",
        ],
    );
    assert_eq!(again.code(), 75, "{}", again.stderr);
}

/// The store is down from the end of the command until the lease ends. The history still gets the
/// run.
#[test]
fn a_run_without_a_release_is_recorded_in_the_history() {
    if !have(
        "a_run_without_a_release_is_recorded_in_the_history",
        &Etcd::PROGRAMS,
    ) {
        return;
    }
    let etcd = Etcd::plain();
    let mut proxy = Proxy::to(etcd.port());
    let world = World::new(etcd.url());
    let go = world.path("go").display().to_string();
    let script = format!("while [ ! -e {go} ]; do sleep 0.02; done");
    let job = world.start_on(
        &format!("etcd://{}:{}", proxy.host, proxy.port),
        &["--ttl", "3s", "--backend-timeout", "20s"],
        &script,
    );
    must("the lock is held", LIMIT, || !world.is_free());
    proxy.set(Network::BlackHole);
    std::fs::write(&go, "").unwrap();
    world.assert_free();
    proxy.set(Network::Pass);
    let job = job.wait(LIMIT);
    assert!([0, 76].contains(&job.code()), "{}", job.stderr);
    let history: serde_json::Value =
        serde_json::from_str(&run(&etcd.url(), &["history", &world.key, "--json"]).stdout).unwrap();
    assert_eq!(
        history["runs"].as_array().map(Vec::len),
        Some(1),
        "{} {}: {history}",
        job.code(),
        job.stderr
    );
}
