//! Shared locks in SQL servers' lock tables: changes to the row by others at the wrong moment.

use std::{
    future::pending,
    time::{Duration, Instant},
};

use dlock::{
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{
        Attempt, Busy, End, Init, Intent, Kind as ErrorKind, Mode, Progress, Release, Renewal,
        Request, Scope,
    },
};

use super::{Case, cases, history::history};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, nested, overtaking_delay, request, short, soon, waiting},
    support::proxy::{Fault, Proxy},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind| matches!(kind, Kind::PostgresLease | Kind::MariadbLease | Kind::MysqlLease) =>
        a_share_whose_answer_was_lost_is_granted_once,
        a_share_that_arrives_late_ends_with_its_lease,
        a_share_that_arrives_too_late_changes_nothing,
        a_share_is_not_revived_by_a_late_renewal,
        shares_keep_shedlock_out_until_the_last_ends,
        a_lock_that_shedlock_took_over_has_no_shares,
        a_fair_waiter_that_joins_during_a_grant_goes_first,
        a_reader_that_joins_during_a_release_is_woken,
        a_waiter_notified_before_it_listens_does_not_wait,
        a_waiter_keeps_its_position_when_readers_join,
        a_waiter_that_leaves_is_removed_from_the_row,
        a_share_is_renewed_in_two_round_trips,
        a_table_without_the_column_is_an_error_with_a_hint,
        a_newer_layout_of_shares_is_refused,
        an_older_layout_is_refused_until_init,
        rows_that_were_shared_are_collected,
    ]
}

const LIMITS: Limits<'static> = Limits::of(Duration::from_secs(5));

pub fn reader(of: Request) -> Request {
    Request {
        mode: Mode::Shared,
        ..of
    }
}

fn fair(of: Request) -> Request {
    Request {
        fair: true,
        waiting: true,
        ..of
    }
}

/// Returns text that only the statement contains that writes a row back.
fn write(lab: &Lab) -> &'static str {
    lab.either("WITH written AS", "SET @dlock_written = ")
}

pub fn column(lab: &Lab, what: &str) -> Option<String> {
    Some(
        lab.sql(&format!(
            "SELECT {what} FROM dlock WHERE name = 'dlock:job'"
        ))[0][0]
            .clone(),
    )
    .filter(|value| value != "NULL")
}

/// Ends ShedLock's hold.
fn end_shedlock(lab: &Lab) {
    let now = lab.either("timezone('utc', clock_timestamp())", "UTC_TIMESTAMP(6)");
    lab.sql(&format!(
        "UPDATE dlock SET lock_until = {now} WHERE locked_by = 'web7'"
    ));
}

/// Starts another client's transaction, which writes a document into the row, and lasts for another
/// second.
fn put_document(lab: &Lab, document: &str) -> std::thread::JoinHandle<()> {
    let update = format!("UPDATE dlock SET document = '{document}', revision = revision + 1");
    let coming = lab.meanwhile(&lab.either(
        format!("BEGIN; {update}; SELECT pg_sleep(1); COMMIT"),
        format!("START TRANSACTION; {update}; DO SLEEP(1); COMMIT"),
    ));
    while !lab
        .sql("SELECT 1 FROM dlock FOR UPDATE SKIP LOCKED")
        .is_empty()
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    coming
}

/// Returns a client behind a proxy, with an open session.
async fn through(lab: &Lab) -> (Proxy, Client) {
    let proxy = Proxy::to(lab.store().port());
    let mut client = lab.through(proxy.port);
    client.inspect(&key("warm")).await;
    (proxy, client)
}

async fn a_share_whose_answer_was_lost_is_granted_once(lab: &Lab) {
    for fault in [Fault::CutAfter, Fault::Swallow] {
        for mode in [Mode::Shared, Mode::Permits(2)] {
            let (proxy, mut a) = through(lab).await;
            let job = key(&format!("{fault:?} {mode:?}"));
            let wanted = Request {
                mode,
                ..request(&job, LONG)
            };
            proxy.trap(write(lab), fault);
            let outcome = lease::acquire(
                &mut *a.0,
                &BootClock,
                wanted.clone(),
                WaitPolicy::Try,
                LIMITS,
                pending::<()>(),
                |_| {},
            )
            .await;
            let Ok(Outcome::Granted(lease)) = outcome else {
                panic!("{outcome:?}")
            };
            assert_eq!((proxy.sprung(), lease.holds), (1, 1));
            let state = lab.client().await.inspect(&job).await;
            assert_eq!(
                (state.holders.len(), state.last_fence),
                (1, Some(lease.fence))
            );
            // The same for the release, which the server has done.
            proxy.trap(write(lab), fault);
            let lost = tokio::time::timeout(
                soon(),
                a.0.release(&job, &wanted.token, &Scope::Hold.into()),
            )
            .await;
            assert!(!matches!(lost, Ok(Ok(_))), "{lost:?}");
            assert_eq!(a.release(&wanted, Scope::Hold).await, Release::NotHeld);
            assert_eq!(history(&mut a, &job).await.past.len(), 1);
        }
    }
}

