//! What SQLite's and the file system's errors mean for a lock.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use crate::lock::{Effect, Error, Kind, plain};

/// The error of a statement. SQLite undoes a statement that fails, so that nothing happened, except
/// where the disk failed meanwhile.
pub(super) fn statement(error: sqlx::Error) -> Error {
    match error {
        sqlx::Error::Database(database) => {
            let code = database
                .code()
                .and_then(|code| code.parse::<i32>().ok())
                .unwrap_or_default();
            let message = database.message().to_owned();
            by_code(code & 0xff, &message).source(sqlx::Error::Database(database))
        }
        sqlx::Error::Io(error) => files(&error, Path::new("the database")),
        error @ sqlx::Error::WorkerCrashed => {
            Error::new(Kind::Unavailable, "the database thread ended")
                .effect(Effect::Unknown)
                .source(error)
        }
        error => Error::new(Kind::Unavailable, format!("the database failed: {error}"))
            .effect(Effect::Unknown)
            .source(error),
    }
}

/// The error of opening the database at `path`.
pub(super) fn opening(error: sqlx::Error, path: &Path) -> Error {
    let error = statement(error);
    if error.kind != Kind::Denied {
        return error;
    }
    let message = format!("{}{}", error.message, whose(path));
    Error { message, ..error }
}

/// Returns whose the file is, or the directory that hides it, as the end of an error's text.
fn whose(path: &Path) -> String {
    let Some((at, found)) = path
        .ancestors()
        .find_map(|at| Some((at, fs::metadata(at).ok()?)))
    else {
        return String::new();
    };
    let what = if at == path {
        "it".into()
    } else {
        at.display().to_string()
    };
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    format!(" ({what} belongs to uid {owner}, mode {mode:o})")
}

/// By SQLite's primary result codes (sqlite.org/rescode.html).
fn by_code(code: i32, message: &str) -> Error {
    match code {
        5 | 6 => Error::new(Kind::Unavailable, "the database is busy"),
        7 => Error::new(Kind::Unavailable, "there is no memory for the database"),
        13 => Error::new(Kind::Unavailable, "the disk is full")
            .hint("make room where the database is"),
        10 => Error::new(Kind::Unavailable, format!("the disk failed: {message}"))
            .effect(Effect::Unknown),
        3 | 8 | 23 => Error::new(
            Kind::Denied,
            format!("the database can't be written: {message}"),
        )
        .hint("dlock needs to write the database, the files next to it and their directory"),
        14 => Error::new(
            Kind::Denied,
            format!("the database can't be opened: {message}"),
        )
        .hint(
            "dlock needs to read and write the database, the files next to it and their directory",
        ),
        11 | 24 | 26 => not_ours(message),
        1 if message.starts_with("no such") || message.contains("has no column named") => {
            not_ours(message)
        }
        17 => Error::new(Kind::Unavailable, "the database is being changed"),
        _ => Error::new(
            Kind::Internal,
            format!("the database refused a statement: {message}"),
        ),
    }
}

/// The file is no database of dlock.
pub(super) fn not_ours(why: &str) -> Error {
    Error::new(
        Kind::Data,
        format!("the file is no database of dlock: {why}"),
    )
    .hint("name another file, or move this one away: dlock creates a new one")
}

/// The error of opening or creating `path`.
pub(super) fn files(error: &io::Error, path: &Path) -> Error {
    let file = path;
    let path = path.display();
    match error.kind() {
        _ if error.raw_os_error() == Some(nix::libc::ELOOP) => {
            Error::new(Kind::Config, format!("{path} is a symbolic link"))
        }
        io::ErrorKind::NotFound => Error::new(
            Kind::Config,
            format!("the directory of {path} does not exist"),
        )
        .hint("create it first"),
        io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            Error::new(Kind::Config, format!("{path}: {}", plain(error)))
                .hint("name a file in an existing directory")
        }
        // dlock's own refusals; the kernel's have a number.
        io::ErrorKind::InvalidInput if error.raw_os_error().is_none() => {
            Error::new(Kind::Config, format!("{path}: {error}"))
                .hint("remove it, or keep the database in a directory of its own")
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Error::new(
            Kind::Denied,
            format!("{path}: {}{}", plain(error), whose(file)),
        )
        .hint(
            "dlock needs to read and write the database, the files next to it and their directory",
        ),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error::new(Kind::Unavailable, format!("{path}: the disk is full"))
                .hint("make room where the database is")
        }
        _ => Error::new(Kind::Unavailable, format!("{path}: {}", plain(error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_file_has_its_owner_and_mode() {
        let folder = tempfile::tempdir().unwrap();
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let (there, missing) = (folder.path().join("l.db"), folder.path().join("none/l.db"));
        fs::write(&there, "").unwrap();
        let (owner, mode) = fs::metadata(&there)
            .map(|found| (found.uid(), found.mode() & 0o7777))
            .unwrap();
        let end = format!("belongs to uid {owner}, mode {mode:o})");
        let text = files(&denied, &there).message;
        assert!(text.ends_with(&format!("(it {end}")), "{text}");
        let text = files(&denied, &missing).message;
        let hides = format!("({} belongs to uid {owner}, ", folder.path().display());
        assert!(text.contains(&hides), "{text}");
    }
}
