//! Cases of MySQL and MariaDB only: time zones, lost advisory locks, sessions of other clients.

use std::time::{Duration, Instant};

use dlock::{
    backends::{
        mysql::{MysqlOptions, backend},
        sql::{SqlMode, SqlServer},
    },
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{Effect, End, Kind as ErrorKind, Origin, ReleaseInfo, Request, Scope, Wake},
};

use super::{Case, cases, history::history};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, request, short, soon, stretched, waiting},
    support::{mariadb::MariaDb, proxy::Proxy},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![|kind| kind.is_mysql_lease() =>
        a_row_locked_by_another_mysql_session_is_retried,
        a_release_is_recorded_though_its_client_is_gone,
        a_granted_waiter_leaves_the_queue_though_its_client_is_gone,
        a_sessions_time_zone_does_not_matter,
        an_uncontended_acquire_is_two_round_trips,
        a_stale_advisory_lock_only_slows_a_waiter,
        a_holder_that_lost_its_session_takes_the_advisory_lock_again,
    ];
    all.extend(
        cases![|kind| kind.speaks_mysql() && kind.held_by_session() =>
            no_other_session_is_killed_after_a_restart,
        ],
    );
    all.extend(cases![|kind| matches!(kind, Kind::MariadbAdvisory | Kind::MysqlAdvisory) => other_clients_can_take_the_same_mysql_lock]);
    all.extend(cases![Kind::speaks_mysql =>
        a_read_only_mysql_is_refused,
    ]);
    all
}

async fn a_row_locked_by_another_mysql_session_is_retried(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let blocker = lab
        .mariadb()
        .keep("START TRANSACTION; SELECT 1 FROM dlock WHERE name = 'dlock:job' FOR UPDATE");
    let began = Instant::now();
    let error =
        a.0.renew(&job, &held.token, None.into())
            .await
            .expect_err("the row is locked");
    assert!(
        error.is_transient() && error.effect == Effect::NotApplied,
        "{error:?}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(2) + soon(),
        "the caller would have given up: {:?}",
        began.elapsed()
    );
    drop(blocker);
    a.renewed(&held, None).await;
    a.free(&held).await;
}

/// The server can't deliver the result of the statement that frees the row, and goes on with the
/// next one.
async fn a_release_is_recorded_though_its_client_is_gone(lab: &Lab) {
    let (job, proxy) = (key("job"), Proxy::to(lab.store().port()));
    let (mut a, mut b) = (lab.through(proxy.port), lab.client().await);
    let held = request(&job, LONG);
    let fence = a.take(&held).await.fence;
    let blocker = lab
        .mariadb()
        .keep("START TRANSACTION; SELECT 1 FROM dlock WHERE name = 'dlock:job' FOR UPDATE");
    let info = ReleaseInfo {
        end: Some(End::Exited(3)),
        ..Scope::Tree.into()
    };
    let reset = async {
        lab.pass(Duration::from_millis(200)).await;
        proxy.reset();
    };
    let (lost, ()) = tokio::join!(a.0.release(&job, &held.token, &info), reset);
    assert!(lost.is_err(), "{lost:?}");
    drop(blocker);
    let next = waiting(&job, LONG);
    b.wait_for(&next, Duration::from_millis(50)).await;
    let past = history(&mut b, &job).await.past;
    assert!(
        past.len() == 1 && past[0].fence == Some(fence) && past[0].end == End::Exited(3),
        "{past:?}"
    );
    b.free(&next).await;
}

/// Otherwise the rules would take a hold that is gone for a waiter.
async fn a_granted_waiter_leaves_the_queue_though_its_client_is_gone(lab: &Lab) {
    let (job, proxy) = (key("job"), Proxy::to(lab.store().port()));
    let (mut a, mut b) = (lab.client().await, lab.through(proxy.port));
    let held = a.hold(&job).await;
    let wanted = waiting(&job, LONG);
    b.refused(&wanted).await;
    a.free(&held).await;
    let blocker = lab
        .mariadb()
        .keep("START TRANSACTION; SELECT 1 FROM dlock WHERE name = 'dlock:job' FOR UPDATE");
    let reset = async {
        lab.pass(Duration::from_millis(200)).await;
        proxy.reset();
    };
    let (lost, ()) = tokio::join!(b.0.try_acquire(&wanted), reset);
    assert!(lost.is_err(), "{lost:?}");
    drop(blocker);
    let until = Instant::now() + soon();
    let mut state = a.inspect(&job).await;
    while state.holders.is_empty() && Instant::now() < until {
        lab.pass(Duration::from_millis(20)).await;
        state = a.inspect(&job).await;
    }
    assert_eq!(state.holders.len(), 1, "{state:?}");
    let left = lab.mariadb().sql("SELECT COUNT(*) FROM dlock_waiters");
    assert_eq!(left[0][0], "0");
}

