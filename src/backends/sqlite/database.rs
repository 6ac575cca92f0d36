//! The statements, each with its answer. Knows rows, and nothing of the lock file.
//!
//! A statement that changes something is one transaction with the write lock from its start. A
//! second table is changed in the same step by a trigger, or between BEGIN IMMEDIATE and COMMIT.
//! The driver runs statements one after the other in a thread of its own. A statement whose future
//! was dropped still runs to its end, before the next one.

use std::{collections::HashMap, ffi::OsString, fs, mem, path::Path};

use rustix::fs::{FallocateFlags, fallocate};

use futures_util::TryStreamExt as _;
use serde::Serialize;
use sqlx::{
    Connection, Executor as _, Row as _, SqlSafeStr as _, Sqlite, SqliteConnection,
    sqlite::{SqliteArguments, SqliteRow},
};

use super::{failure, location, schema};
use crate::lock::{
    Error, Fence, HistoryEntry, Key, Kind, Metadata, Namespace, Progress, Request, Result,
    SKIPPING_HOSTS, SkipCount,
    document::{Document, QueueEntry},
};

const READ: &str = include_str!("sql/read.sql");
const SCAN: &str = include_str!("sql/scan.sql");
const SWAP: &str = include_str!("sql/swap.sql");
const SKIP: &str = include_str!("sql/skip.sql");
/// Removes old history. ?1 namespace, ?2 for how many ms it was unused
const SWEEP: [&str; 2] = [
    "DELETE FROM runs WHERE namespace = ?1 AND coalesce(entry ->> '$.e', entry ->> '$.s', fence / 1000) < (unixepoch('subsec') * 1000) - ?2",
    "DELETE FROM skips WHERE namespace = ?1 AND last_ms < (unixepoch('subsec') * 1000) - ?2",
];

/// The write-ahead log is emptied beyond this size: the first process to open the database has to
/// read all of it.
const LOG_BYTES: u64 = 64 * 1024;
/// The same while others are waiting: emptying it would hold up the next one.
const LOG_BYTES_CONTENDED: u64 = 1024 * 1024;
/// What the pages of one release may take in the log.
const RESERVED_BYTES: u64 = 16 * 1024;

type Query = sqlx::query::Query<'static, Sqlite, SqliteArguments>;

/// A lock's row.
#[derive(Default)]
pub(super) struct StoredRow {
    pub key: String,
    /// Counts the row's changes; 0 if there is no row.
    pub revision: i64,
    /// The last fence that was granted.
    pub fence: Option<Fence>,
    /// The lock file that tells which of the document's processes are alive.
    pub lock_file: i64,
    pub changed_ms: u64,
    pub document: Document,
    /// Waiters of the queue may be outside of the document.
    pub queued: bool,
    /// The time in ms when the row was read.
    pub now: u64,
}

/// A new row in the place of the one with this revision.
pub(super) struct RowWrite<'a> {
    pub revision: i64,
    pub fence: Option<Fence>,
    pub lock_file: i64,
    pub document: &'a Document,
    /// The time in ms.
    pub now: u64,
    pub ended: &'a [HistoryEntry],
    /// The rows of waiters that the document has from now on.
    pub absorbed: &'a [i64],
}

/// A waiter that no document has.
pub(super) struct ListedWaiter {
    pub place: i64,
    pub hold: String,
    pub since_ms: u64,
    pub metadata: Option<Metadata>,
    /// The entry of a waiter that later ones may have to let go first.
    pub queued: Option<QueueEntry>,
}

/// An open database.
pub(super) struct Database {
    connection: Option<SqliteConnection>,
    durable: bool,
    /// The layout is known to be ours.
    checked: bool,
    /// Opened for writing.
    pub writable: bool,
    /// Which file it is; `None` if the file system did not say.
    file: Option<(u64, u64)>,
}

impl Drop for Database {
    /// Leaves the database open for the end of the process to close: closing it would write the log
    /// back and sync it to the disk each time.
    fn drop(&mut self) {
        mem::forget(self.connection.take());
    }
}

impl Database {
    /// Opens the database for writing, and creates it if there is none. Also returns whether it was
    /// created.
    pub(super) async fn open(path: &Path) -> Result<(Self, bool)> {
        let before = location::file_id(path);
        let (connection, created) = schema::open(path).await?;
        let file = location::file_id(path);
        if before.is_some() && file != before {
            return Err(Error::new(
                Kind::Unavailable,
                "the database was replaced while it was opened",
            ));
        }
        Ok((
            Self {
                connection: Some(connection),
                durable: false,
                checked: created,
                writable: true,
                file,
            },
            created,
        ))
    }

