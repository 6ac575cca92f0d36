//! Tests with real files and processes. A process is this test binary, started again for one test
//! that follows its environment variables.
#![allow(clippy::disallowed_methods)] // time is what is measured here

mod answers;
mod nesting;
mod places;
mod processes;
mod removal;
mod shares;
mod waits;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use sqlx::{Connection, SqliteConnection};

use super::{
    Sqlite, SqliteOptions,
    lock_file::{LockFile, Range},
};
use crate::lock::{
    Attempt, Backend, Busy, Effect, Entry, Grant, Key, Kind, Metadata, Mode, Namespace, Once,
    Release, Renewal, Request, RunPolicy, Scope, Token, Ttl, Wake,
};

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn ttl(seconds: u64) -> Ttl {
    Ttl::new(Duration::from_secs(seconds)).unwrap()
}

fn backend(path: &Path) -> Sqlite {
    Sqlite::new(SqliteOptions::at(path, Namespace::default()))
}

fn request(name: &str) -> Request {
    Request {
        metadata: Some(Metadata {
            host: Some("here".into()),
            ..Metadata::default()
        }),
        ..Request::new(key(name), ttl(60))
    }
}

fn detached(name: &str) -> Request {
    Request {
        detached: true,
        ..request(name)
    }
}

fn nested(outer: &Request) -> Request {
    Request {
        token: outer.token.nested(),
        entry: Entry::Reenter,
        ..outer.clone()
    }
}

/// A directory, and the path of a database in it that doesn't exist yet.
fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    (directory, path)
}

async fn sql(path: &Path, sql: &'static str) -> SqliteConnection {
    let url = format!("sqlite://{}?mode=rwc", path.display());
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    connection
}

async fn granted(backend: &mut Sqlite, request: &Request) -> Grant {
    match backend.try_acquire(request).await.unwrap() {
        Attempt::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn busy(backend: &mut Sqlite, request: &Request) -> Busy {
    match backend.try_acquire(request).await.unwrap() {
        Attempt::Busy(busy) => busy,
        other => panic!("not busy: {other:?}"),
    }
}

/// Unlocks what a process has locked, as its death does. Dropping it is not enough: a process that
/// another test is just starting has its descriptors too, until it runs its program.
fn die(mut process: Sqlite) {
    for slot in process.client().slots.values() {
        slot.file.unlock(Range::EVERYTHING);
    }
}

/// Acquires with waits as the core does, but without its time limits.
async fn acquire(backend: &mut Sqlite, request: &Request) -> Grant {
    loop {
        match backend.try_acquire(request).await {
            Ok(Attempt::Granted(grant)) => {
                backend.leave_queue(request).await.unwrap();
                return grant;
            }
            Ok(Attempt::Busy(busy)) => {
                let at_most = busy.expires_in.map_or(Duration::from_secs(5), |left| {
                    left + Duration::from_millis(2)
                });
                backend.wait(request, at_most).await.unwrap();
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) if error.is_transient() => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn release(backend: &mut Sqlite, request: &Request) -> Release {
    backend
        .release(&request.key, &request.token, &Scope::Tree.into())
        .await
        .unwrap()
}
