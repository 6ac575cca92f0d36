//! A server behind a network that loses answers: a request with an unknown outcome is repeated or
//! undone, never assumed.

use std::{
    future::pending,
    time::{Duration, Instant},
};

use dlock::{
    lease::{self, BootClock, Clock as _, Limits, Outcome, Released, WaitPolicy},
    lock::{Amendment, Effect, Fence, Key, Mode as LockMode, Release, Renewal, Request, Scope},
};

use super::{Case, cases, history::broken};
use crate::{
    lab::{
        Client, LONG, Lab, SLACK, key, nested, overtaking_delay, request, short, soon, stretched,
        waiting,
    },
    support::proxy::{Fault, Mode, Proxy},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![Kind::has_server =>
        acquire_whose_answer_was_lost_is_granted_once,
        acquire_whose_answers_are_all_lost_is_undone,
        acquire_that_arrives_after_its_release_is_not_granted,
        acquire_that_was_repeated_and_arrives_after_the_release_is_not_granted,
        acquire_given_up_on_is_undone_by_the_core,
        renewal_whose_answer_was_lost_is_repeated,
        renewal_without_any_answer_is_a_loss_before_the_lease_ends,
        release_whose_answer_was_lost_is_unknown_and_done,
        release_that_never_arrived_is_repeated,
        wake_up_that_was_lost_is_covered_by_polling,
        a_waiter_behind_a_cut_connection_gets_the_lock,
        a_waiter_whose_end_arrives_late_keeps_no_wake_up,
        waiting_outlives_an_outage,
        a_frozen_server_gives_no_answer,
        a_slow_network_changes_nothing,
    ];
    // On other stores a hold lasts as long as its process sends requests.
    all.extend(
        cases![|kind| kind.has_server() && !kind.lasts_with_its_process() =>
            renewal_that_arrives_late_does_not_revive,
            nested_acquire_that_arrives_after_its_release_enters_nothing,
            release_that_arrives_late_leaves_the_newer_holder,
            a_waiters_grant_that_is_repeated_keeps_a_break_mark,
            a_waiters_grant_that_arrives_late_keeps_a_break_mark,
        ],
    );
    all.extend(cases![|kind| kind == Kind::Redis => a_restarted_server_gets_the_scripts_in_full]);
    all
}

/// Short enough for a case, with time for a lost answer and a second one.
const LIMITS: Limits<'static> = Limits::of(Duration::from_secs(2));

/// Returns a client behind a proxy. The client has run every script once, so its next request is
/// the tested one.
async fn warm(lab: &Lab) -> (Proxy, Client) {
    let proxy = Proxy::to(lab.store().port());
    let mut client = lab.through(proxy.port);
    let held = waiting(&key("warm"), LONG);
    client.take(&held).await;
    client.renewed(&held, None).await;
    client.leave_queue(&held).await;
    client.free(&held).await;
    client.inspect(&key("warm")).await;
    (proxy, client)
}

/// The ways to lose the answer to a request that the server served.
const LOST: [Fault; 2] = [Fault::CutAfter, Fault::Swallow];

async fn core_acquire(
    client: &mut Client,
    request: Request,
    wait_policy: WaitPolicy,
) -> dlock::lock::Result<Outcome<()>> {
    lease::acquire(
        &mut *client.0,
        &BootClock,
        request,
        wait_policy,
        LIMITS,
        pending::<()>(),
        |_| {},
    )
    .await
}

async fn assert_free(lab: &Lab, job: &Key) {
    let state = lab.client().await.inspect(job).await;
    assert!(
        state.holders.is_empty() && state.waiters.is_empty(),
        "{state:?}"
    );
}

