//! The questions that a store asks its tables, in any database.

use crate::{
    backends::sql::{LockRow, Plain, row::Write},
    lock::{HistoryEntry, Note, Progress, Request, Result, SkipCount, Token, Ttl, Which},
};

/// The tables, over one session. Each step that writes is a transaction.
pub(in crate::backends) trait LockTable {
    /// Takes the row for a fresh exclusive hold, or creates the row. Returns `None` if the row is
    /// held, has another layout or a document, or has a run record that may deny the grant. With
    /// `queued`, the hold may be a plain waiter, which a grant removes.
    async fn grant(
        &mut self,
        name: &str,
        request: &Request,
        queued: bool,
    ) -> Result<Option<LockRow>>;

    /// Extends an exclusive hold. Returns `None` if the row was changed since, or the hold would
    /// become shorter.
    async fn extend(&mut self, row: &LockRow, ttl: Ttl) -> Result<Option<LockRow>>;

    /// Reads a row; `failed` is how often it was written in vain since.
    async fn read(&mut self, name: &str, failed: u32) -> Result<Option<LockRow>>;

    /// Reads a row and its plain waiters.
    async fn look(&mut self, name: &str) -> Result<(Option<LockRow>, Vec<Plain>)>;

    /// Creates a free row for a lock that was never taken. Does nothing if there is a row.
    async fn create(&mut self, name: &str) -> Result<()>;

    /// Writes a row back. Returns false, with nothing changed, if the row changed since it was
    /// read, or it is too late.
    async fn write(&mut self, write: &Write) -> Result<bool>;

    /// Adds a plain waiter, and returns its position.
    async fn join_queue(&mut self, name: &str, request: &Request) -> Result<Option<u32>>;

    /// Removes a plain waiter. Returns whether there is a document that may have the waiter.
    async fn leave_queue(&mut self, name: &str, token: &Token) -> Result<bool>;

    /// Returns the names with this start, in order.
    async fn known(
        &mut self,
        start: &str,
        which: Which,
        progress: &Progress,
    ) -> Result<Vec<String>>;

    /// Returns the ended holds and the skipped runs of a lock.
    async fn log(&mut self, name: &str) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)>;

    /// Adds a history entry that no grant or release writes.
    async fn note(&mut self, name: &str, note: &Note) -> Result<()>;
}
