//! The scripts. Each is one atomic step on one node.

use crate::backends::redis::script::Script;

macro_rules! script {
    ($file:literal, $sha:literal) => {
        Script::new(
            concat!(include_str!("../redis/lua/common.lua"), "\n", include_str!("lua/prelude.lua"), "\n", include_str!($file)),
            $sha,
        )
    };
}

pub(super) static TAKE: Script = script!("lua/take.lua", "cec8de0d42fe9ef55684222f25cf54b8b6999a10");
pub(super) static COMMIT: Script = script!("lua/commit.lua", "11465b967389b90d31b6d6e4e699791af1c5b5eb");
pub(super) static RENEW: Script = script!("lua/renew.lua", "5d7afc5df5e3a1564158068a98451ab5d0f31fd0");
pub(super) static RELEASE: Script = script!("lua/release.lua", "7d42c11eafa9d89fe6efa2248663c2bd1374ce88");
pub(super) static BREAK: Script = script!("lua/break.lua", "94998d7e0c2e3807d476e5fbcde63483acdfcd42");
pub(super) static NOTE: Script = script!("lua/note.lua", "76baf8511ac76a80b14a469c975b9514d9300b38");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "e87e51eb62e4f9bff49d0e3f1006ecad71d99305");

#[cfg(test)]
mod tests {
    #[test]
    fn the_hashes_match_the_scripts() {
        for script in [&super::TAKE, &super::COMMIT, &super::RENEW, &super::RELEASE, &super::BREAK, &super::NOTE, &super::ABANDON] {
            script.assert_sum();
        }
    }
}
