//! Locks in SQL servers that are restarted, set up differently, or shared with other programs.

use std::{path::PathBuf, time::Duration};

use dlock::{
    backends::{
        Secret, mysql, postgres,
        sql::{SqlMode, SqlServer, TlsMode},
    },
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{
        Amendment, Attempt, Backend, Effect, End, Fence, Key, Kind as ErrorKind, Metadata,
        Progress, Release, ReleaseInfo, Renewal, Request, RunOutcome, RunPolicy, Scope,
    },
};

use super::{Case, cases};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, request, soon, stretched, ttl, waiting},
    support::{
        self,
        mariadb::{self, MariaDb},
        postgres::{self as pg, Postgres},
        proxy::{Fault, Mode, Proxy},
    },
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![|kind| kind.held_by_session() && kind.is_sql() =>
        a_hold_of_a_server_that_crashed_is_waited_out,
        a_hold_released_after_a_crash_is_not_waited_out,
        a_clock_that_was_set_back_prolongs_no_hold_of_a_crashed_server,
        a_lease_that_ends_during_the_next_grant_is_recorded,
    ];
    all.extend(
        cases![|kind| kind.is_postgres() && kind.held_by_session() && kind.is_sql() => a_broken_hold_of_a_crashed_server_is_recorded],
    );
    // Elsewhere the session that has the lock counts the fence itself.
    all.extend(
        cases![|kind| matches!(kind, Kind::PostgresRow | Kind::MariadbRow | Kind::MysqlRow) => a_holder_whose_session_ended_unnoticed_leaves_the_next_one],
    );
    all.extend(cases![|kind| kind.is_sql() => modes_of_one_table_exclude_each_other]);
    all.extend(
        cases![|kind| kind == Kind::PostgresLease || kind.is_mysql_lease() =>
            at_least_holds_for_shedlock,
            a_table_that_shedlock_may_share_is_not_collected,
            a_session_that_reuses_an_id_is_not_killed,
            passwords_and_certificates_are_checked,
            a_unix_socket_serves,
        ],
    );
    all.extend(cases![|kind| kind.is_sql() => a_server_without_free_connections_is_retried, a_restarted_server_is_retried]);
    all.extend(cases![|kind| kind.is_postgres() => an_encoding_without_all_characters_stops_no_job, a_standby_can_be_inspected]);
    all.extend(cases![|kind| kind == Kind::PostgresLease =>
        a_dead_client_is_granted_nothing,
        a_second_table_of_the_same_name_is_reported,
        a_statement_the_server_rejects_is_a_configuration_error,
    ]);
    all.extend(cases![|kind| kind.is_mysql_lease() =>
        a_release_that_cannot_be_recorded_changes_nothing,
        a_shedlock_table_without_our_columns_is_an_error,
    ]);
    all.extend(cases![|kind| kind.speaks_mysql() && kind.held_by_session() => a_session_survives_its_transactions]);
    all.extend(cases![|kind| matches!(kind, Kind::MariadbAdvisory | Kind::MysqlAdvisory) => lock_names_depend_on_the_table]);
    all.extend(cases![|kind| kind == Kind::PostgresAdvisory || matches!(kind, Kind::MariadbAdvisory | Kind::MysqlAdvisory) => the_name_in_the_server_is_reported]);
    all
}

/// The case's own server, which can crash.
enum Own {
    Postgres(Postgres, postgres::PostgresOptions),
    MariaDb(MariaDb, mysql::MysqlOptions),
}

impl Own {
    async fn start(lab: &Lab) -> Self {
        let own = if lab.kind.is_postgres() {
            let server = Postgres::with(pg::Options {
                durable: true,
                ..Default::default()
            });
            let mut options = lab.postgres_options("dlock");
            options.sql.database = Some("postgres".into());
            Self::Postgres(server, options)
        } else {
            let product = lab.mariadb().server.product();
            let server = MariaDb::with(mariadb::Options {
                product,
                durable: true,
                ..Default::default()
            });
            server.sql("mysql", "CREATE DATABASE app");
            let mut options = lab.mysql_options("dlock");
            options.sql.database = Some("app".into());
            Self::MariaDb(server, options)
        };
        own.client().0.init().await.expect("init");
        own
    }

    fn port(&self) -> u16 {
        match self {
            Self::Postgres(server, _) => server.port,
            Self::MariaDb(server, _) => server.port,
        }
    }

    fn client(&self) -> Client {
        self.through(self.port())
    }

    fn through(&self, port: u16) -> Client {
        let server = SqlServer::Tcp {
            host: "127.0.0.1".into(),
            port,
        };
        Client(match self {
            Self::Postgres(_, options) => {
                let mut options = options.clone();
                options.sql.server = server;
                postgres::backend(options)
            }
            Self::MariaDb(_, options) => {
                let mut options = options.clone();
                options.sql.server = server;
                mysql::backend(options)
            }
        })
    }

