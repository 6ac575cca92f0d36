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

pub(super) static ACQUIRE: Script = script!("lua/acquire.lua", "bf9afccc679062df236375b8f2764d64d79fff2b");
pub(super) static SHARE: Script = script!("lua/share.lua", "9002e346c18c40daa91181fc4e0f75085fc106c6");
pub(super) static RENEW: Script = script!("lua/renew.lua", "0db10a814a1b20738355e8c1421dfce27044199e");
pub(super) static RELEASE: Script = script!("lua/release.lua", "4177f44361cf6cd3c51e9ec91c53a9f6655b6cb2");
pub(super) static BREAK: Script = script!("lua/break.lua", "ed22e8401ebfa119f011c86bc95996f0ec575a45");
pub(super) static NOTE: Script = script!("lua/note.lua", "1d6e631887d9592948b5518d13dfbfe5f6e32fca");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "06ba1101c605f5577c8fbc751ee273155f06e5de");

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
