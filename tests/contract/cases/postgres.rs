//! What only PostgreSQL does: ShedLock's statements on the same rows, sessions that end, connections that run out.

use std::time::{Duration, Instant};

use dlock::{
    backends::{
        Secret,
        postgres::{AdvisoryKey, Mode, Options, backend},
        sql::{Server, TlsMode},
    },
    lease::{self, BootClock, Limits, Outcome, Patience},
    lock::{Effect, End, Init, Kind as ErrorKind, Release, Renewal, Request, Scope},
};

use super::{Case, cases};
use crate::{
    lab::{Client, LONG, Lab, SHORT, SLACK, key, nested, request, soon, waiting},
    support::{self, postgres, proxy::Proxy},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![|kind| kind == Kind::PostgresLease =>
        a_shedlock_that_is_held_is_busy,
        a_shedlock_that_was_given_back_is_free,
        a_lock_of_ours_keeps_shedlock_out,
        what_shedlock_took_over_is_not_held,
        an_existing_shedlock_table_is_upgraded,
        a_column_with_a_time_zone_is_refused,
        a_missing_table_is_a_mistake_with_a_hint,
        a_newer_layout_is_refused,
        unused_rows_are_collected_and_fences_rise_on,
        leases_that_are_never_given_back_are_remembered_within_bounds,
        a_shared_table_is_not_collected,
        a_row_that_somebody_keeps_locked_is_no_answer,
        a_read_only_server_is_a_mistake,
        passwords_and_certificates_are_checked,
        a_unix_socket_serves,
        a_clock_that_is_set_back_repeats_no_fence,
        a_clock_that_is_set_forward_ends_leases_and_is_told,
        what_was_given_back_is_free_wherever_the_clock_is,
        an_uncontended_acquire_is_one_round_trip_on_postgres,
        an_acquire_that_is_undone_is_not_granted_later,
        what_people_write_stays_text,
    ];
    all.extend(cases![|kind| kind.is_postgres() && kind.is_a_session() =>
        a_session_that_is_ended_is_noticed_at_once,
        a_cut_connection_is_noticed_at_once,
        a_silent_holder_is_ended_by_the_server,
        a_renewal_whose_answer_was_lost_keeps_the_lock,
        fences_rise_though_holders_crash,
        there_is_a_lifeline_for_each_hold,
        a_wait_is_given_up_though_the_server_hears_of_it_late,
    ]);
    all.extend(cases![|kind| kind == Kind::PostgresAdvisory => anybody_can_take_the_same_advisory_lock]);
    all.extend(cases![Kind::is_postgres =>
        waiters_that_vanished_leave_nothing_blocked,
        a_server_without_connections_is_asked_again,
        a_restarted_server_is_asked_again,
        a_pooler_is_noticed,
    ]);
    all
}

/// What ShedLock's PostgreSQL provider sends with `usingDbTime`, for lockAtMostFor and lockAtLeastFor of these lengths.
pub fn shedlock(table: &str, name: &str, by: &str, most: &str) -> String {
    format!(
        "INSERT INTO {table}(name, lock_until, locked_at, locked_by) \
         VALUES('{name}', timezone('utc', CURRENT_TIMESTAMP) + cast('{most}' as interval), timezone('utc', CURRENT_TIMESTAMP), '{by}') \
         ON CONFLICT (name) DO UPDATE SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + cast('{most}' as interval), \
         locked_at = timezone('utc', CURRENT_TIMESTAMP), locked_by = '{by}' \
         WHERE {table}.name = '{name}' AND {table}.lock_until <= timezone('utc', CURRENT_TIMESTAMP) RETURNING 1"
    )
}

fn unlock(table: &str, name: &str, by: &str) -> String {
    format!(
        "UPDATE {table} SET lock_until = CASE WHEN locked_at + cast('0 seconds' as interval) > timezone('utc', CURRENT_TIMESTAMP) \
         THEN locked_at + cast('0 seconds' as interval) ELSE timezone('utc', CURRENT_TIMESTAMP) END \
         WHERE name = '{name}' AND locked_by = '{by}' RETURNING 1"
    )
}

async fn a_shedlock_that_is_held_is_busy(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    assert_eq!(lab.postgres().sql(&shedlock("dlock", "dlock:job", "web7", "30 seconds")).len(), 1);
    let busy = a.refused(&request(&job, LONG)).await;
    assert!(busy.holders[0].foreign && !busy.notifies && busy.holders[0].fence.is_none(), "{busy:?}");
    let left = busy.expires_in.expect("it ends");
    assert!(left > Duration::from_secs(25) && left <= Duration::from_secs(30), "{left:?}");
    assert_eq!(a.inspect(&job).await.holders[0].metadata.as_ref().and_then(|who| who.host.as_deref()), Some("web7"));
    assert_eq!(a.keys("").await, ["job"]);
    let mine = request(&job, LONG);
    assert_eq!(a.renew(&mine, None).await, Renewal::NotHeld);
    assert_eq!(a.release(&mine, Scope::Tree).await, Release::NotHeld);
    a.refused(&request(&job, LONG)).await;
}

