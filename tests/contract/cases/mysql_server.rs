//! Cases that change a MariaDB server: its clock is stepped, it is a node of a Galera cluster, or
//! other sessions deadlock with ours.

use std::{path::PathBuf, time::Duration};

use dlock::{
    backends::{
        mysql::{MysqlOptions, backend},
        sql::{SqlMode, SqlServer},
    },
    lease::{self, BootClock, Limits, Outcome, Released, WaitPolicy},
    lock::{Backend, Effect, Kind as ErrorKind, Release, Renewal, Request, Scope},
};

use super::{Case, cases};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, nested, request, short, soon, waiting},
    support::{
        self,
        mariadb::{self, MariaDb},
    },
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![|kind| kind.is_mysql_lease() =>
        a_mysql_clock_that_is_set_back_repeats_no_fence,
        a_mysql_clock_that_is_set_forward_ends_leases,
        a_lock_released_in_mysql_is_free_whatever_its_clock,
        leaving_the_queue_survives_a_deadlock,
        login_methods_work_or_are_named,
    ];
    all.extend(cases![|kind| matches!(kind, Kind::MariadbRow | Kind::MysqlRow) => a_deadlock_in_a_release_still_frees_the_lock]);
    all.extend(cases![|kind| kind.speaks_mysql() && kind.held_by_session() => mysql_sessions_do_not_depend_on_the_clock]);
    all.extend(cases![Kind::speaks_mysql =>
        a_galera_node_is_refused_unless_it_is_the_only_writer,
        wsrep_on_without_a_library_is_no_cluster,
        rows_locked_by_another_session_are_retried,
    ]);
    all
}

/// Returns the options of a client on the case's own server.
fn on(lab: &Lab, server: &MariaDb) -> MysqlOptions {
    let mut options = lab.mysql_options("dlock");
    options.sql.server = SqlServer::Tcp {
        host: "127.0.0.1".into(),
        port: server.port,
    };
    options.sql.database = Some("app".into());
    options
}

async fn client(options: &MysqlOptions) -> Client {
    let mut client = Client(backend(options.clone()));
    client.0.init().await.expect("init");
    client
}

/// A server whose clock follows a file.
struct Stepped {
    server: MariaDb,
    offset: PathBuf,
    _folder: tempfile::TempDir,
    options: MysqlOptions,
}

impl Stepped {
    fn start(lab: &Lab, test: &str) -> Option<Self> {
        let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
        if !std::path::Path::new(library).exists() {
            support::skip(test, "faketime is not installed");
            return None;
        }
        let folder = support::folder();
        let offset = folder.path().join("offset");
        std::fs::write(&offset, "+0").expect("offset");
        let environment = vec![
            ("LD_PRELOAD", library.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", offset.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        let server = MariaDb::with(mariadb::Options {
            environment,
            ..Default::default()
        });
        server.sql("mysql", "CREATE DATABASE app");
        let options = on(lab, &server);
        Some(Self {
            server,
            offset,
            _folder: folder,
            options,
        })
    }

    /// Sets the clock off by this many seconds from the real time.
    fn step(&self, offset: &str) {
        let before: i64 = self
            .server
            .text("mysql", "SELECT UNIX_TIMESTAMP()")
            .parse()
            .expect("a time");
        std::fs::write(&self.offset, offset).expect("offset");
        let after: i64 = self
            .server
            .text("mysql", "SELECT UNIX_TIMESTAMP()")
            .parse()
            .expect("a time");
        assert!(
            after.abs_diff(before) > 1000,
            "the clock did not move: {before} {after}"
        );
    }

    async fn client(&self) -> Client {
        client(&self.options).await
    }
}

