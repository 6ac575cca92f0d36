//! The lock's history: finished holds and skipped runs.

use std::{cell::Cell, future::pending, time::Duration};

use dlock::{
    lease::{self, BootClock, Limits, Outcome, WaitPolicy},
    lock::{
        Amendment, Attempt, Break, End, Fence, History, HistoryEntry, Key, Mode, Note, REMEMBERED,
        Release, ReleaseInfo, Request, RunOutcome, SKIPPING_HOSTS, Scope,
    },
};

use super::{Case, cases, everywhere};
use crate::{
    lab::{Client, LONG, Lab, key, nested, request, runner, short, waiting},
    support::proxy::{Fault, Proxy},
};

pub fn all() -> Vec<Case> {
    let mut all = cases![everywhere =>
        a_lock_that_was_never_held_has_no_history,
        a_run_is_recorded_with_its_end,
        the_waiting_time_of_a_run_is_recorded,
        runs_are_listed_latest_first,
        a_hold_is_not_recorded_while_it_lasts,
        a_hold_that_was_never_released_is_recorded_as_expired,
        a_hold_without_metadata_is_recorded_without,
        a_release_without_a_hold_records_nothing,
        an_undone_grant_is_not_recorded,
        the_last_runs_and_the_last_failures_are_kept,
        skips_are_counted_by_host,
        the_hosts_that_skipped_last_are_counted,
        a_note_of_a_loss_replaces_the_expired_entry,
        a_lock_has_its_own_history,
        any_text_comes_back_unchanged,
        reading_the_history_changes_nothing,
    ];
    all.extend(cases![|kind| kind.crosses_processes() => nested_holds_are_one_run]);
    all.extend(cases![|kind| kind.shared() =>
        each_reader_is_one_run,
        a_vanished_reader_is_recorded_once,
    ]);
    all.extend(cases![|kind| !kind.ends_with_its_process() =>
        a_waiter_that_never_held_is_not_recorded,
        a_holder_that_waited_first_is_recorded_too,
    ]);
    all.extend(cases![|kind| kind.is_sql() => an_unknown_outcome_is_left_out]);
    all.extend(cases![|kind| kind.has_server() =>
        a_release_whose_answer_was_lost_is_recorded_once,
        a_run_whose_answers_were_lost_is_one_run,
    ]);
    all
}

fn with_host(host: &str) -> impl Fn(Request) -> Request {
    let metadata = runner(host);
    move |of| Request {
        metadata: Some(metadata.clone()),
        at_ms: Some(dlock::lease::wall_ms()),
        ..of
    }
}

fn ended(end: End) -> ReleaseInfo {
    ReleaseInfo {
        end: Some(end),
        at_ms: Some(dlock::lease::wall_ms()),
        held_ms: Some(3),
        ..Scope::Tree.into()
    }
}

async fn end_hold(client: &mut Client, of: &Request, end: End) {
    let released = client
        .0
        .release(&of.key, &of.token, &ended(end))
        .await
        .unwrap_or_else(|error| panic!("release: {error:?}"));
    assert_eq!(released, Release::Released);
}

pub async fn history(client: &mut Client, key: &Key) -> History {
    client
        .0
        .history(key)
        .await
        .unwrap_or_else(|error| panic!("history: {error:?}"))
}

/// Takes the lock and releases it with this end.
async fn run(client: &mut Client, key: &Key, end: End) -> Fence {
    let asked = with_host("web1")(request(key, LONG));
    let fence = client.take(&asked).await.fence;
    end_hold(client, &asked, end).await;
    fence
}

async fn a_lock_that_was_never_held_has_no_history(lab: &Lab) {
    let mut a = lab.client().await;
    assert_eq!(history(&mut a, &key("never")).await, History::default());
    a.hold(&key("never")).await;
}

