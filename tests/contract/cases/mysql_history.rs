//! The history of session-held locks in MySQL and MariaDB, and their eviction.

use std::time::Duration;

use dlock::{
    backends::mysql::backend,
    lock::{Amendment, End, Kind as ErrorKind, Release, ReleaseInfo, Renewal, Scope, Wake},
};

use super::{
    Case, cases,
    history::{broken, history},
};
use crate::{
    lab::{Client, LONG, Lab, key, request, runner, short, waiting},
    support::proxy::{Fault, Proxy},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind: Kind| kind.speaks_mysql() && kind.held_by_session() =>
        recording_costs_no_request,
        a_lock_works_without_a_writable_history,
        holders_that_never_release_are_recorded_within_bounds,
        a_repeated_release_is_recorded_once,
        an_undone_grant_whose_answer_was_lost_is_not_recorded,
        a_history_needs_only_the_right_to_read,
        a_session_that_can_not_be_killed_keeps_the_lock,
        an_unreadable_mark_ends_no_hold,
        a_waiter_that_leaves_keeps_nothing_without_a_writable_table,
    ]
}

fn ended(end: End) -> ReleaseInfo {
    ReleaseInfo {
        end: Some(end),
        ..Scope::Tree.into()
    }
}

/// Returns a client with only these rights in the case's database.
fn with_rights(lab: &Lab, rights: &str) -> Client {
    let mut options = lab.mysql_options("dlock");
    let user = format!(
        "u{}",
        &lab.mariadb().name[lab.mariadb().name.len().saturating_sub(20)..]
    );
    lab.mariadb().sql(&format!(
        "CREATE USER '{user}'; GRANT {rights} ON {}.* TO '{user}'",
        lab.mariadb().name
    ));
    options.sql.user = Some(user);
    Client(backend(options))
}

async fn recording_costs_no_request(lab: &Lab) {
    let proxy = Proxy::to(lab.store().port());
    let mut a = lab.through(proxy.port);
    let job = key("job");
    let first = a.hold(&job).await;
    a.free(&first).await;
    lab.pass(Duration::from_millis(50)).await;
    let mut counted = Vec::new();
    for info in [ReleaseInfo::UNDO, ended(End::Exited(1)), ReleaseInfo::UNDO] {
        let held = request(&job, LONG);
        let before = proxy.requests();
        a.take(&held).await;
        let taken = proxy.requests();
        a.renewed(&held, None).await;
        let renewed = proxy.requests();
        assert_eq!(
            a.0.release(&job, &held.token, &info)
                .await
                .expect("release"),
            Release::Released
        );
        // The session ends, which is one more request.
        lab.pass(Duration::from_millis(50)).await;
        counted.push((taken - before, renewed - taken, proxy.requests() - renewed));
    }
    // A renewal in mode=row is recorded over the other session.
    let renewal = if matches!(lab.kind, Kind::MariadbRow | Kind::MysqlRow) {
        2
    } else {
        1
    };
    assert!(
        counted.iter().all(|one| *one == (counted[0].0, renewal, 2)),
        "{counted:?}"
    );
    // The login, a query about the server, and the lock; with mode=row the fence over the other
    // session.
    assert!(counted[0].0 <= 2 + renewal, "{counted:?}");
}

/// A grant and a release succeed even if neither can be recorded.
async fn a_lock_works_without_a_writable_history(lab: &Lab) {
    let job = key("job");
    lab.mariadb().sql("RENAME TABLE dlock_runs TO elsewhere");
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    for _ in 0..2 {
        let held = a.hold(&job).await;
        b.refused(&request(&job, LONG)).await;
        a.renewed(&held, None).await;
        assert_eq!(
            a.0.release(&job, &held.token, &ended(End::Exited(1)))
                .await
                .expect("release"),
            Release::Released
        );
        assert!(b.inspect(&job).await.holders.is_empty());
    }
    a.hold(&job).await;
    drop(a);
    let wanted = waiting(&job, LONG);
    let grant = b.wait_for(&wanted, Duration::from_millis(50)).await;
    assert!(!grant.drain_delay.is_zero(), "the previous holder vanished");
    b.free(&wanted).await;
    lab.mariadb().sql("RENAME TABLE elsewhere TO dlock_runs");
    assert_eq!(history(&mut b, &job).await.past, []);
}

async fn holders_that_never_release_are_recorded_within_bounds(lab: &Lab) {
    let job = key("job");
    let mut last = None;
    for _ in 0..140 {
        let (mut a, wanted) = (lab.client().await, waiting(&job, LONG));
        let fence = a.wait_for(&wanted, Duration::from_millis(20)).await.fence;
        assert!(last < Some(fence));
        last = Some(fence);
    }
    let mut b = lab.client().await;
    b.wait_for(&waiting(&job, LONG), Duration::from_millis(20))
        .await;
    let past = history(&mut b, &job).await.past;
    assert!((100..=132).contains(&past.len()), "{}", past.len());
    assert!(
        past[0].fence == last && past.iter().all(|one| one.end == End::Expired),
        "{past:?}"
    );
}

