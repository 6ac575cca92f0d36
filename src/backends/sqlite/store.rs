//! The statements, each with its answer. Knows rows, nothing of the lock file.
//!
//! A statement that changes something is one transaction with the write lock from its start, by itself or
//! between BEGIN IMMEDIATE and COMMIT. The driver runs statements one after the other in a thread of its own; one whose
//! future was dropped still runs to its end, before the next.

mod breaking;
mod log;
pub(super) mod queue;

use std::{fs, mem, path::Path};

use sqlx::{
    Connection, Executor as _, Row as _, SqlSafeStr as _, Sqlite, SqliteConnection,
    sqlite::{SqliteArguments, SqliteRow},
};

use super::{
    failure, location,
    row::{self, Row, millis},
    schema, starts,
};
use crate::lock::{Error, Fence, Intent, Key, Kind, Metadata, Mode, Namespace, Release, ReleaseInfo, Renewal, Result, Scope, Token, Ttl};

pub(super) const GRANT: &str = include_str!("sql/grant.sql");
const REGRANT: &str = include_str!("sql/regrant.sql");
const LOOK: &str = include_str!("sql/look.sql");
const LIST: &str = include_str!("sql/list.sql");
const KNOWN: &str = include_str!("sql/known.sql");
const RENEW: &str = include_str!("sql/renew.sql");
const RELEASE: &str = include_str!("sql/release.sql");
/// Frees a lock that is known to be held; ?3 how that ended, ?4 why.
const FREE: &str = "UPDATE locks SET owner = NULL, hold = NULL, metadata = NULL, mark = NULL, broken = NULL, seen = FALSE, ended = ?3, why = ?4 \
                    WHERE namespace = ?1 AND key = ?2";

/// The write-ahead log is emptied beyond this size: the first process to open the database has to read all of it.
const LOG_BYTES: u64 = 64 * 1024;
/// The same while others are waiting: emptying it would hold up the next.
const LOG_BYTES_CONTENDED: u64 = 1024 * 1024;

pub(super) type Query = sqlx::query::Query<'static, Sqlite, SqliteArguments>;

/// A lock's name and the token that asks about it.
#[derive(Clone, Copy)]
pub(super) struct Whose<'a> {
    pub namespace: &'a Namespace,
    pub key: &'a Key,
    pub token: &'a Token,
}

/// What the lock file says, for statements that depend on it.
#[derive(Clone, Copy)]
pub(super) struct Locked {
    /// The bytes are locked by the process that asks, or by the owner whose token it names.
    pub locked: bool,
    /// Which lock file.
    pub file: i64,
}

/// An open database.
pub(super) struct Store {
    connection: Option<SqliteConnection>,
    durable: bool,
    /// The layout is known to be ours.
    pub checked: bool,
    /// Opened for writing.
    pub writable: bool,
    /// Which file it is; `None` where nothing was said of it.
    file: Option<(u64, u64)>,
}

impl Drop for Store {
    /// Leaves the database open for the end of the process to close: closing it would write the log back and
    /// sync it to the disk each time.
    fn drop(&mut self) {
        mem::forget(self.connection.take());
    }
}

impl Store {
    pub(super) async fn open(path: &Path) -> Result<(Self, bool)> {
        let before = location::file_id(path);
        let (connection, created) = schema::open(path).await?;
        let file = location::file_id(path);
        if before.is_some() && file != before {
            return Err(Error::new(Kind::Unavailable, "the database was replaced while it was opened"));
        }
        Ok((Self { connection: Some(connection), durable: false, checked: created, writable: true, file }, created))
    }

    /// Whether another process that opens the path gets this very database.
    pub(super) fn is_current(&self, path: &Path) -> bool {
        location::file_id(path) == self.file
    }

