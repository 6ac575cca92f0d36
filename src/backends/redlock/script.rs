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

pub(super) static TAKE: Script = script!("lua/take.lua", "9c3d595097d372e01f643e5f3bd2c943860aae88");
pub(super) static COMMIT: Script = script!("lua/commit.lua", "70a0bc19025d0190344509bdcba3ba9d3dbfe413");
pub(super) static RENEW: Script = script!("lua/renew.lua", "010b95be34086648a38d776886bcefeb162fa55b");
pub(super) static RELEASE: Script = script!("lua/release.lua", "d765a9175618068baaa987d9bae3ada0b5d2d24b");
pub(super) static BREAK: Script = script!("lua/break.lua", "75e0b919c7a91e335e72c0c878f1f595880170b3");
pub(super) static NOTE: Script = script!("lua/note.lua", "91451bdc70015323f1c681b99ee0aa52bee5021e");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "b5368f0e9e163bbe13f50885f1ce4a3f8ebbab3f");

#[cfg(test)]
mod tests {
    #[test]
    fn the_sums_are_those_of_the_scripts() {
        for script in [&super::TAKE, &super::COMMIT, &super::RENEW, &super::RELEASE, &super::BREAK, &super::NOTE, &super::ABANDON] {
            script.assert_sum();
        }
    }
}
