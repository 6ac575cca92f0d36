//! A full disk under real SQL servers. No lock is granted that can't be written, a command is dead
//! before its lease can end, and locks work again once the disk has space.

use std::{
    fs,
    time::{Duration, Instant},
};

use dlock::{
    backends::{
        mysql, postgres,
        sql::{self, SqlServer},
    },
    lock::{Attempt, Backend, Key, Kind, Request, Ttl},
};
use rustix::process::Signal;

use crate::{
    support::{
        self,
        disk::Disk,
        dlock::run,
        mariadb::{self, MariaDb},
        must,
        postgres::{self as pg, Postgres},
        process::{self, Process},
    },
    world::{LIMIT, TTL, World},
};

/// Returns the disk, or `None` and a skip note if no disk can be made.
fn make(test: &str, size: &str) -> Option<Disk> {
    Disk::make(size)
        .map_err(|why| support::skip(test, &why))
        .ok()
}

/// No commit finishes while the server can't write its binary log. The server checks for space once
/// a minute.
fn a_full_binary_log_disk_stops_the_holder(test: &str, parameters: &str) {
    if let Some(why) = mariadb::missing() {
        return support::skip(test, &why);
    }
    let Some(disk) = make(test, "1m") else { return };
    let settings = vec![
        format!("--log-bin={}", disk.path("binlog").display()),
        "--binlog-format=ROW".into(),
        "--sync-binlog=1".into(),
    ];
    let server = MariaDb::with(mariadb::Options {
        durable: true,
        settings,
        ..Default::default()
    });
    server.sql(
        "mysql",
        "CREATE DATABASE app; CREATE TABLE app.ballast (it LONGBLOB)",
    );
    let url = format!("{}?ssl-mode=DISABLED{parameters}", server.url("app"));
    assert_eq!(run(&url, &["init"]).code(), 0);
    let world = World::new(url);
    let first = world.first();
    disk.fill();
    let mut command = process::command("mariadb");
    command
        .args(["--no-defaults", "--user", mariadb::USER, "--socket"])
        .arg(server.socket());
    command.args([
        "--execute",
        "INSERT INTO app.ballast VALUES (REPEAT('x', 100000))",
    ]);
    let _stuck = Process::collect(command);
    must("no commit finishes", LIMIT, || {
        server.log().contains("Disk is full writing")
    });
    let began = Instant::now();
    let mut code = 76;
    if parameters.contains("row") {
        // The transaction holds the lock, and verifying the hold writes nothing.
        std::thread::sleep(TTL * 2);
        assert!(!world.tree().is_empty());
        code = 128 + Signal::KILL.as_raw();
    } else {
        must("the tree is dead", LIMIT, || world.tree().is_empty());
        assert!(
            began.elapsed() < support::beyond_stalls(TTL),
            "{:?}",
            began.elapsed()
        );
    }
    let took = began.elapsed();
    let refused = world
        .start(
            &["--backend-timeout", "2s"],
            &format!("touch {}", world.path("ran").display()),
        )
        .wait(LIMIT);
    assert!(
        matches!(refused.code(), 69 | 75),
        "{}: {}",
        refused.code(),
        refused.stderr
    );
    assert!(!world.path("ran").exists());
    if code != 76 {
        // The command ignores TERM.
        first.signal(Signal::TERM);
    }
    let first = first.wait(LIMIT);
    assert_eq!(first.code(), code, "{}", first.stderr);
    disk.free();
    let began = Instant::now();
    must("runs work again", Duration::from_secs(100), || {
        world
            .start(&["--backend-timeout", "2s"], "exit 7")
            .wait(LIMIT)
            .code()
            == 7
    });
    support::say(&format!(
        "{test}: the command ended with {code}, {took:.1?} after the disk was full, with a lease of {TTL:?}; it worked again {:.0?} after \
         there was room",
        began.elapsed()
    ));
    world.second();
    world.assert_gone();
    world.assert_free();
}

