//! What a run leaves for those after it: the skew guard, at-least, and at most one run in some time.

use std::time::Duration;

use dlock::{
    lease::{self, BootClock, Limits, Outcome, Patience},
    lock::{
        Amendment, Attempt, End, Fence, Grant, Key, Mode, Once, Parting, Record, Refusal, Release, Request, Rule, Scope, Stage, Terms,
        Which, random,
    },
};

use tokio::task::LocalSet;

use super::{Case, cases, everywhere};
use crate::{
    lab::{Client, LONG, Lab, SHORT, key, nested, request, stretched, who},
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    let mut all = cases![everywhere =>
        a_lock_without_a_record_refuses_nobody,
        the_skew_guard_refuses_tries_from_elsewhere,
        the_skew_guard_outlasts_a_runner_that_crashed,
        at_least_refuses_everybody,
        at_least_outlasts_a_runner_that_crashed,
        who_waits_waits_for_that_as_well,
        a_window_has_one_run,
        a_start_stays_recorded_when_its_runner_crashed,
        what_failed_is_tried_again_so_often,
        what_is_undone_keeps_nobody_waiting,
        asked_again_it_is_one_start,
        of_many_that_fire_together_one_runs,
        runs_without_terms_leave_the_record_alone,
        a_record_is_a_lock_s_own,
        the_record_is_told,
        whatever_runs_do_the_record_is_right,
        a_warning_is_claimed_once,
        an_operator_runs_past_what_is_recorded_and_never_past_a_holder,
        what_is_forgotten_keeps_no_run_away,
        keys_are_known_by_their_runs,
    ];
    all.extend(cases![Kind::hands_on => nested_runs_are_part_of_the_one_around_them]);
    all.extend(cases![Kind::shared => at_least_refuses_readers]);
    all
}

/// What nobody in a case sees the end of.
pub const WINDOW: Duration = Duration::from_secs(3600);
/// What everybody sees the end of.
pub const BRIEF: Duration = Duration::from_secs(2);

pub fn terms(place: &str) -> Terms {
    Terms { place: place.into(), skew_guard: None, at_least: None, once: None, anyway: false }
}

pub fn guarded(place: &str, guard: Duration) -> Terms {
    Terms { skew_guard: Some(guard), ..terms(place) }
}

pub fn kept(length: Duration) -> Terms {
    Terms { at_least: Some(length), ..terms("a") }
}

pub fn once(window: Duration, retry_failed: u32, retry_crashed: bool) -> Terms {
    Terms { once: Some(Once { window, retry_failed, retry_crashed }), ..terms("a") }
}

pub fn with(terms: &Terms, of: Request) -> Request {
    Request { terms: Some(terms.clone()), metadata: Some(who("web1")), at_ms: Some(lease::wall_ms()), ..of }
}

pub fn asking(name: &str, terms: &Terms) -> Request {
    with(terms, request(&key(name), LONG))
}

impl Client {
    /// Meets a lock that is free and must be refused.
    pub async fn judged(&mut self, request: &Request) -> Refusal {
        match self.attempt(request).await {
            Attempt::Refused(refusal) => *refusal,
            other => panic!("{} should have been refused: {other:?}", request.key),
        }
    }

    pub async fn part(&mut self, of: &Request, stage: Stage) {
        let end = match stage {
            Stage::Ok => Some(End::Exited(0)),
            Stage::Failed => Some(End::Exited(3)),
            Stage::Started => Some(End::Released),
            Stage::Undone => None,
        };
        let became = Some(stage).filter(|stage| *stage != Stage::Started);
        let parting = Parting { end, became, at_ms: Some(lease::wall_ms()), ..Scope::Tree.into() };
        let released = self.0.release(&of.key, &of.token, &parting).await.unwrap_or_else(|error| panic!("release: {error:?}"));
        assert_eq!(released, Release::Released);
    }

    /// A whole run.
    pub async fn ran(&mut self, request: &Request, stage: Stage) -> Grant {
        let grant = self.take(request).await;
        self.part(request, stage).await;
        grant
    }

