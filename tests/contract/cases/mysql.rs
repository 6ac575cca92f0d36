//! What only MySQL and MariaDB do: ShedLock's statements on the same rows, sessions that end, gates that are lost.

use std::time::{Duration, Instant};

use dlock::{
    backends::{
        Secret,
        mysql::{Mode, Options, backend},
        sql::{Server, TlsMode},
    },
    lease::{self, BootClock, Limits, Outcome, Patience},
    lock::{Effect, End, Fence, Init, Kind as ErrorKind, Release, Renewal, Request, Scope, Wake},
};

use super::{Case, cases};
use crate::{
    lab::{Client, LONG, Lab, SHORT, SLACK, key, nested, request, soon, stretched, waiting},
    support::{
        self,
        mariadb::{self, MariaDb},
        proxy::Proxy,
    },
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![|kind| kind == Kind::MariadbLease =>
        a_shedlock_that_is_held_is_busy_for_mysql,
        a_shedlock_in_mysql_that_was_given_back_is_free,
        a_lock_of_ours_keeps_shedlock_out_of_mysql,
        what_shedlock_took_over_in_mysql_is_not_held,
        an_existing_shedlock_table_in_mysql_is_upgraded,
        a_missing_table_in_mysql_is_a_mistake_with_a_hint,
        a_newer_layout_in_mysql_is_refused,
        unused_rows_in_mysql_are_collected_and_fences_rise_on,
        leases_that_are_never_given_back_are_remembered_within_bounds_in_mysql,
        a_shared_table_in_mysql_is_not_collected,
        a_row_that_somebody_keeps_locked_in_mysql_is_asked_for_again,
        a_session_in_another_time_zone_is_no_matter,
        an_uncontended_acquire_is_two_round_trips,
        passwords_and_certificates_of_mysql_are_checked,
        a_stale_gate_only_slows_down,
        a_holder_that_lost_its_session_takes_the_gate_again,
    ];
    all.extend(cases![|kind| kind.is_mariadb() && kind.is_a_session() =>
        a_session_that_is_killed_is_noticed_at_once,
        nobody_else_is_ended_after_a_restart,
        a_cut_connection_to_mysql_is_noticed_at_once,
        a_silent_holder_is_ended_by_mysql,
        a_renewal_whose_answer_was_lost_keeps_the_lock_in_mysql,
        fences_rise_in_mysql_though_holders_crash,
        there_is_a_lifeline_for_each_hold_in_mysql,
    ]);
    all.extend(cases![|kind| kind == Kind::MariadbAdvisory => anybody_can_take_the_same_lock_of_mysql]);
    all.extend(cases![Kind::is_mariadb =>
        a_mysql_without_connections_is_asked_again,
        a_restarted_mysql_is_asked_again,
        a_read_only_mysql_is_refused,
        a_unix_socket_of_mysql_serves,
    ]);
    all
}

/// What ShedLock's provider for MySQL sends with `usingDbTime`: the row is inserted, or else updated if it is free. True if
/// it took the lock.
pub fn shedlock(lab: &Lab, table: &str, name: &str, by: &str, most: u64) -> bool {
    let micros = most * 1_000_000;
    let until = format!("TIMESTAMPADD(MICROSECOND, {micros}, UTC_TIMESTAMP(3))");
    let insert = format!(
        "INSERT IGNORE INTO {table}(name, lock_until, locked_at, locked_by) VALUES('{name}', {until}, UTC_TIMESTAMP(3), '{by}'); SELECT ROW_COUNT()"
    );
    let update = format!(
        "UPDATE {table} SET lock_until = {until}, locked_at = UTC_TIMESTAMP(3), locked_by = '{by}' \
         WHERE name = '{name}' AND lock_until <= UTC_TIMESTAMP(3); SELECT ROW_COUNT()"
    );
    [insert, update].iter().any(|sql| lab.mariadb().sql(sql)[0][0] == "1")
}