    /// Opens the database for reading; `None` if there is none.
    pub(super) async fn open_to_look(path: &Path) -> Result<Option<Self>> {
        let connection = schema::open_to_look(path).await?;
        let file = location::file_id(path);
        Ok(connection.map(|connection| Self {
            connection: Some(connection),
            durable: false,
            checked: true,
            writable: false,
            file,
        }))
    }

    /// See [`schema::has_log`].
    pub(super) async fn has_log(&mut self) -> Result<bool> {
        schema::has_log(self.connection()?).await
    }

    /// Whether another process that opens the path gets this very database.
    pub(super) fn is_current(&self, path: &Path) -> bool {
        location::file_id(path) == self.file
    }

    /// Whether a transaction was left that sqlx can't end: SQLite rolls one back by itself where
    /// the disk is full, sqlx's own rollback then fails, and every later transaction with it.
    pub(super) async fn is_stuck(&mut self) -> bool {
        let stuck = |connection: &Option<SqliteConnection>| {
            connection
                .as_ref()
                .is_none_or(Connection::is_in_transaction)
        };
        // The rollback of a transaction that was dropped may be under way. The driver ends it
        // before the next statement.
        stuck(&self.connection)
            && (self.rows(sqlx::query("SELECT 1")).await.is_err() || stuck(&self.connection))
    }

    /// Closes the database, for opening it anew.
    pub(super) fn close(mut self) {
        drop(self.connection.take());
    }

    /// Checks the layout, unless that was done before. Returns whether the tables were created.
    pub(super) async fn check(&mut self) -> Result<bool> {
        if self.checked {
            return Ok(false);
        }
        let created = schema::check(self.connection()?).await?;
        self.checked = true;
        Ok(created)
    }

    fn connection(&mut self) -> Result<&mut SqliteConnection> {
        self.connection
            .as_mut()
            .ok_or_else(|| failure::statement(sqlx::Error::WorkerCrashed))
    }

    async fn rows(&mut self, query: Query) -> Result<Vec<SqliteRow>> {
        // All rows to the end: only the end of a statement tells whether it was committed.
        query
            .fetch_all(self.connection()?)
            .await
            .map_err(failure::statement)
    }

    /// Whether commits survive a power cut from now on. A hold that ends with its processes needs
    /// no sync: a power cut ends it anyway.
    async fn set_durable(&mut self, durable: bool) -> Result<()> {
        if self.durable != durable {
            self.rows(sqlx::query(if durable {
                "PRAGMA synchronous = FULL"
            } else {
                "PRAGMA synchronous = NORMAL"
            }))
            .await?;
            self.durable = durable;
        }
        Ok(())
    }

    /// Reads a lock. The first read also checks the layout, in the same statement.
    pub(super) async fn read(&mut self, namespace: &Namespace, key: &Key) -> Result<StoredRow> {
        let query = || bind_name(READ, namespace, key);
        match self.rows(query()).await {
            Ok(rows) => {
                if let Some(row) = rows.first()
                    && row.try_get::<i64, _>("layout").map_err(malformed)? == schema::LAYOUT
                {
                    self.checked = true;
                    return read_row(row);
                }
            }
            // Perhaps it isn't our database, or has no tables yet.
            Err(error) if error.kind == Kind::Data && !self.checked => {}
            Err(error) => return Err(error),
        }
        self.checked = false;
        self.check().await?;
        let rows = self.rows(query()).await?;
        rows.first()
            .map_or_else(|| Ok(StoredRow::default()), read_row)
    }

    /// Reads every lock whose key starts with `start`.
    pub(super) async fn scan(
        &mut self,
        namespace: &Namespace,
        start: &str,
        progress: &Progress,
    ) -> Result<Vec<StoredRow>> {
        self.check().await?;
        let query = sqlx::query(SCAN)
            .bind(namespace.as_str().to_owned())
            .bind(start.to_owned());
        let mut rows = query.fetch(self.connection()?);
        let mut found = Vec::new();
        while let Some(row) = rows.try_next().await.map_err(failure::statement)? {
            progress.part();
            found.push(read_row(&row)?);
        }
        Ok(found)
    }