    /// Ends the sessions that have a transaction open.
    fn end_transactions(&self) {
        match self {
            Self::Postgres(server, _) => {
                server.sql("postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'");
            }
            Self::MariaDb(server, _) => {
                for row in server.sql("app", "SELECT CONCAT('KILL ', trx_mysql_thread_id) FROM information_schema.innodb_trx") {
                    server.sql("app", &row[0]);
                }
            }
        }
    }

    fn restart(&mut self) {
        match self {
            Self::Postgres(server, _) => server.restart(),
            Self::MariaDb(server, _) => server.restart(),
        }
    }
}

/// The holder is cut off, and does not notice the crash.
async fn a_hold_of_a_server_that_crashed_is_waited_out(lab: &Lab) {
    const LEASE: Duration = Duration::from_secs(15);
    let mut server = Own::start(lab).await;
    let mut proxy = Proxy::to(server.port());
    let mut a = server.through(proxy.port);
    let job = key("job");
    let taken = std::time::Instant::now();
    let fence = a.take(&request(&job, LEASE)).await.fence;
    proxy.set(Mode::BlackHole);
    server.restart();
    let mut b = server.client();
    let busy = b.refused(&request(&job, LEASE)).await;
    assert_eq!(
        busy.holders
            .iter()
            .map(|holder| holder.fence)
            .collect::<Vec<_>>(),
        [Some(fence)],
        "{busy:?}"
    );
    let state = b.inspect(&job).await;
    assert!(
        state.holders.len() == 1 && state.holders[0].renewed_ago.is_none(),
        "whether the holder lives is unknown: {state:?}"
    );
    let mut c = server.client();
    let wanted = waiting(&job, LEASE);
    let grant = c.wait_for(&wanted, LEASE * 3).await;
    assert!(taken.elapsed() >= LEASE, "{:?}", taken.elapsed());
    assert!(grant.fence > fence);
    let past = c.0.history(&job).await.expect("history").past;
    assert!(
        past.iter()
            .any(|past| past.fence == Some(fence) && past.end == End::Expired),
        "{past:?}"
    );
    c.free(&wanted).await;
}

/// The session with the lock is ended, and the lock has its next holder, before the client asks for
/// its fence.
async fn a_holder_whose_session_ended_unnoticed_leaves_the_next_one(lab: &Lab) {
    let server = Own::start(lab).await;
    let proxy = Proxy::to(server.port());
    let mut a = server.through(proxy.port);
    let job = key("job");
    // A holder that vanished has left its record.
    server.client().take(&waiting(&job, LONG)).await;
    let wanted = waiting(&job, LONG);
    let late = stretched(Duration::from_secs(2));
    proxy.trap(lab.writes(), Fault::Late(late));
    let other = async {
        lab.pass(late / 4).await;
        server.end_transactions();
        let mut b = server.client();
        let next = waiting(&job, LONG);
        let fence = b.wait_for(&next, late / 2).await.fence;
        (b, next, fence)
    };
    // Whatever it is told: its session is over.
    let (_, (mut b, next, fence)) = tokio::join!(a.0.try_acquire(&wanted), other);
    lab.pass(late / 2).await;
    let state = b.inspect(&job).await;
    assert!(
        state
            .holders
            .iter()
            .any(|holder| holder.fence == Some(fence)),
        "{fence} in {state:?}"
    );
    b.free(&next).await;
    let history = b.0.history(&job).await.expect("history");
    let ends: Vec<_> = history
        .past
        .iter()
        .filter(|past| past.fence == Some(fence))
        .map(|past| past.end.to_string())
        .collect();
    assert_eq!(ends, ["released"], "{history:?}");
}

/// Writes that another server had the hold, whose session ends with its client, and when its lease
/// ends, in hours from now.
async fn leave_hold(lab: &Lab, job: &Key, lease: Duration, hours: u32) -> Fence {
    leave_hold_for(lab, job, lease, Duration::from_secs(3600) * hours).await
}

/// As [`leave_hold`], with any time until the lease ends.
async fn leave_hold_for(lab: &Lab, job: &Key, lease: Duration, left: Duration) -> Fence {
    let fence = {
        let mut a = lab.client().await;
        a.take(&request(job, lease)).await.fence
    };
    let ms = left.as_millis();
    let ends = lab.either(
        format!("timezone('utc', clock_timestamp()) + interval '{ms} milliseconds'"),
        format!("TIMESTAMPADD(MICROSECOND, {ms} * 1000, UTC_TIMESTAMP(6))"),
    );
    lab.sql(&format!(
        "UPDATE dlock SET document = regexp_replace(document, ',\"i\":\"[^\"]*\"', ''), lock_until = {ends} WHERE name = 'dlock:{job}'"
    ));
    fence
}

