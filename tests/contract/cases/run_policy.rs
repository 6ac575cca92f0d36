//! The effect of a run on later runs: the skew guard, at-least, and at most one run per window.

use std::time::Duration;

use dlock::{
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{
        Amendment, Attempt, Denial, End, Fence, Grant, Key, Mode, Once, Progress, Release,
        ReleaseInfo, Request, Rule, RunPolicy, RunRecord, RunState, Scope, Which, random,
    },
};

use tokio::task::LocalSet;

use super::{Case, cases, everywhere};
use crate::{
    lab::{Client, LONG, Lab, key, nested, request, runner, short, stretched, unless_stalled},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![everywhere =>
        a_lock_without_a_record_denies_no_run,
        the_skew_guard_denies_tries_from_other_hosts,
        the_skew_guard_outlasts_a_runner_that_crashed,
        at_least_denies_every_run,
        at_least_outlasts_a_runner_that_crashed,
        a_waiter_waits_for_the_run_policy_too,
        a_window_has_one_run,
        a_start_stays_recorded_when_its_runner_crashed,
        a_failed_run_is_retried_up_to_the_limit,
        a_cancelled_run_denies_no_other_run,
        a_cancelled_run_puts_back_what_it_replaced,
        a_cancelled_run_with_at_least_puts_back_a_skew_guard,
        a_later_run_takes_back_no_success,
        a_run_with_an_unknown_outcome_is_repeated_only_as_a_crashed_one,
        a_repeated_request_is_one_start,
        one_of_many_simultaneous_runs_starts,
        runs_without_a_policy_leave_the_record_alone,
        each_lock_has_its_own_record,
        the_record_is_reported,
        the_record_matches_the_reference_after_each_run,
        a_warning_is_claimed_once,
        an_operator_can_ignore_the_record_but_not_a_holder,
        a_forgotten_record_denies_no_run,
        keys_are_listed_by_their_runs,
    ];
    all.extend(cases![Kind::crosses_processes => nested_runs_belong_to_the_outer_run]);
    all.extend(cases![Kind::shared => at_least_denies_readers]);
    all
}

/// Outlasts every case.
pub const WINDOW: Duration = Duration::from_secs(3600);
/// Ends within a case.
pub const BRIEF: Duration = Duration::from_secs(2);

pub fn run_policy(place: &str) -> RunPolicy {
    RunPolicy {
        place: place.into(),
        skew_guard: None,
        at_least: None,
        once: None,
        anyway: false,
    }
}

pub fn guarded(place: &str, guard: Duration) -> RunPolicy {
    RunPolicy {
        skew_guard: Some(guard),
        ..run_policy(place)
    }
}

pub fn kept(length: Duration) -> RunPolicy {
    RunPolicy {
        at_least: Some(length),
        ..run_policy("a")
    }
}

pub fn once(window: Duration, retry_failed: u32, retry_crashed: bool) -> RunPolicy {
    RunPolicy {
        once: Some(Once {
            window,
            retry_failed,
            retry_crashed,
        }),
        ..run_policy("a")
    }
}

pub fn with(run_policy: &RunPolicy, of: Request) -> Request {
    Request {
        run_policy: Some(run_policy.clone()),
        metadata: Some(runner("web1")),
        at_ms: Some(lease::wall_ms()),
        ..of
    }
}

pub fn asking(name: &str, run_policy: &RunPolicy) -> Request {
    with(run_policy, request(&key(name), LONG))
}

impl Client {
    /// Tries to take a free lock, and returns the denial; fails on any other answer.
    pub async fn denied(&mut self, request: &Request) -> Denial {
        match self.attempt(request).await {
            Attempt::Denied(refusal) => *refusal,
            other => panic!("{} should have been denied: {other:?}", request.key),
        }
    }

    pub async fn end_run(&mut self, of: &Request, state: RunState) {
        let end = match state {
            RunState::Ok => Some(End::Exited(0)),
            RunState::Failed => Some(End::Exited(3)),
            RunState::Unknown => Some(End::Lost),
            RunState::Started => Some(End::Released),
            RunState::Cancelled => None,
        };
        let became = Some(state).filter(|state| *state != RunState::Started);
        let info = ReleaseInfo {
            end,
            run_state: became,
            at_ms: Some(lease::wall_ms()),
            ..Scope::Tree.into()
        };
        let answer = unless_stalled(async || self.0.release(&of.key, &of.token, &info).await).await;
        assert_eq!(
            answer.unwrap_or_else(|error| panic!("release: {error:?}")),
            Release::Released
        );
    }

