//! The findings of `doctor`: none invented, none omitted, and settings that break a promise are
//! reported.

use std::time::{Duration, SystemTime};

use dlock::{
    backends::{
        redis,
        redlock::{Redlock, RedlockOptions},
        sql,
    },
    lock::{Finding, Key, Kind as ErrorKind, Severity},
};

use super::{Case, cases, everywhere};
use crate::{
    lab::{Client, LONG, Lab, key, request},
    support::{
        self,
        mariadb::{MariaDb, Options as MariaOptions},
        postgres::{Options as PostgresOptions, Postgres},
    },
    targets::{Kind, open},
};

pub fn all() -> Vec<Case> {
    let mut all = cases!(everywhere =>
        every_check_has_a_finding_and_every_finding_a_check,
        a_healthy_store_has_no_unsafe_finding,
        the_probe_key_is_no_user_key,
        server_clocks_are_reported,
        an_unreachable_store_is_an_error,
    );
    all.extend(cases!(|kind| kind == Kind::Redis =>
        eviction_and_persistence_are_reported,
        a_master_and_its_replica_report_the_replication,
        missing_rights_are_reported,
        examining_writes_nothing,
    ));
    all.extend(cases!(|kind| kind == Kind::Redlock =>
        two_nodes_that_are_one_server_are_unsafe,
        a_node_that_is_down_is_reported,
    ));
    all.extend(cases!(|kind| kind == Kind::Sqlite => a_world_writable_directory_is_reported));
    all.extend(cases!(Kind::is_postgres => a_pooler_is_reported, isolation_and_read_only_settings_are_reported, missing_tables_are_reported, a_server_that_only_speaks_the_postgresql_protocol_is_refused));
    all.extend(cases!(|kind| kind == Kind::PostgresLease => a_standby_is_unsafe, commits_that_a_postgresql_failover_loses_are_reported));
    all.extend(cases!(Kind::speaks_mysql => server_settings_are_reported, missing_mysql_tables_are_reported));
    all.extend(
        cases!(|kind| kind.is_mysql_lease() => commits_that_a_mariadb_failover_loses_are_reported),
    );
    all.extend(cases!(|kind| kind == Kind::Etcd => an_alarm_is_unsafe));
    all.extend(cases!(|kind| kind == Kind::ZooKeeper => a_small_session_range_is_reported));
    all
}

/// Returns all findings; an error fails the case.
async fn examine(client: &mut Client) -> Vec<Finding> {
    client
        .0
        .examine()
        .await
        .unwrap_or_else(|error| panic!("examine: {error:?}"))
}

/// Returns the worst finding of a check.
#[track_caller]
fn worst<'a>(found: &'a [Finding], check: &str) -> &'a Finding {
    found
        .iter()
        .filter(|finding| finding.check == check)
        .max_by_key(|finding| finding.severity)
        .unwrap_or_else(|| panic!("{check}: {found:?}"))
}

#[track_caller]
fn assert_found(found: &[Finding], check: &str, severity: Severity, text: &str) {
    let finding = worst(found, check);
    assert!(
        finding.severity == severity && finding.text.contains(text),
        "{check}: {finding:?}"
    );
    assert!(
        severity == Severity::Ok || finding.fix.is_some(),
        "the finding lacks a fix: {finding:?}"
    );
}

/// Returns what the manual says that `doctor` checks in this deployment.
fn checks(lab: &Lab, client: &Client) -> Vec<&'static str> {
    let others: &[&str] = match lab.kind {
        Kind::Sentinel => &["Redis Cluster"],
        Kind::Cluster => &["Redis behind sentinels"],
        _ => &["Redis behind sentinels", "Redis Cluster"],
    };
    let url = client.0.identity().url;
    let scheme = url.split(':').next().expect("a scheme");
    dlock::backends::STORES
        .iter()
        .filter(|store| store.scheme(scheme).is_some())
        .flat_map(|store| store.checks)
        .filter(|(deployment, _)| !others.contains(deployment))
        .flat_map(|(_, tables)| tables.concat())
        .map(|check| check.id)
        .collect()
}

