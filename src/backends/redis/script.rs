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

pub(super) static ACQUIRE: Script = script!("lua/acquire.lua", "056536b61f5b641048dfe9b6733f159317e4696d");
pub(super) static SHARE: Script = script!("lua/share.lua", "d2fe870d0d5af4d7dff7c71793fecd801cb3d370");
pub(super) static RENEW: Script = script!("lua/renew.lua", "bbde820aca74b18c2104c65193fc4546c9a801b8");
pub(super) static RELEASE: Script = script!("lua/release.lua", "4d8a238a6760e022925393f8e65c2929d318251f");
pub(super) static BREAK: Script = script!("lua/break.lua", "15efa22e2ba7f5d59397290552ecae027863c2ad");
pub(super) static NOTE: Script = script!("lua/note.lua", "3041323b58de59a7afc3e60ed11e0861f84eeb7a");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "30ad5886a0bbdbcfebdfd5a7bf9413b7c6fd38a8");

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
