use std::collections::HashSet;

use super::{record::*, *};
use crate::lock::{
    Break, End, Fence, Key, Kind, Release, Request, RunRecord, Scope, Token, Ttl,
    document::{AskOutcome, Document},
    random,
};

const EXCLUSIVE: Mode = Mode::Exclusive;
const SHARED: Mode = Mode::Shared;

const fn permit(most: u32) -> Mode {
    Mode::Permits(most)
}

fn queue(all: &[(Mode, GrantEvidence)], permits: &[u32]) -> Contenders {
    Contenders::new(
        all.iter()
            .map(|(mode, state)| Contender {
                mode: *mode,
                state: *state,
            })
            .collect(),
        permits.to_vec(),
    )
}

fn holders(queue: &Contenders) -> Vec<usize> {
    queue.holders().collect()
}

#[test]
fn writers_wait_for_all_ahead_and_readers_for_writers() {
    let queue = queue(
        &[SHARED, SHARED, EXCLUSIVE, SHARED, EXCLUSIVE, SHARED]
            .map(|mode| (mode, GrantEvidence::Unknown)),
        &[],
    );
    assert_eq!(holders(&queue), [0, 1]);
    let blockers: Vec<_> = (0..queue.len())
        .map(|at| queue.blocker(queue.all()[at].mode, at))
        .collect();
    assert_eq!(blockers, [None, None, Some(1), Some(2), Some(3), Some(4)]);
    assert_eq!(
        (queue.position(2), queue.position(5), queue.position(6)),
        (1, 4, 5)
    );
    assert!(!queue.is_held_alone() && !queue.only_waiters_block(EXCLUSIVE));
}

#[test]
fn a_waiter_is_not_a_holder_at_any_position() {
    let kept = queue(
        &[
            (EXCLUSIVE, GrantEvidence::Waits),
            (SHARED, GrantEvidence::Waits),
        ],
        &[],
    );
    assert!(holders(&kept).is_empty());
    assert!(
        kept.only_waiters_block(EXCLUSIVE)
            && !kept.may_hold(SHARED, 2)
            && kept.may_hold(EXCLUSIVE, 0)
    );
    let held = queue(
        &[
            (EXCLUSIVE, GrantEvidence::Unknown),
            (SHARED, GrantEvidence::Waits),
        ],
        &[],
    );
    assert_eq!((holders(&held), held.is_held_alone()), (vec![0], true));
}

#[test]
fn permits_are_granted_out_of_order_if_all_ahead_fit_too() {
    let waits = [
        (permit(2), GrantEvidence::Granted),
        (permit(2), GrantEvidence::Waits),
        (permit(3), GrantEvidence::Waits),
    ];
    let queue = queue(&waits, &[1]);
    assert_eq!(
        (queue.free_number(), queue.may_hold(permit(2), 1)),
        (0, true)
    );
    assert!(queue.may_hold(permit(3), 2) && !queue.may_hold(permit(2), 2));
    assert!(
        queue.may_hold(permit(4), 3)
            && !queue.may_hold(permit(3), 3)
            && !queue.may_hold(EXCLUSIVE, 3)
    );
    assert!(
        queue.may_hold(permit(1), 0),
        "a holder's own permit doesn't block it"
    );
    assert!(queue.only_waiters_block(permit(2)) && !queue.only_waiters_block(SHARED));
}

#[test]
fn one_waiter_for_permits_waits_for_held_ones() {
    let (granted, waits) = (GrantEvidence::Granted, GrantEvidence::Waits);
    let queue = queue(
        &[
            (permit(2), granted),
            (permit(2), waits),
            (permit(2), granted),
            (permit(2), waits),
            (permit(5), waits),
        ],
        &[0, 1],
    );
    let awaited = |mode, at| {
        let Awaited { contender, permits } = queue.awaited(mode, at);
        (contender, permits)
    };
    assert_eq!(awaited(permit(2), 1), (None, true));
    assert_eq!(
        awaited(permit(2), 3),
        (Some(1), false),
        "the contender in between holds a permit"
    );
    assert_eq!(
        awaited(permit(5), 4),
        (Some(3), true),
        "this contender allows more permits than all ahead of it"
    );
    assert_eq!(awaited(EXCLUSIVE, 5), (Some(4), false));
}