    /// Takes the lock, and ends the run with this state.
    pub async fn run(&mut self, request: &Request, state: RunState) -> Grant {
        let grant = self.take(request).await;
        self.end_run(request, state).await;
        grant
    }

    pub async fn record(&mut self, key: &Key) -> RunRecord {
        self.0
            .history(key)
            .await
            .unwrap_or_else(|error| panic!("history: {error:?}"))
            .record
    }
}

async fn a_lock_without_a_record_denies_no_run(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let all = RunPolicy {
        skew_guard: Some(BRIEF),
        at_least: Some(BRIEF),
        ..once(WINDOW, 0, false)
    };
    b.run(&request(&key("job"), LONG), RunState::Started).await;
    a.take(&asking("job", &all)).await;
    let other = asking("job", &guarded("b", BRIEF));
    let busy = b.refused(&other).await;
    assert!(
        !busy.holders.is_empty(),
        "a holder is reported before the record: {busy:?}"
    );
}

async fn the_skew_guard_denies_tries_from_other_hosts(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let guard = stretched(BRIEF);
    let begun = tokio::time::Instant::now();
    let grant = a
        .run(&asking("job", &guarded("a", guard)), RunState::Ok)
        .await;
    let refusal = b.denied(&asking("job", &guarded("b", short()))).await;
    assert_eq!(
        (refusal.rule, refusal.fence),
        (Rule::SkewGuard(guard), Some(grant.fence)),
        "{refusal:?}"
    );
    assert_eq!(refusal.metadata, Some(runner("web1")));
    assert!(
        refusal.again_in.is_none_or(|left| left <= guard + short()),
        "{refusal:?}"
    );
    // A run without a guard, and one without a policy.
    b.run(&asking("job", &run_policy("b")), RunState::Ok).await;
    b.run(&request(&key("job"), LONG), RunState::Started).await;
    assert_eq!(
        b.denied(&asking("job", &guarded("b", guard))).await.fence,
        Some(grant.fence),
        "the fence is that of the run with a guard"
    );
    lab.pass(
        (guard + lab.kind.late() + Duration::from_millis(100)).saturating_sub(begun.elapsed()),
    )
    .await;
    let mut late = 0;
    while let Attempt::Denied(_) = b.attempt(&asking("job", &guarded("b", guard))).await {
        late += 1;
        assert!(late < 20, "the guard is over");
        lab.pass(Duration::from_millis(100)).await;
    }
}

async fn the_skew_guard_outlasts_a_runner_that_crashed(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let guard = WINDOW;
    let grant = a
        .take(&with(
            &guarded("a", guard),
            lab.expiring(&key("job"), short()),
        ))
        .await;
    drop(a);
    lab.outlast(grant.ttl.get()).await;
    let refusal = free(lab, &mut b, &asking("job", &guarded("b", guard)))
        .await
        .expect_err("the guard lasts");
    assert_eq!(
        (refusal.rule, refusal.fence),
        (Rule::SkewGuard(guard), Some(grant.fence))
    );
    // The same host again, over another connection.
    let mut again = lab.client().await;
    again.take(&asking("job", &guarded("a", guard))).await;
}

/// Requests the lock of a vanished holder until the store has noticed, and returns the grant or the
/// denial.
async fn free(lab: &Lab, client: &mut Client, request: &Request) -> Result<Grant, Denial> {
    let until = tokio::time::Instant::now() + Duration::from_secs(5);
    loop {
        match client.attempt(request).await {
            Attempt::Granted(grant) => return Ok(grant),
            Attempt::Denied(refusal) => return Err(*refusal),
            other => assert!(tokio::time::Instant::now() < until, "{other:?}"),
        }
        lab.pass(Duration::from_millis(50)).await;
    }
}