async fn a_shedlock_that_was_given_back_is_free(lab: &Lab) {
    let job = key("job");
    let mut a = lab.client().await;
    lab.postgres().sql(&shedlock("dlock", "dlock:job", "web7", "30 seconds"));
    let never = std::future::pending::<()>();
    let take = lease::acquire(&mut *a.0, &BootClock, waiting(&job, LONG), Patience::For(LONG), Limits::DEFAULT, never, |_| {});
    let free = async {
        lab.pass(Duration::from_millis(300)).await;
        assert_eq!(lab.postgres().sql(&unlock("dlock", "dlock:job", "web7")).len(), 1);
        Instant::now()
    };
    let (outcome, freed) = tokio::join!(take, free);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    // It tells nobody: it is looked at.
    assert!(freed.elapsed() < soon(), "{:?}", freed.elapsed());
}

async fn a_lock_of_ours_keeps_shedlock_out(lab: &Lab) {
    let mut a = lab.client().await;
    let held = a.hold(&key("job")).await;
    let take = shedlock("dlock", "dlock:job", "web7", "30 seconds");
    assert!(lab.postgres().sql(&take).is_empty(), "ShedLock took a lock that we hold");
    assert!(lab.postgres().sql(&unlock("dlock", "dlock:job", "web7")).is_empty());
    a.free(&held).await;
    assert_eq!(lab.postgres().sql(&take).len(), 1, "ShedLock did not get a lock that was given back");
    a.refused(&request(&key("job"), LONG)).await;
}

async fn what_shedlock_took_over_is_not_held(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = request(&job, SHORT);
    a.take(&held).await;
    lab.outlast(SHORT).await;
    assert_eq!(lab.postgres().sql(&shedlock("dlock", "dlock:job", "web7", "30 seconds")).len(), 1);
    let before = lab.postgres().sql("SELECT name, lock_until, locked_at, locked_by FROM dlock");
    assert_eq!(a.renew(&held, Some(LONG)).await, Renewal::NotHeld);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
    assert!(matches!(a.attempt(&nested(&held)).await, dlock::lock::Attempt::NotHeld));
    a.refused(&held).await;
    assert!(a.inspect(&job).await.holders[0].foreign, "what we left behind was taken for ShedLock's");
    assert_eq!(lab.postgres().sql("SELECT name, lock_until, locked_at, locked_by FROM dlock"), before);
}

const SHEDLOCK: &str = "CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT NULL, \
                        locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))";

fn on_shedlock(lab: &Lab) -> Client {
    let mut options = lab.postgres().options("");
    options.sql.table = "shedlock".into();
    Client(backend(options))
}

async fn an_existing_shedlock_table_is_upgraded(lab: &Lab) {
    lab.postgres().sql(SHEDLOCK);
    lab.postgres().sql(&shedlock("shedlock", "nightly", "web7", "30 seconds"));
    let mut a = on_shedlock(lab);
    let error = a.0.try_acquire(&request(&key("job"), LONG)).await.expect_err("it has not our columns yet");
    assert_eq!((error.kind, error.hint.is_some_and(|hint| hint.contains("dlock init"))), (ErrorKind::Config, true));
    assert_eq!(a.0.init().await.expect("init"), Init::Created);
    assert_eq!(a.0.init().await.expect("init"), Init::UpToDate);
    assert!(a.refused(&request(&key("nightly"), LONG)).await.holders[0].foreign);
    let long = key(&"x".repeat(255));
    a.hold(&long).await;
    lab.postgres().sql(&unlock("shedlock", "nightly", "web7"));
    let held = a.hold(&key("nightly")).await;
    assert!(lab.postgres().sql(&shedlock("shedlock", "nightly", "web7", "30 seconds")).is_empty());
    a.free(&held).await;
    assert_eq!(lab.postgres().sql(&shedlock("shedlock", "nightly", "web7", "30 seconds")).len(), 1);
}

async fn a_column_with_a_time_zone_is_refused(lab: &Lab) {
    lab.postgres().sql(&SHEDLOCK.replace("lock_until TIMESTAMP", "lock_until TIMESTAMPTZ"));
    let error = on_shedlock(lab).0.init().await.expect_err("it would mean another time in each time zone");
    assert_eq!(error.kind, ErrorKind::Config, "{error:?}");
}

