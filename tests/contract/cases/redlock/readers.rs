//! Readers on several nodes, each of which keeps its own shares.

use std::{
    future::pending,
    time::{Duration, Instant},
};

use dlock::{
    lease::{self, BootClock, Outcome, WaitPolicy},
    lock::{Attempt, Effect, End, Fence, Key, Mode as LockMode, Release, Renewal, Request, Scope},
};

use super::{
    super::{Case, cases},
    Fronts, HASTY, LIMITS, NODES, core_acquire, counter, held_on, values,
};
use crate::{
    lab::{LONG, Lab, SLACK, key, request, short, soon, waiting},
    support::{self, proxy::Fault},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind == Kind::Redlock =>
        reader_answers_lost_on_a_minority_change_nothing,
        reader_requests_without_a_majority_of_answers_are_repeated,
        a_reader_that_expired_between_its_phases_is_refused,
        a_reader_that_lost_its_nodes_between_its_phases_is_refused,
        a_late_share_does_not_count_in_a_renewal,
        two_readers_with_one_highest_count_get_different_fences,
        a_fence_below_the_known_ones_is_refused,
        readers_and_writers_that_split_the_nodes_finish,
        a_node_that_forgot_its_readers_does_not_count_again,
        nodes_that_forgot_their_shares_have_no_holder,
        other_libraries_and_readers_exclude_each_other,
        a_waiting_writer_keeps_readers_out,
        a_dead_writer_keeps_readers_out_for_two_seconds,
        a_writer_that_stops_for_a_second_is_not_passed,
        a_waiter_leaves_over_a_new_connection,
        a_granted_writer_leaves_no_queue_entry,
        a_crashed_reader_is_recorded_by_all_nodes,
        only_counters_of_readers_remain,
    ]
}

fn reader(job: &Key, lease: Duration) -> Request {
    Request {
        mode: LockMode::Shared,
        ..request(job, lease)
    }
}

/// Returns the number of shares on each node.
fn shares(lab: &Lab) -> Vec<i64> {
    (0..NODES)
        .map(|n| lab.redlock()[n].int(&["ZCARD", "dlock:{dlock:job}:ends"]))
        .collect()
}

/// Returns whether this reader's share on the node is committed; `None` without a share.
fn committed(lab: &Lab, node: usize, of: &Request) -> Option<bool> {
    let share = lab.redlock()[node].command(&[
        "HGET",
        "dlock:{dlock:job}:shares",
        &of.token.owner.to_string(),
    ]);
    redis::from_redis_value::<Option<String>>(share)
        .expect("text")
        .map(|json| json.contains("\"fence\""))
}

async fn reader_answers_lost_on_a_minority_change_nothing(lab: &Lab) {
    let job = key("job");
    let mut b = lab.client().await;
    let other = reader(&job, LONG);
    b.take(&other).await;
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Swallow] {
        for skip in [0, 1] {
            let fronts = Fronts::of(lab);
            let mut a = fronts.client(HASTY).await;
            for n in [1, 2] {
                fronts.0[n].trap_nth("", skip, 1, fault);
            }
            let held = reader(&job, LONG);
            a.take(&held).await;
            assert!(fronts.0[1].sprung() == 1 && fronts.0[2].sprung() == 1);
            a.renewed(&held, None).await;
            b.renewed(&other, None).await;
            assert_eq!(
                lab.client()
                    .await
                    .refused(&request(&job, LONG))
                    .await
                    .holders
                    .len(),
                2,
                "{fault:?} {skip}"
            );
            a.free(&held).await;
            assert_eq!(shares(lab), [1; NODES], "{fault:?} {skip}");
        }
    }
    b.free(&other).await;
    assert_eq!(held_on(lab), 0);
}