/// The end of the lease was noted by a clock that was an hour ahead.
async fn a_clock_that_was_set_back_prolongs_no_hold_of_a_crashed_server(lab: &Lab) {
    let (job, lease) = (key("job"), Duration::from_secs(4));
    leave_hold(lab, &job, lease, 1).await;
    let (mut b, wanted) = (lab.client().await, waiting(&key("job"), lease));
    let taken = tokio::time::timeout(
        lease + stretched(Duration::from_secs(4)),
        b.wait_for(&wanted, lease),
    );
    taken.await.expect("granted when a lease has passed");
    b.free(&wanted).await;
}

/// The grant writes the history entry first, at which it is delayed here, and then replaces the
/// record.
async fn a_lease_that_ends_during_the_next_grant_is_recorded(lab: &Lab) {
    let job = key("job");
    let fence = leave_hold_for(lab, &job, LONG, stretched(Duration::from_secs(2))).await;
    let mut b = lab.client().await;
    let left = b
        .refused(&request(&job, LONG))
        .await
        .expires_in
        .expect("an expiry");
    lab.pass(left.saturating_sub(Duration::from_millis(900)))
        .await;
    let delayed = lab.meanwhile(lab.either(
        "BEGIN; LOCK TABLE dlock_runs IN EXCLUSIVE MODE; SELECT pg_sleep(1.2); COMMIT",
        "LOCK TABLES dlock_runs WRITE; DO SLEEP(1.2); UNLOCK TABLES",
    ));
    lab.pass(Duration::from_millis(600)).await;
    let wanted = waiting(&job, LONG);
    b.wait_for(&wanted, Duration::from_millis(50)).await;
    delayed.join().expect("the table is unlocked");
    let past = b.0.history(&job).await.expect("history").past;
    assert!(
        past.iter()
            .any(|past| past.fence == Some(fence) && past.end == End::Expired),
        "{past:?}"
    );
}

/// The history is locked for longer than a statement waits. PostgreSQL releases and records in one
/// statement.
async fn a_release_that_cannot_be_recorded_changes_nothing(lab: &Lab) {
    let (mut a, held) = (lab.client().await, request(&key("job"), LONG));
    let fence = a.take(&held).await.fence;
    let locked = lab.meanwhile("LOCK TABLES dlock_runs WRITE; DO SLEEP(2.5); UNLOCK TABLES");
    lab.pass(Duration::from_millis(600)).await;
    let info = ReleaseInfo {
        end: Some(End::Exited(0)),
        ..Scope::Tree.into()
    };
    let refused =
        a.0.release(&held.key, &held.token, &info)
            .await
            .expect_err("not recorded");
    assert_eq!(refused.kind, ErrorKind::Unavailable, "{refused:?}");
    lab.client().await.refused(&request(&held.key, LONG)).await;
    locked.join().expect("the table is unlocked");
    assert_eq!(
        a.0.release(&held.key, &held.token, &info)
            .await
            .expect("released"),
        Release::Released
    );
    let past = a.0.history(&held.key).await.expect("history").past;
    assert!(
        past.iter()
            .any(|past| past.fence == Some(fence) && past.end == End::Exited(0)),
        "{past:?}"
    );
}

async fn a_broken_hold_of_a_crashed_server_is_recorded(lab: &Lab) {
    let job = key("job");
    let fence = leave_hold(lab, &job, LONG, 1).await;
    let mut b = lab.client().await;
    let mark = super::history::broken("its node is gone");
    assert!(
        b.0.amend(&job, Amendment::Evict(fence, &mark))
            .await
            .expect("evicted")
    );
    let past = b.0.history(&job).await.expect("history").past;
    assert!(
        past.iter()
            .any(|past| past.fence == Some(fence) && past.end == End::Broken),
        "{past:?}"
    );
    // The session of the vanished holder may take a moment to end.
    let wanted = waiting(&job, LONG);
    b.wait_for(&wanted, Duration::from_millis(50)).await;
    b.free(&wanted).await;
}

async fn a_hold_released_after_a_crash_is_not_waited_out(lab: &Lab) {
    let mut server = Own::start(lab).await;
    let mut a = server.client();
    let job = key("job");
    let held = request(&job, LONG);
    let fence = a.take(&held).await.fence;
    server.restart();
    server.client().refused(&request(&job, LONG)).await;
    let info = ReleaseInfo {
        end: Some(End::Exited(0)),
        ..Scope::Tree.into()
    };
    let released =
        a.0.release(&job, &held.token, &info)
            .await
            .expect("released");
    assert_eq!(
        released,
        Release::NotHeld,
        "the hold was lost, and has ended"
    );
    server.client().hold(&job).await;
    let past = server.client().0.history(&job).await.expect("history").past;
    assert!(
        past.iter()
            .any(|past| past.fence == Some(fence) && past.end == End::Exited(0)),
        "{past:?}"
    );
}