async fn a_share_that_arrives_late_ends_with_its_lease(lab: &Lab) {
    // The client opens another session meanwhile.
    let late_by = overtaking_delay() * 2;
    let (proxy, mut a) = through(lab).await;
    let job = key("job");
    proxy.trap(write(lab), Fault::Late(late_by));
    let late = reader(request(&job, short()));
    let given_up = tokio::time::timeout(Duration::from_millis(150), a.0.try_acquire(&late)).await;
    assert!(given_up.is_err(), "{given_up:?}");
    assert_eq!(
        a.release(&late, Scope::Hold).await,
        Release::NotHeld,
        "the attempt has not arrived yet"
    );
    lab.pass(late_by).await;
    if let Some(holder) = lab.client().await.inspect(&job).await.holders.first() {
        assert!(holder.expires_in.expect("an end") <= short());
        lab.outlast(short()).await;
    }
    lab.client().await.hold(&job).await;
}

/// The late write was based on an older revision of the row.
async fn a_share_that_arrives_too_late_changes_nothing(lab: &Lab) {
    let (proxy, mut a) = through(lab).await;
    let (mut b, job) = (lab.client().await, key("job"));
    let first = reader(request(&job, LONG));
    b.take(&first).await;
    b.free(&first).await;
    proxy.trap(write(lab), Fault::Late(overtaking_delay()));
    let late = reader(request(&job, LONG));
    let attempt = a.0.try_acquire(&late);
    let meanwhile = async {
        lab.pass(Duration::from_millis(150)).await;
        b.hold(&job).await
    };
    let (attempt, writer) = tokio::join!(attempt, meanwhile);
    assert!(matches!(attempt, Ok(Attempt::Busy(_))), "{attempt:?}");
    let holders = b.inspect(&job).await.holders;
    assert!(
        holders.len() == 1 && holders[0].mode == Mode::Exclusive,
        "{holders:?}"
    );
    b.free(&writer).await;
    // ShedLock does not change the revision.
    b.take(&first).await;
    b.free(&first).await;
    proxy.trap(write(lab), Fault::Late(overtaking_delay()));
    let attempt = a.0.try_acquire(&late);
    let meanwhile = async {
        lab.pass(Duration::from_millis(150)).await;
        assert!(lab.shedlock("dlock", "dlock:job", 30));
    };
    let (attempt, ()) = tokio::join!(attempt, meanwhile);
    assert!(
        matches!(&attempt, Ok(Attempt::Busy(busy)) if busy.holders[0].foreign),
        "{attempt:?}"
    );
    assert_eq!(
        (proxy.sprung(), column(lab, "locked_by").as_deref()),
        (2, Some("web7"))
    );
}

/// No other client took the lock meanwhile, but an expired share stays lost.
async fn a_share_is_not_revived_by_a_late_renewal(lab: &Lab) {
    let (proxy, mut a) = through(lab).await;
    let job = key("job");
    let (brief, long) = (reader(request(&job, short())), reader(request(&job, LONG)));
    a.take(&brief).await;
    lab.client().await.take(&long).await;
    proxy.trap(write(lab), Fault::Late(short()));
    lab.pass(short() / 5).await;
    assert_eq!(a.renew(&brief, None).await, Renewal::NotHeld);
    assert_eq!(a.inspect(&job).await.holders.len(), 1);
}