    /// Writes a lock if it is still as it was read; whether it was.
    pub(super) async fn swap(
        &mut self,
        (namespace, key): (&Namespace, &Key),
        write: RowWrite<'_>,
        durable: bool,
    ) -> Result<bool> {
        self.set_durable(durable).await?;
        let ended = (!write.ended.is_empty())
            .then(|| serde_json::to_string(write.ended).ok())
            .flatten();
        let query = bind_name(SWAP, namespace, key)
            .bind(write.revision)
            .bind(number(write.fence.map_or(0, |fence| fence.0)));
        let query = query
            .bind(write.lock_file)
            .bind(number(write.now))
            .bind(write.document.write())
            .bind(ended);
        if write.absorbed.is_empty() {
            return changes(self.connection()?, query).await;
        }
        let mut transaction = self
            .connection()?
            .begin_with("BEGIN IMMEDIATE")
            .await
            .map_err(failure::statement)?;
        if !changes(&mut transaction, query).await? {
            return transaction
                .rollback()
                .await
                .map(|()| false)
                .map_err(failure::statement);
        }
        for place in write.absorbed {
            changes(
                &mut transaction,
                sqlx::query("DELETE FROM waiters WHERE place = ?1").bind(*place),
            )
            .await?;
        }
        transaction
            .commit()
            .await
            .map(|()| true)
            .map_err(failure::statement)
    }

    /// The waiters of one key that no document has, longest first. Some may be gone.
    pub(super) async fn waiters_of(
        &mut self,
        namespace: &Namespace,
        key: &Key,
    ) -> Result<Vec<ListedWaiter>> {
        let sql = "SELECT key, place, hold, since_ms, metadata, queued FROM waiters WHERE namespace = ?1 AND key = ?2 ORDER BY place";
        let rows = self.rows(bind_name(sql, namespace, key)).await?;
        rows.iter()
            .map(|row| read_waiter(row).map(|(_, waiter)| waiter))
            .collect()
    }

    /// The waiters of every key that starts with `start`, likewise.
    pub(super) async fn waiters(
        &mut self,
        namespace: &Namespace,
        start: &str,
    ) -> Result<HashMap<String, Vec<ListedWaiter>>> {
        let sql = "SELECT key, place, hold, since_ms, metadata, queued FROM waiters WHERE namespace = ?1 AND key >= ?2 \
                   AND substr(CAST(key AS BLOB), 1, length(CAST(?2 AS BLOB))) = CAST(?2 AS BLOB) ORDER BY place";
        let mut found: HashMap<String, Vec<ListedWaiter>> = HashMap::new();
        for row in self
            .rows(
                sqlx::query(sql)
                    .bind(namespace.as_str().to_owned())
                    .bind(start.to_owned()),
            )
            .await?
        {
            let (key, waiter) = read_waiter(&row)?;
            found.entry(key).or_default().push(waiter);
        }
        Ok(found)
    }

    /// Adds a waiter to the list, once.
    pub(super) async fn add_waiter(
        &mut self,
        namespace: &Namespace,
        request: &Request,
        queued: Option<&QueueEntry>,
    ) -> Result<()> {
        self.set_durable(false).await?;
        let sql = "INSERT INTO waiters (namespace, key, hold, since_ms, metadata, queued) \
                   VALUES (?1, ?2, ?3, CAST(round(unixepoch('subsec') * 1000) AS INTEGER), ?4, ?5) ON CONFLICT DO NOTHING";
        let metadata = request.metadata.as_ref().filter(|_| queued.is_none());
        let query = bind_name(sql, namespace, &request.key)
            .bind(request.token.hold_text())
            .bind(json(metadata))
            .bind(json(queued));
        self.rows(query).await.map(|_| ())
    }

    /// Removes a waiter from the list; whether it was there.
    pub(super) async fn remove_waiter(
        &mut self,
        namespace: &Namespace,
        key: &Key,
        hold: &str,
    ) -> Result<bool> {
        let sql = "DELETE FROM waiters WHERE namespace = ?1 AND key = ?2 AND hold = ?3";
        changes(
            self.connection()?,
            bind_name(sql, namespace, key).bind(hold.to_owned()),
        )
        .await
    }

