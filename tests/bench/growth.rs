//! How costs grow with the waiters for a lock, with the locks held on a store, and with a lock's
//! history.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use dlock::{
    backends::{
        redis::{self, Redis, RedisServer},
        sqlite::{self, Sqlite},
    },
    lock::{Attempt, Backend, Key, Namespace, ReleaseInfo, Request, Scope, Ttl},
};

use crate::{
    drain::Queue,
    lockers::{Locker, Stores},
    table::{Table, median},
};

const WAITERS: [usize; 4] = [1, 20, 200, 1000];
const HELD: [usize; 3] = [1, 1_000, 100_000];
const RUNS: [usize; 3] = [0, 100, 1_000];
const ROUNDS: usize = 30;

pub fn with_waiters(stores: &Stores) -> Vec<Table> {
    let mut rows = Vec::new();
    for locker in stores.waiting() {
        let mut row = vec![locker.name.clone()];
        for size in WAITERS {
            // A waiter is a session of the server on SQL, and needs a JVM's or an interpreter's
            // memory with other programs.
            let can = locker.name == "flock"
                || ["SQLite", "Redis", "etcd", "ZooKeeper"]
                    .iter()
                    .any(|store| locker.name.ends_with(store));
            row.push(if can || size <= 20 {
                let rounds = if size > 200 { 1 } else { 3 };
                let drain = |round| {
                    Queue::gather(stores, locker, &format!("growth-{size}-{round}"), size).drain()
                        / size as f64
                };
                format!(
                    "{:.2}",
                    median(&mut (0..rounds).map(drain).collect::<Vec<_>>()).0
                )
            } else {
                "-".into()
            });
        }
        rows.push(row);
    }
    let head = [String::new()]
        .into_iter()
        .chain(WAITERS.map(|size| size.to_string()))
        .collect();
    vec![Table {
        title: "ms per hand-over, by the number of waiters".into(),
        head,
        rows,
        note: "",
    }]
}

pub fn with_held_locks(stores: &Stores) -> Vec<Table> {
    let mut rows = Vec::new();
    for locker in stores.own() {
        let mut held = 0;
        for size in HELD {
            // A new client for each thousand locks, because a client remembers every lock that it
            // used.
            while held < size {
                let Some(mut client) = client(stores, locker, "held") else {
                    break;
                };
                let until = size.min(held + 1000);
                runtime().block_on(async {
                    for n in held..until {
                        take(&mut *client, &format!("held-{n}")).await;
                    }
                });
                held = until;
            }
            if held < size {
                continue;
            }
            let ms = |words: &[&str]| timed(locker, "held", words);
            let (run, inspect) = (
                ms(&["run", "-k", "one-more", "--", "true"]),
                ms(&["inspect", "held-0"]),
            );
            let list = once(locker, "held", &["list"]);
            rows.push(vec![format!("{}, {size}", locker.name), run, inspect, list]);
        }
    }
    let note = "list prints each of the locks";
    vec![Table::new(
        "Whole commands in ms, by the number of locks held on the store",
        &["", "run", "inspect", "list"],
        rows,
        note,
    )]
}

pub fn with_history(stores: &Stores) -> Vec<Table> {
    let mut rows = Vec::new();
    for locker in stores.own() {
        let mut done = 0;
        for size in RUNS {
            let Some(mut client) = client(stores, locker, "long") else {
                continue;
            };
            runtime().block_on(async {
                for _ in done..size {
                    let request = take(&mut *client, "job").await;
                    client
                        .release(
                            &request.key,
                            &request.token,
                            &ReleaseInfo::from(Scope::Hold),
                        )
                        .await
                        .expect("a release");
                }
            });
            done = size;
            let ms = |words: &[&str]| timed(locker, "long", words);
            let (run, inspect) = (
                ms(&["run", "-k", "job", "--", "true"]),
                ms(&["inspect", "job"]),
            );
            rows.push(vec![
                format!("{}, {size}", locker.name),
                run,
                inspect,
                ms(&["history", "job"]),
            ]);
        }
    }
    let note = "each store keeps a hundred runs of a lock, and a hundred that failed";
    vec![Table::new(
        "Whole commands in ms, by the number of earlier runs of the lock",
        &["", "run", "inspect", "history"],
        rows,
        note,
    )]
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Returns a client in this process, for stores where one client can hold many locks.
fn client(stores: &Stores, locker: &Locker, namespace: &str) -> Option<Box<dyn Backend>> {
    let namespace = Namespace::new(namespace).expect("a namespace");
    match locker.name.as_str() {
        "dlock run, Redis" => {
            let mut options = redis::RedisOptions::new(RedisServer::Tcp {
                host: "127.0.0.1".into(),
                port: stores.servers::<crate::support::redis::Redis>()?.port,
            });
            options.namespace = namespace;
            Some(Box::new(Redis::new(options)))
        }
        "dlock run, SQLite" => {
            let path = locker.url()?.strip_prefix("sqlite://")?;
            Some(Box::new(Sqlite::new(sqlite::SqliteOptions::at(
                path, namespace,
            ))))
        }
        _ => None,
    }
}

async fn take(client: &mut dyn Backend, key: &str) -> Request {
    let ttl = Ttl::new(Duration::from_hours(1)).expect("a TTL");
    let request = Request {
        detached: true,
        ..Request::new(Key::new(key).expect("a key"), ttl)
    };
    let attempt = client.try_acquire(&request).await.expect("an answer");
    assert!(
        matches!(attempt, Attempt::Granted(..)),
        "{key}: {attempt:?}"
    );
    request
}

/// Returns the median wall time of a command.
fn timed(locker: &Locker, namespace: &str, words: &[&str]) -> String {
    let mut times: Vec<_> = (0..ROUNDS).map(|_| one(locker, namespace, words)).collect();
    format!("{:.2}", median(&mut times).0)
}

fn once(locker: &Locker, namespace: &str, words: &[&str]) -> String {
    format!("{:.1}", one(locker, namespace, words))
}

fn one(locker: &Locker, namespace: &str, words: &[&str]) -> f64 {
    let mut command: Command = locker.dlock(words);
    command
        .env("DLOCK_NAMESPACE", namespace)
        .stdout(Stdio::null());
    let began = Instant::now();
    let status = command.status().expect("dlock");
    assert!(status.success(), "{command:?}: {status}");
    began.elapsed().as_secs_f64() * 1e3
}
