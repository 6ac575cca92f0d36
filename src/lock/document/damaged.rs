//! Documents that no dlock wrote: no use of such a document panics, and dlock can read the document
//! that it writes after that.

use super::{
    tests::{fair, request, waiting},
    *,
};
use crate::{
    damage::{self, Dice},
    lock::{Intent, Once, Request, RunPolicy},
};

const NOW: u64 = 1_800_000_000_000;

/// Returns a document with every part that a document can have.
fn whole() -> serde_json::Value {
    let mut document = Document::default();
    let readers = [
        request(Mode::Shared),
        Request {
            detached: true,
            ..request(Mode::Shared)
        },
    ];
    for (nth, request) in readers.iter().enumerate() {
        document.grant(request, Fence(nth as u64 + 7), NOW - 1000);
    }
    for request in [
        waiting(Mode::Exclusive),
        fair(Mode::Shared),
        fair(Mode::Permits(3)),
        waiting(Mode::Shared),
    ] {
        document.ask(&request, NOW - 500, None, || None);
    }
    document.mark(Fence(7), &mark());
    document.evict(Fence(8), &mark(), NOW - 100);
    document.claim_warning(Fence(7), 2);
    let mut run = Document::default();
    let once = Once {
        window: Duration::from_secs(86_400),
        retry_failed: 2,
        retry_crashed: true,
    };
    let run_policy = RunPolicy {
        place: "web1".into(),
        skew_guard: Some(once.window),
        at_least: Some(once.window),
        once: Some(once),
        anyway: false,
    };
    let run_once = Request {
        run_policy: Some(run_policy),
        ..request(Mode::Exclusive)
    };
    run.acquire(
        &run_once,
        &RequestContext {
            now: NOW - 9000,
            outside: None,
            fence: Fence(6),
        },
    )
    .unwrap();
    document.set_run_record(run.run_record().clone());
    serde_json::from_str(&document.write().unwrap()).unwrap()
}

fn mark() -> Break {
    Break {
        by: "ana@ops1".into(),
        why: Some("stuck".into()),
        seen: false,
    }
}

fn use_it(mut document: Document, dice: &mut Dice) {
    let now = [0, NOW, NOW + 100_000, u64::MAX / 1000][dice.below(4)];
    let outside = [None, Some(0), Some(NOW + 5000), Some(u64::MAX)][dice.below(4)];
    let fences: Vec<_> = document.fences().collect();
    document.expire(now);
    let (_, _) = (document.holders(now), document.waiters(now));
    let (_, _, _) = (
        document.ends(),
        document.holds_end_after(now),
        document.run_record().relevant(now),
    );
    for fence in fences {
        document.vanished(fence);
        document.claim_warning(fence, 3);
        if dice.below(2) == 0 {
            document.mark(fence, &mark())
        } else {
            document.evict(fence, &mark(), now)
        };
    }
    let fence = Fence(u64::MAX >> dice.below(20));
    for request in [
        request(Mode::Exclusive),
        fair(Mode::Shared),
        waiting(Mode::Permits(2)),
    ] {
        let _ = document.acquire(
            &request,
            &RequestContext {
                now,
                outside,
                fence,
            },
        );
        document.renew(&request.token, Intent::Extend(None), now);
        document.verify(&request.token, now);
        document.take_wake_ups(outside);
        document.release(&request.token, &ReleaseInfo::UNDO, now);
        document.leave(&request.token);
    }
    document.take_ended();
    let written = document.write();
    assert_eq!(Document::read(written.as_deref()).unwrap().write(), written);
}

#[test]
fn a_damaged_document_is_refused_or_used() {
    let whole = whole();
    let mut read = 0;
    damage::each(|dice| {
        let json = damage::json(&whole, dice).to_string();
        if let Ok(document) = Document::read(Some(&json)) {
            read += 1;
            use_it(document, dice);
        }
    });
    assert!(
        read > damage::TRIES / 20,
        "only {read} could be read at all"
    );
}

#[test]
fn damaged_text_is_no_document() {
    let whole = whole().to_string();
    damage::each(|dice| {
        let text = damage::text(&whole, dice);
        if let Ok(document) = Document::read(Some(&text)) {
            use_it(document, dice);
        }
    });
}
