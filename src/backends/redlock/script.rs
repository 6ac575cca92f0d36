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

pub(super) static TAKE: Script = script!("lua/take.lua", "39b0b99885524aebaf2ae4c09923f80a37478277");
pub(super) static COMMIT: Script = script!("lua/commit.lua", "aad22256c9227258b5ffafede54be693fe94ef42");
pub(super) static RENEW: Script = script!("lua/renew.lua", "77bb216564b5f69da9a8d13877393717f21105fd");
pub(super) static RELEASE: Script = script!("lua/release.lua", "0e2a247fbfb9baf5020a72808ffb86395ae4bca5");
pub(super) static BREAK: Script = script!("lua/break.lua", "afe8f6301de08acfc347e443c0808ddff889abcf");
pub(super) static NOTE: Script = script!("lua/note.lua", "793ef8a54c88da61013185c54b8cee9ed4ec4757");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "3b1fddbc5c179151258788d5946776dd859dc593");

#[cfg(test)]
mod tests {
    #[test]
    fn the_hashes_match_the_scripts() {
        for script in [&super::TAKE, &super::COMMIT, &super::RENEW, &super::RELEASE, &super::BREAK, &super::NOTE, &super::ABANDON] {
            script.assert_sum();
        }
    }
}