fn unlock(lab: &Lab, table: &str, name: &str, by: &str) -> bool {
    let least = "TIMESTAMPADD(MICROSECOND, 0, locked_at)";
    let sql = format!(
        "UPDATE {table} SET lock_until = IF ({least} > UTC_TIMESTAMP(3) , {least}, UTC_TIMESTAMP(3)) \
         WHERE name = '{name}' AND locked_by = '{by}'; SELECT ROW_COUNT()"
    );
    lab.mariadb().sql(&sql)[0][0] == "1"
}

async fn a_shedlock_that_is_held_is_busy_for_mysql(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    assert!(shedlock(lab, "dlock", "dlock:job", "web7", 30));
    let busy = a.refused(&request(&job, LONG)).await;
    assert!(busy.holders[0].foreign && busy.holders[0].fence.is_none(), "{busy:?}");
    let left = busy.expires_in.expect("it ends");
    assert!(left > Duration::from_secs(25) && left <= Duration::from_secs(30), "{left:?}");
    assert_eq!(a.inspect(&job).await.holders[0].metadata.as_ref().and_then(|who| who.host.as_deref()), Some("web7"));
    assert_eq!(a.keys("").await, ["job"]);
    let mine = request(&job, LONG);
    assert_eq!(a.renew(&mine, None).await, Renewal::NotHeld);
    assert_eq!(a.release(&mine, Scope::Tree).await, Release::NotHeld);
    a.refused(&request(&job, LONG)).await;
}

async fn a_shedlock_in_mysql_that_was_given_back_is_free(lab: &Lab) {
    let job = key("job");
    let mut a = lab.client().await;
    assert!(shedlock(lab, "dlock", "dlock:job", "web7", 30));
    let never = std::future::pending::<()>();
    let take = lease::acquire(&mut *a.0, &BootClock, waiting(&job, LONG), Patience::For(LONG), Limits::DEFAULT, never, |_| {});
    let free = async {
        lab.pass(Duration::from_millis(300)).await;
        assert!(unlock(lab, "dlock", "dlock:job", "web7"));
        Instant::now()
    };
    let (outcome, freed) = tokio::join!(take, free);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    // It tells nobody: it is looked at.
    assert!(freed.elapsed() < soon(), "{:?}", freed.elapsed());
}

async fn a_lock_of_ours_keeps_shedlock_out_of_mysql(lab: &Lab) {
    let mut a = lab.client().await;
    let held = a.hold(&key("job")).await;
    assert!(!shedlock(lab, "dlock", "dlock:job", "web7", 30), "ShedLock took a lock that we hold");
    assert!(!unlock(lab, "dlock", "dlock:job", "web7"));
    a.free(&held).await;
    lab.pass(Duration::from_millis(5)).await;
    assert!(shedlock(lab, "dlock", "dlock:job", "web7", 30), "ShedLock did not get a lock that was given back");
    a.refused(&request(&key("job"), LONG)).await;
}

async fn what_shedlock_took_over_in_mysql_is_not_held(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = request(&job, SHORT);
    a.take(&held).await;
    lab.outlast(SHORT).await;
    assert!(shedlock(lab, "dlock", "dlock:job", "web7", 30));
    let before = lab.mariadb().sql("SELECT name, lock_until, locked_at, locked_by FROM dlock");
    assert_eq!(a.renew(&held, Some(LONG)).await, Renewal::NotHeld);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
    assert!(matches!(a.attempt(&nested(&held)).await, dlock::lock::Attempt::NotHeld));
    a.refused(&held).await;
    assert!(a.inspect(&job).await.holders[0].foreign, "what we left behind was taken for ShedLock's");
    assert_eq!(lab.mariadb().sql("SELECT name, lock_until, locked_at, locked_by FROM dlock"), before);
}

/// As ShedLock's documentation has it.
const SHEDLOCK: &str = "CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL, \
                        locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))";

fn on_shedlock(lab: &Lab) -> Client {
    let mut options = lab.mariadb().options("");
    options.sql.table = "shedlock".into();
    Client(backend(options))
}

