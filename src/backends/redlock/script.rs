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

pub(super) static TAKE: Script = script!("lua/take.lua", "bb93ee27e70c8dd405c1370dd0c377cc3c0d0d86");
pub(super) static COMMIT: Script = script!("lua/commit.lua", "428a31056e577b0f4e6604ecd7940cd48150c68d");
pub(super) static RENEW: Script = script!("lua/renew.lua", "48e59101d0677be2892638f7b6595a7cbbecff29");
pub(super) static RELEASE: Script = script!("lua/release.lua", "5045ffe55c39ef2ac8461e3cb7739b88f5386fa9");
pub(super) static BREAK: Script = script!("lua/break.lua", "9eb42dd34776a917eb7e380292d4fe96d60bdea1");
pub(super) static NOTE: Script = script!("lua/note.lua", "5e0171c0f01446e3346d0c051c2c992eed6128a9");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "d47ab57de2bbe50a863d8a652951bf51c1655838");

#[cfg(test)]
mod tests {
    #[test]
    fn the_sums_are_those_of_the_scripts() {
        for script in [&super::TAKE, &super::COMMIT, &super::RENEW, &super::RELEASE, &super::BREAK, &super::NOTE, &super::ABANDON] {
            script.assert_sum();
        }
    }
}
