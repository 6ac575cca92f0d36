//! The file with the verdict of a `run`, for callers that can't distinguish dlock's exit status
//! from the command's.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use super::replace::{Access, check_replaceable, replace};

/// The file to which a verdict is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusFile {
    folder: PathBuf,
    name: OsString,
}

impl StatusFile {
    /// Creates a status file after checking the path, as far as possible without writing.
    ///
    /// # Errors
    /// Why a verdict can't be written there.
    pub fn new(path: &Path) -> Result<Self, String> {
        let name = path.file_name().ok_or("it is no file's name")?.to_owned();
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        // dlock may change its working directory later, so the folder is resolved now.
        let folder = folder
            .canonicalize()
            .map_err(|error| format!("its folder: {}", crate::lock::plain(&error)))?;
        if !folder.is_dir() {
            return Err("its folder is none".into());
        }
        let file = Self { folder, name };
        check_replaceable(&file.path()).map_err(|error| error.to_string())?;
        Ok(file)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Replaces the verdict of an earlier run by `text`. If writing fails, removes the old verdict.
    ///
    /// # Errors
    /// If an earlier verdict could neither be replaced nor removed.
    pub fn begin(&self, text: &str) -> io::Result<()> {
        let Err(error) = self.write(text) else {
            return Ok(());
        };
        match std::fs::remove_file(self.path()) {
            Err(left) if left.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes the verdict, readable by its owner alone.
    ///
    /// # Errors
    /// If the file can't be written. The old one is unchanged then.
    pub fn write(&self, text: &str) -> io::Result<()> {
        replace(&self.path(), Access::Private, text)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn a_verdict_replaces_the_old_one_and_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status.json");
        let file = StatusFile::new(&path).unwrap();
        file.write("one").unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        file.write("two").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            2,
            "no temporary file is left"
        );
    }

    #[test]
    fn devices_and_missing_folders_are_refused() {
        assert!(
            StatusFile::new(Path::new("/dev/null"))
                .unwrap_err()
                .contains("not a file")
        );
        assert!(
            StatusFile::new(Path::new("/nonexistent/x"))
                .unwrap_err()
                .contains("no such file")
        );
        assert!(StatusFile::new(Path::new("/")).is_err());
        assert!(StatusFile::new(Path::new("")).is_err());
    }
}