async fn every_check_has_a_finding_and_every_finding_a_check(lab: &Lab) {
    let mut client = lab.client().await;
    let checks = checks(lab, &client);
    assert_eq!(checks.is_empty(), lab.kind == Kind::Memory);
    let found = examine(&mut client).await;
    for finding in &found {
        assert!(checks.contains(&finding.check), "{finding:?}");
        let quiet = finding.severity == Severity::Ok || finding.text.starts_with("not checked: ");
        assert!(
            quiet || finding.risk.is_some(),
            "the finding lacks a risk: {finding:?}"
        );
        assert!(
            !finding.text.is_empty()
                && !finding.text.ends_with('.')
                && !finding.text.contains('\n'),
            "{finding:?}"
        );
    }
    for check in &checks {
        assert!(
            found.iter().any(|finding| finding.check == *check),
            "{check} has no finding: {found:?}"
        );
    }
    let mut once = checks.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), checks.len(), "{checks:?}");
}

async fn a_healthy_store_has_no_unsafe_finding(lab: &Lab) {
    let mut client = lab.client().await;
    let found = examine(&mut client).await;
    assert!(
        found
            .iter()
            .all(|finding| finding.severity != Severity::Unsafe),
        "{found:?}"
    );
    // Again, as a monitoring job does.
    assert_eq!(examine(&mut client).await.len(), found.len());
}

async fn the_probe_key_is_no_user_key(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let probe = Key::probe_of(a.capabilities().backend);
    assert!(
        Key::new(probe.as_str()).is_err(),
        "a user can type the probe's key"
    );
    let held = a.hold(&probe).await;
    assert!(a.keys("").await.is_empty(), "the probe is listed");
    let other = b.hold(&key("doctor")).await;
    assert_eq!(b.keys("").await, ["doctor"]);
    let busy = b.refused(&request(&probe, LONG)).await;
    assert_eq!(busy.holders.len(), 1);
    a.renewed(&held, None).await;
    a.free(&held).await;
    b.free(&other).await;
}

async fn server_clocks_are_reported(lab: &Lab) {
    let mut client = lab.client().await;
    let held = client.hold(&Key::probe()).await;
    let clocks = client.0.clocks().await.expect("clocks");
    let has_none = !lab.kind.can().server || lab.kind.is_etcd();
    assert_eq!(clocks.is_empty(), has_none, "{clocks:?}");
    // Sentinel: the master and two replicas. Redlock: five nodes. Cluster: three masters.
    let several = match lab.kind {
        Kind::Sentinel | Kind::Cluster => 3,
        Kind::Redlock => 5,
        _ => 1,
    };
    assert!(has_none || clocks.len() == several, "{clocks:?}");
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970");
    for clock in clocks {
        assert!(
            clock.since_epoch.abs_diff(now) < Duration::from_secs(5),
            "{clock:?} at {now:?}"
        );
    }
    client.free(&held).await;
}

async fn an_unreachable_store_is_an_error(lab: &Lab) {
    if !lab.kind.can().server {
        // These stores are always reachable.
        return;
    }
    let mut client = Client(lab.unreachable().await);
    let error = client
        .0
        .examine()
        .await
        .expect_err("the store is unreachable");
    assert!(error.is_transient(), "{error:?}");
}

async fn eviction_and_persistence_are_reported(lab: &Lab) {
    let mut client = lab.client().await;
    let set = |name: &str, value: &str| lab.redis().command(&["CONFIG", "SET", name, value]);
    assert_found(
        &examine(&mut client).await,
        "eviction",
        Severity::Ok,
        "noeviction",
    );
    assert_found(
        &examine(&mut client).await,
        "persistence",
        Severity::Warn,
        "appendonly no",
    );
    for policy in ["allkeys-lru", "volatile-ttl"] {
        set("maxmemory-policy", policy);
        assert_found(
            &examine(&mut client).await,
            "eviction",
            Severity::Unsafe,
            policy,
        );
    }
    set("appendonly", "yes");
    set("appendfsync", "everysec");
    assert_found(
        &examine(&mut client).await,
        "persistence",
        Severity::Warn,
        "appendfsync everysec",
    );
    set("appendfsync", "always");
    assert_found(
        &examine(&mut client).await,
        "persistence",
        Severity::Ok,
        "always",
    );
    set("maxmemory", "1kb");
    assert_found(
        &examine(&mut client).await,
        "memory",
        Severity::Warn,
        "maxmemory",
    );
    set("maxclients", "1");
    // The connection that set this may not be closed yet.
    assert_found(
        &examine(&mut client).await,
        "clients",
        Severity::Warn,
        " of 1 connections",
    );
}