    /// Whether a transaction was left that sqlx can't end: SQLite rolls one back by itself where the disk is full, sqlx's own rollback then
    /// fails, and every later transaction with it.
    pub(super) async fn is_stuck(&mut self) -> bool {
        let stuck = |connection: &Option<SqliteConnection>| connection.as_ref().is_none_or(Connection::is_in_transaction);
        // The rollback of a transaction that was dropped may be under way. The driver ends it before the next statement.
        stuck(&self.connection) && (self.rows(sqlx::query("SELECT 1")).await.is_err() || stuck(&self.connection))
    }

    pub(super) async fn open_to_look(path: &Path) -> Result<Option<Self>> {
        let connection = schema::open_to_look(path).await?;
        let file = location::file_id(path);
        Ok(connection.map(|connection| Self { connection: Some(connection), durable: false, checked: true, writable: false, file }))
    }

    /// Closes the database, for opening it anew.
    pub(super) fn close(mut self) {
        drop(self.connection.take());
    }

    /// Makes sure of the layout before the first statement that does not do so itself. Whether the tables were created for it.
    pub(super) async fn check(&mut self) -> Result<bool> {
        if self.checked {
            return Ok(false);
        }
        let created = schema::check(self.connection()?).await?;
        self.checked = true;
        Ok(created)
    }

    pub(super) fn connection(&mut self) -> Result<&mut SqliteConnection> {
        self.connection.as_mut().ok_or_else(|| failure::statement(sqlx::Error::WorkerCrashed))
    }

    pub(super) async fn rows(&mut self, query: Query) -> Result<Vec<SqliteRow>> {
        // All rows to the end: only the end of a statement tells whether it was committed.
        query.fetch_all(self.connection()?).await.map_err(failure::statement)
    }

