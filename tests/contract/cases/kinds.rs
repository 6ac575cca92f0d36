//! Permits, fair order, and writers that readers don't starve, where the store declares them.

use std::time::Duration;

use dlock::lock::{
    Amendment, Attempt, Busy, Effect, Key, Kind as ErrorKind, Mode, Release, Request, Scope,
};
use futures_util::future::join_all;
use tokio::time::Instant;

use super::{Case, cases};
use crate::{
    lab::{
        Client, LONG, Lab, SLACK, key, nested, overtaking_delay, request, runner, short, soon,
        stretched, ttl, waiting,
    },
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![Kind::permits =>
        no_more_holders_than_permits_at_once,
        a_permit_keeps_its_number,
        permits_and_other_kinds_exclude_each_other,
        a_new_permit_count_applies_to_new_permits,
        a_permit_requested_twice_is_one_permit,
        a_nested_permit_is_one_permit,
        an_expired_permit_goes_to_the_next_holder,
        each_permit_expires_by_itself,
        a_released_permit_wakes_a_waiter,
        breaking_one_permit_leaves_the_others,
        a_crashed_holder_is_not_reported_as_foreign,
    ];
    all.extend(cases![Kind::fair =>
        fair_waiters_are_served_in_order,
        a_newcomer_does_not_overtake_a_fair_waiter,
        a_newcomer_does_not_overtake_a_fair_waiter_behind_others,
        a_waiter_that_leaves_lets_the_next_go,
        a_dead_waiter_loses_its_offer,
        many_dead_waiters_cost_one_offer,
        a_waiter_that_misses_its_turn_costs_no_other_its_position,
        fair_waiters_for_permits_are_granted_as_there_is_room,
        queued_readers_are_granted_together,
    ]);
    all.extend(cases![|kind| kind.shared() || kind.permits() => a_nested_hold_needs_a_mode_that_its_outer_hold_covers]);
    all.extend(cases![Kind::shared => a_waiting_writer_keeps_new_readers_out, a_writer_that_leaves_lets_readers_in, a_look_tells_what_a_try_gets]);
    all.extend(cases![|kind| kind.shared() && kind.permits() => a_writer_that_died_waiting_blocks_others_only_briefly]);
    all
}

fn permit(of: u32, request: Request) -> Request {
    Request {
        mode: Mode::Permits(of),
        ..request
    }
}

