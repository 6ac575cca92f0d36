//! One folder per store. They see [`crate::lock`] and nothing else.

pub mod memory;
pub mod redis;
pub mod sqlite;
