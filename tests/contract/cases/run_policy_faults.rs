//! Starts that may or may not be recorded after a lost answer, and waiters that a run policy denies
//! a free lock.

use std::time::Duration;

use dlock::{
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{
        Amendment, Attempt, Denial, Progress, Release, ReleaseInfo, Request, Rule, RunPolicy,
        RunState, Scope, Wake,
    },
};

use super::{
    Case, cases,
    run_policy::{BRIEF, WINDOW, asking, guarded, kept, once},
};
use crate::{
    lab::{Client, LONG, Lab, SLACK, key, nested, request, short, stretched, ttl, waiting},
    support::proxy::{Fault, Mode, Proxy},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![Kind::has_server =>
        a_start_whose_answer_was_lost_is_one_start,
        a_start_given_up_on_is_undone,
        a_start_that_arrives_late_repeats_no_run,
    ];
    all.extend(cases![|kind| kind.has_server() || kind.is_sql() => no_run_is_denied_by_its_own_lost_attempt]);
    let redis = |kind| {
        matches!(
            kind,
            Kind::Redis | Kind::Sentinel | Kind::Cluster | Kind::Redlock
        )
    };
    all.extend(cases![redis => a_run_repeated_after_its_lease_is_not_denied_by_itself]);
    all.extend(cases![Kind::crosses_processes => an_entry_does_not_change_the_outer_runs_record]);
    all.extend(cases![Kind::keeps_positions => a_waiter_delayed_by_at_least_stays_first]);
    all.extend(
        cases![|kind| kind == Kind::Etcd => recording_a_start_adds_at_most_one_round_trip, starts_end_with_their_leases_and_leave_no_lease,
            a_start_that_arrives_while_it_is_given_up_on_is_undone],
    );
    all.extend(
        cases![|kind| kind == Kind::ZooKeeper => a_start_is_kept_as_long_as_a_run_policy_needs_it],
    );
    all
}

const LIMITS: Limits<'static> = Limits::of(Duration::from_secs(2));

fn everything(place: &str, retry_failed: u32) -> RunPolicy {
    RunPolicy {
        place: place.into(),
        skew_guard: Some(WINDOW),
        at_least: Some(WINDOW),
        ..once(WINDOW, retry_failed, false)
    }
}

/// Returns text that identifies each request of an acquire, in order.
fn marks(kind: Kind, lab: &Lab) -> Vec<&'static str> {
    let mut marks = vec![lab.kind.marks().taking];
    if kind == Kind::Etcd {
        // etcd records the start, on its own lease, before the request that grants.
        marks.push("/once");
    }
    if matches!(kind, Kind::Tair | Kind::TairVersion) {
        // The claim comes before the request that grants and records the start.
        marks.push("INCRBY");
    }
    marks
}

/// Returns a client behind a proxy. The client has run every script once.
async fn warm(lab: &Lab) -> (Proxy, Client) {
    let proxy = Proxy::to(lab.store().port());
    let mut client = lab.through(proxy.port);
    let held = asking("warm", &everything("a", 0));
    client.run(&held, RunState::Cancelled).await;
    client.inspect(&key("warm")).await;
    (proxy, client)
}

async fn a_start_whose_answer_was_lost_is_one_start(lab: &Lab) {
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Swallow] {
        for (nth, mark) in marks(lab.kind, lab).into_iter().enumerate() {
            let (proxy, mut a) = warm(lab).await;
            let asked = asking(&format!("job-{fault:?}-{nth}"), &everything("a", 1));
            proxy.trap(mark, fault);
            let taken = lease::acquire(
                &mut *a.0,
                &BootClock,
                asked.clone(),
                WaitPolicy::Try,
                LIMITS,
                std::future::pending::<()>(),
                |_| {},
            )
            .await;
            let Ok(Outcome::Granted(taken)) = taken else {
                panic!("{fault:?} {mark}: {taken:?}")
            };
            assert_eq!(proxy.sprung(), 1);
            a.end_run(&asked, RunState::Failed).await;
            let record = lab.client().await.record(&asked.key).await;
            let recorded = record
                .start
                .as_ref()
                .map(|start| (start.fence, start.tries, start.state));
            assert_eq!(
                recorded,
                Some((taken.fence, 1, RunState::Failed)),
                "{fault:?} {mark}"
            );
            assert_eq!(
                record.cooldown.map(|cooldown| cooldown.fence),
                Some(taken.fence),
                "{fault:?} {mark}"
            );
        }
    }
}

