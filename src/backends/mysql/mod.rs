//! MySQL and MariaDB.
//!
//! | mode | a lock is | its holder vanishes |
//! |---|---|---|
//! | `lease` ([`MysqlLease`]) | a row with an end, as ShedLock has it | it ends with its lease |
//! | `row` ([`Sessions`]) | a row that a transaction keeps locked | it ends with its session |
//! | `advisory` ([`Sessions`]) | a `GET_LOCK` that a session keeps | it ends with its session |
//!
//! Worst interleavings of `lease` beyond those that [`super::sql`] has, and what keeps them
//! harmless:
//! - *A statement waits for another one on the same row, and the lease ends meanwhile.* The
//!   statement judges by the time of its start: at worst it finds a free lock held, or grants a
//!   shorter lease than requested. It waits at most a second.
//! - *A client is frozen.* It may keep an advisory lock: see [`advisory_wait`].
//! - *Several waiters change one row at once.* One of them succeeds each time, and the others read
//!   the row again. The previous waiter, or the process that releases, notifies a waiter: see
//!   [`chain`].
//! - *A waiter is granted the lock and vanishes.* The grant removed it from the table of waiters,
//!   in its transaction: the rules never take it for a waiter.
//! - *The server ends during a release.* The row and the history entry are one transaction.
//! - *The server is restarted.* Rows and fences are as durable as its commits
//!   (`innodb_flush_log_at_trx_commit`). The advisory locks are gone, and are taken again with the
//!   next renewal.

mod advisory_wait;
mod chain;
mod checks;
mod connection;
pub mod examine;
mod failure;
mod grants;
mod history;
mod lease;
mod my_cnf;
mod names;
mod options;
mod readers;
mod reading;
mod relay;
mod schema;
mod session_holders;
mod session_lock;
mod sessions;
pub mod sharing;
mod starts;
mod statement;
pub(super) mod store;
mod table;
mod writing;

use self::sessions::Sessions;
pub use self::{
    lease::MysqlLease,
    options::{MysqlOptions, PORT},
};
use super::sql::SqlMode;
use crate::lock::{Backend, Capabilities};

/// The capabilities of each mode: lease, row, advisory.
pub(super) const CAPABILITIES: [&Capabilities; 3] =
    [&lease::CAPABILITIES, &sessions::ROW, &sessions::ADVISORY];

/// Returns a backend for `options`, without I/O.
pub fn backend(options: MysqlOptions) -> Box<dyn Backend> {
    match options.sql.mode {
        SqlMode::Lease => Box::new(MysqlLease::new(options)),
        SqlMode::Row | SqlMode::Advisory => Box::new(Sessions::new(options)),
    }
}

/// MySQL and MariaDB.
pub(super) struct Mysql;