async fn at_least_denies_every_run(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let grant = a.run(&asking("job", &kept(WINDOW)), RunState::Ok).await;
    for request in [
        request(&key("job"), LONG),
        asking("job", &guarded("b", BRIEF)),
        asking("job", &kept(BRIEF)),
    ] {
        let refusal = b.denied(&request).await;
        assert_eq!(
            (refusal.rule, refusal.fence),
            (Rule::AtLeast(WINDOW), Some(grant.fence))
        );
    }
    a.denied(&asking("job", &guarded("a", BRIEF))).await;
    assert!(
        b.inspect(&key("job")).await.holders.is_empty(),
        "the lock has no holder"
    );
    a.run(&asking("brief", &kept(short())), RunState::Ok).await;
    lab.outlast(short()).await;
    assert!(
        free(lab, &mut b, &request(&key("brief"), LONG))
            .await
            .is_ok()
    );
}

async fn at_least_outlasts_a_runner_that_crashed(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let grant = a
        .take(&with(&kept(WINDOW), lab.expiring(&key("job"), short())))
        .await;
    drop(a);
    lab.outlast(grant.ttl.get()).await;
    let refusal = free(lab, &mut b, &request(&key("job"), LONG))
        .await
        .expect_err("at-least denies the run");
    assert_eq!(
        (refusal.rule, refusal.fence),
        (Rule::AtLeast(WINDOW), Some(grant.fence))
    );
}

async fn at_least_denies_readers(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    a.run(&asking("job", &kept(WINDOW)), RunState::Ok).await;
    b.denied(&Request {
        mode: Mode::Shared,
        ..request(&key("job"), LONG)
    })
    .await;
}

async fn a_waiter_waits_for_the_run_policy_too(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let began = tokio::time::Instant::now();
    let held = asking(
        "job",
        &RunPolicy {
            skew_guard: Some(WINDOW),
            ..kept(BRIEF)
        },
    );
    a.take(&held).await;
    let wanted = asking("job", &guarded("b", WINDOW));
    let waiter = async {
        let never = std::future::pending::<()>();
        let outcome = lease::acquire(
            &mut *b.0,
            &BootClock,
            wanted,
            WaitPolicy::Forever,
            Limits::DEFAULT,
            never,
            |_| (),
        )
        .await;
        let Ok(Outcome::Granted(_)) = outcome else {
            panic!("{outcome:?}")
        };
        began.elapsed()
    };
    let holder = async {
        lab.pass(Duration::from_millis(300)).await;
        a.end_run(&held, RunState::Ok).await;
    };
    let (waited, ()) = tokio::join!(waiter, holder);
    let slack = lab.kind.late() + short() + Duration::from_millis(500);
    assert!(
        waited + Duration::from_millis(50) >= BRIEF && waited < stretched(BRIEF + slack),
        "{waited:?}"
    );
}

async fn a_window_has_one_run(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let grant = a
        .run(&asking("job", &once(WINDOW, 9, true)), RunState::Ok)
        .await;
    let refusal = b.denied(&asking("job", &once(WINDOW, 9, true))).await;
    assert_eq!(
        (refusal.rule, refusal.fence),
        (Rule::Once(RunState::Ok), Some(grant.fence))
    );
    assert_eq!(refusal.metadata, Some(runner("web1")));
    a.denied(&asking("job", &once(WINDOW, 9, true))).await;
    // A window ends by the store's clock.
    a.run(&asking("brief", &once(BRIEF, 0, false)), RunState::Ok)
        .await;
    let began = tokio::time::Instant::now();
    b.denied(&asking("brief", &once(BRIEF, 0, false))).await;
    lab.pass(
        (BRIEF + lab.kind.late()).saturating_sub(began.elapsed()) + Duration::from_millis(100),
    )
    .await;
    assert!(
        free(lab, &mut b, &asking("brief", &once(BRIEF, 0, false)))
            .await
            .is_ok()
    );
}

async fn a_start_stays_recorded_when_its_runner_crashed(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let grant = a
        .take(&with(
            &once(WINDOW, 9, false),
            lab.expiring(&key("job"), short()),
        ))
        .await;
    drop(a);
    lab.outlast(grant.ttl.get()).await;
    let refusal = free(lab, &mut b, &asking("job", &once(WINDOW, 9, false)))
        .await
        .expect_err("the crashed run started");
    assert_eq!(
        (refusal.rule, refusal.fence),
        (Rule::Once(RunState::Started), Some(grant.fence))
    );
    b.take(&asking("job", &once(WINDOW, 0, true))).await;
}

