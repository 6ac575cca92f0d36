//! The starts of runs in the rows of PostgreSQL, MariaDB and MySQL: what can come between a judgement and a grant there.

use std::time::Duration;

use dlock::{
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{Attempt, Fence, Init, Kind as ErrorKind, Release, ReleaseInfo, Request, Rule, RunPolicy, RunState},
};

use super::{
    Case, cases,
    run_policy::{WINDOW, asking, guarded, once},
};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, request},
    support::proxy::{Fault, Proxy},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![is_sql =>
        tables_without_starts_are_upgraded,
        starts_in_the_future_are_in_the_way_and_pauses_are_not,
        who_is_refused_and_waits_keeps_nothing,
    ];
    all.extend(cases![|kind| is_sql(kind) && !kind.is_a_session() =>
        a_run_that_began_while_this_one_waited_for_the_row_is_in_the_way,
        what_later_runs_go_by_is_not_collected,
        an_unreported_start_is_no_run_before_it,
    ]);
    all.extend(cases![|kind| is_sql(kind) && kind.is_a_session() =>
        a_hold_that_was_begun_before_is_one_start,
        what_was_begun_and_not_told_is_undone,
        a_session_s_start_whose_answer_was_lost_is_one_start,
        a_session_s_start_that_is_given_up_on_is_undone,
    ]);
    all.extend(cases![|kind| kind == Kind::PostgresLease => a_run_with_terms_is_one_round_trip]);
    all
}

fn is_sql(kind: Kind) -> bool {
    kind.is_postgres() || kind.is_mariadb()
}

/// In PostgreSQL's words or MariaDB's. `$table` is the one with the starts.
fn sql(lab: &Lab, postgres: &str, mariadb: &str) {
    let sessions = lab.kind.is_a_session();
    let table = lab.either(if sessions { "dlock_fences" } else { "dlock" }, if sessions { "dlock_sessions" } else { "dlock" });
    lab.sql(&lab.either(postgres, mariadb).replace("$table", table));
}

const COLUMNS: [&str; 16] = [
    "paced_at",
    "paced_fence",
    "paced_place",
    "guard_ms",
    "at_least_ms",
    "paced_who",
    "paced_hold",
    "start_at",
    "start_fence",
    "start_stage",
    "start_tries",
    "start_window_ms",
    "start_who",
    "start_hold",
    "warned_fence",
    "warned_level",
];

async fn tables_without_starts_are_upgraded(lab: &Lab) {
    let mut a = lab.client().await;
    let before = a.ran(&request(&key("job"), LONG), RunState::Started).await.fence;
    let drop = COLUMNS.map(|column| format!("DROP COLUMN {column}")).join(", ");
    let others = lab.either("dlock_fences", "dlock_sessions");
    for table in ["dlock", others] {
        lab.sql(&format!("ALTER TABLE {table} {drop}"));
    }
    let mut b = lab.client().await;
    for request in [request(&key("job"), LONG), asking("job", &once(WINDOW, 0, false))] {
        let error = loop {
            match b.0.try_acquire(&request).await {
                Err(error) => break error,
                // The session of the try before is just ending, with what it had.
                Ok(Attempt::Busy(busy)) if busy.transient => lab.pass(SLACK / 10).await,
                other => panic!("it has not these columns yet: {other:?}"),
            }
        };
        assert!(error.hint.as_deref().is_some_and(|hint| hint.contains("dlock init")), "{error:?}");
        assert_eq!(error.kind, ErrorKind::Config, "{error:?}");
    }
    let mut c = lab.client().await;
    assert_eq!(c.0.init().await.expect("init"), Init::Created);
    assert_eq!(c.0.init().await.expect("init"), Init::UpToDate);
    let after = c.ran(&asking("job", &once(WINDOW, 0, false)), RunState::Ok).await.fence;
    assert!(after > before, "{after:?} {before:?}");
    assert_eq!(b.judged(&asking("job", &once(WINDOW, 0, true))).await.rule, Rule::Once(RunState::Ok));
}