async fn a_missing_table_is_a_mistake_with_a_hint(lab: &Lab) {
    let mut options = lab.postgres().options("dlock");
    options.sql.table = "elsewhere".into();
    let mut a = Client(backend(options));
    let error = a.0.try_acquire(&request(&key("job"), LONG)).await.expect_err("no table");
    assert_eq!((error.kind, error.effect), (ErrorKind::Config, Effect::NotApplied), "{error:?}");
    assert!(error.hint.as_deref().is_some_and(|hint| hint.contains("dlock init")), "{error:?}");
    assert_eq!(a.0.init().await.expect("init"), Init::Created);
    a.hold(&key("job")).await;
}

async fn a_newer_layout_is_refused(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    lab.postgres().sql("UPDATE dlock SET layout = 300");
    let mut errors = Vec::new();
    errors.extend(a.0.try_acquire(&request(&job, LONG)).await.err());
    errors.extend(a.0.renew(&job, &held.token, None.into()).await.err());
    errors.extend(a.0.release(&job, &held.token, &Scope::Tree.into()).await.err());
    errors.extend(a.0.inspect(&job).await.err());
    assert_eq!(errors.len(), 4);
    assert!(errors.iter().all(|error| error.kind == ErrorKind::Layout), "{errors:?}");
    lab.postgres().sql("UPDATE dlock SET layout = 299");
    a.renewed(&held, None).await;
    a.free(&held).await;
    // Not even if it is free.
    lab.postgres().sql("UPDATE dlock SET layout = 300");
    assert_eq!(a.0.try_acquire(&request(&job, LONG)).await.expect_err("newer").kind, ErrorKind::Layout);
}

async fn leases_that_are_never_given_back_are_remembered_within_bounds(lab: &Lab) {
    let (mut a, job) = (lab.client().await, key("job"));
    let mut last = None;
    for _ in 0..140 {
        last = Some(a.take(&request(&job, LONG)).await.fence);
        lab.postgres().sql("UPDATE dlock SET lock_until = lock_until - interval '2 minutes'");
    }
    let past = super::history::history(&mut a, &job).await.past;
    assert!((100..=132).contains(&past.len()), "{}", past.len());
    assert!(past[0].fence == last && past.iter().all(|one| one.end == End::Expired), "{past:?}");
}

async fn unused_rows_are_collected_and_fences_rise_on(lab: &Lab) {
    let mut a = lab.client().await;
    let mut fences = Vec::new();
    for name in ["old", "held", "new"] {
        let held = request(&key(name), LONG);
        fences.push(a.take(&held).await.fence);
        if name != "held" {
            a.free(&held).await;
        }
    }
    let day = Duration::from_secs(24 * 3600);
    assert_eq!(a.0.collect(day).await.expect("gc"), Some(0));
    let sql = "UPDATE dlock SET lock_until = lock_until - interval '2 days', locked_at = locked_at - interval '2 days', \
               renewed_at = renewed_at - interval '2 days' WHERE name <> 'dlock:new' AND name <> 'dlock:held'";
    lab.postgres().sql(sql);
    // Its fence is not older than the day: a clock that is set back by less could repeat it.
    assert_eq!(a.0.collect(day).await.expect("gc"), Some(0));
    lab.postgres().sql("UPDATE dlock SET fence = fence - 172800000000 WHERE name = 'dlock:old'");
    assert_eq!(a.0.collect(day).await.expect("gc"), Some(1));
    // What is remembered goes by its own age.
    assert_eq!(super::history::history(&mut a, &key("old")).await.past.len(), 1);
    lab.postgres().sql("UPDATE dlock_runs SET ended = ended - interval '2 days' WHERE name = 'dlock:old'");
    a.0.collect(day).await.expect("gc");
    assert_eq!(super::history::history(&mut a, &key("old")).await.past, []);
    assert_eq!(super::history::history(&mut a, &key("new")).await.past.len(), 1);
    assert_eq!(a.keys("").await, ["held"]);
    assert!(a.take(&request(&key("old"), LONG)).await.fence > fences[0]);
}

async fn a_shared_table_is_not_collected(lab: &Lab) {
    lab.postgres().sql(&shedlock("dlock", "nightly", "web7", "1 seconds"));
    let error = lab.client().await.0.collect(Duration::from_secs(60)).await.expect_err("ShedLock's nodes remember the row");
    assert_eq!(error.kind, ErrorKind::Unsupported, "{error:?}");
}

