//! Locks that are held by sessions of a SQL server: how they end, and their readers and writers.

use std::{future::pending, time::Duration};

use dlock::{
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{Attempt, Fence, Mode, Release, Renewal, Request, Scope, Token, Ttl},
};
use tokio::time::Instant;

use super::{Case, cases};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, request, short, soon, stretched, waiting},
    support::proxy::{self, Fault, Proxy},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![|kind| kind.held_by_session() && kind.is_sql() =>
        a_session_that_is_ended_is_noticed_at_once,
        a_cut_connection_is_noticed_at_once,
        a_silent_holder_is_disconnected_by_the_server,
        a_renewal_whose_answer_was_lost_keeps_the_lock,
        fences_rise_when_holders_crash,
        each_hold_has_a_lifeline,
        a_late_request_for_a_fence_counts_no_other_one,
        a_late_request_for_a_fence_leaves_the_next_holder,
        the_next_holder_lets_a_vanished_one_stop,
        the_shortest_lease_lets_a_vanished_holder_stop,
    ];
    all.extend(cases![|kind| kind.held_by_session() && kind.shared() =>
        a_stream_of_readers_does_not_starve_a_writer,
        a_waiting_writer_is_not_reported_as_a_holder,
        a_reader_whose_session_ended_blocks_no_writer,
        a_reader_that_waited_is_a_reader,
    ]);
    all.extend(cases![|kind| (kind.held_by_session() || matches!(kind, Kind::Etcd | Kind::ZooKeeper)) && kind.shared() =>
        every_reader_lets_a_vanished_writer_stop,
    ]);
    all
}

/// The second reader comes next to the first one, which took note of the writer.
async fn every_reader_lets_a_vanished_writer_stop(lab: &Lab) {
    let job = key("job");
    let readers = [(); 3].map(|()| Request {
        mode: Mode::Shared,
        ..waiting(&job, LONG)
    });
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    a.take(&request(&job, short() * 3)).await;
    b.refused(&readers[0]).await;
    c.refused(&readers[1]).await;
    drop(a);
    let grants = [
        b.wait_for(&readers[0], Duration::from_millis(20)).await,
        c.wait_for(&readers[1], Duration::from_millis(20)).await,
    ];
    assert!(
        grants
            .iter()
            .all(|grant| grant.drain_delay >= Duration::from_millis(500)),
        "{grants:?}"
    );
    if lab.kind.held_by_session() {
        lab.pass(Duration::from_millis(600)).await;
        assert_eq!(
            lab.client().await.take(&readers[2]).await.drain_delay,
            Duration::ZERO,
            "the writer has had its time"
        );
    }
}

/// The grant that took note of the vanished holder is repeated, since its answer was lost; or it is
/// undone.
async fn the_next_holder_lets_a_vanished_one_stop(lab: &Lab) {
    for (mode, next) in [Mode::Exclusive, Mode::Shared]
        .into_iter()
        .flat_map(|mode| [(mode, Mode::Exclusive), (mode, Mode::Shared)])
    {
        let (proxy, mut b) = by_proxy(lab);
        let job = key(&format!("job-{mode:?}-{next:?}"));
        let [held, wanted, next] = [mode, next, next].map(|mode| Request {
            mode,
            ..waiting(&job, LONG)
        });
        if [&held, &wanted]
            .iter()
            .any(|request| b.capabilities().check(request).is_err())
        {
            continue;
        }
        lab.client().await.take(&held).await;
        let late = stretched(Duration::from_secs(2));
        proxy.trap(lab.writes(), Fault::LateReply(late));
        let asked = Instant::now();
        let answer_lost = async {
            while proxy.sprung() == 0 {
                lab.pass(Duration::from_millis(5)).await;
            }
            lab.pass(SLACK).await;
        };
        tokio::select! {
            grant = b.wait_for(&wanted, LONG) => panic!("answered: {grant:?}"),
            () = answer_lost => {}
        }
        let grant = b.wait_for(&wanted, LONG).await;
        assert!(
            asked.elapsed() + grant.drain_delay >= Duration::from_millis(500),
            "{held:?} {wanted:?}: {grant:?}"
        );
        b.free(&wanted).await;
        let grant = lab.client().await.wait_for(&next, LONG).await;
        assert!(
            asked.elapsed() + grant.drain_delay >= Duration::from_millis(500),
            "{held:?} {wanted:?}, undone: {grant:?}"
        );
    }
}

