//! Permits on stores that keep positions: faults between a waiter's position and its permit number.

use std::{future::pending, time::Duration};

use dlock::{
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{Attempt, Key, Mode, Release, Renewal, Request, Scope, Wake},
};
use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

use super::{Case, cases};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, request, short, soon, stretched, ttl, waiting},
    support::proxy::{Fault, Mode as Line, Proxy},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![Kind::keeps_positions =>
        permits_requested_at_once_get_different_numbers,
        many_waiters_never_hold_one_permit_too_many,
        a_permit_released_during_a_look_is_not_missed,
        a_smaller_permit_count_waits_for_enough_releases,
        a_waiter_for_a_larger_permit_count_is_woken_by_its_own_room,
        a_dead_waiter_for_permits_is_passed,
        waiters_behind_another_kind_continue_when_that_one_leaves,
        a_deleted_permit_number_ends_its_hold,
    ];
    all.extend(cases![|kind| kind.keeps_positions() && kind.has_server() =>
        a_permit_number_whose_answer_was_lost_is_taken_once,
        a_lost_position_takes_no_permit_number,
        a_released_permit_costs_the_same_with_many_waiters,
    ]);
    // Only etcd: ZooKeeper's session is kept alive over another connection while a request is late.
    all.extend(
        cases![|kind| kind == Kind::Etcd => a_permit_number_taken_after_the_lease_is_not_granted],
    );
    all
}

/// No waiter polls within this time, so a missed wake-up fails the case.
const NEVER: Duration = Duration::from_secs(20);
const LIMITS: Limits<'static> = Limits::of(Duration::from_secs(2));

fn permit(most: u32, of: Request) -> Request {
    Request {
        mode: Mode::Permits(most),
        ..of
    }
}

/// Takes `count` of `most` permits.
async fn hold_permits(lab: &Lab, job: &Key, count: u32, most: u32) -> Vec<(Client, Request)> {
    let mut holders = Vec::new();
    for number in 0..count {
        let (mut client, request) = (lab.client().await, permit(most, request(job, LONG)));
        assert_eq!(client.take(&request).await.permit, Some(number));
        holders.push((client, request));
    }
    holders
}

/// Queues a waiter for one of `most` permits.
async fn queue(lab: &Lab, job: &Key, most: u32) -> (Client, Request) {
    let (mut client, wanted) = (lab.client().await, permit(most, waiting(job, LONG)));
    client.refused(&wanted).await;
    (client, wanted)
}

async fn give_back((mut client, held): (Client, Request)) {
    client.free(&held).await;
}

/// Returns the held numbers, sorted.
async fn permit_numbers(lab: &Lab, job: &Key) -> Vec<u32> {
    let state = lab.client().await.inspect(job).await;
    let mut permit_numbers: Vec<_> = state
        .holders
        .iter()
        .map(|holder| holder.permit.expect("a number"))
        .collect();
    permit_numbers.sort_unstable();
    permit_numbers
}

async fn core_acquire(
    client: &mut Client,
    wanted: Request,
    wait_policy: WaitPolicy,
) -> Outcome<()> {
    let taken = lease::acquire(
        &mut *client.0,
        &BootClock,
        wanted,
        wait_policy,
        LIMITS,
        pending::<()>(),
        |_| {},
    )
    .await;
    taken.unwrap_or_else(|error| panic!("{error:?}"))
}

async fn permits_requested_at_once_get_different_numbers(lab: &Lab) {
    for wait_policy in [WaitPolicy::Try, WaitPolicy::For(LONG)] {
        let job = key(&format!("{wait_policy:?}"));
        let mut clients = Vec::new();
        for _ in 0..6 {
            clients.push(lab.client().await);
        }
        let all = clients.iter_mut().map(|client| {
            let waits = matches!(wait_policy, WaitPolicy::For(_));
            core_acquire(
                client,
                permit(
                    6,
                    Request {
                        waiting: waits,
                        ..request(&job, LONG)
                    },
                ),
                wait_policy,
            )
        });
        let outcomes = join_all(all).await;
        assert!(
            outcomes
                .iter()
                .all(|outcome| matches!(outcome, Outcome::Granted(_))),
            "{outcomes:?}"
        );
        assert_eq!(permit_numbers(lab, &job).await, [0, 1, 2, 3, 4, 5]);
    }
}

