//! Locks of other libraries, and nodes that are set up wrongly.

use std::time::Duration;

use dlock::{
    backends::{
        Secret, Tls,
        redis::{RedisOptions, RedisServer},
        redlock::{Redlock, RedlockOptions},
    },
    lock::{Backend as _, Effect, Kind as ErrorKind, Scope},
};

use super::{
    super::{Case, cases},
    NODES, held_on,
};
use crate::{
    lab::{Client, LONG, Lab, key, nested, request},
    support,
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind == Kind::Redlock =>
        other_libraries_and_dlock_exclude_each_other,
        a_key_that_is_no_lock_is_refused_only_on_a_majority,
        strings_without_an_expiry_belong_to_another_library,
        one_server_under_two_names_counts_once,
        a_replica_is_reported,
        a_refused_password_is_denied,
        every_node_is_verified,
        only_counters_remain,
    ]
}

/// redlock-py, pottery, redsync and node-redlock: SET NX PX on all nodes, a majority, and a
/// compare-and-delete script.
async fn other_libraries_and_dlock_exclude_each_other(lab: &Lab) {
    const UNLOCK: &str = r#"if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end"#;
    let lock = |n: usize| {
        lab.redlock()[n].command(&["SET", "dlock:job", "mK3xV9", "NX", "PX", "5000"])
            == redis::Value::Okay
    };
    let unlock = |n: usize| lab.redlock()[n].int(&["EVAL", UNLOCK, "1", "dlock:job", "mK3xV9"]);
    let mut a = lab.client().await;
    let job = key("job");
    assert!([0, 2, 4].into_iter().all(lock));
    let busy = a.refused(&request(&job, LONG)).await;
    assert!(
        !busy.transient && busy.holders.len() == 1 && busy.holders[0].foreign,
        "{busy:?}"
    );
    let left = busy.expires_in.expect("an expiry");
    assert!(
        left > Duration::from_secs(3) && left <= Duration::from_secs(5),
        "{left:?}"
    );
    let state = a.inspect(&job).await;
    assert!(
        state.holders[0].foreign
            && state.nodes[0].held == Some(true)
            && state.nodes[1].held == Some(false),
        "{state:?}"
    );
    assert_eq!(
        held_on(lab),
        3,
        "a refused attempt leaves no key, and deletes none"
    );
    assert_eq!([0, 2, 4].map(unlock), [1, 1, 1]);
    // The other library has only a minority, which that library itself would give up.
    assert!([1, 3].into_iter().all(lock));
    let held = a.hold(&job).await;
    assert!(
        (0..NODES).all(|n| !lock(n)),
        "the other library took a node that dlock holds"
    );
    assert!([0, 2, 4].map(unlock).iter().all(|deleted| *deleted == 0));
    a.renewed(&held, None).await;
    a.free(&held).await;
    assert_eq!(held_on(lab), 2, "dlock deleted the other library's keys");
}

async fn a_key_that_is_no_lock_is_refused_only_on_a_majority(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    for (count, puts) in [
        &["HSET", "dlock:job", "not", "a lock"][..],
        &["RPUSH", "dlock:job", "a"],
    ]
    .iter()
    .enumerate()
    {
        lab.redlock()[count].command(puts);
        let held = a.hold(&job).await;
        a.renewed(&held, None).await;
        a.free(&held).await;
    }
    lab.redlock()[2].command(&["SADD", "dlock:job", "a"]);
    let error =
        a.0.try_acquire(&request(&job, LONG))
            .await
            .expect_err("cron would skip every run silently");
    assert_eq!(error.kind, ErrorKind::Data, "{error:?}");
    assert_eq!(
        a.0.inspect(&job).await.expect_err("no lock").kind,
        ErrorKind::Data
    );
    assert_eq!(
        lab.redlock()[0].text(&["HGET", "dlock:job", "not"]),
        "a lock"
    );
    assert_eq!(
        (3..NODES)
            .map(|n| lab.redlock()[n].int(&["EXISTS", "dlock:job"]))
            .sum::<i64>(),
        0
    );
}

async fn strings_without_an_expiry_belong_to_another_library(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    for n in [0, 2, 4] {
        lab.redlock()[n].command(&["SET", "dlock:job", "mK3xV9", "NX"]);
    }
    let busy = a.refused(&request(&job, LONG)).await;
    assert!(
        !busy.transient
            && busy.holders.len() == 1
            && busy.holders[0].foreign
            && busy.expires_in.is_none(),
        "{busy:?}"
    );
    let state = a.inspect(&job).await;
    assert!(
        state.holders.len() == 1
            && state.holders[0].foreign
            && state.holders[0].expires_in.is_none(),
        "{state:?}"
    );
    for n in [0, 2] {
        lab.redlock()[n].command(&["DEL", "dlock:job"]);
    }
    a.hold(&job).await;
}

fn at(host: &str, port: u16) -> RedisOptions {
    RedisOptions::new(RedisServer::Tcp {
        host: host.into(),
        port,
    })
}