async fn the_shortest_lease_lets_a_vanished_holder_stop(lab: &Lab) {
    let (job, mut b) = (key("job"), lab.client().await);
    lab.client().await.take(&request(&job, LONG)).await;
    let asked = Instant::now();
    let wanted = waiting(&job, Ttl::MIN);
    let limits = Limits::of(Duration::from_secs(2));
    let granted = lease::acquire(
        &mut *b.0,
        &BootClock,
        wanted,
        WaitPolicy::For(LONG),
        limits,
        pending::<()>(),
        |_| {},
    )
    .await;
    assert!(matches!(granted.expect("granted"), Outcome::Granted(_)));
    assert!(
        asked.elapsed() >= Duration::from_millis(500),
        "{:?}",
        asked.elapsed()
    );
}

/// Returns a client behind a proxy.
fn by_proxy(lab: &Lab) -> (Proxy, Client) {
    let proxy = Proxy::to(lab.store().port());
    let client = lab.through(proxy.port);
    (proxy, client)
}

async fn a_session_that_is_ended_is_noticed_at_once(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let quiet = tokio::time::timeout(SLACK, a.0.watch(&job, &held.token)).await;
    assert!(quiet.is_err(), "the watch ended too early");
    let number = lab.holder();
    let number = lab.sql(&format!(
        "SELECT {number} FROM dlock WHERE name = 'dlock:job'"
    ))[0][0]
        .clone();
    lab.sql(&lab.either(
        format!("SELECT pg_terminate_backend({number})"),
        format!("KILL {number}"),
    ));
    tokio::time::timeout(soon(), a.0.watch(&job, &held.token))
        .await
        .expect("the session is over");
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
    let next = request(&job, LONG);
    let drain_delay = b.take(&next).await.drain_delay;
    assert!(
        drain_delay >= Duration::from_millis(500),
        "{drain_delay:?} is too short for the old holder to stop its command"
    );
    b.free(&next).await;
    lab.pass(drain_delay).await;
    assert_eq!(
        a.take(&request(&job, LONG)).await.drain_delay,
        Duration::ZERO,
        "the hold was released"
    );
}

/// The request that counts the fence is delivered after its own retry was answered.
async fn a_late_request_for_a_fence_counts_no_other_one(lab: &Lab) {
    for mode in [Mode::Exclusive, Mode::Shared] {
        let (proxy, mut a) = by_proxy(lab);
        let job = key(&format!("job-{mode:?}"));
        let wanted = Request {
            mode,
            ..request(&job, LONG)
        };
        if a.0.identity().capabilities.check(&wanted).is_err() {
            continue;
        }
        // The lock has its rows, and the sessions are open.
        a.take(&Request {
            token: Token::random(),
            ..wanted.clone()
        })
        .await;
        a = lab.through(proxy.port);
        let first = Request {
            token: Token::random(),
            ..request(&key("warm"), LONG)
        };
        a.take(&first).await;
        a.free(&first).await;
        if mode == Mode::Exclusive {
            lab.pass(SLACK).await;
        }
        let late = stretched(Duration::from_secs(2));
        let grants = if mode == Mode::Exclusive {
            "fence + 1,"
        } else {
            lab.writes()
        };
        proxy.trap(grants, Fault::Late(late));
        let limits = Limits::of(Duration::from_secs(2));
        let asked = lease::acquire(
            &mut *a.0,
            &BootClock,
            wanted.clone(),
            WaitPolicy::For(LONG),
            limits,
            pending::<()>(),
            |_| {},
        );
        let Outcome::Granted(lease) = asked.await.expect("granted") else {
            panic!("busy")
        };
        assert_eq!(proxy.sprung(), 1);
        lab.pass(late).await;
        let state = lab.client().await.inspect(&job).await;
        assert!(
            state
                .holders
                .iter()
                .any(|holder| holder.fence == Some(lease.fence)),
            "{mode:?}: {} in {state:?}",
            lease.fence
        );
        assert_eq!(
            a.0.release(&job, &lease.token, &Scope::Tree.into())
                .await
                .expect("released"),
            Release::Released
        );
    }
}

