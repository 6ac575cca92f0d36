//! The lease table of a SQL server: ShedLock's statements on the same rows, layouts, and the
//! collection of unused rows.

use std::time::{Duration, Instant};

use dlock::{
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{
        Attempt, Effect, End, Init, Kind as ErrorKind, Progress, Release, Renewal, Scope, Severity,
    },
};

use super::{Case, cases, history::history};
use crate::{
    lab::{Client, LONG, Lab, key, nested, request, short, soon, waiting},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![|kind| kind == Kind::PostgresLease || kind.is_mysql_lease() =>
        a_held_shedlock_is_busy,
        a_released_shedlock_is_free,
        our_lock_keeps_shedlock_out,
        a_lock_that_shedlock_took_over_is_not_held,
        an_existing_shedlock_table_is_upgraded,
        a_shared_table_is_not_collected,
        a_missing_table_is_an_error_with_a_hint,
        a_newer_layout_is_refused,
        leases_that_are_never_released_are_recorded_within_bounds,
        unused_rows_are_collected_and_fences_rise_on,
    ];
    all.extend(cases![Kind::speaks_mysql => a_table_of_any_collation_serves]);
    all.extend(cases![|kind| kind == Kind::PostgresLease => a_column_with_a_time_zone_is_refused]);
    all
}

async fn a_held_shedlock_is_busy(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    assert!(lab.shedlock("dlock", "dlock:job", 30));
    let busy = a.refused(&request(&job, LONG)).await;
    assert!(
        busy.holders[0].foreign && busy.holders[0].fence.is_none(),
        "{busy:?}"
    );
    // On MariaDB the waiter with the advisory lock polls the row for the others.
    assert_eq!(busy.notifies, lab.kind.speaks_mysql(), "{busy:?}");
    let left = busy.expires_in.expect("an expiry");
    assert!(
        left > Duration::from_secs(25) && left <= Duration::from_secs(30),
        "{left:?}"
    );
    assert_eq!(
        a.inspect(&job).await.holders[0]
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.host.as_deref()),
        Some("web7")
    );
    assert_eq!(a.keys("").await, ["job"]);
    let mine = request(&job, LONG);
    assert_eq!(a.renew(&mine, None).await, Renewal::NotHeld);
    assert_eq!(a.release(&mine, Scope::Tree).await, Release::NotHeld);
    a.refused(&request(&job, LONG)).await;
}

async fn a_released_shedlock_is_free(lab: &Lab) {
    let job = key("job");
    let mut a = lab.client().await;
    assert!(lab.shedlock("dlock", "dlock:job", 30));
    let never = std::future::pending::<()>();
    let take = lease::acquire(
        &mut *a.0,
        &BootClock,
        waiting(&job, LONG),
        WaitPolicy::For(LONG),
        Limits::DEFAULT,
        never,
        |_| {},
    );
    let free = async {
        lab.pass(Duration::from_millis(300)).await;
        assert!(lab.shedlock_unlocks("dlock", "dlock:job"));
        Instant::now()
    };
    let (outcome, freed) = tokio::join!(take, free);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    // ShedLock wakes no waiter, so dlock polls.
    assert!(freed.elapsed() < soon(), "{:?}", freed.elapsed());
}

/// Waits for the next millisecond: ShedLock's times on MariaDB have that resolution.
async fn pass_a_millisecond(lab: &Lab) {
    lab.pass(Duration::from_millis(5)).await;
}

async fn our_lock_keeps_shedlock_out(lab: &Lab) {
    let mut a = lab.client().await;
    let held = a.hold(&key("job")).await;
    assert!(
        !lab.shedlock("dlock", "dlock:job", 30),
        "ShedLock took a lock that dlock holds"
    );
    assert!(!lab.shedlock_unlocks("dlock", "dlock:job"));
    a.free(&held).await;
    pass_a_millisecond(lab).await;
    assert!(
        lab.shedlock("dlock", "dlock:job", 30),
        "ShedLock did not get a released lock"
    );
    a.refused(&request(&key("job"), LONG)).await;
}

async fn a_lock_that_shedlock_took_over_is_not_held(lab: &Lab) {
    const ROW: &str = "SELECT name, lock_until, locked_at, locked_by FROM dlock";
    let mut a = lab.client().await;
    let job = key("job");
    let held = request(&job, short());
    a.take(&held).await;
    lab.outlast(short()).await;
    assert!(lab.shedlock("dlock", "dlock:job", 30));
    let before = lab.sql(ROW);
    assert_eq!(a.renew(&held, Some(LONG)).await, Renewal::NotHeld);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
    assert!(matches!(a.attempt(&nested(&held)).await, Attempt::NotHeld));
    a.refused(&held).await;
    assert!(
        a.inspect(&job).await.holders[0].foreign,
        "the rest of dlock's hold was reported instead of ShedLock's"
    );
    assert_eq!(lab.sql(ROW), before);
}