async fn many_waiters_never_hold_one_permit_too_many(lab: &Lab) {
    const MOST: u32 = 3;
    let (job, inside) = (key("job"), std::cell::RefCell::new(Vec::new()));
    let one = async |wait_policy: Duration| {
        let mut client = lab.client().await;
        for _ in 0..3 {
            let wanted = permit(MOST, waiting(&job, LONG));
            let mut taken = timeout(wait_policy, client.wait_for(&wanted, NEVER)).await;
            if taken.is_err() {
                // The waiter gives up at any moment, also while it is granted a permit.
                client.leave_queue(&wanted).await;
                let release = client.release(&wanted, Scope::Tree).await;
                assert!(
                    matches!(release, Release::Released | Release::NotHeld),
                    "{release:?}"
                );
                let again = permit(MOST, waiting(&job, LONG));
                taken = Ok(client.wait_for(&again, NEVER).await);
                hold_briefly(lab, &inside, taken.expect("a grant").permit).await;
                client.free(&again).await;
                continue;
            }
            hold_briefly(lab, &inside, taken.expect("a grant").permit).await;
            client.free(&wanted).await;
        }
    };
    let began = Instant::now();
    join_all((0..12_u64).map(|n| one(Duration::from_millis(4 + n * 9)))).await;
    assert!(began.elapsed() < NEVER, "{:?}", began.elapsed());
    assert_eq!(permit_numbers(lab, &job).await, [0; 0]);
}

/// Holds a permit for a moment, and checks that its number is not held twice.
async fn hold_briefly(lab: &Lab, inside: &std::cell::RefCell<Vec<u32>>, number: Option<u32>) {
    let number = number.expect("a number");
    {
        let mut inside = inside.borrow_mut();
        assert!(
            !inside.contains(&number) && inside.len() < 3 && number < 3,
            "{number} next to {inside:?}"
        );
        inside.push(number);
    }
    lab.pass(Duration::from_millis(5)).await;
    inside.borrow_mut().retain(|other| *other != number);
}

async fn a_permit_released_during_a_look_is_not_missed(lab: &Lab) {
    let job = key("job");
    let mut holders = hold_permits(lab, &job, 2, 2).await;
    for step in 0..24_u64 {
        let (mut client, wanted) = (lab.client().await, permit(2, waiting(&job, LONG)));
        let leaving = holders.remove(usize::from(step % 2 == 0));
        let free = async {
            lab.pass(Duration::from_micros(step * 200)).await;
            give_back(leaving).await;
        };
        let began = Instant::now();
        let (grant, ()) = tokio::join!(client.wait_for(&wanted, NEVER), free);
        assert!(
            began.elapsed() < soon() && grant.permit < Some(2),
            "step {step}: {:?} {grant:?}",
            began.elapsed()
        );
        holders.push((client, wanted));
        assert_eq!(permit_numbers(lab, &job).await, [0, 1]);
    }
}

async fn a_smaller_permit_count_waits_for_enough_releases(lab: &Lab) {
    let job = key("job");
    let mut holders = hold_permits(lab, &job, 4, 4).await;
    let (mut client, wanted) = queue(lab, &job, 2).await;
    let last = holders.pop().expect("a holder");
    let free = async {
        for (released, holder) in holders.into_iter().enumerate() {
            lab.pass(SLACK).await;
            let wait = lab.client().await.inspect(&job).await.waiters.len();
            assert_eq!(wait, 1, "granted with {} held", 4 - released);
            give_back(holder).await;
        }
        Instant::now()
    };
    let (grant, freed) = tokio::join!(client.wait_for(&wanted, NEVER), free);
    assert!(freed.elapsed() < soon(), "{:?}", freed.elapsed());
    assert_eq!(
        (grant.permit, permit_numbers(lab, &job).await),
        (Some(0), vec![0, 3])
    );
    lab.client()
        .await
        .refused(&permit(2, request(&job, LONG)))
        .await;
    give_back(last).await;
    assert_eq!(
        lab.client()
            .await
            .take(&permit(2, request(&job, LONG)))
            .await
            .permit,
        Some(1)
    );
}

