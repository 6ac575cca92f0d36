//! A clock that is set off by so many seconds, for the servers that are started with it: libfaketime reads a file.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use tempfile::TempDir;

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// A clock, as far as its servers ask libfaketime: now and then a thread gets the true time instead.
#[derive(Debug)]
pub struct Clock {
    offset: PathBuf,
    _folder: TempDir,
}

impl Clock {
    /// A clock that is right; `None` where libfaketime is not installed.
    pub fn make() -> Option<Self> {
        if !PathBuf::from(LIBRARY).exists() {
            return None;
        }
        let folder = super::folder();
        // For servers that run as another user.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("the folder's mode");
        let clock = Self { offset: folder.path().join("offset"), _folder: folder };
        clock.step(0);
        Some(clock)
    }

    /// What a server is to be started with.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("LD_PRELOAD", LIBRARY.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.offset.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// Sets it off by so many seconds from the true time.
    pub fn step(&self, seconds: i64) {
        // At once, so that nobody reads half of it.
        let aside = self.offset.with_extension("new");
        fs::write(&aside, format!("{seconds:+}")).expect("offset");
        fs::rename(&aside, &self.offset).expect("offset");
    }
}
