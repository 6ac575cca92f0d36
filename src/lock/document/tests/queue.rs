//! The order of the queue, wake-ups, and the lifetime of offers.

use super::*;

#[test]
fn waiters_get_the_lock_after_a_foreign_hold_ends() {
    let mut world = World::new();
    world.outside = Some(world.now + 7 * SECOND);
    let (writer, reader) = (waiting(Mode::Exclusive), waiting(Mode::Shared));
    let busy = world.busy(&writer);
    assert_eq!(
        (busy.position, busy.expires_in, busy.transient),
        (Some(1), Some(Duration::from_secs(7)), false)
    );
    assert_eq!(world.busy(&reader).position, Some(2));
    assert!(world.woken().is_empty());
    world.outside = None;
    world.document.dirty = true;
    assert_eq!(world.woken(), holds(&[&writer, &reader]));
    let busy = world.busy(&reader);
    assert_eq!(
        (busy.transient, busy.expires_in),
        (true, Some(Duration::from_secs(1)))
    );
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
    world
        .document
        .absorb("0000000000000001".into(), None, now - 5, now);
    world
        .document
        .absorb("0000000000000002".into(), None, now + 5, now);
    world
        .document
        .absorb("0000000000000001".into(), None, now - 7, now);
    world
        .document
        .absorb("0000000000000003".into(), None, now - 5, now);
    let order: Vec<_> = world
        .document
        .waiters(now)
        .into_iter()
        .map(|(hold, _)| hold.to_owned())
        .collect();
    assert_eq!(
        order,
        [
            "0000000000000001",
            "0000000000000003",
            &*reader.token.hold_text(),
            "0000000000000002"
        ]
    );
    let plain = fair(Mode::Exclusive);
    world
        .document
        .absorb(plain.token.hold_text(), None, now - 9, now);
    world.busy(&plain);
    assert!(
        world.document.waiters(now)[0].1.in_order,
        "the plain list does not know that the waiter wants fair order"
    );
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
    let all = [
        waiting(Mode::Exclusive),
        waiting(Mode::Exclusive),
        fair(Mode::Permits(2)),
    ];
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
    assert_eq!(
        (busy.expires_in, busy.position),
        (Some(Duration::from_secs(15)), Some(2))
    );
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
    assert_eq!(
        world.woken(),
        holds(&[&dead]),
        "the waiter may only be slow"
    );
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
fn waiters_without_fair_order_hold_up_none_of_their_kind() {
    for first in [
        waiting(Mode::Exclusive),
        waiting(Mode::Shared),
        fair(Mode::Shared),
    ] {
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
    assert_eq!(
        held.each_ref().map(|one| world.take(one).permit),
        [Some(0), Some(1), Some(2)]
    );
    let [first, second] = [(); 2].map(|()| fair(Mode::Permits(3)));
    world.busy(&first);
    world.busy(&second);
    world.free(&held[1]);
    assert_eq!(
        world.busy(&second).expires_in,
        Some(Duration::from_secs(1)),
        "the one permit is offered to the first"
    );
    world.free(&held[0]);
    assert_eq!(
        (world.take(&second).permit, world.take(&first).permit),
        (Some(0), Some(1))
    );
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
        assert_eq!(
            question(&mut world, &c),
            (800, if woken_later { holds(&[&b]) } else { vec![] })
        );
        world.now += 100;
        assert_eq!(question(&mut world, &c), (700, vec![]), "only one offer");
        assert_eq!(question(&mut world, &b), (700, vec![]));
        world.now += 100;
        assert_eq!(
            question(&mut world, &c),
            (600, vec![]),
            "the second waiter has asked since"
        );
        world.now += 600;
        assert_eq!(
            question(&mut world, &c),
            (1000, holds(&[&a, &b])),
            "the first has lost its position"
        );
    }
}

#[test]
fn a_waiter_without_room_gets_no_offer() {
    let mut world = World::new();
    let held = [(); 4].map(|()| request(Mode::Permits(4)));
    for one in &held {
        world.take(one);
    }
    let (first, writer, last) = (
        fair(Mode::Permits(4)),
        fair(Mode::Exclusive),
        fair(Mode::Permits(4)),
    );
    for one in [&first, &writer, &last] {
        world.busy(one);
    }
    world.now += SECOND;
    held[1..].iter().for_each(|one| world.free(one));
    world.woken();
    assert_eq!(
        question(&mut world, &last),
        (200, holds(&[&first])),
        "not all before it want permits"
    );
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
    let (holder, first, second) = (
        request(Mode::Exclusive),
        waiting(Mode::Exclusive),
        waiting(Mode::Exclusive),
    );
    world.take(&holder);
    world.busy(&first);
    world.busy(&second);
    assert_eq!(
        world.document.blocking_holds(&second.token.hold_text()),
        holds(&[&first])
    );
    assert_eq!(
        world.document.blocking_holds(&first.token.hold_text()),
        holds(&[&holder])
    );
}