/// Creates the table as ShedLock's documentation does.
fn create_shedlock(lab: &Lab) -> &'static str {
    lab.either(
        "CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT NULL, \
         locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))",
        "CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL, \
         locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))",
    )
}

fn on_shedlock(lab: &Lab) -> Client {
    lab.client_with("", |options| options.table = "shedlock".into())
}

async fn an_existing_shedlock_table_is_upgraded(lab: &Lab) {
    lab.sql(create_shedlock(lab));
    assert!(lab.shedlock("shedlock", "nightly", 30));
    let mut a = on_shedlock(lab);
    let error =
        a.0.try_acquire(&request(&key("job"), LONG))
            .await
            .expect_err("the table lacks dlock's columns");
    assert_eq!(
        (
            error.kind,
            error.hint.is_some_and(|hint| hint.contains("dlock init"))
        ),
        (ErrorKind::Config, true)
    );
    assert_eq!(a.0.init().await.expect("init"), Init::Created);
    assert_eq!(a.0.init().await.expect("init"), Init::UpToDate);
    assert!(
        a.refused(&request(&key("nightly"), LONG)).await.holders[0].foreign,
        "the upgrade moved the hold's end"
    );
    for name in [&*"x".repeat(255), "NIGHTLY", "nightly "] {
        a.hold(&key(name)).await;
    }
    assert!(lab.shedlock_unlocks("shedlock", "nightly"));
    pass_a_millisecond(lab).await;
    let held = a.hold(&key("nightly")).await;
    assert!(!lab.shedlock("shedlock", "nightly", 30));
    a.free(&held).await;
    pass_a_millisecond(lab).await;
    assert!(lab.shedlock("shedlock", "nightly", 30));
}

/// The table has another collation than the server's default, and than the companions that an older
/// version created.
async fn a_table_of_any_collation_serves(lab: &Lab) {
    let servers = if lab.kind.is_mysql_itself() {
        "utf8mb4_0900_ai_ci"
    } else {
        "utf8mb4_uca1400_as_cs"
    };
    let all = [
        "utf8mb4_general_ci",
        "utf8mb4_unicode_ci",
        "utf8mb4_bin",
        "utf8mb3_general_ci",
        "latin1_swedish_ci",
        "ascii_bin",
        servers,
    ];
    for (nth, collation) in all.into_iter().enumerate() {
        let (charset, _) = collation.split_once('_').expect("its character set");
        let table = format!("shed{nth}");
        if lab
            .sql(&format!("SHOW COLLATION LIKE '{collation}'"))
            .is_empty()
        {
            continue;
        }
        lab.sql(&format!(
            "{} CHARACTER SET {charset} COLLATE {collation}",
            create_shedlock(lab).replace("shedlock", &table)
        ));
        let open = || lab.client_with("", |options| options.table.clone_from(&table));
        let mut a = open();
        assert_eq!(a.0.init().await.expect("init"), Init::Created);
        serves(lab, open).await;
        // As an older version created them.
        for companion in ["_waiters", "_runs", "_skips"] {
            lab.sql(&format!("ALTER TABLE {table}{companion} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_520_ci"));
        }
        serves(lab, open).await;
        assert_eq!(
            a.0.init().await.expect("init"),
            Init::Created,
            "{collation}"
        );
        assert_eq!(
            a.0.init().await.expect("init"),
            Init::UpToDate,
            "{collation}"
        );
        let left = lab.sql(&format!(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name LIKE '{table}%' \
             AND collation_name IS NOT NULL AND collation_name <> 'utf8mb4_bin'"
        ));
        assert!(
            left.iter().all(|row| row[1] == "locked_by"),
            "{collation}: {left:?}"
        );
        serves(lab, open).await;
    }
}

/// Asks whatever compares texts.
async fn serves(lab: &Lab, open: impl Fn() -> Client) {
    let (mut a, mut b, job) = (open(), open(), key("job"));
    let held = a.hold(&job).await;
    let wanted = waiting(&job, LONG);
    let busy = b.refused(&wanted).await;
    assert_eq!((busy.holders.len(), busy.position), (1, Some(1)));
    a.renewed(&held, None).await;
    let state = a.inspect(&job).await;
    assert_eq!((state.holders.len(), state.waiters.len()), (1, 1));
    assert_eq!(a.keys("").await, ["job"]);
    a.free(&held).await;
    b.take(&wanted).await;
    b.free(&wanted).await;
    assert!(!history(&mut a, &job).await.past.is_empty() || !lab.kind.held_by_session());
    let found = b.0.examine().await.expect("findings");
    assert!(
        found
            .iter()
            .all(|finding| finding.check != "schema" || finding.severity == Severity::Ok),
        "{found:?}"
    );
}