async fn a_repeated_release_is_recorded_once(lab: &Lab) {
    let job = key("job");
    let row = matches!(lab.kind, Kind::MariadbRow | Kind::MysqlRow);
    for fault in [
        Fault::LateReply(Duration::from_millis(300)),
        Fault::CutAfter,
    ] {
        let proxy = Proxy::to(lab.store().port());
        let (mut a, mut b) = (lab.through(proxy.port), lab.client().await);
        let held = request(&job, LONG);
        let fence = a.take(&held).await.fence;
        proxy.trap(if row { "COMMIT" } else { "RELEASE_LOCK" }, fault);
        let info = ended(End::Exited(3));
        let lost = tokio::time::timeout(
            Duration::from_millis(200),
            a.0.release(&job, &held.token, &info),
        )
        .await;
        assert!(!matches!(lost, Ok(Ok(_))), "{lost:?}");
        let _ =
            a.0.release(&job, &held.token, &ended(End::Exited(4)))
                .await
                .expect("release");
        let past = history(&mut b, &job).await.past;
        let of_it: Vec<_> = past
            .iter()
            .filter(|one| one.fence == Some(fence))
            .map(|one| one.end.clone())
            .collect();
        // A server that noticed the connection's end before the request has rolled back, and
        // recorded the hold as expired or not yet. The repeated release records it then.
        let unheard = fault == Fault::CutAfter
            && (of_it.is_empty() || of_it == [End::Expired] || of_it == [End::Exited(4)]);
        assert!(of_it == [End::Exited(3)] || unheard, "{fault:?}: {past:?}");
    }
}

async fn an_undone_grant_whose_answer_was_lost_is_not_recorded(lab: &Lab) {
    for (n, fault) in [
        Fault::LateReply(short() * 3 / 2),
        Fault::CutAfter,
        Fault::CutBefore,
    ]
    .into_iter()
    .enumerate()
    {
        let proxy = Proxy::to(lab.store().port());
        let (mut a, mut b) = (lab.through(proxy.port), lab.client().await);
        let job = key(&format!("job{n}"));
        let wanted = request(&job, LONG);
        proxy.trap("GREATEST(fence + 1", fault);
        let lost = tokio::time::timeout(short(), a.0.try_acquire(&wanted)).await;
        assert!(
            !matches!(lost, Ok(Ok(_))) && proxy.sprung() == 1,
            "{lost:?}"
        );
        assert_eq!(
            a.0.release(&job, &wanted.token, &ReleaseInfo::UNDO)
                .await
                .expect("release"),
            Release::NotHeld
        );
        let next = waiting(&job, LONG);
        let grant = b.wait_for(&next, Duration::from_millis(50)).await;
        assert!(grant.drain_delay.is_zero(), "no holder vanished");
        assert_eq!(history(&mut b, &job).await.past, [], "{n}");
        b.free(&next).await;
    }
}

async fn a_history_needs_only_the_right_to_read(lab: &Lab) {
    let mut reader = with_rights(lab, "SELECT");
    let (job, lost) = (key("job"), key("lost"));
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let held = dlock::lock::Request {
        metadata: Some(runner("web1")),
        ..request(&lost, LONG)
    };
    b.take(&held).await;
    drop(b);
    let held = a.hold(&job).await;
    assert_eq!(
        a.0.release(&job, &held.token, &ended(End::Exited(3)))
            .await
            .expect("release"),
        Release::Released
    );
    a.hold(&job).await;
    let past = history(&mut reader, &job).await.past;
    assert!(past.len() == 1 && past[0].end == End::Exited(3), "{past:?}");
    while reader.inspect(&lost).await.holders.len() == 1 {
        lab.pass(Duration::from_millis(20)).await;
    }
    let past = history(&mut reader, &lost).await.past;
    assert!(
        past.len() == 1 && past[0].end == End::Expired && past[0].metadata == Some(runner("web1")),
        "{past:?}"
    );
    assert_eq!(reader.inspect(&job).await.holders.len(), 1);
}

async fn a_session_that_can_not_be_killed_keeps_the_lock(lab: &Lab) {
    let mut other = with_rights(lab, "SELECT, INSERT, UPDATE, DELETE");
    let mut a = lab.client().await;
    let job = key("job");
    let held = request(&job, LONG);
    let fence = a.take(&held).await.fence;
    let error = other
        .0
        .amend(&job, Amendment::Evict(fence, &broken("NFS")))
        .await
        .expect_err("another user's session");
    assert!(
        error.kind == ErrorKind::Denied
            && error
                .hint
                .as_deref()
                .is_some_and(|hint| hint.contains("CONNECTION_ADMIN")),
        "{error:?}"
    );
    // The hold is not marked as broken either.
    a.renewed(&held, None).await;
    assert_eq!(a.inspect(&job).await.holders[0].broken, None);
    assert!(
        other
            .0
            .amend(&job, Amendment::Mark(fence, &broken("NFS")))
            .await
            .expect("mark")
    );
    assert_eq!(
        other
            .0
            .amend(&job, Amendment::Evict(fence, &broken("NFS")))
            .await
            .expect_err("no right")
            .kind,
        ErrorKind::Denied
    );
    assert_eq!(a.renew(&held, None).await, Renewal::Broken(broken("NFS")));
    a.free(&held).await;
}

async fn a_waiter_that_leaves_keeps_nothing_without_a_writable_table(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let unwanted = waiting(&job, LONG);
    b.refused(&unwanted).await;
    a.free(&held).await;
    assert_eq!(
        b.wait(&unwanted, LONG).await,
        Wake::Changed,
        "the waiter's session has the lock"
    );
    let blocker = lab
        .mariadb()
        .keep("LOCK TABLES dlock WRITE, dlock_waiters WRITE");
    let left = b.0.leave_queue(&unwanted).await;
    assert!(
        left.as_ref()
            .err()
            .is_none_or(dlock::lock::Error::is_transient),
        "{left:?}"
    );
    drop(blocker);
    b.leave_queue(&unwanted).await;
    c.wait_for(&waiting(&job, LONG), Duration::from_millis(50))
        .await;
}

async fn an_unreadable_mark_ends_no_hold(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    lab.mariadb().sql("RENAME TABLE dlock TO elsewhere");
    a.renewed(&held, None).await;
    lab.mariadb().sql("RENAME TABLE elsewhere TO dlock");
    a.renewed(&held, None).await;
    a.free(&held).await;
}
