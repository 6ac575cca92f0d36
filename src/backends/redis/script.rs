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
    "ee1c12ec06a60b0256fa7da66c3607ce8720d836"
);
pub(super) static SHARE: Script =
    script!("lua/share.lua", "6b31884bb83cb0c417b9ead60068751ee256d0ae");
pub(super) static RENEW: Script =
    script!("lua/renew.lua", "d25cef0faf9e746f8c9785dd4c1e3496d713a648");
pub(super) static RELEASE: Script = script!(
    "lua/release.lua",
    "7839d5a7e9aea985eda317a9ca40471c6c7c14d1"
);
pub(super) static BREAK: Script =
    script!("lua/break.lua", "a0094cf1804f40f07cb0b997da7e66c87602d8cd");
pub(super) static NOTE: Script =
    script!("lua/note.lua", "67e1495522f8ef742d040e70ef41292d56c71081");
pub(super) static ABANDON: Script = script!(
    "lua/abandon.lua",
    "c305a0579b8fae804b9ba874c967c8d5b00e9499"
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