async fn a_row_that_somebody_keeps_locked_is_no_answer(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let blocker = lab.postgres().keep("BEGIN; SELECT 1 FROM dlock WHERE name = 'dlock:job' FOR UPDATE");
    let renewal = tokio::time::timeout(Duration::from_millis(300), a.0.renew(&job, &held.token, None.into())).await;
    assert!(renewal.is_err(), "{renewal:?}");
    drop(blocker);
    a.renewed(&held, None).await;
    a.free(&held).await;
}

async fn a_read_only_server_is_a_mistake(lab: &Lab) {
    lab.postgres().sql(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", lab.postgres().database));
    let mut a = lab.client().await;
    let error = a.0.try_acquire(&request(&key("job"), LONG)).await.expect_err("read only");
    assert_eq!((error.kind, error.effect), (ErrorKind::Config, Effect::NotApplied), "{error:?}");
    assert!(error.message.contains("standby"), "{error}");
    assert!(a.0.inspect(&key("job")).await.is_ok(), "looking needs no writing");
}

async fn passwords_and_certificates_are_checked(_: &Lab) {
    let server = postgres::Postgres::with(postgres::Options { tls_names: vec!["127.0.0.1"], passwords: true, ..Default::default() });
    server.sql(
        postgres::USER,
        "SET password_encryption = 'scram-sha-256'; CREATE ROLE ana LOGIN PASSWORD 'p@ss:w/rd'; GRANT ALL ON SCHEMA public TO ana",
    );
    let with = |tls, password: Option<&str>| {
        let mut options = Options::new(Server::Tcp { host: "127.0.0.1".into(), port: server.port });
        options.sql.user = Some("ana".into());
        options.sql.database = Some("postgres".into());
        options.sql.password = password.map(Secret::new);
        options.sql.tls = tls;
        options.sql.ca_file = server.certificates.as_ref().map(|files| files.ca.clone());
        options
    };
    for tls in [TlsMode::Disable, TlsMode::Prefer, TlsMode::Require, TlsMode::VerifyCa, TlsMode::VerifyFull] {
        let mut a = Client(backend(with(tls, Some("p@ss:w/rd"))));
        a.0.init().await.expect("init");
        let held = a.hold(&key(&format!("{tls:?}"))).await;
        a.free(&held).await;
        let encrypted = "SELECT bool_or(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'dlock %'";
        assert_eq!(server.text("postgres", encrypted) == "t", tls != TlsMode::Disable, "{tls:?}");
        drop(a);
        lab_pause().await;
    }
    for password in [None, Some("wr0ng-secret")] {
        let error = backend(with(TlsMode::VerifyFull, password)).try_acquire(&request(&key("job"), LONG)).await.expect_err("refused");
        assert_eq!((error.kind, error.effect), (ErrorKind::Denied, Effect::NotApplied), "{error:?}");
        assert!(!format!("{error:?}").contains("wr0ng-secret"));
    }
    let elsewhere = support::folder();
    let theirs = support::tls::Certificates::make(elsewhere.path(), &["127.0.0.1"]).ca;
    for (what, tls, ca) in [
        ("the public authorities don't know it", TlsMode::VerifyFull, None),
        ("another authority", TlsMode::VerifyFull, Some(theirs.clone())),
        ("another authority", TlsMode::VerifyCa, Some(theirs)),
    ] {
        let mut options = with(tls, Some("p@ss:w/rd"));
        options.sql.ca_file = ca;
        let error = backend(options).try_acquire(&request(&key("job"), LONG)).await.expect_err(what);
        assert_eq!((error.kind, error.effect), (ErrorKind::Denied, Effect::NotApplied), "{what}: {error:?}");
    }
    // A certificate for another name does for an authority that is known, but not for this host.
    let mut misnamed = with(TlsMode::VerifyFull, Some("p@ss:w/rd"));
    misnamed.sql.server = Server::Tcp { host: "localhost".into(), port: server.port };
    let error = backend(misnamed.clone()).try_acquire(&request(&key("job"), LONG)).await.expect_err("another name");
    assert_eq!(error.kind, ErrorKind::Denied, "{error:?}");
    misnamed.sql.tls = TlsMode::VerifyCa;
    Client(backend(misnamed)).hold(&key("job")).await;
}

/// Lets clients that were dropped end.
async fn lab_pause() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn a_unix_socket_serves(lab: &Lab) {
    let server = lab.postgres().server();
    let mut options = lab.postgres().options("dlock");
    options.sql.server = Server::Unix { path: server.socket_folder().into(), port: server.port };
    let (mut a, mut b) = (Client(backend(options.clone())), Client(backend(options)));
    let held = a.hold(&key("job")).await;
    let wanted = waiting(&key("job"), LONG);
    b.refused(&wanted).await;
    let release = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
        Instant::now()
    };
    let (_, released) = tokio::join!(b.wait_for(&wanted, LONG), release);
    assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
    assert!(b.0.notices().is_empty(), "a Unix socket was taken for a pooler");
}

