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

pub(super) static ACQUIRE: Script = script!("lua/acquire.lua", "3ff639dea14f2d21ab22d19b13310b2977293c64");
pub(super) static SHARE: Script = script!("lua/share.lua", "22c6b20cb570fd974cb4c18775a3f2351ca2a7ee");
pub(super) static RENEW: Script = script!("lua/renew.lua", "53a4795e836525be63ab60e604ce69dda0b8080a");
pub(super) static RELEASE: Script = script!("lua/release.lua", "20cce7e3a3c8a58bab04ac085264b8b1724b8111");
pub(super) static BREAK: Script = script!("lua/break.lua", "90b91688a105100a8ca533b78bad50e37da1289b");
pub(super) static NOTE: Script = script!("lua/note.lua", "bf152844291244ca5cdfeb1a1c58fc729a41329d");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "5fb1a7d2959dd2be47ff696e53aa312686d9d024");

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
