//! What `dlock doctor` checks: the file system and the files. Opens nothing for writing, and
//! creates nothing.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    time::Duration,
};

use async_trait::async_trait;

use super::{
    Sqlite, SqliteOptions, client::SqliteClient, database::Database, failure, location,
    lock_file::LockFile,
};
use crate::lock::{
    Admin, Check, Error, Finding, Grants, Init, Progress, Result, Role, check, whole_ms,
};

/// The checks of `dlock doctor`.
pub const CHECKS: &[Check] = &[
    check(
        "file-system",
        "whether the files are on a local file system, which alone keeps locks",
    ),
    check(
        "files",
        "which users can write the database, its lock file and their directory",
    ),
    check("disk", "how much room there is"),
    check("layout", "the version of the database's layout"),
];

/// With less free room, the database may not be able to grow.
const LITTLE: u64 = 16 << 20;

impl SqliteClient {
    fn files(&self) -> [std::path::PathBuf; 2] {
        [
            self.options.path.clone(),
            LockFile::path_for(&self.options.path),
        ]
    }

    fn look_at_file_system(&self) -> Finding {
        const ID: &str = "file-system";
        let directory = location::directory(&self.options.path);
        match location::check_file_system(existing(directory)) {
            Ok(()) => Finding::ok(
                ID,
                format!("{} is on a local file system", directory.display()),
            ),
            Err(Error { message, hint, .. }) => {
                let found = Finding::not_safe(ID, message, "two hosts can have one lock");
                hint.into_iter().fold(found, Finding::fix)
            }
        }
    }

    fn look_at_files(&self) -> Finding {
        const ID: &str = "files";
        let directory = location::directory(&self.options.path);
        let mut open = Vec::new();
        let mut modes = Vec::new();
        for path in [directory.to_owned()].iter().chain(&self.files()) {
            let found = match fs::metadata(path) {
                Ok(found) => found,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    return Finding::unchecked(
                        ID,
                        "who may write the files",
                        &failure::files(&error, path).message,
                    );
                }
            };
            let mode = found.permissions().mode() & 0o7777;
            // In a sticky directory every user may create files, and only the owner may remove
            // them.
            if mode & 0o002 != 0 && mode & 0o1000 == 0 {
                open.push(path.display().to_string());
            }
            modes.push(format!("{} {mode:03o} of uid {}", name(path), found.uid()));
        }
        if modes.is_empty() {
            return Finding::ok(
                ID,
                format!(
                    "{} is made when it is first used, for this user alone",
                    directory.display()
                ),
            );
        }
        let text = modes.join(", ");
        if open.is_empty() {
            return Finding::ok(ID, text);
        }
        Finding::warn(
            ID,
            text,
            "all users of this host can remove the files, and the locks with them",
        )
        .fix(format!("chmod o-w {}", open.join(" ")))
    }

    fn look_at_disk(&self) -> Finding {
        const ID: &str = "disk";
        let directory = existing(location::directory(&self.options.path));
        let Ok(room) = rustix::fs::statvfs(directory) else {
            return Finding::unchecked(
                ID,
                "the room on the disk",
                "the file system doesn't tell it",
            );
        };
        let free = room.f_bavail.saturating_mul(room.f_frsize);
        let text = format!(
            "{} MB are free on the disk of {}",
            free >> 20,
            directory.display()
        );
        if free < LITTLE {
            return Finding::warn(ID, text, "a lock may not be granted: no room to write")
                .fix("make room there");
        }
        Finding::ok(ID, text)
    }

    async fn look_at_layout(&self) -> Finding {
        const ID: &str = "layout";
        if location::check_file_system(existing(location::directory(&self.options.path))).is_err() {
            return Finding::unchecked(
                ID,
                "the database",
                "files on such a file system are not opened",
            );
        }
        match Database::open_to_look(&self.options.path).await {
            Ok(None) => Finding::ok(
                ID,
                "there is no database yet: it is made when it is first used",
            ),
            Ok(Some(mut database)) => match database.has_log().await {
                Ok(false) => Finding::warn(
                    ID,
                    "another program has turned off the write-ahead log",
                    "reading blocks writing: runs may end with 69",
                )
                .fix(format!(
                    "sqlite3 {} 'PRAGMA journal_mode = WAL'",
                    self.options.path.display()
                )),
                _ => Finding::ok(ID, "the database is of this version's layout"),
            },
            Err(Error { message, hint, .. }) => {
                let found = Finding::not_safe(ID, message, "no lock can be taken");
                hint.into_iter().fold(found, Finding::fix)
            }
        }
    }
}

/// The nearest directory that exists.
fn existing(directory: &Path) -> &Path {
    directory
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(directory)
}

fn name(path: &Path) -> String {
    path.file_name().map_or_else(
        || path.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

#[async_trait(?Send)]
impl Admin for SqliteClient {
    async fn init(&mut self) -> Result<Init> {
        self.lock_file()?;
        let (database, created) = self.open().await?;
        Ok(if database.check().await? || created {
            Init::Created
        } else {
            Init::UpToDate
        })
    }

    async fn collect(&mut self, unused_for: Duration, progress: &Progress) -> Result<Option<u64>> {
        if !self.options.path.exists() {
            return Ok(Some(0));
        }
        self.sweep(whole_ms(unused_for), progress).await.map(Some)
    }

    async fn examine(&mut self) -> Result<Vec<Finding>> {
        self.follow_link();
        Ok(vec![
            self.look_at_file_system(),
            self.look_at_files(),
            self.look_at_disk(),
            self.look_at_layout().await,
        ])
    }
}

#[async_trait(?Send)]
impl Admin for Sqlite {
    async fn init(&mut self) -> Result<Init> {
        self.0.init().await
    }

    async fn collect(&mut self, unused_for: Duration, progress: &Progress) -> Result<Option<u64>> {
        self.0.collect(unused_for, progress).await
    }

    async fn examine(&mut self) -> Result<Vec<Finding>> {
        self.0.examine().await
    }
}

/// Returns the least rights for `role`.
pub(super) fn grants(options: &SqliteOptions, role: Role) -> Grants {
    let path = options.path.display();
    let directory = location::directory(&options.path).display().to_string();
    let group = role.user();
    let text = if role.writes() {
        // The directory gives its group to the files that SQLite creates next to the database.
        format!("chgrp {group} {directory} {path}*\nchmod 2770 {directory}\nchmod 660 {path}*\n")
    } else {
        format!("chmod o+rx {directory}\nchmod o+r {path}*\n")
    };
    let mut notes = vec![format!(
        "after the first use of {path}: there is no user in SQLite, the files' modes decide"
    )];
    notes.push(if role.writes() {
        format!("members of the group {group} may take, renew and break locks")
    } else {
        "all users of this host can then look at locks, and take none".into()
    });
    Grants { text, notes }
}
