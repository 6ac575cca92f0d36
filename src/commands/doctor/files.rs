//! The permissions of passwords, keys and the configuration.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use crate::lock::{Finding, Severity};

/// A file that not every user may read or change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSecret {
    /// A human-readable description.
    pub what: &'static str,
    /// The place of the secret.
    pub place: SecretPlace,
}

/// The place of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretPlace {
    /// A file that contains a secret.
    File(PathBuf),
    /// A file that selects the store.
    Configuration(PathBuf),
    /// A variable that the command of `run` doesn't see.
    Variable(&'static str),
    /// What the command of a setting prints.
    Command(&'static str),
    /// A URL in a variable, which the command of `run` does see.
    UrlInVariable,
    /// A URL on the command line.
    CommandLine,
}

impl FoundSecret {
    /// Returns a secret with its description and place.
    pub fn new(what: &'static str, place: SecretPlace) -> Self {
        Self { what, place }
    }
}

/// Returns the worst finding, or an all-clear.
pub(super) fn examine(secrets: &[FoundSecret]) -> Finding {
    const ID: &str = "secrets";
    let findings: Vec<Finding> = secrets.iter().map(|secret| one(ID, secret)).collect();
    let worst = findings.iter().map(|finding| finding.severity).max();
    match worst {
        None => Finding::ok(
            ID,
            "no password, no key and no configuration file is in use",
        ),
        Some(Severity::Ok) => Finding::ok(
            ID,
            findings
                .iter()
                .map(|finding| finding.text.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        ),
        Some(worst) => {
            let mut bad = findings
                .into_iter()
                .filter(|finding| finding.severity == worst);
            let first = bad.next().unwrap_or_else(|| Finding::ok(ID, ""));
            let rest: Vec<String> = bad.map(|finding| finding.text).collect();
            if rest.is_empty() {
                first
            } else {
                Finding {
                    text: format!("{}; also {}", first.text, rest.join("; also ")),
                    ..first
                }
            }
        }
    }
}

fn one(id: &'static str, secret: &FoundSecret) -> Finding {
    let what = secret.what;
    match &secret.place {
        SecretPlace::File(path) => file(id, what, path, true),
        SecretPlace::Configuration(path) => file(id, what, path, false),
        SecretPlace::Variable(name) => Finding::ok(id, format!("{what} in {name}")),
        SecretPlace::Command(name) => Finding::ok(id, format!("{what} from {name}")),
        SecretPlace::UrlInVariable => Finding::warn(
            id,
            format!("{what} in the URL in DLOCK_BACKEND"),
            "the command that run starts sees it",
        )
        .fix("DLOCK_PASSWORD, or a password_file"),
        SecretPlace::CommandLine => Finding::warn(
            id,
            format!("{what} on the command line"),
            "every user of this host can read it",
        )
        .fix("DLOCK_PASSWORD, or a password_file"),
    }
}

fn file(id: &'static str, what: &str, path: &Path, is_secret: bool) -> Finding {
    let shown = path.display();
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Finding::warn(
                id,
                format!("{what}: there is no {shown}"),
                "what it is for can't work",
            );
        }
        Err(error) => {
            return Finding::unchecked(id, &format!("{what} {shown}"), &crate::lock::plain(&error));
        }
    };
    let mode = found.permissions().mode() & 0o7777;
    let text = format!("{what} {shown} mode {mode:04o}");
    let ours = rustix::process::geteuid().as_raw();
    if mode & 0o002 != 0 {
        let risk = if is_secret {
            "all users can replace it"
        } else {
            "every user can send the jobs to another store, where they run next to ours"
        };
        return Finding::not_safe(id, text, risk).fix(format!("chmod o-w {shown}"));
    }
    if found.uid() != ours && found.uid() != 0 {
        return Finding::warn(
            id,
            format!("{text}, of uid {}", found.uid()),
            "its owner can change it",
        )
        .fix(format!("chown root {shown}"));
    }
    // World-readable passwords were refused before this. Keys have not been checked yet.
    if is_secret && mode & 0o004 != 0 && !in_memory(path) {
        return Finding::warn(id, text, "every user of this host can read it")
            .fix(format!("chmod o-rwx {shown}"));
    }
    Finding::ok(id, text)
}

/// Whether the path is in memory, where containers get their secrets, with any mode.
fn in_memory(path: &Path) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    path.starts_with("/run/secrets")
        || rustix::fs::statfs(path)
            .is_ok_and(|stat| u64::try_from(stat.f_type).is_ok_and(|kind| kind == TMPFS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_file_permissions_are_reported() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "x").unwrap();
        let with = |mode, is_secret| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            file("secrets", "the password", &path, is_secret).severity
        };
        assert_eq!(
            (with(0o600, true), with(0o640, true), with(0o644, true)),
            (Severity::Ok, Severity::Ok, Severity::Warn)
        );
        assert_eq!(
            (with(0o644, false), with(0o666, false)),
            (Severity::Ok, Severity::Unsafe)
        );
        fs::remove_file(&path).unwrap();
        assert_eq!(
            file("secrets", "the key", &path, true).severity,
            Severity::Warn
        );
    }
}
