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

pub(super) static TAKE: Script = script!("lua/take.lua", "1f09c5b5d67d941486aacb46c57d4e1ecfea3d48");
pub(super) static COMMIT: Script = script!("lua/commit.lua", "7e5af9215dcdf8a14cad8541970dc702d49d7bfd");
pub(super) static RENEW: Script = script!("lua/renew.lua", "d310084a4ca2ef9f4751f2b82a00e0a0635b7d53");
pub(super) static RELEASE: Script = script!("lua/release.lua", "01c63dc841250a204d13099fd8c4f9c9fdced917");
pub(super) static BREAK: Script = script!("lua/break.lua", "31ef4cd9aa2bcc1349d33948363c867bc6e2f2b0");
pub(super) static NOTE: Script = script!("lua/note.lua", "e27873064b44e8350c041b85af45195f62f7806c");
pub(super) static ABANDON: Script = script!("lua/abandon.lua", "d1ebdfd2d6c230b56e44a9d71cc1fbae4cfddf9c");

#[cfg(test)]
mod tests {
    #[test]
    fn the_hashes_match_the_scripts() {
        for script in [&super::TAKE, &super::COMMIT, &super::RENEW, &super::RELEASE, &super::BREAK, &super::NOTE, &super::ABANDON] {
            script.assert_sum();
        }
    }
}
