//! The scripts, each of which is one atomic step in the server.

use redis::Cmd;

/// A script and its SHA-1, written out since computing it would take a hundredth of a whole run.
pub(super) struct Script {
    code: &'static str,
    sha: &'static str,
}

macro_rules! script {
    ($file:literal, $sha:literal) => {
        Script { code: concat!(include_str!("lua/prelude.lua"), "\n", include_str!($file)), sha: $sha }
    };
}

pub(super) static ACQUIRE: Script = script!("lua/acquire.lua", "ccc2136b8a4517df0cc7e2aa8f0aea1115962516");
pub(super) static RENEW: Script = script!("lua/renew.lua", "382af42cbaf8e70d80fa7193092d61e96eb93a8f");
pub(super) static RELEASE: Script = script!("lua/release.lua", "622dc829f72383432c31e8343ca9b3efcc510090");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "fe2272884b1929426a5755cd080781399518c105");

impl Script {
    /// Whether this is that script.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.sha == other.sha
    }

    /// The call by SHA-1: one packet, as long as the server knows the script.
    pub(super) fn by_sha(&self, keys: &[&str], arguments: &[&str]) -> Vec<u8> {
        pack("EVALSHA", self.sha, keys, arguments)
    }

    /// The call with the whole script, which the server remembers.
    pub(super) fn in_full(&self, keys: &[&str], arguments: &[&str]) -> Vec<u8> {
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
            assert_eq!(script.sha, redis::Script::new(script.code).get_hash());
        }
    }
}