async fn an_uncontended_acquire_is_one_round_trip_on_postgres(lab: &Lab) {
    let proxy = Proxy::to(lab.postgres().server().port);
    let mut a = lab.postgres().through(&proxy);
    let held = a.hold(&key("job")).await;
    // The login's, and one that takes a row that was not there.
    assert!(proxy.requests() <= 2, "{} requests", proxy.requests());
    a.free(&held).await;
    let before = proxy.requests();
    let held = a.hold(&key("job")).await;
    a.renewed(&held, None).await;
    a.free(&held).await;
    assert_eq!(proxy.requests() - before, 3);
}

/// The server may be so slow that the release is done first.
async fn an_acquire_that_is_undone_is_not_granted_later(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    a.free(&held).await;
    let blocker = lab.postgres().keep("BEGIN; SELECT 1 FROM dlock WHERE name = 'dlock:job' FOR UPDATE");
    let wanted = request(&job, LONG);
    let attempt = tokio::time::timeout(SLACK, a.0.try_acquire(&wanted)).await;
    assert!(attempt.is_err(), "{attempt:?}");
    assert_eq!(a.release(&wanted, Scope::Hold).await, Release::NotHeld);
    drop(blocker);
    b.hold(&job).await;
}

async fn what_people_write_stays_text(lab: &Lab) {
    let mut a = lab.client().await;
    let odd = "it's \\ $1 $$; -- \u{e9}\u{1f512} \"x\" E'\\x41' \t{table}";
    let held = Request { metadata: Some(crate::lab::who(odd)), ..request(&key("job"), LONG) };
    a.take(&held).await;
    let holder = a.inspect(&held.key).await.holders.remove(0);
    assert_eq!(holder.metadata, held.metadata);
    a.renewed(&held, None).await;
    a.free(&held).await;
}

async fn a_session_that_is_ended_is_noticed_at_once(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let quiet = tokio::time::timeout(SLACK, a.0.tether().expect("a session").watch(&job, &held.token)).await;
    assert!(quiet.is_err(), "nothing happened yet");
    let pid = lab.postgres().sql("SELECT pid FROM dlock_sessions WHERE name = 'dlock:job'")[0][0].clone().expect("a pid");
    lab.postgres().sql(&format!("SELECT pg_terminate_backend({pid})"));
    tokio::time::timeout(soon(), a.0.tether().expect("a session").watch(&job, &held.token)).await.expect("the session is over");
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
    let next = request(&job, LONG);
    let settle = b.take(&next).await.settle;
    assert!(settle >= Duration::from_millis(500), "{settle:?} for who was ended to stop what it ran");
    b.free(&next).await;
    assert_eq!(a.take(&request(&job, LONG)).await.settle, Duration::ZERO, "it was given back");
}

async fn a_cut_connection_is_noticed_at_once(lab: &Lab) {
    let server = lab.postgres();
    let proxy = Proxy::to(server.server().port);
    let mut a = server.through(&proxy);
    let job = key("job");
    let held = a.hold(&job).await;
    proxy.cut();
    tokio::time::timeout(soon(), a.0.tether().expect("a session").watch(&job, &held.token)).await.expect("the connection is over");
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    let wanted = waiting(&job, LONG);
    lab.client().await.wait_for(&wanted, Duration::from_millis(100)).await;
}

async fn a_silent_holder_is_ended_by_the_server(lab: &Lab) {
    let server = lab.postgres();
    let mut proxy = Proxy::to(server.server().port);
    let mut a = server.through(&proxy);
    let job = key("job");
    let held = request(&job, SHORT * 2);
    a.take(&held).await;
    lab.pass(SHORT).await;
    let renewed = Instant::now();
    a.renewed(&held, None).await;
    proxy.set(support::proxy::Mode::BlackHole);
    let mut b = lab.client().await;
    b.refused(&waiting(&job, LONG)).await;
    b.wait_for(&waiting(&job, LONG), Duration::from_secs(5)).await;
    let took = renewed.elapsed();
    assert!(took >= SHORT * 2 && took < SHORT * 2 + soon(), "{took:?}");
}

async fn a_renewal_whose_answer_was_lost_keeps_the_lock(lab: &Lab) {
    let server = lab.postgres();
    let proxy = Proxy::to(server.server().port);
    let mut a = server.through(&proxy);
    let job = key("job");
    let held = a.hold(&job).await;
    proxy.trap("", support::proxy::Fault::LateReply(Duration::from_millis(300)));
    let renewal = tokio::time::timeout(Duration::from_millis(100), a.0.renew(&job, &held.token, None.into())).await;
    assert!(renewal.is_err(), "{renewal:?}");
    a.renewed(&held, None).await;
    lab.client().await.refused(&request(&job, LONG)).await;
    a.free(&held).await;
    lab.client().await.hold(&job).await;
}