async fn acquire_whose_answer_was_lost_is_granted_once(lab: &Lab) {
    for fault in LOST {
        let (proxy, mut a) = warm(lab).await;
        let job = key(&format!("job-{fault:?}"));
        proxy.trap(lab.kind.marks().taking, fault);
        // The client opens a second session meanwhile, which takes time on a busy machine.
        let asked = lease::acquire(
            &mut *a.0,
            &BootClock,
            request(&job, LONG),
            WaitPolicy::Try,
            Limits::DEFAULT,
            pending::<()>(),
            |_| {},
        );
        let Outcome::Granted(lease) = asked.await.expect("granted") else {
            panic!("busy: our own unanswered attempt was reported as another client's");
        };
        assert_eq!(proxy.sprung(), 1);
        assert_eq!(lease.holds, 1);
        let state = lab.client().await.inspect(&job).await;
        assert_eq!(
            (state.holders[0].holds, state.last_fence),
            (1, Some(lease.fence))
        );
        assert_eq!(
            a.0.release(&job, &lease.token, &Scope::Hold.into())
                .await
                .expect("release"),
            Release::Released
        );
        assert_free(lab, &job).await;
    }
}

async fn acquire_whose_answers_are_all_lost_is_undone(lab: &Lab) {
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Swallow] {
        let (proxy, mut a) = warm(lab).await;
        let job = key(&format!("job-{fault:?}"));
        // The undo has to get through.
        proxy.trap_nth(lab.kind.marks().acquire, 0, usize::MAX, fault);
        let error = core_acquire(&mut a, request(&job, LONG), WaitPolicy::Try)
            .await
            .expect_err("no answer");
        assert!(error.is_transient(), "{error:?}");
        assert!(proxy.sprung() > 0);
        assert_free(lab, &job).await;
    }
}

/// Returns requests of each kind that the store has.
fn of_each_kind(lab: &Lab, job: &str) -> Vec<Request> {
    let kind = lab.kind;
    let modes = [
        (LockMode::Exclusive, true),
        (LockMode::Shared, kind.shared()),
        (LockMode::Permits(1), kind.permits()),
    ];
    let mut all = Vec::new();
    for mode in modes
        .into_iter()
        .filter_map(|(mode, has)| has.then_some(mode))
    {
        for (waiting, fair) in [(false, false), (true, false), (true, true)]
            .into_iter()
            .filter(|(_, fair)| !fair || kind.fair())
        {
            let job = key(&format!("{job}-{mode:?}-{waiting}-{fair}"));
            all.push(Request {
                mode,
                waiting,
                fair,
                ..request(&job, LONG)
            });
        }
    }
    all
}

/// Sends a request that a proxy delivers late, even though the client has given it up.
async fn late(lab: &Lab, proxy: &Proxy, client: &mut Client, wanted: &Request) {
    proxy.trap(lab.kind.marks().taking, Fault::Late(overtaking_delay()));
    let given_up = tokio::time::timeout(overtaking_delay() / 4, client.0.try_acquire(wanted)).await;
    assert!(given_up.is_err(), "{given_up:?}");
}

async fn acquire_that_arrives_after_its_release_is_not_granted(lab: &Lab) {
    lab.until_sessions_can_be_ended().await;
    for wanted in of_each_kind(lab, "job") {
        let (proxy, mut a) = warm(lab).await;
        late(lab, &proxy, &mut a, &wanted).await;
        assert_eq!(
            a.release(&wanted, Scope::Hold).await,
            Release::NotHeld,
            "the attempt has not arrived yet"
        );
        a.leave_queue(&wanted).await;
        lab.pass(overtaking_delay() + SLACK + lab.late_claim())
            .await;
        assert_free(lab, &wanted.key).await;
        lab.client().await.hold(&wanted.key).await;
    }
}

/// The hold may be released by another process, or broken.
async fn acquire_that_was_repeated_and_arrives_after_the_release_is_not_granted(lab: &Lab) {
    lab.until_sessions_can_be_ended().await;
    for (at, wanted) in of_each_kind(lab, "job").into_iter().enumerate() {
        let (proxy, mut a) = warm(lab).await;
        late(lab, &proxy, &mut a, &wanted).await;
        let fence = a.take(&wanted).await.fence;
        let mut other = lab.client().await;
        match at % 3 {
            0 => a.free(&wanted).await,
            1 if !lab.kind.lasts_with_its_process() => other.free(&wanted).await,
            _ => assert!(
                other
                    .0
                    .amend(&wanted.key, Amendment::Evict(fence, &broken("NFS")))
                    .await
                    .expect("break")
            ),
        }
        lab.pass(overtaking_delay() + SLACK + lab.late_claim())
            .await;
        assert_free(lab, &wanted.key).await;
        other.hold(&wanted.key).await;
    }
}

