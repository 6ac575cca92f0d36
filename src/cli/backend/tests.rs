use std::{
    any::Any,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::*;
use crate::{
    backends::{
        Secret, Tls,
        etcd::EtcdOptions,
        mysql::MysqlOptions,
        postgres::{AdvisoryKey, PostgresOptions},
        redis::{RedisOptions, RedisServer, Replicas},
        redlock::RedlockOptions,
        sql::{SqlMode, SqlServer, TlsMode},
        sqlite::SqliteOptions,
        tair::TairOptions,
    },
    cli::{env::Env, file::File},
    lock::Kind,
};

fn options<T: Clone + Send + Sync + 'static>(target: Target) -> T {
    let store: Arc<dyn Any + Send + Sync> = target.store;
    Arc::unwrap_or_clone(store.downcast::<T>().expect("another kind of store"))
}

fn find(url: Option<&str>, env: &[(&str, &str)], file: &str) -> Result<Target> {
    let env: Env = std::iter::once(("HOME", "/home/ana"))
        .chain(env.iter().copied())
        .collect();
    let file = File::parse(file, Path::new("c.toml")).unwrap();
    let globals = Globals {
        backend: url.map(str::to_owned),
        ..Globals::default()
    };
    resolve(&globals, &mut Layers::new(&env, &file, None))
}

fn redis_of(target: Target) -> RedisOptions {
    options(target)
}

fn etcd_of(target: Target) -> EtcdOptions {
    options(target)
}

fn sqlite_of(target: Target) -> (PathBuf, bool) {
    let asked_for = target.asked_for;
    (options::<SqliteOptions>(target).path, asked_for)
}

#[test]
fn every_scheme_is_understood() {
    let redis = |url| redis_of(find(Some(url), &[("DLOCK_PASSWORD", "pw")], "").unwrap());
    let options = redis("rediss://ana@r1:6380/3?cacert=/ca.pem&namespace=x");
    assert_eq!(
        options.server,
        RedisServer::Tcp {
            host: "r1".into(),
            port: 6380
        }
    );
    assert_eq!(
        options.tls,
        Some(Tls {
            ca_file: Some("/ca.pem".into()),
            ..Tls::default()
        })
    );
    assert_eq!(
        (options.user.as_deref(), options.password, options.db),
        (Some("ana"), Some(Secret::new("pw")), 3)
    );
    assert_eq!(options.namespace.as_str(), "x");
    let options = redis("redis+unix:///run/r.sock?db=2");
    assert_eq!(
        (options.server, options.db),
        (RedisServer::Unix("/run/r.sock".into()), 2)
    );
    let options = redis("redis://[::1]");
    assert_eq!(
        (options.server, options.tls),
        (
            RedisServer::Tcp {
                host: "::1".into(),
                port: 6379
            },
            None
        )
    );

    let options =
        redis("rediss+sentinel://ana@s1,s2:7000,[::1]/prod.1?db=2&replicas=1&replica_timeout=.2");
    let RedisServer::Sentinel(sentinel) = &options.server else {
        panic!("{options:?}")
    };
    assert_eq!(
        (sentinel.master.as_str(), options.db, options.tls.is_some()),
        ("prod.1", 2, true)
    );
    assert_eq!(
        (sentinel.user.as_deref(), &sentinel.password),
        (None, &None),
        "the servers' are not the sentinels'"
    );
    assert_eq!(
        options.redacted_url(),
        "rediss+sentinel://s1:26379,s2:7000,[::1]:26379/prod.1?db=2"
    );
    assert_eq!(
        options.replicas,
        Some(Replicas {
            count: 1,
            within: std::time::Duration::from_millis(200)
        })
    );
    assert_eq!(
        redis("redis://h?replicas=all")
            .replicas
            .map(|replicas| replicas.count),
        Some(Replicas::ALL)
    );
    let options = redis("redis+cluster://c1,c2:7001?replicas=0");
    assert_eq!(
        (options.redacted_url().as_str(), options.replicas),
        ("redis+cluster://c1:6379,c2:7001", None)
    );
    let env = [("DLOCK_SENTINEL_PASSWORD", "spw")];
    let options =
        redis_of(find(Some("redis+sentinel://s1/m?sentinel_user=watch"), &env, "").unwrap());
    let RedisServer::Sentinel(sentinel) = options.server else {
        panic!("no sentinel")
    };
    assert_eq!(
        (
            sentinel.user.as_deref(),
            sentinel.password,
            options.password
        ),
        (Some("watch"), Some(Secret::new("spw")), None)
    );
    let etcd = |url| etcd_of(find(Some(url), &[("DLOCK_PASSWORD", "pw")], "").unwrap());
    let options = etcd("etcds://ana@e1,e2:1,[::1]?cacert=/ca.pem&namespace=");
    assert_eq!(
        options.endpoints,
        [("e1".into(), 2379), ("e2".into(), 1), ("::1".into(), 2379)]
    );
    assert_eq!(
        (
            options.user.as_deref(),
            options.password.is_some(),
            options.namespace.as_str()
        ),
        (Some("ana"), true, "")
    );
    assert_eq!(options.redacted_url(), "etcds://e1:2379,e2:1,[::1]:2379");
    let plain = etcd_of(find(Some("etcd://e1"), &[], "").unwrap());
    assert!(plain.tls.is_none() && plain.user.is_none());

    assert_eq!(
        sqlite_of(find(Some("sqlite:///a%20b.db"), &[], "").unwrap()),
        ("/a b.db".into(), true)
    );
    assert!(sqlite_of(find(Some("local"), &[], "").unwrap()).1);
    assert!(!sqlite_of(find(None, &[], "").unwrap()).1);
}

