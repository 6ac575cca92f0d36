//! The scripts. Each is one atomic step on one node.

use crate::backends::redis::script::Script;

macro_rules! script {
    ($file:literal, $sha:literal) => {
        Script::new(
            concat!(
                include_str!("../redis/lua/common.lua"),
                "\n",
                include_str!("lua/prelude.lua"),
                "\n",
                include_str!($file)
            ),
            $sha,
        )
    };
}

pub(super) static TAKE: Script =
    script!("lua/take.lua", "9d9154095a67df0823dee023d9cd6c78484e1761");
pub(super) static COMMIT: Script =
    script!("lua/commit.lua", "48795503357c6fa2a3c971a3ca76528f23599c05");
pub(super) static RENEW: Script =
    script!("lua/renew.lua", "b48ecb4f1093e7d31fa75cd58f0884ffdb98db80");
pub(super) static RELEASE: Script = script!(
    "lua/release.lua",
    "97f02fb10d6979b33788cfabe75d171ebf609821"
);
pub(super) static BREAK: Script =
    script!("lua/break.lua", "50204041b429d906f1009b05d5bd0888c8e3fc4e");
pub(super) static NOTE: Script =
    script!("lua/note.lua", "2a7bfa8349b65a60faa1f5a73d271ed2ea1c37a4");
pub(super) static ABANDON: Script = script!(
    "lua/abandon.lua",
    "c1f00f770276818c2bc3645d3c77f26ad3ca3f04"
);

#[cfg(test)]
mod tests {
    #[test]
    fn the_hashes_match_the_scripts() {
        for script in [
            &super::TAKE,
            &super::COMMIT,
            &super::RENEW,
            &super::RELEASE,
            &super::BREAK,
            &super::NOTE,
            &super::ABANDON,
        ] {
            script.assert_sum();
        }
    }
}
