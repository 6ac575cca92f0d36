//! Where the database is, and whether a lock may live there. Opens nothing.

use std::{
    env,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

use crate::lock::{Error, Kind, Result};

const FILE_NAME: &str = "dlock.db";

/// Returns the default path of the database: in `/var/lib/dlock` for root, in the state directory
/// of any other user.
///
/// # Errors
/// [`Kind::Config`] for a user with neither `XDG_STATE_HOME` nor `HOME`.
pub fn default_path() -> Result<PathBuf> {
    default_for(
        rustix::process::geteuid().is_root(),
        env::var_os("XDG_STATE_HOME"),
        env::var_os("HOME"),
    )
}

fn default_for(
    root: bool,
    state_home: Option<OsString>,
    home: Option<OsString>,
) -> Result<PathBuf> {
    // The XDG specification has relative paths ignored; an empty variable is an unset one.
    let absolute = |dir: Option<OsString>| dir.map(PathBuf::from).filter(|dir| dir.is_absolute());
    let state = if root {
        PathBuf::from("/var/lib")
    } else if let Some(state) = absolute(state_home) {
        state
    } else if let Some(home) = absolute(home) {
        home.join(".local/state")
    } else {
        return Err(Error::new(
            Kind::Config,
            "there is no place for the default database: neither XDG_STATE_HOME nor HOME is set",
        )
        .hint("set HOME, or name a backend with --backend or DLOCK_BACKEND"));
    };
    Ok(state.join("dlock").join(FILE_NAME))
}

/// The directory of `path`.
pub(super) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != OsStr::new("") => parent,
        _ => Path::new("."),
    }
}

/// Returns `path` without links and `..`, as far as it exists.
pub(super) fn resolved(path: &Path) -> PathBuf {
    for there in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (there.canonicalize(), path.strip_prefix(there)) {
            return if rest == Path::new("") {
                real
            } else {
                real.join(rest)
            };
        }
    }
    path.to_owned()
}

/// Identifies the file at that path; `None` if there is none.
pub(super) fn file_id(path: &Path) -> Option<(u64, u64)> {
    rustix::fs::stat(path)
        .ok()
        .map(|stat| (stat.st_dev, stat.st_ino))
}

/// Refuses a database that has another name: another name has another log and another lock file.
///
/// `links` is the number of its names in its file system. A bind mount of the file itself is
/// another name.
pub(super) fn check_single_name(path: &Path, links: u64) -> Result<()> {
    let refuse = |what: &str, hint: &str| {
        Err(Error::new(Kind::Config, format!("{} {what}", path.display())).hint(hint))
    };
    if links > 1 {
        return refuse(
            "has another name (a hard link): a holder by that name would not be seen",
            "keep one name, and remove the others; link to the directory instead",
        );
    }
    // A kernel without statx does not tell.
    let status = statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS);
    if status.is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)) {
        return refuse(
            "is mounted as a single file: a holder that uses its other name would not be seen",
            "mount the directory that it lies in",
        );
    }
    Ok(())
}

/// Refuses file systems that other hosts can write to, and those whose locks this kernel does not
/// keep.
pub(super) fn check_file_system(directory: &Path) -> Result<()> {
    let Ok(stat) = rustix::fs::statfs(directory) else {
        // Opening the files gives a better error.
        return Ok(());
    };
    // The type's width depends on the architecture, and SMB's number is negative on some.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let magic = stat.f_type as u32;
    match remote_file_system(magic) {
        None => Ok(()),
        Some(name) => Err(Error::new(
            Kind::Config,
            format!("{} is on {name}: SQLite and its file locks protect one host, on a local file system", directory.display()),
        )
        .hint("choose a local path, or a backend that hosts can share, such as redis://")),
    }
}

/// The name of the network or user-space file system of this magic number (statfs(2)).
fn remote_file_system(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517B => "SMB",
        0xFE53_4D42 => "SMB2",
        0xFF53_4D42 => "CIFS",
        0x6573_5546 => "FUSE",
        0x0102_1997 => "9P",
        0x00C3_6400 => "Ceph",
        0x5346_414F | 0x6B41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x564C => "NCP",
        0x0116_1970 => "GFS2",
        0x7461_636F => "OCFS2",
        0x0BD0_0BD0 => "Lustre",
        0x4750_4653 => "GPFS",
        0xAAD7_AAEA => "PanFS",
        0x1983_0326 => "BeeGFS",
        0x2003_0528 => "OrangeFS",
        0x786F_4256 => "a VirtualBox shared folder",
        0xBACB_ACBC => "a VMware shared folder",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default(root: bool, state: Option<&str>, home: Option<&str>) -> Result<PathBuf> {
        default_for(root, state.map(OsString::from), home.map(OsString::from))
    }

    #[test]
    fn root_has_its_own_directory_whatever_the_environment() {
        assert_eq!(
            default(true, Some("/x"), None).unwrap(),
            Path::new("/var/lib/dlock/dlock.db")
        );
    }

    #[test]
    fn users_have_their_store_in_the_state_directory() {
        assert_eq!(
            default(false, Some("/x"), Some("/h")).unwrap(),
            Path::new("/x/dlock/dlock.db")
        );
        assert_eq!(
            default(false, None, Some("/h")).unwrap(),
            Path::new("/h/.local/state/dlock/dlock.db")
        );
        assert_eq!(
            default(false, Some("relative"), Some("/h")).unwrap(),
            Path::new("/h/.local/state/dlock/dlock.db")
        );
    }

    #[test]
    fn a_user_without_a_home_gets_an_error() {
        for home in [None, Some("")] {
            let error = default(false, Some(""), home).unwrap_err();
            assert_eq!(error.kind, Kind::Config);
            assert!(error.hint.is_some());
        }
    }

    #[test]
    fn a_path_has_one_spelling_before_and_after_it_exists() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(resolved(&link.join("a/b.db")), real.join("a/b.db"));
        std::fs::create_dir(real.join("a")).unwrap();
        std::fs::write(real.join("a/b.db"), "").unwrap();
        assert_eq!(resolved(&link.join("a/b.db")), real.join("a/b.db"));
    }

    #[test]
    fn network_file_systems_are_recognized_and_local_ones_accepted() {
        for magic in [0x6969, 0xFF53_4D42, 0xFE53_4D42, 0x517B, 0x6573_5546] {
            assert!(remote_file_system(magic).is_some());
        }
        assert!(check_file_system(&env::temp_dir()).is_ok());
    }
}
