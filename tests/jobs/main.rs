//! The main uses of dlock: many real processes that want one lock, and a real cron that starts
//! them.
#![allow(missing_docs, reason = "a test program")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests measure and wait in real time"
)]

use ::support;

mod contention;
mod contrib;
mod cron;
mod daemon;
mod hooks;
mod manual;
mod many;
mod metrics;
mod outage;
mod output;
mod packages;
mod pages;
mod pid1;
mod policies;
mod readme;
mod year;