async fn nested_acquire_that_arrives_after_its_release_enters_nothing(lab: &Lab) {
    lab.until_sessions_can_be_ended().await;
    for repeated in [false, true] {
        let (mut other, (proxy, mut a)) = (lab.client().await, warm(lab).await);
        let outer = other.hold(&key(&format!("job-{repeated}"))).await;
        let inner = nested(&outer);
        late(lab, &proxy, &mut a, &inner).await;
        if repeated {
            a.take(&inner).await;
        }
        let released = a.release(&inner, Scope::Hold).await;
        assert!(
            released == Release::StillHeld(1) || !repeated && released == Release::NotHeld,
            "{released:?}"
        );
        lab.pass(overtaking_delay() + SLACK).await;
        other.free(&outer).await;
    }
}

async fn acquire_given_up_on_is_undone_by_the_core(lab: &Lab) {
    let (proxy, mut a) = warm(lab).await;
    let job = key("job");
    proxy.trap(lab.kind.marks().taking, Fault::Swallow);
    let stop = async {
        while proxy.sprung() == 0 {
            lab.pass(Duration::from_millis(5)).await;
        }
        lab.pass(Duration::from_millis(50)).await;
    };
    let outcome = lease::acquire(
        &mut *a.0,
        &BootClock,
        request(&job, LONG),
        WaitPolicy::Forever,
        LIMITS,
        stop,
        |_| {},
    )
    .await;
    assert!(matches!(outcome, Ok(Outcome::Stopped(()))), "{outcome:?}");
    assert_eq!(proxy.sprung(), 1);
    assert_free(lab, &job).await;
}

async fn renewal_whose_answer_was_lost_is_repeated(lab: &Lab) {
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Swallow] {
        let (proxy, mut a) = warm(lab).await;
        let job = key(&format!("job-{fault:?}"));
        let held = a.hold(&job).await;
        proxy.trap(lab.kind.marks().changing, fault);
        let renewal = lease::ask(
            &mut *a.0,
            &BootClock,
            LIMITS,
            ("ask", None),
            async |backend: &mut dyn dlock::lock::Backend| {
                backend.renew(&held.key, &held.token, None.into()).await
            },
        );
        let renewal = renewal.await;
        assert!(
            matches!(renewal, Ok(Renewal::Renewed { .. })),
            "{fault:?}: {renewal:?}"
        );
        assert_eq!(proxy.sprung(), 1);
        a.free(&held).await;
    }
}

async fn renewal_without_any_answer_is_a_loss_before_the_lease_ends(lab: &Lab) {
    let (mut proxy, mut a) = warm(lab).await;
    let job = key("job");
    let Outcome::Granted(mut held) =
        core_acquire(&mut a, request(&job, short() * 2), WaitPolicy::Try)
            .await
            .expect("granted")
    else {
        panic!("busy");
    };
    let budget = lease::Budget::new(held.ttl, None, dlock::lock::Pace::USUAL).expect("a budget");
    let mut renewals = 0;
    let t0 = held.t0;
    proxy.set(Mode::BlackHole);
    let loss = lease::keep(
        &mut *a.0,
        &BootClock,
        &mut held,
        budget,
        LIMITS,
        dlock::lock::Intent::Extend(None),
        |_, _| renewals += 1,
    )
    .await;
    assert!(matches!(loss, lease::Loss::Unconfirmed { .. }), "{loss:?}");
    assert_eq!(
        (renewals, held.t0),
        (0, t0),
        "a lost answer counted as a renewal"
    );
    let spent = BootClock.now().since(t0);
    assert!(
        spent < short() * 2,
        "noticed only after the lease, {spent:?}"
    );
    assert!(
        spent + Duration::from_millis(10) >= budget.term_at(t0).since(t0),
        "gave up too early, after {spent:?}"
    );
}

