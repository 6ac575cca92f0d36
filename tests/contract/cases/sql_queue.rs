//! Queued waiters for a lock in a SQL server's table: the cost of a grant, and waiters that are not
//! woken.

use std::{
    cell::Cell,
    future::pending,
    rc::Rc,
    time::{Duration, Instant},
};

use dlock::{
    backends::mysql::backend,
    lease::{self, BootClock, Limits, Outcome, Released, WaitPolicy},
    lock::{Mode, Request, Scope},
};
use tokio::task::{LocalSet, spawn_local};

use super::{Case, cases};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, request, soon, waiting},
    support::{self, proxy::Proxy},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![|kind| matches!(kind, Kind::PostgresLease | Kind::MariadbLease | Kind::MysqlLease) => a_grant_costs_the_same_with_many_waiters];
    all.extend(cases![|kind| kind.is_mysql_lease() =>
        a_waiter_that_can_not_be_woken_polls,
        a_waiter_woken_during_a_request_repeats_it,
        an_exclusive_waiter_keeps_its_position_before_readers,
    ]);
    all
}

/// One thread runs all waiters, hence the long limits.
const LIMITS: Limits<'static> = Limits::of(Duration::from_secs(20));

/// Waits as `dlock run` does, gets the lock, and releases it.
async fn wait_and_release(mut client: Client, wanted: Request, joined: Rc<Cell<u32>>) {
    let mut first = true;
    let busy = |_: &_| joined.set(joined.get() + u32::from(std::mem::take(&mut first)));
    let outcome = lease::acquire(
        &mut *client.0,
        &BootClock,
        wanted,
        WaitPolicy::Forever,
        LIMITS,
        pending::<()>(),
        busy,
    )
    .await;
    let Ok(Outcome::Granted(lease)) = outcome else {
        panic!("{outcome:?}")
    };
    let released = lease::release(
        &mut *client.0,
        &BootClock,
        &lease.key,
        &lease.token,
        &Scope::Tree.into(),
        LIMITS,
    )
    .await;
    assert!(matches!(released, Released::Free), "{released:?}");
}

/// Returns how many requests each grant took, and how long.
async fn drain(lab: &Lab, count: u32, mode: Mode, fair: bool) -> (u32, Duration) {
    let job = key(&format!("{mode:?} {fair} {count}"));
    let proxy = Proxy::to(lab.store().port());
    let mut holder = lab.client().await;
    let held = holder.hold(&job).await;
    let joined = Rc::new(Cell::new(0));
    LocalSet::new()
        .run_until(async {
            let mut all = Vec::new();
            for _ in 0..count {
                let client = lab.through(proxy.port);
                let wanted = Request {
                    mode,
                    fair,
                    ..waiting(&job, LONG)
                };
                all.push(spawn_local(wait_and_release(
                    client,
                    wanted,
                    Rc::clone(&joined),
                )));
            }
            while joined.get() < count {
                lab.pass(SLACK / 10).await;
            }
            // All waiters are asleep now.
            lab.pass(SLACK * 2).await;
            let (before, began) = (proxy.requests(), Instant::now());
            holder.free(&held).await;
            for waiter in all {
                waiter.await.expect("a grant");
            }
            (
                u32::try_from(proxy.requests() - before)
                    .expect("few")
                    .div_ceil(count),
                began.elapsed() / count,
            )
        })
        .await
}

async fn a_grant_costs_the_same_with_many_waiters(lab: &Lab) {
    for (mode, fair) in [
        (Mode::Exclusive, true),
        (Mode::Shared, false),
        (Mode::Permits(2), true),
    ] {
        let mut costs = Vec::new();
        for count in [5, 40] {
            let (requests, each) = drain(lab, count, mode, fair).await;
            costs.push(format!("{count}: {requests} requests, {each:.1?}"));
            // Some waiters poll meanwhile, more on a slower machine. Waking all would take over 100
            // requests.
            assert!(
                f64::from(requests)
                    <= 20.0 * f64::from(support::slowness()) + 40.0 * each.as_secs_f64(),
                "{mode:?}: {costs:?}"
            );
            assert!(each < soon() / 2, "{mode:?}: {costs:?}");
        }
        support::say(&format!(
            "{}: {mode:?}, each grant of {}",
            lab.kind.name(),
            costs.join("; of ")
        ));
    }
}

/// The holder is another database user, which may not kill the query that a waiter sleeps in.
async fn a_waiter_that_can_not_be_woken_polls(lab: &Lab) {
    let (mut b, job) = (lab.client().await, key("job"));
    let mut options = lab.mysql_options("dlock");
    let database = options.sql.database.clone().expect("a database");
    let user = format!("u{database}");
    lab.mariadb().sql(&format!(
        "CREATE USER {user}@'%'; GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO {user}@'%'"
    ));
    options.sql.user = Some(user);
    let mut a = Client(backend(options));
    let held = a.hold(&job).await;
    let wanted = Request {
        fair: true,
        ..waiting(&job, LONG)
    };
    b.refused(&wanted).await;
    let release = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
        Instant::now()
    };
    let (_, freed) = tokio::join!(b.wait_for(&wanted, Duration::from_secs(20)), release);
    assert!(freed.elapsed() < soon(), "{:?}", freed.elapsed());
}

/// The wake-up arrives late: it hits the waiter's next request.
async fn a_waiter_woken_during_a_request_repeats_it(lab: &Lab) {
    let job = key("job");
    let mut a = lab.client().await;
    a.inspect(&job).await;
    let session = lab.sessions()[0].clone();
    let blocked = lab.mariadb().keep("START TRANSACTION; INSERT INTO dlock (name, lock_until, locked_at, locked_by) VALUES ('dlock:job', '2000-01-01', '2000-01-01', 'x'); DO 1");
    let wanted = Request {
        mode: Mode::Shared,
        ..request(&job, LONG)
    };
    let wake = async {
        lab.pass(SLACK).await;
        lab.mariadb().sql(&format!("KILL QUERY {session}"));
        lab.pass(SLACK / 2).await;
        drop(blocked);
    };
    let (grant, ()) = tokio::join!(a.take(&wanted), wake);
    assert!(grant.fence.0 > 0);
    assert_eq!(lab.sessions(), [session], "the session was ended");
    a.free(&wanted).await;
}

/// The writer waits for the advisory lock, and is not asleep when the readers arrive.
async fn an_exclusive_waiter_keeps_its_position_before_readers(lab: &Lab) {
    let (mut a, mut b, mut c, job) = (
        lab.client().await,
        lab.client().await,
        lab.client().await,
        key("job"),
    );
    let held = a.hold(&job).await;
    let (writer, reader) = (
        waiting(&job, LONG),
        Request {
            mode: Mode::Shared,
            ..waiting(&job, LONG)
        },
    );
    b.refused(&writer).await;
    let never = Duration::from_secs(20);
    let others = async {
        lab.pass(SLACK).await;
        c.refused(&reader).await;
        lab.pass(SLACK).await;
        a.free(&held).await;
        Instant::now()
    };
    let (_, freed) = tokio::join!(b.wait_for(&writer, never), others);
    assert!(freed.elapsed() < soon(), "{:?}", freed.elapsed());
    c.refused(&reader).await;
    let release = async {
        lab.pass(SLACK).await;
        b.free(&writer).await;
        Instant::now()
    };
    let (_, freed) = tokio::join!(c.wait_for(&reader, never), release);
    assert!(freed.elapsed() < soon(), "{:?}", freed.elapsed());
}
