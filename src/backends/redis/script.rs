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

pub(super) static ACQUIRE: Script = script!("lua/acquire.lua", "e36fc0084bc5fd6aca7f774ef27b6e891726c01d");
pub(super) static SHARE: Script = script!("lua/share.lua", "1f9dfa5cb833e0c7220f5aa426063c97cee2587c");
pub(super) static RENEW: Script = script!("lua/renew.lua", "f98dd2704178ca2e458cab90ed0f2b5230929636");
pub(super) static RELEASE: Script = script!("lua/release.lua", "ea13e0ab0ad6275251dbc2320da2c1147f7b79a5");
pub(super) static BREAK: Script = script!("lua/break.lua", "4c8abf973f35dfde9d52324e8cdbfaf7898d888b");
pub(super) static NOTE: Script = script!("lua/note.lua", "7a21dca2389ca30b2c14dd0d9e46d3751bcc2952");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "83df0411e104232c9fc1b31b9c5cbd631fddd089");

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
