//! The store removed or replaced under a holder, and databases that have two names.
#![allow(clippy::print_stderr)] // skipped cases are reported

use std::{fs, process::Command};

use tokio::time::timeout;

use super::{
    super::database::{Database, RowWrite},
    *,
};
use crate::lock::{Fence, ReleaseInfo, Renewal, RunState};

/// Far longer than inotify needs.
const SOON: Duration = Duration::from_secs(10);

fn remove_all(path: &Path) {
    for file in fs::read_dir(path.parent().unwrap()).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
}

/// Checks that the holder of a lock in `state/dlock` notices that `take_away` removes the store.
async fn is_noticed(what: &str, take_away: impl AsyncFnOnce(&Path, &Path)) {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("state/dlock")).unwrap();
    std::os::unix::fs::symlink("state", root.path().join("current")).unwrap();
    let path = root.path().join("current/dlock/locks.db");
    let mut a = backend(&path);
    let held = request("job");
    granted(&mut a, &held).await;
    // Long enough to be watched.
    assert!(
        timeout(Duration::from_millis(300), a.watch(&held.key, &held.token))
            .await
            .is_err(),
        "{what}: nothing happened yet"
    );
    {
        let watching = a.watch(&held.key, &held.token);
        tokio::pin!(watching);
        assert!(
            timeout(Duration::from_millis(20), &mut watching)
                .await
                .is_err(),
            "{what}"
        );
        take_away(root.path(), &path).await;
        timeout(SOON, watching)
            .await
            .unwrap_or_else(|_| panic!("{what}: not noticed"));
    }
    assert_eq!(
        a.renew(&held.key, &held.token, None.into()).await.unwrap(),
        Renewal::NotHeld,
        "{what}"
    );
}

#[tokio::test]
async fn a_removed_store_is_noticed_at_once() {
    let another = async |path: &Path| {
        granted(&mut backend(path), &request("other")).await;
    };
    is_noticed("the files are removed", async |_, path| remove_all(path)).await;
    is_noticed("the files are replaced", async |_, path| {
        remove_all(path);
        another(path).await;
    })
    .await;
    is_noticed("the directory is renamed", async |root, _| {
        fs::rename(root.join("state/dlock"), root.join("state/old")).unwrap();
    })
    .await;
    is_noticed("the directory is replaced", async |root, path| {
        fs::rename(root.join("state/dlock"), root.join("state/old")).unwrap();
        fs::create_dir(root.join("state/dlock")).unwrap();
        another(path).await;
    })
    .await;
    is_noticed("a directory above it is renamed", async |root, _| {
        fs::rename(root.join("state"), root.join("old")).unwrap();
    })
    .await;
    is_noticed("a link above it leads elsewhere", async |root, _| {
        fs::create_dir_all(root.join("next/dlock")).unwrap();
        std::os::unix::fs::symlink("next", root.join("new")).unwrap();
        fs::rename(root.join("new"), root.join("current")).unwrap();
    })
    .await;
    is_noticed(
        "another database and another lock file",
        async |root, path| {
            let other = root.join("other.db");
            another(&other).await;
            for end in [".lock", "-wal", "-shm", ""] {
                fs::rename(
                    format!("{}{end}", other.display()),
                    format!("{}{end}", path.display()),
                )
                .unwrap();
            }
        },
    )
    .await;
}

