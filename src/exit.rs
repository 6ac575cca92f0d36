//! The exit statuses of `dlock`: the only file with exit numbers.
//!
//! They follow `sysexits.h` where it has a word for the case, and `timeout(1)` and the shells elsewhere.
//! A command can return any of them too; `--status-file` tells the two apart.

use crate::lock::{Error, Kind};

/// The process ended as asked.
pub const OK: u8 = 0;
/// `doctor` found what could be better.
pub const WARNINGS: u8 = 1;
/// `doctor` found a problem to fix.
pub const UNSAFE: u8 = 2;
/// The command line can't be understood, or asks for what this backend can't do.
pub const USAGE: u8 = 64;
/// What was read (a token, a stored value) is not what it should be.
pub const DATA: u8 = 65;
/// The backend can't be reached, or can't answer in time.
pub const UNAVAILABLE: u8 = 69;
/// A bug in dlock.
pub const INTERNAL: u8 = 70;
/// What was to be printed can't be written.
pub const OUTPUT: u8 = 74;
/// Not taken: held by another process, or the wait ran out.
pub const BUSY: u8 = 75;
/// The lock was lost while the command ran.
pub const LOST: u8 = 76;
/// The token does not hold this lock.
pub const NOT_HELD: u8 = 77;
/// The configuration is wrong, or credentials or rights were refused.
pub const CONFIG: u8 = 78;
/// The command ran for longer than it may, and was stopped; as timeout(1) has it.
pub const TIMED_OUT: u8 = 124;
/// The command can't be executed.
pub const CANNOT_EXECUTE: u8 = 126;
/// The command doesn't exist.
pub const NOT_FOUND: u8 = 127;

/// The status of something that ended by `signal`: 128+N, as shells report it.
pub fn signalled(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// The status that an error ends the process with.
pub fn of(error: &Error) -> u8 {
    match error.kind {
        Kind::Usage | Kind::Unsupported => USAGE,
        Kind::Data => DATA,
        Kind::Unavailable | Kind::Timeout => UNAVAILABLE,
        Kind::Config | Kind::Denied | Kind::Layout => CONFIG,
        Kind::Internal => INTERNAL,
    }
}