async fn a_master_and_its_replica_report_the_replication(lab: &Lab) {
    let replica = support::redis::Redis::plain();
    replica.command(&["REPLICAOF", "127.0.0.1", &lab.store().port().to_string()]);
    support::must("the replica follows", Duration::from_secs(10), || {
        lab.redis()
            .text(&["INFO", "replication"])
            .contains("state=online")
    });
    let mut master = lab.client().await;
    assert_found(
        &examine(&mut master).await,
        "replication",
        Severity::Warn,
        "1 replica, and grants wait for none",
    );
    let mut options = redis::RedisOptions::new(redis::RedisServer::Tcp {
        host: "127.0.0.1".into(),
        port: lab.store().port(),
    });
    for (count, severity) in [(1, Severity::Ok), (2, Severity::Unsafe)] {
        options.replicas = Some(redis::Replicas {
            count,
            within: redis::Replicas::WITHIN,
        });
        let mut waiting = Client(Box::new(redis::Redis::new(options.clone())));
        assert_eq!(
            worst(&examine(&mut waiting).await, "replication").severity,
            severity
        );
    }
    let at = redis::RedisServer::Tcp {
        host: "127.0.0.1".into(),
        port: replica.port,
    };
    let mut slave = Client(Box::new(redis::Redis::new(redis::RedisOptions::new(at))));
    assert_found(
        &examine(&mut slave).await,
        "replication",
        Severity::Unsafe,
        "a replica of 127.0.0.1",
    );
}

async fn missing_rights_are_reported(lab: &Lab) {
    let with = |user: &str, rules: &str| {
        let words: Vec<&str> = ["ACL", "SETUSER", user, "reset", "on", ">pw"]
            .into_iter()
            .chain(rules.split(' '))
            .collect();
        lab.redis().command(&words);
        let mut options = redis::RedisOptions::new(redis::RedisServer::Tcp {
            host: "127.0.0.1".into(),
            port: lab.store().port(),
        });
        options.user = Some(user.into());
        options.password = Some(dlock::backends::Secret::new("pw"));
        Client(Box::new(redis::Redis::new(options)))
    };
    let found = examine(&mut with("blind", "~* &* +@read +publish")).await;
    for check in [
        "version",
        "eviction",
        "memory",
        "persistence",
        "replication",
        "clients",
    ] {
        assert_found(&found, check, Severity::Warn, "not checked: ");
    }
    assert_found(&found, "rights", Severity::Ok, "may use");
    let found = examine(&mut with("deaf", "~* resetchannels +@all")).await;
    assert_found(&found, "rights", Severity::Warn, "Redisson's channel");
    let found = examine(&mut with("narrow", "~dlock:* &* +@all")).await;
    assert_found(&found, "rights", Severity::Unsafe, "the fence counter");
}

async fn examining_writes_nothing(lab: &Lab) {
    let mut client = lab.client().await;
    examine(&mut client).await;
    client.0.clocks().await.expect("a clock");
    assert!(lab.redis().keys().is_empty());
}

async fn two_nodes_that_are_one_server_are_unsafe(lab: &Lab) {
    let mut options: RedlockOptions = lab.options("dlock");
    options.nodes[1] = options.nodes[0].clone();
    let mut client = Client(Box::new(Redlock::new(options)));
    assert_found(
        &examine(&mut client).await,
        "independence",
        Severity::Unsafe,
        "one server",
    );
    let master = lab.store().ports()[0].to_string();
    lab.redlock()[4].command(&["REPLICAOF", "127.0.0.1", &master]);
    let found = examine(&mut lab.client().await).await;
    assert_found(
        &found,
        "independence",
        Severity::Unsafe,
        "is a replica of 127.0.0.1",
    );
    assert_found(
        &found,
        "replication",
        Severity::Unsafe,
        &lab.store().ports()[4].to_string(),
    );
}

