//! The table of libraries: the server, the name and the modes of dlock for each.

use crate::{
    cases::{self, Compatible, Excluded, Independent, Interaction, Library},
    program::Language::{Java, Node, Python},
    stores::{
        ETCD, MARIADB, MARIADB_ADVISORY, MYSQL, MYSQL_ADVISORY, POSTGRES, POSTGRES_ADVISORY, Place,
        REDIS, REDLOCK, REDLOCK_OF_ONE, ZOOKEEPER,
    },
    support::stores::Kind,
};

/// All modes; none is compatible with the library's lock.
const ALONE: &[(&str, Interaction)] = &[
    ("-x", Excluded),
    ("-s", Excluded),
    ("--permits=2", Excluded),
];
/// The library's lock is shared.
const READER: &[(&str, Interaction)] = &[
    ("-x", Excluded),
    ("-s", Compatible),
    ("--permits=2", Excluded),
];
/// For stores without permits.
const NO_PERMITS: &[(&str, Interaction)] = &[("-x", Excluded), ("-s", Excluded)];
const NO_PERMITS_READER: &[(&str, Interaction)] = &[("-x", Excluded), ("-s", Compatible)];
/// For stores with exclusive locks only.
const EXCLUSIVE: &[(&str, Interaction)] = &[("-x", Excluded)];

/// The library uses the stored name, with dlock's prefix.
fn prefixed(key: &str, _: &str) -> String {
    format!("dlock:{key}")
}

fn bare(key: &str, _: &str) -> String {
    key.into()
}

fn path(key: &str, _: &str) -> String {
    format!("/dlock/{key}")
}

const fn shares(
    language: crate::program::Language,
    store: Place,
    name: fn(&str, &str) -> String,
) -> Library {
    Library {
        language,
        store,
        options: &[],
        name,
        modes: ALONE,
        raises: None,
        without_end: None,
    }
}

macro_rules! share {
    ($($name:ident: $library:expr;)*) => {
        $(mod $name {
            use super::*;

            const LIBRARY: Library = $library;

            fn skipped(case: &str) -> bool {
                cases::skipped(&format!("{}::{case}", stringify!($name)), LIBRARY.language, LIBRARY.store)
            }

            #[test]
            fn library_and_dlock_exclude_each_other() {
                if !skipped("library_and_dlock_exclude_each_other") {
                    cases::exclude_each_other(&LIBRARY);
                }
            }

            #[test]
            fn each_takes_over_after_the_others_death() {
                if !skipped("each_takes_over_after_the_others_death") {
                    cases::outlive_each_other(&LIBRARY);
                }
            }

            #[test]
            fn no_update_is_lost_in_a_race() {
                if !skipped("no_update_is_lost_in_a_race") {
                    cases::race(&LIBRARY);
                }
            }
        })*
    };
}

macro_rules! pass {
    ($($name:ident: $library:expr;)*) => {
        $(#[test]
        fn $name() {
            const LIBRARY: Independent = $library;
            if !cases::skipped(stringify!($name), LIBRARY.language, LIBRARY.store) {
                cases::ignore_each_other(&LIBRARY);
            }
        })*
    };
}