async fn a_failed_run_is_retried_up_to_the_limit(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let twice = once(WINDOW, 2, false);
    for _ in 0..3 {
        a.run(&asking("job", &twice), RunState::Failed).await;
        assert_eq!(
            b.denied(&asking("job", &once(WINDOW, 0, true))).await.rule,
            Rule::Once(RunState::Failed)
        );
    }
    assert_eq!(
        b.denied(&asking("job", &twice)).await.rule,
        Rule::Once(RunState::Failed)
    );
    b.run(&asking("job", &once(WINDOW, u32::MAX, false)), RunState::Ok)
        .await;
    assert_eq!(
        b.denied(&asking("job", &once(WINDOW, u32::MAX, true)))
            .await
            .rule,
        Rule::Once(RunState::Ok)
    );
}

async fn a_cancelled_run_denies_no_other_run(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let all = |place: &str| RunPolicy {
        place: place.into(),
        skew_guard: Some(WINDOW),
        at_least: Some(WINDOW),
        ..once(WINDOW, 0, false)
    };
    a.run(&asking("job", &all("a")), RunState::Cancelled).await;
    b.run(&asking("job", &all("b")), RunState::Cancelled).await;
    let taken = asking("job", &all("a"));
    a.take(&taken).await;
    let undone =
        a.0.release(&taken.key, &taken.token, &ReleaseInfo::UNDO)
            .await
            .expect("release");
    assert_eq!(undone, Release::Released);
    b.run(&asking("job", &all("b")), RunState::Ok).await;
    assert_eq!(
        a.denied(&asking("job", &all("a"))).await.rule,
        Rule::AtLeast(WINDOW)
    );
    // A failed run before the cancelled one stays failed.
    let twice = once(WINDOW, 1, false);
    a.run(&asking("twice", &twice), RunState::Failed).await;
    a.run(&asking("twice", &twice), RunState::Cancelled).await;
    assert_eq!(
        a.denied(&asking("twice", &once(WINDOW, 0, true)))
            .await
            .rule,
        Rule::Once(RunState::Failed)
    );
    a.run(&asking("twice", &twice), RunState::Failed).await;
    assert_eq!(
        a.denied(&asking("twice", &twice)).await.rule,
        Rule::Once(RunState::Failed)
    );
}

/// For each record of an earlier run, and each run that is granted past it and executes nothing.
/// A run that is not judged by a record replaces it all the same.
async fn a_cancelled_run_with_at_least_puts_back_a_skew_guard(lab: &Lab) {
    let mut a = lab.client().await;
    a.run(&asking("job", &guarded("a", WINDOW)), RunState::Ok)
        .await;
    a.run(&asking("job", &kept(WINDOW)), RunState::Cancelled)
        .await;
    assert_eq!(
        a.denied(&asking("job", &guarded("b", WINDOW))).await.rule,
        Rule::SkewGuard(WINDOW)
    );
}