#[test]
fn redlock_urls_are_parsed() {
    let find = |url| find(Some(url), &[("DLOCK_PASSWORD", "pw")], "");
    let redlock = |url| options::<RedlockOptions>(find(url).unwrap());
    let options = redlock(
        "redlocks://ana@r1,r2:6380,[::1]/3?cacert=/ca.pem&node_timeout=80ms&retry_delay=1s&namespace=x",
    );
    assert_eq!(
        options.redacted_url(),
        "redlocks://r1:6379,r2:6380,[::1]:6379/3"
    );
    assert_eq!(
        (options.node_timeout, options.retry_delay),
        (Duration::from_millis(80), Duration::from_secs(1))
    );
    assert_eq!(options.namespace.as_str(), "x");
    for node in &options.nodes {
        assert_eq!(
            (node.user.as_deref(), node.db, node.tls.is_some()),
            (Some("ana"), 3, true)
        );
    }
    assert_eq!(
        redlock("redlock://r1,r2,r3").node_timeout,
        RedlockOptions::NODE_TIMEOUT
    );
    assert_eq!(redlock("redlock://r1,r2?allow_few=yes").nodes.len(), 2);
    for (url, why) in [
        ("redlock://r1", "1 nodes survive no more failures than 1 do"),
        (
            "redlock://r1,r2,r3,r4",
            "4 nodes survive no more failures than 3 do",
        ),
        ("redlock://r1,r2,r1:6379", "it names a server twice"),
        (
            "redlock://r1,r2,r3?allow_few=perhaps",
            "allow_few: it can't be \"perhaps\"",
        ),
        (
            "redlock://r1,r2,r3?node_timeout=1ms",
            "node_timeout: \"1ms\" is out of range",
        ),
        ("redlock://r1,r2,r3?cacert=/x", "this backend has no cacert"),
        (
            "redis://r1?node_timeout=1s",
            "this backend has no node_timeout",
        ),
    ] {
        let error = find(url).unwrap_err();
        assert!(
            error.kind == Kind::Usage && error.message.ends_with(why),
            "{url}: {error}"
        );
    }
}

#[test]
fn tair_urls_are_parsed() {
    let find = |url| find(Some(url), &[("DLOCK_PASSWORD", "pw")], "");
    let tair = |url| options::<TairOptions>(find(url).unwrap());
    let options = tair("tairs://ana@h:6380/3?mode=version&retry_delay=50ms&cacert=/ca.pem");
    assert_eq!(options.redacted_url(), "tairs://h:6380/3?mode=version");
    assert_eq!(
        (options.retry_delay, options.server.user.as_deref()),
        (Duration::from_millis(50), Some("ana"))
    );
    assert_eq!(tair("tair://h").redacted_url(), "tair://h:6379");
    for (url, why) in [
        ("tair://h?mode=lease", "mode: it can't be \"lease\""),
        ("tair://h1,h2", "it names more than one server"),
        ("tair://h?replicas=1", "this backend has no replicas"),
        ("redlock://r1,r2,r3?mode=plain", "this backend has no mode"),
    ] {
        let error = find(url).unwrap_err();
        assert!(
            error.kind == Kind::Usage && error.message.ends_with(why),
            "{url}: {error}"
        );
    }
}

