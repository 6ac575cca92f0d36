//! The scripts, each of which is one atomic step on one node.

use crate::backends::redis::script::Script;

macro_rules! script {
    ($file:literal, $sha:literal) => {
        Script::new(concat!(include_str!("lua/prelude.lua"), "\n", include_str!($file)), $sha)
    };
}

pub(super) static TAKE: Script = script!("lua/take.lua", "7eb8ff10c5ed4ec37480a6cf1cf78fbad0d109a7");
pub(super) static COMMIT: Script = script!("lua/commit.lua", "6a64f6a6bf4772966d7222504b68cf85b51f7f58");
pub(super) static RENEW: Script = script!("lua/renew.lua", "172345790d95d39fe112b79f52fd926a3a059291");
pub(super) static RELEASE: Script = script!("lua/release.lua", "1831a30b9ffb3e376bf87793902d29191765f2a1");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "f4b387e954a96201c546bba25983cde2bdec2595");

#[cfg(test)]
mod tests {
    #[test]
    fn the_sums_are_those_of_the_scripts() {
        for script in [&super::TAKE, &super::COMMIT, &super::RENEW, &super::RELEASE, &super::ABANDON] {
            script.assert_sum();
        }
    }
}