async fn an_existing_shedlock_table_in_mysql_is_upgraded(lab: &Lab) {
    lab.mariadb().sql(SHEDLOCK);
    assert!(shedlock(lab, "shedlock", "nightly", "web7", 30));
    let mut a = on_shedlock(lab);
    let error = a.0.try_acquire(&request(&key("job"), LONG)).await.expect_err("it has not our columns yet");
    assert_eq!((error.kind, error.hint.is_some_and(|hint| hint.contains("dlock init"))), (ErrorKind::Config, true));
    assert_eq!(a.0.init().await.expect("init"), Init::Created);
    assert_eq!(a.0.init().await.expect("init"), Init::UpToDate);
    assert!(a.refused(&request(&key("nightly"), LONG)).await.holders[0].foreign, "the upgrade moved its end");
    let long = key(&"x".repeat(255));
    a.hold(&long).await;
    for name in ["NIGHTLY", "nightly "] {
        a.hold(&key(name)).await;
    }
    assert!(unlock(lab, "shedlock", "nightly", "web7"));
    lab.pass(Duration::from_millis(5)).await;
    let held = a.hold(&key("nightly")).await;
    assert!(!shedlock(lab, "shedlock", "nightly", "web7", 30));
    a.free(&held).await;
    lab.pass(Duration::from_millis(5)).await;
    assert!(shedlock(lab, "shedlock", "nightly", "web7", 30));
}

async fn a_missing_table_in_mysql_is_a_mistake_with_a_hint(lab: &Lab) {
    let mut options = lab.mariadb().options("dlock");
    options.sql.table = "elsewhere".into();
    let mut a = Client(backend(options));
    let error = a.0.try_acquire(&request(&key("job"), LONG)).await.expect_err("no table");
    assert_eq!((error.kind, error.hint.as_deref().is_some_and(|hint| hint.contains("dlock init"))), (ErrorKind::Config, true), "{error:?}");
    assert_eq!(a.0.init().await.expect("init"), Init::Created);
    a.hold(&key("job")).await;
}

async fn a_newer_layout_in_mysql_is_refused(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    lab.mariadb().sql("UPDATE dlock SET layout = 300");
    let mut errors = Vec::new();
    errors.extend(a.0.try_acquire(&request(&job, LONG)).await.err());
    errors.extend(a.0.renew(&job, &held.token, None.into()).await.err());
    errors.extend(a.0.release(&job, &held.token, &Scope::Tree.into()).await.err());
    errors.extend(a.0.inspect(&job).await.err());
    assert_eq!(errors.len(), 4);
    assert!(errors.iter().all(|error| error.kind == ErrorKind::Layout), "{errors:?}");
    lab.mariadb().sql("UPDATE dlock SET layout = 299");
    a.renewed(&held, None).await;
    a.free(&held).await;
    // Not even if it is free.
    lab.mariadb().sql("UPDATE dlock SET layout = 300");
    assert_eq!(a.0.try_acquire(&request(&job, LONG)).await.expect_err("newer").kind, ErrorKind::Layout);
}

async fn leases_that_are_never_given_back_are_remembered_within_bounds_in_mysql(lab: &Lab) {
    let (mut a, job) = (lab.client().await, key("job"));
    let mut last = None;
    for _ in 0..140 {
        last = Some(a.take(&request(&job, LONG)).await.fence);
        lab.mariadb().sql("UPDATE dlock SET lock_until = lock_until - INTERVAL 2 MINUTE");
    }
    let past = super::history::history(&mut a, &job).await.past;
    assert!((100..=132).contains(&past.len()), "{}", past.len());
    assert!(past[0].fence == last && past.iter().all(|one| one.end == End::Expired), "{past:?}");
}