async fn a_cancelled_run_puts_back_what_it_replaced(lab: &Lab) {
    let mut a = lab.client().await;
    let anyway = |run_policy: RunPolicy| RunPolicy {
        anyway: true,
        ..run_policy
    };
    let all = |place: &str| RunPolicy {
        place: place.into(),
        skew_guard: Some(WINDOW),
        at_least: Some(WINDOW),
        ..once(WINDOW, 0, false)
    };
    for before in [
        RunState::Ok,
        RunState::Failed,
        RunState::Unknown,
        RunState::Started,
    ] {
        for (nth, run_policy) in [
            anyway(once(WINDOW, 0, false)),
            anyway(all("b")),
            anyway(guarded("b", WINDOW)),
            anyway(once(BRIEF, 0, false)),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("job-{before:?}-{nth}");
            let first = a.run(&asking(&name, &all("a")), before).await;
            let denied = a.denied(&asking(&name, &once(WINDOW, 0, false))).await;
            a.run(&asking(&name, &run_policy), RunState::Cancelled)
                .await;
            let again = a.denied(&asking(&name, &once(WINDOW, 0, false))).await;
            assert_eq!(
                (again.rule, again.fence),
                (denied.rule, denied.fence),
                "{name}: {run_policy:?}"
            );
            let record = a.record(&key(&name)).await;
            let fences = (
                record.cooldown.map(|cooldown| cooldown.fence),
                record.start.as_ref().map(|start| start.fence),
            );
            assert_eq!(
                fences,
                (Some(first.fence), Some(first.fence)),
                "{name}: {run_policy:?}"
            );
            assert_eq!(
                record.start.map(|start| (start.state, start.tries)),
                Some((before, 1)),
                "{name}"
            );
        }
    }
    // The guard of the same host, which denies no run there.
    let guard = a
        .run(&asking("guard", &guarded("a", WINDOW)), RunState::Ok)
        .await;
    a.run(&asking("guard", &guarded("a", WINDOW)), RunState::Cancelled)
        .await;
    let denied = a.denied(&asking("guard", &guarded("b", WINDOW))).await;
    assert_eq!(
        (denied.rule, denied.fence),
        (Rule::SkewGuard(WINDOW), Some(guard.fence))
    );
    // A run that crashed may be repeated, and stays crashed if the repeated run executes nothing.
    a.run(
        &asking("crashed", &once(WINDOW, 0, false)),
        RunState::Started,
    )
    .await;
    a.run(
        &asking("crashed", &once(WINDOW, 0, true)),
        RunState::Cancelled,
    )
    .await;
    assert_eq!(
        a.denied(&asking("crashed", &once(WINDOW, 9, false)))
            .await
            .rule,
        Rule::Once(RunState::Started)
    );
}

/// An operator's run after a success, whatever becomes of it.
async fn a_later_run_takes_back_no_success(lab: &Lab) {
    let mut a = lab.client().await;
    for after in [
        RunState::Failed,
        RunState::Unknown,
        RunState::Started,
        RunState::Cancelled,
    ] {
        let name = format!("job-{after:?}");
        let done = a
            .run(&asking(&name, &once(WINDOW, 0, false)), RunState::Ok)
            .await;
        let anyway = RunPolicy {
            anyway: true,
            ..once(WINDOW, 0, false)
        };
        for _ in 0..2 {
            a.run(&asking(&name, &anyway), after).await;
            for patient in [once(WINDOW, 9, true), once(WINDOW, u32::MAX, true)] {
                let denied = a.denied(&asking(&name, &patient)).await;
                assert_eq!(
                    (denied.rule, denied.fence),
                    (Rule::Once(RunState::Ok), Some(done.fence)),
                    "{name}"
                );
            }
        }
        let later = a.run(&asking(&name, &anyway), RunState::Ok).await;
        assert_eq!(
            a.denied(&asking(&name, &once(WINDOW, 9, true))).await.fence,
            Some(later.fence),
            "{name}"
        );
    }
}

async fn a_run_with_an_unknown_outcome_is_repeated_only_as_a_crashed_one(lab: &Lab) {
    let mut a = lab.client().await;
    a.run(&asking("job", &once(WINDOW, 9, false)), RunState::Unknown)
        .await;
    assert_eq!(
        a.denied(&asking("job", &once(WINDOW, 9, false))).await.rule,
        Rule::Once(RunState::Unknown)
    );
    a.run(&asking("job", &once(WINDOW, 0, true)), RunState::Ok)
        .await;
    assert_eq!(
        a.denied(&asking("job", &once(WINDOW, 9, true))).await.rule,
        Rule::Once(RunState::Ok)
    );
}

async fn a_repeated_request_is_one_start(lab: &Lab) {
    let mut a = lab.client().await;
    let all = RunPolicy {
        skew_guard: Some(WINDOW),
        at_least: Some(WINDOW),
        ..once(WINDOW, 1, false)
    };
    let asked = asking("job", &all);
    let first = a.take(&asked).await;
    let again = a.take(&asked).await;
    assert_eq!(first.fence, again.fence);
    a.end_run(&asked, RunState::Failed).await;
    let start = a.record(&key("job")).await.start.expect("a start");
    assert_eq!((start.tries, start.state), (1, RunState::Failed));
}

