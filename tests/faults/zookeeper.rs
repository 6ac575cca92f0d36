//! An ensemble of three ZooKeeper servers that loses some of them, and manual changes by an
//! administrator.

use std::time::{Duration, Instant};

use crate::{
    support::{self, deaf::Deaf, must, process::Process, zookeeper::ZooKeeper},
    world::{LIMIT, TTL, World},
};

/// A lease that outlasts an election: TERM comes after half of it.
const LONG: [&str; 2] = ["--ttl", "20s"];

fn ensemble(test: &str) -> Option<ZooKeeper> {
    match ZooKeeper::missing() {
        None => Some(ZooKeeper::ensemble()),
        Some(why) => {
            support::skip(test, &why);
            None
        }
    }
}

/// Starts a command of this length, and waits until it runs.
fn long_job(world: &World, seconds: u32) -> Process {
    let script = format!(
        "touch {}; sleep {seconds}; echo done",
        world.path("ready").display()
    );
    let job = world.start(&LONG, &script);
    must("the command runs", LIMIT, || world.path("ready").exists());
    job
}

fn assert_done(job: Process) {
    let job = job.wait(LIMIT);
    assert_eq!(
        (job.code(), job.stdout.as_str()),
        (0, "done\n"),
        "{}",
        job.stderr
    );
}

#[test]
fn a_killed_leader_is_survived() {
    let Some(mut servers) = ensemble("a_killed_leader_is_survived") else {
        return;
    };
    let world = World::new(servers.url());
    let job = long_job(&world, 5);
    let leader = servers.leader();
    servers.nodes[leader].kill();
    std::thread::sleep(Duration::from_secs(2));
    assert!(!world.is_free(), "the new leader knows the session");
    servers.start();
    assert_done(job);
    world.assert_free();
}

#[test]
fn a_frozen_leader_is_survived() {
    let Some(servers) = ensemble("a_frozen_leader_is_survived") else {
        return;
    };
    let world = World::new(servers.url());
    let job = long_job(&world, 6);
    let leader = servers.leader();
    servers.nodes[leader].freeze();
    assert_done(job);
    servers.nodes[leader].thaw();
    world.assert_free();
}

#[test]
fn runs_work_without_a_killed_minority() {
    let Some(mut servers) = ensemble("runs_work_without_a_killed_minority") else {
        return;
    };
    for n in 0..3 {
        let world = World::new(servers.url());
        let job = long_job(&world, 3);
        servers.nodes[n].kill();
        assert_done(job);
        world.assert_free();
        servers.start();
        servers.leader();
    }
}

#[test]
fn a_killed_majority_stops_the_holder_in_time() {
    let Some(mut servers) = ensemble("a_killed_majority_stops_the_holder_in_time") else {
        return;
    };
    let world = World::new(servers.url());
    let first = world.first();
    servers.nodes[0].kill();
    servers.nodes[1].kill();
    let began = Instant::now();
    must("the tree is dead", LIMIT, || world.tree().is_empty());
    assert!(
        began.elapsed() < support::beyond_stalls(TTL),
        "{:?}",
        began.elapsed()
    );
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    let unavailable = world
        .start(&["--backend-timeout", "2s"], "true")
        .wait(LIMIT);
    assert_eq!(unavailable.code(), 69, "{}", unavailable.stderr);
    servers.start();
    servers.leader();
    world.second();
    world.assert_gone();
    world.assert_free();
}

#[test]
fn a_frozen_majority_stops_the_holder_in_time() {
    let Some(mut servers) = ensemble("a_frozen_majority_stops_the_holder_in_time") else {
        return;
    };
    let world = World::new(servers.url());
    let first = world.first();
    servers.nodes[1].freeze();
    servers.nodes[2].freeze();
    let began = Instant::now();
    must("the tree is dead", LIMIT, || world.tree().is_empty());
    assert!(
        began.elapsed() < support::beyond_stalls(TTL),
        "{:?}",
        began.elapsed()
    );
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), 76, "{}", first.stderr);
    servers.recover();
    world.second();
    world.assert_gone();
    world.assert_free();
}

