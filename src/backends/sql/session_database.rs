//! The steps of `mode=row` and `mode=advisory` in which databases differ.

use std::time::Duration;

use super::{
    LockRow, Server,
    client::{Client, Session as _, SqlDatabase},
    row::Write,
    session_lock::SessionLock,
    table::LockTable,
};
use crate::{
    backends::cas::Outside,
    lock::{
        Key, Progress, Request, Result, Ttl,
        document::{Document, HolderEntry},
    },
};

/// The session lock of a database.
pub(in crate::backends) type LockOf<D> =
    SessionLock<<D as SqlDatabase>::Session, <D as SessionDatabase>::Own>;

/// The answer to a grant: see [`LockTable::grant`].
pub(in crate::backends) struct Asked(pub Option<LockRow>);

/// A database whose sessions keep locks. The foreign lock is what other programs see.
pub(in crate::backends) trait SessionDatabase: SqlDatabase + Sized {
    /// The database's part of a [`SessionLock`].
    type Own;
    /// The tables over a session.
    type Table<'a>: LockTable;
    /// The sessions that have a lock.
    type Holders: Holders;

    /// Returns the tables. With `evidence`, a grant is written only while that session, as the
    /// document writes it, has the foreign lock, by this condition.
    fn table<'a>(
        session: &'a mut Self::Session,
        tables: &'a Self::Tables,
        evidence: Option<(String, String)>,
    ) -> Self::Table<'a>;

    /// See `evidence` of [`SessionDatabase::table`]; `None` while the session has no lock.
    fn evidence(lock: &LockOf<Self>) -> Option<(String, String)>;

    /// Returns the name of an advisory lock, as people see it.
    fn advisory_name(client: &Client<Self>, key: &Key) -> String;

    /// Whether this session, left by a dropped request, can be asked again.
    fn is_usable(session: &Self::Session) -> bool {
        session.is_open()
    }

    /// Asks a question that only reads: a standby may answer it, too.
    async fn read_anywhere<T>(
        table: &mut Self::Table<'_>,
        question: impl AsyncFn(&mut Self::Table<'_>) -> Result<T>,
    ) -> Result<T> {
        question(table).await
    }

    /// Opens a session that is to have this lock; `side` is another open session of this client,
    /// and `checked` says that an earlier session was opened.
    async fn open_lock(
        client: &mut Client<Self>,
        request: &Request,
        side: Option<&mut Self::Session>,
        checked: bool,
    ) -> Result<LockOf<Self>>;

    /// Asks for the foreign lock once. Returns true if the session has it, also on a repeated
    /// request.
    async fn attempt(lock: &mut LockOf<Self>, request: &Request) -> Result<bool>;

    /// Returns the answer to a grant that was asked for together with the foreign lock.
    fn answered(_lock: &mut LockOf<Self>) -> Option<Asked> {
        None
    }

    /// Waits in the server for the foreign lock, at most for the given time. Returns true if the
    /// session may have it then.
    async fn block(lock: &mut LockOf<Self>, ttl: Ttl, at_most: Duration) -> Result<bool>;

    /// Keeps the session for its idle limit, or sets another one. Returns false if the session has
    /// the foreign lock no more.
    async fn keep(lock: &mut LockOf<Self>, limit: Option<Duration>) -> Result<bool>;

    /// Gives back whatever the session has.
    async fn let_go(lock: &mut LockOf<Self>) -> Result<()>;

    /// Writes a row back by which the hold of this session ends, and gives the foreign lock back in
    /// the same request; neither if the row changed.
    async fn give_back(
        lock: &mut LockOf<Self>,
        tables: &Self::Tables,
        write: &Write,
    ) -> Result<bool>;

    /// Returns the server, and the sessions that have the lock of this document.
    async fn holders(
        client: &Client<Self>,
        table: &mut Self::Table<'_>,
        key: &Key,
        document: &Document,
    ) -> Result<(Server, Self::Holders)>;

    /// Returns the names with this start of the locks that sessions may have, in order: by their
    /// documents, or by the server's locks.
    async fn held(
        client: &Client<Self>,
        table: &mut Self::Table<'_>,
        start: &str,
        progress: &Progress,
    ) -> Result<Vec<String>>;

    /// Ends the session that has the lock by this hold of another process, as the document writes
    /// it, if it still has the lock.
    ///
    /// # Errors
    /// The session may not be ended by this user, or has not ended.
    async fn end_holder(
        client: &Client<Self>,
        table: &mut Self::Table<'_>,
        key: &Key,
        session: &str,
    ) -> Result<()>;
}

/// The sessions that have a lock, as far as the server tells.
pub(in crate::backends) trait Holders {
    /// Whether the session with this number has the lock by this hold.
    fn has(&self, holder: &HolderEntry, number: i64) -> bool;

    /// Returns the hold of a session that the document does not know.
    fn outside(&self, document: &Document, server: &Server) -> Option<Outside>;
}