    pub async fn record(&mut self, key: &Key) -> Record {
        self.0.history(key).await.unwrap_or_else(|error| panic!("history: {error:?}")).record
    }
}

async fn a_lock_without_a_record_refuses_nobody(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let all = Terms { skew_guard: Some(BRIEF), at_least: Some(BRIEF), ..once(WINDOW, 0, false) };
    b.ran(&request(&key("job"), LONG), Stage::Started).await;
    a.take(&asking("job", &all)).await;
    let other = asking("job", &guarded("b", BRIEF));
    let busy = b.refused(&other).await;
    assert!(!busy.holders.is_empty(), "who has it comes before what is recorded: {busy:?}");
}

async fn the_skew_guard_refuses_tries_from_elsewhere(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let begun = tokio::time::Instant::now();
    let grant = a.ran(&asking("job", &guarded("a", BRIEF)), Stage::Ok).await;
    let refusal = b.judged(&asking("job", &guarded("b", SHORT))).await;
    assert_eq!((refusal.rule, refusal.fence), (Rule::SkewGuard(BRIEF), Some(grant.fence)), "{refusal:?}");
    assert_eq!(refusal.metadata, Some(who("web1")));
    assert!(refusal.again_in.is_none_or(|left| left <= BRIEF + SHORT), "{refusal:?}");
    // Who does not mind, and who waits.
    b.ran(&asking("job", &terms("b")), Stage::Ok).await;
    b.ran(&request(&key("job"), LONG), Stage::Started).await;
    assert_eq!(b.judged(&asking("job", &guarded("b", BRIEF))).await.fence, Some(grant.fence), "that of the run with a guard");
    lab.pass((BRIEF + lab.kind.late() + Duration::from_millis(100)).saturating_sub(begun.elapsed())).await;
    let mut late = 0;
    while let Attempt::Refused(_) = b.attempt(&asking("job", &guarded("b", BRIEF))).await {
        late += 1;
        assert!(late < 20, "the guard is over");
        lab.pass(Duration::from_millis(100)).await;
    }
}

async fn the_skew_guard_outlasts_a_runner_that_crashed(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let guard = WINDOW;
    let grant = a.take(&with(&guarded("a", guard), lab.expiring(&key("job"), SHORT))).await;
    drop(a);
    lab.outlast(grant.ttl.get()).await;
    let refusal = free(lab, &mut b, &asking("job", &guarded("b", guard))).await.expect_err("the guard lasts");
    assert_eq!((refusal.rule, refusal.fence), (Rule::SkewGuard(guard), Some(grant.fence)));
    // The same place again, over another connection.
    let mut again = lab.client().await;
    again.take(&asking("job", &guarded("a", guard))).await;
}

/// What comes of a lock whose holder vanished, once the store has noticed.
async fn free(lab: &Lab, client: &mut Client, request: &Request) -> Result<Grant, Refusal> {
    let until = tokio::time::Instant::now() + Duration::from_secs(5);
    loop {
        match client.attempt(request).await {
            Attempt::Granted(grant) => return Ok(grant),
            Attempt::Refused(refusal) => return Err(*refusal),
            other => assert!(tokio::time::Instant::now() < until, "{other:?}"),
        }
        lab.pass(Duration::from_millis(50)).await;
    }
}

async fn at_least_refuses_everybody(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let grant = a.ran(&asking("job", &kept(WINDOW)), Stage::Ok).await;
    for request in [request(&key("job"), LONG), asking("job", &guarded("b", BRIEF)), asking("job", &kept(BRIEF))] {
        let refusal = b.judged(&request).await;
        assert_eq!((refusal.rule, refusal.fence), (Rule::AtLeast(WINDOW), Some(grant.fence)));
    }
    a.judged(&asking("job", &guarded("a", BRIEF))).await;
    assert!(b.inspect(&key("job")).await.holders.is_empty(), "nobody has it");
    a.ran(&asking("brief", &kept(SHORT)), Stage::Ok).await;
    lab.outlast(SHORT).await;
    assert!(free(lab, &mut b, &request(&key("brief"), LONG)).await.is_ok());
}