/// In phase 1 and in phase 2. The repeated request finds commits whose answers were lost, and takes
/// over the rest.
async fn reader_requests_without_a_majority_of_answers_are_repeated(lab: &Lab) {
    let job = key("job");
    let mut b = lab.client().await;
    let other = reader(&job, LONG);
    let mut last = b.take(&other).await.fence;
    for fault in [
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::Swallow,
        Fault::Late(HASTY * 2),
    ] {
        for skip in [0, 1] {
            let fronts = Fronts::of(lab);
            let mut a = fronts.client(HASTY).await;
            for n in [0, 1, 2] {
                fronts.0[n].trap_nth("", skip, 1, fault);
            }
            let Outcome::Granted(lease) = core_acquire(&mut a, reader(&job, LONG))
                .await
                .expect("granted")
            else {
                panic!("busy: readers exclude each other");
            };
            assert!((0..3).all(|n| fronts.0[n].sprung() == 1));
            assert!(
                lease.fence > last && lease.holds == 1,
                "{lease:?} after {last}"
            );
            last = lease.fence;
            let state = lab.client().await.inspect(&job).await;
            let fences: Vec<_> = state
                .holders
                .iter()
                .map(|holder| (holder.fence, holder.holds))
                .collect();
            assert!(
                fences.len() == 2 && fences.contains(&(Some(last), 1)),
                "{fault:?} {skip}: {fences:?}"
            );
            assert_eq!(
                a.0.release(&lease.key, &lease.token, &Scope::Tree.into())
                    .await
                    .expect("release"),
                Release::Released
            );
            if let Fault::Late(late) = fault {
                // The late attempt arrives now, over the old connection, and the request that
                // undoes it right after it.
                lab.pass(late).await;
            }
            let undone = async {
                while shares(lab) != [1; NODES] {
                    lab.pass(SLACK / 5).await;
                }
            };
            let _ = tokio::time::timeout(soon(), undone).await;
            assert_eq!(shares(lab), [1; NODES], "{fault:?} {skip}");
        }
    }
    b.renewed(&other, None).await;
}

async fn a_reader_that_expired_between_its_phases_is_refused(lab: &Lab) {
    let job = key("job");
    let fronts = Fronts::of(lab);
    let (mut a, mut b) = (fronts.client(HASTY).await, lab.client().await);
    // The other reader keeps the lock's string alive.
    let other = reader(&job, LONG);
    b.take(&other).await;
    for n in [0, 1, 2] {
        fronts.0[n].trap_nth("", 1, 1, Fault::Late(short() * 2 + SLACK * 3));
    }
    let late = reader(&job, short() * 2);
    let error = a.0.try_acquire(&late).await.expect_err("too few commits");
    assert!(
        error.is_transient() && error.effect == Effect::Unknown,
        "{error:?}"
    );
    assert!((0..3).all(|n| fronts.0[n].sprung() == 1));
    let counted: Vec<_> = (0..3).map(|n| counter(lab, n)).collect();
    lab.pass(short() * 2 + SLACK * 5).await;
    assert_eq!((0..3).map(|n| counter(lab, n)).collect::<Vec<_>>(), counted);
    assert!((0..NODES).all(|n| committed(lab, n, &late) != Some(true)));
    assert_eq!(a.renew(&late, None).await, Renewal::NotHeld);
    b.renewed(&other, None).await;
    b.free(&other).await;
    assert_eq!(held_on(lab), 0, "an expired reader keeps a node");
}

/// A writer takes the nodes between the phases, and readers take them again: the share is no longer
/// the same.
async fn a_reader_that_lost_its_nodes_between_its_phases_is_refused(lab: &Lab) {
    let job = key("job");
    let fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    for n in [0, 1, 2] {
        fronts.0[n].trap_nth("", 1, 1, Fault::Late(HASTY * 2));
    }
    let late = reader(&job, LONG);
    let between = async {
        lab.pass(SLACK).await;
        for n in 0..NODES {
            lab.redlock()[n].command(&["DEL", "dlock:job"]);
        }
        let (mut b, mut c) = (lab.client().await, lab.client().await);
        let held = b.hold(&job).await;
        b.free(&held).await;
        let other = reader(&job, LONG);
        (c.take(&other).await.fence, c, other)
    };
    let (outcome, (fence, mut c, other)) = tokio::join!(a.0.try_acquire(&late), between);
    assert_eq!(outcome.expect_err("two of five").effect, Effect::Unknown);
    lab.pass(HASTY * 2).await;
    assert_eq!(
        (shares(lab), committed(lab, 0, &late)),
        (vec![1; NODES], None)
    );
    assert_eq!(c.renewed(&other, None).await, fence);
    assert!((0..NODES).all(|n| counter(lab, n) == fence.0));
}

