//! The work of a Redis or etcd server for one hand-over, by the server's own counters, with few and
//! with many waiters.

use crate::{
    drain::Queue,
    lockers::Stores,
    support::{etcd::Etcd, redis::Redis, zookeeper::ZooKeeper},
    table::Table,
};

const SIZES: [usize; 3] = [1, 20, 100];

/// The commands that clients send; scripts call the other commands.
pub const FROM_CLIENTS: [&str; 9] = [
    "eval", "evalsha", "blpop", "hello", "auth", "select", "client", "ping", "script",
];

pub fn run(stores: &Stores) -> Vec<Table> {
    [of_redis(stores), of_etcd(stores), of_zookeeper(stores)]
        .into_iter()
        .flatten()
        .collect()
}

fn of_zookeeper(stores: &Stores) -> Option<Table> {
    let servers: &ZooKeeper = stores.servers()?;
    let (packets, writes) = (
        || {
            servers.nodes[0]
                .counted("zk_packets_received")
                .unwrap_or_default()
        },
        || servers.nodes[0].changes(),
    );
    let mut rows = Vec::new();
    for locker in stores
        .lockers
        .iter()
        .filter(|locker| locker.waits && locker.name != "flock")
    {
        for size in SIZES {
            let queue = Queue::gather(stores, locker, &format!("packets-{size}"), size);
            let before = (packets(), writes());
            let ms = queue.drain();
            let each = |count: u64| format!("{:.2}", count as f64 / size as f64);
            let (sent, written) = (each(packets() - before.0), each(writes() - before.1));
            rows.push(vec![
                locker.name.clone(),
                size.to_string(),
                sent,
                written,
                format!("{:.2}", ms / size as f64),
            ]);
        }
    }
    let head = ["", "waiters", "packets", "changes", "ms per hand-over"];
    Some(Table::new(
        "Packets and changes per hand-over, as the ZooKeeper server counts them",
        &head,
        rows,
        "from the holder's release on, to the end of the last waiter; what keeps sessions alive is among the packets",
    ))
}

fn of_etcd(stores: &Stores) -> Option<Table> {
    let etcd: &Etcd = stores.servers()?;
    let mut rows = Vec::new();
    for locker in stores
        .lockers
        .iter()
        .filter(|locker| locker.name.contains("etcd"))
    {
        for size in SIZES {
            let queue = Queue::gather(stores, locker, &format!("calls-{size}"), size);
            let before = etcd.calls();
            let ms = queue.drain();
            let calls = etcd.calls().into_iter().map(|(name, count)| {
                let earlier = before
                    .iter()
                    .find(|(other, _)| *other == name)
                    .map_or(0, |(_, count)| *count);
                (name, count - earlier)
            });
            let mut calls: Vec<_> = calls.filter(|(_, count)| *count > 0).collect();
            calls.sort_by_key(|call| std::cmp::Reverse(call.1));
            let each = |count: u64| format!("{:.2}", count as f64 / size as f64);
            let words: Vec<_> = calls
                .iter()
                .map(|(name, count)| format!("{name} {}", each(*count)))
                .collect();
            let sum = calls.iter().map(|call| call.1).sum();
            rows.push(vec![
                locker.name.clone(),
                size.to_string(),
                each(sum),
                format!("{:.2}", ms / size as f64),
                words.join(", "),
            ]);
        }
    }
    Some(Table::new(
        "Requests per hand-over, from etcd's metrics",
        &["", "waiters", "requests", "ms per hand-over", "of these"],
        rows,
        "from the holder's release on, to the last waiter's; keep-alives and checks of the other waiters are counted too",
    ))
}

fn of_redis(stores: &Stores) -> Option<Table> {
    let locker = stores
        .lockers
        .iter()
        .find(|locker| locker.name == "dlock run, Redis")?;
    let redis: &Redis = stores.servers()?;
    let mut rows = Vec::new();
    for size in SIZES {
        let queue = Queue::gather(stores, locker, &format!("commands-{size}"), size);
        redis.command(&["CONFIG", "RESETSTAT"]);
        let ms = queue.drain();
        let calls: Vec<_> = redis
            .calls()
            .into_iter()
            .filter(|(name, _)| !name.starts_with("config") && name != "info")
            .collect();
        let sent: u64 = calls
            .iter()
            .filter(|(name, _)| FROM_CLIENTS.contains(&name.split('|').next().unwrap_or(name)))
            .map(|c| c.1)
            .sum();
        let all: u64 = calls.iter().map(|call| call.1).sum();
        let each = |count: u64| format!("{:.2}", count as f64 / size as f64);
        let mut sent_words: Vec<_> = calls
            .iter()
            .filter(|(name, _)| FROM_CLIENTS.contains(&name.as_str()))
            .collect();
        sent_words.sort_by_key(|call| std::cmp::Reverse(call.1));
        let words: Vec<_> = sent_words
            .iter()
            .map(|(name, count)| format!("{name} {}", each(*count)))
            .collect();
        rows.push(vec![
            size.to_string(),
            each(sent),
            each(all),
            format!("{:.2}", ms / size as f64),
            words.join(", "),
        ]);
    }
    let head = [
        "waiters",
        "sent per hand-over",
        "with scripts' own",
        "ms per hand-over",
        "of these",
    ];
    Some(Table::new(
        "Commands per hand-over, from INFO commandstats",
        &head,
        rows,
        "from the holder's release on; with what each waiter had asked before, to join the queue and to block, it is 2 more of them",
    ))
}