async fn fences_rise_though_holders_crash(lab: &Lab) {
    let job = key("job");
    let mut last = dlock::lock::Fence(0);
    for _ in 0..3 {
        let mut a = lab.client().await;
        let held = waiting(&job, LONG);
        let fence = a.wait_for(&held, Duration::from_millis(50)).await.fence;
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        drop(a);
    }
}

async fn there_is_a_lifeline_for_each_hold(lab: &Lab) {
    let mut a = lab.client().await;
    assert!(a.0.tether().expect("a session").lifelines().expect("none").is_empty());
    let held = a.hold(&key("job")).await;
    a.hold(&key("other")).await;
    let lines = a.0.tether().expect("a session").lifelines().expect("two");
    assert_eq!(lines.len(), 2);
    // As when dlock is killed: the session lasts as long as the socket does.
    let job = key("job");
    drop(a);
    lab.pass(SLACK).await;
    assert_eq!(held.key, job);
    drop(lines);
    let wanted = waiting(&job, LONG);
    lab.client().await.wait_for(&wanted, Duration::from_millis(50)).await;
}

/// The server must not begin to wait after it was told to stop.
async fn a_wait_is_given_up_though_the_server_hears_of_it_late(lab: &Lab) {
    let server = lab.postgres();
    let proxy = Proxy::to(server.server().port);
    let (mut a, mut b) = (lab.client().await, server.through(&proxy));
    let job = key("job");
    let held = a.hold(&job).await;
    let wanted = waiting(&job, LONG);
    b.refused(&wanted).await;
    proxy.trap("lock_timeout", support::proxy::Fault::Late(SLACK));
    let wait = tokio::time::timeout(SLACK / 2, b.0.wait(&wanted, LONG)).await;
    assert!(wait.is_err(), "{wait:?}");
    tokio::time::timeout(soon(), b.leave_queue(&wanted)).await.expect("it is given up");
    let blocked = lab.postgres().sql(BLOCKED);
    assert!(blocked.is_empty(), "{blocked:?}");
    a.free(&held).await;
    b.hold(&job).await;
}

/// Sessions of ours in the case's database that wait for a lock.
const BLOCKED: &str = "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'dlock %' \
                       AND wait_event_type = 'Lock'";

async fn waiters_that_vanished_leave_nothing_blocked(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let mut waiters = Vec::new();
    for _ in 0..3 {
        let (mut b, wanted) = (lab.client().await, waiting(&job, LONG));
        b.refused(&wanted).await;
        let wait = tokio::time::timeout(SLACK, b.0.wait(&wanted, LONG)).await;
        assert!(wait.is_err(), "{wait:?}");
        waiters.push(b);
    }
    drop(waiters);
    assert!(!lab.postgres().sql(BLOCKED).is_empty(), "nobody waited");
    let began = Instant::now();
    while !lab.postgres().sql(BLOCKED).is_empty() {
        assert!(began.elapsed() < soon() * 2, "the server did not notice that nobody waits any more");
        lab.pass(Duration::from_millis(20)).await;
    }
    a.free(&held).await;
}

async fn anybody_can_take_the_same_advisory_lock(lab: &Lab) {
    let mut a = lab.client().await;
    let held = a.hold(&key("job")).await;
    let theirs = "SELECT pg_try_advisory_lock(hashtextextended('dlock:job', 0))";
    assert_eq!(lab.postgres().sql(theirs)[0][0].as_deref(), Some("f"));
    a.free(&held).await;
    let keeps = lab.postgres().keep("SELECT pg_advisory_lock(hashtextextended('dlock:job', 0))");
    let busy = a.refused(&request(&key("job"), LONG)).await;
    assert!(busy.holders[0].foreign && busy.holders[0].fence.is_none(), "{busy:?}");
    drop(keeps);
    for (key_of, sql) in [(AdvisoryKey::One(-7), "-7"), (AdvisoryKey::Two(7, -8), "7, -8")] {
        let mut options = lab.postgres().options("dlock");
        options.advisory_key = Some(key_of);
        let mut b = Client(backend(options));
        let held = Request { metadata: Some(crate::lab::who("web1")), ..request(&key("job"), LONG) };
        b.take(&held).await;
        assert_eq!(lab.postgres().sql(&format!("SELECT pg_try_advisory_lock({sql})"))[0][0].as_deref(), Some("f"));
        assert_eq!(b.inspect(&key("job")).await.holders[0].metadata, Some(crate::lab::who("web1")));
        b.free(&held).await;
    }
    assert_eq!(lab.postgres().options("dlock").mode, Mode::Advisory);
}

