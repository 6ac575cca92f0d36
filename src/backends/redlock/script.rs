//! The scripts, each of which is one atomic step on one node.

use crate::backends::redis::script::Script;

macro_rules! script {
    ($file:literal, $sha:literal) => {
        Script::new(
            concat!(include_str!("lua/prelude.lua"), "\n", include_str!("../redis/lua/history.lua"), "\n", include_str!($file)),
            $sha,
        )
    };
}

pub(super) static TAKE: Script = script!("lua/take.lua", "bd769a39e8ce4bc6833a392d3f04d78ad1275a2e");
pub(super) static COMMIT: Script = script!("lua/commit.lua", "a24b479737623098a0f9d9629c839a7b05d3e99e");
pub(super) static RENEW: Script = script!("lua/renew.lua", "aa3444e35384b4a4b145e126e0fd003fdb7f7b8e");
pub(super) static RELEASE: Script = script!("lua/release.lua", "bf30db7d0f1aebb60d56dc1c3bfd5120697548e5");
pub(super) static BREAK: Script = script!("lua/break.lua", "7385a46c9fabebb3a8257153344cbd3dd4fb7d71");
pub(super) static NOTE: Script = script!("lua/note.lua", "7567602bbb270c4a489ed4bf2f55b0f1278a117e");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "4ade96d6aad5163f0baf8e37a5554b34e351f123");

#[cfg(test)]
mod tests {
    #[test]
    fn the_sums_are_those_of_the_scripts() {
        for script in [&super::TAKE, &super::COMMIT, &super::RENEW, &super::RELEASE, &super::ABANDON] {
            script.assert_sum();
        }
    }
}
