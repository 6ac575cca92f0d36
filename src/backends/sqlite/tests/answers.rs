//! Single calls: exclusion, tokens, leases, fences, looking.

use super::*;
use crate::lock::{Admin as _, Fence, Progress, Which};

#[tokio::test]
async fn an_unreported_start_does_not_count_as_an_earlier_run() {
    let (_directory, path) = place();
    let once = Once {
        window: Duration::from_secs(3600),
        retry_failed: 0,
        retry_crashed: false,
    };
    let run_policy = RunPolicy {
        place: "a".into(),
        skew_guard: None,
        at_least: Some(Duration::from_secs(60)),
        once: Some(once),
        anyway: false,
    };
    let asked = Request {
        detached: true,
        run_policy: Some(run_policy),
        ..request("job")
    };
    let mut a = backend(&path);
    let first = granted(&mut a, &asked).await;
    // The lease ended before the answer came.
    sql(&path, "UPDATE locks SET document = (SELECT json_set(document, fullkey || '.e', 1) FROM json_each(document, '$.s[0].h'))").await;
    let mut b = backend(&path);
    let other = Request {
        token: Token::random(),
        ..asked.clone()
    };
    assert!(matches!(
        b.try_acquire(&other).await.unwrap(),
        Attempt::Denied(_)
    ));
    let again = granted(&mut backend(&path), &asked).await;
    assert!(again.fence > first.fence);
    let start = b.history(&asked.key).await.unwrap().record.start.unwrap();
    assert_eq!((start.tries, start.fence), (1, again.fence));
}

#[tokio::test]
async fn a_busy_answer_names_the_holder() {
    let (_keep, path) = place();
    let (mut a, mut b) = (backend(&path), backend(&path));
    let (first, second) = (request("job"), request("job"));
    let one = granted(&mut a, &first).await;
    assert_eq!((one.holds, one.ttl), (1, ttl(60)));

    let found = busy(&mut b, &second).await;
    assert_eq!(found.holders.len(), 1);
    assert_eq!(found.holders[0].fence, Some(one.fence));
    assert_eq!(found.holders[0].metadata, first.metadata);
    assert!(found.notifies);
    assert_eq!(
        found.expires_in, None,
        "an attached hold ends with its processes"
    );

    assert_eq!(release(&mut a, &first).await, Release::Released);
    let two = granted(&mut b, &second).await;
    assert!(two.fence > one.fence);
    assert_eq!(release(&mut b, &second).await, Release::Released);
}

#[tokio::test]
async fn two_owners_in_one_process_exclude_each_other() {
    let (_keep, path) = place();
    let mut a = backend(&path);
    let (first, second) = (request("job"), request("job"));
    granted(&mut a, &first).await;
    busy(&mut a, &second).await;
    assert_eq!(
        a.wait(&second, Duration::from_millis(10)).await.unwrap(),
        Wake::TimedOut
    );
    a.leave_queue(&second).await.unwrap();
    busy(&mut backend(&path), &second).await;
    release(&mut a, &first).await;
    granted(&mut a, &second).await;
}

#[tokio::test]
async fn a_repeated_attached_or_detached_request_counts_once() {
    let (_keep, path) = place();
    let mut a = backend(&path);
    for request in [request("attached"), detached("detached")] {
        let first = granted(&mut a, &request).await;
        assert_eq!(granted(&mut a, &request).await, first);
        // The reply may have been lost together with the process's connection.
        if request.detached {
            assert_eq!(granted(&mut backend(&path), &request).await, first);
        }
        assert_eq!(
            a.release(&request.key, &request.token, &Scope::Hold.into())
                .await
                .unwrap(),
            Release::Released
        );
        granted(&mut backend(&path), &self::request(request.key.as_str())).await;
    }
}

#[tokio::test]
async fn a_stale_token_changes_nothing() {
    let (_keep, path) = place();
    let (mut a, mut b) = (backend(&path), backend(&path));
    for (old, new) in [(request("x"), request("x")), (detached("y"), detached("y"))] {
        granted(&mut a, &old).await;
        release(&mut a, &old).await;
        assert_eq!(
            a.renew(&old.key, &old.token, None.into()).await.unwrap(),
            Renewal::NotHeld
        );
        assert_eq!(release(&mut a, &old).await, Release::NotHeld);

        let grant = granted(&mut b, &new).await;
        assert_eq!(
            a.renew(&old.key, &old.token, Some(ttl(600)).into())
                .await
                .unwrap(),
            Renewal::NotHeld
        );
        assert_eq!(release(&mut a, &old).await, Release::NotHeld);
        let wrong_hold = Token {
            hold: 1,
            ..new.token
        };
        assert_eq!(
            a.renew(&old.key, &wrong_hold, None.into()).await.unwrap(),
            Renewal::NotHeld
        );
        assert_eq!(
            a.release(&old.key, &wrong_hold, &Scope::Tree.into())
                .await
                .unwrap(),
            Release::NotHeld
        );

        let state = b.inspect(&new.key).await.unwrap();
        assert_eq!(state.holders[0].fence, Some(grant.fence));
        assert!(state.holders[0].expires_in.unwrap() <= Duration::from_secs(60));
        busy(&mut a, &request(new.key.as_str())).await;
        release(&mut b, &new).await;
    }
}