/// A client is frozen between two steps of its acquire, or the network is slow, until its claim or
/// session is over. Meanwhile another run of the key begins and ends.
async fn a_start_that_arrives_late_repeats_no_run(lab: &Lab) {
    let limits = Limits::of(LONG);
    for (nth, mark) in marks(lab.kind, lab).into_iter().enumerate() {
        let (proxy, mut a) = warm(lab).await;
        let asked = |lasts| Request {
            ttl: lasts,
            ..asking(&format!("job-{nth}"), &once(WINDOW, 0, false))
        };
        let (late, other) = (asked(ttl(short())), asked(ttl(LONG)));
        proxy.trap(mark, Fault::Late(short() + lab.kind.late() + SLACK * 4));
        let attempt = lease::acquire(
            &mut *a.0,
            &BootClock,
            late.clone(),
            WaitPolicy::Try,
            limits,
            std::future::pending::<()>(),
            |_| {},
        );
        let meanwhile = async {
            while proxy.sprung() == 0 {
                lab.pass(Duration::from_millis(5)).await;
            }
            let mut b = lab.client().await;
            let taken = lease::acquire(
                &mut *b.0,
                &BootClock,
                other.clone(),
                WaitPolicy::Forever,
                limits,
                std::future::pending::<()>(),
                |_| {},
            )
            .await;
            let Ok(Outcome::Granted(taken)) = taken else {
                panic!("{mark}: {taken:?}")
            };
            b.end_run(&other, RunState::Ok).await;
            (taken.fence, proxy.sprung())
        };
        let (outcome, (fence, sprung)) = tokio::join!(attempt, meanwhile);
        assert_eq!(sprung, 1, "{mark}");
        assert!(
            !matches!(outcome, Ok(Outcome::Granted(_))),
            "{mark}: a second run: {outcome:?}"
        );
        let mut third = lab.client().await;
        let record = third.record(&other.key).await;
        let start = record.start.map(|start| (start.fence, start.state));
        assert_eq!(start, Some((fence, RunState::Ok)), "{mark}");
        let next = third.take(&request(&other.key, LONG)).await.fence;
        assert!(
            next > fence && next.0 / fence.0 < 2,
            "{mark}: {fence} {next}"
        );
    }
}

async fn a_start_given_up_on_is_undone(lab: &Lab) {
    for fault in [Fault::CutAfter, Fault::Swallow] {
        for (nth, mark) in marks(lab.kind, lab).into_iter().enumerate() {
            let (proxy, mut a) = warm(lab).await;
            let asked = asking(&format!("job-{fault:?}-{nth}"), &everything("a", 0));
            proxy.trap(mark, fault);
            let stop = async {
                while proxy.sprung() == 0 {
                    lab.pass(Duration::from_millis(5)).await;
                }
            };
            let outcome = lease::acquire(
                &mut *a.0,
                &BootClock,
                asked.clone(),
                WaitPolicy::Try,
                LIMITS,
                stop,
                |_| {},
            )
            .await;
            assert!(matches!(outcome, Ok(Outcome::Stopped(()))), "{outcome:?}");
            let mut b = lab.client().await;
            b.run(
                &asking(asked.key.as_str(), &everything("b", 0)),
                RunState::Ok,
            )
            .await;
        }
    }
}

/// The grant is applied between the look that finds nothing to undo and the step that prevents a
/// late grant.
async fn a_start_that_arrives_while_it_is_given_up_on_is_undone(lab: &Lab) {
    let (proxy, mut a) = warm(lab).await;
    let asked = asking("job", &everything("a", 0));
    proxy.trap("/once", Fault::CutBefore);
    a.0.try_acquire(&asked)
        .await
        .expect_err("the request was lost");
    // The request after the look.
    proxy.trap_nth(
        "job",
        1,
        1,
        Fault::Late(stretched(Duration::from_millis(300))),
    );
    // Another client sends the late request, since it has the same token.
    let mut late = lab.client().await;
    let (undone, _) = tokio::join!(
        a.0.release(&asked.key, &asked.token, &ReleaseInfo::UNDO),
        async {
            while proxy.sprung() < 2 {
                lab.pass(Duration::from_millis(5)).await;
            }
            late.take(&asked).await
        }
    );
    undone.expect("undone");
    let mut b = lab.client().await;
    b.run(&asking("job", &everything("b", 0)), RunState::Ok)
        .await;
}

