use super::*;
use crate::lock::{Attempt, Busy, Entry, Grant, Intent, Key, Once, Renewal, Request, RunPolicy};

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
        metadata: Some(Metadata { host: Some("web1".into()), ..Metadata::default() }),
        ..Request::new(Key::new("job").unwrap(), Ttl::new(Duration::from_secs(60)).unwrap())
    }
}

pub(super) fn waiting(mode: Mode) -> Request {
    Request { waiting: true, ..request(mode) }
}

pub(super) fn fair(mode: Mode) -> Request {
    Request { fair: true, ..waiting(mode) }
}

impl World {
    fn new() -> Self {
        Self { document: Document::default(), now: 1_700_000_000_000, fence: 0, outside: None }
    }

    fn step(&mut self) -> Vec<HistoryEntry> {
        let mut read = Document::read(self.document.write().as_deref()).unwrap();
        (read.dirty, read.offered) = (self.document.dirty, std::mem::take(&mut self.document.offered));
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
        assert_eq!(self.document.release(&request.token, &Scope::Hold.into(), self.now), Release::Released);
    }

    fn woken(&mut self) -> Vec<String> {
        self.document.take_wake_ups(self.outside).into_iter().map(|woken| woken.hold).collect()
    }
}

fn holds(requests: &[&Request]) -> Vec<String> {
    requests.iter().map(|request| request.token.hold_text()).collect()
}

#[test]
fn an_empty_document_is_not_stored() {
    let mut world = World::new();
    assert_eq!(world.document.write(), None);
    let one = request(Mode::Shared);
    world.take(&one);
    assert!(world.document.write().is_some());
    world.free(&one);
    assert!(world.document.write().is_some(), "the outbox has not been emptied");
    assert_eq!(world.document.take_ended().len(), 1);
    assert_eq!(world.document.write(), None);
}

