//! Waking waiters: a lost wake-up is soon recovered, and no cost grows with the number of waiters.

use std::{cell::Cell, rc::Rc, time::Duration};

use super::server::{TestServer, busy, granted, key, pause, request, waiting};
use crate::{
    backends::redis::Redis,
    lease::BootClock,
    lock::{Attempt, Backend as _, Key, Mode, Release, Request, Scope, Token, Wake},
};

const LONG: Duration = Duration::from_secs(5);

async fn release(backend: &mut Redis, request: &Request) {
    assert_eq!(
        backend
            .release(&request.key, &request.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::Released
    );
}

#[tokio::test]
async fn a_wait_ends_on_time_and_a_new_connection_asks_before_it_blocks() {
    let server = TestServer::start();
    let (mut holder, mut waiter) = (server.backend(), server.backend());
    let asked = waiting("job");
    granted(&mut holder, &request("job")).await;
    busy(&mut waiter, &asked).await;
    assert_eq!(
        waiter.wait(&asked, Duration::ZERO).await.unwrap(),
        Wake::TimedOut
    );
    assert_eq!(
        waiter
            .wait(&asked, Duration::from_micros(300))
            .await
            .unwrap(),
        Wake::TimedOut
    );
    assert_eq!(
        waiter
            .wait(&asked, Duration::from_millis(30))
            .await
            .unwrap(),
        Wake::TimedOut
    );
    // A dropped wait closes its connection, and a wake-up may be lost with it.
    assert!(
        tokio::time::timeout(Duration::from_millis(30), waiter.wait(&asked, LONG))
            .await
            .is_err()
    );
    assert_eq!(waiter.wait(&asked, LONG).await.unwrap(), Wake::Changed);
    busy(&mut waiter, &asked).await;
    assert_eq!(
        waiter
            .wait(&asked, Duration::from_millis(30))
            .await
            .unwrap(),
        Wake::TimedOut
    );
}

#[tokio::test]
async fn a_wake_up_for_a_dropped_wait_is_passed_on() {
    let server = TestServer::start();
    let (mut holder, mut first, mut second) =
        (server.backend(), server.backend(), server.backend());
    let (held, leaves, stays) = (request("job"), waiting("job"), waiting("job"));
    granted(&mut holder, &held).await;
    busy(&mut first, &leaves).await;
    busy(&mut second, &stays).await;
    {
        // Polled only until it blocks in the server: the pushed wake-up is popped for a future that
        // is then dropped.
        let blocked = first.wait(&leaves, LONG);
        tokio::pin!(blocked);
        assert!(
            tokio::time::timeout(Duration::from_millis(50), &mut blocked)
                .await
                .is_err()
        );
        release(&mut holder, &held).await;
    }
    assert_eq!(server.int(&["LLEN", "dlock:{dlock:job}:wake"]), 0);
    let (woken, left) = tokio::join!(second.wait(&stays, LONG), first.leave_queue(&leaves));
    left.unwrap();
    assert_eq!(woken.unwrap(), Wake::Changed);
    granted(&mut second, &stays).await;
}

#[tokio::test]
async fn the_queue_reports_positions_and_drops_dead_waiters() {
    let server = TestServer::start();
    let mut holder = server.backend();
    granted(&mut holder, &request("job")).await;
    let dead = waiting("job");
    assert_eq!(busy(&mut server.backend(), &dead).await.position, Some(1));
    let (mut second, mut third) = (server.backend(), server.backend());
    let (asked, later) = (waiting("job"), waiting("job"));
    pause(3).await;
    assert_eq!(busy(&mut second, &asked).await.position, Some(2));
    pause(3).await;
    assert_eq!(busy(&mut third, &later).await.position, Some(3));
    assert_eq!(
        busy(&mut second, &asked).await.position,
        Some(2),
        "a repeated request keeps the position"
    );
    server.command(&[
        "HSET",
        "dlock:{dlock:job}:waiters",
        &dead.token.hold_text(),
        "1000:",
    ]);
    assert_eq!(busy(&mut second, &asked).await.position, Some(1));
    assert_eq!(busy(&mut third, &later).await.position, Some(2));
    for name in ["dlock:{dlock:job}:queue", "dlock:{dlock:job}:waiters"] {
        assert!(
            (15_000..=20_000).contains(&server.int(&["PTTL", name])),
            "{name}"
        );
    }
}

/// Acquires as the lease core does, with waits, and releases at once.
async fn wait_and_release(mut backend: Redis, asked: Request, waits: Rc<Cell<u64>>) {
    loop {
        match backend.try_acquire(&asked).await.unwrap() {
            Attempt::Granted(_) => break,
            Attempt::Busy(_) => {
                waits.set(waits.get() + 1);
                backend.wait(&asked, LONG).await.unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
    backend.leave_queue(&asked).await.unwrap();
    release(&mut backend, &asked).await;
}

/// The cost of handing the lock through `count` waiters, each of which releases it at once.
struct Drain {
    /// Commands per hand-over, including those in scripts.
    commands: u64,
    /// Commands from clients per hand-over.
    sent: u64,
    elapsed: Duration,
}

async fn drain(count: u64) -> Drain {
    let (drain, waits) = drain_of(count, || waiting("job")).await;
    assert_eq!(waits, count, "no waiter was woken in vain");
    drain
}

/// The same for waiters of any mode; also returns how often they waited.
async fn drain_of(count: u64, ask: impl Fn() -> Request) -> (Drain, u64) {
    let server = TestServer::start();
    let mut holder = server.backend();
    // The server has all scripts cached from here on, like any server in use.
    for asked in [waiting("job"), waiting("other"), ask()] {
        granted(&mut holder, &asked).await;
        release(&mut holder, &asked).await;
    }
    let held = request("job");
    granted(&mut holder, &held).await;
    let local = tokio::task::LocalSet::new();
    let waits = Rc::new(Cell::new(0));
    let tasks: Vec<_> = (0..count)
        .map(|_| local.spawn_local(wait_and_release(server.backend(), ask(), waits.clone())))
        .collect();
    let (elapsed, counts) = local
        .run_until(async {
            while waits.get() < count {
                pause(5).await;
            }
            pause(50).await;
            server.command(&["CONFIG", "RESETSTAT"]);
            let before = BootClock::read();
            release(&mut holder, &held).await;
            for task in tasks {
                task.await.unwrap();
            }
            (BootClock::read().since(before), server.commands())
        })
        .await;
    let of = |names: &[&str]| {
        counts
            .iter()
            .filter(|(name, _)| names.contains(&&**name))
            .map(|(_, calls)| calls)
            .sum::<u64>()
    };
    assert_eq!(of(&["eval"]), 0);
    // The first release comes on top of the hand-overs. The blocking calls were counted before.
    let all: u64 = counts.iter().map(|(_, calls)| calls).sum();
    (
        Drain {
            commands: all / (count + 1),
            sent: of(&["evalsha"]).div_ceil(count + 1) + 1,
            elapsed,
        },
        waits.get(),
    )
}

#[tokio::test]
async fn commands_per_hand_over_do_not_grow_with_the_waiters() {
    for count in [1, 20, 100] {
        let Drain {
            commands,
            sent,
            elapsed,
        } = drain(count).await;
        assert!(
            commands <= 29 && sent <= 3,
            "{count} waiters: {commands} commands, {sent} of them sent, {elapsed:?}"
        );
        let limit = Duration::from_millis(10 * count + 500) * support::slowness();
        assert!(elapsed < limit, "{count} waiters: {elapsed:?}");
    }
}

#[tokio::test]
async fn commands_per_hand_over_do_not_grow_with_ordered_waiters() {
    let fair = || Request {
        fair: true,
        ..waiting("job")
    };
    let reader = || Request {
        mode: Mode::Shared,
        ..waiting("job")
    };
    let permit = || Request {
        mode: Mode::Permits(3),
        ..waiting("job")
    };
    let kinds: [(&str, &dyn Fn() -> Request); 3] =
        [("fair", &fair), ("readers", &reader), ("permits", &permit)];
    for (kind, ask) in kinds {
        for count in [20, 100] {
            // Two waiters are woken at a time, and one of them may have to wait again.
            let (
                Drain {
                    commands,
                    sent,
                    elapsed,
                },
                waits,
            ) = drain_of(count, ask).await;
            let report = format!(
                "{count} {kind}: {commands} commands, {sent} of them sent, {waits} waits, {elapsed:?}"
            );
            assert!(
                commands <= 74 && sent <= 4 && waits <= 2 * count,
                "{report}"
            );
        }
    }
}

#[tokio::test]
async fn a_waiter_is_not_woken_by_another_lock() {
    let server = TestServer::start();
    let (mut holder, mut waiter) = (server.backend(), server.backend());
    let (job, other, asked) = (request("job"), request("other"), waiting("job"));
    granted(&mut holder, &job).await;
    granted(&mut holder, &other).await;
    busy(&mut waiter, &asked).await;
    let (woken, ()) = tokio::join!(waiter.wait(&asked, Duration::from_millis(200)), async {
        pause(50).await;
        release(&mut holder, &other).await;
    });
    assert_eq!(woken.unwrap(), Wake::TimedOut);
    // Only the lock that was requested on this connection is known to be busy.
    let stranger: Key = key("other");
    let elsewhere = Request {
        key: stranger,
        token: Token::random(),
        ..asked.clone()
    };
    assert_eq!(waiter.wait(&elsewhere, LONG).await.unwrap(), Wake::Changed);
}

#[tokio::test]
async fn any_number_of_dead_fair_waiters_cost_one_offer() {
    let server = TestServer::start();
    let (mut holder, mut lives) = (server.backend(), server.backend());
    let fair = || Request {
        fair: true,
        ..waiting("job")
    };
    let held = request("job");
    granted(&mut holder, &held).await;
    for _ in 0..10 {
        busy(&mut server.backend(), &fair()).await;
    }
    let asked = fair();
    busy(&mut lives, &asked).await;
    let turn = async {
        loop {
            match lives.try_acquire(&asked).await.unwrap() {
                Attempt::Granted(_) => return BootClock::read(),
                Attempt::Busy(found) => {
                    let most = found.expires_in.unwrap_or(LONG).min(LONG);
                    lives
                        .wait(&asked, most + Duration::from_millis(1))
                        .await
                        .unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
    };
    let (granted, released) = tokio::join!(turn, async {
        pause(100).await;
        release(&mut holder, &held).await;
        BootClock::read()
    });
    let idle = granted.since(released);
    assert!(
        idle >= Duration::from_millis(900) && idle < Duration::from_millis(2500),
        "{idle:?}"
    );
    let sides = ["line", "fair", "waiters"].map(|side| format!("dlock:{{dlock:job}}:{side}"));
    assert_eq!(
        server.int(&[&["EXISTS"], &sides.each_ref().map(String::as_str)[..]].concat()),
        0
    );
}
