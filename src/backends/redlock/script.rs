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

pub(super) static TAKE: Script = script!("lua/take.lua", "9e9d221bdfcff7748e620348688cb5a1ddbd5acf");
pub(super) static COMMIT: Script = script!("lua/commit.lua", "6bcf93cb0ddae45e1e5861d53f57ce1080612360");
pub(super) static RENEW: Script = script!("lua/renew.lua", "7949b0c3100e2cfad1251632293837cd2da198b6");
pub(super) static RELEASE: Script = script!("lua/release.lua", "55a4aa7bed76dbc13b70cdac526893f3437dd5d1");
pub(super) static BREAK: Script = script!("lua/break.lua", "aeea96316d9984277765429579dce792c61c25ea");
pub(super) static NOTE: Script = script!("lua/note.lua", "19f1b81103a6a2f1a8cf7340da761b11da9afed9");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "66c9c967c9f8706c3275bbdbe201dc90aef23eb7");

#[cfg(test)]
mod tests {
    #[test]
    fn the_hashes_match_the_scripts() {
        for script in [&super::TAKE, &super::COMMIT, &super::RENEW, &super::RELEASE, &super::BREAK, &super::NOTE, &super::ABANDON] {
            script.assert_sum();
        }
    }
}
