//! The scripts, each of which is one atomic step in the server.

use std::sync::LazyLock;

use redis::Cmd;

/// A script and its SHA-1, which is computed when it is first used.
pub(super) struct Script {
    code: &'static str,
    sha: LazyLock<String>,
}

macro_rules! script {
    ($file:literal) => {
        Script {
            code: concat!(include_str!("lua/prelude.lua"), "\n", include_str!($file)),
            sha: LazyLock::new(|| sha1(concat!(include_str!("lua/prelude.lua"), "\n", include_str!($file)))),
        }
    };
}

pub(super) static ACQUIRE: Script = script!("lua/acquire.lua");
pub(super) static RENEW: Script = script!("lua/renew.lua");
pub(super) static RELEASE: Script = script!("lua/release.lua");
pub(super) static ABANDON: Script = script!("lua/abandon.lua");

fn sha1(code: &str) -> String {
    redis::Script::new(code).get_hash().to_owned()
}

impl Script {
    /// The call by SHA-1: one packet, as long as the server knows the script.
    pub(super) fn by_sha(&self, keys: &[&str], arguments: &[&str]) -> Vec<u8> {
        pack("EVALSHA", &self.sha, keys, arguments)
    }

    /// The call with the whole script, which the server remembers.
    pub(super) fn in_full(&self, keys: &[&str], arguments: &[&str]) -> Vec<u8> {
        pack("EVAL", self.code, keys, arguments)
    }
}

fn pack(command: &str, script: &str, keys: &[&str], arguments: &[&str]) -> Vec<u8> {
    let mut call: Cmd = redis::cmd(command);
    call.arg(script).arg(keys.len()).arg(keys).arg(arguments);
    call.get_packed_command()
}