#[tokio::test]
async fn a_renewal_never_ends_a_hold_sooner() {
    let (_keep, path) = place();
    let mut a = backend(&path);
    for held in [request("x"), detached("y")] {
        let grant = granted(&mut a, &held).await;
        let shorter = a
            .renew(&held.key, &held.token, Some(ttl(5)).into())
            .await
            .unwrap();
        assert!(
            matches!(shorter, Renewal::Kept { expires_in: Some(expires_in) } if expires_in > Duration::from_secs(50)),
            "{shorter:?}"
        );
        let longer = a
            .renew(&held.key, &held.token, Some(ttl(600)).into())
            .await
            .unwrap();
        assert_eq!(
            longer,
            Renewal::Renewed {
                ttl: ttl(600),
                fence: grant.fence
            }
        );
        let usual = a.renew(&held.key, &held.token, None.into()).await.unwrap();
        assert!(
            matches!(usual, Renewal::Kept { expires_in: Some(expires_in) } if expires_in > Duration::from_secs(590)),
            "{usual:?}"
        );
        let left = a.inspect(&held.key).await.unwrap().holders[0]
            .expires_in
            .unwrap();
        assert!(left > Duration::from_secs(590), "{left:?}");
    }
}

#[tokio::test]
async fn inspect_and_list_create_nothing() {
    let (keep, path) = place();
    let mut look = backend(&path);
    assert!(look.inspect(&key("job")).await.unwrap().holders.is_empty());
    assert!(
        look.list("", &Progress::default())
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(std::fs::read_dir(keep.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn locked_bytes_mean_held_whatever_the_row_contains() {
    let (_keep, path) = place();
    let file = LockFile::open(&path, false).unwrap();
    let mut a = backend(&path);
    let bytes = a.client().bytes(&key("job"));
    assert!(
        file.try_lock(bytes.first(), super::super::lock_file::LockKind::Write)
            .unwrap()
    );
    let found = busy(&mut a, &request("job")).await;
    assert_eq!(found.holders.len(), 1);
    assert_eq!(found.holders[0].metadata, None);
    assert_eq!(a.inspect(&key("job")).await.unwrap().holders.len(), 1);
    file.unlock(bytes.first());
    granted(&mut a, &request("job")).await;
}

#[tokio::test]
async fn the_log_does_not_grow_without_bound() {
    let (_keep, path) = place();
    let log = || std::fs::metadata(format!("{}-wal", path.display())).map_or(0, |log| log.len());
    let mut largest = 0;
    for _ in 0..300 {
        let mut a = backend(&path);
        let request = request("job");
        granted(&mut a, &request).await;
        release(&mut a, &request).await;
        largest = largest.max(log());
    }
    assert!(largest < 1 << 20, "{largest}");
    assert!(std::fs::metadata(&path).unwrap().len() < 1 << 20);
}

#[tokio::test]
async fn gc_removes_unused_locks_and_keeps_run_records() {
    let (_keep, path) = place();
    let mut a = backend(&path);
    let once = Once {
        window: Duration::from_secs(3600),
        retry_failed: 0,
        retry_crashed: false,
    };
    let run_policy = RunPolicy {
        place: "a".into(),
        skew_guard: None,
        at_least: None,
        once: Some(once),
        anyway: false,
    };
    let (plain, kept, held) = (
        request("plain"),
        Request {
            run_policy: Some(run_policy),
            ..request("kept")
        },
        request("held"),
    );
    for request in [&plain, &kept] {
        granted(&mut a, request).await;
        assert_eq!(release(&mut a, request).await, Release::Released);
    }
    granted(&mut a, &held).await;
    assert_eq!(
        a.collect(Duration::from_secs(60), &Progress::default())
            .await
            .unwrap(),
        Some(0),
        "all of it was used just now"
    );
    sql(&path, "UPDATE locks SET fence = 1, changed_ms = 1").await;
    sql(
        &path,
        "UPDATE runs SET entry = json_set(entry, '$.s', 1, '$.e', 1)",
    )
    .await;
    assert_eq!(
        a.collect(Duration::from_secs(60), &Progress::default())
            .await
            .unwrap(),
        Some(1)
    );
    assert_eq!(
        a.known("", Which::All, &Progress::default()).await.unwrap(),
        [held.key.clone(), kept.key.clone()]
    );
    assert!(a.history(&plain.key).await.unwrap().past.is_empty());
    assert!(
        granted(&mut a, &plain).await.fence > Fence(1_000_000_000),
        "fences are never below the time"
    );
}

#[tokio::test]
async fn a_reading_is_swapped_once() {
    use crate::backends::cas::tests::a_reading_is_swapped_once;
    let (_keep, path) = place();
    let (mut a, asked) = (backend(&path), request("job"));
    let held = granted(&mut a, &asked).await;
    a_reading_is_swapped_once(&mut a.0, &asked.key, held.fence).await;
}