async fn one_server_under_two_names_counts_once(lab: &Lab) {
    let ports = lab.store().ports();
    let two_of_three = RedlockOptions::new(vec![
        at("127.0.0.1", ports[0]),
        at("localhost", ports[0]),
        at("127.0.0.1", ports[1]),
    ]);
    let mut a = Client(Box::new(Redlock::new(two_of_three)));
    let held = a.hold(&key("job")).await;
    let notices = a.0.notices();
    assert!(
        notices
            .iter()
            .any(|notice| notice.warning && notice.text.contains("doesn't count")),
        "{notices:?}"
    );
    a.inspect(&key("job")).await;
    assert!(
        a.0.notices()
            .iter()
            .any(|notice| notice.warning && notice.text.contains("one server"))
    );
    a.free(&held).await;
    // With one of the two servers down, two of the three names still answer.
    lab.redlock()[1].kill();
    assert!(a.0.try_acquire(&held).await.is_err());
}

async fn a_replica_is_reported(lab: &Lab) {
    let master = lab.store().ports()[0].to_string();
    lab.redlock()[4].command(&["REPLICAOF", "127.0.0.1", &master]);
    let mut a = lab.client().await;
    let held = a.hold(&key("job")).await;
    let notices = a.0.notices();
    // The replica refuses writes, or already has a copy of the key.
    let says = |text: &str| text.contains("copies it") || text.contains("read-only replica");
    assert!(
        notices
            .iter()
            .any(|notice| notice.warning && says(&notice.text)),
        "{notices:?}"
    );
    a.inspect(&key("job")).await;
    assert!(
        a.0.notices()
            .iter()
            .any(|notice| notice.warning && notice.text.contains("replica of 127.0.0.1"))
    );
    a.free(&held).await;
}

async fn a_refused_password_is_denied(_: &Lab) {
    let servers: Vec<_> = (0..3)
        .map(|_| {
            support::redis::Redis::with(support::redis::Options {
                password: Some("right"),
                ..Default::default()
            })
        })
        .collect();
    let with = |password: &str| {
        let node = |server: &support::redis::Redis| RedisOptions {
            password: Some(Secret::new(password)),
            ..at("127.0.0.1", server.port)
        };
        Redlock::new(RedlockOptions::new(servers.iter().map(node).collect()))
    };
    let error = with("wr0ng-secret")
        .try_acquire(&request(&key("job"), LONG))
        .await
        .expect_err("refused");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Denied, Effect::NotApplied),
        "{error:?}"
    );
    assert!(!format!("{error:?}").contains("wr0ng-secret"));
    Client(Box::new(with("right"))).hold(&key("job")).await;
}

async fn every_node_is_verified(_: &Lab) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let start = || {
        support::redis::Redis::with(support::redis::Options {
            tls_names: vec!["127.0.0.1"],
            ..Default::default()
        })
    };
    let servers = [start(), start(), start()];
    let folder = support::folder();
    let with = |trusted: usize| {
        // Each node has its own authority.
        let file = folder.path().join(format!("{trusted}.pem"));
        let authorities = servers.iter().take(trusted).map(|server| {
            std::fs::read(&server.certificates.as_ref().expect("a certificate").ca)
                .expect("a certificate")
        });
        std::fs::write(&file, authorities.collect::<Vec<_>>().concat()).expect("a certificate");
        let tls = Some(Tls {
            ca_file: Some(file),
            ..Tls::default()
        });
        let nodes = servers.iter().map(|server| RedisOptions {
            tls: tls.clone(),
            ..at("127.0.0.1", server.tls_port)
        });
        Redlock::new(RedlockOptions::new(nodes.collect()))
    };
    let mut all = Client(Box::new(with(3)));
    let held = all.hold(&key("job")).await;
    all.renewed(&held, None).await;
    all.free(&held).await;
    Client(Box::new(with(2))).hold(&key("two of three")).await;
    let error = with(1)
        .try_acquire(&request(&key("one of three"), LONG))
        .await
        .expect_err("two certificates can't be verified");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Denied, Effect::NotApplied),
        "{error:?}"
    );
}

async fn only_counters_remain(lab: &Lab) {
    let mut a = lab.client().await;
    let held = a.hold(&key("job")).await;
    a.take(&nested(&held)).await;
    let mut b = lab.client().await;
    let wanted = crate::lab::waiting(&key("job"), LONG);
    b.refused(&wanted).await;
    b.leave_queue(&wanted).await;
    for n in 0..NODES {
        let endless = lab.redlock()[n]
            .keys()
            .into_iter()
            .filter(|(_, left)| *left < 0)
            .map(|(name, _)| name)
            .collect::<Vec<_>>();
        assert_eq!(endless, ["redisson_lock_token:{dlock:job}"]);
    }
    a.release(&held, Scope::Tree).await;
    for n in 0..NODES {
        // The history also remains, for 100 days after the last run.
        let mut left: Vec<String> = lab.redlock()[n]
            .keys()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        left.sort();
        assert_eq!(
            left,
            ["dlock:{dlock:job}:runs", "redisson_lock_token:{dlock:job}"]
        );
    }
}