#[test]
fn a_waiter_gets_the_lock_after_an_election() {
    let Some(mut servers) = ensemble("a_waiter_gets_the_lock_after_an_election") else {
        return;
    };
    let world = World::new(servers.url());
    let job = long_job(&world, 4);
    let waiter = world.start(&["-w", "25", "--ttl", "12s"], "echo granted");
    std::thread::sleep(Duration::from_millis(700));
    let leader = servers.leader();
    servers.nodes[leader].kill();
    assert_done(job);
    let waiter = waiter.wait(LIMIT);
    assert_eq!(
        (waiter.code(), waiter.stdout.as_str()),
        (0, "granted\n"),
        "{}",
        waiter.stderr
    );
    servers.start();
}

/// A healthy holder learns of the deletion at once. The next holder waits half a second for it to
/// stop.
#[test]
fn a_deleted_node_stops_the_command_before_the_next_starts() {
    let Some(servers) = ensemble("a_deleted_node_stops_the_command_before_the_next_starts") else {
        return;
    };
    for _ in 0..5 {
        let world = World::new(servers.url());
        let first = world.first();
        let waiter = {
            let probe = format!(
                "sh {} {}",
                world.path("probe.sh").display(),
                world.path("").display()
            );
            world.start(&["-w", "25", LONG[0], LONG[1]], &probe)
        };
        std::thread::sleep(Duration::from_millis(500));
        let began = Instant::now();
        servers.delete_contender(&format!("/dlock/{}", world.key));
        let waiter = waiter.wait(LIMIT);
        assert_eq!(waiter.code(), 0, "{}", waiter.stderr);
        assert!(
            began.elapsed() >= Duration::from_millis(500),
            "{:?}",
            began.elapsed()
        );
        world.assert_no_overlap();
        let first = first.wait(LIMIT);
        assert_eq!(first.code(), 76, "{}", first.stderr);
        world.assert_gone();
    }
}

/// The output of `acquire` is all that another process needs. The server's session range limits the
/// lease.
#[test]
fn acquire_hands_the_lock_over() {
    let Some(servers) = ensemble("acquire_hands_the_lock_over") else {
        return;
    };
    let url = servers.url();
    let run = |args: &[&str]| support::dlock::run(&url, args);
    let acquired = run(&["acquire", "deploy", "--ttl", "3s"]);
    assert_eq!(acquired.code(), 0, "{}", acquired.stderr);
    let token = acquired.stdout.trim();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(1500));
        let renewed = run(&["renew", "deploy", "--token", token]);
        assert_eq!(renewed.code(), 0, "{}", renewed.stderr);
    }
    assert_eq!(run(&["run", "-k", "deploy", "--", "true"]).code(), 75);
    let other = run(&["renew", "deploy", "--token", token, "--ttl", "9s"]);
    assert_eq!(other.code(), 64, "{}", other.stderr);
    assert_eq!(run(&["release", "deploy", "--token", token]).code(), 0);
    assert_eq!(run(&["release", "deploy", "--token", token]).code(), 77);
    assert_eq!(run(&["run", "-k", "deploy", "--", "true"]).code(), 0);
    // Without a renewal, the hold ends.
    let acquired = run(&["acquire", "deploy", "--ttl", "2s"]);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(
        run(&["renew", "deploy", "--token", acquired.stdout.trim()]).code(),
        77
    );
    assert_eq!(run(&["run", "-k", "deploy", "--", "true"]).code(), 0);
}