#[test]
fn a_name_selects_its_table_in_the_file() {
    let file = "backend = 'prod'\nnamespace = 'top'\n[backends.prod]\nurl = 'redis://u:in-url@r1'\ndb = 4\nnamespace = 'apps'\n[backends.b]\nurl = 'redis://r2'\npassword = 'beside'\n";
    let target = find(None, &[], file).unwrap();
    assert_eq!(target.name.as_deref(), Some("prod"));
    let options = redis_of(target);
    assert_eq!(
        (options.db, options.password, options.namespace.as_str()),
        (4, Some(Secret::new("in-url")), "apps")
    );
    let options = redis_of(find(Some("b"), &[], file).unwrap());
    assert_eq!(options.password, Some(Secret::new("beside")));
    let options = redis_of(find(Some("b"), &[("DLOCK_PASSWORD", "nearer")], file).unwrap());
    assert_eq!(options.password, Some(Secret::new("nearer")));
}

#[test]
fn a_command_of_the_configuration_prints_a_password() {
    let prod = "[backends.a]\nurl = 'redis+sentinel://s1/m'\npassword_command = 'vault one'\nsentinel_password_command = \"vault 'two three'\"\n";
    let secret = |words: &[&str]| {
        Secret::command(
            words.iter().map(ToString::to_string).collect(),
            Duration::from_secs(5),
        )
    };
    let options = redis_of(find(Some("a"), &[], prod).unwrap());
    let RedisServer::Sentinel(sentinel) = options.server else {
        panic!("no sentinel")
    };
    assert_eq!(
        (options.password, sentinel.password),
        (
            Some(secret(&["vault", "one"])),
            Some(secret(&["vault", "two three"]))
        )
    );
    for (more, setting) in [
        (
            "password_file = '/hunter2'",
            "c.toml:3: password_command: password_file and",
        ),
        (
            "password = 'hunter2'",
            "c.toml:3: password_command: password and",
        ),
        (
            "sentinel_password_file = '/hunter2'",
            "c.toml:4: sentinel_password_command: sentinel_password_file and",
        ),
        (
            "sentinel_password = 'hunter2'",
            "c.toml:4: sentinel_password_command: sentinel_password and",
        ),
    ] {
        let error = find(Some("a"), &[], &format!("{prod}{more}")).unwrap_err();
        assert!(
            error.to_string().starts_with(setting) && !error.to_string().contains("hunter2"),
            "{error}"
        );
    }
    let error = find(
        Some("b"),
        &[],
        "[backends.b]\nurl = 'redis://h'\nsentinel_password_command = 'x'",
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("this backend has no sentinel_password_command"),
        "{error}"
    );
}