async fn a_mysql_clock_that_is_set_back_repeats_no_fence(lab: &Lab) {
    let Some(stepped) = Stepped::start(lab, "a_mysql_clock_that_is_set_back_repeats_no_fence")
    else {
        return;
    };
    let (mut a, mut b) = (stepped.client().await, stepped.client().await);
    let job = key("job");
    let held = request(&job, LONG);
    let first = a.take(&held).await.fence;
    stepped.step("-3600");
    // The lease lasts longer, and no other client gets the lock.
    b.refused(&request(&job, LONG)).await;
    assert!(a.left(&job).await > LONG * 50);
    assert!(matches!(a.renew(&held, None).await, Renewal::Kept { .. }));
    a.free(&held).await;
    let second = b.take(&request(&job, LONG)).await.fence;
    assert!(second > first, "{second} after {first}");
}

async fn a_mysql_clock_that_is_set_forward_ends_leases(lab: &Lab) {
    let Some(stepped) = Stepped::start(lab, "a_mysql_clock_that_is_set_forward_ends_leases") else {
        return;
    };
    let (mut a, mut b) = (stepped.client().await, stepped.client().await);
    let job = key("job");
    let held = request(&job, LONG);
    let first = a.take(&held).await.fence;
    stepped.step("+3600");
    // The early end breaks no promise: the resource has to check the fence.
    let second = b.take(&request(&job, LONG)).await.fence;
    assert!(second > first, "{second} after {first}");
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
}

/// A free lock must not look held until the clock has caught up, to ShedLock neither.
async fn a_lock_released_in_mysql_is_free_whatever_its_clock(lab: &Lab) {
    let Some(stepped) = Stepped::start(lab, "a_lock_released_in_mysql_is_free_whatever_its_clock")
    else {
        return;
    };
    let mut a = stepped.client().await;
    let (job, tree) = (key("job"), key("tree"));
    let held = a.hold(&job).await;
    a.free(&held).await;
    let outer = a.hold(&tree).await;
    a.take(&nested(&outer)).await;
    assert_eq!(a.release(&outer, Scope::Tree).await, Release::Released);
    stepped.step("-3600");
    for job in [&job, &tree] {
        assert!(a.inspect(job).await.holders.is_empty(), "{job}");
        let held = a.hold(job).await;
        a.free(&held).await;
    }
    stepped.step("-7200");
    let taken = stepped.server.sql(
        "app",
        "UPDATE dlock SET lock_until = TIMESTAMPADD(MICROSECOND, 30000000, UTC_TIMESTAMP(3)), locked_at = UTC_TIMESTAMP(3), locked_by = 'web7' \
         WHERE lock_until <= UTC_TIMESTAMP(3); SELECT ROW_COUNT()",
    );
    assert_eq!(taken[0][0], "2", "ShedLock did not get released locks");
}

/// A session has the lock, and the kernel's own clocks determine when the session ends.
async fn mysql_sessions_do_not_depend_on_the_clock(lab: &Lab) {
    let Some(stepped) = Stepped::start(lab, "mysql_sessions_do_not_depend_on_the_clock") else {
        return;
    };
    let (mut a, mut b) = (stepped.client().await, stepped.client().await);
    let job = key("job");
    let held = request(&job, LONG);
    let mut last = a.take(&held).await.fence;
    for offset in ["-3600", "+3600", "-7200"] {
        stepped.step(offset);
        assert_eq!(a.renewed(&held, None).await, last, "{offset}");
        b.refused(&request(&job, LONG)).await;
        // libfaketime reads its file at each query of the time, and now and then a thread gets the
        // true time instead.
        let mut seen = Vec::new();
        while seen.len() < 5
            && !seen
                .last()
                .is_some_and(|left| *left > LONG / 2 && *left <= LONG)
        {
            seen.push(a.left(&job).await);
        }
        assert!(
            seen.last()
                .is_some_and(|left| *left > LONG / 2 && *left <= LONG),
            "{offset}: {seen:?}"
        );
    }
    a.free(&held).await;
    for offset in ["+3600", "-3600"] {
        let (held, wanted) = (request(&job, LONG), waiting(&job, LONG));
        let fence = a.take(&held).await.fence;
        assert!(fence > last, "{fence} after {last}");
        // Whatever happened to the wait in the server.
        let never = std::future::pending::<()>();
        let take = lease::acquire(
            &mut *b.0,
            &BootClock,
            wanted,
            WaitPolicy::For(LONG),
            Limits::DEFAULT,
            never,
            |_| {},
        );
        let step = async {
            lab.pass(short()).await;
            stepped.step(offset);
            lab.pass(short()).await;
            a.free(&held).await;
        };
        let (outcome, ()) = tokio::join!(take, step);
        let Ok(Outcome::Granted(lease)) = outcome else {
            panic!("{offset}: {outcome:?}")
        };
        assert!(lease.fence > fence);
        last = lease.fence;
        assert_eq!(
            b.0.release(&job, &lease.token, &Scope::Tree.into())
                .await
                .expect("release"),
            Release::Released
        );
    }
}

