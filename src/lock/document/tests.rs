mod queue;

use super::*;
use crate::lock::{
    Attempt, Busy, Entry, Grant, Intent, Key, Once, Renewal, Request, RunPolicy, Ttl,
};

const SECOND: u64 = 1000;

/// A document with a clock and a counter. Each step first writes the document and reads it back.
struct World {
    document: Document,
    now: u64,
    fence: u64,
    outside: Option<u64>,
}

pub(super) fn request(mode: Mode) -> Request {
    Request {
        mode,
        metadata: Some(Metadata {
            host: Some("web1".into()),
            ..Metadata::default()
        }),
        ..Request::new(
            Key::new("job").unwrap(),
            Ttl::new(Duration::from_secs(60)).unwrap(),
        )
    }
}

pub(super) fn waiting(mode: Mode) -> Request {
    Request {
        waiting: true,
        ..request(mode)
    }
}

pub(super) fn fair(mode: Mode) -> Request {
    Request {
        fair: true,
        ..waiting(mode)
    }
}

impl World {
    fn new() -> Self {
        Self {
            document: Document::default(),
            now: 1_700_000_000_000,
            fence: 0,
            outside: None,
        }
    }

    fn step(&mut self) -> Vec<HistoryEntry> {
        let mut read = Document::read(self.document.write().as_deref()).unwrap();
        (read.dirty, read.offered) = (
            self.document.dirty,
            std::mem::take(&mut self.document.offered),
        );
        assert_eq!(read.write(), self.document.write());
        self.document = read;
        self.document.expire(self.now);
        self.document.take_ended()
    }

    fn ask(&mut self, request: &Request) -> std::result::Result<Grant, Busy> {
        self.step();
        match self.document.ask(request, self.now, self.outside, || None) {
            AskOutcome::Has(grant) => Ok(grant),
            AskOutcome::Go => {
                self.fence += 1;
                Ok(self.document.grant(request, Fence(self.fence), self.now))
            }
            AskOutcome::Busy(busy) => Err(busy),
            other => panic!("{other:?}"),
        }
    }

    fn take(&mut self, request: &Request) -> Grant {
        self.ask(request).unwrap()
    }

    fn busy(&mut self, request: &Request) -> Busy {
        self.ask(request).unwrap_err()
    }

    fn free(&mut self, request: &Request) {
        self.step();
        assert_eq!(
            self.document
                .release(&request.token, &Scope::Hold.into(), self.now),
            Release::Released
        );
    }

    fn woken(&mut self) -> Vec<String> {
        self.document
            .take_wake_ups(self.outside)
            .into_iter()
            .map(|woken| woken.hold)
            .collect()
    }
}

fn holds(requests: &[&Request]) -> Vec<String> {
    requests
        .iter()
        .map(|request| request.token.hold_text())
        .collect()
}

#[test]
fn an_empty_document_is_not_stored() {
    let mut world = World::new();
    assert_eq!(world.document.write(), None);
    let one = request(Mode::Shared);
    world.take(&one);
    assert!(world.document.write().is_some());
    world.free(&one);
    assert!(
        world.document.write().is_some(),
        "the outbox has not been emptied"
    );
    assert_eq!(world.document.take_ended().len(), 1);
    assert_eq!(world.document.write(), None);
}