#[tokio::test]
async fn removing_the_database_alone_ends_no_exclusive_hold() {
    let (_keep, path) = place();
    let (mut a, mut b) = (backend(&path), backend(&path));
    let (held, other) = (request("job"), request("other"));
    granted(&mut a, &held).await;
    granted(&mut b, &other).await;
    for end in ["", "-wal", "-shm"] {
        fs::remove_file(format!("{}{end}", path.display())).unwrap();
    }
    assert!(
        timeout(Duration::from_millis(500), a.watch(&held.key, &held.token))
            .await
            .is_err(),
        "the kernel keeps it"
    );
    // Removing the lock file too ends the hold.
    fs::remove_file(LockFile::path_for(&path)).unwrap();
    timeout(SOON, a.watch(&held.key, &held.token))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_share_ends_with_its_database() {
    let (_keep, path) = place();
    let mut a = backend(&path);
    let held = Request {
        mode: Mode::Shared,
        ..request("job")
    };
    granted(&mut a, &held).await;
    for end in ["", "-wal", "-shm"] {
        fs::remove_file(format!("{}{end}", path.display())).unwrap();
    }
    timeout(SOON, a.watch(&held.key, &held.token))
        .await
        .unwrap();
    assert_eq!(
        a.renew(&held.key, &held.token, None.into()).await.unwrap(),
        Renewal::NotHeld
    );
    granted(&mut backend(&path), &request("other")).await;
    assert_eq!(
        a.renew(&held.key, &held.token, None.into()).await.unwrap(),
        Renewal::NotHeld,
        "nor is it in a new one"
    );
}

#[tokio::test]
async fn a_new_store_gives_earlier_holders_time_to_end() {
    let (_keep, path) = place();
    let began = Instant::now();
    granted(&mut backend(&path), &request("a")).await;
    assert!(began.elapsed() >= Duration::from_millis(250));
    for end in ["", "-wal", "-shm"] {
        fs::remove_file(format!("{}{end}", path.display())).unwrap();
    }
    let began = Instant::now();
    granted(&mut backend(&path), &request("a")).await;
    assert!(began.elapsed() >= Duration::from_millis(250));
}

#[tokio::test]
async fn a_database_with_two_names_is_refused() {
    let (keep, path) = place();
    granted(&mut backend(&path), &request("job")).await;
    let folder = keep.path().join("other");
    fs::create_dir(&folder).unwrap();
    fs::hard_link(&path, folder.join("locks.db")).unwrap();
    for path in [&path, &folder.join("locks.db")] {
        for error in [
            backend(path)
                .try_acquire(&request("free"))
                .await
                .unwrap_err(),
            backend(path).inspect(&key("job")).await.unwrap_err(),
            backend(path)
                .release(&key("job"), &Token::random(), &Scope::Tree.into())
                .await
                .unwrap_err(),
        ] {
            assert_eq!(
                (error.kind, error.effect),
                (Kind::Config, Effect::NotApplied),
                "{error}"
            );
            assert!(
                error.to_string().contains("hard link") && error.hint.is_some(),
                "{error:?}"
            );
        }
    }
    fs::remove_file(folder.join("locks.db")).unwrap();
    granted(&mut backend(&path), &request("free")).await;
    // As while a database is created on a file system without RENAME_NOREPLACE.
    fs::hard_link(&path, folder.join("draft")).unwrap();
    let draft = folder.join("draft");
    let soon = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        fs::remove_file(draft).unwrap();
    });
    granted(&mut backend(&path), &request("again")).await;
    soon.join().unwrap();
}

#[tokio::test]
async fn a_database_that_is_mounted_as_a_file_is_refused() {
    let (keep, path) = place();
    let mut holder = backend(&path);
    granted(&mut holder, &request("job")).await;
    let inner = keep.path().join("inner");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("locks.db"), "").unwrap();
    let mount = |arguments: &[&Path]| {
        Command::new("mount")
            .arg("--bind")
            .args(arguments)
            .output()
            .is_ok_and(|done| done.status.success())
    };
    if !mount(&[&path, &inner.join("locks.db")]) {
        eprintln!("skipped: only root can mount");
        return;
    }
    let refused = backend(&inner.join("locks.db"))
        .try_acquire(&request("job"))
        .await;
    // All names of a directory lead to the same files.
    let elsewhere = keep.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let whole = mount(&[keep.path(), &elsewhere]);
    let second = backend(&elsewhere.join("locks.db"))
        .try_acquire(&request("job"))
        .await;
    for mounted in [inner.join("locks.db"), elsewhere] {
        let _ = Command::new("umount").arg("--lazy").arg(mounted).status();
    }
    let error = refused.unwrap_err();
    assert_eq!(error.kind, Kind::Config, "{error}");
    assert!(
        error
            .hint
            .as_deref()
            .is_some_and(|hint| hint.contains("mount the directory")),
        "{error:?}"
    );
    assert!(
        whole && matches!(second, Ok(Attempt::Busy(_))),
        "{second:?}"
    );
}

#[tokio::test]
async fn a_foreign_lock_file_is_refused() {
    let (_keep, path) = place();
    let lock = LockFile::path_for(&path);
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        &lock,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
    )
    .unwrap();
    for error in [
        backend(&path)
            .try_acquire(&request("job"))
            .await
            .unwrap_err(),
        backend(&path).inspect(&key("job")).await.unwrap_err(),
    ] {
        assert_eq!(error.kind, Kind::Config, "{error}");
    }
    fs::remove_file(&lock).unwrap();
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can make another user's file");
        return;
    }
    // As in /tmp: any user could have created the file, and locked all of it.
    fs::write(&lock, "").unwrap();
    std::os::unix::fs::chown(&lock, Some(65534), None).unwrap();
    granted(&mut backend(&path), &request("job")).await;
    let directory = path.parent().unwrap();
    fs::set_permissions(
        directory,
        std::os::unix::fs::PermissionsExt::from_mode(0o1777),
    )
    .unwrap();
    assert_eq!(
        backend(&path)
            .try_acquire(&request("free"))
            .await
            .unwrap_err()
            .kind,
        Kind::Config
    );
    // A user's own database that root uses.
    std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
    granted(&mut backend(&path), &request("free")).await;
}