async fn modes_of_one_table_exclude_each_other(lab: &Lab) {
    let open = |mode: &str| {
        Client(if lab.kind.is_postgres() {
            let mut options = lab.postgres_options("dlock");
            options.sql.mode = match mode {
                "lease" => SqlMode::Lease,
                "row" => SqlMode::Row,
                _ => SqlMode::Advisory,
            };
            postgres::backend(options)
        } else {
            let mut options = lab.mysql_options("dlock");
            options.sql.mode = match mode {
                "lease" => SqlMode::Lease,
                "row" => SqlMode::Row,
                _ => SqlMode::Advisory,
            };
            mysql::backend(options)
        })
    };
    let job = key("job");
    let mut a = lab.client().await;
    let held = a.hold(&job).await;
    let own = a.0.identity().url;
    for mode in ["lease", "row", "advisory"] {
        let mut b = open(mode);
        if b.0.identity().url == own {
            continue;
        }
        let error =
            b.0.try_acquire(&request(&job, LONG))
                .await
                .expect_err("another mode");
        assert_eq!(error.kind, ErrorKind::Config, "{mode}: {error}");
        a.renewed(&held, None).await;
    }
    a.free(&held).await;
    // The client that runs `init` sets the mode of the tables.
    let other = if own.contains("mode=row") {
        "lease"
    } else {
        "row"
    };
    let mut b = open(other);
    b.0.init().await.expect("init");
    let theirs = b.hold(&job).await;
    assert_eq!(
        a.0.try_acquire(&request(&job, LONG))
            .await
            .expect_err("another mode")
            .kind,
        ErrorKind::Config
    );
    b.free(&theirs).await;
}

async fn at_least_holds_for_shedlock(lab: &Lab) {
    let job = key("job");
    let mut a = lab.client().await;
    let run_policy = RunPolicy {
        place: "a".into(),
        skew_guard: None,
        at_least: Some(Duration::from_secs(60)),
        once: None,
        anyway: false,
    };
    let held = Request {
        run_policy: Some(run_policy),
        ..request(&job, LONG)
    };
    a.take(&held).await;
    a.free(&held).await;
    let until = lab.either("timezone('utc', CURRENT_TIMESTAMP)", "UTC_TIMESTAMP(3)");
    let free = format!("SELECT 1 FROM dlock WHERE name = 'dlock:job' AND lock_until <= {until}");
    assert_eq!(
        lab.sql(&free).len(),
        0,
        "ShedLock took a lock that at-least keeps"
    );
    let state = a.inspect(&job).await;
    assert!(state.holders.is_empty(), "the lock has a holder: {state:?}");
    assert!(a.keys("").await.is_empty());
    assert!(
        matches!(a.attempt(&request(&job, LONG)).await, Attempt::Denied(_)),
        "at-least does not deny the run"
    );
    let past = a.0.history(&job).await.expect("history").past;
    assert_eq!(
        past.len(),
        1,
        "a released hold was recorded as vanished: {past:?}"
    );
    // An undone hold denies no other run.
    let undone = key("undone");
    let held = Request {
        key: undone.clone(),
        ..Request {
            run_policy: held.run_policy.clone(),
            ..request(&undone, LONG)
        }
    };
    a.take(&held).await;
    assert_eq!(
        a.0.release(&undone, &held.token, &ReleaseInfo::UNDO)
            .await
            .expect("an answer"),
        Release::Released
    );
    assert_eq!(lab.sql(&free.replace("dlock:job", "dlock:undone")).len(), 1);
}

async fn a_table_that_shedlock_may_share_is_not_collected(lab: &Lab) {
    let open = |table: &str, namespace: &str, vouched: bool| {
        lab.client_with(namespace, |options| {
            (options.table, options.no_shedlock) = (table.into(), vouched);
        })
    };
    for (table, namespace) in [("shedlock", "dlock"), ("dlock", "")] {
        let mut a = open(table, namespace, false);
        a.0.init().await.expect("init");
        let held = a.hold(&key("job")).await;
        a.free(&held).await;
        let error =
            a.0.collect(Duration::ZERO, &Progress::default())
                .await
                .expect_err("ShedLock's nodes remember the row");
        assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
        open(table, namespace, true)
            .0
            .collect(Duration::ZERO, &Progress::default())
            .await
            .expect("the options say that ShedLock does not share the table");
    }
}

