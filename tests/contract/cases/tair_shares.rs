//! Shares in a Tair value: changes by others at the wrong moment, and late requests.

use std::{cell::RefCell, rc::Rc, time::Duration};

use dlock::{
    lease::{self, BootClock, Limits, Outcome, Released, WaitPolicy},
    lock::{Amendment, Attempt, Break, End, Fence, Intent, Mode, Release, Renewal, Request, Scope},
};
use redis::Value;
use tokio::task::{LocalSet, spawn_local};

use super::{Case, cases, history::history};
use crate::{
    lab::{
        Client, LONG, Lab, SLACK, key, nested, overtaking_delay, request, runner, short, waiting,
    },
    support::proxy::{Fault, Proxy},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind| matches!(kind, Kind::Tair | Kind::TairVersion) =>
        a_share_whose_answer_was_lost_is_granted_once,
        a_share_granted_too_late_is_not_held,
        a_share_overtaken_by_others_is_still_granted,
        a_repeated_attempt_to_share_counts_once,
        a_late_renewal_of_a_share_does_not_revive_it,
        a_renewal_of_a_share_whose_answer_was_lost_is_repeated,
        a_late_release_of_a_share_leaves_the_others,
        a_release_of_a_share_whose_answer_was_lost_frees_it_once,
        shares_keep_other_clients_out,
        other_clients_can_take_an_offered_lock,
        a_lock_taken_by_other_clients_has_no_readers,
        shares_have_an_expiry,
        a_delayed_break_affects_only_its_share,
        shares_leave_nothing_behind,
        inspecting_a_shared_lock_changes_nothing,
        a_waiter_that_missed_its_offer_is_removed_by_the_next_holder,
        all_kinds_at_once_get_the_lock,
    ]
}

const NAME: &str = "dlock:job";

fn reader(lease: Duration) -> Request {
    Request {
        mode: Mode::Shared,
        ..request(&key("job"), lease)
    }
}

/// Returns a client behind a proxy, with an open connection.
async fn warm(lab: &Lab) -> (Proxy, Client) {
    let proxy = Proxy::to(lab.tair().port());
    let mut client = lab.through(proxy.port);
    client.inspect(&key("warm")).await;
    (proxy, client)
}

/// Takes a share that stays.
async fn other(lab: &Lab) -> (Client, Request, Fence) {
    let (mut client, held) = (lab.client().await, reader(LONG));
    let fence = client.take(&held).await.fence;
    (client, held, fence)
}

async fn fences(lab: &Lab) -> Vec<Fence> {
    let mut fences: Vec<_> = lab
        .client()
        .await
        .inspect(&key("job"))
        .await
        .holders
        .iter()
        .filter_map(|holder| holder.fence)
        .collect();
    fences.sort_unstable();
    fences
}

fn left(lab: &Lab) -> Duration {
    let left: u64 = redis::from_redis_value(lab.tair().command(&["PTTL", NAME])).expect("an end");
    Duration::from_millis(left)
}

async fn a_share_whose_answer_was_lost_is_granted_once(lab: &Lab) {
    for fault in [Fault::CutAfter, Fault::Swallow] {
        let (mut b, there, fence) = other(lab).await;
        let (proxy, mut a) = warm(lab).await;
        proxy.trap("INCRBY", fault);
        let held = reader(LONG);
        let lost = tokio::time::timeout(SLACK, a.0.try_acquire(&held)).await;
        assert!(
            !matches!(lost, Ok(Ok(_))) && proxy.sprung() == 1,
            "{lost:?}"
        );
        let grant = a.take(&held).await;
        assert_eq!(
            (grant.holds, fences(lab).await),
            (1, vec![fence, grant.fence])
        );
        a.free(&held).await;
        b.free(&there).await;
        lab.client().await.hold(&key("job")).await;
        lab.lose_data().await;
    }
}

async fn a_share_granted_too_late_is_not_held(lab: &Lab) {
    let (_b, _, fence) = other(lab).await;
    let (proxy, mut a) = warm(lab).await;
    proxy.trap("INCRBY", Fault::Late(SLACK * 3));
    let held = reader(LONG);
    let given_up = tokio::time::timeout(SLACK, a.0.try_acquire(&held)).await;
    assert!(given_up.is_err() && proxy.sprung() == 1, "{given_up:?}");
    assert_eq!(a.release(&held, Scope::Tree).await, Release::NotHeld);
    lab.pass(SLACK * 4).await;
    assert_eq!(fences(lab).await, [fence]);
    assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
    // The next fence is above the number that the late attempt counted.
    let counter: u64 = redis::from_redis_value(
        lab.tair()
            .command(&["GET", "redisson_lock_token:{dlock:job}"]),
    )
    .expect("a number");
    assert!(lab.client().await.take(&reader(LONG)).await.fence.0 > counter);
}