/// As if the server's clock had been set back by an hour.
async fn starts_in_the_future_are_in_the_way_and_pauses_are_not(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let minute = Duration::from_secs(60);
    let all = RunPolicy { skew_guard: Some(minute), at_least: Some(minute), ..once(minute, 1, false) };
    a.ran(&asking("job", &all), RunState::Failed).await;
    assert_eq!(b.judged(&asking("job", &guarded("b", minute))).await.rule, Rule::AtLeast(minute));
    sql(
        lab,
        "UPDATE $table SET paced_at = paced_at + interval '1 hour', start_at = start_at + interval '1 hour'",
        "UPDATE $table SET paced_at = paced_at + INTERVAL 1 HOUR, start_at = start_at + INTERVAL 1 HOUR",
    );
    let refusal = b.judged(&asking("job", &once(minute, 0, true))).await;
    assert_eq!((refusal.rule, refusal.began), (Rule::Once(RunState::Failed), None));
    b.ran(&asking("job", &guarded("b", minute)), RunState::Ok).await;
    b.ran(&asking("job", &once(minute, 1, false)), RunState::Failed).await;
    assert_eq!(b.record(&key("job")).await.start.map(|start| start.tries), Some(2));
}

async fn who_is_refused_and_waits_keeps_nothing(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let kept = RunPolicy { at_least: Some(WINDOW), ..guarded("a", WINDOW) };
    a.ran(&asking("job", &kept), RunState::Ok).await;
    let waiting = Request { waiting: true, ..request(&key("job"), LONG) };
    let (one, two) = (b.judged(&waiting).await, c.judged(&Request { waiting: true, ..request(&key("job"), LONG) }).await);
    assert_eq!(one.rule, two.rule);
    assert!(a.inspect(&key("job")).await.holders.is_empty());
    sql(lab, "UPDATE $table SET paced_at = NULL", "UPDATE $table SET paced_at = NULL");
    // With the session that it was refused over.
    b.take(&waiting).await;
    b.0.leave_queue(&waiting).await.expect("abandon");
    b.part(&waiting, RunState::Started).await;
    a.take(&request(&key("job"), LONG)).await;
}

/// It asked before that run began, by a time from before.
async fn a_run_that_began_while_this_one_waited_for_the_row_is_in_the_way(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let wanted = once(WINDOW, 0, false);
    let held = request(&key("job"), LONG);
    a.ran(&held, RunState::Started).await;
    let run = lab.meanwhile(lab.either(
        "BEGIN; SELECT 1 FROM dlock FOR UPDATE; SELECT pg_sleep(0.5);
         UPDATE dlock SET start_at = timezone('utc', clock_timestamp()), start_fence = fence + 1, fence = fence + 1, start_stage = 'ok',
                start_tries = 1, start_window_ms = 3600000, revision = revision + 2; COMMIT",
        "START TRANSACTION; SELECT 1 FROM dlock FOR UPDATE; SELECT SLEEP(0.5);
         UPDATE dlock SET start_at = SYSDATE(6) - INTERVAL TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), NOW()) SECOND, start_fence = fence + 1,
                fence = fence + 1, start_stage = 'ok', start_tries = 1, start_window_ms = 3600000, revision = revision + 2; COMMIT",
    ));
    lab.pass(Duration::from_millis(150)).await;
    let refusal = b.judged(&asking("job", &wanted)).await;
    assert_eq!(refusal.rule, Rule::Once(RunState::Ok));
    run.join().expect("the other run");
}

/// The answer to a grant was lost, and its lease is over when it is asked for again.
async fn an_unreported_start_is_no_run_before_it(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let asked = asking("job", &everything());
    let first = a.take(&asked).await;
    sql(lab, "UPDATE dlock SET lock_until = lock_until - interval '1 hour'", "UPDATE dlock SET lock_until = lock_until - INTERVAL 1 HOUR");
    assert_eq!(b.judged(&asking("job", &everything())).await.rule, Rule::AtLeast(WINDOW));
    let again = a.take(&asked).await;
    assert!(again.fence > first.fence);
    let start = b.record(&key("job")).await.start.expect("a start");
    assert_eq!((start.tries, start.fence), (1, again.fence));
}