async fn at_least_outlasts_a_runner_that_crashed(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let grant = a.take(&with(&kept(WINDOW), lab.expiring(&key("job"), SHORT))).await;
    drop(a);
    lab.outlast(grant.ttl.get()).await;
    let refusal = free(lab, &mut b, &request(&key("job"), LONG)).await.expect_err("it is kept");
    assert_eq!((refusal.rule, refusal.fence), (Rule::AtLeast(WINDOW), Some(grant.fence)));
}

async fn at_least_refuses_readers(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    a.ran(&asking("job", &kept(WINDOW)), Stage::Ok).await;
    b.judged(&Request { mode: Mode::Shared, ..request(&key("job"), LONG) }).await;
}

async fn who_waits_waits_for_that_as_well(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let began = tokio::time::Instant::now();
    let held = asking("job", &Terms { skew_guard: Some(WINDOW), ..kept(BRIEF) });
    a.take(&held).await;
    let wanted = asking("job", &guarded("b", WINDOW));
    let waiter = async {
        let never = std::future::pending::<()>();
        let outcome = lease::acquire(&mut *b.0, &BootClock, wanted, Patience::Forever, Limits::DEFAULT, never, |_| ()).await;
        let Ok(Outcome::Granted(_)) = outcome else { panic!("{outcome:?}") };
        began.elapsed()
    };
    let holder = async {
        lab.pass(Duration::from_millis(300)).await;
        a.part(&held, Stage::Ok).await;
    };
    let (waited, ()) = tokio::join!(waiter, holder);
    let slack = lab.kind.late() + SHORT + Duration::from_millis(500);
    assert!(waited + Duration::from_millis(50) >= BRIEF && waited < stretched(BRIEF + slack), "{waited:?}");
}

async fn a_window_has_one_run(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let grant = a.ran(&asking("job", &once(WINDOW, 9, true)), Stage::Ok).await;
    let refusal = b.judged(&asking("job", &once(WINDOW, 9, true))).await;
    assert_eq!((refusal.rule, refusal.fence), (Rule::Once(Stage::Ok), Some(grant.fence)));
    assert_eq!(refusal.metadata, Some(who("web1")));
    a.judged(&asking("job", &once(WINDOW, 9, true))).await;
    // Its own end, by the store's clock.
    a.ran(&asking("brief", &once(BRIEF, 0, false)), Stage::Ok).await;
    let began = tokio::time::Instant::now();
    b.judged(&asking("brief", &once(BRIEF, 0, false))).await;
    lab.pass((BRIEF + lab.kind.late()).saturating_sub(began.elapsed()) + Duration::from_millis(100)).await;
    assert!(free(lab, &mut b, &asking("brief", &once(BRIEF, 0, false))).await.is_ok());
}

async fn a_start_stays_recorded_when_its_runner_crashed(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let grant = a.take(&with(&once(WINDOW, 9, false), lab.expiring(&key("job"), SHORT))).await;
    drop(a);
    lab.outlast(grant.ttl.get()).await;
    let refusal = free(lab, &mut b, &asking("job", &once(WINDOW, 9, false))).await.expect_err("it began");
    assert_eq!((refusal.rule, refusal.fence), (Rule::Once(Stage::Started), Some(grant.fence)));
    b.take(&asking("job", &once(WINDOW, 0, true))).await;
}

async fn what_failed_is_tried_again_so_often(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let twice = once(WINDOW, 2, false);
    for _ in 0..3 {
        a.ran(&asking("job", &twice), Stage::Failed).await;
        assert_eq!(b.judged(&asking("job", &once(WINDOW, 0, true))).await.rule, Rule::Once(Stage::Failed));
    }
    assert_eq!(b.judged(&asking("job", &twice)).await.rule, Rule::Once(Stage::Failed));
    b.ran(&asking("job", &once(WINDOW, u32::MAX, false)), Stage::Ok).await;
    assert_eq!(b.judged(&asking("job", &once(WINDOW, u32::MAX, true))).await.rule, Rule::Once(Stage::Ok));
}