/// A server with `wsrep_on` and no cluster library is no cluster node.
async fn wsrep_on_without_a_library_is_no_cluster(lab: &Lab) {
    let server = MariaDb::with(mariadb::Options {
        settings: vec!["--wsrep-on=ON".into(), "--binlog-format=ROW".into()],
        ..Default::default()
    });
    assert_eq!(server.text("mysql", "SELECT @@global.wsrep_on"), "1");
    server.sql("mysql", "CREATE DATABASE app");
    let mut a = client(&on(lab, &server)).await;
    let held = a.hold(&key("job")).await;
    a.free(&held).await;
}

async fn a_galera_node_is_refused_unless_it_is_the_only_writer(lab: &Lab) {
    if !std::path::Path::new(mariadb::GALERA).exists() {
        return support::skip(
            "a_galera_node_is_refused_unless_it_is_the_only_writer",
            "galera-4 is not installed",
        );
    }
    let server = MariaDb::with(mariadb::Options {
        cluster: true,
        ..Default::default()
    });
    assert_eq!(
        server.text("mysql", "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'wsrep_ready'"),
        "ON"
    );
    server.sql("mysql", "CREATE DATABASE app");
    let mut options = on(lab, &server);
    let (job, mut a) = (key("job"), Client(backend(options.clone())));
    let mut errors = Vec::new();
    errors.extend(a.0.init().await.err());
    errors.extend(a.0.try_acquire(&request(&job, LONG)).await.err());
    errors.extend(a.0.inspect(&job).await.err());
    assert_eq!(errors.len(), 3);
    for error in errors {
        assert_eq!(
            (error.kind, error.effect),
            (ErrorKind::Config, Effect::NotApplied),
            "{error:?}"
        );
        assert!(
            error.message.contains("Galera")
                && error
                    .hint
                    .as_deref()
                    .is_some_and(|hint| hint.contains("single_writer")),
            "{error:?}"
        );
    }
    options.single_writer = true;
    let (mut a, mut b) = (client(&options).await, Client(backend(options.clone())));
    if options.sql.mode == SqlMode::Advisory {
        let error =
            a.0.try_acquire(&request(&job, LONG))
                .await
                .expect_err("GET_LOCK on a cluster");
        assert_eq!(
            (error.kind, error.effect),
            (ErrorKind::Config, Effect::NotApplied),
            "{error:?}"
        );
        assert!(
            error
                .hint
                .as_deref()
                .is_some_and(|hint| hint.contains("mode=lease")),
            "{error:?}"
        );
        return;
    }
    assert!(a.0.notices().iter().all(|notice| !notice.warning));
    let held = a.hold(&job).await;
    b.refused(&request(&job, LONG)).await;
    a.renewed(&held, None).await;
    assert_eq!(a.inspect(&job).await.holders.len(), 1);
    let never = std::future::pending::<()>();
    let next = lease::acquire(
        &mut *b.0,
        &BootClock,
        waiting(&job, LONG),
        WaitPolicy::For(LONG),
        Limits::DEFAULT,
        never,
        |_| {},
    );
    let free = async {
        lab.pass(SLACK * 3).await;
        a.free(&held).await;
        std::time::Instant::now()
    };
    let (outcome, freed) = tokio::join!(next, free);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    // Leases use no advisory lock on a cluster, so waiters poll.
    assert!(freed.elapsed() < soon(), "{:?}", freed.elapsed());
}