#[test]
fn mariadb_with_a_full_binary_log_disk() {
    a_full_binary_log_disk_stops_the_holder("mariadb_with_a_full_binary_log_disk", "");
}

#[test]
fn mariadb_row_with_a_full_binary_log_disk() {
    a_full_binary_log_disk_stops_the_holder("mariadb_row_with_a_full_binary_log_disk", "&mode=row");
}

#[test]
fn mariadb_advisory_with_a_full_binary_log_disk() {
    a_full_binary_log_disk_stops_the_holder(
        "mariadb_advisory_with_a_full_binary_log_disk",
        "&mode=advisory",
    );
}

fn request(key: &str) -> Request {
    Request {
        detached: true,
        ..Request::new(
            Key::new(key).unwrap(),
            Ttl::new(Duration::from_secs(60)).unwrap(),
        )
    }
}

/// Takes locks of new keys until the table has no space for another row, and returns the refused
/// key.
fn fill_the_table(mut backend: Box<dyn Backend>) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        for n in 0..20_000 {
            let key = format!("lock-{n:05}-{}", "x".repeat(150));
            match backend.try_acquire(&request(&key)).await {
                Ok(Attempt::Granted(_)) => {}
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    assert_eq!(error.kind, Kind::Unavailable, "{error:?}");
                    assert!(error.message.contains("disk is full"), "{error:?}");
                    return key;
                }
            }
        }
        panic!("the table never filled up");
    })
}

/// When the tables can't grow, a new key can't be locked, but an existing hold goes on.
fn full_tables_refuse_only_new_keys(test: &str, disk: &Disk, url: &str, backend: Box<dyn Backend>) {
    assert_eq!(run(url, &["init"]).code(), 0);
    let world = World::new(url.to_owned());
    let ready = world.path("go");
    let job = world.start(
        &["--ttl", "4s"],
        &format!("while [ ! -e {} ]; do sleep 0.05; done", ready.display()),
    );
    must("the lock is held", LIMIT, || !world.is_free());
    disk.fill();
    let key = fill_the_table(backend);
    let (ran, acquire) = (
        world.path("ran").display().to_string(),
        ["run", "-k", &key, "--backend-timeout", "2s", "--", "touch"],
    );
    let refused = run(url, &[&acquire[..], &[&ran]].concat());
    assert_eq!(refused.code(), 69, "{}", refused.stderr);
    assert!(!world.path("ran").exists());
    support::say(&format!("{test}: {}", refused.stderr.trim()));
    // Longer than the lease: renewals need no space.
    std::thread::sleep(Duration::from_secs(5));
    fs::write(ready, "").unwrap();
    let job = job.wait(LIMIT);
    assert_eq!(job.code(), 0, "{}", job.stderr);
    disk.free();
    let granted = run(url, &[&acquire[..], &[&ran]].concat());
    assert_eq!(granted.code(), 0, "{}", granted.stderr);
    assert!(world.path("ran").exists());
    world.assert_free();
}

fn at(port: u16, user: &str, database: &str) -> sql::SqlOptions {
    let mut options = sql::SqlOptions::new(SqlServer::Tcp {
        host: "127.0.0.1".into(),
        port,
    });
    (options.user, options.database) = (Some(user.into()), Some(database.into()));
    options
}

#[test]
fn mariadb_with_full_tables() {
    let test = "mariadb_with_full_tables";
    if let Some(why) = mariadb::missing() {
        return support::skip(test, &why);
    }
    let Some(disk) = make(test, "2m") else { return };
    let server = MariaDb::durable();
    // A MariaDB database is a directory, which can be on another disk.
    fs::create_dir(disk.path("app")).unwrap();
    std::os::unix::fs::symlink(disk.path("app"), server.data().join("app")).unwrap();
    let mut options = mysql::MysqlOptions::new(SqlServer::Tcp {
        host: "127.0.0.1".into(),
        port: server.port,
    });
    options.sql = at(server.port, mariadb::USER, "app");
    full_tables_refuse_only_new_keys(
        test,
        &disk,
        &format!("{}?ssl-mode=DISABLED", server.url("app")),
        mysql::backend(options),
    );
    drop(server);
}

