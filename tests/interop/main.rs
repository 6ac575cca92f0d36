//! Other programs and libraries on the same lock, for real: they keep dlock out, and dlock keeps them out.
#![allow(missing_docs, reason = "a test program")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(clippy::disallowed_methods, reason = "tests measure and wait in real time")]

#[path = "../support/mod.rs"]
mod support;

mod curator;
mod etcdctl;
mod kazoo;
mod permit;
mod redlock;
mod zookeeper;