async fn a_late_share_does_not_count_in_a_renewal(lab: &Lab) {
    let job = key("job");
    let fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    for n in [3, 4] {
        fronts.0[n].trap("", Fault::Late(HASTY * 2));
    }
    let held = reader(&job, LONG);
    a.take(&held).await;
    lab.pass(HASTY * 3).await;
    assert_eq!(
        (committed(lab, 0, &held), committed(lab, 4, &held)),
        (Some(true), Some(false))
    );
    a.renewed(&held, Some(LONG * 2)).await;
    assert!(
        lab.redlock()[4].int(&["PTTL", "dlock:job"])
            > i64::try_from(LONG.as_millis()).expect("small")
    );
    lab.redlock()[0].command(&["DEL", "dlock:job"]);
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
}

/// Each reader counts first on the nodes where the other counts last, and both count before either
/// commits.
async fn two_readers_with_one_highest_count_get_different_fences(lab: &Lab) {
    let job = key("job");
    let fronts = [Fronts::of(lab), Fronts::of(lab)];
    let (mut a, mut b) = (
        fronts[0].client(HASTY * 10).await,
        fronts[1].client(HASTY * 10).await,
    );
    // The counters are set above the time, which is never equal on two nodes.
    let ahead = 1_u64 << 52;
    for n in 0..NODES {
        lab.redlock()[n].command(&["SET", "redisson_lock_token:{dlock:job}", &ahead.to_string()]);
    }
    for n in [3, 4] {
        fronts[0].0[n].trap("", Fault::Late(SLACK * 4));
    }
    for n in 0..NODES {
        fronts[1].0[n].trap_nth("", 1, 1, Fault::Late(SLACK * 8));
    }
    let (one, two) = (reader(&job, LONG), reader(&job, LONG));
    let after = async {
        lab.pass(SLACK).await;
        b.0.try_acquire(&two).await
    };
    let (first, second) = tokio::join!(a.take(&one), after);
    assert_eq!(first.fence, Fence(ahead + 2));
    let Ok(dlock::lock::Attempt::Busy(busy)) = second else {
        panic!("the same fence twice: {second:?}")
    };
    assert!(busy.transient, "{busy:?}");
    assert_eq!(b.take(&two).await.fence, Fence(ahead + 3));
    a.renewed(&one, None).await;
    b.renewed(&two, None).await;
    assert_eq!(lab.client().await.inspect(&job).await.holders.len(), 2);
}

/// A node knows only the 100 highest fences.
async fn a_fence_below_the_known_ones_is_refused(lab: &Lab) {
    let job = key("job");
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let one = reader(&job, LONG);
    a.take(&one).await;
    let ahead = 1_u64 << 52;
    let known: Vec<String> = (50..150).map(|fence| (ahead + fence).to_string()).collect();
    let set_counters = |to: u64| {
        for n in 0..NODES {
            lab.redlock()[n].command(&["SET", "redisson_lock_token:{dlock:job}", &to.to_string()]);
        }
    };
    for n in 0..NODES {
        lab.redlock()[n].command(&[
            "HSET",
            "dlock:{dlock:job}:shares",
            "fences",
            &known.join(" "),
        ]);
    }
    let two = reader(&job, LONG);
    for behind in [10, 99] {
        set_counters(ahead + behind);
        assert!(b.refused(&two).await.transient);
        assert_eq!(shares(lab), [1; NODES]);
    }
    set_counters(ahead + 199);
    assert_eq!(b.take(&two).await.fence, Fence(ahead + 200));
    let fences = lab.redlock()[0].text(&["HGET", "dlock:{dlock:job}:shares", "fences"]);
    assert_eq!(
        fences,
        [&known[1..], &[(ahead + 200).to_string()]]
            .concat()
            .join(" ")
    );
    a.renewed(&one, None).await;
}

