//! Killed, stopped and cut-off processes and servers, with the real binary on real stores.
//!
//! What must hold in each case: no second holder's command ever starts while anything of the first one's tree
//! is alive; a lost lock is never a success (76); no process and no lock is left over.

#![allow(missing_docs, reason = "a test program")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(clippy::disallowed_methods, reason = "tests measure and wait in real time")]

#[path = "../support/mod.rs"]
mod support;

mod endings;
mod killed;
mod server;
mod world;

/// Makes a test of each function for each store.
macro_rules! on_every_store {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[test]
            fn $name() {
                super::$name(&crate::world::Store::sqlite());
            })*
        }
        mod redis {
            $(#[test]
            fn $name() {
                if crate::support::have(concat!("redis::", stringify!($name)), &["redis-server"]) {
                    super::$name(&crate::world::Store::redis());
                }
            })*
        }
    };
}
use on_every_store;