fn shared(of: Request) -> Request {
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

/// Takes one of `most` permits for long, and returns the permit's number.
async fn take_permit(lab: &Lab, most: u32, job: &Key) -> (Client, Request, u32) {
    let mut client = lab.client().await;
    let request = permit(most, request(job, LONG));
    let number = client.take(&request).await.permit.expect("a number");
    (client, request, number)
}

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

async fn no_more_holders_than_permits_at_once(lab: &Lab) {
    let job = key("job");
    let (mut a, one, zero) = take_permit(lab, 3, &job).await;
    let (_b, _, first) = take_permit(lab, 3, &job).await;
    let (_c, _, second) = take_permit(lab, 3, &job).await;
    assert_eq!([zero, first, second], [0, 1, 2]);
    let mut d = lab.client().await;
    let busy = d.refused(&permit(3, request(&job, LONG))).await;
    assert_eq!(busy.holders.len(), 3, "{busy:?}");
    let state = d.inspect(&job).await;
    assert!(
        state
            .holders
            .iter()
            .all(|holder| holder.mode == Mode::Permits(3) && !holder.foreign),
        "{state:?}"
    );
    assert_eq!(d.keys("").await, ["job"]);
    a.renewed(&one, None).await;
}

async fn a_permit_keeps_its_number(lab: &Lab) {
    let job = key("job");
    let (mut a, one, _) = take_permit(lab, 3, &job).await;
    let (mut b, two, _) = take_permit(lab, 3, &job).await;
    a.release(&one, Scope::Hold).await;
    b.renewed(&two, None).await;
    assert_eq!(b.take(&two).await.permit, Some(1));
    assert_eq!(permit_numbers(lab, &job).await, [1]);
    let (_c, _, number) = take_permit(lab, 3, &job).await;
    assert_eq!(number, 0, "the lowest free number");
    assert_eq!(a.release(&one, Scope::Hold).await, Release::NotHeld);
}

async fn permits_and_other_kinds_exclude_each_other(lab: &Lab) {
    let job = key("job");
    let has_shared = lab.client().await.capabilities().shared;
    let (mut a, one, _) = take_permit(lab, 3, &job).await;
    let mut b = lab.client().await;
    let (writer, reader) = (request(&job, LONG), shared(request(&job, LONG)));
    b.refused(&writer).await;
    if has_shared {
        b.refused(&reader).await;
    }
    a.free(&one).await;
    for other in [writer, reader].iter().take(1 + usize::from(has_shared)) {
        b.take(other).await;
        a.refused(&permit(3, request(&job, LONG))).await;
        b.free(other).await;
    }
}

async fn a_new_permit_count_applies_to_new_permits(lab: &Lab) {
    let job = key("job");
    let (mut a, one, _) = take_permit(lab, 3, &job).await;
    let (mut b, two, _) = take_permit(lab, 3, &job).await;
    let (mut c, three, _) = take_permit(lab, 3, &job).await;
    let mut d = lab.client().await;
    let fewer = permit(2, request(&job, LONG));
    d.refused(&fewer).await;
    let (mut other, five, number) = take_permit(lab, 4, &job).await;
    assert_eq!(number, 3);
    other.release(&five, Scope::Hold).await;
    a.renewed(&one, None).await;
    a.release(&one, Scope::Hold).await;
    d.refused(&fewer).await;
    b.release(&two, Scope::Hold).await;
    assert_eq!(d.take(&fewer).await.permit, Some(0));
    c.renewed(&three, None).await;
    d.refused(&permit(2, request(&job, LONG))).await;
}

async fn a_permit_requested_twice_is_one_permit(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let one = permit(2, request(&job, LONG));
    let first = a.take(&one).await;
    let again = a.take(&one).await;
    assert_eq!(
        (again.fence, again.holds, again.permit),
        (first.fence, 1, Some(0))
    );
    assert_eq!(permit_numbers(lab, &job).await, [0]);
    a.free(&one).await;
    lab.client().await.hold(&job).await;
}

async fn a_nested_permit_is_one_permit(lab: &Lab) {
    let job = key("job");
    let (mut a, outer, _) = take_permit(lab, 1, &job).await;
    let inner = nested(&outer);
    let grant = a.take(&inner).await;
    assert_eq!((grant.holds, grant.permit), (2, Some(0)));
    assert_eq!(a.release(&inner, Scope::Hold).await, Release::StillHeld(1));
    lab.client()
        .await
        .refused(&permit(1, request(&job, LONG)))
        .await;
    a.free(&outer).await;
    take_permit(lab, 1, &job).await;
}

async fn a_nested_hold_needs_a_mode_that_its_outer_hold_covers(lab: &Lab) {
    let kinds = [
        (true, Mode::Exclusive),
        (lab.kind.shared(), Mode::Shared),
        (lab.kind.permits(), Mode::Permits(2)),
    ];
    let kinds: Vec<_> = kinds
        .into_iter()
        .filter(|(has, _)| *has)
        .map(|(_, mode)| mode)
        .collect();
    if !lab.client().await.capabilities().reentrant {
        return;
    }
    for outer in &kinds {
        let job = key(&format!("{outer:?}"));
        let (mut a, mut b) = (lab.client().await, lab.client().await);
        let held = Request {
            mode: *outer,
            ..request(&job, LONG)
        };
        let fence = a.take(&held).await.fence;
        for inner in &kinds {
            let wanted = Request {
                mode: *inner,
                ..nested(&held)
            };
            let answer = b.0.try_acquire(&wanted).await;
            if outer.covers(*inner) {
                assert!(
                    matches!(&answer, Ok(Attempt::Granted(grant)) if grant.fence == fence && grant.holds == 2),
                    "{answer:?}"
                );
                assert_eq!(b.release(&wanted, Scope::Hold).await, Release::StillHeld(1));
            } else {
                let error = answer.expect_err("another kind");
                assert_eq!(
                    (error.kind, error.effect),
                    (ErrorKind::Usage, Effect::NotApplied),
                    "{outer:?} {inner:?}: {error}"
                );
            }
        }
        a.renewed(&held, None).await;
        a.free(&held).await;
    }
}

async fn an_expired_permit_goes_to_the_next_holder(lab: &Lab) {
    let job = key("job");
    let lost = permit(2, lab.expiring(&job, short()));
    lab.client().await.take(&lost).await;
    let (mut b, two, _) = take_permit(lab, 2, &job).await;
    lab.outlast(short()).await;
    assert_eq!(
        lab.client().await.release(&lost, Scope::Hold).await,
        Release::NotHeld
    );
    assert_eq!(permit_numbers(lab, &job).await, [1]);
    let (_c, _, number) = take_permit(lab, 2, &job).await;
    assert_eq!(number, 0);
    b.renewed(&two, None).await;
    let history = lab.client().await.0.history(&job).await.expect("history");
    assert_eq!(history.past.len(), 1, "{history:?}");
}

async fn each_permit_expires_by_itself(lab: &Lab) {
    let job = key("job");
    let (mut a, one, _) = take_permit(lab, 2, &job).await;
    let mut b = lab.client().await;
    b.take(&permit(2, lab.expiring(&job, short()))).await;
    a.release(&one, Scope::Hold).await;
    lab.client().await.refused(&request(&job, LONG)).await;
    lab.outlast(short()).await;
    lab.client().await.hold(&job).await;
}

async fn a_released_permit_wakes_a_waiter(lab: &Lab) {
    let job = key("job");
    let (mut a, one, _) = take_permit(lab, 2, &job).await;
    let (_b, _, _) = take_permit(lab, 2, &job).await;
    let mut c = lab.client().await;
    let wanted = permit(2, waiting(&job, LONG));
    c.refused(&wanted).await;
    let release = async {
        lab.pass(SLACK).await;
        a.release(&one, Scope::Hold).await;
        Instant::now()
    };
    let (grant, released) = tokio::join!(c.wait_for(&wanted, Duration::from_secs(20)), release);
    assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
    assert_eq!(grant.permit, Some(0));
}

async fn breaking_one_permit_leaves_the_others(lab: &Lab) {
    let job = key("job");
    let (mut a, one, _) = take_permit(lab, 2, &job).await;
    let mut b = lab.client().await;
    // Where holds are bound to processes, a living process's hold can't be evicted.
    let two = permit(2, lab.expiring(&job, LONG));
    let fence = b.take(&two).await.fence;
    let mut c = lab.client().await;
    c.0.amend(
        &job,
        Amendment::Evict(fence, &super::history::broken("NFS")),
    )
    .await
    .expect("evict");
    assert_eq!(b.release(&two, Scope::Hold).await, Release::NotHeld);
    a.renewed(&one, None).await;
    assert_eq!(permit_numbers(lab, &job).await, [0]);
}

async fn a_crashed_holder_is_not_reported_as_foreign(lab: &Lab) {
    for mode in [Mode::Permits(3), Mode::Shared] {
        let job = key(&format!("{mode:?}"));
        let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
        a.take(&Request {
            mode,
            ..request(&job, LONG)
        })
        .await;
        b.take(&Request {
            mode,
            ..lab.expiring(&job, short())
        })
        .await;
        lab.outlast(short()).await;
        let busy = c.refused(&request(&job, LONG)).await;
        assert!(
            busy.holders.len() == 1
                && !busy.holders[0].foreign
                && busy.notifies == lab.kind.notifies(),
            "{busy:?}"
        );
        assert_eq!(c.inspect(&job).await.holders.len(), 1);
    }
}

async fn fair_waiters_are_served_in_order(lab: &Lab) {
    let job = key("job");
    let mut clients = Vec::new();
    let mut holder = lab.client().await;
    let mut held = holder.hold(&job).await;
    for position in 1..=3 {
        let mut client = lab.client().await;
        let request = fair(request(&job, LONG));
        assert_eq!(client.refused(&request).await.position, Some(position));
        clients.push((client, request));
    }
    while !clients.is_empty() {
        holder.free(&held).await;
        for (later, request) in clients.iter_mut().skip(1).rev() {
            later.refused(request).await;
        }
        let (mut next, request) = clients.remove(0);
        next.take(&request).await;
        next.leave_queue(&request).await;
        (holder, held) = (next, request);
    }
}

async fn a_newcomer_does_not_overtake_a_fair_waiter(lab: &Lab) {
    let job = key("job");
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let held = a.hold(&job).await;
    let first = Request {
        metadata: Some(runner("web1")),
        ..fair(request(&job, LONG))
    };
    b.refused(&first).await;
    a.free(&held).await;
    let busy = c.refused(&request(&job, LONG)).await;
    assert!(busy.transient && busy.holders.is_empty(), "{busy:?}");
    assert_eq!(c.inspect(&job).await.waiters[0].metadata, first.metadata);
    b.take(&first).await;
    b.free(&first).await;
    c.hold(&job).await;
}

/// An unfair waiter is in front of the fair one: the store may keep the two in different queues.
async fn a_newcomer_does_not_overtake_a_fair_waiter_behind_others(lab: &Lab) {
    let job = key("job");
    let (mut holder, mut plain, mut patient, mut newcomer) = (
        lab.client().await,
        lab.client().await,
        lab.client().await,
        lab.client().await,
    );
    let held = holder.hold(&job).await;
    plain.refused(&waiting(&job, LONG)).await;
    patient.refused(&fair(request(&job, LONG))).await;
    holder.free(&held).await;
    newcomer.refused(&request(&job, LONG)).await;
}

async fn a_waiter_that_leaves_lets_the_next_go(lab: &Lab) {
    let job = key("job");
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let held = a.hold(&job).await;
    let (first, second) = (fair(request(&job, LONG)), fair(request(&job, LONG)));
    b.refused(&first).await;
    c.refused(&second).await;
    let leave = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
        b.leave_queue(&first).await;
        Instant::now()
    };
    let (_, left) = tokio::join!(c.wait_for(&second, Duration::from_secs(20)), leave);
    assert!(left.elapsed() < soon(), "{:?}", left.elapsed());
}

