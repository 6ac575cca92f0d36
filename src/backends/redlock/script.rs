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
    script!("lua/take.lua", "5cb0b4d56d22243d011ed34296db5c3b044e7971");
pub(super) static COMMIT: Script =
    script!("lua/commit.lua", "c9edc7b2bc3eba3fb36272b8825305a025aaeb43");
pub(super) static RENEW: Script =
    script!("lua/renew.lua", "ac2e56cab19a840e080d9a85618fb715847ae493");
pub(super) static RELEASE: Script = script!(
    "lua/release.lua",
    "151b90ab35d0a237b9cf0a5b08e978255a950042"
);
pub(super) static BREAK: Script =
    script!("lua/break.lua", "4c8bf88b5525b01513147bb864b090b1edf889d8");
pub(super) static NOTE: Script =
    script!("lua/note.lua", "5a36073d976d5eafb11b73ce3c6db1f965047811");
pub(super) static ABANDON: Script = script!(
    "lua/abandon.lua",
    "4f01b75ad65bcbd3366587541995163cde1990e6"
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