async fn renewal_that_arrives_late_does_not_revive(lab: &Lab) {
    let over = short() + SLACK + lab.kind.late();
    let (proxy, mut a) = warm(lab).await;
    let job = key("job");
    let held = request(&job, short());
    a.take(&held).await;
    let longer = lab.other_ttl(LONG).await.map(crate::lab::ttl);
    proxy.trap(lab.kind.marks().changing, Fault::Late(over + SLACK * 2));
    let unanswered =
        tokio::time::timeout(over, a.0.renew(&held.key, &held.token, longer.into())).await;
    assert!(unanswered.is_err(), "{unanswered:?}");
    let mut b = lab.client().await;
    let newer = request(&job, short() * 3);
    let fence = b.take(&newer).await.fence;
    lab.pass(SLACK * 4).await;
    assert!(b.left(&job).await <= short() * 3);
    assert_eq!(b.renewed(&newer, None).await, fence);
}

async fn release_whose_answer_was_lost_is_unknown_and_done(lab: &Lab) {
    for fault in LOST {
        let (proxy, mut a) = warm(lab).await;
        let job = key(&format!("job-{fault:?}"));
        let held = a.hold(&job).await;
        proxy.trap(lab.kind.marks().changing, fault);
        let released = lease::release(
            &mut *a.0,
            &BootClock,
            &job,
            &held.token,
            &Scope::Tree.into(),
            LIMITS,
        )
        .await;
        // "Not held" would mean that the hold was lost while the command ran.
        assert!(
            matches!(&released, Released::Unknown(error) if error.effect == Effect::Unknown),
            "{released:?}"
        );
        assert_eq!(proxy.sprung(), 1);
        assert_free(lab, &job).await;
    }
}

async fn release_that_never_arrived_is_repeated(lab: &Lab) {
    let (proxy, mut a) = warm(lab).await;
    let job = key("job");
    let held = a.hold(&job).await;
    proxy.trap(lab.kind.marks().changing, Fault::CutBefore);
    let released = lease::release(
        &mut *a.0,
        &BootClock,
        &job,
        &held.token,
        &Scope::Tree.into(),
        LIMITS,
    )
    .await;
    assert!(matches!(released, Released::Free), "{released:?}");
    assert_eq!(proxy.sprung(), 1);
    assert_free(lab, &job).await;
}

async fn release_that_arrives_late_leaves_the_newer_holder(lab: &Lab) {
    let over = short() + SLACK + lab.kind.late();
    let (proxy, mut a) = warm(lab).await;
    let job = key("job");
    let held = request(&job, short());
    a.take(&held).await;
    proxy.trap(lab.kind.marks().changing, Fault::Late(over + SLACK * 2));
    let unanswered = tokio::time::timeout(
        over,
        a.0.release(&held.key, &held.token, &Scope::Tree.into()),
    )
    .await;
    assert!(unanswered.is_err(), "{unanswered:?}");
    let mut b = lab.client().await;
    let newer = b.hold(&job).await;
    lab.pass(SLACK * 4).await;
    lab.client().await.refused(&request(&job, LONG)).await;
    b.free(&newer).await;
}

async fn wake_up_that_was_lost_is_covered_by_polling(lab: &Lab) {
    let mut a = lab.client().await;
    let (proxy, mut b) = warm(lab).await;
    let job = key("job");
    let held = a.hold(&job).await;
    let wanted = waiting(&job, LONG);
    b.refused(&wanted).await;
    // The blocking request is served, and its answer is lost.
    proxy.trap("", Fault::Swallow);
    let release = async {
        lab.pass(SLACK).await;
        a.free(&held).await;
        Instant::now()
    };
    let acquire = lease::acquire(
        &mut *b.0,
        &BootClock,
        wanted,
        WaitPolicy::For(LONG),
        LIMITS,
        pending::<()>(),
        |_| {},
    );
    let (outcome, released) = tokio::join!(acquire, release);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    assert!(
        released.elapsed() < stretched(Duration::from_secs(9)),
        "{:?}",
        released.elapsed()
    );
}

