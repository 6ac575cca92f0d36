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

pub(super) static TAKE: Script = script!("lua/take.lua", "80d789a1f1ffd8c23db239d466eaeb9cafceebdf");
pub(super) static COMMIT: Script = script!("lua/commit.lua", "d55fe50ce11d05e7190bdf93210dc9d1dcbc451a");
pub(super) static RENEW: Script = script!("lua/renew.lua", "cea422dfaf9d89980b9820474ad9aaa6a7e2bad9");
pub(super) static RELEASE: Script = script!("lua/release.lua", "80e303d1d2ee78011c8bab7953bffbd4ad901717");
pub(super) static BREAK: Script = script!("lua/break.lua", "e14b50dd00f395b73ca58d70e0905b2f5d4a07f5");
pub(super) static NOTE: Script = script!("lua/note.lua", "b5aacef95c2490ce88e823e6b4fc213ada48b831");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "d7e9c77b969ef097b3329970de6d61794d11eea3");

#[cfg(test)]
mod tests {
    #[test]
    fn the_sums_are_those_of_the_scripts() {
        for script in [&super::TAKE, &super::COMMIT, &super::RENEW, &super::RELEASE, &super::ABANDON] {
            script.assert_sum();
        }
    }
}