/// The answer to a grant is lost, the server is restarted, and another session reuses the session's
/// id.
async fn a_session_that_reuses_an_id_is_not_killed(lab: &Lab) {
    let mut server = Own::start(lab).await;
    let proxy = Proxy::to(server.port());
    let mut a = server.through(proxy.port);
    let job = key("job");
    proxy.trap(lab.kind.marks().acquire, Fault::Swallow);
    let wanted = request(&job, LONG);
    assert!(
        tokio::time::timeout(Duration::from_millis(500), a.0.try_acquire(&wanted))
            .await
            .is_err(),
        "no answer"
    );
    proxy.cut();
    server.restart();
    let Own::MariaDb(database, _) = &server else {
        // PostgreSQL's process ids can't be forced to repeat, and dlock also compares the session's
        // name.
        a.take(&wanted).await;
        return;
    };
    let mut others = Vec::new();
    while others.len() < 40 {
        others.push(database.keep("mysql", "SELECT 1"));
    }
    let taken = lease::acquire(
        &mut *a.0,
        &BootClock,
        wanted,
        WaitPolicy::Try,
        Limits::DEFAULT,
        std::future::pending::<()>(),
        |_| {},
    )
    .await;
    assert!(matches!(taken, Ok(Outcome::Granted(_))), "{taken:?}");
    let left = database.text("mysql", "SELECT COUNT(*) FROM information_schema.processlist WHERE db = 'mysql' AND id <> CONNECTION_ID()");
    assert_eq!(
        left.parse(),
        Ok(others.len()),
        "a session of another client was killed"
    );
}

async fn an_encoding_without_all_characters_stops_no_job(lab: &Lab) {
    let server = &lab.postgres().server;
    let database = format!("{}_latin1", lab.postgres().name);
    server.sql(pg::USER, &format!("CREATE DATABASE {database} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"));
    let mut options = lab.postgres_options("dlock");
    options.sql.database = Some(database.clone());
    {
        let mut a = Client(postgres::backend(options));
        a.0.init().await.expect("init");
        assert!(
            a.0.notices()
                .iter()
                .any(|notice| notice.text.contains("encoding")),
            "init reports it"
        );
        let job = key("job");
        let said = "\u{65e5}\u{672c} \u{1f512} \u{f8}";
        let metadata = Metadata {
            host: Some(said.into()),
            description: Some(said.into()),
            ..Metadata::default()
        };
        let held = Request {
            metadata: Some(metadata.clone()),
            ..request(&job, LONG)
        };
        a.take(&held).await;
        assert_eq!(
            a.inspect(&job).await.holders[0].metadata.as_ref(),
            Some(&metadata)
        );
        let info = ReleaseInfo {
            end: Some(End::Exited(0)),
            outcome: Some(RunOutcome::because(said)),
            run_state: None,
            ..ReleaseInfo::UNDO
        };
        assert_eq!(
            a.0.release(&job, &held.token, &info)
                .await
                .expect("released"),
            Release::Released
        );
        let past = a.0.history(&job).await.expect("history").past;
        assert_eq!(past[0].metadata.as_ref(), Some(&metadata), "{past:?}");
        assert_eq!(past[0].outcome, info.outcome, "{past:?}");
        let error =
            a.0.try_acquire(&request(&key(said), LONG))
                .await
                .expect_err("the encoding lacks these characters");
        assert_eq!(error.kind, ErrorKind::Config, "{error}");
        assert!(error.hint.is_some(), "{error:?}");
    }
    server.sql(pg::USER, &format!("DROP DATABASE {database} WITH (FORCE)"));
}

async fn a_standby_can_be_inspected(lab: &Lab) {
    let mut server = Postgres::with(pg::Options {
        durable: true,
        ..Default::default()
    });
    let mut options = lab.postgres_options("dlock");
    options.sql.server = SqlServer::Tcp {
        host: "127.0.0.1".into(),
        port: server.port,
    };
    options.sql.database = Some("postgres".into());
    let job = key("job");
    let mut a = Client(postgres::backend(options.clone()));
    a.0.init().await.expect("init");
    let fence = a.take(&request(&job, LONG)).await.fence;
    server.standby();
    let mut b = Client(postgres::backend(options));
    let state = b.inspect(&job).await;
    assert_eq!(
        state
            .holders
            .iter()
            .map(|holder| holder.fence)
            .collect::<Vec<_>>(),
        [Some(fence)],
        "{state:?}"
    );
    assert_eq!(b.keys("").await, ["job"]);
    b.0.history(&job).await.expect("history");
    for of in [request(&job, LONG), request(&key("other"), LONG)] {
        let error =
            b.0.try_acquire(&of)
                .await
                .expect_err("a standby accepts no writes");
        assert!(
            error.kind == ErrorKind::Config
                && error.message.contains("standby")
                && error.hint.is_some(),
            "{error}"
        );
    }
}