async fn what_later_runs_go_by_is_not_collected(lab: &Lab) {
    let mut a = lab.client().await;
    let days = |days: u64| Duration::from_secs(days * 24 * 3600);
    a.ran(&asking("job", &once(days(10), 0, false)), RunState::Ok).await;
    a.ran(&asking("kept", &RunPolicy { at_least: Some(days(10)), ..guarded("a", days(1)) }), RunState::Ok).await;
    let age = |days: u32| {
        sql(
            lab,
            &format!(
                "UPDATE dlock SET lock_until = lock_until - interval '{days} days', locked_at = locked_at - interval '{days} days', renewed_at = renewed_at - interval '{days} days', \
                 paced_at = paced_at - interval '{days} days', start_at = start_at - interval '{days} days', \
                 fence = fence - {days} * 86400000000"
            ),
            &format!(
                "UPDATE dlock SET lock_until = lock_until - INTERVAL {days} DAY, locked_at = locked_at - INTERVAL {days} DAY, renewed_at = renewed_at - INTERVAL {days} DAY, \
                 paced_at = paced_at - INTERVAL {days} DAY, start_at = start_at - INTERVAL {days} DAY, \
                 fence = fence - {days} * 86400000000"
            ),
        );
    };
    age(2);
    assert_eq!(a.0.collect(days(1)).await.expect("gc"), Some(0));
    assert_eq!(a.judged(&asking("job", &once(days(10), 0, false))).await.rule, Rule::Once(RunState::Ok));
    age(9);
    assert_eq!(a.0.collect(days(1)).await.expect("gc"), Some(2));
}

/// What is in the tables when a fence was counted for this hold, and the answer was lost with the session.
fn begun(lab: &Lab, of: &Request) {
    let hold = of.token.hold_text();
    sql(
        lab,
        &format!(
            "INSERT INTO dlock_fences (name, fence, start_at, start_fence, start_stage, start_tries, start_window_ms, paced_at, paced_fence,
                                       paced_place, guard_ms, at_least_ms, start_hold, paced_hold)
             SELECT 'dlock:job', 7, t.now, 7, 'started', 1, 3600000, t.now, 7, 'a', 3600000, 3600000, '{hold}', '{hold}'
               FROM (SELECT timezone('utc', clock_timestamp()) AS now) AS t;
             INSERT INTO dlock_sessions (name, pid, hold, shared, fence, since, ttl_ms, server)
             VALUES ('dlock:job', 1, '{hold}', false, 7, clock_timestamp(), 30000, left(pg_walfile_name(pg_current_wal_lsn()), 8)
                     || '/' || (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint)"
        ),
        &format!(
            "INSERT INTO dlock_sessions (name, layout, fence, session, root, since, renewed_at, ttl_ms, start_at, start_fence, start_stage,
                                         start_tries, start_window_ms, paced_at, paced_fence, paced_place, guard_ms, at_least_ms, start_hold,
                                         paced_hold, server)
             VALUES ('dlock:job', 100, 7, 1, '{hold}', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 30000, UTC_TIMESTAMP(6), 7, 'started', 1, 3600000,
                     UTC_TIMESTAMP(6), 7, 'a', 3600000, 3600000, '{hold}', '{hold}',
                     CONCAT_WS('/', @@hostname, @@port, @@server_id, UNIX_TIMESTAMP() -
                               (SELECT variable_value FROM information_schema.session_status WHERE variable_name = 'Uptime') DIV 1))"
        ),
    );
}

fn everything() -> RunPolicy {
    RunPolicy { skew_guard: Some(WINDOW), at_least: Some(WINDOW), ..once(WINDOW, 0, false) }
}

async fn a_hold_that_was_begun_before_is_one_start(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let asked = asking("job", &everything());
    begun(lab, &asked);
    assert_eq!(b.judged(&asking("job", &everything())).await.rule, Rule::AtLeast(WINDOW));
    let grant = a.take(&asked).await;
    let record = a.record(&key("job")).await;
    assert_eq!(record.start.map(|start| (start.fence, start.state, start.tries)), Some((grant.fence, RunState::Started, 1)));
    assert_eq!(record.cooldown.map(|cooldown| cooldown.fence), Some(grant.fence));
    a.part(&asked, RunState::Failed).await;
    assert_eq!(a.record(&key("job")).await.start.map(|start| start.state), Some(RunState::Failed));
}

