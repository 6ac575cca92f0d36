//! Files that are missing, foreign, newer, removed or unreachable, or in the wrong place.

use std::{fs, os::unix::fs::PermissionsExt};

use sqlx::Connection;

use super::*;
use crate::lock::{Admin as _, Init, Progress, Renewal};

async fn refused(path: &Path) -> crate::lock::Error {
    backend(path)
        .try_acquire(&request("job"))
        .await
        .unwrap_err()
}

#[tokio::test]
async fn the_first_use_creates_private_files() {
    let keep = tempfile::tempdir().unwrap();
    let directory = keep.path().join("state/dlock");
    let path = directory.join("dlock.db");
    let options = SqliteOptions {
        create_directory: true,
        ..SqliteOptions::at(&path, Namespace::default())
    };
    let mut look = Sqlite::new(options.clone());
    assert!(look.inspect(&key("job")).await.unwrap().holders.is_empty());
    assert!(!directory.exists());
    let mut a = Sqlite::new(options);
    a.prepare(true).unwrap();
    granted(&mut a, &request("job")).await;
    assert_eq!(
        fs::metadata(&directory).unwrap().permissions().mode() & 0o777,
        0o700
    );
    let mut names = Vec::new();
    for file in fs::read_dir(&directory).unwrap() {
        let file = file.unwrap();
        assert_eq!(
            file.metadata().unwrap().permissions().mode() & 0o777,
            0o600,
            "{file:?}"
        );
        names.push(file.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(
        names,
        ["dlock.db", "dlock.db-shm", "dlock.db-wal", "dlock.db.lock"]
    );
}

#[tokio::test]
async fn init_creates_once() {
    let (_keep, path) = place();
    assert_eq!(backend(&path).init().await.unwrap(), Init::Created);
    assert_eq!(backend(&path).init().await.unwrap(), Init::UpToDate);
    let (_keep, path) = place();
    fs::write(&path, "").unwrap();
    assert_eq!(
        backend(&path).init().await.unwrap(),
        Init::Created,
        "an empty file will do"
    );
    granted(&mut backend(&path), &request("job")).await;
}

#[tokio::test]
async fn a_missing_directory_is_named() {
    let (keep, _) = place();
    let path = keep.path().join("missing/locks.db");
    let errors = [
        refused(&path).await,
        backend(&path).prepare(true).map(|_| ()).unwrap_err(),
        backend(&path).inspect(&key("job")).await.unwrap_err(),
        backend(&path)
            .list("", &Progress::default())
            .await
            .unwrap_err(),
    ];
    for error in errors {
        assert_eq!(
            (error.kind, error.effect),
            (Kind::Config, Effect::NotApplied),
            "{error}"
        );
        assert!(
            error.to_string().contains("missing") && error.hint.is_some(),
            "{error}"
        );
    }
}

#[tokio::test]
async fn another_layout_is_refused_and_left_alone() {
    for (set, layout, hint) in [
        (
            "PRAGMA user_version = 99",
            99,
            "use the dlock that created it",
        ),
        ("PRAGMA user_version = 4", 4, "remove the file"),
    ] {
        let (_keep, path) = place();
        backend(&path).init().await.unwrap();
        sql(&path, set).await.close().await.unwrap();
        for error in [
            refused(&path).await,
            backend(&path).inspect(&key("job")).await.unwrap_err(),
        ] {
            assert_eq!(error.kind, Kind::Layout, "{error}");
            assert!(
                error
                    .hint
                    .as_deref()
                    .is_some_and(|said| said.contains(hint)),
                "{error:?}"
            );
        }
        let mut again = sql(&path, "").await;
        let version: i64 = sqlx::query_scalar("PRAGMA user_version")
            .fetch_one(&mut again)
            .await
            .unwrap();
        assert_eq!(version, layout);
    }
}

#[tokio::test]
async fn a_foreign_file_is_refused_and_left_alone() {
    let (keep, path) = place();
    let text = "not a database, and longer than a header of one hundred bytes is, so that it can't be taken for a short file";
    fs::write(&path, text).unwrap();
    let error = refused(&path).await;
    assert_eq!(error.kind, Kind::Data, "{error}");
    assert!(error.hint.is_some());
    assert_eq!(
        backend(&path).inspect(&key("job")).await.unwrap_err().kind,
        Kind::Data
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), text);

    for (name, schema) in [
        ("a.db", "CREATE TABLE t (x)"),
        ("b.db", "CREATE TABLE t (x); PRAGMA user_version = 1"),
    ] {
        let path = keep.path().join(name);
        sql(&path, schema).await.close().await.unwrap();
        let error = refused(&path).await;
        assert_eq!(error.kind, Kind::Data, "{error}");
    }
    assert_eq!(refused(keep.path()).await.kind, Kind::Config, "a directory");
}

#[tokio::test]
async fn removing_the_database_does_not_end_an_attached_hold() {
    let (_keep, path) = place();
    let mut a = backend(&path);
    let held = request("job");
    let grant = granted(&mut a, &held).await;
    for end in ["", "-wal", "-shm"] {
        fs::remove_file(format!("{}{end}", path.display())).unwrap();
    }
    busy(&mut backend(&path), &request("job")).await;
    assert_eq!(
        a.renew(&held.key, &held.token, None.into()).await.unwrap(),
        Renewal::Renewed {
            ttl: ttl(60),
            fence: grant.fence
        }
    );
    assert_eq!(release(&mut a, &held).await, Release::Released);
    assert!(granted(&mut backend(&path), &request("job")).await.fence > grant.fence);
}

#[tokio::test]
async fn a_waiter_in_a_new_database_does_not_end_an_attached_hold() {
    let (_keep, path) = place();
    let mut a = backend(&path);
    let held = request("job");
    let grant = granted(&mut a, &held).await;
    for end in ["", "-wal", "-shm"] {
        fs::remove_file(format!("{}{end}", path.display())).unwrap();
    }
    let (mut waiter, fair) = (
        backend(&path),
        Request {
            waiting: true,
            fair: true,
            ..request("job")
        },
    );
    while busy(&mut waiter, &fair).await.position.is_none() {}
    assert_eq!(
        a.renew(&held.key, &held.token, None.into()).await.unwrap(),
        Renewal::Renewed {
            ttl: ttl(60),
            fence: grant.fence
        }
    );
    busy(&mut waiter, &fair).await;
    assert_eq!(release(&mut a, &held).await, Release::Released);
    assert!(granted(&mut waiter, &fair).await.fence > grant.fence);
}

#[tokio::test]
async fn removing_the_lock_file_leaves_the_lease() {
    let (_keep, path) = place();
    let mut a = backend(&path);
    let held = Request {
        ttl: ttl(2),
        ..request("job")
    };
    granted(&mut a, &held).await;
    fs::remove_file(LockFile::path_for(&path)).unwrap();
    let mut other = backend(&path);
    let found = busy(&mut other, &request("job")).await;
    assert!(found.expires_in.is_some(), "the lease is what is left");
    assert!(matches!(
        a.renew(&held.key, &held.token, Some(ttl(3)).into())
            .await
            .unwrap(),
        Renewal::Renewed { .. }
    ));
    assert!(busy(&mut other, &request("job")).await.expires_in.unwrap() > Duration::from_secs(2));
    assert_eq!(release(&mut a, &held).await, Release::Released);
    granted(&mut other, &request("job")).await;
}

#[tokio::test]
async fn removing_both_files_loses_the_hold_and_reports_it() {
    let (keep, path) = place();
    let mut a = backend(&path);
    let held = request("job");
    granted(&mut a, &held).await;
    for file in fs::read_dir(keep.path()).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    assert_eq!(
        a.renew(&held.key, &held.token, None.into()).await.unwrap(),
        Renewal::NotHeld
    );
    let mut b = backend(&path);
    let newer = request("job");
    granted(&mut b, &newer).await;
    assert_eq!(
        a.renew(&held.key, &held.token, None.into()).await.unwrap(),
        Renewal::NotHeld
    );
    assert_eq!(release(&mut a, &held).await, Release::NotHeld);
    busy(&mut backend(&path), &request("job")).await;
}

/// With a writer frozen in a transaction, rows can't be written, as on a full disk.
#[tokio::test]
async fn rows_that_cannot_be_written_do_not_end_an_attached_hold() {
    let (_keep, path) = place();
    let mut a = backend(&path);
    let (held, other) = (request("job"), detached("other"));
    let grant = granted(&mut a, &held).await;
    granted(&mut a, &other).await;
    let writer = sql(&path, "BEGIN IMMEDIATE").await;
    assert_eq!(
        a.renew(&held.key, &held.token, None.into()).await.unwrap(),
        Renewal::Renewed {
            ttl: ttl(60),
            fence: grant.fence
        }
    );
    let error = a
        .renew(&other.key, &other.token, None.into())
        .await
        .unwrap_err();
    assert!(
        error.is_transient() && error.effect == Effect::NotApplied,
        "{error}"
    );
    let error = refused_for(&path, "free").await;
    assert!(error.is_transient(), "{error}");
    busy(&mut backend(&path), &request("job")).await;
    assert_eq!(release(&mut a, &held).await, Release::Released);
    writer.close().await.unwrap();
    granted(&mut backend(&path), &request("job")).await;
    granted(&mut backend(&path), &request("free")).await;
}

async fn refused_for(path: &Path, name: &str) -> crate::lock::Error {
    backend(path).try_acquire(&request(name)).await.unwrap_err()
}

#[tokio::test]
async fn two_names_of_one_database_are_one_store() {
    let (keep, path) = place();
    granted(&mut backend(&path), &detached("other")).await;
    let link = keep.path().join("link.db");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let (mut a, mut b) = (backend(&path), backend(&link));
    granted(&mut a, &request("job")).await;
    assert_eq!(busy(&mut b, &request("job")).await.expires_in, None);
    assert_eq!(a.identity().fingerprint, b.identity().fingerprint);
}