async fn readers_and_writers_that_split_the_nodes_finish(lab: &Lab) {
    let job = key("job");
    let (mut readers, mut writers) = (0, 0);
    let mut last = Fence(0);
    for _ in 0..10 {
        let once = async |mode| {
            let mut client = lab.client().await;
            let wanted = Request {
                mode,
                ..request(&job, LONG)
            };
            match core_acquire(&mut client, wanted.clone())
                .await
                .expect("an answer")
            {
                Outcome::Granted(lease) => Some((client, wanted, lease.fence)),
                _ => None,
            }
        };
        let (a, b) = (once(LockMode::Shared), once(LockMode::Exclusive));
        let (a, b, c, d) = tokio::join!(a, b, once(LockMode::Shared), once(LockMode::Exclusive));
        let won: Vec<_> = [a, b, c, d].into_iter().flatten().collect();
        let reading = won
            .iter()
            .filter(|(_, wanted, _)| wanted.mode == LockMode::Shared)
            .count();
        assert!(
            won.len() <= 1 || reading == won.len(),
            "{reading} readers of {} holders",
            won.len()
        );
        readers += reading;
        writers += won.len() - reading;
        let before = last;
        for (mut client, wanted, fence) in won {
            assert!(fence > before, "{fence} after {before}");
            last = last.max(fence);
            client.renewed(&wanted, None).await;
            client.free(&wanted).await;
        }
        lab.pass(SLACK).await;
        assert_eq!(held_on(lab), 0);
    }
    support::say(&format!(
        "redlock: two readers and two writers at once, ten times: {readers} readers and {writers} writers got the lock"
    ));
    assert!(readers + writers >= 8);
}

async fn a_node_that_forgot_its_readers_does_not_count_again(lab: &Lab) {
    let job = key("job");
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let (one, two) = (reader(&job, LONG), reader(&job, LONG));
    a.take(&one).await;
    let fence = b.take(&two).await.fence;
    for n in [0, 1] {
        lab.redlock()[n].command(&["FLUSHALL"]);
        a.renewed(&one, None).await;
        a.take(&one).await;
        b.renewed(&two, None).await;
    }
    // The repeated request took the node again, but was never committed there.
    assert_eq!(committed(lab, 0, &one), Some(false));
    assert_eq!(committed(lab, 0, &two), None);
    lab.redlock()[2].command(&["FLUSHALL"]);
    assert_eq!(a.renew(&one, None).await, Renewal::NotHeld);
    assert_eq!(b.renew(&two, None).await, Renewal::NotHeld);
    let mut c = lab.client().await;
    let error = c.0.try_acquire(&request(&job, LONG)).await;
    assert!(
        !matches!(error, Ok(dlock::lock::Attempt::Granted(_))),
        "a majority still has shares: {error:?}"
    );
    a.release(&one, Scope::Hold).await;
    b.release(&two, Scope::Hold).await;
    assert!(c.take(&request(&job, LONG)).await.fence > fence);
}

/// A node whose memory was full may evict some keys and keep others.
async fn nodes_that_forgot_their_shares_have_no_holder(lab: &Lab) {
    let job = key("job");
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let held = reader(&job, LONG);
    a.take(&held).await;
    for n in 0..3 {
        lab.redlock()[n].command(&["DEL", "dlock:{dlock:job}:shares"]);
    }
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    b.refused(&reader(&job, LONG)).await;
    b.refused(&request(&job, LONG)).await;
    assert_eq!(held_on(lab), NODES);
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
}

async fn other_libraries_and_readers_exclude_each_other(lab: &Lab) {
    let job = key("job");
    let lock = |n: usize| {
        lab.redlock()[n].command(&["SET", "dlock:job", "mK3xV9", "NX", "PX", "5000"])
            == redis::Value::Okay
    };
    let left = |n: usize| lab.redlock()[n].int(&["PTTL", "dlock:job"]);
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let (one, two) = (reader(&job, LONG), reader(&job, LONG * 2));
    a.take(&one).await;
    b.take(&two).await;
    let long = i64::try_from(LONG.as_millis()).expect("small");
    assert!((0..NODES).all(|n| !lock(n)) && (0..NODES).all(|n| left(n) > long));
    assert!(
        values(lab)
            .iter()
            .flatten()
            .all(|value| value.starts_with("shared:")),
        "another library's compare would match the value"
    );
    b.free(&two).await;
    assert!(
        (0..NODES).all(|n| left(n) > 0 && left(n) <= long),
        "the expiry is later than that of any reader"
    );
    a.free(&one).await;
    assert!([0, 2].into_iter().all(lock));
    let held = reader(&job, LONG);
    a.take(&held).await;
    a.free(&held).await;
    assert_eq!(held_on(lab), 2, "dlock deleted the other library's keys");
    assert!(lock(4));
    assert!(b.refused(&reader(&job, LONG)).await.holders[0].foreign);
    assert_eq!(held_on(lab), 3);
}