#[test]
fn a_permit_whose_number_was_deleted_counts_until_its_holder_goes() {
    let queue = queue(
        &[
            (permit(2), GrantEvidence::Granted),
            (permit(2), GrantEvidence::Granted),
        ],
        &[1],
    );
    assert!(!queue.may_hold(permit(2), 2) && queue.may_hold(permit(3), 2));
    assert_eq!(queue.free_number(), 0);
}

/// Compares the queue with the document: for random requests in any order, both grant the same.
#[test]
fn random_contenders_match_the_document() {
    let seed = std::env::var("DLOCK_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(random);
    let mut state = seed;
    let mut pick = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut document, mut fence) = (Document::default(), 0);
    let mut all: Vec<(Request, GrantEvidence, Option<u32>)> = Vec::new();
    for step in 0..4000 {
        let now = 1_700_000_000_000;
        let known = usize::try_from(pick(8)).unwrap();
        if known < all.len() && pick(3) == 0 {
            let (request, state, _) = all.remove(known);
            if state == GrantEvidence::Granted {
                assert_eq!(
                    document.release(&request.token, &Scope::Tree.into(), now),
                    Release::Released,
                    "seed {seed}, step {step}"
                );
            } else {
                document.leave(&request.token);
            }
            continue;
        }
        let mode = match pick(6) {
            0 | 1 => EXCLUSIVE,
            2 | 3 => SHARED,
            _ => permit(u32::try_from(pick(3)).unwrap() + 1),
        };
        let new = || Request {
            mode,
            fair: true,
            waiting: true,
            ..Request::new(Key::new("job").unwrap(), Ttl::DEFAULT)
        };
        let request = match all.get(known) {
            Some((_, GrantEvidence::Granted, _)) => continue,
            Some((request, ..)) => request.clone(),
            None if all.len() > 7 => continue,
            None => Request {
                waiting: pick(4) > 0,
                ..new()
            },
        };
        let at = all
            .iter()
            .position(|(other, ..)| other.token == request.token)
            .unwrap_or(all.len());
        let contenders = all
            .iter()
            .map(|(request, state, _)| Contender {
                mode: request.mode,
                state: *state,
            })
            .collect();
        let queue = Contenders::new(
            contenders,
            all.iter().filter_map(|(.., number)| *number).collect(),
        );
        assert_eq!(
            queue.holders().collect::<HashSet<_>>().len(),
            document.holders(now).len(),
            "seed {seed}, step {step}"
        );
        let expected = match document.ask(&request, now, None, || None) {
            AskOutcome::Go => {
                fence += 1;
                Some(document.grant(&request, Fence(fence), now).permit)
            }
            AskOutcome::Busy(_) => None,
            other => panic!("seed {seed}, step {step}: {other:?}"),
        };
        let number = matches!(request.mode, Mode::Permits(_)).then(|| queue.free_number());
        let found = queue.may_hold(request.mode, at).then_some(number);
        assert_eq!(
            found, expected,
            "seed {seed}, step {step}: {request:?} at {at} of {queue:?}"
        );
        if found.is_some() || request.waiting {
            let entry = (
                request,
                if found.is_some() {
                    GrantEvidence::Granted
                } else {
                    GrantEvidence::Waits
                },
                found.flatten(),
            );
            if at < all.len() {
                all[at] = entry;
            } else {
                all.push(entry);
            }
        }
    }
}

