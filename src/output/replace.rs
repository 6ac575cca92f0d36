//! Replaces whole files atomically, for readers that may read at any time.

use std::{
    ffi::OsString,
    io::{self, Write as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use rustix::fs::{Gid, Mode, OFlags, Uid, fchmod, fchown};

use crate::lock::random;

/// Refuses paths other than regular files: renaming over a device or a pipe (`/dev/null`) would
/// remove it for all users.
///
/// # Errors
/// If the path is a folder, a device, a pipe or a socket.
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => Err(io::Error::other("it is a folder")),
        Ok(metadata) if !metadata.is_file() && !metadata.is_symlink() => {
            Err(io::Error::other("not a file"))
        }
        _ => Ok(()),
    }
}

/// Who may read a file that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its owner.
    Private,
    /// The users that could read the replaced file; all users if there was none, whatever the umask
    /// says.
    Public,
}

impl Access {
    fn apply(self, file: &std::fs::File, path: &Path) -> io::Result<()> {
        if self == Self::Private {
            return Ok(());
        }
        let before = path
            .symlink_metadata()
            .ok()
            .filter(std::fs::Metadata::is_file);
        if let Some(before) = &before {
            // Only root may give a file away; others keep what they can.
            let _ = fchown(file, None, Some(Gid::from_raw(before.gid())));
            let _ = fchown(file, Some(Uid::from_raw(before.uid())), None);
        }
        let mode = before.map_or(0o644, |before| before.mode() & 0o777);
        Ok(fchmod(file, Mode::from_raw_mode(mode))?)
    }
}

/// Writes a temporary file and renames it, so that a reader sees the old text or the new one, never
/// half of one. A symbolic link is replaced, not followed.
///
/// # Errors
/// If the file can't be written. The old one is unchanged then.
pub fn replace(path: &Path, access: Access, text: &str) -> io::Result<()> {
    check_replaceable(path)?;
    let mut temporary = OsString::from(".");
    temporary.push(path.file_name().unwrap_or_default());
    temporary.push(format!(".{:016x}", random()));
    let temporary = path.with_file_name(temporary);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = std::fs::File::from(rustix::fs::open(
        &temporary,
        flags,
        Mode::RUSR | Mode::WUSR,
    )?);
    let written = access
        .apply(&file, path)
        .and_then(|()| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}