/// Waits as the core does: no longer than the holder's remaining lease.
async fn wait_as_the_core_does(lab: &Lab, client: &mut Client, request: &Request) -> Duration {
    let began = Instant::now();
    loop {
        match client.attempt(request).await {
            Attempt::Granted(_) => return began.elapsed(),
            Attempt::Busy(Busy { expires_in, .. }) => {
                let most = expires_in.map_or(Duration::from_secs(5), |left| {
                    left.min(Duration::from_secs(5))
                });
                client.wait(request, most + Duration::from_millis(1)).await;
            }
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < LONG / 2, "{:?}", lab.kind);
    }
}

async fn a_dead_waiter_loses_its_offer(lab: &Lab) {
    let job = key("job");
    let (mut a, mut c) = (lab.client().await, lab.client().await);
    let held = a.hold(&job).await;
    {
        let mut b = lab.client().await;
        b.refused(&dying_waiter(lab, fair(request(&job, LONG))))
            .await;
    }
    let second = fair(request(&job, LONG));
    c.refused(&second).await;
    a.free(&held).await;
    let waited = wait_as_the_core_does(lab, &mut c, &second).await;
    // A store that notices dead processes offers them nothing. Where positions are kept, a dead
    // waiter's position ends with its lease, which may be soon.
    let at_once = lab.kind.bound_to_processes() || lab.kind.keeps_positions();
    let least = if at_once {
        Duration::ZERO
    } else {
        Duration::from_millis(500)
    };
    assert!(
        waited >= least && waited < stretched(Duration::from_secs(2) + lab.kind.late()),
        "{waited:?}"
    );
    let state = c.inspect(&job).await;
    assert!(
        state.waiters.is_empty(),
        "the dead waiter has a position again: {state:?}"
    );
}