async fn what_is_undone_keeps_nobody_waiting(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let all = |place: &str| Terms { place: place.into(), skew_guard: Some(WINDOW), at_least: Some(WINDOW), ..once(WINDOW, 0, false) };
    a.ran(&asking("job", &all("a")), Stage::Undone).await;
    b.ran(&asking("job", &all("b")), Stage::Undone).await;
    let taken = asking("job", &all("a"));
    a.take(&taken).await;
    let undone = a.0.release(&taken.key, &taken.token, &Parting::UNDO).await.expect("release");
    assert_eq!(undone, Release::Released);
    b.ran(&asking("job", &all("b")), Stage::Ok).await;
    assert_eq!(a.judged(&asking("job", &all("a"))).await.rule, Rule::AtLeast(WINDOW));
    // What failed before stays so.
    let twice = once(WINDOW, 1, false);
    a.ran(&asking("twice", &twice), Stage::Failed).await;
    a.ran(&asking("twice", &twice), Stage::Undone).await;
    assert_eq!(a.judged(&asking("twice", &once(WINDOW, 0, true))).await.rule, Rule::Once(Stage::Failed));
    a.ran(&asking("twice", &twice), Stage::Failed).await;
    assert_eq!(a.judged(&asking("twice", &twice)).await.rule, Rule::Once(Stage::Failed));
}

async fn asked_again_it_is_one_start(lab: &Lab) {
    let mut a = lab.client().await;
    let all = Terms { skew_guard: Some(WINDOW), at_least: Some(WINDOW), ..once(WINDOW, 1, false) };
    let asked = asking("job", &all);
    let first = a.take(&asked).await;
    let again = a.take(&asked).await;
    assert_eq!(first.fence, again.fence);
    a.part(&asked, Stage::Failed).await;
    let start = a.record(&key("job")).await.start.expect("a start");
    assert_eq!((start.tries, start.stage), (1, Stage::Failed));
}

async fn of_many_that_fire_together_one_runs(lab: &Lab) {
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
                        // As short as a job can be.
                        node.part(&asked, Stage::Ok).await;
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

async fn runs_without_terms_leave_the_record_alone(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let all = Terms { skew_guard: Some(WINDOW), ..once(WINDOW, 0, false) };
    let grant = a.ran(&asking("job", &all), Stage::Ok).await;
    let other = b.ran(&request(&key("job"), LONG), Stage::Started).await;
    assert!(other.fence > grant.fence);
    let held = request(&key("job"), LONG);
    b.take(&held).await;
    assert_eq!(b.0.release(&held.key, &held.token, &Parting::UNDO).await.expect("release"), Release::Released);
    let refusal = b.judged(&asking("job", &once(WINDOW, 9, true))).await;
    assert_eq!((refusal.rule, refusal.fence), (Rule::Once(Stage::Ok), Some(grant.fence)));
    let refusal = b.judged(&asking("job", &guarded("b", SHORT))).await;
    assert_eq!((refusal.rule, refusal.fence), (Rule::SkewGuard(WINDOW), Some(grant.fence)));
}

async fn a_record_is_a_lock_s_own(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client_in("elsewhere").await);
    let all = Terms { skew_guard: Some(WINDOW), at_least: Some(WINDOW), ..once(WINDOW, 0, false) };
    a.ran(&asking("job", &all), Stage::Ok).await;
    for name in ["jo", "JOB", "job/1", "job%"] {
        assert_eq!(a.record(&key(name)).await, Record::default(), "{name}");
        a.ran(&asking(name, &Terms { place: "b".into(), ..all.clone() }), Stage::Ok).await;
    }
    b.ran(&asking("job", &Terms { place: "b".into(), ..all.clone() }), Stage::Ok).await;
}