async fn a_waiter_for_a_larger_permit_count_is_woken_by_its_own_room(lab: &Lab) {
    let job = key("job");
    let mut holders = hold_permits(lab, &job, 3, 3).await;
    let (mut few, wants_few) = queue(lab, &job, 1).await;
    let (mut more, wants_more) = queue(lab, &job, 4).await;
    let free = async |holder| {
        lab.pass(SLACK).await;
        give_back(holder).await;
        Instant::now()
    };
    // There is room for the waiter with the larger count, and none for the other one.
    let (grant, freed) = tokio::join!(more.wait_for(&wants_more, NEVER), free(holders.remove(0)));
    assert!(
        freed.elapsed() < soon() && grant.permit == Some(0),
        "{:?} {grant:?}",
        freed.elapsed()
    );
    few.refused(&wants_few).await;
    let free_all = async {
        give_back((more, wants_more)).await;
        give_back(holders.remove(0)).await;
        few_waits(lab, &job).await;
        free(holders.remove(0)).await
    };
    let (grant, freed) = tokio::join!(few.wait_for(&wants_few, NEVER), free_all);
    assert!(
        freed.elapsed() < soon() && grant.permit == Some(0),
        "{:?} {grant:?}",
        freed.elapsed()
    );
}

async fn few_waits(lab: &Lab, job: &Key) {
    lab.pass(SLACK).await;
    assert_eq!(lab.client().await.inspect(job).await.waiters.len(), 1);
}

async fn a_dead_waiter_for_permits_is_passed(lab: &Lab) {
    let job = key("job");
    let mut holders = hold_permits(lab, &job, 2, 2).await;
    {
        let mut dying = lab.client().await;
        dying
            .refused(&permit(
                2,
                Request {
                    ttl: ttl(short()),
                    ..waiting(&job, LONG)
                },
            ))
            .await;
    }
    let (mut client, wanted) = queue(lab, &job, 2).await;
    let began = Instant::now();
    give_back(holders.remove(0)).await;
    client.wait_for(&wanted, NEVER).await;
    assert!(
        began.elapsed() < short() + lab.kind.late() + soon(),
        "{:?}",
        began.elapsed()
    );
    // Then a waiter that leaves by itself, and another one behind it.
    let (mut leaving, unwanted) = queue(lab, &job, 2).await;
    let (mut last, wanted) = queue(lab, &job, 2).await;
    let free = async {
        lab.pass(SLACK).await;
        leaving.leave_queue(&unwanted).await;
        give_back(holders.remove(0)).await;
        Instant::now()
    };
    let (_, freed) = tokio::join!(last.wait_for(&wanted, NEVER), free);
    assert!(freed.elapsed() < soon(), "{:?}", freed.elapsed());
}

async fn waiters_behind_another_kind_continue_when_that_one_leaves(lab: &Lab) {
    let job = key("job");
    for other in [Mode::Exclusive, Mode::Shared] {
        let mut holders = hold_permits(lab, &job, 1, 2).await;
        let (mut middle, wanted) = (
            lab.client().await,
            Request {
                mode: other,
                ..waiting(&job, LONG)
            },
        );
        middle.refused(&wanted).await;
        // There are free permits, but not for waiters behind another kind.
        let mut behind = Vec::new();
        for _ in 0..3 {
            behind.push(queue(lab, &job, 2).await);
        }
        let state = lab.client().await.inspect(&job).await;
        assert_eq!(
            (state.holders.len(), state.waiters.len()),
            (1, 4),
            "{state:?}"
        );
        give_back(holders.remove(0)).await;
        middle.wait_for(&wanted, NEVER).await;
        lab.client()
            .await
            .refused(&permit(9, request(&job, LONG)))
            .await;
        let free = async {
            lab.pass(SLACK).await;
            middle.free(&wanted).await;
            Instant::now()
        };
        let [first, second, _] = &mut behind[..] else {
            panic!("three")
        };
        let (one, two, freed) = tokio::join!(
            first.0.wait_for(&first.1, NEVER),
            second.0.wait_for(&second.1, NEVER),
            free
        );
        assert!(freed.elapsed() < soon(), "{:?}", freed.elapsed());
        assert_eq!((one.permit, two.permit), (Some(0), Some(1)));
        for (mut client, request) in behind {
            client.leave_queue(&request).await;
            client.release(&request, Scope::Tree).await;
        }
    }
}

