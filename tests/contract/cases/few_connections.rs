//! Servers that have few connections: a contender for several locks has all of them, or none.

use std::{future::pending, time::Duration};

use dlock::{
    lease::{self, BootClock, Claim, GroupOutcome, Limits, WaitPolicy},
    lock::{Backend, Request},
};
use futures_util::future::join_all;
use tokio::time::Instant;

use super::{Case, cases};
use crate::{
    lab::{LONG, Lab, key, request, stretched},
    support::{
        proxy::Proxy,
        zookeeper::{self, ZooKeeper},
    },
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![|kind| kind.is_sql() =>
        all_contenders_get_the_lock_over_few_sessions,
        all_contenders_get_two_locks_over_few_sessions,
    ];
    all.extend(
        cases![|kind| kind.has_server() && !kind.is_sql() || kind == Kind::Redlock =>
            all_contenders_get_two_locks_over_few_connections,
        ],
    );
    all.extend(
        cases![|kind| matches!(kind, Kind::Redis | Kind::ZooKeeper) =>
            all_contenders_get_two_locks_of_a_server_with_few_clients,
        ],
    );
    all
}

/// The most connections.
const FEW: usize = 8;
const CONTENDERS: usize = 10;
const KEYS: [&str; 2] = ["job", "second"];
/// Less than a fraction of what a contender waits.
const IDLE: Duration = Duration::from_secs(5);

/// Creates a user that may have few connections.
fn limited(lab: &Lab) -> String {
    if lab.kind.is_postgres() {
        let user = format!("few_{}", lab.postgres().name);
        lab.sql(&format!("CREATE ROLE {user} LOGIN CONNECTION LIMIT {FEW}"));
        lab.sql(&format!(
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}"
        ));
        return user;
    }
    let database = &lab.mariadb().name;
    let user = format!("few_{database}");
    lab.sql(&format!("CREATE USER '{user}'@'%' WITH MAX_USER_CONNECTIONS {FEW}; GRANT ALL ON {database}.* TO '{user}'@'%'"));
    user
}

/// Each contender is a client of its own for each of its locks, and waits for as long as all of
/// them may take.
async fn all_contenders_get(lab: &Lab, keys: &[&str], client: impl AsyncFn() -> Box<dyn Backend>) {
    let freed = std::cell::Cell::new(None::<Instant>);
    let contend = async |_| {
        let mut claims = Vec::new();
        for name in keys {
            claims.push(Claim {
                backend: client().await,
                request: Request {
                    waiting: true,
                    ..request(&key(name), LONG)
                },
            });
        }
        let wait_policy = WaitPolicy::For(LONG);
        let taken = lease::acquire_all(
            &mut claims,
            &BootClock,
            wait_policy,
            Limits::DEFAULT,
            pending::<()>(),
            |_, _| {},
        )
        .await;
        let Ok(GroupOutcome::Granted(leases)) = taken else {
            panic!("{taken:?}")
        };
        let idle = freed.take().map_or(Duration::ZERO, |freed| freed.elapsed());
        lab.pass(Duration::from_millis(30)).await;
        lease::undo_all(&mut claims, &leases, &BootClock, Limits::DEFAULT, false).await;
        freed.set(Some(Instant::now()));
        idle
    };
    let idle = join_all((0..CONTENDERS).map(contend)).await;
    assert!(idle.iter().max() < Some(&stretched(IDLE)), "{idle:?}");
}

async fn over_few_sessions(lab: &Lab, keys: &[&str]) {
    let user = limited(lab);
    let client = async || {
        lab.client_with("dlock", |options| options.user = Some(user.clone()))
            .0
    };
    all_contenders_get(lab, keys, client).await;
}

async fn all_contenders_get_the_lock_over_few_sessions(lab: &Lab) {
    over_few_sessions(lab, &["job"]).await;
}

async fn all_contenders_get_two_locks_over_few_sessions(lab: &Lab) {
    over_few_sessions(lab, &KEYS).await;
}

/// Each server, or what is in front of it, closes the connections that are too many.
async fn all_contenders_get_two_locks_over_few_connections(lab: &Lab) {
    let ports = lab.store().ports().into_iter();
    let proxies: Vec<_> = ports.map(Proxy::to).collect();
    for proxy in &proxies {
        proxy.limit(FEW);
    }
    let ports: Vec<_> = proxies.iter().map(|proxy| proxy.port).collect();
    all_contenders_get(lab, &KEYS, async || lab.through_all(&ports).0).await;
}

async fn all_contenders_get_two_locks_of_a_server_with_few_clients(lab: &Lab) {
    if lab.kind == Kind::Redis {
        let few = FEW.to_string();
        lab.redis().command(&["CONFIG", "SET", "maxclients", &few]);
        return all_contenders_get(lab, &KEYS, async || lab.client().await.0).await;
    }
    let server = ZooKeeper::with(zookeeper::Options {
        config: vec![format!("maxClientCnxns={FEW}")],
        ..Default::default()
    });
    let port = server.nodes[0].port;
    all_contenders_get(lab, &KEYS, async || lab.through(port).0).await;
}
