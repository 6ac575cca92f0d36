//! Processes and servers are killed, stopped and cut off, with the real binary on real stores.
//!
//! In each case: no second holder's command starts while any process of the first holder's tree is
//! alive; a lost lock is never a success (76); no process and no lock is left over.

#![allow(missing_docs, reason = "a test program")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests measure and wait in real time"
)]

use ::support;

mod breaking;
mod certificates;
mod connection;
mod crontabs;
mod deployments;
mod disk;
mod doctor;
mod endings;
mod etcd;
mod failover;
mod killed;
mod local;
mod majority;
mod nested;
mod places;
mod readers;
mod records;
mod replies;
mod server;
mod sessions;
mod several;
mod shares;
mod stores;
mod storm;
mod world;
mod zookeeper;