async fn a_column_with_a_time_zone_is_refused(lab: &Lab) {
    lab.sql(&create_shedlock(lab).replace("lock_until TIMESTAMP", "lock_until TIMESTAMPTZ"));
    let error = on_shedlock(lab)
        .0
        .init()
        .await
        .expect_err("the column would mean another time in each time zone");
    assert_eq!(error.kind, ErrorKind::Config, "{error:?}");
}

async fn a_shared_table_is_not_collected(lab: &Lab) {
    assert!(lab.shedlock("dlock", "nightly", 1));
    let error = lab
        .client()
        .await
        .0
        .collect(Duration::from_secs(60), &Progress::default())
        .await
        .expect_err("ShedLock's nodes remember the row");
    assert_eq!(error.kind, ErrorKind::Unsupported, "{error:?}");
}

async fn a_missing_table_is_an_error_with_a_hint(lab: &Lab) {
    let mut a = lab.client_with("dlock", |options| options.table = "elsewhere".into());
    let error =
        a.0.try_acquire(&request(&key("job"), LONG))
            .await
            .expect_err("no table");
    // MariaDB needs several statements, so the effect may be unknown.
    assert!(
        error.kind == ErrorKind::Config
            && (lab.kind.speaks_mysql() || error.effect == Effect::NotApplied),
        "{error:?}"
    );
    assert!(
        error
            .hint
            .as_deref()
            .is_some_and(|hint| hint.contains("dlock init")),
        "{error:?}"
    );
    assert_eq!(a.0.init().await.expect("init"), Init::Created);
    a.hold(&key("job")).await;
}

async fn a_newer_layout_is_refused(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    lab.sql("UPDATE dlock SET layout = 500");
    let mut errors = Vec::new();
    errors.extend(a.0.try_acquire(&request(&job, LONG)).await.err());
    errors.extend(a.0.renew(&job, &held.token, None.into()).await.err());
    errors.extend(
        a.0.release(&job, &held.token, &Scope::Tree.into())
            .await
            .err(),
    );
    errors.extend(a.0.inspect(&job).await.err());
    assert_eq!(errors.len(), 4);
    assert!(
        errors.iter().all(|error| error.kind == ErrorKind::Layout),
        "{errors:?}"
    );
    lab.sql("UPDATE dlock SET layout = 499");
    a.renewed(&held, None).await;
    a.free(&held).await;
    // A free lock is refused too.
    lab.sql("UPDATE dlock SET layout = 500");
    assert_eq!(
        a.0.try_acquire(&request(&job, LONG))
            .await
            .expect_err("newer")
            .kind,
        ErrorKind::Layout
    );
}

async fn leases_that_are_never_released_are_recorded_within_bounds(lab: &Lab) {
    let (mut a, job) = (lab.client().await, key("job"));
    let mut last = None;
    for _ in 0..140 {
        last = Some(a.take(&request(&job, LONG)).await.fence);
        lab.sql("UPDATE dlock SET lock_until = lock_until - INTERVAL '2' MINUTE");
    }
    let past = history(&mut a, &job).await.past;
    assert!((100..=132).contains(&past.len()), "{}", past.len());
    assert!(
        past[0].fence == last && past.iter().all(|one| one.end == End::Expired),
        "{past:?}"
    );
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
    assert_eq!(
        a.0.collect(day, &Progress::default()).await.expect("gc"),
        Some(0)
    );
    lab.sql(
        "UPDATE dlock SET lock_until = lock_until - INTERVAL '2' DAY, locked_at = locked_at - INTERVAL '2' DAY, \
         renewed_at = renewed_at - INTERVAL '2' DAY WHERE name = 'dlock:old'",
    );
    // The row's fence is less than a day old, so a clock that is set back by less could repeat the
    // fence.
    assert_eq!(
        a.0.collect(day, &Progress::default()).await.expect("gc"),
        Some(0)
    );
    lab.sql("UPDATE dlock SET fence = fence - 172800000000 WHERE name = 'dlock:old'");
    assert_eq!(
        a.0.collect(day, &Progress::default()).await.expect("gc"),
        Some(1)
    );
    // The history is collected by its own age.
    assert_eq!(history(&mut a, &key("old")).await.past.len(), 1);
    lab.sql("UPDATE dlock_runs SET ended = ended - INTERVAL '2' DAY WHERE name = 'dlock:old'");
    a.0.collect(day, &Progress::default()).await.expect("gc");
    assert_eq!(history(&mut a, &key("old")).await.past, []);
    assert_eq!(history(&mut a, &key("new")).await.past.len(), 1);
    assert_eq!(a.keys("").await, ["held"]);
    assert!(a.take(&request(&key("old"), LONG)).await.fence > fences[0]);
}