async fn what_was_begun_and_not_told_is_undone(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let asked = asking("job", &everything());
    begun(lab, &asked);
    assert_eq!(a.0.release(&asked.key, &asked.token, &ReleaseInfo::UNDO).await.expect("undone"), Release::NotHeld);
    let record = b.record(&key("job")).await;
    assert_eq!((record.cooldown, record.start.map(|start| (start.state, start.fence))), (None, Some((RunState::Cancelled, Fence(7)))));
    let grant = b.take(&asking("job", &RunPolicy { place: "b".into(), ..everything() })).await;
    assert_eq!(grant.drain_delay, Duration::ZERO, "no holder vanished");
}

/// A client behind a proxy, and what stands in the statement that counts a fence.
fn behind_proxy(lab: &Lab) -> (Proxy, Client, &'static str) {
    if lab.kind.is_postgres() {
        let proxy = Proxy::to(lab.postgres().server().port);
        let client = lab.postgres().through(&proxy);
        return (proxy, client, "INSERT INTO \"dlock_fences\"");
    }
    let proxy = Proxy::to(lab.mariadb().server().port);
    let client = lab.mariadb().through_proxy(&proxy);
    (proxy, client, "ON DUPLICATE KEY UPDATE layout = layout")
}

const LIMITS: Limits<'static> = Limits::of(Duration::from_secs(3));
/// A session that was cut off may have the lock for a moment.
const PATIENCE: WaitPolicy = WaitPolicy::For(Duration::from_secs(10));

async fn a_session_s_start_whose_answer_was_lost_is_one_start(lab: &Lab) {
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Swallow] {
        let (proxy, mut a, mark) = behind_proxy(lab);
        let asked = asking(&format!("job-{fault:?}"), &everything());
        proxy.trap(mark, fault);
        let never = std::future::pending::<()>();
        let taken = lease::acquire(&mut *a.0, &BootClock, asked.clone(), PATIENCE, LIMITS, never, |_| {}).await;
        let Ok(Outcome::Granted(taken)) = taken else { panic!("{fault:?}: {taken:?}") };
        assert_eq!(proxy.sprung(), 1);
        a.part(&asked, RunState::Failed).await;
        let start = lab.client().await.record(&asked.key).await.start.expect("a start");
        assert_eq!((start.fence, start.tries, start.state), (taken.fence, 1, RunState::Failed), "{fault:?}");
    }
}

async fn a_session_s_start_that_is_given_up_on_is_undone(lab: &Lab) {
    for fault in [Fault::CutAfter, Fault::Swallow] {
        let (proxy, mut a, mark) = behind_proxy(lab);
        let asked = asking(&format!("job-{fault:?}"), &everything());
        proxy.trap(mark, fault);
        let stop = async {
            while proxy.sprung() == 0 {
                lab.pass(Duration::from_millis(5)).await;
            }
        };
        let outcome = lease::acquire(&mut *a.0, &BootClock, asked.clone(), WaitPolicy::Try, LIMITS, stop, |_| {}).await;
        assert!(matches!(outcome, Ok(Outcome::Stopped(()))), "{outcome:?}");
        let (mut b, never) = (lab.client().await, std::future::pending::<()>());
        let next = asking(asked.key.as_str(), &RunPolicy { place: "b".into(), ..everything() });
        let taken = lease::acquire(&mut *b.0, &BootClock, next, PATIENCE, LIMITS, never, |_| {}).await;
        assert!(matches!(taken, Ok(Outcome::Granted(_))), "{fault:?}: {taken:?}");
    }
}

async fn a_run_with_terms_is_one_round_trip(lab: &Lab) {
    let proxy = Proxy::to(lab.postgres().server().port);
    let mut a = lab.postgres().through(&proxy);
    a.ran(&asking("job", &guarded("a", WINDOW)), RunState::Ok).await;
    let before = proxy.requests();
    a.ran(&asking("job", &guarded("a", WINDOW)), RunState::Ok).await;
    a.ran(&asking("job", &RunPolicy { skew_guard: Some(WINDOW), ..once(Duration::from_millis(1), 0, false) }), RunState::Ok).await;
    lab.pass(Duration::from_millis(5)).await;
    a.ran(&asking("job", &RunPolicy { skew_guard: Some(WINDOW), ..once(Duration::from_millis(1), 0, false) }), RunState::Ok).await;
    assert_eq!(proxy.requests() - before, 6);
    a.judged(&asking("job", &guarded("b", WINDOW))).await;
    assert_eq!(proxy.requests() - before, 8, "who is refused also reads why");
}
