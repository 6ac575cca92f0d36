//! PostgreSQL.
//!
//! | mode | a lock is | its holder vanishes |
//! |---|---|---|
//! | `lease` ([`Lease`]) | a row with an end, as ShedLock has it | it ends with its lease |
//! | `row` ([`Sessions`]) | a row that a transaction keeps locked | it ends with its session |
//! | `advisory` ([`Sessions`]) | an advisory lock that a session keeps | it ends with its session |
//!
//! Worst interleavings of `lease`, and what keeps them harmless:
//! - *The reply to a grant is lost.* Asked again, the row says by `locked_by` that it is ours: same fence, counted once.
//! - *A request arrives late, after it was given up.* Its connection is reset with what it had not delivered; what was
//!   delivered all the same is freed by the release that the core sends, or ends with its lease.
//! - *A statement waits for another one on the same row, and the lease ends meanwhile.* Whether the row is held is judged
//!   again after that wait; a lease that is granted then is counted from before it.
//! - *ShedLock takes the row over after our lease ended.* Our columns stay behind: they count only while `owner` is what
//!   `locked_by` says, which ShedLock changes.
//! - *A run begins and ends while another one's grant waits for the row.* The row is judged as it is then ([`starts`]).
//! - *A client is frozen in the midst of anything.* No transaction spans a round trip, so that it keeps no row locked.
//! - *The row is changed between being read and written back* (nested holds). `revision` tells, and it is asked again.
//! - *Two share a lock at the same moment, by the same row as each has read it.* Likewise: one of them writes, the other reads anew. Nobody
//!   who is frozen in between keeps anybody else waiting.
//! - *What was decided is written late.* It says until when what it goes by lasts; and a share's end counts from when the row was read.
//! - *ShedLock takes the row over after the shares ended.* What is written of them counts only while `locked_by` says that the lock is
//!   shared, which is no hold's, and which is compared in the step that writes. Until then ShedLock, and a dlock that knows of no shares,
//!   see one holder that ends with the last share. What they do about those who wait is none of their business: they go past.
//! - *A release, or a newcomer, is faster than one who joins the queue.* The plain statements that take and free a row do nothing while
//!   there is a document in it, also if that came while they waited for the row.
//! - *Who joined the queue is told to go before it listens.* How often anybody was told is counted in the row, and looked at after that.
//! - *Who was told to go is frozen or dead.* Two are told; the second waits a second for the first, and then goes ([`crate::lock::document`]).
//! - *The server is restarted.* Rows and fences are as durable as its commits (`fsync`, `synchronous_commit`).
//! - *The server's clock is stepped.* Forward ends leases early, back keeps them longer; fences go on rising either way.

mod checks;
mod connection;
mod dial;
pub mod examine;
mod failure;
mod gate;
mod history;
mod keeper;
mod lease;
mod names;
mod options;
mod relay;
mod schema;
mod session_break;
mod session_look;
mod session_starts;
mod sessions;
mod starts;
mod statement;
mod table;
mod tls;

pub use self::{
    lease::Lease,
    options::{AdvisoryKey, Mode, Options, PORT},
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