async fn a_waiter_behind_a_cut_connection_gets_the_lock(lab: &Lab) {
    let mut a = lab.client().await;
    let (proxy, mut b) = warm(lab).await;
    let job = key("job");
    let held = a.hold(&job).await;
    let release = async {
        lab.pass(SLACK).await;
        proxy.cut();
        lab.pass(SLACK).await;
        a.free(&held).await;
        Instant::now()
    };
    let acquire = core_acquire(&mut b, waiting(&job, LONG), WaitPolicy::For(LONG));
    let (outcome, released) = tokio::join!(acquire, release);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
}

/// A waiter gives up and leaves. Nothing orders the end of its connection and a request over
/// another one.
async fn a_waiter_whose_end_arrives_late_keeps_no_wake_up(lab: &Lab) {
    // So long that a waiter that polls would fail the case.
    let never = Duration::from_secs(20);
    let (mut a, mut next) = (lab.client().await, lab.client().await);
    let (proxy, mut leaving) = warm(lab).await;
    let job = key("job");
    let held = a.hold(&job).await;
    let (unwanted, wanted) = (waiting(&job, LONG), waiting(&job, LONG));
    proxy.trap_nth("", 0, usize::MAX, Fault::LateEnd(overtaking_delay()));
    leaving.refused(&unwanted).await;
    next.refused(&wanted).await;
    let leave = async {
        // Where waiters poll, the wait may end earlier by itself.
        let _ = tokio::time::timeout(SLACK, leaving.wait(&unwanted, never)).await;
        leaving.leave_queue(&unwanted).await;
        a.free(&held).await;
        Instant::now()
    };
    let (_, released) = tokio::join!(next.wait_for(&wanted, never), leave);
    assert!(released.elapsed() < soon(), "{:?}", released.elapsed());
    assert!(proxy.sprung() > 0);
}

/// The answer to a waiter's grant is lost, and the hold has a break mark when the request is
/// repeated.
async fn a_waiters_grant_that_is_repeated_keeps_a_break_mark(lab: &Lab) {
    let mut lost = 0;
    // The grant is one of the first requests.
    for nth in 0..3 {
        let (proxy, mut b, wanted) = next_in_line(lab, &format!("job-{nth}")).await;
        proxy.trap_nth("", nth, 1, Fault::CutAfter);
        if matches!(
            tokio::time::timeout(LIMITS.answer, b.0.try_acquire(&wanted)).await,
            Ok(Ok(_))
        ) {
            break;
        }
        // The server may answer something else first.
        lab.pass(SLACK).await;
        let Some(fence) = lab
            .client()
            .await
            .inspect(&wanted.key)
            .await
            .holders
            .pop()
            .and_then(|holder| holder.fence)
        else {
            continue;
        };
        lost += 1;
        mark(lab, &wanted.key, fence).await;
        assert_eq!(b.wait_for(&wanted, SLACK).await.fence, fence);
        assert_eq!(
            b.renew(&wanted, None).await,
            Renewal::Broken(broken("NFS")),
            "{nth}"
        );
        b.free(&wanted).await;
    }
    assert!(lost > 0, "no answer to a grant was lost");
}

/// A waiter gives up on a request and repeats it. The first request is served when the hold has a
/// break mark.
async fn a_waiters_grant_that_arrives_late_keeps_a_break_mark(lab: &Lab) {
    let late = overtaking_delay();
    for nth in 0..3 {
        let (proxy, mut b, wanted) = next_in_line(lab, &format!("job-{nth}")).await;
        proxy.trap_nth("", nth, 1, Fault::Late(late));
        if tokio::time::timeout(Duration::from_millis(100), b.0.try_acquire(&wanted))
            .await
            .is_ok()
        {
            assert!(nth > 0, "no request was late");
            break;
        }
        let grant = b.wait_for(&wanted, SLACK).await;
        mark(lab, &wanted.key, grant.fence).await;
        lab.pass(late).await;
        assert_eq!(
            b.renew(&wanted, None).await,
            Renewal::Broken(broken("NFS")),
            "{nth}"
        );
        b.free(&wanted).await;
    }
}

/// Returns a waiter behind a proxy, and its request, for a lock that was just given back.
async fn next_in_line(lab: &Lab, job: &str) -> (Proxy, Client, Request) {
    let (mut a, (proxy, mut b)) = (lab.client().await, warm(lab).await);
    let held = a.hold(&key(job)).await;
    let wanted = waiting(&held.key, LONG);
    b.refused(&wanted).await;
    a.free(&held).await;
    (proxy, b, wanted)
}