/// The request that counts the fence is delivered when its client is gone and the lock has its next
/// holder.
async fn a_late_request_for_a_fence_leaves_the_next_holder(lab: &Lab) {
    for (mode, next) in [Mode::Exclusive, Mode::Shared]
        .into_iter()
        .flat_map(|mode| [(mode, Mode::Exclusive), (mode, Mode::Shared)])
    {
        let (proxy, mut a) = by_proxy(lab);
        let job = key(&format!("job-{mode:?}-{next:?}"));
        let [wanted, next] = [mode, next].map(|mode| Request {
            mode,
            ..waiting(&job, LONG)
        });
        if [&wanted, &next]
            .iter()
            .any(|request| a.0.identity().capabilities.check(request).is_err())
        {
            continue;
        }
        // A holder that vanished has left its record.
        lab.client().await.take(&wanted).await;
        let late = stretched(Duration::from_secs(2));
        proxy.trap(lab.writes(), Fault::Late(late));
        let asked = tokio::time::timeout(
            late / 4,
            a.wait_for(
                &Request {
                    token: Token::random(),
                    ..wanted
                },
                LONG,
            ),
        )
        .await;
        assert!(asked.is_err() && proxy.sprung() == 1, "{asked:?}");
        drop(a);
        let mut b = lab.client().await;
        let fence = b.wait_for(&next, late / 2).await.fence;
        lab.pass(late).await;
        let state = lab.client().await.inspect(&job).await;
        assert!(
            state
                .holders
                .iter()
                .any(|holder| holder.fence == Some(fence)),
            "{fence} in {state:?}"
        );
        b.free(&next).await;
        let history = b.0.history(&job).await.expect("history");
        let ends: Vec<_> = history
            .past
            .iter()
            .filter(|past| past.fence == Some(fence))
            .map(|past| past.end.to_string())
            .collect();
        assert_eq!(ends, ["released"], "{history:?}");
    }
}

async fn a_cut_connection_is_noticed_at_once(lab: &Lab) {
    let (proxy, mut a) = by_proxy(lab);
    let job = key("job");
    let held = a.hold(&job).await;
    proxy.cut();
    tokio::time::timeout(soon(), a.0.watch(&job, &held.token))
        .await
        .expect("the connection is over");
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    lab.client()
        .await
        .wait_for(&waiting(&job, LONG), Duration::from_millis(100))
        .await;
}

async fn a_silent_holder_is_disconnected_by_the_server(lab: &Lab) {
    let (mut proxy, mut a) = by_proxy(lab);
    let job = key("job");
    let held = request(&job, short() * 2);
    a.take(&held).await;
    lab.pass(short()).await;
    let asked = Instant::now();
    a.renewed(&held, None).await;
    let renewed = Instant::now();
    proxy.set(proxy::Mode::BlackHole);
    let mut b = lab.client().await;
    b.refused(&waiting(&job, LONG)).await;
    b.wait_for(&waiting(&job, LONG), Duration::from_secs(5))
        .await;
    // MariaDB's own timer is not exact.
    assert!(
        asked.elapsed() + lab.either(Duration::ZERO, Duration::from_millis(20)) >= short() * 2,
        "{:?}",
        asked.elapsed()
    );
    assert!(
        renewed.elapsed() < short() * 2 + soon(),
        "{:?}",
        renewed.elapsed()
    );
}

async fn a_renewal_whose_answer_was_lost_keeps_the_lock(lab: &Lab) {
    let (proxy, mut a) = by_proxy(lab);
    let job = key("job");
    let held = a.hold(&job).await;
    // With mode=row, a renewal is recorded over another session first.
    let over_its_session = match lab.kind {
        Kind::MariadbRow | Kind::MysqlRow => "@dlock = CONNECTION_ID() AND",
        _ => "SET renewed_at",
    };
    proxy.trap(
        lab.either("", over_its_session),
        Fault::LateReply(Duration::from_millis(300)),
    );
    let give_up_after = lab.either(Duration::from_millis(100), Duration::from_millis(250));
    let renewal =
        tokio::time::timeout(give_up_after, a.0.renew(&job, &held.token, None.into())).await;
    assert!(renewal.is_err(), "{renewal:?}");
    a.renewed(&held, None).await;
    lab.client().await.refused(&request(&job, LONG)).await;
    a.free(&held).await;
    lab.client()
        .await
        .wait_for(&waiting(&job, LONG), Duration::from_millis(50))
        .await;
}

async fn fences_rise_when_holders_crash(lab: &Lab) {
    let job = key("job");
    let mut last = Fence(0);
    for _ in 0..3 {
        let mut a = lab.client().await;
        let fence = a
            .wait_for(&waiting(&job, LONG), Duration::from_millis(50))
            .await
            .fence;
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        drop(a);
    }
}

async fn each_hold_has_a_lifeline(lab: &Lab) {
    let mut a = lab.client().await;
    assert!(a.0.lifelines().expect("none").is_empty());
    let job = key("job");
    let held = a.hold(&job).await;
    a.hold(&key("other")).await;
    let lines = a.0.lifelines().expect("two");
    assert_eq!(lines.len(), 2);
    drop(lines);
    a.renewed(&held, None).await;
    // The lock is free at the latest when the last lifeline is closed.
    let lines = a.0.lifelines().expect("two");
    drop(a);
    lab.pass(SLACK).await;
    drop(lines);
    lab.client()
        .await
        .wait_for(&waiting(&job, LONG), Duration::from_millis(50))
        .await;
}