async fn one_of_many_simultaneous_runs_starts(lab: &Lab) {
    for round in 0..3 {
        let name = format!("tick-{round}");
        let mut nodes = Vec::new();
        for _ in 0..6 {
            nodes.push(lab.client().await);
        }
        let wanted = once(WINDOW, 0, false);
        let set = LocalSet::new();
        let fire = |mut node: Client| {
            let asked = asking(&name, &wanted);
            set.spawn_local(async move {
                let mut ran = 0;
                for _ in 0..4 {
                    if let Attempt::Granted(_) = node.attempt(&asked).await {
                        // The job is as short as possible.
                        node.end_run(&asked, RunState::Ok).await;
                        ran += 1;
                    }
                }
                ran
            })
        };
        let fired: Vec<_> = nodes.into_iter().map(fire).collect();
        let runs = set.run_until(async {
            let mut runs = 0;
            for node in fired {
                runs += node.await.expect("a node");
            }
            runs
        });
        assert_eq!(runs.await, 1, "round {round}");
    }
}

async fn runs_without_a_policy_leave_the_record_alone(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let all = RunPolicy {
        skew_guard: Some(WINDOW),
        ..once(WINDOW, 0, false)
    };
    let grant = a.run(&asking("job", &all), RunState::Ok).await;
    let other = b.run(&request(&key("job"), LONG), RunState::Started).await;
    assert!(other.fence > grant.fence);
    let held = request(&key("job"), LONG);
    b.take(&held).await;
    assert_eq!(
        b.0.release(&held.key, &held.token, &ReleaseInfo::UNDO)
            .await
            .expect("release"),
        Release::Released
    );
    let refusal = b.denied(&asking("job", &once(WINDOW, 9, true))).await;
    assert_eq!(
        (refusal.rule, refusal.fence),
        (Rule::Once(RunState::Ok), Some(grant.fence))
    );
    let refusal = b.denied(&asking("job", &guarded("b", short()))).await;
    assert_eq!(
        (refusal.rule, refusal.fence),
        (Rule::SkewGuard(WINDOW), Some(grant.fence))
    );
}

async fn each_lock_has_its_own_record(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client_in("elsewhere").await);
    let all = RunPolicy {
        skew_guard: Some(WINDOW),
        at_least: Some(WINDOW),
        ..once(WINDOW, 0, false)
    };
    a.run(&asking("job", &all), RunState::Ok).await;
    for name in ["jo", "JOB", "job/1", "job%"] {
        assert_eq!(a.record(&key(name)).await, RunRecord::default(), "{name}");
        a.run(
            &asking(
                name,
                &RunPolicy {
                    place: "b".into(),
                    ..all.clone()
                },
            ),
            RunState::Ok,
        )
        .await;
    }
    b.run(
        &asking(
            "job",
            &RunPolicy {
                place: "b".into(),
                ..all.clone()
            },
        ),
        RunState::Ok,
    )
    .await;
}

async fn the_record_is_reported(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let before = lease::wall_ms();
    let all = RunPolicy {
        skew_guard: Some(BRIEF),
        at_least: Some(WINDOW),
        ..once(WINDOW, 0, false)
    };
    let asked = asking("job", &all);
    let grant = a.take(&asked).await;
    let record = b.record(&job).await;
    let (Some(cooldown), Some(start)) = (&record.cooldown, &record.start) else {
        panic!("{record:?}")
    };
    assert_eq!(
        (
            cooldown.fence,
            &cooldown.place[..],
            cooldown.guard_ms,
            cooldown.at_least_ms
        ),
        (grant.fence, "a", 2000, 3_600_000),
        "{record:?}"
    );
    assert_eq!(
        (start.fence, start.state, start.tries, start.window_ms),
        (grant.fence, RunState::Started, 1, 3_600_000),
        "{record:?}"
    );
    assert_eq!(
        (&cooldown.metadata, &start.metadata),
        (&Some(runner("web1")), &Some(runner("web1")))
    );
    assert!(
        lab.kind.clock_is_ours() || start.at_ms.abs_diff(before) < 5000,
        "{before} {record:?}"
    );
    a.end_run(&asked, RunState::Failed).await;
    assert_eq!(
        b.record(&job).await.start.map(|start| start.state),
        Some(RunState::Failed)
    );
}