async fn a_node_that_is_down_is_reported(lab: &Lab) {
    lab.redlock()[2].kill();
    let found = examine(&mut lab.client().await).await;
    assert_found(
        &found,
        "nodes",
        Severity::Warn,
        "4 of 5 nodes answer, 3 are needed",
    );
    let mut few: RedlockOptions = lab.options("dlock");
    few.nodes.truncate(2);
    assert_found(
        &examine(&mut Client(Box::new(Redlock::new(few)))).await,
        "nodes",
        Severity::Warn,
        "2 of 2",
    );
}

async fn a_world_writable_directory_is_reported(_: &Lab) {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = support::folder();
    let namespace = dlock::lock::Namespace::default();
    let options = dlock::backends::sqlite::SqliteOptions::at(folder.path().join("x.db"), namespace);
    let mut client = Client(Box::new(dlock::backends::sqlite::Sqlite::new(options)));
    let found = examine(&mut client).await;
    assert_found(&found, "layout", Severity::Ok, "no database yet");
    assert!(
        std::fs::read_dir(folder.path())
            .expect("a folder")
            .next()
            .is_none(),
        "examining created files"
    );
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777))
        .expect("a mode");
    assert_found(&examine(&mut client).await, "files", Severity::Warn, "777");
    std::fs::write(folder.path().join("x.db"), "something else").expect("a file");
    assert_found(
        &examine(&mut client).await,
        "layout",
        Severity::Unsafe,
        "no database of dlock",
    );
}

async fn a_pooler_is_reported(lab: &Lab) {
    let Some((_pooler, port)) = super::postgres::start_pooler(lab) else {
        return support::skip("a_pooler_is_reported", "pgbouncer is not installed");
    };
    let mut options = lab.postgres_options("dlock");
    options.sql.server = sql::SqlServer::Tcp {
        host: "127.0.0.1".into(),
        port,
    };
    let mut client = Client(dlock::backends::postgres::backend(options));
    let severity = if lab.kind.held_by_session() {
        Severity::Unsafe
    } else {
        Severity::Warn
    };
    assert_found(
        &examine(&mut client).await,
        "pooler",
        severity,
        "by the transaction",
    );
}

async fn isolation_and_read_only_settings_are_reported(lab: &Lab) {
    let set = |setting: &str| {
        lab.postgres().sql(&format!(
            "ALTER DATABASE {} SET {setting}",
            lab.postgres().name
        ))
    };
    set("default_transaction_isolation = 'serializable'");
    set("default_transaction_read_only = on");
    let found = examine(&mut lab.client().await).await;
    assert_found(&found, "isolation", Severity::Warn, "not read committed");
    assert_found(&found, "role", Severity::Unsafe, "read_only is on");
}

async fn missing_tables_are_reported(lab: &Lab) {
    assert_found(
        &examine(&mut lab.client().await).await,
        "schema",
        Severity::Ok,
        "dlock",
    );
    lab.postgres().sql("DROP TABLE dlock_rows");
    assert_found(
        &examine(&mut lab.client().await).await,
        "schema",
        Severity::Unsafe,
        "is missing",
    );
}

/// A standby that never ends its recovery.
async fn a_standby_is_unsafe(_: &Lab) {
    let mut server = support::postgres::Postgres::plain();
    let database = server.database();
    server.standby();
    let mut options = dlock::backends::postgres::PostgresOptions::new(sql::SqlServer::Tcp {
        host: "127.0.0.1".into(),
        port: server.port,
    });
    options.sql.user = Some(support::postgres::USER.into());
    options.sql.database = Some(database);
    let found = examine(&mut Client(dlock::backends::postgres::backend(options))).await;
    assert_found(&found, "role", Severity::Unsafe, "standby");
}