/// The release info of a run that succeeded.
fn ended_well() -> ReleaseInfo {
    ReleaseInfo {
        end: Some(crate::lock::End::Exited(0)),
        run_state: Some(RunState::Ok),
        ..Scope::Tree.into()
    }
}

#[tokio::test]
async fn a_release_that_was_not_written_keeps_its_bytes_and_is_repeated() {
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
    let once = Request {
        run_policy: Some(run_policy),
        ..request("once")
    };
    let share = Request {
        mode: Mode::Shared,
        ..request("share")
    };
    let plain = request("plain");
    for held in [&once, &share, &plain] {
        granted(&mut a, held).await;
    }
    let writer = sql(&path, "BEGIN IMMEDIATE").await;
    for held in [&once, &share, &plain] {
        let error = a
            .release(&held.key, &held.token, &ended_well())
            .await
            .unwrap_err();
        assert!(
            error.is_transient() && error.effect == Effect::NotApplied,
            "{error}"
        );
        let other = backend(&path)
            .try_acquire(&request(held.key.as_str()))
            .await;
        assert!(!matches!(other, Ok(Attempt::Granted(_))), "{other:?}");
    }
    writer.close().await.unwrap();
    for held in [&once, &share, &plain] {
        busy(&mut backend(&path), &request(held.key.as_str())).await;
        assert_eq!(
            a.release(&held.key, &held.token, &ended_well())
                .await
                .unwrap(),
            Release::Released
        );
        let past = a.history(&held.key).await.unwrap().past;
        assert_eq!(
            past.first().map(|past| past.end.clone()),
            Some(crate::lock::End::Exited(0)),
            "{past:?}"
        );
    }
    assert!(matches!(
        backend(&path)
            .try_acquire(&Request {
                token: Token::random(),
                ..once
            })
            .await
            .unwrap(),
        Attempt::Denied(_)
    ));
}

#[tokio::test]
async fn a_cut_frees_the_lock_without_a_written_release() {
    let (_keep, path) = place();
    let mut a = backend(&path);
    let (alone, share) = (
        request("alone"),
        Request {
            mode: Mode::Shared,
            ..request("share")
        },
    );
    for held in [&alone, &share] {
        granted(&mut a, held).await;
    }
    let writer = sql(&path, "BEGIN IMMEDIATE").await;
    for held in [&alone, &share] {
        a.release(&held.key, &held.token, &ended_well())
            .await
            .unwrap_err();
        assert!(a.cut(&held.key, &held.token).await);
        assert!(!a.cut(&held.key, &held.token).await, "it has nothing more");
    }
    writer.close().await.unwrap();
    for held in [&alone, &share] {
        granted(&mut backend(&path), &request(held.key.as_str())).await;
    }
}

/// A step is decided on a row, which is collected before the step writes, and another client takes
/// the lock.
#[tokio::test]
async fn a_write_to_a_collected_row_changes_nothing() {
    let (_directory, path) = place();
    let (namespace, job) = (Namespace::default(), key("job"));
    let mut client = backend(&path);
    let first = detached("job");
    granted(&mut client, &first).await;
    let (mut database, _) = Database::open(&path).await.unwrap();
    let old = database.read(&namespace, &job).await.unwrap();
    let write = |revision, document| RowWrite {
        revision,
        fence: Some(Fence(1)),
        lock_file: 0,
        document,
        now: 1,
        ended: &[],
        absorbed: &[],
    };
    for again in [false, true] {
        drop(sql(&path, "DELETE FROM locks").await);
        if again {
            granted(&mut client, &detached("job")).await;
        }
        assert!(
            !database
                .swap(
                    (&namespace, &job),
                    write(old.revision, &old.document),
                    false
                )
                .await
                .unwrap(),
            "taken again: {again}"
        );
        let now = database.read(&namespace, &job).await.unwrap();
        assert_eq!(now.document.fence(&first.token), None);
        assert_eq!(now.document.has_holders(), again);
    }
}
