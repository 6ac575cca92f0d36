//! The scripts, each of which is one atomic step in the server.

use redis::Cmd;

/// A script and its SHA-1, written out since computing it would take a hundredth of a whole run.
pub(in crate::backends) struct Script {
    code: &'static str,
    sha: &'static str,
}

macro_rules! script {
    ($file:literal, $sha:literal) => {
        Script::new(concat!(include_str!("lua/prelude.lua"), "\n", include_str!($file)), $sha)
    };
}

pub(super) static ACQUIRE: Script = script!("lua/acquire.lua", "ccc2136b8a4517df0cc7e2aa8f0aea1115962516");
pub(super) static RENEW: Script = script!("lua/renew.lua", "382af42cbaf8e70d80fa7193092d61e96eb93a8f");
pub(super) static RELEASE: Script = script!("lua/release.lua", "beb8d7d9b5d6c3a29cf0ab21afb8c0b3c77ce9cf");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "fe2272884b1929426a5755cd080781399518c105");

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
        for script in [&ACQUIRE, &RENEW, &RELEASE, &ABANDON] {
            script.assert_sum();
        }
    }
}
