//! The scripts. Each is one atomic step in the server.

use redis::Cmd;

/// A script and its SHA-1. The hash is a constant, since computing it would take 1 % of a whole run.
pub(in crate::backends) struct Script {
    code: &'static str,
    sha: &'static str,
}

macro_rules! script {
    ($file:literal, $sha:literal) => {
        Script::new(concat!(include_str!("lua/common.lua"), "\n", include_str!("lua/prelude.lua"), "\n", include_str!($file)), $sha)
    };
}

pub(super) static ACQUIRE: Script = script!("lua/acquire.lua", "1a63f81e38865f41f09224f8700e5fc8c4dd0dc7");
pub(super) static SHARE: Script = script!("lua/share.lua", "6986a58af964f8c37fda0f51f4622dc4e895f389");
pub(super) static RENEW: Script = script!("lua/renew.lua", "eecc244a4e5448766a1f62c52c5182bf203f33b2");
pub(super) static RELEASE: Script = script!("lua/release.lua", "2e14218473962743804e702692dcdce88cca4341");
pub(super) static BREAK: Script = script!("lua/break.lua", "f139205b9f003c034184efa18ab9b2bab08dc051");
pub(super) static NOTE: Script = script!("lua/note.lua", "0f6ed73db00f563e1fe50fdb0549d1775221b08a");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "42cdfc46830c544dad76d82b186344c78d49e9b4");

impl Script {
    /// Creates a script from its code and its SHA-1.
    pub(in crate::backends) const fn new(code: &'static str, sha: &'static str) -> Self {
        Self { code, sha }
    }

    /// Whether both are the same script.
    pub(in crate::backends) fn is(&self, other: &Self) -> bool {
        self.sha == other.sha
    }

    /// Asserts that the SHA-1 is the code's. Tests call it.
    #[cfg(test)]
    pub(in crate::backends) fn assert_sum(&self) {
        assert_eq!(self.sha, redis::Script::new(self.code).get_hash());
    }

    /// Returns the call by SHA-1. The server must know the script.
    pub(in crate::backends) fn by_sha(&self, keys: &[&str], arguments: &[&str]) -> Vec<u8> {
        pack("EVALSHA", self.sha, keys, arguments)
    }

    /// Returns the call with the whole script. The server then knows the script.
    pub(in crate::backends) fn eval_command(&self, keys: &[&str], arguments: &[&str]) -> Vec<u8> {
        pack("EVAL", self.code, keys, arguments)
    }
}

fn pack(command: &str, script: &str, keys: &[&str], arguments: &[&str]) -> Vec<u8> {
    let mut call: Cmd = redis::cmd(command);
    call.arg(script).arg(keys.len()).arg(keys).arg(arguments);
    call.get_packed_command()
}

/// Returns a truth value as a script argument.
pub(in crate::backends) fn flag(set: bool) -> &'static str {
    if set { "1" } else { "0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hashes_match_the_scripts() {
        for script in [&ACQUIRE, &SHARE, &RENEW, &RELEASE, &ABANDON, &BREAK, &NOTE] {
            script.assert_sum();
        }
    }
}
