//! Run records in the rows of PostgreSQL, MariaDB and MySQL: events between applying the run policy
//! and the grant.

use std::time::Duration;

use dlock::{
    backends::sql::SqlMode,
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{
        Attempt, Init, Kind as ErrorKind, Progress, Release, ReleaseInfo, Request, Rule, RunPolicy,
        RunState,
    },
};

use super::{
    Case, cases,
    run_policy::{WINDOW, asking, guarded, kept, once},
};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, request, soon},
    support::proxy::{Fault, Proxy},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![is_sql =>
        tables_without_starts_are_upgraded,
        starts_in_the_future_deny_runs_and_pauses_do_not,
        a_denied_waiter_keeps_nothing,
    ];
    all.extend(cases![|kind| is_sql(kind) && !kind.held_by_session() =>
        a_run_that_started_during_the_wait_for_the_row_counts,
        starts_that_run_policies_need_are_not_collected,
        a_start_repeated_after_its_lease_is_one_start,
    ]);
    all.extend(cases![|kind| is_sql(kind) && kind.held_by_session() =>
        a_start_recorded_before_the_grant_is_one_start,
        a_start_that_was_never_granted_is_undone,
        a_sessions_start_whose_answer_was_lost_is_one_start,
        a_sessions_start_given_up_on_is_undone,
    ]);
    all.extend(cases![is_sql => a_record_of_another_mode_counts]);
    all.extend(cases![|kind| kind == Kind::PostgresLease => a_run_with_a_policy_is_one_round_trip]);
    all
}

fn is_sql(kind: Kind) -> bool {
    kind.is_postgres() || kind.speaks_mysql()
}

/// Runs PostgreSQL's statement or MariaDB's. `$table` stands for the table with the starts.
fn sql(lab: &Lab, postgres: &str, mariadb: &str) {
    lab.sql(&lab.either(postgres, mariadb).replace("$table", "dlock"));
}

const COLUMNS: [&str; 14] = [
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
];

/// A free lock whose run record denies a run denies it in every mode, or refuses the mode; also
/// after `dlock init` has moved it.
async fn a_record_of_another_mode_counts(lab: &Lab) {
    let guard = |place: &str| RunPolicy {
        place: place.into(),
        skew_guard: Some(WINDOW),
        ..once(WINDOW, 0, false)
    };
    let policies = [
        (once(WINDOW, 0, false), once(WINDOW, 0, false)),
        (kept(WINDOW), kept(WINDOW)),
        (guard("a"), guard("b")),
    ];
    let own = lab.client_with("dlock", |_| ());
    for (nth, (first, second)) in policies.iter().enumerate() {
        for mode in [SqlMode::Lease, SqlMode::Row, SqlMode::Advisory] {
            let name = format!("job{nth}-{}", mode.name());
            let (mut a, mut b) = (
                lab.client().await,
                lab.client_with("dlock", |options| options.mode = mode),
            );
            a.run(&asking(&name, first), RunState::Ok).await;
            match b.0.try_acquire(&asking(&name, second)).await {
                Ok(Attempt::Denied(_)) => {}
                Err(error) if error.kind == ErrorKind::Config => {
                    assert!(error.hint.is_some(), "{error:?}");
                }
                other => panic!(
                    "{first:?} in {:?}, then {mode:?}: {other:?}",
                    own.0.identity()
                ),
            }
            for client in [&mut b, &mut a] {
                client.0.init().await.expect("init");
                let asked = std::time::Instant::now();
                loop {
                    match client.0.try_acquire(&asking(&name, second)).await {
                        Ok(Attempt::Denied(_)) => break,
                        // The session of an earlier question may end a little later.
                        Ok(Attempt::Busy(busy)) if busy.transient && asked.elapsed() < soon() => {
                            lab.pass(Duration::from_millis(20)).await;
                        }
                        other => panic!("{mode:?} after init: {other:?}"),
                    }
                }
            }
        }
    }
}

