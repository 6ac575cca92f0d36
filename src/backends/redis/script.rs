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

pub(super) static ACQUIRE: Script = script!("lua/acquire.lua", "f1fc0e82833054294cc4791deb508dcf9d0485bb");
pub(super) static SHARE: Script = script!("lua/share.lua", "8762384873d44cf90dd416a7cc086a62f6977a18");
pub(super) static RENEW: Script = script!("lua/renew.lua", "cb0d6f3e3d4864301e50024fe25a342e0f601d70");
pub(super) static RELEASE: Script = script!("lua/release.lua", "bd587e011001987f3610e1cd5bdee3c5d9acf494");
pub(super) static BREAK: Script = script!("lua/break.lua", "5fff81159648f64be9d1afe3c9da013c71349a44");
pub(super) static NOTE: Script = script!("lua/note.lua", "55c26860546808b8e6aef51f26cae1a77eac7c7d");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "2fe9496c6eec6afe4c35eb1eb5b05b86400c2aeb");

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
