//! PostgreSQL.
//!
//! | mode | a lock is | its holder vanishes |
//! |---|---|---|
//! | `lease` ([`PostgresLease`]) | a row with an end, as ShedLock has it | it ends with its lease |
//! | `row` ([`Sessions`]) | a row that a transaction keeps locked | it ends with its session |
//! | `advisory` ([`Sessions`]) | an advisory lock that a session keeps | it ends with its session |
//!
//! Worst interleavings of `lease` beyond those that [`super::sql`] has, and what keeps them
//! harmless:
//! - *A statement waits for another one on the same row, and the lease ends meanwhile.* The
//!   statement judges again after the wait whether the row is held; a lease that it grants counts
//!   from before the wait.
//! - *A waiter is notified before it listens.* The document counts the wake-ups, and the waiter
//!   compares the counter after it listens.
//! - *The server is restarted.* Rows and fences are as durable as its commits (`fsync`,
//!   `synchronous_commit`).

mod advisory_wait;
mod checks;
mod connection;
mod dial;
pub mod examine;
mod failure;

mod history;
mod lease;
mod names;
mod options;
mod pgpass;
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
    lease::PostgresLease,
    options::{AdvisoryKey, PORT, PostgresOptions},
};
use super::sql::SqlMode;
use crate::lock::{Backend, Capabilities};

/// The capabilities of each mode: lease, row, advisory.
pub(super) const CAPABILITIES: [&Capabilities; 3] =
    [&lease::CAPABILITIES, &sessions::ROW, &sessions::ADVISORY];

/// Returns a backend for `options`, without I/O.
pub fn backend(options: PostgresOptions) -> Box<dyn Backend> {
    match options.sql.mode {
        SqlMode::Lease => Box::new(PostgresLease::new(options)),
        SqlMode::Row | SqlMode::Advisory => Box::new(Sessions::new(options)),
    }
}

/// PostgreSQL.
pub(super) struct Postgres;