    /// Whether commits survive a power cut from now on. A hold that ends with its processes needs no sync:
    /// a power cut ends it anyway.
    pub(super) async fn set_durable(&mut self, durable: bool) -> Result<()> {
        if self.durable != durable {
            self.rows(sqlx::query(if durable { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" })).await?;
            self.durable = durable;
        }
        Ok(())
    }

    /// Compiles what a waiter asks once it has the bytes, so that this costs no time then.
    pub(super) async fn prepare_to_take(&mut self) -> Result<()> {
        for sql in [GRANT, RELEASE] {
            self.connection()?.prepare(sql.into_sql_str()).await.map_err(failure::statement)?;
        }
        Ok(())
    }

    /// A grant asked for again; `None` if there was none.
    pub(super) async fn regrant(&mut self, whose: Whose<'_>, ttl: Ttl, detached: bool) -> Result<Option<Fence>> {
        self.check().await?;
        self.set_durable(detached).await?;
        fence_of(&self.rows(bind_whose(REGRANT, whose).bind(ms(ttl))).await?)
    }

    pub(super) async fn look(&mut self, namespace: &Namespace, key: &Key) -> Result<Option<Row>> {
        self.check().await?;
        look(self.connection()?, namespace, key).await
    }

    /// When a nested hold's lease ends, by the store's clock; `None` if there is no such hold.
    pub(super) async fn nested_end(&mut self, whose: Whose<'_>) -> Result<Option<i64>> {
        let sql = "SELECT expires_ms FROM holds WHERE namespace = ?1 AND key = ?2 AND owner = ?3 AND hold = ?4";
        let found = self.rows(bind_whose(sql, whose)).await?;
        found.first().map(|row| row.try_get("expires_ms").map_err(row::malformed)).transpose()
    }

    pub(super) async fn list(&mut self, namespace: &Namespace, start: &str) -> Result<Vec<Row>> {
        self.check().await?;
        let query = sqlx::query(LIST).bind(namespace.as_str().to_owned()).bind(start.to_owned());
        self.rows(query).await?.iter().map(Row::read).collect()
    }

    pub(super) async fn known(&mut self, namespace: &Namespace, start: &str, kept: bool) -> Result<Vec<String>> {
        self.check().await?;
        let query = sqlx::query(KNOWN).bind(namespace.as_str().to_owned()).bind(start.to_owned()).bind(kept);
        self.rows(query).await?.iter().map(|row| row.try_get("key").map_err(row::malformed)).collect()
    }

    /// Adds a nested hold; `None` if the owner does not hold the lock. The row says afterwards how it stands.
    pub(super) async fn enter(&mut self, whose: Whose<'_>, ttl: Ttl, mode: Mode, lock: Locked) -> Result<Option<Row>> {
        self.check().await?;
        self.set_durable(false).await?;
        let mut transaction = self.connection()?.begin_with("BEGIN IMMEDIATE").await.map_err(failure::statement)?;
        let found = look(&mut transaction, whose.namespace, whose.key).await?;
        let Some(row) = found.filter(|row| row.is_owned_by(whose.token) && row.is_held(Some(lock.file), lock.locked)) else {
            return Ok(None);
        };
        if !Mode::Exclusive.covers(mode) {
            return Err(Mode::Exclusive.not_enough());
        }
        let end = row.now_ms.saturating_add(ms(ttl));
        if !row.is_first_hold(whose.token) {
            let sql = "DELETE FROM holds WHERE namespace = ?1 AND key = ?2 AND owner <> ?3";
            run(&mut transaction, bind_whose(sql, whose)).await?;
            let sql = "INSERT INTO holds (namespace, key, owner, hold, ttl_ms, expires_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
                       ON CONFLICT DO UPDATE SET expires_ms = max(expires_ms, excluded.expires_ms)";
            run(&mut transaction, bind_whose(sql, whose).bind(ms(ttl)).bind(end)).await?;
        }
        move_end(&mut transaction, whose, end).await?;
        let row = look(&mut transaction, whose.namespace, whose.key).await?;
        transaction.commit().await.map_err(failure::statement)?;
        Ok(row)
    }

    /// Extends a hold. `Ok(None)`: there is no row at all, so that nothing is known.
    pub(super) async fn renew(
        &mut self,
        whose: Whose<'_>,
        intent: Intent,
        lock: Locked,
        durable: bool,
        nested_alive: bool,
    ) -> Result<Option<Renewal>> {
        self.check().await?;
        self.set_durable(durable).await?;
        let stopping = intent == Intent::Drain;
        let query = bind_whose(RENEW, whose).bind(intent.ttl().map(ms)).bind(lock.locked).bind(lock.file).bind(stopping);
        if let Some(found) = self.rows(query).await?.first() {
            return renewed(found).map(Some);
        }
        let mut transaction = self.connection()?.begin_with("BEGIN IMMEDIATE").await.map_err(failure::statement)?;
        let Some(row) = look(&mut transaction, whose.namespace, whose.key).await? else { return Ok(None) };
        if !row.is_owned_by(whose.token) || !row.is_held(Some(lock.file), lock.locked) {
            return Ok(Some(Renewal::NotHeld));
        }
        let first = row.is_first_hold(whose.token);
        let (own_ttl, own_end) = if first {
            (row.ttl_ms, row.hold_expires_ms)
        } else {
            let sql = "SELECT ttl_ms, expires_ms FROM holds WHERE namespace = ?1 AND key = ?2 AND owner = ?3 AND hold = ?4";
            let found = run(&mut transaction, bind_whose(sql, whose)).await?;
            let Some(found) = found.first() else { return Ok(Some(Renewal::NotHeld)) };
            let read = || Ok::<_, sqlx::Error>((found.try_get("ttl_ms")?, found.try_get("expires_ms")?));
            read().map_err(row::malformed)?
        };
        if !first && own_end <= row.now_ms && !nested_alive {
            return Ok(Some(Renewal::NotHeld));
        }
        if let Some(mark) = &row.mark {
            if !stopping {
                return Ok(Some(Renewal::Broken(mark.clone())));
            }
            run(&mut transaction, bind_name("UPDATE locks SET seen = TRUE WHERE namespace = ?1 AND key = ?2", whose.namespace, whose.key))
                .await?;
        }
        let length = intent.ttl().map_or(own_ttl, ms);
        let end = row.now_ms.saturating_add(length);
        if end < own_end {
            return Ok(Some(Renewal::Kept { expires_in: Some(millis(own_end - row.now_ms)) }));
        }
        if first {
            let sql = "UPDATE locks SET hold_expires_ms = max(hold_expires_ms, ?5) \
                       WHERE namespace = ?1 AND key = ?2 AND owner = ?3 AND hold = ?4";
            run(&mut transaction, bind_whose(sql, whose).bind(end)).await?;
        } else {
            let sql = "UPDATE holds SET expires_ms = max(expires_ms, ?5) \
                       WHERE namespace = ?1 AND key = ?2 AND owner = ?3 AND hold = ?4";
            run(&mut transaction, bind_whose(sql, whose).bind(end)).await?;
        }
        move_end(&mut transaction, whose, end).await?;
        transaction.commit().await.map_err(failure::statement)?;
        let ttl = Ttl::new(millis(length)).unwrap_or(Ttl::DEFAULT);
        Ok(Some(Renewal::Renewed { ttl, fence: row.fence }))
    }

    /// Gives a hold back, and with `all` every other hold of the owner if this is its first one. `Ok(None)`: there is no row at all.
    ///
    /// `others`: whether other processes have the lock file's bytes, for nested holds that their rows alone don't prove.
    pub(super) async fn release(
        &mut self,
        whose: Whose<'_>,
        info: &ReleaseInfo,
        lock: Locked,
        ours: bool,
        others: bool,
    ) -> Result<Option<Release>> {
        self.check().await?;
        let ended = info.end.as_ref().map(ToString::to_string).unwrap_or_default();
        let alone = info.scope == Scope::Tree || (lock.locked && !others);
        let query = bind_whose(RELEASE, whose).bind(alone).bind(lock.locked).bind(lock.file);
        let query = query.bind(ended.clone()).bind(info.why.clone());
        // What is recorded of a hold was there before it could be given back.
        let stage = if info.run_state.is_some() && self.has_record(whose).await? { info.run_state } else { None };
        let mut transaction = if stage.is_some() {
            let mut transaction = self.connection()?.begin_with("BEGIN IMMEDIATE").await.map_err(failure::statement)?;
            if changes(&mut transaction, query).await? {
                starts::became(&mut transaction, whose, stage).await?;
                transaction.commit().await.map_err(failure::statement)?;
                return Ok(Some(Release::Released));
            }
            transaction
        } else {
            if changes(self.connection()?, query).await? {
                return Ok(Some(Release::Released));
            }
            self.connection()?.begin_with("BEGIN IMMEDIATE").await.map_err(failure::statement)?
        };
        let Some(row) = look(&mut transaction, whose.namespace, whose.key).await? else { return Ok(None) };
        let not_held = Ok(Some(Release::NotHeld));
        if !row.is_owned_by(whose.token) || !row.is_held(Some(lock.file), lock.locked) {
            return not_held;
        }
        // Only the process that has a nested hold proves it beyond its lease.
        let sql = if row.is_first_hold(whose.token) {
            "UPDATE locks SET hold = NULL WHERE namespace = ?1 AND key = ?2 AND owner = ?3 AND hold = ?4 RETURNING 1"
        } else {
            "DELETE FROM holds WHERE namespace = ?1 AND key = ?2 AND owner = ?3 AND hold = ?4 AND (?5 OR expires_ms > ?6) RETURNING 1"
        };
        let query = bind_whose(sql, whose);
        let query = if row.is_first_hold(whose.token) { query } else { query.bind(ours).bind(row.now_ms) };
        if run(&mut transaction, query).await?.is_empty() {
            return not_held;
        }
        let left = look(&mut transaction, whose.namespace, whose.key).await?.map_or(0, |row| row.holds());
        let left = match (row.by_lease(Some(lock.file)), others) {
            (true, _) => left,
            (false, true) => left.max(1),
            (false, false) => 0,
        };
        let sql = if left == 0 {
            FREE
        } else {
            // What is left lasts as long as the longest of what is left.
            "UPDATE locks SET expires_ms = max(iif(hold IS NULL, 0, hold_expires_ms), coalesce((SELECT max(h.expires_ms) \
             FROM holds AS h WHERE h.namespace = ?1 AND h.key = ?2 AND h.owner = locks.owner), 0)) WHERE namespace = ?1 AND key = ?2"
        };
        let query = bind_name(sql, whose.namespace, whose.key);
        let query = if left == 0 { query.bind(ended).bind(info.why.clone()) } else { query };
        run(&mut transaction, query).await?;
        starts::became(&mut transaction, whose, stage).await?;
        transaction.commit().await.map_err(failure::statement)?;
        Ok(Some(if left == 0 { Release::Released } else { Release::StillHeld(left) }))
    }

    /// Writes the log back into the database once it has grown, when no process has to wait for it.
    pub(super) async fn tidy(&mut self, path: &Path, contended: bool) {
        let most = if contended { LOG_BYTES_CONTENDED } else { LOG_BYTES };
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        if fs::metadata(log).is_ok_and(|log| log.len() > most) {
            // The next process tries again.
            let _ = self.rows(sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)")).await;
            // The first change in an empty log syncs its header. Let it be this one, which changes nothing,
            // instead of the next grant.
            let _ = self.rows(sqlx::query("PRAGMA application_id = 1684824939")).await;
        }
    }
}

pub(super) async fn run(connection: &mut SqliteConnection, query: Query) -> Result<Vec<SqliteRow>> {
    query.fetch_all(connection).await.map_err(failure::statement)
}

async fn changes(connection: &mut SqliteConnection, query: Query) -> Result<bool> {
    Ok(query.execute(connection).await.map_err(failure::statement)?.rows_affected() > 0)
}

pub(super) async fn look(connection: &mut SqliteConnection, namespace: &Namespace, key: &Key) -> Result<Option<Row>> {
    run(connection, bind_name(LOOK, namespace, key)).await?.first().map(Row::read).transpose()
}

/// Moves the lock's end, never back.
async fn move_end(connection: &mut SqliteConnection, whose: Whose<'_>, end: i64) -> Result<()> {
    let sql = "UPDATE locks SET expires_ms = max(expires_ms, ?3), \
               renewed_ms = CAST(round(unixepoch('subsec') * 1000) AS INTEGER) WHERE namespace = ?1 AND key = ?2";
    run(connection, bind_name(sql, whose.namespace, whose.key).bind(end)).await.map(|_| ())
}

pub(super) fn bind_name(sql: &'static str, namespace: &Namespace, key: &Key) -> Query {
    sqlx::query(sql).bind(namespace.as_str().to_owned()).bind(key.as_str().to_owned())
}

pub(super) fn bind_whose(sql: &'static str, whose: Whose<'_>) -> Query {
    bind_name(sql, whose.namespace, whose.key).bind(whose.token.owner.to_string()).bind(whose.token.hold_text())
}

pub(super) fn ms(ttl: Ttl) -> i64 {
    i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)
}

pub(super) fn json(metadata: Option<&Metadata>) -> Option<String> {
    metadata.and_then(|metadata| serde_json::to_string(metadata).ok())
}

pub(super) fn fence_of(rows: &[SqliteRow]) -> Result<Option<Fence>> {
    rows.first().map(row::fence).transpose().map_err(row::malformed)
}

fn renewed(found: &SqliteRow) -> Result<Renewal> {
    let fence = row::fence(found).map_err(row::malformed)?;
    let length: i64 = found.try_get("ttl_ms").map_err(row::malformed)?;
    Ok(Renewal::Renewed { ttl: Ttl::new(millis(length)).unwrap_or(Ttl::DEFAULT), fence })
}
