//! Readers, permits and fair order. The kernel's locks show which processes live.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use super::{processes::Other, waits::for_each_at_once, *};
use crate::lock::{End, Progress, Renewal};

const SOON: Duration = Duration::from_millis(500);

fn reader(name: &str) -> Request {
    Request {
        mode: Mode::Shared,
        ..request(name)
    }
}

fn permit(of: u32, name: &str) -> Request {
    Request {
        mode: Mode::Permits(of),
        ..request(name)
    }
}

fn waiting(of: Request) -> Request {
    Request {
        waiting: true,
        ..of
    }
}

/// Starts a process that holds `job` in that mode, and returns it with its fence.
fn holder(path: &Path, mode: &str, child: &str) -> (Other, u64) {
    let mut other = Other::start(&format!("hold-{mode}|{}|{child}", path.display()));
    assert_eq!(other.says(), "ready");
    let fence = other.says().parse().unwrap();
    (other, fence)
}

async fn holders(path: &Path) -> usize {
    backend(path)
        .inspect(&key("job"))
        .await
        .unwrap()
        .holders
        .len()
}

#[tokio::test]
async fn a_killed_readers_share_ends_at_once_and_its_siblings_goes_on() {
    let (_keep, path) = place();
    let (dies, fence) = holder(&path, "s", "alone");
    let mut sibling = backend(&path);
    let lives = reader("job");
    granted(&mut sibling, &lives).await;
    let mut writer = backend(&path);
    let wants = waiting(request("job"));
    busy(&mut writer, &wants).await;
    dies.signal(Signal::KILL);
    drop(dies);
    assert_eq!(holders(&path).await, 1);
    busy(&mut writer, &wants).await;
    assert!(matches!(
        sibling
            .renew(&lives.key, &lives.token, None.into())
            .await
            .unwrap(),
        Renewal::Renewed { .. }
    ));
    let past = sibling.history(&lives.key).await.unwrap().past;
    assert!(
        past.len() == 1 && past[0].end == End::Expired && past[0].fence.unwrap().0 == fence,
        "{past:?}"
    );
    assert_eq!(release(&mut sibling, &lives).await, Release::Released);
    let start = Instant::now();
    acquire(&mut writer, &wants).await;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_writer_has_the_lock_at_once_when_the_last_reader_is_killed() {
    let (_keep, path) = place();
    let (one, _) = holder(&path, "s", "alone");
    let (two, _) = holder(&path, "s", "alone");
    let mut writer = backend(&path);
    let wants = waiting(request("job"));
    busy(&mut writer, &wants).await;
    one.signal(Signal::KILL);
    two.signal(Signal::KILL);
    let start = Instant::now();
    acquire(&mut writer, &wants).await;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[tokio::test]
async fn the_next_waiter_has_a_killed_holders_permit_at_once() {
    let (_keep, path) = place();
    for child in ["alone", "child"] {
        let (mut dies, _) = holder(&path, "p", child);
        let child: Option<i32> = (child == "child").then(|| dies.says().parse().unwrap());
        let mut other = backend(&path);
        let held = permit(2, "job");
        assert_eq!(granted(&mut other, &held).await.permit, Some(1));
        let mut waiter = backend(&path);
        let wants = waiting(permit(2, "job"));
        let kill = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            dies.signal(Signal::KILL);
            if let Some(child) = child {
                // The child inherits the lock file, like a guardian, for longer than the lease of
                // one second.
                tokio::time::sleep(Duration::from_millis(1300)).await;
                assert_eq!(holders(&path).await, 2);
                kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
            }
            Instant::now()
        };
        let (grant, killed) = tokio::join!(acquire(&mut waiter, &wants), kill);
        assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
        assert_eq!(grant.permit, Some(0));
        release(&mut waiter, &wants).await;
        release(&mut other, &held).await;
    }
}

#[tokio::test]
async fn a_frozen_permit_lasts_until_the_final_deadline() {
    let (_keep, path) = place();
    let mut frozen = backend(&path);
    let last_resort = frozen.prepare(true).unwrap().unwrap();
    let held = Request {
        ttl: ttl(1),
        ..permit(1, "job")
    };
    granted(&mut frozen, &held).await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let mut waiter = backend(&path);
    let wants = waiting(permit(1, "job"));
    assert_eq!(
        busy(&mut waiter, &wants).await.holders.len(),
        1,
        "no process releases the hold of a living one"
    );
    let resort = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        last_resort();
        Instant::now()
    };
    let (_, resorted) = tokio::join!(acquire(&mut waiter, &wants), resort);
    assert!(resorted.elapsed() < SOON, "{:?}", resorted.elapsed());
    assert_eq!(
        frozen
            .renew(&held.key, &held.token, None.into())
            .await
            .unwrap(),
        Renewal::NotHeld
    );
    assert_eq!(release(&mut frozen, &held).await, Release::NotHeld);
    assert_eq!(holders(&path).await, 1);
    assert_eq!(release(&mut waiter, &wants).await, Release::Released);
}