/// A connected standby that flushes what it receives, and a role whose commits don't wait for the
/// standby.
async fn commits_that_a_postgresql_failover_loses_are_reported(lab: &Lab) {
    let Some(program) = support::postgres::program("pg_receivewal") else {
        return support::skip(
            "commits_that_a_postgresql_failover_loses_are_reported",
            "not installed: pg_receivewal",
        );
    };
    let settings = vec![
        "synchronous_standby_names=*".into(),
        "synchronous_commit=local".into(),
        "wal_level=replica".into(),
        "max_wal_senders=4".into(),
    ];
    let server = Postgres::with(PostgresOptions {
        settings,
        durable: true,
        ..Default::default()
    });
    let mut options = lab.postgres_options("dlock");
    options.sql.server = sql::SqlServer::Tcp {
        host: "127.0.0.1".into(),
        port: server.port,
    };
    let database = server.database();
    options.sql.database = Some(database.clone());
    let mut client = Client(dlock::backends::postgres::backend(options.clone()));
    client.0.init().await.expect("init");
    let standbys = || {
        server.text(
            "postgres",
            "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'",
        )
    };
    let folder = tempfile::tempdir().expect("a folder");
    support::postgres::give(folder.path());
    let address = [
        "-h",
        "127.0.0.1",
        "-p",
        &server.port.to_string(),
        "-U",
        support::postgres::USER,
    ]
    .map(str::to_owned);
    let mut standby = support::postgres::as_user(&program)
        .args(address)
        .args(["--synchronous", "--no-password", "-D"])
        .arg(folder.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("pg_receivewal starts");
    support::must("the standby is connected", Duration::from_secs(20), || {
        standbys() == "1"
    });
    let local = examine(&mut client).await;
    server.sql(
        "postgres",
        &format!("ALTER DATABASE {database} SET synchronous_commit = on"),
    );
    let on = examine(&mut client).await;
    server.sql(
        &database,
        "CREATE ROLE \"Ana\" LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO \"Ana\"",
    );
    let mut theirs = lab.postgres_options("dlock");
    theirs.sql = sql::SqlOptions {
        user: Some("Ana".into()),
        ..options.sql.clone()
    };
    let ana = examine(&mut Client(dlock::backends::postgres::backend(theirs))).await;
    standby.kill().expect("the standby runs");
    standby.wait().expect("its end");
    assert_found(
        &local,
        "replication",
        Severity::Warn,
        "no grant waits for one: synchronous_commit is local",
    );
    assert_found(&on, "replication", Severity::Ok, "promote none but those");
    let fix = worst(&ana, "replication").fix.as_deref();
    assert_eq!(fix, Some(r#"GRANT pg_read_all_stats TO "Ana""#));
    support::must("the standby is gone", Duration::from_secs(10), || {
        standbys() == "0"
    });
    assert_found(
        &examine(&mut client).await,
        "replication",
        Severity::Warn,
        "no standby is connected",
    );
}

/// CockroachDB accepts PostgreSQL's statements, and grants an advisory lock to every client.
async fn a_server_that_only_speaks_the_postgresql_protocol_is_refused(lab: &Lab) {
    let server = lab.postgres();
    server.sql("CREATE FUNCTION public.version() RETURNS text LANGUAGE sql AS $$ SELECT 'CockroachDB CCL v24.1.0'::text $$");
    server.sql("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$");
    let mut client = lab.client().await;
    assert_found(
        &examine(&mut client).await,
        "version",
        Severity::Unsafe,
        "not PostgreSQL but CockroachDB",
    );
    if lab.kind.held_by_session() {
        let error = client
            .0
            .try_acquire(&request(&key("job"), LONG))
            .await
            .expect_err("a server of another kind");
        assert_eq!(error.kind, ErrorKind::Config, "{error:?}");
    }
}

async fn server_settings_are_reported(lab: &Lab) {
    lab.isolate();
    let set = |setting: &str| lab.mariadb().sql(&format!("SET GLOBAL {setting}"));
    let mut client = lab.client().await;
    assert_found(
        &examine(&mut client).await,
        "timeouts",
        Severity::Ok,
        "wait_timeout 28800",
    );
    set("wait_timeout = 20");
    set("innodb_flush_log_at_trx_commit = 2");
    set("max_connections = 10");
    let found = examine(&mut client).await;
    assert_found(&found, "timeouts", Severity::Warn, "wait_timeout 20");
    assert_found(
        &found,
        "durability",
        Severity::Warn,
        "innodb_flush_log_at_trx_commit",
    );
    assert_found(&found, "connections", Severity::Ok, "of 10 sessions");
    if lab.kind == Kind::MariadbRow {
        set("idle_write_transaction_timeout = 5");
        assert_found(
            &examine(&mut client).await,
            "timeouts",
            Severity::Warn,
            "idle_write_transaction_timeout 5",
        );
    }
    set("read_only = 1");
    assert_found(
        &examine(&mut client).await,
        "role",
        Severity::Unsafe,
        "read-only",
    );
    set("read_only = 0");
}

/// A server with a replica that confirms each commit until the replica is frozen.
async fn commits_that_a_mariadb_failover_loses_are_reported(lab: &Lab) {
    let semi = |role: &str| format!("--rpl-semi-sync-{role}-enabled=ON");
    let logging = |number: u32| {
        vec![
            "--log-bin=b".into(),
            "--sync-binlog=0".into(),
            format!("--server-id={number}"),
        ]
    };
    let start = |settings| {
        MariaDb::with(MariaOptions {
            settings,
            durable: true,
            ..Default::default()
        })
    };
    let primary = start(
        [
            logging(1),
            vec![semi("master"), "--rpl-semi-sync-master-timeout=300".into()],
        ]
        .concat(),
    );
    primary.sql("mysql", "CREATE DATABASE app");
    let mut options = lab.mysql_options("dlock");
    options.sql.server = sql::SqlServer::Tcp {
        host: "127.0.0.1".into(),
        port: primary.port,
    };
    options.sql.database = Some("app".into());
    let mut client = Client(dlock::backends::mysql::backend(options));
    client.0.init().await.expect("init");
    assert_found(
        &examine(&mut client).await,
        "durability",
        Severity::Warn,
        "sync_binlog",
    );
    primary.sql("mysql", "SET GLOBAL sync_binlog = 1");
    let found = examine(&mut client).await;
    assert_found(&found, "durability", Severity::Ok, "sync_binlog 1");
    assert_found(&found, "replication", Severity::Ok, "no replica");
    let replica = start([logging(2), vec![semi("slave")]].concat());
    let source = format!(
        "MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = '{}'",
        primary.port,
        support::mariadb::USER
    );
    replica.sql(
        "mysql",
        &format!("CHANGE MASTER TO {source}, MASTER_USE_GTID = slave_pos; START SLAVE"),
    );
    let counts = || {
        primary
            .sql("mysql", "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_status'; SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_clients'")
    };
    support::must("the replica confirms", Duration::from_secs(20), || {
        primary.sql("app", "CREATE OR REPLACE TABLE tick (n int)");
        counts().iter().all(|row| row[1] == "ON" || row[1] == "1")
    });
    assert_found(
        &examine(&mut client).await,
        "replication",
        Severity::Ok,
        "a commit waits for",
    );
    replica.freeze();
    primary.sql("app", "CREATE OR REPLACE TABLE tick (n int)");
    assert_found(
        &examine(&mut client).await,
        "replication",
        Severity::Warn,
        "fell back",
    );
    replica.thaw();
}

async fn missing_mysql_tables_are_reported(lab: &Lab) {
    assert_found(
        &examine(&mut lab.client().await).await,
        "schema",
        Severity::Ok,
        "dlock",
    );
    lab.mariadb().sql("DROP TABLE dlock_waiters");
    assert_found(
        &examine(&mut lab.client().await).await,
        "schema",
        Severity::Unsafe,
        "is missing",
    );
}

async fn an_alarm_is_unsafe(_: &Lab) {
    // A quota below the size of a new database, so the first write exceeds it.
    let server = support::etcd::Etcd::with(support::etcd::Options {
        arguments: vec!["--quota-backend-bytes=20000"],
        ..Default::default()
    });
    let mut client = open(&server.url(), "dlock");
    assert_found(
        &examine(&mut client).await,
        "alarms",
        Severity::Ok,
        "no alarm",
    );
    assert!(
        server.try_ctl(&["put", "x", "y"]).is_err(),
        "the quota was not reached"
    );
    support::must("the alarm is raised", Duration::from_secs(10), || {
        server.ctl(&["alarm", "list"]).contains("NOSPACE")
    });
    assert_found(
        &examine(&mut client).await,
        "alarms",
        Severity::Unsafe,
        "NOSPACE",
    );
}

async fn a_small_session_range_is_reported(_: &Lab) {
    let start = |sessions| {
        let options = support::zookeeper::Options {
            sessions: Some(sessions),
            ..Default::default()
        };
        support::zookeeper::ZooKeeper::with(options)
    };
    let servers = start((Duration::from_secs(1), Duration::from_secs(4)));
    let mut client = open(&servers.url(), "dlock");
    assert_found(
        &examine(&mut client).await,
        "timeouts",
        Severity::Warn,
        "1s to 4s",
    );
}