async fn a_server_without_connections_is_asked_again(lab: &Lab) {
    let server = postgres::Postgres::with(postgres::Options {
        settings: vec!["max_connections=8".into(), "superuser_reserved_connections=2".into()],
        ..Default::default()
    });
    server.sql(postgres::USER, "CREATE ROLE ana LOGIN; GRANT ALL ON SCHEMA public TO ana");
    let mut options = lab.postgres().options("dlock");
    options.sql.server = Server::Tcp { host: "127.0.0.1".into(), port: server.port };
    options.sql.user = Some("ana".into());
    options.sql.database = Some("postgres".into());
    Client(backend(options.clone())).0.init().await.expect("init");
    lab_pause().await;
    let mut others: Vec<Client> = Vec::new();
    let error = loop {
        let mut next = Client(backend(options.clone()));
        match next.0.inspect(&key("job")).await {
            Ok(_) => others.push(next),
            Err(error) => break error,
        }
        assert!(others.len() < 8);
    };
    assert!(error.is_transient() && error.effect == Effect::NotApplied, "{error:?}");
    let mut a = Client(backend(options));
    let never = std::future::pending::<()>();
    let take = lease::acquire(&mut *a.0, &BootClock, request(&key("job"), LONG), Patience::Try, Limits::DEFAULT, never, |_| {});
    let leave = async {
        lab.pass(Duration::from_millis(500)).await;
        others.clear();
    };
    let (outcome, ()) = tokio::join!(take, leave);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
}

async fn a_restarted_server_is_asked_again(lab: &Lab) {
    let mut server = postgres::Postgres::with(postgres::Options { durable: true, ..Default::default() });
    let mut options = lab.postgres().options("dlock");
    options.sql.server = Server::Tcp { host: "127.0.0.1".into(), port: server.port };
    options.sql.database = Some("postgres".into());
    let mut a = Client(backend(options.clone()));
    a.0.init().await.expect("init");
    let job = key("job");
    let held = a.hold(&job).await;
    let fence = a.inspect(&job).await.last_fence;
    server.restart();
    let renewal = lease::ask(&mut *a.0, &BootClock, Limits::DEFAULT, ("ask", None), async |backend: &mut dyn dlock::lock::Backend| {
        backend.renew(&held.key, &held.token, None.into()).await
    });
    let renewal = renewal.await.expect("an answer");
    if lab.kind.is_a_session() {
        assert_eq!(renewal, Renewal::NotHeld, "sessions end with the server");
        // What it ran may run yet, until it says that it does not.
        Client(backend(options.clone())).refused(&request(&job, LONG)).await;
        assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
    } else {
        assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
        Client(backend(options.clone())).refused(&request(&job, LONG)).await;
        a.free(&held).await;
    }
    let mut b = Client(backend(options));
    assert!(Some(b.take(&request(&job, LONG)).await.fence) > fence);
}

/// A server whose clock is what a file says, and how to reach it.
struct Stepped {
    _server: postgres::Postgres,
    offset: std::path::PathBuf,
    _folder: tempfile::TempDir,
    options: Options,
}