#[test]
fn newer_minor_layouts_are_read_and_newer_majors_refused() {
    let mut world = World::new();
    world.take(&request(Mode::Permits(3)));
    world.busy(&fair(Mode::Exclusive));
    let text = world.document.write().unwrap();
    assert!(
        text.starts_with(r#"{"v":100,"s":[{"o":""#) && text.contains(r#""m":"p3","n":0,"f":1,"#),
        "{text}"
    );
    let newer = text
        .replace(r#""v":100"#, r#""v":107,"new":[1]"#)
        .replace(r#""n":0"#, r#""n":0,"new":{}"#);
    assert_eq!(
        Document::read(Some(&newer)).unwrap().holders(world.now),
        world.document.holders(world.now)
    );
    assert_eq!(
        Document::read(Some(r#"{"v":200,"s":7}"#)).unwrap_err().kind,
        Kind::Layout
    );
    for bad in [
        "",
        "[]",
        "{}",
        r#"{"v":100,"s":7}"#,
        &text.replace("p3", "z"),
    ] {
        assert_eq!(Document::read(Some(bad)).unwrap_err().kind, Kind::Data);
    }
}

#[test]
fn a_repeated_request_is_one_hold_and_nested_holds_expire_on_their_own() {
    let mut world = World::new();
    let outer = request(Mode::Permits(2));
    let inner = Request {
        token: outer.token.nested(),
        entry: Entry::Reenter,
        ttl: Ttl::new(Duration::from_secs(5)).unwrap(),
        ..outer.clone()
    };
    assert!(matches!(
        world.document.ask(&inner, world.now, None, || None),
        AskOutcome::NotHeld
    ));
    let first = world.take(&outer);
    assert_eq!(world.take(&outer), first);
    assert_eq!(
        (world.take(&inner).holds, world.take(&inner).permit),
        (2, Some(0))
    );
    world.now += 6 * SECOND;
    world.step();
    assert_eq!(
        world.document.renew(&inner.token, None.into(), world.now),
        Renewal::NotHeld
    );
    assert_eq!(
        world.document.verify(&outer.token, world.now),
        Renewal::Kept {
            expires_in: Some(Duration::from_secs(54))
        }
    );
    world.take(&inner);
    let info = ReleaseInfo::from(Scope::Tree);
    assert_eq!(
        world
            .document
            .clone()
            .release(&inner.token, &info, world.now),
        Release::StillHeld(1)
    );
    assert_eq!(
        world.document.release(&outer.token, &info, world.now),
        Release::Released
    );
}

#[test]
fn each_hold_expires_on_its_own_and_is_recorded() {
    let mut world = World::new();
    let (short, long) = (
        request(Mode::Shared),
        Request {
            ttl: Ttl::new(Duration::from_secs(90)).unwrap(),
            ..request(Mode::Shared)
        },
    );
    world.take(&short);
    world.take(&long);
    world.now += 70 * SECOND;
    let past = world.step();
    assert_eq!(
        (past.len(), past[0].fence, past[0].ended_ms),
        (1, Some(Fence(1)), Some(world.now - 10 * SECOND))
    );
    assert_eq!(world.document.ends(), Some(world.now + 20 * SECOND));
    let past = {
        world.document.lose(world.now);
        world.document.take_ended()
    };
    assert_eq!(
        (past.len(), past[0].ended_ms, world.document.has_holders()),
        (1, Some(world.now), false)
    );
}

#[test]
fn a_break_applies_to_one_hold_and_stays_seen() {
    let mut world = World::new();
    let (one, two) = (request(Mode::Shared), request(Mode::Shared));
    let (fence, _) = (world.take(&one).fence, world.take(&two));
    let mark = Break {
        by: "ann@desk".into(),
        why: None,
        seen: false,
    };
    assert!(world.document.mark(fence, &mark));
    assert_eq!(
        world.document.renew(&one.token, None.into(), world.now),
        Renewal::Broken(mark.clone())
    );
    let stop = Intent::Drain;
    assert!(matches!(
        world.document.renew(&one.token, stop, world.now),
        Renewal::Renewed { .. }
    ));
    assert!(world.document.mark(fence, &mark));
    assert!(
        world.document.holders(world.now)[0]
            .broken
            .as_ref()
            .unwrap()
            .seen
    );
    assert!(matches!(
        world.document.renew(&two.token, None.into(), world.now),
        Renewal::Renewed { .. }
    ));
    assert!(
        world.document.evict(fence, &mark, world.now)
            && !world.document.evict(fence, &mark, world.now)
    );
    assert_eq!(world.document.holders(world.now).len(), 1);
}

#[test]
fn a_hold_keeps_its_fence_and_is_never_cut_short() {
    let mut world = World::new();
    let one = request(Mode::Exclusive);
    world.take(&one);
    assert_eq!(
        (
            world.document.fence(&one.token),
            world.document.fence(&one.token.nested())
        ),
        (Some(Fence(1)), None)
    );
    assert_eq!(
        world.document.lasts(&one.token),
        Some(world.now + 60 * SECOND)
    );
    assert_eq!(world.document.lasts(&request(Mode::Exclusive).token), None);
    world.now += SECOND;
    let shorter = Intent::Extend(Some(Ttl::new(Duration::from_secs(10)).unwrap()));
    assert_eq!(
        world.document.renew(&one.token, shorter, world.now),
        Renewal::Kept {
            expires_in: Some(Duration::from_secs(59))
        }
    );
    let inner = Request {
        token: one.token.nested(),
        entry: Entry::Reenter,
        mode: Mode::Permits(2),
        ..one
    };
    assert!(matches!(
        world.document.ask(&inner, world.now, None, || None),
        AskOutcome::Otherwise(Mode::Exclusive)
    ));
}

#[test]
fn all_parts_are_stored_and_empty_ones_are_not() {
    let mut world = World::new();
    let (holder, waiter) = (request(Mode::Shared), waiting(Mode::Exclusive));
    world.take(&holder);
    let least = world.document.write().unwrap();
    let parts: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&least).unwrap();
    assert_eq!(parts.keys().collect::<Vec<_>>(), ["s", "v"], "{least}");
    world.busy(&waiter);
    world.free(&holder);
    world.woken();
    world.take(&waiter);
    assert!(world.document.claim_warning(Fence(2), 3));
    let mut record = RunRecord::default();
    record.begin(
        &Request {
            run_policy: Some(policy(true, false, true)),
            ..waiter
        },
        Fence(2),
        world.now,
    );
    world.document.set_run_record(record);
    let read = Document::read(world.document.write().as_deref()).unwrap();
    assert_eq!(
        (read.notified(), read.warned(), read.run_record()),
        (1, (2, 3), world.document.run_record())
    );
}

fn policy(guarded: bool, at_least: bool, once: bool) -> RunPolicy {
    let length = Duration::from_secs(5);
    RunPolicy {
        place: "a".into(),
        skew_guard: guarded.then_some(length),
        at_least: at_least.then_some(length),
        once: once.then_some(Once {
            window: length,
            retry_failed: 0,
            retry_crashed: false,
        }),
        anyway: false,
    }
}

/// A grant may be cut short before its start is recorded, by an error or a dropped call.
#[test]
fn a_repeated_request_records_what_is_missing_and_only_that() {
    for (guarded, at_least, once) in [
        (true, false, false),
        (false, true, false),
        (false, false, true),
        (true, true, true),
    ] {
        let asked = Request {
            run_policy: Some(policy(guarded, at_least, once)),
            ..request(Mode::Exclusive)
        };
        let inner = Request {
            token: asked.token.nested(),
            entry: Entry::Reenter,
            ..asked.clone()
        };
        let mut document = Document::default();
        let ask = |document: &mut Document, request: &Request, now| {
            let context = RequestContext {
                now,
                outside: None,
                fence: Fence(now),
            };
            assert!(matches!(
                document.acquire(request, &context).unwrap(),
                Attempt::Granted(_)
            ));
            document.run_record().clone()
        };
        let complete = ask(&mut document, &asked, 1);
        assert_eq!(ask(&mut document, &asked, 2), complete, "{complete:?}");
        let parts = [
            RunRecord {
                cooldown: None,
                ..complete.clone()
            },
            RunRecord {
                start: None,
                ..complete.clone()
            },
        ];
        for part in parts.into_iter().filter(|part| *part != complete) {
            document.set_run_record(part.clone());
            assert_eq!(
                ask(&mut document, &inner, 3),
                part,
                "a nested run is part of the one around it"
            );
            let RunRecord {
                cooldown, start, ..
            } = ask(&mut document, &asked, 4);
            let fence = [
                cooldown.map(|cooldown| cooldown.fence),
                start.map(|start| start.fence),
            ];
            assert_eq!(
                fence,
                [
                    (guarded || at_least).then_some(Fence(1)),
                    once.then_some(Fence(1))
                ]
            );
        }
    }
}
