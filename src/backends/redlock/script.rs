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

pub(super) static TAKE: Script = script!("lua/take.lua", "70cff5f40edfbbddc96f5f8b8a67d0bbb63a330b");
pub(super) static COMMIT: Script = script!("lua/commit.lua", "e9061fd4969b16aa013fe82eb78dba54bea04ba0");
pub(super) static RENEW: Script = script!("lua/renew.lua", "e81ccaec38f3d2f9b390f8fa96fb39443a9c0c63");
pub(super) static RELEASE: Script = script!("lua/release.lua", "362973e0f1178a1c7af7fde71c70462ea9360735");
pub(super) static BREAK: Script = script!("lua/break.lua", "4b9461242db400123a460bd40586736e767ac2c5");
pub(super) static NOTE: Script = script!("lua/note.lua", "e16c143d05e344bce651681efd1a16ef79d727ce");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "d0b65c5be866e72d831f65fdfb29bc7eb4fec152");

#[cfg(test)]
mod tests {
    #[test]
    fn the_sums_are_those_of_the_scripts() {
        for script in [&super::TAKE, &super::COMMIT, &super::RENEW, &super::RELEASE, &super::BREAK, &super::NOTE, &super::ABANDON] {
            script.assert_sum();
        }
    }
}
