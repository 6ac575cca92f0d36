#![doc = include_str!("ARCHITECTURE.md")]

pub mod backends;
pub mod exit;
pub mod lease;
pub mod lock;
pub mod supervise;