/// The reader has a bare majority. The writer takes the other nodes for a moment, and releases
/// them.
async fn a_waiting_writer_keeps_readers_out(lab: &Lab) {
    let job = key("job");
    for n in [3, 4] {
        lab.redlock()[n].kill();
    }
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let held = reader(&job, LONG);
    a.take(&held).await;
    for n in [3, 4] {
        lab.redlock()[n].start();
    }
    let writer = waiting(&job, LONG);
    b.refused(&writer).await;
    assert_eq!(held_on(lab), 3);
    let busy = c.refused(&reader(&job, LONG)).await;
    assert!(
        !busy.transient && busy.holders[0].mode == LockMode::Shared,
        "{busy:?}"
    );
    assert!(
        busy.expires_in
            .is_some_and(|left| left > Duration::from_secs(10)),
        "{busy:?}"
    );
    assert_eq!(shares(lab), [1, 1, 1, 0, 0]);
    // The free lock is kept for the writer.
    b.refused(&writer).await;
    a.free(&held).await;
    assert!(c.refused(&reader(&job, LONG)).await.transient);
    b.take(&writer).await;
    b.free(&writer).await;
    c.take(&reader(&job, LONG)).await;
}

/// How long a waiter may be silent. It asks several times in that time.
const SILENCE: Duration = Duration::from_secs(2);

/// The lock may be free, or held by other readers.
async fn a_dead_writer_keeps_readers_out_for_two_seconds(lab: &Lab) {
    for is_held in [false, true] {
        let (mut a, mut c) = (lab.client().await, lab.client().await);
        let job = key(&format!("job-{is_held}"));
        let held = reader(&job, LONG);
        a.take(&held).await;
        let began = Instant::now();
        lab.client().await.refused(&waiting(&job, LONG)).await;
        if !is_held {
            a.free(&held).await;
        }
        c.refused(&reader(&job, LONG)).await;
        lab.pass(SILENCE.saturating_sub(began.elapsed()) + SLACK)
            .await;
        c.take(&reader(&job, LONG)).await;
    }
}

async fn a_writer_that_stops_for_a_second_is_not_passed(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let held = reader(&job, LONG);
    a.take(&held).await;
    let writer = waiting(&job, LONG);
    let readers = async {
        let began = Instant::now();
        lab.pass(SLACK).await;
        while began.elapsed() < SILENCE * 2 {
            if matches!(c.attempt(&reader(&job, LONG)).await, Attempt::Granted(_)) {
                return true;
            }
            lab.pass(SLACK).await;
        }
        false
    };
    let writes = async {
        let mut longest = Duration::ZERO;
        for _ in 0..4 {
            let began = Instant::now();
            b.refused(&writer).await;
            lab.pass(SILENCE / 2).await;
            longest = longest.max(began.elapsed());
        }
        longest
    };
    let (is_passed, longest) = tokio::join!(readers, writes);
    // A machine that stalls stops the writer for longer.
    assert!(!is_passed || longest + SLACK > SILENCE, "{longest:?}");
    if is_passed {
        return;
    }
    a.free(&held).await;
    b.take(&writer).await;
}

