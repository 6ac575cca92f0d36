//! The scripts, each of which is one atomic step in the server.

use redis::Cmd;

/// A script and its SHA-1, written out since computing it would take a hundredth of a whole run.
pub(in crate::backends) struct Script {
    code: &'static str,
    sha: &'static str,
}

macro_rules! script {
    ($file:literal, $sha:literal) => {
        Script::new(concat!(include_str!("lua/common.lua"), "\n", include_str!("lua/prelude.lua"), "\n", include_str!($file)), $sha)
    };
}

pub(super) static ACQUIRE: Script = script!("lua/acquire.lua", "b4d67aadddb01f6d84d6ae8d896863bfa8e29cba");
pub(super) static SHARE: Script = script!("lua/share.lua", "5901849c4792a7e78a12d6bbc54866a10b12bec8");
pub(super) static RENEW: Script = script!("lua/renew.lua", "09c43b45c9bb876c90315fa5388e16bc8722793f");
pub(super) static RELEASE: Script = script!("lua/release.lua", "dd3c08edb32bfcf1d10b8f039905474d67910d0e");
pub(super) static BREAK: Script = script!("lua/break.lua", "11630cbf9739efe3b06501a523fc997178f054df");
pub(super) static NOTE: Script = script!("lua/note.lua", "03eb86d3dfda75fcc94348a55ff239cd4881f66f");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "9f05047630eb5a224bcee9086f511a46c88e1404");

impl Script {
    /// A script and its sum.
    pub(in crate::backends) const fn new(code: &'static str, sha: &'static str) -> Self {
        Self { code, sha }
    }

    /// Whether this is that script.
    pub(in crate::backends) fn is(&self, other: &Self) -> bool {
        self.sha == other.sha
    }

    /// Whether the sum is the script's, which a test has to see.
    #[cfg(test)]
    pub(in crate::backends) fn assert_sum(&self) {
        assert_eq!(self.sha, redis::Script::new(self.code).get_hash());
    }

    /// The call by SHA-1: one packet, as long as the server knows the script.
    pub(in crate::backends) fn by_sha(&self, keys: &[&str], arguments: &[&str]) -> Vec<u8> {
        pack("EVALSHA", self.sha, keys, arguments)
    }

    /// The call with the whole script, which the server remembers.
    pub(in crate::backends) fn in_full(&self, keys: &[&str], arguments: &[&str]) -> Vec<u8> {
        pack("EVAL", self.code, keys, arguments)
    }
}

fn pack(command: &str, script: &str, keys: &[&str], arguments: &[&str]) -> Vec<u8> {
    let mut call: Cmd = redis::cmd(command);
    call.arg(script).arg(keys.len()).arg(keys).arg(arguments);
    call.get_packed_command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_are_those_of_the_scripts() {
        for script in [&ACQUIRE, &SHARE, &RENEW, &RELEASE, &ABANDON, &BREAK, &NOTE] {
            script.assert_sum();
        }
    }
}