async fn nested_runs_belong_to_the_outer_run(lab: &Lab) {
    let mut a = lab.client().await;
    let all = RunPolicy {
        skew_guard: Some(WINDOW),
        at_least: Some(WINDOW),
        ..once(WINDOW, 1, false)
    };
    let outer = asking("job", &all);
    let grant = a.take(&outer).await;
    let inner = nested(&outer);
    assert_eq!(a.take(&inner).await.fence, grant.fence);
    let record = a.record(&key("job")).await;
    assert_eq!(
        record
            .start
            .as_ref()
            .map(|start| (start.tries, start.state)),
        Some((1, RunState::Started)),
        "{record:?}"
    );
    // The outer command has ended, and the inner one outlives it.
    let info = ReleaseInfo {
        end: Some(End::Exited(0)),
        run_state: Some(RunState::Ok),
        ..Scope::Hold.into()
    };
    assert_eq!(
        a.0.release(&outer.key, &outer.token, &info)
            .await
            .expect("release"),
        Release::StillHeld(1)
    );
    assert_eq!(
        a.record(&key("job")).await.start.map(|start| start.state),
        Some(RunState::Ok)
    );
    a.free(&inner).await;
    assert_eq!(
        a.denied(&asking("job", &once(WINDOW, 9, true))).await.rule,
        Rule::AtLeast(WINDOW)
    );
}

/// Random requests with run policies of all kinds, compared with the reference.
async fn the_record_matches_the_reference_after_each_run(lab: &Lab) {
    let mut client = lab.client().await;
    let seed = random();
    let mut state = seed | 1;
    let mut pick = |most: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % most
    };
    let mut record = RunRecord::default();
    let mut fence = Fence(0);
    for step in 0..60 {
        let wanted = RunPolicy {
            place: if pick(2) == 0 { "a" } else { "b" }.into(),
            skew_guard: (pick(4) == 0).then_some(WINDOW),
            // Rare, because at-least denies all later runs of the case but an operator's.
            at_least: (pick(40) == 0).then_some(WINDOW),
            once: (pick(3) > 0).then(|| Once {
                window: WINDOW,
                retry_failed: u32::try_from(pick(3)).unwrap_or_default(),
                retry_crashed: pick(3) == 0,
            }),
            anyway: pick(6) == 0,
        };
        let asked = Request {
            run_policy: Some(wanted.clone()).filter(RunPolicy::record_anything),
            ..asking("job", &wanted)
        };
        let expected = record.judge(asked.run_policy.as_ref(), &asked.token, 1000);
        match (client.attempt(&asked).await, expected) {
            (Attempt::Denied(refusal), Some(expected)) => {
                assert_eq!(
                    (refusal.rule, refusal.fence),
                    (expected.rule, expected.fence),
                    "seed {seed}, step {step}: {wanted:?}"
                );
            }
            (Attempt::Granted(grant), None) => {
                assert!(grant.fence > fence);
                fence = grant.fence;
                record.begin(&asked, fence, 1000);
                let state = [
                    RunState::Ok,
                    RunState::Failed,
                    RunState::Failed,
                    RunState::Cancelled,
                    RunState::Cancelled,
                    RunState::Started,
                    RunState::Unknown,
                ][usize::try_from(pick(7)).unwrap_or(0)];
                client.end_run(&asked, state).await;
                if state != RunState::Started {
                    record.end(fence, state);
                }
            }
            (found, expected) => panic!(
                "seed {seed}, step {step}: {found:?} where {expected:?} was expected of {wanted:?}, {record:?}"
            ),
        }
    }
    let stored = client.record(&key("job")).await;
    let brief = |record: &RunRecord| {
        let cooldown = record.cooldown.as_ref().map(|cooldown| {
            (
                cooldown.fence,
                cooldown.place.clone(),
                cooldown.guard_ms,
                cooldown.at_least_ms,
            )
        });
        (
            cooldown,
            record
                .start
                .as_ref()
                .map(|start| (start.fence, start.state, start.tries)),
        )
    };
    assert_eq!(brief(&stored), brief(&record), "seed {seed}");
}