async fn shares_keep_shedlock_out_until_the_last_ends(lab: &Lab) {
    let (mut a, mut b, job) = (lab.client().await, lab.client().await, key("job"));
    let (one, two) = (reader(request(&job, LONG)), reader(request(&job, LONG * 2)));
    a.take(&one).await;
    b.take(&two).await;
    assert!(
        !lab.shedlock("dlock", "dlock:job", 30),
        "ShedLock took a lock that is shared"
    );
    let left = if lab.kind.is_postgres() {
        "extract(epoch FROM lock_until - timezone('utc', clock_timestamp()))::int"
    } else {
        "TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), lock_until)"
    };
    let left = || {
        column(lab, left)
            .expect("an end")
            .parse::<u64>()
            .expect("seconds")
    };
    assert!(
        left() > LONG.as_secs() + 10,
        "lock_until is the latest expiry"
    );
    b.free(&two).await;
    assert!(
        left() <= LONG.as_secs(),
        "lock_until is the remaining reader's expiry"
    );
    assert!(!lab.shedlock("dlock", "dlock:job", 30));
    a.free(&one).await;
    assert!(
        lab.shedlock("dlock", "dlock:job", 30),
        "ShedLock did not get a released lock"
    );
    let wanted = reader(waiting(&job, LONG));
    let busy = a.refused(&wanted).await;
    assert!(
        busy.holders.len() == 1 && busy.holders[0].foreign,
        "{busy:?}"
    );
    // ShedLock notifies no waiter: on MariaDB a waiter polls the row, elsewhere the core does.
    assert_eq!(busy.notifies, lab.kind.speaks_mysql());
    let end = async {
        lab.pass(SLACK).await;
        end_shedlock(lab);
        Instant::now()
    };
    let poll = if busy.notifies { LONG } else { SLACK };
    let (_, ended) = tokio::join!(a.wait_for(&wanted, poll), end);
    assert!(ended.elapsed() < soon(), "{:?}", ended.elapsed());
}

async fn a_lock_that_shedlock_took_over_has_no_shares(lab: &Lab) {
    let (mut a, job) = (lab.client().await, key("job"));
    let (held, wanted) = (reader(request(&job, short())), reader(waiting(&job, LONG)));
    let fence = a.take(&held).await.fence;
    lab.outlast(short()).await;
    assert!(lab.shedlock("dlock", "dlock:job", 30));
    // Also if ShedLock's clock was ahead, so that the share has not expired by its own time.
    lab.sql("UPDATE dlock SET document = regexp_replace(document, '\"e\":[0-9]+', '\"e\":4000000000000')");
    let before = lab.sql("SELECT name, lock_until, locked_at, locked_by FROM dlock");
    assert_eq!(a.renew(&held, Some(LONG)).await, Renewal::NotHeld);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
    assert!(matches!(a.attempt(&nested(&held)).await, Attempt::NotHeld));
    assert!(
        a.inspect(&job)
            .await
            .holders
            .iter()
            .all(|holder| holder.foreign),
        "our share was reported as a hold"
    );
    assert_eq!(
        lab.sql("SELECT name, lock_until, locked_at, locked_by FROM dlock"),
        before
    );
    a.refused(&wanted).await;
    end_shedlock(lab);
    let grant = a.take(&wanted).await;
    let past = history(&mut a, &job).await.past;
    assert!(
        grant.fence > fence
            && past.len() == 1
            && (past[0].fence, &past[0].end) == (Some(fence), &End::Expired),
        "{past:?}"
    );
}