/// The command sees its token, but not the session's secret.
#[test]
fn a_command_does_not_see_the_session_secret() {
    let Some(servers) = ensemble("a_command_does_not_see_the_session_secret") else {
        return;
    };
    let ended = support::dlock::run(
        &servers.url(),
        &[
            "run",
            "-k",
            "job",
            "--",
            "sh",
            "-c",
            "echo $DLOCK_TOKEN; echo $DLOCK_HELD",
        ],
    );
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let token = ended.stdout.lines().next().unwrap();
    let token = token.strip_suffix(".run").expect("the token of a run");
    assert_eq!(
        (token.len(), token.matches('.').count()),
        (36 + 1 + 16, 1),
        "{token}"
    );
    assert!(
        !ended
            .stdout
            .replace(".run", "")
            .contains(&format!("{token}.")),
        "{}",
        ended.stdout
    );
}

/// A session that dlock leaves open would last until its timeout.
#[test]
fn no_session_outlives_dlock() {
    if let Some(why) = ZooKeeper::missing() {
        return support::skip("no_session_outlives_dlock", &why);
    }
    let servers = ZooKeeper::single();
    let (url, dlock) = (servers.url(), support::dlock::binary());
    let sessions = || servers.nodes[0].counted("zk_global_sessions");
    let before = sessions();
    let nested = format!("{} run -k job -- true", dlock.display());
    let waits = format!(
        "env -u DLOCK_HELD {} run -k job -w 300ms -- true || test $? = 75",
        dlock.display()
    );
    let refused = format!(
        "env -u DLOCK_HELD {} run -k job -- true || test $? = 75",
        dlock.display()
    );
    let commands: [(&[&str], u8); 8] = [
        (&["run", "-k", "job", "--", "true"], 0),
        (&["run", "-k", "job", "--", "sh", "-c", &nested], 0),
        (&["run", "-k", "job", "--", "sh", "-c", &waits], 0),
        (&["run", "-k", "job", "--", "sh", "-c", &refused], 0),
        (&["run", "-k", "job", "--shared", "--", "true"], 0),
        (&["inspect", "job"], 0),
        (&["list"], 0),
        (&["acquire", "job", "--ttl", "60s"], 0),
    ];
    let mut token = String::new();
    for (command, status) in commands {
        let ended = support::dlock::run(&url, command);
        assert_eq!(
            ended.code(),
            i32::from(status),
            "{command:?}: {}",
            ended.stderr
        );
        token = ended.stdout.trim().to_owned();
        // `acquire` leaves one session for the next command.
        let allowed = u64::from(command[0] == "acquire");
        let left = || sessions().map(|now| now.saturating_sub(before.unwrap_or_default()));
        must(
            &format!("the sessions of {command:?} end"),
            Duration::from_secs(1),
            || left() == Some(allowed),
        );
    }
    for command in ["renew", "release"] {
        let ended = support::dlock::run(&url, &[command, "job", "--token", &token]);
        assert_eq!(ended.code(), 0, "{command}: {}", ended.stderr);
    }
    must(
        "the sessions of acquire, renew and release end",
        Duration::from_secs(1),
        || sessions() == before,
    );
}

/// A run needs only two of three servers: no run fails, keeps its lock, or waits long for the third
/// server.
#[test]
fn a_frozen_follower_barely_delays_runs() {
    let Some(servers) = ensemble("a_frozen_follower_barely_delays_runs") else {
        return;
    };
    let frozen = (servers.leader() + 1) % 3;
    servers.nodes[frozen].freeze();
    crate::stores::run_with_one_silent_server(&servers.url());
    servers.nodes[frozen].thaw();
}

/// The same for a host that is off and refuses no connection.
#[test]
fn an_unreachable_server_barely_delays_runs() {
    let Some(servers) = ensemble("an_unreachable_server_barely_delays_runs") else {
        return;
    };
    let (hosts, deaf) = (servers.hosts(), Deaf::new());
    let url = format!(
        "zookeeper://127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}",
        deaf.port, hosts[0].1, hosts[1].1
    );
    crate::stores::run_with_one_silent_server(&url);
}