async fn unused_rows_in_mysql_are_collected_and_fences_rise_on(lab: &Lab) {
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
    lab.mariadb().sql(
        "UPDATE dlock SET lock_until = lock_until - INTERVAL 2 DAY, locked_at = locked_at - INTERVAL 2 DAY, \
         renewed_at = renewed_at - INTERVAL 2 DAY WHERE name = 'dlock:old'",
    );
    // Its fence is not older than the day: a clock that is set back by less could repeat it.
    assert_eq!(a.0.collect(day).await.expect("gc"), Some(0));
    lab.mariadb().sql("UPDATE dlock SET fence = fence - 172800000000 WHERE name = 'dlock:old'");
    assert_eq!(a.0.collect(day).await.expect("gc"), Some(1));
    // What is remembered goes by its own age.
    assert_eq!(super::history::history(&mut a, &key("old")).await.past.len(), 1);
    lab.mariadb().sql("UPDATE dlock_runs SET ended = ended - INTERVAL 2 DAY WHERE name = 'dlock:old'");
    a.0.collect(day).await.expect("gc");
    assert_eq!(super::history::history(&mut a, &key("old")).await.past, []);
    assert_eq!(super::history::history(&mut a, &key("new")).await.past.len(), 1);
    assert_eq!(a.keys("").await, ["held"]);
    assert!(a.take(&request(&key("old"), LONG)).await.fence > fences[0]);
}

async fn a_shared_table_in_mysql_is_not_collected(lab: &Lab) {
    assert!(shedlock(lab, "dlock", "nightly", "web7", 1));
    let error = lab.client().await.0.collect(Duration::from_secs(60)).await.expect_err("ShedLock's nodes remember the row");
    assert_eq!(error.kind, ErrorKind::Unsupported, "{error:?}");
}

async fn a_row_that_somebody_keeps_locked_in_mysql_is_asked_for_again(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    let blocker = lab.mariadb().keep("START TRANSACTION; SELECT 1 FROM dlock WHERE name = 'dlock:job' FOR UPDATE");
    let began = Instant::now();
    let error = a.0.renew(&job, &held.token, None.into()).await.expect_err("it is locked");
    assert!(error.is_transient() && error.effect == Effect::NotApplied, "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(2) + soon(), "whoever asked would be gone: {:?}", began.elapsed());
    drop(blocker);
    a.renewed(&held, None).await;
    a.free(&held).await;
}

async fn a_session_in_another_time_zone_is_no_matter(lab: &Lab) {
    lab.target.isolate().await;
    let mut a = lab.client().await;
    let held = a.hold(&key("job")).await;
    lab.mariadb().sql("SET GLOBAL time_zone = '+09:00'");
    let mut b = lab.client().await;
    let left = b.refused(&request(&key("job"), LONG)).await.expires_in.expect("it ends");
    assert!(left > LONG / 2 && left <= LONG, "{left:?}");
    assert!(!shedlock(lab, "dlock", "dlock:job", "web7", 30));
    a.free(&held).await;
    let held = b.hold(&key("job")).await;
    lab.mariadb().sql("SET GLOBAL time_zone = '-11:00'");
    lab.client().await.refused(&request(&key("job"), LONG)).await;
    b.free(&held).await;
}

async fn an_uncontended_acquire_is_two_round_trips(lab: &Lab) {
    let proxy = Proxy::to(lab.mariadb().server().port);
    let mut first = lab.mariadb().through_proxy(&proxy);
    first.hold(&key("job")).await;
    let before = proxy.requests();
    let mut a = lab.mariadb().through_proxy(&proxy);
    let held = a.hold(&key("other")).await;
    a.free(&held).await;
    let known = proxy.requests() - before;
    a.hold(&key("other")).await;
    let again = proxy.requests() - before - known;
    // The login, a look at the server, asking for a row that isn't there and making it, and the release.
    assert!(known <= 5, "{known} requests");
    assert_eq!(again, 1, "on an open connection, with a row that is there");
}

async fn passwords_and_certificates_of_mysql_are_checked(_: &Lab) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = MariaDb::with(mariadb::Options { tls_names: vec!["127.0.0.1"], ..Default::default() });
    server.sql("mysql", "CREATE DATABASE app; CREATE USER ana IDENTIFIED BY 'p@ss:w/rd'; GRANT ALL ON app.* TO ana");
    let with = |tls, password: Option<&str>| {
        let mut options = Options::new(Server::Tcp { host: "127.0.0.1".into(), port: server.port });
        options.sql.user = Some("ana".into());
        options.sql.database = Some("app".into());
        options.sql.password = password.map(Secret::new);
        options.sql.tls = tls;
        options.sql.ca_file = server.certificates.as_ref().map(|files| files.ca.clone());
        options
    };
    for tls in [TlsMode::Disable, TlsMode::Prefer, TlsMode::Require, TlsMode::VerifyCa, TlsMode::VerifyFull] {
        let mut a = Client(backend(with(tls, Some("p@ss:w/rd"))));
        a.0.init().await.expect("init");
        let held = a.hold(&key(&format!("{tls:?}"))).await;
        a.renewed(&held, None).await;
        a.free(&held).await;
    }
    server.sql("mysql", "ALTER USER ana REQUIRE SSL");
    let error = backend(with(TlsMode::Disable, Some("p@ss:w/rd"))).try_acquire(&request(&key("job"), LONG)).await.expect_err("in clear");
    assert_eq!((error.kind, error.effect), (ErrorKind::Denied, Effect::NotApplied), "{error:?}");
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

/// Somebody has the gate who neither has the lock nor looks at it.
async fn a_stale_gate_only_slows_down(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let mut stale = lab.client().await;
    let unwanted = waiting(&job, LONG);
    stale.refused(&unwanted).await;
    a.free(&held).await;
    assert_eq!(stale.wait(&unwanted, LONG).await, Wake::Changed, "the gate is open");
    let held = a.hold(&job).await;
    let never = std::future::pending::<()>();
    let take = lease::acquire(&mut *b.0, &BootClock, waiting(&job, LONG), Patience::For(LONG), Limits::DEFAULT, never, |_| {});
    let release = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
        Instant::now()
    };
    let (outcome, released) = tokio::join!(take, release);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    assert!(released.elapsed() < stretched(Duration::from_secs(6)), "{:?}", released.elapsed());
}

