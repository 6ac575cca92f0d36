//! Other lock libraries on the same lock, for real: they keep dlock out, and dlock keeps them out.
//!
//! [`libraries`] is the table of them, [`cases`] what each of them has to show, [`program`] the process that has the library, and [`stores`]
//! the server that both use.
#![allow(missing_docs, reason = "a test program")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(clippy::disallowed_methods, reason = "tests measure and wait in real time")]

use ::support;

mod cases;
mod etcdctl;
mod libraries;
mod program;
mod stores;
