//! The scripts. Each is one atomic step in the server.

use redis::Cmd;

/// A script and its SHA-1. The hash is a constant, since computing it would take 1 % of a whole
/// run.
pub(in crate::backends) struct Script {
    code: &'static str,
    sha: &'static str,
}

macro_rules! script {
    ($file:literal, $sha:literal) => {
        Script::new(
            concat!(
                include_str!("lua/common.lua"),
                "\n",
                include_str!("lua/prelude.lua"),
                "\n",
                include_str!($file)
            ),
            $sha,
        )
    };
}

pub(super) static ACQUIRE: Script = script!(
    "lua/acquire.lua",
    "959b8716f8d8ec2b07a20774df8fe38d53c101df"
);
pub(super) static SHARE: Script =
    script!("lua/share.lua", "66e959c1e4fc183a47091c9336f11caac8d2ae55");
pub(super) static RENEW: Script =
    script!("lua/renew.lua", "6ac41e837be087aa36c4bfc9c983cca725e21d2b");
pub(super) static RELEASE: Script = script!(
    "lua/release.lua",
    "a8dacfaa0d49d9ea7f8f3b71f1ae4214c620dee4"
);
pub(super) static BREAK: Script =
    script!("lua/break.lua", "ced8c148e5a32c0488541a630b671ccec2a8366b");
pub(super) static NOTE: Script =
    script!("lua/note.lua", "8bb92cb64715cd964efee4ea08fc1ba99ee160af");
pub(super) static ABANDON: Script = script!(
    "lua/abandon.lua",
    "b111c638d8b695a58f99d22c7407d9f71587d384"
);

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
