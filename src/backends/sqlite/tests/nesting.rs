//! Nested holds.

use super::*;

#[tokio::test]
async fn a_nested_hold_keeps_the_lock_of_an_outer_one_that_left() {
    let (_keep, path) = place();
    let (mut a, mut b) = (backend(&path), backend(&path));
    let outer = request("job");
    granted(&mut a, &outer).await;
    let inner = nested(&outer);
    granted(&mut b, &inner).await;
    assert_eq!(
        a.release(&outer.key, &outer.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::StillHeld(1)
    );
    busy(&mut a, &request("job")).await;
    assert!(matches!(
        b.renew(&inner.key, &inner.token, None.into())
            .await
            .unwrap(),
        Renewal::Renewed { .. }
    ));
    assert_eq!(release(&mut b, &inner).await, Release::Released);
}

#[tokio::test]
async fn a_nested_hold_whose_process_is_gone_does_not_keep_the_lock() {
    let (_keep, path) = place();
    let (mut a, mut b) = (backend(&path), backend(&path));
    let outer = request("job");
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
async fn a_nested_hold_keeps_the_lock_of_an_outer_one_that_died() {
    let (_keep, path) = place();
    let (mut a, mut b) = (backend(&path), backend(&path));
    let outer = request("job");
    granted(&mut a, &outer).await;
    let inner = nested(&outer);
    granted(&mut b, &inner).await;
    die(a);
    busy(&mut backend(&path), &request("job")).await;
    assert!(matches!(
        b.renew(&inner.key, &inner.token, None.into())
            .await
            .unwrap(),
        Renewal::Renewed { .. }
    ));
    assert_eq!(release(&mut b, &inner).await, Release::Released);
    granted(&mut backend(&path), &request("job")).await;
}

#[tokio::test]
async fn the_lock_of_a_dead_process_can_not_be_entered() {
    let (_keep, path) = place();
    let (mut a, mut b) = (backend(&path), backend(&path));
    let not_held = async |b: &mut Sqlite, wants: &Request| {
        matches!(b.try_acquire(wants).await.unwrap(), Attempt::NotHeld)
    };
    let died = request("job");
    granted(&mut a, &died).await;
    die(a);
    assert!(
        not_held(&mut b, &nested(&died)).await,
        "the holder's processes are gone"
    );
    let mut c = backend(&path);
    let newer = request("job");
    granted(&mut c, &newer).await;
    assert!(
        not_held(&mut b, &nested(&died)).await,
        "another owner holds the lock"
    );
    assert_eq!(
        release(&mut c, &newer).await,
        Release::Released,
        "no hold is left that blocks it"
    );
    granted(&mut b, &request("job")).await;
}

#[tokio::test]
async fn a_detached_hold_can_be_entered() {
    let (_keep, path) = place();
    let (mut a, mut b) = (backend(&path), backend(&path));
    let outer = detached("job");
    granted(&mut a, &outer).await;
    let inner = Request {
        detached: false,
        ..nested(&outer)
    };
    assert_eq!(granted(&mut b, &inner).await.holds, 2);
    busy(&mut backend(&path), &request("job")).await;
    assert!(matches!(
        b.renew(&inner.key, &inner.token, None.into())
            .await
            .unwrap(),
        Renewal::Renewed { .. }
    ));
    assert_eq!(
        a.release(&outer.key, &outer.token, &Scope::Hold.into())
            .await
            .unwrap(),
        Release::StillHeld(1)
    );
    busy(&mut backend(&path), &request("job")).await;
    assert_eq!(release(&mut b, &inner).await, Release::Released);
    granted(&mut backend(&path), &request("job")).await;
}