    /// The holds of the waiters that came first. Some may be gone.
    pub(super) async fn first_waiters(
        &mut self,
        namespace: &Namespace,
        key: &Key,
    ) -> Result<Vec<String>> {
        let sql =
            "SELECT hold FROM waiters WHERE namespace = ?1 AND key = ?2 ORDER BY place LIMIT 4";
        let rows = self.rows(bind_name(sql, namespace, key)).await?;
        rows.iter()
            .map(|row| row.try_get("hold").map_err(malformed))
            .collect()
    }

    /// Compiles the statements of a waiter that has the bytes, so that this costs no time then.
    pub(super) async fn prepare_to_take(&mut self) -> Result<()> {
        self.connection()?
            .prepare(SWAP.into_sql_str())
            .await
            .map(|_| ())
            .map_err(failure::statement)
    }

    /// Reads the log: ended holds, the latest first, and skips.
    pub(super) async fn log(
        &mut self,
        namespace: &Namespace,
        key: &Key,
    ) -> Result<(Vec<HistoryEntry>, Vec<SkipCount>)> {
        let sql = "SELECT entry FROM runs WHERE namespace = ?1 AND key = ?2 ORDER BY fence DESC";
        let rows = self.rows(bind_name(sql, namespace, key)).await?;
        let entry = |row: &SqliteRow| {
            serde_json::from_str(row.try_get("entry")?)
                .map_err(|error| sqlx::Error::Decode(error.into()))
        };
        let past = rows
            .iter()
            .map(|row| entry(row).map_err(malformed))
            .collect::<Result<_>>()?;
        let sql = "SELECT host, count, since_ms, last_ms, reason FROM skips WHERE namespace = ?1 AND key = ?2";
        let rows = self.rows(bind_name(sql, namespace, key)).await?;
        let skip = |row: &SqliteRow| {
            let [count, since, last] = [
                row.try_get::<i64, _>("count")?,
                row.try_get("since_ms")?,
                row.try_get("last_ms")?,
            ];
            let (since_ms, last_ms) = (u64::try_from(since).ok(), u64::try_from(last).ok());
            let count = u64::try_from(count).unwrap_or_default();
            Ok(SkipCount {
                host: row.try_get("host")?,
                count,
                since_ms,
                last_ms,
                reason: row.try_get("reason")?,
            })
        };
        Ok((
            past,
            rows.iter()
                .map(|row| skip(row).map_err(malformed))
                .collect::<Result<_>>()?,
        ))
    }

    /// Counts a skipped run of a host.
    pub(super) async fn skip(
        &mut self,
        namespace: &Namespace,
        key: &Key,
        host: &str,
        reason: &str,
    ) -> Result<()> {
        self.check().await?;
        self.set_durable(false).await?;
        let most = i64::try_from(SKIPPING_HOSTS).unwrap_or(i64::MAX);
        self.rows(
            bind_name(SKIP, namespace, key)
                .bind(host.to_owned())
                .bind(reason.to_owned())
                .bind(most),
        )
        .await
        .map(|_| ())
    }

    /// Writes the history entry of a hold as its holder tells it, in the place of any other.
    pub(super) async fn lost(
        &mut self,
        namespace: &Namespace,
        key: &Key,
        past: &HistoryEntry,
    ) -> Result<()> {
        self.check().await?;
        self.set_durable(false).await?;
        let sql =
            "INSERT OR REPLACE INTO runs (namespace, key, fence, entry) VALUES (?1, ?2, ?3, ?4)";
        let fence = number(past.fence.map_or(0, |fence| fence.0));
        self.rows(
            bind_name(sql, namespace, key)
                .bind(fence)
                .bind(serde_json::to_string(past).ok()),
        )
        .await
        .map(|_| ())
    }

    /// Removes these rows unless they have changed, and history that is older than so many ms.
    /// Returns the number of rows.
    pub(super) async fn collect(
        &mut self,
        namespace: &Namespace,
        unused: &[StoredRow],
        unused_ms: i64,
        progress: &Progress,
    ) -> Result<u64> {
        self.set_durable(false).await?;
        let mut transaction = self
            .connection()?
            .begin_with("BEGIN IMMEDIATE")
            .await
            .map_err(failure::statement)?;
        let mut gone = 0;
        for row in unused {
            let sql = "DELETE FROM locks WHERE namespace = ?1 AND key = ?2 AND revision = ?3";
            let query = sqlx::query(sql)
                .bind(namespace.as_str().to_owned())
                .bind(row.key.clone())
                .bind(row.revision);
            gone += u64::from(changes(&mut transaction, query).await?);
            progress.part();
        }
        for sql in SWEEP {
            changes(
                &mut transaction,
                sqlx::query(sql)
                    .bind(namespace.as_str().to_owned())
                    .bind(unused_ms),
            )
            .await?;
        }
        transaction
            .commit()
            .await
            .map(|()| gone)
            .map_err(failure::statement)
    }

