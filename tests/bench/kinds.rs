//! The cost of a hand-over for each lock mode, with few and with many waiters: the time, and the
//! server's work by its own counters.

use crate::{
    drain::{EXCLUSIVE, Kind, Queue},
    lockers::{Locker, Stores},
    support::{
        etcd::Etcd,
        redis::Redis,
        stores::{Database, Schema},
        zookeeper::ZooKeeper,
    },
    table::{Table, median},
};

const ROUNDS: usize = 3;
const ASKED: &str = "asked: Redis commands that clients send, etcd requests, ZooKeeper packets, PostgreSQL transactions (with those of joining \
                     the queue), MariaDB statements; from the first holder's end to the last waiter's, those of all waiters counted";
const SIZES: [usize; 3] = [1, 20, 100];
const KINDS: [Kind; 4] = [
    EXCLUSIVE,
    Kind {
        name: "fair",
        holder: &[],
        waiters: &["--fair"],
        exclusive: true,
    },
    Kind {
        name: "readers after a writer",
        holder: &[],
        waiters: &["-s"],
        exclusive: false,
    },
    Kind {
        name: "permits, 1 of 1",
        holder: &["--permits", "1"],
        waiters: &["--permits", "1"],
        exclusive: true,
    },
];

pub fn run(stores: &Stores) -> Vec<Table> {
    let mut rows = Vec::new();
    for locker in stores.own() {
        for kind in KINDS {
            let probe = stores
                .command_with(locker, kind.waiters, "kinds-probe", false, &["true"])
                .stderr(std::process::Stdio::null())
                .status();
            if !probe.is_ok_and(|status| status.success()) {
                continue;
            }
            // There each waiter is a session, and a server allows about a hundred by default.
            let most = if locker.name.contains("PostgreSQL") {
                60
            } else {
                usize::MAX
            };
            for size in SIZES.map(|size| size.min(most)) {
                let (mut times, mut counts) = (Vec::new(), Vec::new());
                for round in 0..ROUNDS {
                    let key = format!(
                        "kinds-{size}-{round}-{}",
                        kind.name.replace([' ', ','], "-")
                    );
                    let queue = Queue::gather_as(stores, locker, kind, &key, size);
                    let before = asked(stores, locker);
                    times.push(queue.drain() / size as f64);
                    if let (Some(before), Some(after)) = (before, asked(stores, locker)) {
                        counts.push((after - before) as f64 / size as f64);
                    }
                }
                let count = if counts.is_empty() {
                    "-".into()
                } else {
                    format!("{:.1}", median(&mut counts).0)
                };
                rows.push(vec![
                    locker.name.clone(),
                    kind.name.into(),
                    size.to_string(),
                    format!("{:.2}", median(&mut times).0),
                    count,
                ]);
            }
        }
    }
    let title = format!(
        "Hand-over by kind, medians of {ROUNDS}; ms and what the server counts, for each waiter"
    );
    vec![Table::new(
        title,
        &["", "kind", "waiters", "ms", "asked"],
        rows,
        ASKED,
    )]
}

/// Returns how many requests the store's server has handled so far, if it counts them.
fn asked(stores: &Stores, locker: &Locker) -> Option<u64> {
    if locker.name.contains("Redis") {
        let sent = |name: &str| {
            crate::commands::FROM_CLIENTS.contains(&name.split('|').next().unwrap_or(name))
        };
        return Some(
            stores
                .servers::<Redis>()?
                .calls()
                .into_iter()
                .filter(|(name, _)| sent(name))
                .map(|(_, count)| count)
                .sum(),
        );
    }
    if let (true, Some(etcd)) = (locker.name.contains("etcd"), stores.servers::<Etcd>()) {
        return Some(etcd.calls().into_iter().map(|(_, count)| count).sum());
    }
    if locker.name.contains("ZooKeeper") {
        let servers: &ZooKeeper = stores.servers()?;
        return servers.nodes[0].counted("zk_packets_received");
    }
    if locker.name.contains("PostgreSQL") {
        let report = stores.servers::<Database>()?.server.text(
            "postgres",
            "SELECT sum(xact_commit + xact_rollback)::bigint FROM pg_stat_database",
        );
        return report.trim().parse().ok();
    }
    if locker.name.contains("MariaDB") {
        let report = stores
            .servers::<Schema>()?
            .server
            .sql("", "SHOW GLOBAL STATUS LIKE 'Questions'");
        return report.first()?.get(1)?.parse().ok();
    }
    None
}