/// Another session keeps the lock's row locked meanwhile.
async fn a_dead_client_is_granted_nothing(lab: &Lab) {
    let job = key("job");
    let mut b = lab.client().await;
    let held = b.hold(&job).await;
    b.free(&held).await;
    let kept = lab
        .postgres()
        .keep("BEGIN; SELECT 1 FROM dlock WHERE name = 'dlock:job' FOR UPDATE");
    let mut a = lab.client().await;
    assert!(
        tokio::time::timeout(
            Duration::from_millis(300),
            a.0.try_acquire(&request(&job, LONG))
        )
        .await
        .is_err(),
        "the request waits"
    );
    drop(a);
    // The server checks twice a second whether its client is connected.
    let waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'dlock %' AND wait_event_type = 'Lock'";
    let began = std::time::Instant::now();
    while !lab.postgres().sql(waits).is_empty() {
        assert!(
            began.elapsed() < stretched(Duration::from_secs(20)),
            "the dead client's session still waits"
        );
        lab.pass(SLACK / 4).await;
    }
    drop(kept);
    let state = b.inspect(&job).await;
    assert!(state.holders.is_empty(), "{state:?}");
}

async fn a_second_table_of_the_same_name_is_reported(lab: &Lab) {
    lab.postgres()
        .sql("CREATE SCHEMA other; CREATE TABLE other.dlock (LIKE public.dlock)");
    let mut client = lab.client().await;
    let found = client.0.examine().await.expect("an examination");
    let schema = found
        .iter()
        .find(|finding| finding.check == "schema")
        .expect("a finding about the schema");
    assert!(
        schema.text.contains("other.dlock") && schema.text.contains("public.dlock"),
        "{schema:?}"
    );
    client.0.init().await.expect("init");
    assert!(
        client
            .0
            .notices()
            .iter()
            .any(|notice| notice.text.contains("other.dlock")),
        "init reports it"
    );
}

async fn a_statement_the_server_rejects_is_a_configuration_error(lab: &Lab) {
    lab.postgres()
        .sql("ALTER TABLE dlock ADD CONSTRAINT strict CHECK (name <> 'dlock:job')");
    let error = lab
        .client()
        .await
        .0
        .try_acquire(&request(&key("job"), LONG))
        .await
        .expect_err("refused");
    assert!(
        error.kind == ErrorKind::Config && error.message.contains("strict"),
        "{error}"
    );
}

async fn a_shedlock_table_without_our_columns_is_an_error(lab: &Lab) {
    lab.mariadb().sql("CREATE TABLE shedlock (name VARCHAR(64) PRIMARY KEY, lock_until TIMESTAMP(3) NOT NULL, locked_at TIMESTAMP(3) NOT NULL, locked_by VARCHAR(255) NOT NULL)");
    let mut options = lab.mysql_options("dlock");
    options.sql.table = "shedlock".into();
    let error = Client(mysql::backend(options))
        .0
        .try_acquire(&request(&key("job"), LONG))
        .await
        .expect_err("refused");
    assert!(
        error.kind == ErrorKind::Config && error.message.contains("missing"),
        "{error}"
    );
    assert!(
        !error.message.contains("the lock table does not exist"),
        "{error}"
    );
}

/// The server is set up to end each session with its transaction.
async fn a_session_survives_its_transactions(lab: &Lab) {
    lab.isolate();
    lab.mariadb().sql("SET GLOBAL completion_type = 'RELEASE'");
    let mut a = lab.client().await;
    let job = key("job");
    for _ in 0..2 {
        let held = Request {
            ttl: ttl(LONG),
            ..request(&job, LONG)
        };
        a.take(&held).await;
        a.free(&held).await;
    }
}

async fn lock_names_depend_on_the_table(lab: &Lab) {
    let target = lab.mariadb();
    let other = format!("{}_two", target.name);
    target.sql(&format!("CREATE DATABASE {other}"));
    let open = |database: &str, table: String| {
        let mut options = lab.mysql_options("dlock");
        (options.sql.database, options.sql.table) = (Some(database.into()), table);
        Client(mysql::backend(options))
    };
    let table = format!("{}.dlock", target.name);
    let (mut a, mut b) = (open(&target.name, "dlock".into()), open(&other, table));
    a.hold(&key("job")).await;
    b.refused(&request(&key("job"), LONG)).await;
    let mut c = open(&other, "dlock".into());
    c.0.init().await.expect("init");
    c.hold(&key("job")).await;
    drop((a, b, c));
    target.sql(&format!("DROP DATABASE {other}"));
}