share! {
    redis_py: shares(Python("strings:redis-py"), REDIS, prefixed);
    redis_py_without_namespace: Library { options: &["--namespace="], ..shares(Python("strings:redis-py"), REDIS, bare) };
    redis_py_without_timeout: Library {
        without_end: Some("its default is a key without an expiry, which nothing removes"),
        ..shares(Python("strings:redis-py-without-end"), REDIS, prefixed)
    };
    redlock_py: Library { modes: NO_PERMITS, ..shares(Python("strings:redlock-py"), REDLOCK, prefixed) };
    pottery: Library { options: &["--namespace=redlock"], ..shares(Python("strings:pottery"), REDIS, bare) };
    python_redis_lock: Library {
        options: &["--namespace=lock"],
        raises: Some(("ResponseError", "it reads the key as a string before it takes the lock, and dlock's is a hash")),
        ..shares(Python("strings:python-redis-lock"), REDIS, bare)
    };
    python_redis_lock_and_a_string: Library {
        options: &["--namespace=lock"],
        modes: NO_PERMITS,
        ..shares(Python("strings:python-redis-lock"), REDLOCK_OF_ONE, bare)
    };
    node_redlock: Library { modes: NO_PERMITS, ..shares(Node("redlock"), REDLOCK, prefixed) };
    node_redlock_on_one_server: shares(Node("redlock"), REDIS, prefixed);
    redis_semaphore_mutex: Library { options: &["--namespace=mutex"], ..shares(Node("redis-semaphore"), REDIS, bare) };
    ioredis_set_nx: shares(Node("set-nx"), REDIS, prefixed);
    redisson_lock: shares(Python("redisson:lock"), REDIS, prefixed);
    redisson_lock_and_a_string: Library {
        modes: NO_PERMITS,
        raises: Some(("ResponseError", "it reads a hash, and dlock's lock is a string")),
        ..shares(Python("redisson:lock"), REDLOCK_OF_ONE, prefixed)
    };
    redisson_fair_lock: shares(Python("redisson:fair"), REDIS, prefixed);
    redisson_write_lock: shares(Python("redisson:write"), REDIS, prefixed);
    redisson_read_lock: Library { modes: READER, ..shares(Python("redisson:read"), REDIS, prefixed) };
    curator_mutex: shares(Java("mutex"), ZOOKEEPER, path);
    curator_write_lock: shares(Java("write"), ZOOKEEPER, path);
    curator_read_lock: Library { modes: READER, ..shares(Java("read"), ZOOKEEPER, path) };
    kazoo_lock: shares(Python("queues:kazoo"), ZOOKEEPER, path);
    kazoo_lock_without_namespace: Library { options: &["--namespace="], ..shares(Python("queues:kazoo"), ZOOKEEPER, |key, _| format!("/{key}")) };
    kazoo_write_lock: shares(Python("queues:kazoo-write"), ZOOKEEPER, path);
    kazoo_read_lock: Library { modes: READER, ..shares(Python("queues:kazoo-read"), ZOOKEEPER, path) };
    etcdctl: shares(Python("queues:etcdctl"), ETCD, |key, _| format!("dlock/{key}"));
    etcdctl_without_namespace: Library { options: &["--namespace="], ..shares(Python("queues:etcdctl"), ETCD, bare) };
    etcd_lock_service: shares(Python("queues:lock-service"), ETCD, |key, _| format!("dlock/{key}"));
    shedlock_on_postgresql: shares(Python("sql:shedlock"), POSTGRES, prefixed);
    shedlock_on_mariadb: shares(Python("sql:shedlock"), MARIADB, prefixed);
    shedlock_on_mysql: shares(Python("sql:shedlock"), MYSQL, prefixed);
    psql: Library {
        modes: NO_PERMITS,
        ..shares(Python("sql:advisory"), POSTGRES_ADVISORY, |key, _| format!("hashtextextended('dlock:{key}', 0)"))
    };
    psql_shared: Library {
        modes: NO_PERMITS_READER,
        ..shares(Python("sql:advisory-shared"), POSTGRES_ADVISORY, |key, _| format!("hashtextextended('dlock:{key}', 0)"))
    };
    psql_with_a_number: Library { modes: NO_PERMITS, ..shares(Python("sql:advisory"), Place(Kind::PostgresAdvisory, |url| url + "&pg_key=4711"), |_, _| "4711".into()) };
    mariadb: Library {
        modes: EXCLUSIVE,
        ..shares(Python("sql:advisory"), MARIADB_ADVISORY, |key, database| format!("'{database}.dlock/dlock:{key}'"))
    };
    mysql: Library {
        modes: EXCLUSIVE,
        ..shares(Python("sql:advisory"), MYSQL_ADVISORY, |key, database| format!("'{database}.dlock/dlock:{key}'"))
    };
    mariadb_with_a_raw_name: Library {
        modes: EXCLUSIVE,
        ..shares(Python("sql:advisory"), Place(Kind::MariadbAdvisory, |url| url + "&lock_name=raw"), |key, _| format!("'{key}'"))
    };
}

pass! {
    kazoo_by_default_passes_dlock: Independent {
        language: Python("queues:kazoo-default"),
        store: ZOOKEEPER,
        name: path,
        dlock: 75,
        passed: 0,
        library: "held",
        why: "it looks for nodes of its own alone, and dlock for all of them",
    };
    kazoo_semaphores_are_strangers: Independent {
        language: Python("queues:kazoo-semaphore"),
        store: ZOOKEEPER,
        name: path,
        dlock: 65,
        passed: 0,
        library: "busy",
        why: "it counts all children of the path, and dlock finds some that are no lock's",
    };
    curator_semaphores_pass_dlock: Independent {
        language: Java("semaphore"),
        store: ZOOKEEPER,
        name: path,
        dlock: 65,
        passed: 0,
        library: "held",
        why: "it keeps its nodes in folders below the path, which are no lock's",
    };
    etcd3_is_a_stranger: Independent {
        language: Python("queues:etcd3"),
        store: ETCD,
        name: |key, _| format!("dlock/{key}"),
        dlock: 0,
        passed: 0,
        library: "held",
        why: "it puts one key, /locks/NAME, whatever the name",
    };
    hashtext_is_another_number: Independent {
        language: Python("sql:advisory"),
        store: POSTGRES_ADVISORY,
        name: |key, _| format!("hashtext('dlock:{key}')"),
        dlock: 0,
        passed: 0,
        library: "held",
        why: "dlock's number has 64 bits: ?pg_key= takes the other one",
    };
    shedlock_with_local_time_passes_dlock: Independent {
        language: Python("sql:shedlock-local-time"),
        store: POSTGRES,
        name: prefixed,
        dlock: 75,
        passed: 76,
        library: "held",
        why: "it compares the end of the lease, in UTC, with the time of day of its zone",
    };
}

/// A program that uses `hashtext` for its number shares it through `?pg_key=`.
#[test]
fn psql_with_hashtext() {
    let language = Python("sql:advisory");
    if cases::skipped("psql_with_hashtext", language, POSTGRES) {
        return;
    }
    // SELECT hashtext('sms-job')
    let library = Library {
        modes: NO_PERMITS,
        ..shares(
            language,
            Place(Kind::PostgresAdvisory, |url| url + "&pg_key=130451424"),
            |_, _| "hashtext('sms-job')".into(),
        )
    };
    cases::race(&library);
}