async fn tables_without_starts_are_upgraded(lab: &Lab) {
    let mut a = lab.client().await;
    let before = a
        .run(&request(&key("job"), LONG), RunState::Started)
        .await
        .fence;
    let drop = COLUMNS
        .map(|column| format!("DROP COLUMN {column}"))
        .join(", ");
    lab.sql(&format!("ALTER TABLE dlock {drop}"));
    let mut b = lab.client().await;
    for request in [
        request(&key("job"), LONG),
        asking("job", &once(WINDOW, 0, false)),
    ] {
        let tried = std::time::Instant::now();
        let error = loop {
            match b.0.try_acquire(&request).await {
                Err(error) => break error,
                // The previous try's session is just ending, and still has the lock.
                Ok(Attempt::Busy(_)) if tried.elapsed() < soon() => lab.pass(SLACK / 10).await,
                other => panic!("the table lacks these columns: {other:?}"),
            }
        };
        assert!(
            error
                .hint
                .as_deref()
                .is_some_and(|hint| hint.contains("dlock init")),
            "{error:?}"
        );
        assert_eq!(error.kind, ErrorKind::Config, "{error:?}");
    }
    let mut c = lab.client().await;
    assert_eq!(c.0.init().await.expect("init"), Init::Created);
    assert_eq!(c.0.init().await.expect("init"), Init::UpToDate);
    let after = c
        .run(&asking("job", &once(WINDOW, 0, false)), RunState::Ok)
        .await
        .fence;
    assert!(after > before, "{after:?} {before:?}");
    assert_eq!(
        b.denied(&asking("job", &once(WINDOW, 0, true))).await.rule,
        Rule::Once(RunState::Ok)
    );
}

/// Stands for a server clock that was set back by an hour.
async fn starts_in_the_future_deny_runs_and_pauses_do_not(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let minute = Duration::from_secs(60);
    let all = RunPolicy {
        skew_guard: Some(minute),
        at_least: Some(minute),
        ..once(minute, 1, false)
    };
    a.run(&asking("job", &all), RunState::Failed).await;
    assert_eq!(
        b.denied(&asking("job", &guarded("b", minute))).await.rule,
        Rule::AtLeast(minute)
    );
    sql(
        lab,
        "UPDATE $table SET paced_at = paced_at + interval '1 hour', start_at = start_at + interval '1 hour'",
        "UPDATE $table SET paced_at = paced_at + INTERVAL 1 HOUR, start_at = start_at + INTERVAL 1 HOUR",
    );
    let refusal = b.denied(&asking("job", &once(minute, 0, true))).await;
    assert_eq!(
        (refusal.rule, refusal.began),
        (Rule::Once(RunState::Failed), None)
    );
    b.run(&asking("job", &guarded("b", minute)), RunState::Ok)
        .await;
    b.run(&asking("job", &once(minute, 1, false)), RunState::Failed)
        .await;
    assert_eq!(
        b.record(&key("job")).await.start.map(|start| start.tries),
        Some(2)
    );
}

async fn a_denied_waiter_keeps_nothing(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let kept = RunPolicy {
        at_least: Some(WINDOW),
        ..guarded("a", WINDOW)
    };
    a.run(&asking("job", &kept), RunState::Ok).await;
    let waiting = Request {
        waiting: true,
        ..request(&key("job"), LONG)
    };
    let (one, two) = (
        b.denied(&waiting).await,
        c.denied(&Request {
            waiting: true,
            ..request(&key("job"), LONG)
        })
        .await,
    );
    assert_eq!(one.rule, two.rule);
    assert!(a.inspect(&key("job")).await.holders.is_empty());
    sql(
        lab,
        "UPDATE $table SET paced_at = NULL",
        "UPDATE $table SET paced_at = NULL",
    );
    // The session that was denied gets the lock now.
    b.take(&waiting).await;
    b.0.leave_queue(&waiting).await.expect("leave_queue");
    b.end_run(&waiting, RunState::Started).await;
    a.take(&request(&key("job"), LONG)).await;
}

/// The waiting request carries a time from before the other run started.
async fn a_run_that_started_during_the_wait_for_the_row_counts(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let wanted = once(WINDOW, 0, false);
    let held = request(&key("job"), LONG);
    a.run(&held, RunState::Started).await;
    let run = lab.meanwhile(lab.either(
        "BEGIN; SELECT 1 FROM dlock FOR UPDATE; SELECT pg_sleep(0.8);
         UPDATE dlock SET start_at = timezone('utc', clock_timestamp()), start_fence = fence + 1, fence = fence + 1, start_stage = 'ok',
                start_tries = 1, start_window_ms = 3600000, revision = revision + 2; COMMIT",
        "START TRANSACTION; SELECT 1 FROM dlock FOR UPDATE; SELECT SLEEP(0.8);
         UPDATE dlock SET start_at = SYSDATE(6) - INTERVAL TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), NOW()) SECOND, start_fence = fence + 1,
                fence = fence + 1, start_stage = 'ok', start_tries = 1, start_window_ms = 3600000, revision = revision + 2; COMMIT",
    ));
    // Its client may start slowly.
    while !lab
        .sql("SELECT 1 FROM dlock FOR UPDATE SKIP LOCKED")
        .is_empty()
    {
        lab.pass(Duration::from_millis(10)).await;
    }
    let refusal = b.denied(&asking("job", &wanted)).await;
    assert_eq!(refusal.rule, Rule::Once(RunState::Ok));
    run.join().expect("the other run");
}