async fn a_share_overtaken_by_others_is_still_granted(lab: &Lab) {
    let (mut b, there, _) = other(lab).await;
    let (proxy, mut a) = warm(lab).await;
    proxy.trap("INCRBY", Fault::Late(overtaking_delay()));
    let held = reader(LONG);
    let meanwhile = async {
        lab.pass(SLACK).await;
        let next = reader(LONG);
        let fence = lab.client().await.take(&next).await.fence;
        b.free(&there).await;
        fence
    };
    let (grant, next) = tokio::join!(a.take(&held), meanwhile);
    assert_eq!(proxy.sprung(), 1);
    assert!(grant.fence > next);
    assert_eq!(fences(lab).await, [next, grant.fence]);
    let past = history(&mut b, &key("job")).await.past;
    assert_eq!(past.len(), 1, "a failed attempt was recorded: {past:?}");
}

/// The server has served only the first packet of the attempt.
async fn a_repeated_attempt_to_share_counts_once(lab: &Lab) {
    let (proxy, mut a) = warm(lab).await;
    proxy.trap("INCRBY", Fault::CutBefore);
    let held = Request {
        mode: Mode::Permits(2),
        ..request(&key("job"), LONG)
    };
    a.0.try_acquire(&held).await.expect_err("no answer");
    assert!(lab.client().await.refused(&reader(LONG)).await.transient);
    let grant = a.take(&held).await;
    assert_eq!(
        (grant.permit, fences(lab).await),
        (Some(0), vec![grant.fence])
    );
    a.free(&held).await;
    lab.client().await.hold(&key("job")).await;
}

async fn a_late_renewal_of_a_share_does_not_revive_it(lab: &Lab) {
    for repeated_by in ["itself", "a writer"] {
        let (_b, _, fence) = other(lab).await;
        let (proxy, mut a) = warm(lab).await;
        let held = reader(short());
        a.take(&held).await;
        let over = short() + SLACK;
        proxy.trap_nth("", 1, 1, Fault::Late(over + SLACK * 2));
        let unanswered = tokio::time::timeout(over, a.renew(&held, Some(LONG))).await;
        assert!(unanswered.is_err() && proxy.sprung() == 1, "{unanswered:?}");
        if repeated_by == "itself" {
            assert_eq!(
                lab.client()
                    .await
                    .0
                    .renew(&held.key, &held.token, Intent::Probe)
                    .await
                    .expect("verify"),
                Renewal::NotHeld
            );
        } else {
            assert_eq!(
                lab.client()
                    .await
                    .refused(&request(&key("job"), LONG))
                    .await
                    .holders
                    .len(),
                1
            );
        }
        lab.pass(SLACK * 4).await;
        assert_eq!(fences(lab).await, [fence], "{repeated_by}");
        assert_eq!(a.renew(&held, None).await, Renewal::NotHeld);
        lab.lose_data().await;
    }
}

async fn a_renewal_of_a_share_whose_answer_was_lost_is_repeated(lab: &Lab) {
    for fault in [Fault::CutBefore, Fault::CutAfter] {
        let (mut b, there, fence) = other(lab).await;
        let (proxy, mut a) = warm(lab).await;
        let held = reader(LONG);
        let own = a.take(&held).await.fence;
        proxy.trap_nth("", 1, 1, fault);
        // Within the same millisecond the renewal would write nothing.
        lab.pass(Duration::from_millis(2)).await;
        a.0.renew(&held.key, &held.token, None.into())
            .await
            .expect_err("no answer");
        assert_eq!((a.renewed(&held, None).await, proxy.sprung()), (own, 1));
        assert_eq!(fences(lab).await, [fence, own]);
        a.free(&held).await;
        b.free(&there).await;
    }
}

async fn a_late_release_of_a_share_leaves_the_others(lab: &Lab) {
    let (mut b, there, fence) = other(lab).await;
    let (proxy, mut a) = warm(lab).await;
    let held = reader(LONG);
    a.take(&held).await;
    proxy.trap_nth("", 1, 1, Fault::Late(SLACK * 3));
    let unanswered = tokio::time::timeout(SLACK, a.release(&held, Scope::Tree)).await;
    assert!(unanswered.is_err() && proxy.sprung() == 1, "{unanswered:?}");
    let mut c = lab.client().await;
    let next = reader(LONG);
    let later = c.take(&next).await.fence;
    assert_eq!(a.release(&held, Scope::Tree).await, Release::Released);
    lab.pass(SLACK * 4).await;
    assert_eq!(fences(lab).await, [fence, later]);
    b.renewed(&there, None).await;
    c.renewed(&next, None).await;
    let past = history(&mut c, &key("job")).await.past;
    assert_eq!(past.len(), 1, "{past:?}");
}

