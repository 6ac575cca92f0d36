//! Waits, wake-ups, leaving the queue, and dropped futures.

use super::*;

/// Runs `work` while `waiter` waits for `request`. Returns how long the wait went on after `work`
/// was done.
async fn woken_after(
    waiter: &mut Sqlite,
    request: &Request,
    work: impl Future<Output = ()>,
) -> Duration {
    let woken = async {
        acquire(waiter, request).await;
        Instant::now()
    };
    let work = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        work.await;
        Instant::now()
    };
    let (woken, done) = tokio::join!(woken, work);
    woken.saturating_duration_since(done)
}

#[tokio::test]
async fn a_release_wakes_a_waiter() {
    let (_keep, path) = place();
    for held in [request("job"), detached("job")] {
        let (mut holder, mut waiter) = (backend(&path), backend(&path));
        granted(&mut holder, &held).await;
        let wants = Request {
            waiting: true,
            ..request("job")
        };
        let late = woken_after(&mut waiter, &wants, async {
            let state = backend(&path).inspect(&held.key).await.unwrap();
            assert_eq!(state.waiters.len(), 1, "a waiter is seen");
            assert_eq!(state.waiters[0].metadata, wants.metadata);
            release(&mut holder, &held).await;
        })
        .await;
        assert!(late < Duration::from_millis(500), "{late:?}");
        assert!(
            waiter.inspect(&held.key).await.unwrap().waiters.is_empty(),
            "the new holder no longer waits"
        );
        release(&mut waiter, &wants).await;
    }
}

#[tokio::test]
async fn waiters_for_a_detached_hold_are_served_one_after_the_other() {
    let (_keep, path) = place();
    let held = detached("job");
    let mut holder = backend(&path);
    granted(&mut holder, &held).await;
    let waits = (0..5).map(|_| {
        let mut waiter = backend(&path);
        async move {
            let wants = Request {
                waiting: true,
                ..detached("job")
            };
            acquire(&mut waiter, &wants).await;
            release(&mut waiter, &wants).await;
        }
    });
    let start = Instant::now();
    let waits: Vec<_> = waits.map(Box::pin).collect();
    let all = async {
        for_each_at_once(waits).await;
    };
    tokio::join!(all, async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        release(&mut holder, &held).await;
    });
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
}

/// Polls all futures in one task.
pub(super) async fn for_each_at_once<F: Future<Output = ()> + Unpin>(mut work: Vec<F>) {
    std::future::poll_fn(|context| {
        work.retain_mut(|one| std::pin::Pin::new(one).poll(context).is_pending());
        if work.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

#[tokio::test]
async fn an_attached_waiter_gets_an_expired_detached_hold() {
    let (_keep, path) = place();
    granted(
        &mut backend(&path),
        &Request {
            ttl: ttl(1),
            ..detached("job")
        },
    )
    .await;
    let start = Instant::now();
    acquire(
        &mut backend(&path),
        &Request {
            waiting: true,
            ..request("job")
        },
    )
    .await;
    assert!(
        (800..2000).contains(&start.elapsed().as_millis()),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn a_dropped_waiter_that_left_consumes_no_wake_up() {
    let (_keep, path) = place();
    let (mut holder, mut quitter) = (backend(&path), backend(&path));
    let (held, wants) = (
        request("job"),
        Request {
            waiting: true,
            ..request("job")
        },
    );
    granted(&mut holder, &held).await;
    busy(&mut quitter, &wants).await;
    let dropped = tokio::time::timeout(
        Duration::from_millis(50),
        quitter.wait(&wants, Duration::from_secs(9)),
    )
    .await;
    assert!(dropped.is_err());
    quitter.leave_queue(&wants).await.unwrap();
    assert!(quitter.inspect(&held.key).await.unwrap().waiters.is_empty());
    release(&mut holder, &held).await;
    // The thread of the dropped wait unlocks the bytes at once.
    let start = Instant::now();
    acquire(&mut backend(&path), &request("job")).await;
    assert!(
        start.elapsed() < Duration::from_millis(500),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn a_lock_that_is_granted_while_leaving_is_passed_on() {
    let (_keep, path) = place();
    let (mut holder, mut quitter) = (backend(&path), backend(&path));
    let (held, wants) = (
        request("job"),
        Request {
            waiting: true,
            ..request("job")
        },
    );
    granted(&mut holder, &held).await;
    busy(&mut quitter, &wants).await;
    let _ = tokio::time::timeout(
        Duration::from_millis(20),
        quitter.wait(&wants, Duration::from_secs(9)),
    )
    .await;
    release(&mut holder, &held).await;
    // The thread has locked the bytes by now, although the wait was dropped.
    std::thread::sleep(Duration::from_millis(50));
    busy(&mut holder, &request("job")).await;
    quitter.leave_queue(&wants).await.unwrap();
    granted(&mut holder, &request("job")).await;
}

#[tokio::test]
async fn a_dropped_wait_can_be_repeated() {
    let (_keep, path) = place();
    let (mut holder, mut waiter) = (backend(&path), backend(&path));
    let (held, wants) = (
        request("job"),
        Request {
            waiting: true,
            ..request("job")
        },
    );
    granted(&mut holder, &held).await;
    busy(&mut waiter, &wants).await;
    for _ in 0..3 {
        let _ = tokio::time::timeout(
            Duration::from_millis(10),
            waiter.wait(&wants, Duration::from_secs(9)),
        )
        .await;
        busy(&mut waiter, &wants).await;
        assert_eq!(
            waiter.wait(&wants, Duration::from_millis(1)).await.unwrap(),
            Wake::TimedOut
        );
    }
    release(&mut holder, &held).await;
    assert_eq!(
        waiter.wait(&wants, Duration::from_secs(5)).await.unwrap(),
        Wake::Changed
    );
    granted(&mut waiter, &wants).await;
    // The thread that was blocked has ended, and can't lock or unlock anything now.
    release(&mut waiter, &wants).await;
    granted(&mut holder, &held).await;
    busy(&mut waiter, &wants).await;
}

#[tokio::test]
async fn a_dropped_attempt_is_repeated_or_undone() {
    let (_keep, path) = place();
    let mut other = backend(&path);
    for again in [true, false] {
        for wants in [request("job"), detached("job")] {
            let mut a = backend(&path);
            // Dropped after each possible number of polls.
            for polls in 1..12 {
                let mut attempt = Box::pin(a.try_acquire(&wants));
                for _ in 0..polls {
                    let step = tokio::time::timeout(Duration::from_micros(30), &mut attempt).await;
                    if step.is_ok() {
                        break;
                    }
                }
                drop(attempt);
                if again {
                    granted(&mut a, &wants).await;
                    busy(&mut other, &request("job")).await;
                    assert_eq!(release(&mut a, &wants).await, Release::Released);
                } else {
                    a.release(&wants.key, &wants.token, &Scope::Hold.into())
                        .await
                        .unwrap();
                    a.leave_queue(&wants).await.unwrap();
                }
                let free = request("job");
                granted(&mut other, &free).await;
                release(&mut other, &free).await;
            }
        }
    }
}
