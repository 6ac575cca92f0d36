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

pub(super) static TAKE: Script = script!("lua/take.lua", "9d2fb0d50c7671e0fa6310e5a795c0aec341457f");
pub(super) static COMMIT: Script = script!("lua/commit.lua", "d0cf9bdadfa03ae85e477d91a725c8234ca0d591");
pub(super) static RENEW: Script = script!("lua/renew.lua", "2118ce22f8259b4b7fc8f6ad6bf79fa2b92a1dbd");
pub(super) static RELEASE: Script = script!("lua/release.lua", "24cd2b3f802aa254860f678dbc158a431654f890");
pub(super) static BREAK: Script = script!("lua/break.lua", "bbee544e978c9e7bb84cedc9d7c71a5c1b86cb43");
pub(super) static NOTE: Script = script!("lua/note.lua", "6443ac5d88b3a56064618dea18b65132ef409a3f");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "d033f8e3274158ade29e20e8b36fda0d5d5da830");

#[cfg(test)]
mod tests {
    #[test]
    fn the_hashes_match_the_scripts() {
        for script in [&super::TAKE, &super::COMMIT, &super::RENEW, &super::RELEASE, &super::BREAK, &super::NOTE, &super::ABANDON] {
            script.assert_sum();
        }
    }
}