async fn a_run_is_recorded_with_its_end(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let asked = with_host("web1")(request(&job, LONG));
    let before = dlock::lease::wall_ms();
    let fence = a.take(&asked).await.fence;
    lab.pass(Duration::from_millis(50)).await;
    let told = Some(RunOutcome {
        by: Some("ana@ops1".into()),
        why: Some("for \"some\" reason \u{2600}".into()),
        output: Some("a\nb".into()),
        cpu_ms: Some(200),
        max_rss_bytes: Some(u64::MAX),
    });
    let info = ReleaseInfo {
        outcome: told.clone(),
        held_ms: Some(50),
        ..ended(End::Exited(3))
    };
    assert_eq!(
        a.0.release(&job, &asked.token, &info)
            .await
            .expect("release"),
        Release::Released
    );
    let past = history(&mut b, &job).await.past;
    let [
        HistoryEntry {
            fence: recorded,
            started_ms: Some(started),
            ended_ms: Some(ended),
            end: End::Exited(3),
            outcome,
            metadata,
        },
    ] = &past[..]
    else {
        panic!("{past:?}");
    };
    assert_eq!(
        (*recorded, outcome, metadata),
        (Some(fence), &told, &asked.metadata)
    );
    assert!(
        *ended >= started + 40 && *ended < started + 10_000,
        "{started} {ended}"
    );
    // All servers run on this host, so the clocks agree.
    assert!(
        lab.kind.clock_is_ours() || started.abs_diff(before) < 5000,
        "{before} {started}"
    );
}