async fn the_record_is_told(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let before = lease::wall_ms();
    let all = Terms { skew_guard: Some(BRIEF), at_least: Some(WINDOW), ..once(WINDOW, 0, false) };
    let asked = asking("job", &all);
    let grant = a.take(&asked).await;
    let record = b.record(&job).await;
    let (Some(paced), Some(start)) = (&record.paced, &record.start) else { panic!("{record:?}") };
    assert_eq!((paced.fence, &paced.place[..], paced.guard_ms, paced.at_least_ms), (grant.fence, "a", 2000, 3_600_000), "{record:?}");
    assert_eq!((start.fence, start.stage, start.tries, start.window_ms), (grant.fence, Stage::Started, 1, 3_600_000), "{record:?}");
    assert_eq!((&paced.metadata, &start.metadata), (&Some(who("web1")), &Some(who("web1"))));
    assert!(lab.kind.clock_is_ours() || start.at_ms.abs_diff(before) < 5000, "{before} {record:?}");
    a.part(&asked, Stage::Failed).await;
    assert_eq!(b.record(&job).await.start.map(|start| start.stage), Some(Stage::Failed));
}

async fn nested_runs_are_part_of_the_one_around_them(lab: &Lab) {
    let mut a = lab.client().await;
    let all = Terms { skew_guard: Some(WINDOW), at_least: Some(WINDOW), ..once(WINDOW, 1, false) };
    let outer = asking("job", &all);
    let grant = a.take(&outer).await;
    let inner = nested(&outer);
    assert_eq!(a.take(&inner).await.fence, grant.fence);
    let record = a.record(&key("job")).await;
    assert_eq!(record.start.as_ref().map(|start| (start.tries, start.stage)), Some((1, Stage::Started)), "{record:?}");
    // The outer one's command is over, and the inner one outlives it.
    let parting = Parting { end: Some(End::Exited(0)), became: Some(Stage::Ok), ..Scope::Hold.into() };
    assert_eq!(a.0.release(&outer.key, &outer.token, &parting).await.expect("release"), Release::StillHeld(1));
    assert_eq!(a.record(&key("job")).await.start.map(|start| start.stage), Some(Stage::Ok));
    a.free(&inner).await;
    assert_eq!(a.judged(&asking("job", &once(WINDOW, 9, true))).await.rule, Rule::AtLeast(WINDOW));
}

/// Some thousand requests with terms of all kinds, held against the reference.
async fn whatever_runs_do_the_record_is_right(lab: &Lab) {
    let mut client = lab.client().await;
    let seed = random();
    let mut state = seed | 1;
    let mut pick = |most: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % most
    };
    let mut record = Record::default();
    let mut fence = Fence(0);
    for step in 0..60 {
        let wanted = Terms {
            place: if pick(2) == 0 { "a" } else { "b" }.into(),
            skew_guard: (pick(4) == 0).then_some(WINDOW),
            // The first would be the last.
            at_least: (pick(40) == 0).then_some(WINDOW),
            once: (pick(3) > 0).then(|| Once {
                window: WINDOW,
                retry_failed: u32::try_from(pick(3)).unwrap_or_default(),
                retry_crashed: pick(3) == 0,
            }),
            anyway: false,
        };
        let asked = Request { terms: Some(wanted.clone()).filter(Terms::record_anything), ..asking("job", &wanted) };
        let expected = record.judge(asked.terms.as_ref(), &asked.token, 1000);
        match (client.attempt(&asked).await, expected) {
            (Attempt::Refused(refusal), Some(expected)) => {
                assert_eq!((refusal.rule, refusal.fence), (expected.rule, expected.fence), "seed {seed}, step {step}: {wanted:?}");
            }
            (Attempt::Granted(grant), None) => {
                assert!(grant.fence > fence);
                fence = grant.fence;
                record.begin(&asked, fence, 1000);
                let stage = [Stage::Ok, Stage::Failed, Stage::Failed, Stage::Undone, Stage::Started][usize::try_from(pick(5)).unwrap_or(0)];
                client.part(&asked, stage).await;
                if stage != Stage::Started {
                    record.end(fence, stage);
                }
            }
            (found, expected) => panic!("seed {seed}, step {step}: {found:?} where {expected:?} was expected of {wanted:?}, {record:?}"),
        }
    }
    let told = client.record(&key("job")).await;
    let brief = |record: &Record| {
        let paced = record.paced.as_ref().map(|paced| (paced.fence, paced.place.clone(), paced.guard_ms, paced.at_least_ms));
        (paced, record.start.as_ref().map(|start| (start.fence, start.stage, start.tries)))
    };
    assert_eq!(brief(&told), brief(&record), "seed {seed}");
}

