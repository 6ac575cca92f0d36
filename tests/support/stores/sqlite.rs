//! SQLite: a file in a folder of its own.

use std::{any::Any, fs, path::PathBuf};

use tempfile::TempDir;

use super::{Can, Fixture, Info, Kind, Need, Store, USUAL};
use crate::disk::Disk;

pub const FIXTURE: Fixture = Fixture {
    store: "SQLite",
    kinds: &[Info {
        can: Can {
            server: false,
            network: false,
            ..USUAL
        },
        ..Info::new(Kind::Sqlite, "sqlite", start, || None)
    }],
};

/// A folder, and a disk of its own in it if one can be made.
pub struct Folder {
    disk: Option<Disk>,
    folder: TempDir,
}

fn start(_: Kind, need: Need) -> Box<dyn Store> {
    let disk = (need == Need::Faulty).then(|| Disk::make("64m").ok());
    Box::new(Folder {
        disk: disk.flatten(),
        folder: crate::folder(),
    })
}

impl Folder {
    fn path(&self, name: &str) -> PathBuf {
        let disk = self.disk.as_ref().map(Disk::folder);
        disk.unwrap_or(self.folder.path()).join(name)
    }
}

impl Store for Folder {
    fn url_at(&self, _: &str, _: &[u16]) -> String {
        format!("sqlite://{}", self.path("locks.db").display())
    }

    fn ports(&self) -> Vec<u16> {
        Vec::new()
    }

    fn servers(&self) -> &dyn Any {
        self
    }

    fn nowhere(&self) -> String {
        "sqlite:///nonexistent/locks.db".into()
    }

    fn lose_data(&self, _: &str) {
        for suffix in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(self.path(&format!("locks.db{suffix}")));
        }
    }

    fn left(&self, _: &[String]) -> Vec<String> {
        let entries = fs::read_dir(self.path("")).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !name.starts_with("locks.db"))
            .collect()
    }

    fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }
}