/// Whichever answer is lost, the attempt ends with its lease while the store is unreachable.
async fn no_run_is_denied_by_its_own_lost_attempt(lab: &Lab) {
    for nth in 0.. {
        let (mut proxy, mut a) = warm(lab).await;
        let asked = Request {
            ttl: ttl(short()),
            ..asking(&format!("job-{nth}"), &everything("a", 0))
        };
        proxy.trap_nth("", nth, 1, Fault::Swallow);
        let outage = async {
            while proxy.sprung() == 0 {
                lab.pass(Duration::from_millis(5)).await;
            }
            lab.pass(Duration::from_millis(100)).await;
            proxy.set(Mode::Refuse);
            lab.outlast(short() * 2).await;
            proxy.set(Mode::Pass);
            std::future::pending::<()>().await;
        };
        let outcome = lease::acquire(
            &mut *a.0,
            &BootClock,
            asked.clone(),
            WaitPolicy::For(LONG),
            LIMITS,
            outage,
            |_| {},
        )
        .await;
        let Ok(Outcome::Granted(taken)) = outcome else {
            panic!("answer {nth}: {outcome:?}")
        };
        if proxy.sprung() == 0 {
            assert!(nth > 0, "no answer was lost");
            break;
        }
        let start = lab
            .client()
            .await
            .record(&asked.key)
            .await
            .start
            .expect("a start");
        assert_eq!(
            (start.fence, start.tries, start.state),
            (taken.fence, 1, RunState::Started),
            "answer {nth}"
        );
        // The lost answer may be one that the client did not wait for, which leaves the connection
        // without answers.
        lease::release(
            &mut *a.0,
            &BootClock,
            &asked.key,
            &asked.token,
            &Scope::Tree.into(),
            LIMITS,
        )
        .await;
    }
}

/// Stands for a lost answer to the first attempt, on stores with several servers.
async fn a_run_repeated_after_its_lease_is_not_denied_by_itself(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let asked = Request {
        ttl: ttl(short()),
        ..asking("job", &everything("a", 1))
    };
    let first = a.take(&asked).await.fence;
    lab.outlast(short()).await;
    b.denied(&asking("job", &everything("b", 1))).await;
    let second = a.take(&asked).await.fence;
    assert!(second > first);
    let start = b.record(&asked.key).await.start.expect("a start");
    assert_eq!(
        (start.fence, start.tries, start.state),
        (second, 1, RunState::Started)
    );
    a.end_run(&asked, RunState::Failed).await;
    b.denied(&asking("job", &everything("b", 1))).await;
}

async fn an_entry_does_not_change_the_outer_runs_record(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let outer = asking("job", &everything("a", 0));
    let grant = a.take(&outer).await;
    for nth in 0..8 {
        // The acquire is stopped after a varying time, so its outcome varies.
        let stop = lab.pass(Duration::from_micros(250 * nth));
        let inner = nested(&outer);
        let outcome = lease::acquire(
            &mut *b.0,
            &BootClock,
            inner.clone(),
            WaitPolicy::Try,
            LIMITS,
            stop,
            |_| {},
        )
        .await
        .expect("an answer");
        if let Outcome::Granted(_) = outcome {
            assert_eq!(b.release(&inner, Scope::Hold).await, Release::StillHeld(1));
        }
    }
    let start = b.record(&key("job")).await.start.expect("a start");
    assert_eq!((start.fence, start.state), (grant.fence, RunState::Started));
    a.end_run(&outer, RunState::Ok).await;
    assert_eq!(
        b.denied(&asking("job", &once(WINDOW, 9, true))).await.rule,
        Rule::AtLeast(WINDOW)
    );
}

