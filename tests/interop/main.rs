//! Real lock libraries and dlock exclude each other on the same lock.
//!
//! [`libraries`] is the table of libraries, [`cases`] tests each of them, [`program`] is the
//! process with the library, and [`stores`] starts the common server.
#![allow(missing_docs, reason = "a test program")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests measure and wait in real time"
)]

use ::support;

mod cases;
mod etcdctl;
mod libraries;
mod program;
mod stores;
