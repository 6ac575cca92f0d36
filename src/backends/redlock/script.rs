//! The scripts, each of which is one atomic step on one node.

use crate::backends::redis::script::Script;

macro_rules! script {
    ($file:literal, $sha:literal) => {
        Script::new(
            concat!(include_str!("../redis/lua/common.lua"), "\n", include_str!("lua/prelude.lua"), "\n", include_str!($file)),
            $sha,
        )
    };
}

pub(super) static TAKE: Script = script!("lua/take.lua", "6b37a0bcc9084d9845e5464133f7c223026de56c");
pub(super) static COMMIT: Script = script!("lua/commit.lua", "1f6db7c796d09a55ef40b8cd54b693c8db583312");
pub(super) static RENEW: Script = script!("lua/renew.lua", "df913d42532e2b30f37bb549b9cd1a1ea5485ac3");
pub(super) static RELEASE: Script = script!("lua/release.lua", "61e9cfbebf24b535ac16229cd1ea045c52319c3b");
pub(super) static BREAK: Script = script!("lua/break.lua", "7bc88026d0d5db4ccb58931a53d23f6884c879bb");
pub(super) static NOTE: Script = script!("lua/note.lua", "0836a03590419692da175778976057b88a1cb598");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "b1c4ff0b958448a27dc97c3625635c059bd61e41");

#[cfg(test)]
mod tests {
    #[test]
    fn the_sums_are_those_of_the_scripts() {
        for script in [&super::TAKE, &super::COMMIT, &super::RENEW, &super::RELEASE, &super::BREAK, &super::NOTE, &super::ABANDON] {
            script.assert_sum();
        }
    }
}