async fn a_release_of_a_share_whose_answer_was_lost_frees_it_once(lab: &Lab) {
    for fault in [Fault::CutBefore, Fault::CutAfter] {
        let (mut b, there, fence) = other(lab).await;
        let (proxy, mut a) = warm(lab).await;
        let held = reader(LONG);
        a.take(&held).await;
        proxy.trap_nth("", 1, 1, fault);
        a.0.release(&held.key, &held.token, &Scope::Tree.into())
            .await
            .expect_err("no answer");
        let expected = if matches!(fault, Fault::CutBefore) {
            Release::Released
        } else {
            Release::NotHeld
        };
        assert_eq!(
            (a.release(&held, Scope::Tree).await, proxy.sprung()),
            (expected, 1)
        );
        assert_eq!(fences(lab).await, [fence]);
        let past = history(&mut b, &key("job")).await.past;
        assert_eq!(past.len(), 1, "{past:?}");
        b.free(&there).await;
        lab.lose_data().await;
    }
}

async fn shares_keep_other_clients_out(lab: &Lab) {
    let server = lab.tair();
    let (mut b, there, _) = other(lab).await;
    let (mut c, next, _) = other(lab).await;
    for step in 0..3 {
        assert_eq!(
            server.command(&["SET", NAME, "theirs", "NX", "PX", "5000"]),
            Value::Nil,
            "{step}"
        );
        if lab.kind == Kind::Tair {
            assert_eq!(
                server.command(&["CAS", NAME, "theirs", "x", "PX", "5000"]),
                Value::Int(0)
            );
            assert_eq!(server.command(&["CAD", NAME, "theirs"]), Value::Int(0));
        } else {
            assert_eq!(
                server.command(&["EXSET", NAME, "theirs", "NX", "PX", "5000"]),
                Value::Nil
            );
            assert_eq!(server.command(&["EXCAD", NAME, "1"]), Value::Int(0));
        }
        match step {
            0 => drop(c.renewed(&next, None).await),
            1 => b.free(&there).await,
            _ => {}
        }
    }
    c.free(&next).await;
    let theirs = if lab.kind == Kind::Tair {
        "SET"
    } else {
        "EXSET"
    };
    assert_eq!(
        server.command(&[theirs, NAME, "theirs", "NX", "PX", "5000"]),
        Value::Okay
    );
    for mode in [Mode::Shared, Mode::Permits(2), Mode::Exclusive] {
        let busy = c
            .refused(&Request {
                mode,
                fair: true,
                ..waiting(&key("job"), LONG)
            })
            .await;
        assert!(
            busy.holders[0].foreign
                && !busy.transient
                && busy
                    .expires_in
                    .is_some_and(|left| left <= Duration::from_secs(5)),
            "{busy:?}"
        );
    }
}

/// Only a holder keeps other clients out, never a waiter.
async fn other_clients_can_take_an_offered_lock(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let held = a.hold(&key("job")).await;
    let first = Request {
        fair: true,
        ..waiting(&key("job"), LONG)
    };
    b.refused(&first).await;
    a.free(&held).await;
    assert!(c.refused(&reader(LONG)).await.transient);
    assert_eq!(
        lab.tair()
            .command(&["SET", NAME, "theirs", "NX", "PX", "5000"]),
        Value::Okay
    );
    assert!(b.refused(&first).await.holders[0].foreign);
    lab.tair().command(&["DEL", NAME]);
    assert!(
        c.refused(&reader(LONG)).await.transient,
        "the waiter has lost its position"
    );
    b.take(&first).await;
}

async fn a_lock_taken_by_other_clients_has_no_readers(lab: &Lab) {
    let (mut b, there, _) = other(lab).await;
    let server = lab.tair();
    server.command(&["DEL", NAME]);
    let theirs = if lab.kind == Kind::Tair {
        "SET"
    } else {
        "EXSET"
    };
    server.command(&[theirs, NAME, "theirs", "NX", "PX", "5000"]);
    assert_eq!(b.renew(&there, None).await, Renewal::NotHeld);
    assert_eq!(
        b.0.renew(&there.key, &there.token, Intent::Probe)
            .await
            .expect("verify"),
        Renewal::NotHeld
    );
    assert_eq!(b.release(&there, Scope::Tree).await, Release::NotHeld);
    assert!(b.inspect(&key("job")).await.holders[0].foreign);
}