/// The answer to a grant was lost, and the lease is over when the request is repeated.
async fn a_start_repeated_after_its_lease_is_one_start(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let asked = asking("job", &everything());
    let first = a.take(&asked).await;
    sql(
        lab,
        "UPDATE dlock SET lock_until = lock_until - interval '1 hour'",
        "UPDATE dlock SET lock_until = lock_until - INTERVAL 1 HOUR",
    );
    assert_eq!(
        b.denied(&asking("job", &everything())).await.rule,
        Rule::AtLeast(WINDOW)
    );
    let again = a.take(&asked).await;
    assert!(again.fence > first.fence);
    let start = b.record(&key("job")).await.start.expect("a start");
    assert_eq!((start.tries, start.fence), (1, again.fence));
}

async fn starts_that_run_policies_need_are_not_collected(lab: &Lab) {
    let mut a = lab.client().await;
    let days = |days: u64| Duration::from_secs(days * 24 * 3600);
    a.run(&asking("job", &once(days(10), 0, false)), RunState::Ok)
        .await;
    a.run(
        &asking(
            "kept",
            &RunPolicy {
                at_least: Some(days(10)),
                ..guarded("a", days(1))
            },
        ),
        RunState::Ok,
    )
    .await;
    let age = |days: u32| {
        sql(
            lab,
            &format!(
                "UPDATE dlock SET lock_until = lock_until - interval '{days} days', locked_at = locked_at - interval '{days} days', renewed_at = renewed_at - interval '{days} days', \
                 paced_at = paced_at - interval '{days} days', start_at = start_at - interval '{days} days', \
                 fence = fence - {days} * 86400000000, paced_fence = paced_fence - {days} * 86400000000, \
                 start_fence = start_fence - {days} * 86400000000"
            ),
            &format!(
                "UPDATE dlock SET lock_until = lock_until - INTERVAL {days} DAY, locked_at = locked_at - INTERVAL {days} DAY, renewed_at = renewed_at - INTERVAL {days} DAY, \
                 paced_at = paced_at - INTERVAL {days} DAY, start_at = start_at - INTERVAL {days} DAY, \
                 fence = fence - {days} * 86400000000, paced_fence = paced_fence - {days} * 86400000000, \
                 start_fence = start_fence - {days} * 86400000000"
            ),
        );
    };
    age(2);
    assert_eq!(
        a.0.collect(days(1), &Progress::default())
            .await
            .expect("gc"),
        Some(0)
    );
    assert_eq!(
        a.denied(&asking("job", &once(days(10), 0, false)))
            .await
            .rule,
        Rule::Once(RunState::Ok)
    );
    age(9);
    assert_eq!(
        a.0.collect(days(1), &Progress::default())
            .await
            .expect("gc"),
        Some(2)
    );
}

/// Has this hold granted, and its session end before its answer.
async fn record_start(lab: &Lab, of: &Request) {
    lab.client().await.take(of).await;
    let mut other = lab.client().await;
    while !other.inspect(&of.key).await.holders.is_empty() {
        lab.pass(Duration::from_millis(10)).await;
    }
}

fn everything() -> RunPolicy {
    RunPolicy {
        skew_guard: Some(WINDOW),
        at_least: Some(WINDOW),
        ..once(WINDOW, 0, false)
    }
}

async fn a_start_recorded_before_the_grant_is_one_start(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let asked = asking("job", &everything());
    record_start(lab, &asked).await;
    assert_eq!(
        b.denied(&asking("job", &everything())).await.rule,
        Rule::AtLeast(WINDOW)
    );
    let grant = a.take(&asked).await;
    let record = a.record(&key("job")).await;
    assert_eq!(
        record
            .start
            .map(|start| (start.fence, start.state, start.tries)),
        Some((grant.fence, RunState::Started, 1))
    );
    assert_eq!(
        record.cooldown.map(|cooldown| cooldown.fence),
        Some(grant.fence)
    );
    a.end_run(&asked, RunState::Failed).await;
    assert_eq!(
        a.record(&key("job")).await.start.map(|start| start.state),
        Some(RunState::Failed)
    );
}