#[test]
fn postgres_with_full_tables() {
    let test = "postgres_with_full_tables";
    if let Some(why) = pg::missing() {
        return support::skip(test, &why);
    }
    let Some(disk) = make(test, "2m") else { return };
    let server = Postgres::with(pg::Options {
        durable: true,
        ..Default::default()
    });
    fs::create_dir(disk.path("space")).unwrap();
    pg::give(disk.folder());
    server.sql(
        pg::USER,
        &format!(
            "CREATE TABLESPACE space LOCATION '{}'",
            disk.path("space").display()
        ),
    );
    server.sql(
        pg::USER,
        "ALTER ROLE postgres SET default_tablespace = 'space'",
    );
    let mut options = postgres::PostgresOptions::new(SqlServer::Tcp {
        host: "127.0.0.1".into(),
        port: server.port,
    });
    options.sql = at(server.port, pg::USER, "postgres");
    full_tables_refuse_only_new_keys(
        test,
        &disk,
        &format!("{}?sslmode=disable", server.url("postgres")),
        postgres::backend(options),
    );
    drop(server);
}

/// The command fills the disk of the store to the last page.
#[test]
fn sqlite_records_a_success_on_a_full_disk() {
    let Some(disk) = make("sqlite_records_a_success_on_a_full_disk", "400k") else {
        return;
    };
    let url = format!("sqlite://{}", disk.path("locks.db").display());
    let fill = format!(
        "dd if=/dev/zero of='{}' bs=4k 2>/dev/null; echo charged",
        disk.path("ballast").display()
    );
    let once = |script: &str| {
        support::dlock::run(
            &url,
            &[
                "run", "-k", "order", "--once", "--keep", "1d", "--ttl", "6s", "-c", script,
            ],
        )
    };
    let first = once(&fill);
    assert_eq!(
        (first.code(), first.stdout.as_str(), first.stderr.as_str()),
        (0, "charged\n", "")
    );
    disk.free();
    let again = once("echo charged");
    assert_eq!(
        (again.code(), again.stdout.as_str()),
        (75, ""),
        "{}",
        again.stderr
    );
    let history = support::dlock::run(&url, &["history", "order"]).stdout;
    assert!(
        history.lines().any(|line| line.trim_end().ends_with(" ok"))
            && !history.contains("EXPIRED"),
        "{history}"
    );
}

/// On a full disk, SQLite rolls a transaction back by itself. The next request must not fail
/// because of that.
#[test]
fn sqlite_recovers_once_the_disk_has_space() {
    let Some(disk) = make("sqlite_recovers_once_the_disk_has_space", "400k") else {
        return;
    };
    let world = World::new(format!("sqlite://{}", disk.path("locks.db").display()));
    for kind in [&[][..], &["--fair"], &["--permits", "1"]] {
        let first = world.start(kind, "sleep 1.5");
        must("the lock is held", LIMIT, || {
            world.inspect().stdout.contains("\"fence\"")
        });
        let waiters: Vec<_> = (0..4)
            .map(|_| world.start(&[kind, &["-w", "60"]].concat(), "true"))
            .collect();
        disk.fill();
        std::thread::sleep(Duration::from_secs(4));
        disk.free();
        let began = Instant::now();
        for waiter in waiters {
            let ended = waiter.wait(LIMIT);
            assert_eq!(ended.code(), 0, "{kind:?}: {}", ended.stderr);
        }
        let took = began.elapsed();
        assert!(
            took < support::stretched(Duration::from_secs(12)),
            "{kind:?}: {took:?}"
        );
        first.wait(LIMIT);
    }
}