/// The outcome was damaged, or a newer dlock wrote it.
async fn an_unknown_outcome_is_left_out(lab: &Lab) {
    let (mut a, job) = (lab.client().await, key("job"));
    let fence = run(&mut a, &job, End::Exited(3)).await;
    let newer = Some(RunOutcome::because("so"));
    for (stored, read) in [
        (r#"{"why":"so","since_then":[1]}"#, newer),
        (r#"{"why":7}"#, None),
        ("[7]", None),
        (r#"{"why":"#, None),
        ("", None),
    ] {
        lab.sql(&format!("UPDATE dlock_runs SET outcome = '{stored}'"));
        let past = history(&mut a, &job).await.past;
        assert_eq!(
            (past.len(), past[0].fence, &past[0].end, &past[0].outcome),
            (1, Some(fence), &End::Exited(3), &read),
            "{stored}"
        );
    }
}

async fn the_waiting_time_of_a_run_is_recorded(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    let wanted = with_host("web1")(waiting(&job, LONG));
    let never = pending::<()>();
    let waits = Cell::new(false);
    let take = lease::acquire(
        &mut *b.0,
        &BootClock,
        wanted.clone(),
        WaitPolicy::For(LONG),
        Limits::DEFAULT,
        never,
        |_| waits.set(true),
    );
    let free = async {
        while !waits.get() {
            lab.pass(Duration::from_millis(10)).await;
        }
        lab.pass(Duration::from_millis(300)).await;
        a.free(&held).await;
    };
    let (taken, ()) = tokio::join!(take, free);
    assert!(matches!(taken, Ok(Outcome::Granted(_))), "{taken:?}");
    end_hold(&mut b, &wanted, End::Exited(0)).await;
    let past = history(&mut b, &job).await.past.remove(0);
    let waited = past
        .metadata
        .and_then(|metadata| metadata.waited_ms)
        .expect("how long it waited");
    // The test's own clock may stand still.
    let least = if lab.kind.clock_is_ours() { 0 } else { 250 };
    assert!((least..20_000).contains(&waited), "{waited}");
}

async fn runs_are_listed_latest_first(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let ends = [
        End::Exited(0),
        End::Signalled(9),
        End::Released,
        End::NotStarted,
        End::Exited(1),
    ];
    let mut fences = Vec::new();
    for end in &ends {
        fences.push(run(&mut a, &job, end.clone()).await);
    }
    let past = history(&mut a, &job).await.past;
    assert!(
        past.iter().map(|one| &one.end).eq(ends.iter().rev()),
        "{past:?}"
    );
    assert!(
        past.iter()
            .map(|one| one.fence)
            .eq(fences.iter().rev().map(|fence| Some(*fence))),
        "{past:?}"
    );
}

async fn a_hold_is_not_recorded_while_it_lasts(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    a.renewed(&held, None).await;
    b.refused(&request(&job, LONG)).await;
    assert_eq!(history(&mut b, &job).await.past, []);
    end_hold(&mut a, &held, End::Exited(0)).await;
    assert_eq!(history(&mut b, &job).await.past.len(), 1);
}

async fn a_hold_that_was_never_released_is_recorded_as_expired(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let asked = with_host("web3")(lab.expiring(&job, short()));
    let grant = a.take(&asked).await;
    drop(a);
    lab.outlast(grant.ttl.get()).await;
    // The hold is recorded once, before the next grant and after it.
    let expired = |past: &HistoryEntry| {
        past.end == End::Expired
            && past.fence == Some(grant.fence)
            && past.metadata == asked.metadata
    };
    let before = history(&mut b, &job).await.past;
    assert!(
        before.iter().all(expired) && before.len() == 1,
        "{before:?}"
    );
    let next = request(&job, LONG);
    let until = std::time::Instant::now() + Duration::from_secs(5);
    while !matches!(b.attempt(&next).await, Attempt::Granted(_)) {
        assert!(std::time::Instant::now() < until, "not free");
        lab.pass(Duration::from_millis(50)).await;
    }
    let after = history(&mut b, &job).await.past;
    assert!(after.iter().all(expired) && after.len() == 1, "{after:?}");
    end_hold(&mut b, &next, End::Exited(0)).await;
    let all = history(&mut b, &job).await.past;
    assert!(
        all.len() == 2 && all[0].end == End::Exited(0) && expired(&all[1]),
        "{all:?}"
    );
}

async fn a_hold_without_metadata_is_recorded_without(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let held = a.hold(&job).await;
    end_hold(&mut a, &held, End::Exited(0)).await;
    let past = history(&mut a, &job).await.past;
    assert!(past.len() == 1 && past[0].metadata.is_none(), "{past:?}");
}

async fn a_release_without_a_hold_records_nothing(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let first = a.hold(&job).await;
    end_hold(&mut a, &first, End::Exited(0)).await;
    let second = b.hold(&job).await;
    for token in [&first.token, &second.token.nested()] {
        assert_eq!(
            a.0.release(&job, token, &ended(End::Exited(9)))
                .await
                .expect("release"),
            Release::NotHeld
        );
    }
    let past = history(&mut a, &job).await.past;
    assert!(past.len() == 1 && past[0].end == End::Exited(0), "{past:?}");
    end_hold(&mut b, &second, End::Exited(1)).await;
    assert_eq!(
        a.0.release(&job, &second.token, &ended(End::Exited(9)))
            .await
            .expect("release"),
        Release::NotHeld
    );
    let past = history(&mut a, &job).await.past;
    assert!(past.len() == 2 && past[0].end == End::Exited(1), "{past:?}");
}

async fn an_undone_grant_is_not_recorded(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let asked = with_host("web1")(request(&job, LONG));
    a.take(&asked).await;
    assert_eq!(
        a.0.release(&job, &asked.token, &ReleaseInfo::UNDO)
            .await
            .expect("release"),
        Release::Released
    );
    assert_eq!(history(&mut b, &job).await.past, []);
    let next = b.hold(&job).await;
    assert_eq!(history(&mut a, &job).await.past, []);
    end_hold(&mut b, &next, End::Exited(0)).await;
    let past = history(&mut a, &job).await.past;
    assert!(past.len() == 1 && past[0].end == End::Exited(0), "{past:?}");
}

async fn nested_holds_are_one_run(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let outer = a.hold(&job).await;
    let inner = nested(&outer);
    b.take(&inner).await;
    assert_eq!(
        b.0.release(&job, &inner.token, &ended(End::Exited(5)))
            .await
            .expect("release"),
        Release::StillHeld(1)
    );
    assert_eq!(history(&mut a, &job).await.past, []);
    end_hold(&mut a, &outer, End::Exited(0)).await;
    let past = history(&mut b, &job).await.past;
    assert!(past.len() == 1 && past[0].end == End::Exited(0), "{past:?}");
}

async fn the_last_runs_and_the_last_failures_are_kept(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    let bad = run(&mut a, &job, End::Exited(7)).await;
    let mut last = bad;
    // The store may trim in steps.
    for _ in 0..REMEMBERED + 40 {
        last = run(&mut a, &job, End::Exited(0)).await;
    }
    let past = history(&mut a, &job).await.past;
    assert_eq!(past[0].fence, Some(last));
    let fine = past.iter().filter(|one| one.end == End::Exited(0)).count();
    assert!((REMEMBERED..=REMEMBERED + 32).contains(&fine), "{fine}");
    assert!(
        past.iter()
            .any(|one| one.fence == Some(bad) && one.end == End::Exited(7)),
        "the failed run is forgotten"
    );
}

async fn skips_are_counted_by_host(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let skip = |host: &str, reason: &str| Note::Skipped {
        host: host.into(),
        reason: reason.into(),
        at_ms: dlock::lease::wall_ms(),
    };
    for (host, reason) in [
        ("web4", "busy"),
        ("web5", "busy"),
        ("web4", "skew guard 5s"),
    ] {
        a.0.amend(&job, Amendment::Note(&skip(host, reason)))
            .await
            .expect("a note");
    }
    let known = history(&mut b, &job).await;
    assert_eq!(known.past, []);
    let [four, five] = &known.skips[..] else {
        panic!("{known:?}")
    };
    assert_eq!(
        (&*four.host, four.count, &*four.reason),
        ("web4", 2, "skew guard 5s")
    );
    assert_eq!(
        (&*five.host, five.count, &*five.reason),
        ("web5", 1, "busy")
    );
    for one in [four, five] {
        assert!(
            one.since_ms.is_some() && one.last_ms >= one.since_ms,
            "{one:?}"
        );
    }
    // A note does not change the hold.
    let held = a.hold(&job).await;
    b.0.amend(&job, Amendment::Note(&skip("web5", "busy")))
        .await
        .expect("a note");
    a.renewed(&held, None).await;
    a.free(&held).await;
    assert_eq!(history(&mut b, &job).await.skips[1].count, 2);
}

/// Hosts with a name for each run would otherwise use up all places.
async fn the_hosts_that_skipped_last_are_counted(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    for n in 0..SKIPPING_HOSTS + 2 {
        let note = Note::Skipped {
            host: format!("pod-{n}"),
            reason: "busy".into(),
            at_ms: dlock::lease::wall_ms(),
        };
        a.0.amend(&job, Amendment::Note(&note))
            .await
            .expect("a note");
        if n < 2 {
            lab.pass(Duration::from_millis(3)).await;
        }
    }
    let skips = history(&mut a, &job).await.skips;
    assert_eq!(skips.len(), SKIPPING_HOSTS);
    let is_known = |n: usize| skips.iter().any(|skips| skips.host == format!("pod-{n}"));
    assert!(
        !is_known(0) && !is_known(1) && (2..SKIPPING_HOSTS + 2).all(is_known),
        "{skips:?}"
    );
}

async fn a_note_of_a_loss_replaces_the_expired_entry(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let asked = with_host("web3")(lab.expiring(&job, short()));
    let grant = a.take(&asked).await;
    drop(a);
    lab.outlast(grant.ttl.get()).await;
    let lost = |fence| HistoryEntry {
        fence: Some(fence),
        started_ms: Some(dlock::lease::wall_ms() - 1000),
        ended_ms: Some(dlock::lease::wall_ms()),
        end: End::Lost,
        outcome: Some(RunOutcome::because("no renewal for 36s")),
        metadata: asked.metadata.clone(),
    };
    let loss = lost(grant.fence);
    b.0.amend(&job, Amendment::Note(&Note::Lost(loss.clone())))
        .await
        .expect("a note");
    let past = history(&mut b, &job).await.past;
    assert_eq!(past, std::slice::from_ref(&loss));
    // Also while another client holds the lock, and afterwards.
    let next = request(&job, LONG);
    let until = std::time::Instant::now() + Duration::from_secs(5);
    while !matches!(b.attempt(&next).await, Attempt::Granted(_)) {
        assert!(std::time::Instant::now() < until, "not free");
        lab.pass(Duration::from_millis(50)).await;
    }
    assert_eq!(
        history(&mut b, &job).await.past,
        std::slice::from_ref(&loss)
    );
    end_hold(&mut b, &next, End::Exited(0)).await;
    let all = history(&mut b, &job).await.past;
    assert!(
        all.len() == 2 && all[0].end == End::Exited(0) && all[1] == loss,
        "{all:?}"
    );
}

async fn a_lock_has_its_own_history(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client_in("elsewhere").await);
    let names = [
        "job", "JOB", "job ", "job/1", "jo", "a{b}c", "%", "_", "job:runs", "../job",
    ];
    for (n, name) in names.iter().enumerate() {
        run(
            &mut a,
            &key(name),
            End::Exited(u8::try_from(n + 1).expect("few")),
        )
        .await;
    }
    for (n, name) in names.iter().enumerate() {
        let past = history(&mut a, &key(name)).await.past;
        assert!(
            past.len() == 1 && past[0].end == End::Exited(u8::try_from(n + 1).expect("few")),
            "{name}: {past:?}"
        );
        assert_eq!(history(&mut b, &key(name)).await.past, [], "{name}");
    }
    // A history is not listed as a lock.
    assert_eq!(a.keys("").await, [] as [&str; 0]);
}

async fn any_text_comes_back_unchanged(lab: &Lab) {
    let mut a = lab.client().await;
    let job = key("job");
    for text in [
        "\"},{\"x\":\"ok\"",
        "a\\b'c\n\u{1b}[2J",
        "100%_$1 {x} \u{202e}",
        "'; DROP TABLE x; --",
        &"long ".repeat(300),
    ] {
        let mut metadata = runner(text);
        metadata.description = Some(text.into());
        let asked = Request {
            metadata: Some(metadata),
            ..request(&job, LONG)
        };
        a.take(&asked).await;
        let outcome = Some(RunOutcome {
            output: Some(text.into()),
            ..RunOutcome::because(text)
        });
        let info = ReleaseInfo {
            outcome: outcome.clone(),
            ..ended(End::Lost)
        };
        assert_eq!(
            a.0.release(&job, &asked.token, &info)
                .await
                .expect("release"),
            Release::Released
        );
        let past = history(&mut a, &job).await.past;
        assert_eq!(
            (&past[0].end, &past[0].outcome, &past[0].metadata),
            (&End::Lost, &outcome, &asked.metadata)
        );
        a.0.amend(
            &job,
            Amendment::Note(&Note::Skipped {
                host: text.into(),
                reason: text.into(),
                at_ms: 1,
            }),
        )
        .await
        .expect("a note");
        assert!(
            history(&mut a, &job)
                .await
                .skips
                .iter()
                .any(|skips| skips.host == text && skips.reason == text),
            "{text:?}"
        );
    }
}

async fn reading_the_history_changes_nothing(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    run(&mut a, &job, End::Exited(0)).await;
    let held = a.hold(&job).await;
    let first = history(&mut b, &job).await;
    for _ in 0..3 {
        assert_eq!(history(&mut b, &job).await, first);
    }
    a.renewed(&held, None).await;
    a.free(&held).await;
}

fn shared(of: Request) -> Request {
    Request {
        mode: Mode::Shared,
        ..of
    }
}

async fn each_reader_is_one_run(lab: &Lab) {
    let (mut a, mut b) = (lab.client().await, lab.client().await);
    let job = key("job");
    let (one, two) = (
        with_host("web1")(shared(request(&job, LONG))),
        with_host("web2")(shared(request(&job, LONG))),
    );
    let fences = [a.take(&one).await.fence, b.take(&two).await.fence];
    a.0.release(&job, &one.token, &ended(End::Exited(1)))
        .await
        .expect("release");
    let past = history(&mut b, &job).await.past;
    assert!(
        past.len() == 1 && past[0].fence == Some(fences[0]) && past[0].metadata == one.metadata,
        "{past:?}"
    );
    end_hold(&mut b, &two, End::Exited(2)).await;
    let past = history(&mut a, &job).await.past;
    assert!(past.iter().map(|one| (one.fence, &one.end)).eq([
        (Some(fences[1]), &End::Exited(2)),
        (Some(fences[0]), &End::Exited(1))
    ]));
}

async fn a_vanished_reader_is_recorded_once(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let (gone, there) = (
        with_host("web3")(shared(lab.expiring(&job, short()))),
        shared(request(&job, LONG)),
    );
    let grant = a.take(&gone).await;
    b.take(&there).await;
    drop(a);
    lab.outlast(grant.ttl.get()).await;
    let expired = |past: &[HistoryEntry]| {
        past.iter()
            .filter(|past| {
                past.end == End::Expired
                    && past.fence == Some(grant.fence)
                    && past.metadata == gone.metadata
            })
            .count()
            == 1
    };
    let past = history(&mut c, &job).await.past;
    assert!(past.len() == 1 && expired(&past), "{past:?}");
    // The entry is written once, even if two clients write it.
    let next = shared(request(&job, LONG));
    c.take(&next).await;
    lab.pass(Duration::from_millis(600)).await;
    b.renewed(&there, None).await;
    c.renewed(&next, None).await;
    end_hold(&mut c, &next, End::Exited(0)).await;
    end_hold(&mut b, &there, End::Exited(0)).await;
    let last = b.hold(&job).await;
    lab.pass(Duration::from_millis(600)).await;
    b.renewed(&last, None).await;
    end_hold(&mut b, &last, End::Exited(0)).await;
    let past = history(&mut c, &job).await.past;
    assert!(past.len() == 4 && expired(&past), "{past:?}");
}

async fn a_waiter_that_never_held_is_not_recorded(lab: &Lab) {
    let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
    let job = key("job");
    let held = a.hold(&job).await;
    b.refused(&with_host("web2")(Request {
        waiting: true,
        ..lab.expiring(&job, short())
    }))
    .await;
    // One waiter dies, and another one leaves.
    drop(b);
    let leaving = waiting(&job, LONG);
    c.refused(&leaving).await;
    c.leave_queue(&leaving).await;
    end_hold(&mut a, &held, End::Exited(0)).await;
    let next = waiting(&job, LONG);
    c.wait_for(&next, Duration::from_millis(200)).await;
    lab.pass(Duration::from_millis(600)).await;
    c.renewed(&next, None).await;
    end_hold(&mut c, &next, End::Exited(3)).await;
    let past = history(&mut a, &job).await.past;
    assert!(
        past.iter()
            .map(|past| &past.end)
            .eq([&End::Exited(3), &End::Exited(0)]),
        "{past:?}"
    );
}

async fn a_holder_that_waited_first_is_recorded_too(lab: &Lab) {
    let job = key("job");
    // The waiter is alone, or it is a reader next to another reader.
    for reading in [false, true]
        .into_iter()
        .filter(|reading| !reading || lab.kind.shared())
    {
        let (mut a, mut b, mut c) = (lab.client().await, lab.client().await, lab.client().await);
        let known = history(&mut c, &job).await.past.len();
        let held = a.hold(&job).await;
        let mode = if reading {
            Mode::Shared
        } else {
            Mode::Exclusive
        };
        let wanted = with_host("web2")(Request {
            waiting: true,
            mode,
            ..lab.expiring(&job, short())
        });
        let other_reader = Request {
            mode,
            ..waiting(&job, LONG)
        };
        if reading {
            c.refused(&other_reader).await;
        }
        b.refused(&wanted).await;
        end_hold(&mut a, &held, End::Exited(0)).await;
        let grant = b.wait_for(&wanted, Duration::from_millis(200)).await;
        drop(b);
        if reading {
            c.wait_for(&other_reader, Duration::from_millis(200)).await;
        }
        lab.outlast(grant.ttl.get()).await;
        let past = history(&mut a, &job).await.past;
        assert_eq!(past.len(), known + 2, "{past:?}");
        let it = past.iter().find(|past| past.fence == Some(grant.fence));
        assert!(
            it.is_some_and(|past| past.end == End::Expired && past.metadata == wanted.metadata),
            "{past:?}"
        );
        if reading {
            c.free(&other_reader).await;
        }
    }
}

async fn a_release_whose_answer_was_lost_is_recorded_once(lab: &Lab) {
    for fault in [Fault::CutAfter, Fault::Swallow] {
        let proxy = Proxy::to(lab.store().port());
        let mut a = lab.through(proxy.port);
        let job = key(&format!("job-{fault:?}"));
        let held = a.hold(&job).await;
        a.renewed(&held, None).await;
        proxy.trap(lab.kind.marks().changing, fault);
        let limits = Limits::of(Duration::from_secs(2));
        lease::release(
            &mut *a.0,
            &BootClock,
            &job,
            &held.token,
            &ended(End::Exited(7)),
            limits,
        )
        .await;
        assert_eq!(proxy.sprung(), 1);
        let past = history(&mut lab.client().await, &job).await.past;
        assert!(
            past.len() == 1 && past[0].end == End::Exited(7),
            "{fault:?}: {past:?}"
        );
    }
}

/// Whichever answer of an acquire is lost, no second hold appears in the history as vanished.
async fn a_run_whose_answers_were_lost_is_one_run(lab: &Lab) {
    for nth in 0.. {
        let proxy = Proxy::to(lab.store().port());
        let mut a = lab.through(proxy.port);
        a.inspect(&key("warm")).await;
        let asked = with_host("web1")(request(&key(&format!("job-{nth}")), LONG));
        proxy.trap_nth("", nth, 1, Fault::CutAfter);
        let limits = Limits::of(Duration::from_secs(2));
        let wait_policy = WaitPolicy::For(LONG);
        let outcome = lease::acquire(
            &mut *a.0,
            &BootClock,
            asked.clone(),
            wait_policy,
            limits,
            pending::<()>(),
            |_| {},
        )
        .await;
        let Ok(Outcome::Granted(lease)) = outcome else {
            panic!("answer {nth}: {outcome:?}")
        };
        let lost = proxy.sprung();
        lease::release(
            &mut *a.0,
            &BootClock,
            &asked.key,
            &asked.token,
            &ended(End::Exited(7)),
            limits,
        )
        .await;
        let past = history(&mut lab.client().await, &asked.key).await.past;
        let [
            HistoryEntry {
                fence: Some(fence),
                end: End::Exited(7),
                ..
            },
        ] = &past[..]
        else {
            panic!("answer {nth}: {past:?}")
        };
        assert_eq!(*fence, lease.fence);
        if lost == 0 {
            assert!(nth > 0, "no answer was lost");
            break;
        }
    }
}

/// Returns the break request that the cases about breaking use.
pub fn broken(why: &str) -> Break {
    Break {
        by: "ana@ops1".into(),
        why: Some(why.into()),
        seen: false,
    }
}