#[test]
fn errors_name_their_origin_and_no_secrets() {
    let prod = "[backends.prod]\nurl = 'redis://r'\n";
    for (url, env, file, kind, start, hint) in [
        (
            Some("redis://u:hunter2@h"),
            None,
            "",
            Kind::Usage,
            "--backend: redis://u:***@h: a password on the command line",
            "put it into",
        ),
        (
            Some("reddis://h"),
            None,
            "",
            Kind::Usage,
            "--backend: reddis://h: there is no backend",
            "did you mean redis",
        ),
        (
            Some("redis1:6379"),
            None,
            "",
            Kind::Usage,
            "--backend: redis1:6379: there is no backend",
            "a URL begins with the store's scheme, as in redis://redis1:6379",
        ),
        (
            Some("db1:5432"),
            None,
            "",
            Kind::Usage,
            "--backend: db1:5432: there is no backend",
            "a URL begins with the store's scheme, as in postgres://db1:5432",
        ),
        (
            Some("mysql://u:hunter2@h"),
            None,
            "",
            Kind::Usage,
            "--backend: mysql://u:***@h: a password",
            "put it",
        ),
        (
            Some("pord"),
            None,
            prod,
            Kind::Usage,
            "--backend: no backend is named \"pord\": c.toml has no [backends.pord]",
            "did you mean prod?",
        ),
        (
            Some("redis"),
            None,
            "",
            Kind::Usage,
            "--backend: no backend is named \"redis\"",
            "a URL is meant?",
        ),
        (
            None,
            Some("redis://u:hunter2@h:x"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: redis://u:***@h:x: its port",
            "a URL is like",
        ),
        (
            None,
            Some("redis://h?tls=1"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: redis://h: there is no parameter \"tls\"",
            "did you mean ttl?",
        ),
        (
            None,
            Some("redis://h?cacert=/x"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: this backend has no cacert",
            "",
        ),
        (
            None,
            Some("redis://h/1?db=2"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: redis://h/1: the database is given twice",
            "",
        ),
        (
            None,
            Some("redis://h/x"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: redis://h/x: the database is not a number",
            "",
        ),
        (
            None,
            Some("redis://"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: redis://: it has no host",
            "",
        ),
        (
            None,
            Some("redis://ana@h"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: redis://***@h: there is a user but no password",
            "give it in",
        ),
        (
            None,
            Some("rediss://h?cert=/x"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: cert and key are the two halves",
            "",
        ),
        (
            None,
            Some("rediss://h?cacert=x"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: cacert needs an absolute path",
            "",
        ),
        (
            None,
            Some("etcd://"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: etcd://: it has no host",
            "any members",
        ),
        (
            None,
            Some("etcd://h/locks"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: etcd://h/locks: etcd URLs have no path",
            "--namespace",
        ),
        (
            None,
            Some("etcd://h?db=1"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: this backend has no db",
            "",
        ),
        (
            None,
            Some("etcd://h?cacert=/x"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: this backend has no cacert",
            "",
        ),
        (
            None,
            Some("etcd://:pw@h"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: etcd://***@h: there is a password but no user",
            "the user stands",
        ),
        (
            None,
            Some("redis://a,b"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: redis://a,b: it names more than one server",
            "",
        ),
        (
            None,
            Some("redis+sentinel://a"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: redis+sentinel://a: it doesn't name the master",
            "it is what",
        ),
        (
            None,
            Some("redis+sentinel://a/b/c"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: redis+sentinel://a/b/c: its path is no name",
            "",
        ),
        (
            None,
            Some("redis+sentinel:///m"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: redis+sentinel:///m: it has no host",
            "",
        ),
        (
            None,
            Some("redis+sentinel://a/m?sentinel_user=u"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: redis+sentinel://a/m: there is a",
            "give it in",
        ),
        (
            None,
            Some("redis+cluster://a/1"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: redis+cluster://a/1: a cluster has no databases",
            "",
        ),
        (
            None,
            Some("redis+cluster://a?db=0"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: redis+cluster://a: a cluster has no databases",
            "",
        ),
        (
            None,
            Some("redis://a?sentinel_user=u"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: this backend has no sentinel_user",
            "",
        ),
        (
            None,
            Some("redis://a?replicas=x"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: it is no number of replicas",
            "all, or 0 (none)",
        ),
        (
            None,
            Some("redis://a?replica_timeout=1s"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: replica_timeout needs replicas=all or replicas=N",
            "",
        ),
        (
            None,
            Some("redis://a?replicas=1&replica_timeout=0"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: replica_timeout: \"0\" is out of range",
            "1ms to 1m",
        ),
        (
            None,
            Some("sqlite:///a?replicas=1"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: this backend has no replicas",
            "",
        ),
        (
            None,
            Some("sqlite:relative"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: sqlite:relative: it needs the absolute path",
            "sqlite:///",
        ),
        (
            None,
            Some("sqlite://host/x"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: sqlite://host/x: a file has no host",
            "",
        ),
        (
            None,
            Some("/var/locks.db"),
            "",
            Kind::Usage,
            "DLOCK_BACKEND: /var/locks.db: it has no scheme",
            "",
        ),
        (
            None,
            None,
            "backend = 'redis://h:x'",
            Kind::Config,
            "c.toml:1: backend: redis://h:x: its port",
            "",
        ),
        (
            None,
            None,
            "backend = 'x'\n",
            Kind::Config,
            "c.toml:1: backend: no backend is named \"x\"",
            "",
        ),
        (
            Some("a"),
            None,
            "[backends.a]\nttl = 5",
            Kind::Usage,
            "--backend: [backends.a] has no url",
            "",
        ),
        (
            Some("a"),
            None,
            "[backends.a]\nurl = 'redis://h?ttl=5'\nttl = 5",
            Kind::Config,
            "c.toml:2: url: redis://h: ttl is given in the URL and outside of it",
            "",
        ),
        (
            Some("a"),
            None,
            "[backends.a]\nurl = 'sqlite:///x'\npassword = 'hunter2'",
            Kind::Config,
            "c.toml:3: password: this backend has no password",
            "",
        ),
    ] {
        let env: Vec<(&str, &str)> = env
            .map(|value| ("DLOCK_BACKEND", value))
            .into_iter()
            .collect();
        let error = find(url, &env, file).unwrap_err();
        let case = format!("{url:?} {env:?} {file:?}: {error} / {:?}", error.hint);
        assert_eq!(error.kind, kind, "{case}");
        assert!(
            error.to_string().starts_with(start)
                && error.hint.as_deref().unwrap_or_default().starts_with(hint),
            "{case}"
        );
        assert!(!error.to_string().contains("hunter2"), "{case}");
    }
}

fn postgres_of(target: Target) -> PostgresOptions {
    options(target)
}

#[test]
fn postgres_defaults_are_those_of_psql() {
    let of = |url, env: &[(&str, &str)]| postgres_of(find(Some(url), env, "").unwrap());
    let options = of(
        "postgresql://ana@db1:6000/app?sslmode=require&table=jobs.shedlock&mode=advisory&pg_key=7,-8&namespace=x",
        &[],
    );
    assert_eq!(
        options.sql.server,
        SqlServer::Tcp {
            host: "db1".into(),
            port: 6000
        }
    );
    assert_eq!(
        (options.sql.user.as_deref(), options.sql.database.as_deref()),
        (Some("ana"), Some("app"))
    );
    assert_eq!(
        (options.sql.tls, options.sql.table.as_str()),
        (TlsMode::Require, "jobs.shedlock")
    );
    assert_eq!(
        (options.sql.mode, options.advisory_key),
        (SqlMode::Advisory, Some(AdvisoryKey::Two(7, -8)))
    );
    assert_eq!(options.sql.namespace.as_str(), "x");

    let env = [
        ("PGHOST", "db2"),
        ("PGPORT", "6001"),
        ("PGUSER", "eve"),
        ("PGPASSWORD", "pw"),
        ("PGSSLMODE", "prefer"),
    ];
    let options = of("postgres:", &env);
    assert_eq!(
        options.sql.server,
        SqlServer::Tcp {
            host: "db2".into(),
            port: 6001
        }
    );
    assert_eq!(
        (options.sql.user.as_deref(), options.sql.database.as_deref()),
        (Some("eve"), Some("eve"))
    );
    assert_eq!(
        (options.sql.password, options.sql.tls),
        (Some(Secret::new("pw")), TlsMode::Prefer)
    );
    let options = of(
        "postgres://bob@db1/app",
        &[
            ("PGUSER", "eve"),
            ("PGDATABASE", "x"),
            ("DLOCK_PASSWORD", "nearer"),
            ("PGPASSWORD", "pw"),
        ],
    );
    assert_eq!(
        (options.sql.user.as_deref(), options.sql.database.as_deref()),
        (Some("bob"), Some("app"))
    );
    assert_eq!(
        (options.sql.password, options.sql.tls),
        (Some(Secret::new("nearer")), TlsMode::VerifyFull)
    );

    let options = of("postgres:///app?host=/run/pg", &[("PGPORT", "6001")]);
    assert_eq!(
        options.sql.server,
        SqlServer::Unix {
            path: "/run/pg".into(),
            port: 6001
        }
    );
    assert_eq!(of("postgres://[::1]/", &[]).sql.tls, TlsMode::Disable);
}

#[test]
fn the_url_parameter_host_is_not_the_setting_host() {
    let env = Env::default();
    let file = File::default();
    let mut layers = Layers::new(&env, &file, None);
    let globals = Globals {
        backend: Some("postgres:///app?host=/run/pg".into()),
        ..Globals::default()
    };
    resolve(&globals, &mut layers).unwrap();
    assert!(layers.get("host", None).unwrap().is_none());
}

#[test]
fn invalid_postgres_parameters_are_refused() {
    for url in [
        "postgres://a,b/app",
        "postgres://a/app?host=/run",
        "postgres://a/app?db=3",
        "postgres://a/app?sslmode=maybe",
        "postgres://a/app?table=a;b",
        "postgres://a/app?table=A",
        "postgres://a/app?mode=leash",
        "postgres://a/app?pg_key=7",
        "postgres://a/app?mode=advisory&pg_key=x",
        "postgres://a/app?sslcert=/x",
        "postgres://a/app?sslrootcert=/x&cacert=/y",
        "redis://a?table=x",
        "redis://a?host=/x",
    ] {
        let error = find(Some(url), &[], "").unwrap_err();
        assert_eq!(error.kind, Kind::Usage, "{url}: {error}");
    }
}

fn mysql_of(target: Target) -> MysqlOptions {
    options(target)
}

#[test]
fn mysql_defaults_are_those_of_its_clients() {
    // Not below /tmp, which may be in memory, where modes are not checked.
    let home = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let file = home.path().join(".my.cnf");
    std::fs::write(&file, "[client]\nuser = ana\npassword = 'fr#om file'\nhost = db1\nport = 3307\nssl-mode = REQUIRED\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let home = home.path().to_str().unwrap().to_owned();
    let of = |url, env: &[(&str, &str)]| mysql_of(find(Some(url), env, "").unwrap());
    let at_home = [("HOME", home.as_str()), ("MYSQL_PWD", "from env")];

    let options = of("mysql:///app", &at_home);
    assert_eq!(
        options.sql.server,
        SqlServer::Tcp {
            host: "db1".into(),
            port: 3307
        }
    );
    assert_eq!(
        (options.sql.user.as_deref(), options.sql.password),
        (Some("ana"), Some(Secret::new("fr#om file")))
    );
    assert_eq!(options.sql.tls, TlsMode::Require);
    // The file's password belongs to another user.
    assert_eq!(
        of("mysql://bob@db2/app", &at_home).sql.password,
        Some(Secret::new("from env"))
    );
    assert_eq!(
        of(
            "mysql://bob@db2/app",
            &[("DLOCK_PASSWORD", "nearer"), ("MYSQL_PWD", "x")]
        )
        .sql
        .password,
        Some(Secret::new("nearer"))
    );

    let options = of(
        "mariadb://ana@db1:3310/app?ssl-mode=verify_ca&ssl-ca=/ca.pem&table=jobs.shedlock&mode=advisory&lock_name=raw",
        &[],
    );
    assert_eq!(
        (options.sql.tls, options.sql.files.ca_file),
        (TlsMode::VerifyCa, Some("/ca.pem".into()))
    );
    assert_eq!(
        (
            options.sql.table.as_str(),
            options.sql.mode,
            options.raw_names
        ),
        ("jobs.shedlock", SqlMode::Advisory, true)
    );
    assert_eq!(
        of("mysql://db1/app", &[]).sql.tls,
        TlsMode::VerifyFull,
        "over a network"
    );
    assert_eq!(of("mysql://127.0.0.1/app", &[]).sql.tls, TlsMode::Disable);
    let options = of("mysql:///app?socket=/run/m.sock&single_writer=yes", &[]);
    assert_eq!(
        (options.sql.server, options.single_writer),
        (
            SqlServer::Unix {
                path: "/run/m.sock".into(),
                port: 3306
            },
            true
        )
    );

    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let error = find(Some("mysql:///app"), &at_home, "").unwrap_err();
    assert!(
        error.kind == Kind::Config && error.hint.unwrap_or_default().starts_with("chmod 600"),
        "{}",
        error.message
    );
}

#[test]
fn invalid_mysql_parameters_are_refused() {
    for url in [
        "mysql://a,b/app",
        "mysql://a/",
        "mysql://a/app?socket=/run/m.sock",
        "mysql://a/app?db=3",
        "mysql://a/app?ssl-mode=maybe",
        "mysql://a/app?sslmode=require",
        "mysql://a/app?table=a`b",
        "mysql://a/app?mode=leash",
        "mysql://a/app?lock_name=raw",
        "mysql://a/app?ssl-cert=/x",
        "mysql://a/app?ssl-ca=/x&cacert=/y",
        "mysql:///app?socket=m.sock",
        "postgres://a/app?single_writer=yes",
    ] {
        assert_eq!(
            find(None, &[("DLOCK_BACKEND", url)], "").unwrap_err().kind,
            Kind::Usage,
            "{url}"
        );
    }
}

#[test]
fn the_sources_of_a_password_concern_only_stores_with_a_login() {
    let file = "password_file = '/etc/x'\npassword_command = 'y'\n";
    find(Some("sqlite:///x"), &[], file).unwrap();
    let error = find(Some("redis://h"), &[], file).unwrap_err();
    assert!(error.message.contains("two sources"), "{error}");
}
