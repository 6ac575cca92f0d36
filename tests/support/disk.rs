//! A small disk that a test can fill.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// A separate file system; it ends with this value.
#[derive(Debug)]
pub struct Disk(TempDir);

impl Disk {
    /// Mounts a file system of this size, such as `64m`.
    ///
    /// # Errors
    /// The reason why no file system can be mounted here.
    pub fn make(size: &str) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root can mount a disk".into());
        }
        let disk = Self(super::folder());
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(disk.folder())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Ok(disk),
            failed => Err(format!("no disk can be mounted here: {failed:?}")),
        }
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Fills the disk; only pages that are written already can be rewritten.
    pub fn fill(&self) {
        let mut file = fs::File::create(self.path("ballast")).expect("a file on the disk");
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    pub fn free(&self) {
        fs::remove_file(self.path("ballast")).expect("the ballast");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(self.folder())
            .status();
    }
}