async fn many_dead_waiters_cost_one_offer(lab: &Lab) {
    let job = key("job");
    let (mut a, mut c) = (lab.client().await, lab.client().await);
    let held = a.hold(&job).await;
    for _ in 0..6 {
        let mut b = lab.client().await;
        b.refused(&dying_waiter(lab, fair(request(&job, LONG))))
            .await;
    }
    let last = fair(request(&job, LONG));
    c.refused(&last).await;
    a.free(&held).await;
    let waited = wait_as_the_core_does(lab, &mut c, &last).await;
    assert!(
        waited < stretched(Duration::from_secs(4) + lab.kind.late()),
        "{waited:?}"
    );
}

/// The others may be asleep while the first one has its turn, and then while it is removed.
async fn a_waiter_that_misses_its_turn_costs_no_other_its_position(lab: &Lab) {
    let job = key("job");
    let wants = || {
        let request = fair(request(&job, LONG));
        if lab.kind.permits() {
            permit(1, request)
        } else {
            request
        }
    };
    let mut holder = lab.client().await;
    let held = wants();
    holder.take(&held).await;
    let mut late = lab.client().await;
    late.refused(&dying_waiter(lab, wants())).await;
    // On a store that notices dead processes it lives, and asks no more.
    let _lives = lab.kind.bound_to_processes().then_some(late);
    let served = std::cell::RefCell::new(Vec::new());
    let mut waiters = Vec::new();
    for at in 0..5 {
        let (mut client, request, served) = (lab.client().await, wants(), &served);
        client.refused(&request).await;
        waiters.push(async move {
            wait_as_the_core_does(lab, &mut client, &request).await;
            served.borrow_mut().push(at);
            client.leave_queue(&request).await;
            lab.pass(Duration::from_millis(50)).await;
            client.free(&request).await;
        });
    }
    let release = async {
        lab.pass(SLACK).await;
        holder.free(&held).await;
        Instant::now()
    };
    let (_, released) = tokio::join!(join_all(waiters), release);
    assert_eq!(*served.borrow(), [0, 1, 2, 3, 4]);
    assert!(
        released.elapsed() < stretched(Duration::from_secs(4) + lab.kind.late()),
        "{:?}",
        released.elapsed()
    );
}