async fn a_warning_is_claimed_once(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = request(&job, LONG);
    let fence = a.take(&held).await.fence;
    let claim = async |client: &mut Client, fence, level| {
        client
            .0
            .amend(&job, Amendment::Warn(fence, level))
            .await
            .expect("claim")
    };
    assert!(claim(&mut b, fence, 1).await);
    assert!(!claim(&mut a, fence, 1).await && !claim(&mut b, fence, 1).await);
    assert!(claim(&mut a, fence, 3).await);
    assert!(
        !claim(&mut b, fence, 2).await,
        "a lower level than the last warning"
    );
    a.free(&held).await;
    let next = a.take(&request(&job, LONG)).await.fence;
    assert!(claim(&mut b, next, 1).await, "another hold");
}

async fn an_operator_can_ignore_the_record_but_not_a_holder(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let all = RunPolicy {
        skew_guard: Some(WINDOW),
        at_least: Some(WINDOW),
        ..once(WINDOW, 0, false)
    };
    let first = asking("job", &all);
    let done = a.take(&first).await.fence;
    let anyway = |place: &str| {
        asking(
            "job",
            &RunPolicy {
                place: place.into(),
                anyway: true,
                ..all.clone()
            },
        )
    };
    let busy = b.refused(&anyway("b")).await;
    assert!(!busy.holders.is_empty());
    a.end_run(&first, RunState::Ok).await;
    b.denied(&asking(
        "job",
        &RunPolicy {
            place: "b".into(),
            ..all.clone()
        },
    ))
    .await;
    let again = anyway("b");
    let fence = b.run(&again, RunState::Failed).await.fence;
    let record = b.record(&key("job")).await;
    assert_eq!(
        record
            .cooldown
            .map(|cooldown| (cooldown.fence, cooldown.place)),
        Some((fence, "b".into())),
        "the run is recorded like any other"
    );
    assert_eq!(
        record.start.map(|start| (start.fence, start.state)),
        Some((done, RunState::Ok)),
        "it takes back no success"
    );
    // The same for a run without a policy of its own.
    let plain = asking(
        "job",
        &RunPolicy {
            anyway: true,
            ..run_policy("c")
        },
    );
    a.run(&plain, RunState::Ok).await;
    a.denied(&asking("job", &kept(BRIEF))).await;
}

async fn a_forgotten_record_denies_no_run(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let all = RunPolicy {
        skew_guard: Some(WINDOW),
        at_least: Some(WINDOW),
        ..once(WINDOW, 0, false)
    };
    a.run(&asking("job", &all), RunState::Ok).await;
    b.denied(&asking("job", &all)).await;
    b.run(
        &asking("job", &RunPolicy::forgetting("b".into())),
        RunState::Cancelled,
    )
    .await;
    let record = b.record(&key("job")).await;
    assert!(
        record.cooldown.is_none()
            && record
                .start
                .is_none_or(|start| start.state == RunState::Cancelled && start.tries == 0)
    );
    a.run(&asking("job", &all), RunState::Ok).await;
}

async fn keys_are_listed_by_their_runs(lab: &Lab) {
    let mut a = lab.client().await;
    for (name, run_policy) in [
        ("it-kept", kept(WINDOW)),
        ("it-guarded", guarded("a", WINDOW)),
        ("it-over", kept(short() / 10)),
    ] {
        a.run(&asking(name, &run_policy), RunState::Ok).await;
    }
    a.run(&request(&key("it-plain"), LONG), RunState::Started)
        .await;
    a.run(&request(&key("other/{x}%"), LONG), RunState::Started)
        .await;
    let names = async |a: &mut Client, start: &str, which| {
        let known =
            a.0.known(start, which, &Progress::default())
                .await
                .unwrap_or_else(|error| panic!("known: {error:?}"));
        known
            .into_iter()
            .map(|key| key.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names(&mut a, "it-", Which::All).await,
        ["it-guarded", "it-kept", "it-over", "it-plain"]
    );
    assert_eq!(names(&mut a, "other/{", Which::All).await, ["other/{x}%"]);
    assert!(names(&mut a, "it%", Which::All).await.is_empty());
    // The list may contain more keys, but must omit none.
    let kept = names(&mut a, "it-", Which::Kept).await;
    assert!(
        kept.contains(&"it-guarded".into())
            && kept.contains(&"it-kept".into())
            && !kept.contains(&"it-plain".into()),
        "{kept:?}"
    );
}
