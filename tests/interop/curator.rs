//! Curator's `InterProcessMutex` and `InterProcessReadWriteLock`, of Debian's package.

use std::{path::PathBuf, process::Command, sync::OnceLock};

use crate::support::{
    self, have,
    process::{self, Process},
    zookeeper::{ZooKeeper, jar},
};

const JARS: [&str; 14] = [
    "curator-client.jar",
    "curator-framework.jar",
    "curator-recipes.jar",
    "guava.jar",
    "zookeeper.jar",
    "slf4j-api.jar",
    "slf4j-nop.jar",
    "netty-common.jar",
    "netty-buffer.jar",
    "netty-transport.jar",
    "netty-handler.jar",
    "netty-codec.jar",
    "netty-resolver.jar",
    "failureaccess.jar",
];

fn class_path() -> String {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    let jars: Vec<_> = JARS.iter().map(|name| jar(name)).filter(|jar| jar.is_file()).map(|jar| jar.display().to_string()).collect();
    let classes = COMPILED.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("curator");
        std::fs::create_dir_all(&folder).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/Curator.java");
        let compiled = Command::new("javac").args(["-d"]).arg(&folder).args(["-cp", &jars.join(":"), source]).output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        folder
    });
    format!("{}:{}", classes.display(), jars.join(":"))
}

/// What starts a shell line under a lock of Curator's of this kind; `None` if something isn't installed.
fn curator(test: &str, kind: &'static str) -> Option<impl Fn(&str, &str, &str) -> Process> {
    if !have(test, &["java", "javac"]) {
        return None;
    }
    let why = ZooKeeper::missing().or_else(|| (!jar("curator-recipes.jar").is_file()).then(|| "Curator is not installed".to_owned()));
    if let Some(why) = why {
        support::skip(test, &why);
        return None;
    }
    let classes = class_path();
    Some(move |servers: &str, path: &str, line: &str| {
        let mut command = process::command("java");
        command.args(["-XX:TieredStopAtLevel=1", "-cp", &classes, "Curator", kind, servers, path, line]);
        Process::collect(command)
    })
}

#[test]
fn curator_and_dlock_exclude_each_other() {
    let Some(mutex) = curator("curator_and_dlock_exclude_each_other", "mutex") else { return };
    crate::zookeeper::exclude_each_other("Curator", &["-x", "-s"], &mutex);
}

#[test]
fn curator_and_a_permit_exclude_each_other() {
    let Some(mutex) = curator("curator_and_a_permit_exclude_each_other", "mutex") else { return };
    crate::zookeeper::excludes_a_permit("Curator", &mutex);
}

/// Curator's own mutex and read-write lock don't exclude each other on one path; dlock stands in the line of both.
#[test]
fn curators_writers_and_dlock_exclude_each_other() {
    let Some(write) = curator("curators_writers_and_dlock_exclude_each_other", "write") else { return };
    crate::zookeeper::exclude_each_other("Curator's writer", &["-x", "-s", "--permits=2"], &write);
}

#[test]
fn curators_readers_and_readers_of_dlock_go_together() {
    let Some(read) = curator("curators_readers_and_readers_of_dlock_go_together", "read") else { return };
    crate::zookeeper::go_together("Curator's reader", "-s", &read);
}

#[test]
fn curators_readers_and_dlock_exclude_each_other() {
    let Some(read) = curator("curators_readers_and_dlock_exclude_each_other", "read") else { return };
    crate::zookeeper::exclude_each_other("Curator's reader", &["-x", "--permits=2"], &read);
}