async fn a_holder_that_lost_its_session_takes_the_gate_again(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    for id in lab.mariadb().sessions() {
        lab.mariadb().sql(&format!("KILL {id}"));
    }
    lab.pass(SLACK).await;
    a.renewed(&held, None).await;
    let wanted = waiting(&job, LONG);
    b.refused(&wanted).await;
    assert_eq!(b.wait(&wanted, Duration::from_millis(400)).await, Wake::TimedOut, "nobody has the gate, so that the row is polled");
    a.free(&held).await;
    assert_eq!(b.wait(&wanted, LONG).await, Wake::Changed);
}

async fn a_session_that_is_killed_is_noticed_at_once(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let quiet = tokio::time::timeout(SLACK, a.0.tether().expect("a session").watch(&job, &held.token)).await;
    assert!(quiet.is_err(), "nothing happened yet");
    let id = lab.mariadb().sql("SELECT session FROM dlock_sessions WHERE name = 'dlock:job'")[0][0].clone();
    lab.mariadb().sql(&format!("KILL {id}"));
    tokio::time::timeout(soon(), a.0.tether().expect("a session").watch(&job, &held.token)).await.expect("the session is over");
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
    b.hold(&job).await;
}

async fn a_cut_connection_to_mysql_is_noticed_at_once(lab: &Lab) {
    let proxy = Proxy::to(lab.mariadb().server().port);
    let mut a = lab.mariadb().through_proxy(&proxy);
    let job = key("job");
    let held = a.hold(&job).await;
    proxy.cut();
    tokio::time::timeout(soon(), a.0.tether().expect("a session").watch(&job, &held.token)).await.expect("the connection is over");
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    lab.client().await.wait_for(&waiting(&job, LONG), Duration::from_millis(100)).await;
}

