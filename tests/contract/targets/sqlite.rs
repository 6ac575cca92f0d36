//! A separate database file for each case.

use async_trait::async_trait;
use dlock::{
    backends::sqlite::{Sqlite, SqliteOptions},
    lock::{Backend, Namespace},
};
use tempfile::TempDir;

use crate::support;

pub struct Target(TempDir);

impl Target {
    pub fn make() -> Self {
        Self(support::folder())
    }
}

#[async_trait(?Send)]
impl super::Target for Target {
    async fn open(&self, namespace: &str) -> Box<dyn Backend> {
        let namespace = Namespace::new(namespace).expect("a namespace");
        // The backend is not prepared for a guardian: servers that other cases start meanwhile
        // would inherit the lock file.
        Box::new(Sqlite::new(SqliteOptions::at(
            self.0.path().join("locks.db"),
            namespace,
        )))
    }

    async fn unreachable(&self) -> Box<dyn Backend> {
        Box::new(Sqlite::new(SqliteOptions::at(
            "/nonexistent/locks.db",
            Namespace::default(),
        )))
    }

    async fn lose_data(&self) {
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(self.0.path().join(format!("locks.db{suffix}")));
        }
    }
}
