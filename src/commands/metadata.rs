//! The metadata of this process in a lease, from the kernel and the password file.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use crate::lock::Metadata;

/// Returns this process's metadata. Unknown values are omitted.
///
/// `command` is the program that will run, of which only the file name is kept: arguments can hold
/// secrets.
pub fn collect(
    host: Option<&str>,
    command: Option<&std::ffi::OsStr>,
    describe: Option<String>,
) -> Metadata {
    let host = host.map_or_else(
        || {
            rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned()
        },
        str::to_owned,
    );
    Metadata {
        host: Some(host).filter(|host| !host.is_empty()),
        boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .map(|id| id.trim().to_owned()),
        pid_ns: fs::metadata("/proc/self/ns/pid")
            .ok()
            .map(|namespace| namespace.ino()),
        user: Some(user()),
        pid: Some(std::process::id()),
        command: command
            .and_then(|program| Path::new(program).file_name())
            .map(|name| name.to_string_lossy().into_owned()),
        description: describe,
        anyway: None,
        waited_ms: None,
    }
}

/// Returns the name of the effective user, or the UID if the user has no name.
pub fn user() -> String {
    let uid = rustix::process::geteuid().as_raw().to_string();
    // A static binary can't ask the name service: the file has the local users, the session the
    // others.
    let in_file = fs::read_to_string("/etc/passwd")
        .ok()
        .and_then(|passwd| name_of(&passwd, &uid));
    in_file
        .or_else(|| {
            std::env::var("LOGNAME")
                .ok()
                .filter(|name| !name.is_empty())
        })
        .unwrap_or(uid)
}

fn name_of(passwd: &str, uid: &str) -> Option<String> {
    let line = passwd
        .lines()
        .find(|line| line.split(':').nth(2) == Some(uid))?;
    line.split(':').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_file_name_of_the_command_is_kept() {
        let me = collect(
            Some("web1"),
            Some("/opt/jobs/report.sh".as_ref()),
            Some("v2".into()),
        );
        assert_eq!(
            (
                me.host.as_deref(),
                me.command.as_deref(),
                me.description.as_deref()
            ),
            (Some("web1"), Some("report.sh"), Some("v2"))
        );
        assert_eq!(me.pid, Some(std::process::id()));
        assert_eq!(me.boot_id.map(|id| id.len()), Some(36));
        assert!(me.pid_ns.is_some() && me.user.is_some_and(|user| !user.is_empty()));
    }

    #[test]
    fn users_are_found_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nana:x:1000:100::/home/ana:/bin/sh\n";
        assert_eq!(name_of(passwd, "1000").as_deref(), Some("ana"));
        assert_eq!(name_of(passwd, "100"), None);
    }
}