    /// Reserves room on the disk for the release of a hold whose end later runs depend on: a
    /// command may fill the disk. Where the file system can't, or has no room, that release may
    /// fail.
    pub(super) fn reserve(path: &Path) {
        // SQLite has no lock on this file that closing it would drop.
        if let Ok(log) = fs::OpenOptions::new().write(true).open(log_of(path)) {
            let length = log.metadata().map_or(0, |log| log.len());
            let _ = fallocate(&log, FallocateFlags::KEEP_SIZE, length, RESERVED_BYTES);
        }
    }

    /// Writes the log back into the database once it has grown, when no process has to wait for
    /// that.
    pub(super) async fn tidy(&mut self, path: &Path, contended: bool) {
        let most = if contended {
            LOG_BYTES_CONTENDED
        } else {
            LOG_BYTES
        };
        if fs::metadata(log_of(path)).is_ok_and(|log| log.len() > most) {
            // The next process tries again.
            let _ = self
                .rows(sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)"))
                .await;
            // The first change in an empty log syncs its header. Let it be this one, which changes
            // nothing, instead of the next grant.
            let _ = self
                .rows(sqlx::query("PRAGMA application_id = 1684824939"))
                .await;
        }
    }
}

/// The write-ahead log of a database.
fn log_of(path: &Path) -> OsString {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log
}

async fn changes(connection: &mut SqliteConnection, query: Query) -> Result<bool> {
    Ok(query
        .execute(connection)
        .await
        .map_err(failure::statement)?
        .rows_affected()
        > 0)
}

fn bind_name(sql: &'static str, namespace: &Namespace, key: &Key) -> Query {
    sqlx::query(sql)
        .bind(namespace.as_str().to_owned())
        .bind(key.as_str().to_owned())
}

fn read_row(row: &SqliteRow) -> Result<StoredRow> {
    let number = |name: &str| {
        row.try_get::<Option<i64>, _>(name)
            .map(Option::unwrap_or_default)
            .map_err(malformed)
    };
    let positive =
        |name: &str| number(name).map(|number| u64::try_from(number).unwrap_or_default());
    let text = |name: &str| row.try_get::<Option<&str>, _>(name).map_err(malformed);
    Ok(StoredRow {
        key: text("key")?.unwrap_or_default().to_owned(),
        revision: number("revision")?,
        // A waiter for a lock that was never taken comes before its first fence.
        fence: Some(Fence(positive("fence")?)).filter(|fence| fence.0 > 0),
        lock_file: number("lock_file")?,
        changed_ms: positive("changed_ms")?,
        document: Document::read(text("document")?)?,
        queued: row.try_get("queued").map_err(malformed)?,
        now: positive("now_ms")?,
    })
}

fn read_waiter(row: &SqliteRow) -> Result<(String, ListedWaiter)> {
    let read = || {
        let since_ms = u64::try_from(row.try_get::<i64, _>("since_ms")?).unwrap_or_default();
        // Metadata that can't be read is left out, since no decision depends on it.
        let metadata = row
            .try_get::<Option<&str>, _>("metadata")?
            .and_then(|json| serde_json::from_str(json).ok());
        let queued = row
            .try_get::<Option<&str>, _>("queued")?
            .map(serde_json::from_str)
            .transpose();
        let queued = queued.map_err(|error| sqlx::Error::Decode(error.into()))?;
        Ok((
            row.try_get("key")?,
            ListedWaiter {
                place: row.try_get("place")?,
                hold: row.try_get("hold")?,
                since_ms,
                metadata,
                queued,
            },
        ))
    };
    read().map_err(malformed)
}

/// SQLite's integers have a sign.
fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn json(value: Option<&impl Serialize>) -> Option<String> {
    value.and_then(|value| serde_json::to_string(value).ok())
}

fn malformed(error: sqlx::Error) -> Error {
    Error::new(Kind::Data, "a row of the database is not what dlock writes").source(error)
}