fn refused(attempt: Attempt) -> Denial {
    match attempt {
        Attempt::Denied(refusal) => *refusal,
        other => panic!("{other:?}"),
    }
}

async fn a_waiter_delayed_by_at_least_stays_first(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let began = tokio::time::Instant::now();
    let grant = a.run(&asking("job", &kept(BRIEF * 2)), RunState::Ok).await;
    let (first, second) = (waiting(&key("job"), LONG), waiting(&key("job"), LONG));
    let refusal = refused(b.attempt(&first).await);
    assert_eq!(
        (refusal.rule, refusal.fence),
        (Rule::AtLeast(BRIEF * 2), Some(grant.fence))
    );
    assert!(
        refusal
            .again_in
            .is_some_and(|again| !again.is_zero() && again <= BRIEF * 2),
        "{refusal:?}"
    );
    let busy = c.refused(&second).await;
    assert!(
        busy.holders.is_empty() && busy.position == Some(2),
        "{busy:?}"
    );
    // The lock has no holder, and tries get the reason.
    assert_eq!(
        refused(a.attempt(&request(&key("job"), LONG)).await).rule,
        Rule::AtLeast(BRIEF * 2)
    );
    assert_eq!(
        refused(a.attempt(&asking("job", &guarded("a", BRIEF))).await).rule,
        Rule::AtLeast(BRIEF * 2)
    );
    let state = a.inspect(&key("job")).await;
    assert!(
        state.holders.is_empty() && state.waiters.len() == 2,
        "{state:?}"
    );
    assert!(
        busy.expires_in
            .is_none_or(|soon| soon >= Duration::from_secs(1)),
        "the waiter would poll too often"
    );
    assert_eq!(
        c.wait(&second, Duration::from_millis(300)).await,
        Wake::TimedOut
    );
    assert!(
        began.elapsed() < BRIEF * 2,
        "the machine was too slow for this case"
    );
    // Repeated requests keep the waiter's position alive.
    let (until, late) = (began + BRIEF * 2, lab.kind.late() + short());
    loop {
        match b.attempt(&first).await {
            Attempt::Granted(_) => break,
            other => drop(refused(other)),
        }
        assert!(
            began.elapsed() < BRIEF * 2 + late + short(),
            "at-least is over"
        );
        lab.pass(Duration::from_millis(200)).await;
    }
    assert!(
        until.elapsed() > Duration::ZERO || began.elapsed() + Duration::from_millis(50) > BRIEF * 2,
        "{:?}",
        began.elapsed()
    );
    c.refused(&second).await;
    b.free(&first).await;
    c.wait_for(&second, LONG).await;
}

/// Each part of a start has its own lease, which is granted at the same time as the lock's lease.
async fn recording_a_start_adds_at_most_one_round_trip(lab: &Lab) {
    const WAY: Duration = Duration::from_millis(80);
    let (proxy, mut a) = warm(lab).await;
    proxy.delay(WAY);
    let all = RunPolicy {
        at_least: Some(BRIEF),
        ..everything("a", 0)
    };
    let mut tries = Vec::new();
    // On a busy machine an answer may arrive late, so the fastest of several tries counts.
    for nth in 0..5 {
        let named = |name: &str| format!("{name}-{nth}");
        let guarded = asking(&named("job"), &guarded("a", WINDOW));
        // The last request overwrites the start of the one before.
        let again = asking(
            &named("job"),
            guarded.run_policy.as_ref().expect("run_policy"),
        );
        let mut took = Vec::new();
        for asked in [
            request(&key(&named("plain")), LONG),
            asking(&named("first"), &all),
            guarded,
            again,
        ] {
            let began = tokio::time::Instant::now();
            a.take(&asked).await;
            took.push(began.elapsed());
            a.end_run(&asked, RunState::Ok).await;
        }
        // `more` is one more round trip. A plain acquire takes two; only overwriting a start takes
        // a third.
        let (plain, more) = (took[0], WAY * 2);
        if took[1] < plain + more && took[2] < plain + more && took[3] < plain * 2 {
            return;
        }
        tries.push(took);
    }
    panic!("{tries:?}");
}