/// Tair's write commands remove the expiry unless they set one.
async fn shares_have_an_expiry(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let (short, long) = (reader(LONG), reader(LONG * 2));
    a.take(&short).await;
    assert!(left(lab) <= LONG);
    b.take(&long).await;
    assert!(left(lab) > LONG && left(lab) <= LONG * 2);
    a.renewed(&short, Some(LONG * 3)).await;
    assert!(left(lab) > LONG * 2 && left(lab) <= LONG * 3);
    let inner = nested(&long);
    b.take(&inner).await;
    assert!(left(lab) > LONG * 2, "entering shortened the expiry");
    a.free(&short).await;
    assert!(
        left(lab) > LONG && left(lab) <= LONG * 2,
        "the expiry is not that of the remaining shares"
    );
    assert_eq!(b.release(&inner, Scope::Hold).await, Release::StillHeld(1));
    assert!(left(lab) <= LONG * 2);
    b.free(&long).await;
}

async fn a_delayed_break_affects_only_its_share(lab: &Lab) {
    let (mut b, there, fence) = other(lab).await;
    let (mut c, next, other) = other(lab).await;
    let (proxy, mut a) = warm(lab).await;
    let mark = Break {
        by: "ana@ops1".into(),
        why: None,
        seen: false,
    };
    for evicts in [false, true] {
        proxy.trap_nth("", 1, 1, Fault::Late(overtaking_delay()));
        let job = key("job");
        let breaking = async {
            if evicts {
                a.0.amend(&job, Amendment::Evict(fence, &mark)).await
            } else {
                a.0.amend(&job, Amendment::Mark(fence, &mark)).await
            }
        };
        let meanwhile = async {
            lab.pass(SLACK).await;
            c.renewed(&next, None).await;
        };
        let (answer, ()) = tokio::join!(breaking, meanwhile);
        assert!(answer.expect("break"));
        let expected = if evicts {
            Renewal::NotHeld
        } else {
            Renewal::Broken(mark.clone())
        };
        assert_eq!(b.renew(&there, None).await, expected);
        c.renewed(&next, None).await;
    }
    assert_eq!((proxy.sprung(), fences(lab).await), (2, vec![other]));
    let past = history(&mut c, &key("job")).await.past;
    assert!(past.len() == 1 && past[0].fence == Some(fence), "{past:?}");
}

async fn shares_leave_nothing_behind(lab: &Lab) {
    let (mut b, there, _) = other(lab).await;
    let (mut c, mut d) = (lab.client().await, lab.client().await);
    let writer = Request {
        metadata: Some(runner("web1")),
        ..waiting(&key("job"), LONG)
    };
    let behind = Request {
        fair: true,
        waiting: true,
        ..reader(LONG)
    };
    c.refused(&writer).await;
    assert_eq!(d.refused(&behind).await.position, Some(2));
    b.free(&there).await;
    assert!(
        d.refused(&behind).await.transient,
        "the lock is not offered to the writer"
    );
    let endless = lab
        .tair()
        .keys()
        .into_iter()
        .filter(|(_, left)| *left < 0)
        .count();
    assert_eq!(endless, 1, "only the counter has no end");
    c.take(&writer).await;
    c.leave_queue(&writer).await;
    d.leave_queue(&behind).await;
    c.free(&writer).await;
    let names: Vec<String> = lab
        .tair()
        .keys()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(
        names,
        ["dlock:{dlock:job}:runs", "redisson_lock_token:{dlock:job}"]
    );
}

/// An inspection removes no expired share either: the next request for the lock does.
async fn inspecting_a_shared_lock_changes_nothing(lab: &Lab) {
    let (mut b, there, fence) = other(lab).await;
    b.take(&reader(short())).await;
    lab.outlast(short()).await;
    let words = if lab.kind == Kind::Tair {
        ["GET", NAME]
    } else {
        ["EXGET", NAME]
    };
    let before = lab.tair().command(&words);
    let mut looks = lab.client().await;
    assert_eq!(fences(lab).await, [fence]);
    assert_eq!(looks.keys("").await, ["job"]);
    assert_eq!(history(&mut looks, &key("job")).await.past.len(), 1);
    assert!(matches!(
        looks.0.renew(&there.key, &there.token, Intent::Probe).await,
        Ok(Renewal::Kept { .. })
    ));
    assert_eq!(lab.tair().command(&words), before);
    assert!(
        matches!(looks.attempt(&request(&key("job"), LONG)).await, Attempt::Busy(busy) if busy.holders.len() == 1)
    );
    assert_ne!(lab.tair().command(&words), before);
}