fn shared(of: Request) -> Request {
    Request {
        mode: Mode::Shared,
        ..of
    }
}

/// The lock always has a reader: each one leaves only after the next has joined.
async fn a_stream_of_readers_does_not_starve_a_writer(lab: &Lab) {
    let job = key("job");
    let mut writer = lab.client().await;
    let wanted = waiting(&job, LONG);
    let mut readers = [lab.client().await, lab.client().await];
    let mut held = [const { None::<Request> }; 2];
    let first = shared(request(&job, LONG));
    readers[0].take(&first).await;
    held[0] = Some(first);
    let stream = async {
        for turn in 1.. {
            let (coming, going) = (turn % 2, (turn + 1) % 2);
            let next = shared(request(&job, LONG));
            if let Attempt::Granted(_) = readers[coming].attempt(&next).await {
                held[coming] = Some(next);
            }
            lab.pass(SLACK / 5).await;
            match held[going].take() {
                Some(request) => readers[going].free(&request).await,
                // No reader is left: the writer holds the lock.
                None if held[coming].is_none() => return,
                None => {}
            }
        }
    };
    let began = Instant::now();
    tokio::join!(writer.wait_for(&wanted, Duration::from_secs(20)), stream);
    assert!(
        began.elapsed() < stretched(Duration::from_secs(5)),
        "{:?}",
        began.elapsed()
    );
}

async fn a_waiting_writer_is_not_reported_as_a_holder(lab: &Lab) {
    let job = key("job");
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let reader = shared(request(&job, LONG));
    let fence = a.take(&reader).await.fence;
    let writer = waiting(&job, LONG);
    let look = async {
        lab.pass(SLACK * 2).await;
        let state = c.inspect(&job).await;
        assert_eq!(state.holders.len(), 1, "{state:?}");
        assert_eq!(
            (state.holders[0].fence, state.holders[0].mode),
            (Some(fence), Mode::Shared)
        );
        // On a busy machine the writer may not wait yet, and lets a reader in.
        let (other, began) = (shared(request(&job, LONG)), Instant::now());
        let busy = loop {
            match c.attempt(&other).await {
                Attempt::Busy(busy) => break busy,
                granted => assert!(began.elapsed() < Duration::from_secs(10), "{granted:?}"),
            }
            c.free(&other).await;
            lab.pass(SLACK).await;
        };
        assert_eq!(busy.holders.len(), 1, "{busy:?}");
        a.free(&reader).await;
        Instant::now()
    };
    let (_, freed) = tokio::join!(b.wait_for(&writer, Duration::from_secs(20)), look);
    assert!(freed.elapsed() < soon(), "{:?}", freed.elapsed());
    let state = c.inspect(&job).await;
    assert!(
        state.holders.len() == 1
            && state.holders[0].mode == Mode::Exclusive
            && !state.holders[0].foreign,
        "{state:?}"
    );
}

async fn a_reader_whose_session_ended_blocks_no_writer(lab: &Lab) {
    let job = key("job");
    let mut c = lab.client().await;
    {
        let mut a = lab.client().await;
        a.take(&shared(request(&job, LONG))).await;
        let mut b = lab.client().await;
        b.take(&shared(request(&job, short()))).await;
    }
    let wanted = waiting(&job, LONG);
    let grant = c.wait_for(&wanted, Duration::from_secs(5)).await;
    assert!(
        !grant.drain_delay.is_zero(),
        "the readers' commands may still run"
    );
    let history = c.0.history(&job).await.expect("history");
    assert_eq!(history.past.len(), 2, "{history:?}");
    c.free(&wanted).await;
    assert!(c.inspect(&job).await.holders.is_empty());
    assert_eq!(c.0.history(&job).await.expect("history").past.len(), 3);
}

async fn a_reader_that_waited_is_a_reader(lab: &Lab) {
    let job = key("job");
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let writer = a.hold(&job).await;
    let one = shared(waiting(&job, LONG));
    b.refused(&one).await;
    let free = async {
        lab.pass(SLACK).await;
        a.free(&writer).await;
    };
    let (grant, ()) = tokio::join!(b.wait_for(&one, Duration::from_secs(20)), free);
    let two = shared(request(&job, LONG));
    c.take(&two).await;
    let state = lab.client().await.inspect(&job).await;
    assert_eq!(state.holders.len(), 2, "{state:?}");
    assert!(state.waiters.is_empty(), "{state:?}");
    assert_eq!(state.holders[0].fence, Some(grant.fence));
    c.free(&two).await;
    b.renewed(&one, None).await;
    lab.client().await.refused(&request(&job, LONG)).await;
    b.free(&one).await;
    lab.client().await.hold(&job).await;
}