/// Returns the request of a waiter that is about to die. Where positions are kept, its position
/// lasts as long as its lease.
fn dying_waiter(lab: &Lab, of: Request) -> Request {
    if lab.kind.keeps_positions() {
        Request {
            ttl: ttl(short()),
            ..of
        }
    } else {
        of
    }
}

async fn fair_waiters_for_permits_are_granted_as_there_is_room(lab: &Lab) {
    let job = key("job");
    let (mut a, one, _) = take_permit(lab, 2, &job).await;
    let (mut b, two, _) = take_permit(lab, 2, &job).await;
    let (mut c, mut d, mut last) = (lab.client().await, lab.client().await, lab.client().await);
    let [third, fourth, fifth] = [(); 3].map(|()| permit(2, fair(request(&job, LONG))));
    c.refused(&third).await;
    d.refused(&fourth).await;
    last.refused(&fifth).await;
    a.release(&one, Scope::Hold).await;
    d.refused(&fourth).await;
    b.release(&two, Scope::Hold).await;
    last.refused(&fifth).await;
    // There is room for both, in either order.
    d.take(&fourth).await;
    last.refused(&fifth).await;
    c.take(&third).await;
    last.refused(&fifth).await;
}

async fn queued_readers_are_granted_together(lab: &Lab) {
    if !lab.kind.shared() {
        return;
    }
    let job = key("job");
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let held = a.hold(&job).await;
    let (first, second) = (
        shared(fair(request(&job, LONG))),
        shared(fair(request(&job, LONG))),
    );
    b.refused(&first).await;
    c.refused(&second).await;
    let release = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
        Instant::now()
    };
    let never = Duration::from_secs(20);
    let (_, _, released) = tokio::join!(
        b.wait_for(&first, never),
        c.wait_for(&second, never),
        release
    );
    assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
}

