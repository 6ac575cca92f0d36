//! Kazoo's `Lock`, told of what other libraries name their nodes.

use crate::support::{
    self, have, kazoo,
    process::{self, Process},
    zookeeper::ZooKeeper,
};

/// Runs a shell line under kazoo's lock: CONNECT PATH LINE
const PROGRAM: &str = r#"
import subprocess, sys
from kazoo.client import KazooClient
client = KazooClient(hosts=sys.argv[1])
client.start()
with client.Lock(sys.argv[2], extra_lock_patterns=["-lock-"]):
    status = subprocess.call(["sh", "-c", sys.argv[3]])
client.stop()
sys.exit(status)
"#;

#[test]
fn kazoo_and_dlock_exclude_each_other() {
    const NAME: &str = "kazoo_and_dlock_exclude_each_other";
    if !have(NAME, &["python3"]) {
        return;
    }
    if let Some(why) = ZooKeeper::missing() {
        return support::skip(NAME, &why);
    }
    let python = match kazoo::python() {
        Ok(python) => python,
        Err(why) => return support::skip(NAME, &why),
    };
    let other = |servers: &str, path: &str, line: &str| {
        let mut command = process::command(&python);
        command.args(["-c", PROGRAM, servers, path, line]);
        Process::collect(command)
    };
    crate::zookeeper::exclude_each_other("kazoo", &["-x", "-s"], &other);
    crate::zookeeper::excludes_a_permit("kazoo", &other);
}