async fn a_sessions_time_zone_does_not_matter(lab: &Lab) {
    lab.isolate();
    let mut a = lab.client().await;
    let held = a.hold(&key("job")).await;
    lab.mariadb().sql("SET GLOBAL time_zone = '+09:00'");
    let mut b = lab.client().await;
    let left = b
        .refused(&request(&key("job"), LONG))
        .await
        .expires_in
        .expect("an expiry");
    assert!(left > LONG / 2 && left <= LONG, "{left:?}");
    assert!(!lab.shedlock("dlock", "dlock:job", 30));
    a.free(&held).await;
    let held = b.hold(&key("job")).await;
    lab.mariadb().sql("SET GLOBAL time_zone = '-11:00'");
    lab.client()
        .await
        .refused(&request(&key("job"), LONG))
        .await;
    b.free(&held).await;
}

async fn an_uncontended_acquire_is_two_round_trips(lab: &Lab) {
    let proxy = Proxy::to(lab.store().port());
    let mut first = lab.through(proxy.port);
    first.hold(&key("job")).await;
    let before = proxy.requests();
    let mut a = lab.through(proxy.port);
    let held = a.hold(&key("other")).await;
    a.free(&held).await;
    let known = proxy.requests() - before;
    a.hold(&key("other")).await;
    let again = proxy.requests() - before - known;
    // The login, a query about the server, a SELECT of the missing row, its INSERT, and the
    // release.
    assert!(known <= 5, "{known} requests");
    assert_eq!(again, 1, "on an open connection, with an existing row");
}

/// A client has the advisory lock without holding or polling the lock.
async fn a_stale_advisory_lock_only_slows_a_waiter(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let mut stale = lab.client().await;
    let unwanted = waiting(&job, LONG);
    stale.refused(&unwanted).await;
    a.free(&held).await;
    assert_eq!(
        stale.wait(&unwanted, LONG).await,
        Wake::Changed,
        "the advisory lock is free"
    );
    let held = a.hold(&job).await;
    let never = std::future::pending::<()>();
    let take = lease::acquire(
        &mut *b.0,
        &BootClock,
        waiting(&job, LONG),
        WaitPolicy::For(LONG),
        Limits::DEFAULT,
        never,
        |_| {},
    );
    let release = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
        Instant::now()
    };
    let (outcome, released) = tokio::join!(take, release);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    assert!(
        released.elapsed() < stretched(Duration::from_secs(6)),
        "{:?}",
        released.elapsed()
    );
}

async fn a_holder_that_lost_its_session_takes_the_advisory_lock_again(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    for id in lab.sessions() {
        lab.mariadb().sql(&format!("KILL {id}"));
    }
    lab.pass(SLACK).await;
    a.renewed(&held, None).await;
    let wanted = waiting(&job, LONG);
    b.refused(&wanted).await;
    assert_eq!(
        b.wait(&wanted, Duration::from_millis(400)).await,
        Wake::TimedOut,
        "the row is polled"
    );
    a.free(&held).await;
    assert_eq!(b.wait(&wanted, LONG).await, Wake::Changed);
}

