//! Many concurrent clients of shared locks in SQL servers' lock tables.

use std::{
    cell::RefCell,
    future::pending,
    time::{Duration, Instant},
};

use dlock::{
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{Mode, Request},
};
use futures_util::future::join_all;

use super::{
    Case, cases,
    model::Dice,
    sql_shares::{column, reader},
};
use crate::{
    lab::{LONG, Lab, SLACK, key, request, stretched, waiting},
    support::proxy::Proxy,
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![|kind| matches!(kind, Kind::PostgresLease | Kind::MariadbLease | Kind::MysqlLease) =>
        many_readers_are_granted_at_once,
        one_release_admits_many_readers,
        all_kinds_at_once_exclude_each_other_and_no_waiter_is_forgotten,
    ];
    all.extend(
        cases![|kind| kind == Kind::PostgresLease => a_hand_over_costs_the_same_with_many_waiters],
    );
    all
}

const MANY: usize = 60;

async fn many_readers_are_granted_at_once(lab: &Lab) {
    let job = key("job");
    let mut clients = Vec::new();
    for _ in 0..MANY {
        let mut client = lab.client().await;
        client.inspect(&job).await;
        clients.push((client, reader(request(&job, LONG))));
    }
    let began = Instant::now();
    join_all(
        clients
            .iter_mut()
            .map(async |(client, request)| client.take(request).await),
    )
    .await;
    assert_eq!(lab.client().await.inspect(&job).await.holders.len(), MANY);
    join_all(
        clients
            .iter_mut()
            .map(async |(client, request)| client.renewed(request, None).await),
    )
    .await;
    join_all(
        clients
            .iter_mut()
            .map(async |(client, request)| client.free(request).await),
    )
    .await;
    assert!(
        began.elapsed() < stretched(Duration::from_secs(20)),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(column(lab, "document"), None);
}

async fn one_release_admits_many_readers(lab: &Lab) {
    let (mut a, job) = (lab.client().await, key("job"));
    let held = a.hold(&job).await;
    // At once, since a waiter that does not ask for a while is taken for dead.
    let mut clients = join_all((0..MANY).map(async |_| {
        let (mut client, wanted) = (lab.client().await, reader(waiting(&job, LONG)));
        client.refused(&wanted).await;
        (client, wanted)
    }))
    .await;
    let release = async {
        lab.pass(SLACK * 2).await;
        a.free(&held).await;
        Instant::now()
    };
    // No waiter polls before the case is over.
    let never = Duration::from_secs(60);
    let all = join_all(
        clients
            .iter_mut()
            .map(async |(client, wanted)| client.wait_for(wanted, never).await),
    );
    let (_, released) = tokio::join!(all, release);
    assert!(
        released.elapsed() < stretched(Duration::from_secs(10)),
        "{:?}",
        released.elapsed()
    );
    assert_eq!(a.inspect(&job).await.holders.len(), MANY);
}

/// The current holders.
#[derive(Default)]
struct Inside {
    writers: u32,
    readers: u32,
    permits: Vec<u32>,
    /// Since when the lock is free while others wait. `longest` is the longest such time.
    empty: Option<Instant>,
    longest: Duration,
}

async fn all_kinds_at_once_exclude_each_other_and_no_waiter_is_forgotten(lab: &Lab) {
    let job = key("job");
    let inside = RefCell::new(Inside::default());
    let seed = dlock::lock::random();
    let began = Instant::now();
    let mut clients = Vec::new();
    for number in 0..12 {
        let mut dice = Dice(seed.wrapping_add(number));
        let mut client = lab.client().await;
        let (job, inside) = (&job, &inside);
        clients.push(async move {
            for _ in 0..12 {
                let mode = [
                    Mode::Exclusive,
                    Mode::Shared,
                    Mode::Shared,
                    Mode::Permits(2),
                ][dice.roll(4)];
                let wanted = Request {
                    mode,
                    fair: dice.roll(2) == 0,
                    ..waiting(job, LONG)
                };
                let granted = lease::acquire(
                    &mut *client.0,
                    &BootClock,
                    wanted.clone(),
                    WaitPolicy::Forever,
                    Limits::DEFAULT,
                    pending::<()>(),
                    |_| {},
                );
                let Ok(Outcome::Granted(lease)) = granted.await else {
                    panic!("{mode:?} was not granted")
                };
                let number = client
                    .inspect(job)
                    .await
                    .holders
                    .into_iter()
                    .find(|one| one.fence == Some(lease.fence))
                    .and_then(|one| one.permit);
                {
                    let mut inside = inside.borrow_mut();
                    let empty = inside
                        .empty
                        .take()
                        .map_or(Duration::ZERO, |since| since.elapsed());
                    inside.longest = inside.longest.max(empty);
                    match mode {
                        Mode::Exclusive => inside.writers += 1,
                        Mode::Shared => inside.readers += 1,
                        Mode::Permits(_) => inside.permits.push(number.expect("a number")),
                    }
                    let Inside {
                        writers,
                        readers,
                        permits,
                        ..
                    } = &*inside;
                    assert!(
                        *writers <= 1
                            && usize::from(*writers > 0)
                                + usize::from(*readers > 0)
                                + usize::from(!permits.is_empty())
                                == 1
                    );
                    assert!(
                        permits.len() <= 2 && (permits.len() < 2 || permits[0] != permits[1]),
                        "{permits:?}"
                    );
                }
                tokio::time::sleep(Duration::from_millis(dice.roll(8) as u64)).await;
                if dice.roll(3) == 0 {
                    client.renewed(&wanted, None).await;
                }
                {
                    let mut inside = inside.borrow_mut();
                    match mode {
                        Mode::Exclusive => inside.writers -= 1,
                        Mode::Shared => inside.readers -= 1,
                        Mode::Permits(_) => inside.permits.retain(|other| Some(*other) != number),
                    }
                    if inside.writers == 0 && inside.readers == 0 && inside.permits.is_empty() {
                        inside.empty = Some(Instant::now());
                    }
                }
                client.free(&wanted).await;
            }
        });
    }
    join_all(clients).await;
    // Without a notification waiters would poll after five seconds; even on a slow machine a hold
    // lasts at most one.
    assert!(
        inside.borrow().longest < Duration::from_secs(4),
        "{:?} of {:?}, seed {seed}",
        inside.borrow().longest,
        began.elapsed()
    );
    assert_eq!(column(lab, "document"), None);
}

/// Returns the average number of requests between two releases, with this many waiters.
async fn cost_of_a_hand_over(
    lab: &Lab,
    wanted: impl Fn(Request) -> Request,
    waiters: usize,
) -> f64 {
    let proxy = Proxy::to(lab.store().port());
    let (mut a, job) = (lab.through(proxy.port), key("job"));
    let held = wanted(request(&job, LONG));
    a.take(&held).await;
    let mut clients = Vec::new();
    for _ in 0..waiters {
        let (mut client, wanted) = (lab.through(proxy.port), wanted(waiting(&job, LONG)));
        client.refused(&wanted).await;
        client.wait(&wanted, Duration::from_millis(1)).await;
        client.wait(&wanted, Duration::from_millis(1)).await;
        clients.push((client, wanted));
    }
    let (before, began) = (proxy.requests(), Instant::now());
    let all = join_all(clients.iter_mut().map(async |(client, wanted)| {
        client.wait_for(wanted, Duration::from_secs(5)).await;
        client.free(wanted).await;
    }));
    let first = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
    };
    tokio::join!(all, first);
    // Each waiter sends one request at the beginning, and polls every few seconds, which matters on
    // a slow machine.
    #[allow(clippy::cast_precision_loss)]
    let asked = (proxy.requests() - before) as f64 / waiters as f64;
    asked - began.elapsed().as_secs_f64()
}

async fn a_hand_over_costs_the_same_with_many_waiters(lab: &Lab) {
    let fair = |of: Request| Request {
        fair: of.waiting,
        ..of
    };
    let permits = |of| Request {
        mode: Mode::Permits(1),
        ..of
    };
    for (name, kind) in [
        ("fair", fair as fn(Request) -> Request),
        ("permits", permits),
    ] {
        let (few, many) = (
            cost_of_a_hand_over(lab, kind, 4).await,
            cost_of_a_hand_over(lab, kind, 40).await,
        );
        // A hand-over takes about 7 requests. Waking all waiters would take 80.
        assert!(
            few < 20.0 && many < 20.0,
            "{name}: {few} with 4, {many} with 40"
        );
    }
}
