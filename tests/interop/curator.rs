//! Curator's `InterProcessMutex`, of Debian's package.

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

#[test]
fn curator_and_dlock_exclude_each_other() {
    const NAME: &str = "curator_and_dlock_exclude_each_other";
    if !have(NAME, &["java", "javac"]) {
        return;
    }
    if let Some(why) = ZooKeeper::missing() {
        return support::skip(NAME, &why);
    }
    if !jar("curator-recipes.jar").is_file() {
        return support::skip(NAME, "Curator is not installed");
    }
    let classes = class_path();
    crate::zookeeper::exclude_each_other("Curator", &|servers, path, line| {
        let mut command = process::command("java");
        command.args(["-XX:TieredStopAtLevel=1", "-cp", &classes, "Curator", servers, path, line]);
        Process::collect(command)
    });
}