async fn the_name_in_the_server_is_reported(lab: &Lab) {
    let mut a = lab.client().await;
    for name in ["job", "JOB"] {
        a.hold(&key(name)).await;
        let stored = a.inspect(&key(name)).await.stored_as;
        let held = if lab.kind.is_postgres() {
            let number = format!("SELECT {stored}");
            let number = lab.postgres().sql(&number)[0][0].clone().expect("a number");
            lab.postgres().sql(&format!(
                "SELECT 1 FROM pg_locks JOIN pg_database AS d ON d.oid = database AND d.datname = current_database() WHERE locktype = 'advisory'
                    AND classid = ((({number}) >> 32) & 4294967295)::oid AND objid = (({number}) & 4294967295)::oid"
            ))
            .len()
        } else {
            lab.mariadb()
                .sql(&format!(
                    "SELECT 1 FROM DUAL WHERE IS_USED_LOCK('{stored}') IS NOT NULL"
                ))
                .len()
        };
        assert_eq!(held, 1, "{stored}");
    }
}

async fn passwords_and_certificates_are_checked(lab: &Lab) {
    const PASSWORD: Option<&str> = Some("p@ss:w/rd");
    let _ = rustls::crypto::ring::default_provider().install_default();
    let tls_names = vec!["127.0.0.1"];
    let server = if lab.kind.is_postgres() {
        let server = Postgres::with(pg::Options {
            tls_names,
            passwords: Some("scram-sha-256"),
            ..Default::default()
        });
        server.sql(
            pg::USER,
            "SET password_encryption = 'scram-sha-256'; CREATE ROLE ana LOGIN PASSWORD 'p@ss:w/rd'; GRANT ALL ON SCHEMA public TO ana",
        );
        Own::Postgres(server, lab.postgres_options("dlock"))
    } else {
        let server = MariaDb::with(mariadb::Options {
            tls_names,
            ..Default::default()
        });
        server.sql("mysql", "CREATE DATABASE app; CREATE USER ana IDENTIFIED BY 'p@ss:w/rd'; GRANT ALL ON app.* TO ana");
        Own::MariaDb(server, lab.mysql_options("dlock"))
    };
    let ours = match &server {
        Own::Postgres(server, _) => server.certificates.as_ref(),
        Own::MariaDb(server, _) => server.certificates.as_ref(),
    };
    let ours = ours.map(|files| files.ca.clone());
    let client = |host: &str, tls, password: Option<&str>, authority: &Option<PathBuf>| {
        lab.client_with("dlock", |options| {
            options.server = SqlServer::Tcp {
                host: host.into(),
                port: server.port(),
            };
            options.user = Some("ana".into());
            options.database = Some(lab.either("postgres", "app").into());
            (options.tls, options.password, options.files.ca_file) =
                (tls, password.map(Secret::new), authority.clone());
        })
    };
    let refused = async |mut client: Client, why: &str| {
        let error = client
            .0
            .try_acquire(&request(&key("job"), LONG))
            .await
            .expect_err(why);
        assert_eq!(
            (error.kind, error.effect),
            (ErrorKind::Denied, Effect::NotApplied),
            "{why}: {error:?}"
        );
        assert!(!format!("{error:?}").contains("wr0ng-secret"));
    };
    let host = "127.0.0.1";
    for tls in [
        TlsMode::Disable,
        TlsMode::Prefer,
        TlsMode::Require,
        TlsMode::VerifyCa,
        TlsMode::VerifyFull,
    ] {
        let mut a = client(host, tls, PASSWORD, &ours);
        a.0.init().await.expect("init");
        let held = a.hold(&key(&format!("{tls:?}"))).await;
        a.renewed(&held, None).await;
        a.free(&held).await;
        if let Own::Postgres(server, _) = &server {
            let encrypted = "SELECT bool_or(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'dlock %'";
            assert_eq!(
                server.text("postgres", encrypted) == "t",
                tls != TlsMode::Disable,
                "{tls:?}"
            );
            drop(a);
            // The session ends meanwhile.
            lab.pass(Duration::from_millis(100)).await;
        }
    }
    if let Own::MariaDb(server, _) = &server {
        server.sql("mysql", "ALTER USER ana REQUIRE SSL");
        refused(client(host, TlsMode::Disable, PASSWORD, &ours), "in clear").await;
    }
    for password in [None, Some("wr0ng-secret")] {
        refused(
            client(host, TlsMode::VerifyFull, password, &ours),
            "no password, or a wrong one",
        )
        .await;
    }
    let elsewhere = support::folder();
    let theirs = Some(support::tls::Certificates::make(elsewhere.path(), &["127.0.0.1"]).ca);
    refused(
        client(host, TlsMode::VerifyFull, PASSWORD, &None),
        "the public authorities don't know it",
    )
    .await;
    refused(
        client(host, TlsMode::VerifyFull, PASSWORD, &theirs),
        "another authority",
    )
    .await;
    refused(
        client(host, TlsMode::VerifyCa, PASSWORD, &theirs),
        "another authority",
    )
    .await;
    // With a known authority, a certificate for another name passes `verify-ca`, but not
    // `verify-full`.
    refused(
        client("localhost", TlsMode::VerifyFull, PASSWORD, &ours),
        "another name",
    )
    .await;
    client("localhost", TlsMode::VerifyCa, PASSWORD, &ours)
        .hold(&key("job"))
        .await;
}

