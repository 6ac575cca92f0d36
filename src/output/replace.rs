//! Files that are replaced as a whole, for readers that may look at any time.

use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::Path,
};

use rustix::fs::{Mode, OFlags};

use crate::lock::random;

/// Refuses what is no file: renaming over a device or a pipe (`/dev/null`, `/dev/stderr`) would remove it for all users.
///
/// # Errors
/// If something else is there.
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => Err(io::Error::other("it is a folder")),
        Ok(metadata) if !metadata.is_file() && !metadata.is_symlink() => Err(io::Error::other("not a file")),
        _ => Ok(()),
    }
}

/// Writes aside and renames, so that a reader sees the old text or the new one, never half of one; a symbolic link in its place is
/// replaced, not followed.
///
/// # Errors
/// If it can't be written; the old one is still there then.
pub fn replace(path: &Path, mode: Mode, text: &str) -> io::Result<()> {
    check_replaceable(path)?;
    let mut aside = OsString::from(".");
    aside.push(path.file_name().unwrap_or_default());
    aside.push(format!(".{:016x}", random()));
    let aside = path.with_file_name(aside);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = std::fs::File::from(rustix::fs::open(&aside, flags, mode)?);
    let written = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&aside, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&aside);
    }
    written
}
