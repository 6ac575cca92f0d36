//! Replaces whole files atomically, for readers that may read at any time.

use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::Path,
};

use rustix::fs::{Mode, OFlags};

use crate::lock::random;

/// Refuses paths other than regular files: renaming over a device or a pipe (`/dev/null`) would remove it for all users.
///
/// # Errors
/// If the path is a folder, a device, a pipe or a socket.
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => Err(io::Error::other("it is a folder")),
        Ok(metadata) if !metadata.is_file() && !metadata.is_symlink() => Err(io::Error::other("not a file")),
        _ => Ok(()),
    }
}

/// Writes a temporary file and renames it, so that a reader sees the old text or the new one, never half of one.
/// A symbolic link is replaced, not followed.
///
/// # Errors
/// If the file can't be written. The old one is unchanged then.
pub fn replace(path: &Path, mode: Mode, text: &str) -> io::Result<()> {
    check_replaceable(path)?;
    let mut temporary = OsString::from(".");
    temporary.push(path.file_name().unwrap_or_default());
    temporary.push(format!(".{:016x}", random()));
    let temporary = path.with_file_name(temporary);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = std::fs::File::from(rustix::fs::open(&temporary, flags, mode)?);
    let written = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}
