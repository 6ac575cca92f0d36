//! The exit statuses of `dlock`: the only file with exit numbers.
//!
//! They follow `sysexits.h` if it has a code for the case, and `timeout(1)` and the shells
//! otherwise. A command can return any of them too; `--status-file` tells the two apart.

use crate::lock::{Error, Kind};

/// The process ended as asked.
pub const OK: u8 = 0;
/// `doctor` found a possible improvement.
pub const WARNINGS: u8 = 1;
/// `doctor` found a problem to fix.
pub const UNSAFE: u8 = 2;
/// The command line is invalid, or asks for a feature that this backend lacks.
pub const USAGE: u8 = 64;
/// A token or a stored value is malformed.
pub const DATA: u8 = 65;
/// The backend can't be reached, or can't answer in time.
pub const UNAVAILABLE: u8 = 69;
/// A bug in dlock.
pub const INTERNAL: u8 = 70;
/// The output can't be written.
pub const OUTPUT: u8 = 74;
/// Not taken: held by another process, or the wait ran out.
pub const BUSY: u8 = 75;
/// The lock was lost while the command ran.
pub const LOST: u8 = 76;
/// The token does not hold this lock.
pub const NOT_HELD: u8 = 77;
/// The configuration is wrong, or credentials or rights were refused.
pub const CONFIG: u8 = 78;
/// The command ran for longer than allowed, and was stopped; the same status as timeout(1).
pub const TIMED_OUT: u8 = 124;
/// The command can't be executed.
pub const CANNOT_EXECUTE: u8 = 126;
/// The command doesn't exist.
pub const NOT_FOUND: u8 = 127;

/// Returns the status of a process that ended by `signal`: 128+N, as shells report it.
pub fn signalled(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Returns the exit status of an error.
pub fn of(error: &Error) -> u8 {
    match error.kind {
        Kind::Usage | Kind::Unsupported => USAGE,
        Kind::Data => DATA,
        Kind::Unavailable | Kind::Timeout => UNAVAILABLE,
        Kind::Config | Kind::Denied | Kind::Layout => CONFIG,
        Kind::Internal => INTERNAL,
    }
}