async fn a_waiting_writer_keeps_new_readers_out(lab: &Lab) {
    let job = key("job");
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let reader = shared(request(&job, LONG));
    a.take(&reader).await;
    let writer = waiting(&job, LONG);
    let meanwhile = async {
        lab.pass(overtaking_delay()).await;
        c.refused(&shared(request(&job, LONG))).await;
        a.renewed(&reader, None).await;
        a.free(&reader).await;
    };
    tokio::join!(b.wait_for(&writer, Duration::from_secs(20)), meanwhile);
    c.refused(&shared(request(&job, LONG))).await;
    b.free(&writer).await;
    c.take(&shared(request(&job, LONG))).await;
}

async fn a_writer_that_leaves_lets_readers_in(lab: &Lab) {
    let job = key("job");
    let (mut a, mut c) = (lab.client().await, lab.client().await);
    a.take(&shared(request(&job, LONG))).await;
    let mut b = lab.client().await;
    let writer = waiting(&job, LONG);
    b.refused(&writer).await;
    b.leave_queue(&writer).await;
    c.take(&shared(request(&job, LONG))).await;
}

async fn a_writer_that_died_waiting_blocks_others_only_briefly(lab: &Lab) {
    let job = key("job");
    let (mut a, mut c) = (lab.client().await, lab.client().await);
    a.take(&shared(request(&job, LONG))).await;
    {
        let mut b = lab.client().await;
        b.refused(&dying_waiter(lab, waiting(&job, LONG))).await;
    }
    let wanted = shared(waiting(&job, LONG));
    let waited = wait_as_the_core_does(lab, &mut c, &wanted).await;
    assert!(waited < Duration::from_secs(17), "{waited:?}");
}

/// A holder, a waiter, and a try: `explain` looks at the first two.
async fn a_look_tells_what_a_try_gets(lab: &Lab) {
    let modes = |request: Request| (request.mode, request.fair);
    let any = waiting(&key("any"), LONG);
    let (writer, reader, one) = (any.clone(), shared(any.clone()), permit(3, any.clone()));
    let rows = [
        (&reader, writer.clone(), &reader),
        (&reader, writer.clone(), &writer),
        (&writer, reader.clone(), &reader),
        (&reader, fair(writer.clone()), &reader),
        (&reader, fair(one.clone()), &reader),
        (&reader, one.clone(), &reader),
        (&one, writer.clone(), &one),
        (&one, fair(writer.clone()), &one),
        (&one, reader.clone(), &one),
        (&one, reader.clone(), &reader),
        (&one, fair(permit(1, any.clone())), &one),
        (&one, permit(1, any.clone()), &one),
    ];
    for (nth, (held, waits, tried)) in rows.iter().enumerate() {
        let has = |(mode, fair): (Mode, bool)| {
            (lab.kind.permits() || !matches!(mode, Mode::Permits(_))) && (lab.kind.fair() || !fair)
        };
        if ![
            modes((*held).clone()),
            modes(waits.clone()),
            modes((*tried).clone()),
        ]
        .map(has)
        .contains(&false)
        {
            let job = key(&format!("job{nth}"));
            let of = |mode, fair, waiting| Request {
                mode,
                fair,
                waiting,
                ..request(&job, LONG)
            };
            let (held, tried) = (of(held.mode, false, false), of(tried.mode, false, false));
            let waits = of(waits.mode, waits.fair, true);
            let (mut a, mut b, mut c) =
                (lab.client().await, lab.client().await, lab.client().await);
            a.take(&held).await;
            let meanwhile = async {
                lab.pass(overtaking_delay()).await;
                let looked = c.inspect(&job).await;
                let found = c.attempt(&tried).await;
                let granted = matches!(found, Attempt::Granted(_));
                assert_eq!(
                    looked.obstacle(tried.mode).is_none(),
                    granted,
                    "{nth}: {looked:?} {found:?}"
                );
                if granted {
                    c.free(&tried).await;
                }
                a.free(&held).await;
            };
            tokio::join!(b.wait_for(&waits, Duration::from_secs(20)), meanwhile);
            b.free(&waits).await;
        }
    }
}