async fn a_silent_holder_is_ended_by_mysql(lab: &Lab) {
    let mut proxy = Proxy::to(lab.mariadb().server().port);
    let mut a = lab.mariadb().through_proxy(&proxy);
    let job = key("job");
    let held = request(&job, SHORT * 2);
    a.take(&held).await;
    lab.pass(SHORT).await;
    a.renewed(&held, None).await;
    let renewed = Instant::now();
    proxy.set(support::proxy::Mode::BlackHole);
    let mut b = lab.client().await;
    b.refused(&waiting(&job, LONG)).await;
    b.wait_for(&waiting(&job, LONG), Duration::from_secs(5)).await;
    let took = renewed.elapsed();
    assert!(took + Duration::from_millis(20) >= SHORT * 2 && took < SHORT * 2 + soon(), "{took:?}");
}

async fn a_renewal_whose_answer_was_lost_keeps_the_lock_in_mysql(lab: &Lab) {
    let proxy = Proxy::to(lab.mariadb().server().port);
    let mut a = lab.mariadb().through_proxy(&proxy);
    let job = key("job");
    let held = a.hold(&job).await;
    // Also where a renewal is told of over another session first.
    proxy.trap("@dlock = CONNECTION_ID() AND", support::proxy::Fault::LateReply(Duration::from_millis(300)));
    let renewal = tokio::time::timeout(Duration::from_millis(250), a.0.renew(&job, &held.token, None.into())).await;
    assert!(renewal.is_err(), "{renewal:?}");
    a.renewed(&held, None).await;
    lab.client().await.refused(&request(&job, LONG)).await;
    a.free(&held).await;
    lab.client().await.wait_for(&waiting(&job, LONG), Duration::from_millis(50)).await;
}

async fn fences_rise_in_mysql_though_holders_crash(lab: &Lab) {
    let job = key("job");
    let mut last = Fence(0);
    for _ in 0..3 {
        let mut a = lab.client().await;
        let fence = a.wait_for(&waiting(&job, LONG), Duration::from_millis(50)).await.fence;
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        drop(a);
    }
}

async fn there_is_a_lifeline_for_each_hold_in_mysql(lab: &Lab) {
    let mut a = lab.client().await;
    assert!(a.0.tether().expect("a session").lifelines().expect("none").is_empty());
    let held = a.hold(&key("job")).await;
    a.hold(&key("other")).await;
    let lines = a.0.tether().expect("a session").lifelines().expect("two");
    assert_eq!(lines.len(), 2);
    drop(lines);
    a.renewed(&held, None).await;
    a.free(&held).await;
}

async fn anybody_can_take_the_same_lock_of_mysql(lab: &Lab) {
    let mut a = lab.client().await;
    let database = &lab.mariadb().database;
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
    assert!(busy.holders[0].foreign && busy.holders[0].fence.is_none(), "{busy:?}");
    drop(keeps);
    let mut options = lab.mariadb().options("dlock");
    options.raw_names = true;
    let mut b = Client(backend(options));
    let name = format!("{database}.nightly");
    let held = Request { metadata: Some(crate::lab::who("web1")), ..request(&key(&name), LONG) };
    b.take(&held).await;
    assert_eq!(take(&format!("'{name}'")), "0");
    assert_eq!(b.inspect(&key(&name)).await.holders[0].metadata, Some(crate::lab::who("web1")));
    b.free(&held).await;
    assert_eq!(lab.mariadb().options("dlock").mode, Mode::Advisory);
}

fn on(lab: &Lab, server: &MariaDb) -> Options {
    let mut options = lab.mariadb().options("dlock");
    options.sql.server = Server::Tcp { host: "127.0.0.1".into(), port: server.port };
    options.sql.database = Some("app".into());
    options
}

