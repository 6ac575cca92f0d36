//! Reads files that hold a password, and checks their permissions.

use std::{
    fs::File,
    io::{self, Read as _},
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::Path,
};

use crate::lock::plain;

/// A larger file is refused.
const MAX_BYTES: u64 = 4096;

/// Reads a password from a file: one line, without its line break.
///
/// # Errors
/// Why the password can't be read, without the file's name.
pub fn read(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| plain(&error))?;
    if file.metadata().is_ok_and(|m| m.is_dir()) {
        return Err("it is a directory".into());
    }
    if others_can_read(&file, path).map_err(|error| plain(&error))? {
        return Err(OPEN_TO_ALL.into());
    }
    let mut text = String::new();
    file.take(MAX_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| plain(&error))?;
    let password = text.strip_suffix('\n').map_or(text.as_str(), |line| {
        line.strip_suffix('\r').unwrap_or(line)
    });
    if text.len() as u64 > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    if password.is_empty() {
        return Err("it is empty".into());
    }
    if password.chars().any(char::is_control) {
        return Err("it has more than one line, or control characters".into());
    }
    Ok(password.to_owned())
}

/// The message about a file with a secret that all users can read.
pub const OPEN_TO_ALL: &str = "it has a password and all users can read it";

/// Whether users other than the owner and the group can read an open file.
///
/// Always false for files in memory and below `/run/secrets`: container runtimes put secrets there
/// with any mode.
pub fn others_can_read(file: &File, path: &Path) -> io::Result<bool> {
    let for_others = file.metadata()?.mode() & 0o007;
    if for_others == 0 {
        return Ok(false);
    }
    let in_secrets = path
        .canonicalize()
        .is_ok_and(|path| path.starts_with("/run/secrets"));
    Ok(!in_secrets && !in_memory(file)?)
}

fn in_memory(file: &File) -> io::Result<bool> {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    let kind = rustix::fs::fstatfs(file.as_fd())?.f_type;
    Ok(u64::try_from(kind).is_ok_and(|kind| kind == TMPFS || kind == RAMFS))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn with(content: &[u8], mode: u32) -> Result<String, String> {
        // Not below /tmp, which may be in memory, where modes are not checked.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("password");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        read(&path)
    }

    #[test]
    fn the_line_break_is_removed() {
        assert_eq!(with(b"s3cret\n", 0o600).unwrap(), "s3cret");
        assert_eq!(with(b"s3cret\r\n", 0o640).unwrap(), "s3cret");
        assert_eq!(with(b" s3 cret ", 0o400).unwrap(), " s3 cret ");
    }

    #[test]
    fn a_world_readable_file_is_refused() {
        for mode in [0o644, 0o604, 0o666] {
            assert_eq!(with(b"s3cret\n", mode).unwrap_err(), OPEN_TO_ALL);
        }
    }

    #[test]
    fn invalid_passwords_are_refused() {
        assert_eq!(with(b"", 0o600).unwrap_err(), "it is empty");
        assert_eq!(with(b"\n", 0o600).unwrap_err(), "it is empty");
        assert!(with(b"two\nlines\n", 0o600).is_err());
        assert!(with(&[b'x'; 5000], 0o600).unwrap_err().contains("4096"));
        assert!(with(&[0xff, 0xfe], 0o600).is_err());
        assert_eq!(
            read(Path::new("/nonexistent/x")).unwrap_err(),
            "no such file or directory"
        );
        assert_eq!(read(Path::new("/")).unwrap_err(), "it is a directory");
    }
}