#[test]
fn foreign_data_is_ignored_and_other_layouts_are_refused() {
    for foreign in [
        "",
        "192.168.0.7",
        "{}",
        "[1]",
        r#"{"dlock":7}"#,
        "\u{0}",
        r#"{"dlock":"2.0","detached":7}"#,
    ] {
        assert_eq!(
            ContenderInfo::read(foreign.as_bytes()).unwrap(),
            None,
            "{foreign}"
        );
    }
    for other in ["1.0", "3.0", "10", "?"] {
        let error =
            ContenderInfo::read(format!(r#"{{"dlock":"{other}"}}"#).as_bytes()).unwrap_err();
        assert_eq!(
            (error.kind, error.hint.is_some()),
            (Kind::Layout, true),
            "{other}"
        );
    }
    let minor =
        ContenderInfo::read(br#"{"dlock":"2.7","hold":"00","detached":true,"new":{"a":1}}"#)
            .unwrap()
            .unwrap();
    assert_eq!(
        (minor.hold.as_deref(), minor.detached, minor.metadata),
        (Some("00"), true, None)
    );
}

#[test]
fn only_a_granted_record_is_a_hold() {
    let request = |mode| Request {
        mode,
        at_ms: Some(5),
        ..Request::new(Key::new("job").unwrap(), Ttl::DEFAULT)
    };
    for mode in [EXCLUSIVE, SHARED, permit(3)] {
        let waiting = HoldRecord::read(&HoldRecord::waiting(mode).write()).unwrap();
        assert_eq!(
            (waiting.mode, waiting.history_entry(Fence(7))),
            (mode, None)
        );
        let held = HoldRecord::read(&HoldRecord::of(&request(mode), None).write()).unwrap();
        assert_eq!(held.mode, mode);
        let past = held.history_entry(Fence(7)).unwrap();
        assert_eq!(
            (past.fence, past.started_ms, past.end),
            (Some(Fence(7)), Some(5), End::Expired)
        );
        // A rewritten record keeps its fence.
        let again = HoldRecord::read(&held.named(Fence(4)).write()).unwrap();
        assert_eq!(again.history_entry(Fence(9)).unwrap().fence, Some(Fence(4)));
    }
    assert!(
        HoldRecord::waiting(SHARED).delays(EXCLUSIVE)
            && !HoldRecord::waiting(SHARED).delays(SHARED)
    );
    assert!(
        ["", "{", "permit 3", "{}"]
            .iter()
            .all(|other| HoldRecord::read(other.as_bytes()).is_none())
    );
}

#[test]
fn the_newest_vanished_hold_that_was_no_reader_is_kept() {
    let record = |mode, is_hold| HoldRecord {
        is_hold,
        ..HoldRecord::waiting(mode)
    };
    let vanished = |last: &[(Mode, bool)]| {
        let readers = std::iter::repeat_n((SHARED, true), history::SPARE);
        let all: Vec<_> = readers
            .chain(last.iter().copied())
            .map(|(mode, is_hold)| record(mode, is_hold))
            .collect();
        history::outdated(
            all.iter()
                .zip(1..)
                .map(|(record, fence)| (record, Fence(fence))),
        )
    };
    let first = u64::try_from(history::SPARE).unwrap() + 1;
    assert_eq!(vanished(&[]), None, "there are too few to prune");
    assert_eq!(
        vanished(&[(SHARED, true), (EXCLUSIVE, false)]),
        None,
        "readers and waiters"
    );
    assert_eq!(
        vanished(&[(EXCLUSIVE, true), (SHARED, true)]),
        Some(Fence(first))
    );
    assert_eq!(
        vanished(&[(EXCLUSIVE, true), (permit(2), true)]),
        Some(Fence(first + 1))
    );
}

#[test]
fn a_break_request_stays_seen_and_each_level_warns_once() {
    let mark = |by: &str| Break {
        by: by.into(),
        why: None,
        seen: false,
    };
    let marked = HoldRecord::waiting(EXCLUSIVE).marked(&mark("ana"));
    let seen = marked.seen().unwrap();
    assert!(
        seen.seen().is_none()
            && seen
                .clone()
                .marked(&mark("bob"))
                .mark
                .is_some_and(|mark| mark.seen && mark.by == "bob")
    );
    let warned = seen.warned(2).unwrap();
    assert!(
        warned.clone().warned(2).is_none()
            && warned.clone().warned(1).is_none()
            && warned.clone().warned(3).is_some()
    );
    assert_eq!(HoldRecord::read(&warned.write()), Some(warned));
}

#[test]
fn run_records_survive_a_round_trip() {
    let mut record = RunRecord::default();
    let run_policy = crate::lock::RunPolicy {
        place: "a".into(),
        skew_guard: Some(Duration::from_millis(500)),
        at_least: None,
        once: None,
        anyway: false,
    };
    let request = Request {
        run_policy: Some(run_policy),
        token: Token::random(),
        ..Request::new(Key::new("job").unwrap(), Ttl::DEFAULT)
    };
    record.begin(&request, Fence(3), 5);
    assert_eq!(read_runs(&write_runs(&record)).unwrap(), record);
    for (data, kind) in [
        (&b"garbage"[..], Kind::Data),
        (br#"{"s":1,"f":2,"p":"a"}"#, Kind::Layout),
        (br#"{"dlock":"3.0"}"#, Kind::Layout),
    ] {
        assert_eq!(read_runs(data).unwrap_err().kind, kind);
    }
}

#[test]
fn damaged_records_are_refused_or_read() {
    let run = Request {
        at_ms: Some(1_800_000_000_000),
        ..Request::new(Key::new("job").unwrap(), Ttl::DEFAULT)
    };
    let json = |data: Vec<u8>| serde_json::from_slice::<serde_json::Value>(&data).unwrap();
    let mark = Break {
        by: "ana@ops1".into(),
        why: None,
        seen: true,
    };
    let hold = json(HoldRecord::of(&run, Some(Fence(7))).marked(&mark).write());
    let said = json(
        ContenderInfo {
            hold: Some("00000000000000aa".into()),
            ..ContenderInfo::of(&run)
        }
        .write(),
    );
    let mut record = RunRecord::default();
    let once = crate::lock::Once {
        window: std::time::Duration::from_secs(60),
        retry_failed: 1,
        retry_crashed: false,
    };
    let run_policy = crate::lock::RunPolicy {
        place: "web1".into(),
        skew_guard: Some(once.window),
        at_least: Some(once.window),
        once: Some(once),
        anyway: false,
    };
    record.begin(
        &Request {
            run_policy: Some(run_policy.clone()),
            ..run.clone()
        },
        Fence(7),
        1_800_000_000_000,
    );
    let runs = json(write_runs(&record));
    let mut read = 0;
    crate::damage::each(|dice| {
        let mut of =
            |json: &serde_json::Value| crate::damage::json(json, dice).to_string().into_bytes();
        let (hold, said, runs) = (
            HoldRecord::read(&of(&hold)),
            ContenderInfo::read(&of(&said)),
            read_runs(&of(&runs)),
        );
        read += u64::from(hold.is_some() && runs.is_ok());
        let _ = ContenderInfo::holder(said.ok().flatten().as_ref(), hold.as_ref(), EXCLUSIVE);
        let _ = hold.map(|hold| {
            (
                hold.history_entry(Fence(9)),
                hold.clone().marked(&mark).seen(),
                hold.warned(1),
            )
        });
        let _ = runs.map(|runs| {
            (
                runs.judge(Some(&run_policy), &run.token, 1_800_000_000_500),
                runs.relevant(u64::MAX),
            )
        });
    });
    assert!(
        read > crate::damage::TRIES / 20,
        "only {read} could be read at all"
    );
}

#[test]
fn a_grant_that_breaks_a_rule_is_found() {
    use GrantEvidence::{Granted, Unknown, Waits};
    let of = |all: &[(Mode, GrantEvidence)]| queue(all, &[]).broken_rule();
    for right in [
        &[(EXCLUSIVE, Granted), (EXCLUSIVE, Waits)][..],
        &[
            (SHARED, Granted),
            (SHARED, Unknown),
            (SHARED, Granted),
            (EXCLUSIVE, Unknown),
        ],
        &[
            (permit(1), Granted),
            (permit(2), Waits),
            (permit(2), Granted),
        ],
    ] {
        assert_eq!(of(right), None);
    }
    for (wrong, text) in [
        (
            &[(EXCLUSIVE, Granted), (EXCLUSIVE, Granted)][..],
            "contender 1 was granted the lock behind 0",
        ),
        (
            &[(EXCLUSIVE, Unknown), (SHARED, Granted)],
            "contender 1 was granted the lock behind 0",
        ),
        (
            &[(SHARED, Granted), (permit(2), Granted)],
            "contender 1 was granted the lock behind 0",
        ),
        (
            &[(permit(2), Granted); 3],
            "3 permits of at most 2 are held",
        ),
    ] {
        assert!(
            of(wrong).is_some_and(|said| said.contains(text)),
            "{:?}",
            of(wrong)
        );
    }
    let twice = queue(&[(EXCLUSIVE, Granted); 2], &[]);
    let panic = std::panic::catch_unwind(|| twice.check("job")).unwrap_err();
    assert!(
        panic
            .downcast_ref::<String>()
            .unwrap()
            .starts_with("lock job: the contender 1")
    );
}