/// Otherwise the waiter would get another offer, and delay the others again.
async fn a_waiter_that_missed_its_offer_is_removed_by_the_next_holder(lab: &Lab) {
    for mode in [Mode::Shared, Mode::Permits(2), Mode::Exclusive] {
        let (mut a, mut c) = (lab.client().await, lab.client().await);
        let held = a.hold(&key("job")).await;
        lab.client()
            .await
            .refused(&Request {
                fair: true,
                ..waiting(&key("job"), LONG)
            })
            .await;
        a.free(&held).await;
        let next = Request {
            mode,
            ..request(&key("job"), LONG)
        };
        assert!(c.refused(&next).await.transient);
        lab.pass(Duration::from_millis(1050)).await;
        c.take(&next).await;
        assert!(c.inspect(&key("job")).await.waiters.is_empty());
        c.free(&next).await;
        a.hold(&key("job")).await;
        lab.lose_data().await;
    }
}

/// The current holds, and all fences so far.
#[derive(Default)]
struct Inside {
    holds: Vec<(Mode, Option<u32>, Fence)>,
    fences: Vec<Fence>,
}

impl Inside {
    fn check(&self) {
        for (at, (mode, permit, _)) in self.holds.iter().enumerate() {
            for (other, taken, _) in &self.holds[..at] {
                let together = match (mode, other) {
                    (Mode::Shared, Mode::Shared) => true,
                    (Mode::Permits(_), Mode::Permits(_)) => permit != taken,
                    _ => false,
                };
                assert!(together, "{:?}", self.holds);
            }
        }
    }
}

async fn hold_and_release(
    mut client: Client,
    kinds: Vec<(Mode, bool)>,
    inside: Rc<RefCell<Inside>>,
) {
    let limits = Limits::of(Duration::from_secs(5));
    for (mode, fair) in kinds {
        let wanted = Request {
            mode,
            fair,
            ..waiting(&key("job"), LONG)
        };
        let never = std::future::pending::<()>();
        let outcome = lease::acquire(
            &mut *client.0,
            &BootClock,
            wanted,
            WaitPolicy::For(LONG),
            limits,
            never,
            |_| {},
        )
        .await;
        let Ok(Outcome::Granted(lease)) = outcome else {
            panic!("{mode:?} {fair}: {outcome:?}")
        };
        {
            let mut inside = inside.borrow_mut();
            inside.holds.push((mode, lease.permit, lease.fence));
            inside.fences.push(lease.fence);
            inside.check();
        }
        tokio::time::sleep(Duration::from_millis(dlock::lock::random() % 8)).await;
        assert!(matches!(
            client.0.renew(&lease.key, &lease.token, None.into()).await,
            Ok(Renewal::Renewed { .. })
        ));
        inside
            .borrow_mut()
            .holds
            .retain(|(_, _, fence)| *fence != lease.fence);
        let released = lease::release(
            &mut *client.0,
            &BootClock,
            &lease.key,
            &lease.token,
            &Scope::Tree.into(),
            limits,
        )
        .await;
        assert!(matches!(released, Released::Free), "{released:?}");
    }
}

async fn all_kinds_at_once_get_the_lock(lab: &Lab) {
    const CLIENTS: usize = 12;
    let kinds = [
        Mode::Shared,
        Mode::Permits(2),
        Mode::Exclusive,
        Mode::Shared,
    ];
    let inside = Rc::new(RefCell::new(Inside::default()));
    LocalSet::new()
        .run_until(async {
            let mut all = Vec::new();
            for n in 0..CLIENTS {
                let requests = (0..4)
                    .map(|nth| (kinds[(n + nth) % kinds.len()], (n / 4 + nth) % 2 == 0))
                    .collect();
                all.push(spawn_local(hold_and_release(
                    lab.client().await,
                    requests,
                    Rc::clone(&inside),
                )));
            }
            for one in all {
                one.await.expect("all grants");
            }
        })
        .await;
    let mut fences = std::mem::take(&mut inside.borrow_mut().fences);
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), CLIENTS * 4, "a fence twice");
    let state = lab.client().await.inspect(&key("job")).await;
    assert!(
        state.holders.is_empty() && state.waiters.is_empty(),
        "{state:?}"
    );
    let past = history(&mut lab.client().await, &key("job")).await.past;
    assert!(
        past.len() == CLIENTS * 4 && past.iter().all(|past| past.end == End::Released),
        "{past:?}"
    );
}
