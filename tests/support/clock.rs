//! A clock with an offset, for servers that are started with it: libfaketime reads the offset from
//! a file.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use tempfile::TempDir;

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// A clock that servers read through libfaketime. Now and then a thread gets the true time instead.
#[derive(Debug)]
pub struct Clock {
    offset: PathBuf,
    _folder: TempDir,
}

impl Clock {
    /// Makes a clock without an offset; `None` where libfaketime is not installed.
    pub fn make() -> Option<Self> {
        if !PathBuf::from(LIBRARY).exists() {
            return None;
        }
        let folder = super::folder();
        // Servers that run as another user must read the folder.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))
            .expect("the folder's mode");
        let clock = Self {
            offset: folder.path().join("offset"),
            _folder: folder,
        };
        clock.step(0);
        Some(clock)
    }

    /// Returns the environment variables of a server with this clock.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("LD_PRELOAD", LIBRARY.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.offset.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// Sets the clock's offset from the true time in seconds.
    pub fn step(&self, seconds: i64) {
        // Replaces the file atomically, so that no server reads half of it.
        let aside = self.offset.with_extension("new");
        fs::write(&aside, format!("{seconds:+}")).expect("offset");
        fs::rename(&aside, &self.offset).expect("offset");
    }
}