async fn a_mysql_without_connections_is_asked_again(lab: &Lab) {
    let server = MariaDb::with(mariadb::Options { settings: vec!["--max-connections=10".into()], ..Default::default() });
    server.sql("mysql", "CREATE DATABASE app; CREATE USER ana; GRANT ALL ON app.* TO ana");
    let mut options = on(lab, &server);
    options.sql.user = Some("ana".into());
    Client(backend(options.clone())).0.init().await.expect("init");
    let mut others: Vec<Client> = Vec::new();
    let error = loop {
        let mut next = Client(backend(options.clone()));
        match next.0.inspect(&key("job")).await {
            Ok(_) => others.push(next),
            Err(error) => break error,
        }
        assert!(others.len() < 12);
    };
    assert!(error.is_transient() && error.effect == Effect::NotApplied, "{error:?}");
    assert!(error.hint.as_deref().is_some_and(|hint| hint.contains("max_connections")), "{error:?}");
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

async fn a_restarted_mysql_is_asked_again(lab: &Lab) {
    let mut server = MariaDb::durable();
    server.sql("mysql", "CREATE DATABASE app");
    let options = on(lab, &server);
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
        let parting = dlock::lock::Parting { end: Some(dlock::lock::End::Lost), became: None, ..dlock::lock::Parting::UNDO };
        assert_eq!(a.0.release(&job, &held.token, &parting).await.expect("an answer"), Release::NotHeld);
    } else {
        assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
        Client(backend(options.clone())).refused(&request(&job, LONG)).await;
        a.free(&held).await;
    }
    let mut b = Client(backend(options));
    assert!(Some(b.take(&request(&job, LONG)).await.fence) > fence);
}

/// What was left blocking there is gone with the server; its number is somebody else's after that.
async fn nobody_else_is_ended_after_a_restart(lab: &Lab) {
    let mut server = MariaDb::durable();
    server.sql("mysql", "CREATE DATABASE app");
    let options = on(lab, &server);
    let (mut a, mut b) = (Client(backend(options.clone())), Client(backend(options)));
    a.0.init().await.expect("init");
    let job = key("job");
    a.hold(&job).await;
    let wanted = waiting(&job, LONG);
    b.refused(&wanted).await;
    // Left blocking.
    assert!(tokio::time::timeout(SHORT / 4, b.0.wait(&wanted, LONG)).await.is_err(), "it is held");
    let last: u64 = server.text("mysql", "SELECT MAX(id) FROM information_schema.processlist").parse().expect("a number");
    server.restart();
    let mut others = Vec::new();
    while server.text("mysql", "SELECT MAX(id) FROM information_schema.processlist").parse::<u64>().expect("a number") <= last {
        others.push(server.keep("mysql", "SELECT 1"));
    }
    let abandoned = lease::ask(&mut *b.0, &BootClock, Limits::DEFAULT, ("ask", None), async |backend: &mut dyn dlock::lock::Backend| {
        backend.leave_queue(&wanted).await
    });
    abandoned.await.expect("an answer");
    let left = server.text("mysql", "SELECT COUNT(*) FROM information_schema.processlist WHERE db = 'mysql' AND id <> CONNECTION_ID()");
    assert_eq!(left.parse(), Ok(others.len()), "all of the others' sessions");
}

async fn a_read_only_mysql_is_refused(lab: &Lab) {
    lab.target.isolate().await;
    let mut a = lab.client().await;
    let held = a.hold(&key("held")).await;
    lab.mariadb().sql("SET GLOBAL read_only = 1");
    // Even to a superuser, who could write to a replica.
    let error = lab.client().await.0.try_acquire(&request(&key("job"), LONG)).await.expect_err("read only");
    assert_eq!((error.kind, error.effect), (ErrorKind::Unavailable, Effect::NotApplied), "{error:?}");
    assert!(error.message.contains("read-only"), "{error}");
    lab.mariadb().sql("SET GLOBAL read_only = 0");
    a.renewed(&held, None).await;
    lab.client().await.hold(&key("job")).await;
}

async fn a_unix_socket_of_mysql_serves(lab: &Lab) {
    let server = lab.mariadb().server();
    let mut options = lab.mariadb().options("dlock");
    options.sql.server = Server::Unix { path: server.socket(), port: server.port };
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
}