async fn starts_end_with_their_leases_and_leave_no_lease(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let folder = format!("{}.meta/%last/job/", lab.namespace("dlock"));
    let leases = |name: &str| -> i64 {
        let json = lab
            .etcd()
            .ctl(&["get", &format!("{folder}{name}"), "-w", "json"]);
        serde_json::from_str::<serde_json::Value>(&json).expect("JSON")["kvs"][0]["lease"]
            .as_i64()
            .expect("a lease")
    };
    let short = RunPolicy {
        skew_guard: Some(short()),
        at_least: None,
        ..once(BRIEF, 9, false)
    };
    a.run(&asking("job", &short), RunState::Failed).await;
    assert_eq!(
        lab.etcd().keys(&folder),
        [format!("{folder}guard"), format!("{folder}once")]
    );
    let first = leases("once");
    a.run(&asking("job", &short), RunState::Failed).await;
    assert_ne!(leases("once"), first);
    assert!(
        !lab.etcd().leases().contains(&format!("{first:016x}")),
        "the lease of the previous try has ended"
    );
    lab.pass(BRIEF + lab.kind.late() * 2).await;
    assert_eq!(lab.etcd().keys(&folder), [""; 0]);
    // A denied run leaves no lease; the length of its leases is unique.
    let long = |place: &str| {
        RunPolicy {
            skew_guard: Some(WINDOW),
            at_least: None,
            ..once(WINDOW, 0, false)
        }
        .at(place)
    };
    a.run(&asking("job", &long("a")), RunState::Ok).await;
    let odd = Duration::from_secs(4711);
    let other = RunPolicy {
        skew_guard: Some(odd),
        ..once(odd, 0, false)
    }
    .at("b");
    b.denied(&asking("job", &other)).await;
    let held = a.hold(&key("other")).await;
    b.refused(&asking("other", &other)).await;
    let left = lab.etcd().leases();
    let lengths: Vec<_> = left
        .iter()
        .map(|lease| lab.etcd().ctl(&["lease", "timetolive", lease]))
        .collect();
    assert!(
        lengths
            .iter()
            .all(|said| !said.contains("granted with TTL(4711s)")),
        "{lengths:?}"
    );
    a.free(&held).await;
}

trait At {
    fn at(self, place: &str) -> Self;
}

impl At for RunPolicy {
    fn at(self, place: &str) -> Self {
        Self {
            place: place.into(),
            ..self
        }
    }
}

async fn a_start_is_kept_as_long_as_a_run_policy_needs_it(lab: &Lab) {
    let mut a = lab.client().await;
    let fence = a
        .run(&asking("long", &once(WINDOW, 0, false)), RunState::Ok)
        .await
        .fence;
    a.run(
        &asking(
            "brief",
            &RunPolicy {
                skew_guard: Some(short()),
                ..once(short(), 0, false)
            },
        ),
        RunState::Ok,
    )
    .await;
    let held = asking("held", &once(short(), 0, false));
    let own = a.take(&held).await.fence;
    assert!(
        a.0.amend(&key("held"), Amendment::Warn(own, 1))
            .await
            .expect("claim")
    );
    assert!(
        !a.0.amend(&key("brief"), Amendment::Warn(own, 1))
            .await
            .expect("claim"),
        "the fence is of another lock"
    );
    lab.pass(short() + Duration::from_millis(200)).await;
    assert_eq!(
        a.0.collect(short(), &Progress::default())
            .await
            .expect("gc"),
        Some(1),
        "one lock: the record of its start, and its history"
    );
    assert_eq!(
        a.record(&key("brief")).await,
        dlock::lock::RunRecord::default()
    );
    assert!(a.record(&key("held")).await.start.is_some());
    let refusal = a.denied(&asking("long", &once(WINDOW, 9, true))).await;
    assert_eq!(
        (refusal.rule, refusal.fence),
        (Rule::Once(RunState::Ok), Some(fence))
    );
    assert_eq!(
        a.0.release(&held.key, &held.token, &Scope::Tree.into())
            .await
            .expect("release"),
        Release::Released
    );
    a.run(
        &Request {
            waiting: true,
            ..asking("brief", &once(short(), 0, false))
        },
        RunState::Ok,
    )
    .await;
}