async fn a_start_that_was_never_granted_is_undone(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let asked = asking("job", &everything());
    record_start(lab, &asked).await;
    assert_eq!(
        a.0.release(&asked.key, &asked.token, &ReleaseInfo::UNDO)
            .await
            .expect("undone"),
        Release::NotHeld
    );
    let record = b.record(&key("job")).await;
    assert_eq!((record.cooldown, record.start), (None, None));
    let grant = b
        .take(&asking(
            "job",
            &RunPolicy {
                place: "b".into(),
                ..everything()
            },
        ))
        .await;
    assert_eq!(grant.drain_delay, Duration::ZERO, "no holder vanished");
}

/// Returns a client behind a proxy, and text of the statement that counts a fence.
fn behind_proxy(lab: &Lab) -> (Proxy, Client, &'static str) {
    if lab.kind.is_postgres() {
        let proxy = Proxy::to(lab.store().port());
        let client = lab.through(proxy.port);
        return (proxy, client, "INSERT INTO \"dlock\" AS l");
    }
    let proxy = Proxy::to(lab.store().port());
    let client = lab.through(proxy.port);
    (proxy, client, "fence = GREATEST(fence + 1")
}

const LIMITS: Limits<'static> = Limits::of(Duration::from_secs(3));
/// A session that was cut off may keep the lock for a moment.
const WAIT: WaitPolicy = WaitPolicy::For(Duration::from_secs(10));

async fn a_sessions_start_whose_answer_was_lost_is_one_start(lab: &Lab) {
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Swallow] {
        let (proxy, mut a, mark) = behind_proxy(lab);
        let asked = asking(&format!("job-{fault:?}"), &everything());
        proxy.trap(mark, fault);
        let never = std::future::pending::<()>();
        let taken = lease::acquire(
            &mut *a.0,
            &BootClock,
            asked.clone(),
            WAIT,
            LIMITS,
            never,
            |_| {},
        )
        .await;
        let Ok(Outcome::Granted(taken)) = taken else {
            panic!("{fault:?}: {taken:?}")
        };
        assert_eq!(proxy.sprung(), 1);
        a.end_run(&asked, RunState::Failed).await;
        let start = lab
            .client()
            .await
            .record(&asked.key)
            .await
            .start
            .expect("a start");
        assert_eq!(
            (start.fence, start.tries, start.state),
            (taken.fence, 1, RunState::Failed),
            "{fault:?}"
        );
    }
}

async fn a_sessions_start_given_up_on_is_undone(lab: &Lab) {
    for fault in [Fault::CutAfter, Fault::Swallow] {
        let (proxy, mut a, mark) = behind_proxy(lab);
        let asked = asking(&format!("job-{fault:?}"), &everything());
        proxy.trap(mark, fault);
        let stop = async {
            while proxy.sprung() == 0 {
                lab.pass(Duration::from_millis(5)).await;
            }
        };
        let outcome = lease::acquire(
            &mut *a.0,
            &BootClock,
            asked.clone(),
            WaitPolicy::Try,
            LIMITS,
            stop,
            |_| {},
        )
        .await;
        assert!(matches!(outcome, Ok(Outcome::Stopped(()))), "{outcome:?}");
        let (mut b, never) = (lab.client().await, std::future::pending::<()>());
        let next = asking(
            asked.key.as_str(),
            &RunPolicy {
                place: "b".into(),
                ..everything()
            },
        );
        let taken = lease::acquire(&mut *b.0, &BootClock, next, WAIT, LIMITS, never, |_| {}).await;
        assert!(
            matches!(taken, Ok(Outcome::Granted(_))),
            "{fault:?}: {taken:?}"
        );
    }
}

async fn a_run_with_a_policy_is_one_round_trip(lab: &Lab) {
    let proxy = Proxy::to(lab.store().port());
    let mut a = lab.through(proxy.port);
    a.run(&asking("job", &guarded("a", WINDOW)), RunState::Ok)
        .await;
    let before = proxy.requests();
    a.run(&asking("job", &guarded("a", WINDOW)), RunState::Ok)
        .await;
    a.run(
        &asking(
            "job",
            &RunPolicy {
                skew_guard: Some(WINDOW),
                ..once(Duration::from_millis(1), 0, false)
            },
        ),
        RunState::Ok,
    )
    .await;
    lab.pass(Duration::from_millis(5)).await;
    a.run(
        &asking(
            "job",
            &RunPolicy {
                skew_guard: Some(WINDOW),
                ..once(Duration::from_millis(1), 0, false)
            },
        ),
        RunState::Ok,
    )
    .await;
    assert_eq!(proxy.requests() - before, 6);
    a.denied(&asking("job", &guarded("b", WINDOW))).await;
    assert_eq!(
        proxy.requests() - before,
        8,
        "a denied run also reads the reason"
    );
}