/// Deletes a permit number, as an administrator might.
async fn delete_number(lab: &Lab, job: &str, number: u32) {
    if lab.kind.is_zookeeper() {
        let path = format!("{}/dlock.meta/{job}/permit-{number}", lab.chroot());
        lab.admin()
            .await
            .delete(&path, None)
            .await
            .expect("its node");
    } else {
        let name = format!(
            "{}.meta/%last/{job}/permit/{number}",
            lab.namespace("dlock")
        );
        assert_eq!(lab.etcd().ctl(&["del", &name]).trim(), "1");
    }
}

async fn a_deleted_permit_number_ends_its_hold(lab: &Lab) {
    let job = key("job");
    let mut holders = hold_permits(lab, &job, 2, 2).await;
    let (mut a, first) = holders.remove(0);
    a.renewed(&first, None).await;
    delete_number(lab, "job", 0).await;
    // The holder's command may still run.
    let (mut b, second) = (lab.client().await, permit(2, request(&job, LONG)));
    b.refused(&second).await;
    assert_eq!(a.renew(&first, None).await, Renewal::NotHeld);
    a.release(&first, Scope::Tree).await;
    assert_eq!(b.take(&second).await.permit, Some(0));
    b.free(&second).await;
    let (mut c, held) = holders.remove(0);
    c.renewed(&held, None).await;
    assert_eq!(permit_numbers(lab, &job).await, [1]);
    c.free(&held).await;
    lab.client().await.hold(&job).await;
}

/// Returns text of the request that takes the first number, which no earlier request contains.
fn number_mark(lab: &Lab) -> &'static str {
    if lab.kind.is_zookeeper() {
        "/permit-0"
    } else {
        "permit/0"
    }
}

async fn a_permit_number_whose_answer_was_lost_is_taken_once(lab: &Lab) {
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Swallow] {
        for waits in [true, false] {
            let job = key(&format!("{fault:?} {waits}"));
            let proxy = Proxy::to(lab.store().port());
            let mut a = lab.through(proxy.port);
            // The next request is the tested one.
            let warm = permit(2, request(&key("warm"), LONG));
            a.take(&warm).await;
            a.free(&warm).await;
            let holders = if waits {
                hold_permits(lab, &job, 2, 2).await
            } else {
                Vec::new()
            };
            proxy.trap(number_mark(lab), fault);
            let wait_policy = if waits {
                WaitPolicy::For(LONG)
            } else {
                WaitPolicy::Try
            };
            let free = async {
                lab.pass(SLACK).await;
                for holder in holders {
                    give_back(holder).await;
                }
            };
            let wanted = permit(
                2,
                Request {
                    waiting: waits,
                    ..request(&job, LONG)
                },
            );
            let (outcome, ()) = tokio::join!(core_acquire(&mut a, wanted, wait_policy), free);
            let Outcome::Granted(lease) = outcome else {
                panic!("{fault:?} {waits}: {outcome:?}")
            };
            assert_eq!(
                (proxy.sprung(), lease.holds, permit_numbers(lab, &job).await),
                (1, 1, vec![0]),
                "{fault:?} {waits}"
            );
            let state = a.inspect(&job).await;
            assert_eq!(
                (state.holders[0].fence, state.waiters.len()),
                (Some(lease.fence), 0),
                "{state:?}"
            );
            assert_eq!(
                a.0.release(&job, &lease.token, &Scope::Tree.into())
                    .await
                    .expect("release"),
                Release::Released
            );
            lab.client().await.hold(&job).await;
        }
    }
}

async fn a_permit_number_taken_after_the_lease_is_not_granted(lab: &Lab) {
    let job = key("job");
    let mut holders = hold_permits(lab, &job, 1, 1).await;
    let proxy = Proxy::to(lab.store().port());
    let mut a = lab.through(proxy.port);
    let wanted = permit(
        1,
        Request {
            ttl: ttl(short()),
            ..waiting(&job, LONG)
        },
    );
    a.refused(&wanted).await;
    let (mut b, next) = queue(lab, &job, 1).await;
    // The lease is over when the request for the number arrives.
    proxy.trap(number_mark(lab), Fault::Late(short() * 2 + SLACK));
    give_back(holders.remove(0)).await;
    let late = async {
        let answer = timeout(short() * 4, a.0.try_acquire(&wanted)).await;
        assert!(!matches!(answer, Ok(Ok(Attempt::Granted(_)))), "{answer:?}");
    };
    let ((), grant) = tokio::join!(late, b.wait_for(&next, NEVER));
    assert_eq!((proxy.sprung(), grant.permit), (1, Some(0)));
    lab.pass(short()).await;
    let state = lab.client().await.inspect(&job).await;
    assert_eq!(
        (state.holders.len(), state.holders[0].fence),
        (1, Some(grant.fence)),
        "{state:?}"
    );
    b.renewed(&next, None).await;
}