#[test]
fn newer_minor_layouts_are_read_and_newer_majors_refused() {
    let mut world = World::new();
    world.take(&request(Mode::Permits(3)));
    world.busy(&fair(Mode::Exclusive));
    let text = world.document.write().unwrap();
    assert!(text.starts_with(r#"{"v":100,"s":[{"o":""#) && text.contains(r#""m":"p3","n":0,"f":1,"#), "{text}");
    let newer = text.replace(r#""v":100"#, r#""v":107,"new":[1]"#).replace(r#""n":0"#, r#""n":0,"new":{}"#);
    assert_eq!(Document::read(Some(&newer)).unwrap().holders(world.now), world.document.holders(world.now));
    assert_eq!(Document::read(Some(r#"{"v":200,"s":7}"#)).unwrap_err().kind, Kind::Layout);
    for bad in ["", "[]", "{}", r#"{"v":100,"s":7}"#, &text.replace("p3", "z")] {
        assert_eq!(Document::read(Some(bad)).unwrap_err().kind, Kind::Data);
    }
}

#[test]
fn a_repeated_request_is_one_hold_and_nested_holds_expire_on_their_own() {
    let mut world = World::new();
    let outer = request(Mode::Permits(2));
    let inner =
        Request { token: outer.token.nested(), entry: Entry::Reenter, ttl: Ttl::new(Duration::from_secs(5)).unwrap(), ..outer.clone() };
    assert!(matches!(world.document.ask(&inner, world.now, None, || None), AskOutcome::NotHeld));
    let first = world.take(&outer);
    assert_eq!(world.take(&outer), first);
    assert_eq!((world.take(&inner).holds, world.take(&inner).permit), (2, Some(0)));
    world.now += 6 * SECOND;
    world.step();
    assert_eq!(world.document.renew(&inner.token, None.into(), world.now), Renewal::NotHeld);
    assert_eq!(world.document.verify(&outer.token, world.now), Renewal::Kept { expires_in: Some(Duration::from_secs(54)) });
    world.take(&inner);
    let info = ReleaseInfo::from(Scope::Tree);
    assert_eq!(world.document.clone().release(&inner.token, &info, world.now), Release::StillHeld(1));
    assert_eq!(world.document.release(&outer.token, &info, world.now), Release::Released);
}

#[test]
fn each_hold_expires_on_its_own_and_is_recorded() {
    let mut world = World::new();
    let (short, long) = (request(Mode::Shared), Request { ttl: Ttl::new(Duration::from_secs(90)).unwrap(), ..request(Mode::Shared) });
    world.take(&short);
    world.take(&long);
    world.now += 70 * SECOND;
    let past = world.step();
    assert_eq!((past.len(), past[0].fence, past[0].ended_ms), (1, Some(Fence(1)), Some(world.now - 10 * SECOND)));
    assert_eq!(world.document.ends(), Some(world.now + 20 * SECOND));
    let past = {
        world.document.lose(world.now);
        world.document.take_ended()
    };
    assert_eq!((past.len(), past[0].ended_ms, world.document.has_holders()), (1, Some(world.now), false));
}

#[test]
fn waiters_get_the_lock_after_a_foreign_hold_ends() {
    let mut world = World::new();
    world.outside = Some(world.now + 7 * SECOND);
    let (writer, reader) = (waiting(Mode::Exclusive), waiting(Mode::Shared));
    let busy = world.busy(&writer);
    assert_eq!((busy.position, busy.expires_in, busy.transient), (Some(1), Some(Duration::from_secs(7)), false));
    assert_eq!(world.busy(&reader).position, Some(2));
    assert!(world.woken().is_empty());
    world.outside = None;
    world.document.dirty = true;
    assert_eq!(world.woken(), holds(&[&writer, &reader]));
    let busy = world.busy(&reader);
    assert_eq!((busy.transient, busy.expires_in), (true, Some(Duration::from_secs(1))));
    assert_eq!(world.woken(), holds(&[&writer]), "the writer has an offer");
    world.take(&writer);
    assert!(world.woken().is_empty());
}

#[test]
fn waiters_from_the_plain_list_keep_their_positions() {
    let mut world = World::new();
    let reader = waiting(Mode::Shared);
    world.take(&request(Mode::Exclusive));
    world.busy(&reader);
    let now = world.now;
    world.document.absorb("0000000000000001".into(), None, now - 5, now);
    world.document.absorb("0000000000000002".into(), None, now + 5, now);
    world.document.absorb("0000000000000001".into(), None, now - 7, now);
    world.document.absorb("0000000000000003".into(), None, now - 5, now);
    let order: Vec<_> = world.document.waiters(now).into_iter().map(|(hold, _)| hold.to_owned()).collect();
    assert_eq!(order, ["0000000000000001", "0000000000000003", &*reader.token.hold_text(), "0000000000000002"]);
    let plain = fair(Mode::Exclusive);
    world.document.absorb(plain.token.hold_text(), None, now - 9, now);
    world.busy(&plain);
    assert!(world.document.waiters(now)[0].1.in_order, "the plain list does not know that the waiter wants fair order");
}

#[test]
fn a_granted_reader_wakes_the_next_and_a_writer_wakes_none() {
    let mut world = World::new();
    let writer = request(Mode::Exclusive);
    world.take(&writer);
    let readers: Vec<_> = (0..4).map(|_| waiting(Mode::Shared)).collect();
    for reader in &readers {
        world.busy(reader);
    }
    let last = waiting(Mode::Exclusive);
    world.busy(&last);
    assert!(world.woken().is_empty());
    world.free(&writer);
    let report = world.document.notified();
    assert_eq!(world.woken(), holds(&[&readers[0], &readers[1]]));
    assert!(world.woken().is_empty() && world.document.notified() == report + 1);
    world.take(&readers[0]);
    assert_eq!(world.woken(), holds(&[&readers[1], &readers[2]]));
    for reader in &readers[1..] {
        world.take(reader);
    }
    assert!(world.woken().is_empty(), "the writer waits for all readers");
    for reader in &readers {
        world.free(reader);
    }
    assert_eq!(world.woken(), holds(&[&last]));
}

#[test]
fn one_of_several_equal_waiters_is_woken() {
    let mut world = World::new();
    let holder = request(Mode::Exclusive);
    world.take(&holder);
    let all = [waiting(Mode::Exclusive), waiting(Mode::Exclusive), fair(Mode::Permits(2))];
    for one in &all {
        world.busy(one);
    }
    world.free(&holder);
    assert_eq!(world.woken(), holds(&[&all[0], &all[2]]));
}

#[test]
fn a_blocked_waiter_is_not_woken() {
    let mut world = World::new();
    world.take(&request(Mode::Shared));
    let (writer, reader) = (waiting(Mode::Exclusive), waiting(Mode::Shared));
    world.busy(&writer);
    let busy = world.busy(&reader);
    assert_eq!((busy.expires_in, busy.position), (Some(Duration::from_secs(15)), Some(2)));
    world.woken();
    world.document.dirty = true;
    assert!(world.woken().is_empty());
    world.document.leave(&writer.token);
    assert_eq!(world.woken(), holds(&[&reader]));
}

#[test]
fn an_offer_expires_even_if_the_clock_is_set_back() {
    let mut world = World::new();
    let holder = request(Mode::Exclusive);
    world.take(&holder);
    let (dead, next) = (fair(Mode::Exclusive), fair(Mode::Exclusive));
    world.busy(&dead);
    world.busy(&next);
    world.free(&holder);
    assert_eq!(world.busy(&next).expires_in, Some(Duration::from_secs(1)));
    world.now -= 3600 * SECOND;
    assert_eq!(world.busy(&next).expires_in, Some(Duration::from_secs(1)));
    world.woken();
    world.now += SECOND;
    world.take(&next);
    assert!(world.document.waiters(world.now).is_empty());
    assert_eq!(world.woken(), holds(&[&dead]), "the waiter may only be slow");
}

#[test]
fn a_silent_waiter_is_removed() {
    let mut world = World::new();
    let holder = request(Mode::Shared);
    world.take(&holder);
    world.busy(&waiting(Mode::Exclusive));
    let reader = waiting(Mode::Shared);
    world.busy(&reader);
    world.now += 14 * SECOND;
    world.busy(&reader);
    world.woken();
    world.now += SECOND;
    world.step();
    assert_eq!(world.woken(), holds(&[&reader]));
    world.take(&reader);
}

#[test]
fn a_break_applies_to_one_hold_and_stays_seen() {
    let mut world = World::new();
    let (one, two) = (request(Mode::Shared), request(Mode::Shared));
    let (fence, _) = (world.take(&one).fence, world.take(&two));
    let mark = Break { by: "ann@desk".into(), why: None, seen: false };
    assert!(world.document.mark(fence, &mark));
    assert_eq!(world.document.renew(&one.token, None.into(), world.now), Renewal::Broken(mark.clone()));
    let stop = Intent::Drain;
    assert!(matches!(world.document.renew(&one.token, stop, world.now), Renewal::Renewed { .. }));
    assert!(world.document.mark(fence, &mark));
    assert!(world.document.holders(world.now)[0].broken.as_ref().unwrap().seen);
    assert!(matches!(world.document.renew(&two.token, None.into(), world.now), Renewal::Renewed { .. }));
    assert!(world.document.evict(fence, &mark, world.now) && !world.document.evict(fence, &mark, world.now));
    assert_eq!(world.document.holders(world.now).len(), 1);
}

#[test]
fn waiters_without_fair_order_hold_up_none_of_their_kind() {
    for first in [waiting(Mode::Exclusive), waiting(Mode::Shared), fair(Mode::Shared)] {
        let mut world = World::new();
        let holder = request(Mode::Exclusive);
        world.take(&holder);
        world.busy(&first);
        world.free(&holder);
        world.take(&request(first.mode));
    }
}

#[test]
fn a_later_permit_is_granted_if_all_before_it_have_room_too() {
    let mut world = World::new();
    let held = [(); 3].map(|()| request(Mode::Permits(3)));
    assert_eq!(held.each_ref().map(|one| world.take(one).permit), [Some(0), Some(1), Some(2)]);
    let [first, second] = [(); 2].map(|()| fair(Mode::Permits(3)));
    world.busy(&first);
    world.busy(&second);
    world.free(&held[1]);
    assert_eq!(world.busy(&second).expires_in, Some(Duration::from_secs(1)), "the one permit is offered to the first");
    world.free(&held[0]);
    assert_eq!((world.take(&second).permit, world.take(&first).permit), (Some(0), Some(1)));
}

/// Returns for how many ms the waiter must let others go first, and whom its question wakes.
fn question(world: &mut World, of: &Request) -> (u128, Vec<String>) {
    let busy = world.busy(of);
    (busy.expires_in.unwrap().as_millis(), world.woken())
}

#[test]
fn a_silent_first_waiter_holds_the_others_up_for_one_offer() {
    for (b_asks, woken_later) in [(false, true), (true, false)] {
        let mut world = World::new();
        let holder = request(Mode::Exclusive);
        world.take(&holder);
        let [a, b, c] = [(); 3].map(|()| fair(Mode::Exclusive));
        for one in [&a, &b, &c] {
            world.busy(one);
        }
        world.now += 5 * SECOND;
        world.free(&holder);
        world.woken();
        assert_eq!(question(&mut world, &c), (200, holds(&[&a])));
        if b_asks {
            assert_eq!(question(&mut world, &b), (1000, vec![]), "in the same ms");
        }
        world.now += 50;
        assert_eq!(question(&mut world, &c), (150, vec![]));
        world.now += 150;
        assert_eq!(question(&mut world, &c), (800, if woken_later { holds(&[&b]) } else { vec![] }));
        world.now += 100;
        assert_eq!(question(&mut world, &c), (700, vec![]), "only one offer");
        assert_eq!(question(&mut world, &b), (700, vec![]));
        world.now += 100;
        assert_eq!(question(&mut world, &c), (600, vec![]), "the second waiter has asked since");
        world.now += 600;
        assert_eq!(question(&mut world, &c), (1000, holds(&[&a, &b])), "the first has lost its position");
    }
}

#[test]
fn a_waiter_without_room_gets_no_offer() {
    let mut world = World::new();
    let held = [(); 4].map(|()| request(Mode::Permits(4)));
    for one in &held {
        world.take(one);
    }
    let (first, writer, last) = (fair(Mode::Permits(4)), fair(Mode::Exclusive), fair(Mode::Permits(4)));
    for one in [&first, &writer, &last] {
        world.busy(one);
    }
    world.now += SECOND;
    held[1..].iter().for_each(|one| world.free(one));
    world.woken();
    assert_eq!(question(&mut world, &last), (200, holds(&[&first])), "not all before it want permits");
    world.now += 200;
    assert_eq!(question(&mut world, &last), (800, vec![]));
}

#[test]
fn a_lost_lock_wakes_a_waiter() {
    let mut world = World::new();
    let (holder, waiter) = (request(Mode::Exclusive), waiting(Mode::Exclusive));
    world.take(&holder);
    world.busy(&waiter);
    assert!(world.woken().is_empty());
    world.document.lose(world.now);
    assert_eq!(world.woken(), holds(&[&waiter]));
    assert!(world.document.leave(&waiter.token) && !world.document.leave(&waiter.token));
}

#[test]
fn a_waiter_is_blocked_by_the_one_in_front_of_it_and_the_first_by_the_holders() {
    let mut world = World::new();
    let (holder, first, second) = (request(Mode::Exclusive), waiting(Mode::Exclusive), waiting(Mode::Exclusive));
    world.take(&holder);
    world.busy(&first);
    world.busy(&second);
    assert_eq!(world.document.blocking_holds(&second.token.hold_text()), holds(&[&first]));
    assert_eq!(world.document.blocking_holds(&first.token.hold_text()), holds(&[&holder]));
}

#[test]
fn a_hold_keeps_its_fence_and_is_never_cut_short() {
    let mut world = World::new();
    let one = request(Mode::Exclusive);
    world.take(&one);
    assert_eq!((world.document.fence(&one.token), world.document.fence(&one.token.nested())), (Some(Fence(1)), None));
    assert_eq!(world.document.lasts(&one.token), Some(world.now + 60 * SECOND));
    assert_eq!(world.document.lasts(&request(Mode::Exclusive).token), None);
    world.now += SECOND;
    let shorter = Intent::Extend(Some(Ttl::new(Duration::from_secs(10)).unwrap()));
    assert_eq!(world.document.renew(&one.token, shorter, world.now), Renewal::Kept { expires_in: Some(Duration::from_secs(59)) });
    let inner = Request { token: one.token.nested(), entry: Entry::Reenter, mode: Mode::Permits(2), ..one };
    assert!(matches!(world.document.ask(&inner, world.now, None, || None), AskOutcome::Otherwise(Mode::Exclusive)));
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
    record.begin(&Request { run_policy: Some(policy(true, false, true)), ..waiter }, Fence(2), world.now);
    world.document.set_run_record(record);
    let read = Document::read(world.document.write().as_deref()).unwrap();
    assert_eq!((read.notified(), read.warned(), read.run_record()), (1, (2, 3), world.document.run_record()));
}

fn policy(guarded: bool, at_least: bool, once: bool) -> RunPolicy {
    let length = Duration::from_secs(5);
    RunPolicy {
        place: "a".into(),
        skew_guard: guarded.then_some(length),
        at_least: at_least.then_some(length),
        once: once.then_some(Once { window: length, retry_failed: 0, retry_crashed: false }),
        anyway: false,
    }
}

/// A grant may be cut short before its start is recorded, by an error or a dropped call.
#[test]
fn a_repeated_request_records_what_is_missing_and_only_that() {
    for (guarded, at_least, once) in [(true, false, false), (false, true, false), (false, false, true), (true, true, true)] {
        let asked = Request { run_policy: Some(policy(guarded, at_least, once)), ..request(Mode::Exclusive) };
        let inner = Request { token: asked.token.nested(), entry: Entry::Reenter, ..asked.clone() };
        let mut document = Document::default();
        let ask = |document: &mut Document, request: &Request, now| {
            let context = RequestContext { now, outside: None, fence: Fence(now) };
            assert!(matches!(document.acquire(request, &context).unwrap(), Attempt::Granted(_)));
            document.run_record().clone()
        };
        let complete = ask(&mut document, &asked, 1);
        assert_eq!(ask(&mut document, &asked, 2), complete, "{complete:?}");
        let parts = [RunRecord { cooldown: None, ..complete.clone() }, RunRecord { start: None, ..complete.clone() }];
        for part in parts.into_iter().filter(|part| *part != complete) {
            document.set_run_record(part.clone());
            assert_eq!(ask(&mut document, &inner, 3), part, "a nested run is part of the one around it");
            let RunRecord { cooldown, start } = ask(&mut document, &asked, 4);
            let fence = [cooldown.map(|cooldown| cooldown.fence), start.map(|start| start.fence)];
            assert_eq!(fence, [(guarded || at_least).then_some(Fence(1)), once.then_some(Fence(1))]);
        }
    }
}
