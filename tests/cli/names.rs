//! The output of `dlock names` for each store, which contacts no store.

use snapbox::{assert_data_eq, file};

use crate::lab::Lab;

#[test]
fn each_store_has_its_names() {
    let mut lab = Lab::new();
    for store in [
        "redis://r1",
        "redlock://r1,r2,r3",
        "tair://r1?mode=version",
        "postgres://app@db/app",
        "mysql://app@db/app?table=shedlock&namespace=",
        "postgres://app@db/app?mode=row",
        "postgres://app@db/app?mode=advisory",
        "mysql://app@db/app?mode=advisory",
        "zookeeper://z1/app",
        "etcd://e1",
    ] {
        lab.say_args(&["names", "sms-job", "-b", store]);
    }
    lab.say("names sms-job");
    assert_data_eq!(lab.transcript(), file!["snapshots/names.txt"].raw());
    lab.assert_untouched();
}

#[test]
fn a_name_has_the_namespace_the_key_and_the_mode() {
    let lab = Lab::new();
    for (words, stored_as, code) in [
        (
            &["job", "-b", "redis://h", "--namespace", ""][..],
            "job",
            "client.lock(\"job\", timeout=60).acquire()",
        ),
        (
            &["job", "-b", "redis://h", "--namespace", "lock"],
            "lock:job",
            "redis_lock.Lock(client, \"job\", expire=60).acquire()",
        ),
        (
            &["a{b}", "-b", "redis://h"],
            "dlock:a%7Bb%7D",
            "redisson.getLock(\"dlock:a%7Bb%7D\").lock();",
        ),
        (
            &["it's \"x\"", "-b", "etcd://h"],
            "dlock/it's \"x\"",
            r#"etcdctl lock 'dlock/it'\''s "x"' -- COMMAND"#,
        ),
        (
            &["a/b", "-b", "zookeeper://h"],
            "/dlock/a%2Fb",
            "new InterProcessMutex(client, \"/dlock/a%2Fb\").acquire();",
        ),
        (
            &["job", "-b", "postgres://h/d?mode=advisory&pg_key=4711"],
            "4711",
            "SELECT pg_advisory_lock(4711);",
        ),
        (
            &["job", "-b", "postgres://h/d?mode=advisory&pg_key=1,2"],
            "1, 2",
            "SELECT pg_advisory_lock(1, 2);",
        ),
        (
            &["it's", "-b", "postgres://h/d?mode=advisory"],
            "hashtextextended('dlock:it''s', 0)",
            "SELECT pg_advisory_lock(hashtextextended('dlock:it''s', 0));",
        ),
        (
            &["job", "-b", "mysql://h/d?mode=advisory&lock_name=raw"],
            "job",
            "SELECT GET_LOCK('job', 10);",
        ),
    ] {
        let output = lab.run(["names", "--json"].into_iter().chain(words.iter().copied()));
        let said: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{words:?}: {output:?}"));
        assert_eq!(said["stored_as"], stored_as, "{words:?}");
        let libraries = said["libraries"].as_array().unwrap();
        assert!(
            libraries.iter().any(|library| library["code"] == code),
            "{words:?}: {said}"
        );
        // A library that can't use this name shows its namespace, and one without shared locks has
        // no code.
        for library in libraries {
            let shares = library["excludes"] == "both_ways";
            assert_eq!(
                library["code"].is_string() || library["namespace"].is_string(),
                shares,
                "{library}"
            );
        }
    }
    let refused = lab.run(["names", "a{b}", "-b", "redis://h", "--namespace", ""]);
    assert_eq!(
        refused.status.code(),
        Some(64),
        "other libraries store it under another name"
    );
    assert_eq!(lab.run(["names"]).status.code(), Some(64));
}
