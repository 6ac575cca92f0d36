//! The common parts of lock tables in SQL servers, independent of dialect and driver.
//!
//! A lock is a row with the columns that ShedLock has (`name, lock_until, locked_at, locked_by`),
//! so that its nodes and dlock exclude each other, and further columns of dlock, which count only
//! while `locked_by` is dlock's value. A release never deletes a row: ShedLock's nodes remember
//! that the row exists, and its fence must not start again.
//!
//! With `mode=lease`, one statement serves the usual case of a grant, a renewal and a release. In
//! all other cases [`CasBackend`](crate::backends::cas::CasBackend) reads a row
//! ([`LockRow::document`]), and writes the row back ([`row::Write`]) if no other client changed it.
//! With `mode=row` and `mode=advisory`, a session has the lock ([`sessions`]).
//!
//! Worst interleavings of `mode=lease`, and why they are harmless:
//! - *The reply to a grant is lost.* On a retry the row names this hold's token: same fence,
//!   counted once.
//! - *A request arrives late, after it was given up.* dlock resets its connection, which discards
//!   undelivered data. If the request was delivered anyway, the core's release frees the lock, or
//!   the lock ends with its lease.
//! - *The row changes between the read and the write.* `revision` differs, and dlock reads again.
//!   ShedLock counts no revision, but changes `locked_by` or `lock_until`, which are compared as
//!   well.
//! - *A decision is written late.* The write names the end of the holds that the decision relies
//!   on. A new hold's lease counts from the read of the row.
//! - *ShedLock takes the row over after dlock's lease ended.* The document stays: it counts only
//!   while `owner` equals `locked_by`, which ShedLock changes. While several clients share the
//!   lock, ShedLock sees one holder that ends with the last of them.
//! - *A waiter joins the queue while the lock is released, or granted to a newcomer.* The granting
//!   statement does nothing if there is a document, even one that came while the statement waited
//!   for the row; a release compares the revision.
//! - *A run begins and ends while another one's grant waits for the row.* The statement judges the
//!   row after its wait ([`columns`]).
//! - *A waiter that was notified is frozen or dead.* Two are notified; the second waits a second
//!   for the first ([`crate::lock::document`]).
//! - *A client freezes at any point.* No transaction spans a round trip, so that a frozen client
//!   keeps no row locked.
//! - *The server's clock is stepped.* A step forward ends leases early, and a step back keeps them
//!   longer; fences always rise.
//!
//! This module may not: know a driver, contain SQL, do I/O by itself except to read certificates.

mod client;
mod evidence;
mod fields;
mod loopback;
mod names;
mod options;
mod record;
pub(super) mod rights;
pub mod row;
mod session_database;
mod session_lock;
mod session_store;
mod sessions;
mod sharing;
mod starts;
mod table;
mod tls;

pub(super) use self::{
    client::{Client, HasClient, Session, SqlDatabase},
    evidence::Server,
    fields::{Fields, Row, fence_int, foreign_holder, json},
    loopback::Loopback,
    options::{PARAMETERS, layout, sql_mode},
    session_database::{Asked, Holders, SessionDatabase},
    session_lock::SessionLock,
    sessions::{SessionLocks, patience, pause},
    sharing::{SHEDLOCK, sharing},
    table::LockTable,
};
pub use self::{
    names::{Names, locked_by},
    options::{SqlMode, SqlOptions, SqlServer, TlsMode},
    record::{
        LAST_FENCE, LAYOUT, LAYOUT_REFUSED, LockRow, Plain, SHARED_BY, micros, ms, other_mode,
    },
    starts::{Begin, RunColumn, columns},
};

use crate::lock::Capabilities;

/// What `mode=lease` can do, in any database.
pub(super) const LEASE: Capabilities = Capabilities {
    shared: true,
    permits: true,
    fair: true,
    history: true,
    run_policy: true,
    breakable: true,
    ..Capabilities::usual("sql")
};

/// What `mode=row` and `mode=advisory` can do, in any database.
pub(super) const SESSIONS: Capabilities = Capabilities {
    permits: false,
    fair: false,
    detached: false,
    reentrant: false,
    ..LEASE
};

/// With `mode=row`, a waiter behind these first positions keeps no second session, so that many
/// waiters don't need twice as many sessions.
pub const NEAR: u32 = 32;

/// Whether the waiter at this position polls the lock when its lease ends. A thousand waiters at
/// once would keep the server busy for seconds: the others are woken, or poll every few seconds.
pub fn looks_at_the_end(position: Option<u32>) -> bool {
    position.is_none_or(|place| place <= 3)
}