async fn other_clients_can_take_the_same_mysql_lock(lab: &Lab) {
    let mut a = lab.client().await;
    let database = &lab.mariadb().name;
    let held = a.hold(&key("job")).await;
    let plain = format!("'{database}.dlock/dlock:job'");
    let hashed = format!("CONCAT('dlock#', LEFT(SHA2('{database}.dlock/dlock:JOB', 256), 58))");
    let take = |name: &str| lab.mariadb().sql(&format!("SELECT GET_LOCK({name}, 0)"))[0][0].clone();
    assert_eq!((take(&plain).as_str(), take(&hashed).as_str()), ("0", "1"));
    a.hold(&key("JOB")).await;
    assert_eq!(take(&hashed), "0");
    a.free(&held).await;
    let keeps = lab.mariadb().keep(&format!("SELECT GET_LOCK({plain}, 0)"));
    let busy = a.refused(&request(&key("job"), LONG)).await;
    assert!(
        busy.holders[0].foreign && busy.holders[0].fence.is_none(),
        "{busy:?}"
    );
    assert_eq!(a.keys("").await, ["JOB", "job"]);
    drop(keeps);
    // Names of each form, known from runs that are over.
    for job in ["Job", "a job", "jöb", "dlock#job", "'x", &"x".repeat(70)] {
        let held = a.hold(&key(job)).await;
        a.free(&held).await;
        let full = format!("{database}.dlock/dlock:{job}");
        let is_plain = full.len() <= 64
            && full
                .bytes()
                .all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase());
        let text = full.replace('\'', "''");
        let name = if is_plain {
            format!("'{text}'")
        } else {
            format!("CONCAT('dlock#', LEFT(SHA2('{text}', 256), 58))")
        };
        let _keeps = lab.mariadb().keep(&format!("SELECT GET_LOCK({name}, 0)"));
        a.refused(&request(&key(job), LONG)).await;
        assert_eq!(a.keys(job).await, [job]);
    }
    let mut options = lab.mysql_options("dlock");
    options.raw_names = true;
    let mut b = Client(backend(options));
    let name = format!("{database}.nightly");
    let held = Request {
        metadata: Some(crate::lab::runner("web1")),
        ..request(&key(&name), LONG)
    };
    b.take(&held).await;
    assert_eq!(take(&format!("'{name}'")), "0");
    assert_eq!(
        b.inspect(&key(&name)).await.holders[0].metadata,
        Some(crate::lab::runner("web1"))
    );
    b.free(&held).await;
    let _keeps = lab.mariadb().keep(&format!("SELECT GET_LOCK('{name}', 0)"));
    b.refused(&request(&key(&name), LONG)).await;
    assert_eq!(b.keys("").await, [&*name]);
    assert_eq!(lab.mysql_options("dlock").sql.mode, SqlMode::Advisory);
}

fn on(lab: &Lab, server: &MariaDb) -> MysqlOptions {
    let mut options = lab.mysql_options("dlock");
    options.sql.server = SqlServer::Tcp {
        host: "127.0.0.1".into(),
        port: server.port,
    };
    options.sql.database = Some("app".into());
    options
}

/// A blocked session ends with its server. After the restart another client's session may have its
/// id.
async fn no_other_session_is_killed_after_a_restart(lab: &Lab) {
    let mut server = MariaDb::durable();
    server.sql("mysql", "CREATE DATABASE app");
    let options = on(lab, &server);
    let (mut a, mut b) = (Client(backend(options.clone())), Client(backend(options)));
    a.0.init().await.expect("init");
    let job = key("job");
    a.hold(&job).await;
    let wanted = waiting(&job, LONG);
    b.refused(&wanted).await;
    // The wait is dropped, and its session stays blocked.
    assert!(
        tokio::time::timeout(short() / 4, b.0.wait(&wanted, LONG))
            .await
            .is_err(),
        "the lock is held"
    );
    let last: u64 = server
        .text(
            "mysql",
            "SELECT MAX(id) FROM information_schema.processlist",
        )
        .parse()
        .expect("a number");
    server.restart();
    let mut others = Vec::new();
    while server
        .text(
            "mysql",
            "SELECT MAX(id) FROM information_schema.processlist",
        )
        .parse::<u64>()
        .expect("a number")
        <= last
    {
        others.push(server.keep("mysql", "SELECT 1"));
    }
    let abandoned = lease::ask(
        &mut *b.0,
        &BootClock,
        Limits::DEFAULT,
        ("ask", None),
        async |backend: &mut dyn dlock::lock::Backend| backend.leave_queue(&wanted).await,
    );
    abandoned.await.expect("an answer");
    let left = server.text("mysql", "SELECT COUNT(*) FROM information_schema.processlist WHERE db = 'mysql' AND id <> CONNECTION_ID()");
    assert_eq!(
        left.parse(),
        Ok(others.len()),
        "a session of another client was killed"
    );
}

async fn a_read_only_mysql_is_refused(lab: &Lab) {
    lab.isolate();
    let mut a = lab.client().await;
    let held = a.hold(&key("held")).await;
    lab.mariadb().sql("SET GLOBAL read_only = 1");
    // Also for a superuser, which could write to a replica.
    let error = lab
        .client()
        .await
        .0
        .try_acquire(&request(&key("job"), LONG))
        .await
        .expect_err("read only");
    assert_eq!(
        (error.kind, error.effect),
        (ErrorKind::Config, Effect::NotApplied),
        "{error:?}"
    );
    assert!(
        error.message.contains("read-only") && error.origin == Origin::WrongServer,
        "{error:?}"
    );
    lab.mariadb().sql("SET GLOBAL read_only = 0");
    a.renewed(&held, None).await;
    lab.client().await.hold(&key("job")).await;
}
