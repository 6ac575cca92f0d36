//! MySQL and MariaDB.
//!
//! | mode | a lock is | its holder vanishes |
//! |---|---|---|
//! | `lease` ([`Lease`]) | a row with an end, as ShedLock has it | it ends with its lease |
//! | `row` ([`Sessions`]) | a row that a transaction keeps locked | it ends with its session |
//! | `advisory` ([`Sessions`]) | a `GET_LOCK` that a session keeps | it ends with its session |
//!
//! Worst interleavings of `lease` beyond those that [`super::sql`] has, and what keeps them harmless:
//! - *A statement waits for another one on the same row, and the lease ends meanwhile.* It judges by its own beginning: at
//!   worst it finds held what has become free, and grants a lease that is shorter than was asked for. It waits a second.
//! - *A client is frozen.* It may keep a gate: see [`gate`].
//! - *Several waiters change one row at once.* One of them gets on each time, and the others read it anew. A waiter is notified by the one
//!   before it, or by the process that releases: see [`bell`].
//! - *The server is restarted.* Rows and fences are as durable as its commits (`innodb_flush_log_at_trx_commit`). The
//!   gates are gone, and are taken again with the next renewal.

mod bell;
mod checks;
mod connection;
pub mod examine;
mod failure;
mod gate;
mod history;
mod keeper;
mod lease;
mod life;
mod names;
mod options;
mod readers;
mod reading;
mod relay;
mod schema;
mod session_break;
mod session_look;
mod sessions;
pub mod sharing;
mod socket;
mod starts;
mod statement;
mod table;

pub use self::{
    lease::Lease,
    options::{Mode, Options, PORT},
    sessions::Sessions,
};
use crate::lock::{Backend, Capabilities};

/// What each mode can do: lease, row, advisory.
pub(super) const CAPABILITIES: [&Capabilities; 3] = [&lease::CAPABILITIES, &sessions::ROW, &sessions::ADVISORY];

/// A backend for `options`. Without I/O.
pub fn backend(options: Options) -> Box<dyn Backend> {
    match options.mode {
        Mode::Lease => Box::new(Lease::new(options)),
        Mode::Row | Mode::Advisory => Box::new(Sessions::new(options)),
    }
}