/// Returns the queue in the row's document, if there is one.
fn queue(lab: &Lab) -> Option<String> {
    let document = column(lab, "document")?;
    Some(
        document[document.find(r#","q":["#)? + 1..]
            .trim_end_matches('}')
            .to_owned(),
    )
}

/// Returns the document with this waiter, with and without the holder, and restores the row.
async fn document_with(lab: &Lab, client: &mut Client, wanted: &Request) -> (String, String) {
    let before = column(lab, "document").expect("a holder");
    client.refused(wanted).await;
    let (queue, with_holder) = (
        queue(lab).expect("a queue"),
        column(lab, "document").expect("a document"),
    );
    lab.sql(&format!(
        "UPDATE dlock SET document = '{before}', revision = revision - 1"
    ));
    (with_holder, format!(r#"{{"v":100,{queue}}}"#))
}

async fn a_fair_waiter_that_joins_during_a_grant_goes_first(lab: &Lab) {
    let (mut a, mut b, mut c, job) = (
        lab.client().await,
        lab.client().await,
        lab.client().await,
        key("job"),
    );
    let held = a.hold(&job).await;
    let first = fair(request(&job, LONG));
    let (_, document) = document_with(lab, &mut b, &first).await;
    a.free(&held).await;
    let coming = put_document(lab, &document);
    let began = Instant::now();
    let busy = c.refused(&request(&job, LONG)).await;
    assert!(
        began.elapsed() > SLACK && busy.transient,
        "the request did not wait for the row: {busy:?}"
    );
    coming.join().expect("the other session");
    b.take(&first).await;
}

async fn a_reader_that_joins_during_a_release_is_woken(lab: &Lab) {
    let (mut a, mut b, job) = (lab.client().await, lab.client().await, key("job"));
    let held = a.hold(&job).await;
    let wanted = reader(waiting(&job, LONG));
    b.refused(&wanted).await;
    b.wait(&wanted, SLACK).await;
    let (document, _) = document_with(lab, &mut b, &wanted).await;
    let coming = put_document(lab, &document);
    let release = async {
        a.free(&held).await;
        Instant::now()
    };
    let (_, freed) = tokio::join!(b.wait(&wanted, Duration::from_secs(20)), release);
    assert!(freed.elapsed() < soon(), "{:?}", freed.elapsed());
    coming.join().expect("the other session");
    b.take(&wanted).await;
}

async fn a_waiter_notified_before_it_listens_does_not_wait(lab: &Lab) {
    let (mut a, mut b, mut c, job) = (
        lab.client().await,
        lab.client().await,
        lab.client().await,
        key("job"),
    );
    let held = a.hold(&job).await;
    for wanted in [reader(waiting(&job, LONG)), fair(request(&job, LONG))] {
        b.refused(&wanted).await;
        // Other waiters and renewals don't wake this waiter.
        let other = fair(request(&job, LONG));
        c.refused(&other).await;
        a.renewed(&held, None).await;
        let began = Instant::now();
        b.wait(&wanted, SLACK).await;
        assert!(
            began.elapsed() >= SLACK,
            "the waiter was woken without a reason"
        );
        c.leave_queue(&other).await;
        b.leave_queue(&wanted).await;
    }
    let wanted = reader(waiting(&job, LONG));
    b.refused(&wanted).await;
    a.free(&held).await;
    tokio::time::timeout(soon(), b.wait(&wanted, LONG))
        .await
        .expect("the waiter was notified already");
    b.take(&wanted).await;
}

async fn a_waiter_keeps_its_position_when_readers_join(lab: &Lab) {
    let (mut a, mut b, mut c, job) = (
        lab.client().await,
        lab.client().await,
        lab.client().await,
        key("job"),
    );
    let held = a.hold(&job).await;
    let (writer, reading) = (waiting(&job, LONG), reader(waiting(&job, LONG)));
    assert_eq!(b.refused(&writer).await.position, Some(1));
    // A client that does not wait changes nothing for the waiters.
    c.refused(&reader(request(&job, LONG))).await;
    assert_eq!(queue(lab), None);
    assert_eq!(c.refused(&reading).await.position, Some(2));
    assert_eq!(b.refused(&writer).await.position, Some(1));
    assert_eq!(a.inspect(&job).await.waiters.len(), 2);
    let release = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
        Instant::now()
    };
    // One exclusive waiter is woken, in whichever queue it is.
    let (_, freed) = tokio::join!(b.wait_for(&writer, Duration::from_secs(20)), release);
    assert!(freed.elapsed() < soon(), "{:?}", freed.elapsed());
    c.refused(&reading).await;
    b.free(&writer).await;
    c.take(&reading).await;
    c.free(&reading).await;
    assert_eq!(queue(lab), None);
}

async fn a_waiter_that_leaves_is_removed_from_the_row(lab: &Lab) {
    let (mut a, mut b, job) = (lab.client().await, lab.client().await, key("job"));
    let held = a.hold(&job).await;
    for wanted in [
        reader(waiting(&job, LONG)),
        fair(request(&job, LONG)),
        Request {
            mode: Mode::Permits(2),
            ..waiting(&job, LONG)
        },
    ] {
        b.refused(&wanted).await;
        assert!(queue(lab).is_some());
        b.leave_queue(&wanted).await;
        assert_eq!(queue(lab), None);
    }
    a.renewed(&held, None).await;
    a.free(&held).await;
}

async fn a_share_is_renewed_in_two_round_trips(lab: &Lab) {
    let (proxy, mut a) = through(lab).await;
    let held = reader(request(&key("job"), LONG));
    a.take(&held).await;
    let before = proxy.requests();
    a.renewed(&held, None).await;
    a.free(&held).await;
    assert_eq!(proxy.requests() - before, 4);
}

async fn a_table_without_the_column_is_an_error_with_a_hint(lab: &Lab) {
    lab.sql("ALTER TABLE dlock DROP COLUMN document");
    let mut a = lab.client().await;
    for wanted in [
        request(&key("job"), LONG),
        reader(request(&key("job"), LONG)),
    ] {
        let error = a.0.try_acquire(&wanted).await.expect_err("an older table");
        assert_eq!(error.kind, ErrorKind::Config, "{error:?}");
        assert!(
            error
                .hint
                .as_deref()
                .is_some_and(|hint| hint.contains("dlock init")),
            "{error:?}"
        );
    }
    assert_eq!(a.0.init().await.expect("init"), Init::Created);
    a.take(&reader(request(&key("job"), LONG))).await;
}

/// A lock that an older version of dlock holds stays untouched.
async fn an_older_layout_is_refused_until_init(lab: &Lab) {
    let (mut a, mut b, job) = (lab.client().await, lab.client().await, key("job"));
    a.hold(&job).await;
    lab.sql("UPDATE dlock SET layout = 200");
    lab.sql("ALTER TABLE dlock_runs ADD COLUMN why varchar(9)");
    lab.sql("ALTER TABLE dlock_runs DROP COLUMN outcome");
    assert_eq!(b.0.init().await.expect("init"), Init::Created);
    lab.sql("INSERT INTO dlock_runs (name, fence, how, outcome) VALUES ('other', 1, 'ok', '{}')");
    let error =
        b.0.try_acquire(&request(&job, LONG))
            .await
            .expect_err("an older layout");
    assert_eq!(error.kind, ErrorKind::Layout, "{error:?}");
    assert!(
        error
            .hint
            .as_deref()
            .is_some_and(|hint| hint.contains("dlock init")),
        "{error:?}"
    );
    lab.sql("UPDATE dlock SET lock_until = '2001-01-01'");
    b.0.try_acquire(&request(&job, LONG))
        .await
        .expect_err("a free lock is refused too");
    b.0.init().await.expect("init");
    assert_eq!(b.0.init().await.expect("init"), Init::UpToDate);
    b.hold(&job).await;
}

async fn a_newer_layout_of_shares_is_refused(lab: &Lab) {
    let (mut a, job) = (lab.client().await, key("job"));
    let held = reader(request(&job, LONG));
    a.take(&held).await;
    lab.sql("UPDATE dlock SET document = replace(document, '\"v\":100', '\"v\":200')");
    let mut errors = Vec::new();
    errors.extend(a.0.try_acquire(&request(&job, LONG)).await.err());
    errors.extend(a.0.try_acquire(&reader(request(&job, LONG))).await.err());
    errors.extend(a.0.renew(&job, &held.token, None.into()).await.err());
    errors.extend(
        a.0.release(&job, &held.token, &Scope::Tree.into())
            .await
            .err(),
    );
    errors.extend(a.0.renew(&job, &held.token, Intent::Probe).await.err());
    errors.extend(a.0.inspect(&job).await.err());
    assert!(
        errors.len() == 6 && errors.iter().all(|error| error.kind == ErrorKind::Layout),
        "{errors:?}"
    );
    lab.sql("UPDATE dlock SET document = replace(document, '\"v\":200', '\"v\":199')");
    a.renewed(&held, None).await;
    a.free(&held).await;
}

async fn rows_that_were_shared_are_collected(lab: &Lab) {
    let (mut a, job) = (lab.client().await, key("job"));
    let held = reader(request(&job, LONG));
    a.take(&held).await;
    let old = "UPDATE dlock SET lock_until = '2001-01-01', locked_at = '2001-01-01', renewed_at = '2001-01-01', fence = 1";
    assert_eq!(
        a.0.collect(Duration::from_secs(60), &Progress::default())
            .await
            .expect("gc"),
        Some(0)
    );
    a.free(&held).await;
    lab.sql(old);
    assert_eq!(
        a.0.collect(Duration::from_secs(60), &Progress::default())
            .await
            .expect("gc"),
        Some(1)
    );
    let Attempt::Granted(_) = a.attempt(&held).await else {
        panic!("a deleted row is created again")
    };
    let busy: Busy = a.refused(&request(&job, LONG)).await;
    assert_eq!(busy.holders.len(), 1);
}