async fn mark(lab: &Lab, job: &Key, fence: Fence) {
    assert!(
        lab.client()
            .await
            .0
            .amend(job, Amendment::Mark(fence, &broken("NFS")))
            .await
            .expect("mark")
    );
}

async fn waiting_outlives_an_outage(lab: &Lab) {
    let mut a = lab.client().await;
    let (mut proxy, mut b) = warm(lab).await;
    let job = key("job");
    let held = a.hold(&job).await;
    let outage = async {
        lab.pass(SLACK).await;
        proxy.set(Mode::Refuse);
        // Longer than one answer may take.
        lab.pass(LIMITS.answer + SLACK).await;
        a.free(&held).await;
        proxy.set(Mode::Pass);
        Instant::now()
    };
    let acquire = core_acquire(&mut b, waiting(&job, LONG), WaitPolicy::For(LONG));
    let (outcome, back) = tokio::join!(acquire, outage);
    assert!(matches!(outcome, Ok(Outcome::Granted(_))), "{outcome:?}");
    assert!(
        back.elapsed() < stretched(Duration::from_secs(3)),
        "{:?}",
        back.elapsed()
    );
}

async fn a_frozen_server_gives_no_answer(lab: &Lab) {
    lab.isolate();
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    lab.store().freeze();
    let began = Instant::now();
    let error = core_acquire(
        &mut lab.client().await,
        request(&key("other"), LONG),
        WaitPolicy::Try,
    )
    .await
    .expect_err("frozen");
    let renewal = tokio::time::timeout(
        Duration::from_millis(300),
        a.0.renew(&job, &held.token, None.into()),
    )
    .await;
    lab.store().thaw();
    assert!(
        error.is_transient() && error.effect == Effect::Unknown,
        "{error:?}"
    );
    assert!(
        began.elapsed() < LIMITS.answer * 2 + soon(),
        "{:?}",
        began.elapsed()
    );
    assert!(!matches!(renewal, Ok(Ok(_))), "{renewal:?}");
    a.renewed(&held, None).await;
}

async fn a_restarted_server_gets_the_scripts_in_full(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    for forget in [["SCRIPT", "FLUSH"], ["CLIENT", "KILL"]] {
        let held = a.hold(&job).await;
        if forget[0] == "SCRIPT" {
            lab.redis().command(&forget);
            a.renewed(&held, None).await;
            lab.redis().command(&forget);
            a.free(&held).await;
        } else {
            lab.redis().command(&["CLIENT", "KILL", "TYPE", "normal"]);
            let answer = lease::ask(
                &mut *a.0,
                &BootClock,
                LIMITS,
                ("ask", None),
                async |backend: &mut dyn dlock::lock::Backend| {
                    backend.renew(&held.key, &held.token, None.into()).await
                },
            );
            assert!(matches!(answer.await, Ok(Renewal::Renewed { .. })));
            a.free(&held).await;
        }
    }
    lab.redis().restart_empty();
    let Ok(Outcome::Granted(_)) = core_acquire(&mut a, request(&job, LONG), WaitPolicy::Try).await
    else {
        panic!("not granted after a restart");
    };
}

async fn a_slow_network_changes_nothing(lab: &Lab) {
    let (proxy, mut a) = warm(lab).await;
    proxy.delay(Duration::from_millis(40));
    let job = key("job");
    let before = BootClock.now();
    let Outcome::Granted(held) = core_acquire(&mut a, request(&job, short()), WaitPolicy::Try)
        .await
        .expect("granted")
    else {
        panic!("busy");
    };
    assert!(
        held.t0 >= before && BootClock.now().since(held.t0) >= Duration::from_millis(80),
        "the lease counts from the time of sending"
    );
    let Ok(Renewal::Renewed { .. }) = a.0.renew(&job, &held.token, None.into()).await else {
        panic!("not renewed")
    };
    assert_eq!(
        a.0.release(&job, &held.token, &Scope::Tree.into())
            .await
            .expect("release"),
        Release::Released
    );
}