/// A waiter that gives up leaves the queue of every node, even if the connection to one was reset
/// meanwhile.
async fn a_waiter_leaves_over_a_new_connection(lab: &Lab) {
    let job = key("job");
    let fronts = Fronts::of(lab);
    let (mut a, mut b) = (lab.client().await, fronts.client(HASTY).await);
    a.hold(&job).await;
    b.refused(&waiting(&job, LONG)).await;
    let waiters = || {
        (0..NODES)
            .map(|n| lab.redlock()[n].int(&["ZCARD", "dlock:{dlock:job}:queue"]))
            .sum::<i64>()
    };
    let count = i64::try_from(NODES).expect("small");
    assert_eq!(waiters(), count);
    // The queue is the first of the request's three keys.
    fronts.0[3].trap("\r\n3\r\n$23\r\ndlock:{dlock:job}:queue", Fault::CutBefore);
    let outcome = lease::acquire(
        &mut *b.0,
        &BootClock,
        waiting(&job, LONG),
        WaitPolicy::For(SLACK),
        LIMITS,
        pending::<()>(),
        |_| {},
    )
    .await;
    assert!(matches!(outcome, Ok(Outcome::Busy(_))), "{outcome:?}");
    assert_eq!(
        (waiters(), fronts.0[3].sprung()),
        (count, 1),
        "the first waiter alone"
    );
}

async fn a_granted_writer_leaves_no_queue_entry(lab: &Lab) {
    let job = key("job");
    let fronts = Fronts::of(lab);
    let (mut a, mut b) = (fronts.client(HASTY).await, lab.client().await);
    let held = reader(&job, LONG);
    a.take(&held).await;
    let writer = waiting(&job, LONG);
    b.refused(&writer).await;
    for n in [3, 4] {
        fronts.0[n].trap("", Fault::CutBefore);
    }
    a.free(&held).await;
    assert_eq!(shares(lab), [0, 0, 0, 1, 1]);
    let waiters = || {
        (0..NODES)
            .map(|n| lab.redlock()[n].int(&["ZCARD", "dlock:{dlock:job}:queue"]))
            .collect::<Vec<_>>()
    };
    b.take(&writer).await;
    assert_eq!(waiters(), [0, 0, 0, 1, 1]);
    b.free(&writer).await;
    assert_eq!(waiters(), [0; NODES]);
    lab.client().await.take(&reader(&job, LONG)).await;
}

async fn a_crashed_reader_is_recorded_by_all_nodes(lab: &Lab) {
    let job = key("job");
    let mut b = lab.client().await;
    let other = reader(&job, LONG);
    let first = b.take(&other).await.fence;
    let fence = lab.client().await.take(&reader(&job, short())).await.fence;
    lab.outlast(short()).await;
    let ended = |past: &[dlock::lock::HistoryEntry]| {
        past.iter()
            .map(|past| (past.fence, past.end.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        ended(&b.0.history(&job).await.expect("history").past),
        [(Some(fence), End::Expired)]
    );
    lab.client().await.refused(&request(&job, LONG)).await;
    b.free(&other).await;
    assert_eq!(held_on(lab), 0);
    let both = [(Some(fence), End::Expired), (Some(first), End::Released)];
    assert_eq!(ended(&b.0.history(&job).await.expect("history").past), both);
}

async fn only_counters_of_readers_remain(lab: &Lab) {
    let job = key("job");
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let (one, two) = (reader(&job, LONG), reader(&job, LONG));
    a.take(&one).await;
    b.take(&two).await;
    let wanted = waiting(&job, LONG);
    c.refused(&wanted).await;
    c.refused(&Request {
        mode: LockMode::Shared,
        ..waiting(&job, LONG)
    })
    .await;
    c.leave_queue(&wanted).await;
    let endless = |n: usize| {
        lab.redlock()[n]
            .keys()
            .into_iter()
            .filter(|(_, left)| *left < 0)
            .map(|(name, _)| name)
            .collect::<Vec<_>>()
    };
    assert!((0..NODES).all(|n| endless(n) == ["redisson_lock_token:{dlock:job}"]));
    a.free(&one).await;
    b.free(&two).await;
    for n in 0..NODES {
        let left: Vec<String> = lab.redlock()[n]
            .keys()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert!(
            !left.iter().any(|name| name.ends_with(":shares")
                || name.ends_with(":ends")
                || name == "dlock:job"),
            "{left:?}"
        );
    }
}