#[tokio::test]
async fn a_waiter_that_died_in_the_queue_delays_no_other() {
    let (_keep, path) = place();
    let mut a = backend(&path);
    let held = request("job");
    granted(&mut a, &held).await;
    let mut dead = Other::start(&format!("hold-f|{}|alone", path.display()));
    assert_eq!(dead.says(), "ready");
    while a.inspect(&held.key).await.unwrap().waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut next = backend(&path);
    let wants = Request {
        fair: true,
        ..waiting(request("job"))
    };
    assert_eq!(busy(&mut next, &wants).await.position, Some(2));
    dead.signal(Signal::STOP);
    release(&mut a, &held).await;
    // The lock is offered to the first waiter, which then dies.
    let killed = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        dead.signal(Signal::KILL);
        Instant::now()
    };
    let (_, killed) = tokio::join!(acquire(&mut next, &wants), killed);
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    assert!(dead.is_silent());
}

#[tokio::test]
async fn a_waiter_that_lost_its_position_wakes_those_behind_it() {
    let (_keep, path) = place();
    let mut holder = backend(&path);
    let held = permit(1, "job");
    granted(&mut holder, &held).await;
    let [mut first, mut second, mut third, mut newcomer] = [(); 4].map(|()| backend(&path));
    let [one, two, three] = [(); 3].map(|()| Request {
        fair: true,
        ..waiting(permit(1, "job"))
    });
    busy(&mut first, &one).await;
    busy(&mut second, &two).await;
    busy(&mut third, &three).await;
    let asleep = async {
        third.wait(&three, Duration::from_secs(20)).await.unwrap();
        Instant::now()
    };
    let others = async {
        release(&mut holder, &held).await;
        // The first two do not take their turns, and the third is asleep.
        let wants = waiting(permit(1, "job"));
        acquire(&mut newcomer, &wants).await;
        assert_eq!(busy(&mut first, &one).await.position, Some(1));
        Instant::now()
    };
    let (woken, asked) = tokio::join!(asleep, others);
    assert!(
        woken.saturating_duration_since(asked) < SOON,
        "{:?}",
        woken - asked
    );
}

#[tokio::test]
async fn a_crash_leaves_nothing_that_blocks_later_requests() {
    let (_keep, path) = place();
    let outer = reader("job");
    let (mut a, mut b) = (backend(&path), backend(&path));
    granted(&mut a, &outer).await;
    granted(
        &mut a,
        &Request {
            token: outer.token.nested(),
            entry: Entry::Reenter,
            ..reader("job")
        },
    )
    .await;
    busy(&mut b, &waiting(request("job"))).await;
    busy(
        &mut b,
        &Request {
            fair: true,
            ..waiting(permit(2, "job"))
        },
    )
    .await;
    die(a);
    die(b);
    let mut c = backend(&path);
    let state = c.inspect(&outer.key).await.unwrap();
    assert!(
        state.holders.is_empty() && state.waiters.is_empty(),
        "{state:?}"
    );
    assert!(c.list("", &Progress::default()).await.unwrap().is_empty());
    for wants in [request("job"), permit(1, "job"), reader("job")] {
        granted(&mut c, &wants).await;
        assert_eq!(release(&mut c, &wants).await, Release::Released);
    }
    assert_eq!(
        c.renew(&outer.key, &outer.token, None.into())
            .await
            .unwrap(),
        Renewal::NotHeld
    );
}

