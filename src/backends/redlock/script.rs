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

pub(super) static TAKE: Script = script!("lua/take.lua", "1e112a8923b369916d978dcaf83c28ace5e95cfc");
pub(super) static COMMIT: Script = script!("lua/commit.lua", "f6f771a8a1426a0a29b3d1bc3f65f6eec4acd713");
pub(super) static RENEW: Script = script!("lua/renew.lua", "038e6e817b61b7bff2575ab5330d47256961eab6");
pub(super) static RELEASE: Script = script!("lua/release.lua", "6fd16a8fa7b37630dd57b80b0d852164acd90c9f");
pub(super) static BREAK: Script = script!("lua/break.lua", "e9149ab829fd2109ca6e2d6735afe1f07a60c58d");
pub(super) static NOTE: Script = script!("lua/note.lua", "b79c0ad6e7dea554e06d7433575c4e167b6f7c0f");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "92155ea398a19f883cedb30795b4d03513010cf6");

#[cfg(test)]
mod tests {
    #[test]
    fn the_sums_are_those_of_the_scripts() {
        for script in [&super::TAKE, &super::COMMIT, &super::RENEW, &super::RELEASE, &super::BREAK, &super::NOTE, &super::ABANDON] {
            script.assert_sum();
        }
    }
}