impl Stepped {
    fn start(lab: &Lab, test: &str) -> Option<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
        if !std::path::Path::new(library).exists() {
            support::skip(test, "faketime is not installed");
            return None;
        }
        let folder = support::folder();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("the folder's mode");
        let offset = folder.path().join("offset");
        std::fs::write(&offset, "+0").expect("offset");
        let environment = vec![
            ("LD_PRELOAD", library.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", offset.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        let server = postgres::Postgres::with(postgres::Options { environment, ..Default::default() });
        let mut options = lab.postgres().options("dlock");
        options.sql.server = Server::Tcp { host: "127.0.0.1".into(), port: server.port };
        options.sql.database = Some("postgres".into());
        Some(Self { _server: server, offset, _folder: folder, options })
    }

    fn step(&self, offset: &str) {
        std::fs::write(&self.offset, offset).expect("offset");
    }

    async fn client(&self) -> Client {
        let mut client = Client(backend(self.options.clone()));
        client.0.init().await.expect("init");
        client
    }
}

/// Nobody's lock must not look like somebody's until the clock has caught up, to ShedLock neither.
async fn what_was_given_back_is_free_wherever_the_clock_is(lab: &Lab) {
    let Some(stepped) = Stepped::start(lab, "what_was_given_back_is_free_wherever_the_clock_is") else { return };
    let (mut a, mut b) = (stepped.client().await, stepped.client().await);
    let (job, tree) = (key("job"), key("tree"));
    let held = a.hold(&job).await;
    a.free(&held).await;
    let outer = a.hold(&tree).await;
    b.take(&nested(&outer)).await;
    assert_eq!(a.release(&outer, Scope::Tree).await, Release::Released);
    stepped.step("-3600");
    for job in [&job, &tree] {
        assert!(b.inspect(job).await.holders.is_empty());
        b.hold(job).await;
    }
}

async fn a_clock_that_is_set_back_repeats_no_fence(lab: &Lab) {
    let Some(stepped) = Stepped::start(lab, "a_clock_that_is_set_back_repeats_no_fence") else { return };
    let (mut a, mut b) = (stepped.client().await, stepped.client().await);
    let job = key("job");
    let held = request(&job, LONG);
    let first = a.take(&held).await.fence;
    stepped.step("-3600");
    // It lasts longer, and nobody else gets it.
    b.refused(&request(&job, LONG)).await;
    assert!(a.left(&job).await > LONG * 50);
    assert!(matches!(a.renew(&held, None).await, Renewal::Kept { .. }));
    a.free(&held).await;
    let next = request(&job, LONG);
    let second = b.take(&next).await.fence;
    assert!(second > first, "{second} after {first}");
}

async fn a_clock_that_is_set_forward_ends_leases_and_is_told(lab: &Lab) {
    let Some(stepped) = Stepped::start(lab, "a_clock_that_is_set_forward_ends_leases_and_is_told") else { return };
    let (mut a, mut b) = (stepped.client().await, stepped.client().await);
    let job = key("job");
    let held = request(&job, LONG);
    let first = a.take(&held).await.fence;
    stepped.step("+3600");
    // No promise: the resource has to check the fence.
    let second = b.take(&request(&job, LONG)).await.fence;
    assert!(second > first, "{second} after {first}");
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
}

/// pgbouncer, which hands the server's sessions out by the transaction; `None` where it isn't installed. And its port.
pub fn start_pooler(lab: &Lab) -> Option<((support::process::Process, tempfile::TempDir), u16)> {
    let program = support::find_program("pgbouncer")?;
    let folder = support::folder();
    let port = support::ports::free();
    let settings = format!(
        "[databases]\n* = host=127.0.0.1 port={} user={}\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={port}\nunix_socket_dir=\n\
         auth_type=any\npool_mode=transaction\n",
        lab.postgres().server().port,
        postgres::USER
    );
    let file = folder.path().join("pgbouncer.ini");
    std::fs::write(&file, settings).expect("settings");
    postgres::give(folder.path());
    let mut command = postgres::as_user(&program);
    command.arg(&file).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let pooler = support::process::Process::start(command);
    support::must("pgbouncer listens", Duration::from_secs(5), || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    Some(((pooler, folder), port))
}

async fn a_pooler_is_noticed(lab: &Lab) {
    let Some((_pooler, port)) = start_pooler(lab) else {
        return support::skip("a_pooler_is_noticed", "pgbouncer is not installed");
    };
    let through = || {
        let mut options = lab.postgres().options("dlock");
        options.sql.server = Server::Tcp { host: "127.0.0.1".into(), port };
        Client(backend(options))
    };
    let (mut a, mut b) = (through(), through());
    let job = key("job");
    if lab.kind.is_a_session() {
        let error = a.0.try_acquire(&request(&job, LONG)).await.expect_err("its lock would go with the transaction");
        assert_eq!((error.kind, error.effect), (ErrorKind::Config, Effect::NotApplied), "{error:?}");
        assert!(lab.client().await.inspect(&job).await.holders.is_empty());
        return;
    }
    let plain = waiting(&job, LONG);
    for wanted in [plain.clone(), Request { mode: dlock::lock::Mode::Shared, ..plain.clone() }, Request { fair: true, ..plain }] {
        let wanted = Request { token: dlock::lock::Token::random(), ..wanted };
        let held = a.hold(&job).await;
        a.renewed(&held, None).await;
        let never = std::future::pending::<()>();
        let next = lease::acquire(&mut *b.0, &BootClock, wanted.clone(), Patience::For(LONG), Limits::DEFAULT, never, |_| {});
        let release = async {
            lab.pass(Duration::from_millis(400)).await;
            a.free(&held).await;
            Instant::now()
        };
        let (outcome, released) = tokio::join!(next, release);
        assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
        assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
        b.free(&wanted).await;
    }
    assert!(b.0.notices().iter().any(|notice| notice.text.contains("pooler")), "nothing was told");
    let locks = lab.postgres().sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())");
    assert!(locks.is_empty(), "a gate was left in a session of the pool");
}
