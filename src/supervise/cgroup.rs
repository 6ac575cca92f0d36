//! A cgroup (version 2) for the command, below dlock's own: the kernel can kill it as a whole,
//! however fast it forks.
//!
//! The cgroup supplements the guardian's tree and never replaces it: a privileged command can leave
//! its cgroup.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{Access, CWD, Mode, OFlags, access, getxattr, openat},
    process::geteuid,
};

/// The directory of dlock's own cgroup, in which the command's cgroup is created.
#[derive(Debug)]
pub struct Parent(PathBuf);

impl Parent {
    /// Finds dlock's place in the cgroup2 hierarchy, also when mounted next to version 1.
    pub fn find() -> io::Result<Self> {
        let none = |what: &str| io::Error::new(io::ErrorKind::NotFound, what);
        let own = fs::read("/proc/self/cgroup")?;
        let own = own
            .split(|&byte| byte == b'\n')
            .find_map(|line| line.strip_prefix(b"0::"));
        let own = own.ok_or_else(|| none("this process is in no cgroup of version 2"))?;
        let mounts = fs::read("/proc/self/mountinfo")?;
        let mount = mounts
            .split(|&byte| byte == b'\n')
            .find_map(|line| directory(line, Path::new(std::ffi::OsStr::from_bytes(own))));
        Ok(Self(mount.ok_or_else(|| {
            none("no cgroup2 file system shows this process's cgroup")
        })?))
    }

    /// Whether this cgroup is delegated to dlock: writable, and marked so by systemd unless dlock
    /// runs without being root.
    pub fn is_delegated(&self) -> bool {
        let marked = ["user.delegate", "trusted.delegate"]
            .into_iter()
            .any(|name| {
                let mut value = [0; 8];
                getxattr(&self.0, name, &mut value[..]).is_ok_and(|length| &value[..length] == b"1")
            });
        (marked || !geteuid().is_root()) && self.writable().is_ok()
    }

    fn writable(&self) -> io::Result<()> {
        access(&self.0, Access::WRITE_OK | Access::EXEC_OK)?;
        // Moving a process needs write access to the common ancestor's `cgroup.procs`.
        Ok(access(self.0.join("cgroup.procs"), Access::WRITE_OK)?)
    }

    /// Makes a cgroup and removes it.
    pub fn try_out() -> io::Result<()> {
        let parent = Self::find()?;
        let describe = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", parent.0.display()))
        };
        parent.writable().map_err(describe)?;
        let trial = parent.create(&name("trial")).map_err(describe)?;
        let kind = fs::read_to_string(trial.directory.join("cgroup.type")).unwrap_or_default();
        trial.remove();
        match kind.trim() {
            "domain" | "" => Ok(()),
            other => Err(describe(io::Error::other(format!(
                "a cgroup here is of type {other}"
            )))),
        }
    }

    /// Creates the cgroup with that name.
    pub fn create(&self, name: &str) -> io::Result<Cgroup> {
        let directory = self.0.join(name);
        fs::create_dir(&directory)?;
        let opened = openat(
            CWD,
            directory.join("cgroup.procs"),
            OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        match opened {
            Ok(entry) => Ok(Cgroup {
                directory,
                entry: Some(entry),
            }),
            Err(error) => {
                let _ = fs::remove_dir(&directory);
                Err(error.into())
            }
        }
    }

    /// Returns the cgroup with that name, if a guardian that is gone created it.
    pub fn existing(&self, name: &str) -> Option<Cgroup> {
        let directory = self.0.join(name);
        directory.is_dir().then_some(Cgroup {
            directory,
            entry: None,
        })
    }
}

/// Returns a unique name for a cgroup of this process.
pub fn name(purpose: &str) -> String {
    let now = crate::lease::BootClock::read().since_boot().as_nanos();
    format!(
        "dlock-{purpose}-{}-{now}",
        rustix::process::getpid().as_raw_pid()
    )
}

/// Returns the directory of cgroup `own`, if this line of mountinfo mounts a cgroup2 hierarchy that
/// shows it.
fn directory(line: &[u8], own: &Path) -> Option<PathBuf> {
    let text: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let separator = text.iter().position(|field| *field == b"-")?;
    if *text.get(separator + 1)? != b"cgroup2" {
        return None;
    }
    let (root, point) = (unescape(text.get(3)?), unescape(text.get(4)?));
    let below = own.strip_prefix(&root).ok()?;
    // A path with `..` is outside dlock's cgroup namespace.
    if below.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    Some(if below.as_os_str().is_empty() {
        point
    } else {
        point.join(below)
    })
}

/// Undoes mountinfo's octal escapes of spaces and the like.
fn unescape(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) if byte == b'\\' => {
                plain.push(code);
                rest = &after[3..];
            }
            _ => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(plain))
}

/// The command's cgroup.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
    entry: Option<OwnedFd>,
}

impl Cgroup {
    /// Moves the calling process into the cgroup.
    pub fn enter(&self) -> io::Result<()> {
        let Some(entry) = &self.entry else {
            return Ok(());
        };
        rustix::io::write(entry, b"0")?;
        Ok(())
    }

    /// Kills all processes in the cgroup (since Linux 5.14; has no effect before).
    pub fn kill(&self) {
        let _ = fs::write(self.directory.join("cgroup.kill"), "1");
    }

    /// Whether the cgroup contains live processes.
    pub fn is_populated(&self) -> bool {
        fs::read_to_string(self.directory.join("cgroup.events"))
            .is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
    }

    /// Returns the processes in the cgroup.
    pub fn members(&self) -> Vec<i32> {
        let procs = fs::read_to_string(self.directory.join("cgroup.procs")).unwrap_or_default();
        procs.lines().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Moves the remaining processes into dlock's own cgroup.
    pub fn evict(&self) {
        let Some(parent) = self
            .directory
            .parent()
            .map(|parent| parent.join("cgroup.procs"))
        else {
            return;
        };
        for pid in self.members() {
            let _ = fs::write(&parent, pid.to_string());
        }
    }

    /// Removes the cgroup if it is empty, after the cgroups that the command created below it.
    pub fn remove(&self) {
        fn remove(directory: &Path) {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    remove(&entry.path());
                }
            }
            let _ = fs::remove_dir(directory);
        }
        remove(&self.directory);
    }
}

#[cfg(test)]
impl Cgroup {
    /// Returns a cgroup that is entered by writing to `entry`.
    pub fn entered_by(entry: OwnedFd) -> Self {
        Self {
            directory: "/nonexistent".into(),
            entry: Some(entry),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_directory_is_found_in_every_kind_of_mount() {
        let find = |line: &str, own: &str| directory(line.as_bytes(), Path::new(own));
        let unified = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw";
        assert_eq!(
            find(unified, "/user.slice/a").unwrap(),
            Path::new("/sys/fs/cgroup/user.slice/a")
        );
        assert_eq!(find(unified, "/").unwrap(), Path::new("/sys/fs/cgroup"));
        assert_eq!(find(unified, "/../other"), None);
        // A container whose mount shows only its own part.
        let part = "35 24 0:30 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup rw";
        assert_eq!(
            find(part, "/docker/1/x").unwrap(),
            Path::new("/sys/fs/cgroup/x")
        );
        assert_eq!(find(part, "/docker/2"), None);
        let spaced = "35 24 0:30 / /mnt/my\\040cg rw - cgroup2 cgroup rw";
        assert_eq!(find(spaced, "/a").unwrap(), Path::new("/mnt/my cg/a"));
        assert_eq!(
            find(
                "30 24 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
                "/"
            ),
            None
        );
    }
}