/// Renews as the core does, within the time that `--backend-timeout` allows.
async fn through_the_core(client: &mut Client, held: &Request) -> Renewal {
    let question =
        async |backend: &mut dyn Backend| backend.renew(&held.key, &held.token, None.into()).await;
    lease::ask(
        &mut *client.0,
        &BootClock,
        Limits::DEFAULT,
        ("ask", None),
        question,
    )
    .await
    .expect("an answer")
}

/// Another session locks our row or the whole table: each request is repeated until it is answered.
async fn rows_locked_by_another_session_are_retried(lab: &Lab) {
    let table = "dlock";
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let before = a.hold(&job).await;
    a.free(&before).await;
    for keeps in [
        format!("START TRANSACTION; SELECT 1 FROM {table} WHERE name = 'dlock:job' FOR UPDATE"),
        format!("LOCK TABLES {table} WRITE"),
    ] {
        let blocked = || {
            let kept = lab.mariadb().keep(&keeps);
            async {
                // A statement waits for a second, and is repeated.
                lab.pass(Duration::from_millis(1500)).await;
                drop(kept);
            }
        };
        let wanted = request(&job, LONG);
        let never = std::future::pending::<()>();
        let take = lease::acquire(
            &mut *a.0,
            &BootClock,
            wanted.clone(),
            WaitPolicy::Try,
            Limits::DEFAULT,
            never,
            |_| {},
        );
        let (outcome, ()) = tokio::join!(take, blocked());
        let Ok(Outcome::Granted(lease)) = outcome else {
            panic!("{keeps}: {outcome:?}")
        };
        let held = Request {
            token: lease.token,
            ..wanted
        };
        b.refused(&request(&job, LONG)).await;
        let (renewal, ()) = tokio::join!(through_the_core(&mut a, &held), blocked());
        assert!(
            matches!(renewal, Renewal::Renewed { fence, .. } if fence == lease.fence),
            "{keeps}: {renewal:?}"
        );
        let info = Scope::Tree.into();
        let give = lease::release(
            &mut *a.0,
            &BootClock,
            &job,
            &held.token,
            &info,
            Limits::DEFAULT,
        );
        let (released, ()) = tokio::join!(give, blocked());
        assert!(matches!(released, Released::Free), "{keeps}: {released:?}");
        let next = b.hold(&job).await;
        b.free(&next).await;
    }
}

/// Starts another session that locks `first`, then waits for `second`. Its transaction has written
/// more than ours, so the server rolls ours back.
fn deadlocking(lab: &Lab, first: &str, second: &str) -> std::thread::JoinHandle<Vec<Vec<String>>> {
    lab.mariadb()
        .sql("CREATE TABLE IF NOT EXISTS ballast (n INT)");
    let sql = format!(
        "START TRANSACTION; INSERT INTO ballast WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 1000) SELECT n FROM s; SELECT 1 FROM {first} FOR UPDATE; DO SLEEP(1); \
         SELECT 1 FROM {second} FOR UPDATE; ROLLBACK; SELECT 'done'"
    );
    let (socket, database) = (lab.mariadb().server.socket(), lab.mariadb().name.clone());
    std::thread::spawn(move || {
        mariadb::sql_at(&socket, &database, &sql)
            .expect("the server rolls back our transaction, not this one")
    })
}