#[tokio::test]
async fn a_nested_hold_keeps_the_share_of_an_outer_one_that_died() {
    let (_keep, path) = place();
    let (mut a, mut b, mut c) = (backend(&path), backend(&path), backend(&path));
    let outer = permit(1, "job");
    granted(&mut a, &outer).await;
    let inner = nested(&outer);
    assert_eq!(granted(&mut b, &inner).await.holds, 2);
    die(a);
    busy(&mut c, &permit(1, "job")).await;
    busy(&mut c, &request("job")).await;
    assert!(matches!(
        b.renew(&inner.key, &inner.token, None.into())
            .await
            .unwrap(),
        Renewal::Renewed { .. }
    ));
    assert_eq!(
        b.release(&inner.key, &inner.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::Released
    );
    granted(&mut c, &request("job")).await;
}

#[tokio::test]
async fn a_nested_hold_whose_process_is_gone_does_not_keep_the_share() {
    let (_keep, path) = place();
    let (mut a, mut b) = (backend(&path), backend(&path));
    let outer = reader("job");
    granted(&mut a, &outer).await;
    granted(&mut b, &nested(&outer)).await;
    die(b);
    assert_eq!(
        a.release(&outer.key, &outer.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::Released
    );
    granted(&mut backend(&path), &request("job")).await;
}

#[tokio::test]
async fn no_share_is_granted_while_a_nested_hold_lives() {
    let (_keep, path) = place();
    let (mut a, mut b, mut c) = (backend(&path), backend(&path), backend(&path));
    let outer = request("job");
    granted(&mut a, &outer).await;
    let inner = nested(&outer);
    granted(&mut b, &inner).await;
    die(a);
    busy(&mut c, &reader("job")).await;
    assert_eq!(
        b.release(&inner.key, &inner.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::Released
    );
    granted(&mut c, &reader("job")).await;
}

#[tokio::test]
async fn a_wait_for_one_mode_does_not_become_a_wait_for_another() {
    let (_keep, path) = place();
    let (mut a, mut b, mut c) = (backend(&path), backend(&path), backend(&path));
    for (held, first, second) in [
        (request("job"), reader("job"), request("job")),
        (reader("job"), request("job"), reader("job")),
    ] {
        granted(&mut a, &held).await;
        let first = waiting(first);
        busy(&mut b, &first).await;
        let _ = tokio::time::timeout(
            Duration::from_millis(50),
            b.wait(&first, Duration::from_secs(9)),
        )
        .await;
        b.leave_queue(&first).await.unwrap();
        // The thread of the dropped wait is still in the kernel's queue.
        busy(&mut b, &second).await;
        release(&mut a, &held).await;
        let second = waiting(second);
        acquire(&mut b, &second).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let beside = if second.mode == Mode::Exclusive {
            reader("job")
        } else {
            request("job")
        };
        busy(&mut c, &beside).await;
        assert_eq!(release(&mut b, &second).await, Release::Released);
    }
}

#[tokio::test]
async fn a_share_is_not_lost_with_the_lock_file() {
    let (_keep, path) = place();
    let (mut a, mut b) = (backend(&path), backend(&path));
    let held = permit(1, "job");
    granted(&mut a, &held).await;
    fs::remove_file(LockFile::path_for(&path)).unwrap();
    // Its lease protects it now.
    busy(&mut b, &permit(1, "job")).await;
    busy(&mut b, &request("job")).await;
    assert!(matches!(
        a.renew(&held.key, &held.token, None.into()).await.unwrap(),
        Renewal::Renewed { .. }
    ));
    let other = permit(2, "job");
    granted(&mut b, &other).await;
    assert_eq!(release(&mut a, &held).await, Release::Released);
    die(b);
    granted(&mut backend(&path), &request("job")).await;
}

#[tokio::test]
async fn waiters_of_all_kinds_are_served_one_after_the_other() {
    let (_keep, path) = place();
    let mut a = backend(&path);
    for held in [permit(1, "job"), reader("job"), detached("job")] {
        granted(&mut a, &held).await;
        let kinds = [
            permit(1, "job"),
            permit(1, "job"),
            request("job"),
            permit(1, "job"),
            permit(1, "job"),
            reader("job"),
            permit(2, "job"),
        ];
        let waits = kinds
            .into_iter()
            .flat_map(|kind| [kind.clone(), Request { fair: true, ..kind }])
            .map(|wants| {
                let mut waiter = backend(&path);
                async move {
                    let wants = Request {
                        token: Token::random(),
                        ..waiting(wants)
                    };
                    acquire(&mut waiter, &wants).await;
                    release(&mut waiter, &wants).await;
                }
            });
        let waits: Vec<_> = waits.map(Box::pin).collect();
        let released = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            release(&mut a, &held).await;
            Instant::now()
        };
        let ((), released) = tokio::join!(for_each_at_once(waits), released);
        assert!(
            released.elapsed() < Duration::from_secs(4),
            "{:?}",
            released.elapsed()
        );
    }
}

#[tokio::test]
async fn a_waiter_behind_an_offer_waits_for_the_release() {
    let (_keep, path) = place();
    let (mut a, mut first, mut next) = (backend(&path), backend(&path), backend(&path));
    let held = permit(1, "job");
    granted(&mut a, &held).await;
    let (fair, wants) = (
        Request {
            fair: true,
            ..waiting(request("job"))
        },
        waiting(permit(1, "job")),
    );
    busy(&mut first, &fair).await;
    let meanwhile = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        release(&mut a, &held).await;
        // The offer lasts a second. The waiter takes the lock and releases it before that is over.
        tokio::time::sleep(Duration::from_millis(200)).await;
        granted(&mut first, &fair).await;
        release(&mut first, &fair).await;
        Instant::now()
    };
    let (_, released) = tokio::join!(acquire(&mut next, &wants), meanwhile);
    assert!(
        released.elapsed() < Duration::from_millis(400),
        "{:?}",
        released.elapsed()
    );
}

/// Returns how many requests this many waiters send in all until each of them has had the lock that
/// `held` has at first.
async fn asked_in_all(waiters: usize, held: Request, wants: &Request) -> usize {
    let (_keep, path) = place();
    let mut a = backend(&path);
    granted(&mut a, &held).await;
    let asked = std::cell::Cell::new(0);
    let waits = (0..waiters).map(|_| {
        let (mut waiter, asked) = (backend(&path), &asked);
        let wants = Request {
            token: Token::random(),
            ..waiting(wants.clone())
        };
        Box::pin(async move {
            loop {
                asked.set(asked.get() + 1);
                match waiter.try_acquire(&wants).await {
                    Ok(Attempt::Granted(_)) => break,
                    Ok(Attempt::Busy(_)) => {
                        waiter.wait(&wants, Duration::from_secs(20)).await.unwrap();
                    }
                    other => {
                        assert!(
                            matches!(&other, Err(error) if error.is_transient()),
                            "{other:?}"
                        );
                        // As the caller of a backend does.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            }
            waiter.leave_queue(&wants).await.unwrap();
            release(&mut waiter, &wants).await;
        })
    });
    let release = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        release(&mut a, &held).await;
    };
    tokio::join!(for_each_at_once(waits.collect()), release);
    asked.get()
}

/// Each waiter asks once, again when it moves up and when it has begun to watch the lock file, and
/// as one of the first two at most twice for each of two hand-overs: when the lock is released, and
/// when the next holder has it.
#[tokio::test]
async fn the_cost_of_a_hand_over_does_not_depend_on_the_queue() {
    let fair = Request {
        fair: true,
        ..request("job")
    };
    for (held, wants) in [
        (permit(1, "job"), permit(1, "job")),
        (permit(1, "job"), fair.clone()),
        (permit(1, "job"), reader("job")),
        (request("job"), fair),
    ] {
        for waiters in [5, 40] {
            let asked = asked_in_all(waiters, held.clone(), &wants).await;
            assert!(
                asked <= waiters * 7,
                "{asked} for {waiters} of {:?} after {:?}",
                wants.mode,
                held.mode
            );
        }
    }
}

#[tokio::test]
async fn a_request_during_a_grant_does_not_overtake_it() {
    let (_keep, path) = place();
    let (mut a, mut b) = (backend(&path), backend(&path));
    let held = request("job");
    for wants in [
        reader("job"),
        Request {
            fair: true,
            ..request("job")
        },
    ] {
        // Its bytes are locked, and its row is not written.
        assert!(a.client().slot(&held.key).unwrap().hold.try_take().unwrap());
        let wants = waiting(wants);
        let found = busy(&mut b, &wants).await;
        assert!(
            found.transient
                && found.position.is_none()
                && found.expires_in.unwrap() < Duration::from_secs(1),
            "{found:?}"
        );
        granted(&mut a, &held).await;
        assert_eq!(busy(&mut b, &wants).await.position, Some(1));
        release(&mut a, &held).await;
        acquire(&mut b, &wants).await;
        release(&mut b, &wants).await;
        // A holder that never writes its row is waited for like any other.
        assert!(a.client().slot(&held.key).unwrap().hold.try_take().unwrap());
        busy(&mut b, &wants).await;
        let found = busy(&mut b, &wants).await;
        assert!(
            found.position == Some(1) && found.expires_in.is_none(),
            "{found:?}"
        );
        b.leave_queue(&wants).await.unwrap();
        a.leave_queue(&held).await.unwrap();
    }
}

#[tokio::test]
async fn a_released_lock_has_no_document() {
    let (_keep, path) = place();
    let mut a = backend(&path);
    let held = reader("job");
    granted(&mut a, &held).await;
    release(&mut a, &held).await;
    let mut connection = sql(&path, "").await;
    let document: Option<String> = sqlx::query_scalar("SELECT document FROM locks")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(document, None);
}

#[test]
fn processes_of_all_modes_keep_the_rules() {
    let (keep, path) = place();
    let marks = keep.path().join("marks");
    fs::create_dir(&marks).unwrap();
    let task = format!("mix|{}|{}", path.display(), marks.display());
    let mut all: Vec<_> = (0..10).map(|_| Other::start(&task)).collect();
    // Some of them are killed meanwhile.
    for dies in all.drain(..3) {
        std::thread::sleep(Duration::from_millis(300));
        dies.signal(Signal::KILL);
    }
    for one in all {
        one.ends_well();
    }
}