async fn a_lost_position_takes_no_permit_number(lab: &Lab) {
    let job = key("job");
    let mut holders = hold_permits(lab, &job, 1, 1).await;
    let mut proxy = Proxy::to(lab.store().port());
    let mut a = lab.through(proxy.port);
    let wanted = permit(
        1,
        Request {
            ttl: ttl(short()),
            ..waiting(&job, LONG)
        },
    );
    a.refused(&wanted).await;
    let (mut b, next) = queue(lab, &job, 1).await;
    proxy.set(Line::BlackHole);
    lab.outlast(short() * 2).await;
    proxy.set(Line::Pass);
    proxy.cut();
    give_back(holders.remove(0)).await;
    assert_eq!(b.wait_for(&next, NEVER).await.permit, Some(0));
    let began = Instant::now();
    while !matches!(a.0.try_acquire(&wanted).await, Ok(Attempt::Busy(_))) {
        assert!(began.elapsed() < stretched(short() * 3));
        lab.pass(SLACK).await;
    }
    assert_eq!(permit_numbers(lab, &job).await, [0]);
    let free = async {
        lab.pass(SLACK).await;
        b.free(&next).await;
    };
    let (grant, ()) = tokio::join!(a.wait_for(&wanted, NEVER), free);
    assert_eq!(grant.permit, Some(0));
}

/// Returns the number of requests that the server got.
fn requests_served(lab: &Lab) -> f64 {
    let count: u64 = if lab.kind.is_zookeeper() {
        lab.zookeeper().nodes[0]
            .counted("zk_packets_received")
            .unwrap_or_default()
    } else {
        lab.etcd().calls().iter().map(|(_, calls)| calls).sum()
    };
    u32::try_from(count).expect("a case's").into()
}

async fn a_released_permit_costs_the_same_with_many_waiters(lab: &Lab) {
    const HAND_OVERS: u32 = 6;
    lab.isolate();
    let mut costs = Vec::new();
    for count in [20, 100] {
        let job = key(&format!("{count}"));
        let mut holders: std::collections::VecDeque<_> = hold_permits(lab, &job, 3, 3).await.into();
        let mut waiters = std::collections::VecDeque::new();
        for _ in 0..count {
            waiters.push_back(queue(lab, &job, 3).await);
        }
        // Waiters at the front receive their first notifications.
        for (client, wanted) in &mut waiters {
            client.wait(wanted, Duration::from_millis(1)).await;
        }
        let (began, before) = (Instant::now(), requests_served(lab));
        for _ in 0..HAND_OVERS {
            give_back(holders.pop_front().expect("a holder")).await;
            let (mut next, wanted) = waiters.pop_front().expect("a waiter");
            next.wait_for(&wanted, NEVER).await;
            holders.push_back((next, wanted));
            lab.pass(SLACK).await;
            let mut woken = 0;
            for (client, wanted) in &mut waiters {
                if client.wait(wanted, Duration::ZERO).await == Wake::Changed {
                    woken += 1;
                    client.refused(wanted).await;
                    // The waiter watches from now on.
                    assert_eq!(
                        client.wait(wanted, Duration::from_millis(1)).await,
                        Wake::TimedOut
                    );
                }
            }
            assert!(woken <= 1, "{woken} of {count} are woken");
        }
        // Each waiter proves every 1.5 s that it lives, and checks the one before it.
        let each = if lab.kind.is_zookeeper() { 3.0 } else { 2.0 };
        let idle = began.elapsed().as_secs_f64() / 1.5 * each * f64::from(count);
        costs.push((requests_served(lab) - before - idle) / f64::from(HAND_OVERS));
    }
    crate::support::say(&format!(
        "{:?}: requests for each released permit, with 20 and with 100 waiters: {costs:?}",
        lab.kind
    ));
    // One notification to each of the 80 additional waiters would already cost 80 more.
    assert!(costs[1] < costs[0] + 30.0, "{costs:?}");
}
