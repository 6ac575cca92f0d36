//! What lock tables in SQL servers have in common, whatever the dialect and the driver.
//!
//! A lock is a row with the columns that ShedLock has (`name, lock_until, locked_at, locked_by`), so that its nodes and
//! dlock exclude each other, and columns of ours beside them, which count only while `locked_by` is what we wrote. A row is
//! never deleted by a release: ShedLock's nodes remember that it exists, and the fence in it must not start again.
//!
//! [`Table`] is what a dialect answers, each question in one atomic statement: take a free row, extend or free a plain
//! hold, read a row, write back a row that nobody changed meanwhile. [`ledger`] makes the answers of a backend of them. Who shares a lock
//! with others, or waits by rules, is in a column of its row ([`Record::document`]): what is decided there is written back with the row.
//! No transaction spans a round trip, so that a client which is frozen never blocks the others.
//!
//! This module may not: know a driver, speak SQL, do I/O by itself but read certificates.

pub mod ledger;
mod names;
mod options;
mod record;
pub(super) mod rights;
mod shares;
mod starts;
pub mod tls;

pub use self::{
    ledger::{Change, Table, Taken},
    names::{Names, locked_by},
    options::{Options, Server, TlsMode},
    record::{ENDED_US, Hold, Holds, LAYOUT, LAYOUT_REFUSED, Record, micros, ms, other_mode},
    shares::{Plain, SHARED_BY},
    starts::{Begin, Columns},
};

/// With `mode=row`, who waits in one of so many first places has a second session ready, to count the fence over when the turn
/// comes. All others have one each: many waiters are not to take twice as many.
pub const NEAR: u32 = 32;

/// Whether who has this place looks at the lock when its lease ends. A thousand who did at once would keep the server
/// busy for seconds: the others are woken, or look every few seconds.
pub fn looks_at_the_end(position: Option<u32>) -> bool {
    position.is_none_or(|place| place <= 3)
}