async fn a_warning_is_claimed_once(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = request(&job, LONG);
    let fence = a.take(&held).await.fence;
    let claim = async |client: &mut Client, fence, level| client.0.amend(&job, Amendment::Warn(fence, level)).await.expect("claim");
    assert!(claim(&mut b, fence, 1).await);
    assert!(!claim(&mut a, fence, 1).await && !claim(&mut b, fence, 1).await);
    assert!(claim(&mut a, fence, 3).await);
    assert!(!claim(&mut b, fence, 2).await, "less than was warned of");
    a.free(&held).await;
    let next = a.take(&request(&job, LONG)).await.fence;
    assert!(claim(&mut b, next, 1).await, "another hold");
}

async fn an_operator_runs_past_what_is_recorded_and_never_past_a_holder(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let all = Terms { skew_guard: Some(WINDOW), at_least: Some(WINDOW), ..once(WINDOW, 0, false) };
    let first = asking("job", &all);
    a.take(&first).await;
    let anyway = |place: &str| asking("job", &Terms { place: place.into(), anyway: true, ..all.clone() });
    let busy = b.refused(&anyway("b")).await;
    assert!(!busy.holders.is_empty());
    a.part(&first, Stage::Ok).await;
    b.judged(&asking("job", &Terms { place: "b".into(), ..all.clone() })).await;
    let again = anyway("b");
    let fence = b.ran(&again, Stage::Failed).await.fence;
    let record = b.record(&key("job")).await;
    assert_eq!(record.paced.map(|paced| (paced.fence, paced.place)), Some((fence, "b".into())), "it is recorded like any other");
    assert_eq!(record.start.map(|start| (start.fence, start.stage, start.tries)), Some((fence, Stage::Failed, 1)));
    // Without a policy of its own it is let go as well.
    let plain = asking("job", &Terms { anyway: true, ..terms("c") });
    a.ran(&plain, Stage::Ok).await;
    a.judged(&asking("job", &kept(BRIEF))).await;
}

async fn what_is_forgotten_keeps_no_run_away(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let all = Terms { skew_guard: Some(WINDOW), at_least: Some(WINDOW), ..once(WINDOW, 0, false) };
    a.ran(&asking("job", &all), Stage::Ok).await;
    b.judged(&asking("job", &all)).await;
    b.ran(&asking("job", &Terms::forgetting("b".into())), Stage::Undone).await;
    let record = b.record(&key("job")).await;
    assert!(record.paced.is_none() && record.start.is_none_or(|start| start.stage == Stage::Undone && start.tries == 0));
    a.ran(&asking("job", &all), Stage::Ok).await;
}

async fn keys_are_known_by_their_runs(lab: &Lab) {
    let mut a = lab.client().await;
    for (name, terms) in [("it-kept", kept(WINDOW)), ("it-guarded", guarded("a", WINDOW)), ("it-over", kept(SHORT / 10))] {
        a.ran(&asking(name, &terms), Stage::Ok).await;
    }
    a.ran(&request(&key("it-plain"), LONG), Stage::Started).await;
    a.ran(&request(&key("other/{x}%"), LONG), Stage::Started).await;
    let names = async |a: &mut Client, start: &str, which| {
        let known = a.0.known(start, which).await.unwrap_or_else(|error| panic!("known: {error:?}"));
        known.into_iter().map(|key| key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&mut a, "it-", Which::All).await, ["it-guarded", "it-kept", "it-over", "it-plain"]);
    assert_eq!(names(&mut a, "other/{", Which::All).await, ["other/{x}%"]);
    assert!(names(&mut a, "it%", Which::All).await.is_empty());
    // More may be told, but nothing must be left out.
    let kept = names(&mut a, "it-", Which::Kept).await;
    assert!(kept.contains(&"it-guarded".into()) && kept.contains(&"it-kept".into()) && !kept.contains(&"it-plain".into()), "{kept:?}");
}
