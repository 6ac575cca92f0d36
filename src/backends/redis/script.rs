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

pub(super) static ACQUIRE: Script = script!("lua/acquire.lua", "e61a474f3604cec4b92e6ce256afe895f3189316");
pub(super) static SHARE: Script = script!("lua/share.lua", "a24de064d6c1bcd9359453cbb50ad5dc60c9205e");
pub(super) static RENEW: Script = script!("lua/renew.lua", "b05ea3ee1d6d7d30dd33f07f00ada7611167881b");
pub(super) static RELEASE: Script = script!("lua/release.lua", "1a0bc07dfaa6ef5414125e6be96fea34a336953d");
pub(super) static BREAK: Script = script!("lua/break.lua", "ee0ced1a4958766e38c918b74a9e44fecc525622");
pub(super) static NOTE: Script = script!("lua/note.lua", "f5c63da2d9fe2076ea8b979c84dda83d25a162df");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "0b44def4243351b150f3541b0dc87ed651869fb0");

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

/// A truth value, as scripts take it.
pub(in crate::backends) fn flag(set: bool) -> &'static str {
    if set { "1" } else { "0" }
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