async fn a_unix_socket_serves(lab: &Lab) {
    let (path, port) = if lab.kind.is_postgres() {
        let server = &lab.postgres().server;
        (server.socket_folder().into(), server.port)
    } else {
        let server = &lab.mariadb().server;
        (server.socket(), server.port)
    };
    let client = || {
        lab.client_with("dlock", |options| {
            options.server = SqlServer::Unix {
                path: PathBuf::clone(&path),
                port,
            }
        })
    };
    let (mut a, mut b) = (client(), client());
    let held = a.hold(&key("job")).await;
    let wanted = waiting(&key("job"), LONG);
    b.refused(&wanted).await;
    let release = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
        std::time::Instant::now()
    };
    let (_, released) = tokio::join!(b.wait_for(&wanted, LONG), release);
    assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
    assert!(
        b.0.notices()
            .iter()
            .all(|notice| !notice.text.contains("waiters poll")),
        "a Unix socket was reported as a pooler"
    );
}

async fn a_server_without_free_connections_is_retried(lab: &Lab) {
    let server = if lab.kind.is_postgres() {
        let settings = vec![
            "max_connections=8".into(),
            "superuser_reserved_connections=2".into(),
        ];
        let server = Postgres::with(pg::Options {
            settings,
            ..Default::default()
        });
        server.sql(
            pg::USER,
            "CREATE ROLE ana LOGIN; GRANT ALL ON SCHEMA public TO ana",
        );
        let mut options = lab.postgres_options("dlock");
        (options.sql.user, options.sql.database) = (Some("ana".into()), Some("postgres".into()));
        Own::Postgres(server, options)
    } else {
        let server = MariaDb::with(mariadb::Options {
            settings: vec!["--max-connections=10".into()],
            ..Default::default()
        });
        server.sql(
            "mysql",
            "CREATE DATABASE app; CREATE USER ana; GRANT ALL ON app.* TO ana",
        );
        let mut options = lab.mysql_options("dlock");
        (options.sql.user, options.sql.database) = (Some("ana".into()), Some("app".into()));
        Own::MariaDb(server, options)
    };
    server.client().0.init().await.expect("init");
    // The session ends meanwhile.
    lab.pass(Duration::from_millis(100)).await;
    let mut others: Vec<Client> = Vec::new();
    let error = loop {
        let mut next = server.client();
        match next.0.inspect(&key("job")).await {
            Ok(_) => others.push(next),
            Err(error) => break error,
        }
        assert!(others.len() < lab.either(8, 12));
    };
    assert!(
        error.is_transient() && error.effect == Effect::NotApplied,
        "{error:?}"
    );
    assert!(
        lab.kind.is_postgres()
            || error
                .hint
                .as_deref()
                .is_some_and(|hint| hint.contains("max_connections")),
        "{error:?}"
    );
    let mut a = server.client();
    let never = std::future::pending::<()>();
    let take = lease::acquire(
        &mut *a.0,
        &BootClock,
        request(&key("job"), LONG),
        WaitPolicy::Try,
        Limits::DEFAULT,
        never,
        |_| {},
    );
    let leave = async {
        lab.pass(Duration::from_millis(500)).await;
        others.clear();
    };
    let (outcome, ()) = tokio::join!(take, leave);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
}

async fn a_restarted_server_is_retried(lab: &Lab) {
    let mut server = Own::start(lab).await;
    let mut a = server.client();
    let job = key("job");
    let held = a.hold(&job).await;
    let fence = a.inspect(&job).await.last_fence;
    server.restart();
    let renewal = lease::ask(
        &mut *a.0,
        &BootClock,
        Limits::DEFAULT,
        ("ask", None),
        async |backend: &mut dyn Backend| backend.renew(&held.key, &held.token, None.into()).await,
    );
    let renewal = renewal.await.expect("an answer");
    if lab.kind.held_by_session() {
        assert_eq!(renewal, Renewal::NotHeld, "sessions end with the server");
        // The old holder's command may still run until the holder reports its end.
        server.client().refused(&request(&job, LONG)).await;
        let info = ReleaseInfo {
            end: Some(End::Lost),
            run_state: None,
            ..ReleaseInfo::UNDO
        };
        assert_eq!(
            a.0.release(&job, &held.token, &info)
                .await
                .expect("an answer"),
            Release::NotHeld
        );
    } else {
        assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
        server.client().refused(&request(&job, LONG)).await;
        a.free(&held).await;
    }
    assert!(Some(server.client().take(&request(&job, LONG)).await.fence) > fence);
}