/// The release is part of the transaction that has the lock, so the server's rollback releases the
/// lock too.
async fn a_deadlock_in_a_release_still_frees_the_lock(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let other = deadlocking(
        lab,
        "dlock WHERE name = 'dlock:job'",
        "dlock_rows WHERE name = 'dlock:job'",
    );
    // By then the other session waits for our row.
    lab.pass(short() + SLACK * 2).await;
    let released = lease::release(
        &mut *a.0,
        &BootClock,
        &job,
        &held.token,
        &Scope::Tree.into(),
        Limits::DEFAULT,
    )
    .await;
    assert!(matches!(released, Released::Free), "{released:?}");
    assert_eq!(
        other
            .join()
            .expect("the other session")
            .last()
            .expect("an answer")[0],
        "done"
    );
    let next = b.hold(&job).await;
    b.free(&next).await;
}

/// A waiter that leaves the queue deletes more than one row.
async fn leaving_the_queue_survives_a_deadlock(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let mut waiters = Vec::new();
    for _ in 0..2 {
        let (mut client, wanted) = (lab.client().await, waiting(&job, LONG));
        client.refused(&wanted).await;
        waiters.push((wanted.token.hold_text(), client, wanted));
    }
    waiters.sort_by(|one, other| one.0.cmp(&other.0));
    let row = |n: usize| {
        format!(
            "dlock_waiters WHERE name = 'dlock:job' AND hold = '{}'",
            waiters[n].0
        )
    };
    let other = deadlocking(lab, &row(1), &row(0));
    lab.pass(short() / 2).await;
    let (_, mut first, wanted) = waiters.remove(0);
    let error = first.0.leave_queue(&wanted).await.expect_err("a deadlock");
    assert!(
        error.is_transient() && error.message.contains("deadlock"),
        "{error:?}"
    );
    assert_eq!(
        other
            .join()
            .expect("the other session")
            .last()
            .expect("an answer")[0],
        "done"
    );
    first.leave_queue(&wanted).await;
    assert_eq!(a.inspect(&job).await.waiters.len(), 1);
    a.free(&held).await;
    let (_, mut second, wanted) = waiters.remove(0);
    second.wait_for(&wanted, LONG).await;
    second.free(&wanted).await;
    assert!(a.inspect(&job).await.waiters.is_empty());
}

async fn login_methods_work_or_are_named(lab: &Lab) {
    let server = MariaDb::with(mariadb::Options {
        settings: vec!["--plugin-load-add=auth_ed25519".into()],
        ..Default::default()
    });
    let me = std::process::Command::new("id")
        .arg("-un")
        .output()
        .expect("id, of coreutils")
        .stdout;
    let me = String::from_utf8(me).expect("a name").trim().to_owned();
    server.sql(
        "mysql",
        &format!(
            "CREATE DATABASE app; CREATE USER native IDENTIFIED BY 's3cret'; CREATE USER ed IDENTIFIED VIA ed25519 USING PASSWORD('s3cret'); \
             CREATE USER IF NOT EXISTS '{me}'@localhost; ALTER USER '{me}'@localhost IDENTIFIED VIA unix_socket; GRANT ALL ON app.* TO native, ed, '{me}'@localhost"
        ),
    );
    let with = |user: &str| {
        let mut options = on(lab, &server);
        options.sql.user = Some(user.into());
        options.sql.password = Some(dlock::backends::Secret::new("s3cret"));
        options
    };
    let mut a = client(&with("native")).await;
    let held = a.hold(&key("job")).await;
    let mut local = with(&me);
    (local.sql.password, local.sql.server) = (
        None,
        SqlServer::Unix {
            path: server.socket(),
            port: server.port,
        },
    );
    client(&local)
        .await
        .refused(&request(&key("job"), LONG))
        .await;
    a.free(&held).await;
    let error = backend(with("ed"))
        .try_acquire(&request(&key("job"), LONG))
        .await
        .expect_err("an unknown login method");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Config, Effect::NotApplied),
        "{error:?}"
    );
    assert!(
        error.message.contains("client_ed25519") && !error.message.contains("sqlx"),
        "{error:?}"
    );
    assert!(
        error
            .hint
            .as_deref()
            .is_some_and(|hint| hint.contains("ALTER USER")),
        "{error:?}"
    );
}
